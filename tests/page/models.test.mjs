/** The demo page's model manager over the fake engine: search of a simulated Hub, storage, unloading, code, release. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { untilReads } from "./support/browser.mjs";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { startHub } from "./support/hub.mjs";
import { chatting, closeSheet, copied, send } from "./support/states.mjs";

const options = { timeout: 120_000 };
let site, hub, folder;

/** A repository with the fields that the Hub's API gives, and files of zeros. */
async function repository(id, fields, files = {}) {
  const path = join(folder, id);
  await mkdir(path, { recursive: true });
  await writeFile(join(path, ".hub.json"), JSON.stringify(fields));
  for (const [name, size] of Object.entries(files)) await writeFile(join(path, name), new Uint8Array(size));
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-models-"));
  await repository("big/llama-70b", { downloads: 900, gated: "manual", tags: ["text-generation", "safetensors", "license:llama3"], safetensors: { parameters: { BF16: 70e9 }, total: 70e9 } });
  await repository("org/llama-full", { downloads: 500, tags: ["text-generation", "safetensors", "license:mit"], safetensors: { parameters: { F16: 1e8 }, total: 1e8 } });
  await repository("mlx/llama-4bit", { downloads: 20, tags: ["text-generation", "safetensors", "4-bit"], safetensors: { parameters: { U32: 1e7, F16: 1e6 }, total: 11e6 } });
  await repository("gg/llama-gguf", { downloads: 90, tags: ["text-generation", "gguf", "license:apache-2.0"], gguf: { total: 1e9 } }, { "llama-Q8_0.gguf": 3000, "llama-Q4_K_M.gguf": 2000, "llama-F16-00001-of-00002.gguf": 4000, "llama-F16-00002-of-00002.gguf": 4000, "mmproj.gguf": 10 });
  await repository("old/llama-pickle", { downloads: 999, tags: ["text-generation", "pytorch"] });
  await repository("org/llama-embedder", { downloads: 7, tags: ["sentence-similarity", "safetensors"], safetensors: { parameters: { F32: 1e6 }, total: 1e6 } });
  const queued = { downloads: 1, tags: ["text-generation", "safetensors"], safetensors: { parameters: { F16: 2e6 }, total: 2e6 } };
  for (const id of ["late/queue-a", "late/queue-b", "gated/queue-c"]) await repository(id, queued);
  [site, hub] = await Promise.all([fakeEnginePage(), startHub(folder)]);
}, options);
after(async () => {
  await site?.close();
  hub?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Opens the picker and searches the simulated Hub. */
async function search(page, words) {
  await page.locator(".model-button").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Advanced").click();
  await dialog.getByRole("textbox", { name: "Endpoint" }).fill(hub.url);
  await dialog.getByRole("textbox", { name: "From Hugging Face" }).fill(words);
  await dialog.getByRole("button", { name: "Search", exact: true }).click();
  return dialog;
}

test("a search lists quantized models first, with size, licence and whether they fit", options, async () => {
  const { page, context, problems } = await chatting(site);
  const dialog = await search(page, "llama");
  const results = dialog.getByRole("list", { name: "Models for “llama”" });
  await results.waitFor();
  assert.deepEqual(await results.locator(".choice-name").allInnerTexts(), ["gg/llama-gguf", "mlx/llama-4bit", "big/llama-70b", "org/llama-full"]);
  const result = (name) => results.getByRole("button", { name: new RegExp(`^${name}`) });
  // The device has room for 2 GB, which the page learns from a report.
  await untilReads(result("big/llama-70b"), /Probably too large[^]*70B parameters · llama3 · you must accept its terms first · 900 downloads a month[^]*140 GB/);
  await untilReads(result("org/llama-full"), /Fits this device[^]*100M parameters · mit · 500 downloads a month[^]*200 MB/);
  await untilReads(result("mlx/llama-4bit"), /Fits this device[^]*quantized · no licence given[^]*42 MB/);
  assert.equal(await dialog.getByRole("list", { name: "Suggestions" }).count(), 0);
  await dialog.getByRole("button", { name: "Back to the suggestions" }).click();
  await dialog.getByRole("list", { name: "Suggestions" }).waitFor();
  await dialog.getByRole("textbox", { name: "From Hugging Face" }).fill("zebra");
  await dialog.getByRole("button", { name: "Search", exact: true }).click();
  await dialog.getByText("No model for “zebra” with files that run here.").waitFor();
  await hub.control("faults", [{ match: "/api/models", kind: "status", status: 503 }]);
  await dialog.getByRole("textbox", { name: "From Hugging Face" }).fill("other");
  await dialog.getByRole("button", { name: "Search", exact: true }).click();
  await dialog.getByRole("alert").getByText("The Hub did not answer: HTTP 503.").waitFor();
  await hub.control("reset", {});
  assert.deepEqual(problems.filter((line) => !line.includes("503")), []);
  await context.close();
});

test("a GGUF repository opens to its files, and one is loaded with the options of the search", options, async () => {
  const { page, context } = await chatting(site);
  const dialog = await search(page, "llama gguf");
  await dialog.getByRole("button", { name: /^gg\/llama-gguf/ }).click();
  const files = dialog.getByRole("list", { name: "Files of gg/llama-gguf" });
  await files.waitFor();
  assert.deepEqual(await files.locator(".choice-name").allInnerTexts(), ["llama-Q4_K_M.gguf", "llama-Q8_0.gguf", "llama-F16-00001-of-00002.gguf"]);
  assert.deepEqual(await files.locator(".choice-size").allInnerTexts(), ["2.0 kB", "3.0 kB", "8.0 kB"]);
  await files.getByRole("button", { name: /^llama-Q4_K_M/ }).click();
  await page.getByRole("button", { name: /^llama-gguf\/llama-Q4_K_M.gguf/ }).waitFor();
  const request = await page.evaluate(() => JSON.parse(localStorage.getItem("jerboa.chat.model")));
  assert.deepEqual([request.source, request.options.endpoint], ["gg/llama-gguf/llama-Q4_K_M.gguf", hub.url]);
  await context.close();
});

test("each tab searches for its task", options, async () => {
  const { page, context } = await site.open({}, undefined, "#embedding");
  await page.locator(".model-facts").waitFor();
  const dialog = await search(page, "llama");
  const results = dialog.getByRole("list", { name: "Models for “llama”" });
  await results.waitFor();
  assert.deepEqual(await results.locator(".choice-name").allInnerTexts(), ["org/llama-embedder"]);
  await context.close();
});

test("the model in use is unloaded and stays so; its code is shown and copied", options, async () => {
  const { page, context, problems } = await chatting(site, { permissions: ["clipboard-read", "clipboard-write"] });
  await page.locator(".model-button").click();
  const use = page.getByRole("region", { name: "Model in use" });
  assert.match(await use.innerText(), /org\/chat 1\.4 MB of GPU memory/);
  await use.getByRole("button", { name: "Use in your code" }).click();
  const code = await copied(page, use.getByRole("button", { name: "Copy the code" }));
  assert.match(code, /import \{ loadModel \} from "jerboa";[^]*loadModel\("org\/chat"\)[^]*chat\.completions\.create/);
  await closeSheet(page);
  // A model without a chat template, with options.
  await page.locator(".model-button").click();
  await page.getByText("Advanced").click();
  await page.getByRole("combobox", { name: "Weights", exact: true }).selectOption("q4");
  await page.getByRole("spinbutton", { name: "Context length" }).fill("2048");
  await page.getByRole("textbox", { name: "From Hugging Face" }).fill("org/base");
  await page.getByRole("button", { name: "Load", exact: true }).click();
  await page.getByRole("button", { name: /^org\/base/ }).click();
  await use.getByRole("button", { name: "Use in your code" }).click();
  const continues = await copied(page, use.getByRole("button", { name: "Copy the code" }));
  assert.match(continues, /loadModel\("org\/base", \{ maxContext: 2048, weights: "q4" \}\)[^]*model\.generate\(/);
  assert.doesNotMatch(continues, /chat\.completions/);
  await use.getByRole("button", { name: "Unload" }).click();
  await page.getByRole("heading", { name: "No model is loaded." }).waitFor();
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  await page.locator(".model-facts").waitFor();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  await page.getByRole("heading", { name: "No model is loaded." }).waitFor();
  await page.getByRole("button", { name: /^Chat with / }).click();
  await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("the picker shows the total of stored models and removes all of them", options, async () => {
  const { page, context } = await chatting(site);
  await page.locator(".model-button").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText(/^28 B, [\d.]+ .B free$/).waitFor();
  const asked = [];
  page.on("dialog", (box) => (asked.push(box.message()), box.dismiss()));
  await dialog.getByRole("button", { name: "Remove all models" }).click();
  assert.deepEqual(asked, ["Remove 4 models from this device? They can be downloaded again."]);
  page.removeAllListeners("dialog");
  page.on("dialog", (box) => box.accept());
  await dialog.getByRole("button", { name: "Remove all models" }).click();
  await page.getByText(/models\/a was removed\./).waitFor({ state: "attached" });
  await context.close();
});

test("downloads wait for each other, show progress and reasons, are cancelled, and survive a reload", options, async () => {
  const { page, context, problems } = await chatting(site);
  const dialog = await search(page, "queue");
  const queue = dialog.getByRole("region", { name: "Downloads" });
  const entry = (name) => queue.getByRole("listitem").filter({ hasText: name });
  // Loads of these end on request.
  const finish = () => page.evaluate(() => new BroadcastChannel("late").postMessage(true));
  const add = (name) => dialog.getByRole("button", { name: `Download ${name} for later` });
  for (const name of ["late/queue-a", "late/queue-b", "gated/queue-c"]) await add(name).click();
  assert.ok(await add("late/queue-a").isDisabled());
  await untilReads(entry("late/queue-a"), /Downloading · \d+ B of 3 B/);
  assert.ok((await entry("late/queue-a").getByRole("progressbar").getAttribute("aria-valuenow")) > 0);
  await untilReads(entry("late/queue-b"), /Waiting · 4\.0 MB/);
  await untilReads(queue, /Downloads\s+[\d.]+ k?B of 8\.0 MB/);
  await page.getByRole("button", { name: /^org\/chat.*3 downloads/ }).waitFor({ state: "attached" });

  await finish();
  await entry("late/queue-a").waitFor({ state: "detached" });
  await page.getByText("late/queue-a was downloaded.").waitFor({ state: "attached" });
  await untilReads(entry("late/queue-b"), /Downloading/);
  await entry("late/queue-b").getByRole("button", { name: "Cancel the download of late/queue-b" }).click();
  await entry("late/queue-b").waitFor({ state: "detached" });
  await untilReads(entry("gated/queue-c"), /accept its terms/);
  await entry("gated/queue-c").getByRole("button", { name: "Try again: gated/queue-c" }).click();
  await untilReads(entry("gated/queue-c"), /accept its terms/);

  await add("late/queue-b").click();
  await untilReads(entry("late/queue-b"), /Downloading/);
  const stored = await page.evaluate(() => localStorage.getItem("jerboa.downloads"));
  assert.deepEqual(JSON.parse(stored).map(({ source, options }) => [source, options]), [["gated/queue-c", { endpoint: hub.url }], ["late/queue-b", { endpoint: hub.url }]]);
  await page.reload();
  // The queue goes on without the picker; what failed is tried once more.
  await page.getByText("gated/queue-c could not be downloaded.").waitFor({ state: "attached" });
  await page.locator(".model-button").click();
  await untilReads(entry("late/queue-b"), /Downloading/);
  await entry("gated/queue-c").getByRole("button", { name: /^Cancel/ }).click();
  await finish();
  await queue.waitFor({ state: "detached" });
  assert.equal(await page.locator(".download-count").count(), 0);
  assert.deepEqual(problems, []);
  await context.close();
});

test("models are released after five minutes in the background, and answer again", options, async () => {
  const record = () => {
    window.sent = [];
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (message, ...rest) {
      window.sent.push(JSON.stringify(message));
      return post.call(this, message, ...rest);
    };
  };
  const { page, context } = await site.open({}, record);
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await page.clock.install();
  const visibility = (state) => page.evaluate((state) => {
    Object.defineProperty(document, "visibilityState", { get: () => state, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
  const released = () => page.evaluate(() => window.sent.filter((message) => message.includes('"release"')).length);
  await visibility("hidden");
  await page.clock.runFor(4 * 60_000);
  await visibility("visible");
  await page.clock.runFor(10 * 60_000);
  assert.equal(await released(), 0, "it came back in time");
  await visibility("hidden");
  await page.clock.runFor(5 * 60_000 + 1000);
  assert.equal(await released(), 1);
  await visibility("visible");
  await page.clock.resume();
  await send(page, "Once upon a time");
  await context.close();
});
