/** Deadlines of Web APIs that may never answer. docs/limits.md lists them with those of crate/js (WebGPU, stores). */

import { aborted } from "./errors.js";

/** Until a worker must have started; then this thread is used. */
export const WORKER_START_TIMEOUT_MS = 20_000;
/** Until a worker must hold the lock that shows that it lives; then pings do. */
export const WORKER_LOCK_TIMEOUT_MS = 1000;
/** Between two pings of a worker that runs a call. */
export const WORKER_PING_MS = 10_000;
/** Pings without any message after which a worker counts as dead. Pings, not time: a sleeping machine sends none. */
export const WORKER_MAX_PINGS = 12;
/** Until an unloaded model must have stopped its calls; then they are rejected and the worker is terminated. */
export const CLOSE_TIMEOUT_MS = 2000;
/** Until an aborted load must have stopped by itself. */
export const ABORT_TIMEOUT_MS = 700;
/** Until the Web Locks API must answer a request that does not wait. */
export const LOCK_TIMEOUT_MS = 5000;
/** Until `navigator.storage`, the Cache API or IndexedDB must answer a question about what is stored. */
export const STORAGE_TIMEOUT_MS = 10_000;
/** Until the package's wasm file or one of its scripts must have been loaded; a slow connection needs a minute for 1.2 MB. */
export const ASSET_TIMEOUT_MS = 180_000;
/** Without a byte of a file that the page fetches itself: images, and the weights of the voice activity detector. */
export const FETCH_STALL_MS = 30_000;
/** Until the browser must have decoded an image, or given a frame of an element. */
export const IMAGE_TIMEOUT_MS = 30_000;
/** Until the browser must have decoded or resampled audio: minutes of it in seconds. */
export const AUDIO_TIMEOUT_MS = 120_000;

/** The answer of `api`, or an error that names it after the deadline; `late` takes an answer after that. */
export function withTimeout<T>(ms: number, api: string, promise: Promise<T>, late?: (answer: T) => void): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new Error(`${api} did not answer for ${ms / 1000} seconds`));
      promise.then(late, () => {});
    }, ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** The result of `promise`; if it has not settled `ms` after an abort, rejects with code `aborted`. */
export function untilAborted<T>(ms: number, what: string, signal: AbortSignal | undefined, promise: Promise<T>): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const abort = (): void => void (timer = setTimeout(() => reject(aborted(what)), ms));
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => {
      clearTimeout(timer);
      signal.removeEventListener("abort", abort);
    });
  });
}

/** The result of `prepare`, such as a download for a call. The wait ends with the caller's abort, and when the model is unloaded. */
export async function untilEnded<T>(ending: AbortSignal, what: string, signal: AbortSignal | undefined, prepare: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const ends = signal ? AbortSignal.any([signal, ending]) : ending;
  try {
    return await untilAborted(0, what, ends, prepare(ends));
  } catch (thrown) {
    throw ending.aborted && !signal?.aborted ? ending.reason : thrown;
  }
}

/** A listener of the caller whose exceptions are reported like those of an event listener and affect nothing else. */
export function isolated<E>(listener: ((event: E) => void) | undefined): ((event: E) => void) | undefined {
  return listener && ((event) => {
    try {
      listener(event);
    } catch (thrown) {
      (globalThis.reportError ?? console.error)(thrown);
    }
  });
}
