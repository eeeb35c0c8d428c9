/** Data to train on, as callers give it. */

import { describe, isList } from "../check.js";
import { invalidRequest } from "../errors.js";
import { engineMessages, type ChatMessage } from "../messages.js";
import type { TrainItems, TrainPair, TrainPreference, TrainText } from "./calls.js";

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
 * For text models: a text, texts, or conversations; or pairs, which train by direct preference optimization. Texts are cut
 * into sequences of `maxLength` tokens. Of a conversation, rendered by the model's chat template, only the assistant's
 * messages count in the loss. For embedding models: pairs of a query and a positive.
 */
export type TrainData = string | readonly (string | readonly ChatMessage[])[] | readonly PreferencePair[] | readonly TrainPair[];

/** Which loss data trains by. */
export type TrainDataKind = "text" | "preference" | "embedding";

const KINDS: Record<TrainDataKind, string> = {
  text: "texts and conversations",
  preference: "pairs with 'chosen' and 'rejected'",
  embedding: "pairs with 'query' and 'positive'",
};

const FIELDS = ["query", "positive", "negatives"];

/** The module's form of data; `name` names the argument in messages. */
export function trainItems(name: string, data: TrainData): TrainItems {
  if (typeof data === "string") return [filled(`trainLora: ${name}`, data)];
  if (!isList(data) || data.length === 0) throw invalidRequest(`trainLora: ${name} must be a string, an array of strings, an array of arrays of messages, or an array of pairs, not ${describe(data)}.`);
  const items = Array.from(data as readonly unknown[]);
  const kind = kindOf(items[0]);
  const at = (i: number): string => `trainLora: ${name}[${i}]`;
  if (kind === "embedding") return items.map((item, i) => trainPair(at(i), item));
  if (kind === "preference") return items.map((item, i) => preferencePair(at(i), item));
  return items.map((item, i) => trainText(at(i), item));
}

/** The kind of items that {@link trainItems} returned. */
export const kindOfItems = (items: TrainItems): TrainDataKind => kindOf(items[0]);

/** What items of a kind are called in messages. */
export const describeKind = (kind: TrainDataKind): string => KINDS[kind];

function kindOf(item: unknown): TrainDataKind {
  if (typeof item !== "object" || item === null || Array.isArray(item)) return "text";
  if ("chosen" in item || "rejected" in item) return "preference";
  return "query" in item || "positive" in item ? "embedding" : "text";
}

/** The error of an item of another kind than those before it. */
function mixed(at: string, kind: TrainDataKind, item: unknown): Error {
  const found = typeof item === "object" && item !== null && !Array.isArray(item) && kindOf(item) === "text" ? "an object of another form" : KINDS[kindOf(item)];
  return invalidRequest(`${at}: ${KINDS[kind]} cannot be mixed with ${found}. Train on them one after the other.`);
}

function preferencePair(at: string, item: unknown): TrainPreference {
  if (kindOf(item) !== "preference") throw mixed(at, "preference", item);
  const pair = item as Partial<PreferencePair>;
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

function trainText(at: string, item: unknown): TrainText {
  if (typeof item === "string") return filled(at, item);
  if (kindOf(item) !== "text") throw mixed(at, "text", item);
  if (!Array.isArray(item)) throw invalidRequest(`${at} must be a string, an array of messages, a pair with 'chosen' and 'rejected', or one with 'query' and 'positive', not ${describe(item)}.`);
  if (!item.some((message) => (message as ChatMessage | null)?.role === "assistant")) throw invalidRequest(`${at} has no message with role 'assistant'. Add the answer to learn.`);
  return engineMessages(at, item as ChatMessage[]);
}

function trainPair(at: string, item: unknown): TrainPair {
  if (kindOf(item) !== "embedding") throw mixed(at, "embedding", item);
  const pair = item as Partial<TrainPair>;
  const unknown = Object.keys(pair).find((field) => !FIELDS.includes(field));
  if (unknown !== undefined) throw invalidRequest(`${at} has the unknown field '${unknown}'. Use 'query', 'positive' and 'negatives'.`);
  const { query, positive, negatives = [] } = pair;
  if (!isList(negatives)) throw invalidRequest(`${at}.negatives must be an array of strings, not ${describe(negatives)}.`);
  return { query: text(`${at}.query`, query), positive: text(`${at}.positive`, positive), negatives: Array.from(negatives, (negative, i) => text(`${at}.negatives[${i}]`, negative)) };
}

function text(at: string, value: unknown): string {
  if (typeof value !== "string") throw invalidRequest(`${at} must be a string, not ${describe(value)}.`);
  return filled(at, value);
}

function filled(at: string, text: string): string {
  if (!text.trim()) throw invalidRequest(`${at} is empty. Add text to learn.`);
  return text;
}
