/** The memory's parts in Node.js: chunks, filters, redaction, search, packing, export. No browser. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade } from "../page/support/facade.mjs";
import { embedder, randomVectors, words } from "./support/embedder.mjs";

let api, parts, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  api = await import(`${built.url}/memory/index.js`);
  const names = ["chunk", "filter", "redact", "recall", "search", "search-gpu", "vectors", "transfer", "log"];
  parts = Object.assign({}, ...(await Promise.all(names.map((name) => import(`${built.url}/memory/${name}.js`)))));
});
after(() => cleanUp());

const refusal = (code, pattern) => (error) => {
  assert.equal(error.name, "JerboaError", String(error.stack ?? error));
  assert.equal(error.code, code);
  assert.match(error.message, pattern);
  return true;
};
const count = (text) => words(text).length;

test("chunks end on sentences, respect the limit, overlap by whole sentences and cover the text", async () => {
  const sentences = Array.from({ length: 40 }, (_, i) => `Sentence number ${i} has exactly ${i % 5} or more words in it.`);
  const text = `  ${sentences.join(" ")}\n\n`;
  const chunks = await api.chunkText(text, count, { maxTokens: 50, overlap: 15 });
  assert.ok(chunks.length > 5);
  for (const [i, chunk] of chunks.entries()) {
    assert.equal(chunk.text, text.slice(chunk.start, chunk.end));
    assert.equal(chunk.tokens, count(chunk.text));
    assert.ok(chunk.tokens <= 50);
    assert.match(chunk.text, /^Sentence .*\.$/s);
    if (i === 0) continue;
    const overlap = text.slice(chunk.start, chunks[i - 1].end);
    assert.ok(chunk.start < chunks[i - 1].end && count(overlap) <= 15, `overlap of ${count(overlap)}`);
    assert.match(overlap, /^Sentence .*\.$/s);
  }
  for (const sentence of sentences) assert.ok(chunks.some((chunk) => chunk.text.includes(sentence)), sentence);
});

test("chunks without sentence boundaries: one long sentence, one long word, emoji, nothing", async () => {
  const long = Array.from({ length: 500 }, (_, i) => `w${i}`).join(" ");
  const chunks = await api.chunkText(long, count, { maxTokens: 30, overlap: 0 });
  assert.deepEqual(chunks.flatMap((chunk) => words(chunk.text)), words(long));
  assert.ok(chunks.every((chunk) => chunk.tokens <= 30) && chunks.length === 17);
  const letters = (text) => [...text].length;
  const word = await api.chunkText("x".repeat(100), letters, { maxTokens: 9, overlap: 0 });
  assert.equal(word.map((chunk) => chunk.text).join(""), "x".repeat(100));
  assert.ok(word.every((chunk) => chunk.tokens <= 9));
  // A family emoji of seven code points is one character: it exceeds the limit and is still not split.
  const family = "👩‍👩‍👧‍👦";
  const emoji = await api.chunkText(family.repeat(5), letters, { maxTokens: 4, overlap: 0 });
  assert.ok(emoji.every((chunk) => chunk.text === family) && emoji.length === 5);
  assert.deepEqual(await api.chunkText(" \n\t ", count), []);
  assert.deepEqual(await api.chunkText("", count), []);
});

test("chunks respect the limit with a counter for which joined text is longer than its parts", async () => {
  const text = Array.from({ length: 60 }, (_, i) => `One two three ${i}.`).join(" ");
  const joined = (piece) => count(piece) + Math.max(0, piece.split(". ").length - 1);
  const chunks = await api.chunkText(text, async (piece) => joined(piece), { maxTokens: 20, overlap: 5 });
  assert.ok(chunks.every((chunk) => joined(chunk.text) <= 20 && chunk.tokens === joined(chunk.text)));
  assert.equal(chunks.at(-1).end, text.length);
});

test("chunks of Chinese and of lines", async () => {
  const chinese = "今天天气很好。我们去公园散步。公园里有很多花。";
  const letters = (text) => [...text].length;
  const chunks = await api.chunkText(chinese, letters, { maxTokens: 16, overlap: 0 });
  assert.deepEqual(chunks.map((chunk) => chunk.text), ["今天天气很好。我们去公园散步。", "公园里有很多花。"]);
  const lines = await api.chunkText("first line\nsecond line\nthird line", count, { maxTokens: 4, overlap: 0 });
  assert.deepEqual(lines.map((chunk) => chunk.text), ["first line\nsecond line", "third line"]);
});

test("refusals of chunk options", async () => {
  await assert.rejects(api.chunkText("a", count, { maxTokens: 0 }), refusal("request", /maxTokens/));
  await assert.rejects(api.chunkText("a", count, { maxTokens: 5, overlap: 5 }), refusal("request", /'overlap' \(5\) must be less than 'maxTokens' \(5\)/));
  for (const [options, pattern] of [
    [{ maxToken: 5 }, /unknown option 'maxToken'\. Did you mean 'maxTokens'/],
    [{ maxTokens: "5" }, /'maxTokens' must be a whole number from 1 to/],
    [{ overlap: -1 }, /'overlap' must be a whole number from 0 to/],
    [{ locale: "no such tag" }, /'locale' must be a BCP 47 language tag/],
  ]) {
    await assert.rejects(api.chunkText("a", count, options), refusal("request", pattern));
    await assert.rejects(api.createMemory({ model: embedder(16), chunk: options }), refusal("request", pattern));
    await assert.rejects((await filled()).add([], { chunk: options }), refusal("request", pattern));
  }
  await assert.rejects(api.chunkText(5, count), refusal("request", /the text must be a string, not 5/));
  await assert.rejects(api.chunkText("a"), refusal("request", /the token counter must be a function, not undefined/));
  const memory = await api.createMemory({ model: embedder(16), chunk: { maxTokens: 3, overlap: 0 } });
  assert.equal((await memory.add("one two three four five six", { chunk: { maxTokens: undefined } })).records, 2, "an option that is not set is the memory's");
});

test("filters", () => {
  const records = [
    { lang: "en", year: 1999, tags: ["a", "b"], author: { name: "Ann" } },
    { lang: "de", year: 2005, tags: ["b"], author: { name: "Ben" }, draft: true },
    { lang: "en", year: 2020, tags: [], title: "On bees" },
  ];
  const pass = (filter) => records.flatMap((record, i) => (parts.compileFilter(filter)(record) ? [i] : []));
  assert.deepEqual(pass({ lang: "en" }), [0, 2]);
  assert.deepEqual(pass({ tags: "b" }), [0, 1]);
  assert.deepEqual(pass({ tags: { $contains: "a" } }), [0]);
  assert.deepEqual(pass({ title: { $contains: "bee" } }), [2]);
  assert.deepEqual(pass({ year: { $gte: 1999, $lt: 2020 } }), [0, 1]);
  assert.deepEqual(pass({ year: { $in: [1999, 2020] } }), [0, 2]);
  assert.deepEqual(pass({ draft: { $nin: [true] } }), [0, 2]);
  assert.deepEqual(pass({ draft: { $exists: false } }), [0, 2]);
  assert.deepEqual(pass({ "author.name": "Ben" }), [1]);
  assert.deepEqual(pass({ author: { name: "Ann" } }), [0]);
  assert.deepEqual(pass({ lang: { $ne: "en" } }), [1]);
  assert.deepEqual(pass({ $or: [{ year: 2020 }, { "author.name": "Ann" }], lang: "en" }), [0, 2]);
  assert.deepEqual(pass({ $and: [{ lang: "en" }, { $not: { year: { $gt: 2000 } } }] }), [0]);
  assert.deepEqual(pass((metadata) => metadata.year === 2005), [1]);
  assert.deepEqual(pass({ year: { $gt: "1990" } }), [], "a number does not compare with a string");
  assert.throws(() => pass({ year: { $above: 3 } }), refusal("request", /\$above.*\$gte/));
  assert.throws(() => pass({ $nor: [] }), refusal("request", /\$nor/));
  assert.deepEqual(pass({ constructor: "x" }), [], "inherited properties are no fields");
  assert.deepEqual([pass({}), pass({ draft: null }), pass({ year: { $lt: Infinity } })], [[0, 1, 2], [], [0, 1, 2]]);
});

test("filters refuse values that metadata cannot hold", () => {
  const cases = [
    [undefined, /the filter must be an object or a function, not undefined/],
    [null, /must be an object or a function, not null/],
    [new Map(), /must be an object or a function, not a Map/],
    [{ $and: [undefined] }, /must be an object or a function, not undefined/],
    [{ $or: [{ lang: "en" }, undefined] }, /must be an object or a function, not undefined/],
    [{ $not: undefined }, /must be an object or a function, not undefined/],
    [{ lang: undefined }, /'lang' is undefined, .*\$exists: false/],
    [{ author: { name: undefined } }, /'author'\.name is undefined/],
    [{ lang: { $eq: undefined } }, /\$eq of 'lang' is undefined/],
    [{ lang: { $in: ["en", undefined] } }, /\$in of 'lang' is undefined/],
    [{ lang: /e/ }, /'lang' is a RegExp/],
    [{ lang: { $contains: /e/ } }, /\$contains of 'lang' is a RegExp/],
    [{ year: new Date(0) }, /'year' is a Date/],
    [{ year: { $gte: new Date(0) } }, /\$gte of 'year' must be a number or a string, not a Date\. Compare dates as ISO strings/],
    [{ year: { $lt: undefined } }, /\$lt of 'year' must be a number or a string, not undefined/],
    [{ year: { $gt: NaN } }, /\$gt of 'year' must be a number or a string, not NaN/],
    [{ year: NaN }, /'year' is NaN/],
    [{ year: 5n }, /'year' is 5, which metadata cannot hold/],
    [{ year: () => true }, /'year' is a function/],
    [{ draft: { $exists: 1 } }, /\$exists of 'draft' must be true or false, not 1/],
  ];
  for (const [filter, pattern] of cases) assert.throws(() => parts.compileFilter(filter), refusal("request", pattern));
});

test("redaction of documents and of strings in metadata", async () => {
  const redactor = parts.redactor([/\d{4}-\d{4}/, async (text) => text.replaceAll("Ann", "someone")]);
  assert.equal(await redactor.text("Ann: 1234-5678 and 8765-4321"), "someone: [REDACTED] and [REDACTED]");
  assert.deepEqual(await redactor.metadata({ card: "1111-2222", deep: { list: ["Ann", 3, null] } }), { card: "[REDACTED]", deep: { list: ["someone", 3, null] } });
  assert.equal(await parts.redactor(/A/iy).text("b a A"), "b [REDACTED] [REDACTED]", "flags are preserved, except sticky");
  await assert.rejects(parts.redactor(() => 3).text("x"), refusal("request", /string/));
  assert.throws(() => parts.redactor("secret"), refusal("request", /RegExp/));
});

/** Reference implementation: scores and sorts every row. */
function brute(vectors, query, k, accept = () => true) {
  const scored = vectors.flatMap((vector, i) => (accept(i) ? [{ i, score: parts.dot(vector, 0, query, 0, vector.length) }] : []));
  const id = (i) => `r${i}`;
  return scored.sort((a, b) => b.score - a.score || (id(a.i) < id(b.i) ? -1 : 1)).slice(0, k);
}

function table(vectors) {
  const rows = new parts.VectorTable(vectors[0].length);
  vectors.forEach((vector, i) => rows.set({ id: `r${i}`, document: `r${i}`, part: 0, metadata: { i } }, vector));
  return rows;
}

test("search equals sorting all rows: widths, sizes, k, ties, filters, after removals", () => {
  for (const [count, dims] of [[1, 1], [7, 3], [100, 48], [3000, 33]]) {
    const vectors = randomVectors(count, dims, count);
    // Equal rows rank by id, wherever they are in the table.
    if (count > 50) for (let i = 40; i < 50; i++) vectors[i] = vectors[3];
    const rows = table(vectors);
    const query = count > 50 ? vectors[3] : randomVectors(1, dims, 5)[0];
    for (const k of [1, 5, 8, count]) {
      const found = parts.searchExact(rows, query, { k });
      assert.deepEqual(found.map(({ place }) => rows.rows[place].id), brute(vectors, query, k).map(({ i }) => `r${i}`));
      const odd = parts.searchExact(rows, query, { k, accept: (place) => rows.rows[place].metadata.i % 2 === 1 });
      assert.deepEqual(odd.map(({ place }) => rows.rows[place].id), brute(vectors, query, k, (i) => i % 2 === 1).map(({ i }) => `r${i}`));
    }
  }
  const vectors = randomVectors(200, 20, 9);
  const rows = table(vectors);
  for (let i = 0; i < 200; i += 3) assert.ok(rows.remove(`r${i}`));
  assert.ok(!rows.remove("r0"));
  rows.set({ id: "r1", document: "r1", part: 0, metadata: { i: 1 } }, vectors[1]);
  const found = parts.searchExact(rows, vectors[7], { k: 20 });
  assert.deepEqual(found.map(({ place }) => rows.rows[place].id), brute(vectors, vectors[7], 20, (i) => i % 3 !== 0).map(({ i }) => `r${i}`));
  assert.ok(parts.searchExact(rows, vectors[7], { k: 20, minScore: 0.5 }).every(({ score }) => score >= 0.5));
});

test("search with approximate scores gives the exact result, bit for bit", () => {
  const vectors = randomVectors(2000, 64, 77);
  for (let i = 0; i < 30; i++) vectors[100 + i] = vectors[5].map((v, j) => v + (j === i ? 1e-4 : 0));
  const rows = table(vectors);
  const query = vectors[5];
  for (const error of [0, 1e-6, 1e-3, 0.05]) {
    const scores = Float32Array.from(vectors, (v, i) => parts.dot(v, 0, query, 0, 64) + Math.sin(i * 12.9898) * error);
    for (const options of [{ k: 1 }, { k: 10 }, { k: 10, minScore: 0.99 }, { k: 8, accept: (place) => place % 7 === 2 }, { k: 5000 }]) {
      assert.deepEqual(parts.searchScored(rows, query, scores, error + 1e-6, options), parts.searchExact(rows, query, options));
    }
  }
});

test("half precision rounds to the nearest, ties to even", () => {
  const cases = [[0, 0], [-0, 0x8000], [1, 0x3c00], [-1, 0xbc00], [0.5, 0x3800], [1 + 2 ** -11, 0x3c00], [1 + 3 * 2 ** -11, 0x3c02], [2 ** -14, 0x0400], [2 ** -24, 1], [2 ** -25, 0], [3 * 2 ** -25, 2], [2 ** -14 - 2 ** -25, 0x0400]];
  assert.deepEqual([...parts.toF16(Float32Array.from(cases, ([value]) => value))], cases.map(([, bits]) => bits));
});

test("normalized vectors have length 1; zeros stay; non-finite values are refused", () => {
  assert.ok(Math.abs(Math.hypot(...parts.normalized([3, 4])) - 1) < 1e-7);
  assert.deepEqual([...parts.normalized([0, 0])], [0, 0]);
  assert.throws(() => parts.normalized([1, NaN]), refusal("not_finite", /weights/));
  assert.throws(() => parts.normalized([]), refusal("not_finite", /empty/));
});

const hit = (document, part, start, text, score) => ({ id: `${document}#${part}`, document, part, start, end: start + text.length, text, tokens: count(text), created: 0, metadata: {}, vector: new Float32Array(1), score });

test("packing respects the budget, skips passages that are too long, joins overlapping ones", async () => {
  const hits = [hit("a", 0, 0, "one two three four", 0.9), hit("b", 0, 0, "w ".repeat(50).trim(), 0.8), hit("c", 0, 0, "five six", 0.7), hit("d", 0, 0, "seven eight nine", 0.6)];
  const packed = await parts.pack(hits, count, { budget: 6 });
  assert.deepEqual(packed.records.map(({ id }) => id), ["a#0", "c#0"]);
  assert.equal(packed.context, "one two three four\n\nfive six");
  assert.equal(packed.tokens, 6);
  const text = "alpha beta gamma delta epsilon zeta";
  const joined = await parts.pack([hit("x", 1, 11, text.slice(11, 22), 0.9), hit("y", 0, 0, "other", 0.8), hit("x", 0, 0, text.slice(0, 16), 0.7), hit("x", 2, 17, text.slice(17), 0.6)], count, { budget: 50 });
  assert.equal(joined.context, `${text}\n\nother`);
  assert.equal(joined.records.length, 4);
  const numbered = await parts.pack(hits, count, { budget: 9, separator: "|", format: ({ text: own, document }, i) => `[${i + 1} ${document}] ${own}` });
  assert.equal(numbered.context, "[1 a] one two three four");
  assert.ok(numbered.tokens <= 9);
});

test("packing shortens the best passage if none fits, and reports when even that does not fit", async () => {
  const long = Array.from({ length: 10 }, (_, i) => `Sentence ${i} is here.`).join(" ");
  const packed = await parts.pack([hit("a", 0, 100, long, 0.9)], count, { budget: 9 });
  assert.equal(packed.context, "Sentence 0 is here. Sentence 1 is here.");
  assert.equal(packed.records[0].end, 100 + packed.context.length);
  assert.ok(packed.tokens <= 9);
  assert.deepEqual(await parts.pack([hit("a", 0, 0, long, 0.9)], count, { budget: 2, format: ({ text }) => `a b c ${text}` }), { context: "", records: [], tokens: 0 });
  assert.deepEqual(await parts.pack([], count), { context: "", records: [], tokens: 0 });
});

const TEXTS = {
  bees: "Bees live in hives. A queen lays all the eggs of the colony.",
  iron: "Iron rusts when water and oxygen reach it. Paint keeps them away.",
  moon: "The moon turns the same face to the earth. Its far side was first seen by a probe.",
};

async function filled(options = {}) {
  const memory = await api.createMemory({ model: embedder(), ...options });
  await memory.add(Object.entries(TEXTS).map(([id, text], i) => ({ id, text, metadata: { i, topic: id } })));
  return memory;
}

test("add, search, filter, recall, replace, delete, clear", async () => {
  const memory = await filled();
  assert.equal(memory.size, 3);
  const hits = await memory.search("how do water and oxygen reach iron", { k: 2 });
  assert.equal(hits[0].document, "iron");
  assert.ok(hits[0].score > hits[1].score && hits[0].score <= 1.000001);
  assert.equal((await memory.search("iron", { filter: { topic: "moon" } }))[0].document, "moon");
  assert.deepEqual(await memory.search("iron", { minScore: 0.999 }), []);
  const recalled = await memory.recall("far side of the moon", { budget: 20 });
  assert.equal(recalled.context, TEXTS.moon);
  await memory.add({ id: "iron", text: "Copper does not rust." });
  assert.equal(memory.size, 3);
  assert.equal((await memory.search("copper"))[0].text, "Copper does not rust.");
  assert.equal(await memory.delete({ document: "iron" }), 1);
  assert.equal(await memory.delete(["bees#0", "nothing"]), 1);
  assert.equal(await memory.delete({ filter: { topic: "moon" } }), 1);
  assert.deepEqual(await memory.search("moon"), []);
  assert.deepEqual(await memory.recall("moon"), { context: "", records: [], tokens: 0 });
  await memory.add("something");
  await memory.clear();
  assert.equal(memory.size, 0);
  await memory.close();
  for (const call of [() => memory.get(["x"]), () => memory.list(), () => memory.search("x"), () => memory.delete([])]) await assert.rejects(call, refusal("store", /This memory is closed/));
});

test("images: their vectors are stored, a text finds them, their description is recalled", async () => {
  const model = embedder();
  const { embed } = model;
  // The vector of an image is that of its content's description.
  model.embed = (inputs, options) => embed(inputs.map((input) => (input instanceof URL ? input.pathname : (input.shows ?? input))), options);
  const store = api.inMemoryStore();
  const memory = await api.createMemory({ model, store });
  const { documents } = await memory.add([
    { image: { shows: "red bird" }, imageUrl: "holiday/1.jpg", id: "bird" },
    { image: { shows: "green house" }, imageUrl: "holiday/2.jpg", text: "Our house in spring.", metadata: { year: 2024 } },
    "bees make honey",
  ]);
  assert.deepEqual([memory.size, documents[0]], [3, "bird"]);
  const [hit] = await memory.search("a red bird");
  assert.deepEqual([hit.imageUrl, hit.document, hit.text], ["holiday/1.jpg", "bird", ""]);
  assert.equal((await memory.search("green house", { filter: { year: 2024 } }))[0].text, "Our house in spring.");
  assert.equal((await memory.search("bees"))[0].imageUrl, undefined);
  assert.equal((await memory.recall("red bird or green house", { budget: 40 })).context.includes("Our house in spring."), true);
  // Fetched from its URL if it is not stored; exported with the reference.
  await memory.add({ imageUrl: "http://there/yellow", id: "bird" });
  assert.equal((await memory.search("yellow"))[0].imageUrl, "http://there/yellow");
  let lines = "";
  for await (const line of memory.export()) lines += line;
  const copy = await api.createMemory({ model, redact: (text) => text.replace("house", "home") });
  await copy.import(lines);
  const [moved] = await copy.search("green house");
  assert.deepEqual([moved.imageUrl, moved.text, moved.score > 0.9], ["holiday/2.jpg", "Our home in spring.", true]);
  await assert.rejects(memory.add({ image: { shows: "x" } }), refusal("request", /needs 'imageUrl'/));
  await assert.rejects(memory.add({ imageUrl: "holiday/3.jpg" }), refusal("request", /is not a URL\. Pass the image as 'image'/));
  await Promise.all([memory.close(), copy.close()]);
});

test("chunked documents: replaced as a whole, with progress and offsets", async () => {
  const model = embedder();
  const memory = await api.createMemory({ model, chunk: { maxTokens: 12, overlap: 4 }, batchSize: 4 });
  const text = Array.from({ length: 30 }, (_, i) => `Fact ${i} is about thing ${i}.`).join(" ");
  const progress = [];
  const added = await memory.add([{ id: "long", text }, { id: "short", text: "One thing." }, { id: "empty", text: "  " }], { onProgress: (p) => progress.push(p) });
  assert.deepEqual(added.documents, ["long", "short", "empty"]);
  assert.equal(added.records, memory.size);
  assert.ok(model.calls.every(({ texts, options }) => texts.length <= 4 && options.task === "document"));
  assert.deepEqual(progress.at(-1), { done: added.records, total: added.records });
  for (const record of await memory.list()) if (record.document === "long") assert.equal(text.slice(record.start, record.end), record.text);
  await memory.add({ id: "long", text: "Now it is brief." });
  assert.deepEqual((await memory.list()).map(({ id }) => id), ["long#0", "short#0"]);
  await memory.add({ id: "long", text }, { chunk: false });
  assert.equal((await memory.get(["long#0"]))[0].text, text);
  await memory.close();
});

test("an abort preserves the documents stored before it", async () => {
  const model = embedder();
  const memory = await api.createMemory({ model, batchSize: 2 });
  const controller = new AbortController();
  const documents = Array.from({ length: 10 }, (_, i) => ({ id: `d${i}`, text: `text ${i}` }));
  const adding = memory.add(documents, { signal: controller.signal, onProgress: ({ done }) => done >= 4 && controller.abort() });
  await assert.rejects(adding, refusal("aborted", /memory/));
  assert.equal(memory.size, 4);
  assert.equal((await memory.search("text 3", { k: 1 }))[0].document, "d3");
});

test("redaction happens before embedding and storing", async () => {
  const model = embedder();
  const memory = await api.createMemory({ model, redact: [/secret\w*/i] });
  await memory.add({ text: "The Secret42 is here", metadata: { note: "secret" } });
  const seen = JSON.stringify([model.calls, await memory.list()]);
  assert.doesNotMatch(seen, /secret/i);
  assert.match(seen, /REDACTED/);
});

test("refusals: documents, options, widths, models", async () => {
  const memory = await filled();
  await assert.rejects(memory.add({ id: "x" }), refusal("request", /text/));
  await assert.rejects(memory.add({ text: "x", meta: {} }), refusal("request", /metadata/));
  await assert.rejects(memory.add({ text: "x", metadata: { n: 1n } }), refusal("request", /JSON/));
  await assert.rejects(memory.search("x", { top: 3 }), refusal("request", /top/));
  await assert.rejects(memory.search(7), refusal("request", /string/));
  await assert.rejects(memory.search(new Float32Array([1, 2])), refusal("shape", /2.*48/));
  await assert.rejects(memory.search(new Float32Array(48).fill(NaN)), refusal("request", /the query vector has NaN at 0/));
  await assert.rejects(memory.recall(new Float32Array(0)), refusal("request", /the query vector is empty/));
  await assert.rejects(memory.delete("bees"), refusal("request", /ids/));
  for (const [selection, pattern] of [
    [{ filter: undefined }, /must be an object or a function, not undefined/],
    [{ filter: null }, /must be an object or a function, not null/],
    [{ filter: { topic: undefined } }, /'topic' is undefined/],
    [{ document: undefined }, /'document' must be an array of strings, at most \d+, not .*item 0 is undefined/],
    [{ document: ["bees", 5] }, /item 1 is 5/],
    [{ document: "bees", filter: { topic: "moon" } }, /either 'document' or 'filter'/],
    [{}, /either 'document' or 'filter'/],
    [["bees#0", undefined], /the ids must be an array of strings.*item 1 is undefined/],
    [undefined, /not undefined/],
  ]) await assert.rejects(memory.delete(selection), refusal("request", pattern));
  await memory.refresh();
  assert.equal(memory.size, 3, "a refused selection deletes nothing");
  for (const ids of ["bees#0", undefined, [5]]) await assert.rejects(memory.get(ids), refusal("request", /get: the ids must be an array of strings/));
  await assert.rejects(api.createMemory({ model: {} }), refusal("request", /embed/));
  const nan = { id: "nan", embed: async (texts) => texts.map(() => [NaN]) };
  await assert.rejects((await api.createMemory({ model: nan })).add("x"), refusal("not_finite", /weights/));
  const store = api.inMemoryStore();
  await (await api.createMemory({ model: embedder(16, "one"), store })).add("a text");
  await assert.rejects(api.createMemory({ model: embedder(16, "two"), store }), refusal("model_mismatch", /one.*two.*reembed/));
  const again = await api.createMemory({ model: embedder(24, "two"), store, onModelChange: "reembed" });
  assert.equal((await again.search("text"))[0].vector.length, 24);
});

test("two memories on one store see each other's changes", async () => {
  const store = api.inMemoryStore();
  const [a, b] = [await api.createMemory({ model: embedder(), store }), await api.createMemory({ model: embedder(), store })];
  let told = 0;
  const stop = b.onChange(() => told++);
  await a.add({ id: "bees", text: TEXTS.bees });
  assert.equal((await b.search("bees"))[0].document, "bees");
  await b.delete({ document: "bees" });
  assert.deepEqual(await a.search("bees"), []);
  await a.clear();
  stop();
  await b.add("moon");
  await a.refresh();
  assert.equal(a.size, 1);
  assert.equal(told, 3);
});

const collect = async (lines) => {
  const all = [];
  for await (const line of lines) all.push(line);
  return all;
};

test("export and import give the same memory, with equal vectors bit for bit", async () => {
  const memory = await filled();
  const lines = await collect(memory.export());
  assert.equal(lines.length, 4);
  assert.deepEqual(JSON.parse(lines[0]), { format: "jerboa-memory", version: 2, model: "words", dims: 48 });
  const bytes = new TextEncoder().encode(lines.join(""));
  async function* pieces() {
    for (let i = 0; i < bytes.length; i += 7) yield bytes.subarray(i, i + 7);
  }
  for (const source of [lines.join(""), new Blob([bytes]), pieces(), new Blob([bytes]).stream()]) {
    const copy = await api.createMemory({ model: embedder() });
    await copy.add({ id: "old", text: "old" });
    assert.deepEqual(await copy.import(source, { mode: "replace" }), { records: 3 });
    const [ours, theirs] = [await memory.list(), await copy.list()];
    assert.deepEqual(theirs.map((r) => r.text), ours.map((r) => r.text));
    for (let i = 0; i < 3; i++) for (let j = 0; j < 48; j++) assert.ok(Math.abs(ours[i].vector[j] - theirs[i].vector[j]) < 1e-7);
    assert.deepEqual((await copy.search("iron"))[0].metadata, { i: 1, topic: "iron" });
  }
  const merged = await api.createMemory({ model: embedder() });
  await merged.add({ id: "old", text: "old" });
  await merged.import(lines.join(""));
  assert.equal(merged.size, 4);
});

test("refused imports change nothing; version 1 is read; redaction applies", async () => {
  const memory = await filled();
  const lines = await collect(memory.export());
  const target = await filled();
  const damaged = [
    [[lines[0].trim(), lines[1].slice(0, 60), lines[2]].join("\n"), "malformed", /Line 2/],
    [lines[0].replace(":2", ":3") + lines[1], "store_version", /version 3.*Nothing was changed/],
    [lines[0].replace(":48", ":47") + lines[1], "malformed", /47 components/],
    ["hello", "malformed", /Line 1/],
    [lines[0].replace("words", "others") + lines[1], "model_mismatch", /others/],
  ];
  for (const [text, code, pattern] of damaged) await assert.rejects(target.import(text, { mode: "replace" }), refusal(code, pattern));
  assert.deepEqual((await target.list()).map(({ id }) => id), ["bees#0", "iron#0", "moon#0"]);
  const vector = Array.from((await memory.get(["bees#0"]))[0].vector);
  const version1 = JSON.stringify({ version: 1, model: "words", records: [{ id: "v1", text: "old text", vector, metadata: { a: 1 }, createdAt: 5 }] }, null, 1);
  await target.import(version1);
  const [record] = await target.get(["v1"]);
  assert.deepEqual([record.document, record.part, record.created, record.metadata], ["v1", 0, 5, { a: 1 }]);
  const model = embedder();
  const careful = await api.createMemory({ model, redact: /queen/ });
  await careful.import(lines.join(""));
  assert.deepEqual(model.calls.map(({ texts }) => texts), [[TEXTS.bees.replace("queen", "[REDACTED]")]], "only what was redacted is embedded again");
});
