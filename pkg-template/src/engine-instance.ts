/** One load of the engine with its sessions; frees them when no call is running. */

import type { Engine, EngineSession } from "./engine-calls.js";
import { ImageRegistry } from "./image-decode.js";

/**
 * A loaded engine. After `end` it is freed as soon as no call is running, since an engine object must outlive its
 * calls.
 */
export class EngineInstance {
  readonly engine: Engine;
  /** The images that this engine has encoded. */
  readonly images = new ImageRegistry();
  readonly #sessions = new Map<number, EngineSession>();
  #calls = 0;
  #ended = false;
  #abandoned = false;

  constructor(engine: Engine) {
    this.engine = engine;
  }

  /** Runs a call of the engine or of one of its sessions. */
  async run<T>(call: () => T | Promise<T>): Promise<T> {
    this.#calls++;
    try {
      return await call();
    } finally {
      this.#calls--;
      this.#freeAtEnd();
    }
  }

  /** The session with this id, if it was created on this engine. */
  session(id: number): EngineSession | undefined {
    return this.#sessions.get(id);
  }

  /** Stores a session under an id. */
  addSession(id: number, session: EngineSession): void {
    if (this.#abandoned) return;
    if (this.#ended) session.free();
    else this.#sessions.set(id, session);
  }

  /** Frees a session. */
  dispose(id: number): void {
    this.#sessions.get(id)?.free();
    this.#sessions.delete(id);
  }

  /** Marks the end: no further calls will start. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#freeAtEnd();
  }

  /** Marks the end without freeing anything: the WebAssembly instance has trapped. */
  abandon(): void {
    this.#ended = true;
    this.#abandoned = true;
    this.#sessions.clear();
  }

  #freeAtEnd(): void {
    if (!this.#ended || this.#abandoned || this.#calls > 0) return;
    for (const session of this.#sessions.values()) session.free();
    this.#sessions.clear();
    this.engine.free();
  }
}
