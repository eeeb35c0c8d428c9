/** crate/tests in Firefox: kernels, tiny models, sessions, tokenizers, templates, file headers, the cache. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { assertBuilt } from "../page/support/built.mjs";
import { RESULT, serveEngineTests } from "../page/support/engine-tests.mjs";
import { launch } from "./support/firefox.mjs";

const options = { timeout: 600_000 };

test("the engine's own tests pass", options, async (t) => {
  assertBuilt();
  const tests = await serveEngineTests();
  t.after(() => tests.close());
  const browser = await launch();
  t.after(() => browser.close());
  const page = await browser.newPage();
  // The load event may wait for the tests, which start with the page.
  await page.goto(tests.url, { waitUntil: "domcontentloaded", timeout: options.timeout });
  await page.waitForFunction((pattern) => new RegExp(pattern).test(document.body.innerText), { timeout: options.timeout, polling: 200 }, RESULT.source);
  const output = await page.evaluate(() => document.body.innerText);
  const [, result, passed, failed] = RESULT.exec(output);
  assert.deepEqual([result, failed], ["ok", "0"], output);
  assert.ok(Number(passed) >= 13, output);
});
