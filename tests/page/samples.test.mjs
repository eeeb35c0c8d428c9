/**
 * Every sample of the documents compiles in a fresh strict TypeScript project as it stands, and runs in Chromium over the
 * fake engine. The first sample of each page of the site is complete.
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { build } from "esbuild";
import { launch, PATIENCE_MS, watch } from "./support/browser.mjs";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { wav } from "./support/wav.mjs";

/** The compiler options of a new Vite project. */
const STRICT = {
  target: "ES2022",
  lib: ["ES2022", "DOM", "DOM.Iterable", "DOM.AsyncIterable"],
  module: "ESNext",
  moduleResolution: "bundler",
  moduleDetection: "force",
  verbatimModuleSyntax: true,
  skipLibCheck: true,
  noEmit: true,
  jsx: "react-jsx",
  types: [],
  strict: true,
  noUncheckedIndexedAccess: true,
  noUnusedLocals: true,
  noUnusedParameters: true,
  noFallthroughCasesInSwitch: true,
  erasableSyntaxOnly: true,
  allowJs: true,
  checkJs: true,
};

/** What the pages of the samples contain. */
const PAGE = `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sample</title><link rel="icon" href="data:,">
<script type="importmap">{ "imports": { "jerboa": "/facade/index.js", "jerboa/memory": "/facade/memory/index.js", "jerboa/train": "/facade/train/index.js", "jerboa/layers": "/facade/layers/index.js" } }</script></head>
<body><pre id="output"></pre><progress value="0"></progress><input type="file"><canvas width="8" height="8"></canvas>
<button id="stop">Stop</button><button id="speak">Speak</button><div id="root"></div></body></html>`;

/** Renders every component that a sample exports. */
const RENDER = `import { createElement } from "react";
import { createRoot } from "react-dom/client";
import * as sample from "SAMPLE";
const props = { question: "Why is the sky blue?", onLoad: () => console.log("loaded") };
for (const Component of Object.values(sample)) createRoot(document.getElementById("root")).render(createElement(Component, props));
`;

const PATIENCE = 600_000;
/** A GIF of one pixel. */
const IMAGE = { name: "image.gif", mimeType: "image/gif", buffer: Buffer.from("R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==", "base64") };

let facade, folder, server, browser, page, origin, problems, documents;
/** The lines that a sample logs. */
let shown = [];

before(async () => {
  documents = await readDocuments();
  facade = await buildFacade();
  await writeFile(join(facade.folder, "package.json"), await readFile(join(ROOT, "pkg-template/package.json")));
  folder = await mkdtemp(join(ROOT, "target", "samples-"));
  await mkdir(join(folder, "node_modules"));
  await symlink(facade.folder, join(folder, "node_modules/jerboa"));
  for (const { name, code } of samples()) await writeFile(join(folder, name), code);
  await writeFile(join(folder, "index.html"), PAGE);
  await writeFile(join(folder, "blank.html"), '<!doctype html><link rel="icon" href="data:,">');
  await mkdir(join(folder, "assets"));
  await writeFile(join(folder, "assets/jerboa-worker.js"), 'import "/facade/worker.js";\n');
  await writeFile(join(folder, "assets/jerboa-train-worker.js"), 'import "/facade/train/worker.js";\n');
  await writeFile(join(folder, "engine.js"), 'import { loadModel } from "/facade/index.js";\nimport { serveModels } from "/facade/tabs/index.js";\nserveModels({ chat: () => loadModel("org/chat") });\n');
  await mkdir(join(folder, "silero-vad"));
  await writeFile(join(folder, "silero-vad/model.safetensors"), "weights");
  server = await serve({ "/": folder, "/facade/": facade.folder });
  browser = await launch(["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required"]);
  const context = await browser.newContext({ permissions: ["camera", "microphone"] });
  page = await context.newPage();
  origin = await context.newCDPSession(page);
  problems = watch(page);
  page.on("console", (message) => message.type() === "log" && shown.push(message.text()));
  await page.addInitScript(reportSilence);
}, { timeout: PATIENCE });

after(async () => {
  await browser?.close();
  await server?.close();
  await rm(folder, { recursive: true, force: true });
  await facade.remove();
});

/** The documents with samples: file, and for each sample its code, language and line. */
async function readDocuments() {
  const pages = (await readdir(join(ROOT, "www/docs"))).filter((name) => name.endsWith(".md")).map((name) => `www/docs/${name}`);
  const read = async (file) => {
    const text = await readFile(join(ROOT, file), "utf8");
    const blocks = [...text.matchAll(/^```(\w*)\n([\s\S]*?)^```/gm)];
    const found = blocks.map(([, language, code], index) => ({ language, code, index, line: text.slice(0, blocks[index].index).split("\n").length + 1 }));
    return { file, blocks: found };
  };
  return Promise.all(["README.md", "pkg-template/README.md", ...pages].map(read));
}

/** The TypeScript and JavaScript samples, with a file name each. */
function samples() {
  const code = ({ language }) => ["ts", "tsx", "js", "jsx"].includes(language);
  return documents.flatMap(({ file, blocks }) => blocks.filter(code).map((block) => ({ ...block, file, name: `${file.replaceAll(/\W/g, "_")}_${block.line}.${block.language}` })));
}

test("every page of the site opens with a complete sample", () => {
  for (const { file, blocks } of documents.filter(({ file }) => file.startsWith("www/docs/"))) {
    const [first] = blocks;
    assert.ok(first, `${file} has no sample`);
    assert.ok(first.line < 12, `${file}: the first sample is in line ${first.line}`);
    if (first.language === "rust") continue;
    // A page on the command line opens with one that installs and runs.
    const complete = first.language === "sh" ? /^npm install jerboa .*\nnpx jerboa \w+ \S+/m : /^import .* from "jerboa(\/[\w-]+)?"/m;
    assert.match(first.code, complete, `${file}: the first sample is not complete`);
  }
});

test("every sample compiles in a fresh strict project", { timeout: PATIENCE }, async () => {
  await writeFile(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: STRICT, files: samples().map(({ name }) => name) }));
  const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
  const { stdout } = await promisify(execFile)(process.execPath, [tsc, "-p", folder], { cwd: folder }).catch((error) => error);
  const said = samples().reduce((text, { file, line, name }) => text.replaceAll(new RegExp(`^${name}\\((\\d+)`, "gm"), (_, at) => `${file}(${line + Number(at)}`), stdout);
  assert.equal(said, "");
  console.log(`${samples().length} samples`);
});

/** Samples for a build tool, which pages do not run. */
const forTools = ({ code }) => /^\/\/ \w+\.config\.js/.test(code);

for (const file of ["README.md", "pkg-template/README.md", "www/docs"]) {
  test(`the samples of ${file} run`, { timeout: PATIENCE }, async () => {
    const chosen = samples().filter((sample) => sample.file.startsWith(file) && !forTools(sample));
    assert.ok(chosen.length > 0);
    for (const sample of chosen) await run(sample);
  });
}

/** In the page: logs events without visible output: audio that plays, a model that is unloaded. */
function reportSilence() {
  window.Audio = class extends Audio {
    play() {
      console.log("plays");
      return super.play();
    }
  };
  window.addEventListener("hidden", () => setTimeout(() => console.log("hidden"), 100));
}

/** In the page: what happens when it goes to the background. */
function hide() {
  Object.defineProperty(document, "hidden", { value: true, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
  window.dispatchEvent(new Event("hidden"));
}

/** Integrations are bundled with their frameworks, and share the page's package. */
const onePackage = {
  name: "one-package",
  setup({ onResolve }) {
    onResolve({ filter: /^jerboa(\/memory|\/train|\/layers)?$/ }, ({ path }) => ({ path, external: true }));
    onResolve({ filter: /^\.\.\/index\.js$/ }, () => ({ path: "jerboa", external: true }));
  },
};

/** Opens the page for the next sample. Scripts, workers, storage and console lines of the last one are gone. */
async function openFresh() {
  await page.goto(`${server.url}/blank.html`);
  await origin.send("Storage.clearDataForOrigin", { origin: server.url, storageTypes: "all" });
  problems.length = 0;
  shown = [];
  await page.goto(`${server.url}/index.html`);
}

/** Runs a sample, presses its buttons, selects a file, and expects it to show something. */
async function run({ file, line, name, code, language }) {
  const entry = language.endsWith("x") ? RENDER.replace("SAMPLE", `./${name}`) : code;
  const bundle = { stdin: { contents: entry, loader: language, resolveDir: folder }, bundle: true, format: "esm", plugins: [onePackage], outfile: join(folder, `${name}.bundle.js`), logLevel: "silent" };
  await build({ ...bundle, define: { "process.env.NODE_ENV": '"development"' }, jsx: "automatic" });
  try {
    await openFresh();
    await page.evaluate((url) => {
      window.finished = import(url).then(() => true);
    }, `/${name}.bundle.js`);
    const isShown = () => page.evaluate(() => `${document.querySelector("#output").textContent}${document.querySelector("#root").textContent}`);
    const file = code.includes(".transcribe(") ? { name: "audio.wav", mimeType: "audio/wav", buffer: Buffer.from(wav({ sample: (t) => Math.sin(t * 2000) / 2 })) } : IMAGE;
    const end = Date.now() + PATIENCE_MS;
    for (let done = false; !done; ) {
      assert.ok(Date.now() < end, "it shows nothing");
      await new Promise((resolve) => setTimeout(resolve, 100));
      if (code.includes("input[type=file]")) await page.setInputFiles("input", file);
      if (!code.includes("model.listen")) await page.evaluate(() => document.querySelectorAll("button").forEach((button) => button.click()));
      if (code.includes("visibilitychange")) await page.evaluate(hide);
      done = problems.length > 0 || shown.length > 0 || (await isShown()) !== "";
    }
    await page.click("#stop");
    if (problems.length === 0) await page.evaluate(() => window.finished);
    assert.deepEqual(problems, []);
  } catch (error) {
    assert.fail(`${file}:${line}: ${error.message}\n${problems.join("\n")}\n${code}`);
  }
}
