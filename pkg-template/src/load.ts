/** Loads a model from a name, a URL or selected files; also the cache and device functions of the package. */

import { ASSETS, type AssetUrls, openBackend, type OpenedBackend } from "./backend.js";
import { calibrateDevice, type Calibration } from "./calibration.js";
import { checked, describe, isList, requireValid, valid, validator } from "./check.js";
import type { CachedModel, CachedSource, DeviceCheck, DeviceReport, EngineLoadOptions, LoadProgress } from "./contract.js";
import { download } from "./download.js";
import { JerboaError, invalidRequest } from "./errors.js";
import { attributesOf, type Backend, type CallOptions, type Method, type Methods } from "./engine-calls.js";
import { waitForOtherTab, nextAttempt, type LoadAttempt } from "./load-fallback.js";
import { Model } from "./model.js";
import { canonicalAddress, isFolder, sourceOf, withoutCredentials, type ModelSource } from "./model-source.js";
import { isDetached } from "./plain-json.js";
import { withLock, Notes } from "./persistent-notes.js";
import { RestartingBackend } from "./restart.js";
import { DEVICE_FEATURES_SPEC, LOAD_SPEC, type LoadFields } from "./schema.js";
import type { SavedSession } from "./saved-sessions.js";
import { persistStorage } from "./storage.js";
import { ABORT_TIMEOUT_MS, isolated, untilAborted } from "./waits.js";

/** Options of {@link loadModel}. */
export interface LoadOptions extends LoadFields, AssetUrls {
  /**
   * Silero VAD weights (safetensors), as bytes or URL: speech-to-text models then distinguish speech from noise.
   * Without them pauses are detected by loudness, and audio longer than the model's window is cut into overlapping
   * windows.
   */
  vad?: string | URL | Uint8Array;
  /** Receives progress: bytes, rate and time left. */
  onProgress?: (progress: LoadProgress) => void;
  /** Cancels the load; downloaded parts stay cached and the next load resumes them. */
  signal?: AbortSignal;
  /** False runs the model on this thread. True by default; if no worker is available, `model.info.warnings` says so. */
  worker?: boolean;
}


const OPTIONS = {
  ...ASSETS,
  ...LOAD_SPEC,
  onProgress: valid.func,
  signal: valid.signal,
  worker: valid.boolean,
  vad: validator("a URL or a Uint8Array that was not transferred elsewhere", (v) => (v instanceof Uint8Array ? !isDetached(v.buffer) : valid.url.accepts(v))),
};

/**
 * Loads a model.
 *
 * ```js
 * const model = await loadModel("Qwen/Qwen3-0.6B", { onProgress: (p) => console.log(p.phase, p.loaded, p.total) });
 * console.log(await model.generate("Once upon a time", { maxTokens: 50 }));
 * ```
 *
 * Given a list of names, loads the first model that fits this device:
 *
 * ```js
 * const model = await loadModel(["Qwen/Qwen3-1.7B", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct"]);
 * ```
 *
 * @throws {@link JerboaError} with a code such as `not_found`, `gated`, `no_webgpu`, `out_of_memory`, `unknown_architecture`.
 */
export async function loadModel(source: ModelSource | readonly (string | URL)[], options?: LoadOptions): Promise<Model> {
  const given = checked("loadModel", options, OPTIONS);
  if (given.features) given.features = checked("loadModel: features", given.features, DEVICE_FEATURES_SPEC);
  if (given.endpoint) given.endpoint = canonicalAddress(given.endpoint);
  if (given.codec) given.codec = canonicalAddress(given.codec);
  return isModelList(source) ? loadFirst(source, given) : loadOne(source, given, false);
}

/** Loads one model; an abort ends the load within a second, whatever it waits for. */
function loadOne(source: ModelSource, options: LoadOptions, mustFit: boolean): Promise<Model> {
  return untilAborted(ABORT_TIMEOUT_MS + 100, "Loading the model", options.signal, loadNow(source, options, mustFit));
}

async function loadNow(source: ModelSource, options: LoadOptions, mustFit: boolean): Promise<Model> {
  const { onProgress: given, signal, worker = true, wasmUrl, workerUrl, vad: vadSource, ...others } = options;
  const onProgress = isolated(given);
  const vad = vadSource === undefined ? undefined : await fetchWeights(vadSource, signal);
  const rest: Omit<EngineLoadOptions, "model"> = vad ? { ...others, vad } : others;
  const model = sourceOf(source);
  refuseContradictions(model, rest);
  if (signal?.aborted) throw new JerboaError("aborted", "Loading the model was aborted.");

  const name = typeof model === "string" ? model : "the selected files";
  const notes = new Notes();
  const attempt = async (alive: () => void): Promise<Model> => {
    let seen = "";
    const onEvent = (event: LoadProgress): void => {
      const state = `${event.phase} ${event.loaded}`;
      if (state !== seen) alive();
      seen = state;
      onProgress?.(event);
    };
    await waitForOtherTab(notes, name);
    const step = nextAttempt(notes, name, userAgent(), { worker, options: { ...rest, model, ...(mustFit ? { mustFit } : {}) } });
    const open = (): Promise<OpenedBackend> => openBackend(step.wanted.worker, { ...(wasmUrl ? { wasmUrl } : {}), ...(workerUrl ? { workerUrl } : {}) });
    const opening = open();
    try {
      const loading = opening.then((opened) => load(opened, step, notes, { signal, onEvent }, open));
      const loaded = await untilAborted(ABORT_TIMEOUT_MS, "Loading the model", signal, loading);
      step.finish(true);
      return loaded;
    } catch (thrown) {
      step.finish(false);
      opening.then(({ backend }) => backend.close()).catch(() => {});
      throw JerboaError.from(thrown);
    }
  };
  // Tabs that load the same model share one download: the second finds it in the cache.
  const waiting = (): void => onProgress?.({ phase: "waiting", progress: 0, loaded: 0, total: 0, bytesPerSecond: 0, fromCache: false });
  const loaded = await withLock(`load ${lockKey(model)}`, signal, waiting, attempt, (model) => model.persisted).catch((thrown) => {
    throw JerboaError.from(thrown);
  });
  if (typeof model === "string" && rest.cache !== false) void persistStorage();
  return loaded;
}

/** What a load locks: the model's name, or the selected files, so that loads of different files do not wait for each other. */
function lockKey(model: EngineLoadOptions["model"]): string {
  if (typeof model === "string") return model;
  return model.map(({ name, file }) => `${name} ${file.size} ${file.lastModified}`).sort().join("/");
}

/** The bytes of small weights, fetched if given as a URL. */
async function fetchWeights(given: string | URL | Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array> {
  if (given instanceof Uint8Array) return given;
  try {
    return new Uint8Array(await (await download(given, signal)).arrayBuffer());
  } catch (thrown) {
    if (signal?.aborted) throw new JerboaError("aborted", "Loading the model was aborted.");
    throw new JerboaError("network", `loadModel: 'vad' could not be fetched from ${withoutCredentials(given)}: ${(thrown as Error).message}. Check the URL, and that its server allows this page (CORS).`, { cause: thrown });
  }
}

/** Loads a model in a backend, with this device's calibration; `open` starts another backend if this one dies. */
async function load({ backend, warning }: OpenedBackend, { wanted, warning: given, begin }: LoadAttempt, notes: Notes, call: CallOptions, open: () => Promise<OpenedBackend>): Promise<Model> {
  const touchPoints = globalThis.navigator?.maxTouchPoints ?? 0;
  const options: EngineLoadOptions = { ...wanted.options, touchPoints };
  let calibration: Calibration | undefined;
  if (!options.features?.group && (await backend.call("implementation", [touchPoints])) !== "other") {
    calibration = await calibrateDevice(notes, userAgent(), (group) => backend.call("calibrate", [group]));
    options.features = { ...options.features, group: calibration?.group ?? "1" };
  }
  // The checks run while files arrive.
  const checking = checkDeviceOnce(backend, notes, touchPoints);
  begin();
  const info = await backend.call("load", [options], call);
  const problems = await checking;
  const warnings = [...(info.warnings ?? []), ...[warning, given, ...problems].filter((w) => w !== undefined)];
  // If the backend closes or fails meanwhile, storing has ended too.
  const stored = backend.call("persisted", []).then((all) => void warnings.push(...all.filter((w) => !warnings.includes(w))), () => backend.close());
  pendingStores.add(stored);
  void stored.then(() => pendingStores.delete(stored));
  const reload = async (): Promise<Backend> => {
    const { backend: next } = await open();
    return next.call("load", [options]).then(() => next, (thrown: unknown) => {
      void next.close();
      throw thrown;
    });
  };
  const lasting = new RestartingBackend(backend, reload);
  return new Model(calibration ? withCalibration(lasting, calibration) : lasting, { ...info, warnings, worker: backend.worker }, stored, options);
}

/** Finished loads that are still writing to the cache. */
const pendingStores = new Set<Promise<void>>();

/** Failures of the device checks, run once per browser version with its first model. Never rejects. */
async function checkDeviceOnce(backend: Backend, notes: Notes, touchPoints: number): Promise<string[]> {
  const seen = notes.read<{ agent: string; problems: string[] }>("device");
  if (!notes.available || seen?.agent === userAgent()) return seen?.problems ?? [];
  const checks = await backend.call("diagnose", [touchPoints, true]).catch(() => undefined);
  if (!checks) return [];
  const problems = checks.filter((check) => !check.ok).map(({ name, problem }) => `A GPU check failed (${name}: ${problem}). Model output may be wrong on this device. Update the browser or the graphics driver.`);
  notes.write("device", { agent: userAgent(), problems });
  return problems;
}

/** A backend whose first work proves the calibration. */
function withCalibration(backend: Backend, calibration: Calibration): Backend {
  const call = <M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>> => {
    const run = (): Promise<ReturnType<Methods[M]>> => backend.call(method, args, options);
    return attributesOf(method).proves ? calibration.run(run) : run();
  };
  return {
    worker: backend.worker,
    get closed() {
      return backend.closed;
    },
    ending: backend.ending,
    call,
    close: () => backend.close(),
  };
}

/** The browser's user agent; stored notes apply to it only. */
function userAgent(): string {
  return globalThis.navigator?.userAgent ?? "";
}

/**
 * Codes of models that do not fit, are not supported, or are not available: the next model of a list is tried, and no
 * client repeats the request.
 */
export const UNUSABLE_MODEL: ReadonlySet<string> = new Set([
  "out_of_memory", "unknown_architecture", "unsupported_option", "unsupported_encoding", "not_found", "gated", "config", "malformed",
]);

/**
 * Loads the first model that is available and fits; `info.warnings` says why earlier ones were skipped. Without the
 * caller's `maxMemory` the device's room is not known exactly, so the last model is tried in any case.
 */
async function loadFirst(sources: readonly (string | URL)[], options: LoadOptions): Promise<Model> {
  const reasons: string[] = [];
  const errors: JerboaError[] = [];
  // `endpoint` and `revision` are for the names of a list; folders have addresses of their own.
  const { endpoint: _, revision: __, ...ofFolders } = options;
  const folders = sources.map((source) => isFolder(canonicalAddress(String(source))));
  const hasName = folders.includes(false);
  for (const [i, source] of sources.entries()) {
    const last = i === sources.length - 1;
    try {
      const model = await loadOne(source, hasName && folders[i] ? ofFolders : options, !last || options.maxMemory !== undefined);
      model.info.warnings.push(...reasons);
      return model;
    } catch (thrown) {
      const error = JerboaError.from(thrown);
      errors.push(error);
      reasons.push(`${withoutCredentials(source)} was skipped: ${error.message}`);
      if (last || !UNUSABLE_MODEL.has(error.code)) throw errors.length > 1 ? new JerboaError(error.code, reasons.join(" "), { cause: new AggregateError(errors) }) : error;
    }
  }
  // The last one returns or throws, and an empty list is one of files.
  throw errors[0]!;
}

/** Names and URLs form a list of models; files form one model. */
function isModelList(source: ModelSource | readonly (string | URL)[]): source is readonly (string | URL)[] {
  const isName = (each: unknown): boolean => typeof each === "string" || each instanceof URL;
  if (!isList(source) || source.length === 0 || !isName(source[0])) return false;
  const wrong = Array.from(source).findIndex((each) => !isName(each));
  if (wrong >= 0) throw invalidRequest(`loadModel: a list of models must contain names and URLs; item ${wrong} is ${describe(source[wrong])}.`);
  return true;
}

/** Refuses options that do not apply to this source. */
function refuseContradictions(model: EngineLoadOptions["model"], { revision, endpoint, token }: LoadOptions): void {
  if (typeof model !== "string") {
    const name = Object.entries({ revision, endpoint, token }).find(([, value]) => value !== undefined)?.[0];
    if (name) throw invalidRequest(`loadModel: '${name}' applies to downloads, not to selected files. Leave it out.`);
    return;
  }
  const name = Object.entries({ revision, endpoint }).find(([, value]) => value !== undefined)?.[0];
  if (isFolder(model) && name) throw invalidRequest(`loadModel: '${name}' applies to a repository name, not to a folder's URL. Leave it out.`);
  const [, inName] = /^[^/@]+\/[^/@]+@(.+)$/.exec(model.replace(/\/[^/]+\.gguf$/i, "")) ?? [];
  if (inName && revision && inName !== revision) throw invalidRequest(`loadModel: the name has revision '${inName}', the options '${revision}'. Set one of them.`);
}

/** The models in this browser's cache. */
export async function cachedModels(): Promise<CachedModel[]> {
  await Promise.all(pendingStores);
  return withBackend(async (backend) => (await backend.call("cachedModels", [])).map(cachedModel));
}

/** Removes a model from this browser's cache: the given revision, or all of them. */
export async function deleteModel(model: string, options?: { revision?: string; endpoint?: string }): Promise<void> {
  requireValid("deleteModel", "the model's name", model, valid.string);
  const { revision, endpoint } = checked("deleteModel", options, { revision: LOAD_SPEC.revision, endpoint: LOAD_SPEC.endpoint });
  await Promise.all(pendingStores);
  const same = (a: string, b: string): boolean => canonicalAddress(a) === canonicalAddress(b);
  return withBackend(async (backend) => {
    for (const entry of (await backend.call("cachedModels", [])).map(cachedModel)) {
      const wanted = revision === undefined || entry.revision === revision;
      if (wanted && same(entry.model, model) && same(entry.endpoint ?? HUB, endpoint ?? HUB)) await backend.call("deleteModel", [entry.source]);
    }
  });
}

const HUB = "https://huggingface.co";

/** Parses a cache source into the name that `loadModel` takes. */
function cachedModel(entry: CachedSource): CachedModel {
  const [, endpoint, model, revision] = /^(.+)\/([^/]+\/[^/@]+)@(.+)$/.exec(entry.source) ?? [];
  if (!endpoint || !model || !revision) return { ...entry, model: entry.source };
  return { ...entry, model, revision, ...(endpoint === HUB ? {} : { endpoint }) };
}

/** Reports this browser and its GPU: adapter, features, limits, and what the engine uses of them. */
export function deviceReport(): Promise<DeviceReport> {
  return withBackend((backend) => backend.call("deviceReport", [globalThis.navigator?.maxTouchPoints ?? 0]));
}

/**
 * Runs small GPU computations with known results, from one kernel to hundreds of dependent ones, in well under a
 * second. The first failure shows what the device or its driver cannot do. Needs no model.
 */
export function diagnose(): Promise<DeviceCheck[]> {
  return withBackend((backend) => backend.call("diagnose", [globalThis.navigator?.maxTouchPoints ?? 0, false]));
}

/** Runs one call in a temporary backend. */
async function withBackend<T>(call: (backend: Backend) => Promise<T>): Promise<T> {
  const { backend } = await openBackend(true);
  try {
    return await call(backend);
  } finally {
    void backend.close();
  }
}

/** Lists the sessions that {@link Session.save} has stored under a name. */
export async function savedSessions(): Promise<SavedSession[]> {
  return (await import("./saved-sessions.js")).savedSessions();
}

/** Deletes a saved session. */
export async function deleteSavedSession(name: string): Promise<void> {
  requireValid("deleteSavedSession", "the name", name, valid.string);
  return (await import("./saved-sessions.js")).deleteSavedSession(name);
}
