/** The page as an installed app: offline it opens from its cache and answers; models are left to the engine. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";

const PATIENCE = 120_000;
let opened;

before(async () => (opened = await fakeEnginePage()), { timeout: PATIENCE });
after(() => opened?.close());

test("the page can be installed and opens without a network", { timeout: PATIENCE }, async () => {
  const { page, context } = await opened.open();
  const manifest = await page.evaluate(async () => (await fetch(document.querySelector('link[rel="manifest"]').href)).json());
  assert.deepEqual([manifest.name, manifest.display, manifest.icons.length], ["Jerboa", "standalone", 1]);
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => navigator.serviceWorker.controller ?? new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve))));
  // The first visit happened before there was a service worker.
  await page.reload();
  await page.locator("#app > *").first().waitFor();
  await page.waitForFunction(async () => (await (await caches.open("jerboa-shell-1")).keys()).length >= 3);
  await context.setOffline(true);
  await page.reload();
  await page.locator("#app > *").first().waitFor();
  const kept = await page.evaluate(async () => (await (await caches.open("jerboa-shell-1")).keys()).map((request) => new URL(request.url).pathname));
  assert.ok(!kept.some((path) => path.includes("/models/")), kept.join());
  assert.ok(kept.includes("/") && kept.some((path) => path.endsWith(".js")), kept.join());
  await context.close();
});
