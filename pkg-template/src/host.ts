/** Runs engine calls on the current thread, one GPU call at a time per queue. Does not depend on the transport. */

import type {
  CachedSource, Check, DeviceReport, EngineEmbedOptions, EngineInfo, EngineLoadOptions, EngineModule, EngineRequest, EngineSession, EngineSpeakOptions, EngineTranscribeOptions,
  GenerationResult, ListenTurn, Measurement, MeasureOptions, MemoryUse, SeenImage, Spoken, Transcript,
} from "./contract.js";
import { defined } from "./defined.js";
import { explained } from "./csp.js";
import { aborted, disposed, JerboaError, missingAsset, noBrowser, unloaded } from "./errors.js";
import { Life } from "./life.js";
import type { GivenImage } from "./pictures.js";
import { retelling } from "./replay.js";

/** Every call that crosses to the engine. Arguments and results are structured-cloneable. */
export interface Methods {
  load(options: EngineLoadOptions): EngineInfo;
  /** All warnings of the load, once its files are cached. */
  stored(): string[];
  tokenize(text: string, addSpecialTokens: boolean, parseSpecial: boolean): Uint32Array;
  tokenizeChat(messages: unknown[], options: object): Uint32Array;
  detokenize(ids: Uint32Array, skipSpecial: boolean): string;
  renderChat(messages: unknown[], options: object): string;
  /** Generates in a session, or in the model's own sequence without `session`. */
  generate(request: EngineRequest, session?: number): GenerationResult;
  /** Creates a session; returns its id. */
  createSession(): number;
  forkSession(session: number): number;
  disposeSession(session: number): void;
  embed(inputs: (string | Uint32Array)[], options: EngineEmbedOptions): Float32Array[];
  rerank(query: string, documents: string[], options: object): number[];
  logits(ids: Uint32Array, all: boolean): Float32Array;
  embedImage(image: GivenImage, options: EngineEmbedOptions): Float32Array;
  encodeImage(image: GivenImage): SeenImage & { data: Float32Array };
  frameTimes(seconds: number, fps?: number): Float64Array;
  unloadTower(): void;
  transcribe(samples: Float32Array, request: EngineTranscribeOptions): Transcript;
  listen(samples: Float32Array, fresh: boolean): ListenTurn;
  speak(request: EngineSpeakOptions): Spoken;
  measureHearing(samples: Float32Array, tokens: number): { encodeMs: number; tokenMs: number };
  info(): EngineInfo;
  memory(): MemoryUse;
  measure(options: MeasureOptions): Measurement;
  deleteFromCache(): void;
  deviceReport(touchPoints: number): DeviceReport;
  diagnose(touchPoints: number, unasked: boolean): Check[];
  verify(most: number): Check[];
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
}

/** A target of engine calls: the engine on this thread, or a worker that runs it. */
export interface Backend {
  /** True when calls go to a dedicated worker. */
  readonly worker: boolean;
  /** True once the backend was closed or has failed; calls then reject. */
  readonly closed: boolean;
  call<M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>>;
  /** Frees the engine; running calls reject. */
  close(): Promise<void>;
}

/** The engine on this thread. */
export class Host implements Backend {
  readonly worker = false;
  readonly #module: EngineModule;
  #input: unknown;
  #ready: Promise<unknown> | undefined;
  #life: Life | undefined;
  /** Options of the load, to reload the model after a lost device or a release. */
  #loaded: EngineLoadOptions | undefined;
  #restoring: Promise<Life> | undefined;
  /** The result of {@link Methods.stored}. */
  #stored: Promise<string[]> | undefined;
  #closing = new AbortController();
  /** The last call of each GPU queue: the model's own, and one per session. Calls of one queue run in order. */
  readonly #last = new Map<number, Promise<unknown>>();
  /**
   * Ids of the open sessions. A session's tokens are lost with its engine; on the next one it starts empty, since every
   * prompt is complete.
   */
  readonly #sessions = new Set<number>();
  #nextSession = 1;

  /** `input` is passed to the module's `init`; without it the module looks for the wasm file next to itself. */
  constructor(module: EngineModule, input?: unknown) {
    this.#module = module;
    this.#input = input;
  }

  get closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Sets the URL of the wasm file; call it before the first call. */
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
      const run = (): Promise<unknown> | unknown => this.#recovering(method, args, signal, onEvent);
      const queue = queueOf(method, args);
      return (await (queue === undefined ? run() : this.#enqueue(queue, method, run, signal))) as ReturnType<Methods[M]>;
    } catch (thrown) {
      throw explained(JerboaError.from(thrown));
    }
  }

  async #start(): Promise<void> {
    try {
      await this.#module.default(this.#input);
    } catch (thrown) {
      // The next call retries: the network may be back.
      this.#ready = undefined;
      throw "process" in globalThis && !("document" in globalThis) ? noBrowser() : missingAsset("The engine's wasm file", thrown);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.allSettled(this.#last.values());
    this.#drop();
    this.#loaded = undefined;
    await this.#stored;
  }

  #drop(): void {
    this.#life?.end();
    this.#life = undefined;
  }

  /** Runs a call; if the device was lost before or during it, reloads the model and runs it once more. */
  async #recovering(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    if (!RECOVERED.has(method)) return this.#run(method, args, signal, onEvent);
    const replay = retelling(method, onEvent);
    const given = replay ? replay.given(args) : args;
    const heard = replay ? (event: unknown): void => replay.hear(event) : onEvent;
    const used = await this.#restored(method, signal);
    try {
      return await used.during(() => this.#runIn(used, method, given, signal, heard));
    } catch (thrown) {
      if (JerboaError.from(thrown).code !== "device_lost" || !this.#loaded || signal.aborted) throw thrown;
      // Another call may have reloaded it already.
      if (this.#life === used) this.#drop();
      // If no device is available, report the loss.
      const next = await this.#restored(method, signal).catch((error: unknown) => {
        throw signal.aborted ? error : thrown;
      });
      replay?.again();
      const result = await next.during(() => this.#runIn(next, method, given, signal, heard));
      replay?.end();
      return result;
    }
  }

  /** The engine; reloaded with the same options if it is gone, since its files are cached. */
  async #restored(method: Method, signal: AbortSignal): Promise<Life> {
    if (this.#life) return this.#life;
    if (!this.#loaded) throw unloaded();
    const load = async (): Promise<Life> => {
      await this.#stored;
      const life = new Life(await this.#module.Engine.load({ ...this.#loaded!, signal: this.#closing.signal }, () => {}));
      if (this.#closing.signal.aborted) life.end();
      else this.#life = life;
      return life;
    };
    this.#restoring ??= load().finally(() => (this.#restoring = undefined));
    const life = await this.#restoring;
    if (signal.aborted) throw aborted(method);
    return life;
  }

  /** Waits for earlier calls of the queue; an abort while waiting does not affect the queue. */
  #enqueue(queue: number, method: Method, run: () => unknown, signal: AbortSignal): Promise<unknown> {
    const before = this.#last.get(queue) ?? Promise.resolve();
    const turn = before.catch(() => {}).then(() => {
      if (signal.aborted) throw aborted(method);
      return run();
    });
    this.#last.set(queue, turn);
    return turn;
  }

  /**
   * The session with this id in the current engine, created on first use. Waits for the model's own sequence, from
   * which it is created.
   */
  async #session(life: Life, id: number, signal: AbortSignal): Promise<EngineSession> {
    if (!this.#sessions.has(id)) throw disposed();
    const found = life.session(id);
    if (found) return found;
    const make = (): Promise<void> => life.during(async () => life.keep(id, await life.engine.createSession()));
    await this.#enqueue(OWN, "createSession", make, signal);
    const made = life.session(id);
    if (!made) throw new JerboaError("device_lost", "The GPU device was lost while a session was created. Run the request again.");
    return made;
  }

  /** Assigns a session id: engine objects cannot cross threads. */
  async #keep(life: Life, made: EngineSession | Promise<EngineSession>): Promise<number> {
    const id = this.#nextSession++;
    life.keep(id, await made);
    this.#sessions.add(id);
    return id;
  }

  #dispose(id: number): void {
    if (!this.#sessions.delete(id)) throw disposed();
    this.#life?.dispose(id);
    this.#last.delete(id);
  }

  #run(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): unknown {
    const { deviceReport, diagnose, implementation, calibrate, cachedModels, deleteModel, version } = this.#module;
    switch (method) {
      case "load":
        return this.#load(args[0] as EngineLoadOptions, signal, onEvent);
      case "stored":
        return this.#stored;
      case "deviceReport":
        return deviceReport(args[0] as number);
      case "diagnose":
        return diagnose(args[0] as number, args[1] as boolean);
      case "implementation":
        return implementation(args[0] as number);
      case "calibrate":
        return calibrate(args[0] as string);
      case "cachedModels":
        return cachedModels();
      case "deleteModel":
        return deleteModel(args[0] as string);
      case "version":
        return version();
    }
    if (method === "release") return this.#drop();
    if (method === "disposeSession") return this.#dispose(args[0] as number);
    const life = this.#life;
    if (!life) throw unloaded();
    return this.#runIn(life, method, args, signal, onEvent);
  }

  /** Runs a call on a loaded engine. */
  async #runIn(life: Life, method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const { engine } = life;
    switch (method) {
      case "tokenize":
        return engine.tokenize(args[0] as string, args[1] as boolean, args[2] as boolean);
      case "tokenizeChat":
        return engine.tokenizeChat(defined(args[0] as unknown[]), defined(args[1] as object));
      case "detokenize":
        return engine.detokenize(args[0] as Uint32Array, args[1] as boolean);
      case "renderChat":
        return engine.renderChat(defined(args[0] as unknown[]), defined(args[1] as object));
      case "generate":
        return this.#generate(life, args as [EngineRequest, number | undefined, number | undefined], signal, onEvent);
      case "encodeImage":
        return this.#encodeImage(life, args[0] as GivenImage);
      case "frameTimes":
        return engine.frameTimes(args[0] as number, args[1] as number | undefined);
      case "unloadTower":
        return engine.unloadTower();
      case "createSession":
        return this.#keep(life, engine.createSession());
      case "forkSession":
        return this.#keep(life, (await this.#session(life, args[0] as number, signal)).fork());
      case "embed":
        return engine.embed(args[0] as (string | Uint32Array)[], { ...defined(args[1] as EngineEmbedOptions), signal }, onEvent);
      case "embedImage":
        return this.#embedImage(life, args[0] as GivenImage, args[1] as EngineEmbedOptions);
      case "rerank":
        return engine.rerank(args[0] as string, args[1] as string[], { ...(args[2] as object), signal });
      case "logits":
        return engine.logits(args[0] as Uint32Array, args[1] as boolean);
      case "transcribe":
        return engine.transcribe(args[0] as Float32Array, { ...(args[1] as EngineTranscribeOptions), signal }, onEvent);
      case "listen":
        return engine.listen(args[0] as Float32Array, args[1] as boolean);
      case "speak":
        return engine.speak({ ...(args[0] as EngineSpeakOptions), signal }, onEvent);
      case "measureHearing":
        return engine.measureHearing(args[0] as Float32Array, args[1] as number);
      case "info":
        return engine.info();
      case "memory":
        return engine.memory();
      case "measure":
        return engine.measure(defined(args[0] as MeasureOptions));
      case "verify":
        return engine.verify(this.#loaded!, args[0] as number);
      case "setGroup":
        return engine.setGroup(args[0] as string);
      case "deleteFromCache":
        await this.#stored;
        return engine.deleteFromCache();
    }
  }

  async #generate(life: Life, [request, session, seed]: [EngineRequest, number | undefined, number | undefined], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<GenerationResult> {
    const target = session === undefined ? life.engine : await this.#session(life, session, signal);
    const messages = request.messages && (await life.shown.numbered(this.#module, life.engine, request.messages));
    if (signal.aborted) throw aborted("generate");
    return target.generate({ ...defined({ ...request, ...(messages ? { messages } : {}) }), signal }, onEvent, seed);
  }

  async #encodeImage(life: Life, image: GivenImage): Promise<SeenImage & { data: Float32Array }> {
    const seen = await life.shown.see(this.#module, life.engine, image);
    return { ...seen, data: await life.engine.pictureTokens(seen.picture) };
  }

  async #embedImage(life: Life, image: GivenImage, options: EngineEmbedOptions): Promise<Float32Array> {
    const { picture } = await life.shown.see(this.#module, life.engine, image);
    return life.engine.pictureVector(picture, defined(options));
  }

  async #load(options: EngineLoadOptions, signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const engine = await this.#module.Engine.load({ ...options, signal }, onEvent);
    if (signal.aborted) {
      engine.free();
      throw aborted("Loading the model");
    }
    this.#drop();
    this.#sessions.clear();
    this.#life = new Life(engine);
    this.#stored = engine.stored();
    this.#loaded = options;
    return engine.info();
  }
}

/** Calls that use the model's own sequence, or the whole engine, while they run. */
const QUEUED: ReadonlySet<Method> = new Set<Method>([
  "load", "generate", "embed", "embedImage", "rerank", "logits", "encodeImage", "unloadTower", "transcribe", "speak", "measureHearing", "measure", "verify", "release",
]);
/** The queue of the model's own sequence. */
const OWN = 0;

/** The queue of a call; calls of different sessions run concurrently. */
function queueOf(method: Method, args: unknown[]): number | undefined {
  if (method === "generate") return (args[1] as number | undefined) ?? OWN;
  if (method === "forkSession" || method === "disposeSession") return args[0] as number;
  // A session is created from the model's own sequence, so it waits in that queue.
  if (method === "createSession") return OWN;
  return QUEUED.has(method) ? OWN : undefined;
}

/** Calls of a model or session that reload a released or lost model. */
const RECOVERED: ReadonlySet<Method> = new Set<Method>([
  "generate", "embed", "embedImage", "rerank", "logits", "encodeImage", "frameTimes", "transcribe", "listen", "speak", "measureHearing", "measure", "verify", "tokenize", "tokenizeChat", "detokenize", "renderChat", "info", "memory", "setGroup",
  "createSession", "forkSession",
]);
