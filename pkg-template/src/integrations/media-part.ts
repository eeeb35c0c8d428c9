/** Message parts of images and videos, from what other libraries' messages hold. */

import type { ChatMessage } from "../index.js";

/** A part of a user's message. */
export type UserPart = Exclude<Extract<ChatMessage, { role: "user" | "system" | "developer" }>["content"], string>[number];

/** Blobs of bytes, so that an image of an earlier turn is not encoded again. */
const blobs = new WeakMap<Uint8Array, Blob>();

/** The part of an image or a video at a URL, or of its bytes, which are of the media type `type`. */
export function mediaPart(kind: "image" | "video", source: string | Uint8Array<ArrayBuffer>, type: string): UserPart {
  if (typeof source === "string") return kind === "image" ? { type: "image_url", image_url: { url: source } } : { type: "video_url", video_url: { url: source } };
  const blob = blobs.get(source) ?? new Blob([source], { type });
  blobs.set(source, blob);
  return kind === "image" ? { type: "image", image: blob } : { type: "video", video: blob };
}
