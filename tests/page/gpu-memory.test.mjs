/** A device with less memory than a model wants, in Chromium with the real engine: error scopes refuse buffers beyond a limit. Native: tests/models/memory.rs. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { STORIES } from "./support/paths.mjs";

const options = { timeout: 300_000 };
let opened;

before(async () => {
  opened = await openPackage({ "/model/": STORIES });
  await opened.page.evaluate(() => {
    // The bytes of all buffers, the limit, and the refusals so far.
    window.memory = { bytes: 0, peak: 0, limit: Infinity, refused: 0 };
    const { createBuffer, pushErrorScope, popErrorScope } = GPUDevice.prototype;
    const { destroy } = GPUBuffer.prototype;
    const sizes = new WeakMap();
    const scopes = [];
    GPUDevice.prototype.createBuffer = function (descriptor) {
      const buffer = createBuffer.call(this, descriptor);
      sizes.set(buffer, descriptor.size);
      memory.bytes += descriptor.size;
      const scope = scopes.findLast(({ filter }) => filter === "out-of-memory");
      if (memory.bytes > memory.limit && scope) scope.refused = true;
      else memory.peak = Math.max(memory.peak, memory.bytes);
      return buffer;
    };
    GPUBuffer.prototype.destroy = function () {
      memory.bytes -= sizes.get(this) ?? 0;
      sizes.delete(this);
      return destroy.call(this);
    };
    GPUDevice.prototype.pushErrorScope = function (filter) {
      scopes.push({ filter });
      return pushErrorScope.call(this, filter);
    };
    GPUDevice.prototype.popErrorScope = function () {
      const { refused } = scopes.pop();
      const answer = popErrorScope.call(this);
      if (!refused) return answer;
      memory.refused++;
      return answer.then(() => new GPUOutOfMemoryError("injected"));
    };
    window.load = (more = {}) => jerboa.loadModel(new URL("/model/", location.href), { worker: false, tune: "off", ...more });
    /** Loads, and says how; frees the model. */
    window.attempt = async (more) => {
      memory.refused = 0;
      memory.peak = 0;
      performance.clearResourceTimings();
      const model = await load(more);
      const { precision, bytes, warnings, contextLength } = model.info;
      const text = await model.generate("Once upon a time", { maxTokens: 8, temperature: 0 });
      await model.unload();
      return { precision, bytes, warnings, contextLength, text, refused: memory.refused, peak: memory.peak };
    };
  });
}, options);

after(() => opened?.close());

test("a load shrinks where the device refuses, and the next one plans with that at once", options, async () => {
  const { page } = opened;
  const whole = await page.evaluate(() => attempt({ maxContext: 64 }));
  assert.deepEqual([whole.precision, whole.refused], ["stored", 0]);
  const before = await page.evaluate(() => jerboa.deviceReport());
  assert.equal(before.memoryIsLimit, false, JSON.stringify(before));
  assert.ok(before.memory > whole.bytes.weights);

  const limit = Math.floor(whole.bytes.weights * 0.9);
  await page.evaluate((limit) => (memory.limit = memory.bytes + limit), limit);
  const smaller = await page.evaluate(() => attempt({ maxContext: 64 }));
  assert.ok(["q8", "q4"].includes(smaller.precision), JSON.stringify(smaller));
  assert.ok(smaller.refused > 0 && smaller.bytes.weights < limit, JSON.stringify(smaller));
  assert.match(smaller.warnings.join(), /quantized to q\d/);
  assert.ok(smaller.text.length > 0);

  const report = await page.evaluate(() => jerboa.deviceReport());
  assert.ok(report.memoryIsLimit && report.memory <= limit, JSON.stringify(report));
  const again = await page.evaluate(() => attempt({ maxContext: 64 }));
  assert.deepEqual([again.precision, again.refused, again.text], [smaller.precision, 0, smaller.text]);
});

test("what does not fit is refused, and nothing stays", options, async () => {
  const { page } = opened;
  const found = await page.evaluate(async () => {
    const before = memory.bytes;
    memory.limit = before + 10_000;
    const error = await load({ maxContext: 64, weights: "q8" }).then(() => undefined, ({ code, message }) => ({ code, message }));
    const left = memory.bytes - before;
    memory.limit = Infinity;
    const whole = await attempt({ maxContext: 64, maxMemory: 2 ** 34 });
    return { error, left, whole };
  });
  assert.equal(found.error?.code, "out_of_memory", JSON.stringify(found));
  assert.equal(found.left, 0);
  assert.equal(found.whole.precision, "stored", "the user's limit is above what was refused");
  assert.equal(found.whole.refused, 0);
});
