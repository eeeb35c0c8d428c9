/** Speech synthesis state: audio is played while it is generated, and kept. */

import { signal } from "@preact/signals";
import type { JerboaError, Model } from "jerboa";
import { asError } from "../errors";
import { announce } from "../ui/announce";
import { TTS } from "../strings";

/** Synthesized audio. */
export interface SynthesizedAudio {
  text: string;
  pieces: Float32Array[];
  sampleRate: number;
  seconds: number;
  /** Milliseconds to the first audio. */
  first: number;
  took: number;
}

export class SynthesisState {
  readonly made = signal<SynthesizedAudio | undefined>(undefined);
  readonly speaking = signal(false);
  readonly error = signal<JerboaError | undefined>(undefined);
  #controller: AbortController | undefined;
  #context: AudioContext | undefined;
  /** Start time of the next piece. */
  #at = 0;

  async speak(model: Model, text: string, voice: string): Promise<void> {
    if (this.speaking.peek() || !text.trim()) return;
    this.silence();
    const controller = new AbortController();
    this.#controller = controller;
    this.error.value = undefined;
    this.made.value = undefined;
    this.speaking.value = true;
    const began = performance.now();
    let first = 0;
    const pieces: Float32Array[] = [];
    try {
      const chunks = await model.audio.speech.create({ input: text, ...(voice ? { voice } : {}), stream: true }, { signal: controller.signal });
      for await (const { samples, sampleRate } of chunks) {
        first ||= performance.now() - began;
        pieces.push(samples);
        this.#play(samples, sampleRate);
        const count = pieces.reduce((sum, piece) => sum + piece.length, 0);
        this.made.value = { text, pieces: [...pieces], sampleRate, seconds: count / sampleRate, first, took: performance.now() - began };
      }
      announce(pieces.length ? TTS.finished : TTS.nothing);
    } catch (thrown) {
      if (!controller.signal.aborted) this.error.value = asError(thrown);
    } finally {
      this.speaking.value = false;
    }
  }

  /** Stops synthesis and playback. */
  stop(): void {
    this.#controller?.abort();
    this.silence();
  }

  silence(): void {
    void this.#context?.close();
    this.#context = undefined;
    this.#at = 0;
  }

  /** Plays the audio from its start. */
  replay(): void {
    const made = this.made.peek();
    if (!made) return;
    this.silence();
    for (const piece of made.pieces) this.#play(piece, made.sampleRate);
  }

  #play(samples: Float32Array, sampleRate: number): void {
    if (samples.length === 0) return;
    this.#context ??= new AudioContext();
    const context = this.#context;
    const buffer = context.createBuffer(1, samples.length, sampleRate);
    buffer.getChannelData(0).set(samples);
    const source = context.createBufferSource();
    source.buffer = buffer;
    source.connect(context.destination);
    this.#at = Math.max(this.#at, context.currentTime + 0.05);
    source.start(this.#at);
    this.#at += buffer.duration;
  }
}

/** Peak values of equal parts of the audio, for a waveform. */
export function peaks(pieces: readonly Float32Array[], count: number): number[] {
  const total = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const out = new Array<number>(count).fill(0);
  let at = 0;
  for (const piece of pieces) {
    for (const sample of piece) {
      const place = Math.min(count - 1, Math.floor((at++ * count) / total));
      out[place] = Math.max(out[place]!, Math.abs(sample));
    }
  }
  return out;
}
