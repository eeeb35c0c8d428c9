/** Embeddings of LangChain. */

import { Embeddings, type EmbeddingsParams } from "@langchain/core/embeddings";
import type { EmbedOptions, Model } from "../index.js";
import { LazyModel, type LazySource, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";

/** Settings of {@link JerboaEmbeddings}. */
export interface JerboaEmbeddingsFields extends EmbeddingsParams {
  /** What to load with the first call, or a loaded model. */
  model: LazySource;
  /** Options of the load. */
  load?: SharedLoadOptions;
  /** Options of every call. Without a `task`, the model's prompts `query` and `document` are used where it has them. */
  embed?: Omit<EmbedOptions, "signal" | "onProgress">;
}

/** Embeddings that are computed in this browser. */
export class JerboaEmbeddings extends Embeddings {
  readonly #lazy: LazyModel;
  readonly #options: EmbedOptions;

  constructor(fields: JerboaEmbeddingsFields) {
    super((fields ??= {} as JerboaEmbeddingsFields));
    this.#lazy = sharedModel(fields.model, fields.load);
    this.#options = fields.embed ?? {};
  }

  /** The load of the model: its state, progress, and whether it can be used here. */
  get loader(): Pick<LazyModel, "state" | "subscribe" | "load" | "unload" | "availability"> {
    return this.#lazy;
  }

  override async embedDocuments(documents: string[]): Promise<number[][]> {
    const model = await this.#lazy.load();
    const vectors = await model.embed(documents, this.#optionsFor(model, "document"));
    return vectors.map((vector) => Array.from(vector));
  }

  override async embedQuery(document: string): Promise<number[]> {
    const model = await this.#lazy.load();
    return Array.from(await model.embed(document, this.#optionsFor(model, "query")));
  }

  #optionsFor(model: Model, task: string): EmbedOptions {
    const isGiven = this.#options.task !== undefined || this.#options.prompt !== undefined;
    return !isGiven && model.info.prompts?.[task] !== undefined ? { ...this.#options, task } : this.#options;
  }
}
