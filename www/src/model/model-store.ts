/** A tab's model and the one that will replace it. */

import { computed, effect, signal, type Signal } from "@preact/signals";
import { loadModel, type JerboaError, type LoadOptions, type LoadProgress, type Model } from "jerboa";
import { asError } from "../errors";
import { stored } from "../prefs";
import { IN_USE, LOAD } from "../strings";
import { announce } from "../ui/announce";
import { refreshCached } from "./cached";

/** A load request. */
export interface LoadRequest {
  /** A repository, a URL, or files. */
  source: string | File[];
  /** Display name. */
  label: string;
  options: Pick<LoadOptions, "token" | "revision" | "endpoint" | "maxContext" | "weights" | "embeddingWeights" | "kv">;
}

/** A loaded model. */
export interface ReadyModel {
  wanted: LoadRequest;
  model: Model;
  fromCache: boolean;
  /** False if its files have no tokenizer. */
  reads: boolean;
}

/** A model that is loading or failed to load. */
export interface PendingModel {
  wanted: LoadRequest;
  progress?: LoadProgress;
  error?: JerboaError;
}

const isWanted = (v: unknown): v is LoadRequest | null =>
  v === null || (typeof v === "object" && typeof (v as LoadRequest).source === "string" && typeof (v as LoadRequest).label === "string" && typeof (v as LoadRequest).options === "object");

/** Load errors that may succeed after unloading the old model. */
const RETRY_AFTER_UNLOAD: ReadonlySet<string> = new Set(["out_of_memory", "device_lost"]);

/** All slots of the page. */
const slots: ModelSlot[] = [];

/** Minutes in the background after which the models' GPU memory is freed; the next call reloads them from the cache. */
const RELEASE_AFTER_MINUTES = 5;
let release: ReturnType<typeof setTimeout> | undefined;
document.addEventListener("visibilitychange", () => {
  clearTimeout(release);
  if (document.visibilityState === "visible") return;
  // A running call is completed first. A model that is lost anyway is loaded again by its next call.
  release = setTimeout(() => slots.forEach((slot) => slot.model.peek()?.release().catch(() => undefined)), RELEASE_AFTER_MINUTES * 60_000);
});

export class ModelSlot {
  /** The loaded model. */
  readonly current = signal<ReadyModel | undefined>(undefined);
  /** The model that is loading. */
  readonly pending = signal<PendingModel | undefined>(undefined);
  /** A model for another task, which was unloaded again in favor of the current one. */
  readonly refused = signal<ReadyModel | undefined>(undefined);
  readonly model = computed(() => this.current.value?.model);
  /** The last chosen model without its token; selected files are lost on reload. */
  readonly lastRequest: Signal<LoadRequest | null>;
  #loading: AbortController | undefined;
  #ejected = false;

  /** The tab's options for every load. */
  readonly more: () => LoadOptions;
  readonly #accepts: (ready: ReadyModel) => boolean;

  /** `accepts` says whether a model is for the tab's task; `more` are the tab's options for every load. */
  constructor(name: string, accepts: (ready: ReadyModel) => boolean, more: LoadOptions | (() => LoadOptions) = {}) {
    this.#accepts = accepts;
    this.more = typeof more === "function" ? more : () => more;
    this.lastRequest = stored<LoadRequest | null>(`${name}.model`, null, isWanted);
    slots.push(this);
  }

  /** Whether no model is loaded, loading, or unloaded by the user. */
  get idle(): boolean {
    return !this.current.peek() && !this.pending.peek() && !this.#ejected;
  }

  /** Unloads the model; it stays cached. */
  async eject(): Promise<void> {
    this.cancel();
    this.#ejected = true;
    announce(IN_USE.ejected);
    await this.#drop();
  }

  /**
   * Loads a model. The current one stays usable until the new one is ready, unless both do not fit together. It is not
   * replaced by a model for another task.
   */
  async load(wanted: LoadRequest): Promise<void> {
    this.#loading?.abort();
    this.#ejected = false;
    const controller = new AbortController();
    this.#loading = controller;
    this.refused.value = undefined;
    this.pending.value = { wanted };
    announce(LOAD.begins(wanted.label));
    try {
      const ready = await this.#fetch(wanted, controller.signal).catch(async (thrown: unknown) => {
        if (!RETRY_AFTER_UNLOAD.has(asError(thrown).code) || !this.current.peek() || controller.signal.aborted) throw thrown;
        await this.#drop();
        return this.#fetch(wanted, controller.signal);
      });
      if (controller.signal.aborted) return void ready.model.unload();
      const before = this.current.peek();
      if (before && this.#accepts(before) && !this.#accepts(ready)) {
        this.pending.value = undefined;
        this.refused.value = ready;
        await ready.model.unload();
        return void refreshCached();
      }
      this.current.value = ready;
      this.pending.value = undefined;
      const { token: _, ...options } = wanted.options;
      this.lastRequest.value = typeof wanted.source === "string" ? { ...wanted, options } : null;
      announce(LOAD.done(wanted.label));
      await before?.model.unload();
      void refreshCached();
    } catch (thrown) {
      if (!controller.signal.aborted) this.pending.value = { wanted, error: asError(thrown) };
    }
  }

  /** Resolves when no load is running. */
  settled(): Promise<void> {
    return new Promise((resolve) => {
      const stop = effect(() => {
        if (this.pending.value && !this.pending.value.error) return;
        resolve();
        queueMicrotask(() => stop());
      });
    });
  }

  /** Cancels the running load, or dismisses its failure; downloaded parts stay cached. */
  cancel(): void {
    this.#loading?.abort();
    this.pending.value = undefined;
    announce(LOAD.cancelled);
  }

  /** Hides the notice about a refused model. */
  dismiss(): void {
    this.refused.value = undefined;
  }

  async #drop(): Promise<void> {
    const before = this.current.peek();
    this.current.value = undefined;
    await before?.model.unload();
  }

  async #fetch(wanted: LoadRequest, signal: AbortSignal): Promise<ReadyModel> {
    let fetched = false;
    let shown = { phase: "", at: 0 };
    const onProgress = (progress: LoadProgress): void => {
      if (signal.aborted) return;
      if (progress.phase === "weights" && progress.loaded > 0 && !progress.fromCache) fetched = true;
      // Limited to a readable rate.
      const at = performance.now();
      if (shown.phase === progress.phase && at - shown.at < 100) return;
      shown = { phase: progress.phase, at };
      this.pending.value = { wanted, progress };
    };
    const model = await loadModel(wanted.source, { ...this.more(), ...wanted.options, onProgress, signal });
    const reads = await model.tokenize("a").then(
      () => true,
      () => false,
    );
    return { wanted, model, fromCache: !fetched, reads };
  }
}
