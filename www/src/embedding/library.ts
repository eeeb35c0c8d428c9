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

/** A step of an operation, which reports its progress. */
type Step = (signal: AbortSignal, report: (work: Omit<RunningTask, "what">) => void) => Promise<void>;

const STORE = "jerboa-page";
/** The channel on which tabs announce that they changed the documents. */
const CHANGES = "jerboa.documents";
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
  readonly #changes = new BroadcastChannel(CHANGES);
  /** Whether another tab changed the documents since they were read. */
  #stale = false;

  constructor() {
    this.#changes.onmessage = () => {
      this.#stale = true;
      void this.#follow();
    };
    document.addEventListener("visibilitychange", () => void this.#follow());
  }

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
    await this.#change(EMBEDDING.reading, async (signal, report) => {
      const { records } = await memory.add(some, { signal, onProgress: report });
      announce(EMBEDDING.added(records));
    });
    await this.#again();
  }

  async remove(document: string): Promise<void> {
    await this.#change(EMBEDDING.removing, async () => void (await this.#memory?.delete({ document })));
    await this.#again();
  }

  async clear(): Promise<void> {
    this.found.value = undefined;
    await this.#change(EMBEDDING.removing, async () => this.#memory?.clear());
  }

  async search(query: string): Promise<void> {
    const [memory, model] = [this.#memory, this.#model];
    if (!memory || !model || !query.trim()) return void (this.found.value = undefined);
    await this.#run(EMBEDDING.searching, async (signal) => {
      const started = performance.now();
      const vector = await model.embed(query, { task: "query", signal });
      const hits = await memory.search(vector, { k: HITS, signal });
      // The search reads changes of other tabs, too.
      if (memory.size !== this.records.peek().length) await this.#refresh();
      this.found.value = { query, vector, hits, ms: performance.now() - started };
      announce(EMBEDDING.found(hits.length));
    });
  }

  /** The best passages for the last query, as the start of a chat. */
  async recall(query: string): Promise<string | undefined> {
    const { context } = (await this.#memory?.recall(query, { k: RECALLED, budget: RECALL_TOKENS })) ?? {};
    return context ? EMBEDDING.fromNotes(context, query) : undefined;
  }

  /** Stops the running operation; documents stored by then stay. */
  stop(): void {
    this.#abort?.abort();
  }

  /** Repeats the last search over the changed documents. */
  async #again(): Promise<void> {
    if (this.records.peek().length === 0) this.found.value = undefined;
    if (this.found.peek()) await this.search(this.found.peek()!.query);
  }

  /** Shows what another tab changed. A hidden tab waits: if its model is another one, it embeds all documents again. */
  async #follow(): Promise<void> {
    if (!this.#stale || !this.#memory || this.work.peek() || document.hidden) return;
    this.#stale = false;
    await this.#run(EMBEDDING.opening, () => this.#refresh());
    await this.#again();
  }

  /** Runs a step that changes the documents, and tells other tabs. */
  async #change(what: string, step: Step): Promise<void> {
    await this.#run(what, async (signal, report) => {
      await step(signal, report);
      await this.#refresh();
    });
    this.#changes.postMessage(true);
  }

  async #refresh(): Promise<void> {
    this.records.value = (await this.#memory?.list()) ?? [];
  }

  async #run(what: string, step: Step): Promise<void> {
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
      void this.#follow();
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
