/** OpenAI's text-to-speech API. */

import { checked, engineOptions, renamed, valid, validator } from "./check.js";
import type { EngineSpeakOptions, ModelInfo } from "./contract.js";
import { invalidRequest, unloaded } from "./errors.js";
import { AsyncQueue } from "./async-queue.js";
import type { Backend } from "./engine-calls.js";
import { pcm16, wav } from "./audio-input.js";
import { SPEECH_SPEC, type SpeechFields } from "./schema.js";
import { wrongTask } from "./tasks.js";

/** A request of `audio.speech.create`. */
export interface SpeechCreateParams extends SpeechFields {
  /** The text to speak. */
  input: string;
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  /** A voice or language name, which is put before the text unchecked (empty for none), or a speaker vector. */
  voice?: string | Float32Array;
  /** 16-bit audio as a WAV file or as raw samples. `wav` by default. */
  response_format?: "wav" | "pcm";
  /** Streams audio while it is generated. */
  stream?: boolean | null;
  /** Only the model's own speed is supported. */
  speed?: 1 | null;
  /** Voice instructions are not supported. */
  instructions?: "" | null;
  /** Only raw audio is supported, not server-sent events. */
  stream_format?: "audio" | null;
}

/** A chunk of audio. */
export interface SpeechChunk {
  samples: Float32Array;
  sampleRate: number;
}

/** Codec tokens of a frame. */
const FRAME_TOKENS = 4;

const PARAMS = {
  ...SPEECH_SPEC,
  input: valid.string,
  model: valid.string,
  voice: validator("a string or a Float32Array of finite numbers", (v) => typeof v === "string" || (v instanceof Float32Array && v.length > 0 && v.every(Number.isFinite))),
  response_format: validator("'wav' or 'pcm' (browsers cannot encode other formats)", (v) => v === "wav" || v === "pcm"),
  stream: valid.boolean,
  speed: validator("1 (changing the speed is not supported)", (v) => v === 1),
  instructions: validator("left out (voice instructions are not supported)", (v) => v === ""),
  stream_format: valid.oneOf("audio"),
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

  /** Streams synthesized speech; leaving the loop stops it. */
  create(params: SpeechCreateParams & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<SpeechChunk>>;
  /** Synthesizes speech; resolves with a `Response`, like OpenAI's client. */
  create(params: SpeechCreateParams & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<Response>;
  create(params: SpeechCreateParams, options?: { signal?: AbortSignal }): Promise<AsyncIterable<SpeechChunk> | Response>;
  async create(params: SpeechCreateParams, options?: { signal?: AbortSignal }): Promise<AsyncIterable<SpeechChunk> | Response> {
    const where = "audio.speech.create";
    const p = checked(where, params, PARAMS);
    const { signal } = checked(where, options, { signal: valid.signal });
    if (this.#backend.closed) throw unloaded();
    if (this.#info.task !== "speak") throw wrongTask(this.#info, "cannot synthesize speech");
    if (!p.input?.trim()) throw invalidRequest(`${where}: 'input' is empty. Set it to the text to synthesize.`);
    const sampleRate = this.#info.tts?.sampleRate ?? 22_050;
    const request = engineRequest(p);
    const speak = async (onEvent: (samples: Float32Array) => void, s?: AbortSignal): Promise<void> => {
      const { frames } = await this.#backend.call("speak", [request], { signal: s, onEvent }).catch(renamed("speaker", "voice"));
      if (frames === 0) throw invalidRequest(`${where}: the model generated no audio: ${p.max_tokens && p.max_tokens < FRAME_TOKENS ? `'max_tokens' (${p.max_tokens}) is less than one frame, which has ${FRAME_TOKENS} tokens. Leave it out, or set it higher` : "it ended before the first frame. Change 'input', 'voice' or 'seed'"}.`);
    };
    if (p.stream) return new AsyncQueue<SpeechChunk>((push, s) => speak((samples) => push({ samples, sampleRate }), s), signal);
    const pieces: Float32Array[] = [];
    await speak((samples) => pieces.push(samples), signal);
    const pcm = p.response_format === "pcm";
    const type = pcm ? `audio/pcm;rate=${sampleRate}` : "audio/wav";
    return new Response(pcm ? new Blob(pieces.map(pcm16)) : wav(pieces, sampleRate), { headers: { "content-type": type } });
  }
}

function engineRequest({ input, voice, ...rest }: SpeechCreateParams): EngineSpeakOptions {
  return {
    ...engineOptions(SPEECH_SPEC, rest),
    input,
    ...(typeof voice === "string" ? { voice } : {}),
    ...(voice instanceof Float32Array ? { speaker: Array.from(voice) } : {}),
  };
}
