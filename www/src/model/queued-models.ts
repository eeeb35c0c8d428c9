/** The models chosen for download, in the order of their downloads. They survive a reload of the page. */

import type { LoadOptions } from "jerboa";
import { shared } from "../prefs";
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

const isQueue = (value: unknown): value is QueuedModel[] =>
  Array.isArray(value) && value.every((each: Partial<QueuedModel> | null) => typeof each?.source === "string" && typeof each.label === "string" && typeof each.options === "object" && each.options !== null);

/** Follows the changes of other tabs. */
export const { signal: queue, refresh: refreshQueue } = shared<QueuedModel[]>("downloads", [], isQueue);

/** Distinguishes revisions and servers of a model. */
export function keyOf({ source, options: { revision = "", endpoint = "" } }: Pick<QueuedModel, "source" | "options">): string {
  return [source, revision, endpoint].join(" ");
}

/** Removes a model, and ends its download; what was downloaded stays cached. */
export function dequeue(model: Pick<QueuedModel, "source" | "options">): void {
  refreshQueue();
  const others = queue.value.filter((each) => keyOf(each) !== keyOf(model));
  if (others.length < queue.value.length) queue.value = others;
}
