/** WebKit's path, in a Chromium that claims to be an iPhone: detection, calibration, and the same tokens for every dispatch group. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const PATIENCE = 300_000;
const IPHONE =
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_7 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/26.0 Mobile/15E148 Safari/604.1";

let server, browser, page, golden;

before(async () => {
  assertBuilt();
  golden = await stories();
  // Also under a strict policy.
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'";
  server = await serve({ "/": PACKAGE, "/model/": STORIES }, { "Content-Security-Policy": policy });
  browser = await launch([`--user-agent=${IPHONE}`]);
  page = await (await browser.newContext()).newPage();
  await page.goto(`${server.url}/package.json`);
  await warmUp(page);
});

after(async () => {
  await browser?.close();
  await server?.close();
});

test("a calibration finds that this device allows unlimited groups, and a generation confirms it", { timeout: PATIENCE }, async () => {
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
  // The result of the first device check is stored, too.
  assert.deepEqual(found.keys.sort(), ["jerboa:device", "jerboa:group"]);
});

test("the tokens are the same for every dispatch group, with one command buffer in flight", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    // Counts the command buffers in flight and the dispatches of each. How many steps follow the first token's
    // readback depends on the machine's speed.
    const { submit, onSubmittedWorkDone } = GPUQueue.prototype;
    const { dispatchWorkgroups } = GPUComputePassEncoder.prototype;
    const fresh = () => ({ now: 0, most: 0, dispatches: 0, prompt: [], after: [], read: false });
    let count = fresh();
    GPUComputePassEncoder.prototype.dispatchWorkgroups = function (...grid) {
      count.dispatches++;
      return dispatchWorkgroups.apply(this, grid);
    };
    GPUQueue.prototype.submit = function (buffers) {
      if (count.dispatches > 0) (count.read ? count.after : count.prompt).push(count.dispatches);
      count.dispatches = 0;
      count.most = Math.max(count.most, ++count.now);
      return submit.call(this, buffers);
    };
    GPUQueue.prototype.onSubmittedWorkDone = function () {
      return onSubmittedWorkDone.call(this).then(() => void (count.now = 0));
    };
    const { mapAsync } = GPUBuffer.prototype;
    GPUBuffer.prototype.mapAsync = function (...args) {
      count.read = true;
      return mapAsync.apply(this, args).then(() => void (count.now = 0));
    };
    const module = await import("/jerboa.js");
    await module.default();
    const engine = await module.Engine.load({ model: new URL("/model/", location.href).href }, () => {});
    const runs = [];
    // The first run has no cached prefix, so the others are compared.
    for (const group of ["all", "1", "8", "64", "all", "free"]) {
      engine.setGroup(group);
      count = fresh();
      const { ids } = await engine.generate({ prompt: "Once upon a time", maxTokens: 12, temperature: 0 }, () => {});
      runs.push({ group, ids, ...count });
    }
    return runs;
  });
  for (const { group, ids, most } of found) {
    assert.deepEqual(ids, golden.newIds.slice(0, 12), group);
    assert.ok(most === 1 || group === "free", `${group}: ${most} in flight`);
  }
  const [, one, eight, many, all, free] = found;
  const sum = (sizes) => sizes.reduce((total, size) => total + size, 0);
  assert.equal(sum(free.prompt), sum(all.prompt));
  for (const [size, run] of [[1, one], [8, eight], [64, many]]) {
    const cut = all.prompt.flatMap((whole) => Array.from({ length: Math.ceil(whole / size) }, (_, i) => Math.min(size, whole - i * size)));
    assert.deepEqual(run.prompt, cut, `groups of ${size}`);
    assert.ok(run.after.length > 0 && run.after.every((dispatches) => dispatches <= size), `groups of ${size}: ${run.after}`);
  }
});

test("models are private files: missing parts are downloaded alone, and two tabs share one download", { timeout: PATIENCE }, async () => {
  const load = (where, worker) =>
    where.evaluate(async (worker) => {
      const jerboa = await import("/index.js");
      const model = await jerboa.loadModel(new URL("/model/", location.href), { worker });
      const text = await model.generate("Once upon a time", { maxTokens: 4, temperature: 0 });
      await model.unload();
      return text;
    }, worker);
  /** The entries by their files' URLs; those of a file are removed. */
  const entries = (remove) =>
    page.evaluate(async (remove) => {
      const found = [];
      const walk = async (folder, path) => {
        for await (const [name, handle] of folder) {
          if (handle.kind === "directory") await walk(handle, `${path}/${name}`);
          else if (remove && path.includes(remove) && name !== "manifest") await folder.removeEntry(name);
          else found.push(`${path}/${name}`);
        }
      };
      await walk(await navigator.storage.getDirectory(), "");
      return { found, caches: await caches.keys() };
    }, remove);
  const asked = (since) => server.requests.slice(since).filter(({ method, path, status }) => method === "GET" && status < 300 && path.startsWith("/model/")).map(({ path }) => path.split("/").at(-1));

  await load(page, true);
  const kept = await entries();
  assert.ok(kept.found.some((name) => name.startsWith("/jerboa-models-1/") && name.includes("model.safetensors/")), kept.found.join("\n"));
  assert.deepEqual(kept.caches, []);
  let since = server.requests.length;
  const text = await load(page, true);
  assert.ok(golden.newText.startsWith(text), text);
  assert.ok(!asked(since).some((name) => /safetensors|tokenizer.json/.test(name)), `asked again: ${asked(since)}`);
  // On the page's own thread the same files are used, and an evicted part is downloaded again.
  await entries("model.safetensors");
  since = server.requests.length;
  assert.equal(await load(page, false), text);
  assert.ok(asked(since).includes("model.safetensors") && !asked(since).includes("tokenizer.json"), `asked again: ${asked(since)}`);
  assert.deepEqual((await entries()).found.sort(), kept.found.sort());

  const listed = await page.evaluate(async () => {
    const jerboa = await import("/index.js");
    const models = await jerboa.cachedModels();
    for (const { source } of models) await jerboa.deleteModel(source);
    return [models.length, (await jerboa.cachedModels()).length];
  });
  assert.deepEqual(listed, [1, 0]);
  const other = await page.context().newPage();
  await other.goto(`${server.url}/package.json`);
  since = server.requests.length;
  assert.deepEqual(await Promise.all([load(page, true), load(other, true)]), [text, text]);
  const fetched = asked(since).filter((name) => name === "tokenizer.json").length;
  assert.equal(fetched, 1, `asked for ${asked(since)}`);
  await other.close();
});

test("on the page's own thread a thread of the cache writes the private files, without createWritable", { timeout: PATIENCE }, async () => {
  // Without the policy, which forbids such threads.
  const open = await serve({ "/": PACKAGE, "/model/": STORIES });
  const other = await (await browser.newContext()).newPage();
  await other.goto(`${open.url}/package.json`);
  const load = () =>
    other.evaluate(async () => {
      window.streams ??= 0;
      const { createWritable } = FileSystemFileHandle.prototype;
      FileSystemFileHandle.prototype.createWritable = function (...args) {
        streams++;
        return createWritable.apply(this, args);
      };
      const jerboa = await import("/index.js");
      const model = await jerboa.loadModel(new URL("/model/", location.href), { worker: false });
      const text = await model.generate("Once upon a time", { maxTokens: 4, temperature: 0 });
      const { warnings } = model.info;
      await model.unload();
      const names = [];
      const walk = async (folder, path) => {
        for await (const [name, handle] of folder) await (handle.kind === "directory" ? walk(handle, `${path}/${name}`) : names.push(`${path}/${name}`));
      };
      await walk(await navigator.storage.getDirectory(), "");
      return { text, warnings, streams, stored: names.some((name) => name.includes("model.safetensors/")), unfinished: names.filter((name) => name.includes("~unfinished")), caches: await caches.keys() };
    });
  const first = await load();
  assert.ok(golden.newText.startsWith(first.text), first.text);
  assert.deepEqual(first, { text: first.text, warnings: [], streams: 0, stored: true, unfinished: [], caches: [] });
  const since = open.requests.length;
  assert.deepEqual(await load(), first);
  const again = open.requests.slice(since).filter(({ method, path, status }) => method === "GET" && status < 300 && /safetensors|tokenizer\.json/.test(path));
  assert.deepEqual(again, []);
  await other.close();
  await open.close();
});
