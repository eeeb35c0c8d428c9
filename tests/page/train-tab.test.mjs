/** The Train tab: the bundled model learns the example on the first click; over the fake engine, what can go wrong. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { PAGE } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { pick, send } from "./support/states.mjs";

const PATIENCE = 600_000;
const options = { timeout: PATIENCE };
let site;

before(async () => {
  assertBuilt();
  site = await fakeEnginePage();
}, options);
after(() => site?.close());

const button = (page, name) => page.getByRole("button", { name, exact: true });

/** Opens the tab over the fake engine. */
async function training() {
  const opened = await site.open({}, undefined, "/#train");
  await button(opened.page, "Start training").waitFor();
  return opened;
}

const openFile = (page, name, text) => page.getByLabel("Open a .txt or .jsonl file").setInputFiles({ name, mimeType: "text/plain", buffer: Buffer.from(text) });

test("the first click trains the bundled model, and Chat answers with the adapter", options, async () => {
  const server = await serve({ "/": PAGE });
  const browser = await launch();
  try {
    const page = await (await browser.newContext()).newPage();
    page.setDefaultTimeout(PATIENCE / 2);
    const problems = watch(page);
    await page.goto(`${server.url}/#train`);
    await warmUp(page);
    await button(page, "Start training").click();
    await button(page, "Use in Chat").waitFor();
    await page.getByText("After", { exact: true }).waitFor();
    const [, first, last] = /Loss from ([\d.]+) to ([\d.]+) at step \d+/.exec(await page.locator(".curve svg").getAttribute("aria-label"));
    assert.ok(Number(last) < 0.7 * Number(first), `the loss on other text falls from ${first} to ${last}`);
    const [before, after] = await page.locator(".samples dd").allInnerTexts();
    assert.match(after, /^The jerboa is/);
    assert.notEqual(before, after);
    const download = page.waitForEvent("download");
    await button(page, "Save adapter_config.json").click();
    assert.equal((await download).suggestedFilename(), "adapter_config.json");
    await button(page, "Use in Chat").click();
    await button(page, "LoRA: Answer without the adapter").waitFor();
    await send(page, "The jerboa");
    assert.match(await page.getByRole("article").last().innerText(), /sand|hop|night|moon|legs|tail|sleeps|seeds/);
    await button(page, "LoRA: Answer without the adapter").click();
    assert.equal(await button(page, "LoRA: Answer without the adapter").count(), 0);
    assert.deepEqual(problems, []);
  } finally {
    await browser.close();
    await server.close();
  }
});

test("a run is stopped, and another one replaces its adapter", options, async () => {
  const { page, context, problems } = await training();
  await page.getByRole("textbox", { name: "Text to learn" }).fill("endless text");
  await button(page, "Start training").click();
  await page.getByText(/^Step \d+ of 200/).waitFor();
  await button(page, "Stop").click();
  await button(page, "Use in Chat").click();
  await button(page, "LoRA: Answer without the adapter").waitFor();
  await page.getByRole("link", { name: "Train", exact: true }).click();
  assert.match(await page.locator(".curve svg").getAttribute("aria-label"), /Loss from 3\.\d+ to/, "results stay while tabs change");
  await page.getByRole("textbox", { name: "Text to learn" }).fill("A short text.");
  await button(page, "Start training").click();
  await page.getByText("Step 16 of 16").waitFor();
  await button(page, "Use in Chat").waitFor();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  assert.equal(await button(page, "LoRA: Answer without the adapter").count(), 0, "the earlier adapter is gone");
  assert.deepEqual(problems, []);
  await context.close();
});

test("files of conversations are read, and wrong lines are named", options, async () => {
  const { page, context, problems } = await training();
  await pick(page, "org/chat");
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await openFile(page, "talk.jsonl", '{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}\n\n{"text":"And a text."}\n');
  await button(page, "Start training").click();
  await button(page, "Use in Chat").waitFor();
  await button(page, "Remove talk.jsonl").click();
  await openFile(page, "wrong.jsonl", '{"text":"fine"}\n[1]\n');
  await button(page, "Start training").click();
  await page.getByRole("alert").getByText('Line 2 of the file is neither {"text": …} nor {"messages": […]}.').waitFor();
  const request = '{"role":"user","content":"Hi"}';
  for (const messages of [request, '{"role":"assistant","content":"Hello"}', ""]) {
    await openFile(page, "unanswered.jsonl", `{"messages":[${messages}]}`);
    await button(page, "Start training").click();
    await page.getByRole("alert").getByText(/^Line 1 of the file has nothing to learn: .* user message, then an assistant message\.$/).waitFor();
    await openFile(page, "wrong.jsonl", '{"messages":[null]}');
    await button(page, "Start training").click();
    await page.getByRole("alert").getByText(/^Line 1 of the file is neither/).waitFor();
  }
  await openFile(page, "image.bin", "\u0000");
  await page.getByRole("alert").getByText("image.bin is not a text file.").waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("too little memory and wrong settings are explained", options, async () => {
  const { page, context, problems } = await training();
  await page.getByText("Settings", { exact: true }).click();
  await page.getByLabel("Tokens per sequence").fill("200000");
  await button(page, "Start training").click();
  await page.getByRole("alert").getByText(/^Not enough GPU memory for this training/).waitFor();
  await page.getByRole("alert").getByText("Details", { exact: true }).click();
  await page.getByRole("alert").getByText("Use a “Tokens per sequence” below 200000.").waitFor();
  await page.getByLabel("Tokens per sequence").fill("64");
  for (const [field, wrong, valid, said] of [
    ["Rank", "0", "8", "“Rank” must be a whole number of at least 1."],
    ["Rank", "", "8", "“Rank” must be a whole number of at least 1."],
    ["Rank", "5000", "8", "“Rank” must be a whole number"],
    ["Passes over the text", "1.5", "1", "“Passes over the text” must be a whole number of at least 1."],
    ["Learning rate", "0", "0.01", "“Learning rate” must be a number above 0."],
  ]) {
    await page.getByLabel(field).fill(wrong);
    await button(page, "Start training").click();
    await page.getByRole("alert").getByText(said).waitFor();
    await page.getByLabel(field).fill(valid);
  }
  assert.deepEqual(problems, []);
  await context.close();
});

test("models that generate no text are refused", options, async () => {
  const { page, context } = await training();
  await pick(page, "org/whisper");
  await page.getByText("org/whisper does not generate text.").waitFor();
  await context.close();
});
