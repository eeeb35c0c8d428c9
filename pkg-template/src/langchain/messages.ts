/** Converts messages of LangChain to OpenAI's format. */

import type { AIMessage, BaseMessage, ToolMessage } from "@langchain/core/messages";
import { type ChatMessage, JerboaError } from "../index.js";
import { mediaPart, type UserPart } from "../integrations/media-part.js";

type Block = { type: string } & Record<string, unknown>;

/** A conversation in OpenAI's format. @throws {@link JerboaError} for content that models in a page cannot read. */
export function messagesOf(messages: BaseMessage[]): ChatMessage[] {
  return messages.map((message): ChatMessage => {
    const type = message.getType();
    switch (type) {
      case "human":
        return { role: "user", content: contentOf(message) };
      case "system":
      case "developer":
        return { role: "system", content: textOf(message) };
      case "ai": {
        const { tool_calls: calls = [] } = message as AIMessage;
        const reasoning = message.additional_kwargs["reasoning_content"];
        return {
          role: "assistant",
          content: textOf(message),
          ...(typeof reasoning === "string" ? { reasoning_content: reasoning } : {}),
          ...(calls.length > 0 ? { tool_calls: calls.map(({ id, name, args }) => ({ id: id ?? name, type: "function" as const, function: { name, arguments: JSON.stringify(args) } })) } : {}),
        };
      }
      case "tool":
        return { role: "tool", content: contentOf(message), tool_call_id: (message as ToolMessage).tool_call_id, ...(message.name ? { name: message.name } : {}) };
      default:
        throw unsupported(`a message of type '${type}'`);
    }
  });
}

/** The text of a message, or its parts if it has images or videos. */
function contentOf({ content }: BaseMessage): string | UserPart[] {
  return typeof content === "string" ? content : (content as Block[]).map(partOf);
}

/** The text of a message; reasoning and calls have fields of their own. */
function textOf({ content }: BaseMessage): string {
  if (typeof content === "string") return content;
  return (content as Block[]).map((block) => {
    if (block.type === "text") return String(block["text"]);
    if (["reasoning", "tool_call", "tool_use"].includes(block.type)) return "";
    throw unsupported(`a block of type '${block.type}'`);
  }).join("");
}

/** A text, image or video block. */
function partOf(block: Block): UserPart {
  if (block.type === "text") return { type: "text", text: String(block["text"]) };
  const kind = block.type.replace("_url", "");
  if (kind !== "image" && kind !== "video") throw unsupported(`a block of type '${block.type}'`);
  const given = block[block.type];
  const mime = (block["mimeType"] ?? block["mime_type"] ?? (kind === "image" ? "image/png" : "video/mp4")) as string;
  const data = block["data"];
  const url = typeof given === "string" ? given : ((given as { url?: string } | undefined)?.url ?? (block["url"] as string | undefined) ?? (typeof data === "string" ? `data:${mime};base64,${data}` : undefined));
  const source = url ?? data;
  if (typeof source !== "string" && !(source instanceof Uint8Array)) throw unsupported(`a block of type '${block.type}' without a URL or data`);
  return mediaPart(kind, source as string | Uint8Array<ArrayBuffer>, mime);
}

function unsupported(what: string): JerboaError {
  return new JerboaError("unsupported_option", `jerboa/langchain: ${what} is not supported. Use human, system, AI and tool messages with text, images or videos.`);
}
