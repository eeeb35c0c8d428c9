/** The sizes of models that are measured: config.json as their repositories have it. Knows no weights. */

/** The fields of config.json that a checkpoint is made of. */
export interface Config {
  architectures: string[];
  model_type: "qwen2" | "qwen3" | "llama" | "phi3";
  hidden_size: number;
  intermediate_size: number;
  num_hidden_layers: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  head_dim?: number;
  vocab_size: number;
  tie_word_embeddings: boolean;
  rope_theta: number;
  rms_norm_eps: number;
  max_position_embeddings: number;
  [more: string]: unknown;
}

/** A shape by its name. */
export interface Shape {
  label: string;
  config: Config;
}

const qwen2 = (hidden: number, intermediate: number, layers: number, heads: number): Config => ({
  architectures: ["Qwen2ForCausalLM"],
  model_type: "qwen2",
  hidden_size: hidden,
  intermediate_size: intermediate,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  num_key_value_heads: 2,
  vocab_size: 151936,
  tie_word_embeddings: true,
  rope_theta: 1e6,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 32768,
});

const llama = (hidden: number, intermediate: number, layers: number, heads: number, kv: number, headDim: number, vocab: number, tied: boolean): Config => ({
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  hidden_size: hidden,
  intermediate_size: intermediate,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  num_key_value_heads: kv,
  head_dim: headDim,
  vocab_size: vocab,
  tie_word_embeddings: tied,
  rope_theta: 5e5,
  rms_norm_eps: 1e-5,
  max_position_embeddings: 131072,
});

/** All shapes, small ones first. The first two are for tests and for what the host alone costs: next to no arithmetic. */
export const SHAPES: Readonly<Record<string, Shape>> = {
  tiny: { label: "Tiny (2 layers, for tests)", config: llama(128, 256, 2, 4, 2, 32, 1024, true) },
  host: { label: "28 layers of next to no arithmetic", config: llama(32, 32, 28, 1, 1, 32, 64, true) },
  "qwen2-0.5b": { label: "Qwen2-0.5B", config: qwen2(896, 4864, 24, 14) },
  "qwen3-0.6b": {
    label: "Qwen3-0.6B",
    config: {
      ...qwen2(1024, 3072, 28, 16),
      architectures: ["Qwen3ForCausalLM"],
      model_type: "qwen3",
      num_key_value_heads: 8,
      head_dim: 128,
      max_position_embeddings: 40960,
    },
  },
  "llama-3.2-1b": { label: "Llama-3.2-1B", config: llama(2048, 8192, 16, 32, 8, 64, 128256, true) },
  "qwen2-1.5b": { label: "Qwen2-1.5B", config: qwen2(1536, 8960, 28, 12) },
  "phi-3-mini": {
    label: "Phi-3-mini",
    config: {
      ...llama(3072, 8192, 32, 32, 32, 96, 32064, false),
      architectures: ["Phi3ForCausalLM"],
      model_type: "phi3",
      rope_theta: 1e4,
      max_position_embeddings: 4096,
      sliding_window: 2047,
    },
  },
  "llama-3.1-8b": { label: "Llama-3.1-8B", config: llama(4096, 14336, 32, 32, 8, 128, 128256, false) },
};
