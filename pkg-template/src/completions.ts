/** OpenAI's legacy `completions`: request and response types for text continuation. */

import { withoutUnset, IGNORED_FIELDS, type CompletionUsage, type RequestOptions, type Timings, timingsOf, usageOf } from "./chat.js";
import { checked, everyItem, valid, validator } from "./check.js";
import type { ChosenLogprob, EngineRequest, GenerationResult, ModelInfo } from "./contract.js";
import { aborted, invalidRequest, unloaded } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./engine-calls.js";
import { isTokenId } from "./generate.js";
import { wrongTask } from "./tasks.js";

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
  prompt: validator("a string, token ids, or an array of either", (v) => promptsOf(v).length > 0),
  parse_special: valid.boolean,
  model: valid.string,
  stream: valid.boolean,
  stream_options: valid.object,
  max_tokens: valid.integer(1),
  temperature: valid.number(0, 2),
  top_p: valid.number(0, 1),
  stop: valid.strings,
  seed: valid.integer(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  logit_bias: valid.biases,
  presence_penalty: valid.number(-2, 2),
  frequency_penalty: valid.number(-2, 2),
  logprobs: valid.integer(0, 20),
  n: validator("1 (several answers per prompt are not supported)", (v) => v === 1),
  best_of: validator("1 (several answers per prompt are not supported)", (v) => v === 1),
  suffix: validator("omitted (write the model's fill-in-the-middle tokens into 'prompt' and set parse_special: true)", (v) => v === ""),
  echo: valid.boolean,
  ...Object.fromEntries(IGNORED_FIELDS.map((name) => [name, valid.any])),
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
    const { signal } = checked(WHERE, options, { signal: valid.signal }) as RequestOptions;
    if (this.#backend.closed) throw unloaded();
    if (this.#info.task !== "generate") throw wrongTask(this.#info, "cannot generate text");
    if (p.prompt === undefined) throw invalidRequest(`${WHERE}: 'prompt' is missing.`);
    const prompts = promptsOf(p.prompt);
    if (p.echo && prompts.some((prompt) => typeof prompt !== "string")) throw invalidRequest(`${WHERE}: 'echo' requires a text prompt, not token ids.`);
    if (p.echo && typeof p.logprobs === "number") throw invalidRequest(`${WHERE}: 'logprobs' cannot be combined with 'echo', because prompt tokens have none. Set one of them.`);
    const head = { id: `cmpl-${crypto.randomUUID()}`, object: "text_completion" as const, created: Math.floor(Date.now() / 1000), model: this.#info.model };
    const controller = new AbortController();
    const stop = signal ? AbortSignal.any([signal, controller.signal]) : controller.signal;
    const start = (prompt: Prompt): Generation => {
      const request = engineRequest(p, prompt);
      return new Generation((onEvent, s) => this.#backend.call("generate", [request], { signal: s, onEvent }), stop);
    };
    // The first prompt starts now, each other one when its predecessor is done.
    const [first = "", ...others] = prompts;
    const started: StartedPrompts = { begun: [first, start(first)], others, start, echo: p.echo === true };
    if (p.stream) {
      const usage = p.stream_options?.include_usage === true;
      return { abort: () => controller.abort(), [Symbol.asyncIterator]: () => completionChunks(head, started, usage) };
    }
    const choices: TextCompletion["choices"] = [];
    const results: GenerationResult[] = [];
    for (const [before, generation] of eachPrompt(started)) {
      const scored: LogprobState = { logprobs: null, length: before.length };
      let text = before;
      for await (const event of generation.events()) {
        text += event.text;
        appendLogprobs(scored, event.logprobs);
      }
      const result = await generation.details;
      if (result.finishReason === "abort") throw aborted("The completion");
      choices.push({ index: choices.length, text, logprobs: scored.logprobs, finish_reason: reasonOf(result) });
      results.push(result);
    }
    const all = results.reduce(addResults);
    return { ...head, choices, usage: usageOf(all), timings: timingsOf(all) };
  }
}

type Prompt = string | number[];

/** The prompts of a request, the first already started. */
interface StartedPrompts {
  begun: [prompt: Prompt, generation: Generation];
  others: Prompt[];
  start: (prompt: Prompt) => Generation;
  echo: boolean;
}

/** The prompts of a request; empty for an invalid value. */
function promptsOf(value: unknown): Prompt[] {
  const isIds = (v: unknown): v is number[] => everyItem(v, isTokenId) && (v as number[]).length > 0;
  const one = (v: unknown): v is Prompt => typeof v === "string" || isIds(v);
  if (one(value)) return [value];
  return everyItem(value, one) ? (value as Prompt[]) : [];
}

/** The echoed text and the generation of each prompt, in order. */
function* eachPrompt({ begun, others, start, echo }: StartedPrompts): Generator<[before: string, generation: Generation], void, undefined> {
  const before = (prompt: Prompt): string => (echo ? String(prompt) : "");
  yield [before(begun[0]), begun[1]];
  for (const prompt of others) yield [before(prompt), start(prompt)];
}

/** Why a completion ended. Prompts have no tools. */
function reasonOf({ finishReason }: GenerationResult): "stop" | "length" | "abort" {
  return finishReason === "tool_calls" ? "stop" : finishReason;
}

/** The sum of two results' counters. */
function addResults(a: GenerationResult, b: GenerationResult): GenerationResult {
  const all = { ...b };
  for (const name of ["promptTokens", "completionTokens", "cachedTokens", "draftedTokens", "acceptedTokens", "encodeMs", "prefillMs", "decodeMs"] as const) all[name] = a[name] + b[name];
  return all;
}

/** The log-probabilities so far, and the length of the text up to here. */
interface LogprobState {
  logprobs: TextLogprobs | null;
  length: number;
}

/** Appends an event's log-probabilities. */
function appendLogprobs(scored: LogprobState, chosen: ChosenLogprob[] | undefined): void {
  for (const { token, logprob, top } of chosen ?? []) {
    const all = (scored.logprobs ??= { tokens: [], token_logprobs: [], top_logprobs: null, text_offset: [] });
    all.tokens.push(token);
    all.token_logprobs.push(logprob);
    all.text_offset.push(scored.length);
    if (top.length > 0) (all.top_logprobs ??= []).push(Object.fromEntries(top.map((one) => [one.token, one.logprob])));
    scored.length += token.length;
  }
}

type ResponseHead = Pick<TextCompletion, "id" | "object" | "created" | "model">;

async function* completionChunks(head: ResponseHead, started: StartedPrompts, withUsage: boolean): AsyncGenerator<TextCompletion, void, undefined> {
  let index = 0;
  const results: GenerationResult[] = [];
  for (const [before, generation] of eachPrompt(started)) {
    const piece = (text: string, logprobs: TextLogprobs | null = null, finish: TextCompletion["choices"][number]["finish_reason"] = null): TextCompletion => ({ ...head, choices: [{ index, text, logprobs, finish_reason: finish }] });
    let length = before.length;
    if (before) yield piece(before);
    for await (const event of generation.events()) {
      const scored: LogprobState = { logprobs: null, length };
      appendLogprobs(scored, event.logprobs);
      length = scored.length;
      if (event.text || scored.logprobs) yield piece(event.text, scored.logprobs);
    }
    const result = await generation.details;
    results.push(result);
    yield { ...piece("", null, reasonOf(result)), timings: timingsOf(result) };
    if (result.finishReason === "abort") break;
    index++;
  }
  if (withUsage) yield { ...head, choices: [], usage: usageOf(results.reduce(addResults)) };
}

function engineRequest(p: TextCompletionCreateParams, prompt: Prompt): EngineRequest {
  const set = <T>(value: T | null | undefined): T | undefined => value ?? undefined;
  return withoutUnset({
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
