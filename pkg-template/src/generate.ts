/** Options of `generate`, and how a generation starts on a model or in a session. */

import { checked, describe, everyItem, isList, MAX_COUNT, MAX_ITEMS, valid } from "./check.js";
import type { EngineRequest, GrammarSource, ModelInfo } from "./contract.js";
import { invalidRequest, requireOpen } from "./errors.js";
import { Generation, GenerationGroup } from "./generation.js";
import { plainJson } from "./plain-json.js";
import { GENERATE_SPEC, type GenerateFields } from "./schema.js";
import type { Backend } from "./engine-calls.js";
import { isDetached } from "./plain-json.js";
import { generateWithSteps, STEP_OPTIONS, type StepOptions } from "./steps.js";
import { wrongTask } from "./tasks.js";

/** Options of `generate`. Defaults come from the model's generation_config.json. */
export interface GenerateOptions extends GenerateFields, StepOptions {
  /** What the generated text must match. Loads the grammar module on first use. */
  grammar?: GrammarOption;
  /** Stops the generation. */
  signal?: AbortSignal;
}

/** A grammar for generated text. */
export type GrammarOption =
  /** Any JSON object. */
  | { type: "json_object" }
  /** JSON that validates against a schema (draft 2020-12, `$ref` within the schema). */
  | { type: "json_schema"; schema: object | boolean }
  /** A regular expression over the whole text. */
  | { type: "regex"; pattern: string }
  /** One of these strings. */
  | { type: "choice"; choices: string[] }
  /** A grammar in Lark syntax (start rule `start`), or in llama.cpp's GBNF (`root`). */
  | { type: "lark" | "gbnf"; grammar: string };

/** The engine's form of a grammar option. */
export function grammarSource(where: string, grammar: GrammarOption): GrammarSource {
  const option: { type?: unknown; schema?: unknown; pattern?: unknown; choices?: unknown; grammar?: unknown } = grammar;
  const missing = (field: string, expected: string, value: unknown) => invalidRequest(`${where}: a grammar of type '${String(option.type)}' requires '${field}': ${expected}, not ${describe(value)}.`);
  switch (option.type) {
    case "json_object":
      return { kind: "json_object", source: "" };
    case "json_schema":
      if (typeof option.schema !== "boolean" && !valid.object.accepts(option.schema)) throw missing("schema", "a JSON schema", option.schema);
      return { kind: "json_schema", source: JSON.stringify(plainJson(where, "schema", option.schema)) };
    case "regex":
      if (typeof option.pattern !== "string") throw missing("pattern", "a regular expression as a string", option.pattern);
      return { kind: "regex", source: option.pattern };
    case "choice":
      if (!Array.isArray(option.choices) || option.choices.length === 0) throw missing("choices", "a list of at least one string", option.choices);
      if (!isList(option.choices)) throw missing("choices", `a list of strings (at most ${MAX_ITEMS})`, option.choices);
      if (!everyItem(option.choices, (choice) => typeof choice === "string")) {
        const at = Array.from(option.choices).findIndex((choice) => typeof choice !== "string");
        throw invalidRequest(`${where}: grammar.choices[${at}] must be a string, not ${describe(option.choices[at])}.`);
      }
      return { kind: "choice", source: JSON.stringify(option.choices) };
    case "lark":
    case "gbnf":
      if (typeof option.grammar !== "string") throw missing("grammar", "the grammar's text", option.grammar);
      return { kind: option.type, source: option.grammar };
    default:
      throw invalidRequest(`${where}: unknown type of grammar ${describe(option.type)}. Use json_object, json_schema, regex, choice, lark or gbnf.`);
  }
}

/** Validators of the generation options. */
export const GENERATE_OPTIONS = { ...GENERATE_SPEC, ...STEP_OPTIONS, grammar: valid.object, signal: valid.signal };

/** Builds the engine request of the options, without a prompt; returns it with the abort signal and the caller's code. */
export function requestOf(backend: Backend, info: ModelInfo, where: string, options?: GenerateOptions): [EngineRequest, AbortSignal | undefined, StepOptions] {
  requireOpen(backend);
  if (info.task !== "generate") throw wrongTask(info, "cannot generate text");
  const { signal, stop, grammar, logitsProcessor, stoppingCriteria, ...rest } = checked(where, options, GENERATE_OPTIONS);
  if (rest.topLogprobs && !rest.logprobs) throw invalidRequest(`${where}: 'topLogprobs' requires logprobs: true.`);
  const request: EngineRequest = { ...rest };
  if (grammar !== undefined) request.grammar = grammarSource(where, grammar);
  if (stop !== undefined) request.stop = typeof stop === "string" ? [stop] : stop;
  return [request, signal, { ...(logitsProcessor ? { logitsProcessor } : {}), ...(stoppingCriteria ? { stoppingCriteria } : {}) }];
}

/** Starts a generation in the backend's session. Invalid requests reject, like errors of the engine. */
export function generate(backend: Backend, info: ModelInfo, prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
  return Generation.of(() => {
    const [request, signal, steps] = requestOf(backend, info, "generate", options);
    Object.assign(request, promptFields("prompt", prompt));
    return new Generation((onEvent, s) => generateWithSteps(backend, request, steps, { signal: s, onEvent }), signal);
  });
}

/** Starts a generation for each prompt. An invalid prompt refuses all of them. */
export function generateAll(backend: Backend, info: ModelInfo, prompts: readonly unknown[], options?: GenerateOptions): GenerationGroup {
  let inputs: PromptFields[] = [];
  let refusal: unknown;
  try {
    inputs = Array.from(prompts, (prompt, index) => promptFields(`prompts[${index}]`, prompt));
  } catch (thrown) {
    refusal = thrown;
  }
  const start = (index: number): Generation => Generation.of(() => {
    if (refusal) throw refusal;
    const [request, signal, steps] = requestOf(backend, info, "generate", options);
    if (request.seed !== undefined) request.seed = seedOf(request.seed, index);
    Object.assign(request, inputs[index]);
    return new Generation((onEvent, s) => generateWithSteps(backend, request, steps, { signal: s, onEvent }), signal);
  });
  return new GenerationGroup(Array.from(prompts, (_, index) => start(index)));
}

/** The seed of the answer at `index` of a request: the request's seed counts up, so that equal prompts get different answers. */
export function seedOf(seed: number, index: number): number {
  const room = Number.MAX_SAFE_INTEGER - seed;
  return index <= room ? seed + index : index - room - 1 - Number.MAX_SAFE_INTEGER;
}

type PromptFields = Pick<EngineRequest, "prompt" | "ids">;

/** The fields of a prompt; `name` is what messages call it. */
function promptFields(name: string, prompt: unknown): PromptFields {
  if (typeof prompt === "string") return { prompt };
  const { role, content, length } = Object(prompt) as { role?: unknown; content?: unknown; length?: unknown };
  if (role !== undefined || content !== undefined) throw invalidRequest(`generate: ${name} is a chat message. Call model.chat.completions.create({ messages }), which applies the chat template.`);
  if (typeof prompt !== "object" || length === undefined) throw invalidRequest(`generate: ${name} must be a string or a list of token ids, not ${describe(prompt)}.`);
  const ids = checkedIds("generate", prompt as ArrayLike<number>, name);
  if (ids.length === 0) throw invalidRequest(`generate: ${name} is an empty list. Pass a string, a list of at least one token id, or a list of prompts.`);
  return { ids: [...ids] };
}

/** Whether a value is a list of prompts, not of token ids: its first item tells. */
export const isPromptList = (value: unknown): value is readonly unknown[] => isList(value) && value.length > 0 && typeof value[0] !== "number";

/** Whether a value can be a token id. */
export const isTokenId = (id: unknown): id is number => Number.isInteger(id) && (id as number) >= 0 && (id as number) <= MAX_COUNT;

/** Validates token ids from a caller; `name` is what messages call their list. */
export function checkedIds(where: string, tokens: ArrayLike<number>, name = "the list"): Uint32Array {
  const length = typeof tokens === "object" && tokens !== null ? tokens.length : undefined;
  if (typeof length === "number" && length > MAX_ITEMS) throw invalidRequest(`${where} takes at most ${MAX_ITEMS} token ids at once, not ${length}. Split them.`);
  if (ArrayBuffer.isView(tokens) && isDetached(tokens.buffer)) throw invalidRequest(`${where}: the token ids were transferred elsewhere. Pass a copy.`);
  const list = Number.isInteger(length) ? Array.from(tokens) : undefined;
  const wrong = list?.findIndex((id) => !isTokenId(id));
  if (!list || wrong! >= 0) throw invalidRequest(`${where} expects token ids (whole numbers from 0 up)${list ? `, but ${name}[${wrong}] is ${describe(list[wrong!])}` : ""}. Convert text with model.tokenize(text).`);
  return Uint32Array.from(list);
}
