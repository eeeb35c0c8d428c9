/** Type declarations of the training module, which is next to these files in the built package. */

import type { EngineLoadOptions, LoadProgress } from "../contract.js";
import type { FitProgress, FitSettings, NetworkDescription, NetworkInfo } from "./network-calls.js";
import type { TrainedStep, TrainEvaluation, TrainItems, TrainPlan, TrainRequest } from "./calls.js";

/** Loads the module's WebAssembly. */
export default function init(options?: { module_or_path: string | URL | BufferSource }): Promise<unknown>;

/** A LoRA training of a text or embedding model. */
export declare class Training {
  /** Opens a model with the options of a load and prepares a run; `evaluation` is empty for a share of `data`. */
  static open(
    load: EngineLoadOptions & { signal?: AbortSignal },
    data: TrainItems,
    evaluation: TrainItems,
    request: TrainRequest,
    resume: { config: Uint8Array; weights: Uint8Array } | undefined,
    onProgress: (progress: LoadProgress) => void,
  ): Promise<Training>;
  plan(): TrainPlan;
  /** Prepares a micro-batch of preference pairs; whether more are left. */
  prepare(): Promise<boolean>;
  /** Trains the next step; null at the end. */
  step(): Promise<TrainedStep | null>;
  /** Measures what is not trained on; null if there is nothing. */
  evaluate(): Promise<TrainEvaluation | null>;
  adapter(): Promise<{ config: string; weights: Uint8Array<ArrayBuffer> }>;
  free(): void;
}

/** A network of layers on the GPU. Numbers and ids are 32-bit words. */
export declare class LayerNetwork {
  /** Builds a network, with weights by a seed. */
  static open(description: NetworkDescription, seed: number): Promise<LayerNetwork>;
  info(): NetworkInfo;
  predict(x: Uint32Array, batchSize: number): Promise<Float32Array<ArrayBuffer>>;
  evaluate(x: Uint32Array, y: Uint32Array, loss: string, batchSize: number): Promise<number>;
  start(x: Uint32Array, y: Uint32Array, options: FitSettings): void;
  /** Trains up to 16 steps; null at the end. */
  advance(): Promise<FitProgress | null>;
  weights(): Promise<Uint8Array<ArrayBuffer>>;
  setWeights(bytes: Uint8Array): void;
  free(): void;
}
