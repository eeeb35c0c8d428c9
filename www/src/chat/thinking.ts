/** Reasoning in the text of a turn: between `<think>` tags, in front of the answer. */

/** Joins the deltas of an answer to one text, with reasoning between `<think>` tags as {@link splitThinking} reads it. */
export class ThinkingJoiner {
  #open = false;

  /** The text of the next delta. */
  push({ content = "", reasoning_content: thinking = "" }: { content?: string; reasoning_content?: string }): string {
    let text = "";
    if (thinking) {
      text += this.#open ? thinking : `<think>\n${thinking}`;
      this.#open = true;
    }
    if (content) {
      text += this.#open ? `\n</think>\n\n${content}` : content;
      this.#open = false;
    }
    return text;
  }
}

/** Separates a model's reasoning from its answer. */
export function splitThinking(text: string): { thinking: string; answer: string; open: boolean } {
  const start = text.match(/^\s*<think>/);
  if (!start) return { thinking: "", answer: text, open: false };
  const end = text.indexOf("</think>");
  if (end < 0) return { thinking: text.slice(start[0].length), answer: "", open: true };
  return { thinking: text.slice(start[0].length, end), answer: text.slice(end + "</think>".length), open: false };
}
