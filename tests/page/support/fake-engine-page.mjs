/** The demo page over the fake engine, in Chromium: tests of the page without the cost of a software GPU. */

import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { launch, watch } from "./browser.mjs";
import { buildOnce } from "./build-once.mjs";
import { buildFacade, FACADE_INPUTS } from "./facade.mjs";
import { PAGE, ROOT } from "./paths.mjs";
import { serve } from "./server.mjs";

/** The files that determine the built page. */
const PAGE_INPUTS = [...FACADE_INPUTS, ...["bench", "public", "report", "src", "index.html", "shell.ts", "tsconfig.json", "vite.config.ts"].map((name) => `www/${name}`)];

/** Serves the page, built once for all files of a run, and opens a browser with additional flags: `open(options, prepare, path)` returns a new visitor's page. The facade alone is under /facade/, the built documentation under /docs/. */
export async function fakeEnginePage(flags = []) {
  const facade = await buildFacade();
  const folder = await buildOnce("page", PAGE_INPUTS, (made) => buildPage(facade.folder, made));
  const server = await serve({ "/": folder, "/facade/": facade.folder, "/docs/": join(PAGE, "docs") });
  const browser = await launch(flags);
  const open = async (options = {}, prepare, path = "") => {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    const page = await context.newPage();
    const problems = watch(page);
    if (prepare) await page.addInitScript(prepare);
    await page.goto(server.url + path);
    return { page, context, problems };
  };
  const close = async () => {
    await browser.close();
    await server.close();
    await facade.remove();
  };
  return { open, close, url: server.url, browser };
}

async function buildPage(facade, folder) {
  const vite = join(ROOT, "node_modules/vite/bin/vite.js");
  const env = { ...process.env, JERBOA_PACKAGE: facade, JERBOA_PAGE: folder };
  await promisify(execFile)(process.execPath, [vite, "build", "--logLevel", "warn"], { cwd: join(ROOT, "www"), env });
}
