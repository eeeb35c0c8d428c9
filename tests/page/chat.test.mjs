/** The Chat tab in Chromium with the bundled model: streams the reference's text, stops, comes back from the cache, says what is wrong. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, shot, warmUp, watch, WEBGPU_SINCE } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PAGE } from "./support/places.mjs";
import { serve } from "./support/server.mjs";

/** SwiftShader compiles and computes on the CPU: slow machines get their time. */
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

const ready = () => page.getByRole("heading", { name: "Begin a text." }).waitFor();
const field = () => page.getByRole("textbox", { name: "Text to continue" });
const story = () => page.locator(".generated").last();
/** Waits until the last answer is complete. */
const done = () =>
  page.waitForFunction(() => document.querySelector('article[data-state="done"]') && !document.querySelector('article[data-state="running"]'));

async function setSettings(values) {
  await page.getByRole("button", { name: "Settings" }).click();
  for (const [label, value] of Object.entries(values)) {
    await page.getByRole("spinbutton", { name: label }).fill(value);
    await page.getByRole("spinbutton", { name: label }).blur();
  }
  await page.keyboard.press("Escape");
}

test("the page opens with the bundled model", { timeout: PATIENCE }, async () => {
  await ready();
  assert.match(await page.getByRole("main").innerText(), /no chat template: it does not answer, it continues/);
  assert.match(await page.getByRole("button", { name: /stories260K/ }).innerText(), /260K parameters · 1\.\d MB/);
  await shot(page, "1-opened");
});

test("a typed prompt streams the reference's continuation", { timeout: PATIENCE }, async () => {
  await setSettings({ Temperature: "0", "Most tokens": "200" });
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => window.lengths.add(document.querySelector(".generated")?.textContent.length ?? 0)).observe(document.body, {
      subtree: true,
      childList: true,
      characterData: true,
    });
  });
  await field().fill(golden.prompt);
  await field().press("Enter");
  await done();
  assert.equal(await story().textContent(), golden.newText);
  const steps = await page.evaluate(() => window.lengths.size);
  // A ring of tokens comes at once: fewer steps than tokens, but more than a few.
  assert.ok(steps >= 8, `the text came in ${steps} steps`);
  assert.match(await page.locator(".numbers").last().innerText(), /200 tokens · [\d.]+ tokens\/s · first after .+ · prompt 5/);
  await shot(page, "2-story");
});

test("it can be copied and made again", { timeout: PATIENCE }, async () => {
  await page.getByRole("button", { name: "Copy the conversation" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), golden.text);
  await setSettings({ "Most tokens": "40" });
  await page.getByRole("button", { name: "Regenerate" }).click();
  await page.locator('article[data-state="running"]').waitFor();
  await done();
  const again = await story().textContent();
  assert.ok(again.length > 40 && again.length < golden.newText.length && golden.newText.startsWith(again), again);
});

test("Stop ends it midway and keeps the text", { timeout: PATIENCE }, async () => {
  await setSettings({ "Most tokens": "450" });
  await field().fill("One day");
  await field().press("Enter");
  await page.waitForFunction(() => document.querySelector('article[data-state="running"] .generated')?.textContent.length > 20);
  await page.getByRole("button", { name: "Stop" }).click();
  await done();
  const text = await story().textContent();
  assert.match(await page.locator(".numbers").last().innerText(), /stopped/);
  assert.ok(text.length > 20);
  await page.waitForTimeout(300);
  assert.equal(await story().textContent(), text, "nothing comes after the stop");
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "TEXTAREA", "the focus is back in the field");
  await shot(page, "3-stopped");

  await setSettings({ "Most tokens": "20" });
  await field().fill(golden.prompt);
  await field().press("Enter");
  await done();
  const again = await story().textContent();
  assert.ok(again.length > 10 && golden.newText.startsWith(again), "the model works after a stop");
});

test("after a reload the model comes from the cache", { timeout: PATIENCE }, async () => {
  const before = server.requests.length;
  await page.reload();
  await ready();
  const asked = server.requests.slice(before).filter(({ path }) => path.endsWith(".safetensors"));
  const fetched = asked.filter(({ method, status }) => method !== "HEAD" && status !== 304);
  assert.deepEqual(fetched, [], "no weights over the network");
  assert.match(await page.getByRole("button", { name: /stories260K/ }).innerText(), /from this device/);
  await page.getByRole("button", { name: /stories260K/ }).click();
  await page.getByRole("heading", { name: "On this device" }).waitFor();
  await shot(page, "4-picker");
  await page.keyboard.press("Escape");
});

test("what cannot be loaded is said in a sentence, and another model can be chosen", { timeout: PATIENCE }, async () => {
  await page.getByRole("button", { name: /stories260K/ }).click();
  await page.getByText("Advanced").click();
  await page.getByLabel("Endpoint").fill(server.url);
  await page.getByRole("textbox", { name: "From Hugging Face" }).fill("no/such");
  await page.getByRole("button", { name: "Load", exact: true }).click();
  const alert = page.getByRole("main").getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /no\/such could not be loaded\.[^]*was not found \(HTTP 404\)\. Check the repository's name/);
  await shot(page, "5-not-found");
  await page.getByRole("button", { name: "Choose another model" }).click();
  await page.getByRole("dialog").getByRole("button", { name: /^stories260K Comes with/ }).click();
  await ready();
});

test("the device report has rows", { timeout: PATIENCE }, async () => {
  await page.getByRole("button", { name: "This device", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "This device" });
  await dialog.getByRole("heading", { name: "GPU" }).waitFor();
  await dialog.locator("section").last().locator("dl").first().waitFor();
  assert.match(await dialog.innerText(), /swiftshader|adapter|vendor/i);
  await shot(page, "6-device");
  await page.keyboard.press("Escape");
});

test("every control has a name, and the theme is kept", { timeout: PATIENCE }, async () => {
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, a, input, textarea, select")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
      .map((e) => e.outerHTML),
  );
  assert.deepEqual(nameless, []);
  const toggle = page.getByRole("button", { name: /^Theme:/ });
  while (!/dark/.test(await toggle.getAttribute("aria-label"))) await toggle.click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
});

test("it fits a phone and a tablet", { timeout: PATIENCE }, async () => {
  for (const [name, width, height] of [["phone", 390, 844], ["tablet", 820, 1180]]) {
    await page.setViewportSize({ width, height });
    await ready();
    await page.getByRole("button", { name: "Once upon a time" }).click();
    await done();
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name}: nothing sticks out`);
    assert.ok(await page.evaluate(() => parseFloat(getComputedStyle(document.querySelector("textarea")).fontSize) >= 16), "no zoom on focus");
    await shot(page, `7-${name}`);
    await page.getByRole("button", { name: "New conversation" }).click();
  }
});

test("nothing went wrong on the way", () => {
  assert.deepEqual(problems.filter((p) => !/404/.test(p)), []);
});

test("without WebGPU the page says so", { timeout: PATIENCE }, async () => {
  const bare = await context.newPage();
  await bare.addInitScript(() => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }));
  await bare.goto(server.url);
  await bare.getByRole("heading", { name: "This browser has no WebGPU." }).waitFor();
  const said = await bare.getByRole("main").innerText();
  for (const since of WEBGPU_SINCE) assert.match(said, since);
  await shot(bare, "8-no-webgpu");
  await bare.close();
});
