/**
 * A provider for the AI SDK: models of this package for `generateText`, `streamText`, `embedMany`, `transcribe`,
 * `generateSpeech` and `rerank`.
 *
 * @module jerboa/ai
 */

import type { ProviderV4 } from "@ai-sdk/provider";
import { JerboaError, type Model } from "../index.js";
import { type Availability, hasWebGpu, isLoaded, type LazyModel, type LazySource, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";
import { JerboaLanguageModel } from "./language-model.js";
import { JerboaEmbeddingModel, JerboaRerankingModel, JerboaSpeechModel, JerboaTranscriptionModel } from "./models.js";

export { JerboaLanguageModel } from "./language-model.js";
export { JerboaEmbeddingModel, JerboaRerankingModel, JerboaSpeechModel, JerboaTranscriptionModel } from "./models.js";
export type { LazyEntry } from "./entry.js";
export type { Availability, LazySource, LoadState, SharedLoadOptions } from "../integrations/lazy-model.js";

/** Settings of {@link createJerboa}. */
export interface JerboaProviderSettings {
  /** Models by short names; other names are repositories of the Hub, or URLs. */
  models?: Record<string, LazySource>;
  /** Options of every load. */
  load?: SharedLoadOptions;
}

/** A provider of the AI SDK. Called itself, it returns a language model. */
export interface JerboaProvider extends ProviderV4 {
  /** A language model: by name, or a loaded one. It loads with the first call. */
  (model: string | Model, options?: SharedLoadOptions): JerboaLanguageModel;
  languageModel(model: string | Model, options?: SharedLoadOptions): JerboaLanguageModel;
  embeddingModel(model: string | Model, options?: SharedLoadOptions): JerboaEmbeddingModel;
  rerankingModel(model: string | Model, options?: SharedLoadOptions): JerboaRerankingModel;
  transcriptionModel(model: string | Model, options?: SharedLoadOptions): JerboaTranscriptionModel;
  speechModel(model: string | Model, options?: SharedLoadOptions): JerboaSpeechModel;
  /** Refused: no model of this package generates images. */
  imageModel(model: string): never;
  /** Whether this browser can run models, or, given a name, whether that model needs a download first. */
  availability(model?: string, options?: SharedLoadOptions): Promise<Availability>;
}

/**
 * Creates a provider for the AI SDK.
 *
 * ```js
 * const jerboa = createJerboa({ models: { chat: "mlx-community/Qwen3-1.7B-4bit" } });
 * const { text } = await generateText({ model: jerboa("chat"), prompt: "Why is the sky blue?" });
 * ```
 */
export function createJerboa(settings: JerboaProviderSettings = {}): JerboaProvider {
  const lazy = (model: string | Model, options?: SharedLoadOptions): LazyModel => {
    if (isLoaded(model)) return sharedModel(model);
    if (typeof model !== "string" || !model.trim()) throw new JerboaError("request", `jerboa/ai: a model must be a name or a loaded model, not ${typeof model === "string" ? "an empty string" : typeof model}.`);
    const named = settings.models && Object.hasOwn(settings.models, model) ? settings.models[model]! : model;
    return sharedModel(named, { ...settings.load, ...options });
  };
  const entry = <E>(Kind: new (modelId: string, lazy: LazyModel) => E) => (model: string | Model, options?: SharedLoadOptions): E => new Kind(isLoaded(model) ? model.info.model : model, lazy(model, options));
  const languageModel = entry(JerboaLanguageModel);
  return Object.assign((model: string | Model, options?: SharedLoadOptions) => languageModel(model, options), {
    specificationVersion: "v4" as const,
    languageModel,
    embeddingModel: entry(JerboaEmbeddingModel),
    rerankingModel: entry(JerboaRerankingModel),
    transcriptionModel: entry(JerboaTranscriptionModel),
    speechModel: entry(JerboaSpeechModel),
    imageModel: (model: string): never => {
      throw new JerboaError("unsupported_option", `jerboa/ai: image generation ('${model}') is not supported. Use chat, embedding, reranking, transcription or speech models.`);
    },
    availability: async (model?: string, options?: SharedLoadOptions): Promise<Availability> => {
      if (model !== undefined) return lazy(model, options).availability();
      return (await hasWebGpu()) ? "available" : "unavailable";
    },
  });
}

/** The default provider: model names are repositories of the Hub, or URLs. */
export const jerboa: JerboaProvider = createJerboa();
