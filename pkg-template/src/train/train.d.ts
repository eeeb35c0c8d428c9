/** Type declarations of the training module, which is next to these files in the built package. */

import type { EngineLoadOptions, LoadProgress } from "../contract.js";
import type { TrainedStep, TrainPlan, TrainRequest, TrainText } from "./calls.js";

/** Loads the module's WebAssembly. */
export default function init(options?: { module_or_path: string | URL | BufferSource }): Promise<unknown>;

/** A LoRA training of a text model. */
export declare class Training {
  /** Opens a model with the options of a load and prepares a run; `evaluation` is empty for a share of `data`. */
  static open(
    load: EngineLoadOptions & { signal?: AbortSignal },
    data: TrainText[],
    evaluation: TrainText[],
    request: TrainRequest,
    resume: { config: Uint8Array; weights: Uint8Array } | undefined,
    onProgress: (progress: LoadProgress) => void,
  ): Promise<Training>;
  plan(): TrainPlan;
  /** Trains the next step; null at the end. */
  step(): Promise<TrainedStep | null>;
  /** The mean loss of what is not trained on. */
  evaluate(): Promise<number>;
  adapter(): Promise<{ config: string; weights: Uint8Array<ArrayBuffer> }>;
  free(): void;
}
