/** The shapes that a memory is made of: records, stores, what it needs of a model. Knows names and types; nothing runs here. */

/** Whatever JSON can hold. */
export type Json = string | number | boolean | null | Json[] | { [key: string]: Json };

/** What the caller keeps beside a text, to filter by or to show. */
export type Metadata = { [key: string]: Json };

/** One passage with its vector. A document that is not longer than a chunk is one record. */
export interface MemoryRecord {
  /** Unique in the store: the document's id, `#`, the part's number. */
  id: string;
  /** The document that it is a part of. */
  document: string;
  /** Its place among the document's parts, from 0. */
  part: number;
  /** Where the passage starts in the document's (redacted) text, in UTF-16 units. */
  start: number;
  /** Where it ends. */
  end: number;
  /** The passage; of a picture what was said about it, which may be nothing. */
  text: string;
  /** Where the picture is, of a record whose vector is a picture's: an address or a name that the caller gave. */
  picture?: string;
  /** Its length in the model's tokens. */
  tokens: number;
  /** When it was added, in milliseconds since 1970. */
  created: number;
  /** The document's metadata. */
  metadata: Metadata;
  /** The passage's embedding, of length 1 (or 0 for a text that the model gives no direction). */
  vector: Float32Array<ArrayBuffer>;
}

/** What a memory asks of a model beside the texts. */
export interface EmbeddingOptions {
  task?: "query" | "document";
  signal?: AbortSignal;
}

/** What the memory needs of a model; what `loadModel` returns for an embedding model fits. */
export interface EmbeddingModel {
  /** One vector for each text, in order; of models that see, for each picture too. */
  embed(texts: string[], options?: EmbeddingOptions): Promise<ArrayLike<number>[]>;
  /** The length of a text in tokens, without the special ones. Without it, four bytes count as a token. */
  countTokens?(text: string, options?: { addSpecialTokens?: boolean }): number | Promise<number>;
  /** The name by which a store recognises the model. */
  id?: string;
  /** Where the name is found when there is no `id`. */
  info?: unknown;
}

/** What a store writes in one step: all of it or nothing. */
export interface Batch {
  /** The model that made the vectors; a store holds those of one model only. */
  model: string;
  /** The vectors' width. */
  dims: number;
  /** Records to write; one with a known id replaces it. */
  put: MemoryRecord[];
  /** Ids to remove, before `put`. */
  remove: string[];
  /** Documents all of whose records are removed, before `put`: so a document is replaced. */
  drop?: string[];
  /** Removes everything, and the tie to a model, before `put`. */
  clear?: boolean;
}

/** A part of what has changed in a store. */
export interface Changes {
  /** What was known before is void; only the first part has it. */
  reset: boolean;
  /** Ids that are gone. */
  removed: string[];
  /** Records that are new or replaced. */
  put: MemoryRecord[];
}

/** What a store holds. */
export interface StoreState {
  /** Counts the writes: two readers with the same number have seen the same records. */
  generation: number;
  /** The model whose vectors it holds; absent while it is empty. */
  model?: string;
  /** Their width; 0 while it is empty. */
  dims: number;
}

/** Where records live. Every write is one step that happens as a whole or not at all. */
export interface MemoryStore {
  /** Opens it, repairing and migrating where needed; refuses one of a newer version. Opening twice is harmless. */
  open(): Promise<StoreState>;
  /** What it holds now, counting what other tabs wrote. */
  state(): Promise<StoreState>;
  /** Hands over everything that changed after the given generation, in parts, as of one moment; returns that moment's generation. */
  changes(since: number, emit: (part: Changes) => void): Promise<number>;
  /** Writes a batch as one step; returns the new generation. */
  apply(batch: Batch): Promise<number>;
  /** The records with these ids, `undefined` for those that are gone. */
  get(ids: string[]): Promise<(MemoryRecord | undefined)[]>;
  /** Calls back when somebody else wrote; returns what ends that. */
  onChange?(listener: () => void): () => void;
  /** What was mended when it was opened, in sentences. */
  readonly repairs?: readonly string[];
  /** Lets go of it. */
  close(): Promise<void>;
}

/** A record that was found. */
export interface Hit extends MemoryRecord {
  /** Cosine similarity with the query, from -1 to 1. */
  score: number;
}
