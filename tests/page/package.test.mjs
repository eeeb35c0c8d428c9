/** The npm package as its users get it: packed, installed into a fresh Vite project, built, and run in Chromium against the reference. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { launch, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/places.mjs";
import { serve } from "./support/server.mjs";

const PATIENCE = 600_000;
/** Tokens where another case has all 200: a software GPU takes its time for each. */
const FEW = 40;
const run = promisify(execFile);

let project, installed, browser, golden;

/** What the user's page does: the result lands in `window.result`. */
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

/** Runs the user's page from a folder and compares what it found. */
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

test("the package holds what its exports name and nothing that it does not need", { timeout: PATIENCE }, async () => {
  const manifest = JSON.parse(await readFile(join(installed, "package.json"), "utf8"));
  const targets = Object.values(manifest.exports).flatMap((t) => (typeof t === "string" ? [t] : Object.values(t)));
  for (const target of targets) assert.ok((await stat(join(installed, target))).isFile(), target);
  assert.equal(manifest.dependencies, undefined);
  assert.equal(manifest.sideEffects, false);
});

test("types hold for a user with strict TypeScript", { timeout: PATIENCE }, async () => {
  await writeFile(
    join(project, "types.ts"),
    `import { loadModel, JerboaError, similarity, type ChatCompletionChunk } from "jerboa";
export async function main(): Promise<string> {
  const model = await loadModel("a/b", { onProgress: ({ loaded, total }) => void (loaded / total) });
  const text: string = await model.generate("x", { maxTokens: 3 });
  for await (const piece of model.generate("x")) piece.trim();
  const stream = await model.chat.completions.create({ messages: [{ role: "user", content: "x" }], stream: true });
  for await (const chunk of stream) { const c: ChatCompletionChunk = chunk; c.choices[0]?.delta.content?.trim(); }
  const answer = await model.chat.completions.create({ messages: [{ role: "user", content: "x" }] });
  const n: number = similarity(await model.embed("x"), [1, 2]);
  // @ts-expect-error an option that does not exist
  model.generate("x", { max_tokens: 3 });
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

test("built by Vite without configuration it generates the reference ids, in a worker and without", { timeout: PATIENCE }, async () => {
  await run("npx", ["vite", "build"], { cwd: project });
  const dist = join(project, "dist");
  await runIn({ "/": dist }, true);
  await runIn({ "/": dist }, false, FEW);
});

test("a plain module script needs no bundler", { timeout: PATIENCE }, async () => {
  const plain = join(project, "plain");
  await mkdir(plain);
  await cp(join(project, "main.js"), join(plain, "main.js"));
  const map = '{ "imports": { "jerboa": "/jerboa/index.js" } }';
  await writeFile(join(plain, "index.html"), `<!doctype html><meta charset="utf-8"><script type="importmap">${map}</script><script type="module" src="./main.js"></script>`);
  await runIn({ "/": plain, "/jerboa/": installed }, true, FEW);
});
