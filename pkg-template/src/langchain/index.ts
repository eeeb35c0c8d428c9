/**
 * A chat model and embeddings for LangChain.
 *
 * @module jerboa/langchain
 */

export { ChatJerboa } from "./chat.js";
export type { ChatJerboaCallOptions, ChatJerboaFields, ChatJerboaRequest } from "./chat.js";
export { JerboaEmbeddings } from "./embeddings.js";
export type { JerboaEmbeddingsFields } from "./embeddings.js";
export type { Availability, LazySource, LoadState, SharedLoadOptions } from "../integrations/lazy-model.js";
