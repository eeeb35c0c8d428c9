/** Decides where the engine runs: a dedicated worker, or this thread where a worker cannot. Does not know what it will be asked. */

import { checked, mustBe } from "./check.js";
import { missingAsset } from "./errors.js";
import type { Backend } from "./host.js";
import { Remote } from "./wire.js";

/** Where files of the package lie, when they are not beside its script: for bundlers that do not move them along, and for other servers. */
export interface AssetUrls {
  /** The address of jerboa_bg.wasm. */
  wasmUrl?: string | URL;
  /** The address of worker.js, or of a bundle of it. */
  workerUrl?: string | URL;
}

/** The checks of {@link AssetUrls}. */
export const ASSETS = { wasmUrl: mustBe.url, workerUrl: mustBe.url };

let assets: AssetUrls = {};

/**
 * Says where the package's files lie, for all calls that follow. Bundlers that understand `new URL(…, import.meta.url)` need none of it.
 *
 * ```js
 * configure({ wasmUrl: "/assets/jerboa_bg.wasm", workerUrl: "/assets/jerboa-worker.js" });
 * ```
 */
export function configure(urls: AssetUrls): void {
  assets = { ...assets, ...checked("configure", urls, ASSETS) };
}

/** A backend, and why it is not in a worker when that was wanted. */
export interface Opened {
  backend: Backend;
  warning?: string;
}

/** How long a worker may take to start before this thread takes over. */
const HELLO_MS = 20_000;

/** Opens the engine in a worker, or on this thread when `worker` is false or no worker can be had. */
export async function openBackend(worker: boolean, given: AssetUrls = {}): Promise<Opened> {
  const { wasmUrl, workerUrl } = { ...assets, ...given };
  const wasm = absolute(wasmUrl);
  if (!worker) return { backend: await local(wasm) };
  const remote = startWorker(absolute(workerUrl));
  if (typeof remote === "string") return { backend: await local(wasm), warning: onThisThread(remote) };
  try {
    const { gpu } = await within(HELLO_MS, remote.hello);
    if (gpu || !("gpu" in navigator)) {
      if (wasm) remote.useWasm(wasm);
      return { backend: remote };
    }
    await remote.close();
    return { backend: await local(wasm), warning: onThisThread("this browser gives WebGPU to pages but not to workers") };
  } catch (thrown) {
    void remote.close();
    return { backend: await local(wasm), warning: onThisThread(thrown instanceof Error ? thrown.message : String(thrown)) };
  }
}

/** A worker has no page's address to complete a path with. */
function absolute(url: string | URL | undefined): string | undefined {
  return url === undefined ? undefined : new URL(url, typeof document === "undefined" ? (globalThis.location?.href ?? import.meta.url) : document.baseURI).href;
}

async function local(wasm: string | undefined): Promise<Backend> {
  let module;
  try {
    module = await import("./local.js");
  } catch (thrown) {
    throw missingAsset("The engine's script", thrown);
  }
  const host = module.localHost();
  if (wasm) host.useWasm(wasm);
  return host;
}

/** A worker, or why there is none. */
function startWorker(url: string | undefined): Remote | string {
  if (typeof Worker === "undefined") return "this place has no Worker";
  try {
    // Bundlers look for this very expression.
    const worker = url === undefined ? new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "jerboa" }) : workerAt(url);
    return new Remote(worker, () => worker.terminate());
  } catch (thrown) {
    const elsewhere = url === undefined && !import.meta.url.startsWith(location.origin);
    if (elsewhere) return startWorker(new URL("./worker.js", import.meta.url).href);
    return thrown instanceof Error ? thrown.message : String(thrown);
  }
}

/** A page may only start workers of its own origin: a script that imports one from elsewhere is of its own. */
function workerAt(url: string): Worker {
  const options = { type: "module", name: "jerboa" } as const;
  if (new URL(url).origin === location.origin) return new Worker(url, options);
  const script = URL.createObjectURL(new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" }));
  try {
    return new Worker(script, options);
  } finally {
    // The browser has begun to read it.
    setTimeout(() => URL.revokeObjectURL(script), 60_000);
  }
}

function onThisThread(reason: string): string {
  return `The model runs on the page's own thread, which may stutter, because no worker could be started: ${reason.replace(/\.$/, "")}.`;
}

function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`it did not start within ${ms / 1000} seconds`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
