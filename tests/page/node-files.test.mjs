/** The files on disk that the package passes to the engine in Node. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let facade, folder, prepareLoad;

before(async () => {
  facade = await buildFacade();
  ({ nodePlatform: { prepareLoad } } = await import(`${facade.url}/node-platform.js`));
  folder = await mkdtemp(join(tmpdir(), "jerboa-files-"));
  for (const name of ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "x-00001-of-00003.gguf", "y-00001-of-00002.gguf", "z.gguf", "mmproj-z-f16.gguf", "config.json", "w.safetensors"]) await writeFile(join(folder, name), name);
});

after(async () => {
  await facade?.remove();
  await rm(folder, { recursive: true, force: true });
});

test("a GGUF file brings its other parts and the vision encoder, and its path names the model", async () => {
  const files = async (name) => {
    const { model, path } = await prepareLoad({ model: join(folder, name) });
    assert.equal(path, join(folder, name));
    return model.map((file) => file.name).sort();
  };
  const parts = ["mmproj-z-f16.gguf", "x-00001-of-00002.gguf", "x-00002-of-00002.gguf"];
  assert.deepEqual(await files("x-00001-of-00002.gguf"), parts);
  assert.deepEqual(await files("x-00002-of-00002.gguf"), parts);
  assert.deepEqual(await files("z.gguf"), ["mmproj-z-f16.gguf", "z.gguf"]);
  assert.deepEqual(await files("mmproj-z-f16.gguf"), ["mmproj-z-f16.gguf"]);
  assert.deepEqual(await files("w.safetensors"), ["w.safetensors"]);
  assert.equal((await files("")).length, 8);
});

test("pages of the Hub get its token and endpoint, other URLs do not", async () => {
  process.env.HF_ENDPOINT = "https://mirror.example";
  try {
    for (const [model, endpoint] of [["org/name", true], ["https://huggingface.co/org/name", true], ["hf.co/org/name", true], ["https://cdn.example/huggingface.co/m", false]]) {
      const prepared = await prepareLoad({ model, token: "t" });
      assert.equal(prepared.endpoint, endpoint ? "https://mirror.example" : undefined, model);
    }
  } finally {
    delete process.env.HF_ENDPOINT;
  }
});
