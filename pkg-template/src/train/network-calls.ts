/** What the page and the worker of a network send each other. */

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

/** Settings of a fit, as the module reads them. */
export interface FitRequest {
  loss?: string;
  optimizer?: string | object;
  epochs?: number;
  batchSize?: number;
  seed?: number;
  shuffle?: boolean;
  maxNorm?: number;
}

/** Progress of a fit, as the module reports it. */
export interface FitProgressEvent {
  epoch: number;
  step: number;
  steps: number;
  loss: number;
  isEpochEnd: boolean;
}
