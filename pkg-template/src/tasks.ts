/** Names of tasks, and the error for calling a model with the wrong one. */

import type { ModelInfo } from "./contract.js";
import { JerboaError, invalidRequest } from "./errors.js";

/** Per task: a description of such a model, and the method to call. */
const TASKS: Record<string, readonly [is: string, call: string]> = {
  generate: ["a text-generation model", "model.generate"],
  embed: ["an embedding model", "model.embed"],
  rerank: ["a reranking model", "model.rerank"],
  transcribe: ["a speech-to-text model", "model.transcribe"],
  speak: ["a text-to-speech model", "model.audio.speech.create"],
};

/** The error of calling a model for a task that it does not support. */
export function wrongTask(info: ModelInfo, cannot: string): JerboaError {
  const [is, call] = TASKS[info.task] ?? [`a model for '${info.task}'`, "the method of its task"];
  const text = `call ${call}`;
  return invalidRequest(`${info.model} ${cannot}: it is ${is}, ${text} instead.`, { about: call, text });
}
