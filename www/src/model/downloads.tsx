/** Downloads the queue, one model after another, and lists it. Loaded with the first model of the queue. */

import { effect, signal } from "@preact/signals";
import { JerboaError, loadModel, type LoadProgress } from "jerboa";
import { asError, userMessage } from "../errors";
import { bytes } from "../format";
import { DOWNLOADS, LOAD } from "../strings";
import { announce } from "../ui/announce";
import { refocus } from "../ui/focus";
import { Icon } from "../ui/icon";
import { advancedOptions } from "./advanced";
import { refreshCached } from "./cached";
import { dequeue, keyOf, queue, type QueuedModel } from "./queued-models";
import { Bar, summaryOf } from "./status";

/** A model that is downloading or has failed. */
interface DownloadState {
  progress?: LoadProgress;
  error?: JerboaError;
}

/** By key; models without a state wait. */
const states = signal<ReadonlyMap<string, DownloadState>>(new Map());

function setState(model: QueuedModel, state: DownloadState | undefined): void {
  const next = new Map(states.peek());
  if (state) next.set(keyOf(model), state);
  else next.delete(keyOf(model));
  states.value = next;
}

/** Of all tabs, the one with this lock downloads. */
const LOCK = "jerboa-page-downloads";
/** Tokens of context of a model that is loaded for its download: the smallest KV cache. */
const CONTEXT = 64;

let running: Promise<void> | undefined;
const nextModel = (): QueuedModel | undefined => queue.peek().find((model) => !states.peek().get(keyOf(model))?.error);

/** Downloads all models of the queue that have not failed. */
export function runQueue(): void {
  if (running || !nextModel()) return;
  const downloadAll = async (): Promise<void> => {
    for (let model = nextModel(); model; model = nextModel()) await download(model);
  };
  running = navigator.locks.request(LOCK, downloadAll).finally(() => {
    running = undefined;
    runQueue();
  });
}

async function download(model: QueuedModel): Promise<void> {
  const controller = new AbortController();
  setState(model, {});
  const unwatch = effect(() => {
    if (!queue.value.some((each) => keyOf(each) === keyOf(model))) controller.abort();
  });
  try {
    await fetchModel(model, controller.signal);
    dequeue(model);
    announce(DOWNLOADS.done(model.label));
  } catch (thrown) {
    if (!controller.signal.aborted) {
      setState(model, { error: asError(thrown) });
      announce(DOWNLOADS.failed(model.label));
      return;
    }
  } finally {
    unwatch();
    void refreshCached();
  }
  setState(model, undefined);
}

/** Loads a model, which stores its files, and unloads it. */
async function fetchModel(model: QueuedModel, signal: AbortSignal): Promise<void> {
  let shown = 0;
  const onProgress = (progress: LoadProgress): void => {
    // Limited to a readable rate.
    const now = performance.now();
    if (signal.aborted || (now - shown < 100 && progress.phase === states.peek().get(keyOf(model))?.progress?.phase)) return;
    shown = now;
    setState(model, { progress });
  };
  const { token } = advancedOptions();
  const loaded = await loadModel(model.source, { ...model.options, ...(token ? { token } : {}), maxContext: CONTEXT, tune: "off", onProgress, signal });
  try {
    const before = loaded.info.warnings.length;
    await loaded.persisted;
    const [problem] = loaded.info.warnings.slice(before);
    if (problem) throw new JerboaError("cache", problem);
  } finally {
    await loaded.unload();
  }
}

function retry(model: QueuedModel): void {
  setState(model, undefined);
  runQueue();
}

// Downloads that the network ended go on when it is back.
addEventListener("online", () => {
  for (const model of queue.peek()) if (states.peek().get(keyOf(model))?.error?.code === "network") retry(model);
});

/** Bytes of a model: downloaded, and in all. */
function sizes(model: QueuedModel): { done: number; all: number } {
  const progress = states.value.get(keyOf(model))?.progress;
  const known = progress && progress.phase === "weights" && progress.total > 0;
  if (progress && (progress.phase === "compile" || progress.phase === "ready")) return { done: model.bytes ?? 0, all: model.bytes ?? 0 };
  return known ? { done: progress.loaded, all: progress.total } : { done: 0, all: model.bytes ?? 0 };
}

/** The queue with the progress of each model. */
export default function Downloads() {
  const models = queue.value;
  if (models.length === 0) return null;
  const each = models.map(sizes);
  const done = each.reduce((sum, size) => sum + size.done, 0);
  const all = each.reduce((sum, size) => sum + size.all, 0);
  return (
    <section class="group" aria-label={DOWNLOADS.title}>
      <div class="row">
        <h3 class="grow">{DOWNLOADS.title}</h3>
        {all > 0 && <span class="hint">{LOAD.of(bytes(done), bytes(all))}</span>}
      </div>
      <ul class="choices">
        {models.map((model) => (
          <Entry key={keyOf(model)} model={model} />
        ))}
      </ul>
      <p class="hint">{DOWNLOADS.hint}</p>
    </section>
  );
}

function Entry({ model }: { model: QueuedModel }) {
  const state = states.value.get(keyOf(model));
  const remove = (): void => {
    dequeue(model);
    setState(model, undefined);
    announce(DOWNLOADS.cancelled(model.label));
    refocus("dialog[open] .sheet-head button");
  };
  return (
    <li class="download">
      <span class="choice-name">{model.label}</span>
      <span class="download-buttons">
        {state?.error && (
          <button type="button" class="icon-button" aria-label={`${LOAD.again}: ${model.label}`} title={LOAD.again} onClick={() => retry(model)}>
            <Icon name="again" />
          </button>
        )}
        <button type="button" class="icon-button" aria-label={DOWNLOADS.cancel(model.label)} title={DOWNLOADS.cancel(model.label)} onClick={remove}>
          <Icon name="close" />
        </button>
      </span>
      <Status model={model} state={state} />
    </li>
  );
}

function Status({ model, state }: { model: QueuedModel; state: DownloadState | undefined }) {
  if (state?.error) {
    return <p class="download-state problem" dir="auto">{userMessage(state.error).text}</p>;
  }
  if (!state) return <p class="download-state hint">{[DOWNLOADS.waiting, model.bytes ? bytes(model.bytes) : ""].filter(Boolean).join(" · ")}</p>;
  return (
    <div class="download-state">
      <Bar progress={state.progress} />
      <p class="hint">{summaryOf(state.progress)}</p>
    </div>
  );
}
