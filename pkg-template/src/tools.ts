/**
 * Parses tool calls in generated text: `<tool_call>{"name", "arguments"}</tool_call>`, as Qwen, Hermes and SmolLM3
 * write them.
 */

import type { ToolCall } from "./messages.js";

const OPEN = "<tool_call>";
const CLOSE = "</tool_call>";

/** A part of the answer: text, or a complete tool call. */
export type AnswerPiece = { text: string } | { call: ToolCall };

/** Splits a stream of text into text and tool calls. A possible start of a call is held until more text arrives. */
export class ToolCallParser {
  #buffer = "";
  #count = 0;

  /** Takes the next text. */
  push(text: string): AnswerPiece[] {
    this.#buffer += text;
    const pieces: AnswerPiece[] = [];
    for (;;) {
      const open = this.#buffer.indexOf(OPEN);
      if (open < 0) {
        const keep = partialTagLength(this.#buffer);
        this.#emit(pieces, this.#buffer.slice(0, this.#buffer.length - keep));
        this.#buffer = this.#buffer.slice(this.#buffer.length - keep);
        return pieces;
      }
      const close = this.#buffer.indexOf(CLOSE, open);
      if (close < 0) {
        this.#emit(pieces, this.#buffer.slice(0, open));
        this.#buffer = this.#buffer.slice(open);
        return pieces;
      }
      const call = this.#call(this.#buffer.slice(open + OPEN.length, close));
      const end = close + CLOSE.length;
      // Invalid calls stay in the text unchanged.
      this.#emit(pieces, this.#buffer.slice(0, call ? open : end));
      if (call) pieces.push({ call });
      this.#buffer = this.#buffer.slice(end);
    }
  }

  /** Ends the text; an unclosed call counts if it is complete. */
  finish(): AnswerPiece[] {
    const rest = this.#buffer;
    this.#buffer = "";
    const pieces: AnswerPiece[] = [];
    const call = rest.startsWith(OPEN) ? this.#call(rest.slice(OPEN.length)) : undefined;
    if (call) pieces.push({ call });
    else this.#emit(pieces, rest);
    return pieces;
  }

  /** Whitespace between calls is formatting, not content. */
  #emit(pieces: AnswerPiece[], text: string): void {
    if (text && !(this.#count > 0 && !text.trim())) pieces.push({ text });
  }

  #call(json: string): ToolCall | undefined {
    try {
      const { name, arguments: given, parameters } = JSON.parse(json) as { name?: unknown; arguments?: unknown; parameters?: unknown };
      if (typeof name !== "string") return undefined;
      const args = given ?? parameters ?? {};
      this.#count++;
      return {
        id: `call_${crypto.randomUUID().replaceAll("-", "").slice(0, 24)}`,
        type: "function",
        function: { name, arguments: typeof args === "string" ? args : JSON.stringify(args) },
      };
    } catch {
      return undefined;
    }
  }
}

/** The length of the longest suffix that may be the start of a call. */
function partialTagLength(text: string): number {
  for (let n = Math.min(OPEN.length - 1, text.length); n > 0; n--) if (text.endsWith(OPEN.slice(0, n))) return n;
  return 0;
}
