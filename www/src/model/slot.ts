/** The model of a tab, and the one that is to take its place. Does not know what the tab does with it. */

import { computed, signal, type Signal } from "@preact/signals";
import { loadModel, type JerboaError, type LoadOptions, type LoadProgress, type Model } from "jerboa";
import { asError } from "../errors";
import { stored } from "../prefs";
import { announce } from "../ui/announce";
import { refreshCached } from "./cached";

/** What is to be loaded, and how. */
export interface Wanted {
  /** A repository, an address, or files. */
  source: string | File[];
  /** How it is called on the page. */
  label: string;
  options: Pick<LoadOptions, "token" | "revision" | "endpoint" | "maxContext" | "weights" | "embeddingWeights" | "kv">;
}

/** A model that is ready. */
export interface Ready {
  wanted: Wanted;
  model: Model;
  fromCache: boolean;
  /** False where its files hold no tokenizer. */
  reads: boolean;
}

/** A model on its way, or one that could not be loaded. */
export interface Pending {
  wanted: Wanted;
  progress?: LoadProgress;
  error?: JerboaError;
}

const isWanted = (v: unknown): v is Wanted | null =>
  v === null || (typeof v === "object" && typeof (v as Wanted).source === "string" && typeof (v as Wanted).label === "string" && typeof (v as Wanted).options === "object");

/** What a load that fails leaves too little room for while the old model is there. */
const CROWDED: ReadonlySet<string> = new Set(["out_of_memory", "device_lost"]);

export class ModelSlot {
  /** The model that works. */
  readonly current = signal<Ready | undefined>(undefined);
  /** The one that is to take its place. */
  readonly pending = signal<Pending | undefined>(undefined);
  readonly model = computed(() => this.current.value?.model);
  /** The model that was chosen last, without its token; the files of one that was picked are gone after a reload. */
  readonly remembered: Signal<Wanted | null>;
  #loading: AbortController | undefined;

  readonly #more: () => LoadOptions;

  /** `more` are the tab's own options of every load. */
  constructor(name: string, more: LoadOptions | (() => LoadOptions) = {}) {
    this.#more = typeof more === "function" ? more : () => more;
    this.remembered = stored<Wanted | null>(`${name}.model`, null, isWanted);
  }

  /** Whether nothing is there and nothing on its way. */
  get idle(): boolean {
    return !this.current.peek() && !this.pending.peek();
  }

  /** Loads a model. What is there works on until the new one is ready, unless both together do not fit. */
  async load(wanted: Wanted): Promise<void> {
    this.#loading?.abort();
    const controller = new AbortController();
    this.#loading = controller;
    this.pending.value = { wanted };
    announce(`Loading ${wanted.label}.`);
    try {
      const ready = await this.#fetch(wanted, controller.signal).catch(async (thrown: unknown) => {
        if (!CROWDED.has(asError(thrown).code) || !this.current.peek() || controller.signal.aborted) throw thrown;
        await this.#drop();
        return this.#fetch(wanted, controller.signal);
      });
      if (controller.signal.aborted) return void ready.model.unload();
      const before = this.current.peek();
      this.current.value = ready;
      this.pending.value = undefined;
      const { token: _, ...options } = wanted.options;
      this.remembered.value = typeof wanted.source === "string" ? { ...wanted, options } : null;
      announce(`${wanted.label} is ready.`);
      await before?.model.unload();
      void refreshCached();
    } catch (thrown) {
      if (!controller.signal.aborted) this.pending.value = { wanted, error: asError(thrown) };
    }
  }

  /** Aborts the load that is under way, or puts its failure away; downloaded parts stay cached. */
  cancel(): void {
    this.#loading?.abort();
    this.pending.value = undefined;
    announce("Loading was stopped.");
  }

  async #drop(): Promise<void> {
    const before = this.current.peek();
    this.current.value = undefined;
    await before?.model.unload();
  }

  async #fetch(wanted: Wanted, signal: AbortSignal): Promise<Ready> {
    let fetched = false;
    let shown = { phase: "", at: 0 };
    const onProgress = (progress: LoadProgress): void => {
      if (signal.aborted) return;
      if (progress.phase === "weights" && progress.loaded > 0 && !progress.fromCache) fetched = true;
      // As often as an eye can follow.
      const at = performance.now();
      if (shown.phase === progress.phase && at - shown.at < 100) return;
      shown = { phase: progress.phase, at };
      this.pending.value = { wanted, progress };
    };
    const model = await loadModel(wanted.source, { ...this.#more(), ...wanted.options, onProgress, signal });
    const reads = await model.tokenize("a").then(
      () => true,
      () => false,
    );
    return { wanted, model, fromCache: !fetched, reads };
  }
}
