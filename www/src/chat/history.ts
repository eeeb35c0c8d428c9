/** Saved conversations of this device, newest first. */

import { stored } from "../prefs";

/** A saved turn. */
export interface SavedTurn {
  role: "user" | "assistant";
  text: string;
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
}

/** Maximum number of saved conversations. */
const MAX_CONVERSATIONS = 50;
/** Maximum characters of all saved conversations; browsers limit a page to about five million. */
const MAX_CHARACTERS = 4e6;

const isSaved = (v: unknown): v is SavedConversation =>
  typeof v === "object" && v !== null && typeof (v as SavedConversation).id === "string" && typeof (v as SavedConversation).name === "string" && Array.isArray((v as SavedConversation).turns) &&
  (v as SavedConversation).turns.every(({ role, text }) => (role === "user" || role === "assistant") && typeof text === "string");

/** All saved conversations. */
export const saved = stored<SavedConversation[]>("conversations", [], (v): v is SavedConversation[] => Array.isArray(v) && v.every(isSaved));

/** Id of the open conversation. */
export const open = stored("conversation", "", (v): v is string => typeof v === "string");

/** Unsent text of the composer. */
export const draft = stored("draft", "", (v): v is string => typeof v === "string");

/** Saves a conversation under its name or its user's first words. */
export function saveConversation(conversation: Omit<SavedConversation, "name" | "updated">): void {
  const before = saved.peek().find(({ id }) => id === conversation.id);
  const name = before?.name ?? nameOf(conversation.turns);
  const others = saved.peek().filter(({ id }) => id !== conversation.id);
  const all = [{ ...conversation, name, updated: Date.now() }, ...others].slice(0, MAX_CONVERSATIONS);
  let room = MAX_CHARACTERS;
  // Drop the oldest first: when storage is full, browsers store nothing at all.
  saved.value = all.filter((each, i) => (room -= JSON.stringify(each).length) > 0 || i === 0);
}

export function rename(id: string, name: string): void {
  if (name.trim()) saved.value = saved.peek().map((each) => (each.id === id ? { ...each, name: name.trim() } : each));
}

export function forget(id: string): void {
  saved.value = saved.peek().filter((each) => each.id !== id);
}

function nameOf(turns: SavedTurn[]): string {
  const line = turns.find(({ role }) => role === "user")?.text.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 48).replace(/\s+\S*$/, "")}…` : line || "Conversation";
}
