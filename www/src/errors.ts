/** Error messages for visitors: the cause and the remedy, with the engine's message as details. */

import { JerboaError } from "jerboa";
import { ERRORS } from "./strings";

/** Codes of errors that a second attempt may not meet again: the network, the cache, a lost device. */
const TRANSIENT: ReadonlySet<string> = new Set([
  "network", "changed", "malformed", "aborted", "cache", "quota", "store_blocked", "store_locked", "device_lost", "worker", "assets", "internal", "unloaded",
]);

/** Whether loading the same model again can help. */
export function canRetry(error: JerboaError | undefined): boolean {
  return error === undefined || TRANSIENT.has(error.code);
}

export interface UserMessage {
  text: string;
  /** The engine's message, if `text` differs from it. */
  details?: string;
}

/** Converts anything thrown to an error with a code. */
export function asError(thrown: unknown): JerboaError {
  return thrown instanceof JerboaError ? thrown : new JerboaError("internal", String(thrown));
}

/** The message of an error; `reason` is its key, if the code has another one. */
export function userMessage(error: JerboaError, reason = reasonOf(error)): UserMessage {
  const words = capital(withoutName(error));
  const text = ERRORS[reason];
  return text ? { text, details: words } : { text: words };
}

/** The key of a message: a full context has another remedy where the oldest messages are dropped already, or cannot be. */
function reasonOf({ code, message }: JerboaError): string {
  return code === "context_full" && !message.includes("overflow") ? "message_too_long" : code;
}

/** Removes the function or parameter name that starts a refusal, but not the name of a file. */
function withoutName({ code, message }: JerboaError): string {
  return code === "request" ? message.replace(/^(?!\S+\.(?:json|safetensors|gguf): )[a-z][\w.]*: (?=[a-z'])/i, "") : message;
}

/** Capitalizes a sentence, except when it starts with a file or option name. */
export function capital(text: string): string {
  return /^[a-z]+[ ,]/.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
}
