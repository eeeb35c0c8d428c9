/** tests/gpu/golden.html on the software adapter: golden logits of five families through the package, as the device is and at its plainest; a real GPU runs all cases. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { ROOT } from "./support/places.mjs";
import { serve } from "./support/server.mjs";

// Twelve models and their kernels, compiled on the processor: minutes on two busy cores.
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

test("logits in Chromium are those of transformers, whatever the device offers", options, async () => {
  const page = await browser.newPage();
  await page.goto(`${server.url}/package.json`);
  await warmUp(page);
  await page.goto(`${server.url}/tests/gpu/golden.html?cases=plain,as the device is`);
  await page.waitForFunction(() => window.result, null, options);
  const result = await page.evaluate(() => window.result);
  assert.ok(!result.error, result.error);
  const wrong = result.results.filter((r) => !r.ok);
  assert.deepEqual(wrong, []);
  assert.equal(result.passed, 12);
});
