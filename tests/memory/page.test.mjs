/** The memory in Chromium: IndexedDB with two tabs, crashes, versions and quota; search on the GPU. */

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, warmUp } from "../page/support/browser.mjs";
import { buildFacade } from "../page/support/facade.mjs";
import { serve } from "../page/support/server.mjs";

let built, site, browser, context;
let stores = 0;
let name;

before(async () => {
  built = await buildFacade();
  site = await serve({ "/": built.folder, "/support/": fileURLToPath(new URL("support", import.meta.url)) });
  browser = await launch();
  context = await browser.newContext();
});
beforeEach(() => (name = `store${stores++}`));
after(async () => {
  await browser?.close();
  await site?.close();
  await built?.remove();
});

/** A tab with the package as `api` and the test's embedder as `embedder`. */
async function tab(origin = site.url, prepare = async () => {}) {
  const page = await context.newPage();
  await prepare(page);
  await page.goto(`${origin}/support/page.html`);
  await page.evaluate(async () => {
    globalThis.api = await import("/memory/index.js");
    Object.assign(globalThis, await import("/support/embedder.mjs"));
    globalThis.openMemory = (name, options = {}) => api.createMemory({ model: embedder(), store: api.indexedDbStore(name), ...options });
    globalThis.caught = async (promise) => {
      try {
        await promise;
      } catch (error) {
        return { name: error.name, code: error.code, message: error.message };
      }
      throw new Error("nothing was thrown");
    };
  });
  return page;
}

const listed = (page) => page.evaluate(async () => (await memory.list()).map(({ id }) => id));
const open = (page, options) => page.evaluate(async ([name, options]) => void (globalThis.memory = await openMemory(name, options)), [name, options]);

test("added documents are there in a new tab", async () => {
  const page = await tab();
  await open(page, { chunk: { maxTokens: 10, overlap: 0 } });
  await page.evaluate(() => memory.add({ id: "bees", text: "Bees live in hives. A queen lays all the eggs of the colony.", metadata: { topic: "bees" } }));
  await page.close();
  const next = await tab();
  await open(next);
  assert.deepEqual(await listed(next), ["bees#0", "bees#1"]);
  const hit = await next.evaluate(async () => (await memory.search("queen eggs", { filter: { topic: "bees" } }))[0]);
  assert.equal(hit.text, "A queen lays all the eggs of the colony.");
  await next.close();
});

test("two tabs follow each other's additions, replacements, removals and clears, also from far behind", async () => {
  const [a, b] = [await tab(), await tab()];
  await open(a, { chunk: { maxTokens: 8, overlap: 0 } });
  await open(b);
  await b.evaluate(() => void (globalThis.told = new Promise((resolve) => memory.onChange(resolve))));
  await a.evaluate(() => memory.add([{ id: "x", text: "One sentence is here. Another sentence comes after it." }, { id: "y", text: "Water is wet." }]));
  await b.evaluate(() => told);
  assert.deepEqual(await listed(b), ["x#0", "x#1", "y#0"]);
  await b.evaluate(() => memory.add({ id: "x", text: "Short now." }));
  assert.equal(await a.evaluate(async () => (await memory.search("short now", { k: 1 }))[0].text), "Short now.");
  assert.deepEqual(await listed(a), ["x#0", "y#0"]);
  // Both write at the same time, often. Neither loses a record of the other, and both rank equally.
  const write = (page, own) => page.evaluate(async (own) => {
    for (let i = 0; i < 20; i++) await memory.add({ id: `${own}${i}`, text: `Text ${i} of tab ${own}.` });
  }, own);
  await Promise.all([write(a, "a"), write(b, "b")]);
  assert.deepEqual(await listed(a), await listed(b));
  assert.equal((await listed(a)).length, 42);
  const scores = (page) => page.evaluate(async () => (await memory.search("text of tab", { k: 42 })).map(({ id, score }) => [id, score]));
  assert.deepEqual(await scores(a), await scores(b));
  // More removals than the log stores: the other tab reads everything again.
  await a.evaluate(async () => {
    for (let i = 0; i < 300; i++) await memory.add({ id: "again", text: `Version ${i}.` });
    await memory.delete({ document: "again" });
  });
  assert.equal((await listed(b)).length, 42);
  await a.evaluate(() => memory.clear());
  assert.deepEqual(await listed(b), []);
  await b.evaluate(() => memory.add({ id: "z", text: "After the clearing." }));
  assert.deepEqual(await listed(a), ["z#0"]);
  await Promise.all([a.close(), b.close()]);
});

test("a tab closed during a batch leaves complete documents only", async () => {
  for (const delay of [40, 90, 160]) {
    const page = await tab();
    await open(page, { chunk: { maxTokens: 10, overlap: 0 }, batchSize: 8 });
    await page.evaluate(() => {
      const sentences = Array.from({ length: 24 }, (_, j) => `The document says sentence ${j} with a few words more.`);
      const documents = Array.from({ length: 400 }, (_, i) => ({ id: `d${i}-${Math.random()}`, text: sentences.join(" ") }));
      void memory.add(documents);
    });
    await new Promise((resolve) => setTimeout(resolve, delay));
    const crashed = page.waitForEvent("crash");
    const session = await context.newCDPSession(page);
    void session.send("Page.crash").catch(() => undefined);
    await crashed;
    void page.close().catch(() => undefined);
  }
  const page = await tab();
  await open(page);
  const parts = await page.evaluate(async () => {
    const counts = new Map();
    for (const { document } of await memory.list()) counts.set(document, (counts.get(document) ?? 0) + 1);
    return [...counts.values()];
  });
  assert.ok(parts.length < 1200, "the tabs were closed too late to show anything");
  assert.ok(parts.every((count) => count === 24), `parts of documents: ${parts}`);
  await page.evaluate(() => memory.add("It still takes new texts."));
  await page.close();
});

test("a failed transaction leaves nothing behind", async () => {
  const page = await tab();
  await open(page);
  await page.evaluate(() => memory.add({ id: "kept", text: "This stays." }));
  const error = await page.evaluate(async () => {
    const { put } = IDBObjectStore.prototype;
    let puts = 0;
    IDBObjectStore.prototype.put = function (...given) {
      if (this.name === "records" && ++puts === 3) throw new DOMException("no", "DataCloneError");
      return put.apply(this, given);
    };
    const thrown = await caught(memory.add(["one", "two", "three", "four"]));
    IDBObjectStore.prototype.put = put;
    return thrown;
  });
  assert.equal(error.code, "store");
  assert.deepEqual(await listed(page), ["kept#0"]);
  const generation = await page.evaluate(async (name) => (await api.indexedDbStore(name).open()).generation, name);
  assert.equal(generation, 1);
  await page.close();
});

test("a newer store is refused and unchanged; version 1 migrates", async () => {
  const page = await tab();
  const raw = (version, upgrade) => page.evaluate(([name, version, upgrade]) => new Promise((resolve, reject) => {
    const request = indexedDB.open(name, version);
    request.onupgradeneeded = () => {
      const records = request.result.createObjectStore("records", { keyPath: "id" });
      for (const record of upgrade) records.put(record);
    };
    request.onsuccess = () => resolve(request.result.close());
    request.onerror = () => reject(request.error);
  }), [name, version, upgrade]);
  await raw(3, [{ id: "from the future" }]);
  const error = await page.evaluate((name) => caught(openMemory(name)), name);
  assert.equal(error.code, "store_version");
  assert.match(error.message, /newer version.*Nothing was changed/);
  await raw(3, []);
  name += "-old";
  const vectors = await page.evaluate(() => embedder().embed(["Bees live in hives.", "Iron rusts."]).then((all) => all.map((v) => [...v])));
  await raw(1, [
    { id: "bees", text: "Bees live in hives.", vector: vectors[0], metadata: { n: 1 }, createdAt: 9, model: "words" },
    { id: "iron", text: "Iron rusts.", vector: vectors[1], model: "words" },
  ]);
  await open(page);
  const [hit] = await page.evaluate(() => memory.search("bees in hives"));
  assert.deepEqual([hit.id, hit.document, hit.created, hit.metadata], ["bees", "bees", 9, { n: 1 }]);
  assert.ok(hit.score > 0.8);
  assert.deepEqual(await listed(page), ["bees", "iron"]);
  await page.close();
});

test("a version 1 store with an unreadable record is refused and unchanged", async () => {
  const page = await tab();
  const result = await page.evaluate(async (name) => {
    const raw = (version) => new Promise((resolve, reject) => {
      const request = indexedDB.open(name, version);
      request.onupgradeneeded = () => request.result.createObjectStore("records", { keyPath: "id" }).put({ id: "a", text: 7 });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    (await raw(1)).close();
    globalThis.onerror = () => true;
    const error = await caught(openMemory(name));
    const database = await raw(1);
    const version = database.version;
    database.close();
    return { error, version };
  }, name);
  assert.equal(result.error.name, "JerboaError");
  assert.equal(result.version, 1);
  await page.close();
});

test("a tab with the store open closes it when another tab deletes it, and reports it", async () => {
  const [a, b] = [await tab(), await tab()];
  await open(a);
  await a.evaluate(() => memory.add("text"));
  await b.evaluate((name) => api.deleteIndexedDbStore(name), name);
  const error = await a.evaluate(() => caught(memory.search("text")));
  assert.equal(error.code, "store_version");
  assert.match(error.message, /Reload/);
  await Promise.all([a.close(), b.close()]);
});

test("a full quota is an error that preserves earlier documents, until there is space again", async () => {
  // A separate origin, limited before its first write: Chromium caches the quota for a while.
  const origin = site.url.replace("127.0.0.1", "localhost");
  let session;
  const limit = async (page) => {
    session = await context.newCDPSession(page);
    await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 3_000_000 });
  };
  const page = await tab(origin, limit);
  await open(page);
  await page.evaluate(() => memory.add([{ id: "a", text: "First text." }, { id: "b", text: "Second text." }]));
  const error = await page.evaluate(async () => {
    const words = () => Array.from({ length: 60_000 }, () => Math.random().toString(36)).join(" ");
    return caught((async () => {
      for (let i = 0; i < 20; i++) await memory.add({ id: `big${i}`, text: words() }, { chunk: false });
    })());
  });
  assert.equal(error.code, "quota");
  assert.match(error.message, /Earlier records are intact/);
  const before = await listed(page);
  assert.ok(before.includes("a#0") && before.includes("b#0"));
  await session.send("Storage.overrideQuotaForOrigin", { origin });
  await page.evaluate(() => memory.add({ id: "c", text: "There is room again." }));
  await page.reload();
  await page.close();
  const next = await tab(origin);
  await open(next);
  assert.deepEqual(await listed(next), [...before, "c#0"].sort());
  await next.close();
});

const onGpu = async () => {
  const page = await tab();
  await warmUp(page);
  return page;
};

test("search on the GPU equals search on the CPU, bit for bit: f32 and f16, growing and shrinking tables", async () => {
  const page = await onGpu();
  const report = await page.evaluate(async () => {
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter.requestDevice();
    const [{ VectorTable }, { searchExact, searchScored }, { GpuScorer }] = await Promise.all(["vectors", "search", "search-gpu"].map((n) => import(`/memory/${n}.js`)));
    const differences = [];
    let compared = 0;
    for (const precision of ["f32", "f16"]) {
      for (const [count, dims] of [[1, 3], [33, 48], [700, 385], [9000, 384]]) {
        const table = new VectorTable(dims);
        const scorer = new GpuScorer(precision, device);
        const vectors = randomVectors(Math.min(count, 1500), dims, count);
        const put = (i) => table.set({ id: `r${i}`, document: "d", part: i, metadata: { i } }, vectors[i % vectors.length]);
        for (let i = 0; i < count; i++) put(i);
        for (const step of ["full", "removed", "added"]) {
          if (step === "removed") for (let i = 0; i < count - 1; i += 3) table.remove(`r${i}`);
          if (step === "added") for (let i = 0; i < count; i += 6) put(i);
          for (const query of [vectors[0], randomVectors(1, dims, 99)[0]]) {
            const scored = await scorer.scores(table, query);
            if (!scored) return { failed: `${precision} ${count} x ${dims}: no scores` };
            for (const options of [{ k: 10 }, { k: 7, accept: (p) => table.rows[p].metadata.i % 5 === 1 }, { k: 20, minScore: 0.05 }]) {
              const [gpu, cpu] = [searchScored(table, query, scored.scores, scored.error, options), searchExact(table, query, options)];
              compared++;
              if (JSON.stringify(gpu) !== JSON.stringify(cpu)) differences.push({ precision, count, dims, step, gpu, cpu });
            }
          }
        }
        scorer.destroy();
      }
    }
    return { differences, compared };
  });
  assert.equal(report.failed, undefined);
  assert.deepEqual(report.differences, []);
  assert.equal(report.compared, 144);
  await page.close();
});

test("a missing GPU is requested again, and searches use the CPU until then", async () => {
  const page = await onGpu();
  const report = await page.evaluate(async () => {
    const [{ VectorTable }, { GpuScorer }] = await Promise.all(["vectors", "search-gpu"].map((n) => import(`/memory/${n}.js`)));
    const table = new VectorTable(48);
    const vectors = randomVectors(5, 48, 1);
    vectors.forEach((vector, i) => table.set({ id: `r${i}`, document: "d", part: i, metadata: {} }, vector));
    const { requestAdapter } = GPU.prototype;
    const found = async () => {
      const adapter = await requestAdapter.call(navigator.gpu);
      // Not a software adapter, which searches would not use.
      return { info: { isFallbackAdapter: false }, requestDevice: () => adapter.requestDevice() };
    };
    // Enough attempts, 50 ms apart, for a busy machine.
    const scored = async (tries, ...answers) => {
      let asked = 0;
      GPU.prototype.requestAdapter = () => answers[Math.min(asked++, answers.length - 1)]();
      const scorer = new GpuScorer("f32");
      const before = await scorer.scores(table, vectors[0]);
      let after;
      for (let i = 0; i < tries && !after; i++) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        after = await scorer.scores(table, vectors[0]);
      }
      scorer.destroy();
      const last = await scorer.scores(table, vectors[0]);
      return [before, after, last].map((scores) => scores && Math.round(scores.scores[0] * 1000) / 1000);
    };
    const none = async () => null;
    const result = [await scored(1200, found), await scored(1200, none, found), await scored(40, async () => ({ info: { isFallbackAdapter: true } }))];
    // A closed memory requests no GPU.
    let asked = 0;
    GPU.prototype.requestAdapter = async () => (asked++, null);
    const scorer = new GpuScorer("f32");
    await scorer.scores(table, vectors[0]);
    scorer.destroy();
    await new Promise((resolve) => setTimeout(resolve, 500));
    GPU.prototype.requestAdapter = requestAdapter;
    return [...result, asked];
  });
  const none = [undefined, undefined, undefined];
  assert.deepEqual(report.map((r) => (Array.isArray(r) ? r.map((v) => v ?? undefined) : r)), [[1, 1, undefined], [undefined, 1, undefined], none, 1]);
  await page.close();
});

test("a memory on a GPU finds the same as one on the CPU, also after the device is lost", async () => {
  const page = await onGpu();
  const report = await page.evaluate(async () => {
    const adapter = await navigator.gpu.requestAdapter();
    const device = await adapter.requestDevice();
    const ids = async (memory) => (await memory.search("word 7 and word 30", { k: 5 })).map(({ id, score }) => [id, score]);
    const texts = Array.from({ length: 300 }, (_, i) => ({ id: `d${i}`, text: `word ${i} and word ${(i * 7) % 300}` }));
    const [onGpu, onCpu] = [await api.createMemory({ model: embedder(), gpu: device }), await api.createMemory({ model: embedder(), gpu: false })];
    for (const memory of [onGpu, onCpu]) await memory.add(texts);
    const result = [[await ids(onGpu), await ids(onCpu)]];
    for (const memory of [onGpu, onCpu]) await memory.delete({ document: ["d7", "d30"] });
    result.push([await ids(onGpu), await ids(onCpu)]);
    device.destroy();
    await device.lost;
    result.push([await ids(onGpu), await ids(onCpu)]);
    return { result };
  });
  for (const [gpu, cpu] of report.result) assert.deepEqual(gpu, cpu);
  await page.close();
});
