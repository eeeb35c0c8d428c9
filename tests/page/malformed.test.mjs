/** Invalid inputs, each with its own error from the real engine in Chromium. Afterwards a valid model loads on the same page,
 * in the same WebAssembly instance, and generates the reference's ids: after all files that are refused before a device is
 * requested, and after each of the others. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { WEBGPU_SINCE } from "./support/browser.mjs";
import { openPackage } from "./support/engine.mjs";
import { ROOT } from "./support/paths.mjs";

const options = { timeout: 180_000 };
let site, page;

before(async () => {
  site = await openPackage({ "/model/": `${ROOT}/tests/golden/models/llama` });
  page = site.page;
  await page.evaluate(prepare);
}, options);

after(async () => {
  await site?.close();
});

/** In the page: the parts of the valid model, and ways to reassemble them. */
async function prepare() {
  const bytes = async (path) => new Uint8Array(await (await fetch(path)).arrayBuffer());
  const [file, golden, config] = [await bytes("/model/model.safetensors"), await bytes("/model/golden.safetensors"), await (await fetch("/model/config.json")).json()];
  const header = (file) => {
    const length = Number(new DataView(file.buffer).getBigUint64(0, true));
    return { header: JSON.parse(new TextDecoder().decode(file.subarray(8, 8 + length))), data: file.slice(8 + length) };
  };
  const ids = (name) => {
    const { header: tensors, data } = header(golden);
    return [...new BigInt64Array(data.slice(...tensors[name].data_offsets).buffer)].map(Number);
  };
  const utf8 = (value) => new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value));
  const write = ({ header, data }) => {
    const text = utf8(header);
    const length = new DataView(new ArrayBuffer(8));
    length.setBigUint64(0, BigInt(text.length), true);
    return new Blob([length, text, data]);
  };
  // On the page's own thread, so that a broken engine would also break the next model.
  const load = (model, more = {}) => jerboa.loadModel(model, { worker: false, ...more });
  const files = (weights, configuration = config, more = {}) => [
    new File([weights], "model.safetensors"),
    new File([utf8(configuration)], "config.json"),
    ...Object.entries(more).map(([name, content]) => new File([utf8(content)], name)),
  ];
  /** The weights after a change of their parts. */
  const changed = (change) => {
    const parts = header(file);
    change(parts);
    return write(parts);
  };
  const tell = (error) => ({ code: error.code, message: error.message, name: error.name });
  const good = async () => {
    const model = await load(files(file));
    const { ids: found } = await model.generate(ids("input_ids"), { temperature: 0, maxTokens: 8, ignoreEos: true }).details;
    await model.unload();
    return { found: [...found], expected: ids("greedy").slice(0, 8) };
  };
  /** Runs something on devices without memory for a cache, which report it in an event after the buffer was created. */
  const short = async (action) => {
    const { createBuffer } = GPUDevice.prototype;
    GPUDevice.prototype.createBuffer = function (descriptor) {
      if (descriptor.label === "kv cache") {
        const error = new GPUOutOfMemoryError("Not enough memory left.");
        this.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
      }
      return createBuffer.call(this, descriptor);
    };
    try {
      return await action();
    } finally {
      GPUDevice.prototype.createBuffer = createBuffer;
    }
  };
  window.kit = { jerboa, file, config, files, changed, load, short, tell, good, ids, utf8 };
}

/** Loads what `make` (in the page) returns; returns its error. */
async function refused(make, code, message) {
  const error = await page.evaluate(`(async () => {
    try {
      const [files, options] = (${make})(kit);
      await (await kit.load(files, options)).unload();
      return { code: "none" };
    } catch (error) {
      return kit.tell(error);
    }
  })()`);
  assert.deepEqual([error.code, error.name], [code, "JerboaError"], error.message);
  assert.match(error.message, message);
}

async function usable() {
  const { found, expected } = await page.evaluate(() => kit.good());
  assert.deepEqual(found, expected, "a good model works");
}

/** A test after which the valid model must work. */
const leavesUsable = (what, check) =>
  test(what, options, async () => {
    await check();
    await usable();
  });

const first = `Object.keys(p.header).find((n) => n.includes("layers.1.mlp.up"))`;

test("the valid model", options, usable);

test("a truncated file", options, () => refused((k) => [k.files(k.file.slice(0, -1000))], "malformed", /model\.safetensors.*(out of range|cut off)/));

test("offsets that overlap", options, () =>
  refused(`(k) => [k.files(k.changed((p) => { const t = p.header[${first}]; t.data_offsets = t.data_offsets.map((o) => o - 8); }))]`, "malformed", /overlaps .* by 8/));

test("offsets that are out of range", options, () =>
  refused(`(k) => [k.files(k.changed((p) => { const t = p.header[${first}]; t.data_offsets[1] += 1e9; t.data_offsets[0] += 1e9; }))]`, "malformed", /out of range/));

test("a header of 2^63 bytes", options, () =>
  refused((k) => {
    const bytes = k.file.slice();
    new DataView(bytes.buffer).setBigUint64(0, 1n << 63n, true);
    return [k.files(bytes)];
  }, "malformed", /length is 9223372036854775808 bytes/));

test("an unknown dtype", options, () =>
  refused(`(k) => [k.files(k.changed((p) => { p.header[${first}].dtype = "F12"; }))]`, "unsupported_encoding", /layers\.1\.mlp\.up_proj\.weight is stored as F12/));

test("a missing tensor", options, () =>
  refused(`(k) => [k.files(k.changed((p) => { const n = ${first}; p.header.other = p.header[n]; delete p.header[n]; }))]`, "missing_tensor", /no tensor model\.layers\.1\.mlp\.up_proj\.weight/));

test("a shape that differs from the configuration's", options, async () => {
  await refused(`(k) => [k.files(k.changed((p) => { p.header[${first}].shape.reverse(); }))]`, "shape", /up_proj\.weight has shape \[48, 56\].*\[56, 48\]/);
  await refused((k) => [k.files(k.file, { ...k.config, hidden_size: 52 })], "shape", /52/);
});

test("an unknown architecture", options, () =>
  refused((k) => [k.files(k.file, { ...k.config, architectures: ["UnheardOf"], model_type: "unheard_of" })], "unknown_architecture", /'UnheardOf' is not supported.*#what-runs$/));

test("a configuration with no heads, or impossible ones", options, async () => {
  await refused((k) => [k.files(k.file, { ...k.config, num_attention_heads: 0 })], "config", /num_attention_heads/);
  await refused((k) => [k.files(k.file, { ...k.config, num_key_value_heads: 3 })], "config", /num_key_value_heads/);
  await refused((k) => [k.files(k.file, { ...k.config, head_dim: 13 })], "config", /head_dim/);
  await refused((k) => [k.files(k.file, { ...k.config, num_hidden_layers: -1 })], "config", /num_hidden_layers/);
  await refused((k) => [k.files(k.file, "<html>not found</html>")], "config", /config\.json/);
});

test("layers that the configuration does not count are warned of", options, async () => {
  const warnings = await page.evaluate(async () => {
    const found = [];
    for (const more of [{}, { num_nextn_predict_layers: 0 }, { num_hidden_layers: 1 }, { num_hidden_layers: 1, num_nextn_predict_layers: 0 }, { num_hidden_layers: 1, num_nextn_predict_layers: 1 }]) {
      const model = await kit.load(kit.files(kit.file, { ...kit.config, ...more }));
      found.push(model.info.warnings.filter((warning) => warning.includes("layers")));
      await model.unload();
    }
    return found;
  });
  const warning = "The checkpoint has 2 layers, but its configuration names 1: the others are not used. Correct the number of layers in config.json, unless the model was shortened on purpose.";
  assert.deepEqual(warnings, [[], [], [warning], [warning], []]);
});

test("a tokenizer.json that is not JSON", options, async () => {
  await refused((k) => [k.files(k.file, k.config, { "tokenizer.json": "<html>" })], "tokenizer", /tokenizer.*JSON/i);
  await refused((k) => [k.files(k.file, k.config, { "tokenizer.json": "{}" })], "tokenizer", /tokenizer/i);
});

test("the valid model after all of these", options, usable);

leavesUsable("weights that are no numbers are noticed in the logits", async () => {
  const errors = await page.evaluate(async () => {
    const weights = kit.changed((p) => {
      const [begin, end] = p.header["model.layers.1.input_layernorm.weight"].data_offsets;
      p.data.fill(0xff, begin, end);
    });
    const model = await kit.load(kit.files(weights));
    const run = (more) => model.generate(kit.ids("input_ids"), { maxTokens: 8, ...more }).details;
    const errors = [];
    for (const more of [{ temperature: 0 }, { temperature: 1, topK: 5 }, { temperature: 0, logprobs: true }]) {
      errors.push(await run(more).then(() => ({ code: "none" }), kit.tell));
    }
    await model.unload();
    return errors;
  });
  for (const error of errors) {
    assert.equal(error.code, "not_finite", error.message);
    assert.match(error.message, /logits are not finite.*load the model/);
  }
});

leavesUsable("no WebGPU at all", async () => {
  await page.evaluate(() => Object.defineProperty(Navigator.prototype, "gpu", { value: (window.realGpu = navigator.gpu) && undefined, configurable: true }));
  const error = await page.evaluate(() => kit.load(kit.files(kit.file)).then(() => ({ code: "none" }), kit.tell));
  await page.evaluate(() => Object.defineProperty(Navigator.prototype, "gpu", { value: realGpu, configurable: true }));
  assert.equal(error.code, "no_webgpu", error.message);
  assert.match(error.message, /this page or worker has no navigator\.gpu/);
  const manuals = await Promise.all(["README.md", "pkg-template/README.md"].map((file) => readFile(`${ROOT}/${file}`, "utf8")));
  for (const said of [error.message, ...manuals]) for (const since of WEBGPU_SINCE) assert.match(said, since);
});

leavesUsable("WebGPU without an adapter", async () => {
  await page.evaluate(() => {
    window.requestAdapter = GPU.prototype.requestAdapter;
    GPU.prototype.requestAdapter = () => Promise.resolve(null);
  });
  const error = await page.evaluate(() => kit.load(kit.files(kit.file)).then(() => ({ code: "none" }), kit.tell));
  await page.evaluate(() => void (GPU.prototype.requestAdapter = requestAdapter));
  assert.equal(error.code, "no_webgpu", error.message);
  assert.match(error.message, /no adapter was found.*hardware acceleration/);
});

leavesUsable("a device without enough memory", async () => {
  // Above a limit that the device reports: a cache that is too large.
  await refused((k) => [k.files(k.file), { maxContext: 6_000_000, kv: "f32" }], "out_of_memory", /kv cache needs \d+ bytes, but only \d+ are allowed\..*smaller 'maxContext'/);
  // A failure that the device reports later, in an event.
  const error = await page.evaluate(() => kit.short(() => kit.load(kit.files(kit.file)).then(() => ({ code: "none" }), kit.tell)));
  assert.equal(error.code, "out_of_memory", error.message);
  assert.match(error.message, /model needs \d+ bytes, but only \d+ are allowed\..*smaller/);
});

leavesUsable("a device that runs out of memory during a conversation", async () => {
  const { refused, before, after, expected } = await page.evaluate(async () => {
    const model = await kit.load(kit.files(kit.file), { kvGrowth: 8 });
    const prompt = kit.ids("input_ids");
    const ids = async (more) => [...(await model.generate(prompt, { temperature: 0, ignoreEos: true, ...more }).details).ids];
    const before = await ids({ maxTokens: 2 });
    const [refused, again] = await kit.short(async () => [await ids({ maxTokens: 32 }).then(() => ({ code: "none" }), kit.tell), await ids({ maxTokens: 2 })]);
    const after = [again, await ids({ maxTokens: 32 })];
    await model.unload();
    return { refused, before, after, expected: kit.ids("greedy") };
  });
  assert.equal(refused.code, "out_of_memory", refused.message);
  assert.deepEqual([before, ...after], [expected.slice(0, 2), expected.slice(0, 2), expected]);
});

leavesUsable("a device that is lost and does not come back", async () => {
  const error = await page.evaluate(async () => {
    const { requestDevice } = GPUAdapter.prototype;
    let device;
    GPUAdapter.prototype.requestDevice = async function (...given) {
      return (device = await requestDevice.apply(this, given));
    };
    const model = await kit.load(kit.files(kit.file));
    GPUAdapter.prototype.requestDevice = () => Promise.reject(new DOMException("The GPU is gone.", "OperationError"));
    device.destroy();
    const run = () => model.generate(kit.ids("input_ids"), { temperature: 0, maxTokens: 8 }).details;
    const error = await run().then(() => ({ code: "none" }), kit.tell);
    await model.unload();
    GPUAdapter.prototype.requestDevice = requestDevice;
    return error;
  });
  assert.equal(error.code, "device_lost", error.message);
  assert.match(error.message, /Load the model again/);
});
