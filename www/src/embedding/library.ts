/** The documents of the Embedding tab: a memory of passages, and the last search. */

import { computed, signal } from "@preact/signals";
import type { JerboaError, Model } from "jerboa";
import { createMemory, indexedDbStore, type SearchHit, type Memory, type MemoryRecord } from "jerboa/memory";
import { asError } from "../errors";
import { announce } from "../ui/announce";
import { EMBEDDING } from "../strings";

/** A document with its number of passages. */
export interface DocumentSummary {
  id: string;
  passages: number;
}

/** The running operation. */
export interface RunningTask {
  what: string;
  done: number;
  total: number;
}

/** A search result. */
export interface SearchResult {
  query: string;
  /** The query vector. */
  vector: Float32Array;
  hits: SearchHit[];
  ms: number;
}

const STORE = "jerboa-page";
const HITS = 20;
/** Token budget of recalled passages; leaves room for the question in a small chat model's context. */
const RECALL_TOKENS = 512;
/** Number of hits to recall; later ones are mostly noise. */
const RECALLED = 5;

export class Library {
  readonly records = signal<MemoryRecord[]>([]);
  readonly documents = computed(() => listed(this.records.value));
  readonly work = signal<RunningTask | undefined>(undefined);
  readonly found = signal<SearchResult | undefined>(undefined);
  readonly error = signal<JerboaError | undefined>(undefined);
  readonly ready = signal(false);
  #model: Model | undefined;
  #memory: Memory | undefined;
  #abort: AbortController | undefined;

  /** Opens the documents with a model; re-embeds those of another model. */
  async open(model: Model): Promise<void> {
    await this.close();
    this.#model = model;
    await this.#run(EMBEDDING.opening, async () => {
      this.#memory = await createMemory({ model, store: indexedDbStore(STORE), onModelChange: "reembed", chunk: { maxTokens: 120, overlap: 20 } });
      await this.#refresh();
      this.ready.value = true;
    });
  }

  /** Releases the model; the documents stay. */
  async close(): Promise<void> {
    this.ready.value = false;
    this.found.value = undefined;
    this.#abort?.abort();
    await this.#memory?.close();
    this.#memory = undefined;
  }

  /** Adds documents; one with a known name is replaced. */
  async add(documents: { id: string; text: string }[]): Promise<void> {
    const memory = this.#memory;
    const some = documents.filter(({ text }) => text.trim());
    if (!memory || some.length === 0) return;
    await this.#run(EMBEDDING.reading, async (signal, report) => {
      const { records } = await memory.add(some, { signal, onProgress: report });
      await this.#refresh();
      announce(EMBEDDING.added(records));
    });
    await this.#again();
  }

  async remove(document: string): Promise<void> {
    await this.#run(EMBEDDING.removing, async () => {
      await this.#memory?.delete({ document });
      await this.#refresh();
    });
    await this.#again();
  }

  async clear(): Promise<void> {
    this.found.value = undefined;
    await this.#run(EMBEDDING.removing, async () => {
      await this.#memory?.clear();
      await this.#refresh();
    });
  }

  async search(query: string): Promise<void> {
    const [memory, model] = [this.#memory, this.#model];
    if (!memory || !model || !query.trim()) return void (this.found.value = undefined);
    await this.#run(EMBEDDING.searching, async (signal) => {
      const started = performance.now();
      const vector = await model.embed(query, { task: "query", signal });
      const hits = await memory.search(vector, { k: HITS, signal });
      this.found.value = { query, vector, hits, ms: performance.now() - started };
      announce(EMBEDDING.found(hits.length));
    });
  }

  /** The best passages for the last query, as the start of a chat. */
  async recall(query: string): Promise<string | undefined> {
    const { context } = (await this.#memory?.recall(query, { k: RECALLED, budget: RECALL_TOKENS })) ?? {};
    return context ? `Answer from these notes:\n\n${context}\n\nQuestion: ${query}` : undefined;
  }

  /** Stops the running operation; documents stored by then stay. */
  stop(): void {
    this.#abort?.abort();
  }

  async #again(): Promise<void> {
    if (this.found.peek()) await this.search(this.found.peek()!.query);
  }

  async #refresh(): Promise<void> {
    this.records.value = (await this.#memory?.list()) ?? [];
  }

  async #run(what: string, step: (signal: AbortSignal, report: (work: Omit<RunningTask, "what">) => void) => Promise<void>): Promise<void> {
    const controller = new AbortController();
    this.#abort = controller;
    this.error.value = undefined;
    this.work.value = { what, done: 0, total: 0 };
    try {
      await step(controller.signal, (progress) => (this.work.value = { what, ...progress }));
    } catch (thrown) {
      if (!controller.signal.aborted) this.error.value = asError(thrown);
      await this.#refresh().catch(() => undefined);
    } finally {
      if (this.#abort === controller) this.work.value = undefined;
    }
  }
}

/** Documents in the order in which they were added. */
function listed(records: MemoryRecord[]): DocumentSummary[] {
  const byDocument = new Map<string, { created: number; passages: number }>();
  for (const { document, created } of records) {
    const entry = byDocument.get(document) ?? { created, passages: 0 };
    byDocument.set(document, { created: Math.min(entry.created, created), passages: entry.passages + 1 });
  }
  const sorted = [...byDocument].sort(([a, x], [b, y]) => x.created - y.created || a.localeCompare(b));
  return sorted.map(([id, { passages }]) => ({ id, passages }));
}
