/** Live transcription of a microphone: collects samples, detects pauses, emits partial and final texts. */

import { checked, describe, valid } from "./check.js";
import type { ModelInfo } from "./contract.js";
import { aborted, JerboaError, invalidRequest } from "./errors.js";
import { AsyncQueue } from "./async-queue.js";
import { isolated } from "./waits.js";
import type { Backend } from "./engine-calls.js";
import { SAMPLE_RATE, resample } from "./audio-input.js";
import { LISTEN_SPEC, type ListenFields } from "./schema.js";
import { transcribeSamples, requireAsr } from "./transcribe.js";

/** Options of `model.listen`. */
export interface ListenOptions extends ListenFields {
  /** Cancels the call: an utterance that is not over is dropped. */
  signal?: AbortSignal;
  /** Milliseconds between partial texts; 500 by default. */
  interval?: number;
  /** Receives the input level from 0 to 1, several times per second. */
  onLevel?: (level: number) => void;
}

/** The transcript of one utterance, so far. */
export interface LiveTranscript {
  /** Number of the utterance. */
  id: number;
  /** The text so far. */
  text: string;
  /** The prefix of `text` that the last two results agree on; it rarely changes. */
  stable: string;
  /** True for the final text, at the pause that ends the utterance. */
  final: boolean;
  /** Seconds since listening started. */
  start: number;
  end: number;
}

/** Live transcripts; leaving the loop cancels the call. */
export class LiveTranscription extends AsyncQueue<LiveTranscript> {
  readonly #stopping: AbortController;

  /** @internal */
  constructor(start: (push: (value: LiveTranscript) => void, signal: AbortSignal, stopping: AbortSignal) => Promise<void>, signal?: AbortSignal) {
    const stopping = new AbortController();
    super((push, s) => start(push, s, stopping.signal), signal);
    this.#stopping = stopping;
  }

  /** Ends listening. An utterance that is not over is transcribed and comes as the last item. */
  stop(): void {
    this.#stopping.abort();
  }
}

/** Milliseconds between two looks at the tracks: a page that stops them gets no event. */
const TRACK_CHECK_MS = 200;
/** Samples per block from the browser. */
const BLOCK = 2048;
/** An AudioWorklet that posts blocks of one channel. */
const WORKLET = `registerProcessor("jerboa-capture", class extends AudioWorkletProcessor {
  #block = new Float32Array(${BLOCK}); #count = 0;
  process([input]) {
    const samples = input[0];
    if (!samples) return true;
    const mixed = samples.map((sample, i) => input.reduce((sum, channel) => sum + channel[i], 0) / input.length);
    for (const sample of mixed) {
      this.#block[this.#count++] = sample;
      if (this.#count === ${BLOCK}) { this.port.postMessage(this.#block.slice()); this.#count = 0; }
    }
    return true;
  }
});`;

/** Transcribes until the caller stops it, all audio tracks end or the signal aborts. Invalid requests reject the loop. */
export function listen(backend: Backend, info: ModelInfo, stream: MediaStream, options?: ListenOptions): LiveTranscription {
  try {
    return startListening(backend, info, stream, options);
  } catch (thrown) {
    return new LiveTranscription(() => Promise.reject(thrown));
  }
}

function startListening(backend: Backend, info: ModelInfo, stream: MediaStream, options?: ListenOptions): LiveTranscription {
  const spec = { ...LISTEN_SPEC, signal: valid.signal, interval: valid.integer(100), onLevel: valid.func };
  const given = checked("listen", options, spec);
  given.onLevel = isolated(given.onLevel);
  requireAsr(backend, info);
  if (typeof MediaStream === "undefined" || !(stream instanceof MediaStream)) throw invalidRequest(`listen: the input must be a MediaStream, as from navigator.mediaDevices.getUserMedia, not ${describe(stream)}.`);
  if (stream.getAudioTracks().length === 0) throw invalidRequest("listen: the stream has no audio track. Request one with getUserMedia({ audio: true }).");
  return new LiveTranscription((push, signal, stopping) => new Listener(backend, given, push, signal).run(stream, stopping), given.signal);
}

/** The state of one audio stream. */
class Listener {
  readonly #backend: Backend;
  readonly #options: ListenOptions;
  readonly #push: (transcript: LiveTranscript) => void;
  readonly #signal: AbortSignal;
  /** Buffered samples at 16 kHz, and the position of the first one. */
  #buffer: Float32Array[] = [];
  #first = 0;
  #count = 0;
  /** Start of the current utterance. */
  #start: number | undefined;
  #id = 0;
  #before: string[] = [];
  #partial = 0;
  #hearing = false;
  /** Runs all processing steps in order. */
  #chain: Promise<void> = Promise.resolve();
  #failed: ((thrown: unknown) => void) | undefined;

  constructor(backend: Backend, options: ListenOptions, push: (transcript: LiveTranscript) => void, signal: AbortSignal) {
    this.#backend = backend;
    this.#options = options;
    this.#push = push;
    this.#signal = signal;
  }

  async run(stream: MediaStream, stopping: AbortSignal): Promise<void> {
    if (this.#signal.aborted) throw aborted("Listening");
    await this.#backend.call("listen", [new Float32Array(0), true]);
    const context = createAudioContext();
    let looking: ReturnType<typeof setInterval> | undefined;
    const over = new Promise<void>((resolve, reject) => {
      this.#failed = reject;
      const tracks = stream.getAudioTracks();
      const look = (): void => {
        if (this.#signal.aborted || stopping.aborted || tracks.every(({ readyState }) => readyState === "ended")) resolve();
      };
      for (const signal of [this.#signal, stopping]) signal.addEventListener("abort", look, { once: true });
      looking = setInterval(look, TRACK_CHECK_MS);
      look();
    });
    try {
      const source = context.createMediaStreamSource(stream);
      const url = URL.createObjectURL(new Blob([WORKLET], { type: "text/javascript" }));
      await context.audioWorklet.addModule(url).finally(() => URL.revokeObjectURL(url));
      const worklet = new AudioWorkletNode(context, "jerboa-capture", { numberOfOutputs: 0 });
      worklet.port.onmessage = ({ data }: MessageEvent<Float32Array>) => this.#take(data, context.sampleRate);
      source.connect(worklet);
      await Promise.race([context.resume(), over]);
      await over;
      worklet.port.onmessage = null;
      source.disconnect();
    } catch (thrown) {
      throw thrown instanceof JerboaError ? thrown : new JerboaError("request", `listen: the browser cannot read samples from the stream: ${String((thrown as Error)?.message ?? thrown)}. Open a new stream, or pass a recording to model.transcribe.`, { cause: thrown });
    } finally {
      clearInterval(looking);
      void context.close();
    }
    await this.#chain;
    if (this.#signal.aborted) return;
    const { ended } = await this.#backend.call("listen", [new Float32Array(0), false]);
    for (const [start, end] of ended) await this.#final(start, end);
  }

  /** Takes a block of samples. */
  #take(block: Float32Array, rate: number): void {
    this.#chain = this.#chain
      .then(async () => {
        if (this.#signal.aborted) return;
        const samples = rate === SAMPLE_RATE ? block : await resample("listen", block, rate);
        this.#buffer.push(samples);
        this.#count += samples.length;
        const turn = await this.#backend.call("listen", [samples.slice(), false]);
        this.#options.onLevel?.(Math.min(1, turn.level * 4));
        for (const [start, end] of turn.ended) await this.#final(start, end);
        this.#start = turn.start ?? undefined;
        this.#dropBefore(this.#start ?? this.#count - SAMPLE_RATE);
        if (this.#start !== undefined && performance.now() - this.#partial >= (this.#options.interval ?? 500)) void this.#transcribePartial(this.#start);
      })
      .catch((thrown) => this.#failed?.(thrown));
  }

  /** Transcribes the current utterance while it continues. */
  async #transcribePartial(start: number): Promise<void> {
    const id = this.#id;
    if (this.#hearing || this.#count - start < SAMPLE_RATE / 2) return;
    this.#hearing = true;
    this.#partial = performance.now();
    try {
      const text = await this.#text(start, this.#count);
      // The utterance may have ended meanwhile.
      if (id === this.#id && text) this.#emit(text, start, this.#count, false);
    } catch (thrown) {
      if (JerboaError.from(thrown).code !== "aborted") this.#failed?.(thrown);
    } finally {
      this.#hearing = false;
    }
  }

  async #final(start: number, end: number): Promise<void> {
    const text = await this.#text(start, end);
    if (text) this.#emit(text, start, end, true);
    this.#id += 1;
    this.#before = [];
  }

  async #text(start: number, end: number): Promise<string> {
    const { language, translate, prompt } = this.#options;
    const options = { ...(language ? { language } : {}), ...(translate ? { translate } : {}), ...(prompt ? { prompt } : {}), signal: this.#signal };
    return (await transcribeSamples(this.#backend, this.#slice(start, end), options)).text.trim();
  }

  #emit(text: string, start: number, end: number, final: boolean): void {
    const words = text.split(/\s+/);
    let same = 0;
    while (same < words.length && words[same] === this.#before[same]) same++;
    this.#before = words;
    this.#push({ id: this.#id, text, stable: final ? text : words.slice(0, same).join(" "), final, start: start / SAMPLE_RATE, end: end / SAMPLE_RATE });
  }

  #slice(start: number, end: number): Float32Array {
    const out = new Float32Array(Math.max(0, Math.min(end, this.#count) - start));
    let at = this.#first;
    for (const block of this.#buffer) {
      const from = Math.max(start - at, 0);
      const to = Math.min(end - at, block.length);
      if (from < to) out.set(block.subarray(from, to), at + from - start);
      at += block.length;
    }
    return out;
  }

  /** Drops samples before a position. */
  #dropBefore(before: number): void {
    while (this.#buffer.length > 0 && this.#first + this.#buffer[0]!.length <= before) this.#first += this.#buffer.shift()!.length;
  }
}

/** An audio context at the models' sample rate, if the browser supports that for a microphone. */
function createAudioContext(): AudioContext {
  if (typeof AudioContext === "undefined") throw invalidRequest("listen: Web Audio is not available here. Call it in a page, not in a worker.");
  // Firefox supports streams at their own rate only.
  return /firefox/i.test(navigator.userAgent) ? new AudioContext() : new AudioContext({ sampleRate: SAMPLE_RATE });
}
