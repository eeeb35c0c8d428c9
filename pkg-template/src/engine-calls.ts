/**
 * The calls of the engine: what the wasm module exports, and how each call runs. The types of a page's calls and the
 * host's dispatch derive from {@link METHODS}: a new method of the engine is a line in {@link Engine} and one in the table.
 */

import type {
  CachedSource, DeviceCheck, DeviceReport, EncodedImageInfo, EngineEmbedOptions, EngineInfo,
  EngineLoadOptions, EngineRequest, EngineRerankOptions, EngineSpeakOptions, EngineTranscribeOptions, GenerationEvent,
  GenerationResult, ImageUpload, LoadProgress, MeasureOptions, Measurement, MemoryUse, NextMask, PartialEvent, ProcessLogits,
  SegmentEvent,   SynthesisResult, Transcript, VadEvent,
} from "./contract.js";
import type { ImageInput } from "./images.js";
import type { EnginePlatform } from "./platform.js";

/** A session of a loaded model, as the wasm module exposes it. */
export interface EngineSession {
  /** `seed` applies when the request has none. */
  generate(request: EngineRequest & { signal?: AbortSignal }, onEvent: (event: GenerationEvent) => void, seed?: number, nextMask?: NextMask, processLogits?: ProcessLogits): Promise<GenerationResult>;
  /** Makes `ids` the session's tokens; returns the logits after the last one. */
  prefill(ids: Uint32Array, options: { signal: AbortSignal }): Promise<Float32Array>;
  /** Saves tokens and states in parts; returns the bytes. */
  saveState(write: (part: Uint8Array) => unknown): Promise<number>;
  /** Restores a saved session of `size` bytes; returns its tokens. */
  restoreState(size: number, read: (at: number, length: number) => Promise<Uint8Array>): Promise<Uint32Array>;
  /** A session with the same tokens; weights are shared. */
  fork(): EngineSession | Promise<EngineSession>;
  free(): void;
}

/** A loaded model, as the wasm module exposes it. */
export interface Engine {
  info(): EngineInfo;
  /** All warnings of the load, once its files are cached; a load may finish earlier. */
  persisted(): Promise<string[]>;
  /** A new empty session. */
  createSession(adapter?: string): EngineSession | Promise<EngineSession>;
  /** Loads a LoRA adapter under a name; `options.model` names its files. */
  loadAdapter(name: string, options: EngineLoadOptions & { signal?: AbortSignal }, onProgress: (progress: LoadProgress) => void): Promise<void>;
  unloadAdapter(name: string): void;
  tokenize(text: string, addSpecialTokens: boolean, parseSpecial: boolean): Uint32Array;
  /** The ids of text that continues a text; special tokens in it are text. */
  tokenizeContinuation(text: string): Uint32Array;
  /** The ids of a conversation, as `generate` receives it. */
  tokenizeChat(messages: unknown[], options: object): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  /** The bytes of all tokens one after another, the length of each by id (0 for special tokens), and the ids that end a text. */
  vocabularyBytes(): { bytes: Uint8Array; lengths: Uint32Array; endIds: Uint32Array };
  /** How the model writes tool calls and other answers, as JSON for the grammar module. */
  answerSpelling(): string;
  renderChat(messages: unknown[], options: object): string;
  /** `seed` applies when the request has none. */
  generate(request: EngineRequest & { signal?: AbortSignal }, onEvent: (event: GenerationEvent) => void, seed?: number, nextMask?: NextMask, processLogits?: ProcessLogits): Promise<GenerationResult>;
  embed(inputs: (string | Uint32Array)[], options: EngineEmbedOptions & { signal?: AbortSignal }, onProgress: (progress: unknown) => void): Promise<Float32Array[]>;
  rerank(query: string, documents: string[], options: EngineRerankOptions & { signal?: AbortSignal }): Promise<number[]>;
  logits(ids: Uint32Array, all: boolean): Promise<Float32Array>;
  imageUpload(width: number, height: number): ImageUpload;
  /** The same for a video, frame by frame. */
  videoUpload(width: number, height: number, frames: number): ImageUpload;
  /** Seconds of the frames to take from a video of this length, then its end. */
  frameTimes(seconds: number, fps?: number): Float64Array;
  /** `seconds` is empty for an image; for a video, the time of each frame and the end. */
  encodeImage(rows: ImageUpload, seconds: Float64Array): Promise<EncodedImageInfo>;
  /** Whether conversations can still refer to an image. */
  hasImage(imageId: number): boolean;
  imageEmbeddings(imageId: number): Promise<Float32Array>;
  /** The vector of an image, for models that embed text and images jointly. */
  embedImage(imageId: number, options: EngineEmbedOptions): Promise<Float32Array>;
  unloadVision(): Promise<void>;
  transcribe(samples: Float32Array, request: EngineTranscribeOptions & { signal?: AbortSignal }, onEvent: (event: SegmentEvent | PartialEvent) => void): Promise<Transcript>;
  listen(samples: Float32Array, fresh: boolean): VadEvent;
  speak(request: EngineSpeakOptions & { signal?: AbortSignal }, onAudio: (samples: Float32Array) => void): Promise<SynthesisResult>;
  measureAsr(samples: Float32Array, tokens: number): Promise<{ encodeMs: number; tokenMs: number }>;
  memory(): MemoryUse;
  measure(options: MeasureOptions): Promise<Measurement>;
  /**
   * Compares up to `most` bytes of weights with their files, and prefill with decode; `options` are those of the load.
   */
  verify(options: EngineLoadOptions, most: number): Promise<DeviceCheck[]>;
  /** Sets the dispatches per command buffer (see `features.group`). */
  setGroup(group: string): void;
  deleteFromCache(): Promise<void>;
  free(): void;
}

/** The wasm module. */
export interface EngineModule {
  default(input?: unknown): Promise<unknown>;
  Engine: { load(options: EngineLoadOptions & { signal?: AbortSignal }, onProgress: (progress: LoadProgress) => void): Promise<Engine> };
  deviceReport(touchPoints: number): Promise<DeviceReport>;
  /** `unasked` skips software adapters, where the checks are slow. */
  diagnose(touchPoints: number, unasked: boolean): Promise<DeviceCheck[]>;
  /** The WebGPU implementation: `iphone`, `ipad`, `webkit` (on a Mac) or `other`. */
  implementation(touchPoints: number): string;
  /** Whether a long chain of kernels gives the same result in groups of this size as one by one. */
  calibrate(group: string): Promise<boolean>;
  /** Width and height from the first bytes of an image file; refuses files that must not be decoded. */
  imageSize(head: Uint8Array): Uint32Array;
  cachedModels(): Promise<CachedSource[]>;
  /** Removes a source from the cache, named as by `cachedModels`. */
  deleteModel(source: string): Promise<void>;
  version(): string;
  /** Replaces what the engine takes from a browser; call it before the first load. */
  setHost(given: Partial<EnginePlatform>): void;
}

/** What the host answers itself, mostly with several calls of the engine. */
export interface HostMethods {
  load(options: EngineLoadOptions): EngineInfo;
  /** All warnings of the load, once its files are cached. */
  persisted(): string[];
  /** Generates in a session, or in the model's own sequence without `session`. `seed` applies when the request has none. */
  generate(request: EngineRequest, session?: number, seed?: number): GenerationResult;
  /** Makes `ids` the session's tokens; returns the logits after the last one. */
  prefill(ids: Uint32Array, session: number): Float32Array;
  /** Saves a session to a file of this name, or as a blob. */
  saveSession(name: string | undefined, session: number): { bytes: number; blob?: Blob };
  /** Restores a session from a blob, or from the file of this name; returns its tokens. */
  restoreSession(saved: Blob | string, session: number): Uint32Array;
  /** Creates a session; returns its id, since engine objects cannot cross threads. */
  createSession(adapter?: string): number;
  /** Loads a LoRA adapter under a name; it is loaded again after a lost device. */
  loadAdapter(name: string, options: EngineLoadOptions): void;
  unloadAdapter(name: string): void;
  forkSession(session: number): number;
  disposeSession(session: number): void;
  /** Opens empty sessions with the ids and adapters of another engine's sessions. */
  adoptSessions(sessions: number[], adapters?: (string | undefined)[]): void;
  embedImage(image: ImageInput, options: EngineEmbedOptions): Float32Array;
  encodeImage(image: ImageInput): EncodedImageInfo & { data: Float32Array };
  /** The engine's memory; none while it is released. */
  memory(): MemoryUse;
  /** Compares up to `most` bytes of weights with their files. */
  verify(most: number): DeviceCheck[];
  /** Frees the engine until the next call. */
  release(): void;
  deleteFromCache(): void;
}

/** How a call runs. */
export interface CallAttributes {
  /** Who answers: the module's or the loaded engine's function of this name, with the same arguments, or the host. */
  of: "module" | "engine" | "host";
  /** Runs after earlier calls of its sequence: that of the session at argument `session`, else the model's own. */
  queued?: true;
  /** On the model's own sequence, runs at once with other calls of this kind. */
  concurrent?: true;
  /** Index of the argument with a session's id. */
  session?: number;
  /** Reloads a released or lost model, and runs once more if the device is lost meanwhile. */
  recovered?: true;
  /** How the events of a second run continue those of the first. */
  replay?: "generation" | "audio" | "segments";
  /** GPU work of a model: its first success proves the device's calibration. */
  proves?: true;
  /** Index of the options that take the abort signal. */
  signal?: number;
  /** The engine's last parameter receives events. */
  events?: true;
  /** The result is a new session's id. */
  opensSession?: true;
  /** Only frees memory: nothing to do for an engine that has died. */
  frees?: true;
}

/** Every call that crosses to the engine. Arguments and results are structured-cloneable. */
export const METHODS = {
  deviceReport: { of: "module" },
  diagnose: { of: "module" },
  implementation: { of: "module" },
  calibrate: { of: "module" },
  cachedModels: { of: "module" },
  deleteModel: { of: "module" },
  version: { of: "module" },

  info: { of: "engine", recovered: true },
  memory: { of: "host" },
  setGroup: { of: "engine", recovered: true },
  tokenize: { of: "engine", recovered: true },
  tokenizeChat: { of: "engine", recovered: true },
  detokenize: { of: "engine", recovered: true },
  renderChat: { of: "engine", recovered: true },
  frameTimes: { of: "engine", recovered: true },
  listen: { of: "engine", recovered: true },
  unloadVision: { of: "engine", queued: true },
  logits: { of: "engine", queued: true, concurrent: true, recovered: true, proves: true },
  embed: { of: "engine", queued: true, recovered: true, proves: true, signal: 1, events: true },
  rerank: { of: "engine", queued: true, recovered: true, proves: true, signal: 2 },
  transcribe: { of: "engine", queued: true, recovered: true, proves: true, signal: 1, events: true, replay: "segments" },
  speak: { of: "engine", queued: true, recovered: true, proves: true, signal: 0, events: true, replay: "audio" },
  measure: { of: "engine", queued: true, recovered: true },
  measureAsr: { of: "engine", queued: true, recovered: true },

  load: { of: "host", queued: true },
  persisted: { of: "host" },
  generate: { of: "host", queued: true, concurrent: true, session: 1, recovered: true, proves: true, replay: "generation" },
  prefill: { of: "host", queued: true, session: 1, recovered: true },
  saveSession: { of: "host", queued: true, session: 1, recovered: true },
  restoreSession: { of: "host", queued: true, session: 1, recovered: true },
  createSession: { of: "host", queued: true, concurrent: true, recovered: true, opensSession: true },
  forkSession: { of: "host", queued: true, session: 0, recovered: true, opensSession: true },
  loadAdapter: { of: "host", queued: true, recovered: true },
  unloadAdapter: { of: "host", queued: true, recovered: true },
  disposeSession: { of: "host", queued: true, session: 0, frees: true },
  adoptSessions: { of: "host" },
  embedImage: { of: "host", queued: true, recovered: true, proves: true },
  encodeImage: { of: "host", queued: true, recovered: true, proves: true },
  verify: { of: "host", queued: true, recovered: true },
  release: { of: "host", queued: true, frees: true },
  deleteFromCache: { of: "host" },
} as const satisfies Record<string, CallAttributes>;

/** The name of a call. */
export type Method = keyof typeof METHODS;

/** The attributes of a call. */
export const attributesOf = (method: Method): CallAttributes => METHODS[method];

/** A function of the engine without its listener, which is passed separately. */
type WithoutListener<A extends unknown[]> = A extends [...infer Rest, (event: never) => void] ? Rest : A;
type Call<F> = F extends (...args: infer A) => infer R ? (...args: WithoutListener<A>) => Awaited<R> : never;
type CallOf<M extends Method> = (typeof METHODS)[M]["of"] extends "host" ? HostMethods[M & keyof HostMethods]
  : (typeof METHODS)[M]["of"] extends "engine" ? Call<Engine[M & keyof Engine]>
  : Call<EngineModule[M & keyof EngineModule]>;

/** The calls with their types. */
export type Methods = { [M in Method]: CallOf<M> };

/** Options of a call, besides its arguments. */
export interface CallOptions {
  /** Cancels the call. */
  signal?: AbortSignal | undefined;
  /** Receives events while the call runs. */
  onEvent?: ((event: never) => void) | undefined;
  /** Answers questions while the call runs; must not reject. */
  onQuestion?: ((question: never) => Promise<unknown>) | undefined;
}

/** A target of engine calls: the engine on this thread, or a worker that runs it. */
export interface Backend {
  /** True when calls go to a dedicated worker. */
  readonly worker: boolean;
  /** True once the backend was closed or has failed; its calls then reject. */
  readonly closed: boolean;
  /** Aborts with the error of later calls when the caller closes the backend. */
  readonly ending: AbortSignal;
  /** True for a session that was disposed while its model is open. */
  readonly disposed?: boolean;
  call<M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>>;
  /** Frees the engine; running calls reject. */
  close(): Promise<void>;
}
