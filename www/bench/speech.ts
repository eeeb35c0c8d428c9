/** Benchmarks a speech model: how many times faster than real time it runs. */

import type { Model } from "jerboa";
import type { Settings } from "./settings";

/** Sample rate in Hz. */
const SAMPLE_RATE = 16_000;
/** Tokens per second of fast speech. */
const SPOKEN_TOKENS_PER_SECOND = 4;

/** The result; factors are seconds of audio per second of work. */
export interface AudioResult {
  seconds: number;
  /** Speech to text: milliseconds to encode a window, and per token. */
  encode_ms?: number;
  token_ms?: number;
  encode_factor?: number;
  decode_factor?: number;
  /** Both combined, with the tokens of fast speech. */
  factor: number;
  /** Text to speech: milliseconds to the first audio. */
  first_ms?: number;
}

/** The best of the runs. */
export async function benchSpeech(model: Model, settings: Settings, say: (line: string) => void): Promise<AudioResult> {
  const seconds = Math.min(model.info.asr?.seconds ?? 0, 30);
  let best: AudioResult | undefined;
  for (let i = 0; i <= settings.runs; i++) {
    const made = model.info.task === "transcribe" ? await benchAsr(model, seconds, settings.tokens) : await benchTts(model, settings.tokens);
    say(`${made.seconds.toFixed(1)} s of audio, ${made.factor.toFixed(1)}x real time${made.first_ms ? `, first audio after ${made.first_ms.toFixed(0)} ms` : ""}`);
    if (!best || made.factor > best.factor) best = made;
  }
  return best!;
}

async function benchAsr(model: Model, seconds: number, tokens: number): Promise<AudioResult> {
  const samples = Float32Array.from({ length: seconds * SAMPLE_RATE }, (_, i) => 0.3 * Math.sin(i * 0.05) * Math.sin(i * 0.0007));
  const { encodeMs, tokenMs } = await model.measureAsr(samples, Math.min(tokens, 128));
  const said = seconds * SPOKEN_TOKENS_PER_SECOND * tokenMs;
  return {
    seconds,
    encode_ms: encodeMs,
    token_ms: tokenMs,
    encode_factor: (seconds * 1e3) / encodeMs,
    decode_factor: (seconds * 1e3) / said,
    factor: (seconds * 1e3) / (encodeMs + said),
  };
}

async function benchTts(model: Model, tokens: number): Promise<AudioResult> {
  const { seconds, firstMs, totalMs } = await model.measureTts(Math.max(tokens, 64));
  return { seconds, factor: (seconds * 1e3) / totalMs, ...(firstMs === null ? {} : { first_ms: firstMs }) };
}
