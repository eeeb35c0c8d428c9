/** The calls of the engine, and the interface of what answers them: this thread or a worker. */

import type {
  CachedSource, DeviceCheck, DeviceReport, EncodedImageInfo, EngineEmbedOptions, EngineInfo,
  EngineLoadOptions, EngineRequest, EngineRerankOptions, EngineSpeakOptions, EngineTranscribeOptions, GenerationResult,
  MeasureOptions, Measurement, MemoryUse, SynthesisResult, Transcript, VadEvent,
} from "./contract.js";
import type { ImageInput } from "./images.js";

/** Every call that crosses to the engine. Arguments and results are structured-cloneable. */
export interface Methods {
  load(options: EngineLoadOptions): EngineInfo;
  /** All warnings of the load, once its files are cached. */
  persisted(): string[];
  tokenize(text: string, addSpecialTokens: boolean, parseSpecial: boolean): Uint32Array;
  tokenizeChat(messages: unknown[], options: object): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  renderChat(messages: unknown[], options: object): string;
  /** Generates in a session, or in the model's own sequence without `session`. */
  generate(request: EngineRequest, session?: number): GenerationResult;
  /** Makes `ids` the session's tokens; returns the logits after the last one. */
  prefill(ids: Uint32Array, session: number): Float32Array;
  /** Creates a session; returns its id. */
  createSession(): number;
  forkSession(session: number): number;
  disposeSession(session: number): void;
  /** Opens empty sessions with the ids of another engine's sessions. */
  adoptSessions(sessions: number[]): void;
  embed(inputs: (string | Uint32Array)[], options: EngineEmbedOptions): Float32Array[];
  rerank(query: string, documents: string[], options: EngineRerankOptions): number[];
  logits(ids: Uint32Array, all: boolean): Float32Array;
  embedImage(image: ImageInput, options: EngineEmbedOptions): Float32Array;
  encodeImage(image: ImageInput): EncodedImageInfo & { data: Float32Array };
  frameTimes(seconds: number, fps?: number): Float64Array;
  unloadVision(): void;
  transcribe(samples: Float32Array, request: EngineTranscribeOptions): Transcript;
  listen(samples: Float32Array, fresh: boolean): VadEvent;
  speak(request: EngineSpeakOptions): SynthesisResult;
  measureAsr(samples: Float32Array, tokens: number): { encodeMs: number; tokenMs: number };
  info(): EngineInfo;
  memory(): MemoryUse;
  measure(options: MeasureOptions): Measurement;
  deleteFromCache(): void;
  deviceReport(touchPoints: number): DeviceReport;
  diagnose(touchPoints: number, unasked: boolean): DeviceCheck[];
  verify(most: number): DeviceCheck[];
  implementation(touchPoints: number): string;
  calibrate(group: string): boolean;
  setGroup(group: string): void;
  release(): void;
  cachedModels(): CachedSource[];
  deleteModel(source: string): void;
  version(): string;
}

/** The name of a call. */
export type Method = keyof Methods;

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
  call<M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>>;
  /** Frees the engine; running calls reject. */
  close(): Promise<void>;
}
