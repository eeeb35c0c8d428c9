/** Converts requests of the Responses API to chat completions. */

import type { ChatCompletionCreateParams, ResponseFormat } from "./chat.js";
import { describe, everyItem, isList, MAX_ITEMS } from "./check.js";
import { invalidRequest, JerboaError } from "./errors.js";
import type { AssistantMessage, ChatMessage, Tool } from "./messages.js";
import { randomId } from "./random-id.js";
import type { ResponseCreateParams, ResponseInputItem, ResponseInputPart, ResponseTextFormat, ResponseToolChoice } from "./responses-types.js";
import type { ToolChoice } from "./tool-choice.js";

export const WHERE = "responses.create";

/** An item with its id. */
export type IdentifiedItem = ResponseInputItem & { id: string };

/** A new id, such as `msg_…`. */
export const newId = (kind: string): string => `${kind}_${randomId()}`;

/** The input as items with ids. `stored` finds the items of stored responses. */
export function inputItems(input: unknown, stored: (id: string) => IdentifiedItem | undefined): IdentifiedItem[] {
  if (input === undefined || input === null) return [];
  const items = typeof input === "string" ? [{ type: "message", role: "user", content: input }] : input;
  if (!isList(items)) throw invalidRequest(`${WHERE}: 'input' must be a string or an array of items (at most ${MAX_ITEMS}), not ${describe(input)}.`);
  return Array.from(items, (item, i) => {
    if (typeof item !== "object" || item === null) throw invalidRequest(`${WHERE}: input[${i}] must be an object, not ${describe(item)}.`);
    const { type, id, role } = item as { type?: unknown; id?: unknown; role?: unknown };
    if (type !== "item_reference" && (type || role || typeof id !== "string")) return { ...(item as IdentifiedItem), id: typeof id === "string" ? id : newId("item") };
    const found = stored(String(id));
    if (!found) throw new JerboaError("not_found", `${WHERE}: input[${i}] refers to the item ${describe(id)}, which no stored response contains. Send the item itself.`);
    return found;
  });
}

/** The chat messages of items. Reasoning, text and calls of one turn become one message. */
export function messagesOf(items: readonly IdentifiedItem[]): ChatMessage[] {
  const messages: ChatMessage[] = [];
  /** The last message, if it is the assistant's and may take more. */
  let open: AssistantMessage | undefined;
  const turn = (): AssistantMessage => {
    if (!open) messages.push((open = { role: "assistant", content: "" }));
    return open;
  };
  for (const [i, item] of items.entries()) {
    const at = `${WHERE}: input[${i}]`;
    if ("role" in item) {
      const { role, content } = item as { role: unknown; content: unknown };
      if (role === "assistant") {
        if (open?.content || open?.tool_calls) open = undefined;
        turn().content = contentOf(at, content) as string;
      } else {
        open = undefined;
        messages.push({ role: role as "user", content: contentOf(at, content) });
      }
    } else if (item.type === "reasoning") {
      if (open?.content || open?.tool_calls) open = undefined;
      const texts = [...(item.content ?? []), ...(item.content?.length ? [] : (item.summary ?? []))].map(({ text }) => text);
      // Reasoning of other providers is encrypted: there is nothing to tell the model.
      if (texts.length > 0) turn().reasoning_content = [turn().reasoning_content ?? "", ...texts].filter(Boolean).join("\n");
    } else if (item.type === "function_call") {
      const { call_id: id, name, arguments: given } = item;
      if (typeof name !== "string" || typeof given !== "string") throw invalidRequest(`${at}: a function_call requires 'call_id', 'name' and 'arguments' as strings.`);
      (turn().tool_calls ??= []).push({ id, type: "function", function: { name, arguments: given } });
    } else if (item.type === "function_call_output") {
      open = undefined;
      const content = contentOf(at, item.output);
      if (typeof content !== "string") throw invalidRequest(`${at}: the output of a function must be text.`);
      messages.push({ role: "tool", content, ...(item.call_id ? { tool_call_id: item.call_id } : {}) });
    } else throw invalidRequest(`${at}: items of type ${describe((item as { type?: unknown }).type)} are not supported. Use message, function_call, function_call_output, reasoning or item_reference.`);
  }
  return messages;
}

type ChatContent = Extract<ChatMessage, { role: "system" | "developer" | "user" }>["content"];

/** The content of a message: its text, or parts if it has images. */
function contentOf(at: string, content: unknown): ChatContent {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw invalidRequest(`${at}: the content must be a string or an array of parts, not ${describe(content)}.`);
  const parts = Array.from(content as (ResponseInputPart | null)[], (part) => {
    if (part?.type === "input_text" || part?.type === "output_text" || part?.type === "refusal") {
      const [field, text]: [string, unknown] = part.type === "refusal" ? ["refusal", part.refusal] : ["text", part.text];
      if (typeof text === "string") return { type: "text" as const, text };
      throw invalidRequest(`${at}: a part of type '${part.type}' requires '${field}': a string, not ${describe(text)}.`);
    }
    if (part?.type === "input_image" && typeof part.image_url === "string") return { type: "image_url" as const, image_url: { url: part.image_url, ...(part.detail ? { detail: part.detail as "auto" } : {}) } };
    if (part?.type === "input_image") throw invalidRequest(`${at}: a part of type 'input_image' requires 'image_url'. Files of OpenAI ('file_id') are not available.`);
    throw invalidRequest(`${at}: parts of type ${describe(part?.type)} are not supported. Use input_text, output_text, refusal or input_image.`);
  });
  return parts.every((part) => part.type === "text") ? parts.map(({ text }) => text).join("") : parts;
}

/** Puts the instructions before the conversation; templates expect one system message. */
export function withInstructions(instructions: string | undefined, messages: ChatMessage[]): ChatMessage[] {
  if (!instructions) return messages;
  const [first, ...rest] = messages;
  if ((first?.role === "system" || first?.role === "developer") && typeof first.content === "string") return [{ role: "system", content: `${instructions}\n\n${first.content}` }, ...rest];
  return [{ role: "system", content: instructions }, ...messages];
}

/** The tools of a request, and the choice among them. */
export function chatTools({ tools, tool_choice: choice }: ResponseCreateParams): { tools?: Tool[]; tool_choice?: ToolChoice } {
  const given = Array.from(tools ?? [], (tool, i): Tool => {
    if (tool?.type !== "function") throw invalidRequest(`${WHERE}: tools[${i}] has the type ${describe(tool?.type)}, which is not supported. Use tools of type 'function'.`);
    const { type, name, description, parameters, strict } = tool;
    if (typeof name !== "string") throw invalidRequest(`${WHERE}: tools[${i}] has no 'name'.`);
    return { type, function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}), ...(strict === undefined ? {} : { strict }) } };
  });
  if (choice === undefined || choice === null) return { tools: given };
  if (typeof choice === "string") return { tools: given, tool_choice: choice };
  if (choice.type === "function") return { tools: given, tool_choice: { type: "function", function: { name: choice.name } } };
  if (choice.type !== "allowed_tools") throw invalidRequest(`${WHERE}: 'tool_choice' of type ${describe(choice.type)} is not supported. Use auto, none, required, { type: 'function', name } or { type: 'allowed_tools', mode, tools }.`);
  if (!everyItem(choice.tools, (tool) => typeof Object(tool).name === "string") || !choice.tools.length) throw invalidRequest(`${WHERE}: 'tool_choice' of type 'allowed_tools' requires 'tools': a list of 1 to ${MAX_ITEMS} items { type: 'function', name }.`);
  const names = choice.tools.map((tool) => tool["name"]);
  const unknown = names.find((name) => !given.some((tool) => tool.function.name === name));
  // Chat completions refuse a choice that is not among the tools.
  if (unknown !== undefined) return { tools: given, tool_choice: { type: "function", function: { name: String(unknown) } } };
  return { tools: given.filter((tool) => names.includes(tool.function.name)), tool_choice: choice.mode };
}

/** The format of the answer. */
export function chatFormat(format: ResponseTextFormat | undefined): ResponseFormat | undefined {
  if (format === undefined || format === null) return undefined;
  if (format.type === "text" || format.type === "json_object") return { type: format.type };
  if (format.type !== "json_schema") throw invalidRequest(`${WHERE}: text.format of type ${describe((format as { type?: unknown }).type)} is not supported. Use text, json_object or json_schema.`);
  const { name, schema, description, strict } = format;
  return { type: "json_schema", json_schema: { name, schema, ...(description ? { description } : {}), ...(strict === undefined ? {} : { strict }) } };
}

/** The choice of tools as the response repeats it. */
export function echoedChoice({ tool_choice: choice }: ResponseCreateParams): ResponseToolChoice {
  return (choice ?? "auto") as ResponseToolChoice;
}

/** Fields with the same name and meaning as in chat completions. */
const SHARED_FIELDS = [
  "model", "temperature", "top_p", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
  "prompt_cache_options", "parallel_tool_calls", "moderation", "seed", "stop", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_k",
  "min_p", "typical_p", "overflow", "speculation", "enable_thinking", "reasoning_budget", "chat_template_kwargs", "grammar",
] as const;

/** The fields of a request that chat completions have too. */
export function sharedFields(p: ResponseCreateParams): Partial<ChatCompletionCreateParams> {
  return Object.fromEntries(SHARED_FIELDS.filter((name) => p[name] !== undefined).map((name) => [name, p[name]]));
}
