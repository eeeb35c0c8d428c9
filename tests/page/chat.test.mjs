/** The Chat tab in Chromium with the bundled model: streaming matches the reference, stopping, reloading from the cache, error messages. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, shot, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PAGE } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { answered, closeSheet, copied, send } from "./support/states.mjs";

/** SwiftShader compiles and runs on the CPU: allow slow machines enough time. */
const PATIENCE = 180_000;

let server, browser, context, page, problems, golden;

before(async () => {
  assertBuilt();
  golden = await stories();
  server = await serve({ "/": PAGE });
  browser = await launch();
  context = await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["clipboard-read", "clipboard-write"] });
  page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  problems = watch(page);
  await page.goto(server.url);
  await warmUp(page);
});

after(async () => {
  await browser?.close();
  await server?.close();
});

const ready = () => page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
const field = () => page.getByRole("textbox", { name: "Text to continue", exact: true });
const story = () => page.locator(".generated").last();

async function setSettings(values) {
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  for (const [label, value] of Object.entries(values)) {
    await page.getByRole("spinbutton", { name: label }).fill(value);
    await page.getByRole("spinbutton", { name: label }).blur();
  }
  await closeSheet(page);
}

test("the page opens with the bundled model", { timeout: PATIENCE }, async () => {
  await ready();
  assert.match(await page.getByRole("main").innerText(), /continues your text; it does not answer questions/);
  assert.match(await page.getByRole("button", { name: /stories260K/ }).innerText(), /260K parameters · 1\.\d MB/);
  await shot(page, "1-opened");
});

test("a typed prompt streams the reference's continuation", { timeout: PATIENCE }, async () => {
  await setSettings({ Temperature: "0", "Max tokens": "200" });
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => window.lengths.add(document.querySelector(".generated")?.textContent.length ?? 0)).observe(document.body, {
      subtree: true,
      childList: true,
      characterData: true,
    });
  });
  await send(page, golden.prompt);
  assert.equal(await story().textContent(), golden.newText);
  const steps = await page.evaluate(() => window.lengths.size);
  // Tokens arrive in batches: fewer updates than tokens, but more than a few.
  assert.ok(steps >= 8, `the text came in ${steps} steps`);
  assert.match(await page.locator(".numbers").last().textContent(), /[\d.]+ tokens\/s · reached the limit200 tokens · first token after .+ · prompt 5/);
  await shot(page, "2-story");
});

test("an answer can be copied and regenerated", { timeout: PATIENCE }, async () => {
  assert.equal(await copied(page, page.getByRole("button", { name: "Copy the conversation", exact: true })), golden.text);
  await setSettings({ "Max tokens": "40" });
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  const again = await story().textContent();
  assert.ok(again.length > 40 && again.length < golden.newText.length && golden.newText.startsWith(again), again);
});

test("Stop ends an answer midway and leaves its text", { timeout: PATIENCE }, async () => {
  await setSettings({ "Max tokens": "450" });
  await field().fill("One day");
  await answered(page, async () => {
    await field().press("Enter");
    // The page clicks as soon as the button appears: the answer may finish before a click from the test.
    await page.waitForFunction(() => {
      const begun = document.querySelector('article[data-state="running"] .generated')?.textContent.length > 20;
      if (begun) document.querySelector('button[aria-label="Stop"]').click();
      return begun;
    });
  });
  const text = await story().textContent();
  assert.match(await page.locator(".numbers").last().innerText(), /stopped/);
  assert.ok(text.length > 20);
  const stopped = page.locator(".generated").nth((await page.locator(".generated").count()) - 1);
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "TEXTAREA", "the focus is back in the field");
  await shot(page, "3-stopped");

  await setSettings({ "Max tokens": "20" });
  await send(page, golden.prompt);
  const again = await story().textContent();
  assert.ok(again.length > 10 && golden.newText.startsWith(again), "the model works after a stop");
  assert.equal(await stopped.textContent(), text, "nothing came after the stop");
});

test("after a reload the model comes from the cache", { timeout: PATIENCE }, async () => {
  const before = server.requests.length;
  await page.reload();
  // The story appears at once, the model when it is ready.
  await page.locator(".generated").last().waitFor();
  await page.getByRole("button", { name: /stories260K.*from this device/ }).waitFor();
  const asked = server.requests.slice(before).filter(({ path }) => path.endsWith(".safetensors"));
  const fetched = asked.filter(({ method, status }) => method !== "HEAD" && status !== 304);
  assert.deepEqual(fetched, [], "no weights over the network");
  assert.match(await page.getByRole("button", { name: /stories260K/ }).innerText(), /from this device/);
  await page.getByRole("button", { name: /stories260K/ }).click();
  await page.getByRole("button", { name: /stories260K.*Built into this page/ }).waitFor();
  // Cached and bundled it stands once in the list.
  assert.equal(await page.getByRole("heading", { name: "On this device", exact: true }).count(), 0);
  await shot(page, "4-picker");
  await closeSheet(page);
});

test("the device report has rows", { timeout: PATIENCE }, async () => {
  await page.getByRole("button", { name: "This device", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "This device", exact: true });
  await dialog.getByRole("heading", { name: "GPU", exact: true }).waitFor();
  await dialog.locator("section").last().locator("dl").first().waitFor();
  assert.match(await dialog.innerText(), /swiftshader|adapter|vendor/i);
  await shot(page, "6-device");
  await closeSheet(page);
});

test("no errors were logged", () => {
  assert.deepEqual(problems.filter((p) => !/404/.test(p)), []);
});
