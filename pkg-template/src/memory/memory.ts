/** A memory: texts and pictures go in, passages that answer a question come out. Knows the order of the steps; each step is elsewhere. */

import { checked, describe, mustBe } from "../check.js";
import { aborted, JerboaError, refused } from "../errors.js";
import type { ImageSource } from "../pictures.js";
import { chunkText, estimateTokens, type ChunkOptions, type TokenCounter } from "./chunk.js";
import { compileFilter, type Filter } from "./filter.js";
import { VectorIndex, type GpuChoice } from "./index-rows.js";
import { pack, type PackOptions, type Recall } from "./recall.js";
import { redactor, type Redaction, type Redactor } from "./redact.js";
import { inMemoryStore } from "./store-memory.js";
import { headerLine, readExport, recordLine, type ImportSource } from "./transfer.js";
import type { Batch, EmbeddingModel, Hit, MemoryRecord, MemoryStore, Metadata } from "./types.js";
import { unit } from "./vectors.js";

/** What `createMemory` takes. */
export interface MemoryOptions {
  /** The model that makes the vectors. */
  model: EmbeddingModel;
  /** Where records live: `inMemoryStore()` unless told, `indexedDbStore(name)`, or `fileStore(path)` of `jerboa/memory/file`. */
  store?: MemoryStore;
  /** How documents are cut, unless `add` says otherwise. */
  chunk?: ChunkOptions;
  /** What is taken out of texts and metadata before anything is embedded or stored. */
  redact?: Redaction | Redaction[];
  /** Searches on the GPU once a store is large; `false` never does, a device is used instead of an own one. */
  gpu?: GpuChoice;
  /** Texts that are given to the model at once. 32 unless told. */
  batchSize?: number;
  /** What to do with a store whose vectors are of another model: refuse it, or embed its texts again. */
  onModelChange?: "error" | "reembed";
}

/** A text with what is kept beside it. */
export interface MemoryDocument {
  text: string;
  /** Its name; a document of the same name is replaced. A random one unless told. */
  id?: string;
  metadata?: Metadata;
}

/** A picture with what is kept beside it. The store keeps its vector, not the picture: `picture` says where that is. */
export interface MemoryPicture {
  /** The picture, where it is at hand; else `picture` must be an address to fetch it from. */
  image?: Exclude<ImageSource, string>;
  /** Its address, or a name by which the caller finds it again. */
  picture: string;
  /** What is said about it: for `recall`; it is not embedded. */
  text?: string;
  /** Its name in the memory; one of the same name is replaced. A random one unless told. */
  id?: string;
  metadata?: Metadata;
}

/** Options of `add`. */
export interface AddOptions {
  /** How these documents are cut; `false` keeps each as one record. */
  chunk?: ChunkOptions | false;
  /** Hears how many of the records are stored. */
  onProgress?: (progress: { done: number; total: number }) => void;
  /** Gives it up; documents that are stored by then stay. */
  signal?: AbortSignal;
}

/** What `add` did. */
export interface Added {
  /** The documents' ids, in order. */
  documents: string[];
  /** The number of records that they came to. */
  records: number;
}

/** Options of `search`. */
export interface MemorySearchOptions {
  /** How many hits at the most. 8 unless told. */
  k?: number;
  /** Which records count, by their metadata. */
  filter?: Filter;
  /** Leaves out hits below this cosine. */
  minScore?: number;
  signal?: AbortSignal;
}

/** Options of `recall`. `k` is how many hits are tried, 32 unless told. */
export type RecallOptions = MemorySearchOptions & PackOptions;

/** What `delete` takes away. */
export type Selection = string[] | { document: string | string[] } | { filter: Filter };

const searchSpec = { k: mustBe.integer(1), filter: mustBe.any, minScore: mustBe.number(-1, 1), signal: mustBe.signal };

/** Opens a memory. */
export async function createMemory(options: MemoryOptions): Promise<Memory> {
  const given = checked("createMemory", options, {
    model: mustBe.object,
    store: mustBe.object,
    chunk: mustBe.object,
    redact: mustBe.any,
    gpu: mustBe.any,
    batchSize: mustBe.integer(1),
    onModelChange: mustBe.oneOf("error", "reembed"),
  });
  if (typeof given.model?.embed !== "function") throw refused("createMemory: 'model' must be an embedding model, or an object with embed(texts).");
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
    this.#chunk = options.chunk ?? {};
    this.#batchSize = options.batchSize ?? 32;
    this.#reembeds = options.onModelChange === "reembed";
    const { model } = options;
    this.#count = model.countTokens ? (text) => model.countTokens!(text, { addSpecialTokens: false }) : estimateTokens;
  }

  /** The number of records, as of the last look at the store. */
  get size(): number {
    return this.#index.size;
  }

  /** What the store mended when it was opened, in sentences. */
  get repairs(): readonly string[] {
    return this.#store.repairs ?? [];
  }

  /** Looks at the store for what other tabs did. Every method does so first; call it to bring `size` up to date. */
  async refresh(): Promise<void> {
    if (this.#closed) throw new JerboaError("store", "This memory is closed. Open it again with createMemory().");
    const state = await this.#store.open();
    if (state.model !== undefined && state.model !== this.#modelName) {
      if (!this.#reembeds) throw mismatch(state.model, this.#modelName);
      await this.#reembed();
    }
    await this.#index.follow();
  }

  /**
   * Adds texts, documents and pictures, these with models that see (`info.capabilities` have `image`): a text then finds them. Each document is
   * stored as a whole or not at all.
   *
   * ```js
   * await memory.add({ image: file, picture: file.name });
   * const [hit] = await memory.search("a red bird");   // hit.picture
   * ```
   */
  async add(input: MemoryInput | MemoryInput[], options?: AddOptions): Promise<Added> {
    const spec = { chunk: (v: unknown) => (v === false ? undefined : mustBe.object(v)), onProgress: mustBe.func, signal: mustBe.signal };
    const { chunk, onProgress, signal } = checked("add", options, spec);
    const documents = [input].flat().map(documentOf);
    await this.refresh();
    const images = new Map<MemoryRecord, Exclude<ImageSource, string>>();
    const prepared: { id: string; records: MemoryRecord[] }[] = [];
    for (const document of lastOfEach(documents)) {
      if (signal?.aborted) throw aborted("Adding to the memory");
      const records = await this.#prepare(document, chunk === false ? false : { ...this.#chunk, ...chunk });
      if (document.image) images.set(records[0]!, document.image);
      prepared.push({ id: document.id, records });
    }
    const total = prepared.reduce((sum, { records }) => sum + records.length, 0);
    let done = 0;
    for (const group of groups(prepared, this.#batchSize)) {
      const put = group.flatMap(({ records }) => records);
      await this.#embed(put, signal, images);
      await this.#apply({ put, drop: group.map(({ id }) => id) });
      done += put.length;
      onProgress?.({ done, total });
    }
    return { documents: documents.map(({ id }) => id), records: total };
  }

  /** The records nearest to a text, or to a vector, best first. */
  async search(query: string | Float32Array, options?: MemorySearchOptions): Promise<Hit[]> {
    const { k = 8, filter, minScore, signal } = checked("search", options, searchSpec);
    const accept = compileFilter(filter);
    const vector = await this.#queryVector(query, signal);
    await this.refresh();
    if (signal?.aborted) throw aborted("The search");
    const ranked = await this.#index.search(vector, { k, minScore, accept });
    const records = await this.#store.get(ranked.map(({ id }) => id));
    // A record that another tab removed meanwhile is no hit.
    return ranked.flatMap(({ score }, i) => (records[i] ? [{ ...records[i], score }] : []));
  }

  /** The best passages for a text, packed into a context of at most `budget` tokens. */
  async recall(query: string | Float32Array, options?: RecallOptions): Promise<Recall> {
    const spec = { ...searchSpec, budget: mustBe.integer(1), separator: mustBe.string, format: mustBe.func };
    const { budget, separator, format, k = 32, ...search } = checked("recall", options, spec);
    // A picture that nothing is said about has nothing to add to a text.
    const hits = (await this.search(query, { k, ...search })).filter((hit) => hit.picture === undefined || hit.text.trim() !== "");
    return pack(hits, this.#count, { budget, separator, format });
  }

  /** Records by their ids; `undefined` for one that is not there. */
  async get(ids: string[]): Promise<(MemoryRecord | undefined)[]> {
    return this.#store.get(ids);
  }

  /** All records, or those that a filter lets through, by document and part. */
  async list(options?: { filter?: Filter; limit?: number }): Promise<MemoryRecord[]> {
    const { filter, limit = Infinity } = checked("list", options, { filter: mustBe.any, limit: mustBe.integer(1) });
    await this.refresh();
    const rows = this.#index.rows(compileFilter(filter)).slice(0, limit);
    return (await this.#store.get(rows.map(({ id }) => id))).filter((record) => record !== undefined);
  }

  /** Removes records by id, whole documents, or what a filter lets through; returns how many records went. */
  async delete(selection: Selection): Promise<number> {
    await this.refresh();
    const before = this.size;
    if (Array.isArray(selection)) await this.#apply({ remove: selection.filter((id) => this.#index.has(id)) });
    else if (mustBe.object(selection)) throw refused(`delete: give an array of ids, { document } or { filter }, not ${describe(selection)}.`);
    else if ("document" in selection) await this.#apply({ drop: [selection.document].flat() });
    else if ("filter" in selection) await this.#apply({ remove: this.#index.rows(compileFilter(selection.filter)).map(({ id }) => id) });
    else throw refused("delete: the object must have 'document' or 'filter'.");
    return before - this.size;
  }

  /** Removes everything, also the store's tie to the model. */
  async clear(): Promise<void> {
    await this.refresh();
    await this.#apply({ clear: true });
  }

  /** The whole memory as JSON lines, a header first. */
  async *export(): AsyncGenerator<string, void, undefined> {
    await this.refresh();
    yield headerLine(this.#modelName, this.#index.dims);
    const ids = this.#index.rows().map(({ id }) => id);
    for (let i = 0; i < ids.length; i += 256) {
      for (const record of await this.#store.get(ids.slice(i, i + 256))) if (record) yield recordLine(record);
    }
  }

  /** Reads what `export` wrote: all of it, or nothing if any of it is damaged. Records with known ids are replaced; `replace` also removes all others. */
  async import(source: ImportSource, options?: { mode?: "merge" | "replace"; signal?: AbortSignal }): Promise<{ records: number }> {
    const { mode = "merge", signal } = checked("import", options, { mode: mustBe.oneOf("merge", "replace"), signal: mustBe.signal });
    const imported = await readExport(source);
    await this.refresh();
    const sameModel = imported.model === this.#modelName;
    if (!sameModel && !this.#reembeds && imported.records.length) throw mismatch(imported.model, this.#modelName);
    const stale: MemoryRecord[] = [];
    for (const record of imported.records) {
      const text = await this.#redact.text(record.text);
      record.metadata = await this.#redact.metadata(record.metadata);
      // The vector of a text that was redacted just now still knows what was taken out.
      if (!sameModel || (text !== record.text && record.picture === undefined)) stale.push(record);
      record.text = text;
    }
    await this.#embed(stale, signal);
    await this.#apply({ put: imported.records, clear: mode === "replace" });
    return { records: imported.records.length };
  }

  /** Calls back when another tab changed the store; returns what ends that. */
  onChange(listener: () => void): () => void {
    return this.#store.onChange?.(listener) ?? (() => undefined);
  }

  /** Lets go of the store and of the GPU's memory. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#index.destroy();
    await this.#store.close();
  }

  async #prepare(document: Prepared, chunk: ChunkOptions | false): Promise<MemoryRecord[]> {
    const text = await this.#redact.text(document.text);
    const metadata = await this.#redact.metadata(document.metadata);
    const { picture } = document;
    const whole = async () => (text.trim() || picture !== undefined ? [{ text, start: 0, end: text.length, tokens: await this.#count(text) }] : []);
    const chunks = chunk && picture === undefined ? await chunkText(text, this.#count, chunk) : await whole();
    // Documents of one moment keep the order in which they came.
    const created = (this.#newest = Math.max(Date.now(), this.#newest + 1));
    return chunks.map((piece, part) => {
      const seen = picture === undefined ? {} : { picture };
      return { id: `${document.id}#${part}`, document: document.id, part, ...piece, ...seen, created, metadata, vector: new Float32Array(0) };
    });
  }

  /** Gives records their vectors. */
  async #embed(records: MemoryRecord[], signal: AbortSignal | undefined, images?: Map<MemoryRecord, Exclude<ImageSource, string>>): Promise<void> {
    for (let i = 0; i < records.length; i += this.#batchSize) {
      if (signal?.aborted) throw aborted("Adding to the memory");
      const batch = records.slice(i, i + this.#batchSize);
      const inputs = batch.map((record) => images?.get(record) ?? (record.picture === undefined ? record.text : addressOf(record.picture)));
      // The model says itself whether it sees.
      const vectors = await this.#model.embed(inputs as string[], { task: "document", ...(signal && { signal }) });
      if (vectors.length !== batch.length) throw refused(`The model gave ${vectors.length} vectors for ${batch.length} texts.`);
      batch.forEach((record, j) => (record.vector = unit(vectors[j]!)));
    }
  }

  async #queryVector(query: string | Float32Array, signal: AbortSignal | undefined): Promise<Float32Array<ArrayBuffer>> {
    if (query instanceof Float32Array) return unit(query);
    if (typeof query !== "string") throw refused(`search: the query must be a string or a Float32Array, not ${describe(query)}.`);
    const [vector] = await this.#model.embed([query], { task: "query", ...(signal && { signal }) });
    return unit(vector ?? []);
  }

  async #apply(change: Partial<Batch>): Promise<void> {
    const put = change.put ?? [];
    const dims = put[0]?.vector.length ?? 0;
    if (put.some((record) => record.vector.length !== dims)) throw refused("The model gave vectors of unequal width.");
    await this.#store.apply({ remove: [], ...change, put, model: this.#modelName, dims });
    await this.#index.follow();
  }

  /** Embeds all texts of the store again and puts them in the place of the old ones in one step. */
  async #reembed(): Promise<void> {
    const put: MemoryRecord[] = [];
    await this.#store.changes(0, (part) => put.push(...part.put.map((record) => ({ ...record }))));
    await this.#embed(put, undefined);
    await this.#apply({ put, clear: true });
  }
}

/** The name of a model, by which stores tell whose vectors they hold. */
function modelName(model: EmbeddingModel): string {
  const info = model.info as { model?: unknown } | null | undefined;
  return model.id ?? (typeof info?.model === "string" ? info.model : "unnamed");
}

/** What `add` takes one of. */
export type MemoryInput = string | MemoryDocument | MemoryPicture;

/** A document, or a picture, that was looked at. */
interface Prepared extends Required<MemoryDocument> {
  picture?: string;
  image?: Exclude<ImageSource, string>;
}

/** The address that a picture is fetched from once more. */
function addressOf(picture: string): URL {
  try {
    return new URL(picture, globalThis.document?.baseURI);
  } catch {
    throw refused(`The picture '${picture}' is no address to fetch it from: give it as 'image', or add it again.`);
  }
}

function documentOf(input: MemoryInput): Prepared {
  const document = typeof input === "string" ? { text: input } : input;
  const spec = { text: mustBe.string, id: mustBe.string, metadata: mustBe.object, picture: mustBe.string, image: mustBe.any };
  const { text: said, id = crypto.randomUUID(), metadata = {}, picture, image } = checked<Partial<MemoryDocument & MemoryPicture>>("add", document, spec);
  if (image !== undefined && picture === undefined) throw refused("add: a picture needs 'picture', its address or a name by which you find it again.");
  const text = said ?? (picture === undefined ? undefined : "");
  if (text === undefined) throw refused("add: a document needs 'text', or 'picture'.");
  try {
    // What JSON cannot hold would be lost in one store and refused in another.
    return { text, id, metadata: JSON.parse(JSON.stringify(metadata)), ...(picture !== undefined && { picture }), ...(image !== undefined && { image }) };
  } catch (error) {
    throw refused(`add: the metadata of '${id}' cannot be written as JSON (${(error as Error).message}).`);
  }
}

/** Of documents with the same name, the last. */
function lastOfEach(documents: Prepared[]): Prepared[] {
  return [...new Map(documents.map((document) => [document.id, document])).values()];
}

/** Puts documents together until they make a batch; none is divided. */
function* groups<T extends { records: unknown[] }>(items: T[], size: number): Generator<T[]> {
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

function mismatch(found: string, wanted: string): JerboaError {
  return new JerboaError(
    "model_mismatch",
    `The vectors there are of the model '${found}', this memory's model is '${wanted}'. Load that model, pass onModelChange: 'reembed' to createMemory, or use a store of another name.`,
  );
}
