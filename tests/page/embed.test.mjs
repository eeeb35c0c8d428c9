/** Embeddings and reranking with the package in Chromium: MiniLM's shape against sentence-transformers, the bundled encoder's
 * ranking, OpenAI's formats, progress, aborts and errors. All fifty documents in every precision: tests/encoders/minilm.rs. */

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { writeMinilm } from "./support/minilm.mjs";
import { ROOT } from "./support/paths.mjs";

/** SwiftShader runs on the CPU: allow slow machines enough time. */
const options = { timeout: 480_000 };
const DIMS = 384;

let site, page, folder, texts, expected;

const json = async (path) => JSON.parse(await readFile(join(ROOT, "tests/golden", path), "utf8"));

/** The only tensor of a safetensors file, as rows. */
async function rows(path) {
  const file = await readFile(join(ROOT, "tests/golden", path));
  const start = 8 + Number(file.readBigUInt64LE(0));
  const all = new Float32Array(file.buffer.slice(file.byteOffset + start, file.byteOffset + file.length));
  return Array.from({ length: all.length / DIMS }, (_, i) => all.subarray(i * DIMS, (i + 1) * DIMS));
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

/** Embeds lists of strings in the page with a model loaded for this call. */
const embedWith = (source, load, ...lists) =>
  page.evaluate(
    async ([source, load, lists]) => {
      const model = await jerboa.loadModel(source, load);
      const vectors = [];
      for (const texts of lists) vectors.push((await model.embed(texts)).map((v) => Array.from(v)));
      const info = model.info;
      await model.unload();
      return { vectors, info };
    },
    [source, load, lists],
  );

/** Short inputs in another order: a dispatch chain takes long on a software adapter. */
const few = () => texts.map((text, i) => ({ text, i })).filter(({ text }) => text.length < 60).slice(0, 16).reverse();

/** The minimum cosine similarity to the vectors of sentence-transformers. */
function least(vectors, places) {
  assert.equal(vectors.length, places.length);
  return Math.min(...vectors.map((vector, at) => cosine(vector, expected[places[at]])));
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-minilm-"));
  await writeMinilm(folder);
  texts = (await json("embed/texts.json")).map(({ text }) => text);
  expected = await rows("embed/vectors.safetensors");
  site = await openPackage({ "/minilm/": folder, "/words/": `${ROOT}/www/public/models/words-encoder`, "/golden/": `${ROOT}/tests/golden/models` });
  page = site.page;
}, options);

after(async () => {
  await site?.close();
  if (folder) await rm(folder, { recursive: true });
});

test("embeddings equal sentence-transformers in f32, in any order and batch", options, async (t) => {
  // All but the longest, and one that the model's 256 positions truncate.
  const places = texts.map((_, i) => i).filter((i) => texts[i].length < 500);
  places.push(texts.findIndex(({ length }) => length > 1400 && length < 1800));
  const others = few();
  const { vectors, info } = await embedWith(`${site.url}/minilm/`, { cache: false }, places.map((i) => texts[i]), others.map(({ text }) => text));
  assert.deepEqual([info.task, info.dimensions, info.contextLength, info.worker], ["embed", DIMS, 256, true]);
  const found = [least(vectors[0], places), least(vectors[1], others.map(({ i }) => i))];
  t.diagnostic(`minimum cosines ${found.join(", ")} of ${places.length} and ${others.length}`);
  assert.ok(places.length > 40 && Math.min(...found) > 0.99999, found.join(" "));
});

test("f16 and 8-bit weights stay close", options, async (t) => {
  for (const [weights, bound] of [["f16", 0.9995], ["q8", 0.99]]) {
    const others = few();
    const { vectors } = await embedWith(`${site.url}/minilm/`, { cache: false, weights }, others.map(({ text }) => text));
    const found = least(vectors[0], others.map(({ i }) => i));
    t.diagnostic(`${weights}: least cosine ${found}`);
    assert.ok(found > bound, `${weights}: ${found}`);
  }
});

test("the bundled encoder ranks passages like sentence-transformers", options, async (t) => {
  const [passages, questions, { ranking, "recall@3": recall }] = await Promise.all(["passages", "questions", "expected"].map((name) => json(`retrieval/${name}.json`)));
  const all = [...passages.map(({ text }) => text), ...questions.map(({ question }) => question)];
  const { vectors: [vectors] } = await embedWith(`${site.url}/words/`, { cache: false }, all);
  let found = 0;
  questions.forEach(({ answer }, q) => {
    const scores = passages.map(({ id }, p) => ({ id, score: cosine(vectors[p], vectors[passages.length + q]) })).sort((a, b) => b.score - a.score);
    ranking[q].passages.forEach(([id, score], place) => {
      const at = scores.findIndex((s) => s.id === id);
      assert.ok(Math.abs(scores[at].score - score) < 1e-4, `${id}: ${scores[at].score} ${score}`);
      // Neighbors within rounding error may swap.
      assert.ok(at === place || Math.abs(scores[place].score - score) < 1e-4, `question ${q}: ${id} at ${at}`);
    });
    if (scores.slice(0, 3).some(({ id }) => id === answer)) found++;
  });
  t.diagnostic(`recall@3 ${found / questions.length}, sentence-transformers ${recall}`);
  assert.ok(Math.abs(found / questions.length - recall) < 1e-3);
});

test("OpenAI's formats, truncation, progress and aborts", options, async () => {
  const result = await page.evaluate(async (url) => {
    window.words = await jerboa.loadModel(url, { cache: false });
    const inputs = Array.from({ length: 600 }, (_, i) => `Number ${i} has ${i % 7} legs.`);
    const progress = [];
    const vectors = await words.embed(inputs, { onProgress: (p) => progress.push(p) });
    const controller = new AbortController();
    const aborted = await words.embed(inputs, { signal: controller.signal, onProgress: () => controller.abort() }).then(() => "none", (e) => e.code);
    const params = { input: ["one bee", "two bees"], dimensions: 16 };
    const plain = await words.embeddings.create(params);
    const packed = await words.embeddings.create({ ...params, encoding_format: "base64" });
    const code = (promise) => promise.then(() => "none", (e) => e.code);
    const refused = [await code(words.embed("x", { truncateDim: 57 })), await code(words.embed("x", { task: "sing" }))];
    refused.push(await code(words.rerank("x", ["y"])), await code(Promise.resolve().then(() => words.generate("x"))));
    const after = await words.embed(["one bee"], { task: "query" });
    const near = jerboa.similarity(after[0], await words.embed(["one bee", "a whale"]));
    // Longer inputs are truncated to its 256 positions.
    const long = "bee ".repeat(256);
    const [cut, more] = await words.embed([long, `${long} and a whale`]);
    const apart = Math.max(...cut.map((value, i) => Math.abs(value - more[i])));
    return { count: vectors.length, dims: vectors[0].length, progress, aborted, plain, packed, refused, near, apart };
  }, `${site.url}/words/`);
  assert.deepEqual([result.count, result.dims, result.aborted], [600, 56, "aborted"]);
  assert.deepEqual(result.progress.at(-1), { done: 600, total: 600 });
  assert.ok(result.progress.length > 1 && result.progress.every(({ done }, i, all) => i === 0 || done >= all[i - 1].done));
  const [first] = result.plain.data;
  assert.equal(first.embedding.length, 16);
  assert.ok(Math.abs(first.embedding.reduce((sum, v) => sum + v * v, 0) - 1) < 1e-5, "cut vectors are scaled again");
  const bytes = Buffer.from(result.packed.data[1].embedding, "base64");
  const floats = Array.from({ length: 16 }, (_, i) => bytes.readFloatLE(4 * i));
  floats.forEach((value, i) => assert.ok(Math.abs(value - result.plain.data[1].embedding[i]) < 1e-6));
  assert.equal(result.plain.usage.prompt_tokens, 8);
  assert.deepEqual(result.refused, ["request", "request", "request", "request"]);
  assert.ok(result.near[0] > 0.9999 && result.near[1] < 0.5, result.near.join(" "));
  assert.ok(result.apart < 1e-6, `what the positions cut has no part in a vector: ${result.apart}`);
});

test("a cross-encoder sorts documents", options, async () => {
  const special = (id, type_id) => ({ SpecialToken: { id, type_id } });
  const sequence = (id, type_id) => ({ Sequence: { id, type_id } });
  const vocab = { "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, sky: 13, grass: 14, is: 15, what: 16, colour: 17, blue: 12, green: 11 };
  const token = (id) => ({ id, ids: [vocab[id]], tokens: [id] });
  const tokenizer = {
    version: "1.0",
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: "Whitespace" },
    post_processor: {
      type: "TemplateProcessing",
      single: [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0)],
      pair: [special("[CLS]", 0), sequence("A", 0), special("[SEP]", 0), sequence("B", 1), special("[SEP]", 1)],
      special_tokens: { "[CLS]": token("[CLS]"), "[SEP]": token("[SEP]") },
    },
    decoder: null,
    model: { type: "WordLevel", vocab, unk_token: "[UNK]" },
  };
  const { info, ranked, best } = await page.evaluate(async (tokenizer) => {
    const file = async (name) => new File([await (await fetch(`/golden/bert_reranker/${name}`)).blob()], name);
    const files = [await file("config.json"), await file("model.safetensors"), new File([JSON.stringify(tokenizer)], "tokenizer.json")];
    const model = await jerboa.loadModel(files);
    const documents = ["sky is blue", "grass is green", "grass"];
    const ranked = await model.rerank("what colour is sky", documents);
    const best = await model.rerank("what colour is sky", documents, { topN: 1 });
    return { info: model.info, ranked, best };
  }, tokenizer);
  assert.equal(info.task, "rerank");
  assert.deepEqual(ranked.map(({ index }) => index).sort(), [0, 1, 2]);
  assert.ok(ranked.every(({ score }, i) => score > 0 && score < 1 && (i === 0 || score <= ranked[i - 1].score)));
  assert.deepEqual(best, ranked.slice(0, 1));
});
