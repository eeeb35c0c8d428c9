/** Validates arguments from callers; failures become readable errors. */

import { invalidRequest, JerboaError } from "./errors.js";

/** What an argument may be: a test, and the name of what passes it for messages ("must be a string"). */
export interface Validator {
  readonly expected: string;
  readonly accepts: (value: unknown) => boolean;
  /** What an item of a list must pass, so that messages name the first that does not. */
  readonly item?: (item: unknown) => boolean;
  /** The same for an entry of an object. */
  readonly entry?: (entry: [string, unknown]) => boolean;
  /** Describes a wrong value; {@link describe} if not set. */
  readonly found?: (value: unknown) => string | undefined;
}

/** The options of a function, by name. */
export type Spec = Readonly<Record<string, Validator>>;

/** The engine's counts are 32 bits wide. */
export const MAX_COUNT = 2 ** 32 - 1;
/** Items in a list of strings or token ids. */
export const MAX_ITEMS = 1 << 20;

/** Seconds of audio in one call; samples of an hour take 230 MB. */
export const MAX_AUDIO_SECONDS = 4 * 3600;

/** Bytes of an HTTP request's body. Parsing takes several times as much memory. */
const MAX_REQUEST_BYTES = 64 * 2 ** 20;
/** Bytes of a form: hours of audio as WAV. */
const MAX_FORM_BYTES = 2 ** 30;
/** Maximum bytes of an HTTP request's body with a content type. */
export const bodyLimit = (type: string | null | undefined): number => (/^multipart/.test(type ?? "") ? MAX_FORM_BYTES : MAX_REQUEST_BYTES);
/** The message of a request whose body exceeds a limit. */
export const requestTooLarge = (limit: number): string => `The request is too large: its body exceeds ${limit / 2 ** 20} MB. Send fewer or smaller images, and audio as FLAC or MP3.`;

/** Creates a validator. */
export const validator = (expected: string, accepts: (value: unknown) => boolean, item?: (item: unknown) => boolean): Validator => ({ expected, accepts, ...(item ? { item } : {}) });

const range = (kind: string, min: number, max: number): string => (max === Infinity ? `${kind} from ${min} up` : `${kind} from ${min} to ${max}`);

const isObject = (v: unknown): v is object => typeof v === "object" && v !== null && !Array.isArray(v) && !(v instanceof Promise);
/** Whether a value is an array of at most {@link MAX_ITEMS} items. Visiting the holes of a longer sparse array takes minutes. */
export const isList = (v: unknown): v is unknown[] => Array.isArray(v) && v.length <= MAX_ITEMS;
/** A list, or a single value as a list. */
export const listOf = <T>(v: T | readonly T[]): T[] => (Array.isArray(v) ? (v as T[]) : [v as T]);
/** A caller's list. @throws {@link JerboaError} `request` if it has more than {@link MAX_ITEMS} items. */
export function boundedList<T>(where: string, list: T[]): T[] {
  if (list.length > MAX_ITEMS) throw invalidRequest(`${where} takes at most ${MAX_ITEMS} items at once, not ${list.length}. Split them.`);
  return list;
}
/** Whether all items of a list pass, which has none missing and is no longer than {@link MAX_ITEMS}. */
export function everyItem(list: unknown, accepts: (item: unknown, i: number) => boolean): boolean {
  return isList(list) && Array.from(list).every(accepts);
}

const isString = (v: unknown): v is string => typeof v === "string";
const isNumber = (v: unknown, min: number, max: number): boolean => typeof v === "number" && Number.isFinite(v) && v >= min && v <= max;

/** The shared validators. */
export const valid = {
  any: validator("anything", () => true),
  boolean: validator("true or false", (v) => typeof v === "boolean"),
  string: validator("a string", (v) => typeof v === "string"),
  func: validator("a function", (v) => typeof v === "function"),
  object: validator("an object", isObject),
  array: validator(`an array of at most ${MAX_ITEMS} items`, isList),
  signal: validator("an AbortSignal", (v) => v instanceof AbortSignal),
  strings: validator(`a string or an array of strings (at most ${MAX_ITEMS})`, (v) => typeof v === "string" || everyItem(v, isString), isString),
  url: validator("a URL, as a string or URL object", (v) => typeof v === "string" || v instanceof URL),
  number: (min: number, max = Infinity) => validator(range("a number", min, max), (v) => isNumber(v, min, max)),
  numbers: (min: number, max: number) => {
    const item = (n: unknown): boolean => isNumber(n, min, max);
    return validator(`${range("a number", min, max)}, or several`, (v) => everyItem(listOf(v), item), item);
  },
  /** A number above `min`. */
  above: (min: number, max: number) => validator(`a number above ${min}, at most ${max}`, (v) => v !== min && isNumber(v, min, max)),
  integer: (min: number, max = MAX_COUNT) => validator(range("a whole number", min, max), (v) => Number.isInteger(v) && isNumber(v, min, max)),
  integers: (min: number) => {
    const item = (n: unknown): boolean => Number.isInteger(n) && isNumber(n, min, MAX_COUNT);
    return validator("an array of whole numbers", (v) => everyItem(v, item), item);
  },
  /** A size in bytes, which may exceed 32 bits. */
  bytes: validator("a whole number of bytes from 1 up", (v) => Number.isSafeInteger(v) && isNumber(v, 1, Infinity)),
  oneOf: (...names: string[]) => validator(`one of ${names.map((n) => `'${n}'`).join(", ")}`, (v) => names.includes(v as string)),
  /** Token ids mapped to numbers. */
  biases: (min: number, max: number): Validator => {
    const entry = ([id, bias]: [string, unknown]): boolean => /^\d+$/.test(id) && isNumber(bias, min, max);
    return { expected: `an object of token ids to numbers from ${min} to ${max}`, accepts: (v) => isObject(v) && Object.entries(v).every(entry), entry };
  },
} as const;

/** The options that errors are about, for `param` of OpenAI's errors. */
export const faultyOptions = new WeakMap<JerboaError, string>();

/** Notes the option that an error is about. Where a nested one is validated, `where` ends with the options around it. */
export function atOption(where: string, name: string, error: JerboaError): JerboaError {
  faultyOptions.set(error, [...where.split(": ").slice(1), name].join("."));
  return error;
}

/** Throws unless an argument is valid. */
export function requireValid(where: string, name: string, value: unknown, { expected, accepts, item, entry, found }: Validator): void {
  if (accepts(value)) return;
  const wrong = item && isList(value) ? Array.from(value).findIndex((each) => !item(each)) : -1;
  const pair = entry && isObject(value) && Object.entries(value).find((each) => !entry(each));
  const part = pair ? `; entry ${describe(pair[0])} is ${describe(pair[1])}` : wrong >= 0 ? `; item ${wrong} is ${describe((value as unknown[])[wrong])}` : "";
  throw invalidRequest(`${where}: ${name} must be ${expected}, not ${found?.(value) ?? describe(value)}${part}.`);
}

/**
 * Validates options: refuses unknown names and wrong types. Returns those that are set; `undefined` and `null` count as
 * not set, as in OpenAI's clients.
 */
export function checked<T extends object>(where: string, given: T | undefined | null, spec: Spec): T {
  const result: Record<string, unknown> = {};
  if (given === undefined || given === null) return result as T;
  requireValid(where, "the options", given, valid.object);
  for (const [name, value] of Object.entries(given)) {
    const option = Object.hasOwn(spec, name) ? spec[name] : undefined;
    if (!option) throw atOption(where, name, invalidRequest(unknown(where, name, Object.keys(spec))));
    if (value === undefined || value === null) continue;
    try {
      requireValid(where, `'${name}'`, value, option);
    } catch (thrown) {
      throw atOption(where, name, thrown as JerboaError);
    }
    result[name] = value;
  }
  return result as T;
}

/** The options of `spec` that are set, under the names of the engine. */
export function engineOptions(spec: Spec, given: object): object {
  const known = Object.entries(given).filter(([name, value]) => Object.hasOwn(spec, name) && value !== undefined);
  return Object.fromEntries(known.map(([name, value]) => [name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase()), value]));
}

/** Throws an error of the engine on under the caller's name of the option. */
export const renamed = (option: string, given: string) => (thrown: unknown): never => {
  const { code, message } = JerboaError.from(thrown);
  throw message.startsWith(`${option}:`) ? new JerboaError(code, given + message.slice(option.length), { cause: thrown }) : thrown;
};

/** A short description of a value for an error message. */
export function describe(value: unknown): string {
  if (typeof value === "string") return value.length > 40 ? "a long string" : `'${value}'`;
  if (value === null || typeof value !== "object") return typeof value === "function" ? "a function" : String(value);
  if (!Array.isArray(value)) return value instanceof Promise ? "a promise" : "an object";
  return value.length === 0 ? "an empty array" : `an array of ${value.length}, beginning with ${Array.isArray(value[0]) ? "an array" : describe(value[0])}`;
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
