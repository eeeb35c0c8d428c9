/** Errors as people read them: what it means and what to do, with the engine's own words beside. */

import { JerboaError } from "jerboa";
import { ERRORS } from "./strings";

export interface Told {
  text: string;
  /** The engine's words, where `text` is not them. */
  details?: string;
}

/** Whatever was thrown, as an error with a code. */
export function asError(thrown: unknown): JerboaError {
  return thrown instanceof JerboaError ? thrown : new JerboaError("internal", String(thrown));
}

export function told(error: JerboaError): Told {
  const words = capital(withoutName(error));
  const text = ERRORS[error.code];
  return text ? { text, details: words } : { text: words };
}

/** Refusals begin with the name of the function or parameter, for programs. */
function withoutName({ code, message }: JerboaError): string {
  return code === "request" ? message.replace(/^[a-z]\w*: (?=[a-z'])/i, "") : message;
}

/** A sentence begins with a capital; a name of a file or an option stays as it is. */
export function capital(text: string): string {
  return /^[a-z]+[ ,]/.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
}
