/** Concurrent streams and saved sessions with the real engine in Chromium. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { STORIES } from "./support/paths.mjs";

const PATIENCE = 240_000;

let site, page, golden;

before(async () => {
  golden = await stories();
  site = await openPackage({ "/model/": STORIES });
  page = site.page;
  await setUp();
}, { timeout: PATIENCE });

/** Loads the model on the page. */
async function setUp() {
  await page.evaluate(async () => {
    window.jerboa = await import("/index.js");
    const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    window.files = await Promise.all(names.map(async (name) => new File([await (await fetch(`/model/${name}`)).blob()], name)));
    window.load = () => jerboa.loadModel(files, { features: { f16: false }, kv: "f32", weights: "f32" });
    window.model = await load();
  });
}

after(async () => {
  await site?.close();
});

test("four streams at once give the tokens of each alone, together", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const options = { temperature: 0, maxTokens: 60, ignoreEos: true };
    const prompts = [ids.slice(0, 5), ids.slice(7, 20), ids.slice(2, 4), ids.slice(0, 30)];
    const alone = [];
    for (const prompt of prompts) alone.push((await model.generate(prompt, options).details).ids);
    const order = [];
    const read = async (generation, i) => {
      for await (const event of generation.events()) if (event.ids.length) order.push(i);
      return generation.details;
    };
    const together = await Promise.all([...model.generate(prompts, options)].map(read));
    const aborted = model.generate(prompts[0], { ...options, maxTokens: 200 });
    const rest = model.generate(prompts[1], options).details;
    for await (const { ids } of aborted.events()) if (ids.length) break;
    const cut = await aborted.details;
    return { alone, together, order, cut, rest: (await rest).ids };
  }, golden.ids);
  assert.deepEqual(result.together.map(({ ids }) => [...ids]), result.alone.map((ids) => [...ids]));
  assert.ok(result.together.every(({ batchedTokens }) => batchedTokens > 20), result.together.map(({ batchedTokens }) => batchedTokens).join(" "));
  for (let i = 0; i < 4; i++) for (let j = 0; j < 4; j++) assert.ok(result.order.indexOf(i) < result.order.lastIndexOf(j), `one after the other: ${result.order}`);
  assert.equal(result.cut.finishReason, "abort");
  assert.deepEqual([...result.rest], [...result.alone[1]]);
});

test("sessions are created while all slots of requests are in use", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const options = { temperature: 0, maxTokens: 8, ignoreEos: true };
    const alone = (await model.generate(ids, options).details).ids;
    const idle = await model.createSession();
    await model.release();
    let end, started = 0;
    const ended = new Promise((resolve) => (end = resolve));
    const all = new Promise((resolve) => {
      window.slots = Array.from({ length: 32 }, () => model.generate(ids, { ...options, logitsProcessor: () => (++started >= 32 && resolve(), ended) }).details);
    });
    await all;
    const session = await model.createSession();
    const own = (await session.generate(ids, options).details).ids;
    const again = (await idle.generate(ids, options).details).ids;
    end();
    const answers = await Promise.all(slots);
    await Promise.all([session.dispose(), idle.dispose()]);
    return { alone: [...alone], others: [own, again, ...answers.map((answer) => answer.ids)].map((ids) => [...ids]) };
  }, golden.ids.slice(0, 5));
  assert.deepEqual(result.others, Array(34).fill(result.alone));
});

test("choices of a chat completion decode together", { timeout: PATIENCE }, async () => {
  const { several, single } = await page.evaluate(async () => {
    const params = { prompt: "Once upon a time", max_tokens: 20, temperature: 1.2, seed: 3 };
    const several = await model.completions.create({ ...params, n: 3 });
    const single = [];
    for (let i = 0; i < 3; i++) single.push((await model.completions.create({ ...params, seed: 3 + i })).choices[0].text);
    return { several: several.choices.map(({ text }) => text), single };
  });
  assert.deepEqual(several, single);
  assert.equal(new Set(several).size, 3);
});

test("equal prompts with a seed give different texts, the first that of the seed alone", { timeout: PATIENCE }, async () => {
  const { texts, pieces, single } = await page.evaluate(async () => {
    const options = { maxTokens: 20, temperature: 1.2, seed: 3 };
    const prompts = Array(3).fill("Once upon a time");
    const texts = await model.generate(prompts, options);
    const pieces = ["", "", ""];
    for await (const { index, text } of model.generate(prompts, options)) pieces[index] += text;
    return { texts, pieces, single: await model.generate(prompts[0], options) };
  });
  assert.equal(new Set(texts).size, 3, JSON.stringify(texts));
  assert.equal(texts[0], single);
  assert.deepEqual(pieces, texts);
});

test("a saved session goes on after a reload; damaged ones are refused", { timeout: PATIENCE }, async () => {
  const save = async (ids) => {
    const session = await model.createSession();
    const options = { temperature: 0, maxTokens: 12, ignoreEos: true };
    const first = (await session.generate(ids, options).details).ids;
    const { bytes } = await session.save("story");
    const blob = await session.save();
    const whole = (await session.generate([...ids, ...first], options).details).ids;
    return { first: [...first], whole: [...whole], bytes, size: blob.size, list: await jerboa.savedSessions() };
  };
  const before = await page.evaluate(save, golden.ids.slice(0, 9));
  assert.deepEqual(before.list, [{ name: "story", bytes: before.bytes }]);
  assert.equal(before.size, before.bytes);
  await page.reload();
  await setUp();
  const restore = async ({ ids, first }) => {
    const session = await model.createSession();
    await session.restore("story");
    const tokens = [...session.tokens];
    const details = await session.generate([...ids, ...first], { temperature: 0, maxTokens: 12, ignoreEos: true }).details;
    const blob = await session.save();
    const bytes = new Uint8Array(await blob.arrayBuffer());
    bytes[100] ^= 1;
    const code = (promise) => promise.then(() => "none", (e) => `${e.code}: ${e.message}`);
    const refused = [await code(session.restore(new Blob([bytes]))), await code(session.restore("none"))];
    // Released sessions are empty; what was saved before stays.
    await model.release();
    refused.push(await code(session.save("story")), await code(session.save()));
    const kept = (await jerboa.savedSessions()).map(({ name }) => name);
    await session.restore("story");
    await jerboa.deleteSavedSession("story");
    const left = await jerboa.savedSessions();
    return { tokens, ids: [...details.ids], cached: details.cachedTokens, refused, kept, left };
  };
  const restored = await page.evaluate(restore, { ids: golden.ids.slice(0, 9), first: before.first });
  assert.deepEqual(restored.ids, before.whole);
  assert.deepEqual(restored.tokens.slice(0, 20), [...golden.ids.slice(0, 9), ...before.first].slice(0, 20));
  assert.ok(restored.cached >= 19, `${restored.cached} tokens were restored`);
  assert.match(restored.refused[0], /^request: session\.restore: the saved session is damaged/);
  assert.match(restored.refused[1], /^request: .*no saved session 'none'/);
  const empty = "request: session.save: the session is empty. Run its prompt first; releasing the model or losing the device empties it.";
  assert.deepEqual(restored.refused.slice(2), [empty, empty]);
  assert.deepEqual(restored.kept, ["story"]);
  assert.deepEqual(restored.left, []);
});

test("a save that exceeds the storage is refused by name, and the earlier one stays", { timeout: PATIENCE }, async () => {
  const quota = await page.context().newCDPSession(page);
  const save = (name) => page.evaluate(async ({ name, ids }) => {
    window.saving ??= await model.createSession();
    await saving.prefill(ids);
    const code = await saving.save(name).then(() => "none", (e) => `${e.code}: ${e.message}`);
    return { code, list: await jerboa.savedSessions() };
  }, { name, ids: golden.ids.slice(0, 9) });
  const first = await save("full");
  assert.equal(first.code, "none");
  await quota.send("Storage.overrideQuotaForOrigin", { origin: site.url, quotaSize: 100 });
  for (const name of ["full", "new"]) {
    const { code, list } = await save(name);
    assert.equal(code, `quota: session.save: '${name}' does not fit into this site's storage. Delete saved sessions or models and try again.`);
    assert.deepEqual(list, first.list);
  }
  await quota.send("Storage.overrideQuotaForOrigin", { origin: site.url });
  const restored = await page.evaluate(async () => {
    await saving.restore("full");
    await jerboa.deleteSavedSession("full");
    return { tokens: [...saving.tokens], left: await jerboa.savedSessions() };
  });
  assert.deepEqual(restored, { tokens: golden.ids.slice(0, 9), left: [] });
});
