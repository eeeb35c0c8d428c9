/** The public API of a session. Adds the session id to each call. */

import { Chat, type RequestOptions } from "./chat.js";
import { checked, describe, requireValid, valid } from "./check.js";
import { TextCompletions } from "./completions.js";
import type { ModelInfo } from "./contract.js";
import { disposed, invalidRequest, requireOpen } from "./errors.js";
import { checkedIds, generate, type GenerateOptions, isPromptList } from "./generate.js";
import { Generation } from "./generation.js";
import type { SavedSession } from "./saved-sessions.js";
import type { Backend, CallOptions, Method, Methods } from "./engine-calls.js";

/** A session: a context separate from the model's other requests. Created by `model.createSession()`. */
export class Session {
  /** OpenAI's chat completions, in this session. */
  readonly chat: Chat;
  /** OpenAI's legacy completions, in this session. */
  readonly completions: TextCompletions;
  readonly #backend: SessionBackend;
  readonly #info: ModelInfo;
  #tokens: Uint32Array = new Uint32Array();

  /** @internal */
  constructor(backend: Backend, info: ModelInfo, id: number) {
    this.#backend = new SessionBackend(backend, id);
    this.#info = info;
    this.chat = new Chat(this.#backend, info);
    this.completions = new TextCompletions(this.#backend, info);
  }

  /** Like {@link Model.generate}, in this session. */
  generate(prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
    if (isPromptList(prompt)) return Generation.of(() => { throw invalidRequest("session.generate takes one prompt, since a session is one context. Pass a list of prompts to model.generate."); });
    return generate(this.#backend, this.#info, prompt, options);
  }

  /**
   * Sets the session's tokens and returns the `info.vocabSize` logits after the last one. Runs only the tokens after the
   * prefix that they share with the current ones.
   *
   * ```js
   * let logits = await session.prefill("Once upon a time");
   * for (let i = 0; i < 20; i++) logits = await session.step(logits.indexOf(Math.max(...logits)));
   * const text = await model.detokenize(session.tokens);
   * ```
   */
  async prefill(prompt: string | ArrayLike<number>, options?: RequestOptions): Promise<Float32Array> {
    const { signal } = checked("session.prefill", options, { signal: valid.signal });
    const tokens = typeof prompt === "string" ? await this.#backend.call("tokenize", [prompt, true, false]) : checkedIds("session.prefill", prompt);
    return this.#run(tokens, signal);
  }

  /** Appends a token and returns the logits after it. Await each step before the next. */
  async step(token: number, options?: RequestOptions): Promise<Float32Array> {
    const { signal } = checked("session.step", options, { signal: valid.signal });
    const tokens = new Uint32Array(this.#tokens.length + 1);
    tokens.set(this.#tokens);
    tokens.set(checkedIds("session.step", [token]), this.#tokens.length);
    return this.#run(tokens, signal);
  }

  /** The tokens of the last `prefill` and the steps after it. */
  get tokens(): Uint32Array {
    return this.#tokens.slice();
  }

  /** The call carries all tokens, so that it gives the same logits after a lost device or another request. */
  async #run(tokens: Uint32Array, signal: AbortSignal | undefined): Promise<Float32Array> {
    // The session's backend adds its id.
    const logits = await this.#backend.call("prefill", [tokens, 0], { signal });
    this.#tokens = tokens;
    return logits;
  }

  /** Saves tokens and states as bytes, for {@link restore} on the same model, also after a reload. */
  async save(): Promise<Blob>;
  /** Saves them to a file of this name in the origin private file system. */
  async save(name: string): Promise<SavedSession>;
  async save(name?: string): Promise<Blob | SavedSession> {
    if (name !== undefined) requireValid("session.save", "the name", name, valid.string);
    const { bytes, blob } = await this.#backend.call("saveSession", [name, 0]);
    return blob ?? { name: name!, bytes };
  }

  /**
   * Replaces the context by that of a saved session. Rejects one that was saved with another model, precision or adapter.
   *
   * ```js
   * await session.save("chat 1");                    // later, maybe after a reload:
   * const session = await model.createSession();
   * await session.restore("chat 1");
   * ```
   */
  async restore(saved: Blob | string): Promise<void> {
    if (typeof saved !== "string" && !(saved instanceof Blob)) throw invalidRequest(`session.restore: expects a name or the Blob of session.save(), not ${describe(saved)}.`);
    this.#tokens = await this.#backend.call("restoreSession", [saved, 0]);
  }

  /** Creates a session with the same context, after the requests so far are done. */
  async fork(): Promise<Session> {
    const session = await this.#backend.fork(this.#info);
    session.#tokens = this.#tokens;
    return session;
  }

  /** Stops running requests and frees the session's memory. */
  async dispose(): Promise<void> {
    return this.#backend.close();
  }
}

/** The calls that run in a session. */
const OF_SESSIONS = new Set<Method>(["generate", "prefill", "saveSession", "restoreSession"]);

/** A backend that adds a session id to each call that runs tokens. */
class SessionBackend implements Backend {
  readonly #inner: Backend;
  readonly #id: number;
  readonly #closing = new AbortController();
  readonly ending: AbortSignal;

  constructor(inner: Backend, id: number) {
    this.#inner = inner;
    this.#id = id;
    this.ending = AbortSignal.any([inner.ending, this.#closing.signal]);
  }

  get worker(): boolean {
    return this.#inner.worker;
  }

  get closed(): boolean {
    return this.#closing.signal.aborted || this.#inner.closed;
  }

  get disposed(): boolean {
    return this.#closing.signal.aborted && !this.#inner.closed;
  }

  async call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    requireOpen(this);
    if (!OF_SESSIONS.has(method)) return this.#inner.call(method, args, options);
    const signal = options.signal ? AbortSignal.any([options.signal, this.#closing.signal]) : this.#closing.signal;
    try {
      return await this.#inner.call(method, [args[0], this.#id] as never, { ...options, signal });
    } catch (thrown) {
      // An abort caused only by disposing the session is reported as such.
      throw this.#closing.signal.aborted && !options.signal?.aborted ? disposed() : thrown;
    }
  }

  async fork(info: ModelInfo): Promise<Session> {
    requireOpen(this);
    return new Session(this.#inner, info, await this.#inner.call("forkSession", [this.#id]));
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.#closing.abort(disposed());
    await this.#inner.call("disposeSession", [this.#id]);
  }
}
