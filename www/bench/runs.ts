/** Timed generations, and summaries of several. */

/** One timed generation, with the field names of other engines' bench pages. */
export interface Run {
  prompt_tokens: number;
  tokens: number;
  ttft_ms: number;
  decode_ms: number;
  total_ms: number;
  prefill_tps: number;
  decode_tps: number;
  /** By the engine's own clock, without the message to the page. */
  engine_prefill_ms: number;
  engine_decode_ms: number;
  /** Drafted and accepted tokens. */
  drafted: number;
  accepted: number;
  /** Times that tokens were read back from the GPU. */
  readbacks: number;
  /** The longest time that the page's thread was blocked. */
  page_blocked_ms: number;
  /** The last tokens of the answer, to compare it with another. */
  last_ids: number[];
}

/** Median, minimum and maximum of several runs. */
export interface Range {
  median: number;
  min: number;
  max: number;
}

/** The median, minimum and maximum of values. */
export function range(values: number[]): Range {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number): number => sorted[Math.floor(share * (sorted.length - 1))] ?? NaN;
  return { median: at(0.5), min: at(0), max: at(1) };
}
