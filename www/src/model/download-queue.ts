/** The models chosen for download. The queue survives a reload of the page; its runner is loaded with the first model. */

import { signal } from "@preact/signals";
import type { LoadOptions } from "jerboa";
import type { ComponentType } from "preact";
import { stored } from "../prefs";
import { DOWNLOADS, ERRORS } from "../strings";
import { announce } from "../ui/announce";
import type { LoadRequest } from "./model-store";

/** A model of the queue. Its access token is not stored. */
export interface QueuedModel {
  source: string;
  /** Display name. */
  label: string;
  options: Omit<LoadRequest["options"], "token"> & Pick<LoadOptions, "codec">;
  /** Download size, if it was known when the model was chosen. */
  bytes?: number | undefined;
}

const KEY = "downloads";

const isQueue = (value: unknown): value is QueuedModel[] =>
  Array.isArray(value) && value.every((each: Partial<QueuedModel> | null) => typeof each?.source === "string" && typeof each.label === "string" && typeof each.options === "object" && each.options !== null);

/** In the order of their downloads. */
export const queue = stored<QueuedModel[]>(KEY, [], isQueue);

/** The list of downloads, once there are any. */
export const downloadsView = signal<ComponentType | undefined>(undefined);

/** Distinguishes revisions and servers of a model. */
export function keyOf({ source, options: { revision = "", endpoint = "" } }: Pick<QueuedModel, "source" | "options">): string {
  return [source, revision, endpoint].join(" ");
}

/** Adds a model to the end of the queue. */
export function enqueue(model: QueuedModel): void {
  if (queue.value.some((each) => keyOf(each) === keyOf(model))) return;
  queue.value = [...queue.value, model];
  announce(DOWNLOADS.added(model.label));
  void resumeDownloads();
}

/** Removes a model, and ends its download; what was downloaded stays cached. */
export function dequeue(model: Pick<QueuedModel, "source" | "options">): void {
  const others = queue.value.filter((each) => keyOf(each) !== keyOf(model));
  if (others.length < queue.value.length) queue.value = others;
}

/** Downloads what is in the queue. */
export async function resumeDownloads(): Promise<void> {
  if (queue.value.length === 0) return;
  try {
    const { default: view, runQueue } = await import("./downloads");
    downloadsView.value = view;
    runQueue();
  } catch {
    announce(ERRORS["assets"] ?? "");
  }
}

// Another tab has changed the queue.
addEventListener("storage", ({ key, newValue }) => {
  if (key !== `jerboa.${KEY}` || newValue === JSON.stringify(queue.value)) return;
  try {
    const value: unknown = JSON.parse(newValue ?? "[]");
    if (isQueue(value)) queue.value = value;
  } catch {
    // Not written by this page.
  }
});
