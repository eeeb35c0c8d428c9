/** Packs search hits into prompt text within a token budget. */

import { chunkText, type TokenCounter } from "./chunk.js";
import type { SearchHit } from "./types.js";

/** The result of a recall. */
export interface RecallResult {
  /** The passages, best first, as prompt text; empty if nothing was found. */
  context: string;
  /** The records in the context, best first. */
  records: SearchHit[];
  /** Length of the context in tokens, at most the budget. */
  tokens: number;
}

/** A passage of the context: one hit, or overlapping hits of one document merged. */
export interface Passage {
  document: string;
  start: number;
  end: number;
  text: string;
  /** The hits in it, best first. */
  hits: SearchHit[];
}

/** Format options of the context. */
export interface PackOptions {
  /** Maximum tokens of the context. 1024 by default. */
  budget?: number;
  /** Text between passages. A blank line by default. */
  separator?: string;
  /** Formats a passage, by default as its text alone; use it to add a source or a number. */
  format?: (passage: Passage, index: number) => string;
}

/** Takes hits, best first, while they fit; a hit that does not fit is skipped for shorter ones. */
export async function pack(hits: SearchHit[], count: TokenCounter, options: PackOptions = {}): Promise<RecallResult> {
  const { budget = 1024, separator = "\n\n", format = (passage: Passage) => passage.text } = options;
  const write = (chosen: SearchHit[]): string => mergePassages(chosen).map(format).join(separator);
  const result: RecallResult = { context: "", records: [], tokens: 0 };
  for (const hit of hits) {
    const chosen = [...result.records, hit];
    const context = write(chosen);
    // Count the whole context: token counts of its parts do not add up exactly.
    const tokens = await count(context);
    if (tokens <= budget) Object.assign(result, { context, records: chosen, tokens });
  }
  if (result.records.length || !hits.length) return result;
  return shortened(hits[0]!, count, budget, write);
}

/** The start of the best hit, in whole sentences if one fits. */
async function shortened(hit: SearchHit, count: TokenCounter, budget: number, write: (hits: SearchHit[]) => string): Promise<RecallResult> {
  const frame = await count(write([{ ...hit, text: "" }]));
  for (let room = budget - frame; room >= 1; room = Math.floor(room * 0.8)) {
    const chunk = (await chunkText(hit.text, count, { maxTokens: room, overlap: 0 }))[0];
    if (!chunk) break;
    const cut: SearchHit = { ...hit, text: chunk.text, start: hit.start + chunk.start, end: hit.start + chunk.end, tokens: chunk.tokens };
    const context = write([cut]);
    const tokens = await count(context);
    if (tokens <= budget) return { context, records: [cut], tokens };
  }
  return { context: "", records: [], tokens: 0 };
}

/** Merges overlapping hits of one document into one passage, ranked as the best of them. */
export function mergePassages(hits: SearchHit[]): Passage[] {
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
