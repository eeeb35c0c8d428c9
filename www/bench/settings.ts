/** The benchmark settings and their parser for URL queries. */

import type { WeightFormat } from "./checkpoint";

/** The benchmark settings. */
export interface Settings {
  /** A name of SHAPES; ignored if `source` is set. */
  shape: string;
  /** Format of the generated checkpoint. */
  stored: WeightFormat;
  /** Format of weights that the checkpoint does not quantize. */
  weights: "auto" | "f32" | "f16" | "q8" | "q4";
  embeddingWeights: "auto" | "f32" | "f16" | "q8" | "q4";
  kv: "auto" | "f32" | "f16" | "packed" | "int8";
  /** Speculative decoding. */
  speculation: "off" | "prompt-lookup";
  /** Prompts repeat after this many ids; 0 for never. Drafts come from repeated text. */
  repeat: number;
  /** Autotuning during the load. */
  tune: "auto" | "off" | "force";
  /** URL of a folder to load instead of a generated checkpoint. */
  source?: string;
  /** URL of the codec of a text-to-speech model. */
  codec?: string;
  /** URL of the tokenizer.json, or .gz, of a generated checkpoint. Measures decode with JSON schemas too. */
  tokenizer?: string;
  /** Temperature and top-k of those runs; 0 for no top-k. */
  temperature: number;
  topK: number;
  /** GPU memory limit in gigabytes, if the page's estimate is too low; 0 keeps the estimate. */
  memory: number;
  /** GPU memory limit of the KV cache in megabytes; 0 for none. */
  kvMemory: number;
  /** False bypasses the browser's cache. */
  cache: boolean;
  f16: boolean;
  subgroups: boolean;
  matrix: boolean;
  worker: boolean;
  /** Prompt lengths. */
  prompts: number[];
  /** Number of generated tokens. */
  tokens: number;
  /** Numbers of sequences to decode at once, after the other runs. */
  sequences: number[];
  /** Number of texts for an embedding model. */
  texts: number;
  /** Minimum and maximum tokens of a text. */
  lengths: [number, number];
  runs: number;
  /** Tokens or texts of the warm-up run. */
  warm: number;
  /** Pause before each run in milliseconds, as between turns of a chat. */
  pause: number;
  /** Waits once before the runs for the lazy compilation of an idle model, such as kernels for short prompts. */
  settled: boolean;
  /** Measures kernel times, device limits and host overhead. */
  profile: boolean;
  /** Reloads the page and loads again, like a user's second visit. Requires `source`. */
  reload: boolean;
  /** Continues without a GPU: a functional test, not a benchmark. */
  smoke: boolean;
}

const oneOf = <T extends string>(value: string | null, names: readonly T[]): T => names.find((name) => name === value) ?? names[0]!;

/**
 * Parses a query such as `?shape=qwen2-0.5b&prompt=128,1024&gen=256&reps=3`; names match comparable pages of other
 * engines.
 */
export function settingsOf(query: URLSearchParams): Settings {
  const number = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise);
  const on = (name: string): boolean => query.get(name) !== "0";
  const source = query.get("source");
  const codec = query.get("codec");
  const tokenizer = query.get("tokenizer");
  const [least = 16, most = 256] = (query.get("lengths") ?? "16,256").split(",").map(Number);
  return {
    shape: query.get("shape") ?? "qwen3-0.6b",
    stored: oneOf(query.get("stored"), ["mlx4", "f16"]),
    weights: oneOf(query.get("weights"), ["auto", "f32", "f16", "q8", "q4"]),
    embeddingWeights: oneOf(query.get("embeddingWeights"), ["auto", "f32", "f16", "q8", "q4"]),
    kv: oneOf(query.get("kv"), ["auto", "f32", "f16", "packed", "int8"]),
    speculation: oneOf(query.get("speculation"), ["off", "prompt-lookup"]),
    repeat: number("repeat", 0),
    tune: oneOf(query.get("tune"), ["auto", "off", "force"]),
    ...(source ? { source: new URL(source, location.href).href } : {}),
    ...(codec ? { codec: new URL(codec, location.href).href } : {}),
    ...(tokenizer ? { tokenizer: new URL(tokenizer, location.href).href } : {}),
    temperature: number("temperature", 1),
    topK: number("topk", 0),
    memory: number("memory", 0),
    kvMemory: number("kvmemory", 0),
    cache: on("cache"),
    f16: on("f16"),
    subgroups: on("subgroups"),
    matrix: on("matrix"),
    worker: on("worker"),
    prompts: (query.get("prompt") ?? "128,1024").split(",").map(Number),
    tokens: number("gen", 256),
    sequences: (query.get("sequences") ?? "").split(",").filter(Boolean).map(Number),
    texts: number("texts", 1000),
    lengths: [least, Math.max(least, most)],
    runs: number("reps", 3),
    warm: number("warm", 16),
    pause: number("pause", 0),
    settled: query.get("settled") === "1",
    profile: on("profile"),
    reload: query.get("reload") === "1",
    smoke: query.get("smoke") === "1",
  };
}
