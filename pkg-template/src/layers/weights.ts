/** Weights as typed arrays, from and to the bytes of safetensors files. */

import { describe } from "../check.js";
import { JerboaError } from "../index.js";

/** A weight: its shape, and its numbers row after row. */
export interface Weight {
  shape: number[];
  data: Float32Array<ArrayBuffer>;
}

const LENGTH_BYTES = 8;

/** A count of numbers, for messages. */
export const counted = (count: number): string => `${count} number${count === 1 ? "" : "s"}`;

/** The tensors of a file that the module wrote: F32 only. */
export function readWeights(bytes: Uint8Array<ArrayBuffer>): Record<string, Weight> {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const start = LENGTH_BYTES + length;
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(LENGTH_BYTES, start))) as Record<string, { shape: number[]; data_offsets: [number, number] }>;
  const tensors = Object.entries(header).filter(([name]) => name !== "__metadata__");
  return Object.fromEntries(tensors.map(([name, { shape, data_offsets: [first, end] }]) => [name, { shape, data: new Float32Array(bytes.slice(start + first, start + end).buffer) }]));
}

/** The bytes of a file with these weights. */
export function writeWeights(what: string, weights: Record<string, Weight>): Uint8Array<ArrayBuffer> {
  if (typeof weights !== "object" || weights === null) throw new JerboaError("request", `${what}: the weights must be an object of { shape, data } by name, not ${describe(weights)}.`);
  const header: Record<string, object> = {};
  const parts: Float32Array[] = [];
  let end = 0;
  for (const [name, weight] of Object.entries(weights)) {
    if (!Array.isArray(weight?.shape) || !(weight.data instanceof Float32Array)) throw new JerboaError("request", `${what}: '${name}' must have a 'shape' and a Float32Array 'data'.`);
    const count = weight.shape.reduce((product, size) => product * size, 1);
    if (count !== weight.data.length) throw new JerboaError("request", `${what}: 'data' of '${name}' has ${counted(weight.data.length)}, but its shape [${weight.shape.join(", ")}] needs ${count}.`);
    const first = end;
    end += weight.data.byteLength;
    header[name] = { dtype: "F32", shape: weight.shape, data_offsets: [first, end] };
    parts.push(weight.data);
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  // The data starts at a multiple of 8.
  const length = Math.ceil(text.length / 8) * 8;
  const bytes = new Uint8Array(LENGTH_BYTES + length + end).fill(0x20, LENGTH_BYTES, LENGTH_BYTES + length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(text, LENGTH_BYTES);
  let at = LENGTH_BYTES + length;
  for (const part of parts) {
    bytes.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), at);
    at += part.byteLength;
  }
  return bytes;
}
