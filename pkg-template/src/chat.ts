/** OpenAI's chat completions: request and response types, streaming, tool calls. */

import { AnswerBuilder, type ChatDelta, deltaOf, partsOf } from "./answer.js";
import { checked, describe, engineOptions, everyItem, valid, validator } from "./check.js";
import type { ChosenLogprob, EngineRequest, GenerationEvent, GenerationResult, GrammarSource, ModelInfo } from "./contract.js";
import { aborted, JerboaError, invalidRequest, requireOpen } from "./errors.js";
import { type GrammarOption, grammarSource, seedOf } from "./generate.js";
import { consumed, Generation } from "./generation.js";
import type { Backend } from "./engine-calls.js";
import { type ChatMessage, type TextPart, type Tool, type ToolCall, engineMessages, requireFreeVariables } from "./messages.js";
import { imagePlaceholders, resolveImages } from "./message-media.js";
import { plainJson } from "./plain-json.js";
import { randomId } from "./random-id.js";
import { CHAT_SPEC, type ChatFields } from "./schema.js";
import { generateWithSteps, STEP_OPTIONS, type StepOptions } from "./steps.js";
import { wrongTask } from "./tasks.js";
import { planTools, type ToolChoice, toolChoice } from "./tool-choice.js";

/** A request of `chat.completions.create`: OpenAI's fields plus the sampling options of local models. */
export interface ChatCompletionCreateParams extends ChatFields {
  messages: ChatMessage[];
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  stream?: boolean | null;
  /** With `include_usage`, a final chunk without choices carries the usage. */
  stream_options?: StreamOptions | null;
  max_completion_tokens?: number | null;
  /** Tools of type `custom` are refused. */
  tools?: (Tool | CustomTool)[] | null;
  /** `none` hides the tools from the model; `required` and a named function force a call by a grammar. */
  tool_choice?: ToolChoice | null;
  /** Whether an answer may have several calls; true by default. */
  parallel_tool_calls?: boolean | null;
  /** Number of answers, 1 by default. They decode together, with the seeds `seed`, `seed + 1` and so on. */
  n?: number | null;
  /** How much the model reasons. Rejected if the chat template can neither set nor switch reasoning. */
  reasoning_effort?: ReasoningEffort | null;
  /** Text that the answer probably repeats. At temperature 0 its tokens are drafted; the answer stays the same. */
  prediction?: { type: "content"; content: string | TextPart[] } | null;
  /** Whether the model reasons before it answers. Rejected if the chat template cannot switch reasoning. */
  enable_thinking?: boolean | null;
  /** Maximum tokens of the reasoning; then it ends and the answer begins. 0 for no reasoning. An extension of OpenAI's API. */
  reasoning_budget?: number | null;
  /** Extra variables for the chat template, such as `{ enable_thinking: false }`. */
  chat_template_kwargs?: Record<string, unknown> | null;
  /** Text by default. With a schema, every complete answer validates; the grammar module is loaded on first use. */
  response_format?: ResponseFormat | null;
  /** A regular expression, choices or a grammar for the answer; an extension of OpenAI's API. */
  grammar?: GrammarOption | null;
  /** Ignored, like OpenAI's other service fields: `store`, `metadata`, `service_tier`, … */
  user?: string | null;
  metadata?: Record<string, string> | null;
  store?: boolean | null;
  service_tier?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  prompt_cache_retention?: string | null;
  prompt_cache_options?: object | null;
  /** Only `medium`, OpenAI's default, is supported. */
  verbosity?: "low" | "medium" | "high" | null;
  /** Only `["text"]` is supported. */
  modalities?: ("text" | "audio")[] | null;
  /** Rejected unless null or an empty list, like `web_search_options`, `moderation`, `functions` and `function_call`. */
  audio?: object | null;
  web_search_options?: object | null;
  moderation?: object | null;
  functions?: object[] | null;
  function_call?: string | object | null;
}

/** Options of a stream. `include_obfuscation` is ignored. */
export interface StreamOptions {
  include_usage?: boolean;
  include_obfuscation?: boolean;
}

/** A tool of type `custom`; refused. */
export interface CustomTool {
  type: "custom";
  custom: object;
}

/** The format of an answer. */
export type ResponseFormat =
  | { type: "text" }
  | { type: "json_object" }
  | { type: "json_schema"; json_schema: { name: string; schema?: Record<string, unknown>; description?: string; strict?: boolean | null } };

/** A request with `stream: true`. */
export interface ChatCompletionCreateParamsStreaming extends ChatCompletionCreateParams {
  stream: true;
}

/** A request without streaming. */
export interface ChatCompletionCreateParamsNonStreaming extends ChatCompletionCreateParams {
  stream?: false | null;
}

/** OpenAI's levels of reasoning. */
export type ReasoningEffort = "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max";

/** Why an answer ended. */
export type FinishReason = "stop" | "length" | "tool_calls";

/** Token counts of a request. */
export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
  /** Accepted and rejected draft tokens of speculation, and tokens of the reasoning. */
  completion_tokens_details?: { accepted_prediction_tokens?: number; rejected_prediction_tokens?: number; reasoning_tokens?: number };
}

/** A token with its log-probability, in OpenAI's format. */
export interface ChatTokenLogprob {
  token: string;
  logprob: number;
  bytes: number[] | null;
  top_logprobs: { token: string; logprob: number; bytes: number[] | null }[];
}

/** The log-probabilities of a choice. */
export interface ChatLogprobs {
  content: ChatTokenLogprob[];
  refusal: null;
}

/** Time to first token and decode time in milliseconds; an extension of OpenAI's API. */
export interface Timings {
  prefill_ms: number;
  decode_ms: number;
  /** Milliseconds spent encoding images before the prefill; absent when none were encoded. */
  encode_ms?: number;
}

/** A complete answer. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: {
    index: number;
    message: {
      role: "assistant";
      content: string | null;
      refusal: null;
      /** The model's reasoning; `reasoning` is the name that newer clients read. */
      reasoning_content?: string;
      reasoning?: string;
      tool_calls?: ToolCall[];
    };
    logprobs: ChatLogprobs | null;
    finish_reason: FinishReason;
  }[];
  usage: CompletionUsage;
  timings: Timings;
}

/** A chunk of a streamed answer. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: { index: number; delta: ChatDelta; logprobs: ChatLogprobs | null; finish_reason: FinishReason | null }[];
  usage?: CompletionUsage | null;
  /** True in the last chunk of an answer that the caller stopped; an extension of OpenAI's API. */
  aborted?: true;
  /** Set on the chunk that ends the answer. */
  timings?: Timings;
}

/** A streamed answer: an async iterable. `abort()` or leaving the loop stops it. */
export interface ChatStream extends AsyncIterable<ChatCompletionChunk> {
  /** Stops the answer; a final chunk with `aborted: true` follows. */
  abort(): void;
}

/** Options of a request that are not sent to the model. */
export interface RequestOptions {
  signal?: AbortSignal;
}

/** Options of a generation that are not sent to the model. */
export interface GenerationRequestOptions extends RequestOptions, StepOptions {}

/** OpenAI's limit for answers to one request. */
const MAX_ANSWERS = 128;

/** OpenAI request fields that have no effect on a local model. */
export const IGNORED_FIELDS = ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"] as const;

const SPEC = {
  ...CHAT_SPEC,
  messages: valid.any,
  model: valid.string,
  stream: valid.boolean,
  stream_options: valid.object,
  max_completion_tokens: CHAT_SPEC.max_tokens,
  tools: valid.array,
  tool_choice: toolChoice,
  parallel_tool_calls: valid.boolean,
  n: valid.integer(1, MAX_ANSWERS),
  reasoning_effort: valid.oneOf("none", "minimal", "low", "medium", "high", "xhigh", "max"),
  enable_thinking: valid.boolean,
  reasoning_budget: valid.integer(0),
  chat_template_kwargs: valid.object,
  // Fields about OpenAI's own service; ignored.
  ...Object.fromEntries(IGNORED_FIELDS.map((name) => [name, valid.any])),
  response_format: {
    ...validator("{ type: 'text' }, { type: 'json_object' } or { type: 'json_schema', json_schema }", (v) => ["text", "json_object", "json_schema"].some((type) => hasValue(v, "type", type))),
    found: (v: unknown) => (typeof (v as { type?: unknown } | null)?.type === "string" ? `the unknown type ${describe((v as { type: string }).type)}` : undefined),
  },
  grammar: valid.object,
  prediction: validator("{ type: 'content', content } with a text", (v) => predictedText(v) !== undefined),
  verbosity: validator("'medium' or omitted (models in a page have no such setting; ask for it in a message)", (v) => v === "medium"),
  ...Object.fromEntries(["audio", "web_search_options", "moderation"].map((name) => [name, validator("omitted (models in a page generate text only)", () => false)])),
  functions: validator("omitted (use 'tools')", (v) => Array.isArray(v) && v.length === 0),
  function_call: validator("omitted (use 'tool_choice')", (v) => v === "none" || v === "auto"),
  modalities: validator("['text'] (the model generates text only)", (v) => everyItem(v, (m) => m === "text")),
};

/** The text of a prediction; undefined for an invalid one. */
function predictedText(value: unknown): string | undefined {
  const { type, content } = (value ?? {}) as { type?: unknown; content?: unknown };
  if (type !== "content") return undefined;
  if (typeof content === "string") return content;
  const isText = (part: unknown): part is TextPart => hasValue(part, "type", "text") && typeof (part as TextPart).text === "string";
  return everyItem(content, isText) ? (content as TextPart[]).map(({ text }) => text).join("") : undefined;
}

function hasValue(value: unknown, name: string, wanted: string): boolean {
  return typeof value === "object" && value !== null && (value as Record<string, unknown>)[name] === wanted;
}

/** OpenAI's `chat`. */
export class Chat {
  /** OpenAI's `chat.completions`. */
  readonly completions: Completions;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.completions = new Completions(backend, info);
  }
}

/** OpenAI's `chat.completions`. */
export class Completions {
  readonly #backend: Backend;
  readonly #info: ModelInfo;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.#backend = backend;
    this.#info = info;
  }

  /** Answers a conversation as a stream of chunks. */
  create(params: ChatCompletionCreateParamsStreaming, options?: GenerationRequestOptions): Promise<ChatStream>;
  /** Answers a conversation. An abort rejects with code `aborted`. */
  create(params: ChatCompletionCreateParamsNonStreaming, options?: GenerationRequestOptions): Promise<ChatCompletion>;
  create(params: ChatCompletionCreateParams, options?: GenerationRequestOptions): Promise<ChatCompletion | ChatStream>;
  async create(params: ChatCompletionCreateParams, options?: GenerationRequestOptions): Promise<ChatCompletion | ChatStream> {
    const given = checked(WHERE, params, SPEC) as CheckedParams;
    const { signal, ...steps } = checked(WHERE, options, { signal: valid.signal, ...STEP_OPTIONS }) as GenerationRequestOptions;
    const request = this.#request(given);
    if (request.tools) await this.#refuseUnreadTools(request);
    request.messages = await resolveImages(WHERE, request.messages ?? [], this.#backend, this.#info, signal);
    const controller = new AbortController();
    const ended = signal ? AbortSignal.any([signal, controller.signal]) : controller.signal;
    // All answers start now: they decode together.
    const answers = Array.from({ length: given.n ?? 1 }, (_, index) => {
      const one = request.seed === undefined ? request : { ...request, seed: seedOf(request.seed, index) };
      return new Generation((onEvent, s) => generateWithSteps(this.#backend, one, steps, { signal: s, onEvent }), ended);
    });
    const head = { id: `chatcmpl-${randomId()}`, created: Math.floor(Date.now() / 1000), model: this.#info.model };
    if (!given.stream) return whole(head, answers).finally(() => controller.abort());
    const usage = given.stream_options?.include_usage === true;
    return streamOf(controller, chunks(head, answers, usage));
  }

  /** Counts the tokens of a request's prompt; an image counts as its placeholder. @internal */
  async countTokens(params: ChatCompletionCreateParams): Promise<number> {
    const { messages = [], tools, chatTemplate } = this.#request(checked(WHERE, params, SPEC) as CheckedParams);
    const bare = await imagePlaceholders(messages);
    return (await this.#backend.call("tokenizeChat", [bare, withoutUnset({ addGenerationPrompt: true, ...chatTemplate, tools })])).length;
  }

  /** Refuses tools that the chat template would ignore, and calls whose format is not known. */
  async #refuseUnreadTools({ messages = [], tools, chatTemplate }: EngineRequest): Promise<void> {
    if (this.#info.toolCalls === null) {
      throw new JerboaError(
        "unsupported_option",
        `${WHERE}: 'tools' is not supported by ${this.#info.model}: the format of its tool calls is not known. Describe the functions in a system message, or load a model whose model.info.toolCalls is not null.`,
      );
    }
    const bare = await imagePlaceholders(messages);
    const render = (more: object): Promise<string> => this.#backend.call("renderChat", [bare, { addGenerationPrompt: true, ...chatTemplate, ...more }]);
    if ((await render({ tools })) !== (await render({}))) return;
    throw new JerboaError(
      "chat_template",
      `The chat template of ${this.#info.model} does not read 'tools'. Describe the functions in a system message, or choose a model that was trained to call functions.`,
    );
  }

  /** Builds the engine request of an OpenAI request. @throws {@link JerboaError} naming the field at fault. */
  #request(p: CheckedParams): EngineRequest {
    const info = this.#info;
    requireOpen(this.#backend);
    if (info.task !== "generate") throw wrongTask(info, "cannot chat");
    if (info.hasChatTemplate === false) {
      throw new JerboaError(
        "chat_template",
        `${info.model} has no chat template: it is a base model that continues text. Call model.generate(prompt) instead.`,
        { advice: { about: "model.generate", text: "Call model.generate(prompt)" } },
      );
    }
    if (p.max_tokens !== undefined && p.max_completion_tokens !== undefined && p.max_tokens !== p.max_completion_tokens) {
      throw invalidRequest(`${WHERE}: 'max_tokens' and 'max_completion_tokens' are synonyms and have different values. Set one of them.`);
    }
    const given = plainJson(WHERE, "tools", p.tools as Tool[] | undefined);
    for (const tool of given ?? []) {
      if (tool?.type !== "function") throw invalidRequest(`${WHERE}: a tool of type ${describe(tool?.type)} is not supported. Use tools of type 'function'.`);
    }
    if (p.continue_final_message && p.add_generation_prompt) throw invalidRequest(`${WHERE}: 'continue_final_message' cannot be combined with add_generation_prompt: true.`);
    if (p.top_logprobs && !p.logprobs) throw invalidRequest(`${WHERE}: 'top_logprobs' needs logprobs: true.`);
    if (p.stream_options && !p.stream) throw invalidRequest(`${WHERE}: 'stream_options' needs stream: true.`);
    checked(`${WHERE}: stream_options`, p.stream_options, { include_usage: valid.boolean, include_obfuscation: valid.boolean });
    requireFreeVariables(WHERE, "chat_template_kwargs", p.chat_template_kwargs);
    if (p.reasoning_budget && info.reasoning === false) {
      throw new JerboaError("unsupported_option", `${WHERE}: 'reasoning_budget' is not supported: ${info.model} does not reason, or its format is not known. Leave it out, or limit the answer with max_completion_tokens.`);
    }
    return withoutUnset({
      ...engineOptions(CHAT_SPEC, p),
      messages: engineMessages(WHERE, p.messages, info.capabilities),
      ...planTools(WHERE, given, plainJson(WHERE, "tool_choice", p.tool_choice) ?? "auto", p.parallel_tool_calls ?? true, answerGrammar(p)),
      reasoningBudget: p.reasoning_budget,
      chatTemplate: plainJson(WHERE, "chat_template_kwargs", reasoningVariables(info, p)),
      maxTokens: p.max_completion_tokens ?? p.max_tokens,
      stop: typeof p.stop === "string" ? [p.stop] : p.stop,
      prediction: predictedText(p.prediction),
    });
  }
}

/** The template's variables, with those that control reasoning. @throws {@link JerboaError} for a control that the template does not have. */
function reasoningVariables(info: ModelInfo, p: CheckedParams): Record<string, unknown> | undefined {
  const { enable_thinking: enabled, reasoning_effort: effort, ...rest } = { ...p.chat_template_kwargs, ...withoutUnset({ enable_thinking: p.enable_thinking, reasoning_effort: p.reasoning_effort }) };
  const controls = info.reasoningControls ?? [];
  const refuse = (name: string, value: unknown): never => {
    const advice = controls.length > 0 ? `Set ${controls.join(" or ")} instead.` : "Leave it out: this model always answers in the same way.";
    throw new JerboaError("unsupported_option", `${WHERE}: '${name}' (${describe(value)}) is not supported: the chat template of ${info.model} has no such variable. ${advice}`);
  };
  const variables: Record<string, unknown> = rest;
  const toggle = controls.find((name) => name === "enable_thinking" || name === "thinking");
  if (enabled !== undefined && !toggle) refuse("enable_thinking", enabled);
  if (enabled !== undefined) variables[toggle!] = enabled;
  // Without reasoning there is none to turn off.
  if (effort === undefined || (effort === "none" && info.reasoning === false)) return Object.keys(variables).length > 0 ? variables : p.chat_template_kwargs;
  const levels: Record<string, string> = { minimal: "low", xhigh: "high", max: "high" };
  if (controls.includes("reasoning_effort") && effort !== "none") variables["reasoning_effort"] = levels[effort as string] ?? effort;
  else if (toggle) variables[toggle] ??= effort !== "none";
  else refuse("reasoning_effort", effort);
  return variables;
}

const WHERE = "chat.completions.create";

/** The grammar of a request's answer, if it has one. */
function answerGrammar({ response_format: format, grammar }: CheckedParams): GrammarSource | undefined {
  if (grammar) {
    if (format && format.type !== "text") throw invalidRequest(`${WHERE}: 'grammar' and 'response_format' both limit the answer. Set one of them.`);
    return grammarSource(WHERE, grammar);
  }
  if (format?.type === "json_object") return { kind: "json_object", source: "" };
  if (format?.type !== "json_schema") return undefined;
  const described: unknown = (format as { json_schema?: unknown }).json_schema;
  if (!valid.object.accepts(described)) throw invalidRequest(`${WHERE}: response_format of type 'json_schema' requires 'json_schema': { name, schema }.`);
  const { schema } = described as { schema?: unknown };
  if (schema === undefined) return { kind: "json_object", source: "" };
  return grammarSource(`${WHERE}: response_format.json_schema`, { type: "json_schema", schema: schema as object });
}

/** A validated request; fields that are not set are absent. */
type CheckedParams = { messages: ChatMessage[] } & { [K in Exclude<keyof ChatCompletionCreateParams, "messages">]?: NonNullable<ChatCompletionCreateParams[K]> };

interface Head {
  id: string;
  created: number;
  model: string;
}

/** A stream of chunks, read once; leaving the loop stops all answers, also those that it has not reached. */
export function streamOf<T>(controller: AbortController, chunks: AsyncGenerator<T, void, undefined>): AsyncIterable<T> & { abort(): void } {
  let read = false;
  return {
    abort: () => controller.abort(),
    async *[Symbol.asyncIterator]() {
      if (read) throw consumed();
      read = true;
      try {
        yield* chunks;
      } finally {
        controller.abort();
      }
    },
  };
}

async function whole(head: Head, answers: Generation[]): Promise<ChatCompletion> {
  const all = await Promise.all(answers.map((generation, index) => wholeChoice(index, generation)));
  const result = all.map(([, result]) => result).reduce(addAnswer);
  return { ...head, object: "chat.completion", choices: all.map(([choice]) => choice), usage: usageOf(result), timings: timingsOf(result) };
}

async function wholeChoice(index: number, generation: Generation): Promise<[ChatCompletion["choices"][number], GenerationResult]> {
  const answer = new AnswerBuilder();
  const tokens: ChatTokenLogprob[] = [];
  let scored = false;
  for await (const event of generation.events()) {
    partsOf(event).forEach((part) => answer.push(part));
    scored ||= event.logprobs !== undefined;
    tokens.push(...(event.logprobs ?? []).map(tokenLogprob));
  }
  const result = await generation.details;
  const { finishReason: finish } = result;
  if (finish === "abort") throw aborted("The chat completion");
  const { content, reasoning, calls } = answer;
  const choice = {
    index,
    message: {
      role: "assistant" as const,
      content: content || !calls.length ? content : null,
      refusal: null,
      ...(reasoning ? { reasoning_content: reasoning, reasoning } : {}),
      ...(calls.length ? { tool_calls: calls } : {}),
    },
    logprobs: scored ? { content: tokens, refusal: null } : null,
    finish_reason: finish,
  };
  return [choice, result];
}

async function* chunks(head: Head, answers: Generation[], withUsage: boolean): AsyncGenerator<ChatCompletionChunk, void, undefined> {
  let all: GenerationResult | undefined;
  for (const [index, generation] of answers.entries()) {
    const result = yield* choiceChunks(head, index, generation, withUsage);
    all = all ? addAnswer(all, result) : result;
    if (result.finishReason === "abort") break;
  }
  if (withUsage) yield { ...head, object: "chat.completion.chunk", choices: [], usage: usageOf(all!) };
}

async function* choiceChunks(head: Head, index: number, generation: Generation, withUsage: boolean): AsyncGenerator<ChatCompletionChunk, GenerationResult, undefined> {
  const chunk = (delta: ChatDelta, finish: FinishReason | null = null, logprobs: ChatLogprobs | null = null): ChatCompletionChunk => ({
    ...head,
    object: "chat.completion.chunk",
    choices: [{ index, delta, logprobs, finish_reason: finish }],
    ...(withUsage ? { usage: null } : {}),
  });

  yield chunk({ role: "assistant", content: "" });
  for await (const event of generation.events()) {
    let logprobs = logprobsOf(event);
    const deltas = partsOf(event).flatMap((part) => deltaOf(part) ?? []);
    // Emit log-probabilities even while their token's text is held back.
    if (deltas.length === 0 && logprobs) deltas.push({ content: "" });
    for (const delta of deltas) {
      yield chunk(delta, null, logprobs);
      logprobs = null;
    }
  }
  const result = await generation.details;
  const { finishReason: finish } = result;
  yield { ...chunk({}, finish === "abort" ? "stop" : finish), timings: timingsOf(result), ...(finish === "abort" ? { aborted: true as const } : {}) };
  return result;
}

/** The counters of two answers to one prompt. */
export function addAnswer(a: GenerationResult, b: GenerationResult): GenerationResult {
  const all = { ...a };
  for (const name of ["completionTokens", "reasoningTokens", "draftedTokens", "acceptedTokens", "batchedTokens", "readbacks", "encodeMs", "prefillMs", "decodeMs"] as const) all[name] += b[name];
  return all;
}

/** Token counts in OpenAI's format. */
export function usageOf({ promptTokens, completionTokens, cachedTokens, reasoningTokens, draftedTokens, acceptedTokens }: GenerationResult): CompletionUsage {
  const details = {
    ...(draftedTokens > 0 ? { accepted_prediction_tokens: acceptedTokens, rejected_prediction_tokens: draftedTokens - acceptedTokens } : {}),
    ...(reasoningTokens > 0 ? { reasoning_tokens: reasoningTokens } : {}),
  };
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
    ...(Object.keys(details).length > 0 ? { completion_tokens_details: details } : {}),
  };
}

/** Timings in the response format. */
export function timingsOf({ encodeMs, prefillMs, decodeMs }: GenerationResult): Timings {
  return { prefill_ms: prefillMs, decode_ms: decodeMs, ...(encodeMs > 0 ? { encode_ms: encodeMs } : {}) };
}

function logprobsOf(event: GenerationEvent): ChatLogprobs | null {
  return event.logprobs?.length ? { content: event.logprobs.map(tokenLogprob), refusal: null } : null;
}

function tokenLogprob({ token, logprob, bytes, top }: ChosenLogprob): ChatTokenLogprob {
  return { token, logprob, bytes, top_logprobs: top.map(({ token, logprob, bytes }) => ({ token, logprob, bytes })) };
}

/** Drops fields that are not set. */
export function withoutUnset<T extends object>(object: T): T {
  return Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined)) as T;
}
