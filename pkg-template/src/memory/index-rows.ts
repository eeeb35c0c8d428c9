/** An in-memory vector index that follows a store, searched on the CPU or the GPU. */

import { invalidRequest } from "../errors.js";
import type { Metadata, StoreChanges, MemoryStore } from "./types.js";
import { searchExact, searchScored, type RankedRow, type Scorer } from "./search.js";
import { GpuScorer, type GpuDeviceLike } from "./search-gpu.js";
import { VectorTable, wrongLength, type Row } from "./vectors.js";

/** Number of components from which the GPU is faster than the CPU, including uploads: about 10,000 vectors of 384. */
const GPU_COMPONENTS = 4_000_000;

/** When to search on the GPU: for large stores, never, or always on the caller's device. */
export type GpuChoice = "auto" | false | GpuDeviceLike;

/** Options of an index search. */
export interface IndexSearch {
  k: number;
  minScore?: number | undefined;
  accept?: ((metadata: Metadata) => boolean) | undefined;
}

/** A vector index that follows a store. */
export class VectorIndex {
  readonly #store: MemoryStore;
  readonly #gpu: GpuChoice;
  #table: VectorTable | undefined;
  #scorer: Scorer | undefined;
  #generation = 0;
  #following: Promise<void> = Promise.resolve();

  constructor(store: MemoryStore, gpu: GpuChoice) {
    if (gpu !== "auto" && gpu !== false && (typeof gpu !== "object" || gpu === null)) throw invalidRequest("createMemory: 'gpu' must be 'auto', false or a GPUDevice.");
    this.#store = store;
    this.#gpu = gpu;
  }

  /** Number of rows. */
  get size(): number {
    return this.#table?.size ?? 0;
  }

  /** Width of the vectors; 0 while the index is empty. */
  get dims(): number {
    return this.#table?.dims ?? 0;
  }

  /** Whether a record exists. */
  has(id: string): boolean {
    return this.#table?.rowOf(id) !== undefined;
  }

  /** Rows in a stable order: by document, then by part. */
  rows(accept?: (metadata: Metadata) => boolean): Row[] {
    const rows = (this.#table?.rows ?? []).filter((row) => !accept || accept(row.metadata));
    return rows.sort((a, b) => compare(a.document, b.document) || a.part - b.part || compare(a.id, b.id));
  }

  /** Applies the store's changes. */
  follow(): Promise<void> {
    this.#following = this.#following.catch(() => undefined).then(() => this.#catchUp());
    return this.#following;
  }

  /** Exact nearest rows, best first. */
  async search(query: Float32Array<ArrayBuffer>, search: IndexSearch): Promise<{ id: string; score: number }[]> {
    const table = this.#table;
    if (!table?.size) return [];
    if (query.length !== table.dims) throw wrongLength(query.length, table.dims);
    const { accept } = search;
    const options = {
      k: Math.min(search.k, table.size),
      ...(search.minScore !== undefined && { minScore: search.minScore }),
      ...(accept && { accept: (place: number) => accept(table.rows[place]!.metadata) }),
    };
    const name = ({ place, score }: RankedRow) => ({ id: table.rows[place]!.id, score });
    const scorer = this.#scorerFor(table);
    const { revision } = table;
    const scored = await scorer?.scores(table, query);
    // Rows may have moved while the GPU worked; the CPU search is synchronous.
    if (scored && table.revision === revision) return searchScored(table, query, scored.scores, scored.error, options).map(name);
    return searchExact(table, query, options).map(name);
  }

  /** Frees the GPU memory. */
  destroy(): void {
    this.#scorer?.destroy();
    this.#scorer = undefined;
  }

  #scorerFor(table: VectorTable): Scorer | undefined {
    if (this.#gpu === false || (this.#gpu === "auto" && table.size * table.dims < GPU_COMPONENTS)) return undefined;
    return (this.#scorer ??= new GpuScorer("f32", this.#gpu === "auto" ? undefined : this.#gpu));
  }

  async #catchUp(): Promise<void> {
    // Before the first result no partial state is visible; later, apply the parts together.
    const first = this.#generation === 0 && !this.#table;
    const parts: StoreChanges[] = [];
    const generation = await this.#store.changes(this.#generation, (part) => (first ? this.#take(part) : parts.push(part)));
    for (const part of parts) this.#take(part);
    this.#generation = generation;
  }

  #take({ reset, removed, put }: StoreChanges): void {
    if (reset) {
      this.#table = undefined;
      this.destroy();
    }
    for (const id of removed) this.#table?.remove(id);
    for (const { id, document, part, metadata, vector } of put) {
      this.#table ??= new VectorTable(vector.length);
      this.#table.set({ id, document, part, metadata }, vector);
    }
  }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
