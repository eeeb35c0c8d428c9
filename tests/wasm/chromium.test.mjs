/** crate/tests in Chromium on its software adapter: kernels, tiny models, sessions, tokenizers, templates, file headers, the cache. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { launch } from "../page/support/browser.mjs";
import { RESULT, serveEngineTests } from "../page/support/engine-tests.mjs";

/** Milliseconds that the tests get; they take 15 seconds on an idle machine. */
const PATIENCE = 280_000;

/** The page's text once it has the result. */
async function run() {
  const tests = await serveEngineTests();
  const browser = await launch();
  try {
    const page = await browser.newPage();
    await page.goto(tests.url, { waitUntil: "commit" });
    await page.waitForFunction((pattern) => new RegExp(pattern).test(document.body.innerText), RESULT.source, { timeout: PATIENCE, polling: 200 });
    return await page.evaluate(() => document.body.innerText);
  } finally {
    await browser.close();
    tests.close();
  }
}

test("the engine's own tests pass", { timeout: 1.1 * PATIENCE }, async () => {
  const output = await run();
  const [, result, passed, failed] = RESULT.exec(output);
  assert.deepEqual([result, failed], ["ok", "0"], output);
  assert.ok(Number(passed) >= 13, output);
});
