/** What the page and the worker of a network send each other. */

import type { Optimizer } from "../layers/layer-types.js";

/** A network, as the module reads it. */
export interface NetworkDescription {
  input: readonly number[];
  layers: readonly object[];
}

/** Shapes and weights of a network. */
export interface NetworkInfo {
  /** Shape of an example. */
  inputShape: number[];
  /** Shape of an example's output. */
  outputShape: number[];
  /** `ids` if the network begins with an embedding. */
  inputType: "float32" | "ids";
  /** Names and shapes of the weights, in order of the layers. */
  weights: { name: string; shape: number[] }[];
  /** Numbers in all weights. */
  parameters: number;
}

/** Settings of a fit: loss, optimizer, passes. */
export interface FitSettings {
  /**
   * `mse`: mean squared error; `y` has the shape of the output. `crossEntropy`: softmax cross-entropy over the last
   * dimension; `y` has a class index for each row of the output, or -1 to ignore the row. Default: `mse`.
   */
  loss?: "mse" | "crossEntropy";
  /** The optimizer; its state starts anew with each fit. Default: `adamw`. */
  optimizer?: "sgd" | "adamw" | Optimizer;
  /** Passes over the examples. Default: `1`. */
  epochs?: number;
  /** Examples per step. Default: `32`. */
  batchSize?: number;
  /** Seed of the shuffling. Default: `0`. */
  seed?: number;
  /** Whether the examples are shuffled in each epoch. Default: `true`. */
  shuffle?: boolean;
  /** Clips the global gradient norm to this value; 0 disables clipping. Default: `0`. */
  maxNorm?: number;
}

/** Progress of a fit: at least after each epoch, and after 16 steps. */
export interface FitProgress {
  /** Epoch, from 0. */
  epoch: number;
  /** Steps done. */
  step: number;
  /** Steps of the fit. */
  steps: number;
  /** Mean loss of the epoch so far. */
  loss: number;
  /** Whether the epoch is done. */
  isEpochEnd: boolean;
}
