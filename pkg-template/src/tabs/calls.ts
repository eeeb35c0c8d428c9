/** Requests and their answers as messages between threads or tabs. */

import { JerboaError, type JerboaErrorCode } from "../index.js";
import { randomId } from "../random-id.js";
import { StreamContinuation } from "./continuation.js";

/** A request as a message. */
export interface Call {
  url: string;
  method: string;
  type: string | null;
  body: ArrayBuffer | undefined;
}

/** From the page: a call, or the end of one. */
export type CallMessage = { id: string; from?: string } & ({ call: Call } | { abort: true });

/** To the page: the head of an answer, its body piece by piece, its end. */
export type ReplyMessage = { id: string } & ({ status: number; headers: [string, string][] } | { bytes: Uint8Array } | { end: true } | { failure: { code: JerboaErrorCode; message: string; advice: JerboaError["advice"] } });

/** The lock that a caller holds while it lives. */
const callerLock = (caller: string): string => `jerboa:tabs:caller:${caller}`;

/** Answers calls. */
export class CallServer {
  readonly #fetch: typeof fetch;
  readonly #running = new Map<string, AbortController>();
  readonly #callers = new Set<string>();

  constructor(serve: typeof fetch) {
    this.#fetch = serve;
  }

  /** Handles a message of a caller. A call that is repeated while it runs is answered once. */
  receive(message: CallMessage, from: string, reply: (message: ReplyMessage) => void): void {
    const key = `${from} ${message.id}`;
    this.#watch(from);
    if ("abort" in message) this.#running.get(key)?.abort();
    else if (!this.#running.has(key)) void this.#answer(message.id, key, message.call, reply);
  }

  /** Aborts the calls of a caller when it ends, which releases its lock. */
  #watch(from: string): void {
    if (this.#callers.has(from)) return;
    this.#callers.add(from);
    const ended = async (): Promise<void> => {
      this.#callers.delete(from);
      for (const [key, controller] of this.#running) if (key.startsWith(`${from} `)) controller.abort();
    };
    void (async () => globalThis.navigator?.locks?.request(callerLock(from), ended))().catch(() => {});
  }

  async #answer(id: string, key: string, { url, method, type, body }: Call, reply: (message: ReplyMessage) => void): Promise<void> {
    const controller = new AbortController();
    this.#running.set(key, controller);
    try {
      const response = await this.#fetch(url, { method, signal: controller.signal, ...(body ? { body, headers: type ? { "content-type": type } : {} } : {}) });
      reply({ id, status: response.status, headers: [...response.headers] });
      const reader = response.body?.getReader();
      for (let read = await reader?.read(); read && !read.done; read = await reader?.read()) reply({ id, bytes: read.value });
      reply({ id, end: true });
    } catch (thrown) {
      const { code, message, advice } = JerboaError.from(thrown);
      if (!controller.signal.aborted) reply({ id, failure: { code, message, advice } });
    } finally {
      this.#running.delete(key);
    }
  }
}

/** A call that waits for its answer. */
interface Pending {
  call: Call;
  /** Delivers the answer; absent once it was. */
  resolve: ((response: Response) => void) | undefined;
  reject: (reason: unknown) => void;
  stream: ReadableStreamDefaultController<Uint8Array> | undefined;
  answer: AnswerReader | undefined;
  continuation: StreamContinuation;
}

/** Calls that another thread or tab answers. */
export class Calls {
  readonly #post: (message: CallMessage) => void;
  readonly #pending = new Map<string, Pending>();
  /** Names this caller. */
  readonly caller = randomId();
  readonly #hasLock: Promise<void>;

  constructor(post: (message: CallMessage) => void) {
    this.#post = (message) => post({ ...message, from: this.caller });
    this.#hasLock = new Promise((resolve) => {
      const hold = (): Promise<never> => {
        resolve();
        return new Promise(() => {});
      };
      // Without a lock the other side cannot notice the end of this one.
      (async () => navigator.locks.request(callerLock(this.caller), hold))().catch(() => resolve());
    });
  }

  /** Sends a request. */
  async fetch(request: Request): Promise<Response> {
    const { signal } = request;
    const hasBody = !["GET", "HEAD", "DELETE"].includes(request.method);
    const call: Call = { url: request.url, method: request.method, type: request.headers.get("content-type"), body: hasBody ? seeded(request.url, await request.arrayBuffer()) : undefined };
    await this.#hasLock;
    if (signal.aborted) throw signal.reason;
    const id = randomId();
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { call, resolve, reject, stream: undefined, answer: undefined, continuation: new StreamContinuation() });
      signal.addEventListener("abort", () => {
        const pending = this.#end(id);
        if (!pending) return;
        this.#post({ id, abort: true });
        pending.reject(signal.reason);
        pending.stream?.error(signal.reason);
      });
      this.#post({ id, call });
    });
  }

  /** Sends the running calls again: another tab answers from now on. */
  restart(): void {
    for (const [id, pending] of this.#pending) {
      pending.answer = undefined;
      pending.continuation.restart();
      this.#post({ id, call: pending.call });
    }
  }

  /** Handles a message of the answering side. */
  receive(message: ReplyMessage): void {
    const { id } = message;
    const pending = this.#pending.get(id);
    if (!pending) return;
    if ("failure" in message) {
      this.#end(id);
      const error = new JerboaError(message.failure.code, message.failure.message, { advice: message.failure.advice });
      pending.reject(error);
      pending.stream?.error(error);
    } else if ("status" in message) {
      pending.answer = new AnswerReader(message);
      if (pending.answer.isStream) this.#deliver(id, pending);
    } else if ("bytes" in message) {
      if (!pending.answer?.isStream) pending.answer?.bytes.push(message.bytes);
      else for (const event of pending.answer.events(message.bytes)) this.#pass(pending, event);
    } else {
      this.#end(id);
      if (pending.answer?.isStream) pending.stream?.close();
      else if (pending.answer) pending.resolve?.(new Response(new Blob(pending.answer.bytes as Uint8Array<ArrayBuffer>[]), pending.answer.head));
    }
  }

  /** Gives the caller the head of a stream, once. */
  #deliver(id: string, pending: Pending): void {
    if (!pending.resolve) return;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => void (pending.stream = controller),
      cancel: () => {
        if (this.#end(id)) this.#post({ id, abort: true });
      },
    });
    pending.resolve(new Response(body, pending.answer!.head));
    pending.resolve = undefined;
  }

  /** Passes on what the caller lacks of an event. */
  #pass(pending: Pending, event: string): void {
    const rest = pending.continuation.rest(event);
    if (rest !== undefined) pending.stream?.enqueue(new TextEncoder().encode(rest));
  }

  #end(id: string): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    return pending;
  }
}

/** An answer as it arrives. */
class AnswerReader {
  readonly isStream: boolean;
  readonly head: ResponseInit;
  readonly bytes: Uint8Array[] = [];
  readonly #decoder = new TextDecoder();
  #rest = "";

  constructor({ status, headers }: { status: number; headers: [string, string][] }) {
    const head = new Headers(headers);
    this.head = { status, headers: head };
    this.isStream = head.get("content-type")?.includes("event-stream") ?? false;
  }

  /** The complete server-sent events up to these bytes. */
  events(bytes: Uint8Array): string[] {
    const pieces = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n\n");
    this.#rest = pieces.pop()!;
    return pieces.map((piece) => `${piece}\n\n`);
  }
}

/** Paths whose sampling a seed decides. */
const SEEDED = /\/completions$/;

/** The body with a seed, so that an answer that starts again in another tab has the same tokens. */
function seeded(url: string, body: ArrayBuffer): ArrayBuffer {
  if (!SEEDED.test(new URL(url).pathname)) return body;
  try {
    const fields = JSON.parse(new TextDecoder().decode(body)) as Record<string, unknown>;
    if (fields["stream"] !== true || fields["seed"] != null) return body;
    const [seed] = crypto.getRandomValues(new Uint32Array(1));
    return new TextEncoder().encode(JSON.stringify({ ...fields, seed })).buffer as ArrayBuffer;
  } catch {
    // The model's side refuses it with a message.
    return body;
  }
}
