/** WebKit's path in Chromium, which says that it is an iPhone: what it is told to be, its calibration, and the same tokens for every group of dispatches. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, STORIES } from "./support/places.mjs";
import { serve } from "./support/server.mjs";

const PATIENCE = 300_000;
const IPHONE =
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Mobile/15E148 Safari/604.1";

let server, browser, page, golden;

before(async () => {
  assertBuilt();
  golden = await stories();
  // Under a strict policy, too.
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'";
  server = await serve({ "/": PACKAGE, "/model/": STORIES }, { "Content-Security-Policy": policy });
  browser = await launch([`--user-agent=${IPHONE}`]);
  page = await browser.newPage();
  await page.goto(`${server.url}/package.json`);
  await warmUp(page);
});

after(async () => {
  await browser?.close();
  await server?.close();
});

test("a calibration finds that this device takes all at once, and a generation proves it", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const jerboa = await import("/index.js");
    const { webkit, ios, f16, max_workgroup_storage } = await jerboa.deviceReport();
    const wrong = (await jerboa.diagnose()).filter((check) => !check.ok);
    const model = await jerboa.loadModel(new URL("/model/", location.href));
    const noted = localStorage.getItem("jerboa:group");
    const text = await model.generate("Once upon a time", { maxTokens: 8, temperature: 0 });
    const { warnings, worker } = model.info;
    await model.unload();
    const records = [noted, localStorage.getItem("jerboa:group")].map((record) => JSON.parse(record));
    return { device: { webkit, ios, f16, max_workgroup_storage }, wrong, warnings, worker, text, records, keys: Object.keys(localStorage) };
  });
  assert.deepEqual(found.device, { webkit: true, ios: true, f16: false, max_workgroup_storage: 16384 });
  assert.deepEqual([found.wrong, found.warnings, found.worker], [[], [], true]);
  assert.ok(golden.newText.startsWith(found.text), found.text);
  const record = { agent: IPHONE, rung: 0 };
  assert.deepEqual(found.records, [{ ...record, state: "right" }, { ...record, state: "proven" }]);
  // What came of the first look at the device is noted, too.
  assert.deepEqual(found.keys.sort(), ["jerboa:device", "jerboa:group"]);
});

test("the tokens are the same for every group of dispatches, one command buffer in flight", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    // The queue tells how many command buffers were in flight at once, and how many there were.
    const { submit, onSubmittedWorkDone } = GPUQueue.prototype;
    const count = { all: 0, now: 0, most: 0 };
    GPUQueue.prototype.submit = function (buffers) {
      count.all++;
      count.most = Math.max(count.most, ++count.now);
      return submit.call(this, buffers);
    };
    GPUQueue.prototype.onSubmittedWorkDone = function () {
      return onSubmittedWorkDone.call(this).then(() => void (count.now = 0));
    };
    const { mapAsync } = GPUBuffer.prototype;
    GPUBuffer.prototype.mapAsync = function (...args) {
      return mapAsync.apply(this, args).then(() => void (count.now = 0));
    };
    const module = await import("/jerboa.js");
    await module.default();
    const engine = await module.Engine.load({ model: new URL("/model/", location.href).href }, () => {});
    const runs = [];
    for (const group of ["1", "8", "64", "all", "free"]) {
      engine.setGroup(group);
      Object.assign(count, { all: 0, now: 0, most: 0 });
      const { ids } = await engine.generate({ prompt: "Once upon a time", maxTokens: 12, temperature: 0 }, () => {});
      runs.push({ group, ids, ...count });
    }
    return runs;
  });
  for (const { group, ids, most } of found) {
    assert.deepEqual(ids, golden.newIds.slice(0, 12), group);
    assert.ok(most === 1 || group === "free", `${group}: ${most} in flight`);
  }
  const submits = found.map((run) => run.all);
  assert.ok(submits[0] > 3 * submits[1] && submits[1] > submits[2] && submits[2] >= submits[3], `command buffers: ${submits}`);
});
