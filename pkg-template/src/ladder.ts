/** Loads that killed the page: the next one asks for less. Knows the notes and what a load may give up; not how models are loaded. */

import type { EngineLoadOptions } from "./contract.js";
import { JerboaError } from "./errors.js";
import { caughtUp, untilDone, type Notes } from "./notes.js";

/** How a model's loads went so far in this browser. */
interface Attempt {
  agent: string;
  /** How much is given up: a place in {@link STEPS}. */
  step: number;
  state: "loading" | "loaded";
  /** When, in milliseconds since 1970. */
  at: number;
}

/** What a load asks for. */
export interface Wanted {
  worker: boolean;
  options: EngineLoadOptions;
}

/** The context of a load that gives some up. */
const SMALL_CONTEXT = 1024;
/** How long a killed page is remembered, in milliseconds. */
const MEMORY = 86_400_000;

/** What is given up one after the other, each with all before it. */
const STEPS: readonly { what: string; change(wanted: Wanted): Wanted }[] = [
  { what: "", change: (wanted) => wanted },
  { what: "on another thread", change: (wanted) => ({ ...wanted, worker: !wanted.worker }) },
  {
    what: `with a context of at most ${SMALL_CONTEXT} tokens`,
    change: ({ worker, options }) => ({ worker, options: { ...options, maxContext: Math.min(options.maxContext ?? SMALL_CONTEXT, SMALL_CONTEXT) } }),
  },
  { what: "with its weights at 4 bits", change: ({ worker, options }) => ({ worker, options: { ...options, weights: "q4" } }) },
];

/** A load that is noted until it is over. */
export interface Rung {
  wanted: Wanted;
  /** What is given up, for `model.info.warnings`. */
  warning?: string;
  /** Call it before what may kill the page. */
  begin(): void;
  /** Call it when the load is over: loaded, or failed in good order. */
  over(loaded: boolean): void;
}

/** Waits for what another tab noted of its load of this model, which is over. */
export const othersNoted = (notes: Notes, model: string): Promise<void> => caughtUp(() => notes.read<Attempt>(`load:${model}`)?.state === "loading");

/**
 * How a model is to be loaded, as its last loads here ended. No other tab may load it meanwhile: so a load that was not over killed its page.
 * @throws {@link JerboaError} `out_of_memory` when there is nothing left to give up.
 */
export function rung(notes: Notes, model: string, agent: string, wanted: Wanted, now = Date.now()): Rung {
  const note = `load:${model}`;
  const last = notes.read<Attempt>(note);
  const known = last?.agent === agent && now - last.at < MEMORY ? last : undefined;
  const step = (known?.step ?? 0) + (known?.state === "loading" ? 1 : 0);
  if (step >= STEPS.length) {
    notes.write(note, { agent, step, state: "loaded", at: known?.at ?? now } satisfies Attempt);
    throw new JerboaError(
      "out_of_memory",
      `Loading ${model} ended this page ${step} times, at last with a small context and 4-bit weights: it needs more memory than this browser gives a page. ` +
        "Load a smaller model. It is tried again after a day.",
    );
  }
  const taken = STEPS.slice(0, step + 1);
  const restore = (): void => (last ? void notes.write(note, { ...last, step, state: "loaded" }) : notes.remove(note));
  let done = (): void => {};
  return {
    wanted: taken.reduce((so, { change }) => change(so), wanted),
    ...(step > 0 ? { warning: `Loading this model ended the page before; it was loaded ${taken.slice(1).map((t) => t.what).join(", ")}.` } : {}),
    begin() {
      if (notes.write(note, { agent, step, state: "loading", at: now } satisfies Attempt)) done = untilDone(restore);
    },
    over(loaded) {
      done();
      if (step === 0) notes.remove(note);
      else if (loaded) notes.write(note, { agent, step, state: "loaded", at: now } satisfies Attempt);
      else restore();
    },
  };
}
