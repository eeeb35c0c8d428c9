/** What the page and the training's worker send each other. */

import type { EngineLoadOptions, LoadProgress } from "../contract.js";

/** A text, or a conversation as the chat template takes it. */
export type TrainText = string | unknown[];

/** Options of a run, as the module reads them. */
export interface TrainRequest {
  /** Name of the model in adapter_config.json. */
  base: string;
  rank?: number;
  alpha?: number;
  targets?: string[];
  epochs?: number;
  batchSize?: number;
  learningRate?: number;
  schedule?: "constant" | "linear" | "cosine";
  warmUp?: number;
  weightDecay?: number;
  maxLength?: number;
  /** Share of the data that only measures the loss. */
  evaluation?: number;
  seed?: number;
}

/** What a run will do and take, known before its first step. */
export interface TrainPlan {
  /** Steps of all epochs. */
  steps: number;
  /** Sequences to train on. A long text has several. */
  sequences: number;
  /** Sequences that only measure the loss. */
  evaluationSequences: number;
  /** Tokens of an epoch. */
  tokens: number;
  /** Tokens of the longest sequence. */
  maxLength: number;
  /** Device memory in bytes. */
  memory: {
    /** Values and gradients of a micro-batch. */
    activations: number;
    /** The adapter, its gradients and the optimizer's states. */
    trained: number;
    /** The model's own weights, which do not change. */
    frozen: number;
  };
}

/** A step, as the module reports it. */
export interface TrainedStep {
  step: number;
  steps: number;
  epoch: number;
  loss: number;
  gradientNorm: number;
  learningRate: number;
  tokens: number;
}

/** Progress of a run, after each step. */
export interface TrainProgress {
  /** Steps done; 0 for the evaluation before the first one. */
  step: number;
  /** Steps of the run. */
  steps: number;
  /** Epoch, from 0. */
  epoch: number;
  /** Mean loss of the step's tokens; not set at step 0. */
  loss?: number;
  /** Mean loss of what is not trained on; set in steps with an evaluation. */
  evaluationLoss?: number;
  /** Norm of all gradients before clipping; not set at step 0. */
  gradientNorm?: number;
  /** Learning rate of the step. */
  learningRate: number;
  /** Tokens that the run has trained on per second, evaluations excluded. */
  tokensPerSecond: number;
}

/** Arguments of a run. */
export interface TrainArguments {
  load: EngineLoadOptions;
  data: TrainText[];
  evaluation: TrainText[];
  /** Steps between evaluations; by default a tenth of the run. */
  evaluationSteps?: number;
  request: TrainRequest;
  resume?: { config: Uint8Array; weights: Uint8Array };
}

/** Events of a run. */
export type TrainEvent = { load: LoadProgress } | { plan: TrainPlan } | { progress: TrainProgress };

/** The adapter's files. */
export interface TrainResult {
  config: string;
  weights: Uint8Array<ArrayBuffer>;
  /** Steps that were trained. */
  steps: number;
}
