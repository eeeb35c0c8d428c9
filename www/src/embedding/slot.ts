/** The embedding model of the page: the Embedding tab's, which also searches the files of conversations. */

import type { Model } from "jerboa";
import { refreshCached } from "../model/cached";
import { BUNDLED_ENCODER, MINILM } from "../model/catalog";
import { ModelSlot } from "../model/model-store";

export const embeddingSlot = new ModelSlot("embedding", ({ model }) => model.info.task === "embed");

/** Loads the initial model: the last one, else MiniLM if it is cached, else the bundled one. */
export async function loadFirst(): Promise<void> {
  const chosen = embeddingSlot.lastRequest.peek();
  if (chosen) return embeddingSlot.load(chosen);
  const there = (await refreshCached()).some(({ model, complete }) => model === MINILM.source && complete);
  if (embeddingSlot.idle) await embeddingSlot.load(there ? MINILM : BUNDLED_ENCODER);
}

const embeds = (): Model | undefined => {
  const model = embeddingSlot.model.peek();
  return model?.info.task === "embed" ? model : undefined;
};

/** The embedding model, loaded if necessary. */
export async function embeddingModel(): Promise<Model> {
  if (!embeds()) await (embeddingSlot.pending.peek() ? embeddingSlot.settled() : loadFirst());
  if (!embeds()) await embeddingSlot.load(BUNDLED_ENCODER);
  const model = embeds();
  if (!model) throw embeddingSlot.pending.peek()?.error ?? new Error("The embedding model could not be loaded.");
  return model;
}
