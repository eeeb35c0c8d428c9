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
  const loading = assert.rejects(model.load(), { code: "aborted" });
  again();
  await loading;
  assert.equal(model.state.status, "idle");
  const missing = lazy.sharedModel("no/such", options);
  await assert.rejects(missing.load(), { code: "not_found" });
  assert.deepEqual([missing.state.status, missing.state.error.code], ["error", "not_found"]);
  await assert.rejects(missing.load(), { code: "not_found" });
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
