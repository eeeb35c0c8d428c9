/** The page as an installed app: offline it opens from its cache and answers; models are left to the engine. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";

const PATIENCE = 120_000;
let opened;

before(async () => (opened = await fakeEnginePage()), { timeout: PATIENCE });
after(() => opened?.close());

/** Opens the page, and waits until its service worker has cached it. */
async function cachedPage() {
  const { page, context } = await opened.open();
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => navigator.serviceWorker.controller ?? new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve))));
  // The first visit happened before there was a service worker.
  await page.reload();
  await page.locator("#app > *").first().waitFor();
  await page.waitForFunction(async () => (await (await caches.open("jerboa-shell-1")).keys()).length >= 3);
  return { page, context };
}

test("the page can be installed and opens without a network", { timeout: PATIENCE }, async () => {
  const { page, context } = await cachedPage();
  const manifest = await page.evaluate(async () => (await fetch(document.querySelector('link[rel="manifest"]').href)).json());
  assert.deepEqual([manifest.name, manifest.display, manifest.icons.length], ["Jerboa", "standalone", 1]);
  await context.setOffline(true);
  await page.reload();
  await page.locator("#app > *").first().waitFor();
  const kept = await page.evaluate(async () => (await (await caches.open("jerboa-shell-1")).keys()).map((request) => new URL(request.url).pathname));
  assert.ok(!kept.some((path) => path.includes("/models/")), kept.join());
  assert.ok(kept.includes("/") && kept.some((path) => path.endsWith(".js")), kept.join());
  await context.close();
});

test("the page opens from the network when storage is full, and its cached copy remains", { timeout: PATIENCE }, async () => {
  const { page, context } = await cachedPage();
  // An older version, so that the next visit replaces the page.
  const files = await page.evaluate(async () => {
    const shell = await caches.open("jerboa-shell-1");
    const page = await (await shell.match("/")).text();
    await shell.put("/", new Response(page.replace("<head>", "<head><!-- old -->"), { headers: { "content-type": "text/html" } }));
    return (await shell.keys()).length;
  });
  const { usage } = await page.evaluate(() => navigator.storage.estimate());
  const session = await context.newCDPSession(page);
  const origin = new URL(opened.url).origin;
  await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: Math.ceil(usage / 2) });
  assert.equal(await page.evaluate(async () => (await caches.open("probe")).put("/probe", new Response("x".repeat(1000))).then(() => "stored", (error) => error.name)), "QuotaExceededError");
  assert.equal((await page.reload()).status(), 200);
  await page.locator("#app > *").first().waitFor();
  assert.ok(!(await page.content()).includes("<!-- old -->"), "the page is the network's");
  const cached = () => page.evaluate(async () => {
    const shell = await caches.open("jerboa-shell-1");
    return [(await shell.keys()).length, (await (await shell.match("/")).text()).includes("<!-- old -->")];
  });
  assert.deepEqual(await cached(), [files, true]);
  await session.send("Storage.overrideQuotaForOrigin", { origin });
  assert.equal((await page.reload()).status(), 200);
  await page.locator("#app > *").first().waitFor();
  assert.equal((await cached())[1], false, "the new page replaces the old one once there is room");
  await context.close();
});
