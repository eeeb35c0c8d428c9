/** Removes sensitive parts from texts and metadata. */

import { listOf } from "../check.js";
import { invalidRequest } from "../errors.js";
import type { Json, Metadata } from "./types.js";

/** A redaction: matches of a pattern become `[REDACTED]`; a function returns the text to keep. */
export type Redaction = RegExp | ((text: string) => string | Promise<string>);

/** The replacement of a match. */
export const REDACTED = "[REDACTED]";

/** Redacts texts, and strings inside metadata. */
export interface Redactor {
  text(text: string): Promise<string>;
  metadata(metadata: Metadata): Promise<Metadata>;
}

/** Combines redactions in order; `undefined` changes nothing. */
export function redactor(redactions: Redaction | Redaction[] | undefined): Redactor {
  const steps = Array.from(listOf(redactions ?? []), step);
  const text = async (value: string): Promise<string> => {
    for (const one of steps) value = await one(value);
    return value;
  };
  const json = async (value: Json): Promise<Json> => {
    if (typeof value === "string") return text(value);
    if (Array.isArray(value)) return Promise.all(value.map(json));
    if (typeof value !== "object" || value === null) return value;
    const entries = Object.entries(value).map(async ([key, inner]) => [key, await json(inner)] as const);
    return Object.fromEntries(await Promise.all(entries));
  };
  const metadata = async (value: Metadata): Promise<Metadata> => (steps.length ? ((await json(value)) as Metadata) : value);
  return { text, metadata };
}

function step(redaction: Redaction): (text: string) => Promise<string> {
  if (redaction instanceof RegExp) {
    // Without the g flag only the first match would be removed; with the y flag none after a gap.
    const flags = new Set(redaction.flags).add("g");
    flags.delete("y");
    const pattern = new RegExp(redaction.source, [...flags].join(""));
    return async (text) => text.replace(pattern, REDACTED);
  }
  if (typeof redaction !== "function") throw invalidRequest("createMemory: 'redact' must be a RegExp, a function, or an array of these.");
  return async (text) => {
    const redacted = await redaction(text);
    if (typeof redacted !== "string") throw invalidRequest("createMemory: the 'redact' function must return a string.");
    return redacted;
  };
}
