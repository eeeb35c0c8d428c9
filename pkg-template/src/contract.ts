/** Types that cross between the facade and the wasm module, in both directions. */

import type { EngineGenerateFields, EngineLoadFields } from "./schema.js";

export type { CachedModel, CachedSource, DeviceCheck, DeviceReport, KernelProfile, Measurement, MemoryUse } from "./contract-device.js";
export type { SegmentEvent, VadEvent, PartialEvent, SynthesisResult, Transcript } from "./contract-audio.js";
export type { EngineEmbedOptions, EngineRerankOptions, EngineSpeakOptions, EngineTranscribeOptions, MeasureOptions, Overflow, Speculation } from "./schema.js";

/** What `loadModel` reports while it loads a model. */
export interface LoadProgress {
  /**
   * The current phase. `waiting`: another tab is loading the same model. `config`, `tokenizer`, `weights`: reading
   * those files. `compile`: all bytes have arrived and kernels are still compiling. `ready`: reported once, at the end.
   */
  phase: "waiting" | "config" | "tokenizer" | "weights" | "compile" | "ready";
  /** Overall progress from 0 to 1; never decreases, and is 1 when the model is ready. */
  progress: number;
  /** The file being read, if any. */
  file?: string;
  /**
   * Bytes received in this phase over all files; in `compile` the compiled kernels, in `ready` the bytes of the
   * weights.
   */
  loaded: number;
  /** The total of `loaded`; 0 while unknown. */
  total: number;
  /** Smoothed bytes per second; 0 at the start. */
  bytesPerSecond: number;
  /** Seconds until the phase ends at this rate; absent while unknown. */
  secondsLeft?: number;
  /** True when the bytes come from the browser's cache rather than the network. */
  fromCache: boolean;
  /** Why nothing arrives: the server asked to retry later, does not answer, or sends very slowly. */
  waitingFor?: string;
}

/**
 * Where the load time went, from opened files to a runnable model. `readingMs`, `writingMs`, `transcodingMs`,
 * `tuningMs` and `compilingMs` do not overlap; the rest is planning and allocation.
 */
export interface LoadTimes {
  totalMs: number;
  /** Waiting for bytes from the network, the cache or a file. */
  readingMs: number;
  /** Uploading bytes to the GPU unchanged. */
  writingMs: number;
  /** Transcoding and quantizing, mostly on the GPU. */
  transcodingMs: number;
  /** Waiting for autotuning, beyond what overlapped with the first download. */
  tuningMs: number;
  /** Waiting for kernel compilation. */
  compilingMs: number;
  /** Time until the model's own kernels were compiled; mostly overlaps with the rest. */
  kernelsMs: number;
  /** Bytes read. */
  bytes: number;
  /** Peak bytes of GPU buffers. */
  peakBytes: number;
}

/**
 * A kernel variant of the decode GEMV with quantized weights: by rows or by whole blocks, in f32 or with packed 8-bit
 * integers. For prefill GEMMs and attention: `default` or parameters such as `BM=32`.
 */
export type KernelVariant = "rows" | "blocks" | "packedBlocks" | (string & {});

/** The kernel variants chosen for this device, and how they were chosen. */
export interface Tuning {
  /**
   * `measured` by this load or `cached` from an earlier one. Defaults are used when tuning is `off`, on a
   * `software` renderer, when all weight layouts have one variant (`single`), or when measuring `failed`. `forced`: set
   * by a test.
   */
  origin: "measured" | "cached" | "off" | "software" | "single" | "forced" | "failed";
  /** Milliseconds that tuning took in this load; downloads continue meanwhile. */
  ms: number;
  /** Microseconds of a dispatch that depends on the previous one; from 20 on, plans use fewer dispatches. */
  dispatchUs?: number;
  /** Bytes of GPU buffers while tuning. */
  peakBytes: number;
  /**
   * Per weight layout: the chosen variant, the default variant, and microseconds of an 8192x2048 matmul for each. On
   * GPUs other than NVIDIA's also for prefill GEMMs (`prompt`) and decode `attention`.
   */
  choices: { layout: string; chosen: KernelVariant; default: KernelVariant; us: Partial<Record<KernelVariant, number>> }[];
  /** Why tuning failed. */
  failure?: string;
}

/** Properties and cost of a loaded model, as the engine reports them. */
export interface EngineInfo {
  /** The name it was loaded by. */
  model: string;
  /** The loaded revision: a branch, tag or commit. */
  revision?: string;
  /** `architectures[0]` of config.json. */
  architecture: string;
  /** `model_type` of config.json. */
  modelType: string;
  /** What the model does. */
  task: "generate" | "embed" | "rerank" | "transcribe" | "speak";
  /** Number of parameters. */
  parameters: number;
  /** Weight formats in GPU memory. */
  weights: string;
  /** Format of the weights that the checkpoint does not quantize: as requested by `weights`, or as chosen by `auto`. */
  precision: "stored" | "f32" | "f16" | "q8" | "q4";
  /** Format of the KV cache in GPU memory. */
  kv?: string;
  /** Maximum tokens of prompt and answer together. */
  contextLength: number;
  /** Vocabulary size. */
  vocabSize: number;
  /** Width of the residual stream, and of an embedding without heads. */
  hiddenSize: number;
  /** Number of layers. */
  layers: number;
  /**
   * Bytes of GPU memory: the KV cache at its current size, and `kvMax` for one conversation of `contextLength` tokens.
   */
  bytes: { weights: number; kv: number; kvMax?: number; activations: number };
  /** GPU dispatches per greedy token at a short context; for models with a decoder. */
  dispatchesPerToken?: number;
  /** GPU dispatches per batch of texts; for embedding and reranking models. */
  dispatchesPerBatch?: number;
  /** Where the load time went. */
  load?: LoadTimes;
  /** The kernel variants chosen for this device; for text-generation models. */
  tuning?: Tuning;
  /** The GPU and the features in use. */
  device: { vendor: string; architecture: string; description: string; f16: boolean; subgroups: boolean; matrix: boolean; software: boolean };
  /** Messages for the user: an option that could not be honored, a full cache. */
  warnings: string[];
  /** Components of a vector; for embedding models. */
  dimensions?: number;
  /** Prefixes for inputs by task name; for embedding models. */
  prompts?: Record<string, string>;
  /** False for a base model: `chat.completions` refuses it, `generate` works. */
  hasChatTemplate: boolean;
  /** Name of the draft model; null without one. For text-generation models. */
  draft?: string | null;
  /** Format of the model's tool calls, such as `hermes`; null if it is not known. For text-generation models. */
  toolCalls?: string | null;
  /** Whether answers may contain reasoning. For text-generation models. */
  reasoning?: boolean;
  /** Variables of the chat template that control reasoning: `enable_thinking`, `thinking`, `reasoning_effort`. */
  reasoningControls?: string[];
  /** Whether the model's generation_config.json samples; without it decoding is greedy. For text-generation models. */
  samplesByDefault?: boolean;
  /** Whether the vocabulary has fill-in-the-middle tokens, for `suffix` of `completions.create`. */
  fillInTheMiddle?: boolean;
  /**
   * Supported inputs (`"text"`, `"image"`, `"video"`) and audio features (`transcribe`, `translate`, `timestamps`,
   * `words`, `speak`).
   */
  capabilities?: ("text" | "image" | "video" | "transcribe" | "translate" | "timestamps" | "words" | "speak" | (string & {}))[];
  /** Speech-to-text models: window length in seconds, and the language codes to choose from. */
  asr?: { seconds: number; languages: string[] };
  /** Text-to-speech models: sample rate, frames per second, and the size of a speaker vector if supported. */
  tts?: { sampleRate: number; framesPerSecond: number; speaker: number | null };
  /** Further properties of this model. */
  [more: string]: unknown;
}

/** Properties of a loaded model, its cost and where it runs. */
export interface ModelInfo extends EngineInfo {
  /** True when the model runs in a dedicated worker, false on the thread that loaded it. */
  worker: boolean;
}

/** A token with its log-probability. */
export interface TokenLogprob {
  token: string;
  id: number;
  logprob: number;
  /** The token's UTF-8 bytes. */
  bytes: number[] | null;
}

/** The sampled token and the most likely alternatives. */
export interface ChosenLogprob extends TokenLogprob {
  top: TokenLogprob[];
}

/** A part of an answer to `messages`, in the order in which the model wrote it. */
export type AnswerPart =
  | { type: "content" | "reasoning"; text: string }
  | { type: "toolCall"; index: number; id: string; name: string }
  /** Text of a call's arguments, which together are JSON. */
  | { type: "arguments"; index: number; text: string }
  | { type: "toolCallEnd"; index: number };

/** Newly generated text; `text` may be empty while a character is incomplete. */
export interface GenerationEvent {
  text: string;
  ids: number[];
  /** What the text is; absent if the answer is plain text. `text` then has the content only. */
  parts?: AnswerPart[];
  logprobs?: ChosenLogprob[];
}

/** Expert paging statistics; each selected expert counts once per layer and step. */
export interface Paging {
  /** Expert slots of a layer on the GPU. */
  slots: number;
  requested: number;
  /** Requested experts that were on the GPU. */
  hits: number;
  /** Hits without prefetching. */
  hitsWithoutPrefetch: number;
  /** Prefetched experts, and those of them that were then requested. */
  prefetched: number;
  prefetchHits: number;
  /** Bytes read from files or the browser's cache, including rows of embedding tables. */
  bytes: number;
}

/** The result of a generation. */
export interface GenerationResult {
  /** The complete text. */
  text: string;
  /** The generated ids, without the prompt's. */
  ids: number[];
  /** Why it ended: end of text or a stop string; `maxTokens` or the context limit; the caller's signal. */
  finishReason: "stop" | "length" | "abort" | "tool_calls";
  promptTokens: number;
  /** Prompt tokens that were already in the KV cache. */
  cachedTokens: number;
  completionTokens: number;
  /** Tokens of the reasoning among them. */
  reasoningTokens: number;
  /** Tokens drafted by speculation. */
  draftedTokens: number;
  /** Accepted draft tokens; each one saved a step. */
  acceptedTokens: number;
  /** Tokens that were decoded in one step with those of other generations. */
  batchedTokens: number;
  /** Times that sampled tokens, or the logits to sample from, were read back from the GPU. */
  readbacks: number;
  /** Expert paging since the model was loaded; only when some experts are offloaded (see `experts`). */
  paging?: Paging;
  /** Milliseconds spent encoding images before the prefill; 0 when they were encoded earlier. */
  encodeMs: number;
  /** Milliseconds from the request to the first token. */
  prefillMs: number;
  /** Milliseconds from the first token to the last. */
  decodeMs: number;
}

/** A request to the engine: one of `prompt`, `ids`, `messages`, plus sampling options. */
export interface EngineRequest extends EngineGenerateFields {
  /** What the text must match. The host compiles it; the engine receives masks. */
  grammar?: GrammarSource;
  /** Asks the caller before each token: with the logits, or with the tokens so far only. For the host. */
  steps?: "logits" | "tokens";
}

/** A question before each token: the logits, if they were requested, and the ids of the answer so far. */
export interface StepQuestion {
  logits: Float32Array;
  tokens: Uint32Array;
}

/** The logits to use, `false` to end the answer, or nothing to go on unchanged. */
export type StepAnswer = Float32Array | false | undefined;

/** Answers a {@link StepQuestion} of the wasm module. */
export type ProcessLogits = (logits: Float32Array, tokens: Uint32Array) => Promise<StepAnswer>;

/** A grammar for the text of a request. */
export interface GrammarSource {
  kind: "json_object" | "json_schema" | "regex" | "lark" | "gbnf" | "choice" | "answer";
  /** The grammar's text; JSON for a schema, for choices and for an answer with tool calls. */
  source: string;
}

/**
 * Limits the tokens of an answer, such as a grammar. Called for each token while the GPU computes later ones: with the
 * sampled token, or `undefined` at the start, after forced tokens and after `true`. Returns the allowed tokens, one bit
 * each: token `i` is bit `i % 32` of word `i / 32`. Or `forced`, the only tokens that may follow, which count as accepted.
 * With `next`, a token that was sampled ahead, it may return `true` instead: nothing is forced, and `next` may follow.
 */
export type NextMask = (token: number | undefined, next?: number) => Uint32Array | { forced: Uint32Array } | true;

/** Options of `Engine.load`, besides its signal. */
export interface EngineLoadOptions extends EngineLoadFields {
  model: string | { name: string; file: File }[];
  /** The path of `model`, if its files were read from a disk. */
  path?: string;
  /** Silero VAD's weights, for speech-to-text models; see `vad` of `loadModel`. */
  vad?: Uint8Array;
}

/** An image that the engine has encoded. */
export interface EncodedImageInfo {
  /** Its id in conversations. */
  id: number;
  /** Number of tokens it takes. */
  tokens: number;
  /** Tokens per tile, rows by columns. */
  grids: [number, number][];
  /** Width and height of each tile in pixels, after resizing. */
  tiles: [number, number][];
  /** Milliseconds of encoding; 0 if it was encoded earlier. */
  ms: number;
}

/** An image being uploaded to the engine. */
export interface ImageUpload {
  /** Appends the next rows, as RGBA. */
  push(rgba: Uint8Array): void;
  free(): void;
}
