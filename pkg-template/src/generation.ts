/** A running generation: await the whole text or iterate over it. */

import type { GenerationEvent, GenerationResult } from "./contract.js";
import { aborted, JerboaError, invalidRequest } from "./errors.js";

/** Starts a generation with an event callback and an abort signal. */
export type StartGeneration = (onEvent: (event: GenerationEvent) => void, signal: AbortSignal) => Promise<GenerationResult>;

/**
 * A running generation.
 *
 * ```js
 * const text = await model.generate(prompt);                       // the whole text
 * for await (const piece of model.generate(prompt)) show(piece);   // as it comes
 * const { finishReason } = await model.generate(prompt).details;   // with ids, reason and times
 * ```
 *
 * Leaving the loop stops the generation. When it is aborted, the loop ends, `details` resolves with `finishReason:
 * "abort"` and the text so far, and awaiting the text rejects with code `aborted`.
 */
export class Generation implements Promise<string>, AsyncIterable<string> {
  readonly [Symbol.toStringTag] = "Generation";
  /** The complete result, once it has ended. */
  readonly details: Promise<GenerationResult>;
  readonly #events: GenerationEvent[] = [];
  readonly #controller = new AbortController();
  #wake: (() => void) | undefined;
  #done = false;
  #read = false;

  /** @internal */
  constructor(start: StartGeneration, signal?: AbortSignal) {
    const abort = (): void => this.#controller.abort();
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    this.details = this.#run(start).finally(() => {
      signal?.removeEventListener("abort", abort);
      this.#done = true;
      this.#wake?.();
    });
    // The stream reports failures; keep an unawaited `details` from becoming an unhandled rejection.
    this.details.catch(() => {});
  }

  /** @internal Calls `make`; if it throws, returns a generation that rejects with that error. */
  static of(make: () => Generation): Generation {
    try {
      return make();
    } catch (thrown) {
      return new Generation(() => Promise.reject(thrown));
    }
  }

  /** Stops the generation; the text so far remains. */
  abort(): void {
    this.#controller.abort();
  }

  /** Resolves with the whole text. */
  then<A = string, B = never>(
    onText?: ((text: string) => A | PromiseLike<A>) | null,
    onError?: ((reason: JerboaError) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.details
      .then(({ text, finishReason }) => {
        if (finishReason === "abort") throw aborted("The generation");
        return text;
      })
      .then(onText, onError);
  }

  /** Like a promise's `catch`. */
  catch<B = never>(onError?: ((reason: JerboaError) => B | PromiseLike<B>) | null): Promise<string | B> {
    return this.then(undefined, onError);
  }

  /** Like a promise's `finally`. */
  finally(done?: (() => void) | null): Promise<string> {
    return this.then().finally(done);
  }

  /** Iterates over the text as it is generated. */
  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    for await (const { text } of this.events()) if (text) yield text;
  }

  /** Iterates over text with ids and log-probabilities. It can be consumed once. */
  async *events(): AsyncGenerator<GenerationEvent, void, undefined> {
    if (this.#read) throw consumed();
    this.#read = true;
    try {
      for (;;) {
        const event = this.#events.shift();
        if (event) yield event;
        else if (this.#done) break;
        else await new Promise<void>((resolve) => (this.#wake = resolve));
      }
      await this.details;
    } finally {
      if (!this.#done) this.abort();
    }
  }

  /** Runs the generation; an abort is a result too, whether the engine saw it or the call never started. */
  async #run(start: StartGeneration): Promise<GenerationResult> {
    const events: GenerationEvent[] = [];
    const onEvent = (event: GenerationEvent): void => {
      events.push(event);
      this.#events.push(event);
      this.#wake?.();
    };
    try {
      return await start(onEvent, this.#controller.signal);
    } catch (thrown) {
      const error = JerboaError.from(thrown);
      if (error.code !== "aborted" || !this.#controller.signal.aborted) throw error;
      const ids = events.flatMap((event) => event.ids);
      return {
        text: events.map((event) => event.text).join(""),
        ids,
        finishReason: "abort",
        promptTokens: 0,
        cachedTokens: 0,
        draftedTokens: 0,
        acceptedTokens: 0,
        batchedTokens: 0,
        readbacks: 0,
        completionTokens: ids.length,
        reasoningTokens: 0,
        encodeMs: 0,
        prefillMs: 0,
        decodeMs: 0,
      };
    }
  }
}

/** The error of a second loop over one answer. */
export function consumed(): JerboaError {
  return invalidRequest("This answer was already consumed. Send the request again for a new one.");
}

/** A part of one of several answers. */
export interface GroupPiece {
  /** Index of the prompt. */
  index: number;
  text: string;
}

/** An event of one of several answers. */
export interface GroupEvent extends GenerationEvent {
  /** Index of the prompt. */
  index: number;
}

/**
 * Running generations of several prompts, which decode together.
 *
 * ```js
 * const texts = await model.generate(prompts);                     // all texts, in order
 * for await (const { index, text } of model.generate(prompts)) show(index, text); // as they come
 * for (const answer of model.generate(prompts)) show(answer);      // a generation for each
 * ```
 *
 * Leaving the asynchronous loop stops all of them.
 */
export class GenerationGroup implements Promise<string[]>, Iterable<Generation>, AsyncIterable<GroupPiece> {
  readonly [Symbol.toStringTag] = "GenerationGroup";
  /** The complete results, once all have ended. */
  readonly details: Promise<GenerationResult[]>;
  readonly #all: Generation[];

  /** @internal */
  constructor(all: Generation[]) {
    this.#all = all;
    this.details = Promise.all(all.map(({ details }) => details));
    this.details.catch(() => {});
  }

  /** Number of generations. */
  get length(): number {
    return this.#all.length;
  }

  /** Stops all of them. */
  abort(): void {
    for (const one of this.#all) one.abort();
  }

  /** Resolves with all texts, in the order of the prompts. */
  then<A = string[], B = never>(onTexts?: ((texts: string[]) => A | PromiseLike<A>) | null, onError?: ((reason: JerboaError) => B | PromiseLike<B>) | null): Promise<A | B> {
    return Promise.all(this.#all).then(onTexts, onError);
  }

  /** Like a promise's `catch`. */
  catch<B = never>(onError?: ((reason: JerboaError) => B | PromiseLike<B>) | null): Promise<string[] | B> {
    return this.then(undefined, onError);
  }

  /** Like a promise's `finally`. */
  finally(done?: (() => void) | null): Promise<string[]> {
    return this.then().finally(done);
  }

  /** Iterates over the pieces of all texts as they are generated. */
  async *[Symbol.asyncIterator](): AsyncGenerator<GroupPiece, void, undefined> {
    for await (const { index, text } of this.events()) if (text) yield { index, text };
  }

  /** Iterates over the events of all generations as they come. It can be consumed once. */
  async *events(): AsyncGenerator<GroupEvent, void, undefined> {
    const streams = this.#all.map((one) => one.events());
    const next = (index: number) => {
      const event = streams[index]!.next().then((result) => ({ index, result }));
      // It may fail while the caller works on another event; the next turn of the loop reports it.
      event.catch(() => {});
      return event;
    };
    const pending = new Map(streams.map((_, index) => [index, next(index)]));
    try {
      while (pending.size > 0) {
        const { index, result } = await Promise.race(pending.values());
        // Queued behind the others, so that a fast answer does not hold them back.
        pending.delete(index);
        if (result.done) continue;
        pending.set(index, next(index));
        yield { index, ...result.value };
      }
    } finally {
      this.abort();
    }
  }

  /** Iterates over the generations, in the order of the prompts. */
  [Symbol.iterator](): Iterator<Generation> {
    return this.#all.values();
  }
}
