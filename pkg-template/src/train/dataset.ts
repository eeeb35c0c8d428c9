/** Data to train on, as callers give it. */

import { describe, isList } from "../check.js";
import { invalidRequest } from "../errors.js";
import { engineMessages, type ChatMessage } from "../messages.js";
import type { TrainPreference, TrainText } from "./calls.js";

/**
 * Two answers to a prompt, in the formats of TRL. Strings follow the prompt's text. Messages follow its messages and are
 * rendered by the model's chat template. Strings after messages are the assistant's answers.
 */
export interface PreferencePair {
  /** The prompt. Default: what both answers begin with. */
  prompt?: string | readonly ChatMessage[];
  /** The prompt's messages, if there is no `prompt`. */
  messages?: readonly ChatMessage[];
  /** The answer to prefer. */
  chosen: string | readonly ChatMessage[];
  /** The other answer. */
  rejected: string | readonly ChatMessage[];
}

/**
 * A text, texts, or conversations; or pairs, which train by direct preference optimization. Texts are cut into sequences
 * of `maxLength` tokens. Of a conversation, rendered by the model's chat template, only the assistant's messages count in
 * the loss.
 */
export type TrainData = string | readonly (string | readonly ChatMessage[])[] | readonly PreferencePair[];

/** The module's form of data; `name` names the argument in messages. */
export function trainTexts(name: string, data: TrainData): TrainText[] {
  if (typeof data === "string") return [filled(name, data)];
  if (!isList(data) || data.length === 0) throw invalidRequest(`trainLora: ${name} must be a string, an array of strings, an array of arrays of messages, or an array of pairs, not ${describe(data)}.`);
  const items = Array.from(data as readonly unknown[], (item, i) => {
    if (typeof item === "string") return filled(`${name}[${i}]`, item);
    const at = `trainLora: ${name}[${i}]`;
    if (isPair(item)) return pairOf(at, item);
    if (!Array.isArray(item)) throw invalidRequest(`${at} must be a string, an array of messages, or a pair with 'chosen' and 'rejected', not ${describe(item)}.`);
    if (!item.some((message) => (message as ChatMessage | null)?.role === "assistant")) throw invalidRequest(`${at} has no message with role 'assistant'. Add the answer to learn.`);
    return engineMessages(at, item as ChatMessage[]);
  });
  const other = items.findIndex((item) => isPair(item) !== isPair(items[0]));
  if (other >= 0) throw invalidRequest(`trainLora: ${name} mixes pairs and other items (${name}[${other}]). Train on them one after the other.`);
  return items;
}

/** Whether data trains by preference. */
export const hasPairs = (data: readonly TrainText[]): boolean => isPair(data[0]);

/** An object with an answer of a pair, or with both. */
const isPair = (item: unknown): item is Partial<PreferencePair> => typeof item === "object" && item !== null && !Array.isArray(item) && ("chosen" in item || "rejected" in item);

function pairOf(at: string, pair: Partial<PreferencePair>): TrainPreference {
  for (const key of ["chosen", "rejected"] as const) {
    const answer: unknown = pair[key];
    if (answer === undefined || answer === null) throw invalidRequest(`${at} has no '${key}'. Give 'prompt', 'chosen' and 'rejected'.`);
    if (typeof answer !== "string" && !Array.isArray(answer)) throw invalidRequest(`${at}: '${key}' must be a string or an array of messages, not ${describe(answer)}.`);
    if (typeof answer === "string" && !answer.trim()) throw invalidRequest(`${at}: '${key}' is empty.`);
  }
  if (typeof pair.chosen !== typeof pair.rejected) throw invalidRequest(`${at}: 'chosen' and 'rejected' must both be strings, or both arrays of messages.`);
  const prompt: unknown = pair.prompt ?? pair.messages;
  if (pair.prompt && pair.messages) throw invalidRequest(`${at} has both 'prompt' and 'messages'. Give one of them.`);
  if (prompt !== undefined && prompt !== null && typeof prompt !== "string" && !Array.isArray(prompt)) throw invalidRequest(`${at}: the prompt must be a string or an array of messages, not ${describe(prompt)}.`);
  const part = (name: string, value: unknown): string | unknown[] => (typeof value === "string" ? value : engineMessages(`${at}.${name}`, value as ChatMessage[]));
  const [chosen, rejected] = [part("chosen", pair.chosen), part("rejected", pair.rejected)];
  if (JSON.stringify(chosen) === JSON.stringify(rejected)) throw invalidRequest(`${at}: 'chosen' and 'rejected' are equal, so there is nothing to prefer.`);
  return { ...(prompt === undefined || prompt === null ? {} : { prompt: part("prompt", prompt) }), chosen, rejected };
}

function filled(name: string, text: string): string {
  if (!text.trim()) throw invalidRequest(`trainLora: ${name} is empty. Add text to learn.`);
  return text;
}
