/** Resolves the images and videos in the messages of a conversation. */

import { resolveImage, type UnresolvedImagePart } from "./images.js";
import { type FrameTimes, resolveVideo, type UnresolvedVideoPart } from "./video.js";

/** Resolves all images and videos of a conversation in parallel; `times` chooses the frames of a video. */
export async function resolveImages(where: string, messages: unknown[], times: FrameTimes): Promise<unknown[]> {
  return eachPart(messages, async (part) => ({ type: part.type, ...(await (part.type === "image" ? resolveImage(where, part.source) : resolveVideo(where, part, times))) }));
}

/** Replaces images by placeholders, for the chat template. */
export async function imagePlaceholders(messages: unknown[]): Promise<unknown[]> {
  return eachPart(messages, ({ type }) => ({ type }));
}

async function eachPart(messages: unknown[], change: (part: UnresolvedImagePart | UnresolvedVideoPart) => unknown): Promise<unknown[]> {
  const changed = messages.map(async (message) => {
    const { content } = message as { content?: unknown };
    if (!Array.isArray(content)) return message;
    return { ...(message as object), content: await Promise.all(content.map((part) => ((part as { type?: string }).type === "text" ? part : change(part as UnresolvedImagePart)))) };
  });
  return Promise.all(changed);
}
