/** The package's only error class, with its codes and shared messages. */

/**
 * The stable code of an error. The engine's codes pass from the wasm module unchanged; `unloaded`, `worker` and
 * `assets` belong to the facade, `store…` and `model_mismatch` to the memory, `remote_refused` to the router.
 */
export type JerboaErrorCode =
  // names, network, cache
  | "model_name" | "not_found" | "gated" | "network" | "changed" | "aborted" | "missing_file" | "cache" | "unverified" | "unchecked" | "quota"
  // files and encodings
  | "malformed" | "unsupported_encoding" | "missing_tensor" | "shape"
  // configuration and text
  | "config" | "unknown_architecture" | "unsupported_option" | "tokenizer" | "chat_template"
  // the device
  | "no_webgpu" | "kernel" | "out_of_memory" | "device_lost"
  // running
  | "request" | "context_full" | "not_finite" | "internal"
  // the facade
  | "unloaded" | "worker" | "assets"
  // the memory
  | "store" | "store_version" | "store_locked" | "store_blocked" | "model_mismatch"
  // the router
  | "remote_refused";

/** The part of a message that advises a call, for hosts that name the call otherwise. */
export interface Advice {
  /** What it is about: a method such as `model.embed`, the `source` of a model, the `token` of the Hub, the `server_token` of another server. */
  about: string;
  /** The part of the message. */
  text: string;
}

/**
 * Every error of this package. `code` is stable and meant for programs; `message` is for people and says what to do.
 */
export class JerboaError extends Error {
  override readonly name = "JerboaError";
  /** The stable error code. */
  readonly code: JerboaErrorCode;
  /** What the message advises to call in a page, for hosts that are none. */
  readonly advice: Advice | undefined;

  constructor(code: JerboaErrorCode, message: string, options?: ErrorOptions & { advice?: Advice | undefined }) {
    // Text of the engine, a browser or a server may end with a period or not.
    const text = message.replace(/([^.])\.\.(?=\s|$)/g, "$1.");
    // Consoles take a period after an address for a part of it.
    super(/^$|https?:\/\/\S+$/.test(text) ? text : sentence(text), options);
    this.code = code;
    this.advice = options?.advice;
  }

  /** Converts anything thrown to a `JerboaError`: the engine's plain objects, a browser's exception, a string. */
  static from(thrown: unknown): JerboaError {
    if (thrown instanceof JerboaError) return thrown;
    if (typeof thrown === "object" && thrown !== null) {
      const { name, code, message, advice } = thrown as { name?: unknown; code?: unknown; message?: unknown; advice?: Advice };
      if (typeof code === "string" && typeof message === "string") return new JerboaError(code as JerboaErrorCode, message, { cause: thrown, advice });
      if (name === "AbortError") return new JerboaError("aborted", "The operation was aborted.", { cause: thrown });
      if (typeof message === "string") return new JerboaError("internal", internal(String(name ?? "Error"), message), { cause: thrown });
    }
    return new JerboaError("internal", internal("Error", textOf(thrown)), { cause: thrown });
  }
}

/** The message of an error for a host that names calls as `terms` do, by what the advice is about. */
export function worded({ message, advice }: JerboaError, terms: Record<string, string>): string {
  const term = advice && terms[advice.about];
  if (!term) return message;
  const begins = /^[A-Z]/.test(advice.text);
  return message.replace(advice.text, () => (begins ? term[0]!.toUpperCase() + term.slice(1) : term));
}

/** Whether an exception means that WebAssembly stopped in the middle of its work: a trap, a panic or a stack overflow. */
export function isTrap(thrown: unknown): boolean {
  if (thrown instanceof WebAssembly.RuntimeError) return true;
  return thrown instanceof Error && /call stack|recursion/i.test(thrown.message) && /wasm/i.test(thrown.stack ?? "");
}

/** The text of anything thrown, which may have none. */
export function textOf(thrown: unknown): string {
  try {
    return thrown instanceof Error ? `${thrown.message}` : String(thrown);
  } catch {
    return "a value without text";
  }
}

/** The errors behind the events of failed responses. */
export const failures = new WeakMap<object, JerboaError>();

/** The error of a cancelled operation. */
export function aborted(what: string): JerboaError {
  return new JerboaError("aborted", `${what} was aborted.`);
}

/** The error of a call on an unloaded model. */
export function unloaded(): JerboaError {
  return new JerboaError("unloaded", "The model was unloaded. Call loadModel again.");
}

/** The error of a call on a disposed session. */
export function disposed(): JerboaError {
  return new JerboaError("unloaded", "This session was disposed. Call model.createSession() for a new one.");
}

/** Throws unless a backend, of a model or of a session, is open. */
export function requireOpen({ closed, disposed: ofSession }: { closed: boolean; disposed?: boolean }): void {
  if (closed) throw ofSession ? disposed() : unloaded();
}

/** The error of a package file that could not be fetched or run. */
export function missingAsset(what: string, reason: unknown): JerboaError {
  const said = textOf(reason);
  const offline = globalThis.navigator?.onLine === false;
  const advice = offline ? "This device is offline. Connect it and try again." : /ServiceWorkerGlobalScope/.test(said) ? "Bundle the service worker into one file, because service workers cannot import scripts on demand." : "Serve the package's files unchanged from one folder, or set their URLs: configure({ wasmUrl, workerUrl }).";
  return new JerboaError("assets", `${what} could not be loaded: ${sentence(said)} ${advice}`, { cause: reason });
}

/** The error of an environment without WebGPU that is not a browser. */
export function noBrowser(): JerboaError {
  return new JerboaError("no_webgpu", "WebGPU is not available: this entry of the package runs models only in web pages and workers. In Node, import the package by its name, 'jerboa'.");
}

/** The error of an invalid request: contradictory options or unknown names. */
export function invalidRequest(message: string, advice?: Advice): JerboaError {
  return new JerboaError("request", message, { advice });
}

function internal(name: string, message: string): string {
  return `${name}: ${sentence(message)} This is a bug in jerboa. Load the model again and please report it.`;
}

/** Ends a text with exactly one period. */
function sentence(text: string): string {
  return /[.!?…]\s*$/.test(text) ? text.trimEnd() : `${text}.`;
}
