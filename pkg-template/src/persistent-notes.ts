/** Notes in localStorage that survive a crashed page, and locks between tabs. */

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
 * progress" may belong to that tab and is no sign of a crash. The browser releases the lock when the page ends.
 */
export async function ifOnlyTab<T>(name: string, action: (alone: boolean) => Promise<T>): Promise<T> {
  const locks = globalThis.navigator?.locks;
  if (!locks) return action(true);
  let begun = false;
  const run = (lock: Lock | null): Promise<T> => {
    begun = true;
    return action(lock !== null);
  };
  try {
    return (await locks.request(PREFIX + name, { ifAvailable: true }, run)) as T;
  } catch (thrown) {
    if (begun || !isDenied(thrown)) throw thrown;
    return action(true);
  }
}

/** Whether a Web API is forbidden for this page, as in sandboxed frames; callers treat it as absent. */
export function isDenied(thrown: unknown): boolean {
  return (thrown as { name?: unknown } | undefined)?.name === "SecurityError";
}

/**
 * Runs `action` once no other tab runs one of this name; calls `waiting` if that is not immediate. The lock is held
 * until `rest` settles, which the caller does not wait for.
 */
export async function withLock<T>(name: string, signal: AbortSignal | undefined, waiting: () => void, action: () => Promise<T>, rest: (value: T) => Promise<unknown>): Promise<T> {
  const locks = globalThis.navigator?.locks;
  if (!locks) return action();
  return new Promise((resolve, reject) => {
    let begun = false;
    const turn = async (): Promise<true> => {
      begun = true;
      const value = await action();
      resolve(value);
      await rest(value);
      return true;
    };
    const ask = async (): Promise<unknown> => {
      if (await locks.request(PREFIX + name, { ifAvailable: true }, (lock) => lock && turn())) return;
      waiting();
      return locks.request(PREFIX + name, signal ? { signal } : {}, turn);
    };
    ask().catch((thrown) => (begun || !isDenied(thrown) ? reject(thrown) : action().then(resolve, reject)));
  });
}
