/** Models that load with their first use and are shared by all their users; for the entries built on top of the package. */

import { cachedModels, JerboaError, loadModel, type LoadOptions, type LoadProgress, type Model, type ModelSource } from "../index.js";
import { canonicalAddress } from "../model-source.js";
import { textOf } from "../errors.js";
import { type GpuLike, platform } from "../platform.js";

/** What a lazy model loads: a source of `loadModel`, a function that loads it, or a loaded model. */
export type LazySource = ModelSource | readonly (string | URL)[] | Model | (() => Model | Promise<Model>);

/** Options of a load that several users share. */
export type SharedLoadOptions = Omit<LoadOptions, "signal" | "onProgress">;

/** Where a load stands. The object changes with every step, never in place. */
export type LoadState =
  | { status: "idle"; progress?: undefined; model?: undefined; error?: undefined }
  | { status: "loading"; progress?: LoadProgress; model?: undefined; error?: undefined }
  | { status: "ready"; progress?: LoadProgress; model: Model; error?: undefined }
  | { status: "error"; progress?: undefined; model?: undefined; error: JerboaError };

/**
 * Whether a model can be used: now or from the browser's cache (`available`), after a download (`downloadable`), after
 * the download that is running (`downloading`), or not here, since there is no WebGPU (`unavailable`).
 */
export type Availability = "available" | "downloadable" | "downloading" | "unavailable";

/** A model that loads with its first use. The next use after a failed load, or an unloaded model, loads again. */
export class LazyModel {
  readonly source: LazySource;
  readonly #options: SharedLoadOptions;
  readonly #listeners = new Set<() => void>();
  #state: LoadState = { status: "idle" };
  #loading: Promise<Model> | undefined;
  #controller = new AbortController();
  #users = 0;

  constructor(source: LazySource, options: SharedLoadOptions = {}) {
    this.source = source;
    this.#options = options;
    if (isLoaded(source) && !hasEnded(source)) this.#become(source);
  }

  get state(): LoadState {
    return this.#state;
  }

  /** The name that requests and messages show. */
  get name(): string {
    const { model } = this.#state;
    if (model) return model.info.model;
    return typeof this.source === "string" || this.source instanceof URL ? String(this.source) : "model";
  }

  /** Calls the listener after every change of {@link state}; returns a function that ends this. */
  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** The model, loaded if it is not yet. An abort ends this wait; the load goes on for others. While a caller waits, the load is not cancelled. */
  load(signal?: AbortSignal): Promise<Model> {
    this.#users++;
    const loading = this.start();
    return new Promise<Model>((resolve, reject) => {
      const stop = (): void => reject(signal!.reason);
      if (signal?.aborted) return stop();
      signal?.addEventListener("abort", stop, { once: true });
      loading.then(resolve, reject).finally(() => signal?.removeEventListener("abort", stop));
    }).finally(() => this.#users--);
  }

  /** Loads the model for those that {@link retain} it: when the last one goes, the load is cancelled. */
  start(): Promise<Model> {
    return (this.#loading ??= this.#start());
  }

  /**
   * Counts a user of the load; returns a function that ends the use. When the last one goes, an unfinished load is
   * cancelled, unless another comes in the same turn, as when React mounts a component twice.
   */
  retain(): () => void {
    this.#users++;
    let over = false;
    return () => {
      if (over) return;
      over = true;
      this.#users--;
      setTimeout(() => {
        if (this.#users === 0 && this.#state.status === "loading") this.cancel();
      });
    };
  }

  /** Cancels a load in progress. Downloaded parts stay cached. */
  cancel(): void {
    if (this.#state.status !== "loading") return;
    this.#controller.abort();
    this.#loading = undefined;
    this.#set({ status: "idle" });
  }

  /** Frees the model, or cancels its load. The next use loads it again. */
  async unload(): Promise<void> {
    this.cancel();
    const { model } = this.#state;
    this.#loading = undefined;
    this.#set({ status: "idle" });
    await model?.unload();
  }

  /** Whether the model can be used; see {@link Availability}. */
  async availability(): Promise<Availability> {
    if (this.#state.status === "ready") return "available";
    if (this.#state.status === "loading") return "downloading";
    if (!(await hasWebGpu())) return "unavailable";
    if (typeof this.source === "object" && !(this.source instanceof URL) && !Array.isArray(this.source)) return "available";
    const names = new Set([this.source].flat().map((each) => canonicalAddress(String(each))));
    const cached = await cachedModels().catch(() => []);
    return cached.some(({ model, complete }) => complete && names.has(canonicalAddress(model))) ? "available" : "downloadable";
  }

  #start(): Promise<Model> {
    this.#controller = new AbortController();
    const { signal } = this.#controller;
    this.#set({ status: "loading" });
    const { source } = this;
    const onProgress = (progress: LoadProgress): void => {
      if (!signal.aborted && this.#state.status === "loading") this.#set({ status: "loading", progress });
    };
    const loading = isLoaded(source)
      ? hasEnded(source)
        ? Promise.reject(new JerboaError("unloaded", "The model was unloaded. Call loadModel again, and pass the new model."))
        : Promise.resolve(source)
      : typeof source === "function"
        ? callLoader(source)
        : loadModel(source, { ...this.#options, onProgress, signal });
    return loading.then(
      (model) => {
        // A function that loads a model knows nothing of a cancelled load.
        if (!signal.aborted) this.#become(model);
        return model;
      },
      (thrown: unknown) => {
        if (signal.aborted) throw new JerboaError("aborted", "The load was cancelled, because the model was unloaded while it loaded. Call it again to load the model.", { cause: thrown });
        const error = JerboaError.from(thrown);
        this.#loading = undefined;
        this.#set({ status: "error", error });
        throw error;
      },
    );
  }

  #become(model: Model): void {
    this.#loading ??= Promise.resolve(model);
    this.#set({ status: "ready", model, ...(this.#state.progress ? { progress: this.#state.progress } : {}) });
    // Its owner may unload it. Objects with a model's methods have no such signal.
    (model.ending as AbortSignal | undefined)?.addEventListener("abort", () => {
      if (this.#state.model !== model) return;
      this.#loading = undefined;
      this.#set({ status: "idle" });
    }, { once: true });
  }

  #set(state: LoadState): void {
    this.#state = state;
    for (const listener of [...this.#listeners]) listener();
  }
}

/** The model of the caller's function, whose failures are the caller's. */
async function callLoader(load: () => Model | Promise<Model>): Promise<Model> {
  let model: unknown;
  try {
    model = await load();
  } catch (thrown) {
    if (thrown instanceof JerboaError || (thrown as Error | null)?.name === "AbortError") throw thrown;
    throw new JerboaError("request", `The function that loads the model failed: ${textOf(thrown)}`, { cause: thrown });
  }
  if (isLoaded(model)) return model;
  throw new JerboaError("request", `The function that loads the model returned ${model === undefined ? "nothing" : "no model"}. Return the result of loadModel.`);
}

/** Models by source and options: equal requests share one load. */
const shared = new Map<string, LazyModel>();
const sharedObjects = new WeakMap<object, Map<string, LazyModel>>();

/** Numbers of objects that are compared by identity. */
const identities = new WeakMap<object, number>();
let lastIdentity = 0;

/** A text that is the same for equal options. Bytes and files are compared by identity, since JSON has none or all of their content. */
function keyOf(options: SharedLoadOptions): string {
  const identified = (_: string, value: unknown): unknown => {
    if (typeof value !== "function" && !ArrayBuffer.isView(value) && !(value instanceof ArrayBuffer) && !(value instanceof Blob)) return value;
    let id = identities.get(value);
    if (id === undefined) identities.set(value, (id = ++lastIdentity));
    return { identity: id };
  };
  return JSON.stringify(Object.entries(options).filter(([, value]) => value !== undefined).sort(), identified);
}

/**
 * The lazy model of a source and its options, the same for all callers. Files and functions are compared by identity. A
 * loaded model, and a function that loads one, take no options.
 */
export function sharedModel(source: LazySource, options: SharedLoadOptions = {}): LazyModel {
  if (isNamed(source)) {
    const nameOf = (each: string | URL): string => canonicalAddress(String(each));
    const named = typeof source === "string" || source instanceof URL ? nameOf(source) : source.map(nameOf);
    const key = JSON.stringify(named) + keyOf(options);
    let found = shared.get(key);
    if (!found) shared.set(key, (found = new LazyModel(source, options)));
    return found;
  }
  if ((typeof source !== "object" && typeof source !== "function") || source === null) throw new JerboaError("request", `The model is ${String(source)}. Pass a name, a URL, selected files, a loaded model, or a function that loads one.`);
  let variants = sharedObjects.get(source);
  if (!variants) sharedObjects.set(source, (variants = new Map()));
  const key = typeof source === "function" || isLoaded(source) ? "" : keyOf(options);
  let found = variants.get(key);
  if (!found) variants.set(key, (found = new LazyModel(source, options)));
  return found;
}

/** Whether a WebGPU adapter is available. */
export async function hasWebGpu(): Promise<boolean> {
  try {
    // Outside of browsers the host has a GPU of its own, or none, which it reports by an error.
    const gpu = platform()?.gpu ?? (globalThis.navigator as { gpu?: GpuLike } | undefined)?.gpu;
    return (await gpu?.requestAdapter()) != null;
  } catch {
    return false;
  }
}

/** Whether a source is a loaded model. */
export function isLoaded(source: unknown): source is Model {
  return typeof (source as Partial<Model> | null)?.info?.model === "string";
}

/** Whether a loaded model was unloaded. Objects with a model's methods do not tell. */
function hasEnded(model: Model): boolean {
  return (model.ending as AbortSignal | undefined)?.aborted === true;
}

/** Whether a source consists of names only. */
function isNamed(source: LazySource): source is string | URL | readonly (string | URL)[] {
  const isName = (each: unknown): boolean => typeof each === "string" || each instanceof URL;
  return isName(source) || (Array.isArray(source) && source.length > 0 && source.every(isName));
}
