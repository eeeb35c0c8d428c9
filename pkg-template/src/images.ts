/** Converts images of the page to transferable inputs of the engine. Decoding happens elsewhere. */

import { describe } from "./check.js";
import { cspAdvice } from "./csp.js";
import { downloadMedia, StatusError } from "./download.js";
import { aborted, JerboaError, invalidRequest } from "./errors.js";
import { isDetached } from "./plain-json.js";
import { platform } from "./platform.js";
import { IMAGE_TIMEOUT_MS, withTimeout } from "./waits.js";

/**
 * An image: a URL (`http:`, `data:` or `blob:`), a file, or an object of the page. Of a track or a video the current
 * frame is used.
 */
export type ImageSource =
  | string | URL | Blob | ImageBitmap | ImageData | VideoFrame | HTMLImageElement | HTMLCanvasElement | OffscreenCanvas | HTMLVideoElement | MediaStreamTrack;

/** An image for the engine. Equal keys mean equal images, which are encoded once; without a key their pixels tell. */
export interface ImageInput {
  image: Blob | ImageBitmap | ImageData;
  key?: number;
}

/** An image part of a message, before it is resolved. */
export interface UnresolvedImagePart {
  type: "image";
  source: ImageSource;
}

/** Keys of immutable objects. */
const keys = new WeakMap<object, number>();
const addresses = new Map<string, number>();
let next = 1;

/** Total characters of URLs to remember; a `data:` URL contains the whole image. */
const MAX_URL_CHARS = 32 << 20;
let characters = 0;

/** Images of `blob:` URLs, which never change but may be revoked before a later turn of their conversation. */
const blobs = new Map<string, Blob>();
/** Total bytes of {@link blobs}. */
const MAX_BLOB_BYTES = 64 << 20;
let blobBytes = 0;

/** The key of an immutable object. */
export function keyOf(object: object): number {
  const key = keys.get(object) ?? next++;
  keys.set(object, key);
  return key;
}

function rememberBlob(address: string, blob: Blob): void {
  if (!blobs.has(address)) blobBytes += blob.size;
  blobs.set(address, blob);
  for (const [oldest, { size }] of blobs) {
    if (blobBytes <= MAX_BLOB_BYTES) break;
    blobs.delete(oldest);
    blobBytes -= size;
  }
}

/** The key of a URL whose content never changes: `data:` or `blob:`. */
export function keyOfAddress(address: string): number {
  const key = addresses.get(address) ?? next++;
  if (!addresses.delete(address)) characters += address.length;
  addresses.set(address, key);
  for (const oldest of addresses.keys()) {
    if (characters <= MAX_URL_CHARS) break;
    addresses.delete(oldest);
    characters -= oldest.length;
  }
  return key;
}

const is = <T>(value: unknown, name: string): value is T => {
  const known = (globalThis as Record<string, unknown>)[name];
  return typeof known === "function" && value instanceof known;
};

/** Resolves an image source; `signal` ends its download. @throws {@link JerboaError} that names the problem. */
export async function resolveImage(where: string, source: ImageSource, signal?: AbortSignal): Promise<ImageInput> {
  if (typeof source === "string" || source instanceof URL) return fetched(where, String(source), signal);
  if (is<Blob>(source, "Blob")) return { image: await sendable(source), key: keyOf(source) };
  if (is<ImageBitmap>(source, "ImageBitmap")) {
    if (source.width === 0) throw invalidRequest(`${where}: the ImageBitmap was closed or transferred elsewhere. Pass an open one.`);
    return { image: source, key: keyOf(source) };
  }
  if (is<ImageData>(source, "ImageData")) {
    if (isDetached(source.data.buffer)) throw invalidRequest(`${where}: the ImageData's buffer was transferred elsewhere. Pass a copy.`);
    return { image: source };
  }
  if (is<MediaStreamTrack>(source, "MediaStreamTrack")) return { image: await frameOf(where, source) };
  const shows = ["VideoFrame", "HTMLImageElement", "HTMLCanvasElement", "OffscreenCanvas", "HTMLVideoElement"].some((name) => is(source, name));
  if (!shows) throw invalidRequest(`${where}: ${describe(source)} is not a supported image. Use a URL, a File or Blob, an ImageBitmap, ImageData, a VideoFrame, or an element that shows an image.`);
  try {
    if (is<HTMLImageElement>(source, "HTMLImageElement")) await withTimeout(IMAGE_TIMEOUT_MS, "HTMLImageElement.decode()", source.decode());
    return { image: is<HTMLVideoElement>(source, "HTMLVideoElement") ? await currentFrame(source) : await bitmapOf(source as ImageBitmapSource) };
  } catch (thrown) {
    throw invalidRequest(`${where}: the element has no readable image yet: ${errorText(thrown)}`);
  }
}

/** A blob that can be sent to the engine's thread: Node's blobs of files cannot. */
const sendable = async (blob: Blob): Promise<Blob> => (platform() ? new Blob([await blob.arrayBuffer()], { type: blob.type }) : blob);

async function fetched(where: string, address: string, signal: AbortSignal | undefined): Promise<ImageInput & { image: Blob }> {
  const short = address.length > 80 ? `${address.slice(0, 77)}...` : address;
  let url: URL;
  try {
    url = new URL(address, globalThis.document?.baseURI ?? globalThis.location?.href);
  } catch {
    throw invalidRequest(`${where}: '${short}' is not a valid URL. Pass an http:, https:, data: or blob: URL.`);
  }
  if (!["http:", "https:", "data:", "blob:"].includes(url.protocol) && !(platform() && url.protocol === "file:")) throw invalidRequest(`${where}: image URLs must start with http:, https:, data: or blob:, not '${short}'.`);
  if (url.protocol === "data:") return { image: decodeDataUrl(where, address), key: keyOfAddress(address) };
  const isBlob = url.protocol === "blob:";
  const known = blobs.get(url.href);
  if (known) return { image: known, key: keyOf(known) };
  try {
    const image = await downloadMedia(url, signal);
    if (!isBlob) return { image };
    rememberBlob(url.href, image);
    return { image, key: keyOf(image) };
  } catch (thrown) {
    if (signal?.aborted) throw aborted(where);
    if (thrown instanceof JerboaError) throw thrown;
    if (thrown instanceof StatusError) throw new JerboaError("network", `${where}: the image at ${short} could not be fetched (HTTP ${thrown.status}). Check the URL.`);
    // Browsers report a violation of the page's policy after the failure.
    await new Promise((resolve) => setTimeout(resolve));
    const advice = isBlob ? "The URL was revoked. Pass the Blob itself." : `Its server must be reachable${platform() ? "" : " and allow this page to read it (CORS)"}.`;
    const reason = cspAdvice("connect-src", url.href) ?? `${errorText(thrown)} ${advice}`;
    throw new JerboaError("network", `${where}: the image at ${short} could not be fetched: ${reason}`, { cause: thrown });
  }
}

/** Decodes a `data:` URL; the page's policy may forbid fetching one. */
function decodeDataUrl(where: string, address: string): Blob {
  const [, head = "", body = ""] = /^data:([^,]*),(.*)$/is.exec(address.trim()) ?? [];
  try {
    // One character a byte: percent-encoded bytes need not be UTF-8.
    const binary = body.replace(/[^\0-\x7f]+/g, encodeURIComponent).replace(/%([\da-f]{2})/gi, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
    const bytes = Uint8Array.from(/;base64\s*$/i.test(head) ? atob(binary) : binary, (c) => c.charCodeAt(0));
    return new Blob([bytes], { type: head.split(";")[0]! });
  } catch (thrown) {
    throw invalidRequest(`${where}: the data: URL is invalid: ${errorText(thrown)} Pass base64 or percent-encoded data.`);
  }
}

async function frameOf(where: string, track: MediaStreamTrack): Promise<ImageBitmap> {
  if (track.kind !== "video" || track.readyState !== "live") throw invalidRequest(`${where}: the track has no image: it ${track.kind === "video" ? "has ended" : "is not a video track"}. Pass a live video track.`);
  const video = document.createElement("video");
  video.muted = true;
  video.playsInline = true;
  video.srcObject = new MediaStream([track]);
  try {
    await withTimeout(IMAGE_TIMEOUT_MS, "HTMLVideoElement.play()", video.play());
    return await currentFrame(video);
  } catch (thrown) {
    throw invalidRequest(`${where}: no frame could be read from the track: ${errorText(thrown)}`);
  } finally {
    video.srcObject = null;
  }
}

/** An image of the browser, closed if it comes after the deadline. */
export function bitmapOf(source: ImageBitmapSource, options?: ImageBitmapOptions): Promise<ImageBitmap> {
  return withTimeout(IMAGE_TIMEOUT_MS, "createImageBitmap()", (async () => createImageBitmap(source, options))(), (late) => late.close());
}

/**
 * The frame that a video shows. `loadeddata` and `seeked` may precede the frame itself, so an unusable source is read
 * again with the next frame.
 */
export async function currentFrame(video: HTMLVideoElement, options?: ImageBitmapOptions): Promise<ImageBitmap> {
  const end = Date.now() + IMAGE_TIMEOUT_MS;
  for (;;) {
    try {
      return await bitmapOf(video, options);
    } catch (thrown) {
      if (!(thrown instanceof DOMException && thrown.name === "InvalidStateError") || Date.now() >= end || video.readyState === HAVE_NOTHING) throw thrown;
      await nextFrame(video);
    }
  }
}

/** `readyState` of a video without any data. */
const HAVE_NOTHING = 0;
/** Milliseconds until a video that shows no new frame is read again: pages in the background present none. */
const FRAME_RETRY_MS = 100;

function nextFrame(video: HTMLVideoElement): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, FRAME_RETRY_MS);
    video.requestVideoFrameCallback?.(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** An error's message, as the end of a sentence. */
export function errorText(thrown: unknown): string {
  return (thrown instanceof Error ? thrown.message : String(thrown)).replace(/\.?$/, ".");
}
