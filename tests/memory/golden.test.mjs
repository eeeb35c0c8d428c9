/** The golden files of encoders and retrieval are complete, and the hashed weights are equal in JavaScript and Python. */

import assert from "node:assert/strict";
import { readdir, readFile, stat } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { checkpoint } from "./support/minilm.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
const json = async (path) => JSON.parse(await readFile(root + path, "utf8"));

test("the hashed checkpoint has MiniLM's shape and Python's numbers", async () => {
  const weights = await json("tests/golden/embed/weights.json");
  const file = checkpoint(weights);
  const length = Number(new DataView(file.buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length)));
  let parameters = 0;
  for (const [name, { shape, head }] of Object.entries(weights.tensors)) {
    const [from] = header[name].data_offsets;
    assert.deepEqual([...new Float32Array(file.buffer, 8 + length + from, 3)], head, name);
    parameters += shape.reduce((a, b) => a * b, 1);
  }
  assert.equal(parameters, 22_565_376);
  const texts = await json("tests/golden/embed/texts.json");
  assert.equal(texts.length, 50);
  assert.equal(Math.max(...texts.map(({ ids }) => ids.length)), 256);
});

test("the retrieval set: every answer is a passage, and the bundled encoder finds most of them", async (t) => {
  const [passages, questions, expected] = await Promise.all(["passages", "questions", "expected"].map((name) => json(`tests/golden/retrieval/${name}.json`)));
  const ids = new Set(passages.map(({ id }) => id));
  assert.ok(ids.size >= 60 && ids.size === passages.length && questions.length >= 30);
  for (const { answer } of questions) assert.ok(ids.has(answer), answer);
  const found = questions.filter(({ answer }, i) => expected.ranking[i].passages.slice(0, 3).some(([id]) => id === answer));
  assert.ok(Math.abs(found.length / questions.length - expected["recall@3"]) < 1e-3);
  t.diagnostic(`recall@3 ${expected["recall@3"]}`);
  assert.ok(expected["recall@3"] >= 0.9);
});

test("the bundled encoder stays under 4 MB", async () => {
  const folder = `${root}www/public/models/words-encoder`;
  let total = 0;
  for (const name of await readdir(folder, { recursive: true })) {
    const info = await stat(`${folder}/${name}`);
    if (info.isFile()) total += info.size;
  }
  assert.ok(total <= 4_000_000, `${total} bytes`);
});
