/** Text to sound, in OpenAI's shape. Does not know how it is made. */

import { checked, mustBe } from "./check.js";
import type { EngineSpeakOptions, ModelInfo } from "./contract.js";
import { refused, unloaded } from "./errors.js";
import { Flow } from "./flow.js";
import type { Backend } from "./host.js";
import { pcm16, wav } from "./sound.js";
import { misused } from "./tasks.js";

/** A request of `audio.speech.create`. */
export interface SpeechCreateParams {
  /** The text. */
  input: string;
  /** Ignored but for being a string: there is one model. */
  model?: string;
  /** A name or language that the model knows, or a speaker's vector. */
  voice?: string | Float32Array;
  /** A file of 16 bits, or its samples alone. `wav` by default. */
  response_format?: "wav" | "pcm";
  /** Sound as it is made. */
  stream?: boolean | null;
  temperature?: number;
  top_p?: number;
  repetition_penalty?: number;
  seed?: number;
  /** The most codes, four of which are a frame. */
  max_tokens?: number;
  /** The model's own pace is all there is. */
  speed?: 1 | null;
  /** No model here takes instructions about the voice. */
  instructions?: "" | null;
  /** The body is sound; server-sent events are not. */
  stream_format?: "audio" | null;
  /** Lets only codes in their turn come: slower, and safer with a model that errs. */
  grammar?: boolean;
}

/** A piece of sound. */
export interface SpeechChunk {
  samples: Float32Array;
  sampleRate: number;
}

const PARAMS = {
  input: mustBe.string,
  model: mustBe.string,
  voice: (v: unknown) => (typeof v === "string" || v instanceof Float32Array ? undefined : "a string or a Float32Array"),
  response_format: (v: unknown) => (v === "wav" || v === "pcm" ? undefined : "'wav' or 'pcm': browsers cannot encode other formats"),
  stream: mustBe.boolean,
  temperature: mustBe.number(0, 2),
  top_p: mustBe.number(0, 1),
  repetition_penalty: mustBe.number(0.1, 10),
  seed: mustBe.integer(0, Number.MAX_SAFE_INTEGER),
  max_tokens: mustBe.integer(1),
  speed: (v: unknown) => (v === 1 ? undefined : "1: the pace of the voice cannot be changed"),
  instructions: (v: unknown) => (v === "" ? undefined : "left out: the model takes no instructions about the voice"),
  stream_format: mustBe.oneOf("audio"),
  grammar: mustBe.boolean,
};

/** OpenAI's `audio.speech`. */
export class Speech {
  readonly #backend: Backend;
  readonly #info: ModelInfo;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.#backend = backend;
    this.#info = info;
  }

  /** Speaks, piece by piece: leaving the loop stops it. */
  create(params: SpeechCreateParams & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<SpeechChunk>>;
  /** Speaks: a response with the sound, as OpenAI's client gives it. */
  create(params: SpeechCreateParams & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<Response>;
  async create(params: SpeechCreateParams, options?: { signal?: AbortSignal }): Promise<AsyncIterable<SpeechChunk> | Response> {
    const where = "audio.speech.create";
    const p = checked(where, params, PARAMS);
    const { signal } = checked(where, options, { signal: mustBe.signal });
    if (this.#backend.closed) throw unloaded();
    if (this.#info.task !== "speak") throw misused(this.#info, "cannot synthesize speech");
    if (!p.input?.trim()) throw refused(`${where}: there is no text in 'input'.`);
    const sampleRate = this.#info.speaks?.sampleRate ?? 22_050;
    const request = engineRequest(p);
    const speak = async (onEvent: (samples: Float32Array) => void, s?: AbortSignal): Promise<void> => {
      await this.#backend.call("speak", [request], { signal: s, onEvent });
    };
    if (p.stream) return new Flow<SpeechChunk>((push, s) => speak((samples) => push({ samples, sampleRate }), s), signal);
    const pieces: Float32Array[] = [];
    await speak((samples) => pieces.push(samples), signal);
    const pcm = p.response_format === "pcm";
    const type = pcm ? `audio/pcm;rate=${sampleRate}` : "audio/wav";
    return new Response(pcm ? new Blob(pieces.map(pcm16)) : wav(pieces, sampleRate), { headers: { "content-type": type } });
  }
}

function engineRequest({ input, voice, temperature, top_p, repetition_penalty, seed, max_tokens, grammar }: SpeechCreateParams): EngineSpeakOptions {
  const all = {
    input,
    ...(typeof voice === "string" ? { voice } : {}),
    ...(voice instanceof Float32Array ? { speaker: Array.from(voice) } : {}),
    temperature,
    topP: top_p,
    repetitionPenalty: repetition_penalty,
    seed,
    maxTokens: max_tokens,
    grammar,
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as unknown as EngineSpeakOptions;
}
