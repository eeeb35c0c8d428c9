/** Calls that may have to be run again from their beginning: they tell only what was not told before. Does not know why they are run again. */

import type { EngineSpeakOptions, GenerationEvent, HeardEvent, PartialEvent } from "./contract.js";
import { JerboaError } from "./errors.js";
import type { Method } from "./host.js";

/** What stands between a call and whom it tells. */
export interface Retelling {
  /** The call's arguments, such that all runs come to the same. */
  given(args: unknown[]): unknown[];
  /** The next run begins. */
  again(): void;
  /** Hears an event of the run under way. */
  hear(event: unknown): void;
  /** Call it at the end of a run. @throws {@link JerboaError} `device_lost` when it contradicts what was told. */
  end(): void;
}

/** For a call that tells on its way; undefined for the others. */
export function retelling(method: Method, tell: (event: never) => void): Retelling | undefined {
  if (method === "generate") return new Replay(tell);
  if (method === "speak") return new Sound(tell as (event: Float32Array) => void);
  return method === "transcribe" ? new Stretches(tell as (event: unknown) => void) : undefined;
}

const seed = (): number => Math.floor(Math.random() * 2 ** 48);
const contradicted = (): JerboaError => new JerboaError("device_lost", "The GPU device was lost, and after that the same request came out otherwise. Send it again.");

/** What was told of one generation, and what a later run of it has told so far. */
class Replay implements Retelling {
  /** The seed of all runs where the request has none, so that they draw the same tokens. */
  readonly #seed = seed();
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

  given([request, session]: unknown[]): unknown[] {
    return [request, session, this.#seed];
  }

  again(): void {
    this.#at = 0;
    this.#run = "";
  }

  hear(event: unknown): void {
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
  }

  end(): void {
    if (this.#broken) throw contradicted();
  }
}

/** Of so many samples one is kept, to know a second run by. */
const KEPT = 89;
/** How far a sample of a second run may be from that of the first: it was decoded among others. */
const NEAR = 1e-2;

/** A speech: samples that were told are left out. */
class Sound implements Retelling {
  readonly #seed = seed();
  readonly #kept: number[] = [];
  #told = 0;
  #at = 0;
  #broken = false;

  constructor(readonly tell: (samples: Float32Array) => void) {}

  given([request]: unknown[]): unknown[] {
    const { seed: asked, ...rest } = request as EngineSpeakOptions;
    return [{ ...rest, seed: asked ?? this.#seed }];
  }

  again(): void {
    this.#at = 0;
  }

  hear(event: unknown): void {
    const samples = event as Float32Array;
    for (let i = Math.ceil(this.#at / KEPT); i * KEPT < this.#at + samples.length; i++) {
      const sample = samples[i * KEPT - this.#at]!;
      this.#broken ||= Math.abs((this.#kept[i] ??= sample) - sample) > NEAR;
    }
    const fresh = samples.subarray(Math.max(0, this.#told - this.#at));
    this.#at += samples.length;
    if (this.#broken || fresh.length === 0) return;
    this.#told = this.#at;
    this.tell(fresh);
  }

  end(): void {
    if (this.#broken) throw contradicted();
  }
}

/** What was heard: stretches come in the same order, and those that were told are left out, with the partial texts before them. */
class Stretches implements Retelling {
  #told = 0;
  #at = 0;

  constructor(readonly tell: (event: unknown) => void) {}

  given(args: unknown[]): unknown[] {
    return args;
  }

  again(): void {
    this.#at = 0;
  }

  hear(event: unknown): void {
    const settled = !("stable" in (event as HeardEvent | PartialEvent));
    const known = this.#at < this.#told;
    if (settled) this.#told = Math.max(this.#told, ++this.#at);
    if (!known) this.tell(event);
  }

  end(): void {}
}
