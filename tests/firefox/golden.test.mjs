/** tests/gpu/golden.html in Firefox: golden logits of a model of every family; with `JERBOA_FIREFOX=all` of all models, in more formats. */

import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { after, before, test } from "node:test";
import { assertBuilt } from "../page/support/built.mjs";
import { ROOT } from "../page/support/paths.mjs";
import { serve } from "../page/support/server.mjs";
import { ALL, launch } from "./support/firefox.mjs";

const options = { timeout: 1_200_000 };
const MODELS = `${ROOT}/tests/golden/models`;
/** A model of each family. */
const SAMPLE = [
  "bitnet_packed", "deepseek_v3", "ernie4_5", "exaone4", "falcon_h1", "gemma2", "gemma3", "gemma3n", "gemma4", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "granite_hybrid",
  "helium", "hunyuan_dense", "lfm2", "lfm2_moe", "llama", "llama_bitlinear", "mistral", "mixtral", "nemotron_h", "olmo2", "olmoe", "phi2", "phi3", "phimoe", "qwen2", "qwen3", "qwen3_5", "qwen3_moe",
  "qwen3_next", "smollm3", "starcoder2",
];
/** Models with two experts so close that half precision selects the other one, as in transformers: in f32 only. */
const CLOSE = ["olmoe_odd"];

/** Every decoder in one file of weights. */
const decoders = () => readdirSync(MODELS).filter((name) => ["generation_config.json", "model.safetensors"].every((file) => existsSync(`${MODELS}/${name}/${file}`)) && !/rerank/.test(name));

let server, browser;

before(async () => {
  assertBuilt();
  server = await serve({ "/": ROOT });
  browser = await launch();
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Opens the page with a query: all models pass. */
async function passes(cases, models) {
  const page = await browser.newPage();
  await page.goto(`${server.url}/tests/gpu/golden.html?cases=${cases}&models=${models.join(",")}`);
  await page.waitForFunction(() => window.result, { timeout: options.timeout, polling: 200 });
  const result = await page.evaluate(() => window.result);
  assert.ok(!result.error, result.error);
  assert.match(result.agent, /Firefox\//);
  assert.deepEqual(result.results.filter((r) => !r.ok), []);
  assert.equal(result.passed, models.length);
  await page.close();
}

test("logits equal transformers within 1e-2 with the defaults", options, () => passes("default", ALL ? decoders().filter((name) => !CLOSE.includes(name)) : SAMPLE));

test("logits equal transformers within 2e-4 in f32", options, () => passes("plain", ALL ? decoders() : ["llama", ...CLOSE]));

test("the bundled model's 200 tokens are the same in f16, in f32 and with a packed cache", options, async () => {
  for (const name of ["default", "plain", "packed"]) await passes(name, ["stories260K"]);
});
