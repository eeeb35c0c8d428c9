/** Decode speed of several requests that run at once, and the first token of one that arrives meanwhile. */

import type { Generation, Model } from "jerboa";
import { type Range, range } from "./runs";
import type { Settings } from "./settings";

/** The runs of a number of sequences. */
export interface BatchRow {
  sequences: number;
  prompt: number;
  tokens: number;
  /** Tokens a second of all sequences, from the last one's first token to the first one's end. */
  decode_tps: Range;
  /** Time to first token of a request that arrives while these run. */
  late_ttft_ms: Range;
}

const now = (): number => performance.now();

type Ids = (length: number, seed: number) => number[];

/** Times of the tokens of a generation. */
async function watch(generation: Generation, times: number[]): Promise<void> {
  for await (const { ids } of generation.events()) {
    const time = now();
    for (let i = 0; i < ids.length; i++) times.push(time);
  }
}

/** Generates from prompts at once, and from another one when all of them have begun. */
async function run(model: Model, prompts: number[][], tokens: number, late?: number[]): Promise<{ decode_tps: number; late_ttft_ms: number }> {
  const options = { temperature: 0, maxTokens: tokens, ignoreEos: true };
  const times: number[][] = prompts.map(() => []);
  const all = [...model.generate(prompts, options)].map((generation, i) => watch(generation, times[i]!));
  let late_ttft_ms = NaN;
  if (late) {
    while (times.some((list) => list.length === 0)) await new Promise((resolve) => setTimeout(resolve, 1));
    const start = now();
    const first: number[] = [];
    await watch(model.generate(late, { ...options, maxTokens: 2 }), first);
    late_ttft_ms = first[0]! - start;
  }
  await Promise.all(all);
  const from = Math.max(...times.map((list) => list[0]!));
  const until = Math.min(...times.map((list) => list.at(-1)!));
  const count = times.flat().filter((time) => time > from && time <= until).length;
  return { decode_tps: (count / (until - from)) * 1e3, late_ttft_ms };
}

/** Measures every number of sequences at every prompt length. */
export async function benchBatches(model: Model, settings: Settings, ids: Ids, say: (line: string) => void): Promise<BatchRow[]> {
  const rows: BatchRow[] = [];
  for (const sequences of settings.sequences) {
    for (const prompt of settings.prompts) {
      const prompts = (round: number): number[][] => Array.from({ length: sequences }, (_, i) => ids(prompt, 100 * prompt + 1000 * round + i));
      // The first run compiles the kernels of this many sequences.
      await run(model, prompts(99), settings.tokens, ids(prompt, 7));
      const speeds: number[] = [];
      const waits: number[] = [];
      for (let round = 0; round < settings.runs; round++) {
        speeds.push((await run(model, prompts(round), settings.tokens)).decode_tps);
        waits.push((await run(model, prompts(round + 50), settings.tokens, ids(prompt, 500 + round))).late_ttft_ms);
      }
      const row = { sequences, prompt, tokens: settings.tokens, decode_tps: range(speeds), late_ttft_ms: range(waits) };
      say(`${sequences} sequences after ${prompt} tokens: ${row.decode_tps.median.toFixed(0)} tokens/s together, another request's first token after ${row.late_ttft_ms.median.toFixed(1)} ms`);
      rows.push(row);
    }
  }
  return rows;
}
