/** A software GPU for Node: Chromium's SwiftShader, or Mesa's llvmpipe, by the environment of the Vulkan loader. */

import { existsSync } from "node:fs";

/** Drivers in the order in which they are tried. */
const DRIVERS = ["/usr/lib/chromium/vk_swiftshader_icd.json", "/opt/google/chrome/vk_swiftshader_icd.json", "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "/usr/share/vulkan/icd.d/lvp_icd.json"];

/** Chooses the driver; call it before WebGPU is opened. */
export function useSoftwareGpu() {
  const driver = DRIVERS.find(existsSync);
  if (process.platform === "linux" && driver) process.env.VK_ICD_FILENAMES ??= driver;
}
