/** A loaded model as programs see it. Checks and shapes requests; everything else happens in the engine. */

import { Chat } from "./chat.js";
import { checked, describe, mustBe } from "./check.js";
import type { EngineRequest, Measurement, MeasureOptions, MemoryUse, ModelInfo, Overflow, Speculation } from "./contract.js";
import { TextCompletions } from "./completions.js";
import { Embeddings, type EmbedOptions, type Ranked, type RerankOptions, embed, rerank } from "./embeddings.js";
import { refused, unloaded } from "./errors.js";
import { Generation } from "./generation.js";
import type { Backend } from "./host.js";
import { type ChatMessage, type Tool, engineMessages } from "./messages.js";
import { Session } from "./session.js";

/** Options of {@link Model.generate}. What is left out follows the model's generation_config.json. */
export interface GenerateOptions {
  /** The most tokens to generate. */
  maxTokens?: number;
  /** 0 takes the most likely token each time. */
  temperature?: number;
  /** Keeps the k most likely tokens. */
  topK?: number;
  /** Keeps the most likely tokens that together reach this probability. */
  topP?: number;
  /** Drops tokens less likely than this share of the most likely one. */
  minP?: number;
  /** Locally typical sampling. */
  typicalP?: number;
  /** Above 1 makes tokens that were there less likely. */
  repetitionPenalty?: number;
  /** From -2 to 2, off tokens that were generated at all. */
  presencePenalty?: number;
  /** From -2 to 2, off tokens by how often they were generated. */
  frequencyPenalty?: number;
  /** Added to the logits of these token ids. */
  logitBias?: Record<number, number>;
  /** The same seed gives the same tokens. */
  seed?: number;
  /** Texts that end the generation; they are not part of the result. */
  stop?: string | string[];
  /** Log-probabilities of the generated tokens, in the events. */
  logprobs?: boolean;
  /** How many alternatives come with each, up to 20. */
  topLogprobs?: number;
  /** What to do when the context is full; `error` by default. */
  overflow?: Overflow;
  /** Goes on after the end-of-text token. */
  ignoreEos?: boolean;
  /** `"prompt-lookup"` drafts what the text repeats and verifies it; `"off"` by default. */
  speculation?: Speculation;
  /** Stops it. */
  signal?: AbortSignal;
}

/** Options of {@link Model.renderChat}. */
export interface RenderChatOptions {
  /** Functions that the model may call. */
  tools?: Tool[];
  /** Opens the assistant's turn at the end; true by default. */
  addGenerationPrompt?: boolean;
  /** More variables for the template, such as `enable_thinking`. */
  kwargs?: Record<string, unknown>;
}

/** The checks of the options of a generation. */
export const SAMPLING = {
  maxTokens: mustBe.integer(1),
  temperature: mustBe.number(0, 100),
  topK: mustBe.integer(0),
  topP: mustBe.number(0, 1),
  minP: mustBe.number(0, 1),
  typicalP: mustBe.number(0, 1),
  repetitionPenalty: mustBe.number(0.01, 100),
  presencePenalty: mustBe.number(-2, 2),
  frequencyPenalty: mustBe.number(-2, 2),
  logitBias: mustBe.biases,
  seed: mustBe.integer(0, Number.MAX_SAFE_INTEGER),
  stop: mustBe.strings,
  logprobs: mustBe.boolean,
  topLogprobs: mustBe.integer(0, 20),
  overflow: mustBe.oneOf("error", "truncate", "rolling"),
  ignoreEos: mustBe.boolean,
  speculation: mustBe.oneOf("off", "prompt-lookup"),
  signal: mustBe.signal,
};

/** A loaded model. `loadModel` makes it. */
export class Model {
  /** What it is, what it costs, and what it runs on. */
  readonly info: ModelInfo;
  /** OpenAI's chat completions. */
  readonly chat: Chat;
  /** OpenAI's older completions: a text is continued. */
  readonly completions: TextCompletions;
  /** OpenAI's embeddings. */
  readonly embeddings: Embeddings;
  readonly #backend: Backend;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.#backend = backend;
    this.info = info;
    this.chat = new Chat(backend, info);
    this.completions = new TextCompletions(backend, info);
    this.embeddings = new Embeddings(backend, info);
  }

  /**
   * Continues a text, or a list of token ids.
   *
   * ```js
   * for await (const piece of model.generate("Once upon a time", { temperature: 0 })) output.append(piece);
   * ```
   */
  generate(prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
    return generate(this.#backend, this.info, prompt, options);
  }

  /**
   * A sequence of its own on this model: its own context, the same weights. Requests of one session take turns, those of several run side by side.
   *
   * ```js
   * const session = await model.createSession();
   * await session.generate("Once upon a time");
   * const other = await session.fork();              // goes on from the same place, otherwise
   * await Promise.all([session.dispose(), other.dispose()]);
   * ```
   */
  async createSession(): Promise<Session> {
    if (this.#backend.closed) throw unloaded();
    if (this.info.task !== "generate") throw refused(`${this.info.model} has no sessions; it is for ${this.info.task}.`);
    return new Session(this.#backend, this.info, await this.#backend.call("createSession", []));
  }

  /** The token ids of a text, with the special tokens that the model expects around it unless told otherwise. */
  async tokenize(text: string, options?: { addSpecialTokens?: boolean }): Promise<Uint32Array> {
    if (mustBe.string(text)) throw refused(`tokenize takes a string, not ${describe(text)}.`);
    const { addSpecialTokens = true } = checked("tokenize", options, { addSpecialTokens: mustBe.boolean });
    return this.#backend.call("tokenize", [text, addSpecialTokens]);
  }

  /** The text of token ids. */
  async detokenize(tokens: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string> {
    const { skipSpecialTokens = true } = checked("detokenize", options, { skipSpecialTokens: mustBe.boolean });
    return this.#backend.call("detokenize", [ids("detokenize", tokens), skipSpecialTokens]);
  }

  /** How many tokens a text is, or a conversation once it is rendered. */
  async countTokens(input: string | ChatMessage[], options?: { addSpecialTokens?: boolean }): Promise<number> {
    if (typeof input === "string") return (await this.tokenize(input, options)).length;
    return (await this.tokenize(await this.renderChat(input), { addSpecialTokens: false })).length;
  }

  /** The text that the model's chat template makes of a conversation. */
  async renderChat(messages: ChatMessage[], options?: RenderChatOptions): Promise<string> {
    const spec = { tools: mustBe.array, addGenerationPrompt: mustBe.boolean, kwargs: mustBe.object };
    const { kwargs, ...rest } = checked("renderChat", options, spec);
    return this.#backend.call("renderChat", [engineMessages("renderChat", messages), { addGenerationPrompt: true, ...kwargs, ...rest }]);
  }

  /** The vector of a text. */
  embed(text: string, options?: EmbedOptions): Promise<Float32Array>;
  /** The vectors of texts, in their order. */
  embed(texts: string[], options?: EmbedOptions): Promise<Float32Array[]>;
  async embed(input: string | string[], options?: EmbedOptions): Promise<Float32Array | Float32Array[]> {
    const vectors = await embed(this.#backend, this.info, input, options);
    return typeof input === "string" ? vectors[0]! : vectors;
  }

  /** Scores documents against a query, best first. */
  rerank(query: string, documents: string[], options?: RerankOptions): Promise<Ranked[]> {
    return rerank(this.#backend, this.info, query, documents, options);
  }

  /** The logits after the last of these ids, or after each of them: rows of `info.vocabSize` numbers. */
  async logits(tokens: ArrayLike<number>, options?: { all?: boolean }): Promise<Float32Array> {
    const { all = false } = checked("logits", options, { all: mustBe.boolean });
    return this.#backend.call("logits", [ids("logits", tokens), all]);
  }

  /** Bytes in use now. */
  async memory(): Promise<MemoryUse> {
    return this.#backend.call("memory", []);
  }

  /** Numbers about how the model runs here: time by kernel, the device's limits, the host's cost of a step. For benchmarks. */
  async measure(options?: MeasureOptions): Promise<Measurement> {
    const spec = { position: mustBe.integer(0), profile: mustBe.array, limits: mustBe.boolean, steps: mustBe.integer(0), guesses: mustBe.integer(0) };
    return this.#backend.call("measure", [checked("measure", options, spec)]);
  }

  /** Removes this model's files from the browser's cache; the loaded model goes on running. */
  async deleteFromCache(): Promise<void> {
    return this.#backend.call("deleteFromCache", []);
  }

  /**
   * Gives the GPU memory back when what runs is done, as a page does well to that goes to the background. The next call loads the model
   * again from the cache.
   */
  async release(): Promise<void> {
    return this.#backend.call("release", []);
  }

  /** Ends what runs, frees the GPU memory, and ends the worker. */
  async unload(): Promise<void> {
    return this.#backend.close();
  }
}

/** Starts a generation, in whatever session the backend stands for. */
export function generate(backend: Backend, info: ModelInfo, prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation {
  if (backend.closed) throw unloaded();
  if (info.task !== "generate") throw refused(`${info.model} does not generate text; it is for ${info.task}.`);
  const { signal, stop, ...rest } = checked("generate", options, SAMPLING);
  if (rest.topLogprobs && !rest.logprobs) throw refused("generate: 'topLogprobs' needs logprobs: true.");
  const request: EngineRequest = { ...rest };
  if (stop !== undefined) request.stop = typeof stop === "string" ? [stop] : stop;
  if (typeof prompt === "string") request.prompt = prompt;
  else if (typeof prompt === "object" && prompt !== null) request.ids = [...ids("generate", prompt)];
  else throw refused(`generate takes a text or a list of token ids, not ${describe(prompt)}.`);
  return new Generation((onEvent, s) => backend.call("generate", [request], { signal: s, onEvent }), signal);
}

function ids(where: string, tokens: ArrayLike<number>): Uint32Array {
  const list = typeof tokens === "object" && tokens !== null && "length" in tokens ? Array.from(tokens) : undefined;
  if (!list || !list.every((id) => Number.isInteger(id) && id >= 0 && id < 2 ** 32)) {
    throw refused(`${where} takes token ids: whole numbers from 0 up. Texts become ids by model.tokenize(text).`);
  }
  return Uint32Array.from(list);
}
