/** Checks values from callers that reach the engine as JSON, and copies them. */

import { invalidRequest } from "./errors.js";

/** Levels of nesting that the engine's JSON reader accepts. */
export const MAX_JSON_DEPTH = 100;
/** Values in one argument: members, items and what they contain. */
export const MAX_JSON_VALUES = 1_000_000;
/** Characters in one argument: all strings and names together. */
export const MAX_JSON_CHARS = 64 << 20;

/** What is left of an argument's limits. */
interface Budget {
  where: string;
  values: number;
  chars: number;
}

/**
 * A copy of `value` that holds only what JSON can. Members that are undefined are dropped; `toJSON` is called. `field`
 * names the argument in messages.
 * @throws {@link JerboaError} `request` for functions, symbols, BigInts, cycles, deep nesting and giant values.
 */
export function plainJson<T>(where: string, field: string, value: T): T {
  return plain({ where, values: MAX_JSON_VALUES, chars: MAX_JSON_CHARS }, field, value, []) as T;
}

function plain(budget: Budget, field: string, value: unknown, parents: object[]): unknown {
  const refuse = (what: string): never => {
    throw invalidRequest(`${budget.where}: '${field}' ${what}.`);
  };
  const count = (values: number, chars: number): void => {
    if ((budget.values -= values) < 0) refuse(`has more than ${MAX_JSON_VALUES} values`);
    if ((budget.chars -= chars) < 0) refuse(`has more than ${MAX_JSON_CHARS} characters`);
  };
  if (typeof value === "string") count(1, value.length);
  if (typeof value === "function" || typeof value === "symbol" || typeof value === "bigint") refuse(`is a ${typeof value}, which JSON cannot hold`);
  if (typeof value !== "object" || value === null) return value;
  if (parents.includes(value)) refuse("contains itself");
  if (parents.length === MAX_JSON_DEPTH) refuse(`is nested more than ${MAX_JSON_DEPTH} levels deep`);
  const inner = [...parents, value];
  if (Array.isArray(value)) {
    count(value.length, 0);
    return Array.from(value, (item: unknown, i) => plain(budget, `${field}[${i}]`, item, inner) ?? null);
  }
  const { toJSON } = value as { toJSON?: unknown };
  if (typeof toJSON === "function") return plain(budget, field, toJSON.call(value), inner);
  if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) refuse("holds binary data, which JSON cannot hold; pass an array");
  const copy: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    count(1, name.length);
    if (member === undefined) continue;
    // An assignment to `__proto__` would not create a member.
    Object.defineProperty(copy, name, { value: plain(budget, `${field}.${name}`, member, inner), enumerable: true, configurable: true, writable: true });
  }
  return copy;
}

/** Whether a buffer was transferred elsewhere: its bytes are gone. */
export function isDetached(buffer: ArrayBufferLike): boolean {
  try {
    return new Uint8Array(buffer).length < 0;
  } catch {
    return true;
  }
}
