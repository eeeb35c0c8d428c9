/** Own code of the caller in each step of a generation: logits processors and stopping criteria. */

import { describe, valid } from "./check.js";
import type { EngineRequest, GenerationEvent, GenerationResult, StepAnswer, StepQuestion } from "./contract.js";
import { invalidRequest, JerboaError, textOf } from "./errors.js";
import type { Backend } from "./engine-calls.js";

/**
 * Changes the logits of the next token, one per id, in place or by returning others; `-Infinity` bans a token. `tokens`
 * has the ids of the answer so far.
 */
export type LogitsProcessor = (logits: Float32Array, tokens: Uint32Array) => Float32Array | void | Promise<Float32Array | void>;

/** Whether the answer ends after these tokens. */
export type StoppingCriterion = (tokens: Uint32Array) => boolean | Promise<boolean>;

/**
 * Code that runs before each token. It is slow: every step waits for the page, reads all logits back from the GPU and
 * samples on the CPU. Prefer `grammar`, `logitBias` and `stop` where they suffice.
 */
export interface StepOptions {
  /** Changes the logits before bias, penalties, grammar and sampling. */
  logitsProcessor?: LogitsProcessor;
  /** Ends the answer, with `finishReason: "stop"`, when it returns true. Called after each token. */
  stoppingCriteria?: StoppingCriterion;
}

/** Validators of the options. */
export const STEP_OPTIONS = { logitsProcessor: valid.func, stoppingCriteria: valid.func };

/** Runs a generation with the caller's code. */
export async function generateWithSteps(
  backend: Backend,
  request: EngineRequest,
  { logitsProcessor, stoppingCriteria }: StepOptions,
  options: { signal: AbortSignal; onEvent: (event: GenerationEvent) => void },
): Promise<GenerationResult> {
  if (!logitsProcessor && !stoppingCriteria) return backend.call("generate", [request], options);
  // The engine only learns that the answer ends; the error stays on this side.
  let failure: JerboaError | undefined;
  const onQuestion = async ({ logits, tokens }: StepQuestion): Promise<StepAnswer> => {
    let name = "stoppingCriteria";
    try {
      if (tokens.length > 0 && (await stoppingCriteria?.(tokens))) return false;
      if (!logitsProcessor) return undefined;
      name = "logitsProcessor";
      const { length } = logits;
      const changed = (await logitsProcessor(logits, tokens)) ?? logits;
      if (!(changed instanceof Float32Array) || changed.length !== length) throw invalidRequest(`'logitsProcessor' must return nothing or a Float32Array of ${length} logits, not ${changed instanceof Float32Array ? changed.length : describe(changed)}.`);
      return changed;
    } catch (thrown) {
      failure = thrown instanceof JerboaError ? thrown : new JerboaError("request", `'${name}' threw: ${textOf(thrown)}`, { cause: thrown });
      return false;
    }
  };
  const result = await backend.call("generate", [{ ...request, steps: logitsProcessor ? "logits" : "tokens" }], { ...options, onQuestion });
  if (failure) throw failure;
  return result;
}
