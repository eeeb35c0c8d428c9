/** Whether this page can reach a GPU, which one, and if not, why. Does not know the engine. */

import { signal } from "@preact/signals";

/** What stands in the way: `insecure` page, a browser `without` WebGPU, or `no-adapter` for it. */
export type WebGpu = "checking" | "ready" | "insecure" | "without" | "no-adapter";

/** The state of WebGPU in this page. */
export const webgpu = signal<WebGpu>("checking");

/** The GPU as the browser names it, and whether it is none: a renderer on the processor. */
export const gpu = signal<{ name: string; software: boolean } | undefined>(undefined);

interface Info {
  vendor?: string;
  architecture?: string;
  device?: string;
  description?: string;
  isFallbackAdapter?: boolean;
}

interface Gpu {
  requestAdapter(): Promise<{ info?: Info; isFallbackAdapter?: boolean } | null>;
}

/** Looks again. */
export async function checkWebGpu(): Promise<void> {
  webgpu.value = "checking";
  const api = (navigator as { gpu?: Gpu }).gpu;
  if (!api) {
    webgpu.value = window.isSecureContext ? "without" : "insecure";
    return;
  }
  // The first request after the browser's start may come back empty while its GPU process is still starting.
  for (const pause of [0, 300, 1000]) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    const adapter = await api.requestAdapter().catch(() => null);
    if (adapter) {
      const info = adapter.info ?? {};
      gpu.value = { name: nameOf(info), software: info.isFallbackAdapter === true || adapter.isFallbackAdapter === true || /swiftshader|llvmpipe|software/i.test(JSON.stringify([info.architecture, info.description, info.device])) };
      webgpu.value = "ready";
      return;
    }
  }
  webgpu.value = "no-adapter";
}

/** Browsers tell a name, or only who made it and of which generation it is. */
function nameOf({ vendor = "", architecture = "", device = "", description = "" }: Info): string {
  if (description) return description;
  const known: Record<string, string> = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel", apple: "Apple", arm: "Arm", qualcomm: "Qualcomm", google: "Google" };
  return [known[vendor.toLowerCase()] ?? vendor, device || architecture].filter(Boolean).join(" ") || "this GPU";
}
