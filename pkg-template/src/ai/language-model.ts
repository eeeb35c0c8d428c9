/** A language model of the AI SDK. */

import type {
  JSONObject, LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4Content, LanguageModelV4FinishReason, LanguageModelV4GenerateResult, LanguageModelV4StreamPart,
  LanguageModelV4StreamResult, LanguageModelV4Usage, SharedV4ProviderMetadata, SharedV4Warning,
} from "@ai-sdk/provider";
import { type ChatCompletionChunk, type ChatCompletionCreateParamsStreaming, type ChatStream, type CompletionUsage, JerboaError, type Model } from "../index.js";
import { LazyEntry } from "./entry.js";
import { messagesOf, toolChoiceOf, toolOf } from "./prompt.js";

/** A language model for `generateText`, `streamText` and agents. */
export class JerboaLanguageModel extends LazyEntry implements LanguageModelV4 {
  /** Images and videos at URLs are fetched by the page itself. */
  readonly supportedUrls: Record<string, RegExp[]> = { "image/*": [/^https?:|^data:|^blob:/], "video/*": [/^https?:|^data:|^blob:/] };

  async doGenerate(options: LanguageModelV4CallOptions): Promise<LanguageModelV4GenerateResult> {
    const { stream, warnings } = await this.#start(options);
    const content: LanguageModelV4Content[] = [];
    const texts = new Map<string, Extract<LanguageModelV4Content, { type: "text" | "reasoning" }>>();
    let end: Extract<LanguageModelV4StreamPart, { type: "finish" }> | undefined;
    let response = {};
    for await (const part of parts(stream, options, warnings)) {
      if (part.type === "text-start" || part.type === "reasoning-start") {
        const made = { type: part.type === "text-start" ? "text" as const : "reasoning" as const, text: "" };
        texts.set(part.id, made);
        content.push(made);
      } else if (part.type === "text-delta" || part.type === "reasoning-delta") texts.get(part.id)!.text += part.delta;
      else if (part.type === "tool-call") content.push(part);
      else if (part.type === "finish") end = part;
      else if (part.type === "response-metadata") {
        const { type: _, ...metadata } = part;
        response = metadata;
      }
    }
    const { type: _, ...rest } = end!;
    return { content, warnings, response, ...rest };
  }

  async doStream(options: LanguageModelV4CallOptions): Promise<LanguageModelV4StreamResult> {
    const { stream, warnings } = await this.#start(options);
    const iterator = parts(stream, options, warnings);
    return {
      stream: new ReadableStream<LanguageModelV4StreamPart>({
        async pull(controller) {
          const { done, value } = await iterator.next();
          if (done) controller.close();
          else controller.enqueue(value);
        },
        async cancel() {
          stream.abort();
          await iterator.return(undefined);
        },
      }),
    };
  }

  /** Loads the model and starts an answer. */
  async #start(options: LanguageModelV4CallOptions): Promise<{ stream: ChatStream; warnings: SharedV4Warning[] }> {
    const model = await this.load({ signal: options.abortSignal });
    const warnings: SharedV4Warning[] = [];
    const request = requestOf(model, options, this.optionsOf(options.providerOptions), warnings);
    return { stream: await model.chat.completions.create(request, { ...(options.abortSignal ? { signal: options.abortSignal } : {}) }), warnings };
  }
}

/** The request of a call. What this model cannot do becomes a warning, as the SDK expects. */
function requestOf(model: Model, options: LanguageModelV4CallOptions, own: JSONObject, warnings: SharedV4Warning[]): ChatCompletionCreateParamsStreaming {
  const { responseFormat: format, reasoning, toolChoice } = options;
  const tools = (options.tools ?? []).flatMap((tool) => {
    if (tool.type === "function") return [toolOf(tool)];
    warnings.push({ type: "unsupported", feature: `tool '${tool.name}'`, details: "Tools that a provider runs are not available." });
    return [];
  });
  const effort = reasoning === "provider-default" ? undefined : reasoning;
  const controlled = effort === undefined || (effort === "none" && model.info.reasoning === false) || (model.info.reasoningControls?.length ?? 0) > 0;
  if (!controlled) warnings.push({ type: "unsupported", feature: "reasoning", details: `The chat template of ${model.info.model} has no such setting.` });
  const given = {
    temperature: options.temperature,
    top_p: options.topP,
    top_k: options.topK,
    presence_penalty: options.presencePenalty,
    frequency_penalty: options.frequencyPenalty,
    seed: options.seed,
    max_completion_tokens: options.maxOutputTokens,
    stop: options.stopSequences?.length ? options.stopSequences : undefined,
    reasoning_effort: controlled ? effort : undefined,
    tools: tools.length > 0 ? tools : undefined,
    tool_choice: tools.length > 0 && toolChoice ? toolChoiceOf(toolChoice) : undefined,
    response_format: format?.type !== "json" ? undefined : format.schema ? { type: "json_schema" as const, json_schema: { name: format.name ?? "answer", schema: format.schema as Record<string, unknown>, strict: true } } : { type: "json_object" as const },
  };
  const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  return { ...set, ...own, messages: messagesOf(options.prompt), stream: true, stream_options: { include_usage: true } };
}

/** The parts of an answer, with starts and ends of its blocks. */
async function* parts(stream: ChatStream, options: LanguageModelV4CallOptions, warnings: SharedV4Warning[]): AsyncGenerator<LanguageModelV4StreamPart, void, undefined> {
  yield { type: "stream-start", warnings };
  const blocks = new Blocks();
  let head = false;
  let finish: LanguageModelV4FinishReason = { unified: "other", raw: undefined };
  let usage: CompletionUsage | undefined;
  let timings: ChatCompletionChunk["timings"];
  const logprobs: unknown[] = [];
  try {
    for await (const chunk of stream) {
      if (options.includeRawChunks) yield { type: "raw", rawValue: chunk };
      if (chunk.aborted) throw options.abortSignal?.reason ?? new DOMException("The answer was aborted.", "AbortError");
      if (!head) yield { type: "response-metadata", id: chunk.id, modelId: chunk.model, timestamp: new Date(chunk.created * 1000) };
      head = true;
      usage = chunk.usage ?? usage;
      timings = chunk.timings ?? timings;
      const [choice] = chunk.choices;
      if (!choice) continue;
      if (choice.logprobs) logprobs.push(...choice.logprobs.content);
      yield* blocks.delta(choice.delta);
      if (choice.finish_reason) finish = { unified: choice.finish_reason === "tool_calls" ? "tool-calls" : choice.finish_reason, raw: choice.finish_reason };
    }
  } catch (thrown) {
    // The SDK tells an abort from a failure by the signal's own reason.
    if (options.abortSignal?.aborted) throw options.abortSignal.reason;
    throw JerboaError.from(thrown);
  }
  yield* blocks.end();
  const metadata = { ...(timings ? { timings: { ...timings } } : {}), ...(logprobs.length > 0 ? { logprobs } : {}) };
  yield { type: "finish", finishReason: finish, usage: usageOf(usage), providerMetadata: { jerboa: metadata } as SharedV4ProviderMetadata };
}

/** The open block of text, reasoning or tool input. */
class Blocks {
  #open: { type: "text" | "reasoning"; id: string } | { type: "tool"; id: string; name: string; input: string; index: number } | undefined;
  #count = 0;

  /** The parts that a delta of the answer adds. */
  *delta(delta: ChatCompletionChunk["choices"][number]["delta"]): Generator<LanguageModelV4StreamPart> {
    if (delta.reasoning_content) yield* this.#text("reasoning", delta.reasoning_content);
    if (delta.content) yield* this.#text("text", delta.content);
    for (const call of delta.tool_calls ?? []) {
      if (call.id !== undefined && call.function?.name !== undefined) {
        yield* this.end();
        this.#open = { type: "tool", id: call.id, name: call.function.name, input: "", index: call.index };
        yield { type: "tool-input-start", id: call.id, toolName: call.function.name };
      }
      const piece = call.function?.arguments;
      if (!piece || this.#open?.type !== "tool") continue;
      this.#open.input += piece;
      yield { type: "tool-input-delta", id: this.#open.id, delta: piece };
    }
  }

  /** Ends the open block. */
  *end(): Generator<LanguageModelV4StreamPart> {
    const open = this.#open;
    this.#open = undefined;
    if (open?.type === "tool") {
      yield { type: "tool-input-end", id: open.id };
      yield { type: "tool-call", toolCallId: open.id, toolName: open.name, input: open.input || "{}" };
    } else if (open) yield { type: `${open.type}-end`, id: open.id };
  }

  *#text(type: "text" | "reasoning", delta: string): Generator<LanguageModelV4StreamPart> {
    if (this.#open?.type !== type) {
      yield* this.end();
      this.#open = { type, id: String(this.#count++) };
      yield { type: `${type}-start`, id: this.#open.id };
    }
    yield { type: `${type}-delta`, id: this.#open.id, delta };
  }
}

function usageOf(usage: CompletionUsage | undefined): LanguageModelV4Usage {
  const reasoning = usage?.completion_tokens_details?.reasoning_tokens ?? 0;
  const cached = usage?.prompt_tokens_details.cached_tokens ?? 0;
  return {
    inputTokens: { total: usage?.prompt_tokens, noCache: usage && usage.prompt_tokens - cached, cacheRead: usage && cached, cacheWrite: undefined },
    outputTokens: { total: usage?.completion_tokens, text: usage && usage.completion_tokens - reasoning, reasoning: usage && reasoning },
    ...(usage ? { raw: usage as unknown as JSONObject } : {}),
  };
}
