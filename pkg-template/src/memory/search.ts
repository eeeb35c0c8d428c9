/** Exact nearest-neighbor search: the k rows with the largest dot product. */

import { dot, type VectorTable } from "./vectors.js";

/** A row index and its score. */
export interface RankedRow {
  place: number;
  score: number;
}

/** Options of a search. */
export interface SearchOptions {
  /** Maximum number of rows. */
  k: number;
  /** Drops rows below this score. */
  minScore?: number;
  /** Restricts the search to some rows. */
  accept?: (place: number) => boolean;
}

/** Scores all rows at once, each within `error` of the exact score. */
export interface Scorer {
  /** The scores in row order; `undefined` if the scorer is unavailable. */
  scores(table: VectorTable, query: Float32Array<ArrayBuffer>): Promise<{ scores: Float32Array; error: number } | undefined>;
  /** Frees the GPU memory. */
  destroy(): void;
}

/** Searches on the CPU. */
export function searchExact(table: VectorTable, query: Float32Array, options: SearchOptions): RankedRow[] {
  const best = new TopK(table, options.k);
  const { dims, stride, rowsPerBlock } = table;
  const accept = options.accept;
  let floor = options.minScore ?? -Infinity;
  for (let place = 0, block = 0; place < table.size; block++) {
    const { data } = table.blocks[block]!;
    const rows = Math.min(rowsPerBlock, table.size - place);
    for (let row = 0; row < rows; row++, place++) {
      const score = dot(data, row * stride, query, 0, dims);
      // Filter only rows that would be kept: filters often cost more than the dot product.
      if (score >= floor && (!accept || accept(place))) floor = Math.max(floor, best.insert(place, score));
    }
  }
  return best.sorted();
}

/**
 * Searches with approximate scores: rows that could be among the best, given the error, are rescored exactly.
 * Bit-identical to `searchExact`.
 */
export function searchScored(table: VectorTable, query: Float32Array, scores: Float32Array, error: number, options: SearchOptions): RankedRow[] {
  const { accept, k } = options;
  const least = (options.minScore ?? -Infinity) - error;
  const rough = new TopK(table, k);
  let floor = least;
  for (let place = 0; place < table.size; place++) {
    if (scores[place]! >= floor && (!accept || accept(place))) floor = Math.max(floor, rough.insert(place, scores[place]!));
  }
  const threshold = Math.max(least, rough.full ? rough.worst - 2 * error : -Infinity);
  const best = new TopK(table, k);
  for (let place = 0; place < table.size; place++) {
    if (!(scores[place]! >= threshold) || (accept && !accept(place))) continue;
    const row = table.vector(place);
    const score = dot(row, 0, query, 0, table.dims);
    if (score >= (options.minScore ?? -Infinity)) best.insert(place, score);
  }
  return best.sorted();
}

/** The k best rows: a binary heap with the worst on top. Ties rank by id, so that row order never matters. */
class TopK {
  readonly #table: VectorTable;
  readonly #k: number;
  readonly #heap: RankedRow[] = [];

  constructor(table: VectorTable, k: number) {
    this.#table = table;
    this.#k = k;
  }

  get full(): boolean {
    return this.#heap.length >= this.#k;
  }

  get worst(): number {
    return this.#heap[0]?.score ?? -Infinity;
  }

  /** Takes a row if it is good enough; returns the score below which rows are rejected. */
  insert(place: number, score: number): number {
    const heap = this.#heap;
    const item = { place, score };
    if (heap.length < this.#k) {
      heap.push(item);
      this.#up(heap.length - 1);
    } else if (heap.length && this.#below(heap[0]!, item)) {
      heap[0] = item;
      this.#down();
    }
    return this.full ? this.worst : -Infinity;
  }

  sorted(): RankedRow[] {
    return [...this.#heap].sort((a, b) => (this.#below(a, b) ? 1 : -1));
  }

  #below(a: RankedRow, b: RankedRow): boolean {
    if (a.score !== b.score) return a.score < b.score;
    return this.#table.rows[a.place]!.id > this.#table.rows[b.place]!.id;
  }

  #up(at: number): void {
    const heap = this.#heap;
    for (let parent = (at - 1) >> 1; at > 0 && this.#below(heap[at]!, heap[parent]!); parent = (at - 1) >> 1) {
      [heap[at], heap[parent]] = [heap[parent]!, heap[at]!];
      at = parent;
    }
  }

  #down(): void {
    const heap = this.#heap;
    for (let at = 0; ; ) {
      let least = at;
      for (const child of [2 * at + 1, 2 * at + 2]) {
        if (child < heap.length && this.#below(heap[child]!, heap[least]!)) least = child;
      }
      if (least === at) return;
      [heap[at], heap[least]] = [heap[least]!, heap[at]!];
      at = least;
    }
  }
}
