/** Samples frames of a video by seeking a `<video>` element. The model chooses the frame times. */

import { describe } from "./check.js";
import { cspAdvice } from "./csp.js";
import { invalidRequest } from "./errors.js";
import { currentFrame, resolveImage, type ImageInput, type ImageSource, keyOf, keyOfAddress, errorText } from "./images.js";

/** A video: a URL (`http:`, `data:` or `blob:`), a file, or an element of the page. */
export type VideoSource = string | URL | Blob | HTMLVideoElement;

/** A video part of a message, before it is resolved. */
export type UnresolvedVideoPart = { type: "video"; fps?: number } & ({ source: VideoSource } | { frames: ImageSource[]; timestamps?: number[] });

/** A video for the engine. Equal keys mean equal videos. */
export interface VideoInput {
  frames: ImageInput["image"][];
  /** The time of each frame in seconds, then the end. */
  seconds: Float64Array;
  key?: number;
}

/** The frame times a model wants of a video of this length, then its end; in seconds. */
export type FrameTimes = (seconds: number, fps?: number) => Promise<Float64Array>;

/** The model that asks for a video, and how it chooses frames. */
export interface VideoSampling {
  model: object;
  times: FrameTimes;
}

/** Maximum pixels over all frames of a video: no model uses more, and they are held in memory. */
const MAX_VIDEO_PIXELS = 1 << 24;
/** Timeout for the next video frame. */
const FRAME_TIMEOUT_MS = 20_000;
/** Milliseconds from the end of a seek until a frame is read that was not announced: the video may have shown it before. */
const PRESENT_TIMEOUT_MS = 250;

/** Resolves a video source. @throws {@link JerboaError} that names the problem. */
export async function resolveVideo(where: string, part: UnresolvedVideoPart, sampling: VideoSampling, signal?: AbortSignal): Promise<VideoInput> {
  const { fps } = part;
  if (fps !== undefined && !(fps > 0 && Number.isFinite(fps))) throw invalidRequest(`${where}: 'fps' of a video must be a positive number, not ${describe(fps)}.`);
  if ("source" in part) return cachedVideo(where, part.source, fps, sampling);
  const { frames, timestamps } = part;
  const made: VideoInput["frames"] = [];
  for (const frame of frames) made.push((await resolveImage(where, frame, signal)).image);
  const start = timestamps ?? frames.map((_, i) => i / (fps ?? 2));
  if (!Array.isArray(start) || start.length !== frames.length || !start.every((at, i) => at >= (start[i - 1] ?? 0) && Number.isFinite(at)))
    throw invalidRequest(`${where}: 'timestamps' must be increasing seconds, one for each of the ${frames.length} frames.`);
  const [first, last] = [start[0]!, start.at(-1)!];
  const end = timestamps ? last + (start.length > 1 ? (last - first) / (start.length - 1) : 0) : start.length / (fps ?? 2);
  return { frames: made, seconds: Float64Array.from([...start, end]) };
}

/** The last sampled video: a conversation sends it again with each turn. Each model wants frames of its own. */
let lastVideo: { source: unknown; fps: number | undefined; model: object; video: Promise<VideoInput> } | undefined;

function cachedVideo(where: string, given: VideoSource, fps: number | undefined, { model, times }: VideoSampling): Promise<VideoInput> {
  const source = typeof given === "string" || given instanceof URL || given instanceof Blob ? given : given?.currentSrc || given?.src;
  if (!source) throw invalidRequest(`${where}: ${describe(given)} is not a supported video. Use a URL, a File or Blob, or a <video> element.`);
  if (lastVideo?.source !== source || lastVideo.fps !== fps || lastVideo.model !== model) {
    const made = { source, fps, model, video: sampleFrames(where, source, fps, times) };
    made.video.catch(() => lastVideo === made && (lastVideo = undefined));
    lastVideo = made;
  }
  return lastVideo.video;
}

async function sampleFrames(where: string, source: string | URL | Blob, fps: number | undefined, times: FrameTimes): Promise<VideoInput> {
  if (typeof document === "undefined") throw invalidRequest(`${where}: videos can be decoded in a page only. In a worker, pass 'frames'.`);
  const address = source instanceof Blob ? URL.createObjectURL(source) : String(source);
  const video = document.createElement("video");
  try {
    Object.assign(video, { muted: true, playsInline: true, preload: "auto", crossOrigin: "anonymous", src: address });
    await waitForEvent(video, "loadeddata");
    const seconds = await times(await lengthOf(video), fps);
    const frames: ImageBitmap[] = [];
    for (const second of seconds.subarray(0, -1)) {
      // Inside the frame rather than at its boundary.
      const at = Math.min(second + 1e-3, Math.max(0, video.duration - 1e-3));
      if (video.currentTime !== at) {
        const presented = new Promise<unknown>((resolve) => video.requestVideoFrameCallback?.(resolve));
        video.currentTime = at;
        await waitForEvent(video, "seeked");
        // A busy browser reports the seek while the video still shows the frame before. Hidden pages present none.
        if (!document.hidden) await Promise.race([presented, new Promise((resolve) => setTimeout(resolve, PRESENT_TIMEOUT_MS))]);
      }
      frames.push(await currentFrame(video, sizeOf(video, seconds.length - 1)));
    }
    // What a server sends may change.
    const key = source instanceof Blob ? keyOf(source) : /^(data|blob):/i.test(address) ? keyOfAddress(address) : undefined;
    return { frames, seconds, ...(fps === undefined && key !== undefined ? { key } : {}) };
  } catch (thrown) {
    if (thrown instanceof DOMException) throw invalidRequest(`${where}: the video's frames cannot be read: ${errorText(thrown)} Videos from other sites must be served with CORS headers.`);
    const blocked = cspAdvice("media-src", address);
    throw blocked ? invalidRequest(`${where}: ${blocked}`) : thrown;
  } finally {
    video.removeAttribute("src");
    video.load();
    if (source instanceof Blob) URL.revokeObjectURL(address);
  }
}

/** Scales frames down when together they exceed the limit. */
function sizeOf({ videoWidth, videoHeight }: HTMLVideoElement, frames: number): ImageBitmapOptions {
  const less = Math.sqrt(MAX_VIDEO_PIXELS / (videoWidth * videoHeight * frames));
  const side = (length: number): number => Math.max(1, Math.round(length * less));
  return less < 1 ? { resizeWidth: side(videoWidth), resizeHeight: side(videoHeight), resizeQuality: "high" } : {};
}

/** The video's duration; recordings report it only after seeking to the end. */
async function lengthOf(video: HTMLVideoElement): Promise<number> {
  if (!Number.isFinite(video.duration)) {
    video.currentTime = Number.MAX_SAFE_INTEGER;
    await waitForEvent(video, "seeked");
  }
  return Number.isFinite(video.duration) ? video.duration : video.currentTime;
}

function waitForEvent(video: HTMLVideoElement, event: "loadeddata" | "seeked"): Promise<void> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(invalidRequest("Timed out waiting for the next video frame (20 s). Check that the video plays in this browser.")), FRAME_TIMEOUT_MS);
    const finish = (how: () => void): void => {
      clearTimeout(late);
      how();
    };
    video.addEventListener(event, () => finish(resolve), { once: true });
    video.addEventListener("error", () => finish(() => reject(invalidRequest(`This browser cannot play the video: ${video.error?.message || "its URL or its format is not supported"}.`))), { once: true });
  });
}
