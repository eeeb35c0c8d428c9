/** Packs what a search found into a text for a prompt, under a token budget. Knows hits and a token counter; no store. */

import { chunkText, type TokenCounter } from "./chunk.js";
import type { Hit } from "./types.js";

/** What a recall gives. */
export interface Recall {
  /** The passages, best first, ready for a prompt; empty if nothing was found. */
  context: string;
  /** The records that are in it, best first. */
  records: Hit[];
  /** The context's length in tokens, never above the budget. */
  tokens: number;
}

/** A passage of the context: one hit, or several of a document whose texts overlap, put together. */
export interface Passage {
  document: string;
  start: number;
  end: number;
  text: string;
  /** The hits in it, best first. */
  hits: Hit[];
}

/** How the context is written. */
export interface PackOptions {
  /** The most tokens of the context. 1024 unless told. */
  budget?: number;
  /** What stands between passages. A blank line unless told. */
  separator?: string;
  /** How a passage is written, its text alone unless told: for a source or a number before it. */
  format?: (passage: Passage, index: number) => string;
}

/** Takes hits, best first, for as long as they fit; one that does not is passed over for a shorter one. */
export async function pack(hits: Hit[], count: TokenCounter, options: PackOptions = {}): Promise<Recall> {
  const { budget = 1024, separator = "\n\n", format = (passage: Passage) => passage.text } = options;
  const write = (chosen: Hit[]): string => passages(chosen).map(format).join(separator);
  const result: Recall = { context: "", records: [], tokens: 0 };
  for (const hit of hits) {
    const chosen = [...result.records, hit];
    const context = write(chosen);
    // Counted as a whole: what passages and separators take together is not the sum of their parts.
    const tokens = await count(context);
    if (tokens <= budget) Object.assign(result, { context, records: chosen, tokens });
  }
  if (result.records.length || !hits.length) return result;
  return shortened(hits[0]!, count, budget, write);
}

/** The start of the best hit, in whole sentences where one fits. */
async function shortened(hit: Hit, count: TokenCounter, budget: number, write: (hits: Hit[]) => string): Promise<Recall> {
  const frame = await count(write([{ ...hit, text: "" }]));
  for (let room = budget - frame; room >= 1; room = Math.floor(room * 0.8)) {
    const chunk = (await chunkText(hit.text, count, { maxTokens: room, overlap: 0 }))[0];
    if (!chunk) break;
    const cut: Hit = { ...hit, text: chunk.text, start: hit.start + chunk.start, end: hit.start + chunk.end, tokens: chunk.tokens };
    const context = write([cut]);
    const tokens = await count(context);
    if (tokens <= budget) return { context, records: [cut], tokens };
  }
  return { context: "", records: [], tokens: 0 };
}

/** Puts hits of one document that overlap into one passage, at the place of the best of them. */
export function passages(hits: Hit[]): Passage[] {
  const result: Passage[] = [];
  for (const hit of hits) {
    let passage: Passage = { document: hit.document, start: hit.start, end: hit.end, text: hit.text, hits: [hit] };
    let place = result.length;
    for (let i = result.length - 1; i >= 0; i--) {
      const joined = join(result[i]!, passage);
      if (!joined) continue;
      passage = joined;
      result.splice(i, 1);
      place = i;
    }
    result.splice(Math.min(place, result.length), 0, passage);
  }
  return result;
}

function join(a: Passage, b: Passage): Passage | undefined {
  if (a.document !== b.document || a.start > b.end || b.start > a.end) return undefined;
  const [left, right] = a.start <= b.start ? [a, b] : [b, a];
  const text = right.end > left.end ? left.text + right.text.slice(left.end - right.start) : left.text;
  return { document: a.document, start: left.start, end: Math.max(a.end, b.end), text, hits: [...a.hits, ...b.hits] };
}
