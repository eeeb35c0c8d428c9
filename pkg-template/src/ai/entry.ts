/** What all models of the provider share: lazy load, progress, availability. */

import type { JSONObject, SharedV4ProviderOptions } from "@ai-sdk/provider";
import { JerboaError, type LoadProgress, type Model } from "../index.js";
import type { Availability, LazyModel, LoadState } from "../integrations/lazy-model.js";

/** A model of the provider, loaded with its first call. */
export class LazyEntry {
  readonly specificationVersion = "v4";
  readonly provider = "jerboa";
  readonly modelId: string;
  readonly #lazy: LazyModel;

  /** @internal */
  constructor(modelId: string, lazy: LazyModel) {
    this.modelId = modelId;
    this.#lazy = lazy;
  }

  /** Where the load stands. */
  get state(): LoadState {
    return this.#lazy.state;
  }

  /** Loads the model now rather than with the first call. An abort ends the wait; the load goes on for others. */
  async load(options: { onProgress?: ((progress: LoadProgress) => void) | undefined; signal?: AbortSignal | undefined } = {}): Promise<Model> {
    const { onProgress, signal } = options;
    const end = onProgress && this.onProgress(onProgress);
    try {
      return await this.#lazy.load(signal);
    } catch (thrown) {
      if (signal?.aborted) throw signal.reason;
      throw JerboaError.from(thrown);
    } finally {
      end?.();
    }
  }

  /** Calls the listener with every progress event of the load; returns a function that ends this. */
  onProgress(listener: (progress: LoadProgress) => void): () => void {
    return this.#lazy.subscribe(() => {
      const { status, progress } = this.#lazy.state;
      if (status === "loading" && progress) listener(progress);
    });
  }

  /** Whether the model can be used now, after a download, or not here. */
  availability(): Promise<Availability> {
    return this.#lazy.availability();
  }

  /** Frees the model; the next call loads it again. */
  unload(): Promise<void> {
    return this.#lazy.unload();
  }

  /** The options of a call that are Jerboa's own. */
  protected optionsOf(options: SharedV4ProviderOptions | undefined): JSONObject {
    return options?.["jerboa"] ?? {};
  }
}
