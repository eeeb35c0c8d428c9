/** A checkpoint of 300 MB from the simulated Hub: weights go from the network to the GPU and never through WebAssembly's memory. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { startHub } from "./support/hub.mjs";

const options = { timeout: 300_000 };
const LIMIT = 100e6;
const config = {
  architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_act: "silu", hidden_size: 1024, intermediate_size: 2816,
  num_attention_heads: 16, num_key_value_heads: 4, num_hidden_layers: 13, vocab_size: 4096, max_position_embeddings: 512,
  rms_norm_eps: 1e-5, rope_theta: 10000, tie_word_embeddings: true,
};
let site, page, hub, folder, size;

/** The header of a BF16 checkpoint of that configuration, and the size of the file. */
function checkpoint({ hidden_size: d, intermediate_size: f, num_key_value_heads: kv, num_attention_heads: heads, num_hidden_layers, vocab_size }) {
  const header = {};
  let at = 0;
  const add = (name, ...shape) => {
    const bytes = 2 * shape.reduce((a, b) => a * b);
    header[name] = { dtype: "BF16", shape, data_offsets: [at, (at += bytes)] };
  };
  add("model.embed_tokens.weight", vocab_size, d);
  for (let i = 0; i < num_hidden_layers; i++) {
    const layer = (name, ...shape) => add(`model.layers.${i}.${name}.weight`, ...shape);
    layer("input_layernorm", d);
    layer("self_attn.q_proj", d, d);
    layer("self_attn.k_proj", (d / heads) * kv, d);
    layer("self_attn.v_proj", (d / heads) * kv, d);
    layer("self_attn.o_proj", d, d);
    layer("post_attention_layernorm", d);
    layer("mlp.gate_proj", f, d);
    layer("mlp.up_proj", f, d);
    layer("mlp.down_proj", d, f);
  }
  add("model.norm.weight", d);
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return { start: Buffer.concat([length, text]), size: 8 + text.length + at };
}

/** Weights of about 0.02 with random signs and digits. */
function block() {
  const bytes = Buffer.alloc(1 << 20);
  for (let i = 0, x = 1; i < bytes.length; i += 2) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    bytes[i] = x >>> 24;
    bytes[i + 1] = x & 0x10000 ? 0x3c : 0xbc;
  }
  return bytes;
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-large-"));
  await mkdir(join(folder, "org"));
  hub = await startHub(folder);
  const file = checkpoint(config);
  size = file.size;
  const base64 = (data) => Buffer.from(data).toString("base64");
  await hub.control("file", { path: "org/large/config.json", base64: base64(JSON.stringify(config)) });
  await hub.control("repeat", { path: "org/large/model.safetensors", base64: base64(file.start), block: base64(block()), size });
  site = await openPackage();
  page = site.page;
}, options);

after(async () => {
  await site?.close();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Loads it in a worker and generates one token. WebAssembly memory never shrinks, so its final size was its peak. */
const load = (more) =>
  page.evaluate(
    async ([endpoint, more]) => {
      const start = performance.now();
      let fromCache;
      const onProgress = (p) => p.phase === "weights" && (fromCache = p.fromCache);
      const model = await jerboa.loadModel("org/large", { endpoint, onProgress, ...more });
      const seconds = (performance.now() - start) / 1000;
      const { ids } = await model.generate([1], { temperature: 0, maxTokens: 1, ignoreEos: true }).details;
      const memory = await model.memory();
      const { parameters, weights } = model.info;
      await model.unload();
      return { ids: [...ids], memory, parameters, weights, seconds, fromCache };
    },
    [hub.url, more],
  );

for (const [what, more] of [["from the network", {}], ["from the cache", {}], ["converted on the way", { weights: "f16" }]]) {
  test(`300 MB ${what}: under 100 MB of WebAssembly memory`, options, async (t) => {
    const { memory, parameters, ids, seconds, fromCache, weights } = await load(more);
    const mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
    t.diagnostic(`${mb(size)} of weights ${what} (${weights}), ${seconds.toFixed(1)} s: peak WebAssembly memory ${mb(memory.wasmBytes)}, GPU ${mb(memory.gpuBytes)}`);
    assert.ok(size >= 300e6 && parameters * 2 >= 300e6);
    assert.equal(fromCache, what !== "from the network");
    assert.equal(ids.length, 1);
    assert.ok(memory.wasmBytes < LIMIT, mb(memory.wasmBytes));
    assert.ok(memory.gpuBytes >= size, mb(memory.gpuBytes));
    assert.equal(weights, more.weights ?? "bf16");
  });
}
