/** What the hooks share: a lazily loaded model, and one call at a time that ends with its component. */

import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { JerboaError, type LoadProgress, type Model } from "../index.js";
import { type LazyModel, type LazySource, type LoadState, sharedModel, type SharedLoadOptions } from "../integrations/lazy-model.js";

/** Options of hooks that load a model: those of `loadModel`, and when to load. */
export interface ModelOptions extends SharedLoadOptions {
  /** Loads the model when the component mounts instead of with the first call. */
  preload?: boolean;
}

/** `loading` while the model loads for a call or `preload`, `running` until the call ends, `error` while `error` is set. */
export type CallStatus = "ready" | "loading" | "running" | "error";

/** What every hook returns about its model and its call. */
export interface CallState {
  status: CallStatus;
  /** Why the last call or the model's load failed. */
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
    lazy.start().catch(() => {});
    return release;
  }, [lazy, enabled]);
}

/** A call of a model: `run` loads it and works, one call at a time. It resolves with undefined if the call is stopped or fails; work that passes `onStop` how it finishes may resolve after a stop. */
export interface Call extends CallState {
  run: <T>(work: (model: Model, signal: AbortSignal, onStop: (finish: () => void) => void) => Promise<T>) => Promise<T | undefined>;
  /** Ends the call at once. */
  abort: () => void;
}

/** Where the last call stands, and the model that it is for. */
interface LastCall {
  lazy?: LazyModel;
  status: CallStatus;
  error?: JerboaError;
}

const NO_CALL: LastCall = { status: "ready" };

/** Whether calls of one model go on with the other. Components may create a function with every render. */
function isAlike(one: LazyModel | undefined, other: LazyModel): boolean {
  return one === other || (typeof one?.source === "function" && typeof other.source === "function" && String(one.source) === String(other.source));
}

/** Runs calls of a model; a new one, `stop`, another model and the end of the component stop the last. */
export function useCall(source: LazySource, options: ModelOptions = {}): Call {
  const { lazy, state } = useLazyModel(source, options);
  const [last, setLast] = useState(NO_CALL);
  const running = useRef<AbortController>(undefined);
  const finishing = useRef<() => void>(undefined);
  const mounted = useRef<LazyModel>(undefined);
  const preload = options.preload === true;
  useLoad(lazy, preload);
  const abort = useCallback(() => {
    running.current?.abort();
    running.current = finishing.current = undefined;
    setLast((last) => (last.status === "loading" || last.status === "running" ? NO_CALL : last));
  }, []);
  useEffect(() => {
    mounted.current = lazy;
    return () => {
      mounted.current = undefined;
      const ending = running.current;
      // React mounts a component again in the same turn under StrictMode.
      setTimeout(() => {
        if (ending && running.current === ending && !(mounted.current && isAlike(lazy, mounted.current))) abort();
      });
    };
  }, [lazy, abort]);
  const stop = useCallback(() => {
    const finish = finishing.current;
    finishing.current = undefined;
    if (finish) finish();
    else abort();
  }, [abort]);
  const run = useCallback(
    async <T,>(work: (model: Model, signal: AbortSignal, onStop: (finish: () => void) => void) => Promise<T>): Promise<T | undefined> => {
      running.current?.abort();
      const controller = new AbortController();
      running.current = controller;
      finishing.current = undefined;
      const { signal } = controller;
      const isCurrent = (): boolean => running.current === controller;
      const release = lazy.retain();
      setLast({ lazy, status: lazy.state.status === "ready" ? "running" : "loading" });
      try {
        const model = await lazy.load(signal);
        if (isCurrent()) setLast({ lazy, status: "running" });
        const made = await work(model, signal, (finish) => void (finishing.current = finish));
        if (isCurrent()) setLast(NO_CALL);
        return signal.aborted ? undefined : made;
      } catch (thrown) {
        if (!signal.aborted && isCurrent()) setLast({ lazy, status: "error", error: JerboaError.from(thrown) });
        return undefined;
      } finally {
        release();
        if (isCurrent()) running.current = finishing.current = undefined;
      }
    },
    [lazy],
  );
  const { status, error } = isAlike(last.lazy, lazy) ? last : NO_CALL;
  const shown = status !== "ready" ? status : state.error ? "error" : preload && state.status === "loading" ? "loading" : "ready";
  return { status: shown, error: shown === "error" ? (error ?? state.error) : undefined, progress: state.progress, model: state.model, stop, run, abort };
}
