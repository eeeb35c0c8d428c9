/** Notes that outlive a page that is killed: in localStorage, with whether the page that wrote one still lives. Does not know what is noted. */

/** The part of `localStorage` that notes need. */
export interface NoteStore {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

const PREFIX = "jerboa:";

/** Small records by name. Where nothing can be kept, as in private windows or without a page, `kept` is false and each visit is the first. */
export class Notes {
  readonly kept: boolean;
  readonly #store: NoteStore | undefined;

  constructor(store: NoteStore | undefined = browserStore()) {
    this.#store = store;
    this.kept = store !== undefined;
  }

  /** A record, or nothing where there is none that can be read. */
  read<T>(name: string): T | undefined {
    try {
      const text = this.#store?.getItem(PREFIX + name);
      return text ? (JSON.parse(text) as T) : undefined;
    } catch {
      return undefined;
    }
  }

  /** Writes a record; says whether it is kept. */
  write(name: string, record: unknown): boolean {
    try {
      this.#store?.setItem(PREFIX + name, JSON.stringify(record));
      return this.kept;
    } catch {
      return false;
    }
  }

  remove(name: string): void {
    try {
      this.#store?.removeItem(PREFIX + name);
    } catch {
      // What cannot be removed cannot be read either.
    }
  }
}

function browserStore(): NoteStore | undefined {
  try {
    const { localStorage: store } = globalThis;
    // Some browsers have a store that refuses everything.
    store.setItem(PREFIX, "");
    store.removeItem(PREFIX);
    return store;
  } catch {
    return undefined;
  }
}

/** What is under way in this page: a page that closes or is left takes it back, one that is killed cannot. */
const undo = new Set<() => void>();
let listening = false;

/** Has `back` called if the page goes away in good order before the returned function is called. */
export function untilDone(back: () => void): () => void {
  if (!listening && typeof addEventListener === "function") {
    listening = true;
    addEventListener("pagehide", () => undo.forEach((one) => one()));
  }
  undo.add(back);
  return () => void undo.delete(back);
}

/** Milliseconds after which another tab's last note has certainly come. */
const LATE = 1000;

/** What another tab noted at its end may not have come here yet: waits while `underWay`, as long as that can be. */
export async function caughtUp(underWay: () => boolean): Promise<void> {
  for (let waited = 0; waited < LATE && underWay(); waited += 50) await new Promise((later) => setTimeout(later, 50));
}

/**
 * Runs `action` as the only one of this name in all tabs; elsewhere it gets `false`: what is noted as under way may be another tab's, and
 * no sign of a killed page. The lock ends with the page, however it ends.
 */
export async function alone<T>(name: string, action: (alone: boolean) => Promise<T>): Promise<T> {
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
    if (begun || !denied(thrown)) throw thrown;
    return action(true);
  }
}

/** Whether a Web API refuses this page altogether, as in frames that are sandboxed: it is as good as absent. */
export function denied(thrown: unknown): boolean {
  return (thrown as { name?: unknown } | undefined)?.name === "SecurityError";
}

/**
 * Runs `action` when no other of this name runs in any tab; `waiting` is told when that is not at once. The turn lasts until `rest` of
 * what came is done, which the caller does not wait for.
 */
export async function inTurn<T>(name: string, signal: AbortSignal | undefined, waiting: () => void, action: () => Promise<T>, rest: (value: T) => Promise<unknown>): Promise<T> {
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
    ask().catch((thrown) => (begun || !denied(thrown) ? reject(thrown) : action().then(resolve, reject)));
  });
}
