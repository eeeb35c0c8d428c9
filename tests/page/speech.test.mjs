/** Transcription and speech in Chromium over the fake engine: audio in every format, OpenAI's API, a microphone that plays a file, and the tabs. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { shot } from "./support/browser.mjs";
import { fakeEnginePage } from "./support/fake-engine-page.mjs";
import { flac } from "./support/flac.mjs";
import { copied, pick } from "./support/states.mjs";
import { wav } from "./support/wav.mjs";

const options = { timeout: 120_000 };
let site, page, problems, folder;

const tone = (t) => 0.4 * Math.sin(t * 2000);

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "jerboa-sound-"));
  // The microphone's input, repeated: two seconds of tone, one of silence.
  const heard = join(folder, "heard.wav");
  await writeFile(heard, wav({ rate: 48_000, seconds: 3, sample: (t) => (t < 2 ? tone(t) : 0) }));
  site = await fakeEnginePage(["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", `--use-file-for-fake-audio-capture=${heard}`, "--autoplay-policy=no-user-gesture-required"]);
  ({ page, problems } = await site.open({ permissions: ["microphone", "clipboard-read", "clipboard-write"] }));
}, options);

after(async () => {
  await site?.close();
  await rm(folder, { recursive: true, force: true });
});

test("audio in every format, and invalid audio", options, async () => {
  const files = {
    mono: wav({ seconds: 2, sample: tone }),
    "8 kHz": wav({ rate: 8000, seconds: 2, sample: tone }),
    "stereo, 24 bits": wav({ rate: 44_100, seconds: 2, channels: 2, bits: 24, sample: (t, c) => (c ? 0 : tone(t)) }),
    silence: wav({ seconds: 2 }),
    empty: Buffer.alloc(0),
    broken: Buffer.from("RIFF0000WAVEfmt garbage"),
  };
  // Any file serves as a page on this origin.
  const { page: bare } = await site.open({}, undefined, "/facade/package.json");
  const found = await bare.evaluate(async (files) => {
    const { loadModel } = await import("/facade/index.js");
    const model = await loadModel("org/whisper", { worker: false, vad: new Uint8Array(4) });
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const out = {};
    const attempt = (name, work) => work().then((made) => (out[name] = made), ({ code, message }) => (out[name] = `${code}: ${message}`));
    for (const [name, text] of Object.entries(files)) await attempt(name, async () => (await model.transcribe(new File([bytes(text)], name))).text);
    const samples = Float32Array.from({ length: 96_000 }, (_, i) => Math.sin(i / 8) / 2);
    const context = new OfflineAudioContext(2, 32_000, 16_000);
    const buffer = context.createBuffer(2, 32_000, 16_000);
    buffer.getChannelData(0).set(samples.subarray(0, 32_000));
    await attempt("buffer", async () => (await model.transcribe(buffer)).duration);
    await attempt("samples", async () => (await model.transcribe({ samples, sampleRate: 48_000 })).duration);
    await attempt("bare", async () => (await model.transcribe(samples, { sampleRate: 16_000 })).duration);
    await attempt("rateless", () => model.transcribe(samples));
    await attempt("bytes", async () => (await model.transcribe(bytes(files.mono).buffer)).text);
    await attempt("nothing", () => model.transcribe(7));
    const file = new Blob([bytes(files.mono)]);
    const create = (more) => model.audio.transcriptions.create({ file, model: "any", ...more });
    for (const format of ["json", "text", "srt", "vtt", "verbose_json"]) await attempt(format, () => create({ response_format: format }));
    await attempt("granular", () => create({ timestamp_granularities: ["word"] }));
    await attempt("translated", async () => (await model.audio.translations.create({ file, response_format: "verbose_json" })).task);
    await attempt("stream", async () => {
      const types = [];
      for await (const event of await create({ stream: true })) types.push(event.delta ?? event.type);
      return types;
    });
    const slow = await loadModel("org/whisper-tokens", { worker: false });
    await attempt("tokens", async () => {
      const events = [];
      for await (const { type, delta, text } of await slow.audio.transcriptions.create({ file, stream: true })) events.push([type.split(".").at(-1), delta ?? text]);
      return events;
    });
    await attempt("partials", async () => {
      const texts = [];
      await slow.transcribe(file, { onPartial: ({ text, stable }) => texts.push(`${text}/${stable}`), onSegment: ({ text }) => texts.push(text) });
      return texts;
    });
    await attempt("aborted", () => model.transcribe(samples, { sampleRate: 16_000, signal: AbortSignal.abort() }));
    await attempt("generates", async () => String(await model.generate("x")));
    const voice = await loadModel("org/kani", { worker: false, codec: "org/codec" });
    await attempt("wav", async () => {
      const response = await voice.audio.speech.create({ input: "one two three", voice: "anna" });
      const clip = await new OfflineAudioContext(1, 1, 22_050).decodeAudioData(await response.arrayBuffer());
      return [response.headers.get("content-type"), clip.length];
    });
    await attempt("pcm", async () => (await (await voice.audio.speech.create({ input: "one", response_format: "pcm" })).arrayBuffer()).byteLength);
    await attempt("neutral", async () => (await (await voice.audio.speech.create({ input: "one", response_format: "pcm", speed: 1, instructions: "", stream_format: "audio" })).arrayBuffer()).byteLength);
    await attempt("faster", () => voice.audio.speech.create({ input: "one", speed: 2 }));
    await attempt("acted", () => voice.audio.speech.create({ input: "one", instructions: "sadly" }));
    await attempt("mp3", () => voice.audio.speech.create({ input: "one", response_format: "mp3" }));
    await attempt("chunked", () => create({ include: [], chunking_strategy: "auto" }));
    await attempt("included", () => create({ include: ["logprobs"] }));
    await attempt("streamed", async () => {
      const lengths = [];
      for await (const { samples: piece, sampleRate } of await voice.audio.speech.create({ input: "one two", stream: true })) lengths.push([piece.length, sampleRate]);
      return lengths;
    });
    await attempt("wordless", () => voice.audio.speech.create({ input: " " }));
    await attempt("deaf", () => voice.transcribe(file));
    return out;
  }, Object.fromEntries(Object.entries(files).map(([name, bytes]) => [name, bytes.toString("base64")])));
  for (const name of ["mono", "8 kHz", "stereo, 24 bits", "bytes"]) assert.equal(found[name], "word1 word2", name);
  assert.equal(found.silence, "");
  assert.match(found.empty, /^request: .*empty/);
  assert.match(found.broken, /^request: .*cannot decode/);
  assert.deepEqual([found.buffer, found.samples, found.bare], [2, 2, 6]);
  assert.match(found.rateless, /^request: .*rate/);
  assert.match(found.nothing, /^request: .*File, Blob/);
  assert.deepEqual([found.json, found.text, found.srt, found.vtt], [{ text: "word1 word2" }, "word1 word2", "1\n", "WEBVTT\n"]);
  assert.equal(found.verbose_json.segments.length, 2);
  assert.equal(found.verbose_json.srt, undefined);
  assert.match(found.granular, /^request: .*verbose_json/);
  assert.equal(found.translated, "translate");
  assert.deepEqual(found.stream, ["word1", "transcript.text.segment", " word2", "transcript.text.segment", "transcript.text.done"]);
  // Deltas are final and form the text; partial text may change and is replaced by the next event.
  const words = (n, space) => [["delta", `${space}w`], ["partial", "ard"], ["delta", "or"], ["partial", `d${n}`], ["delta", `d${n}`], ["segment", `word${n}`]];
  assert.deepEqual(found.tokens, [...words(1, ""), ...words(2, " "), ["done", "word1 word2"]]);
  assert.deepEqual(found.partials.slice(0, 5), ["w/w", "ward/w", "wor/wor", "word1/wor", " word1"]);
  assert.equal(found.verbose_json.languageName, undefined);
  assert.match(found.aborted, /^aborted/);
  assert.match(found.generates, /^request: .*transcribe/);
  assert.deepEqual(found.wav, ["audio/wav", 6615]);
  assert.deepEqual([found.pcm, found.neutral], [4410, 4410]);
  assert.match(found.faster, /^request: .*'speed' must be 1/);
  assert.match(found.acted, /^request: .*'instructions' must be left out/);
  assert.match(found.mp3, /^request: .*'response_format' must be 'wav' or 'pcm'/);
  assert.deepEqual(found.chunked, { text: "word1 word2" });
  assert.match(found.included, /^request: .*'include' must be left out \(.*verbose_json/);
  assert.deepEqual(found.streamed, [[2205, 22_050], [2205, 22_050]]);
  assert.match(found.wordless, /^request: .*'input' is empty. Set it to the text to synthesize/);
  assert.match(found.deaf, /^request: .*cannot transcribe audio: it is a text-to-speech model, call model\.audio\.speech\.create instead/);
});

test("long files are decoded in windows, can be aborted, and have a limit", options, async () => {
  const { page: bare } = await site.open({}, undefined, "/facade/package.json");
  const size = 32_000;
  // A block of its own in each ten, so that a shifted window shows.
  const ramp = (i) => Array.from({ length: size }, (_, k) => ((i * 977 + k * 7) % 30_000) - 15_000);
  const blocks = (count) => Array.from({ length: count }, (_, i) => (i % 40 === 7 ? ramp(i) : i));
  const files = {
    long: flac({ size, blocks: blocks(330) }),
    "44.1 kHz": flac({ size, rate: 44_100, blocks: blocks(450) }),
    "of unknown length": flac({ size, blocks: blocks(170), declared: 0 }),
    short: flac({ size, blocks: blocks(9) }),
    wav: wav({ rate: 8000, seconds: 320, sample: (t) => ((t * 8000) % 100) / 200 }),
    silence: flac({ blocks: Array(2637).fill(0) }),
    days: flac({ blocks: [0], declared: 16_000 * 3600 * 50 }),
  };
  const found = await bare.evaluate(async (files) => {
    const { samplesOf } = await import("/facade/audio-input.js");
    let decoded = 0;
    const own = BaseAudioContext.prototype.decodeAudioData;
    BaseAudioContext.prototype.decodeAudioData = function (...args) {
      decoded++;
      return own.apply(this, args);
    };
    const blob = (name) => new Blob([Uint8Array.from(atob(files[name]), (c) => c.charCodeAt(0))]);
    const out = {};
    const read = async (name, at) => {
      decoded = 0;
      const samples = await samplesOf("transcribe", blob(name));
      out[name] = { length: samples.length, windows: decoded, values: at.map((i) => Math.round(samples[i] * 32_768)) };
    };
    const size = 32_000;
    await read("long", [7, 167, 327].flatMap((i) => [0, 1, size - 1].map((k) => i * size + k)).concat([9 * size + 5, 330 * size - 1]));
    await read("44.1 kHz", []);
    await read("of unknown length", [127 * size, 127 * size + 3, 170 * size - 1]);
    await read("short", [7 * size + 1]);
    await read("wav", []);
    const failure = (call) => call.then(() => "done", ({ code, message }) => `${code}: ${message}`);
    const control = new AbortController();
    const begun = performance.now();
    setTimeout(() => control.abort(), 200);
    out.aborted = await failure(samplesOf("transcribe", blob("silence"), undefined, control.signal));
    out.abortMs = performance.now() - begun;
    out.days = await failure(samplesOf("transcribe", blob("days")));
    out.samples = await failure(samplesOf("transcribe", new Float32Array(3000 * 3600 * 5), 3000));
    return out;
  }, Object.fromEntries(Object.entries(files).map(([name, bytes]) => [name, bytes.toString("base64")])));
  const expected = [7, 167, 327].flatMap((i) => [0, 1, size - 1].map((k) => ramp(i)[k])).concat([9, 329]);
  assert.deepEqual(found.long, { length: 330 * size, windows: 3, values: expected });
  assert.deepEqual(found["44.1 kHz"], { length: Math.round((450 * size * 160) / 441), windows: 2, values: [] });
  assert.deepEqual(found["of unknown length"], { length: 170 * size, windows: 2, values: [ramp(127)[0], ramp(127)[3], 169] });
  assert.deepEqual(found.short, { length: 9 * size, windows: 1, values: [ramp(7)[1]] });
  assert.deepEqual(found.wav, { length: 320 * 16_000, windows: 2, values: [] });
  assert.match(found.aborted, /^aborted/);
  assert.ok(found.abortMs < 1200, String(found.abortMs));
  assert.match(found.days, /^request: .*50\.0 hours long; the limit for this format is 4 hours/);
  assert.match(found.samples, /^request: .*5\.0 hours long; the limit is 4 hours/);
});

/** A mono MP3 frame (MPEG 2, 16 kHz, 8 kbit/s) with one coefficient; its main data lies in the frame before, as files with a bit reservoir have it. */
function mp3Frame(gain) {
  const field = (value, bits) => value.toString(2).padStart(bits, "0");
  const [coefficient, reservoir] = ["01110", 23];
  const granule = field(coefficient.length, 12) + field(0, 9) + field(gain, 8) + field(0, 9) + field(0, 1) + field(0, 15) + field(0, 7) + field(0, 1) + field(1, 1);
  const bits = (field(0xff_f3_18_c4, 32) + field(reservoir, 8) + field(0, 1) + granule).padEnd(13 * 8, "0") + coefficient.padEnd(23 * 8, "0");
  return bits.match(/.{8}/g).map((byte) => parseInt(byte, 2));
}

/** A silent mono ADTS frame of AAC at 16 kHz, or 8 kHz. */
const adtsFrame = (rateIndex) => [0xff, 0xf1, 0x40 | (rateIndex << 2), 0x40, 0x01, 0x7f, 0xfc, 0x00, 0x00, 0x00, 0x07];

test("MP3 and AAC files of hours are decoded in windows, equal to the whole; longer ones are refused", options, async () => {
  const { page: bare, context } = await site.open({}, undefined, "/facade/package.json");
  const found = await bare.evaluate(async ({ loud, soft, adts, slowAdts }) => {
    const { samplesOf } = await import("/facade/audio-input.js");
    const own = BaseAudioContext.prototype.decodeAudioData;
    let windows = 0;
    let longest = 0;
    BaseAudioContext.prototype.decodeAudioData = async function (...args) {
      const decoded = await own.apply(this, args);
      windows++;
      longest = Math.max(longest, decoded.duration);
      return decoded;
    };
    const fileOf = (count, frame) => {
      const parts = Array.from({ length: count }, (_, i) => Uint8Array.from(frame(i)));
      return new Blob(parts);
    };
    const read = async (file) => {
      windows = longest = 0;
      const samples = await samplesOf("transcribe", file);
      return { samples, length: samples.length, windows, longest: Math.round(longest) };
    };
    const out = {};
    // Ten minutes, loud in turns.
    const mp3 = fileOf(17_000, (i) => (i % 5 < 2 ? loud : soft));
    const { samples, ...cut } = await read(mp3);
    out.mp3 = cut;
    const whole = (await own.call(new OfflineAudioContext(1, 1, 16_000), await mp3.arrayBuffer())).getChannelData(0);
    out.peak = whole.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    out.difference = samples.reduce((most, value, i) => Math.max(most, Math.abs(value - (whole[i] ?? 0))), 0);
    const tagged = new Blob([Uint8Array.of(0x49, 0x44, 0x33, 4, 0, 0, 0, 0, 0, 3, 1, 2, 3), mp3]);
    const { samples: _, ...withTag } = await read(tagged);
    out.tagged = withTag;
    const { samples: __, ...aac } = await read(fileOf(6000, () => adts));
    out.aac = aac;
    out.days = await samplesOf("transcribe", fileOf(120_000, () => slowAdts)).then(() => "done", ({ code, message }) => `${code}: ${message}`);
    return out;
  }, { loud: mp3Frame(205), soft: mp3Frame(190), adts: adtsFrame(8), slowAdts: adtsFrame(11) });
  await context.close();
  assert.deepEqual(found.mp3, { length: 17_000 * 576, windows: 3, longest: 301 });
  assert.deepEqual(found.tagged, found.mp3);
  assert.ok(found.peak > 0.01, `a signal of ${found.peak}`);
  assert.ok(found.difference < 1e-4, `windows and the whole differ by ${found.difference}`);
  assert.deepEqual(found.aac, { length: 6000 * 1024, windows: 2, longest: 300 });
  assert.match(found.days, /^request: transcribe: the audio is 4\.3 hours long; the limit for this format is 4 hours/);
});

test("the official client transcribes and synthesizes over createFetch", options, async () => {
  const { outputFiles } = await build({ stdin: { contents: 'export { default } from "openai";', resolveDir: import.meta.dirname }, bundle: true, format: "esm", write: false, logLevel: "error" });
  const { page: bare, context } = await site.open({}, undefined, "/facade/package.json");
  await bare.route("**/openai.js", (route) => route.fulfill({ contentType: "text/javascript", body: outputFiles[0].text }));
  const found = await bare.evaluate(async (text) => {
    const [{ default: OpenAI }, { createFetch, loadModel }] = await Promise.all([import("/openai.js"), import("/facade/index.js")]);
    const client = async (name, options) => new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: createFetch(await loadModel(name, { worker: false, ...options })), dangerouslyAllowBrowser: true });
    const { audio } = await client("org/whisper");
    const file = new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], "said.wav");
    const said = (more) => audio.transcriptions.create({ model: "any", file, ...more });
    const out = { json: (await said()).text, srt: await said({ response_format: "srt" }), translated: (await audio.translations.create({ model: "any", file })).text };
    out.words = (await said({ response_format: "verbose_json", timestamp_granularities: ["word"], temperature: 0 })).segments.length;
    out.stream = [];
    for await (const event of await said({ stream: true })) out.stream.push(event.type);
    out.refused = await said({ temperature: 9 }).catch(({ status, code }) => [status, code]);
    const speech = await (await client("org/kani", { codec: "org/codec" })).audio.speech.create({ model: "any", voice: "anna", input: "one two three" });
    out.sound = [speech.headers.get("content-type"), (await speech.arrayBuffer()).byteLength];
    // The header of a stream declares no length; the browser decodes to the end.
    const streamed = await (await client("org/kani", { codec: "org/codec" })).audio.speech.create({ model: "any", voice: "anna", input: "one two three", stream: true });
    const decoded = await new OfflineAudioContext(1, 1, 22_050).decodeAudioData(await streamed.arrayBuffer());
    out.streamed = [streamed.headers.get("content-type"), decoded.length];
    return out;
  }, wav({ seconds: 2, sample: tone }).toString("base64"));
  await context.close();
  assert.deepEqual([found.json, found.srt, found.translated, found.words], ["word1 word2", "1\n", "word1 word2", 2]);
  assert.equal(found.stream.at(-1), "transcript.text.done");
  assert.deepEqual(found.refused, [400, "request"]);
  assert.deepEqual(found.sound, ["audio/wav", 44 + 2 * 6615]);
  assert.deepEqual(found.streamed, ["audio/wav", 6615]);
});

test("listening ends by stop and with its tracks, with the last utterance; an abort drops it", options, async () => {
  const found = await page.evaluate(async () => {
    const jerboa = await import("/facade/index.js");
    const model = await jerboa.loadModel("org/whisper", { worker: false });
    const ends = {
      stop: (live) => live.stop(),
      track: (_, track) => track.stop(),
      abort: (_, __, controller) => controller.abort(),
      break: () => "break",
    };
    const results = {};
    // A tone without pauses: its utterance never ends by itself.
    const listened = async (name, before = () => {}) => {
      const context = new AudioContext();
      const output = context.createMediaStreamDestination();
      const tone = context.createOscillator();
      tone.connect(output);
      tone.start();
      const [track] = output.stream.getTracks();
      before(track);
      const controller = new AbortController();
      const live = model.listen(output.stream, { signal: controller.signal, interval: 100 });
      const finals = [];
      for await (const { text, final } of live) {
        finals.push([final, text.startsWith("word1")]);
        if (finals.length === 1 && ends[name]?.(live, track, controller) === "break") break;
      }
      await context.close();
      results[name] = [finals[0], finals.filter(([final]) => final)];
    };
    for (const name of Object.keys(ends)) await listened(name);
    await listened("ended", (track) => track.stop());
    const context = new AudioContext();
    const live = model.listen(context.createMediaStreamDestination().stream);
    live.stop();
    results.silent = [];
    for await (const each of live) results.silent.push(each);
    return results;
  });
  const partial = [false, true];
  assert.deepEqual(found, { stop: [partial, [[true, true]]], track: [partial, [[true, true]]], abort: [partial, []], break: [partial, []], ended: [undefined, []], silent: [] });
});

test("the STT tab: a file, the microphone, copies and subtitles", options, async () => {
  await page.getByRole("link", { name: "STT", exact: true }).click();
  await page.getByText("Choose a speech-to-text model").waitFor();
  await shot(page, "stt-empty");
  await pick(page, "org/whisper");
  const said = page.getByRole("list", { name: "Segments", exact: true });
  await page.locator('[aria-label="File"] input[type="file"]').setInputFiles({ name: "talk.wav", mimeType: "audio/wav", buffer: wav({ seconds: 3, sample: tone }) });
  await said.getByText("word3").waitFor();
  assert.deepEqual((await said.innerText()).split(/\s+/), ["0:00", "word1", "0:01", "word2", "0:02", "word3"]);
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "SRT", exact: true }).click()]);
  assert.equal(download.suggestedFilename(), "transcript.srt");
  assert.equal(await copied(page, page.getByRole("button", { name: "Copy the transcript", exact: true })), "word1\nword2\nword3");
  await page.getByRole("button", { name: "Clear", exact: true }).click();
  // Text appears while a file is decoded, without a prompt to open one.
  await page.evaluate(() => {
    window.seen = [];
    const look = () => window.seen.push([document.querySelector(".said-partial")?.innerText ?? "", document.body.innerText.includes("Start the microphone")]);
    new MutationObserver(look).observe(document.querySelector("main"), { childList: true, subtree: true, characterData: true });
  });
  await pick(page, "org/whisper-tokens");
  // Until the next model is ready, files go to the last one.
  await page.locator(".model-name", { hasText: "whisper-tokens" }).waitFor();
  await page.locator('[aria-label="File"] input[type="file"]').setInputFiles({ name: "slow.wav", mimeType: "audio/wav", buffer: wav({ seconds: 3, sample: tone }) });
  await said.locator("li:not(.said-partial)").getByText("word3").waitFor();
  const seen = await page.evaluate(() => window.seen);
  assert.ok(seen.some(([text]) => text.includes("ward")), "a partial text");
  assert.ok(seen.filter(([text]) => text).every(([, hint]) => !hint), "no hint with it");
  await page.locator(".said-partial").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Clear", exact: true }).click();
  await page.getByRole("button", { name: "Listen", exact: true }).click();
  await page.locator(".said-partial").waitFor();
  assert.ok(Number(await page.getByRole("meter").getAttribute("aria-valuenow")) >= 0);
  await said.locator("li:not(.said-partial)").first().waitFor();
  await shot(page, "stt-listening");
  await page.getByRole("button", { name: "Stop listening", exact: true }).click();
  await page.getByRole("button", { name: "Listen", exact: true }).waitFor();
  await page.locator('[aria-label="File"] input[type="file"]').setInputFiles({ name: "broken.wav", mimeType: "audio/wav", buffer: Buffer.from("no audio") });
  await page.getByRole("main").getByRole("alert").getByText("cannot decode").waitFor();
  await page.evaluate(() => (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("denied", "NotAllowedError"))));
  await page.getByRole("button", { name: "Listen", exact: true }).click();
  await page.getByRole("main").getByRole("alert").getByText("Microphone access was denied").waitFor();
  await shot(page, "stt-denied");
  assert.deepEqual(problems, []);
});

test("the TTS tab plays while it generates, replays, and saves a file", options, async () => {
  await page.getByRole("link", { name: "TTS", exact: true }).click();
  await page.getByRole("textbox", { name: "Codec", exact: true }).fill("org/codec");
  await shot(page, "tts-empty");
  await pick(page, "org/kani");
  await page.getByRole("textbox", { name: "Text to speak", exact: true }).fill("The quick brown fox jumps over the lazy dog");
  await page.keyboard.press("Control+Enter");
  await page.getByText("0.9 s of audio").waitFor();
  await page.getByRole("button", { name: "Play again", exact: true }).click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "WAV", exact: true }).click()]);
  assert.equal(download.suggestedFilename(), "speech.wav");
  await shot(page, "tts-spoken");
  assert.deepEqual(problems, []);
});
