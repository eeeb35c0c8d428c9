/** Golden logits in the browser: loads tiny checkpoints with the built package and compares logits; see golden.html. */

import { deviceReport, loadModel } from "../../dist/jerboa/index.js";

const ROOT = new URL("../../", import.meta.url);
const MODELS = ["llama", "mistral", "smollm3", "qwen2", "qwen3"];
/** Maximum relative L2 distance: in f32, and with f16 in matmuls or in the KV cache. */
const EXACT = 2e-4;
const HALF = 1e-2;
const CASES = [
  { name: "default", options: {}, limit: HALF },
  // The tiled GEMM, which a software adapter does not use by default.
  { name: "tiles", options: { features: { force: "gemm.BM=64" } }, limit: HALF },
  { name: "f16 refused", options: { features: { f16: false } }, limit: HALF },
  { name: "plain", options: { features: { f16: false }, kv: "f32" }, limit: EXACT },
  { name: "no subgroups", options: { features: { f16: false, subgroups: false }, kv: "f32" }, limit: EXACT },
  // f32 weights do not use subgroup matrices.
  { name: "subgroup matrices", options: { weights: "f16" }, limit: HALF },
  { name: "no subgroup matrices", options: { weights: "f16", features: { matrix: false } }, limit: HALF },
  // The tile heights of shaders/variants.toml; models this small choose the smallest.
  ...[32, 64, 128, 256].map((rows) => ({ name: `subgroup matrices BM=${rows}`, options: { weights: "f16", features: { force: `gemm_matrix.BM=${rows}` } }, limit: HALF, needsMatrix: true })),
  { name: "packed", options: { kv: "packed" }, limit: HALF },
  // Needs a model with 4-bit weights, such as quant/qwen3_gptq.
  { name: "KV splits reduced in a matmul", options: { features: { force: "gemv_blocks.KV_SPLITS=16" } }, limit: HALF },
];

const query = new URLSearchParams(location.search);
const chosen = (all, name, of) => {
  const wanted = query.get(name)?.split(",");
  return wanted ? all.filter((each) => wanted.includes(of(each))) : all;
};

const post = (path, body) => fetch(path, { method: "POST", body }).catch(() => {});
async function say(line) {
  document.getElementById("lines").append(`${line}\n`);
  await post("/log", line);
}

async function file(path, name) {
  const response = await fetch(new URL(path, ROOT));
  if (!response.ok) throw new Error(`${path}: HTTP ${response.status}`);
  return new File([await response.blob()], name);
}

/** The tensors of a safetensors file: F32 as Float32Array, I64 as ids. */
async function tensors(path) {
  const bytes = await (await file(path, "golden")).arrayBuffer();
  const length = Number(new DataView(bytes).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
  const read = ({ dtype, data_offsets: [from, to] }) => {
    const data = bytes.slice(8 + length + from, 8 + length + to);
    return dtype === "I64" ? Array.from(new BigInt64Array(data), Number) : dtype === "F32" ? new Float32Array(data) : undefined;
  };
  return Object.fromEntries(Object.entries(header).filter(([name]) => name !== "__metadata__").map(([name, t]) => [name, read(t)]));
}

function relativeL2(found, expected) {
  if (found.length !== expected.length) return Infinity;
  let [error, size] = [0, 0];
  for (let i = 0; i < found.length; i++) {
    error += (found[i] - expected[i]) ** 2;
    size += expected[i] ** 2;
  }
  return Math.sqrt(error / size);
}

const same = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);

/** Tokens of a sequence, as in the native tests: llama_dynamic is compared beyond the positions that its config.json names. */
const MAX_CONTEXT = 256;

/** Compares one model in one case: distance of all logits, of the last row, and whether greedy ids equal the reference. */
async function compare(name, { options, limit }) {
  // Quantized checkpoints are in other folders than models, and have no generation_config.json.
  const [folder, names] = name.includes("/") ? [`tests/golden/${name}`, []] : [`tests/golden/models/${name}`, ["generation_config.json"]];
  const files = await Promise.all(["config.json", "model.safetensors", ...names].map((f) => file(`${folder}/${f}`, f)));
  const golden = await tensors(`${folder}/golden.safetensors`);
  const model = await loadModel(files, { maxContext: MAX_CONTEXT, ...options });
  try {
    const all = relativeL2(await model.logits(golden.input_ids, { all: true }), golden.logits);
    const last = relativeL2(await model.logits(golden.input_ids), golden.logits.slice(-model.info.vocabSize));
    const generate = { temperature: 0, maxTokens: golden.greedy.length, ignoreEos: true };
    const { ids } = await model.generate(golden.input_ids, generate).details;
    const { f16, subgroups, matrix } = model.info.device;
    return { all, last, greedy: same(ids, golden.greedy), ok: all < limit && last < limit && same(ids, golden.greedy), f16, subgroups, matrix, kv: model.info.kv };
  } finally {
    await model.unload();
  }
}

/** Compares the bundled model's 200 greedy ids, which must be equal in every precision. */
async function stories({ options }) {
  const folder = "www/public/models/stories260K";
  const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
  const golden = JSON.parse(await (await file("tests/golden/stories260K/golden.json", "golden")).text());
  const model = await loadModel(await Promise.all(names.map((f) => file(`${folder}/${f}`, f))), options);
  try {
    const wanted = golden.ids.slice(golden.prompt_ids.length);
    const { ids } = await model.generate(golden.prompt_ids, { temperature: 0, maxTokens: wanted.length, ignoreEos: true }).details;
    return { greedy: same(ids, wanted), ok: same(ids, wanted) };
  } finally {
    await model.unload();
  }
}

async function all() {
  const result = { agent: navigator.userAgent, device: await deviceReport(), results: [], skipped: [] };
  await say(`device: ${JSON.stringify(result.device)}`);
  for (const entry of chosen(CASES, "cases", (c) => c.name)) {
    if (entry.needsMatrix && !result.device.matrix) {
      // A fallback kernel would not test them.
      result.skipped.push(entry.name);
      await say(`skipped, because the device has no subgroup matrices that the engine supports: ${entry.name}`);
      continue;
    }
    for (const model of query.get("models")?.split(",") ?? [...MODELS, "stories260K"]) {
      const found = await (model === "stories260K" ? stories(entry) : compare(model, entry)).catch((e) => ({ ok: false, error: `${e.code}: ${e.message}` }));
      result.results.push({ model, case: entry.name, limit: entry.limit, ...found });
      await say(JSON.stringify(result.results.at(-1)));
    }
  }
  result.passed = result.results.filter((r) => r.ok).length;
  result.failed = result.results.length - result.passed;
  await say(`${result.passed} passed, ${result.failed} failed, ${result.skipped.length} cases skipped`);
  return result;
}

window.result = await all().catch((e) => ({ failed: 1, error: `${e.code}: ${e.message}` }));
await post("/result", JSON.stringify(window.result));
