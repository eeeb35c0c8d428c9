/** The files on disk that the package passes to the engine in Node. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let facade, folder, prepareLoad, explainLoad;

before(async () => {
  facade = await buildFacade();
  ({ nodePlatform: { prepareLoad, explainLoad } } = await import(`${facade.url}/node-platform.js`));
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

test("only the named folder is searched, and the models directly below it are listed", async () => {
  const root = join(folder, "nested");
  const put = async (...parts) => {
    const path = join(root, ...parts);
    await mkdir(join(path, ".."), { recursive: true });
    await writeFile(path, "{}");
  };
  for (let i = 1; i <= 7; i++) await put(`m${i}`, i % 2 ? "config.json" : "a.gguf");
  await put("deep", "er", "config.json");
  await put("README.md");
  await assert.rejects(prepareLoad({ model: root }), ({ code, message }) => {
    assert.equal(code, "missing_file");
    assert.equal(message, `The folder ${root} has no model files: neither config.json nor a .gguf file. Pass one of the folders in it that have a model: ${[1, 2, 3, 4, 5].map((i) => join(root, `m${i}`)).join(", ")} and more.`);
    return true;
  });
  await assert.rejects(prepareLoad({ model: join(root, "deep", "er", "..") }), { code: "missing_file", message: new RegExp(`a model: ${join(root, "deep", "er")}\\.$`) });
  await mkdir(join(root, "empty"));
  await assert.rejects(prepareLoad({ model: join(root, "empty") }), { code: "missing_file", message: /^The folder .*empty has no model files\. Pass a folder with config\.json/ });
  // The engine explains what an adapter is.
  await put("adapter", "adapter_config.json");
  assert.deepEqual((await prepareLoad({ model: join(root, "adapter") })).model.map(({ name }) => name), ["adapter_config.json"]);
  // The disk's root is not searched.
  await assert.rejects(prepareLoad({ model: "/" }), { code: "missing_file", message: /^The folder \/ has no model files/ });
  // A GGUF file at the top is the model, whatever folders are below.
  await put("z.gguf");
  assert.deepEqual((await prepareLoad({ model: root })).model.map(({ name }) => name).sort(), ["README.md", "z.gguf"]);
  // The folders of a checkpoint belong to it.
  await put("m1", "1_Pooling", "config.json");
  assert.deepEqual((await prepareLoad({ model: join(root, "m1") })).model.map(({ name }) => name).sort(), ["1_Pooling/config.json", "config.json"]);
});

test("a relative path needs no './' if it exists, unless it has the form of a Hub name", async () => {
  const before = process.cwd();
  const root = join(folder, "relative");
  for (const path of ["mine", "org/name", "a/b/c"]) {
    await mkdir(join(root, path), { recursive: true });
    await writeFile(join(root, path, "config.json"), "{}");
  }
  await writeFile(join(root, "small.gguf"), "");
  await writeFile(join(root, "org", "small.gguf"), "");
  process.chdir(root);
  try {
    for (const [model, names] of [["mine", ["config.json"]], ["mine/", ["config.json"]], ["org/name/", ["config.json"]], ["a/b/c", ["config.json"]], ["small.gguf", ["small.gguf"]], ["org/small.gguf", ["small.gguf"]]]) {
      const prepared = await prepareLoad({ model });
      assert.deepEqual([prepared.model.map(({ name }) => name), prepared.path], [names, model], model);
    }
    for (const model of ["org/name", "org/name@main", "org/name/x.gguf", "other", "https://cdn.example/m"]) assert.equal((await prepareLoad({ model })).model, model);
    for (const code of ["not_found", "gated", "network"]) {
      const explained = await explainLoad({ code, message: "It is not there." }, { model: "org/name" });
      assert.deepEqual([explained.code, explained.message], [code, "It is not there. For the local folder write './org/name'."]);
    }
    const thrown = { code: "not_found", message: "It is not there." };
    for (const model of ["org/other", "other"]) assert.equal(await explainLoad(thrown, { model }), thrown);
    const other = { code: "config", message: "It is wrong." };
    assert.equal(await explainLoad(other, { model: "org/name" }), other);
  } finally {
    process.chdir(before);
  }
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
