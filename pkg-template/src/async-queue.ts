/** A queue of values from a running call, exposed as an async iterable. */

import { JerboaError } from "./errors.js";

/** Values from a running call; leaving the loop stops it. */
export class AsyncQueue<T> implements AsyncIterable<T> {
  readonly #values: T[] = [];
  readonly #controller = new AbortController();
  #wake: (() => void) | undefined;
  #over = false;
  #error: unknown;

  /** `start` pushes values until its promise settles. */
  constructor(start: (push: (value: T) => void, signal: AbortSignal) => Promise<void>, signal?: AbortSignal) {
    const given = signal ? AbortSignal.any([signal, this.#controller.signal]) : this.#controller.signal;
    const push = (value: T): void => {
      this.#values.push(value);
      this.#wake?.();
    };
    start(push, given)
      .catch((thrown: unknown) => {
        const error = JerboaError.from(thrown);
        // A caller who aborted does not need the abort error.
        if (!(this.#controller.signal.aborted && error.code === "aborted")) this.#error = error;
      })
      .finally(() => {
        this.#over = true;
        this.#wake?.();
      });
  }

  /** Stops the call; values already received stay readable. */
  abort(): void {
    this.#controller.abort();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    try {
      for (;;) {
        while (this.#values.length > 0) yield this.#values.shift()!;
        if (this.#over) break;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
      if (this.#error) throw this.#error;
    } finally {
      if (!this.#over) this.abort();
    }
  }
}
