/** Data to train on, as callers give it. */

import { describe, isList } from "../check.js";
import { invalidRequest } from "../errors.js";
import { engineMessages, type ChatMessage } from "../messages.js";
import type { TrainText } from "./calls.js";

/**
 * A text, texts, or conversations. Texts are cut into sequences of `maxLength` tokens. Of a conversation, rendered by the
 * model's chat template, only the assistant's messages count in the loss.
 */
export type TrainData = string | readonly (string | readonly ChatMessage[])[];

/** The module's form of data; `name` names the argument in messages. */
export function trainTexts(name: string, data: TrainData): TrainText[] {
  if (typeof data === "string") return [filled(name, data)];
  if (!isList(data) || data.length === 0) throw invalidRequest(`trainLora: ${name} must be a string, an array of strings, or an array of arrays of messages, not ${describe(data)}.`);
  return Array.from(data as readonly unknown[], (item, i) => {
    if (typeof item === "string") return filled(`${name}[${i}]`, item);
    const at = `trainLora: ${name}[${i}]`;
    if (!Array.isArray(item)) throw invalidRequest(`${at} must be a string or an array of messages, not ${describe(item)}.`);
    if (!item.some((message) => (message as ChatMessage | null)?.role === "assistant")) throw invalidRequest(`${at} has no message with role 'assistant'. Add the answer to learn.`);
    return engineMessages(at, item as ChatMessage[]);
  });
}

function filled(name: string, text: string): string {
  if (!text.trim()) throw invalidRequest(`trainLora: ${name} is empty. Add text to learn.`);
  return text;
}
