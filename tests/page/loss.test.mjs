/** Devices lost under the facade, over the fake engine: every call recovers or fails with a code, and none hangs. */

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let jerboa, fake, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  jerboa = await import(`${built.url}/index.js`);
  fake = await import(`${built.url}/jerboa.js`);
});
after(() => cleanUp());
beforeEach(() => void (fake.losses.length = 0));

const TEXT = "one two three four five";
const load = (name = "org/name") => jerboa.loadModel(name, { worker: false });
const lose = (...losses) => fake.losses.push(...losses);

test("a generation that loses its device continues with the same tokens", async () => {
  const model = await load();
  for (const after of [0, 1, 3, 4]) {
    const loads = fake.seen.loads.length;
    lose({ call: "generate", after });
    const generation = model.generate(TEXT);
    const pieces = [];
    for await (const piece of generation) pieces.push(piece);
    const { ids, text } = await generation.details;
    assert.deepEqual(pieces, ["one", " two", " three", " four", " five"], `lost after ${after}`);
    assert.deepEqual([ids, text], [[1, 2, 3, 4, 5], TEXT]);
    assert.equal(fake.seen.loads.length, loads + 1);
    assert.deepEqual({ ...fake.seen.loads.at(-1), signal: 0 }, { ...fake.seen.loads[0], signal: 0 }, "loaded as before");
  }
  await model.unload();
});

test("all other calls are repeated, too", async () => {
  const [model, embedder, ranker] = [await load(), await load("org/embed"), await load("org/rank")];
  lose({ call: "embed" }, { call: "rerank" }, { call: "logits" });
  assert.equal((await embedder.embed(["a", "bb"])).length, 2);
  assert.equal((await ranker.rerank("a", ["a", "b"])).length, 2);
  assert.equal((await model.logits([1])).length, 9);
  assert.equal(fake.losses.length, 0);
});

test("parts of an answer are emitted once, whenever the device is lost", async () => {
  const model = await load("org/thinking");
  const tools = [{ type: "function", function: { name: "weather", parameters: {} } }];
  const content = '<think>one two</think>three <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';
  for (const after of [0, 1, 2, 3, 4, 5]) {
    lose({ call: "generate", after });
    const deltas = [];
    for await (const { choices } of await model.chat.completions.create({ messages: [{ role: "user", content }], tools, stream: true })) deltas.push(choices[0].delta);
    assert.equal(deltas.map(({ reasoning_content: text }) => text ?? "").join(""), "one two", `lost after ${after}`);
    assert.equal(deltas.map(({ content: text }) => text ?? "").join(""), "three ", `lost after ${after}`);
    const calls = deltas.flatMap(({ tool_calls: calls }) => calls ?? []);
    assert.deepEqual(calls.map(({ id, function: { name, arguments: text } }) => [id, name, text]), [["call_0", "weather", ""], [undefined, undefined, '{"cit'], [undefined, undefined, 'y":"Oslo"}']], `lost after ${after}`);
  }
  assert.equal(fake.losses.length, 0);
});

test("transcription and speech emit no event twice", async () => {
  const [listener, voice] = [await load("org/whisper"), await jerboa.loadModel("org/kani", { worker: false, codec: "org/codec" })];
  for (const after of [0, 1, 2]) {
    lose({ call: "speak", after }, { call: "transcribe", after });
    const lengths = [];
    let sum = 0;
    for await (const { samples } of await voice.audio.speech.create({ input: "one two three", stream: true })) {
      lengths.push(samples.length);
      sum += samples.reduce((all, sample) => all + sample * sample, 0);
    }
    assert.deepEqual(lengths, [2205, 2205, 2205], `lost after ${after}`);
    assert.ok(Math.abs(sum - 827) < 9, `${sum}`);
    const [first, second] = fake.seen.requests.slice(-2);
    assert.ok(first.seed >= 0 && first.seed === second.seed, "both draw the same");
    const heard = [];
    const { text } = await listener.transcribe(new Float32Array(48_000).fill(0.5), { sampleRate: 16_000, onSegment: ({ text }) => heard.push(text) });
    assert.deepEqual([text, heard], ["word1 word2 word3", [" word1", " word2", " word3"]]);
  }
  assert.equal(fake.losses.length, 0);
});

test("a second loss or a failed load is an error with a code, and the next call recovers", async () => {
  const model = await load();
  lose({ call: "generate", after: 1 }, { call: "generate", after: 2 });
  await assert.rejects(model.generate(TEXT), { code: "device_lost" });
  assert.equal(await model.generate(TEXT), TEXT);
  lose({ call: "generate", after: 1 }, { call: "load" });
  await assert.rejects(model.generate(TEXT), { code: "device_lost" });
  assert.equal(await model.generate(TEXT), TEXT);
  await model.unload();
  await assert.rejects(async () => model.generate(TEXT), { code: "unloaded" });
});

test("queued calls run after the device was lost", async () => {
  const model = await load();
  lose({ call: "generate", after: 2 });
  assert.deepEqual(await Promise.all([model.generate(TEXT), model.generate("a b"), model.tokenize("a")]), [TEXT, "a b", Uint32Array.of(1, 97)]);
});

test("released memory is allocated again by the next call", async () => {
  const model = await load();
  const { freed, loads } = { freed: fake.seen.freed, loads: fake.seen.loads.length };
  await model.release();
  assert.equal(fake.seen.freed, freed + 1);
  assert.equal(await model.generate(TEXT), TEXT);
  assert.equal(fake.seen.loads.length, loads + 1);
  await model.release();
  assert.deepEqual(await model.memory(), { wasmBytes: 0, gpuBytes: 0, kvInMainMemory: 0 });
  assert.equal(fake.seen.loads.length, loads + 1, "asking for it loads nothing");
  // A release waits for running calls.
  const [text] = await Promise.all([model.generate(TEXT), model.release()]);
  assert.equal(text, TEXT);
  assert.deepEqual([...(await model.tokenize("a"))], [1, 97]);
});

test("sessions continue after a lost device, each with its own tokens, and free their memory", async () => {
  const model = await load();
  const before = fake.seen.sessions;
  const [one, two] = await Promise.all([model.createSession(), model.createSession()]);
  const loads = fake.seen.loads.length;
  lose({ call: "generate", after: 2 });
  const pieces = [];
  const read = async () => {
    for await (const piece of one.generate(TEXT)) pieces.push(piece);
  };
  // One loss affects all running calls; the model is loaded once.
  const [, other, own] = await Promise.all([read(), two.generate("a b c d"), model.generate("x y z")]);
  assert.deepEqual([pieces.join(""), other, own], [TEXT, "a b c d", "x y z"]);
  assert.deepEqual([fake.seen.loads.length, fake.seen.sessions], [loads + 1, before + 2]);

  lose({ call: "generate" });
  await assert.rejects(Promise.all([one.generate(TEXT, { signal: AbortSignal.abort() })]), { code: "aborted" });
  assert.equal(await two.generate("a b"), "a b");
  // A session that was unused since is created when it is forked.
  const third = await one.fork();
  assert.equal(await third.generate("c d"), "c d");
  await one.dispose();
  await assert.rejects(async () => one.generate("e"), { code: "unloaded" });
  await model.unload();
  assert.equal(fake.seen.sessions, before);
});

test("sessions survive a release, even while one of them runs", async () => {
  const model = await load();
  const [session, idle] = await Promise.all([model.createSession(), model.createSession()]);
  const [text] = await Promise.all([session.generate(TEXT), model.release()]);
  assert.equal(text, TEXT);
  assert.equal(await session.generate("a b"), "a b");
  await model.release();
  await idle.dispose();
  assert.equal(await session.generate("c d"), "c d");
  await model.unload();
  assert.equal(fake.seen.sessions, 0);
});

test("adapters and their sessions come back with a new engine", async () => {
  const model = await load();
  fake.seen.adapters.length = 0;
  assert.equal(await model.loadAdapter("org/pirate"), "org/pirate");
  assert.equal(await model.loadAdapter("org/other", { name: "other" }), "other");
  await model.unloadAdapter("other");
  const session = await model.createSession({ adapter: "org/pirate" });
  assert.deepEqual(fake.seen.adapters, [["org/pirate", "org/pirate"], ["other", "org/other"], ["other"], ["session", "org/pirate"]]);
  fake.seen.adapters.length = 0;
  await model.release();
  assert.equal(await session.generate("a b"), "a b");
  assert.deepEqual(fake.seen.adapters, [["org/pirate", "org/pirate"], ["session", "org/pirate"]]);
  await assert.rejects(model.loadAdapter("no/such"), { code: "not_found" });
  await assert.rejects(model.loadAdapter([new File(["{}"], "adapter_config.json")]), { code: "request", message: /set 'name'/ });
  await assert.rejects(model.loadAdapter(""), { code: "request", message: /loadAdapter: expected 'org\/name'/ });
  await session.dispose();
});
