/** The facade's worker in Chromium, over the engine's double: transfer, abort, files, a worker that dies, a worker that cannot start. */

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { buildFacade } from "./support/facade.mjs";
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

/** A page that has the facade as `window.jerboa`; `prepare` runs before. */
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

test("aborts and picked files cross to the worker", async () => {
  const result = await page.evaluate(async () => {
    const load = new AbortController();
    const code = await jerboa.loadModel("a/b", { signal: load.signal, onProgress: () => load.abort() }).catch((e) => e.code);
    const model = await jerboa.loadModel([new File(["{}"], "config.json")]);
    const words = Array.from({ length: 200 }, (_, i) => `w${i}`).join(" ");
    const controller = new AbortController();
    const generation = model.generate(words, { signal: controller.signal });
    for await (const _ of generation) controller.abort();
    const { finishReason, ids } = await generation.details;
    return { code, model: model.info.model, finishReason, some: ids.length > 0 && ids.length < 200 };
  });
  assert.deepEqual(result, { code: "aborted", model: "files", finishReason: "abort", some: true });
});

test("unload ends the worker; what follows is refused", async () => {
  const codes = await page.evaluate(async () => {
    const model = await jerboa.loadModel("a/b");
    const running = model.generate("one two three four five six seven").catch((e) => e.code);
    await model.unload();
    return [await running, await model.tokenize("x").catch((e) => e.code)];
  });
  assert.deepEqual(codes, ["unloaded", "unloaded"]);
});

test("where no worker can be made the model runs on the page's thread and says why", async () => {
  const refused = await open(() => {
    window.Worker = class {
      constructor() {
        throw new Error("the policy forbids it");
      }
    };
  });
  const one = await refused.evaluate(async () => (await jerboa.loadModel("a/b")).info);
  assert.equal(one.worker, false);
  assert.match(one.warnings[0], /page's own thread.*the policy forbids it/);

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
  assert.match(two.info.warnings[0], /page's own thread.*could not be loaded/);
  assert.equal(two.text, "still works");
  await refused.close();
  await missing.close();
});
