/** The package's API with the real engine in Chromium: selected files, chat templates, complete and streamed completions, aborts, errors. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { stories } from "./support/golden.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";

const PATIENCE = 180_000;

let site, page, golden;

before(async () => {
  golden = await stories();
  site = await openPackage({ "/model/": STORIES, "/golden/": `${ROOT}/tests/golden` });
  page = site.page;
  // The bundled model with a chat template that concatenates the messages' contents.
  await page.evaluate(async () => {
    const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    const files = await Promise.all(names.map(async (name) => new File([await (await fetch(`/model/${name}`)).blob()], name)));
    files.push(new File(["{% for m in messages %}{{ m.content }}{% endfor %}"], "chat_template.jinja"));
    window.files = files;
    window.reports = [];
    window.model = await jerboa.loadModel(files, { onProgress: (report) => reports.push(report) });
  });
}, { timeout: PATIENCE });

after(async () => {
  await site?.close();
});

test("a model loads from selected files and chats", { timeout: PATIENCE }, async () => {
  const info = await page.evaluate(() => model.info);
  assert.deepEqual([info.hasChatTemplate, info.worker, info.task, info.vocabSize], [true, true, "generate", 512]);
  const rendered = await page.evaluate(() => model.renderChat([{ role: "user", content: "Once upon" }, { role: "assistant", content: " a time" }]));
  assert.equal(rendered, "Once upon a time");
});

test("a load reports overall progress from 0 to 1, bytes and kernels, and the resulting info", async () => {
  const reports = await page.evaluate(() => reports);
  assert.ok(reports.every(({ progress }, i) => progress >= (reports[i - 1]?.progress ?? 0) && progress <= 1), reports.map(({ progress }) => progress).join(" "));
  assert.deepEqual([...new Set(reports.map(({ phase }) => phase))], ["config", "tokenizer", "weights", "compile", "ready"]);
  const last = reports.at(-1);
  assert.deepEqual([last.phase, last.progress, last.loaded === last.total, last.total > 1e6], ["ready", 1, true, true]);
  const compile = reports.filter(({ phase }) => phase === "compile");
  assert.ok(compile.every(({ loaded, total }) => total > 5 && loaded <= total), "kernels are counted");
});

test("a completion and its stream give the same text", { timeout: PATIENCE }, async () => {
  const { whole, chunks } = await page.evaluate(async (content) => {
    const params = { messages: [{ role: "user", content }], temperature: 0, max_tokens: 24 };
    const whole = await model.chat.completions.create({ ...params, logprobs: true, top_logprobs: 2 });
    const chunks = [];
    for await (const chunk of await model.chat.completions.create({ ...params, stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
    return { whole, chunks };
  }, golden.prompt);
  const { message, finish_reason, logprobs } = whole.choices[0];
  assert.ok(message.content.length > 20);
  assert.equal(finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 24);
  assert.equal(logprobs.content.length, 24);
  for (const token of logprobs.content) {
    assert.equal(token.top_logprobs.length, 2);
    assert.equal(token.top_logprobs[0].logprob, token.logprob, "greedy takes the likeliest");
  }
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), message.content);
  assert.equal(chunks.at(-1).usage.completion_tokens, 24);
  assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
});

test("a stop string ends a generation, a seed repeats it, and the model stays usable after an abort", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (prompt) => {
    const stopped = await model.generate(prompt, { temperature: 0, maxTokens: 60, stop: "Lily" }).details;
    const draw = () => model.generate(prompt, { temperature: 1, topK: 20, seed: 7, maxTokens: 12 }).details;
    const [one, two] = [await draw(), await draw()];
    const generation = model.generate(prompt, { temperature: 0, maxTokens: 400 });
    for await (const _ of generation) generation.abort();
    const aborted = await generation.details;
    const after = await model.generate(prompt, { temperature: 0, maxTokens: 8 }).details;
    return { stopped, one: one.ids, two: two.ids, aborted, after };
  }, golden.prompt);
  assert.equal(result.stopped.finishReason, "stop");
  assert.equal(result.stopped.text, golden.newText.slice(0, golden.newText.indexOf("Lily")));
  assert.deepEqual(result.one, result.two);
  assert.equal(result.aborted.finishReason, "abort");
  assert.ok(result.aborted.ids.length < 400);
  assert.deepEqual(result.after.ids, golden.newIds.slice(0, 8));
});

test("single steps and own code in each step give the reference's tokens", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (prompt) => {
    const largest = (logits) => logits.indexOf(Math.max(...logits));
    const session = await model.createSession();
    let logits = await session.prefill(prompt);
    const width = logits.length;
    const steps = [];
    for (let i = 0; i < 10; i++) {
      steps.push(largest(logits));
      logits = await session.step(steps.at(-1));
    }
    const tokens = [...session.tokens];
    // Back to the prompt, and an answer from its cache.
    const back = largest(await session.prefill(tokens.slice(0, -10)));
    const { cachedTokens, ids: answered } = await session.generate(tokens.slice(0, -10), { temperature: 0, maxTokens: 4 }).details;
    await session.dispose();

    const seen = [];
    const options = { temperature: 0, maxTokens: 12 };
    const same = await model.generate(prompt, { ...options, logitsProcessor: (given, so) => void seen.push([given.length, so.length]) }).details;
    const forced = await model.generate(prompt, { ...options, logitsProcessor: (given) => given.map((_, id) => (id === 300 ? 1 : -Infinity)) }).details;
    const ended = await model.generate(prompt, { ...options, stoppingCriteria: (so) => so.length >= 5 }).details;
    const masked = await model.generate(prompt, { ...options, grammar: { type: "choice", choices: ["yes", "no"] }, logitsProcessor: () => {} }).details;
    const refused = await model.generate(prompt, { ...options, logitsProcessor: (given) => given.fill(NaN) }).then(() => "none", (error) => `${error.code} ${error.message}`);
    const hanging = model.generate(prompt, { ...options, logitsProcessor: () => new Promise(() => {}) });
    setTimeout(() => hanging.abort(), 500);
    const aborted = (await hanging.details).finishReason;
    const after = await model.generate(prompt, options).details;
    return { width, steps, back, cachedTokens, answered, seen, same: same.ids, forced: forced.ids, ended: [ended.ids, ended.finishReason], masked: masked.text, refused, aborted, after: after.ids };
  }, golden.prompt);
  const expected = golden.newIds;
  assert.equal(result.width, 512);
  assert.deepEqual(result.steps, expected.slice(0, 10));
  assert.equal(result.back, expected[0]);
  assert.deepEqual([result.cachedTokens, result.answered], [golden.prompt_ids.length - 1, expected.slice(0, 4)]);
  assert.deepEqual(result.seen, Array.from({ length: 12 }, (_, step) => [512, step]));
  assert.deepEqual(result.same, expected.slice(0, 12));
  assert.deepEqual(result.forced, Array(12).fill(300));
  assert.deepEqual(result.ended, [expected.slice(0, 5), "stop"]);
  assert.ok(["yes", "no"].includes(result.masked), result.masked);
  assert.match(result.refused, /^request .*logitsProcessor.*NaN for token 0/);
  assert.equal(result.aborted, "abort");
  assert.deepEqual(result.after, expected.slice(0, 12));
});

test("a prompt of more than 64 tokens matches the reference", { timeout: PATIENCE }, async () => {
  const best = await page.evaluate(async (ids) => {
    const all = await model.logits(ids, { all: true });
    const width = all.length / ids.length;
    return ids.map((_, row) => { const l = all.subarray(row * width, (row + 1) * width); return l.indexOf(Math.max(...l)); });
  }, golden.ids);
  const from = golden.prompt_ids.length;
  assert.ok(golden.ids.length > 192);
  assert.deepEqual(best.slice(from - 1, -1), golden.newIds);
});

test("speculation changes the number of steps, not the text", { timeout: 2 * PATIENCE }, async () => {
  const result = await page.evaluate(async (story) => {
    // With f16, a cached prefix is enough to break a tie differently.
    const model = await jerboa.loadModel(files, { kv: "f32", features: { f16: false } });
    // The story so far plus its beginning: the continuation occurs in the text.
    const ids = [...story.slice(0, 90), ...story.slice(0, 30)];
    const options = { temperature: 0, maxTokens: 64, ignoreEos: true };
    const before = await model.memory();
    const plain = await model.generate(ids, options).details;
    const drafted = await model.generate(ids, { ...options, speculation: "prompt-lookup" }).details;
    const sampled = await model.generate(ids, { ...options, maxTokens: 2, temperature: 0.8, seed: 1, speculation: "prompt-lookup" }).details;
    const { speculation } = await model.measure({ drafts: 16 });
    const more = (await model.memory()).gpuBytes - before.gpuBytes;
    await model.unload();
    return { plain, drafted, sampled, speculation, more };
  }, golden.ids);
  assert.deepEqual(result.drafted.ids, result.plain.ids);
  assert.equal(result.drafted.text, result.plain.text);
  assert.equal(result.plain.draftedTokens, 0);
  assert.ok(result.drafted.acceptedTokens > 0, `${result.drafted.draftedTokens} drafted`);
  assert.ok(result.drafted.draftedTokens >= result.drafted.acceptedTokens);
  assert.equal(result.sampled.draftedTokens, 0, "no drafts with sampling");
  assert.deepEqual([result.speculation.steps, result.speculation.objectsCreated], [16, 0], "such a step makes no buffer, no pipeline and no bind group");
  assert.ok(result.more > 512 * 8 * 4, "what it takes is counted");
});

test("a draft model changes the number of steps, not the text", { timeout: 2 * PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const reports = [];
    const draft = new URL("/model/", location.href).href;
    const model = await jerboa.loadModel(files, { kv: "f32", features: { f16: false }, draft, onProgress: (report) => reports.push(report) });
    const found = [];
    for (const more of [{ temperature: 0 }, { temperature: 0.9, seed: 5, repetitionPenalty: 1.1 }]) {
      const options = { ...more, maxTokens: 120, ignoreEos: true };
      const plain = await model.generate(ids, { ...options, speculation: "off" }).details;
      const drafted = await model.generate(ids, options).details;
      found.push([plain, drafted]);
    }
    const { info } = model;
    await model.unload();
    const alone = await jerboa.loadModel(files);
    const refused = await alone.generate("a", { speculation: "draft" }).details.then(() => "none", (error) => String(error));
    await alone.unload();
    await jerboa.deleteModel(draft);
    return { reports, found, info, refused, draft };
  }, golden.prompt_ids);
  for (const [plain, drafted] of result.found) {
    assert.deepEqual(drafted.ids, plain.ids);
    assert.equal(drafted.text, plain.text);
    assert.equal(plain.draftedTokens, 0);
    assert.ok(drafted.acceptedTokens > 0, `${drafted.draftedTokens} drafted`);
  }
  assert.equal(result.info.draft, result.draft);
  assert.match(result.refused, /needs a draft model/);
  // One load: progress never decreases, and the bytes of both models count.
  const { reports, info } = result;
  reports.slice(1).forEach((report, at) => assert.ok(report.progress >= reports[at].progress, `report ${at}`));
  assert.deepEqual(reports.map((report) => report.phase === "ready").indexOf(true), reports.length - 1);
  const last = reports.at(-1);
  assert.deepEqual([last.progress, last.loaded], [1, last.total]);
  assert.ok(last.total > 1.9 * info.load.bytes, `${last.total} of ${info.load.bytes}`);
});

test("the head of a model's own checkpoint changes the number of steps, not the ids", { timeout: 2 * PATIENCE }, async () => {
  const result = await page.evaluate(async () => {
    const read = async (path, name) => new File([await (await fetch(`/golden/${path}`)).blob()], name);
    const shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    const own = [await read("models/qwen3_5/config.json", "config.json"), await read("models/qwen3_5/model.safetensors", shards[0]), await read("mtp/weights.safetensors", shards[1])];
    const names = async (file) => {
      const size = new DataView(await file.slice(0, 8).arrayBuffer()).getUint32(0, true);
      return Object.keys(JSON.parse(await file.slice(8, 8 + size).text())).filter((name) => name !== "__metadata__");
    };
    const map = {};
    for (const file of own.slice(1)) for (const name of await names(file)) map[name] = file.name;
    const whole = [...own, new File([JSON.stringify({ metadata: {}, weight_map: map })], "model.safetensors.index.json")];
    const exact = { kv: "f32", features: { f16: false } };
    const model = await jerboa.loadModel(whole, { ...exact, draft: "mtp" });
    const found = [];
    for (const more of [{ temperature: 0 }, { temperature: 0.9, seed: 5 }]) {
      const options = { ...more, maxTokens: 120, ignoreEos: true };
      const plain = await model.generate([1, 5, 9, 200, 17], { ...options, speculation: "off" }).details;
      const drafted = await model.generate([1, 5, 9, 200, 17], options).details;
      found.push([[...plain.ids], [...drafted.ids], plain.draftedTokens, drafted.draftedTokens]);
    }
    const { draft } = model.info;
    await model.unload();
    const refused = await jerboa.loadModel(files, { draft: "mtp" }).then(() => "loaded", (error) => error.message);
    return { found, draft, refused };
  });
  for (const [plain, drafted, none, some] of result.found) {
    assert.deepEqual(drafted, plain);
    assert.equal(none, 0);
    assert.ok(some > 0);
  }
  assert.equal(result.draft, "mtp");
  assert.match(result.refused, /no multi-token-prediction head .* Load it without 'draft'/s);
});

test("a KV cache that is mostly in main memory changes no answer", { timeout: 2 * PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const options = { kv: "f32", features: { f16: false }, maxContext: 128, kvGrowth: 16 };
    const requests = [{ temperature: 0 }, { temperature: 0.9, seed: 5 }, { temperature: 0, logprobs: true }];
    const answers = async (model) => {
      const found = [];
      for (const request of requests) {
        found.push([...(await model.generate(ids, { ...request, maxTokens: 90, ignoreEos: true, speculation: "off" }).details).ids]);
      }
      return found;
    };
    const whole = await jerboa.loadModel(files, options);
    const expected = await answers(whole);
    const { kvMax } = whole.info.bytes;
    await whole.unload();
    const least = await jerboa.loadModel(files, { ...options, maxKvMemory: 1 }).then(() => "loaded", (error) => error.message);
    const part = await jerboa.loadModel(files, { ...options, maxKvMemory: kvMax * 0.75 });
    const found = await answers(part);
    const bytes = await part.memory();
    await part.unload();
    return { expected, found, bytes, kvMax, least };
  }, golden.ids.slice(0, 20));
  assert.deepEqual(result.found, result.expected);
  assert.ok(result.bytes.kvInMainMemory > 0, JSON.stringify(result.bytes));
  assert.match(result.least, /^the KV cache needs \d+ bytes, but only 1 are allowed\. Load the model with a larger 'maxKvMemory', which sets this limit, or a smaller 'maxContext'\.$/);
});

test("short prompts use their own kernels once the model was idle, with the same answers", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const model = await jerboa.loadModel(files, { shortPrefill: true });
    const answers = async () => {
      const found = [];
      // Different first tokens each time, so that no prefix is cached.
      for (const prompt of [ids.slice(0, 3), ids.slice(4, 30)]) found.push([...(await model.generate(prompt, { maxTokens: 6, temperature: 0, ignoreEos: true }).details).ids]);
      return found;
    };
    const before = await answers();
    const { gpuBytes } = await model.memory();
    let [more, after] = [0, []];
    for (let i = 0; i < 40 && more === 0; i++) {
      await new Promise((resolve) => setTimeout(resolve, 1500));
      after = await answers();
      more = (await model.memory()).gpuBytes - gpuBytes;
    }
    after = await answers();
    await model.unload();
    return { before, after, more };
  }, golden.ids);
  assert.ok(result.more > 0, "there is no such step");
  assert.deepEqual(result.after, result.before);
});

test("two concurrent sessions match sequential runs; a fork continues from the same state; disposed sessions free their memory", { timeout: PATIENCE }, async () => {
  const result = await page.evaluate(async (ids) => {
    const options = { temperature: 0, maxTokens: 24, ignoreEos: true };
    const prompts = [ids.slice(0, 5), ids.slice(7, 20)];
    const before = (await model.memory()).gpuBytes;
    const sessions = await Promise.all(prompts.map(() => model.createSession()));
    const more = (await model.memory()).gpuBytes - before;
    const order = [];
    const run = async (session, i) => {
      const generation = session.generate(prompts[i], options);
      for await (const event of generation.events()) if (event.ids.length) order.push(i);
      return (await generation.details).ids;
    };
    const together = await Promise.all(sessions.map(run));
    const alone = [];
    for (const prompt of prompts) alone.push((await model.generate(prompt, options).details).ids);
    const fork = await sessions[0].fork();
    const { ids: forked, cachedTokens } = await fork.generate([...prompts[0], ...together[0].slice(0, 8)], { ...options, maxTokens: 8 }).details;
    await Promise.all([...sessions, fork].map((session) => session.dispose()));
    const left = (await model.memory()).gpuBytes - before;
    return { together, alone, order, forked, cachedTokens, more, left };
  }, golden.ids);
  assert.deepEqual(result.together.map((ids) => [...ids]), result.alone.map((ids) => [...ids]));
  assert.ok(result.order.indexOf(1) < result.order.lastIndexOf(0) && result.order.indexOf(0) < result.order.lastIndexOf(1), `one after the other: ${result.order}`);
  assert.deepEqual([...result.forked], [...result.together[0].slice(8, 16)]);
  assert.ok(result.cachedTokens >= 5, "a fork has what was read");
  assert.ok(result.more > 0 && result.left <= 0, JSON.stringify({ more: result.more, left: result.left }));
});

test("calls for another task are refused; cache and device functions answer", { timeout: PATIENCE }, async () => {
  const { codes, outside, report, memory, cached } = await page.evaluate(async () => {
    const code = (promise) => promise.then(() => "none", (e) => e.code);
    const codes = [await code(model.embed("x")), await code(model.rerank("x", ["y"])), await code(jerboa.loadModel("not a name"))];
    codes.push(await code(jerboa.loadModel([new File(["{"], "config.json")])));
    codes.push(await code(model.generate("a ".repeat(2000), { maxTokens: 1 })));
    const refusal = (promise) => promise.then(() => "none", (e) => `${e.code}: ${e.message}`);
    const session = await model.createSession();
    const outside = [await refusal(model.detokenize([511])), await refusal(model.detokenize([1, 512])), await refusal(model.logits([512])), await refusal(session.prefill([512])), await refusal(model.generate([512]).then())];
    await session.dispose();
    return { codes, outside, report: await jerboa.deviceReport(), memory: await model.memory(), cached: await jerboa.cachedModels() };
  });
  assert.deepEqual(codes, ["request", "request", "model_name", "config", "context_full"]);
  const unknown = "request: ids: id 512 is outside the vocabulary of 512 tokens. Use the model's own tokenizer.";
  assert.deepEqual(outside, ["none", unknown, unknown, unknown, unknown]);
  assert.equal(typeof report.vendor, "string");
  assert.ok(memory.wasmBytes > 0 && memory.gpuBytes > 1e6);
  assert.deepEqual(cached, [], "selected files are not cached");
});
