/** Runs the engine's calls on whatever thread it lives, one at a time on the GPU. Does not know who calls or over what wire. */

import type {
  CachedSource, DeviceReport, Engine, EngineEmbedOptions, EngineInfo, EngineLoadOptions, EngineModule, EngineRequest, GenerationResult, Measurement, MeasureOptions, MemoryUse,
} from "./contract.js";
import { aborted, JerboaError, missingAsset, noBrowser, unloaded } from "./errors.js";

/** Every call that crosses to the engine. Arguments and results are structured-cloneable. */
export interface Methods {
  load(options: EngineLoadOptions): EngineInfo;
  tokenize(text: string, addSpecialTokens: boolean): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  renderChat(messages: unknown[], options: object): string;
  generate(request: EngineRequest): GenerationResult;
  embed(texts: string[], options: EngineEmbedOptions): Float32Array[];
  rerank(query: string, documents: string[], options: object): number[];
  logits(ids: Uint32Array, all: boolean): Float32Array;
  info(): EngineInfo;
  memory(): MemoryUse;
  measure(options: MeasureOptions): Measurement;
  deleteFromCache(): void;
  deviceReport(): DeviceReport;
  cachedModels(): CachedSource[];
  deleteModel(source: string): void;
  version(): string;
}

/** The name of a call. */
export type Method = keyof Methods;

/** What a call may carry besides its arguments. */
export interface CallOptions {
  /** Gives the call up. */
  signal?: AbortSignal | undefined;
  /** Gets what the call reports on its way. */
  onEvent?: ((event: never) => void) | undefined;
}

/** Something that takes the engine's calls: the engine on this thread, or a worker that holds it. */
export interface Backend {
  /** True when calls go to a dedicated worker. */
  readonly worker: boolean;
  /** True once it was closed or broke: calls reject. */
  readonly closed: boolean;
  call<M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>>;
  /** Frees the engine; calls under way reject. */
  close(): Promise<void>;
}

/** The engine on this thread. */
export class Host implements Backend {
  readonly worker = false;
  readonly #module: EngineModule;
  #input: unknown;
  #ready: Promise<unknown> | undefined;
  #engine: Engine | undefined;
  #closing = new AbortController();
  /** The tail of the queue of calls that need the GPU. */
  #last: Promise<unknown> = Promise.resolve();

  /** `input` is what the module's `init` takes; without it the module finds its wasm file beside itself. */
  constructor(module: EngineModule, input?: unknown) {
    this.#module = module;
    this.#input = input;
  }

  get closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Takes the wasm file from another address; before the first call. */
  useWasm(url: string): void {
    this.#input = { module_or_path: url };
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    const signal = options.signal ? AbortSignal.any([options.signal, this.#closing.signal]) : this.#closing.signal;
    const onEvent = (options.onEvent ?? (() => {})) as (event: unknown) => void;
    try {
      if (this.#closing.signal.aborted) throw unloaded();
      if (signal.aborted) throw aborted(method);
      this.#ready ??= this.#start();
      await this.#ready;
      const run = (): Promise<unknown> | unknown => this.#run(method, args, signal, onEvent);
      return (await (QUEUED.has(method) ? this.#enqueue(method, run, signal) : run())) as ReturnType<Methods[M]>;
    } catch (thrown) {
      throw JerboaError.from(thrown);
    }
  }

  async #start(): Promise<void> {
    try {
      await this.#module.default(this.#input);
    } catch (thrown) {
      // The next call tries again: the network may be back.
      this.#ready = undefined;
      throw "process" in globalThis && !("document" in globalThis) ? noBrowser() : missingAsset("The engine's wasm file", thrown);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await this.#last.catch(() => {});
    this.#engine?.free();
    this.#engine = undefined;
  }

  /** Waits for the calls before this one; an abort while waiting leaves the queue as it is. */
  #enqueue(method: Method, run: () => unknown, signal: AbortSignal): Promise<unknown> {
    const turn = this.#last.catch(() => {}).then(() => {
      if (signal.aborted) throw aborted(method);
      return run();
    });
    this.#last = turn;
    return turn;
  }

  #run(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): unknown {
    const { deviceReport, cachedModels, deleteModel, version } = this.#module;
    switch (method) {
      case "load":
        return this.#load(args[0] as EngineLoadOptions, signal, onEvent);
      case "deviceReport":
        return deviceReport();
      case "cachedModels":
        return cachedModels();
      case "deleteModel":
        return deleteModel(args[0] as string);
      case "version":
        return version();
    }
    const engine = this.#engine;
    if (!engine) throw unloaded();
    switch (method) {
      case "tokenize":
        return engine.tokenize(args[0] as string, args[1] as boolean);
      case "detokenize":
        return engine.detokenize(args[0] as Uint32Array, args[1] as boolean);
      case "renderChat":
        return engine.renderChat(args[0] as unknown[], args[1] as object);
      case "generate":
        return engine.generate({ ...(args[0] as EngineRequest), signal }, onEvent);
      case "embed":
        return engine.embed(args[0] as string[], { ...(args[1] as EngineEmbedOptions), signal }, onEvent);
      case "rerank":
        return engine.rerank(args[0] as string, args[1] as string[], { ...(args[2] as object), signal });
      case "logits":
        return engine.logits(args[0] as Uint32Array, args[1] as boolean);
      case "info":
        return engine.info();
      case "memory":
        return engine.memory();
      case "measure":
        return engine.measure(args[0] as MeasureOptions);
      case "deleteFromCache":
        return engine.deleteFromCache();
    }
  }

  async #load(options: EngineLoadOptions, signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const engine = await this.#module.Engine.load({ ...options, signal }, onEvent);
    if (signal.aborted) {
      engine.free();
      throw aborted("Loading the model");
    }
    this.#engine?.free();
    this.#engine = engine;
    return engine.info();
  }
}

/** Calls that hold the engine while they run: they take turns. */
const QUEUED: ReadonlySet<Method> = new Set<Method>(["load", "generate", "embed", "rerank", "logits", "measure"]);
