/** A chat model of LangChain. */

import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import type { BaseLanguageModelInput, StructuredOutputMethodOptions } from "@langchain/core/language_models/base";
import { BaseChatModel, type BaseChatModelCallOptions, type BaseChatModelParams, type BindToolsInput } from "@langchain/core/language_models/chat_models";
import { assembleStructuredOutputPipeline, createContentParser, createFunctionCallingParser } from "@langchain/core/language_models/structured_output";
import { AIMessageChunk, type BaseMessage } from "@langchain/core/messages";
import { ChatGenerationChunk, type ChatResult } from "@langchain/core/outputs";
import type { Runnable } from "@langchain/core/runnables";
import { convertToOpenAITool } from "@langchain/core/utils/function_calling";
import { toJsonSchema } from "@langchain/core/utils/json_schema";
import { type ChatCompletionChunk, type ChatCompletionCreateParams, type CompletionUsage, JerboaError, type Tool, type ToolChoice } from "../index.js";
import { LazyModel, type LazySource, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";
import { messagesOf } from "./messages.js";

/** Fields of a request that {@link ChatJerboa} passes on. */
export type ChatJerboaRequest = Omit<Partial<ChatCompletionCreateParams>, "messages" | "stream" | "stream_options" | "tools" | "tool_choice" | "model" | "n">;

/** Settings of {@link ChatJerboa}. */
export interface ChatJerboaFields extends BaseChatModelParams {
  /** What to load with the first call, or a loaded model. */
  model: LazySource;
  /** Options of the load. */
  load?: SharedLoadOptions;
  temperature?: number;
  topP?: number;
  topK?: number;
  maxTokens?: number;
  seed?: number;
  stop?: string[];
  /** Further fields of every request, such as `reasoning_effort`. */
  request?: ChatJerboaRequest;
}

/** Options of a call of {@link ChatJerboa}. */
export interface ChatJerboaCallOptions extends BaseChatModelCallOptions {
  tools?: BindToolsInput[];
  /** The form of the answer; `withStructuredOutput` sets it. */
  response_format?: ChatCompletionCreateParams["response_format"];
  /** Further fields of the request. */
  request?: ChatJerboaRequest;
}

/**
 * A chat model that runs in this browser.
 *
 * ```js
 * const chat = new ChatJerboa({ model: "mlx-community/Qwen3-1.7B-4bit" });
 * const answer = await chat.invoke("Why is the sky blue?");
 * ```
 */
export class ChatJerboa extends BaseChatModel<ChatJerboaCallOptions, AIMessageChunk> {
  override lc_serializable = false;
  readonly #lazy: LazyModel;
  readonly #defaults: ChatJerboaRequest;

  static override lc_name(): string {
    return "ChatJerboa";
  }

  constructor(fields: ChatJerboaFields) {
    super((fields ??= {} as ChatJerboaFields));
    const { model, load, temperature, topP, topK, maxTokens, seed, stop, request } = fields;
    this.#lazy = sharedModel(model, load);
    const given = { temperature, top_p: topP, top_k: topK, max_completion_tokens: maxTokens, seed, stop };
    this.#defaults = { ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)), ...request };
  }

  /** The load of the model: its state, progress, and whether it can be used here. */
  get loader(): Pick<LazyModel, "state" | "subscribe" | "load" | "unload" | "availability"> {
    return this.#lazy;
  }

  override _llmType(): string {
    return "jerboa";
  }

  override getLsParams(options: this["ParsedCallOptions"]): ReturnType<BaseChatModel["getLsParams"]> {
    const { temperature, max_completion_tokens: tokens } = this.#defaults;
    return {
      ...super.getLsParams(options),
      ls_provider: "jerboa",
      ls_model_name: this.#lazy.name,
      ls_model_type: "chat",
      ...(typeof temperature === "number" ? { ls_temperature: temperature } : {}),
      ...(typeof tokens === "number" ? { ls_max_tokens: tokens } : {}),
    };
  }

  override invocationParams(options?: this["ParsedCallOptions"]): Record<string, unknown> {
    const { tools, tool_choice: choice, response_format: format, stop, request } = options ?? {};
    return {
      ...this.#defaults,
      ...(stop?.length ? { stop } : {}),
      ...(tools?.length ? { tools: tools.map((tool) => convertToOpenAITool(tool) as Tool) } : {}),
      ...(tools?.length && choice !== undefined ? { tool_choice: toolChoiceOf(choice) } : {}),
      ...(format ? { response_format: format } : {}),
      ...request,
    };
  }

  override bindTools(tools: BindToolsInput[], kwargs?: Partial<ChatJerboaCallOptions>): Runnable<BaseLanguageModelInput, AIMessageChunk, ChatJerboaCallOptions> {
    return this.withConfig({ ...kwargs, tools });
  }

  /** Streams an answer. Reasoning is in `additional_kwargs.reasoning_content`. */
  override async *_streamResponseChunks(messages: BaseMessage[], options: this["ParsedCallOptions"], runManager?: CallbackManagerForLLMRun): AsyncGenerator<ChatGenerationChunk> {
    const { signal } = options;
    const model = await this.#lazy.load(signal);
    const request = { ...this.invocationParams(options), messages: messagesOf(messages), stream: true as const, stream_options: { include_usage: true } };
    const stream = await model.chat.completions.create(request, signal ? { signal } : {});
    for await (const chunk of stream) {
      if (chunk.aborted) throw signal?.reason ?? new JerboaError("aborted", "The answer was aborted.");
      const made = generationOf(chunk);
      if (!made) continue;
      yield made;
      await runManager?.handleLLMNewToken(made.text, undefined, undefined, undefined, undefined, { chunk: made });
    }
  }

  override async _generate(messages: BaseMessage[], options: this["ParsedCallOptions"]): Promise<ChatResult> {
    let whole: ChatGenerationChunk | undefined;
    for await (const chunk of this._streamResponseChunks(messages, options)) whole = whole?.concat(chunk) ?? chunk;
    const usage = whole && (whole.message as AIMessageChunk).usage_metadata;
    return { generations: whole ? [whole] : [], llmOutput: usage ? { tokenUsage: { promptTokens: usage.input_tokens, completionTokens: usage.output_tokens, totalTokens: usage.total_tokens } } : {} };
  }

  /**
   * Answers by a schema: a Zod or other standard schema, or JSON Schema. By default a grammar limits the answer to it
   * (`jsonSchema`); `functionCalling` forces a call, `jsonMode` any JSON object.
   */
  // The overloads of the base class differ in their schemas alone.
  override withStructuredOutput(schema: any, config?: StructuredOutputMethodOptions<boolean>): any {
    const { method = "jsonSchema", includeRaw, name = "extract" } = config ?? {};
    const parameters = toJsonSchema(schema) as Record<string, unknown>;
    if (method === "functionCalling") {
      const description = typeof parameters["description"] === "string" ? parameters["description"] : "Returns the result.";
      const bound = this.bindTools([{ type: "function", function: { name, description, parameters } }], { tool_choice: name });
      return assembleStructuredOutputPipeline(bound, createFunctionCallingParser(schema, name), includeRaw, "ChatJerboaStructuredOutput");
    }
    if (method !== "jsonSchema" && method !== "jsonMode") throw new JerboaError("request", `withStructuredOutput: 'method' must be 'jsonSchema', 'functionCalling' or 'jsonMode', not '${method}'.`);
    const format = method === "jsonMode" ? { type: "json_object" as const } : { type: "json_schema" as const, json_schema: { name, schema: parameters, strict: true } };
    return assembleStructuredOutputPipeline(this.withConfig({ response_format: format }), createContentParser(schema), includeRaw, "ChatJerboaStructuredOutput");
  }
}

/** LangChain's `any` is OpenAI's `required`; other words are names of tools. */
function toolChoiceOf(choice: NonNullable<ChatJerboaCallOptions["tool_choice"]>): ToolChoice {
  if (typeof choice !== "string") return choice as ToolChoice;
  if (choice === "any") return "required";
  return choice === "auto" || choice === "none" || choice === "required" ? choice : { type: "function", function: { name: choice } };
}

/** A chunk of an answer; undefined for one without content. */
function generationOf({ id, model, choices: [choice], usage, timings }: ChatCompletionChunk): ChatGenerationChunk | undefined {
  const { content = "", reasoning_content: reasoning, tool_calls: calls = [] } = choice?.delta ?? {};
  const finish = choice?.finish_reason;
  if (!content && !reasoning && calls.length === 0 && !finish && !usage) return undefined;
  const message = new AIMessageChunk({
    id,
    content,
    tool_call_chunks: calls.map(({ index, id, function: called }) => ({ type: "tool_call_chunk" as const, index, ...(id ? { id } : {}), ...(called?.name ? { name: called.name } : {}), args: called?.arguments ?? "" })),
    additional_kwargs: reasoning ? { reasoning_content: reasoning } : {},
    response_metadata: finish ? { model_name: model, model_provider: "jerboa", finish_reason: finish, ...(timings ? { timings } : {}) } : {},
    ...(usage ? { usage_metadata: usageOf(usage) } : {}),
  });
  return new ChatGenerationChunk({ message, text: content, generationInfo: { ...(finish ? { finish_reason: finish } : {}), ...(choice?.logprobs ? { logprobs: choice.logprobs } : {}) } });
}

function usageOf({ prompt_tokens: input, completion_tokens: output, total_tokens: total, prompt_tokens_details: details, completion_tokens_details: more }: CompletionUsage): NonNullable<AIMessageChunk["usage_metadata"]> {
  return {
    input_tokens: input,
    output_tokens: output,
    total_tokens: total,
    input_token_details: { cache_read: details.cached_tokens },
    ...(more?.reasoning_tokens ? { output_token_details: { reasoning: more.reasoning_tokens } } : {}),
  };
}
