/** RPC over a message port: results with transfer, aborts, events, and errors with their codes. */

import { type Advice, aborted, JerboaError, type JerboaErrorCode, unloaded } from "./errors.js";
import { CLOSE_TIMEOUT_MS, isolated, WORKER_LOCK_TIMEOUT_MS, WORKER_MAX_PINGS, WORKER_PING_MS } from "./waits.js";
import type { Backend, CallOptions, Method, Methods } from "./engine-calls.js";
import type { Port } from "./platform.js";

/** A message from the caller to the engine. */
type RpcRequest = { id: number; method: Method; args: unknown[] } | { id: number; abort: true } | { id: number; question: number; answer: unknown } | { wasm: string } | { ping: true } | { close: true };

/** A message from the engine to the caller. */
type RpcReply =
  | { hello: true; gpu: boolean }
  | { id: number; event: unknown }
  | { id: number; question: number; asked: unknown }
  | { id: number; result: unknown }
  | { id: number; error: { code: JerboaErrorCode; message: string; advice: Advice | undefined }; fatal: boolean }
  | { pong: true }
  | { lock: string }
  | { closed: true };

/** What answers calls on this thread: the engine's host, or that of another module. */
export interface ServedBackend {
  call(method: never, args: never, options: CallOptions): Promise<unknown>;
  close(): Promise<void>;
  useWasm?(url: string): void;
  readonly trap?: JerboaError | undefined;
}

/** Serves a backend over a port; starts with a hello message. `gpu`: whether this thread has WebGPU, if it is known. */
export function serve(port: Port, backend: ServedBackend, gpu?: boolean): void {
  const running = new Map<number, AbortController>();
  const questions = new Map<number, (answer: unknown) => void>();
  let asked = 0;
  const send = (message: RpcReply, transfer: Transferable[] = []): void => port.postMessage(message, transfer);

  const answer = async (id: number, method: Method, args: unknown[]): Promise<void> => {
    const controller = new AbortController();
    running.set(id, controller);
    try {
      const onEvent = (event: unknown): void => send({ id, event });
      const onQuestion = (question: unknown): Promise<unknown> => new Promise((resolve) => {
        questions.set(++asked, resolve);
        send({ id, question: asked, asked: question }, transferables(Object.values(question as object)));
      });
      const result = await backend.call(method as never, args as never, { signal: controller.signal, onEvent, onQuestion });
      send({ id, result }, transferables(result));
    } catch (thrown) {
      const { code, message, advice } = JerboaError.from(thrown);
      send({ id, error: { code, message, advice }, fatal: backend.trap !== undefined });
    } finally {
      running.delete(id);
    }
  };

  port.addEventListener("message", ({ data }: MessageEvent<RpcRequest | null | undefined>) => {
    // Anything may be posted to a worker; messages other than requests are ignored.
    if (typeof data !== "object" || data === null) return;
    if ("method" in data) {
      if (typeof data.id === "number" && typeof data.method === "string" && Array.isArray(data.args)) void answer(data.id, data.method, data.args);
    } else if ("abort" in data) running.get(data.id)?.abort();
    else if ("question" in data) {
      questions.get(data.question)?.(data.answer);
      questions.delete(data.question);
    } else if ("wasm" in data && typeof data.wasm === "string" && URL.canParse(data.wasm)) backend.useWasm?.(data.wasm);
    else if ("ping" in data) send({ pong: true });
    else if ("close" in data) void backend.close().finally(() => send({ closed: true }));
  });
  let greeted = false;
  const greet = (): void => {
    if (!greeted) send({ hello: true, gpu: gpu ?? (typeof navigator !== "undefined" && "gpu" in navigator) });
    greeted = true;
  };
  const locks = globalThis.navigator?.locks;
  if (!locks) return greet();
  // The browser releases the lock when this worker ends, however it ends. A worker without it is noticed by pings only,
  // so calls wait for the lock a moment.
  const lock = `jerboa:worker:${crypto.randomUUID()}`;
  const held = (): Promise<never> => {
    send({ lock });
    greet();
    return new Promise(() => {});
  };
  setTimeout(greet, WORKER_LOCK_TIMEOUT_MS);
  (async () => locks.request(lock, held))().catch(greet);
}

interface Pending {
  resolve(value: unknown): void;
  reject(reason: JerboaError): void;
  onEvent: ((event: unknown) => void) | undefined;
  onQuestion: ((question: unknown) => Promise<unknown>) | undefined;
}

/** A backend behind a message port. */
export class RemoteBackend implements Backend {
  readonly worker = true;
  /** Resolves when the other side has started, with whether it has WebGPU; rejects if it cannot start. */
  readonly hello: Promise<{ gpu: boolean }>;
  readonly #port: Port;
  readonly #dispose: () => void | Promise<void>;
  readonly #pending = new Map<number, Pending>();
  #next = 1;
  #gone: JerboaError | undefined;
  #closed: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  #pings = 0;
  #pinging: ReturnType<typeof setInterval> | undefined;
  readonly #ended = new AbortController();
  #broken: (reason: string) => void = () => {};

  /** `dispose` terminates the other side, which may take time. `unloadable`: the reason if its script cannot be loaded, of which browsers tell nothing. */
  constructor(port: Port, dispose: () => void | Promise<void>, unloadable?: string) {
    this.#port = port;
    this.#dispose = dispose;
    this.hello = new Promise((resolve, reject) => {
      const broken = (reason: string, message = `The worker that runs the model stopped: ${reason}. The next call starts a new worker and loads the model again.`): void => {
        if (this.#gone) return;
        const error = new JerboaError("worker", message);
        reject(error);
        this.#fail(error);
        void this.#dispose();
      };
      this.#broken = broken;
      port.addEventListener("message", (event: MessageEvent<RpcReply>) => {
        const { data } = event as { data: RpcReply | null | undefined };
        if (typeof data !== "object" || data === null) return;
        this.#pings = 0;
        if ("lock" in data) this.#watch(data.lock);
        else if ("hello" in data) resolve({ gpu: data.gpu });
        else this.#receive(data);
      });
      port.addEventListener("error", (event: ErrorEvent) => {
        event.preventDefault?.();
        broken(event.message || "its script could not be loaded", event.message ? undefined : unloadable);
      });
      port.addEventListener("messageerror", () => broken("a message could not be read"));
    });
    // Calls report the failure as well.
    this.hello.catch(() => {});
  }

  get ending(): AbortSignal {
    return this.#ended.signal;
  }

  get closed(): boolean {
    return this.#gone !== undefined;
  }

  /** Sets the URL of the wasm file on the other side; call it before the first call. */
  useWasm(url: string): void {
    this.#port.postMessage({ wasm: url } satisfies RpcRequest);
  }

  call<M extends Method>(method: M, args: Parameters<Methods[M]>, options: CallOptions = {}): Promise<ReturnType<Methods[M]>> {
    const { signal, onEvent, onQuestion } = options;
    if (this.#gone) return Promise.reject(this.#gone);
    if (signal?.aborted) return Promise.reject(aborted(method));
    const id = this.#next++;
    const abort = (): void => this.#port.postMessage({ id, abort: true } satisfies RpcRequest);
    return new Promise<unknown>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject, onEvent: isolated<unknown>(onEvent as ((event: unknown) => void) | undefined), onQuestion: onQuestion as Pending["onQuestion"] });
      this.#pinging ??= setInterval(() => this.#ping(), WORKER_PING_MS);
      signal?.addEventListener("abort", abort);
      try {
        this.#port.postMessage({ id, method, args } satisfies RpcRequest);
      } catch (thrown) {
        this.#pending.delete(id);
        reject(new JerboaError("request", `${method}: an argument cannot be sent to the worker: ${(thrown as Error).message}. Pass plain data without functions.`, { cause: thrown }));
      }
    }).finally(() => signal?.removeEventListener("abort", abort)) as Promise<ReturnType<Methods[M]>>;
  }

  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    if (this.#gone) return this.#dispose();
    this.#fail(unloaded());
    // A worker that hangs does not answer; it is terminated anyway, which frees its GPU memory.
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, CLOSE_TIMEOUT_MS);
      this.#closed = () => (clearTimeout(timer), resolve());
      this.#port.postMessage({ close: true } satisfies RpcRequest);
    });
    await this.#dispose();
  }

  /** Asks a worker with running calls for a sign of life. */
  #ping(): void {
    if (this.#pending.size === 0) {
      clearInterval(this.#pinging);
      this.#pinging = undefined;
      this.#pings = 0;
    } else if (this.#pings++ >= WORKER_MAX_PINGS) this.#broken(`it did not answer for ${(WORKER_MAX_PINGS * WORKER_PING_MS) / 1000} seconds`);
    else this.#port.postMessage({ ping: true } satisfies RpcRequest);
  }

  /** Waits for the end of the worker, which holds a lock while it lives. */
  #watch(lock: string): void {
    const ended = async (): Promise<void> => this.#broken("it was ended from outside");
    void (async () => globalThis.navigator?.locks?.request(lock, { signal: this.#ended.signal }, ended))().catch(() => {});
  }

  #receive(message: RpcReply): void {
    if ("closed" in message) return this.#closed?.();
    if (!("id" in message)) return;
    const pending = this.#pending.get(message.id);
    if (!pending) return;
    if ("event" in message) return pending.onEvent?.(message.event);
    if ("asked" in message) return void this.#answer(message.id, message.question, pending.onQuestion?.(message.asked), pending.reject);
    if (!("error" in message || "result" in message)) return;
    this.#pending.delete(message.id);
    if ("error" in message) {
      const error = new JerboaError(message.error.code, message.error.message, { advice: message.error.advice });
      pending.reject(error);
      if (!message.fatal) return;
      this.#fail(error);
      this.#dispose();
    } else pending.resolve(message.result);
  }

  /** Sends the answer to a question. Without one the call ends, and rejects with the reason. */
  async #answer(id: number, question: number, answered: Promise<unknown> | undefined, reject: Pending["reject"]): Promise<void> {
    const send = (message: RpcRequest): void => this.#port.postMessage(message);
    try {
      const answer = await answered;
      // Copied: an array may be the caller's own.
      if (!this.#gone) send({ id, question, answer });
    } catch (thrown) {
      reject(JerboaError.from(thrown));
      send({ id, abort: true });
    }
  }

  #fail(error: JerboaError): void {
    this.#gone ??= error;
    this.#ended.abort(this.#gone);
    clearInterval(this.#pinging);
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
  }
}

/** The transferable buffers of a result: those that its arrays own entirely. */
function transferables(result: unknown): Transferable[] {
  const arrays = Array.isArray(result) ? result : [result];
  const buffers = new Set<ArrayBuffer>();
  for (const array of arrays) {
    if (!ArrayBuffer.isView(array)) continue;
    if (array.buffer instanceof ArrayBuffer && array.buffer.byteLength === array.byteLength) buffers.add(array.buffer);
  }
  return [...buffers];
}
