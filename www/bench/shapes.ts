/** The sizes of models that are measured: config.json as their repositories have it, in shapes.json. Knows no weights. */

import shapes from "./shapes.json";

/** The fields of config.json that a checkpoint is made of. */
export interface Config {
  architectures: string[];
  model_type: "qwen2" | "qwen3" | "llama" | "phi3" | "bert";
  hidden_size: number;
  intermediate_size: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  num_key_value_heads?: number;
  head_dim?: number;
  vocab_size: number;
  tie_word_embeddings?: boolean;
  [more: string]: unknown;
}

/** A shape by its name. */
export interface Shape {
  label: string;
  config: Config;
}

/**
 * All shapes, small ones first; the native runner's `bench` has the same file. The first two are for tests and for what the host alone costs: next to no
 * arithmetic.
 */
export const SHAPES = shapes as Readonly<Record<string, Shape>>;
