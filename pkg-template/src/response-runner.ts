/** Answers requests of the Responses API with chat completions. Loaded on first use. */

import type { Chat, ChatCompletionChunk, ChatCompletionCreateParamsStreaming, ChatStream, ChatTokenLogprob, CompletionUsage, GenerationRequestOptions } from "./chat.js";
import { checked, valid, validator } from "./check.js";
import { aborted, failures, invalidRequest, JerboaError } from "./errors.js";
import type { ChatMessage } from "./messages.js";
import { chatFormat, chatTools, echoedChoice, type IdentifiedItem, inputItems, messagesOf, newId, sharedFields, WHERE, withInstructions } from "./response-input.js";
import { type ResponseModel, ResponseStore, type SessionLease, type StoredResponse } from "./response-store.js";
import type {
  ModelResponse, ResponseCreateParams, ResponseFunctionCall, ResponseLogprob, ResponseOutputItem, ResponseOutputMessage, ResponseReasoning, ResponseStream,
  ResponseStreamEvent, UnnumberedResponseEvent,
} from "./responses-types.js";

/** Fields that would change the answer in a way that a page cannot. */
const REFUSED = { conversation: "Use 'previous_response_id'", prompt: "Write the prompt into 'input'", context_management: "Use truncation: 'auto'", image: "The model generates text only", access_programs: "Leave it out" } as const;

const SPEC = {
  ...Object.fromEntries(
    ["input", "instructions", "stop", "logit_bias", "chat_template_kwargs", "grammar", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
      "top_k", "min_p", "typical_p", "overflow", "speculation", "enable_thinking", "reasoning_budget", "model", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
      "prompt_cache_options", "parallel_tool_calls", "max_tool_calls", "tool_choice", "moderation"].map((name) => [name, valid.any]),
  ),
  ...Object.fromEntries(Object.entries(REFUSED).map(([name, advice]) => [name, validator(`omitted (${advice})`, (v) => Array.isArray(v) && v.length === 0)])),
  instructions: valid.string,
  previous_response_id: valid.string,
  store: valid.boolean,
  stream: valid.boolean,
  stream_options: valid.object,
  max_output_tokens: valid.integer(1),
  top_logprobs: valid.integer(0, 20),
  text: valid.object,
  tools: valid.array,
  reasoning: valid.object,
  truncation: valid.oneOf("auto", "disabled"),
  include: valid.array,
  metadata: valid.object,
  background: validator("false or omitted (the page waits for its responses)", (v) => v === false),
};

/** Codes of failures that the request caused; OpenAI has one code for them. */
const INVALID_PROMPT: ReadonlySet<string> = new Set(["request", "context_full", "chat_template", "unsupported_option"]);

/** Responses of one model. */
export class ResponseRunner {
  readonly store: ResponseStore;
  readonly #model: ResponseModel;

  constructor(model: ResponseModel) {
    this.#model = model;
    this.store = new ResponseStore(model);
  }

  async create(params: ResponseCreateParams, options?: GenerationRequestOptions): Promise<ModelResponse | ResponseStream> {
    const { p, previous, items, input, request } = this.#read(params);
    const response = this.#begin(p);
    const keeps = response.store;
    const lease = keeps ? await this.store.lease(previous?.response.id) : undefined;
    const controller = new AbortController();
    const signal = options?.signal ? AbortSignal.any([options.signal, controller.signal]) : controller.signal;
    let stream: ChatStream;
    try {
      stream = await (lease ?? this.#model as { chat: Chat }).chat.completions.create(request, { ...options, signal });
    } catch (thrown) {
      lease?.end();
      throw thrown;
    }
    const finish = (): void => {
      if (keeps && (response.status === "completed" || response.status === "incomplete")) {
        this.store.add({ response: structuredClone(response), items, conversation: [...input, ...response.output.map((item) => ({ ...item, id: item.id! }) as IdentifiedItem)] });
        lease?.end(response.id);
      } else lease?.end();
    };
    // A stream that is cancelled before it is read never ends by itself.
    signal.addEventListener("abort", () => response.status === "in_progress" && lease?.end());
    const events = new ResponseEvents(response, stream).run(lease, finish);
    if (p.stream) return { abort: () => controller.abort(), [Symbol.asyncIterator]: () => events };
    let failure: unknown;
    for await (const event of events) failure = failures.get(event);
    if (failure) throw failure;
    if (response.status === "cancelled") throw aborted("The response");
    return response;
  }

  /** Counts the tokens of a request's prompt. */
  count(params: Omit<ResponseCreateParams, "stream">): Promise<number> {
    return this.#model.chat.completions.countTokens(this.#read(params).request);
  }

  /** Reads a request, and the conversation that it continues. */
  #read(params: object): { p: ResponseCreateParams; previous: StoredResponse | undefined; items: IdentifiedItem[]; input: IdentifiedItem[]; request: ChatCompletionCreateParamsStreaming } {
    const p = checked(WHERE, params, SPEC) as ResponseCreateParams;
    checked(`${WHERE}: stream_options`, p.stream_options, { include_obfuscation: valid.boolean });
    const { format, ...text } = checked(`${WHERE}: text`, p.text, { format: valid.object, verbosity: valid.any }) as NonNullable<ResponseCreateParams["text"]>;
    const previous = p.previous_response_id ? this.store.get(p.previous_response_id) : undefined;
    const items = inputItems(p.input, (id) => this.store.item(id));
    const input = [...(previous?.conversation ?? []), ...items];
    if (input.length === 0) throw invalidRequest(`${WHERE}: 'input' is missing. Set it to a string or an array of items.`);
    const messages = withInstructions(p.instructions ?? undefined, messagesOf(input));
    return { p, previous, items, input, request: this.#chatRequest(p, messages, { ...(format ? { format } : {}), ...text }) };
  }

  /** The response before its first token. */
  #begin(p: ResponseCreateParams): ModelResponse {
    const tools = chatTools(p).tools ?? [];
    return {
      id: newId("resp"),
      object: "response",
      created_at: Math.floor(Date.now() / 1000),
      completed_at: null,
      status: "in_progress",
      error: null,
      incomplete_details: null,
      instructions: p.instructions ?? null,
      max_output_tokens: p.max_output_tokens ?? null,
      metadata: p.metadata ?? {},
      model: this.#model.info.model,
      output: [],
      output_text: "",
      parallel_tool_calls: p.parallel_tool_calls ?? true,
      previous_response_id: p.previous_response_id ?? null,
      reasoning: { effort: p.reasoning?.effort ?? null, summary: null },
      store: p.store ?? true,
      temperature: p.temperature ?? null,
      text: { format: p.text?.format ?? { type: "text" } },
      tool_choice: echoedChoice(p),
      tools: tools.map(({ function: { name, description, parameters, strict } }) => ({ type: "function", name, ...(description ? { description } : {}), parameters: parameters ?? null, strict: strict ?? null })),
      top_logprobs: p.top_logprobs ?? null,
      top_p: p.top_p ?? null,
      truncation: p.truncation ?? "disabled",
      access_programs: null,
    };
  }

  #chatRequest(p: ResponseCreateParams, messages: ChatMessage[], text: NonNullable<ResponseCreateParams["text"]>): ChatCompletionCreateParamsStreaming {
    const format = chatFormat(text.format);
    const scored = p.top_logprobs !== undefined || p.include?.includes("message.output_text.logprobs");
    return {
      ...sharedFields(p),
      ...chatTools(p),
      messages,
      stream: true,
      stream_options: { include_usage: true },
      ...(format ? { response_format: format } : {}),
      ...(text.verbosity ? { verbosity: text.verbosity } : {}),
      ...(p.reasoning?.effort ? { reasoning_effort: p.reasoning.effort } : {}),
      ...(p.max_output_tokens ? { max_completion_tokens: p.max_output_tokens } : {}),
      ...(p.truncation === "auto" ? { overflow: "truncate" } : {}),
      ...(scored ? { logprobs: true, top_logprobs: p.top_logprobs ?? 0 } : {}),
    };
  }
}

/** Turns the chunks of an answer into a response and its events. */
class ResponseEvents {
  readonly #response: ModelResponse;
  readonly #stream: ChatStream;
  /** Tokens since the last text; the engine may hold their text back. */
  readonly #scores: ChatTokenLogprob[] = [];
  #count = 0;
  #isComplete = true;

  constructor(response: ModelResponse, stream: ChatStream) {
    this.#response = response;
    this.#stream = stream;
  }

  /** The events, in order. `finish` runs when the response has its final status. */
  async *run(lease: SessionLease | undefined, finish: () => void): AsyncGenerator<ResponseStreamEvent, void, undefined> {
    const response = this.#response;
    try {
      for (const type of ["response.created", "response.in_progress"] as const) yield this.#event({ type, response: structuredClone(response) });
      for await (const chunk of this.#stream) yield* this.#chunk(chunk);
      if (response.output.length === 0) yield* this.#text("");
      yield* this.#close();
    } catch (thrown) {
      const error = JerboaError.from(thrown);
      response.status = "failed";
      response.error = { code: INVALID_PROMPT.has(error.code) ? "invalid_prompt" : "server_error", message: error.message };
      finish();
      const event = this.#event({ type: "response.failed", response });
      failures.set(event, error);
      yield event;
      return;
    } finally {
      // The caller left the loop, maybe before the first token.
      this.#stream.abort();
      if (response.status === "in_progress") lease?.end();
    }
    response.output_text = response.output.flatMap((item) => (item.type === "message" ? item.content.map(({ text }) => text) : [])).join("");
    response.completed_at = response.status === "completed" ? Math.floor(Date.now() / 1000) : null;
    finish();
    yield this.#event({ type: response.status === "completed" ? "response.completed" : "response.incomplete", response });
  }

  #event(event: UnnumberedResponseEvent): ResponseStreamEvent {
    return { ...event, sequence_number: this.#count++ };
  }

  *#chunk({ choices: [choice], usage, timings, aborted: isAborted }: ChatCompletionChunk): Generator<ResponseStreamEvent, void, undefined> {
    const response = this.#response;
    if (usage) response.usage = usageOf(usage);
    if (timings) response.timings = timings;
    if (!choice) return;
    const { delta, logprobs, finish_reason: finish } = choice;
    if (delta.reasoning_content) yield* this.#reasoning(delta.reasoning_content);
    this.#scores.push(...(logprobs?.content ?? []));
    if (delta.content) yield* this.#text(delta.content);
    for (const { id, function: called } of delta.tool_calls ?? []) yield* id === undefined ? this.#arguments(called?.arguments ?? "") : this.#call(id, called?.name ?? "");
    if (!finish) return;
    this.#isComplete = finish !== "length" && !isAborted;
    response.status = isAborted ? "cancelled" : finish === "length" ? "incomplete" : "completed";
    if (finish === "length") response.incomplete_details = { reason: "max_output_tokens" };
  }

  /** The item that takes text, if it is of this type; else closes it and adds another one. */
  *#item<T extends ResponseOutputItem>(make: T): Generator<ResponseStreamEvent, T, undefined> {
    const { output } = this.#response;
    const last = output.at(-1);
    if (last?.type === make.type && make.type !== "function_call") return last as T;
    yield* this.#close();
    output.push(make);
    yield this.#event({ type: "response.output_item.added", output_index: output.length - 1, item: structuredClone(make) });
    return make;
  }

  /** The place of the last item. */
  get #at(): { item_id: string; output_index: number } {
    const { output } = this.#response;
    return { item_id: output.at(-1)!.id!, output_index: output.length - 1 };
  }

  *#reasoning(delta: string): Generator<ResponseStreamEvent, void, undefined> {
    const item = yield* this.#item<ResponseReasoning>({ type: "reasoning", id: newId("rs"), summary: [], content: [], status: "in_progress" });
    const content = (item.content ??= []);
    if (content.length === 0) {
      content.push({ type: "reasoning_text", text: "" });
      yield this.#event({ type: "response.content_part.added", ...this.#at, content_index: 0, part: { type: "reasoning_text", text: "" } });
    }
    content[0]!.text += delta;
    yield this.#event({ type: "response.reasoning_text.delta", ...this.#at, content_index: 0, delta });
  }

  *#text(delta: string): Generator<ResponseStreamEvent, void, undefined> {
    const item = yield* this.#item<ResponseOutputMessage>({ type: "message", id: newId("msg"), role: "assistant", status: "in_progress", content: [] });
    if (item.content.length === 0) {
      item.content.push({ type: "output_text", text: "", annotations: [], logprobs: [] });
      yield this.#event({ type: "response.content_part.added", ...this.#at, content_index: 0, part: structuredClone(item.content[0]!) });
    }
    const logprobs = this.#scoresOf(delta).map(logprobOf);
    const [part] = item.content;
    part!.text += delta;
    part!.logprobs!.push(...logprobs);
    if (delta) yield this.#event({ type: "response.output_text.delta", ...this.#at, content_index: 0, delta, logprobs });
  }

  /** The scores of the last tokens, back to the start of the text: markup and reasoning have scores too. */
  #scoresOf(text: string): ChatTokenLogprob[] {
    const scores = this.#scores.splice(0);
    let left = new TextEncoder().encode(text).length;
    let at = scores.length;
    while (left > 0 && at-- > 0) left -= (scores[at]!.bytes ?? scores[at]!.token).length;
    return scores.slice(Math.max(at, 0));
  }

  *#call(id: string, name: string): Generator<ResponseStreamEvent, void, undefined> {
    yield* this.#item<ResponseFunctionCall>({ type: "function_call", id: newId("fc"), call_id: id, name, arguments: "", status: "in_progress" });
  }

  *#arguments(delta: string): Generator<ResponseStreamEvent, void, undefined> {
    const item = this.#response.output.at(-1) as ResponseFunctionCall;
    item.arguments += delta;
    if (delta) yield this.#event({ type: "response.function_call_arguments.delta", ...this.#at, delta });
  }

  /** Ends the last item. */
  *#close(): Generator<ResponseStreamEvent, void, undefined> {
    const { output, status } = this.#response;
    const item = output.at(-1);
    if (!item) return;
    const at = this.#at;
    item.status = status !== "in_progress" && !this.#isComplete ? "incomplete" : "completed";
    if (item.type === "function_call") yield this.#event({ type: "response.function_call_arguments.done", ...at, name: item.name, arguments: item.arguments });
    else if (item.type === "reasoning") {
      const [part] = item.content!;
      yield this.#event({ type: "response.reasoning_text.done", ...at, content_index: 0, text: part!.text });
      yield this.#event({ type: "response.content_part.done", ...at, content_index: 0, part: { ...part! } });
    } else {
      const [part] = item.content;
      yield this.#event({ type: "response.output_text.done", ...at, content_index: 0, text: part!.text, logprobs: part!.logprobs ?? [] });
      yield this.#event({ type: "response.content_part.done", ...at, content_index: 0, part: structuredClone(part!) });
    }
    yield this.#event({ type: "response.output_item.done", output_index: at.output_index, item: structuredClone(item) });
  }
}

function usageOf({ prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details, completion_tokens_details }: CompletionUsage): NonNullable<ModelResponse["usage"]> {
  return {
    input_tokens: prompt_tokens,
    input_tokens_details: { cached_tokens: prompt_tokens_details.cached_tokens, cache_write_tokens: 0 },
    output_tokens: completion_tokens,
    output_tokens_details: { reasoning_tokens: completion_tokens_details?.reasoning_tokens ?? 0 },
    total_tokens,
  };
}

function logprobOf({ token, bytes, logprob, top_logprobs: top }: ChatTokenLogprob): ResponseLogprob {
  return { token, bytes: bytes ?? [], logprob, top_logprobs: top.map(({ token, bytes, logprob }) => ({ token, bytes: bytes ?? [], logprob })) };
}
