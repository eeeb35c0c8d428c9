/** What an answer may be: its format, the page's tools, and whether the model thinks first. */

import { type ChatCompletionCreateParams, JerboaError, type ModelInfo } from "jerboa";
import { stored } from "../prefs";
import { TOOLS } from "./tools";
import { ANSWER, COMPOSER } from "../strings";

export interface AnswerSettings {
  format: "text" | "json_object" | "json_schema";
  /** The schema's text. */
  schema: string;
  tools: boolean;
  thinking: "default" | "on" | "off";
  /** Maximum tokens of the thought; absent without a limit. */
  budget?: number | undefined;
}

const EXAMPLE = {
  type: "object",
  properties: { title: { type: "string" }, minutes: { type: "integer", minimum: 1 }, steps: { type: "array", items: { type: "string" } } },
  required: ["title", "minutes", "steps"],
  additionalProperties: false,
};

export const DEFAULTS: AnswerSettings = { format: "text", schema: JSON.stringify(EXAMPLE, null, 2), tools: false, thinking: "default" };

/** Whether a value is a limit of a thought. */
export const isBudget = (value: unknown): value is number => Number.isInteger(value) && (value as number) >= 1 && (value as number) <= MAX_BUDGET;

/** More than any thought has. */
export const MAX_BUDGET = 1_000_000;

const same = (value: unknown): value is AnswerSettings => {
  const { format, schema, tools, thinking, budget } = (value ?? {}) as Partial<Record<keyof AnswerSettings, unknown>>;
  return ["text", "json_object", "json_schema"].includes(format as string) && typeof schema === "string" && typeof tools === "boolean" && ["default", "on", "off"].includes(thinking as string) && (budget === undefined || isBudget(budget));
};

/** The settings, persisted between visits. */
export const answers = stored<AnswerSettings>("answers", DEFAULTS, same);

/** Changes one setting. */
export function set<K extends keyof AnswerSettings>(name: K, value: AnswerSettings[K]): void {
  answers.value = { ...answers.value, [name]: value };
}

/** Whether the model's calls are understood. */
export const callsTools = ({ toolCalls, hasChatTemplate }: ModelInfo): boolean => hasChatTemplate && typeof toolCalls === "string";

/** Whether the model's thinking can be switched. */
export const switchesThinking = ({ reasoningControls = [] }: ModelInfo): boolean => reasoningControls.some((name) => name === "enable_thinking" || name === "thinking");

/** Whether the model's answers may begin with a thought. */
export const thinks = ({ reasoning }: ModelInfo): boolean => reasoning === true;

/** Why a schema cannot be used; undefined if it can. */
export function schemaProblem(text: string): string | undefined {
  try {
    const schema: unknown = JSON.parse(text);
    return typeof schema === "object" && schema !== null && !Array.isArray(schema) ? undefined : ANSWER.notObject;
  } catch (error) {
    return ANSWER.notJson((error as Error).message);
  }
}

/** Why no answer can have the chosen format; undefined if it can. */
export function formatProblem(): string | undefined {
  const { format, schema } = answers.value;
  const why = format === "json_schema" ? schemaProblem(schema) : undefined;
  return why && COMPOSER.badSchema(why);
}

/** The fields of a request. A setting that the model does not have is left out; an invalid schema is refused. */
export function answerFields(info: ModelInfo): Pick<ChatCompletionCreateParams, "response_format" | "tools" | "enable_thinking" | "reasoning_budget"> {
  const { format, schema, tools, thinking, budget } = answers.peek();
  const problem = formatProblem();
  if (problem) throw new JerboaError("request", problem);
  // A grammar would forbid the calls.
  const called = tools && format === "text" && callsTools(info);
  return {
    ...(format === "json_object" ? { response_format: { type: format } } : {}),
    ...(format === "json_schema" ? { response_format: { type: format, json_schema: { name: "answer", schema: JSON.parse(schema) as Record<string, unknown> } } } : {}),
    ...(called ? { tools: TOOLS } : {}),
    ...(thinking !== "default" && switchesThinking(info) ? { enable_thinking: thinking === "on" } : {}),
    ...(budget !== undefined && thinks(info) ? { reasoning_budget: budget } : {}),
  };
}
