/** The demo page in Firefox with the real engine: a chat and its reload, the embedding tab, a transcription, the TTS tab. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertBuilt } from "../page/support/built.mjs";
import { stories } from "../page/support/golden.mjs";
import { PAGE, ROOT } from "../page/support/paths.mjs";
import { serve } from "../page/support/server.mjs";
import { wav } from "../page/support/wav.mjs";
import { launch } from "./support/firefox.mjs";

const options = { timeout: 400_000 };
let server, browser, page, problems, folder;

before(async () => {
  assertBuilt();
  folder = await mkdtemp(join(tmpdir(), "jerboa-firefox-"));
  server = await serve({ "/": PAGE, "/tiny/whisper/": `${ROOT}/tests/golden/speech/whisper_words` });
  browser = await launch();
  page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 860 });
  page.setDefaultTimeout(options.timeout / 2);
  problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(server.url);
  await shows(/Start a story\./);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
  if (folder) await rm(folder, { recursive: true });
});

/** Clicks the element of a role and name. */
const press = (role, name) => page.locator(`::-p-aria([role="${role}"][name="${name}"])`).click();
/** Fills a field. */
const fill = (selector, text) => page.locator(selector).fill(text);
/** Waits until the page's text matches. */
const shows = (pattern, selector = "main") =>
  page.waitForFunction((source, selector) => new RegExp(source).test(document.querySelector(selector)?.innerText ?? ""), { polling: 100 }, pattern.source, selector);
/** Opens a tab of the page. */
const openTab = async (name) => {
  await page.evaluate((name) => [...document.querySelectorAll("nav a, header a")].find((link) => link.textContent.trim() === name).click(), name);
  await page.waitForFunction((name) => location.hash === `#${name.toLowerCase()}`, { polling: 100 }, name);
};

test("the bundled model continues a story; a reload keeps it and the model comes from the cache", options, async () => {
  const { prompt, newText } = await stories();
  await fill(".composer textarea", prompt);
  await page.keyboard.press("Enter");
  await page.waitForSelector('article[data-state="done"]');
  // Without the buttons and the speed.
  const read = () => page.$eval('article[data-state="done"]', (article) => article.innerText.split("\n\nCopy")[0]);
  const text = await read();
  assert.ok(text.startsWith(prompt + newText.slice(0, 20)), text);
  const since = server.requests.length;
  await page.reload();
  await page.waitForSelector('article[data-state="done"]');
  assert.equal(await read(), text);
  await page.waitForFunction(() => document.querySelector(".model-facts"), { polling: 100 });
  const weights = server.requests.slice(since).filter(({ method, path }) => method === "GET" && path.endsWith("model.safetensors"));
  assert.deepEqual(weights, []);
  assert.deepEqual(problems, []);
});

test("the embedding tab finds a passage of the example notes", options, async () => {
  await openTab("Embedding");
  // A locator waits until the button is enabled: the store of the notes opens after the model.
  await press("button", "Add 8 example notes");
  await shows(/Ask in your own words\./);
  await fill('input[type="search"]', "Where does green tea come from?");
  await press("button", "Search");
  await page.waitForFunction(() => document.querySelector('[aria-label^="Passages for"] li'), { polling: 100 });
  assert.match(await page.$eval('[aria-label^="Passages for"] li', (item) => item.innerText), /leaves of one plant/);
  assert.deepEqual(problems, []);
});

test("the STT tab loads a model and transcribes a file", options, async () => {
  await openTab("STT");
  await shows(/Choose a speech-to-text model/);
  await page.locator(".model-button").click();
  await page.locator('::-p-aria([name="From Hugging Face"][role="textbox"])').fill(`${server.url}/tiny/whisper/`);
  await press("button", "Load");
  await shows(/Microphone/);
  const file = join(folder, "tone.wav");
  await writeFile(file, wav({ rate: 16_000, seconds: 3, sample: (t) => 0.4 * Math.sin(t * 2000) }));
  await (await page.waitForSelector('[aria-label="File"] input[type="file"]')).uploadFile(file);
  await page.waitForFunction(() => document.querySelectorAll('[aria-label="Segments"] li:not(.said-partial)').length === 3, { polling: 100 });
  const lines = await page.$$eval('[aria-label="Segments"] li', (items) => items.map((item) => item.innerText.replaceAll("\n", "")));
  // The tiny Whisper's fixed output: tests/golden/scripts/make_speech.py.
  assert.deepEqual(lines, ["0:00so, the catching (ed)", '0:01well-er "ly"? up', "0:02bara we's 10% éon!"]);
  assert.deepEqual(problems, []);
});

test("the TTS tab starts", options, async () => {
  await openTab("TTS");
  await shows(/Choose a text-to-speech model/);
  assert.deepEqual(problems, []);
});
