/** The public API of a session. Adds the session id to each call. */

import { Chat } from "./chat.js";
import { TextCompletions } from "./completions.js";
import type { ModelInfo } from "./contract.js";
import { aborted, disposed } from "./errors.js";
import { generate, type GenerateOptions } from "./generate.js";
import { Generation } from "./generation.js";
import type { Backend, CallOptions, Method, Methods } from "./engine-calls.js";

/** A session: a context separate from the model's other requests. Created by `model.createSession()`. */
export class Session {
  /** OpenAI's chat completions, in this session. */
  readonly chat: Chat;
  /** OpenAI's legacy completions, in this session. */
  readonly completions: TextCompletions;
  readonly #backend: SessionBackend;
  readonly #info: ModelInfo;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo, id: number) {
    this.#backend = new SessionBackend(backend, id);
    this.#info = info;
    this.chat = new Chat(this.#backend, info);
    this.completions = new TextCompletions(this.#backend, info);
  }

  /** Like {@link Model.generate}, in this session. */
  generate(prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
    if (this.#backend.closed) return Generation.of(() => { throw disposed(); });
    return generate(this.#backend, this.#info, prompt, options);
  }

  /** Creates a session with the same context, after the requests so far are done. */
  async fork(): Promise<Session> {
    return this.#backend.fork(this.#info);
  }

  /** Stops running requests and frees the session's memory. */
  async dispose(): Promise<void> {
    return this.#backend.close();
  }
}

/** A backend that adds a session id to each generation. */
class SessionBackend implements Backend {
  readonly #inner: Backend;
  readonly #id: number;
  readonly #closing = new AbortController();

  constructor(inner: Backend, id: number) {
    this.#inner = inner;
    this.#id = id;
  }

  get worker(): boolean {
    return this.#inner.worker;
  }

  get closed(): boolean {
    return this.#closing.signal.aborted || this.#inner.closed;
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    if (this.#closing.signal.aborted) throw disposed();
    if (method !== "generate") return this.#inner.call(method, args, options);
    const signal = options.signal ? AbortSignal.any([options.signal, this.#closing.signal]) : this.#closing.signal;
    try {
      const [request] = args as Parameters<Methods["generate"]>;
      return (await this.#inner.call("generate", [request, this.#id], { ...options, signal })) as ReturnType<Methods[M]>;
    } catch (thrown) {
      // An abort caused only by disposing the session is reported as such.
      throw this.#closing.signal.aborted && !options.signal?.aborted ? disposed() : thrown;
    }
  }

  async fork(info: ModelInfo): Promise<Session> {
    if (this.closed) throw disposed();
    return new Session(this.#inner, info, await this.#inner.call("forkSession", [this.#id]));
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.#closing.abort(aborted("The session"));
    await this.#inner.call("disposeSession", [this.#id]);
  }
}
