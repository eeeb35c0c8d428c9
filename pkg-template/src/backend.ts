/** Chooses where the engine runs: in a dedicated worker, or on this thread when no worker is available. */

import { checked, valid } from "./check.js";
import { JerboaError, missingAsset, textOf } from "./errors.js";
import { workerCspAdvice } from "./csp.js";
import type { Backend } from "./engine-calls.js";
import { platform } from "./platform.js";
import { RemoteBackend } from "./rpc.js";
import { ASSET_TIMEOUT_MS, WORKER_START_TIMEOUT_MS, withTimeout } from "./waits.js";
import { absoluteUrl, startWorker } from "./worker-start.js";

/** URLs of the package's files, for bundlers that do not copy them next to the script and for other servers. */
export interface AssetUrls {
  /** URL of jerboa_bg.wasm. */
  wasmUrl?: string | URL;
  /** URL of worker.js, or of a bundle of it. */
  workerUrl?: string | URL;
}

/** Validators of {@link AssetUrls}. */
export const ASSETS = { wasmUrl: valid.url, workerUrl: valid.url };

let assets: AssetUrls = {};

/**
 * Sets the URLs of the package's files for all later calls. Not needed with bundlers that understand `new URL(…,
 * import.meta.url)`.
 *
 * ```js
 * configure({ wasmUrl: "/assets/jerboa_bg.wasm", workerUrl: "/assets/jerboa-worker.js" });
 * ```
 */
export function configure(urls: AssetUrls): void {
  assets = { ...assets, ...checked("configure", urls, ASSETS) };
}

/** A backend, with a warning when it runs on this thread although a worker was requested. */
export interface OpenedBackend {
  backend: Backend;
  warning?: string;
}

/** Opens the engine in a worker, or on this thread when `worker` is false or no worker can start. */
export async function openBackend(worker: boolean, given: AssetUrls = {}): Promise<OpenedBackend> {
  const { wasmUrl, workerUrl } = { ...assets, ...given };
  const wasm = absoluteUrl(wasmUrl);
  const local = await (worker ? undefined : localBackend(wasm).catch((thrown) => (stopped(thrown) ? undefined : Promise.reject(thrown))));
  if (local) return { backend: local };
  const remote = workerBackend(absoluteUrl(workerUrl));
  if (typeof remote === "string") return { backend: await localBackend(wasm), warning: mainThreadWarning(remote) };
  try {
    const { gpu } = await withTimeout(WORKER_START_TIMEOUT_MS, "the worker", remote.hello);
    if (gpu || !("gpu" in (globalThis.navigator ?? {}))) {
      if (wasm) remote.useWasm(wasm);
      return { backend: remote, ...(worker ? {} : { warning: "The model runs in a worker although worker: false was set: the engine on this thread stopped earlier. Reload the page to run models on this thread again." }) };
    }
    await remote.close();
    return { backend: await localBackend(wasm), warning: mainThreadWarning("this browser supports WebGPU in pages but not in workers") };
  } catch (thrown) {
    void remote.close();
    return { backend: await localBackend(wasm), warning: mainThreadWarning(textOf(thrown)) };
  }
}

const STOPPED = Symbol("stopped");
const stopped = (thrown: unknown): boolean => thrown instanceof JerboaError && thrown.cause === STOPPED;

async function localBackend(wasm: string | undefined): Promise<Backend> {
  let module;
  try {
    module = await withTimeout(ASSET_TIMEOUT_MS, "the server", import("./local.js"));
  } catch (thrown) {
    throw missingAsset("The engine's script", thrown);
  }
  const host = module.localHost();
  // The module's instance cannot be replaced on this thread.
  if (host.trap) throw new JerboaError("internal", "The engine on this thread stopped earlier. Reload the page, or load the model in a worker (worker: true).", { cause: STOPPED });
  if (wasm) host.useWasm(wasm);
  return host;
}

/** Starts a worker; returns the reason as a string when that fails. */
function workerBackend(url: string | undefined): RemoteBackend | string {
  const thread = platform()?.spawn();
  if (thread) return new RemoteBackend(thread.port, thread.end);
  if (typeof Worker === "undefined") return "Web Workers are not available here";
  try {
    // Bundlers match these exact expressions.
    return startWorker("jerboa", url, new URL("./worker.js", import.meta.url), () => new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "jerboa" }));
  } catch (thrown) {
    return textOf(thrown);
  }
}

/** The warning of a model on this thread. */
function mainThreadWarning(reason: string): string {
  const blocked = workerCspAdvice(import.meta.url);
  return `The model runs on the page's main thread, which may make the page stutter: the worker could not be started: ${blocked ?? `${reason.replace(/\.$/, "")}.`}`;
}
