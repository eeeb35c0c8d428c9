/** Trains a LoRA adapter in a worker of its own. */

import { checked, valid, validator } from "../check.js";
import type { EngineLoadOptions, LoadProgress } from "../contract.js";
import type { CallOptions } from "../engine-calls.js";
import { JerboaError, type LoadFields, type Model, type ModelSource } from "../index.js";
import { invalidRequest } from "../errors.js";
import { platform } from "../platform.js";
import type { RemoteBackend } from "../rpc.js";
import { LOAD_SPEC } from "../schema.js";
import { sourceOf } from "../model-source.js";
import { ABORT_TIMEOUT_MS, isolated, untilAborted } from "../waits.js";
import { absoluteUrl, startWorker, workerStarted } from "../worker-start.js";
import { adapterOf, bytesOf, type AdapterFiles, type TrainedAdapter } from "./adapter.js";
import type { TrainArguments, TrainEvent, TrainItems, TrainPlan, TrainProgress, TrainRequest, TrainResult, TrainSettings } from "./calls.js";
import { describeKind, kindOfItems, trainItems, type TrainData, type TrainDataKind } from "./dataset.js";
import { withMainErrors } from "./main-errors.js";

/** Options of {@link trainLora}. */
export interface TrainOptions extends TrainSettings {
  /** Fraction of the sequences or pairs held out for evaluation, or separate evaluation data. Default: `0.1`. */
  evaluation?: number | TrainData;
  /** Steps between evaluations; they also run before the first and after the last step. Default: a tenth of the steps. */
  evaluationSteps?: number;
  /** The files of an adapter to continue training. Its rank, alpha and targets are the defaults of this run. */
  resume?: AdapterFiles;
  /** Options of the load, if the model is given by name or files. A loaded model has its own. */
  load?: LoadFields;
  /** Receives progress of loading the model's weights. */
  onLoad?: (progress: LoadProgress) => void;
  /** Receives the number of steps and the device memory before the first step. */
  onPlan?: (plan: TrainPlan) => void;
  /** Receives losses and speed after each step, and before the first one. */
  onProgress?: (progress: TrainProgress) => void;
  /** Cancels the training; the promise rejects with code `aborted`. */
  signal?: AbortSignal;
  /** Ends the training after the running step; the promise resolves to the adapter so far. */
  stop?: AbortSignal;
  /** URL of train/worker.js, or of a bundle of it, for bundlers that do not copy it next to the script. */
  workerUrl?: string | URL;
  /** URL of train_bg.wasm. */
  wasmUrl?: string | URL;
}

const OPTIONS = {
  rank: valid.integer(1, 1024),
  alpha: valid.above(0, 1e6),
  targets: validator("an array with a name or more", (v) => Array.isArray(v) && v.length > 0 && v.every((name) => typeof name === "string")),
  epochs: valid.integer(1, 1e6),
  batchSize: valid.integer(1, 1 << 16),
  learningRate: valid.above(0, 10),
  schedule: valid.oneOf("constant", "linear", "cosine"),
  warmUp: valid.number(0, 1),
  weightDecay: valid.number(0, 1),
  maxLength: valid.integer(2, 1 << 20),
  evaluation: validator("a number from 0 to 0.9, or data", (v) => (typeof v === "number" ? v >= 0 && v <= 0.9 : typeof v === "string" || Array.isArray(v))),
  evaluationSteps: valid.integer(1),
  seed: valid.integer(0, Number.MAX_SAFE_INTEGER),
  scale: valid.above(0, 1e6),
  checkpointing: validator("'auto', true or false", (v) => v === "auto" || typeof v === "boolean"),
  resume: validator("the files of an adapter", (v) => typeof v === "object" && v !== null && Symbol.iterator in v),
  dpo: valid.object,
  load: valid.object,
  onLoad: valid.func,
  onPlan: valid.func,
  onProgress: valid.func,
  signal: valid.signal,
  stop: valid.signal,
  workerUrl: valid.url,
  wasmUrl: valid.url,
};

const DPO_OPTIONS = { beta: valid.above(0, 1e3) };

/** Default fraction of the sequences held out for evaluation. */
const EVALUATION_SHARE = 0.1;

/**
 * Trains a LoRA adapter on this device: of a text model on texts, conversations or preference pairs, or of an embedding
 * model on pairs of a query and a positive. The training runs in a worker with a WebAssembly module of its own, which is
 * downloaded on first use. It opens the model from the cache as the loaded one was opened. A loaded model stays usable
 * meanwhile.
 *
 * ```js
 * const adapter = await trainLora(model, text, { epochs: 3, onProgress: ({ step, loss }) => console.log(step, loss) });
 * await model.loadAdapter(adapter, { name: "mine" });
 * console.log(await model.generate("Once upon a time", { adapter: "mine" }));
 * ```
 *
 * @throws {@link JerboaError} `out_of_memory` before the first step if the device has no memory for it; `unsupported_option` for
 * models that cannot be trained; `request`, `aborted`, and the codes of `loadModel`.
 */
export async function trainLora(model: Model | ModelSource, data: TrainData, options?: TrainOptions): Promise<TrainedAdapter> {
  return withMainErrors(() => train(model, data, options));
}

async function train(model: Model | ModelSource, data: TrainData, options: TrainOptions | undefined): Promise<TrainedAdapter> {
  const { evaluation, evaluationSteps, resume, load, onLoad, onPlan, onProgress, signal, stop, workerUrl, wasmUrl, dpo, ...others } = checked("trainLora", options, OPTIONS);
  if (platform()) throw new JerboaError("unsupported_option", "trainLora: training is not supported in Node, Deno and Bun. Train in a web page, or natively with `cargo run --example run -- train`.");
  const share = typeof evaluation === "number" ? evaluation : EVALUATION_SHARE;
  const items = trainItems("the dataset", data);
  const kind = kindOfItems(items);
  const separate: TrainItems = evaluation === undefined || typeof evaluation === "number" ? [] : trainItems("'evaluation'", evaluation);
  if (separate.length > 0 && kindOfItems(separate) !== kind) throw invalidRequest(`trainLora: 'evaluation' must have ${describeKind(kind)}, as the dataset, not ${describeKind(kindOfItems(separate))}.`);
  if (dpo && kind !== "preference") throw invalidRequest("trainLora: 'dpo' applies to pairs with 'prompt', 'chosen' and 'rejected'. Leave it out.");
  if (others.scale !== undefined && kind !== "embedding") throw invalidRequest("trainLora: 'scale' applies to pairs with 'query' and 'positive'. Leave it out.");
  if (others.checkpointing === true && kind === "embedding") throw invalidRequest("trainLora: 'checkpointing' does not apply to embedding models. Leave it out, or use a smaller 'maxLength' to save memory.");
  const earlier = resume && (await bytesOf(resume));
  const engineLoad = loadOptionsOf(model, load, kind);
  const request: TrainRequest = { ...settingsOf(earlier?.config), ...others, ...(dpo ? { dpo: checked("trainLora: 'dpo'", dpo, DPO_OPTIONS) } : {}), base: nameOf(model), evaluation: share };
  const given: TrainArguments = { load: engineLoad, data: items, evaluation: separate, evaluationSteps, request, ...(earlier ? { resume: earlier } : {}) };
  if (signal?.aborted) throw new JerboaError("aborted", "trainLora was aborted.");

  const listeners = { load: isolated(onLoad), plan: isolated(onPlan), progress: isolated(onProgress) };
  const onEvent = (event: TrainEvent): void => {
    if ("load" in event) listeners.load?.(event.load);
    else if ("plan" in event) listeners.plan?.(event.plan);
    else listeners.progress?.(event.progress);
  };
  const remote = trainWorker(absoluteUrl(workerUrl));
  const call = remote.call.bind(remote) as unknown as (method: "train" | "stop", args: [TrainArguments?], options?: CallOptions) => Promise<TrainResult>;
  const onStop = (): void => void call("stop", []).catch(() => {});
  try {
    await untilAborted(ABORT_TIMEOUT_MS, "trainLora", signal, workerStarted("trainLora", remote, wasmUrl));
    stop?.addEventListener("abort", onStop);
    if (stop?.aborted) onStop();
    return adapterOf(await untilAborted(ABORT_TIMEOUT_MS, "trainLora", signal, call("train", [given], { signal, onEvent })));
  } finally {
    stop?.removeEventListener("abort", onStop);
    void remote.close();
  }
}

/** Rank, alpha and targets of an adapter. */
function settingsOf(config: Uint8Array | undefined): Pick<TrainRequest, "rank" | "alpha" | "targets"> {
  if (!config) return {};
  try {
    const { r, lora_alpha, target_modules } = JSON.parse(new TextDecoder().decode(config));
    return { rank: r, alpha: lora_alpha, ...(Array.isArray(target_modules) ? { targets: target_modules } : {}) };
  } catch (thrown) {
    throw new JerboaError("malformed", `trainLora: the adapter_config.json of 'resume' is not valid JSON: ${(thrown as Error).message}.`, { cause: thrown });
  }
}

const isModel = (given: Model | ModelSource): given is Model => typeof (given as Partial<Model> | undefined)?.loadAdapter === "function";

/** How the training opens the model: as it was loaded. */
function loadOptionsOf(model: Model | ModelSource, load: LoadFields | undefined, kind: TrainDataKind): EngineLoadOptions {
  if (!isModel(model)) {
    const touchPoints = globalThis.navigator?.maxTouchPoints ?? 0;
    return { ...checked("trainLora: load", load, LOAD_SPEC), touchPoints, model: sourceOf(model, "trainLora") };
  }
  if (load) throw invalidRequest("trainLora: 'load' applies to a model's name or files; a loaded model has its own options.");
  const { task, model: name } = model.info;
  if (task === "embed" && kind !== "embedding") throw invalidRequest(`trainLora: ${name} is an embedding model, which learns from ${describeKind("embedding")}, not from ${describeKind(kind)}.`);
  if (task === "generate" && kind === "embedding") throw invalidRequest(`trainLora: ${name} is a text model, which learns from texts, conversations and preference pairs, not from ${describeKind(kind)}. Load an embedding model, or this one with task: "embed".`);
  if (task !== "generate" && task !== "embed") throw invalidRequest(`trainLora: ${name} cannot be trained. Load a text or an embedding model.`);
  return model.loadOptions;
}

/** The model's name in the adapter's settings. */
function nameOf(model: Model | ModelSource): string {
  if (isModel(model)) return model.info.model;
  return typeof model === "string" ? model : model instanceof URL ? model.href : "";
}

function trainWorker(url: string | undefined): RemoteBackend {
  try {
    // Bundlers match these exact expressions.
    return startWorker("jerboa train", url, new URL("./worker.js", import.meta.url), () => new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "jerboa train" }));
  } catch (thrown) {
    throw new JerboaError("worker", `trainLora: the training worker could not be started: ${(thrown as Error).message}. Set 'workerUrl' to the URL of train/worker.js.`, { cause: thrown });
  }
}
