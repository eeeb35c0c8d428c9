/** Types of the memory: records, stores, and what it needs of a model. */

/** Any JSON value. */
export type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

/** Metadata of a document, to filter by or to show. */
export type Metadata = { [key: string]: Json };

/** A passage with its vector. A document within the chunk size is one record. */
export interface MemoryRecord {
  /** Unique in the store: the document's id, `#`, the part number. */
  id: string;
  /** The id of its document. */
  document: string;
  /** Index among the document's parts. */
  part: number;
  /** Start of the passage in the document's (redacted) text, in UTF-16 units. */
  start: number;
  /** End of the passage. */
  end: number;
  /** The passage; for an image its description, which may be empty. */
  text: string;
  /** For an image: its URL, or the name that the caller gave. */
  imageUrl?: string;
  /** Length in the model's tokens. */
  tokens: number;
  /** Time of adding, in milliseconds since 1970. */
  created: number;
  /** The document's metadata. */
  metadata: Metadata;
  /** The embedding, of length 1 (or 0 if the model returns zeros). */
  vector: Float32Array<ArrayBuffer>;
}

/** Options of an embedding call. */
export interface EmbeddingOptions {
  task?: "query" | "document";
  signal?: AbortSignal;
}

/** The model interface of the memory; an embedding model from `loadModel` implements it. */
export interface EmbeddingModel {
  /** One vector per text, in order; models that embed images accept them too. */
  embed(texts: string[], options?: EmbeddingOptions): Promise<ArrayLike<number>[]>;
  /** Length of a text in tokens, without special tokens. Without this method four bytes count as a token. */
  countTokens?(text: string, options?: { addSpecialTokens?: boolean }): number | Promise<number>;
  /** The name by which a store recognizes the model. */
  id?: string;
  /** Contains the name if there is no `id`. */
  info?: unknown;
}

/** One atomic write to a store. */
export interface StoreBatch {
  /** The model of the vectors; a store holds vectors of one model only. */
  model: string;
  /** Width of the vectors. */
  dims: number;
  /** Records to write; a known id is replaced. */
  put: MemoryRecord[];
  /** Ids to remove, before `put`. */
  remove: string[];
  /** Documents to remove completely, before `put`; used to replace documents. */
  drop?: string[];
  /** Removes everything, including the model name, before `put`. */
  clear?: boolean;
}

/** A part of a store's changes. */
export interface StoreChanges {
  /** Discards all earlier state; set on the first part only. */
  reset: boolean;
  /** Removed ids. */
  removed: string[];
  /** New or replaced records. */
  put: MemoryRecord[];
}

/** The state of a store. */
export interface StoreState {
  /** Number of writes: readers at the same number have the same records. */
  generation: number;
  /** The model of the vectors; absent while the store is empty. */
  model?: string;
  /** Width of the vectors; 0 while the store is empty. */
  dims: number;
}

/** A store of records. Every write is atomic. */
export interface MemoryStore {
  /** Opens the store, repairing and migrating if needed; refuses newer versions. Opening twice is harmless. */
  open(): Promise<StoreState>;
  /** The current state, including other tabs' writes. */
  state(): Promise<StoreState>;
  /** Emits all changes after the given generation in parts, as one snapshot; returns the snapshot's generation. */
  changes(since: number, emit: (part: StoreChanges) => void): Promise<number>;
  /** Writes a batch atomically; returns the new generation. */
  apply(batch: StoreBatch): Promise<number>;
  /** Gets records by id; `undefined` for missing ones. */
  get(ids: string[]): Promise<(MemoryRecord | undefined)[]>;
  /** Calls back after another tab's write; returns a function that stops it. */
  onChange?(listener: () => void): () => void;
  /** Repairs made on opening, as messages. */
  readonly repairs?: readonly string[];
  /** Closes the store. */
  close(): Promise<void>;
}

/** A search hit. */
export interface SearchHit extends MemoryRecord {
  /** Cosine similarity with the query, from -1 to 1. */
  score: number;
}
