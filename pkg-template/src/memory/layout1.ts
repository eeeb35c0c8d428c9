/** Records as stores and exports of version 1 held them. Knows that shape and today's; no store. */

import { JerboaError } from "../errors.js";
import type { MemoryRecord, Metadata } from "./types.js";
import { unit } from "./vectors.js";

/** A record of version 1: a text that is not a part of anything, its vector as plain numbers. */
export interface PlainRecord {
  id: string;
  text: string;
  vector: number[];
  metadata?: Metadata;
  createdAt?: number;
  model?: string;
}

/** A record of version 1 as one of today: a document of one part. */
export function upgraded(old: PlainRecord): MemoryRecord {
  if (typeof old?.id !== "string" || typeof old.text !== "string" || !Array.isArray(old.vector)) {
    throw new JerboaError("malformed", "A record of version 1 lacks its id, text or vector; nothing was changed. Remove that record from the file, or import a sound copy.");
  }
  const place = { id: old.id, document: old.id, part: 0, start: 0, end: old.text.length };
  return { ...place, text: old.text, tokens: 0, created: old.createdAt ?? 0, metadata: old.metadata ?? {}, vector: unit(old.vector) };
}
