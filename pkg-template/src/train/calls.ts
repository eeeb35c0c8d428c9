/** What the page and the training's worker send each other. */

import type { EngineLoadOptions, LoadProgress } from "../contract.js";

/** A preference pair whose messages are as the chat template takes them. */
export interface TrainPreference {
  prompt?: string | unknown[];
  chosen: string | unknown[];
  rejected: string | unknown[];
}

/** A text, a conversation as the chat template takes it, or a preference pair. */
export type TrainText = string | unknown[] | TrainPreference;

/** Settings of direct preference optimization (arXiv 2305.18290). */
export interface DpoSettings {
  /** How strongly the adapter may differ from the model: less for larger numbers. Default: `0.1`. */
  beta?: number;
}

/** An example for embedding models: the query shall find the positive, and none of the negatives. */
export interface TrainPair {
  query: string;
  positive: string;
  /** Texts that are similar to the positive. The texts of the step's other examples are negatives anyway. */
  negatives?: readonly string[];
}

/** Settings of a run. */
export interface TrainSettings {
  /** Rank of the updates: more learns more and takes more memory. Default: `8`. */
  rank?: number;
  /** The updates are multiplied by `alpha / rank`. Default: `16`. */
  alpha?: number;
  /** Names of the matrices to update, such as `q_proj`. Default: all matrices of the layers. */
  targets?: string[];
  /** Passes over the data. Default: `1`. */
  epochs?: number;
  /** Sequences or pairs per step. More pairs of an embedding model are more negatives for each query. Default: `8`, for embedding models `32`. */
  batchSize?: number;
  /** Highest learning rate. Default: `0.0002`, for preference pairs `0.00005`. */
  learningRate?: number;
  /** How the learning rate goes on after the warm-up. Default: `linear`, down to 0. */
  schedule?: "constant" | "linear" | "cosine";
  /** Share of the steps in which the learning rate rises. Default: `0.05`. */
  warmUp?: number;
  /** Weight decay of AdamW. Default: `0`. */
  weightDecay?: number;
  /** Maximum tokens of a sequence; activations take memory in proportion. Default: `512`. */
  maxLength?: number;
  /** Seed of the first weights and of the order of the data. Equal runs on one device have equal bits. Default: `0`. */
  seed?: number;
  /**
   * Stores few activations and computes the others again in the backward pass: less memory, the same losses and weights,
   * and steps that take about a third longer. `auto`: if micro-batches would become small, or the run would not fit.
   * Default: `auto`. Not for embedding models.
   */
  checkpointing?: "auto" | boolean;
  /** Settings of a run over preference pairs. */
  dpo?: DpoSettings;
  /** Multiplies the cosine similarities of an embedding model: 1 / temperature. Default: `20`. */
  scale?: number;
}

/** Settings of a run, as the module reads them. */
export interface TrainRequest extends TrainSettings {
  /** Name of the model in adapter_config.json. */
  base: string;
  /** Share of the data that only measures the loss. */
  evaluation?: number;
}

/** What a run will do and take, known before its first step. */
export interface TrainPlan {
  /** Steps of all epochs. */
  steps: number;
  /** Sequences or pairs to train on. A long text has several. */
  sequences: number;
  /** Sequences or pairs that only measure the loss. */
  evaluationSequences: number;
  /** Tokens of an epoch. */
  tokens: number;
  /** Tokens of the longest sequence. */
  maxLength: number;
  /** Whether the backward pass computes activations again; see the option. */
  checkpointing: boolean;
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
  rewardMargin?: number;
  rewardAccuracy?: number;
}

/** What is not trained on, as the module measures it. */
export interface TrainEvaluation {
  loss: number;
  rewardMargin?: number;
  rewardAccuracy?: number;
}

/** Progress of a run, after each step. */
export interface TrainProgress {
  /** Steps done; 0 for the evaluation before the first one. */
  step: number;
  /** Steps of the run. */
  steps: number;
  /** Epoch, from 0. */
  epoch: number;
  /** Mean loss of the step's tokens or pairs; not set at step 0. */
  loss?: number;
  /** Mean loss of what is not trained on; set in steps with an evaluation. */
  evaluationLoss?: number;
  /**
   * In a run over preference pairs: the mean reward of the chosen answers less that of the rejected ones. A reward is `beta` times
   * the answer's log-probability with the adapter less that without it.
   */
  rewardMargin?: number;
  /** In a run over preference pairs: the fraction whose chosen answer has the larger reward. */
  rewardAccuracy?: number;
  /** `rewardMargin` of what is not trained on; set in steps with an evaluation. */
  evaluationRewardMargin?: number;
  /** `rewardAccuracy` of what is not trained on; set in steps with an evaluation. */
  evaluationRewardAccuracy?: number;
  /** Norm of all gradients before clipping; not set at step 0. */
  gradientNorm?: number;
  /** Learning rate of the step. */
  learningRate: number;
  /** Tokens that the run has trained on per second, evaluations excluded. */
  tokensPerSecond: number;
}

/** Data of one kind. */
export type TrainItems = TrainText[] | TrainPair[];

/** Arguments of a run. */
export interface TrainArguments {
  load: EngineLoadOptions;
  data: TrainItems;
  evaluation: TrainItems;
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
