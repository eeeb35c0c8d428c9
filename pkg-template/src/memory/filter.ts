/** Compiles metadata filters such as `{ lang: "en", year: { $gte: 2000 } }` to predicates. */

import { describe, isList, MAX_ITEMS } from "../check.js";
import { invalidRequest } from "../errors.js";
import type { Json, Metadata } from "./types.js";

/** A value that must be equal, or conditions on a field. */
export type Condition =
  | Json
  | {
      $eq?: Json;
      $ne?: Json;
      $gt?: string | number;
      $gte?: string | number;
      $lt?: string | number;
      $lte?: string | number;
      /** Equals one of these. */
      $in?: Json[];
      /** Equals none of these; an absent field passes. */
      $nin?: Json[];
      /** The field is an array with this element, or a string with this substring. */
      $contains?: Json;
      /** The field exists, or does not. */
      $exists?: boolean;
    };

/**
 * Conditions on a record's metadata: every named field (dots reach inside objects), `$and`, `$or`, `$not`. A plain
 * value also matches an array that contains it. A function is used as the predicate.
 */
export type Filter =
  | ((metadata: Metadata) => boolean)
  | ({ [field: string]: Condition } & { $and?: Filter[]; $or?: Filter[]; $not?: Filter });

type Test = (value: Json | undefined) => boolean;

/** Compiles a filter to a predicate; refuses unknown operators, and values that no metadata can have. */
export function compileFilter(filter: Filter): (metadata: Metadata) => boolean {
  if (typeof filter === "function") return filter;
  if (!isPlainObject(filter)) throw invalidRequest(`filter: the filter must be an object or a function, not ${nameOf(filter)}.`);
  const tests = Object.entries(filter as Record<string, unknown>).map(([key, value]) => clause(key, value));
  return (metadata) => tests.every((test) => test(metadata));
}

function clause(key: string, value: unknown): (metadata: Metadata) => boolean {
  if (key === "$and" || key === "$or") {
    if (!isList(value)) throw invalidRequest(`filter: ${key} must be an array of at most ${MAX_ITEMS} filters.`);
    const parts = Array.from(value, (part) => compileFilter(part as Filter));
    return key === "$and" ? (m) => parts.every((part) => part(m)) : (m) => parts.some((part) => part(m));
  }
  if (key === "$not") {
    const inner = compileFilter(value as Filter);
    return (m) => !inner(m);
  }
  if (key.startsWith("$")) throw invalidRequest(`filter: unknown operator ${key} at the top level. Supported: $and, $or, $not.`);
  const test = condition(key, value);
  const path = key.split(".");
  return (metadata) => test(Object.hasOwn(metadata, key) ? metadata[key] : reach(metadata, path));
}

function condition(field: string, given: unknown): Test {
  if (!isObject(given) || !Object.keys(given).some((key) => key.startsWith("$"))) {
    requireJson(`'${field}'`, given);
    const wanted = given as Json;
    return (value) => equal(value, wanted) || (Array.isArray(value) && value.some((element) => equal(element, wanted)));
  }
  const tests = Object.entries(given).map(([operator, operand]) => {
    const make = Object.hasOwn(OPERATORS, operator) ? OPERATORS[operator] : undefined;
    if (!make) throw invalidRequest(`filter: '${field}' has the unknown operator ${operator}. Supported: ${Object.keys(OPERATORS).join(", ")}.`);
    const name = `${operator} of '${field}'`;
    if ((operator === "$in" || operator === "$nin") && !isList(operand)) throw invalidRequest(`filter: ${name} must be an array of at most ${MAX_ITEMS} values.`);
    if (operator === "$exists" && typeof operand !== "boolean") throw invalidRequest(`filter: ${name} must be true or false, not ${nameOf(operand)}.`);
    if (/^\$[gl]t/.test(operator) && typeof operand !== "string" && (typeof operand !== "number" || Number.isNaN(operand))) throw invalidRequest(`filter: ${name} must be a number or a string, not ${nameOf(operand)}. Compare dates as ISO strings.`);
    requireJson(name, operand);
    return make(operand as Json);
  });
  return (value) => tests.every((test) => test(value));
}

const OPERATORS: Record<string, (operand: Json) => Test> = {
  $eq: (operand) => (value) => equal(value, operand),
  $ne: (operand) => (value) => !equal(value, operand),
  $gt: (operand) => ordered(operand, (order) => order > 0),
  $gte: (operand) => ordered(operand, (order) => order >= 0),
  $lt: (operand) => ordered(operand, (order) => order < 0),
  $lte: (operand) => ordered(operand, (order) => order <= 0),
  $in: (operand) => (value) => (operand as Json[]).some((one) => equal(value, one)),
  $nin: (operand) => (value) => !(operand as Json[]).some((one) => equal(value, one)),
  $contains: (operand) => (value) =>
    Array.isArray(value) ? value.some((one) => equal(one, operand)) : typeof value === "string" && typeof operand === "string" && value.includes(operand),
  $exists: (operand) => (value) => (value !== undefined) === operand,
};

/**
 * Compares numbers with numbers and strings with strings (by UTF-16 code unit, so ISO dates sort); other types never
 * match.
 */
function ordered(operand: Json, holds: (order: number) => boolean): Test {
  return (value) => {
    if (typeof value === "number" && typeof operand === "number") return holds(value - operand);
    if (typeof value === "string" && typeof operand === "string") return holds(value < operand ? -1 : value > operand ? 1 : 0);
    return false;
  };
}

function reach(metadata: Metadata, path: string[]): Json | undefined {
  let at: Json | undefined = metadata;
  for (const key of path) {
    if (!isObject(at) || !Object.hasOwn(at, key)) return undefined;
    at = (at as Metadata)[key];
  }
  return at;
}

function equal(a: Json | undefined, b: Json): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((element, i) => equal(element, b[i]!));
  if (!isObject(a) || !isObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equal((a as Metadata)[key], (b as Metadata)[key]!));
}

/** Refuses a value that metadata cannot hold, which would match nothing, or records without the field. */
function requireJson(name: string, value: unknown): void {
  if (Array.isArray(value)) for (const item of value) requireJson(name, item);
  else if (isPlainObject(value)) for (const [member, item] of Object.entries(value)) requireJson(`${name}.${member}`, item);
  else if (value !== null && (!["string", "number", "boolean"].includes(typeof value) || Number.isNaN(value))) throw invalidRequest(`filter: ${name} is ${nameOf(value)}, which metadata cannot hold. Use strings, numbers, true, false, null, arrays and plain objects; to find records without a field, { $exists: false }.`);
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  if (!isObject(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** A value for a message; objects by their class. */
const nameOf = (value: unknown): string => (isObject(value) && !isPlainObject(value) ? `a ${(value as object).constructor.name}` : describe(value));

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
