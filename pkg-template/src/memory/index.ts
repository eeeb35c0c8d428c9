/** `jerboa/memory`: the public API of the memory. */

export { createMemory, Memory } from "./memory.js";
export type { Added, AddOptions, MemoryDocument, MemoryInput, MemoryOptions, MemoryPicture, MemorySearchOptions, RecallOptions, Selection } from "./memory.js";
export { inMemoryStore } from "./store-memory.js";
export { deleteIndexedDbStore, indexedDbStore } from "./store-indexeddb.js";
export { chunkText } from "./chunk.js";
export type { Chunk, ChunkOptions, TokenCounter } from "./chunk.js";
export type { Condition, Filter } from "./filter.js";
export type { GpuChoice } from "./index-rows.js";
export type { PackOptions, Passage, Recall } from "./recall.js";
export type { Redaction } from "./redact.js";
export type { ImportSource } from "./transfer.js";
export type { Batch, Changes, EmbeddingModel, EmbeddingOptions, Hit, Json, MemoryRecord, MemoryStore, Metadata, StoreState } from "./types.js";
export { JerboaError } from "../errors.js";
