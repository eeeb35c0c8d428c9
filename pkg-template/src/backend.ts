/** Decides where the engine runs: a dedicated worker, or this thread where a worker cannot. Does not know what it will be asked. */

import type { Backend } from "./host.js";
import { Remote } from "./wire.js";

/** A backend, and why it is not in a worker when that was wanted. */
export interface Opened {
  backend: Backend;
  warning?: string;
}

/** How long a worker may take to start before this thread takes over. */
const HELLO_MS = 20_000;

/** Opens the engine in a worker, or on this thread when `worker` is false or no worker can be had. */
export async function openBackend(worker: boolean): Promise<Opened> {
  if (!worker) return { backend: await local() };
  const remote = startWorker();
  if (typeof remote === "string") return { backend: await local(), warning: onThisThread(remote) };
  try {
    const { gpu } = await within(HELLO_MS, remote.hello);
    if (gpu || !("gpu" in navigator)) return { backend: remote };
    await remote.close();
    return { backend: await local(), warning: onThisThread("this browser gives WebGPU to pages but not to workers") };
  } catch (thrown) {
    void remote.close();
    return { backend: await local(), warning: onThisThread(thrown instanceof Error ? thrown.message : String(thrown)) };
  }
}

async function local(): Promise<Backend> {
  return (await import("./local.js")).localHost();
}

/** A worker, or why there is none. */
function startWorker(): Remote | string {
  if (typeof Worker === "undefined") return "this place has no Worker";
  try {
    // Bundlers look for this very expression.
    const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "jerboa" });
    return new Remote(worker, () => worker.terminate());
  } catch (thrown) {
    return thrown instanceof Error ? thrown.message : String(thrown);
  }
}

function onThisThread(reason: string): string {
  return `The model runs on the page's own thread, which may stutter, because no worker could be started: ${reason}.`;
}

function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`it did not start within ${ms / 1000} seconds`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
