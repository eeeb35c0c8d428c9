/** Runs a training or a network on this thread, step by step. Does not depend on the transport. */

import type { CallOptions, EngineModule } from "../engine-calls.js";
import { explained } from "../csp.js";
import { aborted, invalidRequest, JerboaError, missingAsset } from "../errors.js";
import { stripUndefined } from "../strip-undefined.js";
import { TrapWatch } from "../traps.js";
import { ASSET_TIMEOUT_MS, withTimeout } from "../waits.js";
import { isNetworkMethod, NetworkHost } from "./network-host.js";
import type { TrainArguments, TrainEvaluation, TrainEvent, TrainProgress, TrainResult } from "./calls.js";
import type { Training } from "./train.js";

type TrainModule = typeof import("./train.js");

/** Evaluations of a run, unless the caller sets the steps between them. */
const EVALUATIONS = 10;

/** The training module on this thread. It runs one training, or one network. */
export class TrainHost {
  readonly #module: TrainModule;
  readonly #traps: TrapWatch;
  readonly #closing = new AbortController();
  #input: { module_or_path: string } | undefined;
  #network: NetworkHost | undefined;
  #stopped = false;

  constructor(module: TrainModule) {
    this.#module = module;
    this.#traps = TrapWatch.of(module as unknown as EngineModule);
    this.#traps.files.push("train");
  }

  /** What stopped the module; undefined while it works. */
  get trap(): JerboaError | undefined {
    return this.#traps.error;
  }

  /** Sets the URL of the wasm file; call it before the first call. */
  useWasm(url: string): void {
    this.#input = { module_or_path: url };
    this.#traps.files.push(new URL(url).pathname.split("/").pop()!);
  }

  /** `train` runs a training; `stop` ends it after the running step. The methods of a network run it. */
  async call(method: string, args: unknown[], options: CallOptions = {}): Promise<unknown> {
    if (method === "stop") return void (this.#stopped = true);
    if (method !== "train" && !isNetworkMethod(method)) throw invalidRequest(`unknown call '${method}'. Serve all files of the package from the same version.`);
    const signal = AbortSignal.any([this.#closing.signal, ...(options.signal ? [options.signal] : [])]);
    const onEvent = (options.onEvent ?? ((): void => {})) as (event: unknown) => void;
    // A trapped module never answers.
    const trapped = new Promise<never>((_, reject) => this.#traps.users.add(reject));
    trapped.catch(() => {});
    try {
      return await Promise.race([this.#run(method, args, signal, onEvent), trapped]);
    } catch (thrown) {
      this.#traps.report(thrown);
      throw await explained(thrown);
    }
  }

  async close(): Promise<void> {
    this.#closing.abort();
  }

  async #run(method: string, args: unknown[], signal: AbortSignal, onEvent: (event: unknown) => void): Promise<unknown> {
    try {
      await withTimeout(ASSET_TIMEOUT_MS, "its server", this.#module.default(this.#input));
    } catch (thrown) {
      throw missingAsset("The training module (train/train_bg.wasm)", thrown);
    }
    if (!isNetworkMethod(method)) return this.#train(args[0] as TrainArguments, signal, onEvent);
    this.#network ??= new NetworkHost(this.#module.LayerNetwork);
    return this.#network.call(method, args, signal, onEvent);
  }

  async #train(given: TrainArguments, signal: AbortSignal, onEvent: (event: TrainEvent) => void): Promise<TrainResult> {
    const { load, data, evaluation, request, resume } = given;
    const options = { ...(stripUndefined(load) as TrainArguments["load"]), signal };
    const training = await this.#module.Training.open(options, data, evaluation, stripUndefined(request) as TrainArguments["request"], resume, (load) => onEvent({ load }));
    try {
      const steps = await this.#steps(training, given.evaluationSteps, signal, onEvent);
      return { ...(await training.adapter()), steps };
    } finally {
      if (!this.trap) training.free();
    }
  }

  /** Runs all steps, or those until a stop; returns their number. */
  async #steps(training: Training, evaluationSteps: number | undefined, signal: AbortSignal, onEvent: (event: TrainEvent) => void): Promise<number> {
    const plan = training.plan();
    onEvent({ plan });
    const every = evaluationSteps ?? Math.max(1, Math.ceil(plan.steps / EVALUATIONS));
    const requireRunning = (): void => {
      if (signal.aborted) throw aborted("trainLora");
    };
    requireRunning();
    while (await training.prepare()) {
      requireRunning();
      if (this.#stopped) return 0;
    }
    const evaluated = async (): Promise<Partial<TrainProgress>> => evaluationOf(await training.evaluate());
    onEvent({ progress: { step: 0, steps: plan.steps, epoch: 0, learningRate: 0, tokensPerSecond: 0, ...(await evaluated()) } });
    let [trained, milliseconds, done] = [0, 0, 0];
    while (!this.#stopped) {
      requireRunning();
      const start = performance.now();
      const step = await training.step();
      if (!step) break;
      milliseconds += performance.now() - start;
      trained += step.tokens;
      done = step.step;
      const { tokens: _, ...progress } = step;
      requireRunning();
      const evaluates = done % every === 0 || done === plan.steps || this.#stopped;
      onEvent({ progress: { ...progress, tokensPerSecond: (1000 * trained) / milliseconds, ...(evaluates ? await evaluated() : {}) } });
    }
    requireRunning();
    return done;
  }
}

/** The fields of a progress that an evaluation sets. */
function evaluationOf(found: TrainEvaluation | null): Partial<TrainProgress> {
  if (!found) return {};
  const { loss, rewardMargin, rewardAccuracy } = found;
  return { evaluationLoss: loss, ...(rewardMargin === undefined ? {} : { evaluationRewardMargin: rewardMargin, evaluationRewardAccuracy: rewardAccuracy }) };
}
