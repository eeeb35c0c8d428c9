/** Resolves the images and videos in the messages of a conversation. */

import type { ModelInfo } from "./contract.js";
import type { Backend } from "./engine-calls.js";
import { resolveImage, type UnresolvedImagePart } from "./images.js";
import { resolveVideo, type UnresolvedVideoPart } from "./video.js";
import { untilEnded } from "./waits.js";

/** Resolves all images and videos of a conversation in parallel. */
export function resolveImages(where: string, messages: unknown[], backend: Backend, info: ModelInfo, signal: AbortSignal | undefined): Promise<unknown[]> {
  const sampling = { model: info, times: (seconds: number, fps?: number) => backend.call("frameTimes", [seconds, fps]) };
  return untilEnded(backend.ending, where, signal, (ends) =>
    eachPart(messages, async (part) => ({ type: part.type, ...(await (part.type === "image" ? resolveImage(where, part.source, ends) : resolveVideo(where, part, sampling, ends))) })));
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
