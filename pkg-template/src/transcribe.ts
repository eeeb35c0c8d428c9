/** Speech to text, in Jerboa's API and OpenAI's. */

import { checked, everyItem, listOf, valid, validator } from "./check.js";
import type { EngineTranscribeOptions, SegmentEvent, ModelInfo, PartialEvent, Transcript } from "./contract.js";
import { invalidRequest, unloaded } from "./errors.js";
import { AsyncQueue } from "./async-queue.js";
import type { Backend } from "./engine-calls.js";
import { type AudioInput, SAMPLE_RATE, samplesOf } from "./audio-input.js";
import { TRANSCRIBE_SPEC, TRANSCRIPTION_SPEC, type TranscribeFields, type TranscriptionFields } from "./schema.js";
import { wrongTask } from "./tasks.js";

/** Options of `model.transcribe`. */
export interface TranscribeOptions extends TranscribeFields {
  /** Sample rate of a bare Float32Array, in Hz. */
  sampleRate?: number;
  /** Receives each segment once it is final. */
  onSegment?: (event: SegmentEvent) => void;
  /**
   * Receives the text after the last segment, token by token. Each call replaces the previous partial text; a segment
   * replaces its beginning.
   */
  onPartial?: (partial: PartialEvent) => void;
  /** Cancels the call. */
  signal?: AbortSignal;
}

const OPTIONS = {
  ...TRANSCRIBE_SPEC,
  sampleRate: valid.number(3000, 768_000),
  onSegment: valid.func,
  onPartial: valid.func,
  signal: valid.signal,
};

/** Transcribes audio. */
export async function transcribe(backend: Backend, info: ModelInfo, audio: AudioInput, options?: TranscribeOptions): Promise<Transcript> {
  const { sampleRate, ...rest } = checked("transcribe", options, OPTIONS);
  requireAsr(backend, info);
  return transcribeSamples(backend, await samplesOf("transcribe", audio, sampleRate, rest.signal), rest);
}

/** Refuses a model that is not a speech-to-text model. */
export function requireAsr(backend: Backend, info: ModelInfo): void {
  if (backend.closed) throw unloaded();
  if (info.task !== "transcribe") throw wrongTask(info, "cannot transcribe audio");
}

/** Transcribes samples at 16 kHz. */
export function transcribeSamples(backend: Backend, samples: Float32Array, options: Omit<TranscribeOptions, "sampleRate">): Promise<Transcript> {
  const { signal, onSegment, onPartial, temperature, ...rest } = options;
  const request: EngineTranscribeOptions = rest;
  if (temperature !== undefined) request.temperatures = listOf(temperature);
  if (onPartial) request.partials = true;
  const onEvent = (event: SegmentEvent | PartialEvent): void => ("stable" in event ? onPartial?.(event) : onSegment?.(event));
  return backend.call("transcribe", [samples, request], { signal, onEvent });
}

/** Format of the response. */
export type TranscriptionFormat = "json" | "text" | "verbose_json" | "srt" | "vtt";

/** A request of `audio.transcriptions.create`. */
export interface TranscriptionCreateParams extends TranscriptionFields {
  file: AudioInput;
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  response_format?: TranscriptionFormat;
  /** Timestamp granularities of `verbose_json`. */
  timestamp_granularities?: ("segment" | "word")[];
  stream?: boolean | null;
  /** Not supported: log-probabilities of segments come with `verbose_json`. */
  include?: [] | null;
  /** Audio is always cut at pauses, whatever its length. */
  chunking_strategy?: "auto" | null;
}

/**
 * An event of a streamed transcript; the last one has the complete text.
 *
 * Deltas are final: they arrive token by token when tokens cannot change, else per finished segment, and together form
 * the whole text. `partial` is the text decoded beyond them; each one, and the next delta, replaces the previous
 * partial. Text that is decoded again, at another temperature or across windows, appears in partials only.
 */
export type TranscriptionStreamEvent =
  | { type: "transcript.text.delta"; delta: string }
  | { type: "transcript.text.partial"; text: string }
  | { type: "transcript.text.segment"; id: string; start: number; end: number; text: string }
  | { type: "transcript.text.done"; text: string };

/** The result of `create`, by format. */
export type TranscriptionResult<F> = F extends "text" | "srt" | "vtt" ? string : F extends "verbose_json" ? Omit<Transcript, "srt" | "vtt" | "languageName"> : { text: string };

const PARAMS = {
  ...TRANSCRIPTION_SPEC,
  file: valid.any,
  model: valid.string,
  response_format: valid.oneOf("json", "text", "verbose_json", "srt", "vtt"),
  timestamp_granularities: validator("a list of 'segment' and 'word'", (v) => everyItem(v, (g) => g === "segment" || g === "word")),
  stream: valid.boolean,
  include: validator("left out (for log-probabilities of segments, set response_format 'verbose_json')", (v) => Array.isArray(v) && v.length === 0),
  chunking_strategy: valid.oneOf("auto"),
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

  /** Streams a transcript, segment by segment. */
  create(params: TranscriptionCreateParams & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<TranscriptionStreamEvent>>;
  /** Transcribes audio. An abort rejects with code `aborted`. */
  create<F extends TranscriptionFormat = "json">(
    params: TranscriptionCreateParams & { response_format?: F; stream?: false | null },
    options?: { signal?: AbortSignal },
  ): Promise<TranscriptionResult<F>>;
  create(params: TranscriptionCreateParams, options?: { signal?: AbortSignal }): Promise<AsyncIterable<TranscriptionStreamEvent> | TranscriptionResult<TranscriptionFormat>>;
  async create(params: TranscriptionCreateParams, options?: { signal?: AbortSignal }): Promise<unknown> {
    const where = this.#translate ? "audio.translations.create" : "audio.transcriptions.create";
    const p = checked(where, params, PARAMS);
    const { signal } = checked(where, options, { signal: valid.signal });
    requireAsr(this.#backend, this.#info);
    const format = p.response_format ?? "json";
    if (p.stream && format !== "json" && format !== "text") throw invalidRequest(`${where}: 'response_format' must be 'json' or 'text' with stream: true, not '${format}'. The events are the same.`);
    const granularities = p.timestamp_granularities ?? [];
    if (granularities.length > 0 && format !== "verbose_json") throw invalidRequest(`${where}: 'timestamp_granularities' requires response_format 'verbose_json'.`);
    const samples = await samplesOf(where, p.file, undefined, signal);
    const timed = this.#info.capabilities?.includes("timestamps") === true;
    const wanted: TranscribeOptions = { translate: this.#translate };
    // Models without timestamp tokens are timed by their audio windows.
    if (granularities.includes("word")) wanted.timestamps = "word";
    else if (timed && (format === "srt" || format === "vtt" || format === "verbose_json")) wanted.timestamps = "segment";
    // Windows cut at timestamp tokens do not overlap, so their text is final sooner.
    else if (timed && p.stream && samples.length > (this.#info.asr?.seconds ?? Infinity) * SAMPLE_RATE) wanted.timestamps = "segment";
    if (format === "verbose_json") wanted.logprobs = true;
    if (p.language) wanted.language = p.language;
    if (p.prompt) wanted.prompt = p.prompt;
    if (p.temperature !== undefined) wanted.temperature = p.temperature;
    if (p.stream) return new AsyncQueue<TranscriptionStreamEvent>((push, s) => this.#stream(samples, wanted, push, s), signal);
    const { srt, vtt, languageName, ...made } = await transcribeSamples(this.#backend, samples, signal ? { ...wanted, signal } : wanted);
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
    const onSegment = ({ text, start, end }: SegmentEvent): void => {
      const trimmed = text.trim();
      if (!trimmed) return;
      settled = joinText(settled, trimmed);
      grow(settled);
      push({ type: "transcript.text.segment", id: String(count++), start, end, text: trimmed });
    };
    const onPartial = ({ text, stable }: PartialEvent): void => {
      grow(joinText(settled, stable.trim()));
      const all = joinText(settled, text.trim());
      const rest = all.startsWith(sent) ? all.slice(sent.length) : "";
      if (rest !== shown) push({ type: "transcript.text.partial", text: rest });
      shown = rest;
    };
    const { text } = await transcribeSamples(this.#backend, samples, { ...options, onSegment, onPartial, signal });
    grow(text);
    push({ type: "transcript.text.done", text });
  }
}

/** Appends text to a transcript. */
function joinText(before: string, text: string): string {
  return before && text ? `${before} ${text}` : before + text;
}
