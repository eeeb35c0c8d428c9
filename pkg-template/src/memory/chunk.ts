/** Cuts a text into passages of at most so many tokens, on sentence borders, with overlap. Knows Unicode's borders and a token counter; no model. */

import { refused } from "../errors.js";

/** How a text is cut. */
export interface ChunkOptions {
  /** The most tokens of a passage. Keep it below the model's longest input, or the model does not see the rest. 200 unless told. */
  maxTokens?: number;
  /** How many tokens at the end of a passage the next one may repeat, in whole sentences. 40 unless told. */
  overlap?: number;
  /** The language whose sentence borders are used, as a BCP 47 tag; the browser's unless told. */
  locale?: string;
}

/** A passage: `text` is `source.slice(start, end)`. */
export interface Chunk {
  text: string;
  start: number;
  end: number;
  tokens: number;
}

/** The length of a text in tokens. */
export type TokenCounter = (text: string) => number | Promise<number>;

/** A stretch that is not cut further, unless it alone is too long. */
interface Unit {
  start: number;
  end: number;
  tokens: number;
}

/** About four bytes of UTF-8 to a token: what is used for a model that cannot count. */
export function estimateTokens(text: string): number {
  return Math.ceil(new TextEncoder().encode(text).length / 4);
}

/** Cuts a text; one without any visible character gives no passage. */
export async function chunkText(text: string, count: TokenCounter, options: ChunkOptions = {}): Promise<Chunk[]> {
  const max = options.maxTokens ?? 200;
  const overlap = options.overlap ?? Math.min(40, Math.floor(max / 2));
  if (!Number.isInteger(max) || max < 1) throw refused("chunk: 'maxTokens' must be a whole number from 1 up.");
  if (!Number.isInteger(overlap) || overlap < 0 || overlap >= max) throw refused("chunk: 'overlap' must be a whole number from 0 to below 'maxTokens'.");
  const units = await sentences(text, count, max, options.locale);
  const chunks: Chunk[] = [];
  for (let first = 0; first < units.length; ) {
    let last = first; // the unit after the passage's last one
    for (let sum = 0; last < units.length && (last === first || sum + units[last]!.tokens <= max); last++) sum += units[last]!.tokens;
    let chunk = await cut(text, units, first, last, count);
    // The parts' lengths need not add up to the whole's: joined text may take a token more.
    while (chunk.tokens > max && last > first + 1) chunk = await cut(text, units, first, --last, count);
    const covered = chunks.at(-1)?.end ?? 0;
    if (chunk.end > covered) chunks.push(chunk);
    if (last >= units.length) break;
    first = overlapStart(units, first, last, overlap, max);
  }
  return chunks;
}

/** Where the next passage starts: as many whole units back as fit the overlap and still leave room for one that is new. */
function overlapStart(units: Unit[], first: number, last: number, overlap: number, max: number): number {
  const room = Math.min(overlap, max - units[last]!.tokens);
  let start = last;
  for (let sum = 0; start - 1 > first; start--) {
    sum += units[start - 1]!.tokens;
    if (sum > room) break;
  }
  return start;
}

async function cut(text: string, units: Unit[], first: number, last: number, count: TokenCounter): Promise<Chunk> {
  const { start, end } = units[first]!;
  const stop = units[last - 1]?.end ?? end;
  const passage = text.slice(start, stop);
  return { text: passage, start, end: stop, tokens: last === first + 1 ? units[first]!.tokens : await count(passage) };
}

/** The sentences without the space around them; one that is too long falls into runs of words, a word that is into runs of characters. */
async function sentences(text: string, count: TokenCounter, max: number, locale: string | undefined): Promise<Unit[]> {
  const whole: Unit[] = [];
  for (const { start, end } of spans(text, 0, "sentence", locale)) whole.push({ start, end, tokens: await count(text.slice(start, end)) });
  const units: Unit[] = [];
  for (const unit of whole) {
    if (unit.tokens <= max) units.push(unit);
    else for (const part of await split(text, unit, "word", count, max, locale)) units.push(part);
  }
  return units;
}

async function split(text: string, unit: Unit, by: "word" | "grapheme", count: TokenCounter, max: number, locale: string | undefined): Promise<Unit[]> {
  const pieces = [...spans(text.slice(unit.start, unit.end), unit.start, by, locale)];
  const parts: Unit[] = [];
  for (let first = 0; first < pieces.length; ) {
    const start = pieces[first]!.start;
    const measure = async (n: number): Promise<number> => count(text.slice(start, pieces[first + n - 1]!.end));
    const { n, tokens } = await longest(pieces.length - first, max, measure);
    const part = { start, end: pieces[first + n - 1]!.end, tokens };
    // A single character may take more tokens than a passage holds; it stays whole.
    if (tokens > max && by === "word") parts.push(...(await split(text, part, "grapheme", count, max, locale)));
    else parts.push(part);
    first += n;
  }
  return parts;
}

/** The most pieces, at least one, whose length fits: doubling first, so that a very long text is never counted as a whole. */
async function longest(limit: number, max: number, measure: (n: number) => Promise<number>): Promise<{ n: number; tokens: number }> {
  let fits = 1;
  let tokens = await measure(1);
  if (tokens > max) return { n: 1, tokens };
  let fails = limit + 1;
  for (let step = 1; fits + 1 < fails; ) {
    const n = fails > limit && fits + step <= limit ? fits + step : Math.floor((fits + fails) / 2);
    const length = await measure(n);
    if (length <= max) {
      [fits, tokens] = [n, length];
      step *= 2;
    } else fails = n;
  }
  return { n: fits, tokens };
}

/** The pieces between Unicode's borders, trimmed; those of space alone are left out. */
function* spans(text: string, offset: number, granularity: "sentence" | "word" | "grapheme", locale: string | undefined): Generator<{ start: number; end: number }> {
  for (const { segment, index } of new Intl.Segmenter(locale, { granularity }).segment(text)) {
    const trimmed = segment.trim();
    if (!trimmed) continue;
    const start = offset + index + segment.indexOf(trimmed);
    yield { start, end: start + trimmed.length };
  }
}
