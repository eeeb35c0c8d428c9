/** Arguments that no program should send: each is refused at once with code `request` and a message that names it. Over the fake engine, in Node. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";
import { randomMessages } from "./support/messages.mjs";

let jerboa, memories, rpc, host, images, fake, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  jerboa = await import(`${built.url}/index.js`);
  memories = await import(`${built.url}/memory/index.js`);
  rpc = await import(`${built.url}/rpc.js`);
  host = await import(`${built.url}/host.js`);
  images = await import(`${built.url}/images.js`);
  fake = await import(`${built.url}/jerboa.js`);
});
after(() => cleanUp());

const load = (name = "org/name", options = {}) => jerboa.loadModel(name, { worker: false, ...options });

/** Asserts that a call is refused with code `request` and this message within a second. */
async function refused(call, pattern) {
  const start = performance.now();
  const error = await Promise.resolve().then(call).then(() => assert.fail(`accepted, but ${pattern} was expected`), (thrown) => thrown);
  assert.ok(error instanceof jerboa.JerboaError, String(error?.stack));
  assert.equal(error.code, "request", error.message);
  assert.match(error.message, pattern);
  assert.ok(performance.now() - start < 1000, `${pattern} took ${performance.now() - start} ms`);
}

/** Lists inside lists. */
function nested(depth) {
  let value = [];
  for (let i = 0; i < depth; i++) value = [value];
  return value;
}

const cycle = {};
cycle.self = cycle;

/** Values that JSON cannot hold, and what the message says of each. */
const NOT_JSON = [
  [{ a: () => {} }, /\.a' is a function/],
  [{ a: [1, Symbol("s")] }, /\.a\[1\]' is a symbol/],
  [{ a: { b: 1n } }, /\.a\.b' is a bigint/],
  [cycle, /\.self' contains itself/],
  [{ a: nested(100_000) }, /nested more than 100 levels deep/],
  [{ a: new Array(1e9) }, /has more than 1000000 values/],
  [{ a: new Uint8Array(3) }, /\.a' holds binary data/],
  [{ toJSON: () => () => {} }, /is a function/],
];

test("tools, template variables and the fields of messages must be JSON", async () => {
  const model = await load();
  const messages = [{ role: "user", content: "hi" }];
  for (const [value, pattern] of NOT_JSON) {
    const says = (name) => new RegExp(`'${name}.*${pattern.source.replace(/^\\\./, "")}`);
    await refused(() => model.chat.completions.create({ messages, chat_template_kwargs: { v: value } }), says("chat_template_kwargs\\.v"));
    await refused(() => model.chat.completions.create({ messages, tools: [{ type: "function", function: { name: "f", parameters: value } }] }), says("tools\\[0\\]\\.function\\.parameters"));
    await refused(() => model.chat.completions.create({ messages: [{ ...messages[0], extra: value }] }), says("messages\\[0\\]\\.extra"));
    await refused(() => model.renderChat(messages, { kwargs: { v: value } }), says("options\\.kwargs\\.v"));
    await refused(() => model.renderChat(messages, { tools: [value] }), says("options\\.tools\\[0\\]"));
  }
});

test("arguments of tool calls may not nest without end", async () => {
  const model = await load();
  const call = { id: "1", type: "function", function: { name: "f", arguments: "[".repeat(100_000) + "]".repeat(100_000) } };
  const messages = [{ role: "user", content: "a" }, { role: "assistant", tool_calls: [call] }];
  await refused(() => model.chat.completions.create({ messages }), /'messages\[1\]\.tool_calls\[0\]\.function\.arguments.*nested more than 100 levels/);
  messages[1].tool_calls = [null];
  await refused(() => model.chat.completions.create({ messages }), /'messages\[1\]\.tool_calls\[0\]' must be an object/);
});

test("plain values pass: dates by toJSON, undefined members dropped, __proto__ as a name", async () => {
  const model = await load();
  const kwargs = { day: new Date(0), none: undefined, list: [1, undefined, null], own: JSON.parse('{"__proto__": 1}') };
  await model.chat.completions.create({ messages: [{ role: "user", content: "hi" }], chat_template_kwargs: kwargs });
  const sent = fake.seen.requests.at(-1).chatTemplate;
  assert.equal(JSON.stringify(sent), '{"day":"1970-01-01T00:00:00.000Z","list":[1,null,null],"own":{"__proto__":1}}');
});

test("messages: missing, null, sparse or too many", async () => {
  const model = await load();
  const create = (messages) => () => model.chat.completions.create({ messages });
  await refused(create([null]), /messages\[0\] must be an object/);
  await refused(create(new Array(3)), /messages\[0\] must be an object/);
  await refused(create(new Array(1e9)), /'messages' must be an array of at least one message and at most 1048576/);
  await refused(create([{ role: "user", content: new Array(1e9) }]), /'content' has 1000000000 parts/);
  await refused(create([{ role: "user", content: [, "x"] }]), /does not support parts/);
});

test("token ids: lengths are read before the items", async () => {
  const model = await load();
  for (const length of [1e15, 2 ** 32, 1e9]) {
    await refused(() => model.detokenize({ length }), /detokenize takes at most 1048576 token ids at once, not \d+/);
    await refused(() => model.generate({ length }), /generate takes at most 1048576 token ids/);
    await refused(() => model.logits({ length }), /logits takes at most 1048576 token ids/);
  }
  await refused(() => model.detokenize(new Uint32Array(10_000_000)), /takes at most 1048576 token ids at once, not 10000000/);
  await refused(() => model.detokenize({ length: NaN }), /expects token ids/);
  await refused(() => model.detokenize({ length: "9" }), /expects token ids/);
  await refused(() => model.detokenize([2 ** 32]), /expects token ids/);
  const gone = new Uint32Array([1, 2]);
  structuredClone(gone, { transfer: [gone.buffer] });
  await refused(() => model.generate(gone), /the token ids were transferred elsewhere/);
  await refused(() => model.completions.create({ prompt: new Array(1e9) }), /'prompt' must be a string, token ids/);
  await refused(() => model.generate("x", { stop: new Array(1e9) }), /'stop' must be a string or an array of strings \(at most 1048576\)/);
  await refused(() => model.generate("x", { grammar: { type: "choice", choices: new Array(1e9) } }), /requires 'choices': a list of strings/);
  await refused(() => model.generate("x", { grammar: { type: "json_schema", schema: cycle } }), /'schema\.self' contains itself/);
  await refused(() => model.generate("x", { stop: [, "x"] }), /'stop' must be a string or an array of strings/);
  const vectors = await load("org/embed");
  await refused(() => vectors.embed(new Array(1e9)), /at most 1048576/);
  await refused(() => vectors.embeddings.create({ input: new Array(1e9) }), /at most 1048576 items/);
  await refused(async () => (await load("org/clip")).embed(new Array(1e9)), /embed takes at most 1048576 inputs/);
  await refused(async () => (await load("org/rank")).rerank("q", new Array(1e9)), /array of strings \(at most 1048576\)/);
});

test("sparse arrays: lengths are read before the items", async () => {
  const sparse = new Array(1e9);
  const model = await load();
  const messages = [{ role: "user", content: "hi" }];
  const create = (more) => () => model.chat.completions.create({ messages, ...more });
  await refused(create({ messages: sparse }), /'messages' must be an array of at least one message and at most 1048576/);
  await refused(create({ messages: "hi" }), /'messages' must be an array of at least one message/);
  await refused(create({ tools: sparse }), /'tools' must be an array of at most 1048576 items, not an array of 1000000000/);
  await refused(create({ modalities: sparse }), /'modalities' must be/);
  await refused(create({ stop: sparse }), /'stop' must be a string or an array of strings \(at most 1048576\)/);
  await refused(create({ tool_choice: { type: "allowed_tools", allowed_tools: { mode: "auto", tools: sparse } } }), /'tool_choice' must be/);
  await refused(() => model.renderChat(messages, { tools: sparse }), /'tools' must be an array of at most 1048576 items/);
  const respond = (more) => () => model.responses.create({ input: "hi", ...more });
  await refused(respond({ input: sparse }), /'input' must be a string or an array of items \(at most 1048576\)/);
  await refused(respond({ tools: sparse }), /'tools' must be an array of at most 1048576 items/);
  await refused(respond({ include: sparse }), /'include' must be an array of at most 1048576 items/);
  for (const tools of [sparse, undefined, [null]]) await refused(respond({ tool_choice: { type: "allowed_tools", mode: "auto", tools } }), /'tool_choice' of type 'allowed_tools' requires 'tools'/);
  const whisper = await load("org/whisper");
  const audio = (more) => () => whisper.audio.transcriptions.create({ file: new Blob(["x"]), ...more });
  await refused(() => whisper.transcribe(new Float32Array(9), { sampleRate: 16_000, temperature: sparse }), /'temperature' must be/);
  await refused(audio({ timestamp_granularities: sparse }), /'timestamp_granularities' must be/);
  await refused(() => load(sparse), /a list of files must contain File objects/);

  const memory = await memories.createMemory({ model: await load("org/embed") });
  await refused(() => memory.add(sparse), /add takes at most 1048576 items at once, not 1000000000/);
  await refused(() => memory.add({ text: "x", metadata: { a: sparse } }), /'metadata\.a' has more than 1000000 values/);
  await refused(() => memory.delete(sparse), /delete takes at most 1048576 items/);
  await refused(() => memory.delete({ document: sparse }), /delete takes at most 1048576 items/);
  for (const filter of [{ $and: sparse }, { a: { $in: sparse } }]) await refused(() => memory.search("x", { filter }), /must be an array of at most 1048576/);
  await refused(() => memories.createMemory({ model, redact: sparse }), /must be/);
});

test("whole numbers have the engine's bounds", async () => {
  const bounds = /must be a whole number from -?\d to 4294967295, not 1000000000000000/;
  const model = await load();
  for (const name of ["maxTokens", "topK"]) await refused(() => model.generate("x", { [name]: 1e15 }), bounds);
  for (const name of ["max_tokens", "max_completion_tokens", "top_k"]) await refused(() => model.chat.completions.create({ messages: [{ role: "user", content: "x" }], [name]: 1e15 }), bounds);
  await refused(() => model.completions.create({ prompt: "x", max_tokens: 1e15 }), bounds);
  for (const name of ["position", "steps", "drafts"]) await refused(() => model.measure({ [name]: 1e15 }), bounds);
  await refused(() => model.measure({ profile: [1e15] }), /'profile' must be an array of whole numbers/);
  for (const name of ["kvGrowth", "experts"]) await refused(() => load("a/b", { [name]: 1e15 }), bounds);
  await refused(() => load("a/b", { maxContext: 1e15 }), /must be a whole number from 1 to 16777216, not 1000000000000000/);
  for (const name of ["maxMemory", "maxWeightBuffer", "expertBytes"]) await refused(() => load("a/b", { [name]: 1e300 }), /must be a whole number of bytes/);
  await load("a/b", { maxMemory: 1e15 });
  const whisper = await load("org/whisper");
  await refused(() => whisper.transcribe(new Float32Array(9), { sampleRate: 16000, maxTokens: 1e15 }), bounds);
  await refused(async () => (await load("org/embed")).embed("x", { truncateDim: 1e15 }), bounds);
  await refused(async () => (await load("org/kani", { codec: "org/codec" })).audio.speech.create({ input: "x", max_tokens: 1e15 }), bounds);
});

test("audio: transferred buffers and sample rates of other types", async () => {
  const whisper = await load("org/whisper");
  const gone = () => {
    const samples = new Float32Array(16000);
    structuredClone(samples, { transfer: [samples.buffer] });
    return samples;
  };
  await refused(() => whisper.transcribe(gone(), { sampleRate: 16000 }), /the audio's buffer was transferred elsewhere/);
  await refused(() => whisper.transcribe({ samples: gone(), sampleRate: 16000 }), /the audio's buffer was transferred elsewhere/);
  await refused(() => whisper.transcribe(gone().buffer), /the audio's buffer was transferred elsewhere/);
  for (const sampleRate of ["16000", 16000n, null, NaN]) await refused(() => whisper.transcribe({ samples: new Float32Array(9), sampleRate }), /the sample rate must be a number between/);
  const file = Object.assign(new Blob(["x"]), { arrayBuffer: () => Promise.reject(new DOMException("gone", "NotReadableError")) });
  await refused(() => whisper.transcribe(file), /the file cannot be read any more: gone/);
  const kani = await load("org/kani", { codec: "org/codec" });
  for (const voice of [gone(), Float32Array.of(1, NaN)]) await refused(() => kani.audio.speech.create({ input: "x", voice }), /'voice' must be a string or a Float32Array of finite numbers/);
});

test("images: closed bitmaps and transferred pixels", async () => {
  globalThis.ImageBitmap = class {
    width = 0;
    height = 0;
  };
  globalThis.ImageData = class {
    data = new Uint8ClampedArray(4);
  };
  try {
    await refused(() => images.resolveImage("encodeImage", new ImageBitmap()), /the ImageBitmap was closed or transferred elsewhere/);
    const pixels = new ImageData();
    structuredClone(pixels.data, { transfer: [pixels.data.buffer] });
    await refused(() => images.resolveImage("encodeImage", pixels), /the ImageData's buffer was transferred elsewhere/);
  } finally {
    delete globalThis.ImageBitmap;
    delete globalThis.ImageData;
  }
  const vad = new Uint8Array(4);
  structuredClone(vad, { transfer: [vad.buffer] });
  await refused(() => load("org/whisper", { vad }), /'vad' must be a URL or a Uint8Array that was not transferred/);
});

test("messages to the worker that are no requests leave it running", async (t) => {
  const { port1, port2 } = new MessageChannel();
  rpc.serve(port2, new host.Host(fake));
  const remote = new rpc.RemoteBackend(port1, () => (port1.close(), port2.close()));
  port1.start();
  port2.start();
  t.after(() => remote.close());
  await remote.hello;
  for (const message of [null, undefined, 1, "x", [], {}, { id: 1 }, { method: 3 }, { id: 1, method: "load" }, { id: "x", abort: true }, { id: 9, method: "constructor", args: [] }]) {
    port1.postMessage(message);
    port2.postMessage(message);
  }
  await remote.call("load", [{ model: "a/b" }]);
  assert.deepEqual([...(await remote.call("tokenize", ["a", false]))], [97]);
  await refused(() => remote.call("tokenize", [() => {}, false]), /tokenize: an argument cannot be sent to the worker: .*could not be cloned/);
  await refused(() => remote.call("nonsense", []), /unknown call 'nonsense'/);
});

/** Seconds of random messages; `JERBOA_FUZZ_SECONDS` as for the parsers' targets. */
const SECONDS = Number(process.env.JERBOA_FUZZ_SECONDS ?? 0);

test("random messages leave the worker running, and every request is answered with a result or a coded error", { timeout: (SECONDS + 120) * 1000 }, async (t) => {
  const end = Date.now() + SECONDS * 1000;
  let runs = 0;
  for (let seed = 1; seed <= 2 || Date.now() < end; seed++) {
    const { port1, port2 } = new MessageChannel();
    const thrown = [];
    const caught = (error) => thrown.push(error);
    process.on("uncaughtException", caught);
    rpc.serve(port2, new host.Host(fake));
    const remote = new rpc.RemoteBackend(port1, () => (port1.close(), port2.close()));
    const codes = new Set();
    port1.on("message", (data) => data?.error && codes.add(data.error.code));
    port1.start();
    port2.start();
    await remote.hello;
    // Not those with the number of the first call, which would get their answers.
    const messages = randomMessages(seed, 400).filter((message) => message?.id !== 1);
    for (const message of messages) port1.postMessage(message);
    await remote.call("load", [{ model: "a/b" }]);
    assert.equal((await remote.call("generate", [{ prompt: "still here" }])).text, "still here", `seed ${seed}`);
    for (const code of codes) assert.equal(typeof code, "string", `seed ${seed}`);
    // The other direction: what a broken worker may send.
    for (const message of messages.filter((message) => typeof message?.id !== "number")) port2.postMessage(message);
    assert.equal((await remote.call("generate", [{ prompt: "still here" }])).text, "still here", `seed ${seed}`);
    await remote.close();
    process.off("uncaughtException", caught);
    assert.deepEqual(thrown, [], `seed ${seed}`);
    runs += messages.length;
  }
  t.diagnostic(`${runs} messages`);
});
