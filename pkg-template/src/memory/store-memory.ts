/** The in-memory store, and the record table that other stores also use. */

import { JerboaError } from "../errors.js";
import type { StoreBatch, StoreChanges, MemoryRecord, MemoryStore, StoreState } from "./types.js";

/** Refuses a batch whose vectors are not comparable with the stored ones. */
export function checkModel(state: StoreState, batch: Pick<StoreBatch, "model" | "dims" | "put">): void {
  if (!batch.put.length || state.model === undefined || (state.model === batch.model && state.dims === batch.dims)) return;
  throw new JerboaError(
    "model_mismatch",
    `The store has vectors of model ${state.model} (${state.dims} components), but this memory uses ${batch.model} (${batch.dims}). ` +
      "Open it with that model, pass onModelChange: 'reembed' to createMemory, or use a store of another name.",
  );
}

/** The state after a batch. */
export function stateAfter(state: StoreState, batch: StoreBatch): StoreState {
  const generation = state.generation + 1;
  if (batch.put.length) return { generation, model: batch.model, dims: batch.dims };
  return batch.clear ? { generation, dims: 0 } : { ...state, generation };
}

/** Records by id with the generation that wrote them, and the removals since. */
export class RecordTable {
  state: StoreState = { generation: 0, dims: 0 };
  readonly records = new Map<string, { record: MemoryRecord; generation: number }>();
  readonly #documents = new Map<string, Set<string>>();
  #removed: { generation: number; ids: string[] }[] = [];
  #reset = 0;

  /** Applies a batch; throws before anything changes. */
  apply(batch: StoreBatch): number {
    checkModel(batch.clear ? { generation: 0, dims: 0 } : this.state, batch);
    this.state = stateAfter(this.state, batch);
    const { generation } = this.state;
    if (batch.clear) {
      this.records.clear();
      this.#documents.clear();
      this.#removed = [];
      this.#reset = generation;
    }
    const dropped = (batch.drop ?? []).flatMap((document) => [...(this.#documents.get(document) ?? [])]);
    const gone = [...batch.remove, ...dropped].filter((id) => this.#delete(id));
    if (gone.length) this.#removed.push({ generation, ids: gone });
    for (const record of batch.put) {
      this.#delete(record.id);
      this.records.set(record.id, { record, generation });
      const ids = this.#documents.get(record.document);
      if (ids) ids.add(record.id);
      else this.#documents.set(record.document, new Set([record.id]));
    }
    return generation;
  }

  #delete(id: string): boolean {
    const entry = this.records.get(id);
    if (!entry) return false;
    this.records.delete(id);
    const ids = this.#documents.get(entry.record.document)!;
    ids.delete(id);
    if (!ids.size) this.#documents.delete(entry.record.document);
    return true;
  }

  /** All changes after a generation, in one part. */
  changes(since: number): StoreChanges {
    const reset = since < this.#reset;
    const put = [...this.records.values()].filter((entry) => reset || entry.generation > since).map((entry) => entry.record);
    const removed = reset ? [] : this.#removed.filter((entry) => entry.generation > since).flatMap((entry) => entry.ids);
    return { reset, removed: removed.filter((id) => !this.records.has(id)), put };
  }
}

/** Stores records in this page's memory. */
export class InMemoryStore implements MemoryStore {
  readonly #table = new RecordTable();
  readonly #listeners = new Set<() => void>();

  async open(): Promise<StoreState> {
    return this.#table.state;
  }

  async state(): Promise<StoreState> {
    return this.#table.state;
  }

  async changes(since: number, emit: (part: StoreChanges) => void): Promise<number> {
    emit(this.#table.changes(since));
    return this.#table.state.generation;
  }

  async apply(batch: StoreBatch): Promise<number> {
    const generation = this.#table.apply(batch);
    for (const listener of this.#listeners) listener();
    return generation;
  }

  async get(ids: string[]): Promise<(MemoryRecord | undefined)[]> {
    return ids.map((id) => this.#table.records.get(id)?.record);
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async close(): Promise<void> {
    this.#listeners.clear();
  }
}

/** Creates a store that lasts as long as the page. */
export function inMemoryStore(): MemoryStore {
  return new InMemoryStore();
}
