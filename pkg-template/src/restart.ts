/** Loads a model again in a fresh engine after its worker or its engine died. */

import { aborted, unloaded } from "./errors.js";
import { attributesOf, type Backend, type CallOptions, type Method, type Methods } from "./engine-calls.js";
import { untilAborted } from "./waits.js";

/** A backend of a loaded model whose next call after a death starts another one. */
export class RestartingBackend implements Backend {
  #inner: Backend;
  readonly #reload: () => Promise<Backend>;
  /** Ids of the open sessions with their adapters: they start empty in a fresh engine. */
  readonly #sessions = new Map<number, string | undefined>();
  /** Arguments of the calls that loaded the adapters, by name. */
  readonly #adapters = new Map<string, Parameters<Methods["loadAdapter"]>>();
  #restarting: Promise<void> | undefined;
  readonly #closing = new AbortController();

  /** `reload` starts another backend and loads the model in it. */
  constructor(inner: Backend, reload: () => Promise<Backend>) {
    this.#inner = inner;
    this.#reload = reload;
  }

  get worker(): boolean {
    return this.#inner.worker;
  }

  get ending(): AbortSignal {
    return this.#closing.signal;
  }

  get closed(): boolean {
    return this.#closing.signal.aborted;
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    if (this.closed) throw unloaded();
    if (method === "disposeSession") this.#sessions.delete(args[0] as number);
    if (this.#inner.closed) {
      if (attributesOf(method).frees) return undefined as ReturnType<Methods[M]>;
      if (options.signal?.aborted) throw aborted(method);
      await untilAborted(0, method, options.signal, (this.#restarting ??= this.#restart().finally(() => (this.#restarting = undefined))));
    }
    const result = await this.#inner.call(method, args, options);
    if (method === "loadAdapter") this.#adapters.set(args[0] as string, args as Parameters<Methods["loadAdapter"]>);
    if (method === "unloadAdapter") this.#adapters.delete(args[0] as string);
    if (attributesOf(method).opensSession) this.#sessions.set(result as number, method === "createSession" ? (args[0] as string | undefined) : this.#sessions.get(args[0] as number));
    return result;
  }

  async #restart(): Promise<void> {
    const next = await this.#reload();
    if (this.closed) {
      void next.close();
      throw unloaded();
    }
    for (const adapter of this.#adapters.values()) await next.call("loadAdapter", adapter);
    await next.call("adoptSessions", [[...this.#sessions.keys()], [...this.#sessions.values()]]);
    void this.#inner.close();
    this.#inner = next;
  }

  close(): Promise<void> {
    this.#closing.abort(unloaded());
    return this.#inner.close();
  }
}
