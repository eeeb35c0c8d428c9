/** Routes requests to models of this device, or, where the application says so, to a server. */

import { requestOf, withRequestId } from "../http.js";
import { createFetch, JerboaError, type ServedModels } from "../index.js";
import { observed, Reporter, type TelemetryOptions } from "./telemetry.js";

/** An OpenAI-compatible server. */
export interface RemoteServer {
  /** For example `https://api.example.com/v1`. */
  baseURL: string;
  /** A key, or a function that returns one. Keys in pages are public: use a server of yours that adds it. */
  apiKey?: string | (() => string | Promise<string>);
  headers?: Record<string, string>;
  /** The server's name of a model: one for all, or by the requested name. */
  model?: string | Record<string, string>;
  /** Sends the requests; the global `fetch` by default. */
  fetch?: typeof fetch;
}

/** Where a request runs. */
export type Route = "local" | "remote";

/** A request that waits for its route. */
export interface RouteRequest {
  /** The path behind the base URL, such as `chat/completions`. */
  path: string;
  /** The requested model. */
  model: string | undefined;
  /** The request's body; undefined for a form with audio. */
  body: Readonly<Record<string, unknown>> | undefined;
}

/**
 * Where requests run. `local`: on this device only. `local-first`: on the server if this device cannot run the model.
 * `remote-first`: on this device if the server cannot be reached. `remote`: on the server only. A function decides for
 * each request; the routes of a list are tried in their order.
 */
export type RoutePolicy = "local" | "local-first" | "remote-first" | "remote" | ((request: RouteRequest) => Route | Route[] | Promise<Route | Route[]>);

/** Options of {@link createRouter}. */
export interface RouterOptions extends TelemetryOptions {
  /** Models of this device, as `createFetch` takes them. */
  local?: ServedModels;
  remote?: RemoteServer;
  /** `local` by default. */
  policy?: RoutePolicy;
  /** Called before each request that would leave this device; false runs it here, or fails it if that is not possible. */
  consent?: (request: RouteRequest) => boolean | Promise<boolean>;
}

const ORDERS: Record<string, Route[]> = { local: ["local"], "local-first": ["local", "remote"], "remote-first": ["remote", "local"], remote: ["remote"] };

/** Codes after which another route may help: the device or the network is at fault, not the request. */
const TRY_OTHER: ReadonlySet<string> = new Set([
  "no_webgpu", "out_of_memory", "device_lost", "unknown_architecture", "unsupported_encoding", "not_found", "model_name", "gated", "network", "quota", "assets", "worker", "unloaded", "kernel", "internal",
]);

/** Statuses of a server after which this device may help. */
const isUnreachable = (status: number): boolean => status >= 500 || status === 408 || status === 429;

/** The response header with the route that a request took. */
export const ROUTE_HEADER = "x-jerboa-route";

/**
 * Creates a `fetch` for OpenAI's clients that runs requests on this device, and on a server only where `policy` says
 * so. Each response names its route in the header `x-jerboa-route`, each request that leaves this device is logged.
 *
 * ```js
 * const router = createRouter({
 *   local: { chat: () => loadModel("mlx-community/Qwen3-0.6B-4bit") },
 *   remote: { baseURL: "https://api.example.com/v1", model: "large" },
 *   policy: "local-first",
 * });
 * const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: router, dangerouslyAllowBrowser: true });
 * ```
 */
export function createRouter(options: RouterOptions): typeof fetch {
  const { local, remote, policy = "local", consent } = (options ??= {});
  const reporter = new Reporter(options);
  if (typeof policy === "string" && !Object.hasOwn(ORDERS, policy)) throw invalid(`'policy' must be one of ${Object.keys(ORDERS).join(", ")} or a function, not '${policy}'.`);
  if (!local && !remote) throw invalid("set 'local', 'remote' or both.");
  const needed = typeof policy === "string" ? ORDERS[policy]! : [];
  if (needed.includes("remote") && !remote) throw invalid(`the policy '${String(policy)}' needs 'remote'.`);
  if (needed.includes("local") && !local) throw invalid(`the policy '${String(policy)}' needs 'local'.`);
  if (remote && !URL.canParse(remote.baseURL)) throw invalid(`'remote.baseURL' must be a URL such as https://api.example.com/v1, not '${String(remote.baseURL)}'.`);
  const here = local && createFetch(local);
  return async (input, init) => {
    const start = Date.now();
    const request = requestOf(input, init);
    const sent = await parts(request);
    const asked: RouteRequest = { path: pathOf(request), model: typeof sent.json?.["model"] === "string" ? sent.json["model"] : sent.formModel, body: sent.json };
    const routes = typeof policy === "string" ? ORDERS[policy]! : [await policy(asked)].flat();
    let failure: unknown;
    for (const [i, route] of routes.entries()) {
      const isLast = i === routes.length - 1;
      if (route === "remote" && consent && !(await consent(asked))) {
        failure ??= refused(asked);
        continue;
      }
      reporter.event("jerboa.route", start, { "jerboa.route": route, "gen_ai.request.model": asked.model, "url.path": asked.path, ...(failure ? { "jerboa.route.fallback": true } : {}) });
      try {
        if (route === "remote") reporter.log("warn", `${asked.path} of '${asked.model ?? ""}' leaves this device: ${remote?.baseURL}`);
        const run = (): Promise<Response> => (route === "local" ? runLocal(here, request, sent) : runRemote(remote, request, sent, asked));
        const head: Record<string, string> = route === "local" ? { "gen_ai.provider.name": "jerboa" } : { "gen_ai.provider.name": "openai", "server.address": new URL(remote?.baseURL ?? request.url).hostname };
        const response = await observed(reporter, request, sent.json ?? {}, head, run);
        if (!isLast && (await mayTryOther(route, response))) {
          failure = response;
          continue;
        }
        return withRoute(response, route);
      } catch (thrown) {
        if (request.signal.aborted) throw thrown;
        if (isLast && !(thrown instanceof JerboaError)) throw thrown;
        failure = thrown;
      }
    }
    // Consent to every later route was refused: the failure before is the answer.
    if (failure instanceof Response) return withRoute(failure, "local");
    if (failure instanceof JerboaError || failure === undefined) return errorResponse(failure ?? invalid("the policy returned no route. Return 'local' or 'remote'."));
    throw failure;
  };
}

/** A request's body, read once: text, or a form. */
interface SentBody {
  body: ArrayBuffer | undefined;
  type: string | null;
  json: Record<string, unknown> | undefined;
  formModel: string | undefined;
}

async function parts(request: Request): Promise<SentBody> {
  if (["GET", "HEAD", "DELETE"].includes(request.method)) return { body: undefined, type: null, json: undefined, formModel: undefined };
  const type = request.headers.get("content-type");
  const isForm = type?.includes("form-data") === true;
  const form = isForm ? await request.clone().formData().catch(() => undefined) : undefined;
  const body = await request.arrayBuffer();
  const model = form?.get("model");
  return { body, type, json: isForm ? undefined : parsed(new TextDecoder().decode(body)), formModel: typeof model === "string" ? model : undefined };
}

function parsed(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** The path behind `/v1/`, or the whole one. */
function pathOf(request: Request): string {
  const { pathname, search } = new URL(request.url);
  return (/\/v1\/(.*)$/.exec(pathname)?.[1] ?? pathname.replace(/^\//, "")) + search;
}

function runLocal(here: typeof fetch | undefined, request: Request, { body, type }: SentBody): Promise<Response> {
  if (!here) return Promise.reject(invalid("the policy returned 'local', which is not set. Set it, or return 'remote'."));
  return here(request.url, { method: request.method, signal: request.signal, ...(body ? { body, headers: { "content-type": type ?? "application/json" } } : {}) });
}

async function runRemote(remote: RemoteServer | undefined, request: Request, { body, type, json }: SentBody, { path, model }: RouteRequest): Promise<Response> {
  if (!remote) throw invalid("the policy returned 'remote', which is not set. Set it, or return 'local'.");
  const { baseURL, apiKey, headers, fetch: send = fetch } = remote;
  const key = typeof apiKey === "function" ? await apiKey() : apiKey;
  const named = typeof remote.model === "string" ? remote.model : model !== undefined ? remote.model?.[model] : undefined;
  const sent = json && named !== undefined ? JSON.stringify({ ...json, model: named }) : body;
  return send(`${baseURL.replace(/\/+$/, "")}/${path}`, {
    method: request.method,
    signal: request.signal,
    headers: { ...(type ? { "content-type": type } : {}), ...(key ? { authorization: `Bearer ${key}` } : {}), ...headers },
    ...(sent ? { body: sent } : {}),
  });
}

async function mayTryOther(route: Route, response: Response): Promise<boolean> {
  if (response.ok) return false;
  if (route === "remote") return isUnreachable(response.status);
  const { error } = ((await response.clone().json().catch(() => ({}))) ?? {}) as { error?: { code?: string; jerboa_code?: string } };
  const code = error?.jerboa_code ?? error?.code ?? "internal";
  // A request that is refused with 500 has a model whose own loading function failed.
  return TRY_OTHER.has(code) || (code === "request" && response.status >= 500);
}

/** The response with its route in a header. */
function withRoute(response: Response, route: Route): Response {
  const headers = new Headers(response.headers);
  headers.set(ROUTE_HEADER, route);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

/** An error in OpenAI's form, which clients do not retry. */
function errorResponse({ code, message }: JerboaError): Response {
  return withRequestId(Response.json({ error: { code, message, type: "invalid_request_error", param: null, jerboa_code: code } }, { status: code === REFUSED ? 403 : 400, headers: { "x-should-retry": "false" } }));
}

/** The code of a request to which consent was refused. */
const REFUSED = "remote_refused";

function refused({ path, model }: RouteRequest): JerboaError {
  return new JerboaError(REFUSED, `createRouter: ${path} of '${model ?? ""}' was not sent to the server: 'consent' refused it. Ask the user for consent, or set 'local'.`);
}

function invalid(message: string): JerboaError {
  return new JerboaError("request", `createRouter: ${message}`);
}
