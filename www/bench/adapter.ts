/** The page's own look at the GPU, before anything is loaded. Knows no model. */

/** Where there is no GPU to measure. */
export class NoGpu extends Error {}

const RETRIES = 25;
const PAUSE_MS = 400;

/** The adapter's description; waits while the browser's GPU process starts, when the first requests fail. */
export async function adapterInfo(): Promise<GPUAdapterInfo> {
  if (!navigator.gpu) throw new NoGpu("This browser has no WebGPU.");
  for (let attempt = 0; attempt < RETRIES; attempt++) {
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
    if (adapter) return adapter.info;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  throw new NoGpu("This browser finds no GPU.");
}

/** Refuses an adapter that computes on the processor. */
export function refuseSoftware(info: GPUAdapterInfo): void {
  if (info.architecture === "swiftshader" || info.isFallbackAdapter) {
    throw new NoGpu("This browser runs WebGPU on the processor. Its speed says nothing about the engine: open the page in a browser that uses the GPU.");
  }
}
