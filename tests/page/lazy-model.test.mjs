/** Lazy models on Node over the fake engine: shared loads, cancelled and failed ones, availability with and without a GPU; and objects of incomplete answers. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let facade, lazy, engine;

before(async () => {
  facade = await buildFacade();
  lazy = await import(`${facade.url}/integrations/lazy-model.js`);
  engine = (await import(`${facade.url}/jerboa.js`)).seen;
});

after(() => facade?.remove());

const options = { worker: false };
const engineModel = async () => (await import(`${facade.url}/index.js`)).loadModel("org/own", options);

test("equal names and options share one load, others do not", async () => {
  const before = engine.loads.length;
  const models = [lazy.sharedModel("org/a", options), lazy.sharedModel("org/a", { maxContext: undefined, ...options }), lazy.sharedModel("org/a", { ...options, maxContext: 8 })];
  assert.ok(models[0] === models[1] && models[0] !== models[2]);
  const states = [];
  models[0].subscribe(() => states.push(models[0].state.status));
  const [one, two] = await Promise.all([models[0].load(), models[1].load()]);
  assert.equal(one, two);
  assert.equal(engine.loads.length, before + 1);
  assert.deepEqual([states[0], states.at(-1)], ["loading", "ready"]);
  await models[0].unload();
  assert.equal(models[0].state.status, "idle");
  assert.notEqual(await models[0].load(), one);
});

test("a source that is no model is refused by name", () => {
  for (const [source, name] of [[undefined, "undefined"], [null, "null"], [5, "5"]]) assert.throws(() => lazy.sharedModel(source), (error) => error.code === "request" && error.message.startsWith(`The model is ${name}. Pass a name`));
});

test("a wait ends by its signal, a load when no user is left, a failure until the next use", async () => {
  const model = lazy.sharedModel("org/endless", options);
  const release = model.retain();
  const controller = new AbortController();
  const waiting = model.load(controller.signal);
  controller.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  assert.equal(model.state.status, "loading", "others may still wait");
  // As React does under StrictMode.
  release();
  const again = model.retain();
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(model.state.status, "loading");
  const loading = assert.rejects(model.start(), { code: "aborted" });
  again();
  await loading;
  assert.equal(model.state.status, "idle");
  const missing = lazy.sharedModel("no/such", options);
  await assert.rejects(missing.load(), { code: "not_found" });
  assert.deepEqual([missing.state.status, missing.state.error.code], ["error", "not_found"]);
  await assert.rejects(missing.load(), { code: "not_found" });
});

test("a load goes on for those that wait for it when the users go; unload ends their wait and says so", async () => {
  const model = lazy.sharedModel("org/endless", { ...options, maxContext: 16 });
  const release = model.retain();
  const waiting = assert.rejects(model.load(), { code: "aborted", message: "The load was cancelled, because the model was unloaded while it loaded. Call it again to load the model." });
  release();
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(model.state.status, "loading");
  await model.unload();
  await waiting;
});

test("files are shared by identity with equal options, functions and loaded models by identity alone", async () => {
  const [file, other] = ["a", "b"].map((name) => new File(["{}"], name));
  const [files, load] = [[file], async () => {}];
  const shared = (source, more) => lazy.sharedModel(source, more);
  assert.equal(shared(files, { maxContext: 8 }), shared(files, { maxContext: 8, vad: undefined }));
  assert.notEqual(shared(files, { maxContext: 8 }), shared(files, { maxContext: 16 }));
  assert.notEqual(shared(files), shared([other]));
  assert.equal(shared(load, { maxContext: 8 }), shared(load));
  const [bytes, equal] = [new Uint8Array(1 << 22), new Uint8Array(1 << 22)];
  const start = performance.now();
  for (let i = 0; i < 100; i++) assert.equal(shared("org/a", { vad: bytes }), shared("org/a", { vad: bytes }));
  assert.ok(performance.now() - start < 1000, "bytes are not read");
  assert.notEqual(shared("org/a", { vad: bytes }), shared("org/a", { vad: equal }));
});

test("a loaded model that was unloaded is refused until its owner passes another", async () => {
  const model = await engineModel();
  const own = lazy.sharedModel(model);
  assert.equal(own.state.status, "ready");
  await model.unload();
  const refused = { code: "unloaded", message: "The model was unloaded. Call loadModel again, and pass the new model." };
  await assert.rejects(own.load(), refused);
  assert.equal(own.state.status, "error");
  const late = await engineModel();
  await late.unload();
  assert.equal(lazy.sharedModel(late).state.status, "idle");
  await assert.rejects(lazy.sharedModel(late).load(), refused);
});

test("an unloaded model is dropped, and the next use loads it again", async () => {
  const shared = lazy.sharedModel("org/unloaded", options);
  const first = await shared.load();
  const states = [];
  shared.subscribe(() => states.push(shared.state.status));
  await first.unload();
  assert.deepEqual(states, ["idle"]);
  assert.equal(shared.state.model, undefined);
  const second = await shared.load();
  assert.notEqual(second, first);
  assert.equal(await second.generate("one two", { maxTokens: 2 }).then((text) => typeof text), "string");
  await shared.unload();
});

test("a failure of the caller's own function is not reported as a bug of the package", async () => {
  const cause = new TypeError("no such host");
  for (const [load, expected] of [
    [() => { throw cause; }, { code: "request", message: "The function that loads the model failed: no such host.", cause }],
    [async () => undefined, { code: "request", message: "The function that loads the model returned nothing. Return the result of loadModel." }],
    [async () => ({}), { code: "request", message: "The function that loads the model returned no model. Return the result of loadModel." }],
    [async () => { throw new DOMException("stop", "AbortError"); }, { code: "aborted" }],
  ]) await assert.rejects(lazy.sharedModel(load).load(), expected);
});

test("availability follows the host's GPU", async () => {
  const model = lazy.sharedModel("org/new", options);
  assert.equal(await model.availability(), "unavailable");
  const key = Symbol.for("jerboa.platform");
  try {
    globalThis[key] = { get gpu() { throw new Error("no Dawn"); } };
    assert.equal(await lazy.hasWebGpu(), false);
    globalThis[key] = { gpu: { requestAdapter: async () => ({}) } };
    assert.equal(await lazy.hasWebGpu(), true);
  } finally {
    delete globalThis[key];
  }
  await model.load();
  assert.equal(await model.availability(), "available");
});

test("an object that a limit or a stop string cut is an error that says so", async () => {
  const { parseAnswer } = await import(`${facade.url}/integrations/schema.js`);
  assert.deepEqual(parseAnswer("useObject", '{"a": 1}', "stop"), { a: 1 });
  const refused = (text, finish) => {
    try {
      return parseAnswer("useObject", text, finish);
    } catch ({ code, message }) {
      return `${code}: ${message}`;
    }
  };
  assert.equal(refused('{"a"', "length"), "request: useObject: the object is incomplete: the answer reached its limit of tokens. Raise 'max_completion_tokens', or load the model with a larger maxContext.");
  for (const text of ['{"a"', ""]) assert.equal(refused(text, "stop"), "request: useObject: the object is incomplete: a string of 'stop' ended the answer. Leave out 'stop'; the schema ends the object.");
});
