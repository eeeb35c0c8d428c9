/** Values that come one by one from a call, read as they come. Knows a queue; not what the values are. */

import { JerboaError } from "./errors.js";

/** Values on their way; leaving its loop stops what makes them. */
export class Flow<T> implements AsyncIterable<T> {
  readonly #values: T[] = [];
  readonly #controller = new AbortController();
  #wake: (() => void) | undefined;
  #over = false;
  #error: unknown;

  /** `start` hands values over until its promise settles. */
  constructor(start: (push: (value: T) => void, signal: AbortSignal) => Promise<void>, signal?: AbortSignal) {
    const given = signal ? AbortSignal.any([signal, this.#controller.signal]) : this.#controller.signal;
    const push = (value: T): void => {
      this.#values.push(value);
      this.#wake?.();
    };
    start(push, given)
      .catch((thrown: unknown) => {
        const error = JerboaError.from(thrown);
        // Who stopped it does not want to hear of it.
        if (!(this.#controller.signal.aborted && error.code === "aborted")) this.#error = error;
      })
      .finally(() => {
        this.#over = true;
        this.#wake?.();
      });
  }

  /** Stops it; what has come stays. */
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
