/** Pictures as programs have them, made ready to cross to the engine. Knows the browser's kinds of pictures; not how they are decoded. */

import { describe as said } from "./check.js";
import { JerboaError, refused } from "./errors.js";
import { type FrameTimes, givenVideo, type VideoPartSource } from "./video.js";

/** A picture: an address (`http:`, `data:` or `blob:`), a file, or something of the page that shows one. Of a track or a video it is the frame that shows now. */
export type ImageSource =
  | string | URL | Blob | ImageBitmap | ImageData | VideoFrame | HTMLImageElement | HTMLCanvasElement | OffscreenCanvas | HTMLVideoElement | MediaStreamTrack;

/** A picture on its way to the engine. Equal keys are equal pictures: they are decoded once. */
export interface GivenImage {
  image: Blob | ImageBitmap | ImageData;
  key?: number;
}

/** A part of a message that is a picture, before it is made ready. */
export interface ImagePartSource {
  type: "image";
  source: ImageSource;
}

/** Pictures that do not change, by what they are. */
const keys = new WeakMap<object, number>();
const addresses = new Map<string, number>();
let next = 1;

/** Characters of addresses that are remembered: a `data:` address is a whole picture. */
const CHARACTERS = 32 << 20;
let characters = 0;

/** The number of what does not change. */
export function keyOf(object: object): number {
  const key = keys.get(object) ?? next++;
  keys.set(object, key);
  return key;
}

/** The number of what an address stands for. */
export function keyOfAddress(address: string): number {
  const key = addresses.get(address) ?? next++;
  if (!addresses.delete(address)) characters += address.length;
  addresses.set(address, key);
  for (const oldest of addresses.keys()) {
    if (characters <= CHARACTERS) break;
    addresses.delete(oldest);
    characters -= oldest.length;
  }
  return key;
}

const is = <T>(value: unknown, name: string): value is T => {
  const known = (globalThis as Record<string, unknown>)[name];
  return typeof known === "function" && value instanceof known;
};

/** Makes a picture ready. @throws {@link JerboaError} with what is wrong with it. */
export async function given(where: string, source: ImageSource): Promise<GivenImage> {
  if (typeof source === "string" || source instanceof URL) return fetched(where, String(source));
  if (is<Blob>(source, "Blob")) return { image: source, key: keyOf(source) };
  if (is<ImageBitmap>(source, "ImageBitmap")) return { image: source, key: keyOf(source) };
  if (is<ImageData>(source, "ImageData")) return { image: source };
  if (is<MediaStreamTrack>(source, "MediaStreamTrack")) return { image: await frameOf(where, source) };
  const shows = ["VideoFrame", "HTMLImageElement", "HTMLCanvasElement", "OffscreenCanvas", "HTMLVideoElement"].some((name) => is(source, name));
  if (!shows) throw refused(`${where}: ${said(source)} is no picture. Give an address, a File or Blob, an ImageBitmap, ImageData, a VideoFrame, or an element of the page that shows one.`);
  try {
    if (is<HTMLImageElement>(source, "HTMLImageElement")) await source.decode();
    return { image: await createImageBitmap(source as ImageBitmapSource) };
  } catch (thrown) {
    throw refused(`${where}: the element shows no picture yet, or none that can be read: ${reason(thrown)}`);
  }
}

async function fetched(where: string, address: string): Promise<GivenImage & { image: Blob }> {
  const short = address.length > 80 ? `${address.slice(0, 77)}...` : address;
  let url: URL;
  try {
    url = new URL(address, globalThis.document?.baseURI ?? globalThis.location?.href);
  } catch {
    throw refused(`${where}: '${short}' is no address of a picture.`);
  }
  if (!["http:", "https:", "data:", "blob:"].includes(url.protocol)) throw refused(`${where}: pictures come from http:, https:, data: and blob: addresses, not from '${short}'.`);
  if (url.protocol === "data:") return { image: inside(where, address), key: keyOfAddress(address) };
  let response: Response;
  try {
    response = await fetch(url);
  } catch (thrown) {
    const advice = url.protocol.startsWith("http") ? " Its server must be reachable and allow this page to read it (CORS)." : " The address was revoked, or the page's policy forbids it.";
    throw new JerboaError("network", `${where}: the picture at ${short} could not be fetched: ${reason(thrown)}${advice}`, { cause: thrown });
  }
  if (!response.ok) throw new JerboaError("network", `${where}: the picture at ${short} could not be fetched (HTTP ${response.status}).`);
  return { image: await response.blob(), key: keyOfAddress(url.href) };
}

/** What a `data:` address holds: a page's policy may forbid to fetch one. */
function inside(where: string, address: string): Blob {
  const [, head = "", body = ""] = /^data:([^,]*),(.*)$/is.exec(address.trim()) ?? [];
  try {
    const bytes = /;base64\s*$/i.test(head) ? Uint8Array.from(atob(decodeURIComponent(body)), (c) => c.charCodeAt(0)) : new TextEncoder().encode(decodeURIComponent(body));
    return new Blob([bytes], { type: head.split(";")[0]! });
  } catch (thrown) {
    throw refused(`${where}: the data: address is damaged: ${reason(thrown)}`);
  }
}

async function frameOf(where: string, track: MediaStreamTrack): Promise<ImageBitmap> {
  if (track.kind !== "video" || track.readyState !== "live") throw refused(`${where}: the track shows nothing: it is ${track.kind === "video" ? "ended" : "no video"}.`);
  const video = document.createElement("video");
  video.muted = true;
  video.playsInline = true;
  video.srcObject = new MediaStream([track]);
  try {
    await video.play();
    return await createImageBitmap(video);
  } finally {
    video.srcObject = null;
  }
}

/** Makes the pictures and videos of a conversation ready, all at once; `times` says which frames of a video are taken. */
export async function withPictures(where: string, messages: unknown[], times: FrameTimes): Promise<unknown[]> {
  return eachPart(messages, async (part) => ({ type: part.type, ...(await (part.type === "image" ? given(where, part.source) : givenVideo(where, part, times))) }));
}

/** The conversation with nothing but the places of its pictures: what a template reads. */
export async function withoutPictures(messages: unknown[]): Promise<unknown[]> {
  return eachPart(messages, ({ type }) => ({ type }));
}

async function eachPart(messages: unknown[], change: (part: ImagePartSource | VideoPartSource) => unknown): Promise<unknown[]> {
  const changed = messages.map(async (message) => {
    const { content } = message as { content?: unknown };
    if (!Array.isArray(content)) return message;
    return { ...(message as object), content: await Promise.all(content.map((part) => ((part as { type?: string }).type === "text" ? part : change(part as ImagePartSource)))) };
  });
  return Promise.all(changed);
}

/** What an error says, as the end of a sentence. */
export function reason(thrown: unknown): string {
  return (thrown instanceof Error ? thrown.message : String(thrown)).replace(/\.?$/, ".");
}
