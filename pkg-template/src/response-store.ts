/** Stored responses of one model, and the sessions that keep their KV cache. */

import type { Chat } from "./chat.js";
import type { ModelInfo } from "./contract.js";
import { JerboaError } from "./errors.js";
import type { IdentifiedItem } from "./response-input.js";
import type { ModelResponse } from "./responses-types.js";
import type { Session } from "./session.js";

/** Responses that are kept; the oldest are dropped. */
export const MAX_STORED_RESPONSES = 64;
/** Conversations whose KV cache is kept; each takes memory on the GPU. */
export const MAX_SESSIONS = 2;

/** What responses need of a model. */
export interface ResponseModel {
  readonly info: ModelInfo;
  readonly chat: Chat;
  createSession(): Promise<Session>;
}

/** A response with the items it answered. */
export interface StoredResponse {
  response: ModelResponse;
  /** The items of its own request. */
  items: IdentifiedItem[];
  /** All items up to its output. */
  conversation: IdentifiedItem[];
}

/** A session while one response uses it. */
export interface SessionLease {
  chat: Chat;
  /** Gives the session back; it now ends with this response, by default with the previous one. */
  end(id?: string): void;
}

interface KeptSession {
  session: Session;
  /** The response that its KV cache ends with; undefined while one runs. */
  tip: string | undefined;
}

/** The stored responses. */
export class ResponseStore {
  readonly #model: ResponseModel;
  readonly #responses = new Map<string, StoredResponse>();
  /** Least recently used first. */
  #sessions: KeptSession[] = [];
  #making = 0;

  constructor(model: ResponseModel) {
    this.#model = model;
  }

  /** A stored response. @throws {@link JerboaError} `not_found`. */
  get(id: string): StoredResponse {
    const found = this.#responses.get(id);
    if (found) return found;
    throw new JerboaError("not_found", `The response '${id}' was not found: it was not stored, was deleted, is older than the last ${MAX_STORED_RESPONSES}, or ended with the page that stored it. Send the whole conversation as 'input'.`);
  }

  /** An item of a stored response. */
  item(id: string): IdentifiedItem | undefined {
    for (const { conversation } of this.#responses.values()) {
      const found = conversation.find((item) => item.id === id);
      if (found) return found;
    }
    return undefined;
  }

  add(stored: StoredResponse): void {
    this.#responses.set(stored.response.id, stored);
    for (const id of this.#responses.keys()) if (this.#responses.size > MAX_STORED_RESPONSES) this.#responses.delete(id);
  }

  delete(id: string): void {
    this.get(id);
    this.#responses.delete(id);
    const kept = this.#sessions.find(({ tip }) => tip === id);
    if (kept) this.#drop(kept);
  }

  /** A session that ends with the previous response, or an empty one; undefined if none is available. */
  async lease(previous: string | undefined): Promise<SessionLease | undefined> {
    let kept = this.#sessions.find(({ tip }) => tip !== undefined && tip === previous);
    if (!kept) {
      if (this.#sessions.length + this.#making >= MAX_SESSIONS) {
        const idle = this.#sessions.find(({ tip }) => tip !== undefined);
        // All run: this response uses the model's own sequence.
        if (!idle) return undefined;
        this.#drop(idle);
      }
      const session = await this.#session();
      if (!session) return undefined;
      this.#sessions.push((kept = { session, tip: undefined }));
    }
    const used = kept;
    used.tip = undefined;
    let isEnded = false;
    const end = (id = previous): void => {
      if (isEnded) return;
      isEnded = true;
      if (id === undefined || !this.#responses.has(id)) return this.#drop(used);
      used.tip = id;
      this.#sessions = [...this.#sessions.filter((each) => each !== used), used];
    };
    return { chat: used.session.chat, end };
  }

  async #session(): Promise<Session | undefined> {
    this.#making++;
    try {
      return await this.#model.createSession();
    } catch (thrown) {
      if (JerboaError.from(thrown).code === "out_of_memory") return undefined;
      throw thrown;
    } finally {
      this.#making--;
    }
  }

  #drop(kept: KeptSession): void {
    this.#sessions = this.#sessions.filter((each) => each !== kept);
    // A session of a model that was unloaded is gone already.
    kept.session.dispose().catch(() => {});
  }
}
