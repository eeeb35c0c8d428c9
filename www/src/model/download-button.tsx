/** Adds a model to the downloads, next to the button that loads it; the number of downloads in the model button. */

import { DOWNLOADS } from "../strings";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { cached } from "./cached";
import { enqueue } from "./download-queue";
import { keyOf, queue, type QueuedModel } from "./queued-models";

export function DownloadButton({ model }: { model: () => QueuedModel }) {
  const { source, label, options, bytes = 0 } = model();
  const isQueued = queue.value.some((each) => keyOf(each) === keyOf({ source, options }));
  // A download that ended between two files is complete as far as it went: its size tells.
  const isStored = cached.value?.some((each) => each.model === source && each.complete && each.bytes >= 0.9 * bytes);
  if (isStored) return null;
  const add = (): void => {
    enqueue(model());
    refocus("dialog[open] .sheet-head button");
  };
  return (
    <button type="button" class="icon-button" disabled={isQueued} aria-label={DOWNLOADS.add(label)} title={DOWNLOADS.add(label)} onClick={add}>
      <Icon name="download" />
    </button>
  );
}

export function DownloadCount() {
  const count = queue.value.length;
  if (count === 0) return null;
  return (
    <span class="download-count">
      <Icon name="download" />
      <span aria-hidden="true">{count}</span>
      <span class="unseen">{DOWNLOADS.count(count)}</span>
    </span>
  );
}
