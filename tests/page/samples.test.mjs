/** Every JavaScript sample of the manuals and of www/docs runs, over the engine's double, as it stands there. Knows what samples take for granted. */

import assert from "node:assert/strict";
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";
import { ROOT } from "./support/places.mjs";

let facade, jerboa;
const cleanUps = [];

before(async () => {
  facade = await buildFacade();
  jerboa = await import(`${facade.url}/index.js`);
  Object.assign(globalThis, jerboa);
  // What decodes pictures in a page; nobody looks at them here.
  globalThis.ImageData ??= class ImageData {};
  globalThis.createImageBitmap ??= async () => ({ width: 4, height: 4, close() {} });
  globalThis.OffscreenCanvas ??= class OffscreenCanvas {
    getContext() {
      return { clearRect() {}, drawImage() {}, getImageData: (x, y, width, height) => ({ data: new Uint8ClampedArray(4 * width * height) }) };
    }
  };
});
after(async () => {
  for (const clean of cleanUps) await clean();
  await facade.remove();
});

/** The samples of a file, with their lines. */
function samplesOf(text) {
  return [...text.matchAll(/^```(?:js|ts|javascript)\n([\s\S]*?)^```/gm)].map((match) => ({ code: match[1], line: text.slice(0, match.index).split("\n").length + 1 }));
}

/** What the text around samples says is there: a model of the kind that the sample uses, a place for text, the names of the page's own things. */
async function setting(code) {
  const load = (name) => jerboa.loadModel(name, { worker: false });
  const model = await load(/embed|createMemory/.test(code) ? "org/embed" : /image|describe|video/.test(code) ? "org/seeing" : "org/name");
  const shown = [];
  return {
    model,
    reranker: await load("org/rank"),
    clip: await load("org/embed-seeing"),
    output: { append: (...pieces) => shown.push(...pieces), shown },
    prompt: "a prompt",
    another: "another one",
    text: "Bees lay eggs. The queen lays them.",
    question: "Who lays the eggs?",
    file: new File([new Uint8Array(8)], "picture.png", { type: "image/png" }),
    url: "data:image/png;base64,AAAA",
    address: "data:image/png;base64,AAAA",
    onProgress: () => {},
    document: { hidden: true, addEventListener: () => {} },
  };
}

/** Runs a sample as a module beside the facade. */
async function run(code, name) {
  const module = code
    .replaceAll(/from "jerboa(\/[a-z/]+)?"/g, (_, path = "") => `from "${facade.url}${path === "/memory" ? "/memory/index" : path || "/index"}.js"`)
    .replaceAll(/indexedDbStore\("\w+"\)/g, "globalThis.testStore()");
  const file = join(ROOT, "tests/page", `.sample-${process.pid}-${name}.mjs`);
  await writeFile(file, module);
  try {
    await import(pathToFileURL(file).href);
  } finally {
    await rm(file);
  }
}

const files = ["README.md", "pkg-template/README.md", ...(await readdir(join(ROOT, "www/docs"))).filter((name) => name.endsWith(".md")).map((name) => `www/docs/${name}`)];
for (const file of files) {
  const samples = samplesOf(await readFile(join(ROOT, file), "utf8"));
  if (samples.length === 0) continue;
  test(`the samples of ${file} run`, async () => {
    const memory = await import(`${facade.url}/memory/index.js`);
    globalThis.testStore = () => memory.inMemoryStore();
    for (const [index, { code, line }] of samples.entries()) {
      // Sound needs a page with its microphone and its clock: speech.test.mjs has what these show.
      if (/\.transcribe|audio\.speech/.test(code)) continue;
      const given = await setting(code);
      const before = new Map(Object.keys(given).map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)]));
      for (const [name, value] of Object.entries(given)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
      try {
        await run(code, index);
      } catch (error) {
        assert.fail(`${file}:${line}: ${error.stack}\n${code}`);
      } finally {
        for (const [name, descriptor] of before) descriptor ? Object.defineProperty(globalThis, name, descriptor) : delete globalThis[name];
        await given.model.unload();
        await given.reranker.unload();
      }
    }
    console.log(`${file}: ${samples.length} samples`);
  });
}
