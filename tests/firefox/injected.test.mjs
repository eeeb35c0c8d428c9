/**
 * Faults of the Web APIs of a load and a generation in Firefox with the real engine, as in tests/page/injected.test.mjs. A plain run takes a few;
 * `JERBOA_INJECT=all` takes all, and writes docs/web-api-faults.md; `JERBOA_INJECT_ONLY=Cache` takes the APIs that match.
 */

import { after, before, test } from "node:test";
import { assertBuilt } from "../page/support/built.mjs";
import { ALL, assertDocumented, assertListed, cases, packageScripts, prepare, strikeAll } from "../page/support/injected-cases.mjs";
import { install, installation } from "../page/support/injected-faults.mjs";
import { PACKAGE, ROOT, STORIES } from "../page/support/paths.mjs";
import { serve } from "../page/support/server.mjs";
import { launch } from "./support/firefox.mjs";

const options = { timeout: (ALL ? 90 : 10) * 60_000 };
/** Pages at a time. */
const LANES = 2;
/** The faults of a plain run. */
const SAMPLE = {
  load: { throws: ["CacheStorage.open", "FileSystemHandle.move"], null: ["GPU.requestAdapter"], never: ["GPUDevice.popErrorScope"], late: ["Cache.put"] },
  generate: { throws: ["GPUQueue.submit"], never: ["GPUBuffer.mapAsync"] },
};
let server, browser, text, calls, scripts;

let turn = Promise.resolve();
/** Opens or closes a page after the others: Firefox loses a page that opens while another closes. */
const alone = (work) => (turn = turn.then(work, work));

/** A new visitor's page with the package, whose Web APIs can be made to fail; `errors` lists what it does not catch. */
async function freshPage() {
  const { context, page } = await alone(async () => {
    const context = await browser.createBrowserContext();
    return { context, page: await context.newPage() };
  });
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.evaluateOnNewDocument(install, installation);
  await page.goto(`${server.url}/support/page.html`);
  await page.evaluate(prepare, scripts);
  return { evaluate: (...call) => page.evaluate(...call), errors, close: () => alone(() => context.close()) };
}

before(async () => {
  assertBuilt();
  scripts = await packageScripts();
  server = await serve({ "/": PACKAGE, "/model/": STORIES, "/support/": `${ROOT}/tests/memory/support` });
  browser = await launch();
  const { evaluate, close } = await freshPage();
  ({ text, calls } = await evaluate(() => observe()));
  await close();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

test("a load and a generation make the listed calls", () => assertListed(calls));

test("every fault of a Web API ends in a result or a coded error, and the next load works", { ...options, concurrency: LANES }, (t) =>
  strikeAll(t, { browser: "Firefox", open: freshPage, lanes: LANES, text, faults: cases(ALL, SAMPLE) }));

test("the documentation has a row for every call", () => assertDocumented("Firefox"));
