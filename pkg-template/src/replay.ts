/** A generation that may have to be run again from its beginning: it tells only what was not told before. Does not know why it is run again. */

import type { GenerationEvent } from "./contract.js";
import { JerboaError } from "./errors.js";

/** What was told of one generation, and what a later run of it has told so far. */
export class Replay {
  /** The seed of all runs where the request has none, so that they draw the same tokens. */
  readonly seed = Math.floor(Math.random() * 2 ** 48);
  readonly #tell: (event: GenerationEvent) => void;
  /** Told to the caller. */
  #ids: number[] = [];
  #text = "";
  /** Of the run under way. */
  #at = 0;
  #run = "";
  /** Whether a later run gave other tokens than were told. */
  #broken = false;

  constructor(tell: (event: never) => void) {
    this.#tell = tell as (event: GenerationEvent) => void;
  }

  /** The next run begins. */
  again(): void {
    this.#at = 0;
    this.#run = "";
  }

  /** Hears an event of the run under way. */
  readonly hear = (event: unknown): void => {
    const { text, ids, logprobs, ...rest } = event as GenerationEvent;
    const old = this.#ids.slice(this.#at, this.#at + ids.length);
    this.#broken ||= old.some((id, i) => id !== ids[i]);
    if (this.#broken) return;
    this.#at += ids.length;
    this.#run += text;
    const fresh = ids.slice(old.length);
    const more = this.#run.slice(this.#text.length);
    if (fresh.length === 0 && more === "") {
      if (old.length === 0) this.#tell(event as GenerationEvent);
      return;
    }
    this.#ids.push(...fresh);
    this.#text += more;
    this.#tell({ ...rest, text: more, ids: fresh, ...(logprobs ? { logprobs: logprobs.slice(old.length) } : {}) });
  };

  /** Call it at the end of a run. @throws {@link JerboaError} `device_lost` when it contradicts what was told. */
  end(): void {
    if (this.#broken) throw new JerboaError("device_lost", "The GPU device was lost, and after that the same request gave other tokens. Send it again.");
  }
}
