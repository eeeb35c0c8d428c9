/** Assembles the parts of an answer to OpenAI's messages and deltas. */

import type { AnswerPart, GenerationEvent } from "./contract.js";
import type { ToolCall } from "./messages.js";

/** What a chunk adds to a tool call: its first chunk has id, type and name, later ones have arguments. */
export interface ToolCallDelta {
  index: number;
  id?: string;
  type?: "function";
  function?: { name?: string; arguments?: string };
}

/** What a chunk adds to the message. */
export interface ChatDelta {
  role?: "assistant";
  content?: string;
  /** The model's reasoning; `reasoning` is the name that newer clients read. */
  reasoning_content?: string;
  reasoning?: string;
  tool_calls?: ToolCallDelta[];
}

/** The parts of an event; its text is content if the answer is plain text. */
export function partsOf({ text, parts }: GenerationEvent): AnswerPart[] {
  return parts ?? (text ? [{ type: "content", text }] : []);
}

/** The delta of a part; undefined for the end of a call, which OpenAI's format does not tell. */
export function deltaOf(part: AnswerPart): ChatDelta | undefined {
  switch (part.type) {
    case "content":
      return { content: part.text };
    case "reasoning":
      return { reasoning_content: part.text, reasoning: part.text };
    case "toolCall":
      return { tool_calls: [{ index: part.index, id: part.id, type: "function", function: { name: part.name, arguments: "" } }] };
    case "arguments":
      return { tool_calls: [{ index: part.index, function: { arguments: part.text } }] };
    case "toolCallEnd":
      return undefined;
  }
}

/** The message that the parts of an answer make. */
export class AnswerBuilder {
  readonly calls: ToolCall[] = [];
  content = "";
  reasoning = "";

  push(part: AnswerPart): void {
    if (part.type === "content") this.content += part.text;
    else if (part.type === "reasoning") this.reasoning += part.text;
    else if (part.type === "toolCall") this.calls.push({ id: part.id, type: "function", function: { name: part.name, arguments: "" } });
    else if (part.type === "arguments") this.calls.at(-1)!.function.arguments += part.text;
  }
}
