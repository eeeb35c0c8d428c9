/** Videos as programs have them, cut into frames by a `<video>` of the page that seeks. Knows the browser's player; neither models nor which frames they want. */

import { describe as said } from "./check.js";
import { refused } from "./errors.js";
import { given, type GivenImage, type ImageSource, keyOf, keyOfAddress, reason } from "./pictures.js";

/** A video: an address (`http:`, `data:` or `blob:`), a file, or an element of the page. */
export type VideoSource = string | URL | Blob | HTMLVideoElement;

/** A part of a message that is a video, before it is made ready. */
export type VideoPartSource = { type: "video"; fps?: number } & ({ source: VideoSource } | { frames: ImageSource[]; timestamps?: number[] });

/** A video on its way to the engine. Equal keys are equal videos. */
export interface GivenVideo {
  frames: GivenImage["image"][];
  /** When each frame shows, and the end. */
  seconds: Float64Array;
  key?: number;
}

/** The seconds at which a model wants frames of a video of so many seconds, and its end. */
export type FrameTimes = (seconds: number, fps?: number) => Promise<Float64Array>;

/** The most pixels of all frames of a video: no model takes more, and they wait in memory. */
const MOST = 1 << 24;
/** How long a video's next frame may take to come. */
const PATIENCE_MS = 20_000;

/** Makes a video ready. @throws {@link JerboaError} with what is wrong with it. */
export async function givenVideo(where: string, part: VideoPartSource, times: FrameTimes): Promise<GivenVideo> {
  const { fps } = part;
  if (fps !== undefined && !(fps > 0 && Number.isFinite(fps))) throw refused(`${where}: 'fps' of a video must be a positive number, not ${said(fps)}.`);
  if ("source" in part) return kept(where, part.source, fps, times);
  const { frames, timestamps } = part;
  const made: GivenVideo["frames"] = [];
  for (const frame of frames) made.push((await given(where, frame)).image);
  const start = timestamps ?? frames.map((_, i) => i / (fps ?? 2));
  if (start.length !== frames.length || !start.every((at, i) => at >= (start[i - 1] ?? 0) && Number.isFinite(at)))
    throw refused(`${where}: 'timestamps' must be growing numbers of seconds, one for each of the ${frames.length} frames.`);
  const [first, last] = [start[0]!, start.at(-1)!];
  const end = timestamps ? last + (start.length > 1 ? (last - first) / (start.length - 1) : 0) : start.length / (fps ?? 2);
  return { frames: made, seconds: Float64Array.from([...start, end]) };
}

/** The video that was cut last: a conversation brings it again with each turn. */
let last: { source: unknown; fps: number | undefined; video: Promise<GivenVideo> } | undefined;

function kept(where: string, given: VideoSource, fps: number | undefined, times: FrameTimes): Promise<GivenVideo> {
  const source = typeof given === "string" || given instanceof URL || given instanceof Blob ? given : given?.currentSrc || given?.src;
  if (!source) throw refused(`${where}: ${said(given)} is no video. Give an address, a File or Blob, or a <video>.`);
  if (last?.source !== source || last.fps !== fps) {
    const made = { source, fps, video: cut(where, source, fps, times) };
    made.video.catch(() => last === made && (last = undefined));
    last = made;
  }
  return last.video;
}

async function cut(where: string, source: string | URL | Blob, fps: number | undefined, times: FrameTimes): Promise<GivenVideo> {
  if (typeof document === "undefined") throw refused(`${where}: videos are cut into frames by a page; in a worker give 'frames'.`);
  const address = source instanceof Blob ? URL.createObjectURL(source) : String(source);
  const video = document.createElement("video");
  try {
    Object.assign(video, { muted: true, playsInline: true, preload: "auto", crossOrigin: "anonymous", src: address });
    await shows(video, "loadeddata");
    const seconds = await times(await lengthOf(video), fps);
    const frames: ImageBitmap[] = [];
    for (const second of seconds.subarray(0, -1)) {
      // Within the frame, not at its edge.
      const at = Math.min(second + 1e-3, Math.max(0, video.duration - 1e-3));
      if (video.currentTime !== at) {
        video.currentTime = at;
        await shows(video, "seeked");
      }
      frames.push(await createImageBitmap(video, sizeOf(video, seconds.length - 1)));
    }
    const same = source instanceof Blob ? keyOf(source) : keyOfAddress(address);
    return { frames, seconds, ...(fps === undefined ? { key: same } : {}) };
  } catch (thrown) {
    if (thrown instanceof DOMException) throw refused(`${where}: the video's frames cannot be read: ${reason(thrown)} Videos of other sites need CORS.`);
    throw thrown;
  } finally {
    video.removeAttribute("src");
    video.load();
    if (source instanceof Blob) URL.revokeObjectURL(address);
  }
}

/** Frames that are too large together come smaller. */
function sizeOf({ videoWidth, videoHeight }: HTMLVideoElement, frames: number): ImageBitmapOptions {
  const less = Math.sqrt(MOST / (videoWidth * videoHeight * frames));
  const side = (length: number): number => Math.max(1, Math.round(length * less));
  return less < 1 ? { resizeWidth: side(videoWidth), resizeHeight: side(videoHeight), resizeQuality: "high" } : {};
}

/** What a recorder wrote tells its length only when its end was looked for. */
async function lengthOf(video: HTMLVideoElement): Promise<number> {
  if (!Number.isFinite(video.duration)) {
    video.currentTime = Number.MAX_SAFE_INTEGER;
    await shows(video, "seeked");
  }
  return Number.isFinite(video.duration) ? video.duration : video.currentTime;
}

function shows(video: HTMLVideoElement, event: "loadeddata" | "seeked"): Promise<void> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(refused("The video's next frame does not come.")), PATIENCE_MS);
    const settle = (how: () => void): void => {
      clearTimeout(late);
      how();
    };
    video.addEventListener(event, () => settle(resolve), { once: true });
    video.addEventListener("error", () => settle(() => reject(refused(`The video cannot be played by this browser: ${video.error?.message || "its address or its format is not understood"}.`))), { once: true });
  });
}
