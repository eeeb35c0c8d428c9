/** The model of a tab: none, on its way, ready or failed. Does not know what the tab does with it. */

import { computed, signal } from "@preact/signals";
import { JerboaError, loadModel, type LoadOptions, type LoadProgress, type Model } from "jerboa";
import { announce } from "../ui/announce";

/** What is to be loaded, and how. */
export interface Wanted {
  /** A repository, an address, or files. */
  source: string | File[];
  /** How it is called on the page. */
  label: string;
  options: Pick<LoadOptions, "token" | "revision" | "endpoint" | "maxContext" | "weights" | "embeddingWeights" | "kv">;
}

export type SlotState =
  | { kind: "empty" }
  | { kind: "loading"; wanted: Wanted; progress: LoadProgress | undefined }
  | { kind: "ready"; wanted: Wanted; model: Model; fromCache: boolean }
  | { kind: "failed"; wanted: Wanted; error: JerboaError };

export class ModelSlot {
  readonly state = signal<SlotState>({ kind: "empty" });
  /** The model, when there is one. */
  readonly model = computed(() => (this.state.value.kind === "ready" ? this.state.value.model : undefined));
  #loading: AbortController | undefined;

  /** Loads a model in the place of what is there. */
  async load(wanted: Wanted): Promise<void> {
    this.#loading?.abort();
    const controller = new AbortController();
    this.#loading = controller;
    const before = this.model.peek();
    this.state.value = { kind: "loading", wanted, progress: undefined };
    announce(`Loading ${wanted.label}.`);
    let fetched = false;
    try {
      // Two models side by side may not fit: the old one goes first.
      await before?.unload();
      const onProgress = (progress: LoadProgress): void => {
        if (controller.signal.aborted) return;
        if (progress.phase === "weights" && progress.loaded > 0 && !progress.fromCache) fetched = true;
        this.state.value = { kind: "loading", wanted, progress };
      };
      const model = await loadModel(wanted.source, { ...wanted.options, onProgress, signal: controller.signal });
      if (controller.signal.aborted) return void model.unload();
      this.state.value = { kind: "ready", wanted, model, fromCache: !fetched };
      announce(`${wanted.label} is ready.`);
    } catch (thrown) {
      if (controller.signal.aborted) return;
      const error = thrown instanceof JerboaError ? thrown : new JerboaError("internal", String(thrown));
      this.state.value = { kind: "failed", wanted, error };
    }
  }

  /** Gives up the load that is under way; what arrived stays in the cache. */
  cancel(): void {
    this.#loading?.abort();
    if (this.state.peek().kind === "loading") this.state.value = { kind: "empty" };
    announce("Loading was stopped.");
  }
}
