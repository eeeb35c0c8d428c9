/** The composer of the demo page over the fake engine: images, text files, dictation; and answers read aloud. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { answered, chatting, field, pick, send, sheet } from "./support/states.mjs";
import { wav } from "./support/wav.mjs";

const options = { timeout: 120_000 };
const PNG = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
let site, folder;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-composer-"));
  // The microphone's input, repeated: two seconds of tone, one of silence.
  const sound = join(folder, "tone.wav");
  await writeFile(sound, wav({ seconds: 3, sample: (t) => (t < 2 ? 0.5 * Math.sin(2 * Math.PI * 440 * t) : 0) }));
  site = await fakeEnginePage(["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-audio-capture=${sound}`, "--autoplay-policy=no-user-gesture-required"]);
}, options);
after(async () => {
  await site?.close();
  await rm(folder, { recursive: true, force: true });
});

const file = (name, text) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) });
const lastAnswer = (page) => page.getByRole("article", { name: "Answer", exact: true }).last();


test("text files are searched for each question, in the conversation where they are attached", options, async () => {
  const { page, context, problems } = await chatting(site);
  const input = page.getByLabel("Attach text files", { exact: true });
  await input.setInputFiles([file("bees.txt", "Bees live in a hive."), file("binary.bin", "a\u0000b")]);
  await page.getByRole("alert").getByText("binary.bin is not a text file.").waitFor();
  const waiting = page.locator(".composer").getByRole("list", { name: "Attachments" });
  assert.deepEqual((await waiting.locator(".chip-name").allInnerTexts()), ["bees.txt"]);
  await input.setInputFiles([file("other.txt", "x")]);
  await waiting.getByRole("button", { name: "Remove other.txt" }).click();
  await page.waitForFunction(() => document.activeElement?.matches(".composer textarea"));
  await send(page, "Where do bees live?");
  const question = page.locator(".turn.user").last();
  assert.deepEqual(await question.locator(".chip-name").allInnerTexts(), ["bees.txt"]);
  // The engine echoes the last message: the passages are in it.
  assert.match(await lastAnswer(page).locator(".prose").innerText(), /Passages from the attached files:[^]*Bees live in a hive\.[^]*Question: Where do bees live\?/);
  await question.getByText("Passages used").click();
  assert.match(await question.locator(".passages").innerText(), /Bees live in a hive\./);
  assert.equal(await page.locator(".composer .chip").count(), 0);
  await send(page, "And in winter?");
  assert.match(await lastAnswer(page).locator(".prose").innerText(), /Bees live in a hive\.[^]*Question: And in winter\?/);
  await page.reload();
  await page.getByRole("button", { name: /^org\/chat/ }).waitFor();
  await send(page, "Again?");
  assert.match(await lastAnswer(page).locator(".prose").innerText(), /Bees live in a hive\.[^]*Question: Again\?/);
  await page.getByRole("button", { name: "New conversation", exact: true }).click();
  await send(page, "Alone?");
  assert.equal((await lastAnswer(page).locator(".prose").innerText()).trim(), "Alone?");
  await sheet("Conversations")(page);
  page.on("dialog", (box) => box.accept());
  await page.getByRole("button", { name: "Delete Where do bees live?" }).click();
  await page.waitForFunction(async () => {
    const [{ name }] = (await indexedDB.databases()).filter(({ name }) => name.includes("jerboa-files"));
    return new Promise((resolve) => {
      const open = indexedDB.open(name);
      open.onsuccess = () => {
        const database = open.result;
        const count = database.transaction("records").objectStore("records").count();
        count.onsuccess = () => (database.close(), resolve(count.result === 0));
      };
    });
  });
  assert.deepEqual(problems, []);
  await context.close();
});

test("images are attached where the model accepts them, and survive a reload", options, async () => {
  const { page, context } = await chatting(site, {}, "org/seeing");
  const input = page.getByLabel("Attach images or text files", { exact: true });
  await input.setInputFiles({ name: "dot.png", mimeType: "image/png", buffer: PNG });
  await page.locator(".composer").getByRole("img", { name: "dot.png" }).waitFor();
  await send(page, "What is it?");
  const shown = page.locator(".turn.user").getByRole("img", { name: "dot.png" });
  await shown.waitFor();
  await page.reload();
  await shown.waitFor();
  assert.ok(await shown.evaluate(async (image) => (await image.decode(), image.naturalWidth === 1)));
  await sheet("Conversations")(page);
  page.on("dialog", (box) => box.accept());
  await page.getByRole("button", { name: "Delete What is it?" }).click();
  await page.waitForFunction(async () => (await (await caches.open("jerboa-attachments")).keys()).length === 0);
  await context.close();
});

test("an edited question and a branch keep their files, which are deleted with the last conversation that has them", options, async () => {
  const { page, context, problems } = await chatting(site, {}, "org/seeing");
  page.on("dialog", (box) => box.accept());
  const images = (count) => page.waitForFunction(async (count) => (await (await caches.open("jerboa-attachments")).keys()).length === count, count);
  const passages = page.locator(".turn.user").last().locator(".passages");
  await page.getByLabel("Attach images or text files", { exact: true }).setInputFiles([{ name: "dot.png", mimeType: "image/png", buffer: PNG }, file("bees.txt", "Bees live in a hive.")]);
  await page.locator(".composer").getByRole("img", { name: "dot.png" }).waitFor();
  await page.locator(".composer .chip-name").waitFor();
  await send(page, "Where do bees live?");
  await page.getByRole("button", { name: "Edit this message", exact: true }).click();
  await page.getByRole("textbox", { name: "Your message", exact: true }).fill("Where do bees sleep?");
  await answered(page, () => page.getByRole("button", { name: "Send again", exact: true }).click());
  const question = page.locator(".turn.user").filter({ hasText: "Where do bees sleep?" });
  await question.getByRole("img", { name: "dot.png" }).waitFor();
  assert.match(await passages.textContent(), /Bees live in a hive\./, "an edited question");
  await send(page, "And in winter?");
  await page.getByRole("button", { name: "Branch", exact: true }).last().click();
  await send(page, "And in summer?");
  assert.match(await passages.textContent(), /Bees live in a hive\./, "a branch");
  await images(1);
  await sheet("Conversations")(page);
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Delete Where do bees live?" }).click();
  await dialog.getByRole("button", { name: "Delete Where do bees sleep?" }).last().click();
  await page.waitForFunction(() => document.querySelectorAll(".kept").length === 1);
  await page.reload();
  await page.getByRole("button", { name: /^org\/seeing/ }).waitFor();
  await question.getByRole("img", { name: "dot.png" }).waitFor();
  await send(page, "Still there?");
  assert.match(await passages.textContent(), /Bees live in a hive\./, "after the original is deleted");
  await images(1);
  await sheet("Conversations")(page);
  await dialog.getByRole("button", { name: "Delete Where do bees sleep?" }).click();
  await images(0);
  assert.deepEqual(problems, []);
  await context.close();
});

/** Drops files on an element; returns whether the page prevented that the browser opens them. */
const drop = (page, target, files) =>
  page.evaluate(([target, files]) => {
    const dropped = files.map(({ name, type, bytes, folder }) => {
      const file = new File([new Uint8Array(bytes ?? [])], name, { type });
      if (folder) file.text = () => Promise.reject(new DOMException("A folder.", "NotFoundError"));
      return file;
    });
    const data = new DataTransfer();
    for (const file of dropped) data.items.add(file);
    const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
    // A folder is simulated: the page gets the very files.
    Object.defineProperty(data, "files", { value: dropped });
    Object.defineProperty(event, "dataTransfer", { value: data });
    return !document.querySelector(target).dispatchEvent(event);
  }, [target, files]);

test("an image that is dropped on a text model is refused", options, async () => {
  const { page, context } = await chatting(site);
  await drop(page, ".composer", [{ name: "dot.png", type: "image/png", bytes: [...PNG] }]);
  await page.getByRole("alert").getByText("org/chat does not support images. Choose a vision model.").waitFor();
  await send(page, "words");
  await context.close();
});

test("files are dropped anywhere on the conversation; what cannot be read is named, and the page stays open", options, async () => {
  const { page, context, problems } = await chatting(site, {}, "org/seeing");
  await send(page, "words");
  const files = [{ name: "notes", type: "", folder: true }, { name: "bees.txt", type: "text/plain", bytes: [...Buffer.from("Bees.")] }];
  assert.ok(await drop(page, ".log", [...files, { name: "drawing.svg", type: "image/svg+xml", bytes: [...Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"/>')] }]));
  const alert = page.locator(".attached").getByRole("alert");
  await alert.getByText(/notes cannot be read\. Choose files, not a folder\. “drawing\.svg”: /).waitFor();
  assert.deepEqual(await page.locator(".composer .chips li").allInnerTexts(), ["bees.txt"]);
  assert.equal(await page.locator(".composer .chips img").count(), 0);
  // Next to the conversation, a file is neither attached nor opened.
  assert.ok(await drop(page, "header", files));
  assert.equal(await page.locator(".composer .chips li").count(), 1);
  assert.deepEqual(problems, []);
  await context.close();
});

test("an image of an earlier question that cannot be read does not block the conversation", options, async () => {
  const conversation = { id: "x", name: "Drawing", model: "org/seeing", completion: false, updated: 1, turns: [{ role: "user", text: "What is it?", files: [{ name: "drawing.svg", image: "drawing" }] }, { role: "assistant", text: "", error: { code: "request", message: "The image could not be decoded." } }] };
  const prepare = `if (!localStorage.getItem("jerboa.conversation")) {
    localStorage.setItem("jerboa.chat.model", '{"source":"org/seeing","label":"org/seeing","options":{}}');
    localStorage.setItem("jerboa.conversations", ${JSON.stringify(JSON.stringify([conversation]))});
    localStorage.setItem("jerboa.conversation", '"x"');
  }`;
  const { page, context, problems } = await site.open({}, prepare);
  await page.evaluate(async () => (await caches.open("jerboa-attachments")).put(new URL("attachments/drawing", document.baseURI).href, new Response('<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>', { headers: { "content-type": "image/svg+xml" } })));
  await page.reload();
  await page.locator(".turn.user").getByRole("img", { name: "drawing.svg" }).waitFor();
  await page.getByRole("button", { name: /^org\/seeing/ }).waitFor();
  // The failed answer says why.
  await page.locator("article").getByRole("alert").getByText("The image could not be decoded.").waitFor();
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  await page.locator("article").getByRole("alert").getByText(/“drawing\.svg”: /).waitFor();
  await send(page, "Never mind.");
  await lastAnswer(page).locator(".prose").getByText("Never mind.").waitFor();
  assert.equal(await lastAnswer(page).getByRole("alert").count(), 0);
  assert.deepEqual(problems, []);
  await context.close();
});

test("speech is written into the message; without a model one is offered", options, async () => {
  const { page, context } = await chatting(site, { permissions: ["microphone"] });
  await field(page).fill("So:");
  await page.getByRole("button", { name: "Dictate", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Dictation needs a speech-to-text model.").waitFor();
  await dialog.getByRole("button", { name: /^Load Moonshine tiny/ }).click();
  await page.getByRole("button", { name: "Stop dictating", exact: true }).waitFor();
  await page.waitForFunction(() => /^So: word\d/.test(document.querySelector(".composer textarea").value));
  await page.getByRole("button", { name: "Stop dictating", exact: true }).click();
  await page.getByRole("button", { name: "Dictate", exact: true }).waitFor();
  await context.close();
});

test("answers are read aloud by a voice of this device, and stopped; voices of servers are not used", options, async () => {
  const voices = (local) => `
    window.spoken = [];
    const synth = { getVoices: () => [{ name: "v", lang: "en-US", localService: ${local} }], speak: (u) => window.spoken.push(u.text), cancel: () => window.spoken.push("cancel"), addEventListener() {} };
    Object.defineProperty(window, "speechSynthesis", { value: synth });
    window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };`;
  for (const local of [true, false]) {
    const { page, context } = await site.open({}, voices(local));
    await page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
    await pick(page, "org/chat");
    await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
    await send(page, "Some **bold** words.\n\n```js\nlet x;\n```\n\nThe end.");
    const read = page.getByRole("button", { name: "Read aloud", exact: true });
    if (!local) {
      assert.equal(await read.count(), 0);
      await context.close();
      continue;
    }
    await read.click();
    assert.match(await page.evaluate(() => window.spoken.at(-1)), /^Some bold words\.\s+The end\.$/);
    await page.getByRole("button", { name: "Stop reading", exact: true }).click();
    assert.equal(await page.evaluate(() => window.spoken.at(-1)), "cancel");
    await read.waitFor();
    await context.close();
  }
});
