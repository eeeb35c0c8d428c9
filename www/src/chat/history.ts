/** The conversations of this device, newest first. Knows how they are kept; not how one goes on. */

import { stored } from "../prefs";

/** A turn as it is kept. */
export interface SavedTurn {
  role: "user" | "assistant";
  text: string;
}

/** A conversation as it is kept. */
export interface Saved {
  id: string;
  name: string;
  /** The model that answered last. */
  model: string;
  /** Whether it is a text that was continued. */
  completion: boolean;
  updated: number;
  turns: SavedTurn[];
}

/** So many are kept, of so many characters: browsers give a page five million. */
const [MOST, LONGEST] = [50, 4e6];

const isSaved = (v: unknown): v is Saved =>
  typeof v === "object" && v !== null && typeof (v as Saved).id === "string" && typeof (v as Saved).name === "string" && Array.isArray((v as Saved).turns) &&
  (v as Saved).turns.every(({ role, text }) => (role === "user" || role === "assistant") && typeof text === "string");

/** All of them. */
export const saved = stored<Saved[]>("conversations", [], (v): v is Saved[] => Array.isArray(v) && v.every(isSaved));

/** The one that is open. */
export const open = stored("conversation", "", (v): v is string => typeof v === "string");

/** The text of the composer that was not sent. */
export const draft = stored("draft", "", (v): v is string => typeof v === "string");

/** Keeps a conversation, under its name or the first words of its user. */
export function keep(conversation: Omit<Saved, "name" | "updated">): void {
  const before = saved.peek().find(({ id }) => id === conversation.id);
  const name = before?.name ?? nameOf(conversation.turns);
  const others = saved.peek().filter(({ id }) => id !== conversation.id);
  const all = [{ ...conversation, name, updated: Date.now() }, ...others].slice(0, MOST);
  let room = LONGEST;
  // The oldest go first; where there is no room a browser would keep nothing of it.
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
