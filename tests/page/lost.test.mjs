/** Devices lost at every stage, in Chromium with the real engine: each call recovers with the same tokens or fails with a code, and none hangs. `JERBOA_LOSS_RUNS=100` repeats it, starting at `JERBOA_LOSS_FIRST`. Native: tests/models/lost.rs. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";

const FIRST = Number(process.env.JERBOA_LOSS_FIRST ?? 0);
const RUNS = Number(process.env.JERBOA_LOSS_RUNS ?? 1);
/** Lets the GPU process crash any number of times. */
const FLAGS = ["--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis"];
const options = { timeout: 300_000 * RUNS };
let opened, golden;

before(async () => {
  golden = await stories();
  opened = await openPackage({ "/model/": STORIES, "/models/": `${ROOT}/www/public/models` }, FLAGS);
  const browser = await opened.page.context().browser().newBrowserCDPSession();
  // Some versions never answer it.
  await opened.page.exposeFunction("killGpu", () => void browser.send("Browser.crashGpuProcess").catch(() => {}));
  await opened.page.evaluate(() => {
    // The devices that pages get, and a way to lose the last one at a given call; its end returns the number of calls.
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
      let calls = 0;
      prototype[method] = function (...args) {
        if (++calls === count) {
          prototype[method] = real;
          devices.at(-1).destroy();
        }
        return real.apply(this, args);
      };
      return () => {
        prototype[method] = real;
        return calls;
      };
    };
    window.load = (path = "/model/", more = {}) => jerboa.loadModel(new URL(path, location.href), { worker: false, tune: "off", ...more });
  });
}, options);

after(() => opened?.close());

test("a load whose device is lost fails with a code, and the next one loads", options, async () => {
  const calls = await opened.page.evaluate(async () => {
    const names = ["buffer", "pipeline", "write", "submit"];
    const ends = names.map((name) => loseAt(name, Infinity));
    await load().then((model) => model.unload());
    return names.map((name, i) => ({ name, count: ends[i]() })).filter(({ count }) => count > 0);
  });
  assert.ok(calls.some(({ name }) => name === "buffer"), JSON.stringify(calls));
  for (let run = FIRST; run < FIRST + RUNS; run++) {
    // Tests every call of a load.
    const strikes = calls.map(({ name, count }) => ({ name, at: 1 + ((7 * run + (count >> 1)) % count) }));
    const codes = await opened.page.evaluate(async (strikes) => {
      const codes = [];
      for (const { name, at } of strikes) {
        const end = loseAt(name, at);
        codes.push(await load().then((model) => model.unload().then(() => "loaded"), (error) => error.code));
        end();
      }
      return codes;
    }, strikes);
    const said = JSON.stringify([strikes, codes]);
    for (const code of codes) assert.ok(["device_lost", "loaded"].includes(code), said);
    assert.ok(codes.includes("device_lost"), said);
  }
});

test("generations of the model and of a session continue with the same tokens when the device is lost before, at the start or midway", options, async () => {
  for (let run = FIRST; run < FIRST + RUNS; run++) {
    const found = await opened.page.evaluate(async (run) => {
      const model = await load();
      const session = await model.createSession();
      const runs = [];
      for (const [name, count] of [[run % 2 === 0 ? "killed" : "idle", 0], ["write", 1], ["map", 3 + (run % 3)]]) {
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

test("text and image embeddings are the same when the device is lost before or during their computation", options, async () => {
  for (let run = FIRST; run < FIRST + RUNS; run++) {
    const found = await opened.page.evaluate(async ([run, few]) => {
      const embed = (model, strike) => model.embed(["one bee", `a whale ${strike}`]).then((rows) => rows.flatMap((row) => [...row]));
      const encode = async (model, strike) => [...(await model.encodeImage(new ImageData(new Uint8ClampedArray(64 * 48 * 4).fill(20 + 40 * strike), 64, 48))).data];
      const ends = [];
      for (const [path, work] of [["/models/words-encoder/", embed], ["/models/tiny-vision/", encode]]) {
        const model = await load(path, { maxContext: 1024 });
        const strikes = [["idle", 0], ["map", 1], ["write", 1 + (run % 3)], ["submit", 1]].slice(0, few ? 2 : 4);
        const expected = [];
        for (const strike of strikes.keys()) expected.push(await work(model, strike));
        // So that no image is cached.
        await model.release();
        for (const [strike, [name, count]] of strikes.entries()) {
          const before = devices.length;
          if (count === 0) devices.at(-1).destroy();
          const restore = count === 0 ? () => {} : loseAt(name, count);
          const rows = await work(model, strike);
          restore();
          ends.push({ path, name, same: rows.length > 50 && rows.every((value, at) => value === expected[strike][at]), devices: devices.length - before });
        }
        await model.unload();
      }
      return ends;
    }, [run, RUNS === 1]);
    for (const { path, name, same } of found) assert.ok(same, `${path}, lost at ${name}`);
    assert.ok(found.filter(({ devices }) => devices === 1).length >= (RUNS === 1 ? 3 : 6), JSON.stringify(found));
  }
});
