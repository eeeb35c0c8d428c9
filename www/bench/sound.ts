/** Times a model that hears or speaks: how many times faster than the sound it is. Knows no page. */

import type { Model } from "jerboa";
import type { Settings } from "./settings";

/** Samples a second of what is heard. */
const RATE = 16_000;
/** Tokens a second that somebody says who speaks fast. */
const SAID = 4;

/** What came out; factors are seconds of sound over seconds of work. */
export interface Sounded {
  seconds: number;
  /** Of hearing: a window from samples to what the decoder looks at, and a token. */
  encode_ms?: number;
  token_ms?: number;
  encode_factor?: number;
  decode_factor?: number;
  /** Of both together, with the tokens of fast speech. */
  factor: number;
  /** Of speaking: until the first sound. */
  first_ms?: number;
}

/** Best of the runs. */
export async function hearAndSpeak(model: Model, settings: Settings, say: (line: string) => void): Promise<Sounded> {
  const seconds = Math.min(model.info.hears?.seconds ?? 0, 30);
  let best: Sounded | undefined;
  for (let i = 0; i <= settings.runs; i++) {
    const made = model.info.task === "transcribe" ? await hear(model, seconds, settings.tokens) : await speak(model, settings.tokens);
    say(`${made.seconds.toFixed(1)} s of sound, ${made.factor.toFixed(1)} times as fast${made.first_ms ? `, the first after ${made.first_ms.toFixed(0)} ms` : ""}`);
    if (!best || made.factor > best.factor) best = made;
  }
  return best!;
}

async function hear(model: Model, seconds: number, tokens: number): Promise<Sounded> {
  const samples = Float32Array.from({ length: seconds * RATE }, (_, i) => 0.3 * Math.sin(i * 0.05) * Math.sin(i * 0.0007));
  const { encodeMs, tokenMs } = await model.measureHearing(samples, Math.min(tokens, 128));
  const said = seconds * SAID * tokenMs;
  return {
    seconds,
    encode_ms: encodeMs,
    token_ms: tokenMs,
    encode_factor: (seconds * 1e3) / encodeMs,
    decode_factor: (seconds * 1e3) / said,
    factor: (seconds * 1e3) / (encodeMs + said),
  };
}

async function speak(model: Model, tokens: number): Promise<Sounded> {
  const { seconds, firstMs, totalMs } = await model.measureSpeaking(Math.max(tokens, 64));
  return { seconds, factor: (seconds * 1e3) / totalMs, ...(firstMs === null ? {} : { first_ms: firstMs }) };
}
