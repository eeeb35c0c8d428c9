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

/** The settings of the form by their names in the URL. */
export const FIELD_LABELS = { shape: "Model", stored: "Weights", prompt: "Prompt lengths", gen: "New tokens", reps: "Runs" } as const;

/** The defaults of the form. */
export const DEFAULTS: Readonly<Record<keyof typeof FIELD_LABELS, string>> = { shape: "qwen3-0.6b", stored: "mlx4", prompt: "128,1024", gen: "256", reps: "3" };

/** Limits of a number. */
interface NumberLimits {
  min: number;
  /** Whether it may have decimals. */
  fraction?: boolean;
}

/** A number of the form or the URL. @throws `Error` that names the field. */
function parseNumber(name: string, text: string, { min, fraction = false }: NumberLimits): number {
  const value = text.trim() ? Number(text) : NaN;
  if (value >= min && (fraction ? Number.isFinite(value) : Number.isSafeInteger(value))) return value;
  const label = FIELD_LABELS[name as keyof typeof FIELD_LABELS] ?? name;
  throw new Error(`“${label}” must be a ${fraction ? "number" : "whole number"} of at least ${min}, not “${text.trim()}”.`);
}

const oneOf = <T extends string>(value: string | null, names: readonly T[]): T => names.find((name) => name === value) ?? names[0]!;

/**
 * The settings of a query such as `?shape=qwen2-0.5b&prompt=128,1024&gen=256&reps=3`; names match comparable pages of other
 * engines. Throws an `Error` that names a field that is no number or too small.
 */
export function settingsOf(query: URLSearchParams): Settings {
  const number = (name: string, fallback: number | string, limits: NumberLimits = { min: 0 }): number => parseNumber(name, query.get(name) ?? String(fallback), limits);
  const numbers = (name: string, fallback: string): number[] => (query.get(name) ?? fallback).split(",").map((text) => parseNumber(name, text, { min: 1 }));
  const on = (name: string): boolean => query.get(name) !== "0";
  const source = query.get("source");
  const codec = query.get("codec");
  const tokenizer = query.get("tokenizer");
  const [least = 16, most = 256] = numbers("lengths", "16,256");
  return {
    shape: query.get("shape") ?? DEFAULTS.shape,
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
    temperature: number("temperature", 1, { min: 0, fraction: true }),
    topK: number("topk", 0),
    memory: number("memory", 0, { min: 0, fraction: true }),
    kvMemory: number("kvmemory", 0, { min: 0, fraction: true }),
    cache: on("cache"),
    f16: on("f16"),
    subgroups: on("subgroups"),
    matrix: on("matrix"),
    worker: on("worker"),
    prompts: numbers("prompt", DEFAULTS.prompt),
    tokens: number("gen", DEFAULTS.gen, { min: 2 }),
    sequences: query.get("sequences") ? numbers("sequences", "") : [],
    texts: number("texts", 1000, { min: 1 }),
    lengths: [least, Math.max(least, most)],
    runs: number("reps", DEFAULTS.reps, { min: 1 }),
    warm: number("warm", 16),
    pause: number("pause", 0, { min: 0, fraction: true }),
    settled: query.get("settled") === "1",
    profile: on("profile"),
    reload: query.get("reload") === "1",
    smoke: query.get("smoke") === "1",
  };
}
