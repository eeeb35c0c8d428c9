/** OpenAI's legacy `completions`: request and response types for text continuation. */

import { defined, IGNORED, type CompletionUsage, type RequestOptions, type Timings, timingsOf, usageOf } from "./chat.js";
import { checked, mustBe } from "./check.js";
import type { ChosenLogprob, EngineRequest, GenerationResult, ModelInfo } from "./contract.js";
import { aborted, refused, unloaded } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./host.js";
import { misused } from "./tasks.js";

/** A request of `completions.create`. */
export interface TextCompletionCreateParams {
  /** A prompt as text or token ids, or several; several run one after another, one choice each. */
  prompt: string | number[] | string[] | number[][];
  /** Parses special tokens in the prompt's text, such as `<|fim_prefix|>`; false by default. */
  parse_special?: boolean | null;
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  max_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  stop?: string | string[] | null;
  seed?: number | null;
  logit_bias?: Record<string, number> | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  /** Number of alternatives in each token's log-probabilities, up to 20. */
  logprobs?: number | null;
  /** Only one answer per prompt is supported. */
  n?: 1 | null;
  best_of?: 1 | null;
  /** Not supported: write fill-in-the-middle tokens into the prompt, with `parse_special`. */
  suffix?: "" | null;
  /** Prepends the prompt to the answer. */
  echo?: boolean | null;
  user?: string;
}

/** The log-probabilities of a choice's tokens, as parallel arrays. */
export interface TextLogprobs {
  tokens: string[];
  token_logprobs: number[];
  /** The most likely tokens with their log-probabilities; null when no alternatives were requested. */
  top_logprobs: Record<string, number>[] | null;
  /** Offset of each token's text in the choice's text. */
  text_offset: number[];
}

/** An answer or a chunk of one; both have the same format. */
export interface TextCompletion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: { index: number; text: string; logprobs: TextLogprobs | null; finish_reason: "stop" | "length" | "abort" | null }[];
  usage?: CompletionUsage;
  timings?: Timings;
}

/** A streamed answer; leaving the loop stops it. */
export interface TextCompletionStream extends AsyncIterable<TextCompletion> {
  abort(): void;
}

const WHERE = "completions.create";
const SPEC = {
  prompt: (v: unknown) => (promptsOf(v).length > 0 ? undefined : "a string, token ids, or an array of either"),
  parse_special: mustBe.boolean,
  model: mustBe.string,
  stream: mustBe.boolean,
  stream_options: mustBe.object,
  max_tokens: mustBe.integer(1),
  temperature: mustBe.number(0, 2),
  top_p: mustBe.number(0, 1),
  stop: mustBe.strings,
  seed: mustBe.integer(0, Number.MAX_SAFE_INTEGER),
  logit_bias: mustBe.biases,
  presence_penalty: mustBe.number(-2, 2),
  frequency_penalty: mustBe.number(-2, 2),
  logprobs: mustBe.integer(0, 20),
  n: (v: unknown) => (v === 1 ? undefined : "1 (several answers per prompt are not supported)"),
  best_of: (v: unknown) => (v === 1 ? undefined : "1 (several answers per prompt are not supported)"),
  suffix: (v: unknown) => (v === "" ? undefined : "omitted (write the model's fill-in-the-middle tokens into 'prompt' and set parse_special: true)"),
  echo: mustBe.boolean,
  ...Object.fromEntries(IGNORED.map((name) => [name, mustBe.any])),
};

/** OpenAI's `completions`. */
export class TextCompletions {
  readonly #backend: Backend;
  readonly #info: ModelInfo;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.#backend = backend;
    this.#info = info;
  }

  /** Continues a prompt as a stream of chunks. */
  create(params: TextCompletionCreateParams & { stream: true }, options?: RequestOptions): Promise<TextCompletionStream>;
  /** Continues a prompt. An abort rejects with code `aborted`. */
  create(params: TextCompletionCreateParams & { stream?: false | null }, options?: RequestOptions): Promise<TextCompletion>;
  create(params: TextCompletionCreateParams, options?: RequestOptions): Promise<TextCompletion | TextCompletionStream>;
  async create(params: TextCompletionCreateParams, options?: RequestOptions): Promise<TextCompletion | TextCompletionStream> {
    const p = checked(WHERE, params, SPEC);
    const { signal } = checked(WHERE, options, { signal: mustBe.signal }) as RequestOptions;
    if (this.#backend.closed) throw unloaded();
    if (this.#info.task !== "generate") throw misused(this.#info, "cannot generate text");
    if (p.prompt === undefined) throw refused(`${WHERE}: 'prompt' is missing.`);
    const prompts = promptsOf(p.prompt);
    if (p.echo && prompts.some((prompt) => typeof prompt !== "string")) throw refused(`${WHERE}: 'echo' requires a text prompt, not token ids.`);
    if (p.echo && typeof p.logprobs === "number") throw refused(`${WHERE}: 'logprobs' cannot be combined with 'echo', because prompt tokens have none. Set one of them.`);
    const head = { id: `cmpl-${crypto.randomUUID()}`, object: "text_completion" as const, created: Math.floor(Date.now() / 1000), model: this.#info.model };
    const controller = new AbortController();
    const stop = signal ? AbortSignal.any([signal, controller.signal]) : controller.signal;
    const start = (prompt: Prompt): Generation => {
      const request = engineRequest(p, prompt);
      return new Generation((onEvent, s) => this.#backend.call("generate", [request], { signal: s, onEvent }), stop);
    };
    // The first prompt starts now, each other one when its predecessor is done.
    const [first = "", ...others] = prompts;
    const started: Started = { begun: [first, start(first)], others, start, echo: p.echo === true };
    if (p.stream) {
      const usage = p.stream_options?.include_usage === true;
      return { abort: () => controller.abort(), [Symbol.asyncIterator]: () => pieces(head, started, usage) };
    }
    const choices: TextCompletion["choices"] = [];
    const results: GenerationResult[] = [];
    for (const [before, generation] of each(started)) {
      const scored: Scored = { logprobs: null, length: before.length };
      let text = before;
      for await (const event of generation.events()) {
        text += event.text;
        score(scored, event.logprobs);
      }
      const result = await generation.details;
      if (result.finishReason === "abort") throw aborted("The completion");
      choices.push({ index: choices.length, text, logprobs: scored.logprobs, finish_reason: result.finishReason });
      results.push(result);
    }
    const all = results.reduce(sum);
    return { ...head, choices, usage: usageOf(all), timings: timingsOf(all) };
  }
}

type Prompt = string | number[];

/** The prompts of a request, the first already started. */
interface Started {
  begun: [prompt: Prompt, generation: Generation];
  others: Prompt[];
  start: (prompt: Prompt) => Generation;
  echo: boolean;
}

/** The prompts of a request; empty for an invalid value. */
function promptsOf(value: unknown): Prompt[] {
  const isIds = (v: unknown): v is number[] => Array.isArray(v) && v.length > 0 && v.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 32);
  const one = (v: unknown): v is Prompt => typeof v === "string" || isIds(v);
  if (one(value)) return [value];
  return Array.isArray(value) && value.every(one) ? value : [];
}

/** The echoed text and the generation of each prompt, in order. */
function* each({ begun, others, start, echo }: Started): Generator<[before: string, generation: Generation], void, undefined> {
  const before = (prompt: Prompt): string => (echo ? String(prompt) : "");
  yield [before(begun[0]), begun[1]];
  for (const prompt of others) yield [before(prompt), start(prompt)];
}

/** The sum of two results' counters. */
function sum(a: GenerationResult, b: GenerationResult): GenerationResult {
  const all = { ...b };
  for (const name of ["promptTokens", "completionTokens", "cachedTokens", "draftedTokens", "acceptedTokens", "encodeMs", "prefillMs", "decodeMs"] as const) all[name] = a[name] + b[name];
  return all;
}

/** The log-probabilities so far, and the length of the text up to here. */
interface Scored {
  logprobs: TextLogprobs | null;
  length: number;
}

/** Appends an event's log-probabilities. */
function score(scored: Scored, chosen: ChosenLogprob[] | undefined): void {
  for (const { token, logprob, top } of chosen ?? []) {
    const all = (scored.logprobs ??= { tokens: [], token_logprobs: [], top_logprobs: null, text_offset: [] });
    all.tokens.push(token);
    all.token_logprobs.push(logprob);
    all.text_offset.push(scored.length);
    if (top.length > 0) (all.top_logprobs ??= []).push(Object.fromEntries(top.map((one) => [one.token, one.logprob])));
    scored.length += token.length;
  }
}

type Head = Pick<TextCompletion, "id" | "object" | "created" | "model">;

async function* pieces(head: Head, started: Started, withUsage: boolean): AsyncGenerator<TextCompletion, void, undefined> {
  let index = 0;
  const results: GenerationResult[] = [];
  for (const [before, generation] of each(started)) {
    const piece = (text: string, logprobs: TextLogprobs | null = null, finish: GenerationResult["finishReason"] | null = null): TextCompletion => ({ ...head, choices: [{ index, text, logprobs, finish_reason: finish }] });
    let length = before.length;
    if (before) yield piece(before);
    for await (const event of generation.events()) {
      const scored: Scored = { logprobs: null, length };
      score(scored, event.logprobs);
      length = scored.length;
      if (event.text || scored.logprobs) yield piece(event.text, scored.logprobs);
    }
    const result = await generation.details;
    results.push(result);
    yield { ...piece("", null, result.finishReason), timings: timingsOf(result) };
    if (result.finishReason === "abort") break;
    index++;
  }
  if (withUsage) yield { ...head, choices: [], usage: usageOf(results.reduce(sum)) };
}

function engineRequest(p: TextCompletionCreateParams, prompt: Prompt): EngineRequest {
  const set = <T>(value: T | null | undefined): T | undefined => value ?? undefined;
  return defined({
    ...(typeof prompt === "string" ? { prompt } : { ids: prompt }),
    parseSpecial: set(p.parse_special),
    logprobs: typeof p.logprobs === "number" ? true : undefined,
    topLogprobs: set(p.logprobs),
    maxTokens: set(p.max_tokens),
    temperature: set(p.temperature),
    topP: set(p.top_p),
    stop: typeof p.stop === "string" ? [p.stop] : set(p.stop),
    seed: set(p.seed),
    logitBias: set(p.logit_bias),
    presencePenalty: set(p.presence_penalty),
    frequencyPenalty: set(p.frequency_penalty),
  });
}
