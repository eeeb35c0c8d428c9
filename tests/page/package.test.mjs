/** The npm package as users get it: packed, installed into a fresh Vite project, built, and run in Chromium against the reference. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { launch, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const PATIENCE = 600_000;
/** Fewer tokens where another case covers all 200: a software GPU is slow. */
const FEW = 40;
const run = promisify(execFile);

let project, installed, browser, golden;

/** The user's page; the result is stored in `window.result`. */
const MAIN = `
import { JerboaError, loadModel } from "jerboa";

window.run = async (worker, maxTokens) => {
  const model = await loadModel(new URL("/model/", location.href), { worker });
  const generation = model.generate("Once upon a time", { maxTokens, temperature: 0 });
  let text = "";
  for await (const piece of generation) text += piece;
  const { ids, finishReason } = await generation.details;
  const prompt = [...(await model.tokenize("Once upon a time"))];
  const logits = await model.logits(prompt);
  const refusal = await model.chat.completions.create({ messages: [{ role: "user", content: "x" }] }).catch((e) => [e instanceof JerboaError, e.code]);
  const { info } = model;
  await model.unload();
  const unloaded = await model.tokenize("x").catch((e) => e.code);
  return { text, ids, finishReason, prompt, argmax: logits.indexOf(Math.max(...logits)), refusal, worker: info.worker, warnings: info.warnings, unloaded };
};
`;

before(async () => {
  assertBuilt();
  golden = await stories();
  project = await mkdtemp(join(tmpdir(), "jerboa-package-"));
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", project, PACKAGE]);
  const parsed = JSON.parse(stdout);
  const [packed] = Array.isArray(parsed) ? parsed : Object.values(parsed);
  console.log(`jerboa ${packed.version}: ${packed.size} bytes packed, ${packed.unpackedSize} unpacked, ${packed.files.length} files`);
  const { devDependencies } = JSON.parse(await readFile(`${ROOT}/www/package.json`, "utf8"));
  await writeFile(
    join(project, "package.json"),
    JSON.stringify({
      private: true,
      type: "module",
      dependencies: { jerboa: `file:./${packed.filename}` },
      devDependencies: { vite: devDependencies.vite },
    }),
  );
  await writeFile(join(project, "index.html"), '<!doctype html><meta charset="utf-8"><script type="module" src="./main.js"></script>');
  await writeFile(join(project, "main.js"), MAIN);
  await run("npm", ["install", "--prefer-offline", "--no-audit", "--no-fund"], { cwd: project });
  installed = join(project, "node_modules/jerboa");
  browser = await launch();
}, { timeout: PATIENCE });

after(async () => {
  await browser?.close();
  if (project) await rm(project, { recursive: true, force: true });
});

/** Runs the user's page from a folder and compares its result. */
async function runIn(mounts, worker, tokens = golden.newIds.length) {
  const server = await serve({ ...mounts, "/model/": STORIES });
  const page = await browser.newPage();
  const problems = watch(page);
  try {
    await page.goto(server.url);
    await warmUp(page);
    await page.waitForFunction(() => window.run);
    const result = await page.evaluate((given) => window.run(...given), [worker, tokens]);
    assert.deepEqual(problems.filter((p) => !/404/.test(p)), []);
    assertReference(result, worker, tokens);
  } finally {
    await page.close();
    await server.close();
  }
}

function assertReference(result, worker, tokens) {
  assert.deepEqual(result.prompt, golden.prompt_ids);
  assert.deepEqual(result.ids, golden.newIds.slice(0, tokens));
  assert.ok(result.text && golden.newText.startsWith(result.text), result.text);
  if (tokens === golden.newIds.length) assert.equal(result.text, golden.newText);
  assert.equal(result.finishReason, "length");
  assert.equal(result.argmax, golden.newIds[0]);
  assert.deepEqual(result.refusal, [true, "chat_template"]);
  assert.equal(result.worker, worker, result.warnings.join(" "));
  assert.equal(result.unloaded, "unloaded");
}

test("the package contains what its exports name and nothing unnecessary", { timeout: PATIENCE }, async () => {
  const manifest = JSON.parse(await readFile(join(installed, "package.json"), "utf8"));
  const targets = Object.values(manifest.exports).flatMap((t) => (typeof t === "string" ? [t] : Object.values(t)));
  for (const target of targets) assert.ok((await stat(join(installed, target))).isFile(), target);
  assert.equal(manifest.dependencies, undefined);
  // The entry for Node sets its host; nothing for pages has side effects.
  assert.deepEqual(manifest.sideEffects, ["./node/*.js"]);
});

test("types compile for a user with strict TypeScript", { timeout: PATIENCE }, async () => {
  await writeFile(
    join(project, "types.ts"),
    `import { createFetch, loadModel, JerboaError, similarity, type ChatCompletionChunk, type Tuning } from "jerboa";
export async function main(): Promise<string> {
  const model = await loadModel("a/b", { onProgress: ({ loaded, total }) => void (loaded / total) });
  const text: string = await model.generate("x", { maxTokens: 3 });
  for await (const piece of model.generate("x")) piece.trim();
  const stream = await model.chat.completions.create({ messages: [{ role: "user", content: "x" }], stream: true });
  for await (const chunk of stream) { const c: ChatCompletionChunk = chunk; c.choices[0]?.delta.content?.trim(); }
  const answer = await model.chat.completions.create({ messages: [{ role: "user", content: "x" }] });
  const n: number = similarity(await model.embed("x"), [1, 2]);
  // @ts-expect-error a code that does not exist
  if (new JerboaError("aborted", "x").code === "out_of_memroy") return "";
  // @ts-expect-error an option that does not exist
  model.generate("x", { max_tokens: 3 });
  const first = await loadModel(["a/b", new URL("https://x.test/m/")], { wasmUrl: "/x.wasm", workerUrl: new URL("https://x.test/w.js") });
  const tuning: Tuning | undefined = first.info.tuning;
  const { choices } = await first.completions.create({ prompt: "x" });
  const handler: typeof fetch = createFetch(first);
  const { data } = await first.embeddings.create({ input: "x" });
  const numbers: number[] = data[0]!.embedding;
  const { data: [coded] } = await first.embeddings.create({ input: "x", encoding_format: "base64" });
  const text64: string = coded!.embedding;
  const reason: "stop" | "length" | "tool_calls" = answer.choices[0]!.finish_reason;
  void [tuning, choices, handler, numbers, text64, reason];
  try { await model.unload(); } catch (e) { if (e instanceof JerboaError) return e.code; }
  return text + n + (answer.choices[0]?.message.content ?? "");
}
`,
  );
  const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
  const flags = ["--noEmit", "--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable", "--types", ""];
  const { stdout } = await run(process.execPath, [tsc, ...flags, "types.ts"], { cwd: project }).catch((error) => error);
  assert.equal(stdout, "");
});

test("types match those of the official client", { timeout: PATIENCE }, async () => {
  await writeFile(
    join(project, "openai-types.ts"),
    `import type OpenAI from "openai";
import type { ChatCompletion, ChatCompletionCreateParams, ChatMessage, CreateEmbeddingResponse, Model, Tool } from "jerboa";
declare const model: Model;
declare const tool: OpenAI.ChatCompletionFunctionTool;
declare const answer: ChatCompletion;
declare const vectors: CreateEmbeddingResponse;
declare const system: OpenAI.ChatCompletionSystemMessageParam;
declare const assistant: OpenAI.ChatCompletionMessage;
const tools: Tool[] = [tool];
const messages: ChatMessage[] = [{ role: "user", content: "x" }, { role: "assistant", content: assistant.content, refusal: assistant.refusal }, { role: "system", content: system.content }];
const params: ChatCompletionCreateParams & OpenAI.ChatCompletionCreateParams = { model: "x", messages: [{ role: "user", content: "x" }], tools, temperature: 0, user: "u" };
const theirs: OpenAI.ChatCompletion = answer;
const embedded: OpenAI.CreateEmbeddingResponse = vectors;
export const all = [messages, params, theirs, embedded, model.chat.completions.create(params)];
`,
  );
  const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
  const paths = join(project, "tsconfig.json");
  const compilerOptions = { noEmit: true, strict: true, skipLibCheck: true, target: "es2022", module: "es2022", moduleResolution: "bundler", lib: ["es2022", "dom", "dom.iterable"], types: [], paths: { openai: [dirname(createRequire(import.meta.url).resolve("openai"))] } };
  await writeFile(paths, JSON.stringify({ compilerOptions, files: ["openai-types.ts"] }));
  const { stdout } = await run(process.execPath, [tsc, "-p", paths], { cwd: project }).catch((error) => error);
  assert.equal(stdout, "");
});

test("built by Vite without configuration, it generates the reference ids, with and without a worker", { timeout: PATIENCE }, async () => {
  await run("npx", ["vite", "build"], { cwd: project });
  const dist = join(project, "dist");
  await runIn({ "/": dist }, true);
  await runIn({ "/": dist }, false, FEW);
});

/** What a page adds if its bundler does not copy the package's files. */
const CONFIGURED = `import { configure } from "jerboa";
configure({ workerUrl: "./jerboa-worker.js", wasmUrl: "./jerboa_bg.wasm" });
${MAIN}`;

/** A folder with a page that runs its main.js, and the files to copy there. */
async function pageFolder(name, script, copies = {}) {
  const folder = join(project, name);
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, "index.html"), `<!doctype html><meta charset="utf-8">${script}`);
  for (const [to, from] of Object.entries(copies)) await cp(from, join(folder, to));
  return folder;
}

const MODULE = '<script type="module" src="./main.js"></script>';

test("webpack 5 needs no configuration", { timeout: PATIENCE }, async () => {
  const { default: webpack } = await import("webpack");
  const out = await pageFolder("with-webpack", '<script defer src="./main.js"></script>');
  const settings = { mode: "production", context: project, entry: "./main.js", output: { path: out, filename: "main.js" }, performance: { hints: false } };
  const stats = await promisify(webpack)(settings);
  assert.equal(stats.hasErrors(), false, stats.toString({ all: false, errors: true }));
  await runIn({ "/": out }, true, FEW);
});

test("esbuild takes the worker as a second entry", { timeout: PATIENCE }, async () => {
  const { build } = await import("esbuild");
  const out = await pageFolder("with-esbuild", MODULE, { "jerboa_bg.wasm": join(installed, "jerboa_bg.wasm") });
  await writeFile(join(project, "configured.js"), CONFIGURED);
  const entryPoints = { main: "./configured.js", "jerboa-worker": "jerboa/worker" };
  await build({ absWorkingDir: project, entryPoints, bundle: true, splitting: true, format: "esm", minify: true, outdir: out, logLevel: "error" });
  await runIn({ "/": out }, true, FEW);
});

test("Rollup takes the worker as a second entry", { timeout: PATIENCE }, async () => {
  const [{ rollup }, { default: resolve }] = await Promise.all([import("rollup"), import("@rollup/plugin-node-resolve")]);
  const out = await pageFolder("with-rollup", MODULE, { "jerboa_bg.wasm": join(installed, "jerboa_bg.wasm") });
  await writeFile(join(project, "configured.js"), CONFIGURED);
  const bundle = await rollup({
    input: { main: join(project, "configured.js"), "jerboa-worker": join(installed, "worker.js") },
    plugins: [resolve({ browser: true })],
    onwarn: (warning) => assert.fail(warning.message),
  });
  await bundle.write({ dir: out, format: "es", entryFileNames: "[name].js" });
  await bundle.close();
  await runIn({ "/": out }, true, FEW);
});

test("from another server, unbundled, it still runs in a worker", { timeout: PATIENCE }, async () => {
  const cdn = await serve({ "/jerboa/": installed }, { "Access-Control-Allow-Origin": "*" });
  try {
    const map = `{ "imports": { "jerboa": "${cdn.url}/jerboa/index.js" } }`;
    const out = await pageFolder("from-elsewhere", `<script type="importmap">${map}</script>${MODULE}`, { "main.js": join(project, "main.js") });
    await runIn({ "/": out }, true, FEW);
  } finally {
    await cdn.close();
  }
});

test("npm would publish it without a warning", { timeout: PATIENCE }, async () => {
  const { stdout, stderr } = await run("npm", ["publish", "--dry-run", "--json"], { cwd: PACKAGE });
  // npm's message about this machine: no user is logged in.
  const complaints = stderr.split("\n").filter((line) => /^npm (warn|error)/i.test(line) && !/nodedir|logged in/.test(line));
  assert.deepEqual(complaints, []);
  const parsed = JSON.parse(stdout);
  const { files } = parsed.files ? parsed : Object.values(parsed)[0];
  const names = files.map(({ path }) => path);
  for (const name of ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "index.js", "index.d.ts", "worker.js", "jerboa_bg.wasm", "grammar.js", "grammar_bg.wasm", "layers/index.js", "layers/index.d.ts", "train/index.js", "train/index.d.ts", "train/worker.js", "train/train_bg.wasm"]) assert.ok(names.includes(name), name);
  assert.ok(names.every((name) => /\.(js|js\.map|d\.ts|wasm|json)$|^README\.md$|^LICENSE/.test(name)), names.join(" "));
});

test("a plain module script needs no bundler", { timeout: PATIENCE }, async () => {
  const plain = join(project, "plain");
  await mkdir(plain);
  await cp(join(project, "main.js"), join(plain, "main.js"));
  const map = '{ "imports": { "jerboa": "/jerboa/index.js" } }';
  await writeFile(join(plain, "index.html"), `<!doctype html><meta charset="utf-8"><script type="importmap">${map}</script><script type="module" src="./main.js"></script>`);
  await runIn({ "/": plain, "/jerboa/": installed }, true, FEW);
});
