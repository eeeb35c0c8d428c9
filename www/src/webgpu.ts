/** Detects WebGPU and the GPU, or the reason why there is none. */

import { signal } from "@preact/signals";

/** WebGPU support: `insecure` page, browser `without` WebGPU, or `no-adapter`. */
export type WebGpu = "checking" | "ready" | "insecure" | "without" | "no-adapter";

/** WebGPU support of this page. */
export const webgpu = signal<WebGpu>("checking");

/** The GPU's name, and whether it is a software renderer. */
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

/** Checks again. */
export async function checkWebGpu(): Promise<void> {
  webgpu.value = "checking";
  const api = (navigator as { gpu?: Gpu }).gpu;
  if (!api) {
    webgpu.value = window.isSecureContext ? "without" : "insecure";
    return;
  }
  // Retries: the first request after a browser start may fail while its GPU process starts.
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

/** The GPU's name; browsers report a description, or only vendor and architecture. */
function nameOf({ vendor = "", architecture = "", device = "", description = "" }: Info): string {
  if (description) return description;
  const known: Record<string, string> = { nvidia: "NVIDIA", amd: "AMD", intel: "Intel", apple: "Apple", arm: "Arm", qualcomm: "Qualcomm", google: "Google" };
  return [known[vendor.toLowerCase()] ?? vendor, device || architecture].filter(Boolean).join(" ") || "this GPU";
}
