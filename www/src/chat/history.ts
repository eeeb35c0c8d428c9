/** Saved conversations of this device, newest first. */

import { batch, signal } from "@preact/signals";
import { shared, stored } from "../prefs";
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
  /** Why the answer failed. */
  error?: SavedError;
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
  /** Key of a text file's passages, if another conversation stored them: see {@link documentOf}. */
  document?: string;
}

/** Why an answer failed. */
interface SavedError {
  code: string;
  message: string;
}

/** Key of the passages of a conversation's text file in the memory of files.ts. */
export const documentOf = (conversation: string, { name, document }: SavedFile): string => document ?? `${conversation}/${name}`;

/** A saved conversation. */
export interface SavedConversation {
  id: string;
  name: string;
  /** The model that answered last. */
  model: string;
  /** Whether the conversation is a text continuation. */
  completion: boolean;
  /** Time of the last save, which is its version too. */
  updated: number;
  /** Versions before, newest last. */
  versions?: number[];
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
/** Milliseconds after a save in which another tab may overwrite it with a list that it read before. */
const RACE_MS = 5000;
/** Maximum number of earlier versions that a conversation names, and of deleted ones that all tabs remember. */
const MAX_VERSIONS = 8;
const MAX_DELETED = 100;

const isString = (value: unknown): value is string => typeof value === "string";

/** Whether a value is `undefined` or passes. */
const optional = (value: unknown, valid: (value: unknown) => boolean): boolean => value === undefined || valid(value);

function isFile(value: unknown): value is SavedFile {
  const { name, image, document } = (value ?? {}) as Record<keyof SavedFile, unknown>;
  return typeof name === "string" && optional(image, isString) && optional(document, isString);
}

function isError(value: unknown): value is SavedError {
  const { code, message } = (value ?? {}) as Record<keyof SavedError, unknown>;
  return isString(code) && isString(message);
}

function isTurn(value: unknown, index: number): value is SavedTurn {
  if (typeof value !== "object" || value === null) return false;
  const { role, text, parent, cut, files, context, error } = value as Record<keyof SavedTurn, unknown>;
  const valid = optional(files, (v) => Array.isArray(v) && v.every(isFile)) && optional(context, isString) && optional(error, isError);
  const before = (v: unknown): boolean => Number.isInteger(v) && (v as number) >= -1 && (v as number) < index;
  return (role === "user" || role === "assistant") && isString(text) && valid && optional(parent, before) && optional(cut, (v) => typeof v === "boolean");
}

function isSaved(value: unknown): value is SavedConversation {
  if (typeof value !== "object" || value === null) return false;
  const { id, name, turns, leaf, system, versions } = value as Record<keyof SavedConversation, unknown>;
  if (!isString(id) || !isString(name) || !Array.isArray(turns)) return false;
  return turns.every(isTurn) && optional(leaf, Number.isInteger) && optional(system, isString) && optional(versions, Array.isArray);
}

/** All saved conversations. {@link change} changes them. */
export const { signal: saved, refresh } = shared<SavedConversation[]>("conversations", [], (v): v is SavedConversation[] => Array.isArray(v) && v.every(isSaved), withLastSave);

const DELETED_KEY = "jerboa.deleted";

/** Ids of deleted conversations, newest first. */
function deletedIds(): string[] {
  try {
    const ids: unknown = JSON.parse(localStorage.getItem(DELETED_KEY) ?? "[]");
    return Array.isArray(ids) ? ids.filter(isString) : [];
  } catch {
    return [];
  }
}

/** What this tab saved last, and when. */
let last: { conversation: SavedConversation; at: number } | undefined;

/** Another tab's list with this tab's last save, if that tab saved at the same time and had not seen it. */
function withLastSave(all: SavedConversation[]): SavedConversation[] {
  if (!last || Date.now() - last.at > RACE_MS) return all;
  const { conversation } = last;
  const { id, updated } = conversation;
  const found = all.find((each) => each.id === id);
  if (found?.updated === updated || found?.versions?.includes(updated)) return all;
  if (deletedIds().includes(id)) return all;
  if (!found) return fitting([conversation, ...all]);
  // Both tabs saved turns of one conversation: each has its own.
  last = undefined;
  const turns = conversation.turns.map((turn) => ({ ...turn, ...(turn.files ? { files: turn.files.map((file) => (file.image ? file : { ...file, document: documentOf(id, file) })) } : {}) }));
  return fitting([{ ...conversation, id: newId(), turns }, ...all]);
}

/** A new conversation's id. */
export function newId(): string {
  return crypto.randomUUID?.() ?? "";
}

/** The time of a save, which differs from that of the save before it. */
export function saveTime(before: number | undefined): number {
  const now = Date.now();
  return before !== undefined && before >= now && before < now + RACE_MS ? before + 1 : now;
}

/** Names of the conversations that were deleted to make room, until the user dismisses the notice. */
export const evicted = signal<readonly string[]>([]);

/** Id of the open conversation. */
export const open = stored("conversation", "", isString);

/** Unsent text of the composer. */
export const draft = stored("draft", "", isString);

/** The answer that is being generated: a reload ends it here. */
export interface UnfinishedAnswer {
  /** Id of its conversation. */
  id: string;
  text: string;
}

/** The answer that a reload would end, and its text so far. */
export const { signal: unfinished } = shared<UnfinishedAnswer | null>("unfinished", null, (v): v is UnfinishedAnswer | null => v === null || (isString((v as UnfinishedAnswer)?.id) && isString((v as UnfinishedAnswer).text)));

/** Changes what all tabs have saved by now, and deletes the files of conversations that are gone. */
function change(make: (all: SavedConversation[]) => SavedConversation[]): void {
  batch(() => {
    refresh();
    const before = saved.peek();
    const after = make(before);
    const ids = new Set(after.map(({ id }) => id));
    const gone = before.filter(({ id }) => !ids.has(id));
    // Stored first: tabs that read the list know what is missing on purpose.
    if (gone.length > 0) storeDeleted(gone.map(({ id }) => id));
    saved.value = after;
    deleteFiles(gone);
  });
}

/** Stores the ids of deleted conversations at once, not at the end of a batch. */
function storeDeleted(ids: string[]): void {
  try {
    localStorage.setItem(DELETED_KEY, JSON.stringify([...new Set([...ids, ...deletedIds()])].slice(0, MAX_DELETED)));
  } catch {
    // Storage may be disabled or full; then no tab stores a list either.
  }
}

/** Deletes the files of deleted conversations, except those that others have, too: a branch has the files of its original. */
function deleteFiles(gone: SavedConversation[]): void {
  const used = filesOf(saved.peek());
  const unused = filesOf(gone);
  const images = [...unused.images].filter((key) => !used.images.has(key));
  const documents = [...unused.documents].filter((key) => !used.documents.has(key));
  if (images.length > 0) deleteImages(images).catch(() => undefined);
  if (documents.length > 0) import("./files").then(({ forgetFiles }) => forgetFiles(documents)).catch(() => undefined);
}

/** Keys of the files that conversations refer to. */
function filesOf(conversations: SavedConversation[]): { images: Set<string>; documents: Set<string> } {
  const files = conversations.flatMap(({ id, turns }) => turns.flatMap((turn) => (turn.files ?? []).map((file) => ({ id, file }))));
  return {
    images: new Set(files.flatMap(({ file }) => file.image ?? [])),
    documents: new Set(files.flatMap(({ id, file }) => (file.image ? [] : documentOf(id, file)))),
  };
}

/** Saves a conversation under its name or its user's first words. */
export function saveConversation(conversation: Omit<SavedConversation, "name">): void {
  change((all) => {
    const before = all.find(({ id }) => id === conversation.id);
    const made: SavedConversation = { ...conversation, name: before?.name ?? nameOf(conversation.turns) };
    if (before) made.versions = [...(before.versions ?? []), before.updated].slice(-MAX_VERSIONS);
    last = { conversation: made, at: Date.now() };
    return fitting([made, ...all.filter(({ id }) => id !== conversation.id)]);
  });
}

/** Drops the oldest conversations, which a notice names: when storage is full, browsers store nothing at all. */
function fitting(all: SavedConversation[]): SavedConversation[] {
  let room = MAX_CHARACTERS;
  const kept = all.slice(0, MAX_CONVERSATIONS).filter((each, i) => (room -= JSON.stringify(each).length) > 0 || i === 0);
  const dropped = all.filter((each) => !kept.includes(each));
  if (dropped.length > 0) evicted.value = [...evicted.peek(), ...dropped.map(({ name }) => name)];
  return kept;
}

/** A stored time that is a date and has passed; now for any other value. */
export function timeOf(updated: unknown): number {
  const now = Date.now();
  return typeof updated === "number" && updated > 0 && updated <= now ? updated : now;
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
  const imported = given.map((each): SavedConversation => ({ ...each, model: String(each.model ?? ""), completion: each.completion === true, updated: timeOf(each.updated) }));
  let count = 0;
  change((all) => {
    // Of conversations with one id, the file's first one is added.
    const added = new Map(imported.reverse().map((each) => [each.id, each]));
    for (const { id } of all) added.delete(id);
    const kept = fitting([...all, ...added.values()].sort((a, b) => b.updated - a.updated));
    count = kept.filter(({ id }) => added.has(id)).length;
    return kept;
  });
  return count;
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
  if (name.trim()) change((all) => all.map((each) => (each.id === id ? { ...each, name: name.trim() } : each)));
}

export function forget(id: string): void {
  change((all) => all.filter((each) => each.id !== id));
}

function nameOf(turns: SavedTurn[]): string {
  const line = turns.find(({ role }) => role === "user")?.text.trim().split("\n")[0] ?? "";
  return line.length > 48 ? `${line.slice(0, 48).replace(/\s+\S*$/, "")}…` : line || VISION.conversation;
}
