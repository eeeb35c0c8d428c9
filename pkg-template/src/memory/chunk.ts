/** Splits text into passages with a token limit, at sentence boundaries (Unicode), with overlap. */

import { checked, describe, requireValid, valid } from "../check.js";
import { invalidRequest } from "../errors.js";

/** Options of the splitting. */
export interface ChunkOptions {
  /** Maximum tokens of a passage, 200 by default. Keep it below the model's input limit, or the rest is cut off. */
  maxTokens?: number;
  /** Maximum tokens that a passage repeats from the end of the previous one, in whole sentences. 40 by default. */
  overlap?: number;
  /** BCP 47 tag of the language for sentence boundaries; the browser's language by default. */
  locale?: string;
}

/** A passage: `text` is `source.slice(start, end)`. */
export interface Chunk {
  text: string;
  start: number;
  end: number;
  tokens: number;
}

/** Returns the length of a text in tokens. */
export type TokenCounter = (text: string) => number | Promise<number>;

/** A range that is split further only if it exceeds the limit on its own. */
interface TextUnit {
  start: number;
  end: number;
  tokens: number;
}

/** Estimates four UTF-8 bytes per token, for models that cannot count. */
export function estimateTokens(text: string): number {
  return Math.ceil(new TextEncoder().encode(text).length / 4);
}

/** The options that are set. */
export function chunkOptions(given: ChunkOptions | undefined): ChunkOptions {
  const options = checked("chunk", given, { maxTokens: valid.integer(1), overlap: valid.integer(0), locale: valid.string });
  try {
    Intl.getCanonicalLocales(options.locale);
  } catch {
    throw invalidRequest(`chunk: 'locale' must be a BCP 47 language tag such as 'en' or 'pt-BR', not ${describe(options.locale)}.`);
  }
  return options;
}

/** Splits a text into passages; text without visible characters gives none. */
export async function chunkText(text: string, count: TokenCounter, options?: ChunkOptions): Promise<Chunk[]> {
  requireValid("chunkText", "the text", text, valid.string);
  requireValid("chunkText", "the token counter", count, valid.func);
  const { maxTokens: max = 200, overlap = Math.min(40, Math.floor(max / 2)), locale } = chunkOptions(options);
  if (overlap >= max) throw invalidRequest(`chunk: 'overlap' (${overlap}) must be less than 'maxTokens' (${max}).`);
  const units = await sentences(text, count, max, locale);
  const chunks: Chunk[] = [];
  for (let first = 0; first < units.length; ) {
    let last = first; // index after the passage's last unit
    for (let sum = 0; last < units.length && (last === first || sum + units[last]!.tokens <= max); last++) sum += units[last]!.tokens;
    let chunk = await cut(text, units, first, last, count);
    // Token counts do not add up exactly: the joined text may need one more.
    while (chunk.tokens > max && last > first + 1) chunk = await cut(text, units, first, --last, count);
    const covered = chunks.at(-1)?.end ?? 0;
    if (chunk.end > covered) chunks.push(chunk);
    if (last >= units.length) break;
    first = overlapStart(units, first, last, overlap, max);
  }
  return chunks;
}

/** Start of the next passage: as many whole units back as fit the overlap, with room for at least one new unit. */
function overlapStart(units: TextUnit[], first: number, last: number, overlap: number, max: number): number {
  const room = Math.min(overlap, max - units[last]!.tokens);
  let start = last;
  for (let sum = 0; start - 1 > first; start--) {
    sum += units[start - 1]!.tokens;
    if (sum > room) break;
  }
  return start;
}

async function cut(text: string, units: TextUnit[], first: number, last: number, count: TokenCounter): Promise<Chunk> {
  const { start, end } = units[first]!;
  const stop = units[last - 1]?.end ?? end;
  const passage = text.slice(start, stop);
  return { text: passage, start, end: stop, tokens: last === first + 1 ? units[first]!.tokens : await count(passage) };
}

/** Trimmed sentences. A sentence over the limit is split into groups of words, a word into groups of characters. */
async function sentences(text: string, count: TokenCounter, max: number, locale: string | undefined): Promise<TextUnit[]> {
  const whole: TextUnit[] = [];
  for (const { start, end } of segments(text, 0, "sentence", locale)) whole.push({ start, end, tokens: await count(text.slice(start, end)) });
  const units: TextUnit[] = [];
  for (const unit of whole) {
    if (unit.tokens <= max) units.push(unit);
    else for (const part of await split(text, unit, "word", count, max, locale)) units.push(part);
  }
  return units;
}

async function split(text: string, unit: TextUnit, by: "word" | "grapheme", count: TokenCounter, max: number, locale: string | undefined): Promise<TextUnit[]> {
  const pieces = [...segments(text.slice(unit.start, unit.end), unit.start, by, locale)];
  const parts: TextUnit[] = [];
  for (let first = 0; first < pieces.length; ) {
    const start = pieces[first]!.start;
    const measure = async (n: number): Promise<number> => count(text.slice(start, pieces[first + n - 1]!.end));
    const { n, tokens } = await longestFitting(pieces.length - first, max, measure);
    const part = { start, end: pieces[first + n - 1]!.end, tokens };
    // A single character over the limit stays whole.
    if (tokens > max && by === "word") parts.push(...(await split(text, part, "grapheme", count, max, locale)));
    else parts.push(part);
    first += n;
  }
  return parts;
}

/**
 * The largest number of pieces, at least one, that fits the limit. Doubles first, so that a long text is never counted
 * whole.
 */
async function longestFitting(limit: number, max: number, measure: (n: number) => Promise<number>): Promise<{ n: number; tokens: number }> {
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

/** Trimmed segments between Unicode boundaries; whitespace-only segments are skipped. */
function* segments(text: string, offset: number, granularity: "sentence" | "word" | "grapheme", locale: string | undefined): Generator<{ start: number; end: number }> {
  for (const { segment, index } of new Intl.Segmenter(locale, { granularity }).segment(text)) {
    const trimmed = segment.trim();
    if (!trimmed) continue;
    const start = offset + index + segment.indexOf(trimmed);
    yield { start, end: start + trimmed.length };
  }
}
