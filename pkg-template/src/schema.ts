/**
 * Options of requests and loads: their types, and what their values may be. Written from the tables of crate/src by
 * tests/house/schema.rs, which says how.
 */

import { valid } from "./check.js";

/**
 * What to do when the context is full: fail, drop the oldest turns and render again, or slide over the oldest tokens.
 */
export type Overflow = "error" | "truncate" | "rolling";

/**
 * `draft` lets the draft model propose tokens, which are verified in one step. `prompt-lookup` looks them up in
 * repeated text, at temperature 0.
 */
export type Speculation = "off" | "prompt-lookup" | "draft";

/** A generation request, as the engine reads it: one of `prompt`, `ids`, `messages`, and options. */
export interface EngineGenerateFields {
  /** Text to continue. */
  prompt?: string;
  /**
   * Parses special tokens in the prompt's text, such as `<|fim_prefix|>`; for trusted prompts only. Default: `false`.
   */
  parseSpecial?: boolean;
  /** Text after the gap that the answer fills, for fill-in-the-middle models; `prompt` is the text before it. */
  suffix?: string;
  /** Token ids to continue. */
  ids?: number[];
  /** A conversation, rendered by the model's chat template. */
  messages?: unknown[];
  /** Tools for the template. */
  tools?: unknown[];
  /** Documents for the template. */
  documents?: unknown[];
  /** Further variables of the template. */
  chatTemplate?: Record<string, unknown>;
  /** Opens the assistant's turn after the messages, unless the last message is continued. Default: `true`. */
  addGenerationPrompt?: boolean;
  /** Continues the last message's text instead of answering it. Default: `false`. */
  continueFinalMessage?: boolean;
  /** Maximum number of generated tokens. Default: the rest of the context. */
  maxTokens?: number;
  /** Leaves the answer to `messages` as it is, instead of splitting it into content, reasoning and tool calls. */
  rawAnswer?: boolean;
  /** Strings that end the text of an answer and are not part of it. They do not end its reasoning or tool calls. */
  stop?: string[];
  /** Adds log-probabilities of the generated tokens. Default: `false`. */
  logprobs?: boolean;
  /** Number of alternatives per token. Default: `0`. */
  topLogprobs?: number;
  /**
   * What to do when the context is full: fail, drop the oldest turns and render again, or slide over the oldest tokens.
   * Default: `error`.
   */
  overflow?: Overflow;
  /** Continues after the end-of-text token. Default: `false`. */
  ignoreEos?: boolean;
  /**
   * `draft` lets the draft model propose tokens, which are verified in one step. `prompt-lookup` looks them up in
   * repeated text, at temperature 0. Default: `draft` with a draft model, else `off`.
   */
  speculation?: Speculation;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: the session's, or none. */
  adapter?: string;
  /** Requests of higher priority run their prompt first; negative for background work. Default: `0`. */
  priority?: number;
  /**
   * Text that the answer probably repeats: drafts are looked up in it. Implies prompt lookup and never changes the
   * answer.
   */
  prediction?: string;
  /** Tokens after which the thought of an answer to `messages` is closed. */
  reasoningBudget?: number;
  /** Ends the answer with its first tool call. */
  singleCall?: boolean;
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number;
  /** Samples from the k most likely tokens; 0 and -1 keep all. Default: `50`. */
  topK?: number;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  topP?: number;
  /** Drops tokens whose probability is below this fraction of the most likely one's; 0 keeps all. Default: `0`. */
  minP?: number;
  /**
   * Locally typical sampling: the tokens of typical information up to this total probability; 1 keeps all. Default:
   * `1`.
   */
  typicalP?: number;
  /** Values above 1 make tokens that already occurred less likely; 1 has no effect. Default: `1`. */
  repetitionPenalty?: number;
  /** Subtracted from the logits of tokens that were generated before. Default: `0`. */
  presencePenalty?: number;
  /** Subtracted from the logits of generated tokens, times their count. Default: `0`. */
  frequencyPenalty?: number;
  /** Values added to the logits of these token ids. */
  logitBias?: Record<string, number>;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number;
}

/** Options of an embedding. */
export interface EngineEmbedOptions {
  /** Name of one of the model's prompts, such as `query` or `document`. Default: none. */
  task?: string;
  /** A prefix for each input, instead of a named prompt. Default: none. */
  prompt?: string;
  /** Normalizes vectors to length 1. Default: the model's. */
  normalize?: boolean;
  /** Truncates each vector to its first components (Matryoshka), before normalizing. Default: all. */
  truncateDim?: number;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: none. */
  adapter?: string;
}

/** Options of a reranking. */
export interface EngineRerankOptions {
  /** Definition of relevance, for models that take an instruction. Default: the model's. */
  instruction?: string;
}

/** Options of a transcription. */
export interface EngineTranscribeOptions {
  /** Language code or English name. Default: detected. */
  language?: string;
  /** Translates into English. Default: `false`. */
  translate?: boolean;
  /**
   * Timestamp granularity: `segment` from the model's timestamp tokens, `word` from cross-attention. Default: `none`.
   */
  timestamps?: "none" | "segment" | "word";
  /** Text before the audio: names and spellings to expect. Default: none. */
  prompt?: string;
  /** First decoder tokens, instead of those of language, task and prompt. */
  ids?: number[];
  /** A temperature, or a list of fallbacks for doubtful results. Default: `0`. */
  temperatures?: number[];
  /** Beam search width. Default: `1`. */
  beams?: number;
  /** Exponent of the length that divides a beam's score. */
  lengthPenalty?: number;
  /** Maximum tokens per audio window. Default: the model's. */
  maxTokens?: number;
  /** Transcribes speech regions only. Requires `vad` of `loadModel`. Default: for long audio. */
  vad?: boolean;
  /** Adds log-probabilities to segments. Default: `false`. */
  logprobs?: boolean;
  /** Sampling seed. */
  seed?: number;
  /** Emits partial text during decoding. */
  partials?: boolean;
}

/** Options of a speech synthesis. */
export interface EngineSpeakOptions {
  /** Text to synthesize. */
  input?: string;
  /** Prompt ids, instead of those of `input`. */
  ids?: number[];
  /** Name of a voice or language that the model knows, put before the text unchecked; empty for none. */
  voice?: string;
  /** Speaker embedding, for models that support it. */
  speaker?: number[];
  /** Maximum codec tokens; four of them form a frame. Default: the rest of the context. */
  maxTokens?: number;
  /**
   * Allows only valid codec tokens for the current codebook: slower, but robust against model errors. Default: `false`.
   */
  grammar?: boolean;
  /** Continues after the end-of-speech token, for benchmarks. */
  ignoreEnd?: boolean;
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  topP?: number;
  /** Values above 1 make tokens that already occurred less likely; 1 has no effect. Default: `1`. */
  repetitionPenalty?: number;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number;
}

/** Options of a load, besides those that are objects. */
export interface EngineLoadFields {
  /**
   * A Hugging Face access token, for gated and private repositories. It is sent to `endpoint` only and never stored.
   * Default: none.
   */
  token?: string;
  /** A branch, tag or commit. Default: main. */
  revision?: string;
  /** A Hub server other than `https://huggingface.co`. Default: the Hub. */
  endpoint?: string;
  /** Maximum tokens of prompt and answer together. Default: the model's, up to 4096. */
  maxContext?: number;
  /**
   * Format of the weights in GPU memory. `auto` keeps the checkpoint's format if it fits the device's memory, else uses
   * 8 or 4 bits; `model.info.precision` names the choice, `model.info.warnings` the reason. With `q4`, small models
   * keep 8 bits in some matrices. Default: `auto`.
   */
  weights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /**
   * The same for embeddings and lm_head when the checkpoint does not quantize them. `auto` uses the format of the other
   * weights, but 8 bits with `q4`: low precision hurts these matrices most, and they dominate small models with large
   * vocabularies. Default: `auto`.
   */
  embeddingWeights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /**
   * GPU memory limit in bytes for `auto`; by default what the device does not refuse. A model that exceeds it loads
   * with a warning; of a list of models none that exceeds it loads. Default: what the device has.
   */
  maxMemory?: number;
  /**
   * Splits weights larger than this many bytes into several buffers, even when the device allows larger ones; for
   * tests. Default: the device's.
   */
  maxWeightBuffer?: number;
  /**
   * Precision of matmul inputs in prompts. `auto` is `int8` for weights of at most 8 bits on GPUs with packed dot
   * products and without subgroup matrices; there and with them, requests that decode together have 8-bit inputs as
   * well. Default: `auto`.
   */
  activations?: "auto" | "f32" | "int8";
  /** Format of the KV cache; `auto` chooses for the device. Default: `auto`. */
  kv?: "auto" | "f32" | "f16" | "packed" | "int8";
  /** Growth step of the KV cache in tokens; 0 allocates all of `maxContext` at load. Default: `512`. */
  kvGrowth?: number;
  /**
   * GPU memory of a conversation's KV cache in bytes. Layers beyond it stay in main memory and are copied to the GPU
   * for each step: slow, but long contexts run on small GPUs. `kvGrowth` is then at most 512. Default: as much as
   * `maxContext` needs.
   */
  maxKvMemory?: number;
  /**
   * Experts per layer that stay on the GPU, at least as many as the router selects per token. The others are read from
   * the browser's cache when selected. Default: all that fit.
   */
  experts?: number;
  /** The same limit as bytes over all layers. Default: all that fit. */
  expertBytes?: number;
  /** Prefetches the next layer's likely experts. Default: `true`. */
  prefetchExperts?: boolean;
  /**
   * Reads rows of lookup-only tables, such as Gemma's per-layer embeddings, from the browser's cache on demand.
   * Default: when memory is short.
   */
  pageEmbeddings?: boolean;
  /**
   * Autotuning of kernel variants. `auto` uses stored results, else measures for about 50 ms, except on a software
   * adapter. `off` uses the defaults, `force` always measures. Results are cached like files (see `cache`). Default:
   * `auto`.
   */
  tune?: "auto" | "off" | "force";
  /**
   * Compiles separate kernels for prompts of up to 32 tokens, such as later turns of a chat, once the model has been
   * idle for a second. Not done on a software adapter by default. Default: `true`.
   */
  shortPrefill?: boolean;
  /** Switches device features off, for comparison or to work around a driver bug. Default: all. */
  features?: DeviceFeatures;
  /**
   * The page's `navigator.maxTouchPoints`, which tells an iPad from a Mac and is missing in workers. Set by the facade.
   */
  touchPoints?: number;
  /** False bypasses the browser's cache. Default: `true`. */
  cache?: boolean;
  /** The model's task, when its files do not say or are wrong. Default: from the files. */
  task?: "generate" | "embed" | "rerank" | "transcribe" | "speak";
  /** The codec of a text-to-speech model: a repository or a folder's URL. Default: none. */
  codec?: string;
  /**
   * A smaller model of the same vocabulary that proposes tokens, which the model verifies in one step: a repository or
   * a folder's URL. `mtp` uses the multi-token-prediction head of the model's own checkpoint (Qwen3.5). The answer
   * stays the same. Default: none.
   */
  draft?: string;
  /** Refuses a model that does not fit the device's memory, usually before its weights are downloaded. */
  mustFit?: boolean;
}

/** Options of `model.generate` that the engine defines. */
export interface GenerateFields {
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number;
  /** Samples from the k most likely tokens; 0 and -1 keep all. Default: `50`. */
  topK?: number;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  topP?: number;
  /** Drops tokens whose probability is below this fraction of the most likely one's; 0 keeps all. Default: `0`. */
  minP?: number;
  /**
   * Locally typical sampling: the tokens of typical information up to this total probability; 1 keeps all. Default:
   * `1`.
   */
  typicalP?: number;
  /** Values above 1 make tokens that already occurred less likely; 1 has no effect. Default: `1`. */
  repetitionPenalty?: number;
  /** Subtracted from the logits of tokens that were generated before. Default: `0`. */
  presencePenalty?: number;
  /** Subtracted from the logits of generated tokens, times their count. Default: `0`. */
  frequencyPenalty?: number;
  /** Values added to the logits of these token ids. */
  logitBias?: Record<number, number>;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number;
  /**
   * Parses special tokens in the prompt's text, such as `<|fim_prefix|>`; for trusted prompts only. Default: `false`.
   */
  parseSpecial?: boolean;
  /** Maximum number of generated tokens. Default: the rest of the context. */
  maxTokens?: number;
  /** Strings that end the text of an answer and are not part of it. They do not end its reasoning or tool calls. */
  stop?: string | string[];
  /** Adds log-probabilities of the generated tokens. Default: `false`. */
  logprobs?: boolean;
  /** Number of alternatives per token. Default: `0`. */
  topLogprobs?: number;
  /**
   * What to do when the context is full: fail, drop the oldest turns and render again, or slide over the oldest tokens.
   * Default: `error`.
   */
  overflow?: Overflow;
  /** Continues after the end-of-text token. Default: `false`. */
  ignoreEos?: boolean;
  /**
   * `draft` lets the draft model propose tokens, which are verified in one step. `prompt-lookup` looks them up in
   * repeated text, at temperature 0. Default: `draft` with a draft model, else `off`.
   */
  speculation?: Speculation;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: the session's, or none. */
  adapter?: string;
  /** Requests of higher priority run their prompt first; negative for background work. Default: `0`. */
  priority?: number;
}

/** Checks of {@link GenerateFields}. */
export const GENERATE_SPEC = {
  temperature: valid.number(0, 2),
  topK: valid.integer(-1),
  topP: valid.number(0, 1),
  minP: valid.number(0, 1),
  typicalP: valid.above(0, 1),
  repetitionPenalty: valid.number(0.01, 100),
  presencePenalty: valid.number(-2, 2),
  frequencyPenalty: valid.number(-2, 2),
  logitBias: valid.biases(-100, 100),
  seed: valid.integer(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  parseSpecial: valid.boolean,
  maxTokens: valid.integer(1),
  stop: valid.strings,
  logprobs: valid.boolean,
  topLogprobs: valid.integer(0, 20),
  overflow: valid.oneOf("error", "truncate", "rolling"),
  ignoreEos: valid.boolean,
  speculation: valid.oneOf("off", "prompt-lookup", "draft"),
  adapter: valid.string,
  priority: valid.integer(-100, 100),
};

/** Options of `chat.completions.create` that the engine defines. */
export interface ChatFields {
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number | null;
  /** Samples from the k most likely tokens; 0 and -1 keep all. Default: `50`. */
  top_k?: number | null;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  top_p?: number | null;
  /** Drops tokens whose probability is below this fraction of the most likely one's; 0 keeps all. Default: `0`. */
  min_p?: number | null;
  /**
   * Locally typical sampling: the tokens of typical information up to this total probability; 1 keeps all. Default:
   * `1`.
   */
  typical_p?: number | null;
  /** Values above 1 make tokens that already occurred less likely; 1 has no effect. Default: `1`. */
  repetition_penalty?: number | null;
  /** Subtracted from the logits of tokens that were generated before. Default: `0`. */
  presence_penalty?: number | null;
  /** Subtracted from the logits of generated tokens, times their count. Default: `0`. */
  frequency_penalty?: number | null;
  /** Values added to the logits of these token ids. */
  logit_bias?: Record<string, number> | null;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number | null;
  /** Opens the assistant's turn after the messages, unless the last message is continued. Default: `true`. */
  add_generation_prompt?: boolean | null;
  /** Continues the last message's text instead of answering it. Default: `false`. */
  continue_final_message?: boolean | null;
  /** Maximum number of generated tokens. Default: the rest of the context. */
  max_tokens?: number | null;
  /** Strings that end the text of an answer and are not part of it. They do not end its reasoning or tool calls. */
  stop?: string | string[] | null;
  /** Adds log-probabilities of the generated tokens. Default: `false`. */
  logprobs?: boolean | null;
  /** Number of alternatives per token. Default: `0`. */
  top_logprobs?: number | null;
  /**
   * What to do when the context is full: fail, drop the oldest turns and render again, or slide over the oldest tokens.
   * Default: `error`.
   */
  overflow?: Overflow | null;
  /**
   * `draft` lets the draft model propose tokens, which are verified in one step. `prompt-lookup` looks them up in
   * repeated text, at temperature 0. Default: `draft` with a draft model, else `off`.
   */
  speculation?: Speculation | null;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: the session's, or none. */
  adapter?: string | null;
  /** Requests of higher priority run their prompt first; negative for background work. Default: `0`. */
  priority?: number | null;
}

/** Checks of {@link ChatFields}. */
export const CHAT_SPEC = {
  temperature: valid.number(0, 2),
  top_k: valid.integer(-1),
  top_p: valid.number(0, 1),
  min_p: valid.number(0, 1),
  typical_p: valid.above(0, 1),
  repetition_penalty: valid.number(0.01, 100),
  presence_penalty: valid.number(-2, 2),
  frequency_penalty: valid.number(-2, 2),
  logit_bias: valid.biases(-100, 100),
  seed: valid.integer(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  add_generation_prompt: valid.boolean,
  continue_final_message: valid.boolean,
  max_tokens: valid.integer(1),
  stop: valid.strings,
  logprobs: valid.boolean,
  top_logprobs: valid.integer(0, 20),
  overflow: valid.oneOf("error", "truncate", "rolling"),
  speculation: valid.oneOf("off", "prompt-lookup", "draft"),
  adapter: valid.string,
  priority: valid.integer(-100, 100),
};

/** Options of `completions.create` that the engine defines. */
export interface CompletionFields {
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number | null;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  top_p?: number | null;
  /** Subtracted from the logits of tokens that were generated before. Default: `0`. */
  presence_penalty?: number | null;
  /** Subtracted from the logits of generated tokens, times their count. Default: `0`. */
  frequency_penalty?: number | null;
  /** Values added to the logits of these token ids. */
  logit_bias?: Record<string, number> | null;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number | null;
  /**
   * Parses special tokens in the prompt's text, such as `<|fim_prefix|>`; for trusted prompts only. Default: `false`.
   */
  parse_special?: boolean | null;
  /** Maximum number of generated tokens. Default: the rest of the context. */
  max_tokens?: number | null;
  /** Strings that end the text of an answer and are not part of it. They do not end its reasoning or tool calls. */
  stop?: string | string[] | null;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: the session's, or none. */
  adapter?: string | null;
  /** Requests of higher priority run their prompt first; negative for background work. Default: `0`. */
  priority?: number | null;
}

/** Checks of {@link CompletionFields}. */
export const COMPLETION_SPEC = {
  temperature: valid.number(0, 2),
  top_p: valid.number(0, 1),
  presence_penalty: valid.number(-2, 2),
  frequency_penalty: valid.number(-2, 2),
  logit_bias: valid.biases(-100, 100),
  seed: valid.integer(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  parse_special: valid.boolean,
  max_tokens: valid.integer(1),
  stop: valid.strings,
  adapter: valid.string,
  priority: valid.integer(-100, 100),
};

/** Options of `model.embed` that the engine defines. */
export interface EmbedFields {
  /** Name of one of the model's prompts, such as `query` or `document`. Default: none. */
  task?: string;
  /** A prefix for each input, instead of a named prompt. Default: none. */
  prompt?: string;
  /** Normalizes vectors to length 1. Default: the model's. */
  normalize?: boolean;
  /** Truncates each vector to its first components (Matryoshka), before normalizing. Default: all. */
  truncateDim?: number;
  /** Name of an adapter that was loaded next to the model; empty for none. Default: none. */
  adapter?: string;
}

/** Checks of {@link EmbedFields}. */
export const EMBED_SPEC = {
  task: valid.string,
  prompt: valid.string,
  normalize: valid.boolean,
  truncateDim: valid.integer(1),
  adapter: valid.string,
};

/** Options of `model.rerank` that the engine defines. */
export interface RerankFields {
  /** Definition of relevance, for models that take an instruction. Default: the model's. */
  instruction?: string;
}

/** Checks of {@link RerankFields}. */
export const RERANK_SPEC = {
  instruction: valid.string,
};

/** Options of `model.transcribe` that the engine defines. */
export interface TranscribeFields {
  /** Language code or English name. Default: detected. */
  language?: string;
  /** Translates into English. Default: `false`. */
  translate?: boolean;
  /**
   * Timestamp granularity: `segment` from the model's timestamp tokens, `word` from cross-attention. Default: `none`.
   */
  timestamps?: "none" | "segment" | "word";
  /** Text before the audio: names and spellings to expect. Default: none. */
  prompt?: string;
  /** A temperature, or a list of fallbacks for doubtful results. Default: `0`. */
  temperature?: number | number[];
  /** Beam search width. Default: `1`. */
  beams?: number;
  /** Maximum tokens per audio window. Default: the model's. */
  maxTokens?: number;
  /** Transcribes speech regions only. Requires `vad` of `loadModel`. Default: for long audio. */
  vad?: boolean;
  /** Adds log-probabilities to segments. Default: `false`. */
  logprobs?: boolean;
}

/** Checks of {@link TranscribeFields}. */
export const TRANSCRIBE_SPEC = {
  language: valid.string,
  translate: valid.boolean,
  timestamps: valid.oneOf("none", "segment", "word"),
  prompt: valid.string,
  temperature: valid.numbers(0, 2),
  beams: valid.integer(1, 16),
  maxTokens: valid.integer(1),
  vad: valid.boolean,
  logprobs: valid.boolean,
};

/** Options of `model.listen` that the engine defines. */
export interface ListenFields {
  /** Language code or English name. Default: detected. */
  language?: string;
  /** Translates into English. Default: `false`. */
  translate?: boolean;
  /** Text before the audio: names and spellings to expect. Default: none. */
  prompt?: string;
}

/** Checks of {@link ListenFields}. */
export const LISTEN_SPEC = {
  language: valid.string,
  translate: valid.boolean,
  prompt: valid.string,
};

/** Options of `audio.transcriptions.create` that the engine defines. */
export interface TranscriptionFields {
  /** Language code or English name. Default: detected. */
  language?: string;
  /** Text before the audio: names and spellings to expect. Default: none. */
  prompt?: string;
  /** A temperature, or a list of fallbacks for doubtful results. Default: `0`. */
  temperature?: number | number[];
}

/** Checks of {@link TranscriptionFields}. */
export const TRANSCRIPTION_SPEC = {
  language: valid.string,
  prompt: valid.string,
  temperature: valid.numbers(0, 2),
};

/** Options of `audio.speech.create` that the engine defines. */
export interface SpeechFields {
  /** Sampling temperature; 0 selects the most likely token. Default: `1`. */
  temperature?: number;
  /** Samples from the most likely tokens up to this total probability; 1 keeps all. Default: `1`. */
  top_p?: number;
  /** Values above 1 make tokens that already occurred less likely; 1 has no effect. Default: `1`. */
  repetition_penalty?: number;
  /**
   * The same seed samples the same tokens. Further answers of a request use `seed + 1`, `seed + 2` and so on. Default:
   * random.
   */
  seed?: number;
  /** Maximum codec tokens; four of them form a frame. Default: the rest of the context. */
  max_tokens?: number;
  /**
   * Allows only valid codec tokens for the current codebook: slower, but robust against model errors. Default: `false`.
   */
  grammar?: boolean;
}

/** Checks of {@link SpeechFields}. */
export const SPEECH_SPEC = {
  temperature: valid.number(0, 2),
  top_p: valid.number(0, 1),
  repetition_penalty: valid.number(0.01, 100),
  seed: valid.integer(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  max_tokens: valid.integer(1),
  grammar: valid.boolean,
};

/** Options of `model.measure` that the engine defines. */
export interface MeasureOptions {
  /** Context length at which a decode step is measured. Default: `0`. */
  position?: number;
  /** Step sizes in tokens to profile; 1 is a decode step. Default: none. */
  profile?: number[];
  /** Numbers of sequences whose batched decode step to profile, after `position` tokens each. Default: none. */
  sequences?: number[];
  /** Measures the device's limits: read bandwidth and the cost of a dispatch. Default: `false`. */
  limits?: boolean;
  /** Number of decode steps for measuring the host overhead. Default: `0`. */
  steps?: number;
  /** Number of speculative steps for the same; each needs eight positions of the context. Default: `0`. */
  drafts?: number;
}

/** Checks of {@link MeasureOptions}. */
export const MEASURE_SPEC = {
  position: valid.integer(0),
  profile: valid.integers(0),
  sequences: valid.integers(1),
  limits: valid.boolean,
  steps: valid.integer(0),
  drafts: valid.integer(0),
};

/** Options of `features of loadModel` that the engine defines. */
export interface DeviceFeatures {
  /** Subgroup operations. Default: `true`. */
  subgroups?: boolean;
  /** `shader-f16`: arithmetic in half precision. Default: `true`. */
  f16?: boolean;
  /** Subgroup matrices (tensor cores), used in prefill. Default: `true`. */
  matrix?: boolean;
  /** `minimum` requests only the limits that every WebGPU device has. Default: `all`. */
  limits?: "all" | "minimum";
  /**
   * Dispatches per command buffer, with one buffer in flight; `free` submits work as it is recorded. On WebKit the
   * default is what calibration found. Default: `free`.
   */
  group?: "free" | "all" | "1" | "8" | "64";
  /** Sets a kernel parameter such as `gemm.BM=32`; shaders/variants.toml lists them. Default: none. */
  force?: string;
}

/** Checks of {@link DeviceFeatures}. */
export const DEVICE_FEATURES_SPEC = {
  subgroups: valid.boolean,
  f16: valid.boolean,
  matrix: valid.boolean,
  limits: valid.oneOf("all", "minimum"),
  group: valid.oneOf("free", "all", "1", "8", "64"),
  force: valid.string,
};

/** Options of `loadModel` that the engine defines. */
export interface LoadFields {
  /**
   * A Hugging Face access token, for gated and private repositories. It is sent to `endpoint` only and never stored.
   * Default: none.
   */
  token?: string;
  /** A branch, tag or commit. Default: main. */
  revision?: string;
  /** A Hub server other than `https://huggingface.co`. Default: the Hub. */
  endpoint?: string;
  /** Maximum tokens of prompt and answer together. Default: the model's, up to 4096. */
  maxContext?: number;
  /**
   * Format of the weights in GPU memory. `auto` keeps the checkpoint's format if it fits the device's memory, else uses
   * 8 or 4 bits; `model.info.precision` names the choice, `model.info.warnings` the reason. With `q4`, small models
   * keep 8 bits in some matrices. Default: `auto`.
   */
  weights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /**
   * The same for embeddings and lm_head when the checkpoint does not quantize them. `auto` uses the format of the other
   * weights, but 8 bits with `q4`: low precision hurts these matrices most, and they dominate small models with large
   * vocabularies. Default: `auto`.
   */
  embeddingWeights?: "auto" | "f32" | "f16" | "q8" | "q4";
  /**
   * GPU memory limit in bytes for `auto`; by default what the device does not refuse. A model that exceeds it loads
   * with a warning; of a list of models none that exceeds it loads. Default: what the device has.
   */
  maxMemory?: number;
  /**
   * Splits weights larger than this many bytes into several buffers, even when the device allows larger ones; for
   * tests. Default: the device's.
   */
  maxWeightBuffer?: number;
  /**
   * Precision of matmul inputs in prompts. `auto` is `int8` for weights of at most 8 bits on GPUs with packed dot
   * products and without subgroup matrices; there and with them, requests that decode together have 8-bit inputs as
   * well. Default: `auto`.
   */
  activations?: "auto" | "f32" | "int8";
  /** Format of the KV cache; `auto` chooses for the device. Default: `auto`. */
  kv?: "auto" | "f32" | "f16" | "packed" | "int8";
  /** Growth step of the KV cache in tokens; 0 allocates all of `maxContext` at load. Default: `512`. */
  kvGrowth?: number;
  /**
   * GPU memory of a conversation's KV cache in bytes. Layers beyond it stay in main memory and are copied to the GPU
   * for each step: slow, but long contexts run on small GPUs. `kvGrowth` is then at most 512. Default: as much as
   * `maxContext` needs.
   */
  maxKvMemory?: number;
  /**
   * Experts per layer that stay on the GPU, at least as many as the router selects per token. The others are read from
   * the browser's cache when selected. Default: all that fit.
   */
  experts?: number;
  /** The same limit as bytes over all layers. Default: all that fit. */
  expertBytes?: number;
  /** Prefetches the next layer's likely experts. Default: `true`. */
  prefetchExperts?: boolean;
  /**
   * Reads rows of lookup-only tables, such as Gemma's per-layer embeddings, from the browser's cache on demand.
   * Default: when memory is short.
   */
  pageEmbeddings?: boolean;
  /**
   * Autotuning of kernel variants. `auto` uses stored results, else measures for about 50 ms, except on a software
   * adapter. `off` uses the defaults, `force` always measures. Results are cached like files (see `cache`). Default:
   * `auto`.
   */
  tune?: "auto" | "off" | "force";
  /**
   * Compiles separate kernels for prompts of up to 32 tokens, such as later turns of a chat, once the model has been
   * idle for a second. Not done on a software adapter by default. Default: `true`.
   */
  shortPrefill?: boolean;
  /** Switches device features off, for comparison or to work around a driver bug. Default: all. */
  features?: DeviceFeatures;
  /** False bypasses the browser's cache. Default: `true`. */
  cache?: boolean;
  /** The model's task, when its files do not say or are wrong. Default: from the files. */
  task?: "generate" | "embed" | "rerank" | "transcribe" | "speak";
  /** The codec of a text-to-speech model: a repository or a folder's URL. Default: none. */
  codec?: string;
  /**
   * A smaller model of the same vocabulary that proposes tokens, which the model verifies in one step: a repository or
   * a folder's URL. `mtp` uses the multi-token-prediction head of the model's own checkpoint (Qwen3.5). The answer
   * stays the same. Default: none.
   */
  draft?: string;
}

/** Checks of {@link LoadFields}. */
export const LOAD_SPEC = {
  token: valid.string,
  revision: valid.string,
  endpoint: valid.string,
  maxContext: valid.integer(1, 16777216),
  weights: valid.oneOf("auto", "f32", "f16", "q8", "q4"),
  embeddingWeights: valid.oneOf("auto", "f32", "f16", "q8", "q4"),
  maxMemory: valid.bytes,
  maxWeightBuffer: valid.bytes,
  activations: valid.oneOf("auto", "f32", "int8"),
  kv: valid.oneOf("auto", "f32", "f16", "packed", "int8"),
  kvGrowth: valid.integer(0),
  maxKvMemory: valid.bytes,
  experts: valid.integer(1),
  expertBytes: valid.bytes,
  prefetchExperts: valid.boolean,
  pageEmbeddings: valid.boolean,
  tune: valid.oneOf("auto", "off", "force"),
  shortPrefill: valid.boolean,
  features: valid.object,
  cache: valid.boolean,
  task: valid.oneOf("generate", "embed", "rerank", "transcribe", "speak"),
  codec: valid.string,
  draft: valid.string,
};
