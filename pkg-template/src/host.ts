/** Runs engine calls on the current thread, one GPU call at a time per queue. Does not depend on the transport. */

import type {
  GrammarSource,
  EncodedImageInfo, EngineEmbedOptions, EngineLoadOptions, EngineModule, EngineRequest, EngineSession,
  EngineSpeakOptions, EngineTranscribeOptions, GenerationResult, MeasureOptions, ProcessLogits, StepAnswer, StepQuestion,
} from "./contract.js";
import type { Constraint } from "./constraint.js";
import type { Backend, CallOptions, Method, Methods } from "./engine-calls.js";
import { stripUndefined } from "./strip-undefined.js";
import { withCspAdvice } from "./csp.js";
import { aborted, disposed, invalidRequest, JerboaError, missingAsset, noBrowser, unloaded } from "./errors.js";
import { EngineInstance } from "./engine-instance.js";
import type { ImageInput } from "./images.js";
import { replayFilter } from "./resume.js";
import { TrapWatch } from "./traps.js";
import { ABORT_TIMEOUT_MS, ASSET_TIMEOUT_MS, CLOSE_TIMEOUT_MS, isolated, untilAborted, withTimeout } from "./waits.js";

/** Modules whose wasm file is being loaded. One that came late would replace the instance of another, so all calls wait for the same. */
const starts = new WeakMap<EngineModule, Promise<unknown>>();

/** Asks the caller a question while its call runs. */
type Ask = ((question: unknown) => Promise<unknown>) | undefined;

/** The engine on this thread. */
export class Host implements Backend {
  readonly worker = false;
  readonly #module: EngineModule;
  #input: unknown;
  #ready: Promise<unknown> | undefined;
  #instance: EngineInstance | undefined;
  /** Options of the load, to reload the model after a lost device or a release. */
  #loaded: EngineLoadOptions | undefined;
  #restoring: Promise<EngineInstance> | undefined;
  /** The result of {@link Methods.persisted}. */
  #persisted: Promise<string[]> | undefined;
  #closing = new AbortController();
  /** The last call of each GPU queue: the model's own, and one per session. Calls of one queue run in order. */
  readonly #last = new Map<number, Promise<unknown>>();
  /**
   * Ids of the open sessions. A session's tokens are lost with its engine; on the next one it starts empty, since every
   * prompt is complete.
   */
  readonly #sessions = new Set<number>();
  #nextSession = 1;
  readonly #traps: TrapWatch;
  /** How to reject each running call: a trapped or hanging engine never does. */
  readonly #running = new Set<(reason: JerboaError) => void>();
  readonly #onTrap = (error: JerboaError): void => {
    this.#instance?.abandon();
    this.#instance = undefined;
    this.#rejectAll(error);
  };

  /** `input` is passed to the module's `init`; without it the module looks for the wasm file next to itself. */
  constructor(module: EngineModule, input?: unknown) {
    this.#module = module;
    this.#input = input;
    this.#traps = TrapWatch.of(module);
    this.#traps.users.add(this.#onTrap);
  }

  get closed(): boolean {
    return this.#closing.signal.aborted || this.#traps.error !== undefined;
  }

  /** What stopped the engine; undefined while it works. */
  get trap(): JerboaError | undefined {
    return this.#traps.error;
  }

  /** Sets the URL of the wasm file; call it before the first call. */
  useWasm(url: string): void {
    this.#input = { module_or_path: url };
    this.#traps.files.push(new URL(url).pathname.split("/").pop()!);
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    const signal = options.signal ? AbortSignal.any([options.signal, this.#closing.signal]) : this.#closing.signal;
    const onEvent = isolated<unknown>(options.onEvent as ((event: unknown) => void) | undefined) ?? (() => {});
    try {
      if (this.#closing.signal.aborted) throw unloaded();
      if (this.trap) throw this.trap;
      if (signal.aborted) throw aborted(method);
      this.#ready ??= this.#start();
      await this.#ready;
      const ask = options.onQuestion as Ask;
      const run = (): Promise<unknown> | unknown => this.#withRecovery(method, args, signal, onEvent, ask);
      const queue = queueOf(method, args);
      return (await this.#untilRejected(async () => (queue === undefined ? run() : this.#enqueue(queue, method, run, signal)))) as ReturnType<Methods[M]>;
    } catch (thrown) {
      throw withCspAdvice(JerboaError.from(thrown));
    }
  }

  /** Runs a call until it settles, or until it is rejected from outside. */
  #untilRejected(run: () => Promise<unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.trap) return reject(this.trap);
      this.#running.add(reject);
      const fail = (thrown: unknown): void => {
        this.#traps.report(thrown);
        reject(thrown);
      };
      run().then(resolve, fail).finally(() => this.#running.delete(reject));
    });
  }

  #rejectAll(reason: JerboaError): void {
    for (const reject of this.#running) reject(reason);
    this.#running.clear();
  }

  async #start(): Promise<void> {
    let start = starts.get(this.#module);
    if (!start) {
      start = this.#module.default(this.#input);
      starts.set(this.#module, start);
      const over = (): unknown => starts.delete(this.#module);
      start.then(over, over);
    }
    try {
      await withTimeout(ASSET_TIMEOUT_MS, "its server", start);
    } catch (thrown) {
      // The next call retries: the network may be back.
      this.#ready = undefined;
      throw "process" in globalThis && !("document" in globalThis) ? noBrowser() : missingAsset("The engine's wasm file", thrown);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#traps.users.delete(this.#onTrap);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, CLOSE_TIMEOUT_MS)));
    await Promise.race([Promise.allSettled([...this.#last.values(), this.#persisted]), late]);
    clearTimeout(timer);
    this.#drop();
    this.#loaded = undefined;
    this.#rejectAll(unloaded());
  }

  #drop(): void {
    if (this.trap) this.#instance?.abandon();
    else this.#instance?.end();
    this.#instance = undefined;
  }

  /** Runs a call; if the device was lost before or during it, reloads the model and runs it once more. */
  async #withRecovery(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void, ask: Ask): Promise<unknown> {
    if (!RECOVERABLE.has(method)) return this.#run(method, args, signal, onEvent);
    const replay = replayFilter(method, onEvent);
    const fixed = replay ? replay.fixedArgs(args) : args;
    const emit = replay ? (event: unknown): void => replay.push(event) : onEvent;
    const used = await this.#engineInstance(method, signal);
    try {
      return await used.run(() => this.#runIn(used, method, fixed, signal, emit, ask));
    } catch (thrown) {
      if (JerboaError.from(thrown).code !== "device_lost" || !this.#loaded || signal.aborted) throw thrown;
      // Another call may have reloaded it already.
      if (this.#instance === used) this.#drop();
      // If no device is available, report the loss.
      const next = await this.#engineInstance(method, signal).catch((error: unknown) => {
        throw signal.aborted ? error : thrown;
      });
      replay?.restart();
      const result = await next.run(() => this.#runIn(next, method, fixed, signal, emit, ask));
      replay?.end();
      return result;
    }
  }

  /** The engine; reloaded with the same options if it is gone, since its files are cached. */
  async #engineInstance(method: Method, signal: AbortSignal): Promise<EngineInstance> {
    if (this.#instance) return this.#instance;
    if (!this.#loaded) throw unloaded();
    const load = async (): Promise<EngineInstance> => {
      await this.#persisted;
      const instance = new EngineInstance(await this.#module.Engine.load({ ...this.#loaded!, signal: this.#closing.signal }, () => {}));
      if (this.#closing.signal.aborted) instance.end();
      else this.#instance = instance;
      return instance;
    };
    this.#restoring ??= load().finally(() => (this.#restoring = undefined));
    const instance = await this.#restoring;
    if (signal.aborted) throw aborted(method);
    return instance;
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
  async #session(instance: EngineInstance, id: number, signal: AbortSignal): Promise<EngineSession> {
    if (!this.#sessions.has(id)) throw disposed();
    const found = instance.session(id);
    if (found) return found;
    const make = (): Promise<void> => instance.run(async () => instance.addSession(id, await instance.engine.createSession()));
    await this.#enqueue(MODEL_QUEUE, "createSession", make, signal);
    const made = instance.session(id);
    if (!made) throw new JerboaError("device_lost", "The GPU device was lost while a session was created. Run the request again.");
    return made;
  }

  /** Assigns a session id: engine objects cannot cross threads. */
  async #addSession(instance: EngineInstance, made: EngineSession | Promise<EngineSession>): Promise<number> {
    const id = this.#nextSession++;
    instance.addSession(id, await made);
    this.#sessions.add(id);
    return id;
  }

  #dispose(id: number): void {
    if (!this.#sessions.delete(id)) throw disposed();
    this.#instance?.dispose(id);
    this.#last.delete(id);
  }

  #run(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): unknown {
    const { deviceReport, diagnose, implementation, calibrate, cachedModels, deleteModel, version } = this.#module;
    switch (method) {
      case "load":
        return this.#load(args[0] as EngineLoadOptions, signal, onEvent);
      case "persisted":
        return this.#persisted;
      case "adoptSessions":
        for (const id of args[0] as number[]) {
          this.#sessions.add(id);
          this.#nextSession = Math.max(this.#nextSession, id + 1);
        }
        return;
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
    if (!RECOVERABLE.has(method) && !OTHERS.has(method)) throw invalidRequest(`unknown call '${method}'.`);
    if (method === "release") return this.#drop();
    if (method === "disposeSession") return this.#dispose(args[0] as number);
    const instance = this.#instance;
    if (!instance) throw unloaded();
    return this.#runIn(instance, method, args, signal, onEvent);
  }

  /** Runs a call on a loaded engine. */
  async #runIn(instance: EngineInstance, method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void, ask?: Ask): Promise<unknown> {
    const { engine } = instance;
    switch (method) {
      case "tokenize":
        return engine.tokenize(args[0] as string, args[1] as boolean, args[2] as boolean);
      case "tokenizeChat":
        return engine.tokenizeChat(stripUndefined(args[0] as unknown[]), stripUndefined(args[1] as object));
      case "detokenize":
        return engine.detokenize(args[0] as Uint32Array, args[1] as boolean);
      case "renderChat":
        return engine.renderChat(stripUndefined(args[0] as unknown[]), stripUndefined(args[1] as object));
      case "generate":
        return this.#generate(instance, args as [EngineRequest, number | undefined, number | undefined], signal, onEvent, ask);
      case "prefill":
        return (await this.#session(instance, args[1] as number, signal)).prefill(args[0] as Uint32Array, { signal });
      case "encodeImage":
        return this.#encodeImage(instance, args[0] as ImageInput);
      case "frameTimes":
        return engine.frameTimes(args[0] as number, args[1] as number | undefined);
      case "unloadVision":
        return engine.unloadVision();
      case "createSession":
        return this.#addSession(instance, engine.createSession());
      case "forkSession":
        return this.#addSession(instance, (await this.#session(instance, args[0] as number, signal)).fork());
      case "embed":
        return engine.embed(args[0] as (string | Uint32Array)[], { ...stripUndefined(args[1] as EngineEmbedOptions), signal }, onEvent);
      case "embedImage":
        return this.#embedImage(instance, args[0] as ImageInput, args[1] as EngineEmbedOptions);
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
      case "measureAsr":
        return engine.measureAsr(args[0] as Float32Array, args[1] as number);
      case "info":
        return engine.info();
      case "memory":
        return engine.memory();
      case "measure":
        return engine.measure(stripUndefined(args[0] as MeasureOptions));
      case "verify":
        return engine.verify(this.#loaded!, args[0] as number);
      case "setGroup":
        return engine.setGroup(args[0] as string);
      case "deleteFromCache":
        await this.#persisted;
        return engine.deleteFromCache();
    }
  }

  async #generate(instance: EngineInstance, [request, session, seed]: [EngineRequest, number | undefined, number | undefined], signal: AbortSignal, onEvent: (event: unknown) => void, ask: Ask): Promise<GenerationResult> {
    const target = session === undefined ? instance.engine : await this.#session(instance, session, signal);
    const messages = request.messages && (await instance.images.withImageIds(this.#module, instance.engine, request.messages));
    if (signal.aborted) throw aborted("generate");
    const { grammar, steps, ...given } = request;
    const constraint = grammar && (await untilAborted(ABORT_TIMEOUT_MS, "generate", signal, this.#constrain(instance, grammar)));
    try {
      return await target.generate({ ...stripUndefined({ ...given, ...(messages ? { messages } : {}) }), signal }, onEvent, seed, constraint?.nextMask, steps && ask && askSteps(steps, ask, signal));
    } finally {
      constraint?.free();
    }
  }

  /** Compiles a grammar; the code for it is loaded on first use. */
  async #constrain(instance: EngineInstance, grammar: GrammarSource): Promise<Constraint> {
    const { constrain } = await withTimeout(ASSET_TIMEOUT_MS, "the server of constraint.js", import("./constraint.js"));
    return constrain(instance.engine, grammar, (this.#input as { module_or_path?: string } | undefined)?.module_or_path);
  }

  async #encodeImage(instance: EngineInstance, image: ImageInput): Promise<EncodedImageInfo & { data: Float32Array }> {
    const encoded = await instance.images.encode(this.#module, instance.engine, image);
    return { ...encoded, data: await instance.engine.imageEmbeddings(encoded.id) };
  }

  async #embedImage(instance: EngineInstance, image: ImageInput, options: EngineEmbedOptions): Promise<Float32Array> {
    const { id } = await instance.images.encode(this.#module, instance.engine, image);
    return instance.engine.embedImage(id, stripUndefined(options));
  }

  async #load(options: EngineLoadOptions, signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const engine = await this.#module.Engine.load({ ...options, signal }, onEvent);
    if (signal.aborted) {
      engine.free();
      throw aborted("Loading the model");
    }
    this.#drop();
    this.#sessions.clear();
    this.#instance = new EngineInstance(engine);
    this.#persisted = engine.persisted();
    this.#loaded = options;
    return engine.info();
  }
}

/** Asks the caller before each token; an abort does not wait for the answer. */
function askSteps(steps: "logits" | "tokens", ask: NonNullable<Ask>, signal: AbortSignal): ProcessLogits {
  const ended = new Promise<false>((resolve) => signal.addEventListener("abort", () => resolve(false)));
  return (logits, tokens) => {
    const question: StepQuestion = { logits: steps === "logits" ? logits : new Float32Array(), tokens };
    return Promise.race([ask(question) as Promise<StepAnswer>, ended]);
  };
}

/** Calls that use the model's own sequence, or the whole engine, while they run. */
const QUEUED: ReadonlySet<Method> = new Set<Method>([
  "load", "generate", "embed", "embedImage", "rerank", "logits", "encodeImage", "unloadVision", "transcribe", "speak", "measureAsr", "measure", "verify", "release",
]);
/** The queue of the model's own sequence. */
const MODEL_QUEUE = 0;

/** The queue of a call; calls of different sessions run concurrently. */
function queueOf(method: Method, args: unknown[]): number | undefined {
  if (method === "generate" || method === "prefill") return (args[1] as number | undefined) ?? MODEL_QUEUE;
  if (method === "forkSession" || method === "disposeSession") return args[0] as number;
  // A session is created from the model's own sequence, so it waits in that queue.
  if (method === "createSession") return MODEL_QUEUE;
  return QUEUED.has(method) ? MODEL_QUEUE : undefined;
}

/** Calls of a loaded model that do not reload it. */
const OTHERS: ReadonlySet<Method> = new Set<Method>(["release", "disposeSession", "unloadVision", "deleteFromCache"]);

/** Calls of a model or session that reload a released or lost model. */
const RECOVERABLE: ReadonlySet<Method> = new Set<Method>([
  "generate", "prefill", "embed", "embedImage", "rerank", "logits", "encodeImage", "frameTimes", "transcribe", "listen", "speak", "measureAsr", "measure", "verify", "tokenize", "tokenizeChat", "detokenize", "renderChat", "info", "memory", "setGroup",
  "createSession", "forkSession",
]);
