/** tests/gpu/golden.html on the software adapter: golden logits of five families, with all optional features and with none. A real GPU runs all cases. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

// Eleven models and their kernels, compiled on the CPU: minutes on two busy cores.
const options = { timeout: 900_000 };
let server, browser;

before(async () => {
  assertBuilt();
  server = await serve({ "/": ROOT });
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Opens the page with a query: all cases must pass, except omitted ones. */
async function passes(query, count, skipped = []) {
  const page = await browser.newPage();
  await page.goto(`${server.url}/package.json`);
  await warmUp(page);
  await page.goto(`${server.url}/tests/gpu/golden.html?${query}`);
  await page.waitForFunction(() => window.result, null, options);
  const result = await page.evaluate(() => window.result);
  assert.ok(!result.error, result.error);
  assert.deepEqual(result.results.filter((r) => !r.ok), []);
  assert.equal(result.passed, count);
  assert.deepEqual(result.skipped, skipped);
  await page.close();
}

test("logits in Chromium equal transformers without optional features, and the bundled model's 200 tokens", options, () => passes("cases=plain", 6));

// package.test.mjs covers the bundled model's 200 tokens with all features. Llama uses no kernel that these models lack.
test("logits in Chromium equal transformers with all features", options, () =>
  passes("cases=tiles&models=mistral,smollm3,qwen2,qwen3", 4));

test("cases that force subgroup matrices are omitted without them", options, () => {
  const cases = [32, 64, 128, 256].map((rows) => `subgroup matrices BM=${rows}`);
  return passes(`models=stories260K&cases=${cases.join(",")}`, 0, cases);
});
