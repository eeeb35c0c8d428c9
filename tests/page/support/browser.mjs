/** Chromium with WebGPU for page tests. Knows flags; not the pages. */

import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { chromium } from "playwright-core";
import { SHOTS } from "./places.mjs";

/** SwiftShader is WebGPU without a GPU. `JERBOA_WEBGPU_ADAPTER=` (empty) takes the machine's own. */
const ADAPTER = process.env.JERBOA_WEBGPU_ADAPTER ?? "swiftshader";
/** The browser. */
export const CHROME = process.env.CHROME ?? ["/usr/bin/chromium", "/usr/bin/google-chrome"].find((path) => existsSync(path));

const FLAGS = [
  "--no-sandbox",
  "--disable-dev-shm-usage",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--enable-unsafe-webgpu",
  // SwiftShader's own zeroing of workgroup memory is a store for each word: Dawn's loop compiles three to seven times as fast.
  ...(ADAPTER ? [`--use-webgpu-adapter=${ADAPTER}`, "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension"] : []),
];

/** From which versions browsers have WebGPU: the engine's error, the page and the README say the same. */
export const WEBGPU_SINCE = [/Chrome (and|or) Edge (from version )?113/, /Safari (from version )?26/, /Firefox (from version )?141/, /145 on the Mac/];

/** A browser whose GPU process answers, with more flags where they are given. */
export async function launch(more = []) {
  const browser = await chromium.launch({ executablePath: CHROME, headless: true, args: [...FLAGS, ...more] });
  return browser;
}

/** Waits until `page`, which must be on a secure address, gets an adapter: the first requests after the start may not. */
export async function warmUp(page) {
  const got = await page.evaluate(async () => {
    for (let i = 0; i < 20; i++) {
      if (await navigator.gpu?.requestAdapter()) return true;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
    return false;
  });
  if (!got) throw new Error("this Chromium offers no WebGPU adapter, not even SwiftShader");
}

/** Kills a page's process, as a system does that is short of memory. */
export async function crash(page) {
  const gone = new Promise((resolve) => page.once("crash", resolve));
  const session = await page.context().newCDPSession(page);
  // It is never answered.
  session.send("Page.crash").catch(() => {});
  await gone;
}

/** Saves what the page looks like to target/page/. */
export async function shot(page, name) {
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

/** Collects what goes wrong in a page: uncaught errors and error lines of the console. */
export function watch(page) {
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  return problems;
}
