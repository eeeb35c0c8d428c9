/** `useChat`: a conversation with a model. */

import { useCallback, useId, useRef, useState } from "react";
import { type AssistantMessage, type ChatCompletionCreateParams, type ChatMessage, JerboaError, type Model, type ToolCall } from "../index.js";
import type { LazySource } from "../integrations/lazy-model.js";
import { textOf } from "../errors.js";
import { randomId } from "../random-id.js";
import { isolated } from "../waits.js";
import { type CallState, type ModelOptions, useCall } from "./call.js";

/** A message of a {@link useChat} conversation: OpenAI's, with an id for lists. */
export type ConversationMessage = ChatMessage & { id: string };

/** A function that the model may call. */
export interface ChatTool {
  description?: string;
  /** JSON Schema of the arguments. */
  parameters?: Record<string, unknown>;
  /** Runs a call; its result is given to the model as JSON. */
  execute: (input: never, signal: AbortSignal) => unknown;
}

/** Options of {@link useChat}. */
export interface UseChatOptions extends ModelOptions {
  /** A system prompt; not part of `messages`. */
  system?: string;
  initialMessages?: ChatMessage[];
  /** Functions by name. Their calls run, and the model continues with the results. */
  tools?: Record<string, ChatTool>;
  /** Maximum answers to one message, with calls in between; 8 by default. */
  maxSteps?: number;
  /** Further fields of the request: sampling, `response_format`, `reasoning_effort`, … */
  request?: Omit<Partial<ChatCompletionCreateParams>, "messages" | "stream" | "tools" | "n">;
  onFinish?: (message: ConversationMessage) => void;
}

/** What {@link useChat} returns. */
export interface UseChatResult extends CallState {
  messages: ConversationMessage[];
  /** Replaces the conversation, and stops a running answer. */
  setMessages: (messages: ChatMessage[]) => void;
  /** Sends a message of the user and streams the answer into `messages`. */
  send: (content: Extract<ChatMessage, { role: "user" | "system" | "developer" }>["content"]) => Promise<void>;
  /** Answers the last message of the user again. */
  regenerate: () => Promise<void>;
}

/**
 * A conversation. The model loads with the first message, or at once with `preload`.
 *
 * ```jsx
 * const { messages, send, stop, status } = useChat("mlx-community/Qwen3-0.6B-4bit");
 * ```
 */
export function useChat(model: LazySource, options: UseChatOptions = {}): UseChatResult {
  const { system, initialMessages, tools, maxSteps, request, onFinish, ...load } = options;
  const call = useCall(model, load);
  const { run, abort } = call;
  // The server and the browser must render the same ids.
  const prefix = useId();
  const [messages, show] = useState<ConversationMessage[]>(() => (initialMessages ?? []).map((message, i) => withId(message, `${prefix}${i}`)));
  // Callbacks read the newest messages and options, not those of the render that made them.
  const current = useRef(messages);
  const latest = useRef(options);
  latest.current = options;
  const update = useCallback((next: ConversationMessage[]) => {
    current.current = next;
    show(next);
  }, []);
  const answer = useCallback(
    async (conversation: ConversationMessage[]) => {
      update(conversation);
      await run(async (model, signal) => {
        for (let step = 0; step < (latest.current.maxSteps ?? MAX_STEPS); step++) {
          const before = current.current;
          const made = await streamAnswer(model, before, latest.current, signal, (message) => signal.aborted || update([...before, message]));
          if (signal.aborted) return;
          const results = await runTools(made, latest.current.tools, signal);
          if (signal.aborted) return;
          if (results.length === 0) return isolated(latest.current.onFinish)?.(made);
          update([...current.current, ...results]);
        }
      });
    },
    [run, update],
  );
  const send = useCallback((content: Parameters<UseChatResult["send"]>[0]) => answer([...current.current, withId({ role: "user", content })]), [answer]);
  const regenerate = useCallback(async () => {
    const last = current.current.map(({ role }) => role).lastIndexOf("user");
    if (last >= 0) await answer(current.current.slice(0, last + 1));
  }, [answer]);
  const setMessages = useCallback(
    (next: ChatMessage[]) => {
      abort();
      update(next.map((message) => withId(message)));
    },
    [abort, update],
  );
  const { run: _, abort: __, ...state } = call;
  return { ...state, messages, setMessages, send, regenerate };
}

const MAX_STEPS = 8;

function withId(message: ChatMessage, id = randomId()): ConversationMessage {
  return { id, ...message };
}

/** Streams one answer; `show` gets it after every chunk. */
async function streamAnswer(model: Model, messages: ConversationMessage[], { system, tools, request }: UseChatOptions, signal: AbortSignal, show: (message: ConversationMessage) => void): Promise<ConversationMessage> {
  const conversation: ChatMessage[] = [...(system ? [{ role: "system" as const, content: system }] : []), ...messages.map(({ id: _, ...message }) => message as ChatMessage)];
  const functions = Object.entries(tools ?? {}).map(([name, { description, parameters }]) => ({ type: "function" as const, function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}) } }));
  const stream = await model.chat.completions.create({ ...request, messages: conversation, stream: true, ...(functions.length > 0 ? { tools: functions } : {}) }, { signal });
  let message = withId({ role: "assistant", content: "" }) as AssistantMessage & { id: string };
  for await (const { choices: [choice], aborted } of stream) {
    if (aborted || !choice) continue;
    const { content, reasoning_content: reasoning, tool_calls: deltas = [] } = choice.delta;
    if (!content && !reasoning && deltas.length === 0) continue;
    const calls = [...((message.tool_calls as ToolCall[] | undefined) ?? [])];
    for (const { index, id, function: called } of deltas) {
      const old = calls[index];
      calls[index] = { id: id ?? old?.id ?? "", type: "function", function: { name: called?.name ?? old?.function.name ?? "", arguments: (old?.function.arguments ?? "") + (called?.arguments ?? "") } };
    }
    message = {
      ...message,
      content: `${message.content as string}${content ?? ""}`,
      ...(reasoning ? { reasoning_content: (message.reasoning_content ?? "") + reasoning } : {}),
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
    };
    show(message);
  }
  return message;
}

/** Runs the calls of an answer. A failed one tells the model why. */
async function runTools(message: ConversationMessage, tools: UseChatOptions["tools"], signal: AbortSignal): Promise<ConversationMessage[]> {
  const calls = message.role === "assistant" ? ((message.tool_calls ?? []) as ToolCall[]) : [];
  return Promise.all(
    calls.map(async ({ id, function: { name, arguments: input } }) => {
      const result = await Promise.resolve()
        .then(() => {
          const tool = tools && Object.hasOwn(tools, name) ? tools[name] : undefined;
          if (!tool) throw new JerboaError("request", `There is no tool '${name}'.`);
          return tool.execute(JSON.parse(input || "{}") as never, signal);
        })
        .catch((thrown: unknown) => ({ error: thrown instanceof Error ? thrown.message : String(thrown) }));
      return withId({ role: "tool", tool_call_id: id, name, content: typeof result === "string" ? result : jsonOf(name, result ?? null) });
    }),
  );
}

/** The result of a tool as JSON. */
function jsonOf(name: string, result: unknown): string {
  let reason = `it is a ${typeof result}`;
  try {
    const json = JSON.stringify(result) as string | undefined;
    if (json !== undefined) return json;
  } catch (thrown) {
    reason = textOf(thrown);
  }
  throw new JerboaError("request", `useChat: the result of the tool '${name}' cannot be written as JSON: ${reason}. Return a string, or a value that JSON.stringify takes.`);
}
