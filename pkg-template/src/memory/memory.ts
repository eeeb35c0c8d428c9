/** A searchable memory: stores texts and images, returns the passages that match a question. */

import { boundedList, checked, describe, everyItem, listOf, MAX_ITEMS, requireValid, valid, validator } from "../check.js";
import { aborted, JerboaError, invalidRequest } from "../errors.js";
import type { ImageSource } from "../images.js";
import { plainJson } from "../plain-json.js";
import { randomId } from "../random-id.js";
import { chunkOptions, chunkText, estimateTokens, type ChunkOptions, type TokenCounter } from "./chunk.js";
import { compileFilter, type Filter } from "./filter.js";
import { VectorIndex, type GpuChoice } from "./index-rows.js";
import { pack, type PackOptions, type RecallResult } from "./recall.js";
import { redactor, type Redaction, type Redactor } from "./redact.js";
import { inMemoryStore } from "./store-memory.js";
import { headerLine, readExport, recordLine, type ImportSource } from "./transfer.js";
import type { StoreBatch, EmbeddingModel, SearchHit, MemoryRecord, MemoryStore, Metadata } from "./types.js";
import { normalized } from "./vectors.js";

/** Options of `createMemory`. */
export interface MemoryOptions {
  /** The embedding model. */
  model: EmbeddingModel;
  /**
   * Where records are stored: `inMemoryStore()` by default, `indexedDbStore(name)`, or `fileStore(path)` of
   * `jerboa/memory/file`.
   */
  store?: MemoryStore;
  /** How documents are split, unless `add` overrides it. */
  chunk?: ChunkOptions;
  /** Removes matches from texts and metadata before they are embedded and stored. */
  redact?: Redaction | Redaction[];
  /** Searches large stores on the GPU (`auto`, the default). `false` searches on the CPU; a `GPUDevice` is used as given. */
  gpu?: GpuChoice;
  /** Number of texts per model call. 32 by default. */
  batchSize?: number;
  /** What to do when a store's vectors come from another model: reject with `model_mismatch`, or embed its texts again. */
  onModelChange?: "error" | "reembed";
}

/** A text with its metadata. */
export interface MemoryDocument {
  text: string;
  /** The document's id; a document with the same id is replaced. Random by default. */
  id?: string;
  metadata?: Metadata;
}

/** An image with its metadata. The store keeps its vector, not the image: `imageUrl` says where the image is. */
export interface MemoryImage {
  /** The image, if available; otherwise `imageUrl` must be a URL to fetch it from. */
  image?: Exclude<ImageSource, string>;
  /** The image's URL, or a name by which the caller finds it. */
  imageUrl: string;
  /** A description, used by `recall`; it is not embedded. */
  text?: string;
  /** The document's id; a document with the same id is replaced. Random by default. */
  id?: string;
  metadata?: Metadata;
}

/** Options of `add`. */
export interface AddOptions {
  /** How these documents are split; `false` keeps each as one record. */
  chunk?: ChunkOptions | false;
  /** Receives the number of records stored so far. */
  onProgress?: (progress: { done: number; total: number }) => void;
  /** Cancels the call; documents stored by then stay. */
  signal?: AbortSignal;
}

/** The result of `add`. */
export interface AddResult {
  /** The documents' ids, in order. */
  documents: string[];
  /** Number of records stored. */
  records: number;
}

/** Options of `search`. */
export interface MemorySearchOptions {
  /** Maximum number of hits. 8 by default. */
  k?: number;
  /** Restricts the search to records with matching metadata. */
  filter?: Filter;
  /** Drops hits below this cosine similarity. */
  minScore?: number;
  signal?: AbortSignal;
}

/** Options of `recall`. `k` is the number of hits considered, 32 by default. */
export type RecallOptions = MemorySearchOptions & PackOptions;

/** What `delete` removes. */
export type DeleteSelection = string[] | { document: string | string[] } | { filter: Filter };

const idList = validator(`an array of strings, at most ${MAX_ITEMS}`, (v) => everyItem(v, valid.string.accepts), valid.string.accepts);

const searchSpec = { k: valid.integer(1), filter: valid.any, minScore: valid.number(-1, 1), signal: valid.signal };

/** Opens a memory. */
export async function createMemory(options: MemoryOptions): Promise<Memory> {
  const given = checked("createMemory", options, {
    model: valid.object,
    store: valid.object,
    chunk: valid.object,
    redact: valid.any,
    gpu: valid.any,
    batchSize: valid.integer(1),
    onModelChange: valid.oneOf("error", "reembed"),
  });
  if (typeof given.model?.embed !== "function") throw invalidRequest("createMemory: 'model' must be an embedding model, or an object with embed(texts).");
  const memory = new Memory(given);
  try {
    await memory.refresh();
  } catch (error) {
    await memory.close();
    throw error;
  }
  return memory;
}

/** A memory over one store and one model. */
export class Memory {
  readonly #model: EmbeddingModel;
  readonly #modelName: string;
  readonly #store: MemoryStore;
  readonly #index: VectorIndex;
  readonly #redact: Redactor;
  readonly #chunk: ChunkOptions;
  readonly #batchSize: number;
  readonly #reembeds: boolean;
  readonly #count: TokenCounter;
  #closed = false;
  #newest = 0;

  /** @internal Use `createMemory`. */
  constructor(options: MemoryOptions) {
    this.#model = options.model;
    this.#modelName = modelName(options.model);
    this.#store = options.store ?? inMemoryStore();
    this.#index = new VectorIndex(this.#store, options.gpu ?? "auto");
    this.#redact = redactor(options.redact);
    this.#chunk = chunkOptions(options.chunk);
    this.#batchSize = options.batchSize ?? 32;
    this.#reembeds = options.onModelChange === "reembed";
    const { model } = options;
    this.#count = model.countTokens ? (text) => model.countTokens!(text, { addSpecialTokens: false }) : estimateTokens;
  }

  /** Number of records at the last update from the store. */
  get size(): number {
    return this.#index.size;
  }

  /** Repairs made when the store was opened, as messages. */
  get repairs(): readonly string[] {
    return this.#store.repairs ?? [];
  }

  /** Reads changes of other tabs. Every method does so first; call it to update `size`. */
  async refresh(): Promise<void> {
    this.#requireOpen();
    const state = await this.#store.open();
    if (state.model !== undefined && state.model !== this.#modelName) {
      if (!this.#reembeds) throw modelMismatch(state.model, this.#modelName);
      await this.#reembed();
    }
    await this.#index.follow();
  }

  /**
   * Adds texts, documents and, if the model embeds images (`info.capabilities` includes `image`), images, which text
   * queries then find. Each document is stored completely or not at all.
   *
   * ```js
   * await memory.add({ image: file, imageUrl: file.name });
   * const [hit] = await memory.search("a red bird");   // hit.imageUrl
   * ```
   */
  async add(input: MemoryInput | readonly MemoryInput[], options?: AddOptions): Promise<AddResult> {
    const spec = { chunk: validator("an object or false", (v) => v === false || valid.object.accepts(v)), onProgress: valid.func, signal: valid.signal };
    const { chunk, onProgress, signal } = checked("add", options, spec);
    const splitting = chunk === false ? false : { ...this.#chunk, ...chunkOptions(chunk) };
    const documents = Array.from(boundedList("add", listOf(input)), documentOf);
    await this.refresh();
    const images = new Map<MemoryRecord, Exclude<ImageSource, string>>();
    const prepared: { id: string; records: MemoryRecord[] }[] = [];
    for (const document of lastOfEach(documents)) {
      if (signal?.aborted) throw aborted("Adding to the memory");
      const records = await this.#prepare(document, splitting);
      if (document.image) images.set(records[0]!, document.image);
      prepared.push({ id: document.id, records });
    }
    const total = prepared.reduce((sum, { records }) => sum + records.length, 0);
    let done = 0;
    for (const group of batches(prepared, this.#batchSize)) {
      const put = group.flatMap(({ records }) => records);
      await this.#embed(put, signal, images);
      await this.#apply({ put, drop: group.map(({ id }) => id) });
      done += put.length;
      onProgress?.({ done, total });
    }
    return { documents: documents.map(({ id }) => id), records: total };
  }

  /** The records nearest to a text or vector, best first. */
  async search(query: string | Float32Array, options?: MemorySearchOptions): Promise<SearchHit[]> {
    const { k = 8, filter, minScore, signal } = checked("search", options, searchSpec);
    const accept = filter && compileFilter(filter);
    const vector = await this.#queryVector(query, signal);
    await this.refresh();
    if (signal?.aborted) throw aborted("The search");
    const ranked = await this.#index.search(vector, { k, minScore, accept });
    const records = await this.#store.get(ranked.map(({ id }) => id));
    // Skip records that another tab has removed meanwhile.
    return ranked.flatMap(({ score }, i) => (records[i] ? [{ ...records[i], score }] : []));
  }

  /** The best passages for a query, packed into a context of at most `budget` tokens. */
  async recall(query: string | Float32Array, options?: RecallOptions): Promise<RecallResult> {
    const spec = { ...searchSpec, budget: valid.integer(1), separator: valid.string, format: valid.func };
    const { budget, separator, format, k = 32, ...search } = checked("recall", options, spec);
    // An image without a description adds nothing to the text.
    const hits = (await this.search(query, { k, ...search })).filter((hit) => hit.imageUrl === undefined || hit.text.trim() !== "");
    return pack(hits, this.#count, { budget, separator, format });
  }

  /** Gets records by id; `undefined` for missing ones. */
  async get(ids: string[]): Promise<(MemoryRecord | undefined)[]> {
    requireValid("get", "the ids", ids, idList);
    this.#requireOpen();
    return this.#store.get(ids);
  }

  /** Lists all records, or those that match a filter, by document and part. */
  async list(options?: { filter?: Filter; limit?: number }): Promise<MemoryRecord[]> {
    const { filter, limit = Infinity } = checked("list", options, { filter: valid.any, limit: valid.integer(1) });
    await this.refresh();
    const rows = this.#index.rows(filter && compileFilter(filter)).slice(0, limit);
    return (await this.#store.get(rows.map(({ id }) => id))).filter((record) => record !== undefined);
  }

  /** Deletes records by id, whole documents, or all that match a filter; returns the number of deleted records. */
  async delete(selection: DeleteSelection): Promise<number> {
    const change = this.#removal(selection);
    await this.refresh();
    const before = this.size;
    await this.#apply(change());
    return before - this.size;
  }

  /** What a selection removes, once the index is up to date. An undefined part of it must not select everything. */
  #removal(selection: DeleteSelection): () => Partial<StoreBatch> {
    if (Array.isArray(selection)) {
      requireValid("delete", "the ids", boundedList("delete", selection), idList);
      return () => ({ remove: selection.filter((id) => this.#index.has(id)) });
    }
    if (!valid.object.accepts(selection)) throw invalidRequest(`delete: expected an array of ids, { document } or { filter }, not ${describe(selection)}.`);
    const [name, ...others] = Object.keys(selection);
    if ((name !== "document" && name !== "filter") || others.length > 0) throw invalidRequest("delete: the object must have either 'document' or 'filter'.");
    if ("filter" in selection) {
      const accept = compileFilter(selection.filter);
      return () => ({ remove: this.#index.rows(accept).map(({ id }) => id) });
    }
    const documents = boundedList("delete", listOf(selection.document));
    requireValid("delete", "'document'", documents, idList);
    return () => ({ drop: documents });
  }

  /** Deletes everything, including the store's model name. */
  async clear(): Promise<void> {
    await this.refresh();
    await this.#apply({ clear: true });
  }

  /** Exports the memory as JSON lines, starting with a header. */
  async *export(): AsyncGenerator<string, void, undefined> {
    await this.refresh();
    yield headerLine(this.#modelName, this.#index.dims);
    const ids = this.#index.rows().map(({ id }) => id);
    for (let i = 0; i < ids.length; i += 256) {
      for (const record of await this.#store.get(ids.slice(i, i + 256))) if (record) yield recordLine(record);
    }
  }

  /**
   * Imports what `export` wrote: everything, or nothing if any line is damaged. Records with known ids are replaced;
   * `replace` also removes all others.
   */
  async import(source: ImportSource, options?: { mode?: "merge" | "replace"; signal?: AbortSignal }): Promise<{ records: number }> {
    const { mode = "merge", signal } = checked("import", options, { mode: valid.oneOf("merge", "replace"), signal: valid.signal });
    const imported = await readExport(source);
    await this.refresh();
    const sameModel = imported.model === this.#modelName;
    if (!sameModel && !this.#reembeds && imported.records.length) throw modelMismatch(imported.model, this.#modelName);
    const stale: MemoryRecord[] = [];
    for (const record of imported.records) {
      const text = await this.#redact.text(record.text);
      record.metadata = await this.#redact.metadata(record.metadata);
      // The vector of a text that was redacted now still encodes the removed part.
      if (!sameModel || (text !== record.text && record.imageUrl === undefined)) stale.push(record);
      record.text = text;
    }
    await this.#embed(stale, signal);
    await this.#apply({ put: imported.records, clear: mode === "replace" });
    return { records: imported.records.length };
  }

  /** Calls back when another tab changes the store; returns a function that stops it. */
  onChange(listener: () => void): () => void {
    return this.#store.onChange?.(listener) ?? (() => undefined);
  }

  /** Closes the store and frees the GPU memory. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#index.destroy();
    await this.#store.close();
  }

  #requireOpen(): void {
    if (this.#closed) throw new JerboaError("store", "This memory is closed. Open it again with createMemory().");
  }

  async #prepare(document: CheckedDocument, chunk: ChunkOptions | false): Promise<MemoryRecord[]> {
    const text = await this.#redact.text(document.text);
    const metadata = await this.#redact.metadata(document.metadata);
    const { imageUrl } = document;
    const whole = async () => (text.trim() || imageUrl !== undefined ? [{ text, start: 0, end: text.length, tokens: await this.#count(text) }] : []);
    const chunks = chunk && imageUrl === undefined ? await chunkText(text, this.#count, chunk) : await whole();
    // Documents added in the same millisecond keep their order.
    const created = (this.#newest = Math.max(Date.now(), this.#newest + 1));
    return chunks.map((piece, part) => {
      const ofImage = imageUrl === undefined ? {} : { imageUrl };
      return { id: `${document.id}#${part}`, document: document.id, part, ...piece, ...ofImage, created, metadata, vector: new Float32Array(0) };
    });
  }

  /** Computes the records' vectors. */
  async #embed(records: MemoryRecord[], signal: AbortSignal | undefined, images?: Map<MemoryRecord, Exclude<ImageSource, string>>): Promise<void> {
    for (let i = 0; i < records.length; i += this.#batchSize) {
      if (signal?.aborted) throw aborted("Adding to the memory");
      const batch = records.slice(i, i + this.#batchSize);
      const inputs = batch.map((record) => images?.get(record) ?? (record.imageUrl === undefined ? record.text : parsedImageUrl(record.imageUrl)));
      // The model reports itself if it does not support images.
      const vectors = await this.#model.embed(inputs as string[], { task: "document", ...(signal && { signal }) });
      if (vectors.length !== batch.length) throw invalidRequest(`The model returned ${vectors.length} vectors for ${batch.length} inputs. embed() must return one vector for each input.`);
      batch.forEach((record, j) => (record.vector = normalized(vectors[j]!)));
    }
  }

  async #queryVector(query: string | Float32Array, signal: AbortSignal | undefined): Promise<Float32Array<ArrayBuffer>> {
    if (query instanceof Float32Array) {
      const wrong = query.findIndex((component) => !Number.isFinite(component));
      if (wrong >= 0 || query.length === 0) throw invalidRequest(`search: the query vector ${wrong < 0 ? "is empty" : `has ${query[wrong]} at ${wrong}`}. Pass a vector of finite numbers, as from model.embed.`);
      return normalized(query);
    }
    if (typeof query !== "string") throw invalidRequest(`search: the query must be a string or a Float32Array, not ${describe(query)}.`);
    const [vector] = await this.#model.embed([query], { task: "query", ...(signal && { signal }) });
    return normalized(vector ?? []);
  }

  async #apply(change: Partial<StoreBatch>): Promise<void> {
    const put = change.put ?? [];
    const dims = put[0]?.vector.length ?? 0;
    if (put.some((record) => record.vector.length !== dims)) throw invalidRequest("The model returned vectors of different lengths. embed() must return vectors of one length.");
    await this.#store.apply({ remove: [], ...change, put, model: this.#modelName, dims });
    await this.#index.follow();
  }

  /** Embeds all texts of the store again and replaces them in one step. */
  async #reembed(): Promise<void> {
    const put: MemoryRecord[] = [];
    await this.#store.changes(0, (part) => put.push(...part.put.map((record) => ({ ...record }))));
    await this.#embed(put, undefined);
    await this.#apply({ put, clear: true });
  }
}

/** The model's name, by which stores tell whose vectors they hold. */
function modelName(model: EmbeddingModel): string {
  const info = model.info as { model?: unknown } | null | undefined;
  return model.id ?? (typeof info?.model === "string" ? info.model : "unnamed");
}

/** An input of `add`. */
export type MemoryInput = string | MemoryDocument | MemoryImage;

/** A validated document or image. */
interface CheckedDocument extends Required<MemoryDocument> {
  imageUrl?: string;
  image?: Exclude<ImageSource, string>;
}

/** The URL to fetch an image from again. */
function parsedImageUrl(imageUrl: string): URL {
  try {
    return new URL(imageUrl, globalThis.document?.baseURI);
  } catch {
    throw invalidRequest(`'imageUrl' ('${imageUrl}') is not a URL. Pass the image as 'image', or add it again.`);
  }
}

function documentOf(input: MemoryInput): CheckedDocument {
  const document = typeof input === "string" ? { text: input } : input;
  const spec = { text: valid.string, id: valid.string, metadata: valid.object, imageUrl: valid.string, image: valid.any };
  const { text: said, id = randomId(), metadata = {}, imageUrl, image } = checked<Partial<MemoryDocument & MemoryImage>>("add", document, spec);
  if (image !== undefined && imageUrl === undefined) throw invalidRequest("add: an image needs 'imageUrl': its URL, or a name that identifies it.");
  const text = said ?? (imageUrl === undefined ? undefined : "");
  if (text === undefined) throw invalidRequest("add: a document needs 'text', or 'imageUrl'.");
  // Values that JSON cannot represent would be lost in one store and refused by another.
  const kept = JSON.parse(JSON.stringify(plainJson("add", "metadata", metadata))) as Metadata;
  return { text, id, metadata: kept, ...(imageUrl !== undefined && { imageUrl }), ...(image !== undefined && { image }) };
}

/** The last of the documents with the same id. */
function lastOfEach(documents: CheckedDocument[]): CheckedDocument[] {
  return [...new Map(documents.map((document) => [document.id, document])).values()];
}

/** Groups documents into batches without splitting any. */
function* batches<T extends { records: unknown[] }>(items: T[], size: number): Generator<T[]> {
  let group: T[] = [];
  let records = 0;
  for (const item of items) {
    group.push(item);
    records += item.records.length;
    if (records < size) continue;
    yield group;
    group = [];
    records = 0;
  }
  if (group.length) yield group;
}

function modelMismatch(found: string, wanted: string): JerboaError {
  return new JerboaError(
    "model_mismatch",
    `The stored vectors come from model '${found}', but this memory uses '${wanted}'. Load that model, pass onModelChange: 'reembed' to createMemory, or use another store.`,
  );
}
