/** The shapes that pass between the facade and the wasm module, in either direction. Knows names and types; nothing runs here. */

import type { CachedSource, Check, DeviceReport, Measurement, MeasureOptions, MemoryUse } from "./contract-device.js";
import type { EngineSpeakOptions, EngineTranscribeOptions, HeardEvent, ListenTurn, PartialEvent, Spoken, Transcript } from "./contract-sound.js";

export type { CachedModel, CachedSource, Check, DeviceReport, Measurement, MeasureOptions, MemoryUse } from "./contract-device.js";
export type { EngineSpeakOptions, EngineTranscribeOptions, HeardEvent, ListenTurn, PartialEvent, Spoken, Transcript } from "./contract-sound.js";

/** What `loadModel` reports while a model arrives. */
export interface LoadProgress {
  /**
   * What is under way. `waiting` comes first where another tab loads the same model; then reading config.json, the tokenizer, the weights; `compile` when all bytes are there and kernels are still being compiled. `ready` comes
   * once, at the end.
   */
  phase: "waiting" | "config" | "tokenizer" | "weights" | "compile" | "ready";
  /** How much of the whole load is done, from 0 to 1. It never falls, and is 1 when the model is ready. */
  share: number;
  /** The file that is being read, if any. */
  file?: string;
  /** Bytes that have arrived in this phase, of all files together; of `compile`, kernels; of `ready`, the bytes of the weights. */
  loaded: number;
  /** The same in all; 0 while that is not known. */
  total: number;
  /** Bytes per second, smoothed; 0 at the start. */
  bytesPerSecond: number;
  /** Seconds until the phase ends, at this rate; absent while unknown. */
  secondsLeft?: number;
  /** True when the bytes come from the browser's cache and not over the network. */
  fromCache: boolean;
}

/**
 * Where the time of a load went, from the opened files to a model that can run. In `readingMs`, `writingMs`, `transcodingMs`, `tuningMs` and `compilingMs` nothing else
 * of it went on; the rest is planning and allocation.
 */
export interface LoadTimes {
  totalMs: number;
  /** Waiting for bytes from the network, the cache or a file. */
  readingMs: number;
  /** Handing bytes to the GPU as they are. */
  writingMs: number;
  /** Transcoding and quantizing, on the GPU for the most part. */
  transcodingMs: number;
  /** Waiting for the measurement of which kernels are the fastest: what of it did not pass while the first bytes came. */
  tuningMs: number;
  /** Waiting for kernels. */
  compilingMs: number;
  /** Until the model's own kernels were there: most of it passes beside the rest. */
  kernelsMs: number;
  /** Bytes that were read. */
  bytes: number;
  /** Peak bytes of GPU buffers. */
  peakBytes: number;
}

/**
 * A kernel variant of the product of one token with quantised weights: rows of them at a time, or whole blocks, multiplied as floats or as packed bytes. For a prompt's
 * products and attention: `own`, or numbers such as `BM=32`.
 */
export type KernelForm = "rows" | "blocks" | "packedBlocks" | (string & {});

/** Which kernels were chosen for this device, and how. */
export interface Tuning {
  /**
   * `measured` by this load, `remembered` from an earlier one; nothing chosen when it is `off`, when the adapter is a `software` renderer, when all weights have
   * one form only (`alike`) or when measuring `failed`; `given` by a test.
   */
  origin: "measured" | "remembered" | "off" | "software" | "alike" | "given" | "failed";
  /** Milliseconds that it took of this load; bytes arrive meanwhile. */
  ms: number;
  /** Microseconds of a dispatch that waits for the one before it; from 20 on the plan takes fewer of them. */
  dispatchUs?: number;
  /** Bytes of GPU buffers while it measured. */
  peakBytes: number;
  /**
   * By the layout of weights: what runs, what would run without, and microseconds of a product of 8192 by 2048. On GPUs other than NVIDIA's also for the `prompt`'s
   * products and `attention` of one token.
   */
  choices: { layout: string; chosen: KernelForm; own: KernelForm; us: Partial<Record<KernelForm, number>> }[];
  /** Why it failed. */
  failure?: string;
}

/** What a loaded model is and what it costs, as the engine knows it. */
export interface EngineInfo {
  /** The name that it was loaded by. */
  model: string;
  /** The revision that was loaded, as a branch, tag or commit. */
  revision?: string;
  /** `architectures[0]` of config.json. */
  architecture: string;
  /** `model_type` of config.json. */
  modelType: string;
  /** What it is for. */
  task: "generate" | "embed" | "rerank" | "transcribe" | "speak";
  /** The number of parameters. */
  parameters: number;
  /** How the weights lie in GPU memory. */
  weights: string;
  /** What weights that the checkpoint does not quantize are kept as: what `weights` asked for, or what `auto` chose. */
  precision: "stored" | "f32" | "f16" | "q8" | "q4";
  /** How the KV cache lies in GPU memory. */
  kv?: string;
  /** The most tokens that prompt and answer hold together. */
  contextLength: number;
  /** Entries of the vocabulary. */
  vocabSize: number;
  /** Width of the residual stream, and of an embedding without heads. */
  hiddenSize: number;
  /** The number of layers. */
  layers: number;
  /** Bytes of GPU memory: the KV cache as far as it has grown, and of one conversation of `contextLength` tokens at the most. */
  bytes: { weights: number; kv: number; kvMost?: number; activations: number };
  /** GPU dispatches of a greedy token, near the beginning; of models that have a decoder. */
  dispatchesPerToken?: number;
  /** GPU dispatches of a batch of texts; of models that embed or rerank. */
  dispatchesPerBatch?: number;
  /** Where the time of its load went. */
  load?: LoadTimes;
  /** Which kernels were chosen for this device, and how; of models that generate. */
  tuning?: Tuning;
  /** The GPU and those of its features that are in use. */
  device: { vendor: string; architecture: string; description: string; f16: boolean; subgroups: boolean; matrix: boolean; software: boolean };
  /** Sentences that a user may want to know: an option that was not honoured, a full cache. */
  warnings: string[];
  /** Numbers of a vector; of embedding models. */
  dimensions?: number;
  /** Texts that go before inputs, by the task that names them; of embedding models. */
  prompts?: Record<string, string>;
  /** False for a base model: `chat.completions` then refuses, `generate` works. */
  hasChatTemplate: boolean;
  /** What it takes: `"text"`, `"image"` where it sees, `"video"` where it sees videos; what it does with sound: `transcribe`, with `translate`, `timestamps` and `words` where it can; `speak`. */
  capabilities?: ("text" | "image" | "video" | "transcribe" | "translate" | "timestamps" | "words" | "speak" | (string & {}))[];
  /** Of models that hear: the most seconds at once, and the codes of languages that can be asked for. */
  hears?: { seconds: number; languages: string[] };
  /** Of models that speak: samples and frames a second, and the numbers of a speaker's vector where they take one. */
  speaks?: { sampleRate: number; framesPerSecond: number; speaker: number | null };
  /** More that the engine knows about this model. */
  [more: string]: unknown;
}

/** What a loaded model is, what it costs and where it runs. */
export interface ModelInfo extends EngineInfo {
  /** True when the model runs in a dedicated worker, false when it runs on the thread that loaded it. */
  worker: boolean;
}

/** One token with its log-probability. */
export interface TokenLogprob {
  token: string;
  id: number;
  logprob: number;
  /** The token's UTF-8 bytes. */
  bytes: number[] | null;
}

/** The chosen token and the most likely ones at its place. */
export interface ChosenLogprob extends TokenLogprob {
  top: TokenLogprob[];
}

/** What arrives while a model generates; `text` may be empty while a character is incomplete. */
export interface GenerationEvent {
  text: string;
  ids: number[];
  logprobs?: ChosenLogprob[];
}

/** How often the experts that steps asked for, each once a layer and step, were on the GPU. */
export interface Paging {
  /** Experts of a layer that have a place there. */
  held: number;
  asked: number;
  /** Those of them that were there. */
  hits: number;
  /** Those that would have been there without looking ahead. */
  hitsAlone: number;
  /** Experts that were fetched ahead, and those of them that were then asked for. */
  ahead: number;
  aheadUsed: number;
  /** Bytes that came from files or the browser's cache, rows of tables included. */
  bytes: number;
}

/** What a generation came to. */
export interface GenerationResult {
  /** The whole text. */
  text: string;
  /** The generated ids, without the prompt's. */
  ids: number[];
  /** Why it ended: end of text or a stop string, `maxTokens` or the context, or the caller's signal. */
  finishReason: "stop" | "length" | "abort";
  promptTokens: number;
  /** Those of the prompt's tokens that were still in the KV cache. */
  cachedTokens: number;
  completionTokens: number;
  /** Tokens that speculation drafted. */
  draftedTokens: number;
  /** Accepted drafts: so many steps were saved. */
  acceptedTokens: number;
  /** How often experts were on the GPU, since the model was loaded; only where not all of them are (see `experts`). */
  paging?: Paging;
  /** Milliseconds in which pictures were encoded for it, before it began; 0 where they had been before. */
  encodeMs: number;
  /** Milliseconds from the request to the first token. */
  prefillMs: number;
  /** Milliseconds from the first token to the last. */
  decodeMs: number;
}

/** What to do when the context is full: fail, drop the oldest turns and render again, or slide over the oldest tokens. */
export type Overflow = "error" | "truncate" | "rolling";

/**
 * Speculative decoding: tokens are drafted and verified several at a time. `prompt-lookup` drafts what followed the last tokens where they
 * occurred before: answers that repeat much of the prompt (edits of code, summaries, extraction) come in fewer steps. It is left off by itself where it does
 * not pay, and takes effect where the likeliest token is taken: with `temperature: 0`, no penalties, no bias, no log-probabilities.
 */
export type Speculation = "off" | "prompt-lookup";

/** A request to the engine: one of `prompt`, `ids`, `messages`, and how to sample. */
export interface EngineRequest {
  prompt?: string;
  /** Special tokens that the prompt spells are such. */
  parseSpecial?: boolean;
  ids?: number[];
  messages?: unknown[];
  tools?: unknown[];
  /** Documents for the template. */
  documents?: unknown[];
  chatTemplate?: Record<string, unknown>;
  addGenerationPrompt?: boolean;
  continueFinalMessage?: boolean;
  maxTokens?: number;
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  typicalP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  logitBias?: Record<string, number>;
  seed?: number;
  stop?: string[];
  logprobs?: boolean;
  topLogprobs?: number;
  overflow?: Overflow;
  ignoreEos?: boolean;
  speculation?: Speculation;
}

/** What `Engine.load` takes besides its signal. */
export interface EngineLoadOptions {
  model: string | { name: string; file: File }[];
  /** A Hugging Face access token, for gated and private repositories. It is sent to `endpoint` only and never stored. */
  token?: string;
  /** A branch, tag or commit; `main` by default. */
  revision?: string;
  /** The server that `org/name` is looked up on; `https://huggingface.co` by default. */
  endpoint?: string;
  /** The most tokens that prompt and answer hold together; by default what the model was made for, up to 4096. */
  maxContext?: number;
  /**
   * How weights are kept in GPU memory. `auto` keeps what the checkpoint has while that fits the device's memory, else 8 or 4
   * bits; `model.info.precision` says which, `model.info.warnings` why. Small models keep 8 bits in a part of their matrices
   * when `q4` is asked for.
   */
  weights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /**
   * The same for embeddings and lm_head, where the checkpoint has them as plain numbers. `auto` keeps them as the other weights, but
   * at 8 bits beside `q4`: few bits hurt them most, and they are the most of a small model with many words.
   */
  embeddingWeights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /** Bytes of GPU memory that the model may take, for `auto`; by default an estimate, since no browser tells. */
  maxMemory?: number;
  /** Weights over so many bytes lie in several buffers, also where the device has room for more in one; for tests. */
  maxWeightBuffer?: number;
  /** How the KV cache is kept; `auto` takes what suits the device. */
  kv?: "auto" | "f32" | "f16" | "packed" | "int8";
  /** Tokens by which the KV cache grows as a conversation does; 512 by default, 0 for all of `maxContext` when the model is loaded. */
  kvPage?: number;
  /**
   * Experts of each layer that stay on the GPU, at least as many as a token picks: the others come from the browser's cache when they are picked. By default
   * all, or as many as fit where memory is short.
   */
  experts?: number;
  /** The same as bytes of all layers. */
  expertBytes?: number;
  /** Whether the next layer's likely experts are fetched before they are picked; true by default. */
  lookAhead?: boolean;
  /**
   * Whether the rows of tables that are only looked up, as Gemma's embeddings of each layer, come from the browser's cache as tokens need them. By
   * default where memory is short.
   */
  tableRows?: boolean;
  /**
   * Which kernels are the fastest on this device: `auto` takes what was measured before and else measures for some 50 ms, except on a software adapter;
   * `off` takes the usual ones, `again` measures in any case. What was measured is kept as files are (see `cache`).
   */
  tune?: "auto" | "off" | "again";
  /**
   * Whether prompts of up to 32 tokens, as a chat's later turns are, get kernels of their own, which are compiled when the model has been idle for a second.
   * True by default, except on a software adapter.
   */
  shortPrompts?: boolean;
  /**
   * Switches features of the device off, to compare or to work around a driver; `matrix` are the units that multiply whole matrices, for prompts. `group` says how many dispatches go into one command buffer, of which
   * then one is in flight: `free` hands work over as it comes. By default `free`, but on WebKit what a calibration found to be right. `limits: "least"` takes no
   * more of the device than what every WebGPU device has. `force` sets a number that a kernel else chooses by itself, such as `gemm.BM=32`: shaders/variants.toml
   * names them.
   */
  features?: { subgroups?: boolean; f16?: boolean; matrix?: boolean; limits?: "all" | "least"; group?: "free" | "all" | `${number}`; force?: string };
  /** `navigator.maxTouchPoints` of the page: a worker does not have it, and it tells an iPad from a Mac. The facade fills it in. */
  touchPoints?: number;
  /** False leaves the browser's cache alone. True by default. */
  cache?: boolean;
  /** What the model is for, where its files do not say or say something else. */
  task?: "generate" | "embed" | "rerank" | "transcribe" | "speak";
  /** The codec of a model that speaks: a repository or the address of a folder. */
  codec?: string;
  /** Silero VAD's weights, for models that hear; see `vad` of `loadModel`. */
  vad?: Uint8Array;
  /** Refuses a model that is thought not to fit the device's memory, before its weights are fetched. */
  mustFit?: boolean;
}

/** How texts are embedded. */
export interface EngineEmbedOptions {
  normalize?: boolean;
  truncateDim?: number;
  prompt?: string;
  task?: string;
}

/** A picture that the engine was shown. */
export interface SeenImage {
  /** Its number in conversations. */
  picture: number;
  /** How many tokens stand for it. */
  tokens: number;
  /** Tokens down and across of each of its tiles. */
  grids: [number, number][];
  /** Columns and rows of each tile in pixels, after resizing. */
  tiles: [number, number][];
  /** Milliseconds of encoding; 0 where it was encoded before. */
  ms: number;
}

/** A picture on its way into the engine. */
export interface EngineRows {
  /** The next rows, RGBA. */
  push(rgba: Uint8Array): void;
  free(): void;
}

/** A sequence of its own on a loaded model, as the wasm module gives it. */
export interface EngineSession {
  /** `seed` serves where the request has none. */
  generate(request: EngineRequest & { signal?: AbortSignal }, onEvent: (event: GenerationEvent) => void, seed?: number): Promise<GenerationResult>;
  /** Another that holds the same tokens; weights are shared. */
  fork(): EngineSession | Promise<EngineSession>;
  free(): void;
}

/** A loaded model as the wasm module gives it. */
export interface Engine {
  info(): EngineInfo;
  /** All warnings of the load, when what it fetched is in the cache: a load may end before. */
  stored(): Promise<string[]>;
  /** An empty sequence beside the model's own. */
  createSession(): EngineSession | Promise<EngineSession>;
  tokenize(text: string, addSpecialTokens: boolean, parseSpecial: boolean): Uint32Array;
  /** The ids of a conversation, as `generate` takes it. */
  tokenizeChat(messages: unknown[], options: object): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  renderChat(messages: unknown[], options: object): string;
  /** `seed` serves where the request has none. */
  generate(request: EngineRequest & { signal?: AbortSignal }, onEvent: (event: GenerationEvent) => void, seed?: number): Promise<GenerationResult>;
  embed(inputs: (string | Uint32Array)[], options: EngineEmbedOptions & { signal?: AbortSignal }, onProgress: (progress: unknown) => void): Promise<Float32Array[]>;
  rerank(query: string, documents: string[], options: object): Promise<number[]>;
  logits(ids: Uint32Array, all: boolean): Promise<Float32Array>;
  rows(width: number, height: number): EngineRows;
  /** The same of a video's frames, one after another. */
  film(width: number, height: number, frames: number): EngineRows;
  /** When the frames show, in seconds, that are taken of a video of so many seconds, and its end. */
  frameTimes(seconds: number, fps?: number): Float64Array;
  /** `seconds` of a picture are empty; of a video, when its frames show, and its end. */
  see(rows: EngineRows, seconds: Float64Array): Promise<SeenImage>;
  /** Whether a conversation can still name a picture. */
  knows(picture: number): boolean;
  pictureTokens(picture: number): Promise<Float32Array>;
  /** The vector of a picture, of models whose texts lie among pictures. */
  pictureVector(picture: number, options: EngineEmbedOptions): Promise<Float32Array>;
  unloadTower(): Promise<void>;
  transcribe(samples: Float32Array, request: EngineTranscribeOptions & { signal?: AbortSignal }, onHeard: (heard: HeardEvent | PartialEvent) => void): Promise<Transcript>;
  listen(samples: Float32Array, fresh: boolean): ListenTurn;
  speak(request: EngineSpeakOptions & { signal?: AbortSignal }, onSound: (samples: Float32Array) => void): Promise<Spoken>;
  measureHearing(samples: Float32Array, tokens: number): Promise<{ encodeMs: number; tokenMs: number }>;
  memory(): MemoryUse;
  measure(options: MeasureOptions): Promise<Measurement>;
  /** Compares up to `most` bytes of the weights with their files, and the ways in which the model runs tokens; `options` are those of its load. */
  verify(options: EngineLoadOptions, most: number): Promise<Check[]>;
  /** Hands work over in other groups from now on (see `features.group`). */
  setGroup(group: string): void;
  deleteFromCache(): Promise<void>;
  free(): void;
}

/** The wasm module. */
export interface EngineModule {
  default(input?: unknown): Promise<unknown>;
  Engine: { load(options: EngineLoadOptions & { signal?: AbortSignal }, onProgress: (progress: LoadProgress) => void): Promise<Engine> };
  deviceReport(touchPoints: number): Promise<DeviceReport>;
  /** `unasked` leaves software adapters alone, where it takes long. */
  diagnose(touchPoints: number, unasked: boolean): Promise<Check[]>;
  /** Whose WebGPU this is: `iphone`, `ipad`, `webkit` (on a Mac) or `other`. */
  implementation(touchPoints: number): string;
  /** Whether a long chain of kernels in groups of this size comes out as one by one. */
  calibrate(group: string): Promise<boolean>;
  /** Columns and rows of a picture's file by its first bytes; refuses what should not be decoded. */
  imageSize(head: Uint8Array): Uint32Array;
  cachedModels(): Promise<CachedSource[]>;
  /** Removes what the cache holds of a source, named as `cachedModels` does. */
  deleteModel(source: string): Promise<void>;
  version(): string;
}
