/** `useModel`: a model for a component, with or without Suspense. */

import { useCallback, useEffect, useState } from "react";
import { JerboaError, type LoadProgress, type Model } from "../index.js";
import { type LazyModel, type LazySource, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";
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
  const [asked, ask] = useState<LazyModel>();
  useLoad(lazy, preload && !suspense);
  useEffect(() => (asked === lazy ? lazy.retain() : undefined), [lazy, asked]);
  const load = useCallback(() => {
    ask(lazy);
    return toldByState(lazy.start());
  }, [lazy]);
  const unload = useCallback(() => lazy.unload(), [lazy]);
  if (suspense && !state.model) {
    if (typeof document === "undefined") throw forBrowsersOnly();
    if (state.error) throw state.error;
    throw waitFor(lazy);
  }
  return { model: state.model, status: state.status, progress: state.progress, error: state.error, load, unload };
}

/** Starts a load before any component asks for it, or again after a failure. */
export function preloadModel(source: LazySource, options?: SharedLoadOptions): Promise<Model> {
  return toldByState(sharedModel(source, options).load());
}

/** A load whose failure components show: it is no unhandled rejection if the caller ignores the promise. */
function toldByState(loading: Promise<Model>): Promise<Model> {
  loading.catch(() => {});
  return loading;
}

/**
 * The error that makes React render the nearest fallback on a server, and the component in the browser. Next.js knows
 * the digest and the reason from its own hooks; any other error ends its build.
 */
function forBrowsersOnly(): JerboaError {
  const error = new JerboaError("no_webgpu", "useModel: models load in the browser only. Wrap the component in <Suspense>, whose fallback the server renders.");
  return Object.assign(error, { digest: "BAILOUT_TO_CLIENT_SIDE_RENDERING", reason: "useModel() with 'suspense'" });
}

/** What suspended components wait for. */
const waits = new WeakMap<LazyModel, Promise<unknown>>();

/** Loads the model for a suspended component, whose end React does not tell. */
function waitFor(lazy: LazyModel): Promise<unknown> {
  let wait = waits.get(lazy);
  if (!wait) {
    // Other components that show the load must not change while React renders this one.
    wait = Promise.resolve().then(() => lazy.load()).finally(() => waits.delete(lazy));
    waits.set(lazy, wait);
  }
  return wait;
}
