/** Takes out of a text what must not be stored. Knows patterns and functions; not where the text goes. */

import { refused } from "../errors.js";
import type { Json, Metadata } from "./types.js";

/** What is taken out: every match of a pattern becomes `[REDACTED]`; a function gives the text as it may be kept. */
export type Redaction = RegExp | ((text: string) => string | Promise<string>);

/** What stands in the place of a match. */
export const REDACTED = "[REDACTED]";

/** A redactor of texts and of the strings inside metadata. */
export interface Redactor {
  text(text: string): Promise<string>;
  metadata(metadata: Metadata): Promise<Metadata>;
}

/** Puts redactions into one, applied in order; `undefined` keeps texts as they are. */
export function redactor(redactions: Redaction | Redaction[] | undefined): Redactor {
  const steps = [redactions ?? []].flat().map(step);
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
    // A pattern without the flag would take out the first match only, and a sticky one none after a gap.
    const flags = new Set(redaction.flags).add("g");
    flags.delete("y");
    const pattern = new RegExp(redaction.source, [...flags].join(""));
    return async (text) => text.replace(pattern, REDACTED);
  }
  if (typeof redaction !== "function") throw refused("createMemory: 'redact' must be a RegExp, a function, or an array of these.");
  return async (text) => {
    const kept = await redaction(text);
    if (typeof kept !== "string") throw refused("createMemory: the 'redact' function must return a string.");
    return kept;
  };
}
