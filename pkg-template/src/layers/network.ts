/** Networks in a worker of their own. */

import { checked, describe, requireValid, valid, validator } from "../check.js";
import type { CallOptions } from "../engine-calls.js";
import { JerboaError } from "../index.js";
import { plainJson } from "../plain-json.js";
import { platform } from "../platform.js";
import type { RemoteBackend } from "../rpc.js";
import type { FitProgress, FitSettings, NetworkInfo } from "../train/network-calls.js";
import { withMainErrors } from "../train/main-errors.js";
import { ABORT_TIMEOUT_MS, isolated, untilAborted } from "../waits.js";
import { absoluteUrl, startWorker, workerStarted } from "../worker-start.js";
import type { Layer } from "./layer-types.js";
import { counted, readWeights, writeWeights, type Weight } from "./weights.js";

export type { Weight } from "./weights.js";

/** The numbers of all examples in order: a typed array, an array, or nested arrays. */
export type Numbers = Float32Array | Uint32Array | Int32Array | Uint8Array | readonly NestedNumbers[];
type NestedNumbers = number | readonly NestedNumbers[];

/** A network to create. */
export interface NetworkOptions {
  /** Shape of one example. */
  input: readonly number[];
  /** Layers in order. */
  layers: readonly Layer[];
  /** Seed of the initial weights. Equal seeds give bit-identical weights on one device. Default: `0`. */
  seed?: number;
  /** URL of train/worker.js, or of a bundle of it, for bundlers that do not copy it. */
  workerUrl?: string | URL;
  /** URL of train_bg.wasm. */
  wasmUrl?: string | URL;
}

/** Options of {@link Network.fit}. */
export interface FitOptions extends FitSettings {
  /** Receives the loss; see {@link FitProgress}. */
  onProgress?: (progress: FitProgress) => void;
  /** Cancels the fit: the promise rejects with code `aborted`, and the network keeps the weights trained so far. */
  signal?: AbortSignal;
}

/** Result of a fit. */
export interface FitResult {
  /** Mean loss of each epoch. */
  losses: number[];
}

const NETWORK = {
  input: validator("an array of sizes", (v) => Array.isArray(v)),
  layers: validator("an array of layers", (v) => Array.isArray(v)),
  seed: valid.integer(0, Number.MAX_SAFE_INTEGER),
  workerUrl: valid.url,
  wasmUrl: valid.url,
};

const LOSS = valid.oneOf("mse", "crossEntropy");
const BATCH_SIZE = valid.integer(1, 1 << 24);

const FIT = {
  loss: LOSS,
  optimizer: validator("'sgd', 'adamw' or an object with one of them as 'type'", (v) => typeof v === "string" || (typeof v === "object" && v !== null)),
  epochs: valid.integer(1, 1 << 24),
  batchSize: BATCH_SIZE,
  seed: valid.integer(0, Number.MAX_SAFE_INTEGER),
  shuffle: valid.boolean,
  maxNorm: valid.number(0, 1e9),
  onProgress: valid.func,
  signal: valid.signal,
};

/** Options of each optimizer. */
const OPTIMIZERS = { sgd: ["type", "learningRate", "momentum", "weightDecay"], adamw: ["type", "learningRate", "beta1", "beta2", "eps", "weightDecay"] };

const FINITE = validator("a finite number", Number.isFinite);
const FILE = validator("a Blob, an ArrayBuffer or a Uint8Array", (v) => v instanceof Blob || v instanceof ArrayBuffer || v instanceof Uint8Array);

const DEFAULT_BATCH_SIZE = 32;

type NetworkCall = (method: string, args: unknown[], options?: CallOptions) => Promise<unknown>;

/** A network on this device, in a worker of its own. Calls run one after another. */
export class Network {
  /** Shapes and weights. */
  readonly info: Readonly<NetworkInfo>;
  readonly #remote: RemoteBackend;

  /** @internal */
  constructor(remote: RemoteBackend, info: NetworkInfo) {
    this.#remote = remote;
    this.info = info;
  }

  /**
   * Trains the weights on examples.
   *
   * @throws {@link JerboaError} `request` for examples that do not fit and for a loss that is not finite; `aborted`.
   */
  async fit(x: Numbers, y: Numbers, options?: FitOptions): Promise<FitResult> {
    return withMainErrors(async () => {
      const { onProgress, signal, ...others } = checked("fit", options, FIT);
      const request = { ...others, ...optimizerOf(others.optimizer) } as FitSettings;
      const args = [this.#inputs("fit: x", x), this.#targets("fit: y", y, others.loss), request];
      const progress = isolated(onProgress);
      const onEvent = (event: unknown): void => progress?.(event as FitProgress);
      const losses = (await this.#call("fit", args, { onEvent }, signal)) as number[];
      return { losses };
    });
  }

  /** Computes the outputs of all examples, concatenated; each has the shape `info.outputShape`. */
  async predict(x: Numbers, options?: { batchSize?: number; signal?: AbortSignal }): Promise<Float32Array<ArrayBuffer>> {
    return withMainErrors(async () => {
      const { batchSize = DEFAULT_BATCH_SIZE, signal } = checked("predict", options, { batchSize: BATCH_SIZE, signal: valid.signal });
      return (await this.#call("predict", [this.#inputs("predict: x", x), batchSize], {}, signal)) as Float32Array<ArrayBuffer>;
    });
  }

  /** Computes the mean loss of examples. */
  async evaluate(x: Numbers, y: Numbers, options?: { loss?: "mse" | "crossEntropy"; batchSize?: number; signal?: AbortSignal }): Promise<number> {
    return withMainErrors(async () => {
      const { loss = "mse", batchSize = DEFAULT_BATCH_SIZE, signal } = checked("evaluate", options, { loss: LOSS, batchSize: BATCH_SIZE, signal: valid.signal });
      const args = [this.#inputs("evaluate: x", x), this.#targets("evaluate: y", y, loss), loss, batchSize];
      return (await this.#call("evaluate", args, {}, signal)) as number;
    });
  }

  /** Reads all weights, under the names of `info.weights`. */
  async weights(): Promise<Record<string, Weight>> {
    return withMainErrors(async () => readWeights((await this.#call("weights", [])) as Uint8Array<ArrayBuffer>));
  }

  /** Replaces weights by name; the others stay unchanged. If a name or shape is wrong, nothing changes. */
  async setWeights(weights: Record<string, Weight>): Promise<void> {
    return withMainErrors(async () => void (await this.#call("setWeights", [writeWeights("setWeights", weights)])));
  }

  /** The weights as a safetensors file, F32. */
  async save(): Promise<Blob> {
    return withMainErrors(async () => new Blob([(await this.#call("weights", [])) as Uint8Array<ArrayBuffer>]));
  }

  /**
   * Replaces the weights that a safetensors file has, under the names of `info.weights`. Floats and integers of all sizes
   * become F32.
   *
   * @throws {@link JerboaError} `malformed` for damaged files and other element types; `request` for names or shapes that the network lacks.
   */
  async load(file: Blob | ArrayBuffer | Uint8Array): Promise<void> {
    return withMainErrors(async () => {
      requireValid("load", "the file", file, FILE);
      const bytes = file instanceof Uint8Array ? file : new Uint8Array(file instanceof Blob ? await file.arrayBuffer() : file);
      await this.#call("setWeights", [bytes]);
    });
  }

  /** Ends the worker and frees the device's memory. */
  async unload(): Promise<void> {
    await this.#remote.close();
  }

  #inputs(what: string, x: Numbers): Uint32Array {
    const shape = this.info.inputShape;
    return this.info.inputType === "ids" ? whole(what, x, shape, 0) : floats(what, x, shape);
  }

  #targets(what: string, y: Numbers, loss: FitOptions["loss"]): Uint32Array {
    const shape = this.info.outputShape;
    return loss === "crossEntropy" ? whole(what, y, shape.slice(0, -1), -1) : floats(what, y, shape);
  }

  async #call(method: string, args: unknown[], options: CallOptions = {}, signal?: AbortSignal): Promise<unknown> {
    if (signal?.aborted) throw new JerboaError("aborted", `${method} was aborted.`);
    const call = this.#remote.call.bind(this.#remote) as unknown as NetworkCall;
    try {
      return await untilAborted(ABORT_TIMEOUT_MS, method, signal, call(method, args, { ...options, signal }));
    } catch (thrown) {
      if ((thrown as { code?: unknown }).code !== "unloaded") throw thrown;
      throw new JerboaError("unloaded", `${method}: the network was unloaded. Call createNetwork for a new one.`, { cause: thrown });
    }
  }
}

/**
 * Creates a network with randomly initialized weights. It runs in its own worker, which is downloaded on first use with the
 * WebAssembly module of `jerboa/train`.
 *
 * ```js
 * const network = await createNetwork({ input: [2], layers: [{ type: "dense", units: 8, activation: "tanh" }, { type: "dense", units: 1 }] });
 * await network.fit([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0], { optimizer: { type: "adamw", learningRate: 0.05 }, epochs: 300 });
 * console.log(await network.predict([[1, 0]]));
 * ```
 *
 * @throws {@link JerboaError} `request` that names the layer, for layers that do not fit; `no_webgpu`.
 */
export async function createNetwork(options: NetworkOptions): Promise<Network> {
  return withMainErrors(async () => {
    requireValid("createNetwork", "the options", options, valid.object);
    const { input, layers, seed = 0, workerUrl, wasmUrl } = checked("createNetwork", options, NETWORK);
    if (!input || !layers) throw new JerboaError("request", `createNetwork: '${input ? "layers" : "input"}' is missing.`);
    const description = plainJson("createNetwork", "layers", { input, layers });
    if (platform()) throw new JerboaError("unsupported_option", "createNetwork: networks are not supported in Node, Deno and Bun. Create them in a web page.");
    const remote = networkWorker(absoluteUrl(workerUrl));
    try {
      await workerStarted("createNetwork", remote, wasmUrl);
      const call = remote.call.bind(remote) as unknown as NetworkCall;
      return new Network(remote, (await call("openNetwork", [description, seed])) as NetworkInfo);
    } catch (thrown) {
      void remote.close();
      throw thrown;
    }
  });
}

/** The worker of the training module: a network runs in one of its own. */
function networkWorker(url: string | undefined): RemoteBackend {
  try {
    // Bundlers match these exact expressions.
    return startWorker("jerboa layers", url, new URL("../train/worker.js", import.meta.url), () => new Worker(new URL("../train/worker.js", import.meta.url), { type: "module", name: "jerboa layers" }));
  } catch (thrown) {
    throw new JerboaError("worker", `createNetwork: the network's worker could not be started: ${(thrown as Error).message}. Set 'workerUrl' to the URL of train/worker.js.`, { cause: thrown });
  }
}

/** Checks the names of an optimizer's options, and that they are numbers; the module checks their ranges. */
function optimizerOf(optimizer: FitOptions["optimizer"]): { optimizer?: string | object } {
  if (typeof optimizer !== "object") return optimizer === undefined ? {} : { optimizer };
  const names = OPTIMIZERS[optimizer.type];
  if (!names) throw new JerboaError("request", "fit: 'optimizer.type' must be 'sgd' or 'adamw'.");
  const unknown = Object.keys(optimizer).find((name) => !names.includes(name));
  if (unknown) throw new JerboaError("request", `fit: ${optimizer.type} has no option '${unknown}'. Use ${names.slice(1).join(", ")}.`);
  for (const [name, value] of Object.entries(optimizer)) if (name !== "type" && value !== undefined && value !== null) requireValid("fit", `'optimizer.${name}'`, value, FINITE);
  return { optimizer: plainJson("fit", "optimizer", optimizer) };
}

/** All numbers in order; each row of nested arrays must have the numbers of one example, of this shape. */
function flat(what: string, data: Numbers, shape: readonly number[]): ArrayLike<number> {
  if (ArrayBuffer.isView(data) && !(data instanceof DataView)) return data;
  if (!Array.isArray(data)) throw new JerboaError("request", `${what} must be a typed array or an array of numbers, not ${describe(data)}.`);
  if (!data.some(Array.isArray)) return data as number[];
  const rows = Array.from(data as NestedNumbers[], (row) => (Array.isArray(row) ? (row.flat(Infinity) as number[]) : [row as number]));
  const width = shape.reduce((product, size) => product * size, 1);
  const wrong = rows.findIndex(({ length }) => length !== width);
  if (wrong >= 0) throw new JerboaError("request", `${what}: row ${wrong} has ${counted(rows[wrong]!.length)}, but must have ${width}${shape.length > 1 ? ` (${shape.join(" × ")})` : ""}.`);
  return rows.flat();
}

const shown = (value: unknown): string => (typeof value === "bigint" ? `the BigInt ${value}n` : describe(value));

/** The bits of f32 numbers. */
function floats(what: string, data: Numbers, shape: readonly number[]): Uint32Array {
  const values = flat(what, data, shape);
  const wrong = Array.prototype.findIndex.call(values, (value: unknown) => typeof value !== "number" || !Number.isFinite(Math.fround(value)));
  if (wrong >= 0) throw new JerboaError("request", `${what} must contain only finite numbers; item ${wrong} is ${shown(values[wrong])}.`);
  return new Uint32Array(Float32Array.from(values).buffer);
}

/** Whole numbers from `min`; -1 becomes the largest word. */
function whole(what: string, data: Numbers, shape: readonly number[], min: number): Uint32Array {
  const values = flat(what, data, shape);
  const wrong = Array.prototype.findIndex.call(values, (value: unknown) => !Number.isInteger(value) || (value as number) < min || (value as number) >= 0xffffffff);
  if (wrong >= 0) throw new JerboaError("request", `${what} must contain only whole numbers from ${min}; item ${wrong} is ${shown(values[wrong])}.`);
  return Uint32Array.from(values);
}
