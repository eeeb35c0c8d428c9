/** The states in which the page is checked, and how to reach each over the fake engine. */

/** The composer's text field. */
export const field = (page) => page.locator(".composer textarea");

/** Starts an answer and waits until it is complete: a short one may finish before the test sees it running. */
export async function answered(page, act) {
  const running = 'article[data-state="running"]';
  await page.evaluate((running) => {
    window.begun = false;
    const look = () => (window.begun ||= document.querySelector(running) !== null);
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributeFilter: ["data-state"] });
  }, running);
  await act();
  await page.waitForFunction((running) => window.begun && !document.querySelector(running), running);
}

/** Sends a text and waits for the answer. */
export async function send(page, text) {
  await field(page).fill(text);
  await answered(page, () => field(page).press("Enter"));
}

/** Loads a repository with the picker. */
export async function pick(page, name) {
  await page.locator(".model-button").click();
  await page.getByRole("textbox", { name: "From Hugging Face" }).fill(name);
  await page.getByRole("button", { name: "Load", exact: true }).click();
}

/** Opens the page with a chat model. */
export async function chatting(site, options, name = "org/chat") {
  const opened = await site.open(options);
  await opened.page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor();
  await pick(opened.page, name);
  await opened.page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  return opened;
}

/** Presses Escape, and waits until no sheet is open. */
export async function closeSheet(page) {
  await page.keyboard.press("Escape");
  await page.locator(".sheet-body").waitFor({ state: "detached" });
}

/** Presses a button that copies, and returns the copied text once the page says that it was copied. */
export async function copied(page, button) {
  await button.click();
  await page.getByText("Copied.").first().waitFor({ state: "attached" });
  return page.evaluate(() => navigator.clipboard.readText());
}

export const sheet = (name) => async (page) => {
  await page.getByRole("button", { name, exact: true }).click();
  await page.getByRole("dialog").waitFor();
};

/** Changes the settings of answers in their sheet, and closes it. */
export async function shape(page, change) {
  await sheet("Answers")(page);
  await change(page.getByRole("dialog"));
  await closeSheet(page);
}

const textFile = (name, text) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) });

/** A search's results: one that fits, one that does not, and one with files to choose from. */
const HUB_MODELS = [
  { id: "org/Llama-4bit", downloads: 43210, tags: ["safetensors", "4-bit", "license:mit"], safetensors: { parameters: { U32: 154e6 }, total: 154e6 } },
  { id: "org/Llama-large", downloads: 2_400_000, gated: "manual", tags: ["safetensors"], safetensors: { parameters: { BF16: 3.2e9 }, total: 3.2e9 } },
  { id: "org/Llama-gated", downloads: 4321, gated: "manual", tags: ["safetensors", "license:llama3"], safetensors: { parameters: { BF16: 1e8 }, total: 1e8 } },
  { id: "org/Llama-endless", downloads: 1234, tags: ["safetensors", "license:mit"], safetensors: { parameters: { BF16: 2e8 }, total: 2e8 } },
  { id: "org/Llama-GGUF", downloads: 120_345, tags: ["gguf", "license:mit"], gguf: { total: 1.2e9 } },
];

/** Each state follows from the previous one. */
export const STATES = [
  ["welcome", (page) => page.getByRole("heading", { name: "Start a story.", exact: true }).waitFor()],
  ["story", (page) => send(page, "Once upon a time there was a little jerboa who lived under a fig tree.")],
  ["loading", async (page) => {
    await pick(page, "org/endless");
    await page.getByRole("region", { name: "Loading", exact: true }).waitFor();
  }],
  ["failed", async (page) => {
    await pick(page, "org/gated");
    await page.getByRole("main").getByRole("alert").waitFor();
  }],
  ["ask", async (page) => {
    await pick(page, "org/chat");
    await page.getByRole("main").getByRole("alert").waitFor({ state: "detached" });
    await page.getByRole("button", { name: "New conversation", exact: true }).click();
    await page.getByRole("heading", { name: "Ask something.", exact: true }).waitFor();
  }],
  ["answer", (page) => send(page, "Some **Markdown**, `code`, and a list:\n- one\n- two\n\nA sentence that is long enough to wrap on every phone that there is.")],
  ["answers-of-one", async (page) => {
    await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
    await page.getByText("2/2", { exact: true }).waitFor();
  }],
  ["code", async (page) => {
    await send(page, "```js\n// Adds two numbers.\nconst add = (a, b) => a + b + 42 + \"text\".length;\n```\n\nThe sum is $a^2 + b^2$, and\n\n$$\\int_0^1 x^2 \\, dx = \\frac{1}{3}$$");
    await page.locator(".code-block .hljs-keyword").waitFor();
    await page.locator("math").nth(1).waitFor();
  }],
  ["edit", (page) => page.getByRole("button", { name: "Edit this message" }).first().click()],
  ["attached", async (page) => {
    await closeSheet(page);
    await page.getByLabel("Attach text files", { exact: true }).setInputFiles([textFile("bees.txt", "Bees live in a hive."), textFile("image.bin", "\u0000")]);
    await page.getByRole("alert").getByText("image.bin is not a text file.").waitFor();
  }],
  ["passages", async (page) => {
    await send(page, "Where do bees live?");
    await page.getByText("Passages used").click();
  }],
  ["dictation", async (page) => {
    await page.getByRole("button", { name: "Dictate", exact: true }).click();
    await page.getByText("Dictation needs a speech-to-text model.").waitFor();
  }],
  ["picker", async (page) => {
    await closeSheet(page);
    // Later states have no files.
    await page.getByRole("button", { name: "New conversation", exact: true }).click();
    await page.locator(".model-button").click();
  }],
  ["code-of-model", async (page) => {
    await page.getByRole("button", { name: "Use in your code" }).click();
    await page.getByRole("button", { name: "Copy the code" }).waitFor();
  }],
  ["hub", async (page) => {
    await page.route("https://huggingface.co/api/models**", (route) => route.fulfill({ json: HUB_MODELS, headers: { "access-control-allow-origin": "*" } }));
    await page.getByRole("textbox", { name: "From Hugging Face" }).fill("llama");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByRole("list", { name: "Models for “llama”" }).waitFor();
  }],
  ["downloads", async (page) => {
    for (const name of ["org/Llama-gated", "org/Llama-endless", "org/Llama-large"]) await page.getByRole("button", { name: `Download ${name} for later` }).click();
    const queue = page.getByRole("region", { name: "Downloads" });
    await queue.getByText(/^Downloading/).waitFor();
    await queue.getByText(/accept its terms/).waitFor();
    await queue.scrollIntoViewIfNeeded();
  }],
  ["conversations", async (page) => {
    for (const button of (await page.getByRole("button", { name: /^Cancel the download/ }).all()).reverse()) await button.click();
    await closeSheet(page);
    await sheet("Conversations")(page);
  }],
  ["settings", async (page) => {
    await closeSheet(page);
    await sheet("Settings")(page);
  }],
  ["device", async (page) => {
    await closeSheet(page);
    await sheet("This device")(page);
    await page.getByRole("dialog").getByRole("heading", { name: "GPU", exact: true }).waitFor();
  }],
  ["answers", async (page) => {
    await closeSheet(page);
    await sheet("Answers")(page);
    await page.getByRole("combobox", { name: "Format" }).selectOption("JSON of a schema");
    await page.getByRole("textbox", { name: "JSON schema" }).waitFor();
  }],
  ["schema", async (page) => {
    await closeSheet(page);
    await send(page, "Pancakes, as a recipe.");
  }],
  ["tool", async (page) => {
    await pick(page, "org/thinking-Qwen3");
    await page.getByRole("button", { name: /^org\/thinking-Qwen3/ }).waitFor();
    await shape(page, async (dialog) => {
      await dialog.getByRole("combobox", { name: "Format" }).selectOption("Text");
      await dialog.getByRole("checkbox", { name: /call functions/ }).check();
    });
    await send(page, "What time is it?");
    await page.getByText("Called get_time").last().click();
  }],
  ["thought", async (page) => {
    await shape(page, (dialog) => dialog.getByRole("checkbox", { name: /call functions/ }).uncheck());
    await send(page, "<think>The question is about jerboas. They have long hind legs.</think>They hop, up to three metres far.");
    await page.getByText("Thoughts").last().click();
  }],
  ["embedding", async (page) => {
    await closeSheet(page);
    await page.getByRole("link", { name: "Embedding", exact: true }).click();
    await page.getByText("Add some documents first.").waitFor();
  }],
  ["found", async (page) => {
    await page.getByRole("button", { name: /example notes/ }).click();
    await page.getByText("Ask in your own words.").waitFor();
    await page.getByRole("searchbox", { name: "Question" }).fill("Who lays the eggs?");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByRole("list", { name: /^Passages for/ }).waitFor();
    await page.waitForTimeout(400);
  }],
  ["vision", async (page) => {
    await page.getByRole("link", { name: "Vision", exact: true }).click();
    await pick(page, "org/seeing");
    await page.getByRole("button", { name: "Add an example image" }).waitFor();
  }],
  ["stt-empty", async (page) => {
    await page.getByRole("link", { name: "STT", exact: true }).click();
    await page.getByText("Choose a speech-to-text model").waitFor();
  }],
  ["stt", async (page) => {
    await pick(page, "org/whisper");
    await page.getByRole("button", { name: "Listen", exact: true }).waitFor();
  }],
  ["tts-empty", async (page) => {
    await page.getByRole("link", { name: "TTS", exact: true }).click();
    await page.getByText("Choose a text-to-speech model").waitFor();
  }],
  ["tts", async (page) => {
    await page.getByRole("textbox", { name: "Codec" }).fill("org/codec");
    await pick(page, "org/kani");
    await page.getByRole("textbox", { name: "Text to speak" }).fill("The jerboa sleeps by day, in a burrow that it closes from within.");
    await page.getByRole("button", { name: "Speak", exact: true }).click();
    await page.getByRole("img", { name: /^Waveform/ }).waitFor();
    await page.getByRole("button", { name: "Speak", exact: true }).waitFor();
  }],
  ["train", async (page) => {
    await page.getByRole("link", { name: "Train", exact: true }).click();
    await page.getByRole("button", { name: "Start training", exact: true }).waitFor();
  }],
  ["training", async (page) => {
    await page.getByText("Settings", { exact: true }).click();
    await page.getByRole("textbox", { name: "Text to learn" }).fill("endless ".repeat(20));
    await page.getByRole("button", { name: "Start training", exact: true }).click();
    await page.getByText(/^Step [3-9]/).waitFor();
  }],
  ["trained", async (page) => {
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await page.getByRole("button", { name: "Use in Chat", exact: true }).waitFor();
    await page.getByText("After", { exact: true }).waitFor();
  }],
  ["adapter-in-chat", async (page) => {
    await page.getByRole("button", { name: "Use in Chat", exact: true }).click();
    await page.getByRole("button", { name: "Answer without the adapter" }).waitFor();
  }],
];

const remembered = (source) => `localStorage.setItem("jerboa.chat.model", JSON.stringify({ source: "${source}", label: "${source}", options: {} }))`;

/** States of a new visitor: a name, a script that runs first, the URL, and what to wait for. */
export const VISITS = [
  ["opening", remembered("org/endless"), "", ".loading"],
  ["refused", remembered("no/such"), "", ".notice"],
  ["no-webgpu", 'Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined })', "", ".no-webgpu"],
  ["bench", "", "/bench/", "form label"],
  ["report", "", "/report/", "form button"],
];
