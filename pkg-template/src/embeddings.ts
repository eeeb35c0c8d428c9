/** Embeddings of text and images, and reranking, in Jerboa's API and OpenAI's. */

import { atOption, checked, describe, everyItem, listOf, MAX_ITEMS, renamed, requireValid, valid, validator } from "./check.js";
import type { EngineEmbedOptions, ModelInfo } from "./contract.js";
import { aborted, invalidRequest, unloaded } from "./errors.js";
import type { Backend } from "./engine-calls.js";
import { isTokenId } from "./generate.js";
import { EMBED_SPEC, RERANK_SPEC, type EmbedFields, type RerankFields } from "./schema.js";
import { wrongTask } from "./tasks.js";
import { resolveImage, type ImageSource } from "./images.js";
import { untilEnded } from "./waits.js";

/**
 * An input to embed: text, or an image if `info.capabilities` includes `image`. Strings are text; pass an image's
 * address as a `URL`.
 */
export type EmbedInput = string | Exclude<ImageSource, string>;

/** Options of `model.embed`. Defaults come from the model's own configuration. */
export interface EmbedOptions extends EmbedFields {
  /** Receives the number of texts embedded so far; images are embedded after the texts. */
  onProgress?: (progress: { done: number; total: number }) => void;
  /** Cancels the call. */
  signal?: AbortSignal;
}

/** Options of `model.rerank`. */
export interface RerankOptions extends RerankFields {
  /** Returns only the best documents. */
  topN?: number;
  /** Cancels the call. */
  signal?: AbortSignal;
}

/** A document with its score. */
export interface RankedDocument {
  /** Index in the list of documents. */
  index: number;
  score: number;
  document: string;
}

/** A request of `model.embeddings.create`. */
export interface EmbeddingCreateParams {
  /** Texts, or token ids, which are used unchanged. */
  input: string | readonly string[] | readonly number[] | readonly (readonly number[])[];
  /** Must be a string if set; otherwise ignored, since one model is loaded. */
  model?: string;
  dimensions?: number;
  encoding_format?: "float" | "base64";
  /** Ignored: requests stay on this device. */
  user?: string;
}

/** OpenAI's response; `E` is `string` (base64 of little-endian f32) when that was requested. */
export interface CreateEmbeddingResponse<E extends number[] | string = number[]> {
  object: "list";
  data: { object: "embedding"; index: number; embedding: E }[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
}

/** OpenAI's `embeddings`. */
export class Embeddings {
  readonly #backend: Backend;
  readonly #info: ModelInfo;

  /** @internal */
  constructor(backend: Backend, info: ModelInfo) {
    this.#backend = backend;
    this.#info = info;
  }

  /** Embeds texts; returns vectors as base64. */
  create(params: EmbeddingCreateParams & { encoding_format: "base64" }, options?: { signal?: AbortSignal }): Promise<CreateEmbeddingResponse<string>>;
  /** Embeds texts. */
  create(params: EmbeddingCreateParams & { encoding_format?: "float" }, options?: { signal?: AbortSignal }): Promise<CreateEmbeddingResponse>;
  create(params: EmbeddingCreateParams, options?: { signal?: AbortSignal }): Promise<CreateEmbeddingResponse<number[] | string>>;
  async create(params: EmbeddingCreateParams, options?: { signal?: AbortSignal }): Promise<CreateEmbeddingResponse<number[] | string>> {
    const where = "embeddings.create";
    const spec = { input: valid.any, model: valid.string, dimensions: EMBED_SPEC.truncateDim, encoding_format: valid.oneOf("float", "base64"), user: valid.any };
    const { input, dimensions, encoding_format: format } = checked(where, params, spec);
    const { signal } = checked(where, options, { signal: valid.signal });
    const inputs = textsOrIds(where, input);
    const vectors = await embedAll(this.#backend, this.#info, inputs, { truncateDim: dimensions, signal }).catch(renamed("truncateDim", "dimensions"));
    const counts = await Promise.all(inputs.map((each) => (typeof each === "string" ? this.#backend.call("tokenize", [each, true, false]) : each)));
    // The model reads no more than fit.
    const tokens = counts.reduce((sum, ids) => sum + Math.min(ids.length, this.#info.contextLength), 0);
    return {
      object: "list",
      data: vectors.map((vector, index) => ({
        object: "embedding",
        index,
        embedding: format === "base64" ? base64(vector) : Array.from(vector),
      })),
      model: this.#info.model,
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    };
  }
}

/** Embeds texts and images. */
export async function embed(backend: Backend, info: ModelInfo, input: EmbedInput | readonly EmbedInput[], options?: EmbedOptions): Promise<Float32Array[]> {
  const withImages = info.capabilities?.includes("image");
  if (Array.isArray(input) && input.length > MAX_ITEMS) throw invalidRequest(`embed takes at most ${MAX_ITEMS} inputs at once, not ${input.length}. Split them.`);
  return embedAll(backend, info, withImages ? listOf(input) : textsOf("embed", input), options);
}

/** Embeds texts, token ids and images. */
async function embedAll(backend: Backend, info: ModelInfo, inputs: (EmbedInput | Uint32Array)[], options?: EmbedOptions): Promise<Float32Array[]> {
  const spec = { ...EMBED_SPEC, onProgress: valid.func, signal: valid.signal };
  const { signal, onProgress, ...rest } = checked("embed", options, spec);
  const plain = (each: EmbedInput | Uint32Array): each is string | Uint32Array => typeof each === "string" || each instanceof Uint32Array;
  const texts = inputs.filter(plain);
  const images = inputs.filter((each): each is Exclude<EmbedInput, string> => !plain(each));
  if (backend.closed) throw unloaded();
  if (info.task !== "embed") throw wrongTask(info, "cannot embed");
  if (rest.task !== undefined && rest.prompt !== undefined) throw invalidRequest("embed: 'task' and 'prompt' cannot be combined. Set one of them.");
  if (signal?.aborted) throw aborted("Embedding");
  const engineOptions = rest satisfies EngineEmbedOptions;
  const ofTexts = texts.length === 0 ? [] : await backend.call("embed", [texts, engineOptions], { signal, onEvent: onProgress });
  if (images.length === 0) return ofTexts;
  const ofImages: Float32Array[] = [];
  for (const image of images) ofImages.push(await backend.call("embedImage", [await untilEnded(backend.ending, "embed", signal, (ends) => resolveImage("embed", image, ends)), engineOptions], { signal }));
  return inputs.map((each) => (plain(each) ? ofTexts : ofImages).shift()!);
}

/** Scores documents against a query. */
export async function rerank(backend: Backend, info: ModelInfo, query: string, documents: readonly string[], options?: RerankOptions): Promise<RankedDocument[]> {
  const { signal, topN, ...rest } = checked("rerank", options, { ...RERANK_SPEC, topN: valid.integer(1), signal: valid.signal });
  requireValid("rerank", "the query", query, valid.string);
  if (!Array.isArray(documents)) throw invalidRequest(`rerank: the documents must be an array of strings, not ${describe(documents)}.`);
  const texts = textsOf("rerank", documents);
  if (backend.closed) throw unloaded();
  if (info.task !== "rerank") throw wrongTask(info, "cannot rerank documents");
  if (signal?.aborted) throw aborted("Reranking");
  if (texts.length === 0) return [];
  const scores = await backend.call("rerank", [query, texts, rest], { signal });
  const ranked = Array.from(scores, (score, index) => ({ index, score, document: texts[index]! }));
  return ranked.sort((a, b) => b.score - a.score || a.index - b.index).slice(0, topN);
}

/** Cosine similarity of two vectors: 1 for the same direction, 0 for unrelated ones. */
export function similarity(a: ArrayLike<number>, b: ArrayLike<number>): number;
/** Cosine similarity of one vector with each of many. */
export function similarity(a: ArrayLike<number>, b: readonly ArrayLike<number>[]): number[];
export function similarity(a: ArrayLike<number>, b: ArrayLike<number> | readonly ArrayLike<number>[]): number | number[] {
  requireVector("the first argument", a);
  if (Array.isArray(b) && typeof b[0] !== "number") return Array.from(b as ArrayLike<number>[], (each, i) => cosine(a, each, `vector ${i} of the second argument`));
  return cosine(a, b as ArrayLike<number>, "the second argument");
}

function requireVector(name: string, value: ArrayLike<number>): void {
  const isNumber = (n: unknown): boolean => typeof n === "number";
  if (typeof value === "object" && value !== null && Number.isInteger(value.length) && Array.prototype.every.call(value, isNumber)) return;
  throw invalidRequest(`similarity: ${name} must be a vector of numbers, as from model.embed, not ${value instanceof Promise ? "a promise. Await it" : describe(value)}.`);
}

function cosine(a: ArrayLike<number>, b: ArrayLike<number>, name: string): number {
  requireVector(name, b);
  if (a.length !== b.length) throw invalidRequest(`similarity: the vectors have ${a.length} and ${b.length} components; they must come from the same model with the same truncateDim.`);
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let i = 0; i < a.length; i++) {
    dot += a[i]! * b[i]!;
    aa += a[i]! * a[i]!;
    bb += b[i]! * b[i]!;
  }
  return aa === 0 || bb === 0 ? 0 : dot / Math.sqrt(aa * bb);
}

function textsOf(where: string, input: unknown): string[] {
  requireValid(where, "the input", input, valid.strings);
  return typeof input === "string" ? [input] : (input as string[]);
}

/** Texts, or lists of token ids; a list of numbers is one input. */
function textsOrIds(where: string, input: unknown): (string | Uint32Array)[] {
  if (input === "" || (Array.isArray(input) && input.length === 0)) throw atOption(where, "input", invalidRequest(`${where}: 'input' is ${input === "" ? "an empty string" : "an empty array"}. Pass at least one text.`));
  const isIds = (each: unknown): each is number[] => everyItem(each, isTokenId) && (each as number[]).length > 0;
  if (isIds(input)) return [Uint32Array.from(input)];
  if (everyItem(input, isIds) && (input as []).length > 0) return (input as number[][]).map((each) => Uint32Array.from(each));
  const accepts = (each: unknown): each is string => typeof each === "string";
  const one = (each: unknown): boolean => accepts(each) || isIds(each) || isTokenId(each);
  if (Array.isArray(input)) requireValid(where, "the input", input, validator(`a string, token ids, or an array of either, of at most ${MAX_ITEMS} items`, (all) => everyItem(all, accepts), one));
  return textsOf(where, input);
}

function base64(vector: Float32Array): string {
  const view = new DataView(new ArrayBuffer(vector.length * 4));
  vector.forEach((value, i) => view.setFloat32(i * 4, value, true));
  let binary = "";
  for (let i = 0; i < view.byteLength; i++) binary += String.fromCharCode(view.getUint8(i));
  return btoa(binary);
}
