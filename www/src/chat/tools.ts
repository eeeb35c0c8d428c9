/** The functions of the page that a model may call. */

import type { Tool, ToolCall } from "jerboa";

/** A call and its result. */
export interface ToolStep {
  id: string;
  name: string;
  given: string;
  result: string;
}

export const TOOLS: Tool[] = [
  {
    type: "function",
    function: {
      name: "get_time",
      description: "Returns the date and time, by default of the user's place.",
      parameters: { type: "object", properties: { time_zone: { type: "string", description: "An IANA name, such as Europe/Oslo." } } },
    },
  },
  {
    type: "function",
    function: {
      name: "calculate",
      description: "Adds, subtracts, multiplies or divides two numbers.",
      parameters: {
        type: "object",
        properties: { a: { type: "number" }, operation: { enum: ["add", "subtract", "multiply", "divide"] }, b: { type: "number" } },
        required: ["a", "operation", "b"],
      },
    },
  },
];

const OPERATIONS: Record<string, (a: number, b: number) => number> = { add: (a, b) => a + b, subtract: (a, b) => a - b, multiply: (a, b) => a * b, divide: (a, b) => a / b };

/** Runs a call. The model reads what went wrong, as it reads a result. */
export function runTool({ id, function: { name, arguments: given } }: ToolCall): ToolStep {
  let result: string;
  try {
    result = call(name, JSON.parse(given) as Record<string, unknown>);
  } catch (error) {
    result = `Error: ${(error as Error).message}`;
  }
  return { id, name, given, result };
}

function call(name: string, { time_zone: timeZone, a, b, operation }: Record<string, unknown>): string {
  if (name === "get_time") return new Date().toLocaleString("en", { dateStyle: "full", timeStyle: "short", ...(typeof timeZone === "string" && timeZone ? { timeZone } : {}) });
  const compute = name === "calculate" ? OPERATIONS[String(operation)] : undefined;
  if (compute) return String(compute(Number(a), Number(b)));
  throw new Error(name === "calculate" ? `there is no operation '${String(operation)}'` : `there is no function '${name}'`);
}
