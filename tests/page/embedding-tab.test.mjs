/** The Embedding tab in Chromium: adding documents and finding the right passage, with the bundled encoder and with a model from a Hub. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { launch, shot, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { writeMinilm } from "./support/minilm.mjs";
import { PAGE, ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const PATIENCE = 300_000;
const options = { timeout: PATIENCE };

/** The page's example questions, each with the note that answers it. */
const source = await readFile(`${ROOT}/www/src/embedding/examples.ts`, "utf8");
const QUESTIONS = [...source.matchAll(/\{ text: "(.+)", note: "(.+)" \}/g)].map(([, text, note]) => ({ text, note }));

let server, browser, context, page, problems, child, hub, folder;

before(async () => {
  assertBuilt();
  folder = await mkdtemp(join(tmpdir(), "jerboa-hub-"));
  await writeMinilm(join(folder, "sentence-transformers/all-MiniLM-L6-v2"), 1);
  child = spawn(process.execPath, [join(ROOT, "tests/hub/hub-server.mjs"), "--root", folder], { stdio: ["pipe", "pipe", "inherit"] });
  for await (const line of createInterface({ input: child.stdout })) {
    hub = JSON.parse(line).hub;
    break;
  }
  server = await serve({ "/": PAGE });
  browser = await launch();
  context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
  page = await context.newPage();
  page.setDefaultTimeout(PATIENCE / 3);
  problems = watch(page);
  await page.goto(`${server.url}/#embedding`);
  await warmUp(page);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
  child?.stdin.end();
  if (folder) await rm(folder, { recursive: true });
});

const documents = () => page.getByRole("region", { name: "Documents", exact: true });
const hits = () => page.locator(".hit");
const firstHit = async () => (await hits().first().innerText()).replaceAll(/\s+/g, " ");
const idle = () => page.waitForFunction(() => !document.querySelector(".working"));

async function ask(question) {
  await page.getByRole("searchbox", { name: "Question", exact: true }).fill(question);
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.getByRole("list", { name: `Passages for: ${question}` }).waitFor();
  await idle();
}

test("the tab opens with the bundled encoder and describes it", options, async () => {
  await documents().waitFor();
  assert.match(await page.getByRole("main").innerText(), /share words\. all-MiniLM-L6-v2 searches by meaning/);
  assert.match(await page.getByRole("button", { name: /words-encoder/ }).innerText(), /56 dimensions · texts up to 256 tokens/);
  await shot(page, "embedding-1-opened");
});

test("examples can be added, and the right passage ranks first", options, async () => {
  await documents().getByRole("button", { name: /example notes/ }).click();
  await documents().getByText("Volcanoes", { exact: true }).waitFor();
  await idle();
  await ask("Who lays the eggs in a bee colony?");
  assert.match(await firstHit(), /^Bees 0\.\d{3} A honey bee colony/);
  await ask("Why does iron rust in water?");
  assert.match(await firstHit(), /^Rust 0\.\d{3} Iron rusts/);
  await page.locator(".map .asked").waitFor();
  assert.equal(await page.locator(".map .point").count(), 8);
  assert.equal(await hits().count(), 5);
  await page.getByRole("button", { name: "Show 3 more", exact: true }).click();
  assert.equal(await hits().count(), 8);
  await page.locator(".map").scrollIntoViewIfNeeded();
  await shot(page, "embedding-2-found");
});

test("each example question finds its note with the bundled encoder", options, async () => {
  await page.reload();
  await documents().getByText("Volcanoes", { exact: true }).waitFor();
  await idle();
  const examples = page.getByRole("list", { name: "Example questions" }).getByRole("button");
  await examples.first().waitFor();
  const questions = await examples.allInnerTexts();
  assert.deepEqual(questions, QUESTIONS.map(({ text }) => text));
  for (const { text, note } of QUESTIONS) {
    if ((await examples.count()) > 0) await examples.getByText(text, { exact: true }).click();
    else await ask(text);
    await page.getByRole("list", { name: `Passages for: ${text}` }).waitFor();
    assert.ok((await firstHit()).startsWith(`${note} `), `${text}: ${await firstHit()}`);
    assert.equal(await page.getByRole("searchbox", { name: "Question", exact: true }).inputValue(), text);
  }
});

test("a pasted text and a file are found; removed documents are not", options, async () => {
  await documents().getByRole("textbox").fill("# Pelicans\nA pelican holds fish in the pouch of its beak.");
  await documents().getByRole("button", { name: "Add this text", exact: true }).click();
  await documents().getByText("Pelicans", { exact: true }).waitFor();
  await idle();
  const file = { name: "harbour.txt", mimeType: "text/plain", buffer: Buffer.from("The harbour master counts every ship that enters the port at dawn. ".repeat(30)) };
  await documents().locator('input[type="file"]').setInputFiles(file);
  await documents().getByText("harbour.txt").waitFor();
  await idle();
  await ask("the pouch of a pelican's beak");
  assert.match(await firstHit(), /^Pelicans/);
  await ask("Who counts ships in the harbour?");
  assert.match(await firstHit(), /^harbour\.txt/);
  assert.match(await documents().innerText(), /harbour\.txt\s+\d+ passages/);
  await documents().getByRole("button", { name: "Remove harbour.txt", exact: true }).click();
  await page.waitForFunction(() => !document.querySelector(".documents").textContent.includes("harbour.txt"));
  await page.waitForFunction(() => !document.querySelector(".hits").textContent.includes("harbour.txt"));
});

test("search results can be used in Chat", options, async () => {
  await ask("How do bees tell others where flowers are?");
  await page.getByRole("button", { name: "Ask about these in Chat", exact: true }).click();
  const field = page.getByRole("textbox", { name: /Message|Text to continue/ });
  await field.waitFor();
  assert.match(await field.inputValue(), /^Answer from these notes:[^]*she dances in the hive[^]*Question: How do bees tell/);
  await shot(page, "embedding-3-chat");
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  await hits().first().waitFor();
});

test("documents survive a reload", options, async () => {
  await page.reload();
  await documents().getByText("Pelicans", { exact: true }).waitFor();
  await ask("the pouch of a pelican's beak");
  assert.match(await firstHit(), /^Pelicans/);
});

test("a model from the Hub embeds the documents again", options, async () => {
  await page.getByRole("button", { name: /words-encoder/ }).click();
  await page.getByText("Advanced").click();
  await page.getByLabel("Endpoint").fill(hub);
  await page.getByRole("button", { name: /^all-MiniLM-L6-v2/ }).click();
  await page.getByRole("button", { name: /384 dimensions/ }).waitFor();
  await documents().getByText("Pelicans", { exact: true }).waitFor();
  await idle();
  // Even random weights find a text that is stored verbatim.
  await ask("Iron rusts when oxygen and water reach its surface. Paint, grease or a layer of zinc keeps them away.");
  assert.match(await firstHit(), /^Rust 1\.000/);
  assert.doesNotMatch(await page.getByRole("main").innerText(), /searches by meaning/);
  await page.locator(".map .point").first().waitFor();
  await page.locator(".map").scrollIntoViewIfNeeded();
  await shot(page, "embedding-4-minilm");
});

test("the tab fits a phone, and every control has a name", options, async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  await documents().waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "nothing sticks out");
  await shot(page, "embedding-5-phone");
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, a, input, textarea, select")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
      .map((e) => e.outerHTML),
  );
  assert.deepEqual(nameless, []);
  assert.deepEqual(problems, []);
});
