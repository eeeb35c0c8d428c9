/** Which tools an answer may or must call, and the grammar that limits it to them. */

import { describe, everyItem, valid, type Validator } from "./check.js";
import type { GrammarSource } from "./contract.js";
import { invalidRequest } from "./errors.js";
import type { Tool } from "./messages.js";

/** Whether the model calls tools, and which. */
export type ToolChoice =
  | "none"
  | "auto"
  | "required"
  /** Calls this function. */
  | { type: "function"; function: { name: string } }
  /** Calls these functions only; the model is shown the others too. */
  | { type: "allowed_tools"; allowed_tools: { mode: "auto" | "required"; tools: object[] } }
  /** Refused. */
  | { type: "custom"; custom: { name: string } };

/** What a request asks of its tools. */
export interface ToolPlan {
  /** The tools that the model is shown. */
  tools?: Tool[];
  grammar?: GrammarSource;
  /** Ends the answer with its first call. */
  singleCall?: true;
}

const NAMES = ["none", "auto", "required"];

/** Validator of `tool_choice`. */
export const toolChoice: Validator = {
  expected: "'none', 'auto', 'required', { type: 'function', function: { name } } or { type: 'allowed_tools', allowed_tools: { mode, tools } }",
  accepts: (value) => NAMES.includes(value as string) || functionName(value) !== undefined || allowedTools(value) !== undefined,
};

/** The name in `{ type: "function", function: { name } }`. */
function functionName(value: unknown): string | undefined {
  const { type, function: called } = Object(value) as { type?: unknown; function?: { name?: unknown } };
  const name: unknown = Object(called).name;
  return type === "function" && typeof name === "string" ? name : undefined;
}

function allowedTools(value: unknown): { isRequired: boolean; names: string[] } | undefined {
  const { type, allowed_tools: allowed } = Object(value) as { type?: unknown; allowed_tools?: unknown };
  const { mode, tools } = Object(allowed) as { mode?: unknown; tools?: unknown };
  if (type !== "allowed_tools" || (mode !== "auto" && mode !== "required")) return undefined;
  if (!everyItem(tools, (tool) => functionName(tool) !== undefined) || !(tools as unknown[]).length) return undefined;
  return { isRequired: mode === "required", names: (tools as unknown[]).map((tool) => functionName(tool)!) };
}

/** What the choice names: the tools that may be called, whether one must be, and whether it is one function. */
function resolve(where: string, choice: ToolChoice, tools: Tool[]): { allowed: Tool[]; isRequired: boolean; isNamed: boolean } {
  const named = functionName(choice);
  const listed = allowedTools(choice);
  const names = named !== undefined ? [named] : listed?.names;
  if (!names) return { allowed: tools, isRequired: choice === "required", isNamed: false };
  const unknown = names.find((name) => !tools.some((tool) => tool.function.name === name));
  if (unknown !== undefined) throw invalidRequest(`${where}: 'tool_choice' names the function '${unknown}', which is not among 'tools'. Add it, or name one of: ${tools.map((tool) => tool.function.name).join(", ")}.`);
  const allowed = tools.filter((tool) => names.includes(tool.function.name));
  return { allowed, isRequired: listed?.isRequired ?? true, isNamed: named !== undefined };
}

/**
 * Plans the tools of a request. A grammar is needed where a call is required, where only some tools are allowed, where
 * a tool is strict, and where the answer has a grammar of its own (`answer`).
 */
export function planTools(where: string, given: Tool[] | undefined, choice: ToolChoice, parallel: boolean, answer: GrammarSource | undefined): ToolPlan {
  if (choice === "none" || !given?.length) {
    if (choice !== "none" && choice !== "auto") throw invalidRequest(`${where}: 'tool_choice' (${typeof choice === "string" ? describe(choice) : `type ${describe(choice.type)}`}) needs 'tools' with at least one function.`);
    return answer ? { grammar: answer } : {};
  }
  for (const [i, tool] of given.entries()) {
    if (!valid.object.accepts(tool.function) || typeof tool.function.name !== "string") throw invalidRequest(`${where}: tools[${i}].function must be an object with a 'name', not ${describe(tool.function)}.`);
  }
  const { allowed, isRequired, isNamed } = resolve(where, choice, given);
  const isLimited = isRequired || allowed.length < given.length || allowed.some((tool) => tool.function.strict === true);
  if (!isLimited && !answer) return parallel ? { tools: given } : { tools: given, singleCall: true };
  const spec = {
    tools: allowed.map(({ function: { name, parameters, strict } }) => ({ name, parameters: parameters ?? null, strict: strict === true })),
    choice: isRequired ? "required" : "auto",
    parallel: parallel && !isNamed,
    answer: answer ?? null,
  };
  return { tools: given, grammar: { kind: "answer", source: JSON.stringify(spec) } };
}
