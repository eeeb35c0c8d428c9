/** The public API of a loaded model: validates requests and passes them to the engine. */

import { Audio } from "./audio.js";
import { Chat } from "./chat.js";
import { checked, requireValid, valid } from "./check.js";
import type { DeviceCheck, EngineLoadOptions, LoadProgress, Measurement, MeasureOptions, MemoryUse, ModelInfo, SynthesisResult, Transcript } from "./contract.js";
import { TextCompletions } from "./completions.js";
import { Embeddings, type EmbedInput, type EmbedOptions, type RankedDocument, type RerankOptions, embed, rerank } from "./embeddings.js";
import { invalidRequest, unloaded } from "./errors.js";
import { generate, generateAll, type GenerateOptions, checkedIds, isPromptList, requestOf } from "./generate.js";
import { Generation, type GenerationGroup } from "./generation.js";
import type { Backend } from "./engine-calls.js";
import { listen, type LiveTranscription, type ListenOptions } from "./listen.js";
import { type ChatMessage, type Tool, engineMessages, requireFreeVariables } from "./messages.js";
import { type ImageSource, resolveImage } from "./images.js";
import { imagePlaceholders } from "./message-media.js";
import { canonicalAddress, sourceOf, type ModelSource } from "./model-source.js";
import { plainJson } from "./plain-json.js";
import { Responses } from "./responses.js";
import { LOAD_SPEC, MEASURE_SPEC, type LoadFields } from "./schema.js";
import { Session } from "./session.js";
import { generateWithSteps } from "./steps.js";
import type { AudioInput } from "./audio-input.js";
import { wrongTask } from "./tasks.js";
import { transcribe, type TranscribeOptions } from "./transcribe.js";
import { untilEnded } from "./waits.js";

/** Maximum bytes of weights that `diagnose` compares with their files. */
const MAX_VERIFIED_BYTES = 256 << 20;

/** Options of {@link Model.renderChat}. */
export interface RenderChatOptions {
  /** Functions that the model may call. */
  tools?: Tool[];
  /** Opens the assistant's turn at the end; true by default, unless the last message is continued. */
  addGenerationPrompt?: boolean;
  /** Ends with the last message's text, to be continued. */
  continueFinalMessage?: boolean;
  /** Extra variables for the template, such as `enable_thinking`. */
  kwargs?: Record<string, unknown>;
}

/** Options of {@link Model.tokenize} and, for text, of {@link Model.countTokens}. */
export interface TokenizeOptions {
  /** Adds the special tokens that the model expects around the text; true by default. */
  addSpecialTokens?: boolean;
  /** Parses special tokens in the text; false by default. */
  parseSpecial?: boolean;
}

/** The image embeddings (soft tokens) of an image. */
export interface EncodedImage {
  /** The embeddings, [tokens, cols], tile after tile, row by row in each tile. */
  data: Float32Array;
  /** Number of tokens. */
  tokens: number;
  /** Width of an embedding: the language model's hidden size. */
  cols: number;
  /** Tokens per tile, rows by columns. */
  grids: [number, number][];
  /** Width and height of each tile in pixels, after resizing. */
  tiles: [number, number][];
  /** Milliseconds of encoding; 0 if it was encoded earlier. */
  ms: number;
}

/** Options of {@link Model.createSession}. */
export interface SessionOptions {
  /** The adapter for the session's requests, unless a request names another one. */
  adapter?: string;
}

/** Options of {@link Model.loadAdapter}. */
export interface AdapterOptions extends Pick<LoadFields, "revision" | "token" | "endpoint" | "cache"> {
  /** The name by which requests choose the adapter; the repository's name by default. */
  name?: string;
  /** Merges the adapter into copies of the weights that it updates: no cost per token, more GPU memory. Always true for DoRA. */
  merge?: boolean;
  onProgress?: (progress: LoadProgress) => void;
  /** Cancels the load. */
  signal?: AbortSignal;
}

const ADAPTER_OPTIONS = { name: valid.string, merge: valid.boolean, revision: LOAD_SPEC.revision, token: LOAD_SPEC.token, endpoint: LOAD_SPEC.endpoint, cache: LOAD_SPEC.cache, onProgress: valid.func, signal: valid.signal };

/** A loaded model, created by `loadModel`. */
export class Model {
  /** Properties of the model, its cost, and the device it runs on. */
  readonly info: ModelInfo;
  /** OpenAI's chat completions. */
  readonly chat: Chat;
  /** OpenAI's legacy completions: text continuation. */
  readonly completions: TextCompletions;
  /** OpenAI's responses. */
  readonly responses: Responses;
  /** OpenAI's embeddings. */
  readonly embeddings: Embeddings;
  /** OpenAI's audio: transcriptions, translations, speech. */
  readonly audio: Audio;
  /**
   * Resolves when the model's files are in the browser's cache; if they could not be cached, `info.warnings` says why.
   * `loadModel` may resolve earlier. From then on the model loads without a network.
   */
  readonly persisted: Promise<void>;
  /** @internal How `jerboa/train` opens the same model. */
  readonly loadOptions: EngineLoadOptions;
  readonly #backend: Backend;

  /** @internal Aborts when the model is unloaded. */
  get ending(): AbortSignal {
    return this.#backend.ending;
  }

  /** @internal */
  constructor(backend: Backend, info: ModelInfo, stored: Promise<void>, loadOptions: EngineLoadOptions) {
    this.loadOptions = loadOptions;
    this.#backend = backend;
    this.info = info;
    this.persisted = stored;
    this.chat = new Chat(backend, info);
    this.completions = new TextCompletions(backend, info);
    this.responses = new Responses(this);
    this.embeddings = new Embeddings(backend, info);
    this.audio = new Audio(backend, info);
  }

  /**
   * Continues a prompt: text or token ids.
   *
   * ```js
   * for await (const piece of model.generate("Once upon a time", { temperature: 0 })) output.append(piece);
   * ```
   */
  generate(prompt: string | ArrayLike<number>, options?: GenerateOptions): Generation;
  /**
   * Continues several prompts at once. They decode together, and a common beginning runs once.
   *
   * ```js
   * const [one, two] = await model.generate(["Once upon a time", "Far away"], { maxTokens: 50 });
   * ```
   */
  generate(prompts: readonly (string | ArrayLike<number>)[], options?: GenerateOptions): GenerationGroup;
  generate(prompt: string | ArrayLike<number> | readonly (string | ArrayLike<number>)[], options?: GenerateOptions): Generation | GenerationGroup {
    if (isPromptList(prompt)) return generateAll(this.#backend, this.info, prompt, options);
    return generate(this.#backend, this.info, prompt as string | ArrayLike<number>, options);
  }

  /**
   * Creates a session: a separate context on the same weights. Requests of one session run in order, those of several
   * sessions concurrently.
   *
   * ```js
   * const session = await model.createSession();
   * await session.generate("Once upon a time");
   * const other = await session.fork();              // same context, continues separately
   * await Promise.all([session.dispose(), other.dispose()]);
   * ```
   */
  async createSession(options?: SessionOptions): Promise<Session> {
    const { adapter } = checked("createSession", options, { adapter: valid.string });
    if (this.#backend.closed) throw unloaded();
    if (this.info.task !== "generate") throw wrongTask(this.info, "does not support sessions");
    return new Session(this.#backend, this.info, await this.#backend.call("createSession", adapter === undefined ? [] : [adapter]));
  }

  /**
   * Loads a LoRA or DoRA adapter of peft, from a repository or files; returns its name. Requests and sessions choose it by
   * `adapter`, as `embed` does. Several adapters share the model's weights, which stay as they are.
   *
   * ```js
   * await model.loadAdapter("org/pirate-lora", { name: "pirate" });
   * const text = await model.generate("Once upon a time", { adapter: "pirate" });
   * ```
   */
  async loadAdapter(source: ModelSource, options?: AdapterOptions): Promise<string> {
    const { name, onProgress, signal, ...rest } = checked("loadAdapter", options, ADAPTER_OPTIONS);
    if (this.info.task !== "generate" && this.info.task !== "embed") throw wrongTask(this.info, "does not support adapters");
    const model = sourceOf(source, "loadAdapter");
    if (rest.endpoint) rest.endpoint = canonicalAddress(rest.endpoint);
    const own = name ?? (typeof source === "string" ? source.trim() : typeof model === "string" ? model : "");
    if (!own) throw invalidRequest("loadAdapter: set 'name' for an adapter of selected files.");
    await this.#backend.call("loadAdapter", [own, { ...rest, model }], { signal, onEvent: onProgress });
    return own;
  }

  /** Frees an adapter; requests that name it are refused from now on. */
  async unloadAdapter(name: string): Promise<void> {
    requireValid("unloadAdapter", "the name", name, valid.string);
    return this.#backend.call("unloadAdapter", [name]);
  }

  /** Tokenizes text, by default with the special tokens that the model expects around it. */
  async tokenize(text: string, options?: TokenizeOptions): Promise<Uint32Array> {
    requireValid("tokenize", "the text", text, valid.string);
    const { addSpecialTokens = true, parseSpecial = false } = checked("tokenize", options, { addSpecialTokens: valid.boolean, parseSpecial: valid.boolean });
    return this.#backend.call("tokenize", [text, addSpecialTokens, parseSpecial]);
  }

  /** Decodes token ids to text. */
  async detokenize(tokens: ArrayLike<number>, options?: { skipSpecialTokens?: boolean }): Promise<string> {
    const { skipSpecialTokens = true } = checked("detokenize", options, { skipSpecialTokens: valid.boolean });
    return this.#backend.call("detokenize", [checkedIds("detokenize", tokens), skipSpecialTokens]);
  }

  /** Counts the tokens of a text, or of a conversation as `chat.completions` renders it. */
  async countTokens(input: string | ChatMessage[], options?: TokenizeOptions): Promise<number> {
    if (typeof input === "string") return (await this.tokenize(input, options)).length;
    return (await this.#backend.call("tokenizeChat", await this.#conversation("countTokens", input))).length;
  }

  /** Renders a conversation with the model's chat template. */
  async renderChat(messages: ChatMessage[], options?: RenderChatOptions): Promise<string> {
    return this.#backend.call("renderChat", await this.#conversation("renderChat", messages, options));
  }

  /** A conversation and the template's variables, in the engine's format. */
  async #conversation(where: string, messages: ChatMessage[], options?: RenderChatOptions): Promise<[unknown[], object]> {
    const spec = { tools: valid.array, addGenerationPrompt: valid.boolean, continueFinalMessage: valid.boolean, kwargs: valid.object };
    const { kwargs, ...rest } = plainJson(where, "options", checked(where, options, spec));
    requireFreeVariables(where, "kwargs", kwargs);
    if (rest.continueFinalMessage && rest.addGenerationPrompt) throw invalidRequest(`${where}: 'continueFinalMessage' cannot be combined with addGenerationPrompt: true.`);
    return [await imagePlaceholders(engineMessages(where, messages, this.info.capabilities)), { ...kwargs, ...rest }];
  }

  /**
   * Answers a question about an image; by default describes it.
   *
   * ```js
   * const text = await model.describe(file, "What is on the table?");
   * ```
   */
  describe(image: ImageSource, prompt = "Describe this image.", options?: GenerateOptions): Generation {
    return Generation.of(() => {
      this.#requireImages("describe");
      requireValid("describe", "the prompt", prompt, valid.string);
      const [request, signal, steps] = requestOf(this.#backend, this.info, "describe", options);
      return new Generation(async (onEvent, s) => {
        const part = { type: "image", ...(await untilEnded(this.#backend.ending, "describe", s, (ends) => resolveImage("describe", image, ends))) };
        const messages = [{ role: "user", content: [part, { type: "text", text: prompt }] }];
        return generateWithSteps(this.#backend, { ...request, messages }, steps, { signal: s, onEvent });
      }, signal);
    });
  }

  /** Encodes an image to embeddings for the language model. They stay cached for later questions. */
  async encodeImage(image: ImageSource): Promise<EncodedImage> {
    this.#requireImages("encodeImage");
    const { id: _, data, ...rest } = await this.#backend.call("encodeImage", [await untilEnded(this.#backend.ending, "encodeImage", undefined, (ends) => resolveImage("encodeImage", image, ends))]);
    return { data, cols: data.length / rest.tokens, ...rest };
  }

  /** Frees the vision encoder; the next image reloads it. Images of conversations stay encoded. */
  async unloadVision(): Promise<void> {
    return this.#backend.call("unloadVision", []);
  }

  #requireImages(where: string): void {
    if (!this.info.capabilities?.includes("image")) throw invalidRequest(`${where}: ${this.info.model} has no image input. Load a model whose info.capabilities include 'image'.`);
  }

  /** Embeds a text, or an image if `info.capabilities` includes `image` (CLIP, SigLIP); both share one vector space. */
  embed(input: EmbedInput, options?: EmbedOptions): Promise<Float32Array>;
  /**
   * Embeds texts and images; returns the vectors in the same order.
   *
   * ```js
   * const [image, text] = await model.embed([file, "a red bird"]);
   * similarity(image, text);
   * ```
   */
  embed(inputs: readonly EmbedInput[], options?: EmbedOptions): Promise<Float32Array[]>;
  embed(input: EmbedInput | readonly EmbedInput[], options?: EmbedOptions): Promise<Float32Array | Float32Array[]>;
  async embed(input: EmbedInput | readonly EmbedInput[], options?: EmbedOptions): Promise<Float32Array | Float32Array[]> {
    const vectors = await embed(this.#backend, this.info, input, options);
    return Array.isArray(input) ? vectors : vectors[0]!;
  }

  /** Scores documents against a query, best first. */
  rerank(query: string, documents: readonly string[], options?: RerankOptions): Promise<RankedDocument[]> {
    return rerank(this.#backend, this.info, query, documents, options);
  }

  /**
   * Transcribes audio: a file in any format that the browser decodes, an `AudioBuffer`, or samples.
   *
   * ```js
   * const { text, segments } = await model.transcribe(file, { timestamps: "segment" });
   * ```
   */
  transcribe(audio: AudioInput, options?: TranscribeOptions): Promise<Transcript> {
    return transcribe(this.#backend, this.info, audio, options);
  }

  /**
   * Transcribes a microphone live: a partial text every half second while speech continues, the final text at a pause.
   * `stop()` of the result, or the end of the stream's tracks, ends it with the last utterance.
   *
   * ```js
   * const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
   * for await (const { text, final } of model.listen(stream)) show(text, final);
   * ```
   */
  listen(stream: MediaStream, options?: ListenOptions): LiveTranscription {
    return listen(this.#backend, this.info, stream, options);
  }

  /** @internal Measures milliseconds per audio window and per token. */
  async measureAsr(samples: Float32Array, tokens: number): Promise<{ encodeMs: number; tokenMs: number }> {
    return this.#backend.call("measureAsr", [samples, tokens]);
  }

  /** @internal Times a synthesis of `tokens` codec tokens, ignoring their values. */
  async measureTts(tokens: number): Promise<SynthesisResult> {
    const start = this.info.vocabSize - 1;
    return this.#backend.call("speak", [{ input: "", ids: [1, Math.max(2, start >> 1)], maxTokens: tokens, temperature: 1, seed: 1, ignoreEnd: true }]);
  }

  /** The logits after the last id, or after each one with `all`: [rows, `info.vocabSize`]. */
  async logits(tokens: ArrayLike<number>, options?: { all?: boolean }): Promise<Float32Array> {
    const { all = false } = checked("logits", options, { all: valid.boolean });
    return this.#backend.call("logits", [checkedIds("logits", tokens), all]);
  }

  /** Current memory use in bytes; 0 while the model is released. */
  async memory(): Promise<MemoryUse> {
    return this.#backend.call("memory", []);
  }

  /** Measures performance for benchmarks: time per kernel, device limits, host overhead per step. */
  async measure(options?: MeasureOptions): Promise<Measurement> {
    return this.#backend.call("measure", [checked("measure", options, MEASURE_SPEC)]);
  }

  /**
   * Checks the device and this model: small computations with known results, GPU weights against the cached files,
   * prefill against decode, and matmuls against the CPU. Files that are not cached are downloaded again. Takes several
   * seconds for a large model.
   */
  async diagnose(): Promise<DeviceCheck[]> {
    const device = await this.#backend.call("diagnose", [globalThis.navigator?.maxTouchPoints ?? 0, false]);
    return this.info.task === "generate" ? [...device, ...(await this.#backend.call("verify", [MAX_VERIFIED_BYTES]))] : device;
  }

  /** Removes this model's files from the browser's cache; the loaded model keeps running. */
  async deleteFromCache(): Promise<void> {
    return this.#backend.call("deleteFromCache", []);
  }

  /**
   * Frees the GPU memory once running calls are done, for example when the page goes to the background. The next call
   * reloads the model from the cache.
   */
  async release(): Promise<void> {
    return this.#backend.call("release", []);
  }

  /** Stops running calls, frees the GPU memory and ends the worker. */
  async unload(): Promise<void> {
    return this.#backend.close();
  }
}
