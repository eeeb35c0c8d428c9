/** Benchmarks embeddings against transformers.js, and vector search, in the browser; see embed.html. Weights are hashes. */

import { loadModel } from "../../dist/jerboa/index.js";
import { firstAdapter } from "../memory/support/adapter.mjs";
import { checkpoint } from "../memory/support/minilm.mjs";
import { measure } from "../memory/support/search-speed.mjs";

const ROOT = new URL("../../", import.meta.url);
const query = new URLSearchParams(location.search);
const number = (name, fallback) => Number(query.get(name) ?? fallback);
/** Words of one token each. */
const WORDS = "river stone winter garden letter window copper morning island thread engine valley silver harbour pepper meadow lantern bridge orchard violin".split(" ");

const post = (path, body) => fetch(path, { method: "POST", body }).catch(() => {});
async function say(line) {
  document.getElementById("lines").append(`${line}\n`);
  await post("/log", line);
}

const golden = async (name) => {
  const response = await fetch(new URL(`tests/golden/${name}`, ROOT));
  if (!response.ok) throw new Error(`${name}: HTTP ${response.status}`);
  return response;
};

/** MiniLM's files with random weights. */
async function files() {
  const weights = await (await golden("embed/weights.json")).json();
  const packed = (await golden("text/tokenizers/minilm/tokenizer.json.gz")).body.pipeThrough(new DecompressionStream("gzip"));
  const module = (type, path) => ({ type: `sentence_transformers.models.${type}`, path });
  const json = (value) => JSON.stringify(value);
  const contents = {
    "model.safetensors": checkpoint(weights),
    "tokenizer.json": await new Response(packed).text(),
    "config.json": json(weights.config),
    "sentence_bert_config.json": json({ max_seq_length: 256 }),
    "modules.json": json([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]),
    "1_Pooling/config.json": json({ pooling_mode_mean_tokens: true }),
  };
  return Object.entries(contents).map(([name, content]) => ({ name, file: new File([content], name) }));
}

/** Deterministic documents of 16 to `longest` tokens, including the two special tokens of each. */
function documents(count) {
  const longest = number("longest", 256);
  let state = 7;
  const next = (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  return Array.from({ length: count }, () => Array.from({ length: 14 + next(longest - 15) }, () => WORDS[next(WORDS.length)]).join(" "));
}

/** transformers.js with an ONNX checkpoint of the same shape, at the fastest of several batch sizes. */
async function peer(all) {
  const T = await import(query.get("peer"));
  Object.assign(T.env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/models/" });
  const ort = (kind) => `${location.origin}/npm/ort/ort-wasm-simd-threaded.asyncify.${kind}`;
  T.env.backends.onnx.wasm.wasmPaths = { mjs: ort("mjs"), wasm: ort("wasm") };
  const extract = await T.pipeline("feature-extraction", query.get("model"), { device: "webgpu", dtype: query.get("dtype") ?? "fp32" });
  const run = async (size) => {
    for (let i = 0; i < all.length; i += size) await extract(all.slice(i, i + size), { pooling: "mean", normalize: true });
  };
  let best = { size: 0, ms: Infinity };
  for (const size of [16, 64]) {
    await run(size);
    const start = performance.now();
    await run(size);
    const ms = performance.now() - start;
    if (ms < best.ms) best = { size, ms };
  }
  return { name: `transformers.js, batches of ${best.size}`, run: () => run(best.size) };
}

async function throughput(count, rounds) {
  const model = await loadModel(await files(), { weights: query.get("weights") ?? "auto" });
  const all = documents(count);
  const tokens = (await Promise.all(all.map((document) => model.tokenize(document)))).reduce((sum, ids) => sum + ids.length, 0);
  const engines = [{ name: `jerboa, ${model.info.weights}`, run: () => model.embed(all) }, await peer(all)];
  for (const { run } of engines) await run();
  const times = engines.map(() => []);
  for (let round = 0; round < rounds; round++) {
    for (const [i, { run }] of engines.entries()) {
      const start = performance.now();
      await run();
      times[i].push(performance.now() - start);
    }
  }
  const results = engines.map(({ name }, i) => {
    const sorted = times[i].sort((a, b) => a - b);
    const perSecond = (ms) => Number(((count * 1000) / ms).toFixed(1));
    return { name, median: perSecond(sorted[sorted.length >> 1]), least: perSecond(sorted.at(-1)), most: perSecond(sorted[0]) };
  });
  await model.unload();
  for (const { name, median, least, most } of results) await say(`${name}: ${median} documents/s (${least} to ${most}), ${count} documents, ${tokens} tokens`);
  return { texts: count, tokens, device: model.info.device, results };
}

async function main() {
  const adapter = await firstAdapter();
  if (!adapter) throw new Error("this browser offers no WebGPU adapter");
  if (adapter.info.architecture === "swiftshader" && !query.has("software")) throw new Error("this adapter is software (no GPU), so nothing is measured; add ?software to measure it anyway");
  const report = {};
  const [count, rows] = [number("texts", 1000), number("rows", 100_000)];
  if (count && query.get("peer")) report.throughput = await throughput(count, number("rounds", 3));
  if (rows) {
    report.search = await measure(new URL("dist/jerboa/memory/", ROOT), rows, 384);
    for (const { name, times, same } of report.search.results) {
      const sorted = [...times].sort((a, b) => a - b);
      await say(`search of ${rows}, ${name}: median ${sorted[sorted.length >> 1].toFixed(2)} ms, max ${sorted.at(-1).toFixed(2)} ms${same ? "" : " - THE RESULTS DIFFER"}`);
    }
  }
  return report;
}

window.result = await main().catch((error) => ({ error: String(error?.message ?? error) }));
await say(window.result.error ?? "done");
await post("/result", JSON.stringify(window.result));
