/** One load of the engine, with the sessions that were made on it. Knows when it may be freed; not why it ends. */

import type { Engine, EngineSession } from "./contract.js";
import { Shown } from "./decode.js";

/** A loaded engine. Once it has ended it is freed, as soon as no call is under way in it: an object of the engine must outlive its calls. */
export class Life {
  readonly engine: Engine;
  /** The pictures that it was shown. */
  readonly shown = new Shown();
  readonly #sessions = new Map<number, EngineSession>();
  #calls = 0;
  #ended = false;

  constructor(engine: Engine) {
    this.engine = engine;
  }

  /** Runs a call of the engine or of one of its sessions. */
  async during<T>(call: () => T | Promise<T>): Promise<T> {
    this.#calls++;
    try {
      return await call();
    } finally {
      this.#calls--;
      this.#freeAtEnd();
    }
  }

  /** A session by its number; none where it was not made in this life. */
  session(id: number): EngineSession | undefined {
    return this.#sessions.get(id);
  }

  /** Keeps a session under a number. */
  keep(id: number, session: EngineSession): void {
    if (this.#ended) session.free();
    else this.#sessions.set(id, session);
  }

  /** Frees a session. */
  dispose(id: number): void {
    this.#sessions.get(id)?.free();
    this.#sessions.delete(id);
  }

  /** No further call will come. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#freeAtEnd();
  }

  #freeAtEnd(): void {
    if (!this.#ended || this.#calls > 0) return;
    for (const session of this.#sessions.values()) session.free();
    this.#sessions.clear();
    this.engine.free();
  }
}
