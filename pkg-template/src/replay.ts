/** Repeats calls after a lost device; emits only the events that were not delivered before. */

import type { EngineSpeakOptions, GenerationEvent, HeardEvent, PartialEvent } from "./contract.js";
import { JerboaError } from "./errors.js";
import type { Method } from "./host.js";

/** Filters the events of a call that may run again. */
export interface Retelling {
  /** The call's arguments, fixed so that all runs give the same result. */
  given(args: unknown[]): unknown[];
  /** Starts the next run. */
  again(): void;
  /** Takes an event of the current run. */
  hear(event: unknown): void;
  /** Call it at the end of a run. @throws {@link JerboaError} `device_lost` if the run contradicts delivered events. */
  end(): void;
}

/** The filter of a call with events; undefined for other calls. */
export function retelling(method: Method, tell: (event: never) => void): Retelling | undefined {
  if (method === "generate") return new Replay(tell);
  if (method === "speak") return new Sound(tell as (event: Float32Array) => void);
  return method === "transcribe" ? new Stretches(tell as (event: unknown) => void) : undefined;
}

const seed = (): number => Math.floor(Math.random() * 2 ** 48);
const contradicted = (): JerboaError => new JerboaError("device_lost", "The GPU device was lost, and repeating the request gave a different result. Send the request again.");

/** Compares a repeated generation with what was already delivered. */
class Replay implements Retelling {
  /** The seed of all runs when the request has none, so that they sample the same tokens. */
  readonly #seed = seed();
  readonly #tell: (event: GenerationEvent) => void;
  /** Ids delivered to the caller. */
  #ids: number[] = [];
  #text = "";
  /** Position in the current run. */
  #at = 0;
  #run = "";
  /** Whether a later run produced different tokens. */
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

/** One of this many samples is kept, to compare a second run. */
const KEPT = 89;
/** Tolerance between samples of two runs: batching can change the rounding. */
const NEAR = 1e-2;

/** Filters a repeated speech synthesis: samples already delivered are dropped. */
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

/**
 * Filters a repeated transcription: segments arrive in the same order; delivered ones and their partial texts are
 * dropped.
 */
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
