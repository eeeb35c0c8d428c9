/** Launches Chromium with WebGPU for page tests. */

import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { chromium } from "playwright-core";
import { SHOTS } from "./paths.mjs";

/** SwiftShader is WebGPU without a GPU. `JERBOA_WEBGPU_ADAPTER=` (empty) uses the machine's own adapter. */
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
  // SwiftShader zeroes workgroup memory with one store per word: Dawn's loop compiles three to seven times as fast.
  ...(ADAPTER ? [`--use-webgpu-adapter=${ADAPTER}`, "--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension"] : []),
];

/** The first browser versions with WebGPU: the engine's error, the page and the README name the same. */
export const WEBGPU_SINCE = [/Chrome (and|or) Edge (from version )?113/, /Safari (from version )?26/, /Firefox (from version )?141/, /145 on the Mac/];

/**
 * Milliseconds that a page waits for an element, an event or a navigation, and a test for the browser's start, unless the test says otherwise.
 * The 30 s of playwright and puppeteer are too few on two cores that also compile kernels. Below the limits of tests, so that an error names what
 * did not come.
 */
export const PATIENCE_MS = 110_000;

/** A browser with additional flags, whose pages wait for {@link PATIENCE_MS}. */
export async function launch(more = []) {
  const browser = await chromium.launch({ executablePath: CHROME, headless: true, args: [...FLAGS, ...more], timeout: PATIENCE_MS });
  const newContext = browser.newContext.bind(browser);
  // Also called by `browser.newPage`.
  browser.newContext = async (options) => {
    const context = await newContext(options);
    context.setDefaultTimeout(PATIENCE_MS);
    context.setDefaultNavigationTimeout(PATIENCE_MS);
    return context;
  };
  return browser;
}

/** Waits until `page`, which must have a secure URL, gets an adapter: the first requests after the start may fail. */
export async function warmUp(page) {
  const got = await page.evaluate(async () => {
    for (let i = 0; i < 240; i++) {
      if (await navigator.gpu?.requestAdapter()) return true;
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
    return false;
  });
  if (!got) throw new Error("this Chromium offers no WebGPU adapter, not even SwiftShader");
}

/** Waits until an element's text matches, and returns it. */
export async function untilReads(locator, pattern) {
  for (const end = Date.now() + PATIENCE_MS; ; ) {
    const text = await locator.innerText();
    if (pattern.test(text)) return text;
    if (Date.now() > end) throw new Error(`the text never matched ${pattern}:\n${text}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Kills a page's process, as a system does when memory is short. */
export async function crash(page) {
  const gone = new Promise((resolve) => page.once("crash", resolve));
  const session = await page.context().newCDPSession(page);
  // It is never answered.
  session.send("Page.crash").catch(() => {});
  await gone;
}

/** Saves a screenshot of the page to target/page/. */
export async function shot(page, name) {
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

/** Collects a page's problems: uncaught errors and error lines of the console. */
export function watch(page) {
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  return problems;
}
