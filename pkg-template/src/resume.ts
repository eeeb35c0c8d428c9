/** Repeats calls after a lost device; emits only the events that were not delivered before. */

import type { AnswerPart, EngineSpeakOptions, GenerationEvent, SegmentEvent, PartialEvent } from "./contract.js";
import { JerboaError } from "./errors.js";
import { attributesOf, type Method } from "./engine-calls.js";

/** Filters the events of a call that may run again. */
export interface ReplayFilter {
  /** The call's arguments, fixed so that all runs give the same result. */
  fixedArgs(args: unknown[]): unknown[];
  /** Starts the next run. */
  restart(): void;
  /** Takes an event of the current run. */
  push(event: unknown): void;
  /** Call it at the end of a run. @throws {@link JerboaError} `device_lost` if the run contradicts delivered events. */
  end(): void;
}

/** The filter of a call with events; undefined for other calls. */
export function replayFilter(method: Method, emit: (event: never) => void): ReplayFilter | undefined {
  switch (attributesOf(method).replay) {
    case "generation":
      return new GenerationReplay(emit);
    case "audio":
      return new AudioReplay(emit as (event: Float32Array) => void);
    case "segments":
      return new SegmentReplay(emit as (event: unknown) => void);
  }
  return undefined;
}

const seed = (): number => Math.floor(Math.random() * 2 ** 48);
const replayMismatch = (): JerboaError => new JerboaError("device_lost", "The GPU device was lost, and repeating the request gave a different result. Send the request again.");

/** Compares a repeated generation with what was already delivered. */
class GenerationReplay implements ReplayFilter {
  /** The seed of all runs when the request has none, so that they sample the same tokens. */
  readonly #seed = seed();
  readonly #emit: (event: GenerationEvent) => void;
  /** Ids delivered to the caller. */
  #ids: number[] = [];
  #text = "";
  /** Length of the delivered parts, and that of the current run. */
  #parts = 0;
  #runParts = 0;
  /** Position in the current run. */
  #at = 0;
  #run = "";
  /** Whether a later run produced different tokens. */
  #broken = false;

  constructor(emit: (event: never) => void) {
    this.#emit = emit as (event: GenerationEvent) => void;
  }

  fixedArgs([request, session]: unknown[]): unknown[] {
    return [request, session, this.#seed];
  }

  restart(): void {
    this.#at = 0;
    this.#run = "";
    this.#runParts = 0;
  }

  push(event: unknown): void {
    const { text, ids, parts, logprobs, ...rest } = event as GenerationEvent;
    const old = this.#ids.slice(this.#at, this.#at + ids.length);
    this.#broken ||= old.some((id, i) => id !== ids[i]);
    if (this.#broken) return;
    this.#at += ids.length;
    this.#run += text;
    const fresh = ids.slice(old.length);
    const more = this.#run.slice(this.#text.length);
    const freshParts = (parts ?? []).flatMap((part) => this.#freshPart(part));
    if (fresh.length === 0 && more === "" && freshParts.length === 0) {
      if (old.length === 0) this.#emit(event as GenerationEvent);
      return;
    }
    this.#ids.push(...fresh);
    this.#text += more;
    this.#emit({ ...rest, text: more, ids: fresh, ...(freshParts.length > 0 ? { parts: freshParts } : {}), ...(logprobs ? { logprobs: logprobs.slice(old.length) } : {}) });
  }

  /** What of a part was not delivered before: part of its text, or all of it, or nothing. */
  #freshPart(part: AnswerPart): AnswerPart[] {
    const length = "text" in part ? part.text.length : 1;
    const known = Math.min(Math.max(this.#parts - this.#runParts, 0), length);
    this.#runParts += length;
    this.#parts = Math.max(this.#parts, this.#runParts);
    if (known === length) return [];
    return ["text" in part ? { ...part, text: part.text.slice(known) } : part];
  }

  end(): void {
    if (this.#broken) throw replayMismatch();
  }
}

/** One of this many samples is stored, to compare a second run. */
const SAMPLE_STRIDE = 89;
/** Tolerance between samples of two runs: batching can change the rounding. */
const SAMPLE_TOLERANCE = 1e-2;

/** Filters a repeated speech synthesis: samples already delivered are dropped. */
class AudioReplay implements ReplayFilter {
  readonly #seed = seed();
  readonly #samples: number[] = [];
  #emitted = 0;
  #at = 0;
  #broken = false;

  constructor(readonly emit: (samples: Float32Array) => void) {}

  fixedArgs([request]: unknown[]): unknown[] {
    const { seed: asked, ...rest } = request as EngineSpeakOptions;
    return [{ ...rest, seed: asked ?? this.#seed }];
  }

  restart(): void {
    this.#at = 0;
  }

  push(event: unknown): void {
    const samples = event as Float32Array;
    for (let i = Math.ceil(this.#at / SAMPLE_STRIDE); i * SAMPLE_STRIDE < this.#at + samples.length; i++) {
      const sample = samples[i * SAMPLE_STRIDE - this.#at]!;
      this.#broken ||= Math.abs((this.#samples[i] ??= sample) - sample) > SAMPLE_TOLERANCE;
    }
    const fresh = samples.subarray(Math.max(0, this.#emitted - this.#at));
    this.#at += samples.length;
    if (this.#broken || fresh.length === 0) return;
    this.#emitted = this.#at;
    this.emit(fresh);
  }

  end(): void {
    if (this.#broken) throw replayMismatch();
  }
}

/**
 * Filters a repeated transcription: segments arrive in the same order; delivered ones and their partial texts are
 * dropped.
 */
class SegmentReplay implements ReplayFilter {
  #emitted = 0;
  #at = 0;

  constructor(readonly emit: (event: unknown) => void) {}

  fixedArgs(args: unknown[]): unknown[] {
    return args;
  }

  restart(): void {
    this.#at = 0;
  }

  push(event: unknown): void {
    const settled = !("stable" in (event as SegmentEvent | PartialEvent));
    const known = this.#at < this.#emitted;
    if (settled) this.#emitted = Math.max(this.#emitted, ++this.#at);
    if (!known) this.emit(event);
  }

  end(): void {}
}
