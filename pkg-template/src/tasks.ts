/** What a model is for, in words. Knows the names of tasks; not how they are done. */

import type { ModelInfo } from "./contract.js";
import { JerboaError, refused } from "./errors.js";

/** Of each task: what a model for it is, and how it is called. */
const TASKS: Record<string, readonly [is: string, call: string]> = {
  generate: ["a text-generation model", "model.generate"],
  embed: ["an embedding model", "model.embed"],
  rerank: ["a reranking model", "model.rerank"],
  transcribe: ["a speech-to-text model", "model.transcribe"],
  speak: ["a text-to-speech model", "model.audio.speech.create"],
};

/** The error of a model that is asked for what another kind of model does. */
export function misused(info: ModelInfo, cannot: string): JerboaError {
  const [is, call] = TASKS[info.task] ?? [`a model for '${info.task}'`, "what it is for"];
  return refused(`${info.model} ${cannot}: it is ${is}, call ${call} instead.`);
}
