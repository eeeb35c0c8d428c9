/** A loaded model as programs see it. Checks and shapes requests; everything else happens in the engine. */

import { Audio } from "./audio.js";
import { Chat } from "./chat.js";
import { checked, describe, mustBe } from "./check.js";
import type { Check, Measurement, MeasureOptions, MemoryUse, ModelInfo, Spoken, Transcript } from "./contract.js";
import { TextCompletions } from "./completions.js";
import { Embeddings, type EmbedInput, type EmbedOptions, type Ranked, type RerankOptions, embed, rerank } from "./embeddings.js";
import { refused, unloaded } from "./errors.js";
import type { Flow } from "./flow.js";
import { generate, type GenerateOptions, ids, requestOf } from "./generate.js";
import { Generation } from "./generation.js";
import type { Backend } from "./host.js";
import { listen, type Heard, type ListenOptions } from "./listen.js";
import { type ChatMessage, type Tool, engineMessages } from "./messages.js";
import { given, type ImageSource, withoutPictures } from "./pictures.js";
import { Session } from "./session.js";
import type { AudioInput } from "./sound.js";
import { misused } from "./tasks.js";
import { transcribe, type TranscribeOptions } from "./transcribe.js";

/** Bytes of weights that are compared with their files at most. */
const WEIGHTS = 256 << 20;

/** Options of {@link Model.renderChat}. */
export interface RenderChatOptions {
  /** Functions that the model may call. */
  tools?: Tool[];
  /** Opens the assistant's turn at the end; true by default, unless the last message is continued. */
  addGenerationPrompt?: boolean;
  /** Ends with the last message's text, to be continued. */
  continueFinalMessage?: boolean;
  /** More variables for the template, such as `enable_thinking`. */
  kwargs?: Record<string, unknown>;
}

/** Options of {@link Model.tokenize} and, for texts, of {@link Model.countTokens}. */
export interface TokenizeOptions {
  /** Puts the special tokens around the text that the model expects; true by default. */
  addSpecialTokens?: boolean;
  /** Turns special tokens that the text spells into such; false by default. */
  parseSpecial?: boolean;
}

/** What a picture becomes for the language model. */
export interface EncodedImage {
  /** A row of `cols` numbers for each token, tile after tile, each row by row. */
  data: Float32Array;
  /** How many tokens. */
  tokens: number;
  /** Numbers of a row: the width of the language model. */
  cols: number;
  /** Tokens down and across of each tile. */
  grids: [number, number][];
  /** Columns and rows of each tile in pixels, after resizing. */
  tiles: [number, number][];
  /** Milliseconds of encoding; 0 where it was encoded before. */
  ms: number;
}

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
  /** OpenAI's audio: transcriptions, translations, speech. */
  readonly audio: Audio;
  /**
   * Resolves when the files are in the browser's cache, or could not be kept, as `info.warnings` says then: a load ends some moments
   * before, so that the model can answer. From then on it loads without a network.
   */
  readonly stored: Promise<void>;
  readonly #backend: Backend;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo, stored: Promise<void>) {
    this.#backend = backend;
    this.info = info;
    this.stored = stored;
    this.chat = new Chat(backend, info);
    this.completions = new TextCompletions(backend, info);
    this.embeddings = new Embeddings(backend, info);
    this.audio = new Audio(backend, info);
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
    if (this.info.task !== "generate") throw misused(this.info, "does not support sessions");
    return new Session(this.#backend, this.info, await this.#backend.call("createSession", []));
  }

  /** The token ids of a text, with the special tokens that the model expects around it unless told otherwise. */
  async tokenize(text: string, options?: TokenizeOptions): Promise<Uint32Array> {
    if (mustBe.string(text)) throw refused(`tokenize takes a string, not ${describe(text)}.`);
    const { addSpecialTokens = true, parseSpecial = false } = checked("tokenize", options, { addSpecialTokens: mustBe.boolean, parseSpecial: mustBe.boolean });
    return this.#backend.call("tokenize", [text, addSpecialTokens, parseSpecial]);
  }

  /** The text of token ids. */
  async detokenize(tokens: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string> {
    const { skipSpecialTokens = true } = checked("detokenize", options, { skipSpecialTokens: mustBe.boolean });
    return this.#backend.call("detokenize", [ids("detokenize", tokens), skipSpecialTokens]);
  }

  /** How many tokens a text is, or a conversation as `chat.completions` gives it to the model. */
  async countTokens(input: string | ChatMessage[], options?: TokenizeOptions): Promise<number> {
    if (typeof input === "string") return (await this.tokenize(input, options)).length;
    return (await this.#backend.call("tokenizeChat", await this.#conversation("countTokens", input))).length;
  }

  /** The text that the model's chat template makes of a conversation. */
  async renderChat(messages: ChatMessage[], options?: RenderChatOptions): Promise<string> {
    return this.#backend.call("renderChat", await this.#conversation("renderChat", messages, options));
  }

  /** A conversation and the template's variables, as the engine takes them. */
  async #conversation(where: string, messages: ChatMessage[], options?: RenderChatOptions): Promise<[unknown[], object]> {
    const spec = { tools: mustBe.array, addGenerationPrompt: mustBe.boolean, continueFinalMessage: mustBe.boolean, kwargs: mustBe.object };
    const { kwargs, ...rest } = checked(where, options, spec);
    if (rest.continueFinalMessage && rest.addGenerationPrompt) throw refused(`${where}: 'continueFinalMessage' cannot be combined with addGenerationPrompt: true.`);
    return [await withoutPictures(engineMessages(where, messages, this.info.capabilities)), { ...kwargs, ...rest }];
  }

  /**
   * Answers a question about a picture, by default what it shows.
   *
   * ```js
   * const text = await model.describe(file, "What is on the table?");
   * ```
   */
  describe(image: ImageSource, prompt = "Describe this picture.", options?: GenerateOptions): Generation {
    return Generation.of(() => {
      this.#mustSee("describe");
      if (mustBe.string(prompt)) throw refused(`describe: the question must be a string, not ${describe(prompt)}.`);
      const [request, signal] = requestOf(this.#backend, this.info, "describe", options);
      return new Generation(async (onEvent, s) => {
        const picture = { type: "image", ...(await given("describe", image)) };
        const messages = [{ role: "user", content: [picture, { type: "text", text: prompt }] }];
        return this.#backend.call("generate", [{ ...request, messages }], { signal: s, onEvent });
      }, signal);
    });
  }

  /** What the language model gets for a picture. It stays encoded for questions that come. */
  async encodeImage(image: ImageSource): Promise<EncodedImage> {
    this.#mustSee("encodeImage");
    const { picture: _, data, ...rest } = await this.#backend.call("encodeImage", [await given("encodeImage", image)]);
    return { data, cols: data.length / rest.tokens, ...rest };
  }

  /** Gives the memory of the part that sees back; the next picture loads it again. Pictures of conversations stay encoded. */
  async unloadTower(): Promise<void> {
    return this.#backend.call("unloadTower", []);
  }

  #mustSee(where: string): void {
    if (!this.info.capabilities?.includes("image")) throw refused(`${where}: ${this.info.model} has no image input; model.info.capabilities says what a model takes.`);
  }

  /** The vector of a text, or of a picture where `info.capabilities` have `image` (CLIP, SigLIP): both lie in one space. */
  embed(input: EmbedInput, options?: EmbedOptions): Promise<Float32Array>;
  /**
   * The vectors of texts and pictures, in their order.
   *
   * ```js
   * const [picture, text] = await model.embed([file, "a red bird"]);
   * similarity(picture, text);
   * ```
   */
  embed(inputs: EmbedInput[], options?: EmbedOptions): Promise<Float32Array[]>;
  async embed(input: EmbedInput | EmbedInput[], options?: EmbedOptions): Promise<Float32Array | Float32Array[]> {
    const vectors = await embed(this.#backend, this.info, input, options);
    return Array.isArray(input) ? vectors : vectors[0]!;
  }

  /** Scores documents against a query, best first. */
  rerank(query: string, documents: string[], options?: RerankOptions): Promise<Ranked[]> {
    return rerank(this.#backend, this.info, query, documents, options);
  }

  /**
   * Writes down what is said: a file in any format that the browser decodes, an `AudioBuffer`, or samples.
   *
   * ```js
   * const { text, segments } = await model.transcribe(file, { timestamps: "segment" });
   * ```
   */
  transcribe(audio: AudioInput, options?: TranscribeOptions): Promise<Transcript> {
    return transcribe(this.#backend, this.info, audio, options);
  }

  /**
   * Writes down what a microphone hears: a text every half second while somebody speaks, its last form at a pause.
   *
   * ```js
   * const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
   * for await (const { text, final } of model.listen(stream)) show(text, final);
   * ```
   */
  listen(stream: MediaStream, options?: ListenOptions): Flow<Heard> {
    return listen(this.#backend, this.info, stream, options);
  }

  /** @internal Milliseconds of a window of sound and of a token. */
  async measureHearing(samples: Float32Array, tokens: number): Promise<{ encodeMs: number; tokenMs: number }> {
    return this.#backend.call("measureHearing", [samples, tokens]);
  }

  /** @internal Times a speech of so many codes, whatever they are. */
  async measureSpeaking(tokens: number): Promise<Spoken> {
    const start = this.info.vocabSize - 1;
    return this.#backend.call("speak", [{ input: "", ids: [1, Math.max(2, start >> 1)], maxTokens: tokens, temperature: 1, seed: 1, ignoreEnd: true }]);
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
    const spec = { position: mustBe.integer(0), profile: mustBe.array, limits: mustBe.boolean, steps: mustBe.integer(0), drafts: mustBe.integer(0) };
    return this.#backend.call("measure", [checked("measure", options, spec)]);
  }

  /**
   * Puts the device and this model on it to the test: small computations whose outcome is known, the weights on the GPU against the files in the
   * cache, a prompt run at once against its tokens one by one, and products of its weights against the CPU's. Files that are not in the cache are fetched again. Takes some seconds with a large model.
   */
  async diagnose(): Promise<Check[]> {
    const device = await this.#backend.call("diagnose", [globalThis.navigator?.maxTouchPoints ?? 0, false]);
    return this.info.task === "generate" ? [...device, ...(await this.#backend.call("verify", [WEIGHTS]))] : device;
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
