/** Whether this page can reach a GPU, and if not, why. Does not know the engine. */

import { signal } from "@preact/signals";

/** What stands in the way: `insecure` page, a browser `without` WebGPU, or `no-adapter` for it. */
export type WebGpu = "checking" | "ready" | "insecure" | "without" | "no-adapter";

/** The state of WebGPU in this page. */
export const webgpu = signal<WebGpu>("checking");

interface Gpu {
  requestAdapter(): Promise<unknown>;
}

/** Looks again. */
export async function checkWebGpu(): Promise<void> {
  webgpu.value = "checking";
  const gpu = (navigator as { gpu?: Gpu }).gpu;
  if (!gpu) {
    webgpu.value = window.isSecureContext ? "without" : "insecure";
    return;
  }
  // The first request after the browser's start may come back empty while its GPU process is still starting.
  for (const pause of [0, 300, 1000]) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    const adapter = await gpu.requestAdapter().catch(() => null);
    if (adapter) {
      webgpu.value = "ready";
      return;
    }
  }
  webgpu.value = "no-adapter";
}
