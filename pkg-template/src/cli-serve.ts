/** `jerboa serve`: OpenAI's HTTP API on this machine, over the package's `createFetch`. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { JerboaError } from "./errors.js";

/** The address of the server, and which clients it accepts. */
export interface ServeOptions {
  host: string;
  port: number;
  /** The bearer token that clients must send; none if not set. */
  apiKey?: string | undefined;
  /** Origins that CORS allows besides localhost; `*` allows all. */
  origins: readonly string[];
}

/** A running server. */
export interface RunningServer {
  url: string;
  close(): Promise<void>;
}

const LOCAL = /^(localhost|127(\.\d+){3}|\[::1\])$/;

const isLocalOrigin = (origin: string): boolean => URL.canParse(origin) && LOCAL.test(new URL(origin).hostname);

function errorResponse(status: number, code: string, message: string): Response {
  const type = status === 401 ? "authentication_error" : "invalid_request_error";
  return Response.json({ error: { message, type, param: null, code } }, { status });
}

/** Serves requests by `handler` until it is closed. */
export async function startServer(handler: typeof fetch, options: ServeOptions): Promise<RunningServer> {
  const server = createServer((request, response) => {
    void answer(request, response, handler, options).catch((thrown: unknown) => {
      if (!response.headersSent) response.writeHead(500);
      response.end();
      console.error(thrown);
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", (thrown) => reject(new JerboaError("request", `serve: the server cannot start: ${thrown.message}. Choose another --port or --host.`, { cause: thrown })));
    server.listen(options.port, options.host, resolve);
  });
  const address = server.address();
  const port = typeof address === "object" && address ? address.port : options.port;
  const close = (): Promise<void> => new Promise((resolve) => {
    server.close(() => resolve());
    server.closeAllConnections();
  });
  return { url: `http://${options.host.includes(":") ? `[${options.host}]` : options.host}:${port}`, close };
}

async function answer(request: IncomingMessage, response: ServerResponse, handler: typeof fetch, options: ServeOptions): Promise<void> {
  const closed = new AbortController();
  response.on("close", () => closed.abort());
  const origin = request.headers.origin;
  const allowed = origin !== undefined && (options.origins.includes("*") || options.origins.includes(origin) || isLocalOrigin(origin));
  const cors: Record<string, string> = allowed ? { "access-control-allow-origin": origin, "access-control-allow-headers": request.headers["access-control-request-headers"] ?? "*", "access-control-allow-methods": "GET, POST, DELETE, OPTIONS", vary: "Origin" } : {};
  const result = await respond(request, handler, options, closed.signal);
  response.writeHead(result.status, { ...Object.fromEntries(result.headers), ...cors });
  const reader = result.body?.getReader();
  try {
    while (reader && !closed.signal.aborted) {
      const { done, value } = await reader.read();
      if (done) break;
      if (!response.write(value)) await new Promise<void>((resolve) => (response.once("drain", () => resolve()), response.once("close", () => resolve())));
    }
  } finally {
    if (closed.signal.aborted) void reader?.cancel().catch(() => {});
    response.end();
  }
}

async function respond(request: IncomingMessage, handler: typeof fetch, { host, apiKey }: ServeOptions, signal: AbortSignal): Promise<Response> {
  // A page whose name was pointed at this machine has another host: DNS rebinding.
  const named = request.headers.host ?? "";
  if (LOCAL.test(host) && !(URL.canParse(`http://${named}`) && LOCAL.test(new URL(`http://${named}`).hostname))) return errorResponse(403, "forbidden_host", `The host '${named}' is not this machine. Use http://127.0.0.1, or start the server with --host.`);
  if (request.method === "OPTIONS") return new Response(null, { status: 204 });
  if (request.url === "/" || request.url === "/health") return Response.json({ status: "ok" });
  if (apiKey !== undefined && request.headers.authorization !== `Bearer ${apiKey}`) return errorResponse(401, "invalid_api_key", "The API key is missing or wrong. Send 'Authorization: Bearer KEY'.");
  const chunks: Uint8Array[] = [];
  for await (const chunk of request) chunks.push(chunk);
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) if (value !== undefined) headers.set(name, String(value));
  const hasBody = request.method !== "GET" && request.method !== "HEAD" && chunks.length > 0;
  return handler(`http://127.0.0.1${request.url}`, { method: request.method ?? "GET", headers, signal, ...(hasBody ? { body: new Blob(chunks as Uint8Array<ArrayBuffer>[]) } : {}) });
}
