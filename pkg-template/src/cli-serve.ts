/** `jerboa serve`: OpenAI's HTTP API on this machine, over the package's `createFetch`. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { bodyLimit, requestTooLarge } from "./check.js";
import { note } from "./cli-output.js";
import { JerboaError, textOf } from "./errors.js";
import { withRequestId } from "./http.js";

/** The address of the server, and which clients it accepts. */
export interface ServeOptions {
  host: string;
  port: number;
  /** The bearer token that clients must send; none if not set. */
  apiKey?: string | undefined;
  /** Origins that CORS allows besides localhost; `*` allows all. */
  origins: readonly string[];
}

/** A running server. Until `serve` is called, it answers that its models are loading. */
export interface RunningServer {
  url: string;
  serve(handler: typeof fetch): void;
  close(): Promise<void>;
}

const LOCAL = /^(localhost|127(\.\d+){3}|\[::1\])$/;

const isLocalOrigin = (origin: string): boolean => URL.canParse(origin) && LOCAL.test(new URL(origin).hostname);

/** Methods of requests, by CORS and in answers to others. */
const METHODS = "GET, POST, DELETE, OPTIONS";

/**
 * The origin as browsers send it.
 * @throws {@link JerboaError} `request` for anything but an origin or `*`.
 */
export function originOf(given: string): string {
  if (given === "*" || given === "null") return given;
  const url = URL.canParse(given) ? new URL(given) : undefined;
  if (url?.host && /^\/?$/.test(url.pathname) && !url.search && !url.hash) return `${url.protocol}//${url.host}`;
  throw new JerboaError("request", `serve: '--origin' must be an origin such as https://app.example, or '*', not '${given}'.`);
}

function errorResponse(status: number, code: string, message: string, headers: Record<string, string> = {}): Response {
  const type = status < 500 ? "invalid_request_error" : "server_error";
  return withRequestId(Response.json({ error: { message, type, param: null, code } }, { status, headers }));
}

/** Starts a server that runs until it is closed. */
export async function startServer(options: ServeOptions): Promise<RunningServer> {
  let handler: typeof fetch | undefined;
  const server = createServer((request, response) => {
    const closed = new AbortController();
    response.on("close", () => closed.abort());
    void answer(request, response, handler, options, closed.signal).catch((thrown: unknown) => {
      // A client that left needs no answer.
      if (closed.signal.aborted) return;
      if (!response.headersSent) response.writeHead(500);
      response.end();
      note(`jerboa: serve: ${request.method} ${request.url} failed: ${textOf(thrown)}`);
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", (thrown) => {
      const reason = thrown.code === "EADDRINUSE" ? `port ${options.port} of ${options.host} is in use` : thrown.message;
      reject(new JerboaError("request", `serve: the server cannot start: ${reason}. Choose another --port or --host.`, { cause: thrown }));
    });
    server.listen(options.port, options.host, resolve);
  });
  const address = server.address();
  const port = typeof address === "object" && address ? address.port : options.port;
  const close = (): Promise<void> => new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
  const url = `http://${options.host.includes(":") ? `[${options.host}]` : options.host}:${port}`;
  return { url, close, serve: (given) => void (handler = given) };
}

async function answer(request: IncomingMessage, response: ServerResponse, handler: typeof fetch | undefined, options: ServeOptions, signal: AbortSignal): Promise<void> {
  const origin = request.headers.origin;
  const allowed = origin === undefined || options.origins.includes("*") || options.origins.includes(origin) || isLocalOrigin(origin);
  const cors: Record<string, string> = allowed && origin !== undefined ? { "access-control-allow-origin": origin, "access-control-allow-headers": request.headers["access-control-request-headers"] ?? "*", "access-control-allow-methods": METHODS, "access-control-expose-headers": "x-request-id, x-should-retry", vary: "Origin" } : {};
  // Browsers send simple requests of any page without asking, and only hide the answers from it.
  const result = allowed ? await respond(request, handler, options, signal) : errorResponse(403, "forbidden_origin", `Pages of '${origin}' may not use this server. Start it with --origin ${origin}.`);
  response.writeHead(result.status, { ...Object.fromEntries(result.headers), ...cors });
  const reader = result.body?.getReader();
  try {
    while (reader && !signal.aborted) {
      const { done, value } = await reader.read();
      if (done) break;
      if (!response.write(value)) await new Promise<void>((resolve) => (response.once("drain", () => resolve()), response.once("close", () => resolve())));
    }
  } finally {
    if (signal.aborted) void reader?.cancel().catch(() => {});
    response.end();
  }
}

async function respond(request: IncomingMessage, handler: typeof fetch | undefined, { host, apiKey }: ServeOptions, signal: AbortSignal): Promise<Response> {
  // A page whose name was pointed at this machine has another host: DNS rebinding.
  const named = request.headers.host ?? "";
  if (LOCAL.test(host) && !(URL.canParse(`http://${named}`) && LOCAL.test(new URL(`http://${named}`).hostname))) return errorResponse(403, "forbidden_host", `The host '${named}' is not this machine. Use http://127.0.0.1, or start the server with --host.`);
  if (request.method === "OPTIONS") return new Response(null, { status: 204 });
  if (!/^(GET|HEAD|POST|PUT|PATCH|DELETE)$/.test(request.method ?? "")) return errorResponse(405, "method_not_allowed", `${request.method} is not supported. Supported: ${METHODS}.`, { allow: METHODS });
  if (!handler) return errorResponse(503, "loading", "The models are loading. Try again in a moment.");
  if (request.url === "/" || request.url === "/health") return Response.json({ status: "ok" });
  if (apiKey !== undefined && request.headers.authorization !== `Bearer ${apiKey}`) return errorResponse(401, "invalid_api_key", "The API key is missing or wrong. Send 'Authorization: Bearer KEY'.");
  const limit = bodyLimit(request.headers["content-type"]);
  const chunks = await bodyOf(request, limit);
  if (!chunks) return errorResponse(413, "request_too_large", requestTooLarge(limit));
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) if (value !== undefined) headers.set(name, String(value));
  const hasBody = request.method !== "GET" && request.method !== "HEAD" && chunks.length > 0;
  return handler(`http://127.0.0.1${request.url}`, { method: request.method ?? "GET", headers, signal, ...(hasBody ? { body: new Blob(chunks as Uint8Array<ArrayBuffer>[]) } : {}) });
}

/** Reads a request's body; undefined if it exceeds `limit` bytes. The rest is discarded, so that clients read the answer. */
function bodyOf(request: IncomingMessage, limit: number): Promise<Uint8Array[] | undefined> {
  return new Promise((resolve, reject) => {
    let chunks: Uint8Array[] | undefined = [];
    let left = limit;
    const refuse = (): void => resolve((chunks = undefined));
    request.on("data", (chunk) => {
      left -= chunk.length;
      if (left < 0) refuse();
      else chunks?.push(chunk);
    });
    request.on("end", () => resolve(chunks));
    request.on("error", reject);
    if (Number(request.headers["content-length"]) > left) refuse();
  });
}
