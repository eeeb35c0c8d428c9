/** Images in Chromium: every kind of source, errors, memory, conversations; then the Vision tab. One browser for all. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, shot, warmUp, watch } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PACKAGE, PAGE, ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";
import { answered } from "./support/states.mjs";

const PATIENCE = 300_000;
const options = { timeout: PATIENCE };

let server, browser, context, page, problems;

/** A bar that moves for `frames` twentieths of a second, as this browser records it. Runs in the page. */
async function recorded({ width, height, frames }) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d");
  const recorder = new MediaRecorder(canvas.captureStream(20), { mimeType: "video/webm" });
  const chunks = [];
  recorder.ondataavailable = ({ data }) => chunks.push(data);
  const stopped = new Promise((resolve) => (recorder.onstop = resolve));
  recorder.start();
  for (let i = 0; i < frames; i++) {
    context.fillStyle = `hsl(${(i * 360) / frames} 80% 50%)`;
    context.fillRect((i * width) / frames, 0, 10, height);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  recorder.stop();
  await stopped;
  return new File(chunks, "bar.webm", { type: "video/webm" });
}

before(async () => {
  assertBuilt();
  server = await serve({ "/": PAGE, "/package/": PACKAGE, "/files/": `${ROOT}/tests/golden/vision/files` });
  browser = await launch();
  context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
  page = await context.newPage();
  page.setDefaultTimeout(PATIENCE / 3);
  await page.addInitScript(`window.recorded = ${recorded}`);
  await page.goto(`${server.url}/package/package.json`);
  await warmUp(page);
  await page.evaluate(async () => {
    window.jerboa = await import("/package/index.js");
    window.model = await jerboa.loadModel(`${location.origin}/models/tiny-vision/`, { cache: false, maxContext: 1024, tune: "off" });
    /** A canvas with a different color in every corner. */
    window.drawn = (width, height) => {
      const canvas = Object.assign(document.createElement("canvas"), { width, height });
      const context = canvas.getContext("2d");
      for (let i = 0; i < 24; i++) {
        context.fillStyle = `hsl(${i * 47} 70% ${30 + (i % 5) * 10}%)`;
        context.fillRect((i % 6) * (width / 6), Math.floor(i / 6) * (height / 4), width / 5, height / 3);
      }
      return canvas;
    };
    window.fileOf = (canvas, type) => new Promise((resolve) => canvas.toBlob(resolve, type, 0.9));
    window.failure = (promise) => promise.then(() => "no error", (error) => `${error.code}: ${error.message}`);
  });
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

test("all kinds of sources give the same image", options, async () => {
  const found = await page.evaluate(async () => {
    const canvas = drawn(96, 64);
    const png = await fileOf(canvas, "image/png");
    const image = Object.assign(new Image(), { src: URL.createObjectURL(png) });
    const data = await new Promise((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.readAsDataURL(png);
    });
    const offscreen = new OffscreenCanvas(96, 64);
    offscreen.getContext("2d").drawImage(canvas, 0, 0);
    const sources = {
      canvas,
      png,
      file: new File([png], "a.png"),
      bitmap: await createImageBitmap(canvas),
      pixels: canvas.getContext("2d").getImageData(0, 0, 96, 64),
      image,
      data,
      blob: URL.createObjectURL(png),
      offscreen,
    };
    const results = {};
    for (const [name, source] of Object.entries(sources)) {
      const { ms, tokens, grids, tiles, data, cols } = await model.encodeImage(source);
      results[name] = { known: ms === 0, tokens, grids, tiles, length: data.length, cols };
    }
    // Video frames are not exact: their colors were converted.
    const frame = new VideoFrame(canvas, { timestamp: 0 });
    results.frame = { ...results.canvas, tokens: (await model.encodeImage(frame)).tokens };
    const [track] = canvas.captureStream(30).getVideoTracks();
    canvas.getContext("2d").fillRect(0, 0, 1, 1);
    results.track = { ...results.canvas, tokens: (await model.encodeImage(track)).tokens };
    track.stop();
    results.http = { ...results.canvas, tokens: (await model.encodeImage("/files/exact_64x64.png")).tokens + 2 };
    return { capabilities: model.info.capabilities, results };
  });
  assert.deepEqual(found.capabilities, ["text", "image", "video"]);
  for (const [name, result] of Object.entries(found.results)) {
    const { known, ...rest } = result;
    assert.deepEqual(rest, { tokens: 6, grids: [[2, 3]], tiles: [[96, 64]], length: 6 * 32, cols: 32 }, name);
    if (!["canvas", "frame", "track", "http"].includes(name)) assert.ok(known, `${name} has other pixels than the canvas`);
  }
});

test("images are turned upright, and their header is checked before decoding", options, async () => {
  const found = await page.evaluate(async () => {
    const jpeg = new Uint8Array(await (await fileOf(drawn(96, 64), "image/jpeg")).arrayBuffer());
    const exif = [0xff, 0xe1, 0, 0x22, ...new TextEncoder().encode("Exif\0\0II*\0"), 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
    const turned = new Blob([jpeg.slice(0, 2), new Uint8Array(exif), jpeg.slice(2)]);
    const png = new Uint8Array(await (await fileOf(drawn(40, 40), "image/png")).arrayBuffer());
    const bomb = png.slice();
    new DataView(bomb.buffer).setUint32(16, 60_000);
    new DataView(bomb.buffer).setUint32(20, 60_000);
    const cmyk = new Uint8Array([0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, 0, 5, 0, 3, 4, 1, 0x11, 0]);
    const fail = (source) => failure(model.encodeImage(source));
    const holed = png.slice();
    holed.fill(7, 60);
    return {
      tiles: (await model.encodeImage(turned)).tiles,
      bomb: await fail(new Blob([bomb])),
      cmyk: await fail(new Blob([cmyk])),
      damaged: await fail(new Blob([holed])),
      cut: await fail(new Blob([jpeg.slice(0, 30)])),
      empty: await fail(new Blob([])),
      text: await fail(new Blob(["hello"])),
      gone: await fail("/files/none.png"),
      scheme: await fail("ftp://x.test/a.png"),
      long: await fail(drawn(3000, 4)),
      data: await fail("data:image/png;base64,*"),
      thing: await fail({}),
      part: await failure(model.chat.completions.create({ messages: [{ role: "user", content: [{ type: "image_url" }] }] })),
      sound: await failure(model.chat.completions.create({ messages: [{ role: "user", content: [{ type: "input_audio" }] }] })),
    };
  });
  assert.deepEqual(found.tiles, [[64, 96]]);
  const said = {
    bomb: /^request: .*60000x60000 pixels, more than the 100 million/,
    cmyk: /^request: .*CMYK/,
    damaged: /^request: The image could not be decoded: .*The file may be damaged; save it again/,
    cut: /^request: .*breaks off/,
    empty: /^request: .*empty/,
    text: /^request: .*Use JPEG, PNG, WebP or GIF/,
    gone: /^network: .*none\.png could not be fetched \(HTTP 404\)/,
    scheme: /^request: .*image URLs must start with http:, https:, data: or blob:/,
    long: /^request: .*times as long as wide/,
    data: /^request: .*the data: URL is invalid/,
    thing: /^request: .*is not a supported image/,
    part: /^request: .*requires image_url: \{ url \}/,
    sound: /^request: .*does not support parts of type .*Supported: text, images and videos/,
  };
  for (const [name, pattern] of Object.entries(said)) assert.match(found[name], pattern, name);
});

test("a photo of 12 megapixels needs little memory", options, async (t) => {
  const { wasmBytes, tiles } = await page.evaluate(async () => {
    const photo = await fileOf(drawn(4000, 3000), "image/jpeg");
    const { tiles } = await model.encodeImage(photo);
    return { ...(await model.memory()), tiles };
  });
  t.diagnostic(`${(wasmBytes / 1e6).toFixed(1)} MB of WebAssembly's memory`);
  assert.ok(wasmBytes < 120e6, String(wasmBytes));
  assert.ok(tiles[0][0] * tiles[0][1] <= 65_536, String(tiles));
});

test("videos from all kinds of sources are sampled", options, async () => {
  const found = await page.evaluate(async () => {
    const file = await recorded({ width: 128, height: 96, frames: 40 });
    const text = { type: "text", text: "What moves?" };
    const ask = (part) => model.chat.completions.create({ messages: [{ role: "user", content: [part, text] }], max_tokens: 2, temperature: 0 });
    const frames = [0, 1, 2, 3, 4].map((i) => {
      const frame = drawn(128, 96);
      frame.getContext("2d").fillRect(i * 20, 0, 10, 96);
      return frame;
    });
    const url = URL.createObjectURL(file);
    const element = Object.assign(document.createElement("video"), { src: url });
    const asked = {};
    asked.file = await ask({ type: "video", video: file });
    asked.again = await ask({ type: "video", video: file });
    asked.url = await ask({ type: "video_url", video_url: { url } });
    asked.element = await ask({ type: "video", video: element });
    asked.frames = await ask({ type: "video", frames, fps: 2 });
    asked.slow = await ask({ type: "video", frames, timestamps: [0, 2, 4, 6, 8] });
    const fail = (part) => failure(ask(part));
    return {
      asked,
      times: await fail({ type: "video", frames, timestamps: [0, 2] }),
      none: await fail({ type: "video", frames: [] }),
      rate: await fail({ type: "video", frames, fps: -1 }),
      damaged: await fail({ type: "video", video: new Blob(["no video"], { type: "video/webm" }) }),
      thing: await fail({ type: "video", video: {} }),
      part: await fail({ type: "video_url" }),
      rendered: await model.renderChat([{ role: "user", content: [{ type: "video", video: file }, text] }]),
    };
  });
  const { asked } = found;
  const prompt = (name) => asked[name].usage.prompt_tokens;
  for (const [name, answer] of Object.entries(asked)) assert.match(answer.choices[0].message.content, /^( [a-z]+)+$/, name);
  // The same file gives the same frames, which are cached.
  assert.ok(asked.file.timings.encode_ms > 0);
  assert.equal(asked.again.timings.encode_ms, undefined);
  assert.equal(asked.again.choices[0].message.content, asked.file.choices[0].message.content);
  for (const name of ["again", "url", "element"]) assert.equal(prompt(name), prompt("file"), name);
  // Frames are merged in pairs, with 12 tokens each.
  assert.ok(prompt("frames") > 3 * 12 && prompt("frames") < 3 * 12 + 100, String(prompt("frames")));
  assert.equal(prompt("slow"), prompt("frames"));
  assert.match(found.times, /^request: .*'timestamps' must be increasing seconds, one for each of the 5 frames/);
  assert.match(found.none, /^request: .*requires 'video' or 'frames'/);
  assert.match(found.rate, /^request: .*'fps' of a video must be a positive number, not -1/);
  assert.match(found.damaged, /^request: This browser cannot play the video/);
  assert.match(found.thing, /^request: .*is not a supported video/);
  assert.match(found.part, /^request: .*requires video_url: \{ url \}/);
  assert.match(found.rendered, /<\|vision_start\|><\|video_pad\|><\|vision_end\|>What moves\?/);
});

test("a video's frame is awaited if it is not there yet, and given up by name if it never comes", options, async () => {
  const found = await page.evaluate(async () => {
    const own = window.createImageBitmap;
    // The browser's answer while a frame is not decoded yet, on a busy machine.
    let missing = 0;
    let asked = 0;
    window.createImageBitmap = (source, ...rest) => {
      if (!(source instanceof HTMLVideoElement)) return own(source, ...rest);
      asked++;
      if (missing-- > 0) return Promise.reject(new DOMException("The image source is not usable", "InvalidStateError"));
      return own(source, ...rest);
    };
    const ask = async (file) => {
      const part = { type: "video", video: file };
      const { choices } = await model.chat.completions.create({ messages: [{ role: "user", content: [part, { type: "text", text: "What moves?" }] }], max_tokens: 2, temperature: 0 });
      return choices[0].message.content;
    };
    const file = await recorded({ width: 128, height: 96, frames: 20 });
    // A copy is another source, so nothing comes from earlier turns.
    const copy = () => new Blob([file], { type: file.type });
    const plain = await ask(copy());
    const framesOf = asked;
    asked = 0;
    missing = 3;
    const late = await ask(copy());
    const extra = asked - framesOf;
    const now = Date.now;
    missing = Infinity;
    // The deadline is 30 seconds.
    const begun = now();
    Date.now = () => now() + 20 * (now() - begun);
    const never = await failure(ask(copy()));
    Date.now = now;
    window.createImageBitmap = own;
    return { same: late === plain, extra, never, after: (await ask(copy())) === plain };
  });
  assert.deepEqual([found.same, found.extra, found.after], [true, 3, true]);
  assert.match(found.never, /^request: .*the video's frames cannot be read: The image source is not usable/);
});

test("a camera's URL gives its current image, and a blob: URL may be revoked after its first use", options, async () => {
  const colors = ["red", "blue", "blue"];
  const pngs = await page.evaluate(async (colors) => {
    const made = [];
    for (const color of colors) {
      const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 64 });
      const context = canvas.getContext("2d");
      context.fillStyle = color;
      context.fillRect(0, 0, 64, 64);
      made.push(canvas.toDataURL("image/png").split(",")[1]);
    }
    return made;
  }, colors);
  await page.route("**/camera.png", (route) => route.fulfill({ contentType: "image/png", headers: { "cache-control": "no-store" }, body: Buffer.from(pngs.shift(), "base64") }));
  const found = await page.evaluate(async () => {
    const ask = async (url) => {
      const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: "Which color?" }];
      const { timings } = await model.chat.completions.create({ messages: [{ role: "user", content }], max_tokens: 1, temperature: 0 });
      return timings.encode_ms !== undefined;
    };
    const camera = [];
    for (let i = 0; i < 3; i++) camera.push(await ask("/camera.png"));
    const blob = URL.createObjectURL(await fileOf(drawn(70, 66), "image/png"));
    const first = await ask(blob);
    URL.revokeObjectURL(blob);
    return { camera, blob: [first, await ask(blob)] };
  });
  await page.unroute("**/camera.png");
  // Equal pixels are encoded once.
  assert.deepEqual(found, { camera: [true, true, false], blob: [true, false] });
});

test("a conversation encodes each image once; the vision encoder is unloaded and reloaded", options, async () => {
  const found = await page.evaluate(async () => {
    const url = drawn(70, 130).toDataURL("image/png");
    const ask = (messages) => model.chat.completions.create({ messages, max_tokens: 5, temperature: 0 });
    const first = { role: "user", content: [{ type: "text", text: "Look:" }, { type: "image_url", image_url: { url } }, { type: "text", text: "What is it?" }] };
    const one = await ask([first]);
    const answer = one.choices[0].message.content;
    const two = await ask([first, { role: "assistant", content: answer }, { role: "user", content: "And what else?" }]);
    const described = await model.describe(drawn(64, 64), undefined, { maxTokens: 5, temperature: 0 });
    const before = (await model.memory()).gpuBytes;
    await model.unloadVision();
    const without = (await model.memory()).gpuBytes;
    const again = await ask([first]);
    const session = await model.createSession();
    const beside = await session.chat.completions.create({ messages: [first], max_tokens: 5, temperature: 0 });
    await session.dispose();
    const rendered = await model.renderChat([first]);
    await model.unload();
    return { one, two, again, beside, answer, described, before, without, rendered };
  });
  assert.match(found.answer, /^( [a-z]+)+$/);
  assert.ok(found.one.timings.encode_ms > 0);
  assert.equal(found.two.timings.encode_ms, undefined);
  assert.ok(found.two.usage.prompt_tokens_details.cached_tokens >= found.one.usage.prompt_tokens, JSON.stringify(found.two.usage));
  assert.equal(found.again.choices[0].message.content, found.answer);
  assert.equal(found.beside.choices[0].message.content, found.answer);
  assert.match(found.described, /^( [a-z]+)+$/);
  assert.ok(found.without < found.before);
  assert.match(found.rendered, /Look:<\|vision_start\|><\|image_pad\|><\|vision_end\|>What is it\?/);
});

const imagesRegion = () => page.getByRole("region", { name: "Images", exact: true });
const answers = () => page.locator("article.turn[data-state=done]");

test("the tab opens with a model and describes it", options, async () => {
  problems = watch(page);
  await page.goto(`${server.url}/#vision`);
  await imagesRegion().waitFor();
  assert.match(await page.getByRole("main").innerText(), /its answers are meaningless/);
  await shot(page, "vision-1-opened");
});

test("a dropped image is processed, asked about twice, and removed", options, async () => {
  const drop = await page.evaluateHandle(async () => {
    const canvas = Object.assign(document.createElement("canvas"), { width: 160, height: 96 });
    canvas.getContext("2d").fillRect(20, 20, 60, 40);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve));
    const transfer = new DataTransfer();
    transfer.items.add(new File([blob], "square.png", { type: "image/png" }));
    return transfer;
  });
  await imagesRegion().dispatchEvent("drop", { dataTransfer: drop });
  await imagesRegion().getByText(/160 × 96 pixels · 15 tokens · encoded in/).waitFor();
  await page.getByRole("img", { name: "Read as 3 rows of 5 tokens", exact: true }).waitFor();
  const question = page.getByRole("textbox", { name: "Question", exact: true });
  await question.fill("What is there?");
  await page.getByRole("button", { name: "Ask", exact: true }).click();
  await answers().first().waitFor();
  assert.match(await answers().first().innerText(), /^\s*[a-z]+ [a-z]+/);
  await question.fill("And the colour?");
  await question.press("Enter");
  await answers().nth(1).waitFor();
  assert.match(await answers().nth(1).locator(".numbers").textContent(), /prompt [\d,]+, [1-9][\d,]* cached/);
  await answered(page, () => page.getByRole("button", { name: "Regenerate", exact: true }).click());
  assert.equal(await answers().count(), 2);
  await imagesRegion().getByRole("button", { name: "Add an example image", exact: true }).click();
  await imagesRegion().getByText(/encoded in/).waitFor();
  const clip = await page.evaluateHandle(async () => {
    const transfer = new DataTransfer();
    transfer.items.add(await recorded({ width: 96, height: 64, frames: 10 }));
    return transfer;
  });
  await imagesRegion().dispatchEvent("drop", { dataTransfer: clip });
  await imagesRegion().getByText("Only the frames are processed", { exact: false }).waitFor();
  await question.press("Enter");
  await answers().nth(2).waitFor();
  assert.match(await answers().nth(2).innerText(), /^\s*[a-z]+ [a-z]+/);
  assert.equal(await page.locator(".shots-told video").count(), 1);
  await imagesRegion().getByRole("button", { name: "Add an example image", exact: true }).click();
  await imagesRegion().getByText(/already encoded|encoded in/).waitFor();
  await imagesRegion().locator('input[type="file"]').setInputFiles({ name: "broken.png", mimeType: "image/png", buffer: Buffer.from("no image") });
  await imagesRegion().getByText(/Use JPEG, PNG, WebP or GIF/).waitFor();
  await shot(page, "vision-2-desktop");
  await page.setViewportSize({ width: 390, height: 844 });
  await shot(page, "vision-3-phone");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
  await imagesRegion().getByRole("button", { name: "Remove broken.png", exact: true }).click();
  await imagesRegion().getByRole("button", { name: "Remove House and tree", exact: true }).click();
  assert.equal(await imagesRegion().locator("figure").count(), 0);
  assert.deepEqual(problems, []);
});
