/** Sharing a conversation as an HTML file, over the fake engine: its content, hostile texts, the system's share sheet, languages. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { closeSheet, send, sheet } from "./support/states.mjs";

const options = { timeout: 240_000 };
let site;

before(async () => {
  site = await fakeEnginePage();
}, options);
after(() => site?.close());

const turn = (role, text, more = {}) => ({ role, text, ...more });

/** A conversation as local storage has it. */
const conversation = (turns, more = {}) => ({ id: "c1", name: "Shared", model: "org/chat", completion: false, updated: Date.UTC(2026, 0, 31, 12), turns, ...more });

/** Collects what the page tells screen readers: the next sentence may follow at once, such as that of a model's load. */
const COLLECT_ANNOUNCEMENTS = `window.announced = new Set(); addEventListener("DOMContentLoaded", () => new MutationObserver(() => { for (const { textContent } of document.querySelectorAll("[role=status]")) announced.add(textContent.trim()); }).observe(document.body, { subtree: true, childList: true, characterData: true }));`;
const untilSavedIsAnnounced = (page) => page.waitForFunction(() => announced.has("Conversation saved as an HTML file."));

/** A script that stores a conversation and collects announcements, before the page runs. */
const stored = (given) => `${COLLECT_ANNOUNCEMENTS} if (location.protocol !== "file:" && !localStorage.getItem("jerboa.conversations")) { localStorage.setItem("jerboa.conversations", ${JSON.stringify(JSON.stringify([given]))}); localStorage.setItem("jerboa.conversation", '"c1"'); }`;

/** Presses a button that shares; returns the saved file's suggested name and its HTML. */
async function saved(page, button) {
  const saving = page.waitForEvent("download");
  await button.click();
  const download = await saving;
  return { name: download.suggestedFilename(), html: await readFile(await download.path(), "utf8") };
}

const toolbarButton = (page) => page.getByRole("button", { name: "Share the conversation", exact: true });

/** Opens a shared file in a page of its own, and collects its requests, errors and policy violations. */
async function opened(context, html) {
  const page = await context.newPage();
  const requests = [];
  page.on("request", (request) => !request.url().startsWith("data:") && requests.push(request.url()));
  await page.route("https://shared.test/", (route) => route.fulfill({ body: html, contentType: "text/html" }));
  await page.goto("https://shared.test/");
  assert.deepEqual(requests, ["https://shared.test/"], "the file loads nothing");
  return page;
}

test("a conversation is shared as a file with its shown turns, code, formulas, images and thoughts", options, async () => {
  const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const turns = [
    turn("user", "What is in the image?\nBe brief.", { files: [{ name: "dot.png", image: "i1" }, { name: "notes.txt" }, { name: "lost.png", image: "none" }], context: "A passage of the user's notes." }),
    turn("assistant", "The other answer."),
    turn("assistant", "<think>\nOne **dot**.\n</think>\n\n# Dots\n\n```js\nconst dots = 1;\n```\n\nArea: $r^2$", { parent: 0 }),
    turn("user", "As JSON?"),
    turn("assistant", '{"dots":1}'),
  ];
  const { page, context, problems } = await site.open({}, stored(conversation(turns, { system: "A secret prompt.", leaf: 4 })));
  await page.getByText("As JSON?").waitFor();
  await page.evaluate(async (pixel) => {
    const bytes = Uint8Array.from(atob(pixel), (c) => c.charCodeAt(0));
    await (await caches.open("jerboa-attachments")).put(new URL("attachments/i1", document.baseURI), new Response(new Blob([bytes], { type: "image/png" })));
  }, pixel);
  const { name, html } = await saved(page, toolbarButton(page));
  assert.equal(name, "Shared.html");
  await untilSavedIsAnnounced(page);
  for (const absent of ["The other answer.", "A passage of the user's notes.", "A secret prompt.", "<script", "<button"]) assert.ok(!html.includes(absent), absent);
  const shared = await opened(context, html);
  assert.equal(await shared.title(), "Shared");
  assert.equal(await shared.locator("header .hint").innerText(), "Answered by org/chat, in the browser · 1/31/2026");
  assert.equal(await shared.locator(".user").count(), 2);
  assert.match(await shared.locator(".user").first().innerText(), /What is in the image\?\nBe brief\./);
  assert.deepEqual(await shared.locator(".user .hint").allInnerTexts(), ["notes.txt", "lost.png"]);
  assert.equal(await shared.getByRole("img", { name: "dot.png" }).evaluate((image) => image.naturalWidth), 1);
  assert.equal(await shared.locator("details.thinking strong").textContent(), "dot");
  await shared.getByRole("heading", { name: "Dots", exact: true }).waitFor();
  assert.equal(await shared.locator(".hljs-keyword").first().innerText(), "const");
  assert.equal(await shared.locator("math msup").count(), 1);
  assert.match(await shared.locator("pre").last().innerText(), /\{\s+"dots": 1\s+\}/);
  for (const width of [320, 1440]) {
    await shared.setViewportSize({ width, height: 700 });
    assert.ok(await shared.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${width} pixels`);
  }
  assert.deepEqual(problems, []);
  await context.close();
});

test("hostile texts run nothing and load nothing in the shared file", options, async () => {
  const attacks = [
    "<script>window.hacked = 1</script>",
    "<img src='https://evil.test/x.png' onerror='window.hacked = 2'>",
    "![x](https://evil.test/y.png)",
    "<svg onload='window.hacked = 3'><style>@import 'https://evil.test/z.css'</style></svg>",
    "<iframe srcdoc='<script>parent.hacked = 4</script>'></iframe>",
    "[link](javascript:window.hacked=5)",
    "</title></style></textarea><script>window.hacked = 6</script>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=x onerror=window.hacked=7&gt;'>",
    "<meta http-equiv=refresh content='0;url=https://evil.test/'><base href='https://evil.test/'>",
    "```\"><script>window.hacked=8</script>\n</code></pre><script>window.hacked = 9</script>\n```",
    "<form action=https://evil.test/><button autofocus onfocus='window.hacked=10'>x</button></form>",
  ];
  const name = `</title><script>window.hacked = 11</script>"/\\:*?\u202e`;
  const turns = attacks.flatMap((text) => [turn("user", text, { files: [{ name: `"><script>window.hacked = 12</script>` }] }), turn("assistant", text)]);
  for (const completion of [false, true]) {
    const model = "<script>window.hacked = 13</script>";
    const { page, context } = await site.open({}, stored(conversation(turns, { name, completion, model })));
    const { name: file, html } = await saved(page, toolbarButton(page));
    assert.doesNotMatch(file, /[\\/:*?"<>|\u202e]/);
    assert.match(file, /\.html$/);
    const count = html.match(/<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">/g);
    assert.equal(count?.length, 1);
    // Without the policy, too.
    for (const each of [html, html.replace(/<meta http-equiv="Content-Security-Policy"[^>]*>/, "")]) {
      const shared = await opened(context, each);
      assert.equal(await shared.evaluate(() => window.hacked), undefined);
      assert.equal(await shared.title(), name);
      const found = await shared.evaluate(() => ({
        active: document.querySelectorAll("script, iframe, object, embed, form, input, button, base, link, svg").length,
        handlers: [...document.querySelectorAll("*")].filter((e) => [...e.attributes].some(({ name, value }) => name.startsWith("on") || /^\s*javascript:/i.test(value))).length,
        refreshes: document.querySelectorAll("meta[http-equiv=refresh]").length,
        text: document.body.innerText,
      }));
      assert.deepEqual([found.active, found.handlers, found.refreshes], [0, 0, 0]);
      for (const text of attacks) assert.ok(found.text.includes(text.split("\n")[0]), `${text} is shown as text`);
      await shared.close();
    }
    await context.close();
  }
});

test("the system's share sheet gets the file; closing it saves nothing, and without it the file is saved", options, async () => {
  const sharing = (end) => `window.given = []; navigator.canShare = ({ files }) => files?.length === 1; navigator.share = async (data) => { given.push(data); ${end} };`;
  const turns = [turn("user", "Hi"), turn("assistant", "Hello.")];
  const attempt = async (end) => {
    const { page, context } = await site.open({}, stored(conversation(turns)) + sharing(end));
    let downloads = 0;
    page.on("download", () => downloads++);
    await toolbarButton(page).click();
    await page.waitForFunction(() => given.length === 1);
    return { page, context, downloads: () => downloads };
  };
  const shared = await attempt("");
  assert.deepEqual(await shared.page.evaluate(async () => [given[0].title, given[0].files[0].name, given[0].files[0].type, (await given[0].files[0].text()).includes("Hello.")]), ["Shared", "Shared.html", "text/html", true]);
  await shared.context.close();
  const closed = await attempt(`throw new DOMException("closed", "AbortError")`);
  await closed.page.waitForTimeout(500);
  assert.equal(closed.downloads(), 0);
  await closed.context.close();
  const refused = await attempt(`throw new DOMException("refused", "NotAllowedError")`);
  await untilSavedIsAnnounced(refused.page);
  await refused.context.close();
});

test("the sheet of conversations shares each of them, at 320 pixels and in the page's language", options, async () => {
  const { page, context, problems } = await site.open({ viewport: { width: 320, height: 640 }, locale: "ar" }, stored(conversation([turn("user", "مرحبا"), turn("assistant", "أهلًا.")])));
  await page.getByText("أهلًا.").waitFor();
  await sheet("المحادثات")(page);
  const { name, html } = await saved(page, page.getByRole("dialog").getByRole("button", { name: "مشاركة Shared", exact: true }));
  assert.equal(name, "Shared.html");
  const shared = await opened(context, html);
  assert.deepEqual(await shared.evaluate(() => [document.documentElement.lang, document.documentElement.dir]), ["ar", "rtl"]);
  assert.match(await shared.locator("header .hint").innerText(), /أجاب org\/chat داخل المتصفح/);
  assert.deepEqual(problems, []);
  await context.close();
});

test("a continued text is shared as one text", options, async () => {
  const { page, context } = await site.open();
  await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await send(page, "Once upon a time");
  await sheet("Conversations")(page);
  const { html } = await saved(page, page.getByRole("dialog").getByRole("button", { name: /^Share Once/ }));
  await closeSheet(page);
  const shown = (await page.locator(".continued").innerText()).trim();
  const shared = await opened(context, html);
  assert.equal((await shared.locator(".story").innerText()).trim(), shown);
  assert.equal(await shared.locator(".story .given").innerText(), "Once upon a time");
  await context.close();
});
