/** Loads a model and benchmarks it: load, prefill, decode, and the engine's own measurements. */

import { loadModel, type LoadProgress, type Measurement, type Model, type ModelInfo, type ModelSource } from "jerboa";
import { type BatchRow, benchBatches } from "./batches";
import { checkpoint } from "./checkpoint";
import { benchSchemas, type ConstrainedRow, tokenizerFiles } from "./constrained";
import { type EmbeddingResult, embedAll, encoderFiles } from "./embed";
import { type Range, type Run, range } from "./runs";
import type { Settings } from "./settings";
import { benchSpeech, type AudioResult } from "./speech";
import { SHAPES } from "./shapes";

/** The results of one prompt length. */
export interface Row {
  prompt: number;
  decode_tps: Range;
  prefill_tps: Range;
  ttft_ms: Range;
  /** Milliseconds of a step: the device's limit, and measured. */
  limit_ms?: number;
  step_ms: number;
  /**
   * Share of the limit: dispatches at their minimum cost plus bytes at plain read bandwidth, both measured right after
   * each round.
   */
  share_of_limit?: Range;
  /** Bytes per second of a step relative to plain read bandwidth. */
  share_of_bandwidth?: number;
  measured?: Measurement;
}

/** The complete result. */
export interface Result {
  engine: "jerboa";
  model: string;
  settings: Settings;
  agent: string;
  isolated: boolean;
  adapter: ModelInfo["device"];
  info: ModelInfo;
  load_ms: number;
  /** Start time of each load phase, in milliseconds. */
  load_phases: Record<string, number>;
  load_bytes: number;
  from_cache: boolean;
  /** The load after a page reload: duration, start of each phase, and where the engine spent the time. */
  warm_load_ms?: number;
  warm_load_phases?: Record<string, number>;
  warm_load?: ModelInfo["load"];
  memory: { wasmBytes: number; gpuBytes: number };
  runs: Run[];
  rows: Row[];
  /** Decode of several sequences at once, if `sequences` is set. */
  batches?: BatchRow[];
  /** Decode with JSON schemas, if `tokenizer` is set. */
  constrained?: ConstrainedRow[];
  /** Instead of runs and rows, for embedding models. */
  embed?: EmbeddingResult;
  /** Likewise for speech models. */
  sound?: AudioResult;
  /** The device's limits: medians over the rounds. */
  limits?: Limits;
}

/** The device's limits. */
type Limits = NonNullable<Measurement["limits"]>;

/** Tokens at the end of an answer that a run reports; the native bench has the same. */
const LAST_IDS = 16;

const now = (): number => performance.now();

/** Pseudo-random ids that differ between runs, so that no prefix is cached; they repeat after `repeat` ids. */
function promptIds(length: number, vocab: number, seed: number, repeat: number): number[] {
  let state = 12345 + 7919 * seed;
  const ids = Array.from({ length: Math.min(length, repeat || length) }, () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return (state >>> 8) % vocab;
  });
  return Array.from({ length }, (_, i) => ids[i % ids.length]!);
}

/** Measures how long the page's thread is blocked. */
function watchPage(): () => number {
  let [last, longest, on] = [now(), 0, true];
  const { port1, port2 } = new MessageChannel();
  // Messages avoid the browser's minimum timer delay; one per millisecond leaves the thread free.
  const beat = (): void => {
    longest = Math.max(longest, now() - last);
    last = now();
    if (on) setTimeout(() => port2.postMessage(0), 1);
  };
  port1.onmessage = beat;
  beat();
  return () => {
    on = false;
    port1.close();
    return Math.max(longest, now() - last);
  };
}

async function generate(model: Model, settings: Settings, prompt: number, tokens: number, seed: number, more: object = {}): Promise<Run> {
  const { repeat, speculation } = settings;
  const ids = promptIds(prompt, model.info.vocabSize, seed, repeat);
  const blocked = watchPage();
  const start = now();
  const generation = model.generate(ids, { temperature: 0, maxTokens: tokens, ignoreEos: true, speculation, ...more });
  let [first, last, count] = [0, 0, 0];
  for await (const event of generation.events()) {
    if (event.ids.length === 0) continue;
    last = now();
    first ||= last;
    count += event.ids.length;
  }
  const page_blocked_ms = blocked();
  const details = await generation.details;
  return {
    prompt_tokens: prompt,
    tokens: count,
    ttft_ms: first - start,
    decode_ms: last - first,
    total_ms: last - start,
    prefill_tps: (prompt / (first - start)) * 1e3,
    decode_tps: ((count - 1) / (last - first)) * 1e3,
    engine_prefill_ms: details.prefillMs,
    engine_decode_ms: details.decodeMs,
    drafted: details.draftedTokens,
    accepted: details.acceptedTokens,
    readbacks: details.readbacks,
    page_blocked_ms,
    last_ids: [...details.ids.slice(-LAST_IDS)],
  };
}

/** The minimum duration of a step by the device's limits. */
function limitOf(measured: Measurement, limits: Limits): number {
  return (measured.dispatchesPerToken * limits.dispatchUs) / 1e3 + measured.bytesPerToken / limits.readGbs / 1e6;
}

/** The median of each value. */
function medianLimits(limits: Limits[]): Limits {
  const of = (name: keyof Limits): number => range(limits.map((one) => one[name])).median;
  return { readGbs: of("readGbs"), readBytes: of("readBytes"), dispatchUs: of("dispatchUs"), readbackMs: of("readbackMs") };
}

/** `limits` has one entry per round of runs, or none. */
async function row(model: Model, prompt: number, settings: Settings, runs: Run[], limits: Limits[]): Promise<Row> {
  const mine = runs.filter((run) => run.prompt_tokens === prompt);
  const decode_tps = range(mine.map((run) => run.decode_tps));
  const step_ms = 1e3 / decode_tps.median;
  const base: Row = { prompt, decode_tps, prefill_tps: range(mine.map((run) => run.prefill_tps)), ttft_ms: range(mine.map((run) => run.ttft_ms)), step_ms };
  if (limits.length === 0) return base;
  const position = Math.min(prompt + (settings.tokens >> 1), model.info.contextLength - 64);
  const measured = await model.measure({ position, profile: prompt > 1 ? [1, Math.min(prompt, 512)] : [1], sequences: settings.sequences, steps: 32 });
  const device = medianLimits(limits);
  const share_of_limit = range(mine.map((run, round) => (limitOf(measured, limits[round]!) * run.decode_tps) / 1e3));
  const share_of_bandwidth = measured.bytesPerToken / step_ms / 1e6 / device.readGbs;
  return { ...base, limit_ms: limitOf(measured, device), share_of_limit, share_of_bandwidth, measured };
}

/** The checkpoint that the settings name: a URL, or files generated here. */
async function checkpointOf(settings: Settings): Promise<ModelSource> {
  if (settings.source) return settings.source;
  const shape = SHAPES[settings.shape];
  if (!shape) throw new Error(`Unknown shape '${settings.shape}'. Supported: ${Object.keys(SHAPES).join(", ")}.`);
  if (shape.config.model_type === "bert") return encoderFiles(shape);
  const files = checkpoint(shape, settings.stored);
  return settings.tokenizer ? [...files, ...(await tokenizerFiles(settings.tokenizer))] : files;
}

/** Loads a model and times the load. */
async function load(settings: Settings): Promise<{ model: Model; ms: number; phases: Record<string, number>; last?: LoadProgress }> {
  const source = await checkpointOf(settings);
  const encodes = SHAPES[settings.shape]?.config.model_type === "bert" && !settings.source;
  const maxContext = encodes ? settings.lengths[1] : Math.max(...settings.prompts) + settings.tokens + 64;
  const phases: Record<string, number> = {};
  let last: LoadProgress | undefined;
  const start = now();
  const onProgress = (progress: LoadProgress): void => {
    phases[progress.phase] ??= now() - start;
    last = progress.total > 0 ? progress : last;
  };
  const { weights, embeddingWeights, kv, kvMemory, tune, memory, cache, worker, f16, subgroups, matrix } = settings;
  const model = await loadModel(source, { onProgress, maxContext, weights, embeddingWeights, kv, tune, features: { f16, subgroups, matrix }, worker, ...(memory > 0 ? { maxMemory: memory * 2 ** 30 } : {}), ...(kvMemory > 0 ? { maxKvMemory: kvMemory * 1e6 } : {}), ...(settings.source ? { cache } : {}), ...(settings.codec ? { codec: settings.codec } : {}) });
  return { model, ms: now() - start, phases, ...(last ? { last } : {}) };
}

/** Loads the model again and generates one token or embeds one text. */
export async function loadAgain(settings: Settings): Promise<Pick<Result, "warm_load_ms" | "warm_load_phases" | "warm_load">> {
  const { model, ms, phases } = await load(settings);
  await (model.info.task === "embed" ? model.embed("warm") : generate(model, settings, 4, 1, 1));
  await model.unload();
  return { warm_load_ms: ms, warm_load_phases: phases, warm_load: model.info.load };
}

/** Milliseconds until an idle model has compiled its lazy kernels: it starts after one second. */
const SETTLE_MS = 4000;

/** Runs all prompt lengths in turns, then the engine's measurements. */
async function decode(model: Model, settings: Settings, say: (line: string) => void): Promise<Pick<Result, "runs" | "rows" | "batches" | "constrained" | "limits">> {
  const warm = async (): Promise<void> => {
    if (settings.warm > 0) await generate(model, settings, settings.prompts[0]!, settings.warm, 99);
  };
  await warm();
  if (settings.settled) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    await warm();
  }
  const runs: Run[] = [];
  const limits: Limits[] = [];
  for (let round = 0; round < settings.runs; round++) {
    for (const prompt of settings.prompts) {
      if (settings.pause > 0) await new Promise((resolve) => setTimeout(resolve, settings.pause));
      const run = await generate(model, settings, prompt, settings.tokens, 100 * prompt + round);
      runs.push(run);
      say(`prompt ${prompt}: time to first token ${run.ttft_ms.toFixed(1)} ms, ${run.decode_tps.toFixed(1)} tokens/s`);
    }
    if (!settings.profile) continue;
    // Dispatch cost varies within seconds more than anything else, so measure it with each round. The next prompt
    // starts by freeing the memory used here.
    const measured = (await model.measure({ limits: true })).limits;
    if (measured) limits.push(measured);
    await warm();
  }
  const rows: Row[] = [];
  for (const prompt of settings.prompts) rows.push(await row(model, prompt, settings, runs, limits));
  const run = (prompt: number, seed: number, more: object): Promise<Run> => generate(model, settings, prompt, settings.tokens, seed, { temperature: settings.temperature, ...(settings.topK > 0 ? { topK: settings.topK } : {}), seed, ...more });
  const tokenize = (text: string): Promise<Uint32Array> => model.tokenize(text, { addSpecialTokens: false });
  const constrained = settings.tokenizer ? { constrained: await benchSchemas(settings, run, tokenize, say) } : {};
  const ids = (length: number, seed: number): number[] => promptIds(length, model.info.vocabSize, seed, settings.repeat);
  const batches = settings.sequences.length > 0 ? { batches: await benchBatches(model, settings, ids, say) } : {};
  return { runs, rows, ...batches, ...constrained, ...(limits.length > 0 ? { limits: medianLimits(limits) } : {}) };
}

/** Runs the benchmark; `say` receives progress messages. */
export async function bench(settings: Settings, say: (line: string) => void): Promise<Result> {
  const { model, ms, phases, last } = await load(settings);
  say(`loaded in ${ms.toFixed(0)} ms`);
  try {
    const memory = await model.memory();
    const embeds = model.info.task === "embed";
    const sounds = model.info.task === "transcribe" || model.info.task === "speak";
    const measured = embeds
      ? { runs: [], rows: [], embed: await embedAll(model, settings, say) }
      : sounds
        ? { runs: [], rows: [], sound: await benchSpeech(model, settings, say) }
        : await decode(model, settings, say);
    return {
      engine: "jerboa",
      model: settings.source ?? settings.shape,
      settings,
      agent: navigator.userAgent,
      isolated: crossOriginIsolated,
      adapter: model.info.device,
      info: model.info,
      load_ms: ms,
      load_phases: phases,
      load_bytes: last?.total ?? 0,
      from_cache: last?.fromCache ?? false,
      memory,
      ...measured,
    };
  } finally {
    await model.unload();
  }
}
