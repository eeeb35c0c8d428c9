/** Runs engine calls on the current thread, one GPU call at a time per queue. Does not depend on the transport. */

import type { EngineLoadOptions, EngineRequest, GenerationResult, GrammarSource, ProcessLogits, StepAnswer, StepQuestion } from "./contract.js";
import type { Constraint } from "./constraint.js";
import { attributesOf, METHODS, type Backend, type CallOptions, type EngineModule, type EngineSession, type HostMethods, type Method, type Methods } from "./engine-calls.js";
import { stripUndefined } from "./strip-undefined.js";
import { explained } from "./csp.js";
import { aborted, disposed, invalidRequest, JerboaError, missingAsset, noBrowser, textOf, unloaded } from "./errors.js";
import { EngineInstance } from "./engine-instance.js";
import { platform } from "./platform.js";
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
  /** Concurrent calls on the model's own sequence, which its other calls wait for. */
  readonly #concurrent = new Set<Promise<unknown>>();
  /**
   * Ids of the open sessions. A session's tokens are lost with its engine; on the next one it starts empty, since every
   * prompt is complete.
   */
  readonly #sessions = new Set<number>();
  #nextSession = 1;
  /** The adapter of each session that has one. */
  readonly #sessionAdapters = new Map<number, string>();
  /** Options of the loaded adapters by name. */
  readonly #adapters = new Map<string, EngineLoadOptions>();
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

  get ending(): AbortSignal {
    return this.#closing.signal;
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
      if (!Object.hasOwn(METHODS, method)) throw invalidRequest(`unknown call '${method}'. Serve all files of the package from the same version.`);
      if (signal.aborted) throw aborted(method);
      this.#ready ??= this.#start();
      await this.#ready;
      const ask = options.onQuestion as Ask;
      const run = (): Promise<unknown> | unknown => this.#withRecovery(method, args, signal, onEvent, ask);
      const queue = queueOf(method, args);
      const concurrent = queue === MODEL_QUEUE && attributesOf(method).concurrent === true;
      return (await this.#untilRejected(async () => (queue === undefined ? run() : this.#enqueue(queue, method, run, signal, concurrent)))) as ReturnType<Methods[M]>;
    } catch (thrown) {
      throw await explained(thrown);
    }
  }

  /** Runs a call until it settles, or until it is rejected from outside. */
  #untilRejected(run: () => Promise<unknown>): Promise<unknown> {
    return new Promise((resolve, reject) => {
      if (this.closed) return reject(this.trap ?? unloaded());
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
    const host = platform();
    let start = starts.get(this.#module);
    if (!start) {
      const own = host && !this.#input ? host.readAsset("jerboa_bg.wasm").then((bytes) => ({ module_or_path: bytes })) : this.#input;
      start = Promise.resolve(own).then((input) => this.#module.default(input));
      starts.set(this.#module, start);
      const over = (): unknown => starts.delete(this.#module);
      start.then(over, over);
    }
    try {
      await withTimeout(ASSET_TIMEOUT_MS, "its server", start);
      if (host) this.#module.setHost(host);
    } catch (thrown) {
      // The next call retries: the network may be back.
      this.#ready = undefined;
      throw "process" in globalThis && !("document" in globalThis) && !host ? noBrowser() : missingWasm((this.#input as { module_or_path?: string } | undefined)?.module_or_path, thrown);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort(unloaded());
    // Before the engine reports its calls as aborted.
    this.#rejectAll(unloaded());
    this.#traps.users.delete(this.#onTrap);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, CLOSE_TIMEOUT_MS)));
    await Promise.race([Promise.allSettled([...this.#last.values(), ...this.#concurrent, this.#persisted]), late]);
    clearTimeout(timer);
    this.#drop();
    this.#loaded = undefined;
    await platform()?.settle();
  }

  #drop(): void {
    if (this.trap) this.#instance?.abandon();
    else this.#instance?.end();
    this.#instance = undefined;
  }

  /** Runs a call; if the device was lost before or during it, reloads the model and runs it once more. */
  async #withRecovery(method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void, ask: Ask): Promise<unknown> {
    if (!attributesOf(method).recovered) return this.#run(this.#instance, method, args, signal, onEvent, ask);
    const replay = replayFilter(method, onEvent);
    const fixed = replay ? replay.fixedArgs(args) : args;
    const emit = replay ? (event: unknown): void => replay.push(event) : onEvent;
    const used = await this.#engineInstance(method, signal);
    try {
      return await used.run(() => this.#run(used, method, fixed, signal, emit, ask));
    } catch (thrown) {
      if (JerboaError.from(thrown).code !== "device_lost" || !this.#loaded || signal.aborted) throw thrown;
      // Another call may have reloaded it already.
      if (this.#instance === used) this.#drop();
      // If no device is available, report the loss.
      const next = await this.#engineInstance(method, signal).catch((error: unknown) => {
        throw signal.aborted ? error : thrown;
      });
      replay?.restart();
      const result = await next.run(() => this.#run(next, method, fixed, signal, emit, ask));
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
      for (const [name, options] of this.#adapters) await instance.engine.loadAdapter(name, { ...options, signal: this.#closing.signal }, () => {});
      if (this.#closing.signal.aborted) instance.end();
      else this.#instance = instance;
      return instance;
    };
    this.#restoring ??= load().finally(() => (this.#restoring = undefined));
    const instance = await this.#restoring;
    if (signal.aborted) throw aborted(method);
    return instance;
  }

  /**
   * Waits for earlier calls of the queue, but concurrent ones not for each other. An abort while waiting rejects at once;
   * later calls wait for the same ones as before.
   */
  #enqueue(queue: number, method: Method, run: () => unknown, signal: AbortSignal, concurrent = false): Promise<unknown> {
    const before = [this.#last.get(queue), ...(queue === MODEL_QUEUE && !concurrent ? this.#concurrent : [])];
    let leave = (): void => {};
    const left = new Promise<never>((_, reject) => (leave = () => reject(aborted(method))));
    if (signal.aborted) leave();
    else signal.addEventListener("abort", leave);
    const turn = Promise.allSettled(before).then(() => {
      signal.removeEventListener("abort", leave);
      if (signal.aborted) throw aborted(method);
      return run();
    });
    if (concurrent) {
      this.#concurrent.add(turn);
      const ended = (): unknown => this.#concurrent.delete(turn);
      turn.then(ended, ended);
    } else this.#last.set(queue, turn);
    return Promise.race([turn, left]);
  }

  /** The session with this id in the current engine, created on first use. */
  async #session(instance: EngineInstance, id: number): Promise<EngineSession> {
    if (!this.#sessions.has(id)) throw disposed();
    const found = instance.session(id);
    if (found) return found;
    instance.addSession(id, await instance.engine.createSession(this.#sessionAdapters.get(id)));
    const made = instance.session(id);
    if (!made) throw new JerboaError("device_lost", "The GPU device was lost while a session was created. Run the request again.");
    return made;
  }

  /** Assigns a session id: engine objects cannot cross threads. */
  async #addSession(instance: EngineInstance, made: EngineSession | Promise<EngineSession>, adapter?: string): Promise<number> {
    const id = this.#nextSession++;
    instance.addSession(id, await made);
    this.#sessions.add(id);
    if (adapter !== undefined) this.#sessionAdapters.set(id, adapter);
    return id;
  }

  #dispose(id: number): void {
    if (!this.#sessions.delete(id)) throw disposed();
    this.#instance?.dispose(id);
    this.#last.delete(id);
    this.#sessionAdapters.delete(id);
  }

  /** Runs a call on `instance`, the loaded engine if there is one. */
  async #run(instance: EngineInstance | undefined, method: Method, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void, ask: Ask): Promise<unknown> {
    const { of, signal: options, events } = attributesOf(method);
    if (of === "host") {
      const own = this.#own[method as keyof HostMethods] as (call: RunningCall, ...args: unknown[]) => unknown;
      const loaded = (): EngineInstance => instance ?? fail(unloaded());
      return own({ loaded, signal, onEvent, ask }, ...args);
    }
    const target = of === "module" ? this.#module : (instance ?? fail(unloaded())).engine;
    const given = args.map(stripUndefined);
    if (options !== undefined) given[options] = { ...(given[options] as object), signal };
    const run = target[method as never] as (...args: unknown[]) => unknown;
    return run.call(target, ...given, ...(events ? [onEvent] : []));
  }

  /** The calls that this host answers. */
  readonly #own: { [M in keyof HostMethods]: (call: RunningCall, ...args: Parameters<HostMethods[M]>) => unknown } = {
    load: ({ signal, onEvent }, options) => this.#load(options, signal, onEvent),
    persisted: () => this.#persisted,
    generate: ({ loaded, signal, onEvent, ask }, request, session, seed) => this.#generate(loaded(), request, session, seed, signal, onEvent, ask),
    prefill: async ({ loaded, signal }, ids, session) => (await this.#session(loaded(), session)).prefill(ids, { signal }),
    saveSession: async ({ loaded }, name, session) => (await savedSessions()).saveState(await this.#session(loaded(), session), name),
    restoreSession: async ({ loaded }, saved, session) => (await savedSessions()).restoreState(await this.#session(loaded(), session), saved),
    createSession: ({ loaded }, adapter) => this.#addSession(loaded(), loaded().engine.createSession(adapter), adapter),
    forkSession: async ({ loaded }, session) => this.#addSession(loaded(), (await this.#session(loaded(), session)).fork(), this.#sessionAdapters.get(session)),
    loadAdapter: async ({ loaded, signal, onEvent }, name, options) => {
      await loaded().engine.loadAdapter(name, { ...options, signal }, onEvent);
      this.#adapters.set(name, options);
    },
    unloadAdapter: ({ loaded }, name) => {
      loaded().engine.unloadAdapter(name);
      this.#adapters.delete(name);
    },
    disposeSession: (_, session) => this.#dispose(session),
    adoptSessions: (_, sessions, adapters = []) => {
      for (const [index, id] of sessions.entries()) {
        const adapter = adapters[index];
        if (adapter !== undefined) this.#sessionAdapters.set(id, adapter);
        this.#sessions.add(id);
        this.#nextSession = Math.max(this.#nextSession, id + 1);
      }
    },
    encodeImage: async ({ loaded }, image) => {
      const { engine, images } = loaded();
      const encoded = await images.encode(this.#module, engine, image);
      return { ...encoded, data: await engine.imageEmbeddings(encoded.id) };
    },
    embedImage: async ({ loaded }, image, options) => {
      const { engine, images } = loaded();
      const { id } = await images.encode(this.#module, engine, image);
      return engine.embedImage(id, stripUndefined(options));
    },
    memory: () => this.#instance?.engine.memory() ?? { wasmBytes: 0, gpuBytes: 0, kvInMainMemory: 0 },
    verify: ({ loaded }, most) => loaded().engine.verify(this.#loaded!, most),
    release: () => this.#drop(),
    deleteFromCache: async ({ loaded }) => {
      const { engine } = loaded();
      await this.#persisted;
      return engine.deleteFromCache();
    },
  };

  async #generate(instance: EngineInstance, request: EngineRequest, session: number | undefined, seed: number | undefined, signal: AbortSignal, onEvent: (event: unknown) => void, ask: Ask): Promise<GenerationResult> {
    const target = session === undefined ? instance.engine : await this.#session(instance, session);
    const messages = request.messages && (await instance.images.withImageIds(this.#module, instance.engine, request.messages));
    if (signal.aborted) throw aborted("generate");
    const { grammar, steps, ...given } = request;
    const constraint = grammar && (await untilAborted(ABORT_TIMEOUT_MS, "generate", signal, this.#constrain(instance, grammar, Boolean(messages) && !request.rawAnswer)));
    try {
      return await target.generate({ ...stripUndefined({ ...given, ...(messages ? { messages } : {}) }), signal }, onEvent, seed, constraint?.nextMask, steps && ask && askSteps(steps, ask, signal));
    } finally {
      constraint?.free();
    }
  }

  /** Compiles a grammar; the code for it is loaded on first use. */
  async #constrain(instance: EngineInstance, grammar: GrammarSource, isChat: boolean): Promise<Constraint> {
    const { constrain } = await withTimeout(ASSET_TIMEOUT_MS, "the server of constraint.js", import("./constraint.js"));
    return constrain(instance.engine, grammar, isChat, (this.#input as { module_or_path?: string } | undefined)?.module_or_path);
  }

  async #load(given: EngineLoadOptions, signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    const host = platform();
    const options = (await host?.prepareLoad(given)) ?? given;
    const engine = await this.#module.Engine.load({ ...options, signal }, onEvent).catch(async (thrown: unknown) => {
      throw (await host?.explainLoad(thrown, given)) ?? thrown;
    });
    if (signal.aborted) {
      engine.free();
      throw aborted("Loading the model");
    }
    this.#drop();
    this.#sessions.clear();
    this.#adapters.clear();
    this.#instance = new EngineInstance(engine);
    this.#persisted = engine.persisted();
    this.#loaded = options;
    return engine.info();
  }
}

/** The error of the wasm file, with its URL if the caller has set one. Servers of single-page applications answer unknown paths with their page. */
function missingWasm(url: string | undefined, thrown: unknown): JerboaError {
  const isOther = /magic|doesn't start with/.test(textOf(thrown));
  return missingAsset(`The engine's wasm file${url ? ` ${url}` : ""}`, isOther ? new Error("the server sent a web page or another file that is not WebAssembly", { cause: thrown }) : thrown);
}

/** Asks the caller before each token; an abort does not wait for the answer. */
function askSteps(steps: "logits" | "tokens", ask: NonNullable<Ask>, signal: AbortSignal): ProcessLogits {
  const ended = new Promise<false>((resolve) => signal.addEventListener("abort", () => resolve(false)));
  return (logits, tokens) => {
    const question: StepQuestion = { logits: steps === "logits" ? logits : new Float32Array(), tokens };
    return Promise.race([ask(question) as Promise<StepAnswer>, ended]);
  };
}

/** A call while it runs; `loaded` gives the engine that it runs on. */
interface RunningCall {
  loaded: () => EngineInstance;
  signal: AbortSignal;
  onEvent: (event: unknown) => void;
  ask: Ask;
}

/** The code of saved sessions, loaded on first use. */
const savedSessions = (): Promise<typeof import("./saved-sessions.js")> => withTimeout(ASSET_TIMEOUT_MS, "the server of saved-sessions.js", import("./saved-sessions.js"));

function fail(error: JerboaError): never {
  throw error;
}

/** The queue of the model's own sequence. */
const MODEL_QUEUE = 0;

/** The queue of a call; calls of different sessions run concurrently. */
function queueOf(method: Method, args: unknown[]): number | undefined {
  const { queued, session } = attributesOf(method);
  if (!queued) return undefined;
  return (session === undefined ? undefined : (args[session] as number | undefined)) ?? MODEL_QUEUE;
}
