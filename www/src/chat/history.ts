/** Saved conversations of this device, newest first. */

import { stored } from "../prefs";
import { deleteImages } from "./image-store";
import { VISION } from "../strings";

/** A saved turn. */
export interface SavedTurn {
  role: "user" | "assistant";
  text: string;
  /** Index of the turn that it follows, -1 for none; by default the one before. */
  parent?: number;
  /** Whether a reload ended the answer. */
  cut?: boolean;
  /** The files of a question. */
  files?: SavedFile[];
  /** Passages of files that the model gets with the question. */
  context?: string;
}

/** A file of a question. */
export interface SavedFile {
  name: string;
  /** Key of an image in image-store.ts. */
  image?: string;
}

/** A saved conversation. */
export interface SavedConversation {
  id: string;
  name: string;
  /** The model that answered last. */
  model: string;
  /** Whether the conversation is a text continuation. */
  completion: boolean;
  updated: number;
  turns: SavedTurn[];
  /** Index of the last turn that is shown; by default the last one. */
  leaf?: number;
  /** The conversation's own system prompt. */
  system?: string;
}

/** Maximum number of saved conversations. */
const MAX_CONVERSATIONS = 50;
/** Maximum characters of all saved conversations; browsers limit a page to about five million. */
const MAX_CHARACTERS = 4e6;

/** Whether a value is `undefined` or passes. */
const optional = (value: unknown, valid: (value: unknown) => boolean): boolean => value === undefined || valid(value);

function isFile(value: unknown): value is SavedFile {
  const { name, image } = (value ?? {}) as Record<keyof SavedFile, unknown>;
  return typeof name === "string" && optional(image, (v) => typeof v === "string");
}

function isTurn(value: unknown, index: number): value is SavedTurn {
  if (typeof value !== "object" || value === null) return false;
  const { role, text, parent, cut, files, context } = value as Record<keyof SavedTurn, unknown>;
  const valid = optional(files, (v) => Array.isArray(v) && v.every(isFile)) && optional(context, (v) => typeof v === "string");
  const before = (v: unknown): boolean => Number.isInteger(v) && (v as number) >= -1 && (v as number) < index;
  return (role === "user" || role === "assistant") && typeof text === "string" && valid && optional(parent, before) && optional(cut, (v) => typeof v === "boolean");
}

function isSaved(value: unknown): value is SavedConversation {
  if (typeof value !== "object" || value === null) return false;
  const { id, name, turns, leaf, system } = value as Record<keyof SavedConversation, unknown>;
  if (typeof id !== "string" || typeof name !== "string" || !Array.isArray(turns)) return false;
  return turns.every(isTurn) && optional(leaf, Number.isInteger) && optional(system, (v) => typeof v === "string");
}

/** All saved conversations. */
export const saved = stored<SavedConversation[]>("conversations", [], (v): v is SavedConversation[] => Array.isArray(v) && v.every(isSaved));

/** Id of the open conversation. */
export const open = stored("conversation", "", (v): v is string => typeof v === "string");

/** Unsent text of the composer. */
export const draft = stored("draft", "", (v): v is string => typeof v === "string");

/** The answer that is being generated: a reload ends it here. */
export interface UnfinishedAnswer {
  /** Id of its conversation. */
  id: string;
  text: string;
}

/** The answer that a reload would end, and its text so far. */
export const unfinished = stored<UnfinishedAnswer | null>("unfinished", null, (v): v is UnfinishedAnswer | null => v === null || (typeof (v as UnfinishedAnswer)?.id === "string" && typeof (v as UnfinishedAnswer).text === "string"));

/** Saves a conversation under its name or its user's first words. */
export function saveConversation(conversation: Omit<SavedConversation, "name" | "updated">): void {
  const before = saved.peek().find(({ id }) => id === conversation.id);
  const name = before?.name ?? nameOf(conversation.turns);
  const others = saved.peek().filter(({ id }) => id !== conversation.id);
  saved.value = fitting([{ ...conversation, name, updated: Date.now() }, ...others]);
}

/** Drops the oldest conversations: when storage is full, browsers store nothing at all. */
function fitting(all: SavedConversation[]): SavedConversation[] {
  let room = MAX_CHARACTERS;
  return all.slice(0, MAX_CONVERSATIONS).filter((each, i) => (room -= JSON.stringify(each).length) > 0 || i === 0);
}

/** Adds the conversations of an exported file that are not saved yet; returns their number, or undefined if the file has none. */
export function importConversations(text: string): number | undefined {
  let given: unknown;
  try {
    given = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!Array.isArray(given) || given.length === 0 || !given.every(isSaved)) return undefined;
  const known = new Set(saved.peek().map(({ id }) => id));
  const added = given.filter(({ id }) => !known.has(id)).map((each) => ({ ...each, model: String(each.model ?? ""), completion: each.completion === true, updated: Number(each.updated) || Date.now() }));
  saved.value = fitting([...saved.peek(), ...added].sort((a, b) => b.updated - a.updated));
  return added.length;
}

/** The conversations that contain all words, each with the line that has the first of them, unless the name has all. */
export function searchConversations(query: string): { conversation: SavedConversation; line: string }[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return saved.value.flatMap((conversation) => {
    const lines = [conversation.name, ...conversation.turns.flatMap(({ text }) => text.split("\n"))];
    const all = lines.join("\n").toLowerCase();
    if (!words.every((word) => all.includes(word))) return [];
    const named = words.every((word) => conversation.name.toLowerCase().includes(word));
    const line = named ? "" : (lines.slice(1).find((each) => each.toLowerCase().includes(words[0]!)) ?? "");
    return [{ conversation, line: line.trim() }];
  });
}

export function rename(id: string, name: string): void {
  if (name.trim()) saved.value = saved.peek().map((each) => (each.id === id ? { ...each, name: name.trim() } : each));
}

export function forget(id: string): void {
  const files = saved.peek().find((each) => each.id === id)?.turns.flatMap((turn) => turn.files ?? []) ?? [];
  const images = files.flatMap(({ image }) => image ?? []);
  if (images.length > 0) void deleteImages(images);
  if (files.length > images.length) void import("./files").then(({ forgetFiles }) => forgetFiles(id));
  saved.value = saved.peek().filter((each) => each.id !== id);
}

function nameOf(turns: SavedTurn[]): string {
  const line = turns.find(({ role }) => role === "user")?.text.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 48).replace(/\s+\S*$/, "")}…` : line || VISION.conversation;
}
