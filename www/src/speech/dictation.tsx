/** Dictates into the composer. Loaded with the first use of the microphone. */

import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { bytes } from "../format";
import { ASR_SUGGESTIONS, requestOf } from "../model/catalog";
import { PendingStrip } from "../model/status";
import { COMPOSER } from "../strings";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icon";
import { Notice } from "../ui/notice";
import { sttSlot } from "./slots";
import { TranscriptionState } from "./transcription";

const transcription = new TranscriptionState();

interface Props {
  /** Receives each sentence. */
  onText: (text: string) => void;
}

/** The microphone's button, and a dialog while there is no model. */
export default function Dictation({ onText }: Props) {
  const asking = useSignal(false);
  const heard = useRef(0);
  const on = transcription.listening.value;
  useSignalEffect(() => {
    const lines = transcription.lines.value;
    for (const { text } of lines.slice(heard.current)) onText(text.trim());
    heard.current = lines.length;
  });
  const start = (): void => {
    const model = sttSlot.model.peek();
    if (model?.info.task === "transcribe") {
      heard.current = 0;
      transcription.clear();
      void transcription.listen(model);
    } else asking.value = true;
  };
  useEffect(() => {
    const chosen = sttSlot.lastRequest.peek();
    if (sttSlot.model.peek() || !chosen) return start();
    void sttSlot.load(chosen).then(start);
  }, []);
  return (
    <>
      <button type="button" class={on ? "icon-button dictating" : "icon-button"} aria-label={on ? COMPOSER.stopDictation : COMPOSER.dictate} title={on ? COMPOSER.stopDictation : COMPOSER.dictate} aria-pressed={on} onClick={() => (on ? transcription.stop() : start())}>
        <Icon name={on ? "stop" : "mic"} />
      </button>
      <Dialog open={asking.value || transcription.error.value !== undefined} title={COMPOSER.dictate} onClose={() => ((asking.value = false), transcription.clear())}>
        {transcription.error.value ? (
          <Notice error={transcription.error.value} />
        ) : (
          <Ask
            onReady={() => {
              asking.value = false;
              start();
            }}
          />
        )}
      </Dialog>
    </>
  );
}

/** Offers a speech-to-text model. */
function Ask({ onReady }: { onReady: () => void }) {
  const pending = sttSlot.pending.value;
  const offer = ASR_SUGGESTIONS[0]!;
  const load = (): void =>
    void sttSlot.load(requestOf(offer)).then(() => {
      if (sttSlot.model.peek()?.info.task === "transcribe") onReady();
    });
  return (
    <>
      <p>{COMPOSER.needsSpeechModel}</p>
      {pending ? (
        <PendingStrip slot={sttSlot} pending={pending} choose={() => (location.hash = "#stt")} />
      ) : (
        <div class="row row-wrap">
          <button type="button" class="primary" onClick={load}>
            {COMPOSER.loadSpeechModel(offer.name, bytes(offer.bytes))}
          </button>
          <a class="secondary" href="#stt">
            {COMPOSER.otherSpeechModel}
          </a>
        </div>
      )}
    </>
  );
}
