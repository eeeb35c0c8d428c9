/** Error messages for visitors: the cause and the remedy, with the engine's message as details. */

import { JerboaError } from "jerboa";
import { ERRORS } from "./strings";

export interface Told {
  text: string;
  /** The engine's message, if `text` differs from it. */
  details?: string;
}

/** Converts anything thrown to an error with a code. */
export function asError(thrown: unknown): JerboaError {
  return thrown instanceof JerboaError ? thrown : new JerboaError("internal", String(thrown));
}

export function told(error: JerboaError): Told {
  const words = capital(withoutName(error));
  const text = ERRORS[error.code];
  return text ? { text, details: words } : { text: words };
}

/** Removes the function or parameter name that starts a refusal. */
function withoutName({ code, message }: JerboaError): string {
  return code === "request" ? message.replace(/^[a-z]\w*: (?=[a-z'])/i, "") : message;
}

/** Capitalizes a sentence, except when it starts with a file or option name. */
export function capital(text: string): string {
  return /^[a-z]+[ ,]/.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
}
