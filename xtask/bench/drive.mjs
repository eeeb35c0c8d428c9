/**
 * Runs the built bench page in a browser, one shape at a time. Writes each result as JSON and its plot as SVG.
 *
 * usage: drive.mjs '{ "out", "browser"?, "flags": [], "window": bool, "model"?, "settings": { NAME: VALUE } }'
 */

import { existsSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { chromium } from "playwright-core";
import { PAGE } from "../../tests/page/support/paths.mjs";
import { serve } from "../../tests/page/support/server.mjs";
import { asText } from "./table.mjs";

const BROWSERS = ["/usr/bin/chromium", "/usr/bin/google-chrome", "/usr/bin/microsoft-edge", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"];
const FLAGS = [
  "--no-sandbox",
  "--disable-dev-shm-usage",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-background-timer-throttling",
  "--disable-renderer-backgrounding",
  "--disable-backgrounding-occluded-windows",
  "--enable-unsafe-webgpu",
  // By default Chrome rounds GPU timestamps to 100 µs, too coarse for kernels.
  "--disable-dawn-features=timestamp_quantization",
];
/** Flags that Chrome on Linux needs to use a GPU without a display. */
const LINUX = ["--enable-features=Vulkan,DefaultANGLEVulkan,VulkanFromANGLE", "--use-angle=vulkan", "--disable-vulkan-surface", "--ignore-gpu-blocklist"];
const SOFTWARE = ["--use-webgpu-adapter=swiftshader"];
/** Cross-origin isolation: clocks have a resolution of 5 µs instead of 100. */
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };
/** Styles of a plot outside the page. */
const STYLE = "svg{font:11px sans-serif;fill:#666;background:#fff}path,polyline{fill:none;stroke:#2563eb;stroke-width:2}circle{fill:#2563eb}.axis{stroke:#ccc}";
/** Maximum milliseconds per shape. */
const SHAPE_TIMEOUT_MS = 1_800_000;

const request = JSON.parse(process.argv[2]);

function executable() {
  const found = request.browser ?? process.env.CHROME ?? BROWSERS.find((path) => existsSync(path));
  if (!found || !existsSync(found)) throw new Error(`no browser at ${found ?? BROWSERS.join(" or ")}. Pass one with --browser PATH.`);
  return found;
}

const start = (more) =>
  chromium.launch({
    executablePath: executable(),
    headless: !request.window,
    args: [...FLAGS, ...more, ...request.flags],
    ignoreDefaultArgs: ["--enable-unsafe-swiftshader"],
  });

/** Returns the page's adapter, if any. Retries, since the first requests after the start may fail. */
async function adapter(browser, url) {
  const page = await browser.newPage();
  await page.goto(`${url}/favicon.svg`);
  const info = await page.evaluate(async () => {
    for (let i = 0; i < 25; i++) {
      const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
      if (adapter) return { architecture: adapter.info.architecture, software: adapter.info.architecture === "swiftshader" || adapter.info.isFallbackAdapter };
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    return undefined;
  });
  await page.close();
  return info;
}

/** Opens a browser with the machine's GPU, or with a software adapter if it has none. */
async function open(url) {
  const gpu = await start(process.platform === "linux" ? LINUX : []);
  const found = await adapter(gpu, url);
  if (found && !found.software) return { browser: gpu, software: false };
  await gpu.close();
  const browser = await start(SOFTWARE);
  if (!(await adapter(browser, url))) throw new Error("this browser has no WebGPU. Use Chrome 113 or newer.");
  return { browser, software: true };
}

/** Runs the page once; `say` receives its progress lines. */
async function measure(browser, url, settings, say) {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.route("**/log", (route) => {
    say(route.request().postData());
    return route.fulfill({ status: 204 });
  });
  await page.route("**/result", (route) => route.fulfill({ status: 204 }));
  await page.goto(`${url}/bench/index.html?${new URLSearchParams(settings)}`);
  await page.waitForFunction(() => window.result, null, { timeout: SHAPE_TIMEOUT_MS });
  const result = await page.evaluate(() => window.result);
  const svg = await page.evaluate((style) => {
    const plot = document.querySelector("#report svg");
    if (!plot) return undefined;
    plot.prepend(Object.assign(document.createElementNS(plot.namespaceURI, "style"), { textContent: style }));
    return new XMLSerializer().serializeToString(plot);
  }, STYLE);
  await context.close();
  return { result, svg };
}

const { tokenizer } = request.settings;
if (tokenizer) request.settings.tokenizer = `/tokenizer/${basename(tokenizer)}`;
const mounts = { "/": PAGE, ...(request.model ? { "/model/": request.model } : {}), ...(tokenizer ? { "/tokenizer/": dirname(resolve(tokenizer)) } : {}) };
const server = await serve(mounts, ISOLATED);
let failed = false;
try {
  const { browser, software } = await open(server.url);
  if (software) console.log("==> This browser has no GPU: the run checks that everything works and measures no speed.");
  const { shape, ...settings } = request.settings;
  const shapes = request.model ? ["model"] : (shape ?? (software ? "tiny" : "qwen3-0.6b")).split(",");
  await mkdir(request.out, { recursive: true });
  const results = [];
  for (const name of shapes) {
    console.log(`==> ${name}`);
    const where = request.model ? { source: "/model/" } : { shape: name };
    // The speed of a software adapter is meaningless.
    const say = (line) => software || console.log(`    ${line}`);
    const { result, svg } = await measure(browser, server.url, { ...where, ...settings, ...(software ? { smoke: "1" } : {}) }, say);
    if (result.err) {
      console.error(`error: ${name}: ${result.err}`);
      failed = true;
      continue;
    }
    if (request.model) result.model = basename(request.model);
    const file = join(request.out, `${name}${settings.stored ? `-${settings.stored}` : ""}`);
    await writeFile(`${file}.json`, `${JSON.stringify(result, null, 1)}\n`);
    if (svg && !software) await writeFile(`${file}.svg`, svg);
    results.push(result);
  }
  await browser.close();
  const text = asText(results);
  await writeFile(join(request.out, "bench.md"), text);
  console.log(`\n${text}\nResults in ${request.out}: JSON files, SVG plots, bench.md.`);
} catch (error) {
  console.error(`error: ${error.message}`);
  failed = true;
} finally {
  await server.close();
}
process.exitCode = failed ? 1 : 0;
