/** Loading in Chromium from a server that behaves like the Hub, with its faults; the native tests in tests/hub cover the
 * shared code, these cover fetch and the stores. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { startHub } from "./support/hub.mjs";
import { STORIES } from "./support/paths.mjs";
import { installStored } from "./support/stored.mjs";

const options = { timeout: 180_000 };
let site, page, golden, hub, folder;

const control = (...what) => hub.control(...what);
const log = () => control("log");
const bytes = async () => (await log()).reduce((sum, request) => sum + request.bytes, 0);

/** Loads the model in a page; returns the first greedy ids, or the error's code. */
const load = (extra = {}, where = page) =>
  where.evaluate(
    async ([endpoint, prompt, extra]) => {
      const { abortAfter, folder, ...rest } = extra;
      const abort = new AbortController();
      if (abortAfter === 0) abort.abort();
      const progress = [];
      const onProgress = (p) => {
        progress.push({ phase: p.phase, loaded: p.loaded, total: p.total, fromCache: p.fromCache });
        if (p.phase === abortAfter) abort.abort();
      };
      try {
        const place = folder ? [folder, {}] : ["org/model", { endpoint }];
        const model = await jerboa.loadModel(place[0], { ...place[1], onProgress, signal: abort.signal, ...rest });
        const { ids } = await model.generate(prompt, { temperature: 0, maxTokens: 8 }).details;
        const { warnings } = model.info;
        await model.unload();
        return { ids: [...ids], warnings, progress };
      } catch (error) {
        return { code: error.code, message: error.message, name: error.name };
      }
    },
    [hub.url, golden.prompt, extra],
  );

const assertLoaded = (result, what) => assert.deepEqual(result.ids, golden.newIds.slice(0, 8), `${what}: ${JSON.stringify(result)}`);

before(async () => {
  golden = await stories();
  folder = await mkdtemp(join(tmpdir(), "jerboa-hub-"));
  await mkdir(join(folder, "org"));
  await symlink(STORIES, join(folder, "org/model"));
  hub = await startHub(folder);
  site = await openPackage();
  page = site.page;
  await page.evaluate(installStored);
}, options);

beforeEach(async () => {
  await control("reset", {});
  await page.evaluate(() => stored.clear());
});

after(async () => {
  await site?.close();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

test("a redirect to another origin is followed without the token; the second load downloads nothing", options, async () => {
  await control("gate", { "org/model": "secret" });
  assertLoaded(await load({ token: "secret" }), "first");
  const first = await log();
  assert.ok(first.some((r) => r.origin === "cdn" && r.status === 206));
  assert.ok(first.every((r) => r.authorization === (r.origin === "hub")), "the token goes to the hub and nowhere else");
  const before = await bytes();
  const second = await load({ token: "secret" });
  assertLoaded(second, "second");
  assert.equal(await bytes(), before, "bytes over the network on the second load");
  assert.ok(second.progress.some((p) => p.phase === "weights" && p.fromCache));
});

/** The SHA-256 of the weights as recorded in a page's store. */
const verified = (where) =>
  where.evaluate(async () => {
    const found = (await stored.paths()).find((path) => path.endsWith("model.safetensors/manifest"));
    return JSON.parse(await stored.read(found)).content.sha256;
  });

/** A page whose policy forbids blob: workers: its store is read and written on its own thread. */
const strictPage = async () => {
  const strict = await page.context().browser().newPage();
  await strict.goto(`${site.url}/package.json`);
  await strict.evaluate(async () => {
    window.refused = [];
    document.addEventListener("securitypolicyviolation", (event) => window.refused.push(event.violatedDirective));
    document.head.append(Object.assign(document.createElement("meta"), { httpEquiv: "Content-Security-Policy", content: "worker-src 'self'" }));
    window.jerboa = await import("/index.js");
  });
  await strict.evaluate(installStored);
  return strict;
};

test("loads read and write on separate threads, or on the page's thread if its policy forbids them", options, async () => {
  const threads = [];
  page.on("worker", (worker) => threads.push(worker.url()));
  assertLoaded(await load({ worker: false }), "first");
  const sha256 = createHash("sha256").update(await readFile(join(STORIES, "model.safetensors"))).digest("hex");
  assert.equal(await verified(page), sha256);
  assert.ok(threads.length > 0 && threads.every((url) => url.startsWith("blob:")), `threads that write: ${threads}`);
  // Idle threads end. The engine's worker of the previous test does not count; Chromium may retain it for a debugger.
  const ending = page.workers().filter((worker) => threads.includes(worker.url()));
  await Promise.all(ending.map((worker) => worker.waitForEvent("close")));
  threads.length = 0;
  let before = await bytes();
  assertLoaded(await load({ worker: false }), "second");
  assert.equal(await bytes(), before, "bytes over the network on the second load");
  assert.ok(threads.length > 0 && threads.every((url) => url.startsWith("blob:")), `threads of ${threads}`);

  const strict = await strictPage();
  await page.evaluate(() => stored.clear());
  assertLoaded(await load({ worker: false }, strict), "first with a policy");
  assert.equal(await verified(strict), sha256);
  before = await bytes();
  assertLoaded(await load({ worker: false }, strict), "second with a policy");
  assert.equal(await bytes(), before, "bytes over the network on the second load with a policy");
  assert.ok((await strict.evaluate(() => window.refused)).includes("worker-src"), "the policy had nothing to refuse");
  await strict.close();
});

test("errors have their codes", options, async () => {
  await control("gate", { "org/model": "secret" });
  assert.equal((await load()).code, "gated");
  assert.equal((await load({ token: "wrong" })).code, "gated");
  await control("reset", {});
  await control("faults", [{ kind: "status", match: "config.json", status: 404 }]);
  assert.equal((await load()).code, "not_found");
  await control("reset", {});
  assertLoaded(await load(), "after the refusals");
});

test("a page served for missing files is not taken for a file", options, async () => {
  await control("faults", [{ kind: "fallback" }]);
  const folder = `${hub.url}/files/org/model`;
  for (const visit of ["first", "second"]) {
    assertLoaded(await load({ folder }), `${visit}, a folder`);
    assertLoaded(await load(), `${visit}, a repository`);
  }
  assert.ok((await log()).some((r) => r.status === 200 && r.path.includes("modules.json")), "no file was missing");
  await control("file", { path: "org/model/config.json", base64: null });
  // Of a repository the cached commit is used, with a warning; a folder that serves its other files has lost this one.
  const cached = await load();
  assertLoaded(cached, "from the cache");
  assert.ok(cached.warnings.some((warning) => /cache/.test(warning)), JSON.stringify(cached.warnings));
  assert.equal((await load({ folder })).code, "not_found");
  await page.evaluate(() => stored.clear());
  for (const place of [{ folder }, {}]) {
    const refused = await load(place);
    assert.equal(refused.code, "not_found", JSON.stringify(refused));
    assert.match(refused.message, /config\.json was not found \(the server returned a web page instead of the file\)/);
  }
});

test("transient network errors are retried", options, async () => {
  await control("faults", [
    { kind: "status", match: "config.json", status: 429, retryAfter: 1, times: 1 },
    { kind: "status", match: "tokenizer.json", status: 503, times: 1 },
    { kind: "drop", match: "cdn", after: 100_000, times: 2 },
    { kind: "short", match: "cdn", after: 50_000, times: 1 },
  ]);
  assertLoaded(await load(), "with faults");
  assert.ok((await log()).some((r) => r.origin === "cdn" && /^bytes=(?!0-)/.test(r.range)), "resumed from a byte");
});

test("changes between visits are detected", options, async () => {
  assertLoaded(await load(), "first");
  const config = JSON.parse(await readFile(join(STORIES, "config.json"), "utf8"));
  const base64 = Buffer.from(JSON.stringify({ ...config, model_type: "unheard_of", architectures: ["UnheardOf"] })).toString("base64");
  await control("file", { path: "org/model/config.json", base64 });
  assert.equal((await load()).code, "unknown_architecture");
});

test("an abort leaves nothing that looks complete", options, async () => {
  await control("faults", [{ kind: "slow", match: "cdn", rate: 200_000 }]);
  assert.equal((await load({ abortAfter: "weights" })).code, "aborted");
  const kept = await page.evaluate(async () => (await stored.paths()).filter((path) => path.includes("safetensors/manifest")));
  assert.deepEqual(kept, []);
  await control("reset", {});
  assertLoaded(await load(), "after the abort");
});

test("a load ends before the cache has its last bytes, and dependent calls wait", options, async () => {
  const strict = await strictPage();
  const result = await strict.evaluate(
    async ([folder, prompt]) => {
      const { move } = FileSystemFileHandle.prototype;
      let go;
      const gate = new Promise((resolve) => (go = resolve));
      // The weights, on the page's own thread, where the test can delay the storage.
      FileSystemFileHandle.prototype.move = async function (folder, name) {
        if (folder.name.includes("model.safetensors")) await gate;
        return move.call(this, folder, name);
      };
      try {
        const first = await jerboa.loadModel(folder, { worker: false });
        const { ids } = await first.generate(prompt, { temperature: 0, maxTokens: 8 }).details;
        let stored = false;
        void first.persisted.then(() => (stored = true));
        const phases = [];
        let begun;
        const waits = new Promise((resolve) => (begun = resolve));
        const second = jerboa.loadModel(folder, { onProgress: ({ phase }) => begun(phases.push(phase)) });
        const list = jerboa.cachedModels();
        await waits;
        await new Promise((later) => setTimeout(later, 300));
        const early = { stored, phases: [...phases] };
        go();
        await first.persisted;
        const [{ complete }] = await list;
        await Promise.all([first.unload(), (await second).unload()]);
        return { ids: [...ids], early, complete };
      } finally {
        FileSystemFileHandle.prototype.move = move;
      }
    },
    [`${hub.url}/org/model/resolve/main`, golden.prompt],
  );
  await strict.close();
  assertLoaded(result, "before the end of its download's last write");
  assert.deepEqual(result.early, { stored: false, phases: ["waiting"] });
  assert.ok(result.complete);
  const { size } = await stat(join(STORIES, "model.safetensors"));
  const weights = (await log()).filter(({ path }) => path.endsWith("model.safetensors"));
  assert.equal(weights.reduce((sum, { bytes }) => sum + bytes, 0), size, "the second load takes none of them from the network");
});

test("full storage leaves the model running, with a warning", options, async () => {
  const strict = await strictPage();
  const result = await strict.evaluate(
    async ([endpoint, prompt]) => {
      const { write } = FileSystemWritableFileStream.prototype;
      FileSystemWritableFileStream.prototype.write = () => Promise.reject(new DOMException("no room is left", "QuotaExceededError"));
      try {
        // On the page's own thread, where the test can make the storage refuse.
        const model = await jerboa.loadModel("org/model", { endpoint, worker: false });
        const { ids } = await model.generate(prompt, { temperature: 0, maxTokens: 8 }).details;
        await model.persisted;
        const { warnings } = model.info;
        await model.unload();
        return { ids: [...ids], warnings };
      } finally {
        FileSystemWritableFileStream.prototype.write = write;
      }
    },
    [hub.url, golden.prompt],
  );
  await strict.close();
  assertLoaded(result, "without room");
  // The writing threads get the error from the browser itself.
  const quota = await page.context().newCDPSession(page);
  await quota.send("Storage.overrideQuotaForOrigin", { origin: site.url, quotaSize: 500_000 });
  const told = await page.evaluate(
    async ([endpoint]) => {
      const model = await jerboa.loadModel("org/model", { endpoint, worker: false });
      await model.persisted;
      const { warnings } = model.info;
      await model.unload();
      return warnings;
    },
    [hub.url],
  );
  await quota.send("Storage.overrideQuotaForOrigin", { origin: site.url });
  assert.ok(told.some((warning) => /storage is full|no room|[Qq]uota/.test(warning)), JSON.stringify(told));
  assert.ok(result.warnings.some((warning) => warning.includes("no room is left")), JSON.stringify(result.warnings));
});
