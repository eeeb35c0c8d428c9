/**
 * The public API of the memory.
 *
 * @module jerboa/memory
 */

export { createMemory, Memory } from "./memory.js";
export type { AddResult, AddOptions, MemoryDocument, MemoryInput, MemoryOptions, MemoryImage, MemorySearchOptions, RecallOptions, DeleteSelection } from "./memory.js";
export { inMemoryStore } from "./store-memory.js";
export { deleteIndexedDbStore, indexedDbStore } from "./store-indexeddb.js";
export { chunkText } from "./chunk.js";
export type { Chunk, ChunkOptions, TokenCounter } from "./chunk.js";
export type { Condition, Filter } from "./filter.js";
export type { GpuChoice } from "./index-rows.js";
export type { GpuDeviceLike } from "./search-gpu.js";
export type { PackOptions, Passage, RecallResult } from "./recall.js";
export type { Redaction } from "./redact.js";
export type { ImportSource } from "./transfer.js";
export type { StoreBatch, StoreChanges, EmbeddingModel, EmbeddingOptions, SearchHit, Json, MemoryRecord, MemoryStore, Metadata, StoreState } from "./types.js";
export { JerboaError } from "../errors.js";
