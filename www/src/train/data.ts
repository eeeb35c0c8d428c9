/** Data to train on: text, or JSON lines with `text` or `messages`. */

import type { ChatMessage } from "jerboa";
import { TRAIN } from "../strings";

/** A text of the user, from the field or a file. */
export interface TrainingText {
  /** The file's name; empty for the field. */
  name: string;
  content: string;
}

/** Texts or conversations. */
type TextData = string | (string | ChatMessage[])[];

/** What precedes the answer of a sample. */
export type SamplePrompt = string | ChatMessage[];

/** Words of a text that a sample continues. */
const PROMPT_WORDS = 3;

/** The facade's form of a text. @throws `Error` for a line that is neither a text nor a conversation with an answer. */
export function dataOf({ name, content }: TrainingText): TextData {
  if (!name.endsWith(".jsonl")) return content;
  const lines = content.split("\n").map((line, i) => ({ line: line.trim(), number: i + 1 }));
  return lines.filter(({ line }) => line).map(({ line, number }) => {
    const { text, messages } = parsed(line);
    if (typeof text === "string") return text;
    if (!isConversation(messages)) throw new Error(TRAIN.badLine(number));
    // The first answer follows a prompt.
    if (messages.findIndex(({ role }) => role === "assistant") < 1) throw new Error(TRAIN.noAnswer(number));
    return messages;
  });
}

function parsed(line: string): { text?: unknown; messages?: unknown } {
  try {
    return Object(JSON.parse(line));
  } catch {
    return {};
  }
}

const isConversation = (value: unknown): value is ChatMessage[] => Array.isArray(value) && value.every((message) => typeof Object(message).role === "string");

/** The beginning of the data, which the model continues before and after the training. */
export function promptOf(data: TextData): SamplePrompt {
  const first = typeof data === "string" ? data : data[0]!;
  if (typeof first === "string") return first.trim().split(/\s+/).slice(0, PROMPT_WORDS).join(" ");
  const answer = first.findIndex(({ role }) => role === "assistant");
  return first.slice(0, answer);
}
