/** Adds models to the download queue and starts its runner, which is loaded with the first model. */

import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { DOWNLOADS, ERRORS } from "../strings";
import { announce } from "../ui/announce";
import { keyOf, queue, type QueuedModel, refreshQueue } from "./queued-models";

/** The list of downloads, once there are any. */
export const downloadsView = signal<ComponentType | undefined>(undefined);

/** Adds a model to the end of the queue. */
export function enqueue(model: QueuedModel): void {
  if (queue.value.some((each) => keyOf(each) === keyOf(model))) return;
  refreshQueue();
  queue.value = [...queue.value, model];
  announce(DOWNLOADS.added(model.label));
  void resumeDownloads();
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
