/** The STT tab in Chromium with the real engine: a tiny checkpoint with known text and times transcribes files of every format. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { launch, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PAGE, ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { pick } from "./support/states.mjs";
import { wav } from "./support/wav.mjs";

const options = { timeout: 400_000 };
const GOLDEN = `${ROOT}/tests/golden`;
/** The tiny Whisper's fixed output and timestamps: tests/golden/scripts/make_speech.py. */
const SAID = ["0:00so, the catching (ed)", "0:01well-er \"ly\"? up", "0:02bara we's 10% éon!"];
let server, browser, page, problems;

/** Three seconds of speech, then two of silence. */
async function speech() {
  const bytes = await readFile(`${GOLDEN}/audio/silero_golden.safetensors`);
  const length = Number(bytes.readBigUInt64LE(0));
  const [begin] = JSON.parse(bytes.subarray(8, 8 + length))["speech.pcm_i16"].data_offsets;
  const at = (t) => 8 + length + begin + 2 * Math.round(t * 16_000);
  return wav({ seconds: 5, sample: (t) => (t < 2.86 ? bytes.readInt16LE(at(t)) / 32_768 : 0) });
}

before(async () => {
  assertBuilt();
  server = await serve({ "/": PAGE, "/tiny/ear/": `${GOLDEN}/speech/whisper_words` });
  browser = await launch();
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  page = await context.newPage();
  page.setDefaultTimeout(200_000);
  problems = watch(page);
  await page.goto(`${server.url}/#stt`);
  await warmUp(page);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

const said = () => page.getByRole("list", { name: "Segments", exact: true }).getByRole("listitem");
const alert = () => page.getByRole("main").getByRole("alert");

/** Opens a file; returns its transcript or the message shown instead, once its transcription has begun and ended: before, the page shows those of the last file. */
async function transcribeFile(name, buffer) {
  const running = '[role="progressbar"][aria-label="Transcribing"]';
  await page.evaluate((running) => {
    window.watching?.disconnect();
    window.begun = false;
    window.watching = new MutationObserver(() => (window.begun ||= document.querySelector(running) !== null));
    window.watching.observe(document.body, { subtree: true, childList: true });
  }, running);
  await page.locator('[aria-label="File"] input[type="file"]').setInputFiles({ name, mimeType: "audio/wav", buffer });
  await page.waitForFunction((running) => window.begun && !document.querySelector(running), running);
  const lines = (await said().allInnerTexts()).map((line) => line.replaceAll("\n", ""));
  return lines.length > 0 ? lines : alert().innerText();
}

test("files of every format are transcribed, or the page explains why not", options, async () => {
  await page.getByRole("link", { name: "STT", exact: true }).click();
  await pick(page, `${server.url}/tiny/ear/`);
  await page.getByRole("heading", { name: "Microphone", exact: true }).waitFor();
  const tone = (t) => 0.4 * Math.sin(t * 2000);
  let state = 1;
  const noise = () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 31 - 1) * 0.3;
  const heard = {
    speech: await transcribeFile("speech.wav", await speech()),
    "8 kHz": await transcribeFile("8k.wav", wav({ rate: 8000, seconds: 3, sample: tone })),
    "stereo, 24 bits": await transcribeFile("stereo.wav", wav({ rate: 44_100, seconds: 3, channels: 2, bits: 24, sample: (t, c) => (c ? 0 : tone(t)) })),
    // Longer than the model's window: voice detection runs first.
    silence: await transcribeFile("silence.wav", wav({ seconds: 6 })),
    noise: await transcribeFile("noise.wav", wav({ seconds: 6, sample: noise })),
    short: await transcribeFile("short.wav", wav({ seconds: 0.005, sample: tone })),
    empty: await transcribeFile("empty.wav", Buffer.alloc(0)),
    broken: await transcribeFile("broken.wav", Buffer.from("RIFF0000WAVEfmt garbage")),
  };
  for (const name of ["8 kHz", "stereo, 24 bits"]) assert.deepEqual(heard[name], SAID, name);
  // Voice detection finds the start.
  assert.deepEqual(heard.speech.map((line) => line.slice(4)), SAID.map((line) => line.slice(4)));
  for (const name of ["silence", "noise"]) assert.match(heard[name], /No speech was recognized in/, name);
  assert.match(heard.empty, /empty/);
  assert.match(heard.broken, /cannot decode/);
  assert.ok(heard.short.length > 0);
  assert.deepEqual(problems.filter((line) => !/404|Failed to load resource/.test(line)), []);
});
