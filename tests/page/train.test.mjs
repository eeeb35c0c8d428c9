/** jerboa/train in Chromium: losses of the native trainer, equal bits, evaluation, stop and abort, refusals, the adapter in the engine. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";

const options = { timeout: 480_000 };
/** What tests/train/page.rs trains natively, with its losses. */
const golden = JSON.parse(await readFile(`${ROOT}/tests/golden/train/page.json`, "utf8"));

/** What tests/train/embedding.rs trains natively on pairs, with its losses: evaluation before and after, then the steps. */
const pairs = JSON.parse(await readFile(`${ROOT}/tests/golden/train/embedding/page.json`, "utf8"));

let site;

before(async () => {
  site = await openPackage({ "/models/stories260K": STORIES, "/models/embedder": `${ROOT}/tests/golden/train/embedding/model` });
  await site.page.evaluate(async () => {
    const { trainLora } = await import("/train/index.js");
    const model = await jerboa.loadModel(`${location.origin}/models/stories260K`);
    const embedder = await jerboa.loadModel(`${location.origin}/models/embedder`);
    Object.assign(window, { trainLora, model, embedder });
    /** Trains; returns the plan, the progress, the adapter's files or the error, and the requests for the module. */
    window.attempt = async (data, options = {}, from = model) => {
      const progress = [];
      let plan;
      try {
        const adapter = await trainLora(from, data, { ...options, onPlan: (given) => (plan = given), onProgress: (event) => (progress.push(event), options.onProgress?.(event)) });
        window.adapter = adapter;
        const [config, weights] = adapter.files;
        const hash = await crypto.subtle.digest("SHA-256", await weights.arrayBuffer());
        return { plan, progress, steps: adapter.steps, names: adapter.files.map((file) => file.name), config: JSON.parse(await config.text()), hash: Array.from(new Uint8Array(hash)).join() };
      } catch (error) {
        return { plan, progress, error: { isOurs: error instanceof jerboa.JerboaError, code: error.code, message: error.message } };
      }
    };
  });
}, options);
after(() => site?.close());

const attempt = (data, given) => site.page.evaluate(([data, given]) => attempt(data, given), [data, given]);

/** Skips the evaluations between steps: each costs a forward pass and changes no weights. */
const QUIET = { evaluationSteps: 1000 };

let trainedOnce;
/** The run over the golden text, trained once for all tests; the page has its adapter as `goldenAdapter`. */
const goldenRun = () => (trainedOnce ??= site.page.evaluate(async ([text, given]) => {
  const run = await attempt(text, given);
  window.goldenAdapter = adapter;
  return run;
}, [golden.text, golden.options]));

test("the first load of a page downloads nothing of the training", options, async () => {
  const requests = await site.page.evaluate(() => performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => name.includes("train_bg")));
  assert.deepEqual(requests, []);
});

test("losses are those of the native trainer, and equal runs have equal bits", options, async () => {
  const run = await goldenRun();
  assert.equal(run.error, undefined);
  assert.equal(run.plan.steps, golden.losses.length);
  assert.equal(run.plan.evaluationSequences, golden.evaluationSequences);
  for (const part of ["activations", "trained", "frozen"]) assert.ok(run.plan.memory[part] > 0, part);
  const [first, ...steps] = run.progress;
  assert.equal(first.step, 0);
  assert.equal(first.loss, undefined);
  steps.forEach(({ step, loss, tokensPerSecond, learningRate, gradientNorm }, i) => {
    assert.equal(step, i + 1);
    assert.ok(Math.abs(loss - golden.losses[i]) < 1e-3, `step ${step}: ${loss}, natively ${golden.losses[i]}`);
    assert.ok(tokensPerSecond > 0 && learningRate >= 0 && gradientNorm > 0);
  });
  const last = steps.at(-1);
  assert.ok(Math.abs(first.evaluationLoss - golden.before) < 1e-3, `${first.evaluationLoss}, natively ${golden.before}`);
  assert.ok(Math.abs(last.evaluationLoss - golden.after) < 1e-3, `${last.evaluationLoss}, natively ${golden.after}`);
  assert.ok(last.evaluationLoss < 0.8 * first.evaluationLoss, "what is not trained on is learned too");
  assert.deepEqual(run.names, ["adapter_config.json", "adapter_model.safetensors"]);
  assert.deepEqual([run.config.r, run.config.lora_alpha, run.config.peft_type], [golden.options.rank, golden.options.alpha, "LORA"]);
  assert.match(run.config.base_model_name_or_path, /stories260K/);
  const again = await attempt(golden.text, { ...golden.options, ...QUIET, checkpointing: "auto" });
  assert.equal(again.plan.checkpointing, false, "'auto' is the default, and this device has the memory");
  assert.equal(again.hash, run.hash, "the same bits twice");
  const other = await attempt(golden.text, { ...golden.options, ...QUIET, seed: golden.options.seed + 1 });
  assert.notEqual(other.hash, run.hash);
});

test("checkpointing takes less memory and gives the same bits", options, async () => {
  const runs = [await goldenRun()];
  for (const checkpointing of [false, true]) runs.push(await attempt(golden.text, { ...golden.options, ...QUIET, checkpointing }));
  for (const { error } of runs) assert.equal(error, undefined);
  assert.deepEqual(runs.map(({ plan }) => plan.checkpointing), [false, false, true]);
  assert.equal(new Set(runs.map(({ hash }) => hash)).size, 1, "the same bits");
  assert.ok(runs[2].plan.memory.activations < 0.7 * runs[1].plan.memory.activations, JSON.stringify(runs[2].plan));
});

test("the engine answers with the adapter, which is saved and read again", options, async () => {
  await goldenRun();
  const found = await site.page.evaluate(async () => {
    const { savedAdapter, savedAdapters, deleteSavedAdapter } = await import("/train/index.js");
    const adapter = goldenAdapter;
    const answer = (adapter) => model.generate("The cat", { temperature: 0, maxTokens: 16, ...(adapter ? { adapter } : {}) });
    const before = await answer();
    await model.loadAdapter(adapter, { name: "own" });
    const trained = await answer("own");
    await adapter.save("my/own");
    const names = await savedAdapters();
    await model.loadAdapter(await savedAdapter("my/own"), { name: "read" });
    const read = await answer("read");
    await deleteSavedAdapter("my/own");
    const missing = await savedAdapter("my/own").catch((error) => ({ code: error.code, message: error.message }));
    return { before, trained, read, names, left: await savedAdapters(), missing, after: await answer(), bytes: adapter.bytes };
  });
  assert.notEqual(found.trained, found.before);
  assert.match(found.trained, /sat on the/);
  assert.equal(found.read, found.trained);
  assert.equal(found.after, found.before, "the model itself stays as it was");
  assert.deepEqual([found.names, found.left], [["my/own"], []]);
  assert.equal(found.missing.code, "request");
  assert.ok(found.bytes > 10_000);
});

test("a run goes on with an earlier adapter", options, async () => {
  const first = await goldenRun();
  const found = await site.page.evaluate(async ([text, given]) => {
    const { rank, alpha, ...others } = given;
    const second = await attempt(text, { ...others, epochs: 1, resume: goldenAdapter });
    const other = await attempt(text, { ...others, rank: rank + 1, resume: goldenAdapter });
    return { second, other };
  }, [golden.text, golden.options]);
  assert.equal(found.second.error, undefined);
  assert.equal(found.second.config.r, golden.options.rank);
  const [end, start] = [first.progress.at(-1).evaluationLoss, found.second.progress[0].evaluationLoss];
  assert.ok(Math.abs(end - start) < 1e-4, `${end}, then ${start}`);
  assert.deepEqual([found.other.error.code, found.other.error.isOurs], ["request", true]);
  assert.match(found.other.error.message, /same rank/);
});

test("pairs train by preference, as natively; with an earlier adapter the reference is still the model", options, async () => {
  const { pairs, options: given, steps, before, after: measured } = golden.dpo;
  const run = await attempt(pairs, given);
  assert.equal(run.error, undefined);
  assert.deepEqual([run.plan.sequences, run.plan.evaluationSequences, run.plan.steps], [4, 1, steps.length]);
  const close = (found, expected, what) => found.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) < 1e-3, `${what}: ${found}, natively ${expected}`));
  const [first, ...trained] = run.progress;
  trained.forEach(({ step, loss, rewardMargin, rewardAccuracy }, i) => close([loss, rewardMargin, rewardAccuracy], steps[i], `step ${step}`));
  const evaluation = ({ evaluationLoss, evaluationRewardMargin, evaluationRewardAccuracy }) => [evaluationLoss, evaluationRewardMargin, evaluationRewardAccuracy];
  close(evaluation(first), before, "before");
  close(evaluation(trained.at(-1)), measured, "after");
  const found = await site.page.evaluate(async ([pairs, given]) => {
    const { rank, alpha, ...others } = given;
    const resumed = await attempt(pairs, { ...others, epochs: 1, resume: adapter });
    const separate = await attempt(pairs.slice(0, 2), { ...given, epochs: 1, dpo: undefined, evaluation: pairs.slice(2, 3), checkpointing: true });
    const stop = new AbortController();
    stop.abort();
    const stopped = await attempt(pairs, { ...given, stop: stop.signal });
    return { resumed, separate, stopped };
  }, [pairs, given]);
  close(evaluation(found.resumed.progress[0]), measured, "resumed");
  assert.equal(found.separate.error, undefined);
  assert.deepEqual([found.separate.plan.sequences, found.separate.plan.evaluationSequences], [2, 1]);
  assert.deepEqual([found.stopped.error, found.stopped.steps], [undefined, 0]);
});

test("a stop gives the adapter so far, an abort ends everything", options, async () => {
  const found = await site.page.evaluate(async ([text, given]) => {
    const stop = new AbortController();
    const stopped = await attempt(text, { ...given, epochs: 500, stop: stop.signal, onProgress: ({ step }) => step === 3 && stop.abort() });
    const abort = new AbortController();
    const aborted = await attempt(text, { ...given, epochs: 500, signal: abort.signal, onProgress: ({ step }) => step === 2 && abort.abort() });
    const gone = await attempt(text, { ...given, signal: AbortSignal.abort() });
    return { stopped, aborted, gone, answer: await model.generate("Once", { maxTokens: 4, temperature: 0 }) };
  }, [golden.text, golden.options]);
  assert.equal(found.stopped.error, undefined);
  assert.ok(found.stopped.steps >= 3 && found.stopped.steps < 50, `${found.stopped.steps} steps`);
  assert.ok(found.stopped.progress.at(-1).evaluationLoss > 0, "the last step is evaluated");
  for (const { error } of [found.aborted, found.gone]) assert.deepEqual([error.code, error.isOurs], ["aborted", true]);
  assert.ok(found.aborted.progress.length < 20, `${found.aborted.progress.length} steps after an abort`);
  assert.ok(found.answer.length > 0, "the model answers as before");
});

test("conversations, separate evaluation data, and a model by its name", options, async () => {
  const found = await site.page.evaluate(async (given) => {
    const texts = ["The cat sat on the mat. ".repeat(4), "The dog sat on the log. ".repeat(4)];
    const named = await attempt(texts, { ...given, evaluation: "The cat sat on the log. ", targets: ["q_proj", "v_proj"] }, `${location.origin}/models/stories260K`);
    const chat = await attempt([[{ role: "user", content: "Hi" }, { role: "assistant", content: "Hello" }]], given);
    return { named, chat };
  }, golden.options);
  assert.equal(found.named.error, undefined);
  assert.equal(found.named.plan.evaluationSequences, 1);
  assert.deepEqual(found.named.config.target_modules, ["q_proj", "v_proj"]);
  // The bundled model has no chat template.
  assert.equal(found.chat.error.code, "chat_template");
});

test("an embedding model learns pairs as natively, and embeds with the adapter", options, async () => {
  const found = await site.page.evaluate(async ([pairs, given]) => {
    const first = await attempt(pairs, given, embedder);
    const again = await attempt(pairs, { ...given, evaluationSteps: 1000 }, embedder);
    const { rank, alpha, ...others } = given;
    const more = await attempt(pairs, { ...others, epochs: 6, evaluation: pairs, evaluationSteps: 1000, resume: adapter }, embedder);
    const difference = async (adapter) => {
      const options = adapter ? { adapter } : {};
      const query = await embedder.embed(pairs[0].query, { task: "query", ...options });
      const texts = await embedder.embed([pairs[0].positive, pairs[0].negatives[0]], { task: "document", ...options });
      const [positive, negative] = jerboa.similarity(query, texts);
      return positive - negative;
    };
    const before = await difference();
    const name = await embedder.loadAdapter(adapter, { name: "own" });
    const trained = await difference("own");
    const plain = await difference();
    await embedder.unloadAdapter(name);
    const gone = await difference("own").catch(({ code, message }) => ({ code, message }));
    return { first, again, more, before, trained, plain, gone };
  }, [pairs.pairs, pairs.options]);
  assert.equal(found.first.error, undefined);
  const [before, after, ...losses] = pairs.losses;
  assert.deepEqual([found.first.plan.steps, found.first.plan.evaluationSequences, found.first.plan.sequences], [losses.length, 2, 8]);
  const [start, ...steps] = found.first.progress;
  assert.ok(Math.abs(start.evaluationLoss - before) < 1e-3, `${start.evaluationLoss}, natively ${before}`);
  assert.ok(Math.abs(steps.at(-1).evaluationLoss - after) < 1e-3, `${steps.at(-1).evaluationLoss}, natively ${after}`);
  steps.forEach(({ step, loss }, i) => assert.ok(Math.abs(loss - losses[i]) < 1e-3, `step ${step}: ${loss}, natively ${losses[i]}`));
  assert.equal(found.first.config.task_type, "FEATURE_EXTRACTION");
  assert.equal(found.again.hash, found.first.hash, "the same bits twice");
  assert.equal(found.more.error, undefined);
  assert.ok(found.more.progress.at(-1).evaluationLoss < 0.5 * found.more.progress[0].evaluationLoss);
  assert.ok(found.trained > found.before + 0.1, `${found.trained}, without the adapter ${found.before}`);
  assert.equal(found.plain, found.before, "the model itself stays as it was");
  assert.equal(found.gone.code, "request");
  assert.match(found.gone.message, /no adapter 'own'/);
});

test("a training of pairs stops, and an embedding model is trained by its name", options, async () => {
  const found = await site.page.evaluate(async ([pairs, given]) => {
    const stop = new AbortController();
    const stopped = await attempt(pairs, { ...given, epochs: 500, stop: stop.signal, onProgress: ({ step }) => step === 3 && stop.abort() }, `${location.origin}/models/embedder`);
    const texts = await attempt("Text.", {}, `${location.origin}/models/embedder`);
    const text = await attempt(pairs, {}, `${location.origin}/models/stories260K`);
    return { stopped, texts, text };
  }, [pairs.pairs, pairs.options]);
  assert.equal(found.stopped.error, undefined);
  assert.ok(found.stopped.steps >= 3 && found.stopped.steps < 50, `${found.stopped.steps} steps`);
  assert.equal(found.texts.error.code, "request");
  assert.match(found.texts.error.message, /learns from pairs/);
  assert.equal(found.text.error.code, "request");
  assert.match(found.text.error.message, /not from pairs/);
});

test("pairs that do not fit the model, or are damaged, are refused", options, async () => {
  const pair = { query: "a", positive: "b" };
  const preference = { prompt: "a", chosen: "b", rejected: "c" };
  for (const [data, given, of, message] of [
    [[pair, pair], {}, "model", /text model, which learns from texts, conversations and preference pairs/],
    ["Text.", {}, "embedder", /embedding model, which learns from pairs with 'query'/],
    [[[{ role: "user", content: "Hi" }, { role: "assistant", content: "Hello" }]], {}, "embedder", /learns from pairs/],
    [[pair], {}, "embedder", /compared with other texts/],
    [[pair, pair, pair], { batchSize: 1 }, "embedder", /at least 2/],
    [[pair, "Text."], {}, "embedder", /the dataset\[1\]: pairs with 'query'.* cannot be mixed with texts/],
    [["Text.", pair], {}, "model", /the dataset\[1\]: texts .* cannot be mixed with pairs with 'query'/],
    [[preference, pair], {}, "model", /the dataset\[1\]: pairs with 'chosen'.* cannot be mixed with pairs with 'query'/],
    [[preference], {}, "embedder", /not from pairs with 'chosen'/],
    [[pair, pair], { dpo: { beta: 0.1 } }, "embedder", /'dpo' applies to pairs/],
    [[pair, pair], { checkpointing: true }, "embedder", /'checkpointing' does not apply to embedding models/],
    [[preference], { scale: 10 }, "model", /'scale' applies to pairs/],
    [[{ query: "a" }], {}, "embedder", /the dataset\[0\]\.positive must be a string/],
    [[{ ...pair, positive: " " }], {}, "embedder", /the dataset\[0\]\.positive is empty/],
    [[{ ...pair, negatives: "c" }], {}, "embedder", /negatives must be an array/],
    [[{ ...pair, negative: "c" }], {}, "embedder", /unknown field 'negative'/],
    [[pair, pair], { evaluation: "Text." }, "embedder", /'evaluation' must have pairs with 'query'/],
    ["Text.", { scale: 10 }, "model", /'scale' applies to pairs/],
  ]) {
    const { error } = await site.page.evaluate(([data, given, of]) => attempt(data, given, window[of]), [data, given, of]);
    assert.equal(error?.code, "request", JSON.stringify([data, given, error]));
    assert.match(error.message, message);
    assert.ok(error.isOurs);
  }
});

test("what cannot be trained is refused before the first step", options, async () => {
  for (const [data, given, code, message] of [
    ["", {}, "request", /the dataset is empty/],
    [["Text.", " "], {}, "request", /the dataset\[1\] is empty/],
    [[], {}, "request", /must be a string, an array of strings.*pairs/],
    [[[{ role: "user", content: "Hi" }]], {}, "request", /no message with role 'assistant'/],
    [[{ prompt: "a", chosen: "b" }], {}, "request", /the dataset\[0\] has no 'rejected'/],
    [[{ prompt: "a", chosen: "b", rejected: 3 }], {}, "request", /'rejected' must be a string or an array of messages/],
    [[{ prompt: "a", chosen: "b", rejected: "b" }], {}, "request", /are equal/],
    [[{ prompt: "a", chosen: "b", rejected: " " }], {}, "request", /'rejected' is empty/],
    [[{ prompt: "a", chosen: "b", rejected: [{ role: "assistant", content: "c" }] }], {}, "request", /both be strings, or both arrays/],
    [[{ prompt: 1, chosen: "b", rejected: "c" }], {}, "request", /prompt must be a string or an array of messages/],
    [[{ prompt: "a", messages: [{ role: "user", content: "a" }], chosen: "b", rejected: "c" }], {}, "request", /both 'prompt' and 'messages'/],
    [[{ chosen: "b", rejected: "c" }], {}, "request", /dataset\[0\].*begin differently/],
    [[{ prompt: "a", chosen: "b", rejected: "c" }, "Text."], {}, "request", /the dataset\[1\]: pairs with 'chosen'.* cannot be mixed with texts/],
    [[{ prompt: "a", chosen: "b", rejected: "c" }], { evaluation: "Text." }, "request", /'evaluation' must have pairs/],
    [[{ prompt: "a", chosen: "b", rejected: "c" }], { dpo: { beta: 0 } }, "request", /'beta' must be/],
    ["Text.", { dpo: { beta: 0.1 } }, "request", /'dpo' applies to pairs/],
    ["Text.", { rank: 0 }, "request", /'rank' must be a whole number from 1/],
    ["Text.", { checkpointing: "on" }, "request", /'checkpointing' must be 'auto', true or false/],
    ["Text.", { learningRat: 1 }, "request", /Did you mean 'learningRate'/],
    ["Text.", { targets: [] }, "request", /'targets' must be an array with a name or more/],
    ["Text.", { targets: ["qkv"] }, "request", /no matrix 'qkv'.*q_proj/],
    ["Text.", { load: {} }, "request", /'load' applies to a model's name/],
  ]) {
    const { error } = await attempt(data, given);
    assert.equal(error?.code, code, JSON.stringify([data, given, error]));
    assert.match(error.message, message);
    assert.ok(error.isOurs);
  }
});

test("a training that the device has no memory for is refused with advice", options, async () => {
  const found = await site.page.evaluate(async (text) => {
    const small = await jerboa.loadModel(`${location.origin}/models/stories260K`, { maxMemory: 8 << 20 });
    const refused = await attempt(text.repeat(32), { maxLength: 2048 }, small);
    const stored = await attempt(text.repeat(8), { maxLength: 512, checkpointing: false }, small);
    const fits = await attempt(text, { maxLength: 32, rank: 2 }, small);
    const wide = await attempt(text, { maxLength: 16, rank: 1024, batchSize: 1 }, small);
    await small.unload();
    return { refused, stored, fits, wide };
  }, golden.text);
  assert.equal(found.refused.error.code, "out_of_memory");
  assert.match(found.refused.error.message, /Activations take \d+ MB with checkpointing.*'maxLength' below \d+/);
  assert.match(found.stored.error.message, /Set 'checkpointing' to 'auto'/);
  assert.deepEqual(found.refused.progress, []);
  assert.equal(found.wide.error.code, "out_of_memory");
  assert.match(found.wide.error.message, /'rank' below 1024/);
  assert.equal(found.fits.error, undefined, "a shorter one fits");
});
