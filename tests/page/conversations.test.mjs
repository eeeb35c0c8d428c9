/** Conversations of the demo page over the fake engine: answers, prompts, search, files, the context meter, reloads. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { answered, chatting, closeSheet, field, pick, send, shape, sheet } from "./support/states.mjs";

const options = { timeout: 120_000 };
let site;

before(async () => {
  site = await fakeEnginePage();
}, options);
after(() => site?.close());

const questions = (page) => page.locator(".turn.user p").allInnerTexts();
const conversations = sheet("Conversations");
const used = async (page) => Number(await page.getByRole("meter", { name: "Context used" }).getAttribute("aria-valuenow"));

test("a question has several answers, each with the turns after it, and they survive a reload", options, async () => {
  const { page, context, problems } = await chatting(site);
  await send(page, "first");
  await send(page, "second");
  assert.equal(await page.getByRole("group", { name: "Answers to this question" }).count(), 0, "one answer has no pager");
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  await page.getByLabel("Answer 2 of 2", { exact: true }).waitFor();
  await send(page, "after the second answer");
  await page.getByRole("button", { name: "Previous answer", exact: true }).click();
  await page.getByLabel("Answer 1 of 2", { exact: true }).waitFor();
  assert.deepEqual(await questions(page), ["first", "second"]);
  assert.ok(await page.getByRole("button", { name: "Previous answer", exact: true }).isDisabled());
  await send(page, "after the first answer");
  await page.getByRole("button", { name: "Next answer", exact: true }).click();
  assert.deepEqual(await questions(page), ["first", "second", "after the second answer"]);
  await page.reload();
  await page.getByLabel("Answer 2 of 2", { exact: true }).waitFor();
  assert.deepEqual(await questions(page), ["first", "second", "after the second answer"]);
  await page.getByRole("button", { name: "Previous answer", exact: true }).click();
  assert.deepEqual(await questions(page), ["first", "second", "after the first answer"]);
  assert.deepEqual(problems, []);
  await context.close();
});

test("models that decode greedily by default are sampled in a chat; the user's temperature has priority", options, async () => {
  const record = () => {
    window.requests = [];
    const { postMessage } = Worker.prototype;
    Worker.prototype.postMessage = function (message, ...rest) {
      if (message?.method === "generate") window.requests.push(message.args[0]);
      return postMessage.call(this, message, ...rest);
    };
  };
  const { page, context } = await site.open({}, record);
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  const temperature = async (text) => {
    await send(page, text);
    return page.evaluate(() => window.requests.at(-1).temperature);
  };
  assert.equal(await temperature("once"), undefined, "a story");
  // A story, too, has several continuations.
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  await page.getByRole("button", { name: "Previous answer", exact: true }).click();
  await page.getByLabel("Answer 1 of 2", { exact: true }).waitFor();
  await pick(page, "org/chat");
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  assert.equal(await temperature("one"), undefined, "the model's own");
  await pick(page, "org/greedy");
  await page.getByRole("button", { name: /^org\/greedy/ }).waitFor();
  assert.equal(await temperature("two"), 0.7);
  await sheet("Settings")(page);
  await page.getByRole("spinbutton", { name: "Temperature", exact: true }).fill("0");
  await page.getByRole("spinbutton", { name: "Temperature", exact: true }).blur();
  await closeSheet(page);
  assert.equal(await temperature("three"), 0);
  await context.close();
});

test("shortcuts open the list of conversations and a new one", options, async () => {
  const { page, context } = await chatting(site);
  await send(page, "one");
  await page.keyboard.press("Control+k");
  const dialog = page.getByRole("dialog", { name: "Conversations", exact: true });
  await dialog.waitFor();
  // Under a sheet they do nothing.
  await page.keyboard.press("Control+Shift+O");
  await closeSheet(page);
  assert.deepEqual(await questions(page), ["one"]);
  await page.keyboard.press("Control+Shift+O");
  await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  await page.waitForFunction(() => document.activeElement?.closest(".composer"));
  assert.equal(await page.getByRole("button", { name: "Conversations", exact: true }).getAttribute("title"), "Conversations (Ctrl+K)");
  await context.close();
});

test("an answer is edited in place, and the next question follows the new text", options, async () => {
  const { page, context, problems } = await chatting(site);
  await send(page, "<think>some thoughts</think> one two");
  const count = (tokens) => page.waitForFunction((tokens) => document.querySelector('[role="meter"][aria-label="Context used"]')?.getAttribute("aria-valuenow") === String(tokens), tokens);
  await page.getByRole("meter", { name: "Context used" }).waitFor();
  const before = await used(page);
  await page.getByRole("button", { name: "Edit this answer", exact: true }).click();
  const editor = page.getByRole("textbox", { name: "Answer", exact: true });
  assert.equal(await editor.inputValue(), "one two");
  await editor.press("Escape");
  await editor.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Edit this answer", exact: true }).click();
  await editor.fill("two\nlines");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const rewritten = page.locator("article .prose").last().getByText(/^two\s*lines$/);
  await rewritten.waitFor();
  await count(before + "two\nlines".length - "one two".length);
  await page.reload();
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await rewritten.waitFor();
  await count(before + "two\nlines".length - "one two".length);
  assert.match(await page.locator("article").innerText(), /Thoughts/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("a conversation has a system prompt of its own, which the context meter counts", options, async () => {
  const { page, context } = await chatting(site);
  await send(page, "hello");
  const meter = page.getByRole("meter", { name: "Context used" });
  await meter.waitFor();
  const before = await used(page);
  const prompt = page.getByRole("textbox", { name: "System prompt of this conversation" });
  await sheet("Settings")(page);
  await prompt.fill("Be brief.");
  await closeSheet(page);
  // One token a character, and one for the role.
  await page.waitForFunction((tokens) => Number(document.querySelector(".context").getAttribute("aria-valuenow")) === tokens, before + 10);
  assert.match(await meter.getAttribute("aria-valuetext"), /^\d+ of 64 tokens of context used$/);
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await sheet("Settings")(page);
  assert.equal(await prompt.inputValue(), "");
  await closeSheet(page);
  await conversations(page);
  await page.getByRole("button", { name: "Open", exact: true }).click();
  await sheet("Settings")(page);
  assert.equal(await prompt.inputValue(), "Be brief.");
  await context.close();
});

test("conversations are searched, exported and imported", options, async () => {
  const { page, context, problems } = await chatting(site);
  await send(page, "How do bees dance?");
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await send(page, "What is a glacier?\nIt is made of ice.");
  await conversations(page);
  const dialog = page.getByRole("dialog");
  const names = () => dialog.getByRole("textbox", { name: "Name of the conversation" }).evaluateAll((fields) => fields.map(({ value }) => value));
  const search = dialog.getByRole("searchbox", { name: "Search conversations" });
  await search.fill("ICE made");
  assert.deepEqual(await names(), ["What is a glacier?"]);
  assert.equal(await dialog.locator(".kept-line").innerText(), "It is made of ice.");
  await search.fill("volcano");
  await dialog.getByText("No conversation contains “volcano”.").waitFor();
  await search.fill("");
  const saving = page.waitForEvent("download");
  await dialog.getByRole("button", { name: "Export all as JSON" }).click();
  const file = await (await saving).path();
  assert.equal(JSON.parse(await readFile(file, "utf8")).length, 2);
  const asked = [];
  page.once("dialog", (box) => (asked.push(box.message()), box.dismiss()));
  await dialog.getByRole("button", { name: "Delete How do bees dance?" }).click();
  assert.deepEqual(asked, ["Delete “How do bees dance?”? This cannot be undone."]);
  const name = dialog.getByRole("textbox", { name: "Name of the conversation" }).last();
  await name.fill(" ");
  await name.blur();
  assert.equal((await names()).join(), "What is a glacier?,How do bees dance?", "it has a name");
  page.once("dialog", (box) => box.accept());
  await dialog.getByRole("button", { name: "Delete How do bees dance?" }).click();
  const upload = dialog.getByLabel("Import", { exact: true });
  await upload.setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from('[{"id": 1}]') });
  await dialog.getByRole("alert").getByText("This file has no conversations").waitFor();
  const badParent = [{ id: "x", name: "x", turns: [{ role: "user", text: "a", parent: 5 }] }];
  await upload.setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(badParent)) });
  assert.equal((await names()).length, 1);
  await upload.setInputFiles(file);
  await dialog.getByRole("alert").waitFor({ state: "detached" });
  assert.deepEqual(await names(), ["What is a glacier?", "How do bees dance?"]);
  await page.getByText("1 conversation imported.").waitFor({ state: "attached" });
  await dialog.getByRole("button", { name: "Open", exact: true }).nth(1).click();
  assert.deepEqual(await questions(page), ["How do bees dance?"]);
  await conversations(page);
  const twice = [{ id: "twice", name: "Kept", updated: 1e20, turns: [] }, { id: "twice", name: "Ignored", updated: 1, turns: [] }];
  await upload.setInputFiles({ name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(twice)) });
  await dialog.getByRole("button", { name: "Delete Kept" }).waitFor();
  assert.equal((await names()).length, 3);
  assert.doesNotMatch(await dialog.innerText(), /Invalid/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("a reload during an answer keeps its text, which can be continued", options, async () => {
  const { page, context, problems } = await chatting(site);
  const words = "word ".repeat(900).trim();
  await field(page).fill(words);
  // The page reloads itself: the answer may be complete before a reload from outside.
  await page.evaluate(() => {
    const begun = () => JSON.parse(localStorage.getItem("jerboa.unfinished"))?.text.length > 50 && document.querySelector('article[data-state="running"]');
    const timer = setInterval(() => {
      if (!begun()) return;
      // A second call would begin the reload anew.
      clearInterval(timer);
      location.reload();
    }, 10);
  });
  const reloaded = page.waitForEvent("load");
  await field(page).press("Enter");
  await reloaded;
  const answer = page.getByRole("article", { name: "Answer", exact: true });
  await answer.getByText("interrupted").waitFor();
  const text = (await answer.locator(".prose").innerText()).trim();
  assert.ok(text.length > 50 && text.length < words.length && words.startsWith(text.replaceAll("\n", " ")), `${text.length} of ${words.length} characters`);
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await answered(page, () => answer.getByRole("button", { name: "Continue", exact: true }).click());
  assert.deepEqual((await questions(page)).at(-1), "Continue.");
  await page.reload();
  await answer.first().waitFor();
  assert.equal(await answer.getByText("interrupted").count(), 1);
  assert.deepEqual(problems, []);
  await context.close();
});

test("an answer that is left for another conversation keeps its text", options, async () => {
  const { page, context } = await chatting(site);
  await send(page, "other");
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await field(page).fill("word ".repeat(900));
  await field(page).press("Enter");
  await page.waitForFunction(() => document.querySelector("article .prose")?.textContent.length > 50);
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await conversations(page);
  await page.getByRole("button", { name: "Open", exact: true }).first().click();
  assert.ok((await page.getByRole("article", { name: "Answer", exact: true }).locator(".prose").innerText()).trim().length > 50);
  await context.close();
});

/** Opens the page in another tab of the same visitor, who has chosen a model. */
async function secondTab(context) {
  const page = await context.newPage();
  await page.goto(site.url);
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  return page;
}

/** Names of the conversations that another tab has stored by now. */
const untilSaved = (page, names) => page.waitForFunction((names) => JSON.parse(localStorage.getItem("jerboa.conversations")).map(({ name }) => name).sort().join() === names, names.sort().join());

test("two tabs keep each other's conversations, and a deleted one is gone from both", options, async () => {
  const { page, context, problems } = await chatting(site);
  page.on("dialog", (box) => box.accept());
  await send(page, "before");
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  const other = await secondTab(context);
  await send(page, "first tab");
  await send(other, "second tab");
  await send(page, "first tab again");
  await untilSaved(page, ["before", "first tab", "second tab"]);
  await conversations(page);
  await page.getByRole("button", { name: "Delete before" }).click();
  await page.getByRole("button", { name: "Delete second tab" }).click();
  // The other tab has shown it.
  await other.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  await send(other, "last");
  await untilSaved(page, ["first tab", "last"]);
  await page.getByRole("button", { name: "Delete last" }).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("tabs that save at the same time keep both conversations, and both turns of one", options, async () => {
  const { page, context, problems } = await chatting(site);
  const read = (page) => page.evaluate(() => localStorage.getItem("jerboa.conversations"));
  await send(page, "before");
  const stale = JSON.parse(await read(page));
  const other = await secondTab(context);
  // What a tab stores that has not seen the first tab's save.
  const overwrite = (all) => other.evaluate((text) => localStorage.setItem("jerboa.conversations", text), JSON.stringify(all));
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await send(page, "first tab");
  await overwrite([{ ...stale[0], id: "second", name: "second tab" }, ...stale]);
  await untilSaved(page, ["before", "first tab", "second tab"]);
  assert.deepEqual(await questions(page), ["first tab"], "the open conversation stays");

  const mine = JSON.parse(await read(page)).find(({ name }) => name === "first tab");
  await send(page, "mine");
  const rest = JSON.parse(await read(page)).filter(({ id }) => id !== mine.id);
  const theirs = { ...mine, updated: mine.updated + 1, versions: [mine.updated], turns: [...mine.turns, { role: "user", text: "theirs" }] };
  await overwrite([theirs, ...rest]);
  await page.waitForFunction(() => JSON.parse(localStorage.getItem("jerboa.conversations")).length === 4);
  const texts = JSON.parse(await read(page)).filter(({ name }) => name === "first tab").map(({ turns }) => turns.filter(({ role }) => role === "user").map(({ text }) => text).join());
  assert.deepEqual(texts.sort(), ["first tab,mine", "first tab,theirs"]);
  assert.deepEqual(problems, []);
  await context.close();
});

test("a conversation whose stored time is no date is listed, opened and saved", options, async () => {
  const { page, context, problems } = await chatting(site);
  await send(page, "one");
  await page.evaluate(() => {
    const [one] = JSON.parse(localStorage.getItem("jerboa.conversations"));
    localStorage.setItem("jerboa.conversations", JSON.stringify([{ ...one, updated: 1e20 }, { ...one, id: "b", name: "two", updated: -1e300 }, { ...one, id: "c", name: "three", updated: "x" }]));
  });
  await page.reload();
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await conversations(page);
  const listed = await page.locator("dialog[open] li.kept .hint").allInnerTexts();
  assert.equal(listed.length, 3);
  const today = await page.evaluate(() => new Date().toLocaleDateString("en"));
  for (const line of listed) assert.ok(line.endsWith(`· ${today}`), line);
  await closeSheet(page);
  await send(page, "again");
  const [{ updated, turns }] = JSON.parse(await page.evaluate(() => localStorage.getItem("jerboa.conversations")));
  assert.ok(updated > 0 && updated <= Date.now() + 1000, String(updated));
  assert.equal(turns.length, 4);
  assert.deepEqual(problems, []);
  await context.close();
});

test("an answer of another tab is not interrupted, and both tabs' turns of one conversation are kept", options, async () => {
  const { page, context } = await chatting(site);
  const words = "word ".repeat(900).trim();
  await field(page).fill(words);
  await field(page).press("Enter");
  await page.waitForFunction(() => JSON.parse(localStorage.getItem("jerboa.unfinished"))?.text.length > 50);
  const other = await secondTab(context);
  const answer = other.getByRole("article", { name: "Answer", exact: true });
  await page.locator('article[data-state="done"]').waitFor();
  await other.waitForFunction((length) => document.querySelector("article .prose")?.textContent.trim().length === length, words.length);
  assert.equal(await answer.getByText("interrupted").count(), 0);
  assert.equal(await page.getByText("interrupted").count(), 0);
  // A question of one tab is shown in the other.
  await send(page, "second");
  await other.waitForFunction(() => document.querySelectorAll(".turn.user").length === 2);
  await field(page).fill(`${words} `.repeat(3));
  await field(page).press("Enter");
  await page.locator('article[data-state="running"]').waitFor();
  await send(other, "meanwhile");
  await page.locator('article[data-state="running"]').waitFor({ state: "detached" });
  const saved = () => page.evaluate(() => JSON.parse(localStorage.getItem("jerboa.conversations")).map(({ turns }) => turns.map(({ text }) => text.length)));
  assert.deepEqual((await saved()).map((turns) => turns.length).sort(), [6, 8]);
  await context.close();
});

test("an edit waits for the running answer; Escape returns the focus to its button", options, async () => {
  const { page, context } = await chatting(site);
  await send(page, "first");
  const edit = page.getByRole("button", { name: "Edit this message", exact: true }).first();
  const editor = page.getByRole("textbox", { name: "Your message", exact: true });
  await edit.click();
  await editor.press("Escape");
  await page.waitForFunction(() => document.activeElement?.getAttribute("aria-label") === "Edit this message");
  await edit.click();
  await editor.fill("other");
  const again = page.getByRole("button", { name: "Send again", exact: true });
  // A double click on Send sends; it does not stop the answer.
  const words = "word ".repeat(400).trim();
  await field(page).fill(words);
  await page.getByRole("button", { name: "Send", exact: true }).dblclick();
  await page.locator('article[data-state="running"]').waitFor();
  assert.ok(await again.isDisabled());
  await editor.press("Enter");
  await page.locator('article[data-state="running"]').waitFor({ state: "detached" });
  assert.equal((await page.locator("article .prose").last().innerText()).trim().length, words.length);
  assert.equal(await editor.inputValue(), "other");
  await answered(page, () => again.click());
  assert.deepEqual(await questions(page), ["other"]);
  await context.close();
});

test("numbers out of range are clamped; an invalid schema is refused, and a failed answer says so after a reload", options, async () => {
  const { page, context, problems } = await chatting(site);
  await send(page, "first");
  await sheet("Settings")(page);
  for (const [label, given, shown] of [["Top-k", "1e15", "4294967295"], ["Seed", "1e23", "9007199254740991"], ["Max tokens", "1e20", "4294967295"], ["Temperature", "9", "2"]]) {
    const number = page.getByRole("spinbutton", { name: label, exact: true });
    await number.fill(given);
    await number.blur();
    assert.equal(await number.inputValue(), shown, label);
  }
  await closeSheet(page);
  await send(page, "second");
  assert.equal(await page.getByRole("article").getByRole("alert").count(), 0, "the engine accepts the limits");
  await shape(page, async (dialog) => {
    await dialog.getByRole("combobox", { name: "Format" }).selectOption("JSON of a schema");
    await dialog.getByRole("textbox", { name: "JSON schema" }).fill("{");
  });
  await field(page).fill("third");
  await field(page).press("Enter");
  await page.locator(".composer").getByRole("alert").getByText(/^The JSON schema cannot be used\. Correct it under “Answers”.*Not JSON/).waitFor();
  assert.equal(await field(page).inputValue(), "third");
  assert.deepEqual(await questions(page), ["first", "second"]);
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  const failed = page.getByRole("article").last().getByRole("alert").getByText(/^The JSON schema cannot be used/);
  await failed.waitFor();
  await page.reload();
  await failed.waitFor();
  await shape(page, (dialog) => dialog.getByRole("button", { name: "Reset" }).click());
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await field(page).press("Enter");
  await page.waitForFunction(() => document.querySelectorAll('.turn.user').length === 3);
  assert.equal(await page.locator(".composer").getByRole("alert").count(), 0);
  assert.deepEqual(problems, []);
  await context.close();
});
