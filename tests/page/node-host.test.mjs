/**
 * The public API outside a browser: in Node, and in Deno and Bun (deno.test.mjs and bun.test.mjs run this file there). WebGPU is the npm package
 * `webgpu` (Dawn), or Deno's own, on a software GPU.
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { assertBuilt } from "./support/built.mjs";
import { flac } from "./support/flac.mjs";
import { stories } from "./support/golden.mjs";
import { startHub } from "./support/hub.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { useSoftwareGpu } from "./support/software-gpu.mjs";
import { wav } from "./support/wav.mjs";

const options = { timeout: 400_000 };
/** Tokens that are compared: enough to leave the prompt behind, few enough for a software GPU. */
const TOKENS = 12;
const EXACT = { weights: "f32", kv: "f32", tune: "off" };
const VISION = `${ROOT}/www/public/models/tiny-vision`;
/** The tiny Whisper's fixed output: tests/golden/scripts/make_speech.py. */
const SAID = 'so, the catching (ed) well-er "ly"? upbara we\'s 10% éon!';
let folder, hub, jerboa, golden, want, model;

before(async () => {
  assertBuilt();
  useSoftwareGpu();
  folder = await mkdtemp(join(tmpdir(), "jerboa-node-"));
  process.env.HF_HOME = join(folder, "home");
  for (const name of ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"]) delete process.env[name];
  await cp(STORIES, join(folder, "repos/org/stories"), { recursive: true });
  hub = await startHub(join(folder, "repos"));
  process.env.HF_ENDPOINT = hub.url;
  // As a user's project finds the package: by its name and its exports.
  await mkdir(join(folder, "project/node_modules"), { recursive: true });
  await symlink(PACKAGE, join(folder, "project/node_modules/jerboa"));
  await writeFile(join(folder, "project/index.mjs"), 'export * from "jerboa";\n');
  jerboa = await import(pathToFileURL(join(folder, "project/index.mjs")).href);
  golden = await stories();
}, options);

after(async () => {
  await model?.unload();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

test("a folder's model runs in a thread of its own and gives the golden tokens", options, async () => {
  model = await jerboa.loadModel(STORIES, EXACT);
  assert.equal(model.info.worker, true, model.info.warnings.join(" "));
  assert.equal(model.info.task, "generate");
  assert.deepEqual([...(await model.tokenize(golden.prompt))], golden.prompt_ids);
  want = await model.detokenize(golden.newIds.slice(0, TOKENS));
  let text = "";
  let pieces = 0;
  for await (const piece of model.generate(golden.prompt, { maxTokens: TOKENS, temperature: 0 })) {
    text += piece;
    pieces++;
  }
  assert.equal(text, want);
  assert.ok(pieces > 1, "the text is streamed");
});

test("a generation is aborted, and the next one runs", options, async () => {
  const controller = new AbortController();
  const generation = model.generate(golden.prompt, { maxTokens: 500, temperature: 0, signal: controller.signal });
  for await (const _ of generation) controller.abort();
  const { finishReason, ids } = await generation.details;
  assert.equal(finishReason, "abort");
  assert.ok(ids.length < 500);
  assert.equal(await model.generate(golden.prompt, { maxTokens: 3, temperature: 0 }), await model.detokenize(golden.newIds.slice(0, 3)));
});

test("grammars load their module, and OpenAI's routes are served", options, async () => {
  assert.match(await model.generate(golden.prompt, { maxTokens: 4, temperature: 0, grammar: { type: "choice", choices: [" yes", " no"] } }), /^ (yes|no)$/);
  const fetch = jerboa.createFetch(model);
  const response = await fetch("http://127.0.0.1/v1/completions", { method: "POST", body: JSON.stringify({ model: "stories", prompt: golden.prompt, max_tokens: 3, temperature: 0 }) });
  assert.equal((await response.json()).choices[0].text, await model.detokenize(golden.newIds.slice(0, 3)));
});

test("a model on this thread gives the same, and both unload", options, async () => {
  const local = await jerboa.loadModel(pathToFileURL(STORIES), { ...EXACT, worker: false });
  assert.deepEqual([local.info.worker, local.info.warnings], [false, []]);
  assert.equal(await local.generate(golden.prompt, { maxTokens: TOKENS, temperature: 0 }), want);
  for (const each of [local, model]) {
    await each.unload();
    await assert.rejects(each.tokenize("x"), { code: "unloaded" });
  }
});

test("paths that do not exist, and machines without WebGPU, are refused with advice", options, async () => {
  await assert.rejects(jerboa.loadModel("./no-such-model"), { code: "missing_file", message: /no-such-model does not exist/ });
  // Far from any node_modules.
  await cp(PACKAGE, join(folder, "alone"), { recursive: true });
  if (globalThis.navigator?.gpu) return;
  const entry = JSON.stringify(pathToFileURL(join(folder, "alone/node/node.js")).href);
  const script = `import(${entry}).then(({ loadModel }) => loadModel(${JSON.stringify(STORIES)}, { worker: false })).catch(({ code, message }) => console.log(code, message))`;
  // Bun would download the missing package.
  const flags = process.versions.bun ? ["--no-install"] : [];
  const { stdout } = await promisify(execFile)(process.execPath, [...flags, "-e", script], { cwd: folder });
  assert.match(stdout, /^no_webgpu .*'webgpu' is not installed.*npm install webgpu/s);
});

test("a process may exit once a model is unloaded, whatever was being compiled", options, async () => {
  const entry = JSON.stringify(pathToFileURL(join(PACKAGE, "node/node.js")).href);
  for (const worker of [true, false]) {
    const load = `loadModel(${JSON.stringify(STORIES)}, ${JSON.stringify({ ...EXACT, worker })})`;
    const script = `import(${entry}).then(async ({ loadModel }) => { const model = await ${load}; await model.logits([1, 2]); await model.unload(); process.exit(7); })`;
    await assert.rejects(promisify(execFile)(process.execPath, ["-e", script], { cwd: PACKAGE }), { code: 7 });
  }
});

/** The files of a folder with the targets of links. */
async function layout(root) {
  const found = {};
  for (const name of await readdir(root, { recursive: true })) {
    const path = join(root, name);
    const kind = await lstat(path);
    if (kind.isSymbolicLink()) found[name] = await readlink(path);
    else if (kind.isFile()) found[name] = kind.size;
  }
  return found;
}

const requested = async (method) => (await hub.control("log")).filter((entry) => entry.method === method && !entry.path.startsWith("/api/")).map((entry) => entry.path);

test("models of the Hub go to huggingface_hub's cache, and come from it", options, async () => {
  const repo = join(process.env.HF_HOME, "hub/models--org--stories");
  const load = async () => {
    const loaded = await jerboa.loadModel("org/stories", { ...EXACT, worker: false });
    const { warnings, fromCache } = loaded.info;
    await loaded.persisted;
    await loaded.unload();
    return { warnings, fromCache };
  };
  await load();
  const commit = await readFile(join(repo, "refs/main"), "utf8");
  assert.match(commit, /^[0-9a-f]{40}$/);
  const files = await layout(repo);
  for (const name of ["config.json", "tokenizer.json", "model.safetensors"]) {
    const blob = files[`snapshots/${commit}/${name}`];
    assert.match(blob, /^\.\.\/\.\.\/blobs\/[0-9a-f]{40,64}$/, name);
    assert.equal(files[blob.slice("../../".length)], (await lstat(join(STORIES, name))).size, name);
    assert.deepEqual(await readFile(join(repo, `snapshots/${commit}`, name)), await readFile(join(STORIES, name)), name);
  }
  assert.deepEqual(Object.keys(files).filter((name) => /unfinished|parts/.test(name)), []);

  await hub.control("reset");
  await load();
  assert.deepEqual(await requested("GET"), [], "the second load downloads nothing");
  const [cached, ...others] = await jerboa.cachedModels();
  assert.deepEqual([cached.model, cached.revision, cached.endpoint, cached.complete, others.length], ["org/stories", "main", hub.url, true, 0]);

  await jerboa.deleteModel("org/stories", { endpoint: hub.url });
  assert.deepEqual(await jerboa.cachedModels(), []);
  assert.deepEqual(Object.keys(await layout(process.env.HF_HOME)).filter((name) => /models--|stories/.test(name)), []);
});

test("a snapshot that huggingface_hub downloaded loads without its content being requested", options, async () => {
  const repo = join(process.env.HF_HOME, "hub/models--org--stories");
  const head = await fetch(`${hub.url}/org/stories/resolve/main/config.json`, { method: "HEAD" });
  const commit = head.headers.get("x-repo-commit");
  await mkdir(join(repo, "blobs"), { recursive: true });
  await mkdir(join(repo, "refs"), { recursive: true });
  await mkdir(join(repo, `snapshots/${commit}`), { recursive: true });
  await writeFile(join(repo, "refs/main"), commit);
  for (const [i, name] of (await readdir(STORIES)).entries()) {
    const blob = i.toString(16).padStart(40, "0");
    await cp(join(STORIES, name), join(repo, "blobs", blob));
    await symlink(`../../blobs/${blob}`, join(repo, `snapshots/${commit}`, name));
  }
  await hub.control("reset");
  const loaded = await jerboa.loadModel("org/stories", { ...EXACT, worker: false });
  assert.equal(await loaded.generate(golden.prompt, { maxTokens: 2, temperature: 0 }), await loaded.detokenize(golden.newIds.slice(0, 2)));
  await loaded.persisted;
  await loaded.unload();
  assert.deepEqual((await requested("GET")).filter((path) => /safetensors|config\.json|tokenizer/.test(path)), []);
});

test("images are decoded: RGB, gray, and scaled frames of a video", options, async () => {
  const { default: sharp } = await import("sharp");
  const seen = await jerboa.loadModel(VISION, { tune: "off", maxContext: 1024 });
  const png = await sharp({ create: { width: 40, height: 30, channels: 3, background: { r: 90, g: 90, b: 90 } } }).png().toBuffer();
  const gray = await sharp(png).greyscale().png().toBuffer();
  const [fromBlob, fromUrl, fromGray] = [new Blob([png]), `data:image/png;base64,${png.toString("base64")}`, new Blob([gray])].map((image) => seen.encodeImage(image));
  const { data } = await fromBlob;
  assert.ok(data.length > 0 && data.every(Number.isFinite));
  assert.deepEqual((await fromUrl).data, data);
  assert.deepEqual((await fromGray).data, data, "equal grays");
  await assert.rejects(seen.encodeImage(new Blob([png.subarray(0, 60)])), { code: "request" });
  await seen.unload();
});

test("WAV and FLAC of any rate are transcribed", options, async () => {
  const whisper = await jerboa.loadModel(`${ROOT}/tests/golden/speech/whisper_words`, { tune: "off" });
  const tone = (t) => 0.4 * Math.sin(t * 2000);
  const files = {
    "8 kHz": wav({ rate: 8000, seconds: 3, sample: tone }),
    "stereo, 24 bits": wav({ rate: 44_100, seconds: 3, channels: 2, bits: 24, sample: (t, c) => (c ? 0 : tone(t)) }),
    FLAC: flac({ rate: 16_000, size: 16_000, blocks: [0, 1, 2].map((second) => Array.from({ length: 16_000 }, (_, i) => Math.round(32_767 * tone(second + i / 16_000)))) }),
  };
  for (const [name, bytes] of Object.entries(files)) {
    const { text } = await whisper.transcribe(new Blob([bytes]));
    assert.equal(text.trim().replaceAll(/\s+/g, " "), SAID, name);
  }
  await assert.rejects(whisper.transcribe(new Blob([Buffer.from("RIFF0000WAVEfmt garbage")])), { code: "request", message: /cannot be decoded/ });
  // Silence of hours compresses to nothing: the length is checked before the file is decoded.
  for (const hours of [{ blocks: [0], declared: 16_000 * 3600 * 50 }, { blocks: Array(3600).fill(0) }]) await assert.rejects(whisper.transcribe(new Blob([flac(hours)])), { code: "request", message: /hours long; the limit for this format is 4 hours/ });
  await whisper.unload();
});
