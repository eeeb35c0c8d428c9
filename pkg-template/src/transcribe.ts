/** Sound to text, in our own shapes and in OpenAI's. Does not know how it is heard. */

import { checked, mustBe } from "./check.js";
import type { EngineTranscribeOptions, HeardEvent, ModelInfo, PartialEvent, Transcript } from "./contract.js";
import { refused, unloaded } from "./errors.js";
import { Flow } from "./flow.js";
import type { Backend } from "./host.js";
import { type AudioInput, RATE, samplesOf } from "./sound.js";
import { misused } from "./tasks.js";

/** Options of `model.transcribe`. */
export interface TranscribeOptions {
  /** Code or English name of the language; by default the model detects it where it can. */
  language?: string;
  /** Translates into English. */
  translate?: boolean;
  /** How closely the transcript is timed: `segment` by the model's own time tokens, `word` by what it looked at. */
  timestamps?: "none" | "segment" | "word";
  /** Text before the sound: names and spellings to expect. */
  prompt?: string;
  /** One temperature, or several, each tried when the text before it is doubtful. 0 by default. */
  temperature?: number | number[];
  /** Texts that are followed at a time; 1 by default. */
  beams?: number;
  /** The most tokens of a window of sound. */
  maxTokens?: number;
  /** Hears only where somebody speaks; by default in sound that is longer than the model hears at once. Needs `vad` of `loadModel`. */
  vad?: boolean;
  /** Tells log-probabilities of segments. */
  logprobs?: boolean;
  /** Samples a second of a bare Float32Array. */
  sampleRate?: number;
  /** Hears each stretch as soon as it will not change any more. */
  onSegment?: (heard: HeardEvent) => void;
  /** Gets the text behind the last stretch, token by token: each takes the place of the one before, a stretch that of its beginning. */
  onPartial?: (partial: PartialEvent) => void;
  /** Gives it up. */
  signal?: AbortSignal;
}

const OPTIONS = {
  language: mustBe.string,
  translate: mustBe.boolean,
  timestamps: mustBe.oneOf("none", "segment", "word"),
  prompt: mustBe.string,
  temperature: (v: unknown) => ((Array.isArray(v) ? v : [v]).some(mustBe.number(0, 2)) ? "a number from 0 to 2, or several" : undefined),
  beams: mustBe.integer(1, 16),
  maxTokens: mustBe.integer(1),
  vad: mustBe.boolean,
  logprobs: mustBe.boolean,
  sampleRate: mustBe.number(3000, 768_000),
  onSegment: mustBe.func,
  onPartial: mustBe.func,
  signal: mustBe.signal,
};

/** Writes down what is said. */
export async function transcribe(backend: Backend, info: ModelInfo, audio: AudioInput, options?: TranscribeOptions): Promise<Transcript> {
  const { sampleRate, ...rest } = checked("transcribe", options, OPTIONS);
  hears(backend, info);
  return hear(backend, await samplesOf("transcribe", audio, sampleRate), rest);
}

/** Refuses a model that does not hear. */
export function hears(backend: Backend, info: ModelInfo): void {
  if (backend.closed) throw unloaded();
  if (info.task !== "transcribe") throw misused(info, "cannot transcribe audio");
}

/** The transcript of samples at 16 kHz. */
export function hear(backend: Backend, samples: Float32Array, options: Omit<TranscribeOptions, "sampleRate">): Promise<Transcript> {
  const { signal, onSegment, onPartial, temperature, ...rest } = options;
  const request: EngineTranscribeOptions = rest;
  if (temperature !== undefined) request.temperatures = [temperature].flat();
  if (onPartial) request.partials = true;
  const onEvent = (heard: HeardEvent | PartialEvent): void => ("stable" in heard ? onPartial?.(heard) : onSegment?.(heard));
  return backend.call("transcribe", [samples, request], { signal, onEvent });
}

/** What a transcript is given back as. */
export type TranscriptionFormat = "json" | "text" | "verbose_json" | "srt" | "vtt";

/** A request of `audio.transcriptions.create`. */
export interface TranscriptionCreateParams {
  file: AudioInput;
  /** Ignored but for being a string: there is one model. */
  model?: string;
  language?: string;
  prompt?: string;
  response_format?: TranscriptionFormat;
  temperature?: number | number[];
  /** How closely `verbose_json` is timed. */
  timestamp_granularities?: ("segment" | "word")[];
  stream?: boolean | null;
  /** Log-probabilities come with `verbose_json`, of segments; nothing more can be included. */
  include?: [] | null;
  /** Sound is cut where nobody speaks, whatever its length. */
  chunking_strategy?: "auto" | null;
}

/**
 * A piece of a streamed transcript, and at the end all of it.
 *
 * Deltas are never taken back: they come token by token where tokens stay as they come, else when a stretch is settled, and
 * together they are the whole text. `partial` is what is decoded beyond them, token by token: each takes the place of the
 * one before, and so does the next delta. A text that is decoded again, at another temperature or across windows, shows in
 * partials only.
 */
export type TranscriptionStreamEvent =
  | { type: "transcript.text.delta"; delta: string }
  | { type: "transcript.text.partial"; text: string }
  | { type: "transcript.text.segment"; id: string; start: number; end: number; text: string }
  | { type: "transcript.text.done"; text: string };

/** What `create` gives for a format. */
export type TranscriptionResult<F> = F extends "text" | "srt" | "vtt" ? string : F extends "verbose_json" ? Omit<Transcript, "srt" | "vtt" | "languageName"> : { text: string };

const PARAMS = {
  file: mustBe.any,
  model: mustBe.string,
  language: mustBe.string,
  prompt: mustBe.string,
  response_format: mustBe.oneOf("json", "text", "verbose_json", "srt", "vtt"),
  temperature: OPTIONS.temperature,
  timestamp_granularities: (v: unknown) => (Array.isArray(v) && v.every((g) => g === "segment" || g === "word") ? undefined : "a list of 'segment' and 'word'"),
  stream: mustBe.boolean,
  include: (v: unknown) => (Array.isArray(v) && v.length === 0 ? undefined : "left out: log-probabilities come with response_format 'verbose_json', of segments"),
  chunking_strategy: mustBe.oneOf("auto"),
};

/** OpenAI's `audio.transcriptions`, and with `translate` its `audio.translations`. */
export class Transcriptions {
  readonly #backend: Backend;
  readonly #info: ModelInfo;
  readonly #translate: boolean;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo, translate: boolean) {
    this.#backend = backend;
    this.#info = info;
    this.#translate = translate;
  }

  /** Writes down what is said, stretch by stretch. */
  create(params: TranscriptionCreateParams & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<TranscriptionStreamEvent>>;
  /** Writes down what is said. An abort rejects with code `aborted`. */
  create<F extends TranscriptionFormat = "json">(
    params: TranscriptionCreateParams & { response_format?: F; stream?: false | null },
    options?: { signal?: AbortSignal },
  ): Promise<TranscriptionResult<F>>;
  async create(params: TranscriptionCreateParams, options?: { signal?: AbortSignal }): Promise<unknown> {
    const where = this.#translate ? "audio.translations.create" : "audio.transcriptions.create";
    const p = checked(where, params, PARAMS);
    const { signal } = checked(where, options, { signal: mustBe.signal });
    hears(this.#backend, this.#info);
    const format = p.response_format ?? "json";
    const granularities = p.timestamp_granularities ?? [];
    if (granularities.length > 0 && format !== "verbose_json") throw refused(`${where}: 'timestamp_granularities' goes with response_format 'verbose_json'.`);
    const samples = await samplesOf(where, p.file);
    const timed = this.#info.capabilities?.includes("timestamps") === true;
    const wanted: TranscribeOptions = { translate: this.#translate };
    // What has no time tokens is timed by what was heard at once.
    if (granularities.includes("word")) wanted.timestamps = "word";
    else if (timed && (format === "srt" || format === "vtt" || format === "verbose_json")) wanted.timestamps = "segment";
    // Windows between time tokens do not overlap: what they say is settled sooner.
    else if (timed && p.stream && samples.length > (this.#info.hears?.seconds ?? Infinity) * RATE) wanted.timestamps = "segment";
    if (format === "verbose_json") wanted.logprobs = true;
    if (p.language) wanted.language = p.language;
    if (p.prompt) wanted.prompt = p.prompt;
    if (p.temperature !== undefined) wanted.temperature = p.temperature;
    if (p.stream) return new Flow<TranscriptionStreamEvent>((push, s) => this.#stream(samples, wanted, push, s), signal);
    const { srt, vtt, languageName, ...made } = await hear(this.#backend, samples, signal ? { ...wanted, signal } : wanted);
    switch (format) {
      case "text":
        return made.text;
      case "srt":
        return srt;
      case "vtt":
        return vtt;
      case "verbose_json":
        return { ...made, language: languageName ?? made.language };
      default:
        return { text: made.text };
    }
  }

  async #stream(samples: Float32Array, options: TranscribeOptions, push: (event: TranscriptionStreamEvent) => void, signal: AbortSignal): Promise<void> {
    let count = 0;
    let [settled, sent, shown] = ["", "", ""];
    const grow = (text: string): void => {
      if (text.length <= sent.length || !text.startsWith(sent)) return;
      push({ type: "transcript.text.delta", delta: text.slice(sent.length) });
      [sent, shown] = [text, ""];
    };
    const onSegment = ({ text, start, end }: HeardEvent): void => {
      const said = text.trim();
      if (!said) return;
      settled = joined(settled, said);
      grow(settled);
      push({ type: "transcript.text.segment", id: String(count++), start, end, text: said });
    };
    const onPartial = ({ text, stable }: PartialEvent): void => {
      grow(joined(settled, stable.trim()));
      const all = joined(settled, text.trim());
      const rest = all.startsWith(sent) ? all.slice(sent.length) : "";
      if (rest !== shown) push({ type: "transcript.text.partial", text: rest });
      shown = rest;
    };
    const { text } = await hear(this.#backend, samples, { ...options, onSegment, onPartial, signal });
    grow(text);
    push({ type: "transcript.text.done", text });
  }
}

/** A transcript with a text behind it. */
function joined(before: string, text: string): string {
  return before && text ? `${before} ${text}` : before + text;
}
