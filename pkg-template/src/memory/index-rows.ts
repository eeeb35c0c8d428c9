/** A store's vectors in memory, kept in step with it, and searched on the CPU or the GPU. Knows rows and sizes; no texts and no model. */

import { refused } from "../errors.js";
import type { Metadata, Changes, MemoryStore } from "./types.js";
import { searchExact, searchScored, type Ranked, type Scorer } from "./search.js";
import { GpuScorer } from "./search-gpu.js";
import { VectorTable, wrongWidth, type Row } from "./vectors.js";

/** Components from which the GPU is faster than the CPU, copying included: about 10,000 vectors of 384. */
const GPU_COMPONENTS = 4_000_000;

/** Whether to search on the GPU: for large stores, never, or from the first row on the caller's device. */
export type GpuChoice = "auto" | false | GPUDevice;

/** What a search of the index takes. */
export interface IndexSearch {
  k: number;
  minScore?: number | undefined;
  accept?: ((metadata: Metadata) => boolean) | undefined;
}

/** Follows a store. */
export class VectorIndex {
  readonly #store: MemoryStore;
  readonly #gpu: GpuChoice;
  #table: VectorTable | undefined;
  #scorer: Scorer | undefined;
  #generation = 0;
  #following: Promise<void> = Promise.resolve();

  constructor(store: MemoryStore, gpu: GpuChoice) {
    if (gpu !== "auto" && gpu !== false && (typeof gpu !== "object" || gpu === null)) throw refused("createMemory: 'gpu' must be 'auto', false or a GPUDevice.");
    this.#store = store;
    this.#gpu = gpu;
  }

  /** The number of rows. */
  get size(): number {
    return this.#table?.size ?? 0;
  }

  /** The vectors' width; 0 while there are none. */
  get dims(): number {
    return this.#table?.dims ?? 0;
  }

  /** Whether a record is there. */
  has(id: string): boolean {
    return this.#table?.place(id) !== undefined;
  }

  /** Rows in a lasting order: by document, then by part. */
  rows(accept?: (metadata: Metadata) => boolean): Row[] {
    const rows = (this.#table?.rows ?? []).filter((row) => !accept || accept(row.metadata));
    return rows.sort((a, b) => compare(a.document, b.document) || a.part - b.part || compare(a.id, b.id));
  }

  /** Takes over what changed in the store. */
  follow(): Promise<void> {
    this.#following = this.#following.catch(() => undefined).then(() => this.#catchUp());
    return this.#following;
  }

  /** The best rows, exactly. */
  async search(query: Float32Array<ArrayBuffer>, search: IndexSearch): Promise<{ id: string; score: number }[]> {
    const table = this.#table;
    if (!table?.size) return [];
    if (query.length !== table.dims) throw wrongWidth(query.length, table.dims);
    const { accept } = search;
    const options = {
      k: Math.min(search.k, table.size),
      ...(search.minScore !== undefined && { minScore: search.minScore }),
      ...(accept && { accept: (place: number) => accept(table.rows[place]!.metadata) }),
    };
    const name = ({ place, score }: Ranked) => ({ id: table.rows[place]!.id, score });
    const scorer = this.#scorerFor(table);
    const { revision } = table;
    const scored = await scorer?.scores(table, query);
    // Rows may have moved while the GPU worked; the CPU's search does not wait for anything.
    if (scored && table.revision === revision) return searchScored(table, query, scored.scores, scored.error, options).map(name);
    return searchExact(table, query, options).map(name);
  }

  /** Lets go of the GPU's memory. */
  destroy(): void {
    this.#scorer?.destroy();
    this.#scorer = undefined;
  }

  #scorerFor(table: VectorTable): Scorer | undefined {
    if (this.#gpu === false || (this.#gpu === "auto" && table.size * table.dims < GPU_COMPONENTS)) return undefined;
    return (this.#scorer ??= new GpuScorer("f32", this.#gpu === "auto" ? undefined : this.#gpu));
  }

  async #catchUp(): Promise<void> {
    // The first time nobody can see a half; later the parts wait for each other.
    const first = this.#generation === 0 && !this.#table;
    const parts: Changes[] = [];
    const generation = await this.#store.changes(this.#generation, (part) => (first ? this.#take(part) : parts.push(part)));
    for (const part of parts) this.#take(part);
    this.#generation = generation;
  }

  #take({ reset, removed, put }: Changes): void {
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
