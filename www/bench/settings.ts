/** What is measured, as the page's address says it. Knows names and defaults. */

import type { Stored } from "./checkpoint";

/** What is measured. */
export interface Settings {
  /** A name of SHAPES; not looked at where `source` is given. */
  shape: string;
  /** How the made checkpoint is stored. */
  stored: Stored;
  /** How the engine keeps unquantised weights. */
  weights: "auto" | "f32" | "f16" | "q8" | "q4";
  embeddingWeights: "auto" | "f32" | "f16" | "q8" | "q4";
  kv: "auto" | "f32" | "f16" | "packed" | "int8";
  /** Whether tokens are drafted and verified (speculative decoding). */
  speculation: "off" | "prompt-lookup";
  /** After so many ids a prompt repeats itself; 0 for never. Drafts come from text that repeats. */
  repeat: number;
  /** Whether the load measures which kernels are the fastest. */
  tune: "auto" | "off" | "again";
  /** The address of a folder to load instead of a made checkpoint. */
  source?: string;
  /** Of a model that speaks: the address of its codec. */
  codec?: string;
  /** Gigabytes of GPU memory that the model may take, where the page supposes too few; 0 to leave it at that. */
  memory: number;
  /** False loads past the browser's cache. */
  cache: boolean;
  f16: boolean;
  subgroups: boolean;
  matrix: boolean;
  worker: boolean;
  /** Lengths of prompts. */
  prompts: number[];
  /** New tokens. */
  tokens: number;
  /** Texts that a model which makes vectors gets. */
  texts: number;
  /** The least and the most tokens of a text. */
  lengths: [number, number];
  runs: number;
  /** New tokens, or texts, of a first run that does not count. */
  warm: number;
  /** Milliseconds before each run, as between the turns of a chat. */
  pause: number;
  /** Waits once before the runs, so that what an idle model makes ready, as the kernels of short prompts, is there. */
  settled: boolean;
  /** Where the time goes, the device's limits, the host's cost. */
  profile: boolean;
  /** Loads once more after the page was opened anew: the second load of a user. Wants a `source`. */
  reload: boolean;
  /** Goes on where there is no GPU: a test that all of this runs, not a measurement. */
  smoke: boolean;
}

const oneOf = <T extends string>(value: string | null, names: readonly T[]): T => names.find((name) => name === value) ?? names[0]!;

/** Reads an address such as `?shape=qwen2-0.5b&prompt=128,1024&gen=256&reps=3`; names are those of comparable pages of other engines. */
export function settingsOf(query: URLSearchParams): Settings {
  const number = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise);
  const on = (name: string): boolean => query.get(name) !== "0";
  const source = query.get("source");
  const codec = query.get("codec");
  const [least = 16, most = 256] = (query.get("lengths") ?? "16,256").split(",").map(Number);
  return {
    shape: query.get("shape") ?? "qwen3-0.6b",
    stored: oneOf(query.get("stored"), ["mlx4", "f16"]),
    weights: oneOf(query.get("weights"), ["auto", "f32", "f16", "q8", "q4"]),
    embeddingWeights: oneOf(query.get("embeddingWeights"), ["auto", "f32", "f16", "q8", "q4"]),
    kv: oneOf(query.get("kv"), ["auto", "f32", "f16", "packed", "int8"]),
    speculation: oneOf(query.get("speculation"), ["off", "prompt-lookup"]),
    repeat: number("repeat", 0),
    tune: oneOf(query.get("tune"), ["auto", "off", "again"]),
    ...(source ? { source: new URL(source, location.href).href } : {}),
    ...(codec ? { codec: new URL(codec, location.href).href } : {}),
    memory: number("memory", 0),
    cache: on("cache"),
    f16: on("f16"),
    subgroups: on("subgroups"),
    matrix: on("matrix"),
    worker: on("worker"),
    prompts: (query.get("prompt") ?? "128,1024").split(",").map(Number),
    tokens: number("gen", 256),
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
