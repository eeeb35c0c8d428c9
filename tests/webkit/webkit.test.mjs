/** The package, the page and the engine's own tests in WebKitGTK: a real WebKit, without WebGPU. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { WEBGPU_SINCE } from "../page/support/browser.mjs";
import { assertBuilt } from "../page/support/built.mjs";
import { RESULT, serveEngineTests } from "../page/support/engine-tests.mjs";
import { PACKAGE, PAGE, STORIES } from "../page/support/paths.mjs";
import { serve } from "../page/support/server.mjs";
import { launch } from "./support/webkit.mjs";

const options = { timeout: 300_000 };
let server, browser;

before(async () => {
  assertBuilt();
  server = await serve({ "/": PAGE, "/package/": PACKAGE, "/model/": STORIES });
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

test("the page says that this browser has no WebGPU, and which browsers have it", options, async () => {
  await browser.open(server.url);
  await browser.waitFor(() => document.querySelector(".no-webgpu") !== null);
  const text = await browser.run(() => document.querySelector(".no-webgpu").innerText);
  assert.match(text, /This browser does not support WebGPU\./);
  for (const pattern of WEBGPU_SINCE) assert.match(text, pattern);
  // The other tabs are there, with the same advice.
  await browser.run(() => void [...document.querySelectorAll("a")].find((link) => link.textContent.trim() === "Embedding").click());
  await browser.waitFor(() => location.hash === "#embedding" && document.querySelector(".no-webgpu") !== null);
});

test("the package loads, WebAssembly compiles, and a load without WebGPU ends with advice, in the worker and on the page's thread", options, async () => {
  await browser.open(`${server.url}/package/package.json`);
  const found = await browser.run(async () => {
    const jerboa = await import("/package/index.js");
    const failure = (promise) => promise.then(() => "no error", ({ code, message }) => ({ code, message }));
    const url = new URL("/model/", location.href);
    return {
      agent: navigator.userAgent,
      loads: [await failure(jerboa.loadModel(url)), await failure(jerboa.loadModel(url, { worker: false }))],
      report: await failure(jerboa.deviceReport()),
      cached: await jerboa.cachedModels(),
      storage: await jerboa.storageReport(),
    };
  });
  assert.match(found.agent, /AppleWebKit\/.* Safari\//);
  assert.doesNotMatch(found.agent, /Chrom/);
  for (const { code, message } of [...found.loads, found.report]) {
    assert.equal(code, "no_webgpu");
    for (const pattern of WEBGPU_SINCE) assert.match(message, pattern);
  }
  assert.deepEqual(found.cached, []);
  assert.deepEqual(found.storage.foreign, []);
});

test("a memory keeps its documents in IndexedDB between pages", options, async () => {
  const open = async () => {
    await browser.open(`${server.url}/package/package.json`);
    await browser.run(async () => {
      const { createMemory, indexedDbStore } = await import("/package/memory/index.js");
      // Words as dimensions: the store is under test.
      const words = ["bees", "iron", "eggs", "rust"];
      const embed = async (texts) => texts.map((text) => Float32Array.from(words, (word) => (text.toLowerCase().includes(word) ? 1 : 0.01)));
      window.memory = await createMemory({ model: { info: { hiddenSize: words.length, model: "words", revision: null }, embed, tokenize: async (text) => Uint32Array.from(text.split(" "), (_, i) => i) }, store: indexedDbStore("webkit") });
    });
  };
  await open();
  await browser.run(async () => void (await memory.add([{ id: "a", text: "Bees lay eggs." }, { id: "b", text: "Iron and rust." }])));
  await open();
  const hits = await browser.run(async () => (await memory.search("eggs of bees", { k: 2 })).map(({ document }) => document));
  assert.deepEqual(hits, ["a", "b"]);
});

test("the engine's own tests without a device pass: tokenizers, templates, file headers, the cache", options, async (t) => {
  const tests = await serveEngineTests("without_gpu::");
  t.after(() => tests.close());
  await browser.open(tests.url);
  await browser.waitFor((pattern) => new RegExp(pattern).test(document.body.innerText), RESULT.source);
  const output = await browser.run(() => document.body.innerText);
  const [, result, passed, failed] = RESULT.exec(output);
  assert.deepEqual([result, passed, failed], ["ok", "7", "0"], output);
});
