/**
 * One engine for all tabs of an origin: in a shared worker that has WebGPU, else in one of the tabs.
 *
 * @module jerboa/tabs
 */

import { describe } from "../check.js";
import { createFetch, JerboaError, type ServedModels } from "../index.js";
import { randomId } from "../random-id.js";
import { type CallMessage, Calls, CallServer, type ReplyMessage } from "./calls.js";

/** Options of {@link shareModels}. */
export interface ShareOptions {
  /** Tabs that share models have the same name; `models` by default. */
  name?: string;
  /**
   * Starts a shared worker that calls {@link serveModels}. It is used where workers of this kind have WebGPU; elsewhere
   * a tab runs the models.
   */
  sharedWorker?: () => SharedWorker;
}

/** What tabs send each other. */
type TabMessage = { leader: true } | { to: "leader"; message: CallMessage } | { to: string; message: ReplyMessage };

/** Milliseconds after which a shared worker without an answer counts as missing. */
const HELLO_TIMEOUT_MS = 10_000;

/**
 * Creates a `fetch` for OpenAI's clients whose models all tabs of this origin share: the first request of any tab loads
 * them, those of other tabs find them loaded. If the tab that runs them closes, another loads them, and running answers
 * go on.
 *
 * ```js
 * const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", dangerouslyAllowBrowser: true,
 *   fetch: shareModels({ chat: () => loadModel("mlx-community/Qwen3-0.6B-4bit") }) });
 * ```
 */
export function shareModels(models: ServedModels, options: ShareOptions = {}): typeof fetch {
  const { name, sharedWorker } = checkedOptions(options);
  const serve = createFetch(models);
  let calls: Promise<Calls> | undefined;
  const start = async (): Promise<Calls> => {
    // Modules that call shareModels are also evaluated where pages are rendered on a server.
    if (!globalThis.navigator?.locks) throw new JerboaError("unsupported_option", `shareModels: Web Locks are not available here. ${globalThis.isSecureContext === false ? "Serve the page over https or from localhost" : "Send requests from pages and workers only"}, or call createFetch.`);
    return (sharedWorker && typeof SharedWorker !== "undefined" ? await connect(sharedWorker) : undefined) ?? electLeader(name, serve);
  };
  return async (input, init) => (await (calls ??= start())).fetch(new Request(input, init));
}

/** The options of {@link shareModels}. @throws {@link JerboaError} `request` for unknown names and wrong types. */
function checkedOptions(options: ShareOptions): { name: string; sharedWorker: (() => SharedWorker) | undefined } {
  const refuse = (fault: string): never => {
    throw new JerboaError("request", `shareModels: ${fault}.`);
  };
  if (typeof options !== "object" || options === null) refuse(`the options must be an object, not ${describe(options)}`);
  const { name = "models", sharedWorker, ...others } = options;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) refuse(`unknown option '${unknown}'. Supported options: name, sharedWorker`);
  if (typeof name !== "string") refuse(`'name' must be a string, not ${describe(name)}`);
  if (sharedWorker !== undefined && typeof sharedWorker !== "function") refuse(`'sharedWorker' must be a function, not ${describe(sharedWorker)}. Pass () => new SharedWorker(url)`);
  return { name, sharedWorker };
}

/** Calls that a shared worker answers; undefined if it has no WebGPU or does not start. */
async function connect(start: () => SharedWorker): Promise<Calls | undefined> {
  let worker: SharedWorker;
  try {
    worker = start();
  } catch {
    return undefined;
  }
  if (!(worker as SharedWorker | undefined)?.port) throw new JerboaError("request", `shareModels: 'sharedWorker' must return a SharedWorker, not ${describe(worker)}. Pass () => new SharedWorker(url).`);
  const { port } = worker;
  const calls = new Calls((message) => port.postMessage(message));
  const hasGpu = await new Promise<boolean>((resolve) => {
    setTimeout(() => resolve(false), HELLO_TIMEOUT_MS);
    worker.addEventListener("error", () => resolve(false));
    port.addEventListener("message", ({ data }: MessageEvent<{ hello: boolean } | ReplyMessage>) => ("hello" in data ? resolve(data.hello) : calls.receive(data)));
    port.start();
  });
  if (!hasGpu) port.close();
  return hasGpu ? calls : undefined;
}

/** Calls that one of the tabs answers: the one that has the lock. */
function electLeader(name: string, serve: typeof fetch): Calls {
  const channel = new BroadcastChannel(`jerboa:tabs:${name}`);
  const send = (message: TabMessage): void => channel.postMessage(message);
  let server: CallServer | undefined;
  const handle = (message: CallMessage, from: string): void => server?.receive(message, from, (reply) => (from === own ? calls.receive(reply) : send({ to: from, message: reply })));
  const calls = new Calls((message) => (server ? handle(message, own) : send({ to: "leader", message })));
  const own = calls.caller;
  channel.addEventListener("message", ({ data }: MessageEvent<TabMessage>) => {
    if ("leader" in data) calls.restart();
    else if (data.to === own) calls.receive(data.message as ReplyMessage);
    else if (data.to === "leader") handle(data.message as CallMessage, (data.message as CallMessage).from ?? "");
  });
  // The browser passes the lock on when its tab ends, however it ends.
  void navigator.locks.request(`jerboa:tabs:${name}`, () => {
    server = new CallServer(serve);
    send({ leader: true });
    calls.restart();
    return new Promise(() => {});
  });
  return calls;
}

/**
 * Answers requests of pages in a shared worker.
 *
 * ```js
 * serveModels({ chat: () => loadModel("mlx-community/Qwen3-0.6B-4bit") });
 * ```
 */
export function serveModels(models: ServedModels): void {
  const server = new CallServer(createFetch(models));
  const hello = (async (): Promise<boolean> => {
    const gpu = (globalThis.navigator as { gpu?: { requestAdapter(): Promise<unknown> } } | undefined)?.gpu;
    return (await gpu?.requestAdapter().catch(() => undefined)) != null;
  })();
  globalThis.addEventListener("connect", (event) => {
    const [port] = (event as MessageEvent).ports as unknown as [MessagePort];
    const id = randomId();
    port.addEventListener("message", ({ data }: MessageEvent<CallMessage>) => server.receive(data, data.from ?? id, (reply) => port.postMessage(reply)));
    port.start();
    void hello.then((hasGpu) => port.postMessage({ hello: hasGpu }));
  });
}
