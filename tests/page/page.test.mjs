/** The demo page over the fake engine: reloads, failed loads, conversations, focus, narrow screens. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { shot, WEBGPU_SINCE } from "./support/browser.mjs";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { ROOT } from "./support/paths.mjs";
import { answered, chatting as openChat, closeSheet, field, pick, send, shape, STATES, VISITS } from "./support/states.mjs";

const options = { timeout: 120_000 };
const INSECURE = "insecure.test";
let site;

before(async () => {
  // A name that is not localhost: its pages have no secure connection.
  site = await fakeEnginePage([`--host-resolver-rules=MAP ${INSECURE} 127.0.0.1`]);
}, options);
after(() => site?.close());

/** A page with a chat model. */
const chatting = (options, name) => openChat(site, options, name);

/** Waits until the composer has the focus, which it gets when an answer is complete. */
const focused = (page) => page.waitForFunction(() => document.activeElement?.closest(".composer"));

test("the first screen explains the page, names the GPU, and offers a chat model", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  const text = await page.getByRole("main").innerText();
  assert.match(text, /running in your browser, on your own GPU/);
  assert.match(text, /Runs on \S+/);
  assert.match(text, /without a GPU|No GPU found/, "this Chromium computes on the CPU, and the page says so");
  await page.getByRole("button", { name: /^Chat with / }).click();
  await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  await context.close();
});

test("model, conversation, draft and settings survive a reload; the draft survives a change of tabs", options, async () => {
  const { page, context, problems } = await chatting();
  await send(page, "one two three");
  await field(page).fill("half a thought");
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  assert.equal(await field(page).inputValue(), "half a thought");
  await page.reload();
  await page.getByRole("article", { name: "Answer", exact: true }).waitFor();
  assert.equal((await page.locator(".turn.user p").innerText()).trim(), "one two three");
  assert.equal(await field(page).inputValue(), "half a thought");
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await field(page).press("Enter");
  await page.waitForFunction(() => document.querySelectorAll('article[data-state="done"]').length === 2);
  assert.deepEqual(problems, []);
  await context.close();
});

test("a message sent while the model loads is answered once it is ready, unless it is edited first", options, async () => {
  const prepare = `localStorage.setItem("jerboa.chat.model", '{"source":"org/late","label":"org/late","options":{}}')`;
  for (const changed of [false, true]) {
    const { page, context, problems } = await site.open({}, prepare);
    await page.getByRole("region", { name: "Loading", exact: true }).waitFor();
    await field(page).fill("one two");
    await field(page).press("Enter");
    await page.getByRole("button", { name: "Send", exact: true, pressed: true }).waitFor();
    if (changed) await field(page).press("x");
    // Now it may end; its worker may not listen yet.
    await page.evaluate(() => void setInterval((channel) => channel.postMessage(true), 50, new BroadcastChannel("late")));
    await page.locator(".model-facts").waitFor();
    if (changed) {
      assert.equal(await field(page).inputValue(), "one twox");
      assert.equal(await page.getByRole("article").count(), 0);
    } else {
      await page.locator('article[data-state="done"]').waitFor();
      assert.equal((await page.locator(".turn.user p").innerText()).trim(), "one two");
      assert.equal(await field(page).inputValue(), "");
    }
    assert.deepEqual(problems, []);
    await context.close();
  }
});

test("an invalid name is refused in the dialog; a failed load leaves the current model loaded", options, async () => {
  const { page, context } = await chatting();
  await pick(page, "nonsense");
  const dialog = page.getByRole("dialog");
  assert.match(await dialog.getByRole("alert").innerText(), /organization\/model/);
  // The device has room for 2 GB: only larger models are marked.
  await dialog.getByRole("button", { name: /Phi-3 mini.*Probably too large/s }).waitFor();
  assert.equal(await dialog.getByText("Probably too large").count(), 1);
  await dialog.getByRole("textbox", { name: "From Hugging Face", exact: true }).fill("no/such");
  await dialog.getByRole("button", { name: "Load", exact: true }).click();
  const alert = page.getByRole("main").getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /no\/such could not be loaded\. org\/chat stays loaded\.[^]*Check the name/);
  await send(page, "still works");
  await page.getByRole("button", { name: "Dismiss", exact: true }).click();
  await alert.waitFor({ state: "detached" });
  await context.close();
});

test("a load can be cancelled, and its progress bar never goes back", options, async () => {
  const { page, context } = await site.open({}, () => {
    window.shares = [];
    new MutationObserver(() => {
      const bar = document.querySelector('[role="progressbar"]');
      if (bar) window.shares.push(Number(bar.getAttribute("aria-valuenow")));
    }).observe(document, { subtree: true, childList: true, attributes: true });
  });
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  const shares = await page.evaluate(() => window.shares);
  assert.ok(shares.length > 0 && shares.every((share, i) => i === 0 || share >= shares[i - 1]), String(shares));
  await pick(page, "org/endless");
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("region", { name: "Loading", exact: true }).waitFor({ state: "detached" });
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await context.close();
});

test("the device sheet names the model as the toolbar does, not by its address", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await page.getByRole("button", { name: "This device", exact: true }).click();
  const name = page.getByRole("dialog").locator("dl div", { has: page.locator("dt", { hasText: /^name$/ }) }).locator("dd");
  assert.equal(await name.innerText(), "stories260K");
  await context.close();
});

test("editing a message opens a new conversation, answers can be regenerated and continued; the composer gets the focus", options, async () => {
  const { page, context } = await chatting();
  await page.getByRole("button", { name: "Settings", exact: true }).click();
  await page.getByRole("spinbutton", { name: "Max tokens", exact: true }).fill("2");
  await page.getByRole("spinbutton", { name: "Max tokens", exact: true }).blur();
  await closeSheet(page);
  await send(page, "one two three four");
  await page.getByText("reached the limit").waitFor();
  await page.getByRole("button", { name: "Continue", exact: true }).click();
  await page.locator(".turn.user p").getByText("Continue.", { exact: true }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll('article[data-state="done"]').length === 2);
  await focused(page);
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  assert.equal(await page.locator('article[data-state="done"]').count(), 2);
  await focused(page);
  await page.getByRole("button", { name: "Edit this message", exact: true }).first().click();
  await page.getByRole("textbox", { name: "Your message", exact: true }).fill("other words");
  await page.getByRole("button", { name: "Send again", exact: true }).click();
  await page.waitForFunction(() => document.querySelector("article .prose")?.textContent.trim() === "other words");
  await page.getByRole("button", { name: "Conversations", exact: true }).click();
  const names = page.getByRole("textbox", { name: "Name of the conversation", exact: true });
  assert.deepEqual([await names.nth(0).inputValue(), await names.nth(1).inputValue()], ["other words", "one two three four"]);
  await names.nth(1).fill("Numbers");
  await names.nth(1).blur();
  await page.getByRole("button", { name: "Open", exact: true }).nth(1).click();
  assert.equal((await page.locator(".turn.user p").first().innerText()).trim(), "one two three four");
  await page.getByRole("button", { name: "Conversations", exact: true }).click();
  page.on("dialog", (box) => box.accept());
  await page.getByRole("button", { name: "Delete Numbers", exact: true }).click();
  await page.waitForFunction(() => document.querySelectorAll(".kept").length === 1);
  await closeSheet(page);
  await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  await send(page, "again");
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await page.waitForFunction(() => document.activeElement?.closest(".composer"));
  await context.close();
});

test("a model for another task is named with the tab it belongs to; errors are readable", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await pick(page, "org/embedder");
  const alert = page.getByRole("main").getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /org\/embedder cannot generate text\. stories260K stays loaded\.[^]*embedding model/);
  // The model that works is not replaced.
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  assert.match(await page.locator(".model-button").innerText(), /stories260K/);
  await send(page, "one two");
  await alert.waitFor();
  await alert.getByRole("button", { name: "Dismiss", exact: true }).click();
  await alert.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await pick(page, "org/whisper");
  await alert.getByText("org/whisper cannot generate text.").waitFor();
  assert.equal(await alert.getByRole("link", { name: "Speech to text", exact: true }).getAttribute("href"), "#stt");
  await pick(page, "org/embedder");
  await alert.getByRole("link", { name: "Open the Embedding tab", exact: true }).click();
  await page.getByRole("region", { name: "Documents", exact: true }).waitFor();
  await pick(page, "org/chat");
  await alert.waitFor();
  assert.match(await alert.innerText(), /org\/chat is not an embedding model\. words-encoder stays loaded\./);
  await page.getByRole("region", { name: "Documents", exact: true }).waitFor();
  await page.getByRole("link", { name: "Chat", exact: true }).click();
  await pick(page, "org/gated");
  await page.getByRole("button", { name: "Enter a token", exact: true }).waitFor();
  assert.match(await alert.first().innerText(), /accept its terms/);
  await context.close();
});

test("documents that begin with the same text are both stored, and the focus stays", options, async () => {
  const { page, context, problems } = await site.open();
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  const documents = page.getByRole("region", { name: "Documents", exact: true });
  const paste = documents.getByRole("textbox", { name: "Text of a document", exact: true });
  await page.getByText("Ask in your own words.").or(page.getByText("Add some documents first.")).waitFor();
  for (const text of ["A title\nfirst text", "A title\nsecond text"]) {
    await paste.fill(text);
    await documents.getByRole("button", { name: "Add this text", exact: true }).click();
    await documents.getByRole("button", { name: text.includes("second") ? "Remove A title (2)" : "Remove A title", exact: true }).waitFor();
  }
  await documents.getByRole("button", { name: "Remove A title", exact: true }).click();
  await documents.getByRole("button", { name: "Remove A title", exact: true }).waitFor({ state: "detached" });
  await page.waitForFunction(() => document.activeElement !== document.body);
  assert.deepEqual(problems, []);
  await context.close();
});

test("nothing overflows on the narrowest phone, and everything can be reached", options, async () => {
  for (const width of [320, 344, 390]) {
    const { page, context } = await chatting({ viewport: { width, height: 640 } });
    await send(page, "a word that is longer than the screen: ".concat("o".repeat(60)));
    for (const tab of ["Chat", "Vision", "Embedding", "STT", "TTS"]) {
      await page.getByRole("link", { name: tab, exact: true }).click();
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${tab} at ${width}`);
      const theme = await page.getByRole("button", { name: /^Theme:/ }).boundingBox();
      assert.ok(theme.x + theme.width <= width, `the theme button at ${width}`);
    }
    await context.close();
  }
});

test("a failed load shows the reason, and another model can be chosen", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await pick(page, "no/such");
  const alert = page.getByRole("main").getByRole("alert");
  await alert.waitFor();
  assert.match(await alert.innerText(), /no\/such could not be loaded\.[^]*was not found\. Check the name/);
  const retry = page.getByRole("button", { name: "Try again", exact: true });
  assert.equal(await retry.count(), 0, "a second attempt cannot help");
  await pick(page, "no/network");
  await alert.getByText("no/network could not be loaded.", { exact: false }).waitFor();
  assert.equal(await retry.count(), 1, "a second attempt may help");
  await page.getByRole("button", { name: "Choose another model", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: /^stories260K.* Built into this page/ }).click();
  await alert.waitFor({ state: "detached" });
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await context.close();
});

test("every control has a name, and the theme is saved", options, async () => {
  const { page, context } = await chatting();
  await send(page, "one two");
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, a, input, textarea, select")]
      .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
      .map((e) => e.outerHTML),
  );
  assert.deepEqual(nameless, []);
  const toggle = page.getByRole("button", { name: /^Theme:/ });
  while (!/dark/.test(await toggle.getAttribute("aria-label"))) await toggle.click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  for (const other of ["bench", "report"]) {
    await page.goto(`${site.url}/${other}/index.html`);
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark", other);
    await toggle.click();
    assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), undefined, other);
    while (!/dark/.test(await toggle.getAttribute("aria-label"))) await toggle.click();
    assert.equal(await page.getByRole("link", { name: "Docs", exact: true }).getAttribute("href"), "../docs/");
    await page.getByRole("link", { name: "Source", exact: true }).waitFor();
  }
  await context.close();
});

test("a selection that ends outside a sheet leaves it open; a press on the backdrop closes it", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await page.locator(".model-button").click();
  const dialog = page.getByRole("dialog");
  const title = await dialog.getByRole("heading", { name: "Choose a model" }).boundingBox();
  const edge = (await dialog.boundingBox()).x - 40;
  await page.mouse.move(title.x + title.width, title.y + title.height / 2);
  await page.mouse.down();
  await page.mouse.move(edge, title.y + title.height / 2, { steps: 4 });
  await page.mouse.up();
  assert.match(await page.evaluate(() => String(getSelection())), /Choose/);
  assert.equal(await dialog.count(), 1, "still open");
  await page.mouse.click(edge, title.y);
  await dialog.waitFor({ state: "detached" });
  await context.close();
});

test("links to the Hub load as they are pasted, and are labelled by their repository or file", options, async () => {
  const { page, context, problems } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  for (const [typed, label] of [
    ["https://huggingface.co/org/one/tree/main", "org/one"],
    ["huggingface.co/org/two", "org/two"],
    ["hf.co/org/three/", "org/three"],
    [" org/four/ ", "org/four"],
    ["https://huggingface.co/org/five-GGUF/blob/main/five-Q4.gguf?download=true", "five-GGUF/five-Q4.gguf"],
    ["org/six-GGUF/six-Q4.gguf", "six-GGUF/six-Q4.gguf"],
    ["https://example.com/models/seven/", "models/seven"],
  ]) {
    await pick(page, typed);
    await page.locator(".model-name").getByText(label, { exact: true }).waitFor();
    await page.locator(".model-facts").waitFor();
  }
  const source = () => page.evaluate(() => JSON.parse(localStorage.getItem("jerboa.chat.model")).source);
  assert.equal(await source(), "https://example.com/models/seven/");
  await pick(page, "huggingface.co/org/two");
  await page.locator(".model-name").getByText("org/two", { exact: true }).waitFor();
  await page.waitForFunction(() => JSON.parse(localStorage.getItem("jerboa.chat.model")).source === "https://huggingface.co/org/two");
  await pick(page, "https://huggingface.co/org");
  await page.getByRole("dialog").getByRole("alert").getByText(/organization\/model/).waitFor();
  // A whole folder, as the engine asks for if a file is missing.
  const folder = page.getByLabel("Open a model's folder");
  assert.ok(await folder.evaluate((input) => input.webkitdirectory));
  await folder.setInputFiles(`${ROOT}/www/public/models/stories260K`);
  await page.locator(".model-name").getByText("stories260K", { exact: true }).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("documents that one tab changes are shown in the others", options, async () => {
  const { page, context, problems } = await site.open({}, undefined, "/#embedding");
  const other = await context.newPage();
  await other.goto(`${site.url}/#embedding`);
  await other.getByText("Add some documents first.").waitFor();
  await page.getByRole("button", { name: /example notes/ }).click();
  await page.getByText("Ask in your own words.").waitFor();
  const volcanoes = other.getByRole("button", { name: "Remove Volcanoes", exact: true });
  await volcanoes.waitFor();
  await other.getByRole("searchbox", { name: "Question" }).fill("Who lays the eggs?");
  await other.getByRole("button", { name: "Search", exact: true }).click();
  await other.getByRole("list", { name: /^Passages for/ }).waitFor();
  await page.getByRole("button", { name: "Remove Volcanoes", exact: true }).click();
  await volcanoes.waitFor({ state: "detached" });
  await other.waitForFunction(() => !document.querySelector(".hits").textContent.includes("Volcanoes"));
  await other.getByText(/^All passages, nearest first/).waitFor();
  page.once("dialog", (dialog) => dialog.accept());
  await page.getByRole("button", { name: "Remove all", exact: true }).click();
  await other.getByText("Add some documents first.").waitFor();
  assert.equal(await other.locator(".hit").count(), 0);
  assert.deepEqual(problems, []);
  await context.close();
});

test("the documentation and the page share the theme", options, async () => {
  const { page, context, problems } = await site.open();
  const toggle = page.getByRole("button", { name: /^Theme:/ });
  const docsAreDark = () => page.evaluate(() => document.documentElement.classList.contains("dark"));
  while (!/dark/.test(await toggle.getAttribute("aria-label"))) await toggle.click();
  const other = await context.newPage();
  await other.goto(site.url);
  await page.goto(`${site.url}/docs/`);
  assert.ok(await docsAreDark(), "chosen in the page");
  await page.getByRole("switch").locator("visible=true").click();
  await page.waitForFunction(() => !document.documentElement.classList.contains("dark"));
  await other.waitForFunction(() => document.documentElement.dataset.theme !== "dark");
  await page.goBack();
  await toggle.and(page.locator(":not([aria-label*=dark])")).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("on a phone the question of the Vision tab stays on the screen below a long conversation", options, async () => {
  const { page, context } = await site.open({ viewport: { width: 390, height: 640 } });
  await page.getByRole("link", { name: "Vision", exact: true }).click();
  await pick(page, "org/seeing");
  await page.getByRole("button", { name: /org\/seeing/ }).waitFor();
  await page.getByRole("button", { name: "Add an example image", exact: true }).click();
  const question = page.getByRole("textbox", { name: "Question", exact: true });
  await page.getByRole("button", { name: "Ask", exact: true }).and(page.locator(":enabled")).waitFor();
  await question.fill("a long question ".repeat(80));
  await question.press("Enter");
  await page.locator('article[data-state="done"]').waitFor();
  const { y, height } = await question.boundingBox();
  assert.ok(y > 0 && y + height <= 640, `the question is at ${y}`);
  await shot(page, "vision-phone");
  await context.close();
});

test("the page fits a phone and a tablet", options, async () => {
  for (const [name, width, height] of [["phone", 390, 844], ["tablet", 820, 1180]]) {
    const { page, context } = await site.open({ viewport: { width, height } });
    await page.getByRole("button", { name: "Once upon a time", exact: true }).click();
    await page.locator('article[data-state="done"]').waitFor();
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${name}: nothing sticks out`);
    assert.ok(await page.evaluate(() => parseFloat(getComputedStyle(document.querySelector("textarea")).fontSize) >= 16), "no zoom on focus");
    await shot(page, `page-${name}`);
    await context.close();
  }
});

test("a long conversation opens at its end and stays there while an answer is generated, even above a keyboard", options, async () => {
  const turns = Array.from({ length: 80 }, (_, i) => ({ role: i % 2 ? "assistant" : "user", text: `**Turn ${i}**\n\n- one\n- two\n\n${"and so on ".repeat(30)}` }));
  const stored = JSON.stringify([{ id: "x", name: "Long", model: "org/chat", completion: false, updated: 1, turns }]);
  const prepare = `localStorage.setItem("jerboa.chat.model", '{"source":"org/chat","label":"org/chat","options":{}}');
    localStorage.setItem("jerboa.conversations", ${JSON.stringify(stored)}); localStorage.setItem("jerboa.conversation", '"x"');`;
  const { page, context, problems } = await site.open({ viewport: { width: 390, height: 844 } }, prepare);
  const atEnd = () => page.waitForFunction(() => {
    const box = document.querySelector(".stage");
    return document.querySelector(".prose strong") && box.scrollTop > 0 && box.scrollHeight - box.scrollTop - box.clientHeight < 48;
  });
  await page.getByRole("button", { name: "Regenerate" }).waitFor();
  await atEnd();
  await send(page, "A sentence with **weight**, and words. ".repeat(40));
  await atEnd();
  await page.setViewportSize({ width: 390, height: 420 });
  await atEnd();
  assert.deepEqual(problems, []);
  await context.close();
});

test("when storage is full the oldest conversations are dropped", options, async () => {
  const prepare = `localStorage.setItem("jerboa.chat.model", '{"source":"org/chat","label":"org/chat","options":{}}');
    const stored = (id) => ({ id, name: id, model: "org/chat", completion: false, updated: 1, turns: [{ role: "user", text: "x".repeat(5e5) }] });
    if (!localStorage.getItem("jerboa.conversations")) localStorage.setItem("jerboa.conversations", JSON.stringify([..."abcdefghi"].map(stored)));`;
  const { page, context } = await site.open({}, prepare);
  await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  await send(page, "one more thing");
  const kept = await page.evaluate(() => JSON.parse(localStorage.getItem("jerboa.conversations")).map(({ name }) => name));
  assert.deepEqual(kept, ["one more thing", ..."abcdefg"]);
  const notice = page.getByRole("main").getByRole("alert");
  await notice.getByText("the oldest were deleted: “h”, “i”.").waitFor();
  await shot(page, "page-evicted");
  await notice.getByRole("button", { name: "Dismiss", exact: true }).click();
  await notice.waitFor({ state: "detached" });
  await context.close();
});

test("without a secure connection the page says so", options, async () => {
  const { page, context, problems } = await site.open();
  await page.goto(site.url.replace("127.0.0.1", INSECURE));
  await page.getByRole("heading", { name: "WebGPU requires a secure connection.", exact: true }).waitFor();
  assert.deepEqual(problems, []);
  await context.close();
});

test("in Vision the focus stays in the page when its control disappears", options, async () => {
  const { page, context } = await site.open({}, "", "#vision");
  await page.getByText("This tiny demo model has random weights").waitFor();
  const press = async (name) => {
    await page.getByRole("button", { name, exact: true }).first().focus();
    await page.keyboard.press("Enter");
    await focused(page);
  };
  await press("Add an example image");
  await press("Remove House and tree");
  await press("Add an example image");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await page.getByRole("button", { name: "Regenerate", exact: true }).waitFor();
  await press("Regenerate");
  await page.getByRole("button", { name: "Regenerate", exact: true }).waitFor();
  await press("New conversation");
  await context.close();
});

test("notes are added below an unsent message; all documents are removed only when the user confirms it", options, async () => {
  const { page, context } = await chatting();
  await field(page).fill("not sent yet");
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  await page.getByRole("button", { name: /example notes/ }).click();
  await page.getByRole("button", { name: "Where do bees live?" }).click();
  await page.getByRole("button", { name: "Ask about these in Chat" }).click();
  assert.match(await field(page).inputValue(), /^not sent yet\n\nAnswer from these notes:[^]*Question: Where do bees live\?$/);
  await page.getByRole("link", { name: "Embedding", exact: true }).click();
  const documents = page.locator(".documents li");
  const asked = [];
  page.once("dialog", (box) => (asked.push(box.message()), box.dismiss()));
  await page.getByRole("button", { name: "Remove all", exact: true }).click();
  assert.deepEqual(asked, ["Remove 8 documents? This cannot be undone."]);
  assert.equal(await documents.count(), 8);
  page.once("dialog", (box) => box.accept());
  await page.getByRole("button", { name: "Remove all", exact: true }).click();
  await documents.first().waitFor({ state: "detached" });
  await context.close();
});

test("without WebGPU the page says so", options, async () => {
  const { page, context } = await site.open({}, () => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }));
  await page.getByRole("heading", { name: "This browser does not support WebGPU.", exact: true }).waitFor();
  const said = await page.getByRole("main").innerText();
  for (const since of WEBGPU_SINCE) assert.match(said, since);
  await context.close();
});

test("Vision and STT load a real model with one click, and STT transcribes a sample recording", options, async () => {
  const { page, context, problems } = await site.open();
  await page.getByRole("link", { name: "Vision", exact: true }).click();
  await page.getByText("This tiny demo model has random weights").waitFor();
  await page.getByRole("button", { name: "Load SmolVLM 256M (513 MB)" }).click();
  await page.getByRole("button", { name: /^HuggingFaceTB\/SmolVLM-256M-Instruct/ }).waitFor();
  assert.equal(await page.getByText("random weights").count(), 0);
  await page.getByRole("link", { name: "STT", exact: true }).click();
  await page.getByRole("button", { name: "Load Moonshine tiny (108 MB)" }).click();
  await page.getByRole("button", { name: "Transcribe a sample recording" }).click();
  await page.getByRole("list", { name: "Segments" }).getByRole("listitem").nth(10).waitFor();
  assert.equal(await page.getByRole("list", { name: "Segments" }).getByRole("listitem").count(), 11, "a word a second");
  assert.deepEqual(problems, []);
  await context.close();
});

test("answers have a schema, tools of the page, and thoughts apart", options, async () => {
  const { page, context, problems } = await chatting({}, "org/thinking-Qwen3");
  const last = page.getByRole("article", { name: "Answer", exact: true }).last();
  await shape(page, (dialog) => dialog.getByRole("combobox", { name: "Format" }).selectOption("JSON of a schema"));
  await send(page, "A recipe.");
  assert.deepEqual(JSON.parse(await last.locator("pre code").innerText()), { title: "text", minutes: 1, steps: [] });
  await shape(page, async (dialog) => {
    await dialog.getByRole("textbox", { name: "JSON schema" }).fill("{");
    await dialog.getByRole("alert").getByText(/^Not JSON/).waitFor();
    assert.ok(await dialog.getByRole("checkbox", { name: /call functions/ }).isDisabled(), "a schema excludes calls");
    await dialog.getByRole("button", { name: "Reset" }).click();
    await dialog.getByRole("checkbox", { name: /call functions/ }).check();
  });
  await send(page, "What time is it?");
  await page.getByText("Called get_time").click();
  assert.match(await last.locator(".tool-step").innerText(), /"city":"Oslo"[\s\S]*\b20\d\d\b/);
  assert.match(await last.locator(".prose").innerText(), /\b20\d\d\b/, "the answer follows the function's result");
  await shape(page, async (dialog) => {
    await dialog.getByRole("checkbox", { name: /call functions/ }).uncheck();
    await dialog.getByRole("combobox", { name: "Thinking" }).selectOption("Think first");
  });
  await send(page, "<think>one two</think>three");
  assert.equal(await last.locator(".thinking .prose").isVisible(), false, "thoughts are folded");
  assert.equal((await last.locator(".prose").last().innerText()).trim(), "three");
  await last.locator(".numbers summary").click();
  assert.match(await last.locator(".numbers").innerText(), /3 tokens\s*2 of them thinking/);
  const budget = (dialog) => dialog.getByRole("spinbutton", { name: "Thinking limit in tokens" });
  for (const [given, shown] of [["0", ""], ["", ""], ["1.4", "1"]]) {
    await shape(page, async (dialog) => {
      await budget(dialog).fill(given);
      await budget(dialog).blur();
      assert.equal(await budget(dialog).inputValue(), shown, given);
    });
  }
  await send(page, "<think>one two three</think>four");
  await last.locator(".numbers summary").click();
  assert.match(await last.locator(".numbers").innerText(), /2 tokens\s*1 of them thinking/, "the thought is closed at the limit");
  await page.reload();
  await page.getByRole("article", { name: "Answer", exact: true }).first().waitFor();
  await shape(page, async (dialog) => {
    assert.equal(await dialog.getByRole("combobox", { name: "Thinking" }).inputValue(), "on");
    assert.equal(await budget(dialog).inputValue(), "1");
  });
  await pick(page, "org/unknown");
  await page.getByRole("button", { name: /^org\/unknown/ }).waitFor();
  await shape(page, async (dialog) => {
    await dialog.getByRole("checkbox", { name: /call functions/, disabled: true }).waitFor();
    await dialog.getByRole("combobox", { name: "Thinking", disabled: true }).waitFor();
    await dialog.getByRole("spinbutton", { name: "Thinking limit in tokens", disabled: true }).waitFor();
    await dialog.getByText("org/unknown does not support functions, or calls them in an unknown format.").waitFor();
  });
  await send(page, "still answers");
  assert.deepEqual(problems, []);
  await context.close();
});

test("axe finds nothing in any state or on any page, light or dark", { timeout: 480_000 }, async () => {
  const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
  for (const [i, [name, prepare, path, sign]] of VISITS.entries()) {
    const { page, context } = await site.open({ colorScheme: i % 2 ? "dark" : "light" }, prepare, path);
    await page.locator(sign).first().waitFor();
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
    assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" ")}`), [], name);
    await context.close();
  }
  for (const [colorScheme, width] of [["light", 1280], ["dark", 390]]) {
    const { page, context } = await site.open({ colorScheme, viewport: { width, height: 844 } });
    await page.evaluate(axe);
    for (const [name, reach] of STATES) {
      await reach(page);
      const { violations } = await page.evaluate(() => window.axe.run({ resultTypes: ["violations"] }));
      const said = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" ")}`);
      assert.deepEqual(said, [], `${name}, ${colorScheme}`);
    }
    await context.close();
  }
});
