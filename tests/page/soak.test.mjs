/**
 * Repeated loads, generations, aborts and sessions, with two models in two tabs. Nothing grows: not the heap, not the wasm memory, and no GPU buffer is left.
 * `JERBOA_SOAK_MINUTES=120` runs for that long, with two tabs; a plain run takes a few rounds in one.
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";

const MINUTES = Number(process.env.JERBOA_SOAK_MINUTES ?? 0);
/** Minimum number of rounds; the first fills caches. */
const ROUNDS = 2;
/** Bytes by which the wasm memory may grow after the first round; its page size is 64 KB. */
const WASM_SLACK = 1 << 20;
/** Bytes by which the heap may differ between two rounds: garbage that is not collected yet. */
const SLACK = 3e6;
const options = { timeout: (MINUTES + 10) * 60_000 };
let opened, pages;

before(async () => {
  opened = await openPackage({ "/model/": STORIES, "/other/": `${ROOT}/tests/golden/models/qwen3` });
  pages = [opened.page];
  if (MINUTES > 0) pages.push(await opened.page.context().newPage());
  for (const page of pages) await prepare(page);
}, options);

after(() => opened?.close());

/** Counts the live buffers, on a page with the package. */
async function prepare(page) {
  if (page !== opened.page) await page.goto(`${opened.url}/package.json`);
  await page.evaluate(async () => {
    window.jerboa = await import("/index.js");
    window.live = { buffers: 0, bytes: 0, devices: 0 };
    // Abort listeners: signals may live as long as the page.
    window.listeners = 0;
    for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]]) {
      const real = EventTarget.prototype[name];
      EventTarget.prototype[name] = function (type, ...args) {
        if (type === "abort") listeners += step;
        return real.call(this, type, ...args);
      };
    }
    const { createBuffer, destroy } = GPUDevice.prototype;
    const kept = new WeakMap();
    const gone = (buffer) => {
      const size = kept.get(buffer);
      if (size === undefined) return;
      kept.delete(buffer);
      live.buffers--;
      live.bytes -= size;
    };
    GPUDevice.prototype.createBuffer = function (descriptor) {
      const buffer = createBuffer.call(this, descriptor);
      (this.made ??= new Set()).add(buffer);
      kept.set(buffer, descriptor.size);
      live.buffers++;
      live.bytes += descriptor.size;
      return buffer;
    };
    const { destroy: destroyBuffer } = GPUBuffer.prototype;
    GPUBuffer.prototype.destroy = function () {
      gone(this);
      return destroyBuffer.call(this);
    };
    // A device's resources are freed with it.
    GPUDevice.prototype.destroy = function () {
      for (const buffer of this.made ?? []) gone(buffer);
      live.devices--;
      return destroy.call(this);
    };
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (...args) {
      const device = await requestDevice.apply(this, args);
      live.devices++;
      return device;
    };
    window.round = async () => {
      // On this thread, where its buffers can be counted.
      const load = (path) => jerboa.loadModel(new URL(path, location.href), { worker: false, tune: "off" });
      const [model, other] = [await load("/model/"), await load("/other/")];
      const session = await model.createSession();
      const [text] = await Promise.all([model.generate("Once upon a time", { maxTokens: 12, temperature: 0 }), session.generate("The", { maxTokens: 5 }), other.generate([1, 2, 3], { maxTokens: 5 })]);
      const cut = model.generate("Once", { maxTokens: 100, ignoreEos: true });
      for await (const piece of cut) if (piece) break;
      await cut.details.catch(() => {});
      const [asked, { signal }] = [window.listeners, new AbortController()];
      for (const more of [{}, { signal }, { signal }]) await model.generate("Once", { maxTokens: 2, ...more });
      const listening = window.listeners - asked;
      const half = new AbortController();
      const refused = jerboa.loadModel(new URL("/model/", location.href), { worker: false, signal: half.signal, onProgress: () => half.abort() }).then((late) => late.unload(), (error) => error.code);
      const fork = await session.fork();
      await Promise.all([refused, fork.dispose()]);
      await other.release();
      const again = await other.logits([1, 2]);
      const { wasmBytes } = await model.memory();
      await Promise.all([model.unload(), other.unload()]);
      return { text, logits: again.length, refused: await refused, listening, wasmBytes };
    };
  });
}

/** One round on a page, and what it leaves behind. */
async function round(page) {
  const outcome = await page.evaluate(() => round());
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  await session.detach();
  return { ...outcome, heap: usedSize, live: await page.evaluate(() => ({ ...live })) };
}

test("rounds of loading, running and unloading models leave nothing behind", options, async () => {
  const end = Date.now() + MINUTES * 60_000;
  const found = pages.map(() => []);
  for (let count = 0; count < ROUNDS || Date.now() < end; count++) {
    const now = await Promise.all(pages.map(round));
    now.forEach((each, index) => found[index].push(each));
    if (MINUTES > 0) console.log(`round ${count}: ${now.map(({ heap, wasmBytes, live }) => `heap ${heap}, wasm ${wasmBytes}, ${live.buffers} buffers`).join("; ")}`);
  }
  for (const rounds of found) {
    const [first, ...others] = rounds;
    for (const each of rounds) {
      assert.deepEqual([each.text, each.logits, each.refused, each.listening], [first.text, first.logits, "aborted", 0]);
      assert.deepEqual(each.live, { buffers: 0, bytes: 0, devices: 0 }, "left on the GPU");
    }
    for (const each of others) {
      assert.ok(each.wasmBytes <= first.wasmBytes + WASM_SLACK, `the wasm memory grew from ${first.wasmBytes} to ${each.wasmBytes} bytes`);
      assert.ok(each.heap < first.heap + SLACK, `the heap grew from ${first.heap} to ${each.heap} bytes`);
    }
  }
});
