/** The facade's worker in Chromium, over the fake engine: transfers, aborts, files, a worker that crashes, a worker that cannot start. */

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { crash, launch, warmUp } from "./support/browser.mjs";
import { buildFacade } from "./support/facade.mjs";
import { randomMessages } from "./support/messages.mjs";
import { serve } from "./support/server.mjs";

let built, server, browser, page;

before(async () => {
  built = await buildFacade();
  await writeFile(join(built.folder, "index.html"), "<!doctype html><title>worker</title>");
  server = await serve({ "/": built.folder });
  browser = await launch();
  page = await open();
  await warmUp(page);
});

after(async () => {
  await browser?.close();
  await server?.close();
  await built?.remove();
});

/** A page with the facade as `window.jerboa`; `prepare` runs first. */
async function open(prepare = () => {}) {
  const fresh = await browser.newPage();
  await fresh.goto(server.url);
  await fresh.evaluate(prepare);
  await fresh.evaluate(async () => {
    window.jerboa = await import("/index.js");
  });
  return fresh;
}

test("a model runs in a dedicated worker", async () => {
  const result = await page.evaluate(async () => {
    const phases = [];
    const model = await jerboa.loadModel("a/b", { onProgress: (p) => phases.push(p.phase) });
    const pieces = [];
    for await (const piece of model.generate("one two three")) pieces.push(piece);
    const ids = await model.tokenize("ab");
    const refusal = await jerboa.loadModel("no/such").catch((e) => [e instanceof jerboa.JerboaError, e.code, e.message]);
    return { info: model.info, phases, pieces, ids: [...ids], refusal };
  });
  assert.equal(result.info.worker, true);
  assert.deepEqual(result.info.warnings, []);
  assert.deepEqual(result.phases, ["weights", "weights", "weights", "ready"]);
  assert.deepEqual(result.pieces, ["one", " two", " three"]);
  assert.deepEqual(result.ids, [1, 97, 98]);
  assert.deepEqual(result.refusal, [true, "not_found", "no/such was not found. Check the name."]);
});

test("aborts and selected files reach the worker", async () => {
  const result = await page.evaluate(async () => {
    const load = new AbortController();
    const code = await jerboa.loadModel("a/b", { signal: load.signal, onProgress: () => load.abort() }).catch((e) => e.code);
    const model = await jerboa.loadModel([new File(["{}"], "config.json")]);
    const words = Array.from({ length: 2000 }, (_, i) => `w${i}`).join(" ");
    const controller = new AbortController();
    const generation = model.generate(words, { signal: controller.signal });
    for await (const _ of generation) controller.abort();
    const { finishReason, ids } = await generation.details;
    return { code, model: model.info.model, finishReason, some: ids.length > 0 && ids.length < 2000 };
  });
  assert.deepEqual(result, { code: "aborted", model: "files", finishReason: "abort", some: true });
});

test("unload ends the worker; later calls are refused", async () => {
  const codes = await page.evaluate(async () => {
    const model = await jerboa.loadModel("a/b");
    const running = model.generate("one two three four five six seven").catch((e) => e.code);
    await model.unload();
    return [await running, await model.tokenize("x").catch((e) => e.code)];
  });
  assert.deepEqual(codes, ["unloaded", "unloaded"]);
});

test("a worker that is terminated from outside ends its calls at once; the next call starts a fresh one", async () => {
  const killed = await open(() => {
    window.workers = [];
    const Real = Worker;
    window.Worker = class extends Real {
      constructor(...args) {
        super(...args);
        workers.push(this);
      }
    };
  });
  const result = await killed.evaluate(async () => {
    const model = await jerboa.loadModel("a/b");
    const session = await model.createSession();
    const words = Array.from({ length: 5000 }, (_, i) => `w${i}`).join(" ");
    const running = model.generate(words).catch((error) => error.code);
    for await (const _ of session.generate("one two")) break;
    const start = performance.now();
    workers[0].terminate();
    const code = await running;
    const ms = performance.now() - start;
    return { code, soon: ms < 5000, texts: [await model.generate("three"), await session.generate("four")], workers: workers.length };
  });
  assert.deepEqual(result, { code: "worker", soon: true, texts: ["three", "four"], workers: 2 });
  await killed.close();
});

test("without a worker the model runs on the page's thread, with a warning", async () => {
  const refused = await open(() => {
    window.Worker = class {
      constructor() {
        throw new Error("the policy forbids it");
      }
    };
  });
  const one = await refused.evaluate(async () => (await jerboa.loadModel("a/b")).info);
  assert.equal(one.worker, false);
  assert.match(one.warnings[0], /page's main thread.*the policy forbids it/);

  const missing = await open(() => {
    const Real = Worker;
    window.Worker = function (url, options) {
      return new Real(String(url).replace("worker.js", "nothing.js"), options);
    };
  });
  const two = await missing.evaluate(async () => {
    const model = await jerboa.loadModel("a/b");
    return { info: model.info, text: await model.generate("still works") };
  });
  assert.equal(two.info.worker, false);
  assert.match(two.info.warnings[0], /page's main thread.*could not be loaded/);
  assert.equal(two.text, "still works");
  await refused.close();
  await missing.close();
});

/** Opens pages that run `start`, and kills each one that the fake engine reports; returns the first survivor's result and the number of killed pages. */
async function untilOneLives(context, start) {
  for (let killed = 0; killed < 9; killed++) {
    const page = await context.newPage();
    await page.goto(server.url);
    await page.evaluate(async () => void (window.jerboa = await import("/index.js")));
    await page.evaluate(() => void (new BroadcastChannel("killed").onmessage = () => (window.killed = true)));
    await page.evaluate(start);
    const end = await page.waitForFunction(() => window.outcome ?? window.killed);
    const outcome = await end.jsonValue();
    if (outcome !== true) return { killed, outcome };
    await crash(page);
  }
  throw new Error("every page was killed");
}

test("after a dispatch group kills a page, the next page tries a smaller one and stores it", async () => {
  const context = await browser.newContext();
  await context.addInitScript(() => (globalThis.jerboaDevice = { implementation: "iphone", kind: "crash", from: 9 }));
  const start = async () => {
    const fake = await import("/jerboa.js");
    void jerboa.loadModel("a/b", { worker: false }).then(async (model) => {
      const text = await model.generate("one two");
      window.outcome = { text, group: fake.seen.loads.at(-1).features.group, tests: fake.seen.tests };
    });
  };
  assert.deepEqual(await untilOneLives(context, start), { killed: 2, outcome: { text: "one two", group: "8", tests: ["8"] } });
  assert.deepEqual(await untilOneLives(context, start), { killed: 0, outcome: { text: "one two", group: "8", tests: [] } });
  await context.close();
});

test("a model whose load kills the page is loaded on the other thread, then with a smaller context", async () => {
  const context = await browser.newContext();
  const start = () => void jerboa.loadModel("kills/pages").then(({ info }) => (window.outcome = { worker: info.worker, warnings: info.warnings }));
  const { killed, outcome } = await untilOneLives(context, start);
  assert.equal(killed, 2);
  assert.equal(outcome.worker, false);
  assert.match(outcome.warnings.join(), /crashed the page before.*another thread, with a context of at most 1024/);
  await context.close();
});

test("two tabs load the same model one after the other, and an aborted wait ends", async () => {
  const context = await browser.newContext();
  const tabs = [];
  for (let i = 0; i < 2; i++) {
    const tab = await context.newPage();
    await tab.goto(server.url);
    await tab.evaluate(async () => void (window.jerboa = await import("/index.js")));
    tabs.push(tab);
  }
  const [first, second] = tabs;
  // This load never ends.
  await first.evaluate(() => void jerboa.loadModel("kills/pages"));
  await first.waitForFunction(() => localStorage.getItem("jerboa:load:kills/pages"));
  const waits = await second.evaluate(async () => {
    const control = new AbortController();
    const phases = [];
    const code = await jerboa.loadModel("kills/pages", { signal: control.signal, onProgress: (p) => (phases.push(p.phase), control.abort()) }).catch((e) => e.code);
    return { code, phases };
  });
  assert.deepEqual(waits, { code: "aborted", phases: ["waiting"] });
  // A closed tab releases the lock and does not count as a crash.
  const turn = second.evaluate(() => jerboa.loadModel("kills/pages", { maxContext: 1024 }).then(({ info }) => info));
  await first.close({ runBeforeUnload: false });
  assert.deepEqual([(await turn).worker, (await turn).warnings], [true, []]);
  await context.close();
});

test("other software's stores in this origin are listed with their size and can be deleted", async () => {
  const found = await page.evaluate(async () => {
    const cache = await caches.open("transformers-cache");
    await cache.put("/model.onnx", new Response(new Uint8Array(1000), { headers: { "content-length": "1000" } }));
    await (await caches.open("jerboa-models-1")).put("/x", new Response("x"));
    const file = await (await (await navigator.storage.getDirectory()).getDirectoryHandle("webllm-cache", { create: true })).getFileHandle("a", { create: true });
    const writer = await file.createWritable();
    await writer.write(new Uint8Array(77));
    await writer.close();
    await new Promise((resolve) => (indexedDB.open("other").onsuccess = ({ target }) => (target.result.close(), resolve())));
    const before = await jerboa.storageReport();
    const own = await jerboa.deleteForeignStore({ kind: "cache", name: "jerboa-models-1" }).catch((e) => e.code);
    for (const store of before.foreign) await jerboa.deleteForeignStore(store);
    const after = await jerboa.storageReport();
    await caches.delete("jerboa-models-1");
    return { foreign: before.foreign, quota: before.quota > 0, own, after: after.foreign };
  });
  assert.deepEqual(found.foreign, [
    { kind: "cache", name: "transformers-cache", engine: "transformers.js", bytes: 1000 },
    { kind: "indexeddb", name: "other" },
    { kind: "directory", name: "webllm-cache", engine: "WebLLM", bytes: 77 },
  ]);
  assert.deepEqual([found.quota, found.own, found.after], [true, "request", []]);
});

test("the facade and its worker run under a strict policy", async () => {
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'";
  const strict = await serve({ "/": built.folder }, { "Content-Security-Policy": policy });
  const context = await browser.newContext();
  const strictPage = await context.newPage();
  await strictPage.goto(strict.url);
  const found = await strictPage.evaluate(async () => {
    const broken = [];
    document.addEventListener("securitypolicyviolation", (e) => broken.push(e.violatedDirective));
    const { loadModel } = await import("/index.js");
    const model = await loadModel("a/b");
    return { worker: model.info.worker, text: await model.generate("one two"), broken };
  });
  assert.deepEqual(found, { worker: true, text: "one two", broken: [] });
  await context.close();
  await strict.close();
});

test("a page that requires Trusted Types runs models in a worker, with the policy 'jerboa'", async () => {
  const runs = async (types) => {
    const strict = await serve({ "/": built.folder }, { "Content-Security-Policy": `require-trusted-types-for 'script'; trusted-types ${types}` });
    const context = await browser.newContext();
    const strictPage = await context.newPage();
    await strictPage.goto(strict.url);
    const found = await strictPage.evaluate(async () => {
      const { loadModel } = await import("/index.js");
      const outcome = async (options) => {
        const model = await loadModel("a/b", options);
        const { worker, warnings } = model.info;
        return [worker, await model.generate("one two"), warnings.length].join();
      };
      // By the package's own address, by one that is given, and by one of another origin.
      return [await outcome({}), await outcome({ workerUrl: "/worker.js" }), await outcome({ workerUrl: location.origin.replace("127.0.0.1", "localhost") + "/worker.js" })];
    });
    await context.close();
    await strict.close();
    return found;
  };
  const [own, given] = await runs("jerboa");
  assert.deepEqual([own, given], ["true,one two,0", "true,one two,0"]);
  // Without the policy models run on the page's thread, and say so.
  assert.deepEqual((await runs("'none'")).slice(0, 2), ["false,one two,1", "false,one two,1"]);
});

test("malformed messages leave the worker running", async () => {
  const found = await page.evaluate(async (source) => {
    const randomMessages = (0, eval)(`(${source})`);
    const worker = new Worker("/worker.js", { type: "module" });
    const failures = [];
    worker.addEventListener("error", ({ message }) => failures.push(message));
    const answers = new Map();
    worker.addEventListener("message", ({ data }) => typeof data?.id === "number" && !("event" in data) && answers.set(data.id, data));
    await new Promise((resolve) => worker.addEventListener("message", ({ data }) => data?.hello && resolve()));
    // What another origin's wasm file would need is not served: those messages come last elsewhere.
    for (const message of randomMessages(1, 400).filter((message) => typeof message?.wasm !== "string" || !URL.canParse(message.wasm))) worker.postMessage(message);
    const call = async (id, method, args) => {
      worker.postMessage({ id, method, args });
      for (let i = 0; i < 4000 && !answers.has(id); i++) await new Promise((resolve) => setTimeout(resolve, 25));
      return answers.get(id);
    };
    const loaded = await call(1001, "load", [{ model: "a/b" }]);
    const made = await call(1002, "generate", [{ prompt: "still here" }]);
    worker.terminate();
    return { failures, loaded: loaded?.error ?? "loaded", text: made?.result?.text };
  }, randomMessages.toString());
  assert.deepEqual(found, { failures: [], loaded: "loaded", text: "still here" });
});

test("warnings and errors name the policy directive that blocks a worker, an image or a video", async () => {
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'none'; connect-src 'self'; media-src 'none'";
  const strict = await serve({ "/": built.folder }, { "Content-Security-Policy": policy });
  const context = await browser.newContext();
  const strictPage = await context.newPage();
  await strictPage.goto(strict.url);
  const found = await strictPage.evaluate(async (elsewhere) => {
    const { loadModel } = await import("/index.js");
    const model = await loadModel("org/seeing");
    const refusal = (content) =>
      model.chat.completions.create({ messages: [{ role: "user", content: [content, { type: "text", text: "What is this?" }] }] }).then(() => "answered", ({ message }) => message);
    const image = await refusal({ type: "image_url", image_url: { url: `${elsewhere}/index.html` } });
    const video = await refusal({ type: "video", video: new Blob(["no video"], { type: "video/webm" }) });
    return { worker: model.info.worker, warnings: model.info.warnings.join("\n"), image, video };
  }, server.url);
  assert.equal(found.worker, false);
  assert.match(found.warnings, /the worker could not be started: .*blocks it\. Add 'self' to the policy's worker-src directive\./);
  assert.match(found.image, new RegExp(`could not be fetched: ${server.url} cannot be reached: .*Add ${server.url} to the policy's connect-src directive\\.$`));
  assert.match(found.video, /blob: cannot be reached: .*Add blob: to the policy's media-src directive\.$/);
  await context.close();
  await strict.close();
});
