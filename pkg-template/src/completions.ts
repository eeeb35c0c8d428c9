/** OpenAI's legacy `completions`: request and response types for text continuation. */

import { addAnswer, withoutUnset, IGNORED_FIELDS, type CompletionUsage, type GenerationRequestOptions, type StreamOptions, streamOf, type Timings, timingsOf, usageOf } from "./chat.js";
import { checked, engineOptions, everyItem, valid, validator } from "./check.js";
import type { ChosenLogprob, EngineRequest, GenerationResult, ModelInfo, TokenLogprob } from "./contract.js";
import { aborted, invalidRequest, JerboaError, requireOpen } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./engine-calls.js";
import { isTokenId, seedOf } from "./generate.js";
import { randomId } from "./random-id.js";
import { COMPLETION_SPEC, GENERATE_SPEC, type CompletionFields } from "./schema.js";
import { generateWithSteps, STEP_OPTIONS } from "./steps.js";
import { wrongTask } from "./tasks.js";

/** A request of `completions.create`. */
export interface TextCompletionCreateParams extends CompletionFields {
  /** A prompt as text or token ids, or several, which decode together; one choice for each. */
  prompt: string | number[] | string[] | number[][] | null;
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  /** Number of alternatives in each token's log-probabilities, up to 20. */
  logprobs?: number | null;
  /** Number of choices for each prompt, 1 by default. They decode together, with the seeds `seed`, `seed + 1` and so on. */
  n?: number | null;
  /** Generates this many answers for each prompt and returns the `n` of highest mean log-probability. */
  best_of?: number | null;
  /** Text after the gap that the answer fills, for models whose `info.fillInTheMiddle` is true. */
  suffix?: string | null;
  /** Prepends the prompt to the answer. */
  echo?: boolean | null;
  user?: string;
}

/** The log-probabilities of a choice's tokens, as parallel arrays. */
export interface TextLogprobs {
  tokens: string[];
  token_logprobs: number[];
  /** The most likely tokens with their log-probabilities; empty when no alternatives were requested. */
  top_logprobs: Record<string, number>[];
  /** Offset of each token's text in the choice's text. */
  text_offset: number[];
}

/** A complete answer. */
export interface TextCompletion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: { index: number; text: string; logprobs: TextLogprobs | null; finish_reason: "stop" | "length" }[];
  usage: CompletionUsage;
  timings: Timings;
}

/** A chunk of a streamed answer. */
export interface TextCompletionChunk extends Omit<TextCompletion, "choices" | "usage" | "timings"> {
  choices: { index: number; text: string; logprobs: TextLogprobs | null; finish_reason: "stop" | "length" | null }[];
  usage?: CompletionUsage;
  /** Set on the chunk that ends a choice. */
  timings?: Timings;
  /** True in the last chunk of an answer that the caller stopped. */
  aborted?: true;
}

/** A streamed answer; leaving the loop stops it. */
export interface TextCompletionStream extends AsyncIterable<TextCompletionChunk> {
  abort(): void;
}

const WHERE = "completions.create";
const SPEC = {
  ...COMPLETION_SPEC,
  prompt: validator("a string, token ids, or an array of either", (v) => promptsOf(v).length > 0, (item) => isPrompt(item) || isTokenId(item)),
  model: valid.string,
  stream: valid.boolean,
  stream_options: valid.object,
  logprobs: GENERATE_SPEC.topLogprobs,
  n: valid.integer(1, 128),
  best_of: valid.integer(1, 20),
  suffix: valid.string,
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
  create(params: TextCompletionCreateParams & { stream: true }, options?: GenerationRequestOptions): Promise<TextCompletionStream>;
  /** Continues a prompt. An abort rejects with code `aborted`. */
  create(params: TextCompletionCreateParams & { stream?: false | null }, options?: GenerationRequestOptions): Promise<TextCompletion>;
  create(params: TextCompletionCreateParams, options?: GenerationRequestOptions): Promise<TextCompletion | TextCompletionStream>;
  async create(params: TextCompletionCreateParams, options?: GenerationRequestOptions): Promise<TextCompletion | TextCompletionStream> {
    const p = checked(WHERE, params, SPEC);
    const { signal, ...steps } = checked(WHERE, options, { signal: valid.signal, ...STEP_OPTIONS }) as GenerationRequestOptions;
    requireOpen(this.#backend);
    if (this.#info.task !== "generate") throw wrongTask(this.#info, "cannot generate text");
    if (p.prompt === undefined) throw invalidRequest(`${WHERE}: 'prompt' is missing. Set it to a string, a list of token ids, or a list of prompts.`);
    const prompts = promptsOf(p.prompt);
    if (p.echo && prompts.some((prompt) => typeof prompt !== "string")) throw invalidRequest(`${WHERE}: 'echo' requires a text prompt, not token ids.`);
    const { n = 1, best_of: best = n } = p as { n?: number; best_of?: number };
    if (best < n) throw invalidRequest(`${WHERE}: 'best_of' (${best}) must not be less than 'n' (${n}).`);
    if (best > n && p.stream) throw invalidRequest(`${WHERE}: 'best_of' above 'n' cannot be streamed, because the best answers are known at the end. Leave one of them out.`);
    if (p.suffix) requireGap(this.#info, p, prompts);
    if (p.echo && typeof p.logprobs === "number") throw invalidRequest(`${WHERE}: 'logprobs' cannot be combined with 'echo', because prompt tokens have none. Set one of them.`);
    const head = { id: `cmpl-${randomId()}`, object: "text_completion" as const, created: Math.floor(Date.now() / 1000), model: this.#info.model };
    const controller = new AbortController();
    const stop = signal ? AbortSignal.any([signal, controller.signal]) : controller.signal;
    const runs = prompts.flatMap((prompt, at) => Array.from({ length: best }, (_, index) => ({ prompt, index, answer: at * best + index })));
    const start = ({ prompt, answer }: Run): Generation => {
      const request = engineRequest(p, prompt);
      if (request.seed !== undefined) request.seed = seedOf(request.seed, answer);
      if (best > n) request.logprobs = true;
      return new Generation((onEvent, s) => generateWithSteps(this.#backend, request, steps, { signal: s, onEvent }), stop);
    };
    // All answers start now: they decode together.
    const started = runs.map((run): StartedRun => ({ run, before: p.echo ? String(run.prompt) : "", generation: start(run) }));
    if (p.stream) {
      const usage = p.stream_options?.include_usage === true;
      return streamOf(controller, completionChunks(head, started, usage));
    }
    return this.#whole(p, head, started, { n, best }).finally(() => controller.abort());
  }

  async #whole(p: TextCompletionCreateParams, head: ResponseHead, started: StartedRun[], { n, best }: { n: number; best: number }): Promise<TextCompletion> {
    const candidates: Candidate[] = [];
    const results: RunResult[] = [];
    for (const { run: { index }, before, generation } of started) {
      const scored: LogprobState = { logprobs: null, length: before.length };
      let text = before;
      for await (const event of generation.events()) {
        text += event.text;
        appendLogprobs(scored, event.logprobs);
      }
      const result = await generation.details;
      if (result.finishReason === "abort") throw aborted("The completion");
      candidates.push({ score: meanLogprob(scored.logprobs), text, logprobs: typeof p.logprobs === "number" ? scored.logprobs : null, finish_reason: reasonOf(result) });
      results.push({ index, result });
    }
    const prompts = started.filter(({ run: { index } }) => index === 0);
    const chosen = best > n ? prompts.flatMap((_, at) => candidates.slice(at * best, (at + 1) * best).sort((a, b) => b.score - a.score).slice(0, n)) : candidates;
    const all = addRuns(results);
    return { ...head, choices: chosen.map(({ text, logprobs, finish_reason }, index) => ({ index, text, logprobs, finish_reason })), usage: usageOf(all), timings: timingsOf(all) };
  }
}

type Prompt = string | number[];

/** One answer to a prompt, with its index among those to the same prompt and among those of the request. */
interface Run {
  prompt: Prompt;
  index: number;
  answer: number;
}

/** An answer, with the prompt's text if it is echoed. */
interface StartedRun {
  run: Run;
  before: string;
  generation: Generation;
}

/** An answer that may become a choice. */
interface Candidate extends Omit<TextCompletion["choices"][number], "index"> {
  score: number;
}

/** The result of a run. */
interface RunResult {
  index: number;
  result: GenerationResult;
}

/** Refuses a suffix that the model or the request has no place for. */
function requireGap(info: ModelInfo, p: TextCompletionCreateParams, prompts: Prompt[]): void {
  if (!info.fillInTheMiddle) throw new JerboaError("unsupported_option", `${WHERE}: 'suffix' is not supported by ${info.model}: its vocabulary has no fill-in-the-middle tokens. Load a code model such as Qwen2.5-Coder, or write the tokens of another format into 'prompt' with parse_special: true.`);
  if (prompts.some((prompt) => typeof prompt !== "string")) throw invalidRequest(`${WHERE}: 'suffix' requires a text prompt, not token ids.`);
  if (p.parse_special) throw invalidRequest(`${WHERE}: 'suffix' cannot be combined with parse_special: the request writes the fill-in-the-middle tokens itself. Set one of them.`);
}

/** The mean log-probability of a choice's tokens. */
function meanLogprob(logprobs: TextLogprobs | null): number {
  const values = logprobs?.token_logprobs ?? [];
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

/** The prompts of a request; empty for an invalid value. */
function promptsOf(value: unknown): Prompt[] {
  if (isPrompt(value)) return [value];
  return everyItem(value, isPrompt) ? (value as Prompt[]) : [];
}

const isPrompt = (value: unknown): value is Prompt => typeof value === "string" || (everyItem(value, isTokenId) && (value as number[]).length > 0);

/** Why a completion ended. Prompts have no tools. */
function reasonOf({ finishReason }: GenerationResult): "stop" | "length" {
  return finishReason === "length" ? "length" : "stop";
}

/** The sum of all counters; each prompt's tokens count once. */
function addRuns(runs: RunResult[]): GenerationResult {
  return runs.map(({ index, result }) => (index === 0 ? result : { ...result, promptTokens: 0, cachedTokens: 0 })).reduce((a, b) => ({
    ...addAnswer(a, b),
    promptTokens: a.promptTokens + b.promptTokens,
    cachedTokens: a.cachedTokens + b.cachedTokens,
  }));
}

/** The log-probabilities so far, and the length of the text up to here. */
interface LogprobState {
  logprobs: TextLogprobs | null;
  length: number;
}

/** Appends an event's log-probabilities. */
function appendLogprobs(scored: LogprobState, chosen: ChosenLogprob[] | undefined): void {
  for (const { token, logprob, top } of chosen ?? []) {
    const all = (scored.logprobs ??= { tokens: [], token_logprobs: [], top_logprobs: [], text_offset: [] });
    all.tokens.push(token);
    all.token_logprobs.push(logprob);
    all.text_offset.push(scored.length);
    if (top.length > 0) all.top_logprobs.push(Object.fromEntries(top.map((one) => [spelling(one), one.logprob])));
    scored.length += token.length;
  }
}

/** A token as a key: a part of a character by its bytes, as OpenAI spells it. */
function spelling({ token, bytes }: TokenLogprob): string {
  return token.includes("\uFFFD") && bytes ? `bytes:${bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("")}` : token;
}

type ResponseHead = Pick<TextCompletion, "id" | "object" | "created" | "model">;

async function* completionChunks(head: ResponseHead, started: StartedRun[], withUsage: boolean): AsyncGenerator<TextCompletionChunk, void, undefined> {
  let index = 0;
  const results: RunResult[] = [];
  for (const { run, before, generation } of started) {
    const piece = (text: string, logprobs: TextLogprobs | null = null, finish: TextCompletionChunk["choices"][number]["finish_reason"] = null): TextCompletionChunk => ({ ...head, choices: [{ index, text, logprobs, finish_reason: finish }] });
    let length = before.length;
    if (before) yield piece(before);
    for await (const event of generation.events()) {
      const scored: LogprobState = { logprobs: null, length };
      appendLogprobs(scored, event.logprobs);
      length = scored.length;
      if (event.text || scored.logprobs) yield piece(event.text, scored.logprobs);
    }
    const result = await generation.details;
    results.push({ index: run.index, result });
    const isAborted = result.finishReason === "abort";
    yield { ...piece("", null, reasonOf(result)), timings: timingsOf(result), ...(isAborted ? { aborted: true as const } : {}) };
    if (isAborted) break;
    index++;
  }
  if (withUsage) yield { ...head, choices: [], usage: usageOf(addRuns(results)) };
}

function engineRequest(p: TextCompletionCreateParams, prompt: Prompt): EngineRequest {
  const set = <T>(value: T | null | undefined): T | undefined => value ?? undefined;
  return withoutUnset({
    ...engineOptions(COMPLETION_SPEC, p),
    ...(typeof prompt === "string" ? { prompt } : { ids: prompt }),
    suffix: p.suffix ? p.suffix : undefined,
    logprobs: typeof p.logprobs === "number" ? true : undefined,
    topLogprobs: set(p.logprobs),
    stop: typeof p.stop === "string" ? [p.stop] : set(p.stop),
  });
}
