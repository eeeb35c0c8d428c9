/** What `generate` takes and how it begins, on a model or in a session. Does not know which. */

import { checked, describe, mustBe } from "./check.js";
import type { EngineRequest, ModelInfo, Overflow, Speculation } from "./contract.js";
import { refused, unloaded } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./host.js";
import { misused } from "./tasks.js";

/** Options of `generate`. Defaults come from the model's generation_config.json. */
export interface GenerateOptions {
  /** The most tokens to generate. */
  maxTokens?: number;
  /** 0 takes the most likely token each time. */
  temperature?: number;
  /** Keeps the k most likely tokens. */
  topK?: number;
  /** Keeps the most likely tokens that together reach this probability. */
  topP?: number;
  /** Drops tokens less likely than this share of the most likely one. */
  minP?: number;
  /** Locally typical sampling. */
  typicalP?: number;
  /** Above 1 makes tokens that were there less likely. */
  repetitionPenalty?: number;
  /** From -2 to 2, off tokens that were generated at all. */
  presencePenalty?: number;
  /** From -2 to 2, off tokens by how often they were generated. */
  frequencyPenalty?: number;
  /** Added to the logits of these token ids. */
  logitBias?: Record<number, number>;
  /** The same seed gives the same tokens. */
  seed?: number;
  /** Texts that end the generation; they are not part of the result. */
  stop?: string | string[];
  /** Log-probabilities of the generated tokens, in the events. */
  logprobs?: boolean;
  /** How many alternatives come with each, up to 20. */
  topLogprobs?: number;
  /** What to do when the context is full; `error` by default. */
  overflow?: Overflow;
  /** Turns special tokens that the prompt spells, such as `<|fim_prefix|>`, into such; false by default: for prompts that no stranger has written. */
  parseSpecial?: boolean;
  /** Goes on after the end-of-text token. */
  ignoreEos?: boolean;
  /** `"prompt-lookup"` drafts what the text repeats and verifies it; `"off"` by default. */
  speculation?: Speculation;
  /** Stops it. */
  signal?: AbortSignal;
}

/** The checks of the options of a generation. */
export const SAMPLING = {
  maxTokens: mustBe.integer(1),
  temperature: mustBe.number(0, 100),
  topK: mustBe.integer(0),
  topP: mustBe.number(0, 1),
  minP: mustBe.number(0, 1),
  typicalP: mustBe.number(0, 1),
  repetitionPenalty: mustBe.number(0.01, 100),
  presencePenalty: mustBe.number(-2, 2),
  frequencyPenalty: mustBe.number(-2, 2),
  logitBias: mustBe.biases,
  seed: mustBe.integer(0, Number.MAX_SAFE_INTEGER),
  stop: mustBe.strings,
  logprobs: mustBe.boolean,
  topLogprobs: mustBe.integer(0, 20),
  overflow: mustBe.oneOf("error", "truncate", "rolling"),
  parseSpecial: mustBe.boolean,
  ignoreEos: mustBe.boolean,
  speculation: mustBe.oneOf("off", "prompt-lookup"),
  signal: mustBe.signal,
};

/** The engine's request of options, still without a prompt, and what gives it up. */
export function requestOf(backend: Backend, info: ModelInfo, where: string, options?: GenerateOptions): [EngineRequest, AbortSignal | undefined] {
  if (backend.closed) throw unloaded();
  if (info.task !== "generate") throw misused(info, "cannot generate text");
  const { signal, stop, ...rest } = checked(where, options, SAMPLING);
  if (rest.topLogprobs && !rest.logprobs) throw refused(`${where}: 'topLogprobs' needs logprobs: true.`);
  const request: EngineRequest = { ...rest };
  if (stop !== undefined) request.stop = typeof stop === "string" ? [stop] : stop;
  return [request, signal];
}

/** Starts a generation, in whatever session the backend stands for. What is wrong with the request rejects, as what the engine refuses does. */
export function generate(backend: Backend, info: ModelInfo, prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
  return Generation.of(() => {
    const [request, signal] = requestOf(backend, info, "generate", options);
    if (typeof prompt === "string") request.prompt = prompt;
    else if (typeof prompt === "object" && prompt !== null) request.ids = [...ids("generate", prompt)];
    else throw refused(`generate takes a text or a list of token ids, not ${describe(prompt)}.`);
    return new Generation((onEvent, s) => backend.call("generate", [request], { signal: s, onEvent }), signal);
  });
}

/** Token ids that a caller gave. */
export function ids(where: string, tokens: ArrayLike<number>): Uint32Array {
  const list = typeof tokens === "object" && tokens !== null && "length" in tokens ? Array.from(tokens) : undefined;
  if (!list || !list.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 32)) {
    throw refused(`${where} takes token ids: whole numbers from 0 up. Texts become ids by model.tokenize(text).`);
  }
  return Uint32Array.from(list);
}
