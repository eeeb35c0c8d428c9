/** Takes a photo with the device's camera. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { VISION } from "../strings";
import { Dialog } from "../ui/dialog";

export function Camera({ onTaken, onClose }: { onTaken: (image: Blob) => void; onClose: () => void }) {
  const video = useRef<HTMLVideoElement>(null);
  const problem = useSignal("");
  const live = useSignal(false);
  useEffect(() => {
    let stream: MediaStream | undefined;
    let closed = false;
    const stop = (): void => stream?.getTracks().forEach((track) => track.stop());
    const start = async (): Promise<void> => {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
      if (closed || !video.current) return stop();
      video.current.srcObject = stream;
      await video.current.play();
      live.value = true;
    };
    start().catch((thrown: unknown) => (problem.value = VISION.noCamera(thrown instanceof Error ? thrown.message : String(thrown))));
    return () => {
      closed = true;
      stop();
    };
  }, []);
  const take = async (): Promise<void> => {
    const shown = video.current;
    if (!shown) return;
    const canvas = new OffscreenCanvas(shown.videoWidth, shown.videoHeight);
    canvas.getContext("2d")?.drawImage(shown, 0, 0);
    onTaken(new File([await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 })], VISION.photo, { type: "image/jpeg" }));
    onClose();
  };
  return (
    <Dialog open title={VISION.camera} onClose={onClose}>
      {problem.value ? <p role="alert">{problem}</p> : <video ref={video} class="viewfinder" playsInline muted />}
      <button type="button" class="primary" disabled={!live.value} onClick={() => void take()}>
        {VISION.take}
      </button>
    </Dialog>
  );
}
