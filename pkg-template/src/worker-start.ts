/** Starts the package's worker scripts, from any origin and under Trusted Types. */

import { RemoteBackend } from "./rpc.js";
import { isUntrusted, scriptUrl } from "./trusted.js";

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
  return new RemoteBackend(worker, () => worker.terminate());
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
