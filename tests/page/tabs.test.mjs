/** jerboa/tabs in Chromium: a leader among tabs over the fake engine; a shared worker and a service worker over the real one. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { buildFacade } from "./support/facade.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 400_000 };
let facade, folder, server, browser, golden;

before(async () => {
  assertBuilt();
  golden = await stories();
  facade = await buildFacade();
  folder = await mkdtemp(join(ROOT, "target", "tabs-"));
  await writeFile(join(folder, "index.html"), "<!doctype html><title>Tabs</title>");
  await writeFile(join(folder, "shared.js"), `import { loadModel } from "/package/index.js";
import { serveModels } from "/package/tabs/index.js";
let loads = 0;
serveModels({ story: () => (loads++, loadModel(new URL("/stories/", location.href), { tune: "off" })), loads: () => { throw new Error("loads: " + loads); } });
`);
  // A service worker cannot import on demand, so its parts are bundled into one file.
  await build({
    stdin: { contents: `import { configure, createFetch, loadModel } from "${PACKAGE}/index.js";
configure({ wasmUrl: new URL("/package/jerboa_bg.wasm", location.href) });
const jerboa = createFetch({ story: () => loadModel(new URL("/stories/", location.href), { worker: false, tune: "off" }) });
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => new URL(event.request.url).pathname.startsWith("/v1/") && event.respondWith(jerboa(event.request)));`, resolveDir: ROOT },
    bundle: true,
    format: "esm",
    outfile: join(folder, "service-worker.js"),
    logLevel: "silent",
  });
  server = await serve({ "/": folder, "/facade/": facade.folder, "/package/": PACKAGE, "/stories/": STORIES });
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** A tab of a visitor: `ask` runs a streamed completion and stores its text so far. */
async function tab(context, setup) {
  const page = await context.newPage();
  page.setDefaultTimeout(300_000);
  await page.goto(`${server.url}/index.html`);
  await page.evaluate(() => {
    window.loads = 0;
    window.ask = async (body, path = "chat/completions") => {
      window.text = "";
      window.ids = new Set();
      const response = await served(`${location.origin}/v1/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ stream: true, ...body }) });
      window.status = response.status;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines.filter((line) => line.startsWith("data: {"))) {
          const { id, choices } = JSON.parse(line.slice(6));
          ids.add(id);
          window.text += choices[0]?.delta?.content ?? choices[0]?.text ?? "";
        }
      }
      return text || rest;
    };
  });
  await page.evaluate(setup);
  return page;
}

/** In the page: models of all tabs over the fake engine. */
const lead = async () => {
  const { loadModel } = await import("/facade/index.js");
  const { shareModels } = await import("/facade/tabs/index.js");
  window.served = shareModels({ chat: () => (loads++, loadModel("org/plain")) });
};
const question = (content) => ({ model: "chat", messages: [{ role: "user", content }] });
const long = Array.from({ length: 3000 }, (_, i) => `word${i}`).join(" ");

test("two tabs, one engine: the second loads nothing; the leader closes midway, and the answer goes on", options, async () => {
  const context = await browser.newContext();
  const [first, second] = [await tab(context, lead), await tab(context, lead)];
  assert.equal(await first.evaluate((body) => ask(body), question("one two")), "one two");
  assert.equal(await second.evaluate((body) => ask(body), question("three four")), "three four");
  assert.deepEqual([await first.evaluate(() => loads), await second.evaluate(() => loads)], [1, 0]);
  await second.evaluate((body) => void (window.answer = ask(body)), question(long));
  await second.waitForFunction(() => window.text.length > 200);
  await first.close();
  assert.equal(await second.evaluate(() => answer), long);
  assert.deepEqual(await second.evaluate(() => [loads, ids.size]), [1, 1], "loaded by the new leader; one id for the whole answer");
  // A third tab uses the new leader.
  const third = await tab(context, lead);
  assert.equal(await third.evaluate((body) => ask(body), question("five")), "five");
  assert.equal(await third.evaluate(() => loads), 0);
  await context.close();
});

test("a tab that closes midway stops its answer in the leader", options, async () => {
  const context = await browser.newContext();
  const first = await tab(context, async () => {
    const { loadModel } = await import("/facade/index.js");
    const { shareModels } = await import("/facade/tabs/index.js");
    window.ended = 0;
    const load = async () => {
      const model = await loadModel("org/plain");
      const { completions } = model.chat;
      const create = completions.create.bind(completions);
      completions.create = (params, options) => {
        options.signal.addEventListener("abort", () => ended++);
        return create(params, options);
      };
      return model;
    };
    window.served = shareModels({ chat: load });
  });
  const second = await tab(context, lead);
  assert.equal(await first.evaluate((body) => ask(body), question("one")), "one");
  await second.evaluate((body) => void ask(body), question(long));
  await second.waitForFunction(() => window.text.length > 200);
  const { length } = await second.evaluate(() => window.text);
  assert.ok(length < long.length);
  await second.close();
  await first.waitForFunction(() => ended === 1, null, { timeout: 20_000 });
  assert.equal(await first.evaluate((body) => ask(body), question("two")), "two");
  await context.close();
});

test("models of the wrong type are refused at once, in createFetch's words", options, async () => {
  const context = await browser.newContext();
  const page = await tab(context, () => {});
  const found = await page.evaluate(async () => {
    const { createFetch, loadModel } = await import("/facade/index.js");
    const { shareModels } = await import("/facade/tabs/index.js");
    const said = (make, models) => {
      try {
        return make(models);
      } catch ({ code, message }) {
        return `${code}: ${message}`;
      }
    };
    return [loadModel("org/plain"), undefined, null, 5, { a: 5 }].map((models) => [said(shareModels, models), said(createFetch, models)]);
  });
  for (const [shared, own] of found) {
    assert.match(shared, /^request: createFetch: /);
    assert.equal(shared, own);
  }
  await context.close();
});

test("a module that shares models is evaluated on a server; requests are refused there, wrong options everywhere", options, async (t) => {
  const { shareModels } = await import(`${facade.url}/tabs/index.js`);
  const set = (name, value) => {
    const before = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true });
    t.after(() => (before ? Object.defineProperty(globalThis, name, before) : delete globalThis[name]));
  };
  set("navigator", undefined);
  const served = shareModels({ chat: () => assert.fail("the model was loaded") });
  const missing = "shareModels: Web Locks are not available here. ";
  await assert.rejects(served("http://jerboa/v1/models"), { code: "unsupported_option", message: `${missing}Send requests from pages and workers only, or call createFetch.` });
  set("isSecureContext", false);
  await assert.rejects(shareModels({ chat: () => {} })("http://jerboa/v1/models"), { message: `${missing}Serve the page over https or from localhost, or call createFetch.` });
  for (const [given, fault] of [
    [{ sharedworker: () => {} }, "unknown option 'sharedworker'. Supported options: name, sharedWorker."],
    [{ name: 5 }, "'name' must be a string, not 5."],
    [{ sharedWorker: "/shared.js" }, "'sharedWorker' must be a function, not '/shared.js'. Pass () => new SharedWorker(url)."],
    [null, "the options must be an object, not null."],
  ]) assert.throws(() => shareModels({ chat: () => {} }, given), { code: "request", message: `shareModels: ${fault}` });
  set("navigator", { locks: {} });
  set("SharedWorker", class {});
  await assert.rejects(shareModels({ chat: () => {} }, { sharedWorker: () => {} })("http://jerboa/v1/models"), { code: "request", message: "shareModels: 'sharedWorker' must return a SharedWorker, not undefined. Pass () => new SharedWorker(url)." });
});

test("aborts, errors and whole answers cross tabs", options, async () => {
  const context = await browser.newContext();
  const [first, second] = [await tab(context, lead), await tab(context, lead)];
  await first.evaluate((body) => ask(body), question("one"));
  const found = await second.evaluate(async ({ body, long }) => {
    const post = (fields, more) => served(`${location.origin}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(fields), ...more });
    const whole = await (await post(body)).json();
    const wrong = await post({ ...body, model: "other" });
    const models = await (await served(`${location.origin}/v1/models`)).json();
    const other = await served(`${location.origin}/v1/chat/completions`);
    const controller = new AbortController();
    const response = await post({ ...long, stream: true }, { signal: controller.signal });
    const headers = [response.headers.get("x-request-id")?.slice(0, 4), wrong.headers.get("x-should-retry"), other.status, other.headers.get("allow")];
    const reader = response.body.getReader();
    await reader.read();
    controller.abort();
    const ended = await (async () => {
      while (!(await reader.read()).done) continue;
      return "done";
    })().catch(({ name }) => name);
    const next = await (await post(body)).json();
    return [whole.choices[0].message.content, wrong.status, (await wrong.json()).error.code, models.data.map(({ id }) => id), ended, next.choices[0].message.content, headers];
  }, { body: question("two"), long: question(long) });
  assert.deepEqual(found, ["two", 404, "model_not_found", ["chat"], "AbortError", "two", ["req_", "false", 405, "POST"]]);
  await context.close();
});

test("a shared worker over the real engine serves two tabs with one load", options, async () => {
  const context = await browser.newContext();
  const setup = async () => {
    const { shareModels } = await import("/package/tabs/index.js");
    // Where the worker has no WebGPU, this tab would lead and count its load.
    window.served = shareModels({ story: () => (loads++, import("/package/index.js").then(({ loadModel }) => loadModel(new URL("/stories/", location.href)))) }, { sharedWorker: () => new SharedWorker("/shared.js", { type: "module" }) });
  };
  const [first, second] = [await tab(context, setup), await tab(context, setup)];
  await warmUp(first);
  const body = { model: "story", prompt: golden.prompt, max_tokens: 8, temperature: 0 };
  const texts = [await first.evaluate((body) => ask(body, "completions"), body), await second.evaluate((body) => ask(body, "completions"), body)];
  assert.ok(texts[0].length > 0 && golden.newText.startsWith(texts[0]), texts[0]);
  assert.equal(texts[1], texts[0]);
  assert.deepEqual([await first.evaluate(() => loads), await second.evaluate(() => loads)], [0, 0]);
  assert.match(await second.evaluate((body) => ask({ ...body, model: "loads", stream: false }, "completions"), body), /loads: 1\b/);
  await first.close();
  assert.equal(await second.evaluate((body) => ask(body, "completions"), body), texts[0]);
  await context.close();
});

test("a service worker over the real engine answers before and after a navigation", options, async () => {
  const context = await browser.newContext();
  const setup = async () => {
    window.served = (...given) => fetch(...given);
    await navigator.serviceWorker.register("/service-worker.js", { type: "module" });
    await navigator.serviceWorker.ready;
    if (!navigator.serviceWorker.controller) await new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true }));
  };
  const page = await tab(context, setup);
  const body = { model: "story", prompt: golden.prompt, max_tokens: 8, temperature: 0 };
  const text = await page.evaluate((body) => ask(body, "completions"), body);
  assert.ok(text.length > 0 && golden.newText.startsWith(text), text);
  const requests = server.requests.filter(({ path }) => path === "/stories/model.safetensors").length;
  await page.close();
  const next = await tab(context, setup);
  assert.equal(await next.evaluate((body) => ask(body, "completions"), body), text);
  assert.equal(server.requests.filter(({ path }) => path === "/stories/model.safetensors").length, requests, "nothing is loaded again");
  await context.close();
});
