/** A `fetch` that serves OpenAI's HTTP API from a loaded model: paths, status codes and streams. */

import { JerboaError } from "./errors.js";
import type { Model } from "./model.js";

/** A request handler: takes the parsed body, returns a value or a stream of values. */
type Handler = (body: never, signal: AbortSignal) => Promise<unknown>;

/**
 * Creates a `fetch` whose server is the model. The official client works with it unchanged:
 *
 * ```js
 * const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: createFetch(model), dangerouslyAllowBrowser: true });
 * ```
 *
 * Serves `chat/completions`, `completions`, `embeddings`, `audio/transcriptions`, `audio/translations`, `audio/speech`
 * and `models` at any base URL, streamed on request. Nothing is sent over the network.
 */
export function createFetch(model: Model): typeof fetch {
  const handlers: Record<string, Handler> = {
    "chat/completions": (body, signal) => model.chat.completions.create(body, { signal }),
    completions: (body, signal) => model.completions.create(body, { signal }),
    embeddings: (body, signal) => model.embeddings.create(body, { signal }),
    "audio/transcriptions": (body, signal) => model.audio.transcriptions.create(body, { signal }),
    "audio/translations": (body, signal) => model.audio.translations.create(body, { signal }),
    "audio/speech": (body, signal) => model.audio.speech.create(body, { signal }),
  };
  return async (input, init) => {
    const request = new Request(input, init);
    const { pathname } = new URL(request.url);
    try {
      if (request.method === "GET") return models(model, pathname);
      const handler = Object.entries(handlers).find(([path]) => pathname.endsWith(`/${path}`))?.[1];
      if (!handler || request.method !== "POST") return failure(404, "not_found", `${request.method} ${pathname} is not supported. Supported: chat/completions, completions, embeddings, audio/transcriptions, audio/translations, audio/speech, models.`);
      // A separate controller: the response outlives the call, and cancelling its stream must stop the model.
      const controller = new AbortController();
      request.signal.addEventListener("abort", () => controller.abort());
      const answer = await handler((await bodyOf(request)) as never, controller.signal);
      if (answer instanceof Response) return answer;
      if (typeof answer === "string") return new Response(answer, { headers: { "content-type": "text/plain; charset=utf-8" } });
      return isStream(answer) ? streamed(answer, controller, request.signal) : Response.json(answer);
    } catch (thrown) {
      if (request.signal.aborted) throw request.signal.reason ?? new DOMException("The request was aborted.", "AbortError");
      const error = JerboaError.from(thrown);
      return failure(STATUS[error.code] ?? 500, error.code, error.message);
    }
  };
}

/** Status codes of invalid requests; retrying them cannot help. */
const STATUS: Record<string, number> = { request: 400, chat_template: 400, context_full: 400, unsupported_option: 400, unloaded: 410, aborted: 499 };

async function bodyOf(request: Request): Promise<unknown> {
  try {
    return /^multipart/.test(request.headers.get("content-type") ?? "") ? fields(await request.formData()) : await request.json();
  } catch {
    throw new JerboaError("request", "The request body is neither JSON nor form data.");
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

function models(model: Model, pathname: string): Response {
  const entry = { id: model.info.model, object: "model", created: 0, owned_by: "jerboa" };
  if (/\/models\/?$/.test(pathname)) return Response.json({ object: "list", data: [entry] });
  if (pathname.includes("/models/")) return Response.json(entry);
  return failure(404, "not_found", `GET ${pathname} is not supported. Supported: GET /models and GET /models/{id}.`);
}

/** An error in OpenAI's format. The header stops clients from retrying: the result would be the same. */
function failure(status: number, code: string, message: string): Response {
  const error = { message, code, param: null, type: status < 500 ? "invalid_request_error" : "server_error" };
  return Response.json({ error }, { status, headers: { "x-should-retry": "false" } });
}

function isStream(answer: unknown): answer is AsyncIterable<unknown> {
  return typeof answer === "object" && answer !== null && Symbol.asyncIterator in answer;
}

/** Encodes values as server-sent events. */
function streamed(values: AsyncIterable<unknown>, controller: AbortController, signal: AbortSignal): Response {
  const iterator = values[Symbol.asyncIterator]();
  const encoder = new TextEncoder();
  const event = (text: string): Uint8Array => encoder.encode(`data: ${text}\n\n`);
  const body = new ReadableStream<Uint8Array>({
    async pull(stream) {
      try {
        const { done, value } = await iterator.next();
        if (signal.aborted) return stream.error(signal.reason);
        if (!done) return stream.enqueue(event(JSON.stringify(value)));
        stream.enqueue(event("[DONE]"));
        stream.close();
      } catch (thrown) {
        const { code, message } = JerboaError.from(thrown);
        stream.enqueue(event(JSON.stringify({ error: { code, message, type: "server_error" } })));
        stream.close();
      }
    },
    async cancel() {
      controller.abort();
      await iterator.return?.();
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache" } });
}
