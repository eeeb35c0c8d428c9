/** Sources besides safetensors: GGUF files by name, by URL and selected, models cached by WebLLM, tensors above the device's limits, experts that do
 * not all fit. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { startHub } from "./support/hub.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";
import { installStored } from "./support/stored.mjs";

const options = { timeout: 180_000 };
const QUANT = join(ROOT, "tests/golden/quant");
const MIXTURE = join(ROOT, "tests/golden/models/mixtral");
let site, page, golden, hub, folder, expected;

const control = (...what) => hub.control(...what);
const bytes = async () => (await control("log")).reduce((sum, request) => sum + request.bytes, 0);

/** The first greedy ids of a model loaded by name or URL. */
const ids = (source, options = {}) =>
  page.evaluate(
    async ([source, prompt, options]) => {
      const model = await jerboa.loadModel(source, options);
      const { ids } = await model.generate(prompt, { temperature: 0, maxTokens: 10 }).details;
      await model.unload();
      return [...ids];
    },
    [source, golden.prompt, options],
  );

before(async () => {
  golden = await stories();
  folder = await mkdtemp(join(tmpdir(), "jerboa-formats-"));
  await mkdir(join(folder, "org"));
  await symlink(join(QUANT, "twin_stories"), join(folder, "org/stories-GGUF"));
  await mkdir(join(folder, "org/llama-MLC"));
  await symlink(MIXTURE, join(folder, "org/mixture"));
  hub = await startHub(folder);
  site = await openPackage({ "/model/": STORIES, "/quant/": QUANT });
  page = site.page;
  await page.evaluate(installStored);
  // The file holds f16 weights, and so does the reference when loaded as f16.
  expected = await ids(`${site.url}/model`, { weights: "f16" });
  assert.equal(expected.length, 10);
}, options);

after(async () => {
  await site?.close();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

test("a GGUF file of a repository loads by range requests, and a second time without the network", options, async () => {
  assert.deepEqual(await ids("org/stories-GGUF/model.gguf", { endpoint: hub.url }), expected);
  const log = await control("log");
  assert.ok(log.some((request) => request.path.includes("model.gguf") && request.status === 206), "by range");
  const before = await bytes();
  assert.deepEqual(await ids("org/stories-GGUF/model.gguf", { endpoint: hub.url }), expected);
  assert.equal(await bytes(), before, "bytes over the network on the second load");
});

test("a repository with a GGUF file and no configuration loads by its name alone", options, async () => {
  assert.deepEqual(await ids("org/stories-GGUF", { endpoint: hub.url }), expected);
});

test("a GGUF file loads by its URL, and selected alone", options, async () => {
  assert.deepEqual(await ids(`${site.url}/quant/twin_stories/model.gguf`), expected);
  const chosen = await page.evaluate(async (prompt) => {
    const blob = await (await fetch("/quant/twin_stories/model.gguf")).blob();
    const model = await jerboa.loadModel([new File([blob], "stories-f16.gguf")]);
    const { ids } = await model.generate(prompt, { temperature: 0, maxTokens: 10 }).details;
    const { info } = model;
    await model.unload();
    return { ids: [...ids], info };
  }, golden.prompt);
  assert.deepEqual(chosen.ids, expected);
  assert.deepEqual([chosen.info.architecture, chosen.info.precision], ["LlamaForCausalLM", "stored"]);
});

test("a missing file, and one that is not GGUF, are refused", options, async () => {
  const refusal = (source) => ids(source, { endpoint: hub.url }).catch((error) => error.message);
  assert.match(await refusal("org/stories-GGUF/other.gguf"), /other\.gguf/);
  const file = Buffer.from("no model").toString("base64");
  await control("file", { path: "org/stories-GGUF/bad.gguf", base64: file });
  assert.match(await refusal("org/stories-GGUF/bad.gguf"), /not a valid GGUF file/);
});

/** Stores an MLC repository where WebLLM (0.2.86) stores it with a `cacheBackend`. */
const cacheAsWebLlm = (backend, base, names) =>
  page.evaluate(
    async ([backend, base, names]) => {
      const done = (request) => new Promise((resolve, reject) => Object.assign(request, { onsuccess: () => resolve(request.result), onerror: () => reject(request.error) }));
      const put = {
        cache: async (scope, url, response) => (await caches.open(scope)).put(url, response),
        indexeddb: async (scope, url, response) => {
          const request = indexedDB.open(scope, 1);
          request.onupgradeneeded = () => request.result.createObjectStore("urls", { keyPath: "url" });
          const database = await done(request);
          // Lists are requested as JSON, everything else as an ArrayBuffer, and stored as such.
          const data = url.endsWith("-cache.json") ? await response.json() : await response.arrayBuffer();
          await done(database.transaction("urls", "readwrite").objectStore("urls").add({ data, url }));
          database.close();
        },
        opfs: async (scope, url, response) => {
          let folder = await navigator.storage.getDirectory();
          for (const part of ["tvmjs-opfs-store", ...scope.split("/")]) folder = await folder.getDirectoryHandle(part, { create: true });
          const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url)));
          const name = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
          const bytes = await response.arrayBuffer();
          for (const [suffix, content] of [[".bin", bytes], [".record.json", JSON.stringify({ url, nbytes: bytes.byteLength })]]) {
            const file = await (await folder.getFileHandle(name + suffix, { create: true })).createWritable();
            await file.write(content);
            await file.close();
          }
        },
      }[backend];
      for (const name of names) {
        await put(name === "mlc-chat-config.json" ? "webllm/config" : "webllm/model", `${base}/${name}`, await fetch(`/quant/llama_mlc/${name}`));
      }
    },
    [backend, base, names],
  );

/** Empties all stores of the page's origin. */
const forgetAll = () =>
  page.evaluate(async () => {
    for (const name of await caches.keys()) await caches.delete(name);
    for (const { name } of await indexedDB.databases()) await new Promise((resolve) => (indexedDB.deleteDatabase(name).onsuccess = resolve));
    const root = await navigator.storage.getDirectory();
    for await (const name of root.keys()) await root.removeEntry(name, { recursive: true });
  });

for (const backend of ["cache", "indexeddb", "opfs"]) test(`what WebLLM has cached is not downloaded again: ${backend}`, options, async () => {
  await control("reset", {});
  await forgetAll();
  await cacheAsWebLlm(backend, `${hub.url}/org/llama-MLC/resolve/main`, ["ndarray-cache.json", "params_shard_0.bin", "mlc-chat-config.json"]);
  const file = await readFile(join(QUANT, "llama_mlc/golden.safetensors"));
  const length = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + length).toString());
  const tensor = (name) => {
    const [begin, end] = header[name].data_offsets;
    return new Uint8Array(file.subarray(8 + length + begin, 8 + length + end)).buffer;
  };
  const wide = header.input_ids.dtype === "I64";
  const input = wide ? [...new BigInt64Array(tensor("input_ids"))].map(Number) : [...new Int32Array(tensor("input_ids"))];
  const reference = new Float32Array(tensor("logits"));
  const found = await page.evaluate(
    async ([endpoint, ids]) => {
      const model = await jerboa.loadModel("org/llama-MLC", { endpoint, features: { f16: false }, kv: "f32" });
      const logits = await model.logits(ids, { all: true });
      await model.unload();
      return [...logits];
    },
    [hub.url, input],
  );
  assert.equal(found.length, reference.length);
  let [error, size] = [0, 0];
  for (let i = 0; i < found.length; i++) {
    error += (found[i] - reference[i]) ** 2;
    size += reference[i] ** 2;
  }
  assert.ok(Math.sqrt(error / size) < 2e-4, `relative error ${Math.sqrt(error / size)}`);
  assert.ok(!(await control("log")).some((request) => /params_shard|ndarray-cache|mlc-chat/.test(request.path) && request.status < 400), "the shards came over the network");
  const paths = await page.evaluate(() => stored.paths());
  assert.ok(!paths.some((path) => path.includes("params_shard")), "a second copy was stored");
});

test("an incomplete WebLLM model is not used", options, async () => {
  for (const backend of ["cache", "indexeddb", "opfs"]) {
    await control("reset", {});
    await forgetAll();
    await cacheAsWebLlm(backend, `${hub.url}/org/half-MLC/resolve/main`, ["ndarray-cache.json", "mlc-chat-config.json"]);
    const message = await ids("org/half-MLC", { endpoint: hub.url }).catch((error) => error.message);
    assert.match(message, /not found|missing/);
  }
});

test("looking for WebLLM's stores does not create them", options, async () => {
  await forgetAll();
  assert.deepEqual(await ids("org/stories-GGUF", { endpoint: hub.url }), expected);
  const made = await page.evaluate(async () => {
    const names = [];
    for await (const name of (await navigator.storage.getDirectory()).keys()) names.push(name);
    return [...names, ...(await indexedDB.databases()).map(({ name }) => name), ...(await caches.keys())];
  });
  assert.deepEqual(made, ["jerboa-models-1"]);
});

test("weights above a limit are split over several buffers and generate the same", options, async () => {
  assert.deepEqual(await ids(`${site.url}/model`, { weights: "f16", maxWeightBuffer: 6_000 }), expected);
});

test("two of four experts on the GPU generate the same as all; the others come from the browser's cache", options, async () => {
  const runs = await page.evaluate(async (endpoint) => {
    const golden = new Uint8Array(await (await fetch(`${endpoint}/org/mixture/resolve/main/golden.safetensors`)).arrayBuffer());
    const start = 8 + Number(new DataView(golden.buffer).getBigUint64(0, true));
    const tensors = JSON.parse(new TextDecoder().decode(golden.subarray(8, start)));
    const ids = (tensor) => [...new BigInt64Array(golden.slice(...tensors[tensor].data_offsets.map((at) => start + at)).buffer)].map(Number);
    const runs = [];
    for (const prefetchExperts of [true, false]) {
      const model = await jerboa.loadModel("org/mixture", { endpoint, kv: "f32", features: { f16: false }, experts: 2, prefetchExperts });
      const { ids: answer, paging } = await model.generate(ids("input_ids"), { temperature: 0, maxTokens: 32, ignoreEos: true }).details;
      runs.push({ answer: [...answer], expected: ids("greedy"), paging });
      await model.unload();
    }
    return runs;
  }, hub.url);
  for (const { answer, expected, paging } of runs) {
    assert.deepEqual(answer, expected);
    assert.equal(paging.slots, 2);
    assert.ok(paging.hits > 0 && paging.hits < paging.requested && paging.bytes > 0, JSON.stringify(paging));
  }
  const [ahead, alone] = runs.map(({ paging }) => paging);
  assert.ok(ahead.prefetched > 0 && ahead.prefetchHits > 0 && ahead.prefetchHits <= ahead.prefetched, JSON.stringify(ahead));
  assert.deepEqual([alone.prefetched, alone.hits], [0, alone.hitsWithoutPrefetch], JSON.stringify(alone));
  const fetched = (await control("log")).filter(({ path }) => path.endsWith("mixture/resolve/main/model.safetensors"));
  const [total, { size }] = [fetched.reduce((sum, request) => sum + request.bytes, 0), await stat(join(MIXTURE, "model.safetensors"))];
  assert.ok(total < 1.5 * size, `${total} bytes over the network, of a file of ${size}`);
});

// Small models use 8 bits in some matrices, whatever the tables use.
test("embeddings and lm_head use the requested precision", options, async () => {
  const layouts = await page.evaluate(async (url) => {
    const found = [];
    for (const embeddingWeights of ["auto", "q4", "f16"]) {
      const model = await jerboa.loadModel(`${url}/model`, { weights: "q4", embeddingWeights });
      await model.generate([1, 2, 3], { maxTokens: 2 });
      found.push([model.info.weights, model.info.bytes.weights]);
      await model.unload();
    }
    return found;
  }, site.url);
  assert.deepEqual(layouts.map(([layouts]) => layouts), ["q4_g32_bias_f16, q8_g32_bias_f16", "q4_g32_bias_f16, q8_g32_bias_f16", "f16, q4_g32_bias_f16, q8_g32_bias_f16"]);
  assert.ok(layouts[1][1] < layouts[0][1] && layouts[0][1] < layouts[2][1], JSON.stringify(layouts));
});

test("auto uses fewer bits when memory is short, with a warning", options, async () => {
  const info = await page.evaluate(async (url) => {
    const model = await jerboa.loadModel(`${url}/model`, { maxMemory: 1_000_000 });
    const { info } = model;
    await model.unload();
    return info;
  }, site.url);
  assert.equal(info.precision, "q4");
  assert.ok(info.warnings.some((warning) => warning.includes("quantized to q4")), JSON.stringify(info.warnings));
});

test("a list with a memory limit loads no model that exceeds it; a single model loads with a warning", options, async () => {
  const found = await page.evaluate(async (url) => {
    const load = (source) => jerboa.loadModel(source, { maxMemory: 1_000_000 }).then(async (model) => {
      await model.unload();
      return model.info.warnings.join(" ");
    }, ({ code, message, cause }) => [code, message, cause?.errors?.length]);
    return { list: await load([`${url}/model`, `${url}/model/`]), one: await load([`${url}/model`]), single: await load(`${url}/model`) };
  }, site.url);
  const needs = /\/model\/? was skipped: the model needs \d+ bytes, but only 1000000 are allowed\. Raise maxMemory, or/g;
  const [code, message, causes] = found.list;
  assert.deepEqual([code, causes, message.match(needs)?.length], ["out_of_memory", 2, 2], message);
  assert.equal(found.one[0], "out_of_memory");
  assert.match(found.single, /may not fit/);
});

test("a path, its URL and a trailing slash are one model in the cache", options, async () => {
  const found = await page.evaluate(async (url) => {
    const entries = async () => (await jerboa.cachedModels()).map(({ model }) => model).filter((model) => model.endsWith("/model"));
    await jerboa.deleteModel(`${url}/model`);
    const before = await entries();
    const sources = [];
    for (const source of ["/model", `${url}/model/`, "./model/", new URL("/model", location.href)]) {
      const model = await jerboa.loadModel(source, { tune: "off" });
      await model.persisted;
      sources.push(model.info.model);
      await model.unload();
    }
    const cached = await entries();
    await jerboa.deleteModel("/model/");
    return { before, sources, cached, after: await entries() };
  }, site.url);
  const name = `${site.url}/model`;
  assert.deepEqual(found, { before: [], sources: [name, name, name, name], cached: [name], after: [] });
});

test("kernels are tuned on request, results are cached, and a damaged record is measured again", options, async () => {
  const { found, answers } = await page.evaluate(
    async ([url, prompt]) => {
      const found = [];
      const answers = [];
      const load = async (tune) => {
        const model = await jerboa.loadModel(`${url}/model`, { weights: "q4", tune });
        answers.push([...(await model.generate(prompt, { temperature: 0, maxTokens: 10 }).details).ids]);
        found.push({ ...model.info.tuning, subgroups: model.info.device.subgroups, load: model.info.load });
        await model.unload();
      };
      const records = async () => (await stored.paths()).filter((path) => path.startsWith("tuning/"));
      const forget = async () => Promise.all((await records()).map((record) => stored.remove(record)));
      await load("off");
      await load("auto");
      await load("force");
      await load("auto");
      for (const record of await records()) await stored.write(record, '{"key":"');
      await load("auto");
      await forget();
      return { found, answers };
    },
    [site.url, golden.prompt],
  );
  const origins = found.map(({ origin }) => origin);
  // Without subgroups there is only one variant, and nothing is cached.
  assert.deepEqual(origins, found[0].subgroups ? ["off", "software", "measured", "cached", "software"] : ["off", "single", "single", "single", "single"]);
  assert.deepEqual(found[3].choices, found[2].choices);
  if (found[0].subgroups) assert.deepEqual(found[2].choices.map(({ layout }) => layout).sort(), ["q4_g32_bias_f16", "q8_g32_bias_f16"]);
  for (const { load } of found) assert.ok(load.tuningMs >= 0 && load.tuningMs <= load.totalMs, JSON.stringify(load));
  for (const answer of answers) assert.deepEqual(answer, answers[0]);
});
