/** OpenAI's older `completions`: a text is continued. Request and response shapes over the engine; does not know any model. */

import { defined, IGNORED, type CompletionUsage, type RequestOptions, type Timings, timingsOf, usageOf } from "./chat.js";
import { checked, mustBe } from "./check.js";
import type { EngineRequest, GenerationResult, ModelInfo } from "./contract.js";
import { aborted, refused, unloaded } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./host.js";

/** A request of `completions.create`. */
export interface TextCompletionCreateParams {
  /** The text to continue, or its token ids. */
  prompt: string | number[];
  /** Ignored but for being a string: there is one model. */
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
  /** One answer is all there is. */
  n?: 1 | null;
  /** Puts the prompt before the answer. */
  echo?: boolean | null;
  user?: string;
}

/** An answer, or a piece of one: both have the same shape. */
export interface TextCompletion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: { index: 0; text: string; logprobs: null; finish_reason: "stop" | "length" | "abort" | null }[];
  usage?: CompletionUsage;
  timings?: Timings;
}

/** A streamed answer, which ends when its loop is left. */
export interface TextCompletionStream extends AsyncIterable<TextCompletion> {
  abort(): void;
}

const WHERE = "completions.create";
const SPEC = {
  prompt: (v: unknown) => (typeof v === "string" || (Array.isArray(v) && v.every((id) => Number.isInteger(id) && id >= 0)) ? undefined : "a string or token ids"),
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
  n: (v: unknown) => (v === 1 ? undefined : "1: a model in a page gives one answer at a time"),
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

  /** Continues a text, piece by piece. */
  create(params: TextCompletionCreateParams & { stream: true }, options?: RequestOptions): Promise<TextCompletionStream>;
  /** Continues a text. An abort rejects with code `aborted`. */
  create(params: TextCompletionCreateParams & { stream?: false | null }, options?: RequestOptions): Promise<TextCompletion>;
  create(params: TextCompletionCreateParams, options?: RequestOptions): Promise<TextCompletion | TextCompletionStream>;
  async create(params: TextCompletionCreateParams, options?: RequestOptions): Promise<TextCompletion | TextCompletionStream> {
    const p = checked(WHERE, params, SPEC);
    const { signal } = checked(WHERE, options, { signal: mustBe.signal }) as RequestOptions;
    if (this.#backend.closed) throw unloaded();
    if (this.#info.task !== "generate") throw refused(`${this.#info.model} does not generate text; it is for ${this.#info.task}.`);
    if (p.prompt === undefined) throw refused(`${WHERE}: there is no 'prompt'.`);
    if (p.echo && typeof p.prompt !== "string") throw refused(`${WHERE}: 'echo' needs the prompt as a text.`);
    const request = engineRequest(p);
    const generation = new Generation((onEvent, s) => this.#backend.call("generate", [request], { signal: s, onEvent }), signal);
    const head = { id: `cmpl-${crypto.randomUUID()}`, object: "text_completion" as const, created: Math.floor(Date.now() / 1000), model: this.#info.model };
    const before = p.echo ? String(p.prompt) : "";
    if (p.stream) {
      const usage = p.stream_options?.include_usage === true;
      return { abort: () => generation.abort(), [Symbol.asyncIterator]: () => pieces(head, generation, before, usage) };
    }
    const result = await generation.details;
    if (result.finishReason === "abort") throw aborted("The completion");
    return { ...head, choices: [choice(before + result.text, result)], usage: usageOf(result), timings: timingsOf(result) };
  }
}

type Head = Pick<TextCompletion, "id" | "object" | "created" | "model">;

function choice(text: string, result?: GenerationResult): TextCompletion["choices"][number] {
  return { index: 0, text, logprobs: null, finish_reason: result?.finishReason ?? null };
}

async function* pieces(head: Head, generation: Generation, before: string, withUsage: boolean): AsyncGenerator<TextCompletion, void, undefined> {
  if (before) yield { ...head, choices: [choice(before)] };
  for await (const text of generation) yield { ...head, choices: [choice(text)] };
  const result = await generation.details;
  yield { ...head, choices: [choice("", result)], timings: timingsOf(result) };
  if (withUsage) yield { ...head, choices: [], usage: usageOf(result) };
}

function engineRequest(p: TextCompletionCreateParams): EngineRequest {
  const set = <T>(value: T | null | undefined): T | undefined => value ?? undefined;
  return defined({
    ...(typeof p.prompt === "string" ? { prompt: p.prompt } : { ids: p.prompt }),
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
