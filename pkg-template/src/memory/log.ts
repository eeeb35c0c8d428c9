/** The byte format of a file store: a header, then one frame per batch with length and checksum. */

import { JerboaError } from "../errors.js";
import { upgradeRecord } from "./migrate-v1.js";
import type { StoreBatch, MemoryRecord } from "./types.js";

/** The layout that this code writes. 1: one JSON document; 2: this log. */
export const LOG_VERSION = 2;
/** Header size: eight letters and the version. */
export const HEADER_BYTES = 12;
/** Size of a frame header: magic number, payload length, CRC-32. */
export const FRAME_BYTES = 12;

const FILE_MAGIC = new TextEncoder().encode("JERBOMEM");
const FRAME_MAGIC = 0x4d52464a; // "JFRM"

type FrameHead = Omit<StoreBatch, "put"> & { put: Omit<MemoryRecord, "vector">[] };

/** The header of a new file. */
export function header(): Uint8Array {
  const bytes = new Uint8Array(HEADER_BYTES);
  bytes.set(FILE_MAGIC);
  new DataView(bytes.buffer).setUint32(8, LOG_VERSION, true);
  return bytes;
}

/** The version in a header; undefined if the bytes are not a header. */
export function headerVersion(bytes: Uint8Array): number | undefined {
  if (bytes.length < HEADER_BYTES || FILE_MAGIC.some((letter, i) => bytes[i] !== letter)) return undefined;
  return view(bytes).getUint32(8, true);
}

/** Encodes a batch as a frame: JSON, then the raw vectors. */
export function encodeFrame(batch: StoreBatch): Uint8Array {
  const head: FrameHead = { ...batch, put: batch.put.map(({ vector: _, ...rest }) => rest) };
  const json = new TextEncoder().encode(JSON.stringify(head));
  const vectors = FRAME_BYTES + 4 + json.length;
  const bytes = new Uint8Array(vectors + batch.put.length * batch.dims * 4);
  bytes.set(json, FRAME_BYTES + 4);
  batch.put.forEach(({ vector }, i) => {
    bytes.set(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength), vectors + i * batch.dims * 4);
  });
  const data = view(bytes);
  data.setUint32(FRAME_BYTES, json.length, true);
  data.setUint32(0, FRAME_MAGIC, true);
  data.setUint32(4, bytes.length - FRAME_BYTES, true);
  data.setUint32(8, crc32(bytes.subarray(FRAME_BYTES)), true);
  return bytes;
}

/** The payload length in a frame header; undefined if there is no frame. */
export function payloadLength(bytes: Uint8Array): number | undefined {
  return bytes.length >= FRAME_BYTES && view(bytes).getUint32(0, true) === FRAME_MAGIC ? view(bytes).getUint32(4, true) : undefined;
}

/** Decodes a complete frame; undefined if it is damaged. */
export function decodeFrame(bytes: Uint8Array): StoreBatch | undefined {
  const payload = bytes.subarray(FRAME_BYTES);
  if (payloadLength(bytes) !== payload.length || payload.length < 4 || view(bytes).getUint32(8, true) !== crc32(payload)) return undefined;
  const jsonLength = view(payload).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(payload.subarray(4, 4 + jsonLength))) as FrameHead;
  const row = head.dims * 4;
  const vectors = payload.subarray(4 + jsonLength);
  if (vectors.length !== row * head.put.length) return undefined;
  const put = head.put.map((record, i) => ({ ...record, vector: new Float32Array(vectors.slice(i * row, (i + 1) * row).buffer) }));
  return { ...head, put };
}

/** The offset of the first intact frame at or after `from`, or -1. */
export function findFrame(bytes: Uint8Array, from: number): number {
  for (let at = from; at + FRAME_BYTES <= bytes.length; at++) {
    if (bytes[at] !== (FRAME_MAGIC & 0xff)) continue;
    const length = payloadLength(bytes.subarray(at));
    const end = at + FRAME_BYTES + (length ?? 0);
    if (length !== undefined && end <= bytes.length && decodeFrame(bytes.subarray(at, end))) return at;
  }
  return -1;
}

/** Reads a file of layout 1: `{ "version": 1, "model": …, "records": [{ id, text, vector, metadata, createdAt }] }`. */
export function readLayout1(text: string, path: string): StoreBatch {
  const broken = (reason: string): JerboaError =>
    new JerboaError("malformed", `${path} is not a memory store: ${reason}. Use another path, or one that does not exist yet.`);
  let document: { version?: unknown; model?: unknown; records?: unknown };
  try {
    document = JSON.parse(text);
  } catch {
    throw broken("it has no store header and is not JSON");
  }
  if (document?.version !== 1 || !Array.isArray(document.records)) throw broken("its JSON is not a store of version 1");
  const put = document.records.map(upgradeRecord);
  const dims = put[0]?.vector.length ?? 0;
  if (put.some((record) => record.vector.length !== dims)) throw broken("its vectors have different lengths");
  return { model: typeof document.model === "string" ? document.model : "unknown", dims, put, remove: [] };
}

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? (byte >>> 1) ^ 0xedb88320 : byte >>> 1;
  return byte;
});

/** CRC-32 as in zip and PNG. */
export function crc32(bytes: Uint8Array): number {
  let crc = ~0;
  for (let i = 0; i < bytes.length; i++) crc = TABLE[(crc ^ bytes[i]!) & 0xff]! ^ (crc >>> 8);
  return ~crc >>> 0;
}
