/** Starts the package's worker scripts, from any origin and under Trusted Types. */

import { workerSources } from "./csp.js";
import { JerboaError } from "./errors.js";
import { RemoteBackend } from "./rpc.js";
import { isUntrusted, scriptUrl } from "./trusted.js";
import { WORKER_START_TIMEOUT_MS, withTimeout } from "./waits.js";

/** Resolves a path against the page's URL; a worker has no page URL to resolve it with. */
export function absoluteUrl(url: string | URL | undefined): string | undefined {
  return url && new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href ?? import.meta.url).href;
}

/**
 * Connects to a worker: of the script at `url`, or the one that `start` creates from the package's own script at `own`. A
 * browser may refuse `start` because `own` has another origin or is not a trusted address.
 */
export function startWorker(name: string, url: string | undefined, own: URL, start: () => Worker): RemoteBackend {
  let worker: Worker;
  try {
    worker = url ? workerAt(url, name) : start();
  } catch (thrown) {
    if (url || (own.origin === location.origin && !isUntrusted(thrown))) throw thrown;
    worker = workerAt(own.href, name);
  }
  const script = url ?? own.href;
  const unloadable = `The worker's script ${script} could not be loaded. Copy the script there, or set 'workerUrl' to its URL. If the page has a Content-Security-Policy, its worker-src directive must list ${workerSources(script)}.`;
  return new RemoteBackend(worker, () => worker.terminate(), unloadable);
}

/**
 * Waits until the worker of a training call has started, and passes it the URL of the wasm file, if set.
 * @throws {@link JerboaError} `worker` if it does not start in time, `no_webgpu` if it has no WebGPU.
 */
export async function workerStarted(call: string, remote: RemoteBackend, wasmUrl: string | URL | undefined): Promise<void> {
  const { gpu } = await withTimeout(WORKER_START_TIMEOUT_MS, "the worker", remote.hello).catch((thrown: unknown) => {
    if (thrown instanceof JerboaError) throw thrown;
    throw new JerboaError("worker", `${call}: the worker did not start within ${WORKER_START_TIMEOUT_MS / 1000} seconds. Check that 'workerUrl', if set, is the URL of train/worker.js, and try again when the device is less busy.`, { cause: thrown });
  });
  if (!gpu) throw new JerboaError("no_webgpu", `${call}: this browser has no WebGPU in workers, where training runs. Update the browser.`);
  const wasm = absoluteUrl(wasmUrl);
  if (wasm) remote.useWasm(wasm);
}

/**
 * Starts a worker from any origin. Pages may only start same-origin workers, so other origins are imported from a blob
 * script.
 */
function workerAt(url: string, name: string): Worker {
  const options = { type: "module", name } as const;
  if (new URL(url).origin === location.origin) return new Worker(scriptUrl(url), options);
  const script = URL.createObjectURL(new Blob([`import ${JSON.stringify(url)};`], { type: "text/javascript" }));
  try {
    return new Worker(scriptUrl(script), options);
  } finally {
    // By then the browser has read the script.
    setTimeout(() => URL.revokeObjectURL(script), 60_000);
  }
}
