/** Models that the page offers by name. Any other repository can be typed. */

import type { Wanted } from "./slot";

/** The model that lies beside the page. */
export const BUNDLED: Wanted = {
  source: new URL("models/stories260K/", document.baseURI).href,
  label: "stories260K",
  options: {},
};

/** The encoder that lies beside the page. */
export const ENCODER: Wanted = {
  source: new URL("models/words-encoder/", document.baseURI).href,
  label: "words-encoder",
  options: {},
};

/** The encoder that the page would rather have. */
export const MINILM: Wanted = { source: "sentence-transformers/all-MiniLM-L6-v2", label: "sentence-transformers/all-MiniLM-L6-v2", options: {} };

export interface Suggestion {
  id: string;
  /** Of the weights. */
  bytes: number;
  note: string;
}

/** Chat models that are small enough for a page, by the size of their download. */
export const CHAT_SUGGESTIONS: readonly Suggestion[] = [
  { id: "HuggingFaceTB/SmolLM2-135M-Instruct", bytes: 269e6, note: "Quick, simple answers" },
  { id: "HuggingFaceTB/SmolLM2-360M-Instruct", bytes: 724e6, note: "Short English answers" },
  { id: "Qwen/Qwen2.5-0.5B-Instruct", bytes: 988e6, note: "Many languages" },
  { id: "Qwen/Qwen3-0.6B", bytes: 1503e6, note: "Thinks before it answers" },
];

/** Embedding models that are small enough for a page. */
export const EMBEDDING_SUGGESTIONS: readonly Suggestion[] = [
  { id: "sentence-transformers/all-MiniLM-L6-v2", bytes: 90.9e6, note: "Quick, English" },
  { id: "BAAI/bge-small-en-v1.5", bytes: 133e6, note: "Better at questions, English" },
  { id: "intfloat/multilingual-e5-small", bytes: 471e6, note: "A hundred languages" },
  { id: "Qwen/Qwen3-Embedding-0.6B", bytes: 1192e6, note: "Long texts, many languages" },
];
