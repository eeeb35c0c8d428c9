/** Validates arguments from callers; failures become readable errors. */

import { refused } from "./errors.js";

/** Returns what the value must be when it is invalid, else undefined. */
export type Check = (value: unknown) => string | undefined;

/** The options of a function, by name. */
export type Spec = Readonly<Record<string, Check>>;

const integerText = (min: number, max: number): string =>
  max === Infinity ? `a whole number from ${min} up` : `a whole number from ${min} to ${max}`;

/** The shared validators. */
export const mustBe = {
  any: (): undefined => undefined,
  boolean: (v: unknown) => (typeof v === "boolean" ? undefined : "true or false"),
  string: (v: unknown) => (typeof v === "string" ? undefined : "a string"),
  func: (v: unknown) => (typeof v === "function" ? undefined : "a function"),
  object: (v: unknown) => (typeof v === "object" && v !== null && !Array.isArray(v) ? undefined : "an object"),
  array: (v: unknown) => (Array.isArray(v) ? undefined : "an array"),
  signal: (v: unknown) => (v instanceof AbortSignal ? undefined : "an AbortSignal"),
  strings: (v: unknown) =>
    typeof v === "string" || (Array.isArray(v) && v.every((s) => typeof s === "string")) ? undefined : "a string or an array of strings",
  number:
    (min: number, max = Infinity): Check =>
    (v) =>
      typeof v === "number" && v >= min && v <= max && Number.isFinite(v)
        ? undefined
        : max === Infinity
          ? `a number from ${min} up`
          : `a number from ${min} to ${max}`,
  integer:
    (min: number, max = Infinity): Check =>
    (v) =>
      Number.isInteger(v) && (v as number) >= min && (v as number) <= max ? undefined : integerText(min, max),
  oneOf:
    (...names: string[]): Check =>
    (v) =>
      names.includes(v as string) ? undefined : `one of ${names.map((n) => `'${n}'`).join(", ")}`,
  url: (v: unknown) => (typeof v === "string" || v instanceof URL ? undefined : "a URL, as a string or URL object"),
  /** Token ids mapped to numbers within OpenAI's bounds. */
  biases: (v: unknown) =>
    typeof v === "object" &&
    v !== null &&
    Object.entries(v).every(([id, bias]) => /^\d+$/.test(id) && typeof bias === "number" && bias >= -100 && bias <= 100)
      ? undefined
      : "an object of token ids to numbers from -100 to 100",
} as const;

/**
 * Validates options: refuses unknown names and wrong types. Returns those that are set; `undefined` and `null` count as
 * not set, as in OpenAI's clients.
 */
export function checked<T extends object>(where: string, given: T | undefined | null, spec: Spec): T {
  const result: Record<string, unknown> = {};
  if (given === undefined || given === null) return result as T;
  if (mustBe.object(given)) throw refused(`${where}: the options must be an object, not ${describe(given)}.`);
  for (const [name, value] of Object.entries(given)) {
    const check = Object.hasOwn(spec, name) ? spec[name] : undefined;
    if (!check) throw refused(unknown(where, name, Object.keys(spec)));
    if (value === undefined || value === null) continue;
    const must = check(value);
    if (must) throw refused(`${where}: '${name}' must be ${must}, not ${describe(value)}.`);
    result[name] = value;
  }
  return result as T;
}

/** A short description of a value for an error message. */
export function describe(value: unknown): string {
  if (typeof value === "string") return value.length > 40 ? "a long string" : `'${value}'`;
  if (value === null || typeof value !== "object") return typeof value === "function" ? "a function" : String(value);
  return Array.isArray(value) ? "an array" : "an object";
}

function unknown(where: string, name: string, names: string[]): string {
  const key = (s: string): string => s.toLowerCase().replaceAll("_", "");
  const near = names.find((n) => key(n) === key(name)) ?? names.find((n) => distance(key(n), key(name)) <= 2);
  return `${where}: unknown option '${name}'. ${near ? `Did you mean '${near}'?` : `Supported options: ${names.join(", ")}.`}`;
}

/** Levenshtein distance, for "did you mean". */
function distance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length]!;
}
