/** The one error class of the package. Knows codes and sentences; not who throws them. */

/**
 * The stable name of an error. The engine's own codes come from the wasm module unchanged; `unloaded`, `worker` and `assets` are
 * the facade's, `store…` and `model_mismatch` the memory's.
 */
export type JerboaErrorCode =
  // names, network, cache
  | "model_name" | "not_found" | "gated" | "network" | "changed" | "aborted" | "missing_file" | "cache" | "unverified" | "quota"
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
  // codes of newer engines
  | (string & {});

/** Everything that this package throws: `code` is for programs and stays the same, `message` is for people and says what to do. */
export class JerboaError extends Error {
  override readonly name = "JerboaError";
  /** The stable name of what went wrong. */
  readonly code: JerboaErrorCode;

  constructor(code: JerboaErrorCode, message: string, options?: ErrorOptions) {
    // What a browser or a server said may end a sentence of ours with a stop of its own.
    super(message.replace(/([^.])\.\.(?=\s|$)/g, "$1."), options);
    this.code = code;
  }

  /** Makes a `JerboaError` of whatever was thrown: the engine's plain objects, a browser's exception, a string. */
  static from(thrown: unknown): JerboaError {
    if (thrown instanceof JerboaError) return thrown;
    if (typeof thrown === "object" && thrown !== null) {
      const { name, code, message } = thrown as { name?: unknown; code?: unknown; message?: unknown };
      if (typeof code === "string" && typeof message === "string") return new JerboaError(code, message, { cause: thrown });
      if (name === "AbortError") return new JerboaError("aborted", "The operation was aborted.", { cause: thrown });
      if (typeof message === "string") return new JerboaError("internal", internal(String(name ?? "Error"), message), { cause: thrown });
    }
    return new JerboaError("internal", internal("Error", String(thrown)), { cause: thrown });
  }
}

/** The error of an operation that its caller gave up. */
export function aborted(what: string): JerboaError {
  return new JerboaError("aborted", `${what} was aborted.`);
}

/** The error of a call on a model that is gone. */
export function unloaded(): JerboaError {
  return new JerboaError("unloaded", "There is no model here: it was unloaded. Call loadModel again.");
}

/** The error of a call on a session that is gone. */
export function disposed(): JerboaError {
  return new JerboaError("unloaded", "This session is gone: it was disposed of. Call model.createSession() for another.");
}

/** The error of a file of the package that could not be fetched or run. */
export function missingAsset(what: string, reason: unknown): JerboaError {
  const said = reason instanceof Error ? reason.message : String(reason);
  const advice = "Serve the package's files as they are beside each other, or name their addresses: configure({ wasmUrl, workerUrl }).";
  return new JerboaError("assets", `${what} could not be loaded: ${sentence(said)} ${advice}`, { cause: reason });
}

/** The error of a place without WebGPU that is no browser. */
export function noBrowser(): JerboaError {
  return new JerboaError("no_webgpu", "There is no WebGPU here: this is not a web page or a worker of one. In Node, jerboa/memory works; models run in browsers.");
}

/** The error of a request that contradicts itself or names something unknown. */
export function refused(message: string): JerboaError {
  return new JerboaError("request", message);
}

function internal(name: string, message: string): string {
  return `${name}: ${sentence(message)} This is a fault of jerboa; load the model again and please report it.`;
}

/** A text with one full stop at its end. */
function sentence(text: string): string {
  return /[.!?]\s*$/.test(text) ? text.trimEnd() : `${text}.`;
}
