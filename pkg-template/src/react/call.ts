/** What the hooks share: a lazily loaded model, and one call at a time that ends with its component. */

import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { JerboaError, type LoadProgress, type Model } from "../index.js";
import { type LazyModel, type LazySource, type LoadState, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";

/** Options of hooks that load a model: those of `loadModel`, and when to load. */
export interface ModelOptions extends SharedLoadOptions {
  /** Loads the model when the component mounts instead of with the first call. */
  preload?: boolean;
}

/** `loading` while the model loads for a call, `running` until the call ends. */
export type CallStatus = "ready" | "loading" | "running" | "error";

/** What every hook returns about its model and its call. */
export interface CallState {
  status: CallStatus;
  /** Why the last call failed. */
  error: JerboaError | undefined;
  /** Progress of the model's load. */
  progress: LoadProgress | undefined;
  /** The model, once it is loaded. */
  model: Model | undefined;
  /** Stops the call; its output so far remains. A microphone's last utterance is transcribed first; a second call drops it. */
  stop: () => void;
}

const IDLE: LoadState = { status: "idle" };

/** The lazy model of a source and its state. */
export function useLazyModel(source: LazySource, { preload: _, ...options }: ModelOptions): { lazy: LazyModel; state: LoadState } {
  const lazy = sharedModel(source, options);
  const subscribe = useCallback((listener: () => void) => lazy.subscribe(listener), [lazy]);
  const state = useSyncExternalStore(subscribe, () => lazy.state, () => IDLE);
  return { lazy, state };
}

/** Loads the model while the component is there; a load that no component waits for is cancelled. */
export function useLoad(lazy: LazyModel, enabled: boolean): void {
  useEffect(() => {
    if (!enabled) return;
    const release = lazy.retain();
    // The state tells the failure.
    lazy.load().catch(() => {});
    return release;
  }, [lazy, enabled]);
}

/** A call of a model: `run` loads it and works, one call at a time. It resolves with undefined if the call is stopped or fails; work that passes `onStop` how it finishes may resolve after a stop. */
export interface Call extends CallState {
  run: <T>(work: (model: Model, signal: AbortSignal, onStop: (finish: () => void) => void) => Promise<T>) => Promise<T | undefined>;
}

/** Runs calls of a model; a new one, `stop` and the end of the component stop the last. */
export function useCall(source: LazySource, options: ModelOptions = {}): Call {
  const { lazy, state } = useLazyModel(source, options);
  const [call, setCall] = useState<{ status: CallStatus; error?: JerboaError }>({ status: "ready" });
  const running = useRef<AbortController>(undefined);
  const finishing = useRef<() => void>(undefined);
  useLoad(lazy, options.preload === true);
  useEffect(() => () => running.current?.abort(), []);
  const stop = useCallback(() => {
    const finish = finishing.current;
    finishing.current = undefined;
    if (finish) return finish();
    running.current?.abort();
    running.current = undefined;
    setCall(({ status, ...rest }) => (status === "loading" || status === "running" ? { status: "ready" } : { status, ...rest }));
  }, []);
  const run = useCallback(
    async <T,>(work: (model: Model, signal: AbortSignal, onStop: (finish: () => void) => void) => Promise<T>): Promise<T | undefined> => {
      running.current?.abort();
      const controller = new AbortController();
      running.current = controller;
      finishing.current = undefined;
      const { signal } = controller;
      const isCurrent = (): boolean => running.current === controller;
      const release = lazy.retain();
      setCall({ status: lazy.state.status === "ready" ? "running" : "loading" });
      try {
        const model = await lazy.load(signal);
        if (isCurrent()) setCall({ status: "running" });
        const made = await work(model, signal, (finish) => void (finishing.current = finish));
        if (isCurrent()) setCall({ status: "ready" });
        return signal.aborted ? undefined : made;
      } catch (thrown) {
        if (!signal.aborted && isCurrent()) setCall({ status: "error", error: JerboaError.from(thrown) });
        return undefined;
      } finally {
        release();
        if (isCurrent()) running.current = finishing.current = undefined;
      }
    },
    [lazy],
  );
  return { status: call.status, error: call.error ?? state.error, progress: state.progress, model: state.model, stop, run };
}
