/** Devices that are lost at every stage, in Chromium with the real engine: each call recovers with the same tokens or fails with a code, and none hangs. `JERBOA_LOSS_RUNS=100` repeats it. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { STORIES } from "./support/places.mjs";

const RUNS = Number(process.env.JERBOA_LOSS_RUNS ?? 1);
const options = { timeout: 300_000 * RUNS };
let opened, golden;

before(async () => {
  golden = await stories();
  opened = await openPackage({ "/model/": STORIES });
  const browser = await opened.page.context().browser().newBrowserCDPSession();
  // It is never answered by some versions.
  await opened.page.exposeFunction("killGpu", () => void browser.send("Browser.crashGpuProcess").catch(() => {}));
  await opened.page.evaluate(() => {
    // The devices that pages get, and a way to lose the last of them when something is asked of it.
    window.devices = [];
    const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (...args) {
      const device = await requestDevice.apply(this, args);
      devices.push(device);
      return device;
    };
    window.loseAt = (name, count) => {
      const [prototype, method] = { buffer: [GPUDevice.prototype, "createBuffer"], pipeline: [GPUDevice.prototype, "createComputePipelineAsync"], write: [GPUQueue.prototype, "writeBuffer"], submit: [GPUQueue.prototype, "submit"], map: [GPUBuffer.prototype, "mapAsync"] }[name];
      const real = prototype[method];
      prototype[method] = function (...args) {
        if (--count === 0) {
          prototype[method] = real;
          devices.at(-1).destroy();
        }
        return real.apply(this, args);
      };
      return () => void (prototype[method] = real);
    };
    window.load = () => jerboa.loadModel(new URL("/model/", location.href), { worker: false, tune: "off" });
  });
}, options);

after(() => opened?.close());

test("a load whose device is lost fails with a code, and the next one loads", options, async () => {
  for (let run = 0; run < RUNS; run++) {
    const codes = await opened.page.evaluate(async (run) => {
      const codes = [];
      for (const [name, count] of [["buffer", 3 + run], ["pipeline", 2 + run], ["write", 4 + run]]) {
        const restore = loseAt(name, count);
        codes.push(await load().then((model) => model.unload().then(() => "loaded"), (error) => error.code));
        restore();
      }
      return codes;
    }, run);
    for (const code of codes) assert.ok(["device_lost", "loaded"].includes(code), codes.join());
    assert.ok(codes.includes("device_lost"), codes.join());
  }
});

test("generations of the model and of a session go on with the same tokens when the device is lost before, at their beginning and in their midst", options, async () => {
  for (let run = 0; run < RUNS; run++) {
    const found = await opened.page.evaluate(async (run) => {
      const model = await load();
      const session = await model.createSession();
      const runs = [];
      // Browsers give up on a GPU process that ends too often.
      for (const [name, count] of [[run === 0 ? "killed" : "idle", 0], ["write", 1], ["map", 3 + (run % 3)]]) {
        const before = devices.length;
        if (name === "idle") devices.at(-1).destroy();
        if (name === "killed") await Promise.all([killGpu(), devices.at(-1).lost]);
        const restore = count === 0 ? () => {} : loseAt(name, count);
        const read = async (generation) => {
          let text = "";
          for await (const piece of generation) text += piece;
          const { ids, text: whole } = await generation.details;
          return { ids, same: text === whole };
        };
        const begin = (where) => read(where.generate("Once upon a time", { maxTokens: 20, temperature: 0 }));
        const outcomes = await Promise.all([begin(model), begin(session)]);
        restore();
        runs.push({ name, outcomes, devices: devices.length - before });
      }
      await model.unload();
      return runs;
    }, run);
    for (const { name, outcomes, devices } of found) {
      for (const { ids, same } of outcomes) {
        assert.deepEqual(ids, golden.newIds.slice(0, 20), name);
        assert.ok(same, name);
      }
      assert.equal(devices, 1, name);
    }
  }
});
