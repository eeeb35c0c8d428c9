/** A `fetch` that serves OpenAI's HTTP API from loaded models: paths, status codes and streams. */

import { pcm16, wavHeader } from "./audio-input.js";
import { atOption, bodyLimit, checked, describe, everyItem, faultyOptions, requestTooLarge, valid, validator } from "./check.js";
import { failures, invalidRequest, JerboaError, textOf as messageOf, worded } from "./errors.js";
import { requestOf, withRequestId } from "./http.js";
import { UNUSABLE_MODEL } from "./load.js";
import type { Model } from "./model.js";
import { randomId } from "./random-id.js";
import { RERANK_SPEC } from "./schema.js";
import type { SpeechCreateParams } from "./speech.js";

/** A model, or a function that loads it with its first request. */
export type ServedModel = Model | (() => Model | Promise<Model>);

/**
 * What `createFetch` serves: one model for all names, models by name, or a function that returns the model of a name
 * (undefined for an unknown one).
 */
export type ServedModels = Model | Record<string, ServedModel> | ((name: string) => Model | undefined | Promise<Model | undefined>);

/** A request handler: takes the parsed body, returns a value or a stream of values. */
type Handler = (model: Model, body: never, signal: AbortSignal) => Promise<unknown>;

const HANDLERS: Record<string, Handler> = {
  "chat/completions": (model, body, signal) => model.chat.completions.create(body, { signal }),
  completions: (model, body, signal) => model.completions.create(body, { signal }),
  responses: (model, body, signal) => model.responses.create(body, { signal }),
  "responses/input_tokens": (model, body) => model.responses.inputTokens.count(body),
  embeddings: (model, body, signal) => model.embeddings.create(body, { signal }),
  rerank,
  "audio/transcriptions": (model, body, signal) => model.audio.transcriptions.create(body, { signal }),
  "audio/translations": (model, body, signal) => model.audio.translations.create(body, { signal }),
  "audio/speech": speech,
};

/**
 * Creates a `fetch` whose server is the model, or several models by name. The official client works with it unchanged:
 *
 * ```js
 * const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: createFetch(model), dangerouslyAllowBrowser: true });
 * const both = createFetch({ chat: model, embed: () => loadModel("sentence-transformers/all-MiniLM-L6-v2") });
 * ```
 *
 * Serves `chat/completions`, `completions`, `responses`, `embeddings`, `rerank`, `audio/transcriptions`,
 * `audio/translations`, `audio/speech` and `models` at any base URL, streamed on request. Nothing is sent over the
 * network.
 */
export function createFetch(models: ServedModels): typeof fetch {
  const registry = new ModelRegistry(models);
  return async (input, init) => {
    const request = requestOf(input, init);
    const { signal } = request;
    signal.throwIfAborted();
    // A separate controller: the response outlives the call, and cancelling its stream must stop the model.
    const controller = new AbortController();
    const isAborted = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => {
        controller.abort(signal.reason);
        reject(signal.reason);
      });
    });
    return Promise.race([respond(registry, request, controller).then(withRequestId), isAborted]);
  };
}

/** Answers a request. Errors become responses. */
async function respond(registry: ModelRegistry, request: Request, controller: AbortController): Promise<Response> {
  const { pathname } = new URL(request.url);
  const path = Object.keys(HANDLERS).find((each) => pathname.endsWith(`/${each}`));
  try {
    const stored = path ? null : /\/responses\/([^/]+)(\/input_items|\/cancel)?\/?$/.exec(pathname);
    if (stored) return await storedResponse(registry, request.method, pathname, decoded(stored[1]!), stored[2]);
    if (!path || request.method !== "POST") {
      const ofModels = /\/models(\/.*)?$/.test(pathname);
      if (ofModels && request.method === "GET") return await listModels(registry, pathname);
      if (ofModels && request.method === "HEAD") {
        const { status, headers } = await listModels(registry, pathname);
        return new Response(null, { status, headers });
      }
      if (ofModels || path) throw wrongMethod(request.method, pathname, ofModels ? "GET, HEAD" : "POST");
      throw new JerboaError("not_found", `${request.method} ${pathname} is not supported. Supported: ${Object.keys(HANDLERS).join(", ")}, models.`);
    }
    const body = (await bodyOf(request)) as { model?: unknown; echo?: unknown } | null;
    if (path === "chat/completions" || path.startsWith("responses")) refuseFiles(body);
    const model = await registry.get(body?.model);
    controller.signal.throwIfAborted();
    const answer = await HANDLERS[path]!(model, body as never, controller.signal);
    if (answer instanceof Response) return answer;
    if (typeof answer === "string") return new Response(answer, { headers: { "content-type": "text/plain; charset=utf-8" } });
    if (!isStream(answer)) return Response.json(answer);
    const isNamed = path === "responses";
    const opening = isNamed ? 2 : path === "chat/completions" || body?.echo ? 1 : 0;
    const audio = path !== "audio/speech" ? undefined : (body as SpeechCreateParams).response_format === "pcm" ? `audio/pcm;rate=${model.info.tts?.sampleRate}` : "audio/wav";
    return await streamed(answer, isNamed, opening, controller, audio);
  } catch (thrown) {
    return failure(thrown, path ? pathname.slice(0, -path.length) : undefined);
  }
}

/** An error that only HTTP has: its status, code and headers. */
class HttpError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly headers: Record<string, string> = {},
  ) {
    super(message);
  }
}

/** The error of a path that has other methods. */
function wrongMethod(method: string, pathname: string, allow: string): HttpError {
  return new HttpError(405, "method_not_allowed", `${method} ${pathname} is not supported. Use ${allow.replace(", HEAD", "").replace(", ", " or ")}.`, { allow });
}

/** Fields of message parts that hold a URL, or several. */
const URL_FIELDS = new Set(["image_url", "image", "video_url", "video", "frames"]);
/** Levels from a body to the deepest URL that requests may have, and one more. */
const MAX_URL_DEPTH = 8;

/** Refuses media at URLs of this machine's files: the client of a server may not read them. */
function refuseFiles(body: unknown): void {
  const visit = (value: unknown, field: string, depth: number): void => {
    if (typeof value === "string") {
      if (!URL_FIELDS.has(field) || /^(https?|data|blob):/i.test(value) || !URL.canParse(value)) return;
      const { protocol } = new URL(value);
      if (!/^(https?|data|blob):$/.test(protocol)) throw invalidRequest(`The request's '${field}' is a ${protocol} URL. Requests may use http:, https:, data: and blob: URLs.`);
    } else if (typeof value === "object" && value !== null && depth < MAX_URL_DEPTH) {
      for (const [name, each] of Object.entries(value)) visit(each, Array.isArray(value) || name === "url" ? field : name, depth + 1);
    }
  };
  const { messages, input } = Object(body) as { messages?: unknown; input?: unknown };
  visit(messages, "", 1);
  visit(input, "", 1);
}

/** A part of a path. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw invalidRequest(`'${part}' in the request's path is not valid percent-encoding. Encode the name with encodeURIComponent.`);
  }
}

/** The models of a `fetch`, by name. */
class ModelRegistry {
  readonly #models: ServedModels;
  /** Models that were asked for by name. */
  readonly #loaded = new Map<string, Promise<Model | undefined>>();

  constructor(models: ServedModels) {
    this.#models = models;
    if (typeof models !== "function" && !isModel(models) && !valid.object.accepts(models)) throw invalidRequest(`createFetch: the argument must be a model, an object of models by name, or a function, not ${describe(models)}.`);
    if (typeof models === "function" || isModel(models)) return;
    if (Object.keys(models).length === 0) throw invalidRequest("createFetch: the object has no models. Pass at least one by its name, as in createFetch({ chat: model }).");
    const wrong = Object.entries(models).find(([, model]) => typeof model !== "function" && !isModel(model));
    if (wrong) throw invalidRequest(`createFetch: '${wrong[0]}' must be a model or a function that loads it, not ${describe(wrong[1])}. Await loadModel(name) first.`);
  }

  /** The model for a request. @throws {@link JerboaError} `model_name` for an unknown name. */
  async get(name: unknown): Promise<Model> {
    if (isModel(this.#models)) return this.#models;
    const known = typeof this.#models === "function" ? undefined : Object.keys(this.#models);
    if (typeof name !== "string") throw atOption("", "model", invalidRequest(`The request must name a 'model'${known ? `: ${known.join(", ")}` : ""}.`));
    const model = known && !known.includes(name) ? undefined : await this.#load(name);
    if (model) return model;
    throw new JerboaError("model_name", `There is no model '${name}' here.${known ? ` Use ${known.join(", ")}.` : ""}`);
  }

  /** Whether one model answers to all names. */
  get isSingle(): boolean {
    return isModel(this.#models);
  }

  /** The names of the models; for a function, those that were used. */
  names(): string[] {
    if (isModel(this.#models)) return [this.#models.info.model];
    return typeof this.#models === "function" ? [...this.#loaded.keys()] : Object.keys(this.#models);
  }

  /** The models that are loaded. */
  async loaded(): Promise<Model[]> {
    if (isModel(this.#models)) return [this.#models];
    const direct = typeof this.#models === "function" ? [] : Object.values(this.#models).filter(isModel);
    const named = await Promise.allSettled(this.#loaded.values());
    return [...new Set([...direct, ...named.flatMap((each) => (each.status === "fulfilled" && each.value ? [each.value] : []))])];
  }

  #load(name: string): Promise<Model | undefined> {
    const found = this.#loaded.get(name);
    if (found) return found;
    const models = this.#models;
    const load = async (): Promise<Model | undefined> => {
      if (typeof models === "function") return models(name);
      const served = (models as Record<string, ServedModel>)[name];
      return typeof served === "function" ? served() : served;
    };
    const loading = load().then(
      (model) => {
        if (!model) this.#loaded.delete(name);
        return model;
      },
      (thrown: unknown) => {
        // The next request tries again.
        this.#loaded.delete(name);
        if (thrown instanceof JerboaError || (thrown as Error | null)?.name === "AbortError") throw thrown;
        // The caller's own code failed: neither a bug of this package nor a fault of the client.
        const error = new JerboaError("request", messageOf(thrown), { cause: thrown });
        loaderFailures.add(error);
        throw error;
      },
    );
    this.#loaded.set(name, loading);
    return loading;
  }
}

function isModel(value: unknown): value is Model {
  return typeof (value as Partial<Model> | null)?.info?.model === "string";
}

/** The length in a streamed WAV file's header, as encoders write to a pipe. */
const UNKNOWN_WAV_BYTES = 2 ** 32 - 38;

/** Failures of functions that load models: of code `request`, as in the hooks, but not of the client's request. */
const loaderFailures = new WeakSet<JerboaError>();

/** Status codes of invalid requests; retrying them cannot help. */
const STATUS: Record<string, number> = { request: 400, chat_template: 400, context_full: 400, unsupported_option: 400, model_name: 404, not_found: 404, unloaded: 410, aborted: 499 };

const textOf = (document: unknown): unknown => (typeof document === "object" && document !== null ? (document as { text?: unknown }).text : document);
const isDocument = (document: unknown): boolean => typeof textOf(document) === "string";
const RERANK_BODY = {
  ...RERANK_SPEC,
  model: valid.string,
  query: valid.string,
  documents: validator("an array of strings, or of objects with 'text'", (v) => everyItem(v, isDocument), isDocument),
  top_n: valid.integer(1),
  return_documents: valid.boolean,
};

/** Cohere's and Jina's form of reranking. */
async function rerank(model: Model, body: { query?: string; documents?: unknown[]; top_n?: number; return_documents?: boolean; instruction?: string }, signal: AbortSignal): Promise<unknown> {
  const { query, documents, top_n: topN, return_documents: returns, instruction } = checked("rerank", body, RERANK_BODY);
  if (query === undefined || !documents) throw invalidRequest("rerank: 'query' and 'documents' are required.");
  const ranked = await model.rerank(query, documents.map(textOf) as string[], { signal, ...(topN ? { topN } : {}), ...(instruction ? { instruction } : {}) });
  const results = ranked.map(({ index, score, document }) => ({ index, relevance_score: score, ...(returns ? { document: { text: document } } : {}) }));
  return { id: `rerank-${randomId()}`, model: model.info.model, results };
}

/** Speech; with `stream: true` the bytes of its file as they are generated. */
async function speech(model: Model, body: SpeechCreateParams, signal: AbortSignal): Promise<unknown> {
  const made = await model.audio.speech.create(body, { signal });
  if (made instanceof Response) return made;
  return (async function* (): AsyncGenerator<Uint8Array, void, undefined> {
    let begun = body.response_format === "pcm";
    for await (const { samples, sampleRate } of made) {
      if (!begun) yield new Uint8Array(wavHeader(UNKNOWN_WAV_BYTES, sampleRate));
      begun = true;
      yield new Uint8Array(pcm16(samples));
    }
  })();
}

/** Reads or deletes a stored response, whichever model it is of. */
async function storedResponse(registry: ModelRegistry, method: string, pathname: string, id: string, part: string | undefined): Promise<Response> {
  if (part === "/cancel") throw invalidRequest("A response in a page cannot be cancelled by its id. Abort the request instead.");
  if (method !== "GET" && (method !== "DELETE" || part)) throw wrongMethod(method, pathname, part ? "GET" : "GET, DELETE");
  let missing: unknown = new JerboaError("not_found", `The response '${id}' was not found. Send the whole conversation as 'input'.`);
  for (const { responses } of await registry.loaded()) {
    try {
      return Response.json(await (method === "DELETE" ? responses.delete(id) : part ? responses.inputItems(id) : responses.retrieve(id)));
    } catch (thrown) {
      missing = thrown;
    }
  }
  throw missing;
}

async function bodyOf(request: Request): Promise<unknown> {
  try {
    const type = request.headers.get("content-type") ?? "";
    const body = new Response(await boundedBody(request, bodyLimit(type)), { headers: { "content-type": type } });
    return /^multipart/.test(type) ? fields(await body.formData()) : await body.json();
  } catch (thrown) {
    if (thrown instanceof HttpError) throw thrown;
    throw invalidRequest("The request body is neither valid JSON nor form data. Send JSON, or multipart/form-data for audio.");
  }
}

/** Reads a body of at most `limit` bytes. */
async function boundedBody(request: Request, limit: number): Promise<Blob> {
  const tooLarge = (): HttpError => new HttpError(413, "request_too_large", requestTooLarge(limit));
  if (Number(request.headers.get("content-length")) > limit) throw tooLarge();
  // Some browsers have no `Request.body`.
  if (!request.body) {
    const whole = await request.blob();
    if (whole.size > limit) throw tooLarge();
    return whole;
  }
  const reader = request.body.getReader();
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  for (let size = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return new Blob(chunks);
    size += value.length;
    if (size > limit) {
      void reader.cancel().catch(() => {});
      throw tooLarge();
    }
    chunks.push(value);
  }
}

/** Converts form fields (texts and files) to the equivalent JSON body. */
function fields(form: FormData): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const name of new Set(form.keys())) {
    const value = form.get(name);
    if (name.endsWith("[]")) body[name.slice(0, -2)] = form.getAll(name);
    else body[name] = name === "stream" ? value === "true" : name === "temperature" ? Number(value) : value;
  }
  return body;
}

async function listModels(registry: ModelRegistry, pathname: string): Promise<Response> {
  const entry = (id: string): object => ({ id, object: "model", created: 0, owned_by: "jerboa" });
  if (/\/models\/?$/.test(pathname)) return Response.json({ object: "list", data: registry.names().map(entry) });
  const [, name] = /\/models\/(.+)$/.exec(pathname) ?? [];
  if (!name) throw new JerboaError("not_found", `GET ${pathname} is not supported. Supported: GET /models, /models/{id} and /responses/{id}.`);
  const wanted = decoded(name);
  if (!registry.isSingle && !registry.names().includes(wanted)) await registry.get(wanted);
  return Response.json(entry(registry.isSingle ? registry.names()[0]! : wanted));
}

/** The endpoints of the methods that errors advise: clients of HTTP cannot call them. */
const ENDPOINTS: Record<string, string> = { "model.generate": "completions", "model.embed": "embeddings", "model.rerank": "rerank", "model.transcribe": "audio/transcriptions", "model.audio.speech.create": "audio/speech" };

/** OpenAI's names of codes that its clients look for. */
const OPENAI_CODES: Record<string, string> = { model_name: "model_not_found", context_full: "context_length_exceeded" };

/**
 * An error in OpenAI's format, with its status code; `jerboa_code` is the package's own code. `base` is the URL path of
 * the API.
 */
function described(thrown: unknown, base = "/v1/"): [body: { error: object }, status: number] {
  if (thrown instanceof HttpError) return [{ error: { message: thrown.message, code: thrown.code, param: null, type: "invalid_request_error" } }, thrown.status];
  const error = JerboaError.from(thrown);
  const { code } = error;
  const terms = Object.fromEntries(Object.entries(ENDPOINTS).map(([call, path]) => [call, `use POST ${base}${path}`]));
  // LangChain knows the error by these words.
  const message = `${code === "context_full" ? "The request exceeds the model's maximum context length: " : ""}${worded(error, terms)}`;
  // Clients repeat what fails with 500, the AI SDK also against `x-should-retry`. A model that cannot run here is not loaded again.
  const status = loaderFailures.has(error) ? 500 : (STATUS[code] ?? (UNUSABLE_MODEL.has(code) ? 422 : 500));
  return [{ error: { message, code: OPENAI_CODES[code] ?? code, param: faultyOptions.get(error) ?? null, type: status < 500 ? "invalid_request_error" : "server_error", jerboa_code: code } }, status];
}

/** The response of an error. The header stops clients from retrying: the result would be the same. */
function failure(thrown: unknown, base?: string): Response {
  const [body, status] = described(thrown, base);
  return Response.json(body, { status, headers: { "x-should-retry": "false", ...(thrown instanceof HttpError ? thrown.headers : {}) } });
}

function isStream(answer: unknown): answer is AsyncIterable<unknown> {
  return typeof answer === "object" && answer !== null && Symbol.asyncIterator in answer;
}

/**
 * Encodes values as server-sent events; `isNamed` ones by their type, without a final `[DONE]`. Bytes of the media type
 * `audio` pass unchanged. Waits for the first
 * value of the engine, which follows `opening` others: a request that it refuses has no response yet.
 */
async function streamed(values: AsyncIterable<unknown>, isNamed: boolean, opening: number, controller: AbortController, audio?: string): Promise<Response> {
  const iterator = values[Symbol.asyncIterator]();
  const first: IteratorResult<unknown>[] = [];
  while (first.length <= opening) {
    const result = await iterator.next();
    const failed = failures.get(result.value as object);
    if (failed) throw failed;
    first.push(result);
  }
  const encoder = new TextEncoder();
  const event = (value: unknown, name?: string): Uint8Array => encoder.encode(`${name ? `event: ${name}\n` : ""}data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);
  const body = new ReadableStream<Uint8Array>({
    start(stream) {
      const { signal } = controller;
      signal.addEventListener("abort", () => stream.error(signal.reason));
    },
    async pull(stream) {
      try {
        const { done, value } = first.shift() ?? (await iterator.next());
        if (!done) return stream.enqueue(value instanceof Uint8Array ? value : event(value, isNamed ? (value as { type: string }).type : undefined));
        if (!isNamed && !audio) stream.enqueue(event("[DONE]"));
      } catch (thrown) {
        if (audio) return stream.error(thrown);
        stream.enqueue(event(described(thrown)[0]));
      }
      stream.close();
    },
    async cancel() {
      controller.abort();
      await iterator.return?.();
    },
  });
  return new Response(body, { headers: { "content-type": audio ?? "text/event-stream; charset=utf-8", "cache-control": "no-cache" } });
}
