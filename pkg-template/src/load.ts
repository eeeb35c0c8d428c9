/** Turns a name, an address or picked files into a loaded model. Does not know what a model can do. */

import { ASSETS, type AssetUrls, openBackend, type Opened } from "./backend.js";
import { calibrated, type Calibration } from "./calibration.js";
import { checked, describe, mustBe } from "./check.js";
import type { CachedModel, CachedSource, Check, DeviceReport, EngineLoadOptions, LoadProgress } from "./contract.js";
import { JerboaError, refused } from "./errors.js";
import type { Backend, CallOptions, Method, Methods } from "./host.js";
import { othersNoted, rung, type Rung } from "./ladder.js";
import { Model } from "./model.js";
import { inTurn, Notes } from "./notes.js";
import { keepStorage } from "./storage.js";

/** Options of {@link loadModel}. */
export interface LoadOptions extends Omit<EngineLoadOptions, "model" | "mustFit" | "touchPoints" | "vad">, AssetUrls {
  /**
   * Silero VAD's weights (safetensors), as bytes or their address: models that hear then know speech from noise. Without them pauses are told by loudness,
   * and sound longer than the model hears at once is cut in windows that overlap.
   */
  vad?: string | URL | Uint8Array;
  /** Hears what arrives, with bytes, rate and time left. */
  onProgress?: (progress: LoadProgress) => void;
  /** Aborts the load; downloaded parts stay cached and the next load resumes them. */
  signal?: AbortSignal;
  /** False runs the model on this thread. True by default; where no worker can be had, `model.info` says so. */
  worker?: boolean;
}

/** A file that the user picked, under the name that it has in the repository. */
export interface NamedFile {
  name: string;
  file: File;
}

/**
 * What {@link loadModel} takes: a repository (`org/name`), the address of a folder, one .gguf file of either
 * (`org/name/model-Q4_K_M.gguf`, `https://host/model.gguf`), or a checkpoint's files — as an `<input type="file">` or a drop
 * gives them.
 */
export type ModelSource = string | URL | Iterable<File | NamedFile> | ArrayLike<File>;

const OPTIONS = {
  ...ASSETS,
  onProgress: mustBe.func,
  signal: mustBe.signal,
  token: mustBe.string,
  revision: mustBe.string,
  endpoint: mustBe.string,
  maxContext: mustBe.integer(1),
  weights: mustBe.oneOf("auto", "f32", "f16", "q8", "q4"),
  embeddingWeights: mustBe.oneOf("auto", "f32", "f16", "q8", "q4"),
  maxMemory: mustBe.integer(1),
  maxWeightBuffer: mustBe.integer(1),
  kv: mustBe.oneOf("auto", "f32", "f16", "packed", "int8"),
  kvPage: mustBe.integer(0),
  experts: mustBe.integer(1),
  expertBytes: mustBe.integer(1),
  lookAhead: mustBe.boolean,
  tableRows: mustBe.boolean,
  tune: mustBe.oneOf("auto", "off", "again"),
  shortPrompts: mustBe.boolean,
  features: mustBe.object,
  worker: mustBe.boolean,
  cache: mustBe.boolean,
  task: mustBe.oneOf("generate", "embed", "rerank", "transcribe", "speak"),
  codec: mustBe.string,
  vad: (v: unknown) => (v instanceof Uint8Array || !mustBe.url(v) ? undefined : "an address or a Uint8Array"),
};
const FEATURES = {
  subgroups: mustBe.boolean,
  f16: mustBe.boolean,
  matrix: mustBe.boolean,
  limits: mustBe.oneOf("all", "least"),
  group: mustBe.oneOf("free", "all", "1", "8", "64"),
  force: mustBe.string,
};

/**
 * Loads a model and gives it back ready to run.
 *
 * ```js
 * const model = await loadModel("Qwen/Qwen3-0.6B", { onProgress: (p) => console.log(p.phase, p.loaded, p.total) });
 * console.log(await model.generate("Once upon a time", { maxTokens: 50 }));
 * ```
 *
 * Of a list of names, the first that fits this device is taken:
 *
 * ```js
 * const model = await loadModel(["Qwen/Qwen3-1.7B", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct"]);
 * ```
 *
 * @throws {@link JerboaError} with a code such as `not_found`, `gated`, `no_webgpu`, `out_of_memory`, `unknown_architecture`.
 */
export async function loadModel(source: ModelSource | readonly (string | URL)[], options?: LoadOptions): Promise<Model> {
  const given = checked("loadModel", options, OPTIONS);
  if (given.features) given.features = checked("loadModel: features", given.features, FEATURES);
  return isList(source) ? loadFirst(source, given) : loadOne(source, given, false);
}

async function loadOne(source: ModelSource, options: LoadOptions, mustFit: boolean): Promise<Model> {
  const { onProgress, signal, worker = true, wasmUrl, workerUrl, vad: given, ...others } = options;
  const vad = given === undefined ? undefined : await weights(given, signal);
  const rest: Omit<EngineLoadOptions, "model"> = vad ? { ...others, vad } : others;
  const model = sourceOf(source);
  refuseContradictions(model, rest);
  if (signal?.aborted) throw new JerboaError("aborted", "Loading the model was aborted.");

  const name = typeof model === "string" ? model : "the picked files";
  const notes = new Notes();
  const attempt = async (): Promise<Model> => {
    await othersNoted(notes, name);
    const step = rung(notes, name, agent(), { worker, options: { ...rest, model, ...(mustFit ? { mustFit } : {}) } });
    let opened: Opened | undefined;
    try {
      opened = await openBackend(step.wanted.worker, { ...(wasmUrl ? { wasmUrl } : {}), ...(workerUrl ? { workerUrl } : {}) });
      const loaded = await load(opened, step, notes, { signal, onEvent: onProgress });
      step.over(true);
      return loaded;
    } catch (thrown) {
      step.over(false);
      void opened?.backend.close();
      throw JerboaError.from(thrown);
    }
  };
  // Tabs that load the same model share one download: the second finds it in the cache.
  const waiting = (): void => onProgress?.({ phase: "waiting", share: 0, loaded: 0, total: 0, bytesPerSecond: 0, fromCache: false });
  const loaded = await inTurn(`load ${name}`, signal, waiting, attempt, (model) => model.stored).catch((thrown) => {
    throw JerboaError.from(thrown);
  });
  if (typeof model === "string" && rest.cache !== false) void keepStorage();
  return loaded;
}

/** The bytes of small weights. */
async function weights(given: string | URL | Uint8Array, signal: AbortSignal | undefined): Promise<Uint8Array> {
  if (given instanceof Uint8Array) return given;
  try {
    const response = await fetch(given, signal ? { signal } : {});
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  } catch (thrown) {
    if (signal?.aborted) throw new JerboaError("aborted", "Loading the model was aborted.");
    throw new JerboaError("network", `loadModel: 'vad' could not be fetched from ${String(given)}: ${(thrown as Error).message}.`, { cause: thrown });
  }
}

/** Loads a model in a backend, with what is known of this device. */
async function load({ backend, warning }: Opened, { wanted, warning: given, begin }: Rung, notes: Notes, call: CallOptions): Promise<Model> {
  const touchPoints = globalThis.navigator?.maxTouchPoints ?? 0;
  const options: EngineLoadOptions = { ...wanted.options, touchPoints };
  let calibration: Calibration | undefined;
  if (!options.features?.group && (await backend.call("implementation", [touchPoints])) !== "other") {
    calibration = await calibrated(notes, agent(), (group) => backend.call("calibrate", [group]));
    options.features = { ...options.features, group: calibration?.group ?? "1" };
  }
  const faults = await firstLook(backend, notes, touchPoints);
  begin();
  const info = await backend.call("load", [options], call);
  const warnings = [...(info.warnings ?? []), ...[warning, given, ...faults].filter((w) => w !== undefined)];
  // A backend that is closed or breaks meanwhile has stored what it could by its end.
  const stored = backend.call("stored", []).then((all) => void warnings.push(...all.filter((w) => !warnings.includes(w))), () => backend.close());
  storing.add(stored);
  void stored.then(() => storing.delete(stored));
  return new Model(calibration ? proving(backend, calibration) : backend, { ...info, warnings, worker: backend.worker }, stored);
}

/** Loads of this page that have ended, and still write to the cache. */
const storing = new Set<Promise<void>>();

/** What the checks of a device find: made once for each version of a browser, before it runs its first model. */
async function firstLook(backend: Backend, notes: Notes, touchPoints: number): Promise<string[]> {
  const seen = notes.read<{ agent: string; faults: string[] }>("device");
  if (!notes.kept || seen?.agent === agent()) return seen?.faults ?? [];
  const checks = await backend.call("diagnose", [touchPoints, true]).catch(() => undefined);
  if (!checks) return [];
  const faults = checks.filter((check) => !check.ok).map(({ name, fault }) => `This device computes wrongly (${name}: ${fault}). What models say here may be nonsense; a newer browser or driver may help.`);
  notes.write("device", { agent: agent(), faults });
  return faults;
}

/** A backend whose first work proves that a calibration holds. */
function proving(backend: Backend, calibration: Calibration): Backend {
  const work: ReadonlySet<Method> = new Set<Method>(["generate", "embed", "embedImage", "rerank", "logits", "encodeImage", "transcribe", "speak"]);
  const call = <M extends Method>(method: M, args: Parameters<Methods[M]>, options?: CallOptions): Promise<ReturnType<Methods[M]>> => {
    const run = (): Promise<ReturnType<Methods[M]>> => backend.call(method, args, options);
    return work.has(method) ? calibration.run(run) : run();
  };
  return {
    worker: backend.worker,
    get closed() {
      return backend.closed;
    },
    call,
    close: () => backend.close(),
  };
}

/** What this browser calls itself; notes hold for it alone. */
function agent(): string {
  return globalThis.navigator?.userAgent ?? "";
}

/** What says that another model may do better: it does not fit here, is not known here, or is not to be had. */
const GO_ON: ReadonlySet<string> = new Set([
  "out_of_memory", "unknown_architecture", "unsupported_option", "unsupported_encoding", "not_found", "gated", "config", "malformed",
]);

/** The first of some models that can be had and fits; `info.warnings` says why those before it were not taken. */
async function loadFirst(sources: readonly (string | URL)[], options: LoadOptions): Promise<Model> {
  const reasons: string[] = [];
  for (const [i, source] of sources.entries()) {
    const last = i === sources.length - 1;
    try {
      const model = await loadOne(source, options, !last);
      model.info.warnings.push(...reasons);
      return model;
    } catch (thrown) {
      const error = JerboaError.from(thrown);
      reasons.push(`${source} was not taken: ${error.message}`);
      if (last || !GO_ON.has(error.code)) throw reasons.length > 1 ? new JerboaError(error.code, reasons.join(" "), { cause: error }) : error;
    }
  }
  throw refused("loadModel got an empty list. Name at least one model.");
}

/** Names are a list of models; files are one model. */
function isList(source: ModelSource | readonly (string | URL)[]): source is readonly (string | URL)[] {
  return Array.isArray(source) && source.length > 0 && source.every((each) => typeof each === "string" || each instanceof URL);
}

/** Options that go with a repository's name, against what was given. */
function refuseContradictions(model: EngineLoadOptions["model"], { revision, endpoint, token }: LoadOptions): void {
  if (typeof model !== "string") {
    const name = Object.entries({ revision, endpoint, token }).find(([, value]) => value !== undefined)?.[0];
    if (name) throw refused(`loadModel: '${name}' goes with a download, not with picked files.`);
    return;
  }
  const folder = model.includes("://") && !/^https:\/\/(huggingface\.co|hf\.co)\//.test(model);
  const name = Object.entries({ revision, endpoint }).find(([, value]) => value !== undefined)?.[0];
  if (folder && name) throw refused(`loadModel: '${name}' goes with a repository's name, not with the address of a folder.`);
  const [, inName] = /^[^/@]+\/[^/@]+@(.+)$/.exec(model.replace(/\/[^/]+\.gguf$/i, "")) ?? [];
  if (inName && revision && inName !== revision) throw refused(`loadModel: the name says revision '${inName}' and the options say '${revision}'; give one.`);
}

/** The models in this browser's cache. */
export async function cachedModels(): Promise<CachedModel[]> {
  await Promise.all(storing);
  return once(async (backend) => (await backend.call("cachedModels", [])).map(cachedModel));
}

/** Removes a model from this browser's cache: the revision that is named, or all of them. */
export async function deleteModel(model: string, options?: { revision?: string; endpoint?: string }): Promise<void> {
  if (mustBe.string(model)) throw refused(`deleteModel takes the model's name, not ${describe(model)}.`);
  const { revision, endpoint } = checked("deleteModel", options, { revision: mustBe.string, endpoint: mustBe.string });
  await Promise.all(storing);
  const same = (a: string, b: string): boolean => a.replace(/\/+$/, "") === b.replace(/\/+$/, "");
  return once(async (backend) => {
    for (const entry of (await backend.call("cachedModels", [])).map(cachedModel)) {
      const wanted = revision === undefined || entry.revision === revision;
      if (wanted && same(entry.model, model) && same(entry.endpoint ?? HUB, endpoint ?? HUB)) await backend.call("deleteModel", [entry.source]);
    }
  });
}

const HUB = "https://huggingface.co";

/** A source of the cache as `loadModel` names it. */
function cachedModel(entry: CachedSource): CachedModel {
  const [, endpoint, model, revision] = /^(.+)\/([^/]+\/[^/@]+)@(.+)$/.exec(entry.source) ?? [];
  if (!endpoint || !model || !revision) return { ...entry, model: entry.source };
  return { ...entry, model, revision, ...(endpoint === HUB ? {} : { endpoint }) };
}

/** What this browser and its GPU can do: adapter, features, limits, and what the engine makes of them. */
export function deviceReport(): Promise<DeviceReport> {
  return once((backend) => backend.call("deviceReport", [globalThis.navigator?.maxTouchPoints ?? 0]));
}

/**
 * Runs small computations on this browser's GPU whose outcome is known, from one kernel to hundreds of dependent ones, in well under a second: the first that is wrong
 * tells what the device or its driver cannot do. Needs no model.
 */
export function diagnose(): Promise<Check[]> {
  return once((backend) => backend.call("diagnose", [globalThis.navigator?.maxTouchPoints ?? 0, false]));
}

/** Runs one call in a backend of its own. */
async function once<T>(call: (backend: Backend) => Promise<T>): Promise<T> {
  const { backend } = await openBackend(true);
  try {
    return await call(backend);
  } finally {
    void backend.close();
  }
}

function sourceOf(source: ModelSource): EngineLoadOptions["model"] {
  if (typeof source === "string" && source.trim()) return source.trim();
  if (source instanceof URL) return source.href;
  if (typeof source !== "object" || source === null) {
    throw refused(`loadModel takes 'org/name', the URL of a folder or a .gguf file, or files; it got ${source === "" ? "an empty string" : describe(source)}.`);
  }
  const files = Array.from(source as Iterable<File | NamedFile>, named);
  if (files.length === 0) throw refused("loadModel got an empty list of files. Pick config.json, tokenizer.json and the weights.");
  return files;
}

/** A picked file under its path inside the picked folder. */
function named(entry: File | NamedFile): NamedFile {
  if (!(entry instanceof File)) {
    if (typeof entry?.name === "string" && entry.file instanceof File) return { name: entry.name, file: entry.file };
    throw refused(`loadModel: a list of files holds File objects or { name, file }, not ${describe(entry)}.`);
  }
  const path = entry.webkitRelativePath;
  return { name: path ? path.slice(path.indexOf("/") + 1) : entry.name, file: entry };
}
