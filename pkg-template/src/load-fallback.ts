/** Retries a load that crashed the page with smaller requirements, based on notes of earlier attempts. */

import type { EngineLoadOptions } from "./contract.js";
import { JerboaError } from "./errors.js";
import { waitWhile, undoUnlessDone, type Notes } from "./persistent-notes.js";

/** The last load attempt of a model in this browser. */
interface LoadNote {
  agent: string;
  /** Index into {@link REDUCTIONS}. */
  step: number;
  state: "loading" | "loaded";
  /** Time in milliseconds since 1970. */
  at: number;
}

/** The options of a load. */
export interface LoadTarget {
  worker: boolean;
  options: EngineLoadOptions;
}

/** Context length of the reduced load. */
const SMALL_CONTEXT = 1024;
/** How long a crash is remembered, in milliseconds. */
const CRASH_MEMORY_MS = 86_400_000;

/** The reductions in order; each includes all earlier ones. */
const REDUCTIONS: readonly { what: string; change(wanted: LoadTarget): LoadTarget }[] = [
  { what: "", change: (wanted) => wanted },
  { what: "on another thread", change: (wanted) => ({ ...wanted, worker: !wanted.worker }) },
  {
    what: `with a context of at most ${SMALL_CONTEXT} tokens`,
    change: ({ worker, options }) => ({ worker, options: { ...options, maxContext: Math.min(options.maxContext ?? SMALL_CONTEXT, SMALL_CONTEXT) } }),
  },
  { what: "with its weights at 4 bits", change: ({ worker, options }) => ({ worker, options: { ...options, weights: "q4" } }) },
];

/** A load attempt that is noted until it is over. */
export interface LoadAttempt {
  wanted: LoadTarget;
  /** The reductions applied, for `model.info.warnings`. */
  warning?: string;
  /** Call it before the action that may crash the page. Has no effect after {@link LoadAttempt.finish}. */
  begin(): void;
  /** Call it when the load is over: `loaded`, or failed normally. */
  finish(loaded: boolean): void;
}

/** Waits for another tab's final note of its finished load of this model. */
export const waitForOtherTab = (notes: Notes, model: string): Promise<void> => waitWhile(() => notes.read<LoadNote>(`load:${model}`)?.state === "loading");

/**
 * Chooses the options of the next load from the notes of earlier ones. No other tab may be loading this model, so an
 * unfinished load means a crash.
 * @throws {@link JerboaError} `out_of_memory` when no reduction is left.
 */
export function nextAttempt(notes: Notes, model: string, agent: string, wanted: LoadTarget, now = Date.now()): LoadAttempt {
  const note = `load:${model}`;
  const last = notes.read<LoadNote>(note);
  const known = last?.agent === agent && now - last.at < CRASH_MEMORY_MS ? last : undefined;
  const step = (known?.step ?? 0) + (known?.state === "loading" ? 1 : 0);
  if (step >= REDUCTIONS.length) {
    notes.write(note, { agent, step, state: "loaded", at: known?.at ?? now } satisfies LoadNote);
    throw new JerboaError(
      "out_of_memory",
      `Loading ${model} crashed this page ${step} times, the last time with a small context and 4-bit weights: it needs more memory than this browser allows a page. ` +
        "Load a smaller model. This model is retried after 24 hours.",
    );
  }
  const taken = REDUCTIONS.slice(0, step + 1);
  const restore = (): void => (last ? void notes.write(note, { ...last, step, state: "loaded" }) : notes.remove(note));
  let done = (): void => {};
  let over = false;
  return {
    wanted: taken.reduce((so, { change }) => change(so), wanted),
    ...(step > 0 ? { warning: `Loading this model crashed the page before, so it was loaded ${taken.slice(1).map((t) => t.what).join(", ")}.` } : {}),
    begin() {
      // An aborted load may reach this point after its end.
      if (over) return;
      if (notes.write(note, { agent, step, state: "loading", at: now } satisfies LoadNote)) done = undoUnlessDone(restore);
    },
    finish(loaded) {
      over = true;
      done();
      if (step === 0) notes.remove(note);
      else if (loaded) notes.write(note, { agent, step, state: "loaded", at: now } satisfies LoadNote);
      else restore();
    },
  };
}
