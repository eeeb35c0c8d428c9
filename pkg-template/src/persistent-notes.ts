/** Notes in localStorage that survive a crashed page, and locks between tabs. */

import { aborted } from "./errors.js";
import { LOCK_TIMEOUT_MS } from "./waits.js";

/** The methods of `localStorage` that notes use. */
export interface NoteStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

const PREFIX = "jerboa:";

/**
 * Small records by name. `available` is false when storage is unavailable, as in private windows or workers; then each visit
 * starts fresh.
 */
export class Notes {
  readonly available: boolean;
  readonly #store: NoteStore | undefined;

  constructor(store: NoteStore | undefined = browserStore()) {
    this.#store = store;
    this.available = store !== undefined;
  }

  /** Reads a record; undefined if it is missing or invalid. */
  read<T>(name: string): T | undefined {
    try {
      const text = this.#store?.getItem(PREFIX + name);
      return text ? (JSON.parse(text) as T) : undefined;
    } catch {
      return undefined;
    }
  }

  /** Writes a record; returns whether it was stored. */
  write(name: string, record: unknown): boolean {
    try {
      this.#store?.setItem(PREFIX + name, JSON.stringify(record));
      return this.available;
    } catch {
      return false;
    }
  }

  remove(name: string): void {
    try {
      this.#store?.removeItem(PREFIX + name);
    } catch {
      // A record that cannot be removed cannot be read either.
    }
  }
}

function browserStore(): NoteStore | undefined {
  try {
    const { localStorage: store } = globalThis;
    // Some browsers expose a store that refuses every write.
    store.setItem(PREFIX, "");
    store.removeItem(PREFIX);
    return store;
  } catch {
    return undefined;
  }
}

/** Undo actions of running operations: a page that closes normally runs them, a crashed page cannot. */
const undo = new Set<() => void>();
let listening = false;

/** Registers `back` to run if the page closes normally before the returned function is called. */
export function undoUnlessDone(back: () => void): () => void {
  if (!listening && typeof addEventListener === "function") {
    listening = true;
    addEventListener("pagehide", () => undo.forEach((one) => one()));
  }
  undo.add(back);
  return () => void undo.delete(back);
}

/** Maximum milliseconds until another tab's last note is visible here. */
const MAX_NOTE_DELAY_MS = 1000;

/** Waits while `underWay` returns true, up to `LATE`: another tab's final note may arrive late. */
export async function waitWhile(underWay: () => boolean): Promise<void> {
  for (let waited = 0; waited < MAX_NOTE_DELAY_MS && underWay(); waited += 50) await new Promise((later) => setTimeout(later, 50));
}

/**
 * Runs `action` with a lock of this name across tabs; it receives false if another tab has the lock. Then a note "in
 * progress" may belong to that tab and does not mean a crash. The browser releases the lock when the page ends.
 */
export async function ifOnlyTab<T>(name: string, action: (alone: boolean) => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    let begun = false;
    const run = async (alone: boolean): Promise<void> => {
      if (begun) return;
      begun = true;
      await action(alone).then(resolve, reject);
    };
    tryLock(PREFIX + name, (lock) => run(lock !== null)).catch(() => run(true));
  });
}

/** Requests a lock if it is free. Rejects if the API is missing, forbidden or does not answer; `run` may be called later all the same. */
function tryLock(name: string, run: (lock: Lock | null) => Promise<unknown>): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("navigator.locks.request() did not answer")), LOCK_TIMEOUT_MS);
    const granted = (lock: Lock | null): Promise<unknown> => {
      clearTimeout(timer);
      return run(lock);
    };
    (async () => navigator.locks.request(name, { ifAvailable: true }, granted))().then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Milliseconds without progress after which the holder of a lock counts as stuck. */
const MAX_SILENCE_MS = 60_000;

/** Signs of progress of the tab that holds a lock, for those that wait for it. */
class Heartbeat {
  readonly #channel: BroadcastChannel | undefined;
  readonly #interval: number;
  #sent = 0;
  #heard = Date.now();

  constructor(name: string, maxSilence: number) {
    this.#interval = maxSilence / 12;
    try {
      this.#channel = new BroadcastChannel(name);
      this.#channel.onmessage = () => (this.#heard = Date.now());
    } catch {
      // Without channels the holder counts as silent.
    }
  }

  send(): void {
    if (Date.now() - this.#sent < this.#interval) return;
    this.#sent = Date.now();
    try {
      this.#channel?.postMessage("alive");
    } catch {
      // Then those that wait take this tab for stuck.
    }
  }

  /** Calls `silent` once nothing was heard for `maxSilence` milliseconds; returns what ends the watch. */
  watch(maxSilence: number, silent: () => void): () => void {
    this.#heard = Date.now();
    const timer = setInterval(() => Date.now() - this.#heard > maxSilence && silent(), this.#interval);
    return () => clearInterval(timer);
  }

  close(): void {
    try {
      this.#channel?.close();
    } catch {
      // The browser closes it with the page.
    }
  }
}

/**
 * Runs `action` once no other tab runs one of this name; calls `waiting` if that is not immediate. The lock is held
 * until `rest` settles, which the caller does not wait for. `action` calls `alive` when it progresses: a tab that stays
 * silent for `maxSilence` milliseconds is not waited for any longer.
 */
export async function withLock<T>(
  name: string,
  signal: AbortSignal | undefined,
  waiting: () => void,
  action: (alive: () => void) => Promise<T>,
  rest: (value: T) => Promise<unknown>,
  maxSilence = MAX_SILENCE_MS,
): Promise<T> {
  const heartbeat = new Heartbeat(PREFIX + name, maxSilence);
  return new Promise((resolve, reject) => {
    let begun = false;
    const turn = async (): Promise<true> => {
      // A lock that comes too late is released.
      if (begun) return true;
      begun = true;
      await action(() => heartbeat.send()).then(async (value) => (resolve(value), rest(value)), reject);
      return true;
    };
    const ask = async (): Promise<unknown> => {
      if (await tryLock(PREFIX + name, async (lock) => lock && turn())) return;
      waiting();
      const patience = new AbortController();
      const end = (): void => patience.abort(signal?.reason);
      signal?.addEventListener("abort", end, { once: true });
      const unwatch = heartbeat.watch(maxSilence, end);
      try {
        // An answer without a call of the function grants nothing.
        return (await navigator.locks.request(PREFIX + name, { signal: patience.signal }, () => (unwatch(), turn()))) ?? turn();
      } finally {
        unwatch();
        signal?.removeEventListener("abort", end);
      }
    };
    // Without the API, or if its holder is stuck, tabs load on their own.
    void ask()
      .catch((): unknown => (signal?.aborted ? reject(aborted("Loading the model")) : turn()))
      .finally(() => heartbeat.close());
  });
}
