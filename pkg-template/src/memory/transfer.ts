/** Export and import as JSON lines: a header, then records with vectors as base64 of f32. */

import { JerboaError } from "../errors.js";
import { upgradeRecord, type RecordV1 } from "./migrate-v1.js";
import type { MemoryRecord, Metadata } from "./types.js";
import { normalized } from "./vectors.js";

/** The version that `exportLines` writes. 1: one JSON document with vectors as numbers. */
export const EXPORT_VERSION = 2;

/** Input of an import. */
export type ImportSource = string | Blob | AsyncIterable<string | Uint8Array> | ReadableStream<Uint8Array>;

/** A parsed export. */
export interface ParsedExport {
  model: string;
  dims: number;
  records: MemoryRecord[];
}

interface ExportHeader {
  format: "jerboa-memory";
  version: number;
  model: string;
  dims: number;
}

/** The first line of an export. */
export function headerLine(model: string, dims: number): string {
  return `${JSON.stringify({ format: "jerboa-memory", version: EXPORT_VERSION, model, dims } satisfies ExportHeader)}\n`;
}

/** A record's line. */
export function recordLine({ vector, ...rest }: MemoryRecord): string {
  return `${JSON.stringify({ ...rest, vector: toBase64(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength)) })}\n`;
}

/** Reads a complete export; throws if any of it is damaged. */
export async function readExport(source: ImportSource): Promise<ParsedExport> {
  const text = await allText(source);
  const newline = text.indexOf("\n");
  const first = parse(newline < 0 ? text : text.slice(0, newline)) as Partial<ExportHeader> | undefined;
  if (first?.format !== "jerboa-memory") return readVersion1(text);
  if (typeof first.version !== "number" || first.version > EXPORT_VERSION) {
    const message = `The export has version ${first.version}; this version of jerboa reads up to ${EXPORT_VERSION}. Update the package, then import it again. Nothing was changed.`;
    throw new JerboaError("store_version", message);
  }
  const { model, dims } = first;
  if (typeof model !== "string" || !Number.isInteger(dims) || dims! < 0) throw broken(1, "the header lacks 'model' or 'dims'");
  const records: MemoryRecord[] = [];
  let line = 1;
  for (let at = newline < 0 ? text.length : newline + 1; at < text.length; ) {
    const end = text.indexOf("\n", at);
    const content = text.slice(at, end < 0 ? text.length : end).trim();
    line++;
    if (content) records.push(readRecord(content, line, dims!));
    at = end < 0 ? text.length : end + 1;
  }
  return { model, dims: dims!, records };
}

function readRecord(content: string, line: number, dims: number): MemoryRecord {
  const given = parse(content) as (Partial<MemoryRecord> & { vector?: unknown }) | undefined;
  if (typeof given?.id !== "string" || typeof given.text !== "string" || typeof given.vector !== "string") {
    throw broken(line, "it is not a record with 'id', 'text' and 'vector'");
  }
  const bytes = fromBase64(given.vector);
  if (bytes?.length !== dims * 4) throw broken(line, `its vector does not have ${dims} components`);
  const metadata = typeof given.metadata === "object" && given.metadata && !Array.isArray(given.metadata) ? (given.metadata as Metadata) : {};
  const number = (value: unknown, otherwise: number): number => (typeof value === "number" && Number.isFinite(value) ? value : otherwise);
  const start = number(given.start, 0);
  return {
    id: given.id,
    document: typeof given.document === "string" ? given.document : given.id,
    part: number(given.part, 0),
    start,
    end: number(given.end, start + given.text.length),
    text: given.text,
    ...(typeof given.imageUrl === "string" && { imageUrl: given.imageUrl }),
    tokens: number(given.tokens, 0),
    created: number(given.created, 0),
    metadata,
    vector: normalized(new Float32Array(bytes.buffer)),
  };
}

function readVersion1(text: string): ParsedExport {
  const document = parse(text) as { version?: unknown; model?: unknown; records?: unknown } | undefined;
  if (document?.version !== 1 || !Array.isArray(document.records)) throw broken(1, "it is not the header of an export, nor an export of version 1");
  const records = (document.records as RecordV1[]).map(upgradeRecord);
  const dims = records[0]?.vector.length ?? 0;
  if (records.some((record) => record.vector.length !== dims)) throw broken(1, "its vectors have different lengths");
  return { model: typeof document.model === "string" ? document.model : "unknown", dims, records };
}

async function allText(source: ImportSource): Promise<string> {
  if (typeof source === "string") return source;
  if (source instanceof Blob) return source.text();
  const decoder = new TextDecoder();
  const parts: string[] = [];
  for await (const part of source as AsyncIterable<string | Uint8Array>) parts.push(typeof part === "string" ? part : decoder.decode(part, { stream: true }));
  return parts.join("") + decoder.decode();
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function broken(line: number, reason: string): JerboaError {
  return new JerboaError("malformed", `Line ${line} of the import: ${reason}. Nothing was imported. Export the memory again, or remove that line.`);
}

function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let i = 0; i < bytes.length; i += 8192) binary += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(binary);
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return undefined;
  }
}
