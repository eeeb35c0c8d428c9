/** The package in Firefox with the real engine: tokens, cache, sessions, aborts, lost devices, memory. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { stories } from "../page/support/golden.mjs";
import { ROOT, STORIES } from "../page/support/paths.mjs";
import { ALL, openPackage } from "./support/firefox.mjs";

const options = { timeout: 600_000 };
/** Rounds of eight aborted loads. */
const ROUNDS = ALL ? 20 : 3;
let site, page, golden;

before(async () => {
  golden = await stories();
  site = await openPackage({ "/model/": STORIES, "/models/": `${ROOT}/www/public/models` });
  page = await site.tab();
}, options);

after(() => site?.close());

/** Paths of successful requests of a model's files since a count. */
const asked = (since) => site.server.requests.slice(since).filter(({ method, path, status }) => method === "GET" && status < 300 && path.startsWith("/model/")).map(({ path }) => path.split("/").at(-1));

test("tokens equal the reference in the worker and on the page's thread, and a reload downloads nothing", options, async () => {
  const run = (tab, worker) =>
    tab.evaluate(async (prompt, worker) => {
      const model = await jerboa.loadModel(new URL("/model/", location.href), { worker });
      const { ids } = await model.generate(prompt, { maxTokens: 40, temperature: 0 }).details;
      const { info } = model;
      await model.unload();
      return { ids: [...ids], worker: info.worker, warnings: info.warnings, f16: info.device.f16, kv: info.kv };
    }, golden.prompt, worker);
  const expected = { ids: golden.newIds.slice(0, 40), warnings: [], f16: true, kv: "f16" };
  const first = site.server.requests.length;
  assert.deepEqual(await run(page, true), { ...expected, worker: true });
  assert.ok(asked(first).includes("model.safetensors"));
  const other = await site.tab();
  for (const worker of [true, false]) {
    const since = site.server.requests.length;
    assert.deepEqual(await run(other, worker), { ...expected, worker });
    assert.deepEqual(asked(since).filter((name) => /safetensors|tokenizer.json/.test(name)), []);
  }
  await other.close();
});

test("ten sessions that generate at once end, with the tokens that each has alone", options, async () => {
  for (const worker of [true, false]) {
    const [together, alone] = await page.evaluate(async (worker) => {
      const model = await jerboa.loadModel(new URL("/model/", location.href), { worker });
      const prompts = Array.from({ length: 10 }, (_, i) => `Once upon a time ${i}`);
      const settings = { maxTokens: 32, temperature: 0 };
      const one = async (prompt) => {
        const session = await model.createSession();
        return [...(await session.generate(prompt, settings).details).ids];
      };
      const together = await within(120, Promise.all(prompts.map(one)));
      const alone = [];
      for (const prompt of prompts) alone.push([...(await model.generate(prompt, settings).details).ids]);
      await model.unload();
      return [together, alone];
    }, worker);
    assert.deepEqual(together, alone, `worker: ${worker}`);
    assert.ok(alone.every((ids) => ids.length > 0));
  }
});

test("a session is saved under a name again and again; a save that fails leaves the last one", options, async () => {
  for (const worker of [true, false]) {
    const found = await page.evaluate(async (ids, worker) => {
      const model = await jerboa.loadModel(new URL("/model/", location.href), { worker });
      const session = await model.createSession();
      const code = (promise) => promise.then(() => "none", (error) => error.code);
      const steps = [];
      const note = async (call) => steps.push([await code(call), await jerboa.savedSessions().then((list) => list.map(({ name }) => name))]);
      await note(session.save("a story"));
      for (const length of [5, 9]) {
        await session.prefill(ids.slice(0, length));
        await note(session.save("a story"));
      }
      await model.release();
      await note(session.save("a story"));
      await note(session.save("another"));
      await session.restore("a story");
      const tokens = [...session.tokens];
      await jerboa.deleteSavedSession("a story");
      const left = await jerboa.savedSessions();
      await model.unload();
      return { steps, tokens, left };
    }, golden.ids, worker);
    const list = ["a story"];
    assert.deepEqual(found, { steps: [["request", []], ["none", list], ["none", list], ["request", list], ["request", list]], tokens: golden.ids.slice(0, 9), left: [] }, `worker: ${worker}`);
  }
});

// Firefox blocks a worker for good that starts workers of its own after others with such workers were terminated.
test("loads aborted at any moment settle within two seconds, and later calls and loads answer", options, async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const found = await page.evaluate(async (round) => {
      const url = new URL("/model/", location.href);
      /** How a load that is aborted after some milliseconds ends. */
      const aborted = async (ms, worker) => {
        const controller = new AbortController();
        const load = jerboa.loadModel(url, { worker, signal: controller.signal }).then((model) => model.unload().then(() => "loaded"), (error) => error.code);
        await new Promise((resolve) => setTimeout(resolve, ms));
        controller.abort();
        return within(2, load.then((end) => (end === "loaded" ? "aborted" : end)));
      };
      const ends = [];
      const empty = async () => {
        for (const { source } of await jerboa.cachedModels()) await jerboa.deleteModel(source);
      };
      for (let i = 0; i < 8; i++) {
        // Every other load downloads.
        if (i % 2 === 1) ends.push(await within(20, empty().then(() => "aborted")));
        ends.push(await aborted(60 + 97 * i + 31 * round, i < 6));
      }
      ends.push(...(await Promise.all(Array.from({ length: 8 }, (_, i) => aborted(150 * i + 31 * round, true)))));
      const model = await within(60, jerboa.loadModel(url));
      if (model === "no end") return [...ends, "no later load"];
      const text = await model.generate("Once upon a time", { maxTokens: 8, temperature: 0 });
      await model.unload();
      return [...ends, text];
    }, round);
    const text = found.pop();
    assert.deepEqual(found.filter((end) => end !== "aborted"), [], `round ${round}`);
    assert.ok(text && golden.newText.startsWith(text), text);
  }
});

test("generations continue with the same tokens when the device is lost before, at the start or midway", options, async () => {
  const found = await page.evaluate(async (prompt) => {
    const { requestDevice } = GPUAdapter.prototype;
    const devices = [];
    GPUAdapter.prototype.requestDevice = async function (...args) {
      const device = await requestDevice.apply(this, args);
      devices.push(device);
      return device;
    };
    /** Destroys the device at a call of a method. */
    const loseAt = (prototype, method, count) => {
      const real = prototype[method];
      let calls = 0;
      prototype[method] = function (...args) {
        if (++calls === count) {
          prototype[method] = real;
          devices.at(-1).destroy();
        }
        return real.apply(this, args);
      };
    };
    const model = await jerboa.loadModel(new URL("/model/", location.href), { worker: false });
    const session = await model.createSession();
    const ends = [];
    for (const strike of [() => devices.at(-1).destroy(), () => loseAt(GPUQueue.prototype, "writeBuffer", 1), () => loseAt(GPUBuffer.prototype, "mapAsync", 3)]) {
      const before = devices.length;
      strike();
      for (const where of [model, session]) ends.push([...(await within(120, where.generate(prompt, { maxTokens: 20, temperature: 0 }).details)).ids]);
      ends.push(devices.length - before);
    }
    await model.unload();
    GPUAdapter.prototype.requestDevice = requestDevice;
    return ends;
  }, golden.prompt);
  const ids = golden.newIds.slice(0, 20);
  assert.deepEqual(found, [ids, ids, 1, ids, ids, 1, ids, ids, 1]);
});

test("a memory keeps documents in IndexedDB for the next tab, and finds them with an encoder", options, async () => {
  const open = (tab) =>
    tab.evaluate(async () => {
      const { createMemory, indexedDbStore } = await import("/memory/index.js");
      window.encoder = await jerboa.loadModel(new URL("/models/words-encoder/", location.href));
      window.memory = await createMemory({ model: encoder, store: indexedDbStore("firefox") });
    });
  const first = await site.tab();
  await open(first);
  await first.evaluate(() => memory.add([{ id: "bees", text: "A queen bee lays all the eggs of the colony." }, { id: "iron", text: "Iron rusts in wet air." }]));
  await first.close();
  const next = await site.tab();
  await open(next);
  const hits = await next.evaluate(async () => {
    const hits = await memory.search("Who lays the eggs?", { k: 2 });
    await memory.clear();
    const left = (await memory.list()).length;
    await encoder.unload();
    return { documents: hits.map(({ document }) => document), scores: hits.map(({ score }) => score), left };
  });
  assert.deepEqual(hits.documents, ["bees", "iron"]);
  assert.ok(hits.scores[0] > hits.scores[1]);
  assert.equal(hits.left, 0);
  await next.close();
});
