/** A table of vectors with an id and metadata per row, packed in blocks. */

import { JerboaError } from "../errors.js";
import type { Metadata } from "./types.js";

/** Block size in bytes: below any GPU's binding limit, large enough that few blocks are needed. */
const BLOCK_BYTES = 8 << 20;

/** A block of consecutive rows. */
export interface Block {
  /** Components of the rows, each row padded with zeros to the stride. */
  readonly data: Float32Array<ArrayBuffer>;
  /** Range of rows written since the reader's last visit. */
  dirty: { from: number; to: number };
}

/** A row's id and metadata. */
export interface Row {
  readonly id: string;
  readonly document: string;
  readonly part: number;
  readonly metadata: Metadata;
}

/** Rows without a particular order: a removed row is replaced by the last one. */
export class VectorTable {
  /** Components of a vector. */
  readonly dims: number;
  /** Components between rows: `dims` rounded up to a multiple of four, as the GPU reads four at once. */
  readonly stride: number;
  /** Rows per block. */
  readonly rowsPerBlock: number;
  /** The rows' vectors. */
  readonly blocks: Block[] = [];
  /** The rows' ids and metadata. */
  readonly rows: Row[] = [];
  /** Counts changes, so that a waiting reader can detect them. */
  revision = 0;
  readonly #rowsById = new Map<string, number>();

  constructor(dims: number) {
    this.dims = dims;
    this.stride = Math.ceil(dims / 4) * 4;
    this.rowsPerBlock = Math.max(1, Math.floor(BLOCK_BYTES / (this.stride * 4)));
  }

  /** Number of rows. */
  get size(): number {
    return this.rows.length;
  }

  /** The row index of an id. */
  rowOf(id: string): number | undefined {
    return this.#rowsById.get(id);
  }

  /** Adds a row, or replaces the one with the same id. */
  set(row: Row, vector: Float32Array): void {
    if (vector.length !== this.dims) throw wrongLength(vector.length, this.dims);
    const place = this.#rowsById.get(row.id) ?? this.rows.length;
    this.revision++;
    this.rows[place] = row;
    this.#rowsById.set(row.id, place);
    this.#write(place, vector);
  }

  /** Removes a row; returns false for an unknown id. */
  remove(id: string): boolean {
    const place = this.#rowsById.get(id);
    if (place === undefined) return false;
    this.revision++;
    this.#rowsById.delete(id);
    const last = this.rows.length - 1;
    const moved = this.rows[last]!;
    if (place !== last) {
      this.#write(place, this.vector(last));
      this.rows[place] = moved;
      this.#rowsById.set(moved.id, place);
    }
    this.rows.length = last;
    this.blocks.length = Math.ceil(last / this.rowsPerBlock);
    return true;
  }

  /** A view of a row's vector; valid until the table changes. */
  vector(place: number): Float32Array<ArrayBuffer> {
    const block = this.blocks[Math.floor(place / this.rowsPerBlock)]!;
    const at = (place % this.rowsPerBlock) * this.stride;
    return block.data.subarray(at, at + this.dims);
  }

  #write(place: number, vector: Float32Array): void {
    const index = Math.floor(place / this.rowsPerBlock);
    const row = place % this.rowsPerBlock;
    const block = (this.blocks[index] ??= { data: new Float32Array(this.rowsPerBlock * this.stride), dirty: { from: row, to: row + 1 } });
    block.data.set(vector, row * this.stride);
    block.dirty = { from: Math.min(block.dirty.from, row), to: Math.max(block.dirty.to, row + 1) };
  }
}

/** The dot product in f64 with a fixed order of summation: the same on every machine. */
export function dot(a: Float32Array, aStart: number, b: Float32Array, bStart: number, length: number): number {
  let s0 = 0;
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  const whole = length - (length % 4);
  for (let i = 0; i < whole; i += 4) {
    s0 += a[aStart + i]! * b[bStart + i]!;
    s1 += a[aStart + i + 1]! * b[bStart + i + 1]!;
    s2 += a[aStart + i + 2]! * b[bStart + i + 2]!;
    s3 += a[aStart + i + 3]! * b[bStart + i + 3]!;
  }
  for (let i = whole; i < length; i++) s0 += a[aStart + i]! * b[bStart + i]!;
  return s0 + s1 + (s2 + s3);
}

/** A copy normalized to length 1; a zero vector stays zero. Refuses empty and non-finite vectors. */
export function normalized(vector: ArrayLike<number>): Float32Array<ArrayBuffer> {
  const copy = Float32Array.from(vector);
  const square = dot(copy, 0, copy, 0, copy.length);
  if (!copy.length || !Number.isFinite(square)) {
    throw new JerboaError("not_finite", "The model returned an embedding that is empty or not finite. Load the model again; if the error repeats, its weights may be damaged: call deleteModel, then load it again.");
  }
  if (square > 0) {
    const scale = 1 / Math.sqrt(square);
    for (let i = 0; i < copy.length; i++) copy[i]! *= scale;
  }
  return copy;
}

/** The error of a vector with the wrong number of components. */
export function wrongLength(found: number, expected: number): JerboaError {
  return new JerboaError("shape", `The vector has ${found} components, but this memory has ${expected}. Use vectors of the same model.`);
}
