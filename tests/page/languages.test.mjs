/** The demo page's languages over the fake engine: complete, chosen by the browser or a menu, right to left. */

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { build } from "esbuild";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { ROOT } from "./support/paths.mjs";
import { send } from "./support/states.mjs";
import { overflows } from "./support/widths.mjs";

const options = { timeout: 480_000 };
const CODES = ["de", "es", "fr", "pt", "ja", "zh", "ar"];
/** Titles of the first screen. */
const BEGIN = { de: "Beginne eine Geschichte.", es: "Empieza un cuento.", fr: "Commencez une histoire.", pt: "Comece uma história.", ja: "物語を始めましょう。", zh: "开始一个故事。", ar: "ابدأ قصة." };
let site, folder;
const tables = {};

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-languages-"));
  for (const code of [...CODES, "en"]) {
    const file = code === "en" ? "strings" : `languages/${code}`;
    const outfile = join(folder, `${code}.mjs`);
    await build({ entryPoints: [`${ROOT}/www/src/${file}.ts`], bundle: true, format: "esm", outfile, logLevel: "silent" });
    const module = await import(pathToFileURL(outfile).href);
    tables[code] = module.default ?? module.ENGLISH;
  }
  site = await fakeEnginePage();
}, options);
after(async () => {
  await site?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Paths of all strings, with the values. */
function* entries(value, path = "") {
  if (typeof value !== "object") return yield [path, value];
  for (const [name, each] of Object.entries(value)) yield* entries(each, `${path}.${name}`);
}

test("every language has all strings, and each function uses what it is given", options, () => {
  const english = new Map(entries(tables.en));
  assert.ok(english.size > 300, String(english.size));
  for (const code of CODES) {
    const found = new Map(entries(tables[code]));
    const ofNotes = (path) => path.startsWith(".NOTES.");
    assert.deepEqual([...found.keys()].filter((path) => !ofNotes(path)).sort(), [...english.keys()].sort(), code);
    assert.ok([...found.keys()].filter(ofNotes).length >= 20, `${code}: notes`);
    for (const [path, value] of english) {
      if (typeof value !== "function") continue;
      const given = Array.from({ length: Math.max(value.length, found.get(path).length) }, (_, i) => `«${i}»`);
      const [said, here] = [value(...given), found.get(path)(...given)];
      for (const argument of given) assert.equal(here.includes(argument), said.includes(argument), `${code}${path}: ${here}`);
      assert.doesNotMatch(here, /undefined|NaN/, `${code}${path}`);
    }
  }
});

test("notes of suggested models are translated", options, async () => {
  const catalog = await readFile(`${ROOT}/www/src/model/catalog.ts`, "utf8");
  const notes = [...catalog.matchAll(/note: "(.+?)"/g)].map(([, note]) => note);
  assert.ok(notes.length > 15);
  for (const code of CODES) assert.deepEqual(notes.filter((note) => !tables[code].NOTES[note]), [], code);
});

test("the browser's language decides; a menu changes it, and the choice survives a reload", options, async () => {
  const { page, context, problems } = await site.open({ locale: "de-AT" });
  await page.getByRole("heading", { name: BEGIN.de, exact: true }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "de");
  await page.getByRole("combobox", { name: "Sprache" }).selectOption("English");
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "en");
  await page.reload();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  // A conversation stays open while the language changes.
  await send(page, "Once upon a time");
  await page.getByRole("combobox", { name: "Language" }).selectOption("Français");
  await page.getByRole("article", { name: "Texte continué" }).waitFor();
  // Back in English, nothing of French is left: English has no table of notes.
  await page.locator("select.language").selectOption("English");
  await page.locator(".model-button").click();
  await page.getByRole("dialog").getByText("Quick, many languages", { exact: false }).first().waitFor();
  await page.keyboard.press("Escape");
  assert.deepEqual(problems, []);
  // Without the connection a language that is not loaded cannot be shown; the page says so, and the menu stays.
  await context.route(/\/es-[\w-]+\.js/, (route) => route.abort());
  await page.getByRole("combobox", { name: "Language" }).selectOption("Español");
  const notice = page.getByRole("alert").filter({ hasText: "Español could not be loaded." });
  await notice.waitFor();
  assert.equal(await page.locator("select.language").inputValue(), "en");
  await notice.getByRole("button", { name: "Dismiss", exact: true }).click();
  await notice.waitFor({ state: "detached" });
  await context.close();
});

test("English loads no other language", options, async () => {
  const requests = [];
  const { page, context } = await site.open({ locale: "en-GB" });
  page.on("request", (request) => requests.push(request.url()));
  await page.reload();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  assert.deepEqual(requests.filter((url) => /\/(de|es|fr|pt|ja|zh|ar)-[\w-]+\.js/.test(url)), []);
  await context.close();
});

test("each language shows the page without English words, overflow or findings of axe", options, async () => {
  const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  for (const code of CODES) {
    const { page, context, problems } = await site.open({ locale: code, viewport: { width: 320, height: 640 } });
    await page.getByRole("heading", { name: BEGIN[code], exact: true }).waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.dir), code === "ar" ? "rtl" : "ltr");
    await page.evaluate(axe);
    const strings = tables[code];
    for (const id of ["chat", "vision", "embedding", "stt", "tts", "train"]) {
      const before = id === "chat" ? "" : await page.evaluate(() => document.querySelector("main h1")?.textContent);
      await page.getByRole("link", { name: strings.TAB_NAMES[id], exact: true }).first().click();
      // The tab's module is loaded, and its model: the last tab's heading is gone.
      await page.waitForFunction(([id, before]) => {
        const title = document.querySelector("main h1")?.textContent;
        return location.hash === `#${id}` && title && title !== before && !document.querySelector(".loading, .working");
      }, [id, before]);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${id} in ${code} overflows`);
      const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
      const said = violations.map(({ id: rule, nodes }) => `${rule}: ${nodes.map(({ html }) => html.slice(0, 100)).join(" ")}`);
      assert.equal(said.join("\n"), "", `${id} in ${code}: ${said.join("\n")}`);
      const text = await page.locator("main").innerText();
      for (const [path, english] of entries(tables.en)) {
        const here = path.slice(1).split(".").reduce((value, name) => value?.[name], strings);
        if (typeof english === "string" && english.length > 12 && here !== english) assert.ok(!text.includes(english), `${code}, ${id}: ${english}`);
      }
    }
    assert.deepEqual(problems, [], code);
    await context.close();
  }
});

test("the header fits every width", options, async () => {
  const { page, context } = await site.open({ locale: "en-GB" });
  for (const language of ["English", "Deutsch", "Français", "Español", "Português", "العربية"]) {
    await page.locator("select.language").selectOption(language);
    await page.waitForFunction(() => document.documentElement.lang === document.querySelector("select.language").value);
    assert.deepEqual(await overflows(page), [], language);
  }
  await context.close();
});

test("notices about the connection are translated, and English details keep their punctuation from right to left", options, async () => {
  const { page, context } = await site.open({ locale: "ar" });
  await page.getByRole("heading", { name: BEGIN.ar, exact: true }).waitFor();
  await page.locator(".model-button").click();
  await page.getByRole("textbox", { name: tables.ar.PICKER.hub }).fill("no/network");
  await page.getByRole("button", { name: tables.ar.PICKER.load, exact: true }).click();
  const alert = page.getByRole("main").getByRole("alert");
  const said = alert.getByText(tables.ar.ERRORS.network, { exact: true });
  await said.waitFor();
  assert.equal(await said.evaluate((text) => getComputedStyle(text).direction), "rtl");
  await alert.locator("summary").click();
  assert.equal(await alert.getByText("Load the model again to resume the download.").evaluate((text) => getComputedStyle(text).direction), "ltr");
  await page.locator(".model-button").click();
  await page.getByRole("textbox", { name: tables.ar.PICKER.hub }).fill("no/such");
  await page.getByRole("button", { name: tables.ar.PICKER.load, exact: true }).click();
  await page.waitForFunction(() => getComputedStyle([...document.querySelectorAll("main .notice p")].find((text) => text.textContent.includes("was not found")) ?? document.documentElement).direction === "ltr");
  await context.close();
});

test("from right to left, the side sheet opens at the left, and code stays left to right", options, async () => {
  const { page, context } = await site.open({ locale: "ar" });
  await page.getByRole("heading", { name: BEGIN.ar, exact: true }).waitFor();
  assert.equal(await page.locator(".composer textarea").evaluate((field) => getComputedStyle(field).direction), "rtl", "an empty field");
  await page.locator(".model-button").click();
  assert.match(await page.locator(".choice[aria-current] .choice-name").evaluate((name) => getComputedStyle(name, "::after").content), new RegExp(tables.ar.PICKER.inUse));
  await page.getByRole("textbox", { name: tables.ar.PICKER.hub }).fill("org/chat");
  await page.getByRole("button", { name: tables.ar.PICKER.load, exact: true }).click();
  await page.getByRole("heading", { name: tables.ar.CHAT.ask, exact: true }).waitFor();
  await send(page, "```js\nlet x = 1;\n```");
  // The block is written anew while the answer comes.
  await page.waitForFunction(() => {
    const block = document.querySelector(".code-block pre");
    return block && getComputedStyle(block).direction === "ltr";
  });
  await page.getByRole("button", { name: tables.ar.SETTINGS.title, exact: true }).click();
  const box = await page.getByRole("dialog").boundingBox();
  assert.ok(box.x < 1, `at ${box.x}`);
  await context.close();
});
