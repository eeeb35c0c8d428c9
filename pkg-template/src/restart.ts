/** Loads a model again in a fresh engine after its worker or its engine died. */

import { aborted, unloaded } from "./errors.js";
import { attributesOf, type Backend, type CallOptions, type Method, type Methods } from "./engine-calls.js";
import { untilAborted } from "./waits.js";

/** A backend of a loaded model whose next call after a death starts another one. */
export class RestartingBackend implements Backend {
  #inner: Backend;
  readonly #reload: () => Promise<Backend>;
  /** Ids of the open sessions: they start empty in a fresh engine. */
  readonly #sessions = new Set<number>();
  #restarting: Promise<void> | undefined;
  #closed = false;

  /** `reload` starts another backend and loads the model in it. */
  constructor(inner: Backend, reload: () => Promise<Backend>) {
    this.#inner = inner;
    this.#reload = reload;
  }

  get worker(): boolean {
    return this.#inner.worker;
  }

  get closed(): boolean {
    return this.#closed;
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    if (this.#closed) throw unloaded();
    if (method === "disposeSession") this.#sessions.delete(args[0] as number);
    if (this.#inner.closed) {
      if (attributesOf(method).frees) return undefined as ReturnType<Methods[M]>;
      if (options.signal?.aborted) throw aborted(method);
      await untilAborted(0, method, options.signal, (this.#restarting ??= this.#restart().finally(() => (this.#restarting = undefined))));
    }
    const result = await this.#inner.call(method, args, options);
    if (attributesOf(method).opensSession) this.#sessions.add(result as number);
    return result;
  }

  async #restart(): Promise<void> {
    const next = await this.#reload();
    if (this.#closed) {
      void next.close();
      throw unloaded();
    }
    await next.call("adoptSessions", [[...this.#sessions]]);
    void this.#inner.close();
    this.#inner = next;
  }

  close(): Promise<void> {
    this.#closed = true;
    return this.#inner.close();
  }
}
