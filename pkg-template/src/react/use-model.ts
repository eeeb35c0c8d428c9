/** `useModel`: a model for a component, with or without Suspense. */

import { useCallback } from "react";
import { JerboaError, type LoadProgress, type Model } from "../index.js";
import { type LazySource, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";
import { useLazyModel, useLoad } from "./call.js";

/** Options of {@link useModel}: those of `loadModel`, and how to wait. */
export interface UseModelOptions extends SharedLoadOptions {
  /** False loads the model only on `load()`, for example from a button. True by default. */
  preload?: boolean;
  /** Suspends the component until the model is ready, and throws a failure to the error boundary. */
  suspense?: boolean;
}

/** What {@link useModel} returns. */
export interface UseModelResult<M = Model | undefined> {
  model: M;
  status: "idle" | "loading" | "ready" | "error";
  progress: LoadProgress | undefined;
  error: JerboaError | undefined;
  /** Loads the model, or tries again after a failure. */
  load: () => Promise<Model>;
  /** Frees the model for all components. */
  unload: () => Promise<void>;
}

/**
 * Loads a model. All components that name the same source with the same options share it.
 *
 * ```jsx
 * const { model, progress, error } = useModel("mlx-community/Qwen3-0.6B-4bit");
 * ```
 *
 * Files and functions are compared by identity: create them outside the component.
 */
export function useModel(source: LazySource, options: UseModelOptions & { suspense: true }): UseModelResult<Model>;
export function useModel(source: LazySource, options?: UseModelOptions): UseModelResult;
export function useModel(source: LazySource, { suspense = false, preload = true, ...rest }: UseModelOptions = {}): UseModelResult {
  const { lazy, state } = useLazyModel(source, rest);
  useLoad(lazy, preload && !suspense);
  const load = useCallback(() => lazy.load(), [lazy]);
  const unload = useCallback(() => lazy.unload(), [lazy]);
  if (suspense && !state.model) {
    // React shows the fallback on the server, and renders again in the browser.
    if (typeof document === "undefined") throw new JerboaError("no_webgpu", "useModel: models load in the browser only. Wrap the component in <Suspense>, whose fallback the server renders.");
    if (state.error) throw state.error;
    throw lazy.load();
  }
  return { model: state.model, status: state.status, progress: state.progress, error: state.error, load, unload };
}

/** Starts a load before any component asks for it, or again after a failure. */
export function preloadModel(source: LazySource, options?: SharedLoadOptions): Promise<Model> {
  return sharedModel(source, options).load();
}
