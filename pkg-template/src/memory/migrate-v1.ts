/** Converts records of layout 1, in stores and exports, to the current layout. */

import { JerboaError } from "../errors.js";
import type { MemoryRecord, Metadata } from "./types.js";
import { normalized } from "./vectors.js";

/** A record of version 1: a whole text with its vector as plain numbers. */
export interface RecordV1 {
  id: string;
  text: string;
  vector: number[];
  metadata?: Metadata;
  createdAt?: number;
  model?: string;
}

/** Converts a record of version 1 to a document with one part. */
export function upgradeRecord(old: RecordV1): MemoryRecord {
  if (typeof old?.id !== "string" || typeof old.text !== "string" || !Array.isArray(old.vector)) {
    throw new JerboaError("malformed", "A record of version 1 lacks 'id', 'text' or 'vector'. Nothing was changed. Remove the record from the file, or import an intact copy.");
  }
  const place = { id: old.id, document: old.id, part: 0, start: 0, end: old.text.length };
  return { ...place, text: old.text, tokens: 0, created: old.createdAt ?? 0, metadata: old.metadata ?? {}, vector: normalized(old.vector) };
}
