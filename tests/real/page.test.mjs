/** Real published weights in Chromium, over the local Hub: SmolLM2 answers, MiniLM embeds, Whisper transcribes. `cargo xtask test real` prepares the weights. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPackage } from "../page/support/engine.mjs";
import { startHub } from "../page/support/hub.mjs";
import { ROOT } from "../page/support/paths.mjs";

/** SwiftShader computes on the CPU, and two models may run at a time. */
const options = { timeout: 1_200_000 };
const GOLDEN = join(ROOT, "tests/golden/real");

let site, hub;

const facts = async (name) => JSON.parse(await readFile(join(GOLDEN, `${name}.json`), "utf8"));

before(async () => {
  assert.ok(process.env.JERBOA_REAL, "JERBOA_REAL names the folder that tests/real/fetch.py wrote");
  hub = await startHub(join(process.env.JERBOA_REAL, "hub"));
  site = await openPackage({ "/audio/": join(GOLDEN, "audio") });
}, options);

after(async () => {
  await site?.close();
  hub?.close();
});

/** Runs `use` in the page with a model of the Hub, which is unloaded afterwards. */
const withModel = (repo, load, use, ...args) =>
  site.page.evaluate(
    async ([repo, load, use, args]) => {
      const model = await jerboa.loadModel(repo, load);
      try {
        return await (0, eval)(`(${use})`)(model, ...args);
      } finally {
        await model.unload();
      }
    },
    [repo, { ...load, endpoint: hub.url, cache: false }, use.toString(), args],
  );

test("smollm2", options, async (t) => {
  const { greedy, prompts } = await facts("smollm2");
  const { chat } = await facts("prompts");
  const found = await withModel(
    "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
    { weights: "f32", kv: "f32", maxContext: 256 },
    async (model, messages, prompt, maxTokens) => {
      // The continuation is compared by its ids; the chat, which is slow here, needs its first words only.
      const { ids } = await model.generate(prompt, { temperature: 0, maxTokens, ignoreEos: true }).details;
      const { choices, usage } = await model.chat.completions.create({ messages, temperature: 0, max_tokens: 12 });
      return { ids: [...ids], promptTokens: usage.prompt_tokens, text: choices[0].message.content };
    },
    chat,
    prompts.chat,
    greedy.chat.length,
  );
  t.diagnostic(found.text);
  assert.deepEqual(found.ids, greedy.chat);
  assert.equal(found.promptTokens, prompts.chat.length);
  assert.match(found.text, /Paris/);
});

test("minilm", options, async (t) => {
  const sentences = (await readFile(join(GOLDEN, "sentences.txt"), "utf8")).trimEnd().split("\n");
  const vectors = await withModel("sentence-transformers/all-MiniLM-L6-v2", {}, async (model, texts) => (await model.embed(texts)).map((vector) => Array.from(vector)), sentences);
  const file = await readFile(join(GOLDEN, "minilm.safetensors"));
  const start = 8 + Number(file.readBigUInt64LE(0));
  const expected = new Float32Array(file.buffer.slice(file.byteOffset + start, file.byteOffset + file.length));
  const width = expected.length / sentences.length;
  const errors = vectors.map((vector, row) => Math.hypot(...vector.map((value, i) => value - expected[row * width + i])));
  t.diagnostic(`${vectors.length} vectors of length 1, at most ${Math.max(...errors).toExponential(1)} apart`);
  assert.equal(vectors.length, sentences.length);
  assert.ok(Math.max(...errors) < 1e-5);
});

test("whisper-tiny.en", options, async (t) => {
  const { clips } = await facts("whisper-tiny.en");
  const found = await withModel(
    "openai/whisper-tiny.en",
    {},
    async (model, url) => {
      const file = new File([await (await fetch(url)).blob()], "jfk.wav");
      return (await model.audio.transcriptions.create({ file })).text;
    },
    `${site.url}/audio/jfk.wav`,
  );
  t.diagnostic(found);
  assert.equal(found.trim(), clips.jfk.plain.text);
});
