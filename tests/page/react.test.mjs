/** jerboa/react: the example app of examples/react, built by Vite, under StrictMode in Chromium, over the fake engine and the real one; and on the server. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import react from "@vitejs/plugin-react";
import { build } from "vite";
import { launch, untilReads, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { buildFacade } from "./support/facade.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { wav } from "./support/wav.mjs";

const PATIENCE = 400_000;
const options = { timeout: PATIENCE };
const APP = join(ROOT, "examples/react");

let folder, facade, server, browser;

/** Builds the app over a package. */
function buildApp(jerboa, outDir, more = {}) {
  const alias = [
    { find: /^jerboa$/, replacement: `${jerboa}/index.js` },
    { find: /^jerboa\/react$/, replacement: `${jerboa}/react/index.js` },
  ];
  return build({ root: APP, configFile: false, plugins: [react()], logLevel: "error", resolve: { alias, dedupe: ["react", "react-dom"] }, worker: { format: "es" }, ...more, build: { outDir, emptyOutDir: true, minify: false, ...more.build } });
}

before(async () => {
  assertBuilt();
  await mkdir(join(ROOT, "target"), { recursive: true });
  folder = await mkdtemp(join(ROOT, "target", "react-"));
  facade = await buildFacade();
  // In development mode React mounts everything twice.
  process.env.NODE_ENV = "development";
  await buildApp(facade.folder, join(folder, "fake"), { mode: "development" });
  await buildApp(PACKAGE, join(folder, "real"), { mode: "development" });
  await buildApp(facade.folder, join(folder, "server"), { build: { ssr: "src/app.tsx" }, ssr: { noExternal: ["jerboa"] } });
  delete process.env.NODE_ENV;
  server = { fake: await serve({ "/": join(folder, "fake") }), real: await serve({ "/": join(folder, "real"), "/stories/": STORIES }) };
  browser = await launch(["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]);
}, options);

after(async () => {
  await browser?.close();
  await server?.fake?.close();
  await server?.real?.close();
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** In the page: counts workers, one for each load. */
function countWorkers() {
  window.workers = { made: 0, ended: 0 };
  window.Worker = class extends Worker {
    constructor(...given) {
      super(...given);
      workers.made++;
    }

    terminate() {
      workers.ended++;
      super.terminate();
    }
  };
}

/** A visitor of the app with other models, at a panel. */
async function open(engine, models, panel) {
  const context = await browser.newContext({ permissions: ["microphone"] });
  const page = await context.newPage();
  page.setDefaultTimeout(200_000);
  const problems = watch(page);
  await page.addInitScript(countWorkers);
  await page.goto(`${server[engine].url}/?${new URLSearchParams(models)}`);
  const show = (name) => page.getByRole("button", { name, exact: true }).click();
  await show(panel);
  const ask = async (label, text) => {
    await page.getByRole("textbox", { name: label }).fill(text);
    await page.locator("form").getByRole("button").click();
  };
  const quote = page.locator("blockquote");
  const idle = () => page.waitForFunction(() => document.querySelector("output")?.textContent === "ready");
  return { page, problems, show, ask, quote, idle, close: () => context.close() };
}

test("useChat: messages, tools, a second answer, and one load under StrictMode", options, async () => {
  const { page, problems, show, ask, idle, close } = await open("fake", { chat: "org/Qwen3" }, "Chat");
  assert.equal(await page.evaluate(() => workers.made), 0, "nothing loads before the first message");
  await ask("Send", "How warm is it?");
  const items = page.getByRole("listitem");
  await page.getByText("assistant: Oslo: 21 °C").waitFor();
  await idle();
  assert.deepEqual(await items.allInnerTexts(), ["user: How warm is it?", "assistant:", "tool: Oslo: 21 °C", "assistant: Oslo: 21 °C"]);
  // The page watches itself: the second answer may be there before a look from outside.
  await page.evaluate(() => {
    window.fewest = 4;
    const count = () => (fewest = Math.min(fewest, document.querySelectorAll("li").length));
    new MutationObserver(count).observe(document.body, { childList: true, subtree: true });
  });
  await show("Again");
  await page.waitForFunction(() => fewest < 4);
  await page.waitForFunction(() => document.querySelectorAll("li").length === 4);
  await idle();
  assert.equal(await page.evaluate(() => workers.made), 1);
  assert.deepEqual(problems, []);
  await close();
});

test("useCompletion preloads once; stop keeps the text; leaving the panel ends the call", options, async () => {
  const { page, ask, show, quote, idle, problems, close } = await open("fake", { completion: "org/plain" }, "Completion");
  await page.waitForFunction(() => workers.made === 1);
  await ask("Continue", "one two three");
  await idle();
  await untilReads(quote, /^one two three$/);
  await ask("Continue", "word ".repeat(4000));
  await show("Stop");
  await idle();
  await show("Close");
  await show("Completion");
  await ask("Continue", "four");
  await page.getByText("four", { exact: true }).waitFor();
  assert.equal(await page.evaluate(() => workers.made), 1, "StrictMode and a second mount share the load");
  assert.deepEqual(problems, []);
  await close();
});

test("a load that no component waits for is cancelled", options, async () => {
  const { page, show, close } = await open("fake", { completion: "org/endless" }, "Completion");
  await page.waitForFunction(() => workers.made === 1);
  await show("Close");
  await page.waitForFunction(() => workers.ended === 1);
  await show("Completion");
  await page.waitForFunction(() => workers.made === 2);
  await close();
});

test("a failed load shows its message and is tried again", options, async () => {
  const { page, ask, close } = await open("fake", { chat: "no/such" }, "Chat");
  await ask("Send", "Hello");
  await page.getByRole("alert").getByText("no/such was not found").waitFor();
  await ask("Send", "Hello again");
  await page.waitForFunction(() => workers.made === 2);
  await page.getByRole("alert").getByText("no/such was not found").waitFor();
  await close();
});

test("useObject, useEmbedding, useTranscription, useSpeech", options, async () => {
  const { page, problems, show, ask, quote, idle, close } = await open("fake", { chat: "org/plain", embedding: "org/embed", transcription: "org/whisper", speech: "org/kani", codec: "org/codec" }, "Object");
  await ask("Name a city", "The capital of Norway.");
  await idle();
  await page.waitForFunction(() => document.querySelector("blockquote").textContent.startsWith("{"));
  await show("Search");
  await ask("Search", "Who lays eggs?");
  await page.getByText("Bread needs flour").waitFor();
  assert.equal(await page.getByRole("listitem").count(), 2);
  await show("Transcribe");
  await page.setInputFiles("input[type=file]", { name: "audio.wav", mimeType: "audio/wav", buffer: Buffer.from(wav({ seconds: 2, sample: (t) => Math.sin(t * 2000) / 2 })) });
  await page.waitForFunction(() => document.querySelector("blockquote").textContent !== "");
  await idle();
  const file = await quote.innerText();
  await show("Listen");
  await page.waitForFunction((file) => !["", file].includes(document.querySelector("blockquote").textContent), file);
  await show("Stop");
  await page.getByText(/You said: word1/).waitFor();
  await idle();
  await show("Speak");
  await ask("Speak", "one two three");
  await page.locator("audio").waitFor();
  assert.match(await page.locator("audio").getAttribute("src"), /^blob:/);
  assert.deepEqual(problems, []);
  await close();
});

test("Suspense shows its fallback, then the model; a failure reaches the error boundary", options, async () => {
  const ready = await open("fake", { chat: "org/late" }, "Model");
  await ready.page.getByText("Loading…").waitFor();
  await ready.page.evaluate(() => {
    const channel = new BroadcastChannel("late");
    window.ending = setInterval(() => channel.postMessage(true), 50);
  });
  await ready.page.getByText("org/late: 64 tokens").waitFor();
  assert.equal(await ready.page.evaluate(() => workers.made), 1);
  await ready.close();
  const failed = await open("fake", { chat: "no/such" }, "Model");
  await failed.page.getByRole("alert").getByText("no/such was not found").waitFor();
  await failed.close();
});

test("over the real engine: one load, and the reference's text", options, async () => {
  const { page, problems, ask, idle, quote, close } = await open("real", { completion: "/stories/" }, "Completion");
  await warmUp(page);
  await ask("Continue", "Once upon a time");
  await idle();
  const golden = await stories();
  const text = await quote.innerText();
  assert.ok(text.length > 10 && golden.newText.trim().startsWith(text.trim()), text);
  assert.equal(await page.evaluate(() => workers.made), 1);
  assert.deepEqual(problems.filter((problem) => !/404/.test(problem)), []);
  await close();
});

test("on the server: renderToString renders every panel, and a fallback for Suspense", options, async () => {
  const { renderToString } = await import("react-dom/server");
  const { createElement } = await import("react");
  const { App } = await import(pathToFileURL(join(folder, "server/app.js")).href);
  for (const first of ["Chat", "Completion", "Object", "Search", "Transcribe", "Speak"]) assert.match(renderToString(createElement(App, { first })), /<output>ready<\/output>/, first);
  assert.match(renderToString(createElement(App, { first: "Model" })), /Loading…/);
});
