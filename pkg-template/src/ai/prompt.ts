/** Converts prompts and tools of the AI SDK to OpenAI's format. */

import type { LanguageModelV4FilePart, LanguageModelV4FunctionTool, LanguageModelV4Prompt, LanguageModelV4ToolChoice, LanguageModelV4ToolResultOutput } from "@ai-sdk/provider";
import { type AssistantMessage, type ChatMessage, JerboaError, type Tool, type ToolChoice } from "../index.js";
import { mediaPart, type UserPart } from "../integrations/media-part.js";

/** The messages of a prompt. @throws {@link JerboaError} for a file that models in a page cannot read. */
export function messagesOf(prompt: LanguageModelV4Prompt): ChatMessage[] {
  return prompt.flatMap((message): ChatMessage[] => {
    switch (message.role) {
      case "system":
        return [{ role: "system", content: message.content }];
      case "user":
        return [{ role: "user", content: message.content.map((part) => (part.type === "text" ? { type: "text", text: part.text } : userFile(part))) }];
      case "assistant":
        return [assistantMessage(message.content)];
      case "tool":
        return message.content.flatMap((part) => (part.type === "tool-result" ? [{ role: "tool", content: resultText(part.output), tool_call_id: part.toolCallId, name: part.toolName }] : []));
    }
  });
}

function assistantMessage(content: Extract<LanguageModelV4Prompt[number], { role: "assistant" }>["content"]): AssistantMessage {
  const texts: string[] = [];
  const reasoning: string[] = [];
  const calls: NonNullable<AssistantMessage["tool_calls"]> = [];
  for (const part of content) {
    if (part.type === "text") texts.push(part.text);
    else if (part.type === "reasoning") reasoning.push(part.text);
    else if (part.type === "tool-call") calls.push({ id: part.toolCallId, type: "function", function: { name: part.toolName, arguments: JSON.stringify(part.input) } });
    else throw unsupported(`a part of type '${part.type}' in an assistant message`);
  }
  return {
    role: "assistant",
    content: texts.join(""),
    ...(reasoning.length > 0 ? { reasoning_content: reasoning.join("") } : {}),
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
  };
}

function userFile({ data, mediaType, filename }: LanguageModelV4FilePart): UserPart {
  if (data.type === "text") return { type: "text", text: data.text };
  const [kind] = mediaType.split("/") as [string];
  if (kind === "text" && data.type === "data") return { type: "text", text: new TextDecoder().decode(bytesOf(data.data)) };
  if (kind !== "image" && kind !== "video") throw unsupported(`the file ${filename ? `'${filename}' ` : ""}of type '${mediaType}'`);
  if (data.type === "reference") throw unsupported("a file reference");
  const full = mediaType.includes("/") && !mediaType.endsWith("/*") ? mediaType : `${kind}/${kind === "image" ? "png" : "mp4"}`;
  if (data.type === "url") return mediaPart(kind, data.url.href, full);
  return mediaPart(kind, typeof data.data === "string" ? `data:${full};base64,${data.data}` : (data.data as Uint8Array<ArrayBuffer>), full);
}

function resultText(output: LanguageModelV4ToolResultOutput): string {
  switch (output.type) {
    case "text":
    case "error-text":
      return output.value;
    case "json":
    case "error-json":
      return JSON.stringify(output.value);
    case "execution-denied":
      return output.reason ?? "The user denied this call.";
    case "content":
      return output.value.map((part) => {
        if (part.type === "text") return part.text;
        if (part.type === "file" && part.data.type === "text") return part.data.text;
        throw unsupported(`a part of type '${part.type}' in a tool result`);
      }).join("");
  }
}

/** The bytes of binary data, which may be base64. */
export function bytesOf(data: Uint8Array | string): Uint8Array<ArrayBuffer> {
  return typeof data === "string" ? Uint8Array.from(atob(data), (char) => char.charCodeAt(0)) : (data as Uint8Array<ArrayBuffer>);
}

/** A function tool in OpenAI's format. */
export function toolOf({ name, description, inputSchema, strict }: LanguageModelV4FunctionTool): Tool {
  return {
    type: "function",
    function: { name, parameters: inputSchema as Record<string, unknown>, ...(description !== undefined ? { description } : {}), ...(strict !== undefined ? { strict } : {}) },
  };
}

/** A tool choice in OpenAI's format. */
export function toolChoiceOf(choice: LanguageModelV4ToolChoice): ToolChoice {
  return choice.type === "tool" ? { type: "function", function: { name: choice.toolName } } : choice.type;
}

function unsupported(what: string): JerboaError {
  return new JerboaError("unsupported_option", `jerboa/ai: ${what} is not supported. Use text, image or video parts.`);
}
