/** Checks the GPU before anything is loaded. */

/** The error when there is no GPU to benchmark. */
export class NoGpu extends Error {}

const RETRIES = 25;
const PAUSE_MS = 400;

/** The adapter's description; retries while the browser's GPU process starts. */
export async function adapterInfo(): Promise<GPUAdapterInfo> {
  if (!navigator.gpu) throw new NoGpu("This browser does not support WebGPU.");
  for (let attempt = 0; attempt < RETRIES; attempt++) {
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
    if (adapter) return adapter.info;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
  throw new NoGpu("The browser found no GPU.");
}

/** Refuses a software adapter. */
export function refuseSoftware(info: GPUAdapterInfo): void {
  if (info.architecture === "swiftshader" || info.isFallbackAdapter) {
    throw new NoGpu("This browser runs WebGPU on the CPU, so the numbers would be meaningless. Open the page in a browser that uses the GPU.");
  }
}
