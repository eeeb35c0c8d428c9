/** The facade over the fake engine: request and response formats, errors, aborts, RPC. No browser, no GPU. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade, onBothThreads as runOnBothThreads } from "./support/facade.mjs";

let jerboa, rpc, host, images, fake, facade, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  facade = built.url;
  jerboa = await import(`${built.url}/index.js`);
  rpc = await import(`${built.url}/rpc.js`);
  host = await import(`${built.url}/host.js`);
  images = await import(`${built.url}/images.js`);
  fake = await import(`${built.url}/jerboa.js`);
});
after(() => cleanUp());

const load = (name = "org/name", options = {}) => jerboa.loadModel(name, { worker: false, ...options });
const user = (content) => [{ role: "user", content }];
const refusal = (code, pattern) => (error) => {
  assert.ok(error instanceof jerboa.JerboaError, String(error));
  assert.equal(error.code, code);
  assert.match(error.message, pattern);
  return true;
};
const onBothThreads = (run) => runOnBothThreads(facade, run);

/** An answer that runs until `end` is called. */
async function running(target, prompt = "one two") {
  let end, start;
  const ended = new Promise((resolve) => (end = resolve));
  const started = new Promise((resolve) => (start = resolve));
  const answer = target.generate(prompt, { logitsProcessor: () => (start(), ended) });
  await started;
  return { answer, end };
}
const collect = async (iterable) => {
  const all = [];
  for await (const each of iterable) all.push(each);
  return all;
};

test("loading reports progress and describes the model", async () => {
  const phases = [];
  const model = await load("org/name", { onProgress: (p) => phases.push(p.phase) });
  assert.deepEqual(phases, ["weights", "weights", "weights", "ready"]);
  assert.equal(model.info.model, "org/name");
  assert.equal(model.info.worker, false);
  assert.deepEqual(model.info.warnings, []);
  await model.unload();
});

test("without Worker the model runs on this thread, with a warning", async () => {
  const model = await jerboa.loadModel("org/name");
  assert.equal(model.info.worker, false);
  assert.match(model.info.warnings[0], /page's main thread.*Web Workers are not available/);
});

test("selected files retain their path inside the folder", async () => {
  const file = new File(["{}"], "config.json");
  Object.defineProperty(file, "webkitRelativePath", { value: "folder/sub/config.json" });
  await load([file, { name: "x.json", file: new File([], "y") }]);
  assert.deepEqual(fake.seen.loads.at(-1).model.map((f) => f.name), ["sub/config.json", "x.json"]);
  const single = new File(["GGUF"], "model.gguf");
  const model = await load(single);
  assert.deepEqual(fake.seen.loads.at(-1).model, [{ name: "model.gguf", file: single }]);
  assert.equal(await model.loadAdapter(new File(["{}"], "adapter.safetensors"), { name: "own" }), "own");
});

test("loadModel refuses invalid options with a clear message", async () => {
  await assert.rejects(load("a/b", { maxContxt: 3 }), refusal("request", /unknown option 'maxContxt'. Did you mean 'maxContext'\?/));
  await assert.rejects(load("a/b", { max_context: 3 }), refusal("request", /Did you mean 'maxContext'/));
  await assert.rejects(load("a/b", { wieghts: "f16" }), refusal("request", /Did you mean 'weights'/));
  await assert.rejects(load("a/b", { weights: "q5" }), refusal("request", /'weights' must be one of 'auto', 'f32', 'f16', 'q8', 'q4', not 'q5'/));
  await assert.rejects(load("a/b", { tune: "never" }), refusal("request", /'tune' must be one of 'auto', .*'force', not 'never'/));
  await assert.rejects(load("a/b", { embeddingWeights: "q2" }), refusal("request", /'embeddingWeights' must be one of 'auto', .*'q4', not 'q2'/));
  await assert.rejects(load("a/b", { maxContext: 1.5 }), refusal("request", /a whole number from 1 to 16777216, not 1.5/));
  await assert.rejects(load("a/b", { features: { f17: true } }), refusal("request", /Did you mean 'f16'/));
  await assert.rejects(load(""), refusal("request", /'org\/name', the URL of a folder or a .gguf file, or files/));
  await assert.rejects(load([]), refusal("request", /list of files is empty\. Pass the configuration and the weights, or 'org\/name'/));
  await assert.rejects(load({}), refusal("request", /expected 'org\/name', the URL of a folder or a \.gguf file, or files, not an object\.$/));
  await assert.rejects(load("https://x.test/m/", { revision: "main" }), refusal("request", /'revision' applies to a repository name/));
  await assert.rejects(load("a/b@v1", { revision: "v2" }), refusal("request", /the name has revision 'v1', the options 'v2'/));
  await assert.rejects(load([new File([], "config.json")], { token: "t" }), refusal("request", /'token' applies to downloads/));
});

test("the engine's errors retain their code and message", async () => {
  await assert.rejects(load("no/such"), refusal("not_found", /Check the name/));
});

test("a load can be aborted before and during", async () => {
  await assert.rejects(load("a/b", { signal: AbortSignal.abort() }), refusal("aborted", /aborted/));
  const controller = new AbortController();
  await assert.rejects(load("a/b", { signal: controller.signal, onProgress: () => controller.abort() }), refusal("aborted", /aborted/));
});

test("generate: awaited, streamed, with details", async () => {
  const model = await load();
  assert.equal(await model.generate("one two three"), "one two three");
  assert.deepEqual(await collect(model.generate("one two")), ["one", " two"]);
  const generation = model.generate([1, 2], { maxTokens: 1, stop: "x", temperature: 0, logitBias: { 3: -1 } });
  assert.equal((await generation.details).finishReason, "stop");
  assert.deepEqual(fake.seen.requests.at(-1), { ids: [1, 2], maxTokens: 1, stop: ["x"], temperature: 0, logitBias: { 3: -1 } });
  const [event] = await collect(model.generate("one", { logprobs: true }).events());
  assert.equal(event.logprobs[0].logprob, -0.1);
});

test("an aborted generation ends the stream, leaves the text in details, and rejects the awaited text", async () => {
  const model = await load();
  const controller = new AbortController();
  const generation = model.generate("one two three four", { signal: controller.signal });
  const pieces = [];
  for await (const piece of generation) {
    pieces.push(piece);
    if (pieces.length === 2) controller.abort();
  }
  assert.deepEqual(pieces, ["one", " two"]);
  assert.deepEqual([(await generation.details).finishReason, (await generation.details).text], ["abort", "one two"]);
  await assert.rejects(async () => await generation, refusal("aborted", /aborted/));
  await assert.rejects(async () => await model.generate("one", { signal: AbortSignal.abort() }), refusal("aborted", /aborted/));
  for await (const piece of model.generate("one two three")) if (piece) break;
  assert.equal(await model.generate("still works"), "still works");
});

test("generations run at once, and other calls wait for them", async () => {
  const model = await load();
  assert.deepEqual(await Promise.all([model.generate("a b c"), model.generate("d e"), model.generate("f")]), ["a b c", "d e", "f"]);
  const order = [];
  const note = (name, call) => call.then(() => order.push(name));
  const generate = async (prompt) => {
    for await (const piece of model.generate(prompt)) order.push(piece.trim());
  };
  await Promise.all([generate("a1 a2 a3"), generate("b1 b2"), note("measured", model.measure()), generate("c1")]);
  assert.ok(order.indexOf("b1") < order.indexOf("a3"), order.join(" "));
  assert.ok(order.indexOf("a3") < order.indexOf("measured") && order.indexOf("measured") < order.indexOf("c1"), order.join(" "));
});

test("sessions, logits and what follows them do not wait for a running answer", { timeout: 20_000 }, async () => {
  await onBothThreads(async (model) => {
    const before = await model.createSession();
    await model.release();
    const { answer, end } = await running(model);
    // Created again in the engine that the answer has loaded.
    assert.equal(await before.generate("a"), "a");
    const session = await model.createSession();
    assert.equal(await session.generate("b"), "b");
    assert.equal(await (await session.fork()).generate("c"), "c");
    assert.equal((await model.logits([1])).length, 9);
    assert.equal(await model.generate("d"), "d");
    // Code in each step may wait for them, too.
    const inside = [];
    const text = await model.generate("one two", {
      async stoppingCriteria(tokens) {
        const own = await model.createSession();
        inside.push(tokens.length, (await model.logits([1])).length, (await own.prefill([1])).length, await model.generate("e"));
        await own.dispose();
      },
    });
    assert.deepEqual([text, inside], ["one two", [1, 9, 9, "e"]]);
    end();
    assert.equal(await answer, "one two");
  });
});

test("an abort of a call that waits for another one rejects at once; those after it wait on", { timeout: 20_000 }, async () => {
  await onBothThreads(async (model) => {
    for (const target of [await model.createSession(), model]) {
      const { answer, end } = await running(target);
      const order = [];
      const note = (name, call) => call.then(() => order.push(name), (error) => order.push(`${name} ${error.code}`));
      const controller = new AbortController();
      const { signal } = controller;
      const wait = target === model ? (options) => model.loadAdapter("org/pirate", options) : (options) => target.prefill([1], options);
      const left = note("left", wait({ signal }));
      const next = note("next", wait());
      const all = Promise.all([left, next, note("answer", answer)]);
      controller.abort();
      await left;
      assert.deepEqual(order, ["left aborted"]);
      end();
      await all;
      assert.deepEqual(order, ["left aborted", "answer", "next"]);
    }
  });
});

test("several prompts give a generation each", async () => {
  const model = await load();
  const prompts = ["one two", "three", [4, 5]];
  assert.deepEqual(await model.generate(prompts), ["one two", "three", "4,5"]);
  const group = model.generate(prompts, { maxTokens: 1 });
  assert.equal(group.length, 3);
  const pieces = [];
  for (const generation of group) for await (const piece of generation) pieces.push(piece);
  assert.deepEqual(pieces, ["one", "three", "4,5"]);
  assert.deepEqual((await group.details).map(({ ids }) => ids), [[1], [1], [1]]);
  const aborted = model.generate(["a b c", "d e f"]);
  aborted.abort();
  assert.deepEqual((await aborted.details).map(({ finishReason }) => finishReason), ["abort", "abort"]);
  await assert.rejects(async () => await aborted, refusal("aborted", /aborted/));
  await assert.rejects(async () => await model.generate(["a", 3]), refusal("request", /token ids/));
});

test("several prompts are a promise, and iterate over their pieces as they come", async () => {
  const model = await load();
  const prompts = ["a1 a2 a3", "b1", "c1 c2"];
  for (const promise of [model.generate("a"), model.generate(prompts)]) {
    const settled = [];
    assert.deepEqual(await promise.finally((...given) => settled.push(given.length)), await promise);
    assert.deepEqual(settled, [0]);
    assert.match(Object.prototype.toString.call(promise), /^\[object Generation/);
  }
  assert.equal(await model.generate(["a", null]).catch(({ code }) => code), "request");
  assert.deepEqual(await Promise.allSettled([model.generate(["a", 3]).finally()]).then(([{ status }]) => status), "rejected");

  const pieces = await collect(model.generate(prompts));
  assert.deepEqual(pieces.slice(0, 3).map(({ index }) => index).sort(), [0, 1, 2], JSON.stringify(pieces));
  const texts = prompts.map((_, at) => pieces.filter(({ index }) => index === at).map(({ text }) => text).join(""));
  assert.deepEqual(texts, prompts);
  const events = await collect(model.generate(prompts, { logprobs: true }).events());
  assert.ok(events.every(({ index, ids, logprobs }) => prompts[index] && ids.length === logprobs.length));

  const left = model.generate(["a b c d e", "f g h i j"]);
  for await (const { text } of left) if (text) break;
  assert.deepEqual((await left.details).map(({ finishReason }) => finishReason), ["abort", "abort"]);
  const aborted = model.generate(["a b c", "d e"]);
  aborted.abort();
  await collect(aborted);
  const failing = model.generate(["a b c", "d"], { logitsProcessor: (_, tokens) => { if (tokens.length > 0) throw new Error("broken"); } });
  await assert.rejects(collect(failing), refusal("request", /broken/));
  assert.equal(await model.generate("still works"), "still works");
});

test("equal prompts of a request get seeds of their own, the first that of the request", async () => {
  const model = await load();
  const seeds = async (call) => {
    const from = fake.seen.requests.length;
    await call();
    return fake.seen.requests.slice(from).map(({ seed }) => seed);
  };
  const last = Number.MAX_SAFE_INTEGER;
  assert.deepEqual(await seeds(() => model.generate(["a", "a", "a"], { seed: 5 })), [5, 6, 7]);
  assert.deepEqual(await seeds(() => model.generate("a", { seed: 5 })), [5]);
  assert.deepEqual(await seeds(() => model.generate(["a", "a"])), [undefined, undefined]);
  assert.deepEqual(await seeds(() => model.generate(["a", "a", "a"], { seed: last - 1 })), [last - 1, last, -last]);
  assert.deepEqual(await seeds(() => model.chat.completions.create({ messages: user("a"), n: 2, seed: last })), [last, -last]);
  assert.deepEqual(await seeds(() => model.completions.create({ prompt: ["a", "a"], n: 2, seed: 1 })), [1, 2, 3, 4]);
});

test("wrong items of lists are named by argument and index", async () => {
  const model = await load();
  const session = await model.createSession();
  const message = { role: "user", content: "hi" };
  const generating = [
    [[], /generate: prompt is an empty list\. Pass a string, a list of at least one token id, or a list of prompts\./],
    [new Uint32Array(), /prompt is an empty list/],
    [[null], /prompts\[0\] must be a string or a list of token ids, not null/],
    [["a", 3], /prompts\[1\] must be a string or a list of token ids, not 3/],
    [["a", undefined], /prompts\[1\] must be .*, not undefined/],
    [["a", { x: 1 }], /prompts\[1\] must be .*, not an object/],
    [["a", []], /prompts\[1\] is an empty list/],
    [[[1], [2, null]], /expects token ids .* but prompts\[1\]\[1\] is null\. Convert text with model\.tokenize/],
    [[1, null], /but prompt\[1\] is null/],
    [[1, "a"], /but prompt\[1\] is 'a'/],
    [[message], /prompts\[0\] is a chat message\. Call model\.chat\.completions\.create\(\{ messages \}\)/],
    [message, /prompt is a chat message/],
    [["a", { role: "user" }], /prompts\[1\] is a chat message/],
  ];
  for (const [prompt, pattern] of generating) await assert.rejects(model.generate(prompt).then(), refusal("request", pattern));
  await assert.rejects(session.generate(["a", "b"]), refusal("request", /session\.generate takes one prompt.*model\.generate/));
  const chat = (messages) => model.chat.completions.create({ messages });
  await assert.rejects(chat([message, { role: "user" }]), refusal("request", /messages\[1\] has no 'content'\. Give it a string, or an array of parts\./));
  await assert.rejects(chat([{ role: "user", content: [{ type: "text", text: "a" }, null] }]), refusal("request", /messages\[0\]: content\[1\]/));
  await assert.rejects(model.generate("a", { stop: ["x", 3] }), refusal("request", /'stop' must be .*; item 1 is 3/));
  await assert.rejects(model.completions.create({ prompt: ["x", null] }), refusal("request", /'prompt' must be .*; item 1 is null/));
  await assert.rejects(model.tokenize(["x"]), refusal("request", /the text must be a string/));
  await assert.rejects(model.detokenize([1, "a"]), refusal("request", /but the list\[1\] is 'a'/));
  const vectors = await load("org/embed");
  await assert.rejects(vectors.embed(["a", null]), refusal("request", /the input must be .*; item 1 is null/));
  await assert.rejects(vectors.embeddings.create({ input: ["a", null] }), refusal("request", /the input must be .*; item 1 is null/));
  await assert.rejects((await load("org/rank")).rerank("q", ["a", null]), refusal("request", /; item 1 is null/));
  await assert.rejects(jerboa.loadModel(["a/b", 3]), refusal("request", /a list of models must contain names and URLs; item 1 is 3/));
  await assert.rejects(load([new File([], "config.json"), 3]), refusal("request", /a list of files must contain .*; item 1 is 3/));
});

test("a session is saved and restored", async () => {
  const model = await load();
  const session = await model.createSession();
  await session.prefill([1, 2, 3]);
  const saved = await session.save();
  assert.ok(saved instanceof Blob && saved.size === 12);
  const other = await model.createSession();
  await other.restore(saved);
  assert.deepEqual([...other.tokens], [1, 2, 3]);
  assert.deepEqual([...(await other.step(4))].indexOf(1), 5);
  await assert.rejects(other.restore(3), refusal("request", /session.restore: expects a name or the Blob of session.save\(\), not/));
  await assert.rejects(other.save(3), refusal("request", /session.save: the name must be/));
  await assert.rejects(other.restore(new Blob(["x"])), refusal("request", /no saved session/));
});

test("generate refuses contradictory options", async () => {
  const model = await load();
  await assert.rejects(model.generate("x", { topLogprobs: 2 }), refusal("request", /'topLogprobs' requires logprobs: true/));
  await assert.rejects(model.generate("x", { top_k: 2 }), refusal("request", /Did you mean 'topK'/));
  await assert.rejects(model.generate([1.5]), refusal("request", /expects token ids \(whole numbers/));
  for (const prompt of [undefined, null, 5]) await assert.rejects(model.generate(prompt), refusal("request", /must be a string or a list of token ids, not (undefined|null|5)\./));
  await assert.rejects(model.generate("x", { maxTokens: 0 }), refusal("request", /'maxTokens' must be a whole number from 1 to 4294967295/));
  const generation = model.generate("x");
  await collect(generation);
  await assert.rejects(collect(generation), refusal("request", /already consumed/));
});

test("chat completion in OpenAI's format", async () => {
  const model = await load();
  const answer = await model.chat.completions.create({ messages: user("one two"), temperature: 0, max_tokens: 9, stop: null });
  assert.match(answer.id, /^chatcmpl-/);
  const { id, created, ...rest } = answer;
  assert.deepEqual(rest, {
    model: "org/name",
    object: "chat.completion",
    choices: [{ index: 0, message: { role: "assistant", content: "one two", refusal: null }, logprobs: null, finish_reason: "stop" }],
    usage: { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7, prompt_tokens_details: { cached_tokens: 2 } },
    timings: { prefill_ms: 3, decode_ms: 4 },
  });
  assert.deepEqual(fake.seen.requests.at(-1), { messages: user("one two"), temperature: 0, maxTokens: 9 });
  const { choices } = await model.chat.completions.create({ messages: user("one"), logprobs: true, top_logprobs: 1 });
  assert.equal(choices[0].logprobs.content[0].top_logprobs[0].token, "one");
});

test("requests get their ids where crypto.randomUUID is missing, as on pages that are not secure", async (t) => {
  const model = await load();
  t.mock.getter(globalThis, "crypto", () => ({ getRandomValues: (into) => into.fill(171) }));
  const response = await jerboa.createFetch(model)("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ messages: [{ role: "user", content: "one" }] }) });
  assert.equal(response.headers.get("x-request-id"), `req_${"ab".repeat(16)}`);
  assert.equal((await response.json()).id, `chatcmpl-${"ab".repeat(16)}`);
  const answer = await model.responses.create({ input: "one" });
  assert.equal(answer.id, `resp_${"ab".repeat(16)}`);
});

test("speculation is passed to the engine and reported as counts", async () => {
  const model = await load();
  const { draftedTokens, acceptedTokens } = await model.generate("one", { speculation: "prompt-lookup" }).details;
  assert.deepEqual([draftedTokens, acceptedTokens], [7, 3]);
  assert.deepEqual(fake.seen.requests.at(-1), { prompt: "one", speculation: "prompt-lookup" });
  const { usage } = await model.chat.completions.create({ messages: user("one"), speculation: "prompt-lookup" });
  assert.equal(fake.seen.requests.at(-1).speculation, "prompt-lookup");
  assert.deepEqual(usage.completion_tokens_details, { accepted_prediction_tokens: 3, rejected_prediction_tokens: 4 });
  await assert.rejects(model.generate("x", { speculation: "draft-model" }), refusal("request", /'speculation' must be one of 'off', 'prompt-lookup'/));
  await assert.rejects(model.chat.completions.create({ messages: user("x"), speculation: true }), refusal("request", /'speculation' must be/));
});

test("chat completion as chunks", async () => {
  const model = await load();
  const stream = await model.chat.completions.create({ messages: user("one two"), stream: true, stream_options: { include_usage: true } });
  const chunks = await collect(stream);
  assert.deepEqual(chunks.map((c) => c.choices[0]?.delta), [{ role: "assistant", content: "" }, { content: "one" }, { content: " two" }, {}, undefined]);
  assert.deepEqual(chunks.map((c) => c.choices[0]?.finish_reason), [null, null, null, "stop", undefined]);
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  assert.equal(chunks.at(-1).usage.total_tokens, 7);
  assert.equal(chunks[0].usage, null);

  const stopped = await model.chat.completions.create({ messages: user("one two three"), stream: true });
  const ends = [];
  for await (const chunk of stopped) {
    ends.push([chunk.choices[0].finish_reason, chunk.aborted]);
    if (chunk.choices[0].delta.content) stopped.abort();
  }
  assert.deepEqual(ends, [[null, undefined], [null, undefined], ["stop", true]]);
  assert.ok(chunks.every((c) => !("aborted" in c)));
  // A second loop gets nothing, and leaves the first as it is.
  for (const twice of [await model.chat.completions.create({ messages: user("one two"), stream: true }), await model.completions.create({ prompt: "one two", stream: true })]) {
    const first = [];
    for await (const chunk of twice) {
      if (first.push(chunk) === 1) await assert.rejects(collect(twice), refusal("request", /^This answer was already consumed\. Send the request again for a new one\.$/));
    }
    assert.ok(first.length > 2 && first.every((chunk) => !("aborted" in chunk)));
  }
  await assert.rejects(model.chat.completions.create({ messages: user("x") }, { signal: AbortSignal.abort() }), refusal("aborted", /aborted/));
});

test("tool calls are found in complete and in streamed text", async () => {
  const model = await load();
  const tools = [{ type: "function", function: { name: "weather", parameters: {} } }];
  const content = 'Let me see. <tool_call> {"name": "weather", "arguments": {"city": "Oslo"}} </tool_call>';
  const { choices } = await model.chat.completions.create({ messages: user(content), tools });
  assert.equal(choices[0].finish_reason, "tool_calls");
  assert.equal(choices[0].message.content, "Let me see. ");
  assert.deepEqual(choices[0].message.tool_calls[0].function, { name: "weather", arguments: '{"city":"Oslo"}' });
  const chunks = await collect(await model.chat.completions.create({ messages: user(content), tools, stream: true }));
  assert.equal(chunks.map((c) => c.choices[0].delta.content ?? "").join(""), "Let me see. ");
  assert.equal(chunks.flatMap((c) => c.choices[0].delta.tool_calls ?? [])[0].index, 0);
  const plain = await model.chat.completions.create({ messages: user(content), tools, tool_choice: "none" });
  assert.equal(plain.choices[0].message.content, content);
  const broken = await model.chat.completions.create({ messages: user("a <tool_call> nonsense </tool_call> b <tool"), tools });
  assert.equal(broken.choices[0].message.content, "a <tool_call> nonsense </tool_call> b <tool");
});

test("a streamed tool call has OpenAI's deltas: a start, arguments as they come, an end", async () => {
  const model = await load();
  const tools = [{ type: "function", function: { name: "weather", parameters: {} } }];
  const call = (city) => `<tool_call>{"name": "weather", "arguments": {"city": "${city}"}}</tool_call>`;
  const chunks = await collect(await model.chat.completions.create({ messages: user(`So. ${call("Oslo")}${call("Rome")}`), tools, stream: true }));
  const deltas = chunks.flatMap((c) => c.choices[0].delta.tool_calls ?? []);
  assert.deepEqual(deltas.slice(0, 3), [
    { index: 0, id: "call_0", type: "function", function: { name: "weather", arguments: "" } },
    { index: 0, function: { arguments: '{"cit' } },
    { index: 0, function: { arguments: 'y":"Oslo"}' } },
  ]);
  assert.deepEqual(deltas.map(({ index }) => index), [0, 0, 0, 1, 1, 1]);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "tool_calls");
  const { choices } = await model.chat.completions.create({ messages: user(call("Oslo") + call("Rome")), tools });
  assert.deepEqual(choices[0].message.tool_calls.map(({ id, function: { arguments: text } }) => [id, JSON.parse(text)]), [["call_0", { city: "Oslo" }], ["call_1", { city: "Rome" }]]);
  assert.equal(choices[0].message.content, null);
  assert.equal(choices[0].finish_reason, "tool_calls");
  const cut = await model.chat.completions.create({ messages: user(call("Oslo")), tools, max_tokens: 2 });
  assert.deepEqual([cut.choices[0].finish_reason, cut.choices[0].message.tool_calls[0].function.arguments], ["length", '{"cit']);
});

test("reasoning comes apart from content, under both names, with its tokens", async () => {
  const model = await load("org/thinking");
  const text = "<think>one two</think>three";
  const { choices: [{ message, finish_reason }], usage } = await model.chat.completions.create({ messages: user(text) });
  assert.deepEqual(message, { role: "assistant", content: "three", refusal: null, reasoning_content: "one two", reasoning: "one two" });
  assert.equal(finish_reason, "stop");
  assert.deepEqual(usage.completion_tokens_details, { reasoning_tokens: 2 });
  const chunks = await collect(await model.chat.completions.create({ messages: user(text), stream: true, stream_options: { include_usage: true } }));
  const deltas = chunks.flatMap((c) => c.choices.map(({ delta }) => delta));
  assert.deepEqual(deltas.slice(1, 4), [
    { reasoning_content: "one", reasoning: "one" },
    { reasoning_content: " two", reasoning: " two" },
    { content: "three" },
  ]);
  assert.equal(chunks.at(-1).usage.completion_tokens_details.reasoning_tokens, 2);
  const history = [{ role: "assistant", content: "three", reasoning_content: "one two" }, ...user("four")];
  await model.chat.completions.create({ messages: history });
  assert.equal(fake.seen.requests.at(-1).messages[0].reasoning_content, "one two");
});

test("reasoning is controlled where the chat template has a variable for it", async () => {
  const sent = async (name, params) => {
    await (await load(name)).chat.completions.create({ messages: user("x"), ...params });
    return fake.seen.requests.at(-1).chatTemplate;
  };
  assert.deepEqual(await sent("org/thinking", { enable_thinking: false }), { enable_thinking: false });
  assert.deepEqual(await sent("org/thinking", { chat_template_kwargs: { enable_thinking: true, x: 1 } }), { x: 1, enable_thinking: true });
  assert.deepEqual(await sent("org/thinking", { reasoning_effort: "none" }), { enable_thinking: false });
  assert.deepEqual(await sent("org/thinking", { reasoning_effort: "low" }), { enable_thinking: true });
  assert.deepEqual(await sent("org/thinking-effort", { reasoning_effort: "minimal" }), { reasoning_effort: "low" });
  assert.deepEqual(await sent("org/thinking-effort", { reasoning_effort: "high" }), { reasoning_effort: "high" });
  assert.equal(await sent("org/name", { reasoning_effort: "none" }), undefined);
  assert.deepEqual(await sent("org/name", { chat_template_kwargs: { x: 1 } }), { x: 1 });
  await assert.rejects(sent("org/name", { reasoning_effort: "high" }), refusal("unsupported_option", /'reasoning_effort' .* is not supported.* Leave it out/));
  await assert.rejects(sent("org/name", { enable_thinking: true }), refusal("unsupported_option", /'enable_thinking'/));
  await assert.rejects(sent("org/name", { chat_template_kwargs: { enable_thinking: true } }), refusal("unsupported_option", /'enable_thinking'/));
  await assert.rejects(sent("org/thinking-effort", { enable_thinking: false }), refusal("unsupported_option", /Set reasoning_effort instead/));
  await assert.rejects(sent("org/thinking-effort", { reasoning_effort: "none" }), refusal("unsupported_option", /'reasoning_effort'/));
  await assert.rejects(sent("org/thinking", { reasoning_effort: "extreme" }), refusal("request", /'reasoning_effort' must be one of/));
});

test("tools are refused where the format of calls is not known", async () => {
  const tools = [{ type: "function", function: { name: "f" } }];
  const create = async (name, params) => (await load(name)).chat.completions.create({ messages: user("x"), tools, ...params });
  await assert.rejects(create("org/unknown", {}), refusal("unsupported_option", /'tools' is not supported by org\/unknown.*Describe the functions in a system message/));
  assert.equal((await create("org/unknown", { tool_choice: "none" })).choices[0].message.content, "x");
});

test("tool_choice, parallel_tool_calls and strict tools reach the engine as a grammar", async () => {
  const f = { type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } };
  const g = { type: "function", function: { name: "g", strict: true } };
  const model = await load();
  const { seen: grammars } = await import(`${facade}/grammar.js`);
  const sent = async (params) => {
    const before = grammars.length;
    await model.chat.completions.create({ messages: user("x"), tools: [f], ...params });
    const { tools, singleCall } = fake.seen.requests.at(-1);
    const grammar = grammars[before];
    const { tools: named, spelling, frame, ...spec } = grammar ? JSON.parse(grammar.source) : { tools: [] };
    assert.deepEqual([spelling?.format, frame?.open], grammar ? ["fake", []] : [undefined, undefined]);
    return { tools: tools?.length, kind: grammar?.kind, names: named.map(({ name }) => name), ...spec, ...(singleCall ? { singleCall } : {}) };
  };
  const byName = (name) => ({ type: "function", function: { name } });
  const allowed = (mode, ...names) => ({ type: "allowed_tools", allowed_tools: { mode, tools: names.map(byName) } });
  const free = { tools: 1, kind: undefined, names: [] };
  assert.deepEqual(await sent({}), free);
  assert.deepEqual(await sent({ tool_choice: "auto", parallel_tool_calls: true }), free);
  assert.deepEqual(await sent({ parallel_tool_calls: false }), { ...free, singleCall: true });
  assert.deepEqual(await sent({ tool_choice: "none" }), { ...free, tools: undefined });
  const forced = { tools: 2, kind: "answer", names: ["f", "g"], choice: "required", parallel: true, answer: null };
  const both = { tools: [f, g] };
  assert.deepEqual(await sent({ ...both, tool_choice: "required" }), forced);
  assert.deepEqual(await sent({ ...both, tool_choice: "required", parallel_tool_calls: false }), { ...forced, parallel: false });
  assert.deepEqual(await sent({ ...both, tool_choice: byName("g") }), { ...forced, names: ["g"], parallel: false });
  assert.deepEqual(await sent({ ...both, tool_choice: allowed("required", "f") }), { ...forced, names: ["f"] });
  assert.deepEqual(await sent({ ...both, tool_choice: allowed("auto", "f") }), { ...forced, names: ["f"], choice: "auto" });
  assert.deepEqual(await sent(both), { ...forced, choice: "auto" });
  assert.deepEqual(await sent({ tool_choice: allowed("auto", "f") }), free);
  const answer = { kind: "json_object", source: "" };
  assert.deepEqual(await sent({ response_format: { type: "json_object" } }), { ...forced, tools: 1, names: ["f"], choice: "auto", answer });
  const refused = (params, reason) => assert.rejects(sent(params), refusal("request", reason));
  await refused({ tool_choice: "always" }, /'tool_choice' must be 'none', 'auto', 'required', .* not 'always'/);
  await refused({ tool_choice: { type: "function" } }, /'tool_choice' must be/);
  await refused({ tool_choice: { type: "custom", custom: { name: "f" } } }, /'tool_choice' must be/);
  await refused({ tool_choice: allowed("auto") }, /'tool_choice' must be/);
  await refused({ tool_choice: byName("h") }, /names the function 'h', which is not among 'tools'.* name one of: f/);
  await refused({ tools: undefined, tool_choice: "required" }, /'tool_choice' \('required'\) needs 'tools'/);
  await refused({ tools: [{ type: "function" }], tool_choice: "required" }, /tools\[0\].function must be an object with a 'name'/);
});

test("reasoning_budget reaches the engine, and is refused where nothing reasons", async () => {
  const create = async (name, params) => (await load(name)).chat.completions.create({ messages: user("x"), ...params });
  await create("org/thinking", { reasoning_budget: 12 });
  assert.equal(fake.seen.requests.at(-1).reasoningBudget, 12);
  await create("org/thinking", { reasoning_budget: 0 });
  assert.equal(fake.seen.requests.at(-1).reasoningBudget, 0);
  await assert.rejects(create("org/thinking", { reasoning_budget: -1 }), refusal("request", /'reasoning_budget' must be a whole number from 0 to/));
  await assert.rejects(create("org/name", { reasoning_budget: 5 }), refusal("unsupported_option", /'reasoning_budget' is not supported/));
});

test("faults in choices are named by their position", async () => {
  const model = await load();
  const choose = (choices) => model.generate("x", { grammar: { type: "choice", choices } }).details;
  await assert.rejects(choose("a"), refusal("request", /requires 'choices': a list of at least one string, not 'a'/));
  await assert.rejects(choose([]), refusal("request", /a list of at least one string, not an empty array/));
  await assert.rejects(choose(["a", 5]), refusal("request", /grammar\.choices\[1\] must be a string, not 5/));
  await assert.rejects(choose([["a"]]), refusal("request", /grammar\.choices\[0\] must be a string, not an array of 1, beginning with 'a'/));
});

test("messages: parts become text, developer becomes system, arguments become objects", async () => {
  const model = await load();
  const call = { id: "1", type: "function", function: { name: "f", arguments: '{"a":1}' } };
  const messages = [
    { role: "developer", content: [{ type: "text", text: "be " }, { type: "text", text: "brief" }] },
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", content: "7", tool_call_id: "1" },
  ];
  await model.chat.completions.create({ messages });
  const sent = fake.seen.requests.at(-1).messages;
  assert.deepEqual(sent[0], { role: "system", content: "be brief" });
  assert.deepEqual(sent[1].tool_calls[0].function.arguments, { a: 1 });
  assert.equal(sent[1].content, "");
});

test("chat refuses unsupported options", async () => {
  const model = await load();
  const create = (p) => model.chat.completions.create({ messages: user("x"), ...p });
  await assert.rejects(create({ n: 129 }), refusal("request", /'n' must be a whole number from 1 to 128/));
  await assert.rejects(create({ verbosity: "low" }), refusal("request", /'verbosity' must be 'medium' or omitted/));
  await assert.rejects(create({ prediction: { type: "content", content: 5 } }), refusal("request", /'prediction' must be \{ type: 'content', content \}/));
  await assert.rejects(create({ modalities: ["text", "audio"] }), refusal("request", /'modalities' must be \['text'\]/));
  for (const name of ["audio", "web_search_options", "moderation"]) await assert.rejects(create({ [name]: {} }), refusal("request", new RegExp(`'${name}' must be omitted`)));
  for (const name of ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"]) {
    await assert.rejects(create({ chat_template_kwargs: { [name]: [] } }), refusal("request", new RegExp(`'chat_template_kwargs' must not contain '${name}'`)));
    await assert.rejects(model.renderChat(user("x"), { kwargs: { [name]: [] } }), refusal("request", new RegExp(`'kwargs' must not contain '${name}'`)));
  }
  await assert.rejects(create({ response_format: { type: "xml" } }), refusal("request", /'response_format' must be \{ type: 'text' \}, \{ type: 'json_object' \} or/));
  await assert.rejects(create({ response_format: { type: "json" } }), refusal("request", /'response_format' must be .*'json_object' \} or .*, not the unknown type 'json'\.$/));
  await assert.rejects(create({ response_format: "json" }), refusal("request", /'response_format' must be .*, not 'json'\.$/));
  await assert.rejects(create({ response_format: { type: "json_schema", json_schema: { name: "x", schema: 5 } } }), refusal("request", /requires 'schema': a JSON schema/));
  await assert.rejects(create({ functions: [{ name: "f" }] }), refusal("request", /'functions' must be omitted \(use 'tools'\)/));
  await assert.rejects(create({ function_call: { name: "f" } }), refusal("request", /'function_call' must be omitted \(use 'tool_choice'\)/));
  await assert.rejects(create({ messages: [...user("x"), { role: "function", name: "f", content: "7" }] }), refusal("request", /messages\[1\]: role 'function' is not supported. Use role 'tool'/));
  await assert.rejects(create({ messages: [{ role: "assistant", content: "", audio: { id: "a" } }] }), refusal("request", /messages\[0\]: 'audio' is not supported/));
  await assert.rejects(create({ messages: [{ role: "assistant", content: null, tool_calls: [{ id: "1", type: "custom", custom: { name: "f", input: "" } }] }] }), refusal("request", /tool_calls\[0\]' is a call of type 'custom'/));
  for (const call of [{ id: "1", type: "function" }, { id: "1", type: "function", function: { name: "f" } }]) {
    await assert.rejects(create({ messages: [{ role: "assistant", tool_calls: [call] }] }), refusal("request", /messages\[0\]\.tool_calls\[0\]' requires function: \{ name, arguments \}, both of them strings/));
  }
  await assert.rejects(create({ messages: user([{ type: "text" }]) }), refusal("request", /content\[0\]: a part of type 'text' requires 'text': a string, not undefined/));
  const seeing = await load("a/seeing");
  await assert.rejects(seeing.chat.completions.create({ messages: user([{ type: "image" }]) }), refusal("request", /a part of type 'image' requires 'image'/));
  for (const [bias, wrong] of [[{ 3: 101 }, "entry '3' is 101"], [{ 3: 1, x: 1 }, "entry 'x' is 1"], [{ 1: 1, 2: "1" }, "entry '2' is '1'"], [{ 7: null }, "entry '7' is null"]]) {
    const message = `must be an object of token ids to numbers from -100 to 100, not an object; ${wrong}.`;
    await assert.rejects(create({ logit_bias: bias }), refusal("request", new RegExp(`'logit_bias' ${message}$`)));
    await assert.rejects(model.generate("x", { logitBias: bias }), refusal("request", new RegExp(`'logitBias' ${message}$`)));
  }
  for (const bias of [[], [1]]) await assert.rejects(create({ logit_bias: bias }), refusal("request", /'logit_bias' must be an object of token ids to numbers from -100 to 100, not an/));
  await assert.rejects(create({ tools: [{ type: "custom", custom: { name: "x" } }] }), refusal("request", /type 'custom' is not supported/));
  const toolless = (await load("a/toolless")).chat.completions.create({ messages: user("x"), tools: [{ type: "function", function: { name: "f" } }] });
  await assert.rejects(toolless, refusal("chat_template", /does not read 'tools'/));
  await assert.rejects(create({ temperature: 3 }), refusal("request", /a number from 0 to 2/));
  await assert.rejects(create({ max_tokens: 1, max_completion_tokens: 2 }), refusal("request", /are synonyms and have different values/));
  await assert.rejects(create({ top_logprobs: 1 }), refusal("request", /needs logprobs/));
  await assert.rejects(create({ stream_options: {} }), refusal("request", /needs stream/));
  await assert.rejects(create({ messages: [] }), refusal("request", /at least one message/));
  await assert.rejects(create({ messages: [{ role: "robot", content: "x" }] }), refusal("request", /messages\[0\]: 'role' must be one of/));
  await assert.rejects(create({ messages: [{ role: "user", content: [{ type: "image_url" }] }] }), refusal("request", /does not support parts of type 'image_url'/));
  await assert.rejects((await load("a/base")).chat.completions.create({ messages: user("x") }), refusal("chat_template", /model\.generate\(prompt\)/));
});

test("OpenAI options that only concern its service are ignored", async () => {
  const model = await load();
  const more = { user: "u", metadata: { a: "b" }, store: true, service_tier: "auto", parallel_tool_calls: false, response_format: { type: "text" }, modalities: ["text"], safety_identifier: "s", prompt_cache_key: "k", prompt_cache_retention: "24h", prompt_cache_options: {}, verbosity: "medium", functions: [], function_call: "auto", audio: null, web_search_options: null, n: 1 };
  const { choices } = await model.chat.completions.create({ messages: user("one"), ...more });
  assert.equal(choices[0].message.content, "one");
  assert.deepEqual(fake.seen.requests.at(-1), { messages: user("one") });
  const declined = [{ role: "assistant", content: [{ type: "refusal", refusal: "no" }] }, { role: "assistant", content: null, refusal: "never" }, ...user("one")];
  await model.chat.completions.create({ messages: declined });
  assert.deepEqual(fake.seen.requests.at(-1).messages.map(({ content }) => content), ["no", "never", "one"]);
});

test("completions continue a text, complete and streamed", async () => {
  const model = await load();
  const whole = await model.completions.create({ prompt: "one two", max_tokens: 9, stop: "x" });
  assert.deepEqual(whole.choices, [{ index: 0, text: "one two", logprobs: null, finish_reason: "stop" }]);
  assert.equal(whole.usage.total_tokens, 7);
  assert.deepEqual(fake.seen.requests.at(-1), { prompt: "one two", maxTokens: 9, stop: ["x"] });
  const pieces = await collect(await model.completions.create({ prompt: "one two", echo: true, stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(pieces.map((p) => p.choices[0]?.text), ["one two", "one", " two", "", undefined]);
  assert.equal(pieces.at(-1).usage.completion_tokens, 2);
  await assert.rejects(model.completions.create({}), refusal("request", /'prompt' is missing/));
});

test("completions continue several prompts in order, each as a choice", async () => {
  const model = await load();
  const requests = fake.seen.requests.length;
  const whole = await model.completions.create({ prompt: ["one two", "three"], best_of: 1, suffix: "", parse_special: true });
  assert.deepEqual(whole.choices.map(({ index, text, finish_reason }) => [index, text, finish_reason]), [[0, "one two", "stop"], [1, "three", "stop"]]);
  assert.deepEqual(whole.usage, { prompt_tokens: 10, completion_tokens: 3, total_tokens: 13, prompt_tokens_details: { cached_tokens: 4 } });
  assert.deepEqual(fake.seen.requests.slice(requests), [{ prompt: "one two", parseSpecial: true }, { prompt: "three", parseSpecial: true }]);
  for (const [prompt, given] of [[["a"], [{ prompt: "a" }]], [[5, 6], [{ ids: [5, 6] }]], [[[5, 6]], [{ ids: [5, 6] }]], [[[5], [6]], [{ ids: [5] }, { ids: [6] }]]]) {
    const before = fake.seen.requests.length;
    const { choices } = await model.completions.create({ prompt });
    assert.deepEqual([choices.length, fake.seen.requests.slice(before)], [given.length, given]);
  }
  for (const prompt of [[], [[]], [1, "a"], [1.5], {}, [[-1]]]) await assert.rejects(model.completions.create({ prompt }), refusal("request", /'prompt' must be a string, token ids, or an array of either/));
  await assert.rejects(model.completions.create({ prompt: "x", suffix: "y" }), refusal("unsupported_option", /fill-in-the-middle.*parse_special/));

  const pieces = await collect(await model.completions.create({ prompt: ["one two", "three"], echo: true, stream: true, stream_options: { include_usage: true } }));
  assert.deepEqual(pieces.map(({ choices: [c] }) => c && [c.index, c.text, c.finish_reason]), [
    [0, "one two", null], [0, "one", null], [0, " two", null], [0, "", "stop"], [1, "three", null], [1, "three", null], [1, "", "stop"], undefined,
  ]);
  assert.equal(pieces.at(-1).usage.completion_tokens, 3);
  const stream = await model.completions.create({ prompt: ["one two three", "four"], stream: true });
  const heard = [];
  for await (const { choices: [choice], aborted } of stream) {
    heard.push([choice.index, choice.finish_reason, aborted]);
    stream.abort();
  }
  assert.deepEqual(heard.at(-1), [0, "stop", true], "the prompts after it are not begun");
});

test("completions return log-probabilities as lists", async () => {
  const model = await load();
  const { choices } = await model.completions.create({ prompt: "one two", logprobs: 1 });
  assert.deepEqual(choices[0].logprobs, { tokens: ["one", " two"], token_logprobs: [-0.1, -0.1], top_logprobs: [{ one: -0.1 }, { " two": -0.1 }], text_offset: [0, 3] });
  assert.deepEqual(fake.seen.requests.at(-1), { prompt: "one two", logprobs: true, topLogprobs: 1 });
  const pieces = await collect(await model.completions.create({ prompt: "one two", logprobs: 1, stream: true }));
  assert.deepEqual(pieces.map((p) => p.choices[0].logprobs?.text_offset ?? null), [[0], [3], null]);
  const partial = await model.completions.create({ prompt: "\uFFFD", logprobs: 2 });
  assert.deepEqual(partial.choices[0].logprobs.top_logprobs, [{ "bytes:\\xc3": -0.1, "bytes:\\xe2\\x82": -0.2 }]);
  await assert.rejects(model.completions.create({ prompt: "x", logprobs: 1, echo: true }), refusal("request", /'logprobs' cannot be combined with 'echo'/));
});

test("special tokens and continued answers are passed to the engine", async () => {
  const model = await load();
  await model.generate("a<sep>", { parseSpecial: true });
  assert.deepEqual(fake.seen.requests.at(-1), { prompt: "a<sep>", parseSpecial: true });
  assert.deepEqual([...(await model.tokenize("a<sep>", { parseSpecial: true }))], [1, 97, 9]);
  assert.equal((await model.tokenize("a<sep>")).length, 7);
  assert.equal(await model.countTokens("a<sep>", { parseSpecial: true, addSpecialTokens: false }), 2);
  assert.equal(await model.countTokens(user("ab")), 4, "the template's special tokens count as tokens, not as text");
  const begun = [...user("hi"), { role: "assistant", content: "Well" }];
  await model.chat.completions.create({ messages: begun, continue_final_message: true });
  assert.deepEqual(fake.seen.requests.at(-1), { messages: begun, continueFinalMessage: true });
  await model.chat.completions.create({ messages: begun, add_generation_prompt: false });
  assert.deepEqual(fake.seen.requests.at(-1), { messages: begun, addGenerationPrompt: false });
  assert.equal(await model.renderChat(begun, { continueFinalMessage: true }), "user: hi\nassistant: Well\n");
  const both = { messages: begun, continue_final_message: true, add_generation_prompt: true };
  await assert.rejects(model.chat.completions.create(both), refusal("request", /'continue_final_message' cannot be combined/));
  await assert.rejects(model.renderChat(begun, { continueFinalMessage: true, addGenerationPrompt: true }), refusal("request", /'continueFinalMessage' cannot be combined/));
});

test("loads of different files do not share a lock", async () => {
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  const names = [];
  const request = async (name, options, run) => {
    if (name.includes("load ")) names.push(name);
    return run({ name });
  };
  Object.defineProperty(globalThis, "navigator", { value: { locks: { request } }, configurable: true });
  try {
    const file = (content) => [{ name: "model.gguf", file: new File([content], "model.gguf", { lastModified: 5 }) }];
    for (const source of [file("one"), file("other"), file("one"), "org/name"]) await load(source);
  } finally {
    if (before) Object.defineProperty(globalThis, "navigator", before);
    else delete globalThis.navigator;
  }
  assert.equal(new Set(names).size, 3);
  assert.equal(names[0], names[2]);
  assert.ok(names[3].endsWith("load org/name"));
});

test("a stuck tab is not waited for, and one that progresses is", { timeout: 20_000 }, async () => {
  const { withLock } = await import(`${facade}/persistent-notes.js`);
  let release;
  const held = new Promise((resolve) => (release = resolve));
  const before = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  // The lock of another tab, which releases it when `held` resolves.
  const request = async (name, { ifAvailable, signal }, run) => {
    if (ifAvailable) return run(null);
    const aborted = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    await Promise.race([held, aborted]);
    return run({ name });
  };
  Object.defineProperty(globalThis, "navigator", { value: { locks: { request } }, configurable: true });
  try {
    let waits = 0;
    const ask = (name, signal, limit = 240) => withLock(name, signal, () => waits++, async () => "loaded", async () => {}, limit);
    assert.equal(await ask("stuck"), "loaded");
    assert.equal(waits, 1);
    const abort = new AbortController();
    setTimeout(() => abort.abort(), 20);
    await assert.rejects(ask("aborted", abort.signal, 60_000), refusal("aborted", /was aborted/));
    // Signs of life over three times the limit.
    let loaded = false;
    const patient = ask("alive").then(() => (loaded = true));
    const other = new BroadcastChannel("jerboa:alive");
    const beat = setInterval(() => other.postMessage("alive"), 20);
    await new Promise((later) => setTimeout(later, 800));
    assert.equal(loaded, false, "a tab that progresses was not waited for");
    clearInterval(beat);
    other.close();
    release();
    await patient;
  } finally {
    if (before) Object.defineProperty(globalThis, "navigator", before);
    else delete globalThis.navigator;
  }
});

test("locks that refuse are treated as absent", async () => {
  const { ifOnlyTab, withLock } = await import(`${facade}/persistent-notes.js`);
  const denied = () => Promise.reject(new DOMException("Access to the Locks API is denied in this context.", "SecurityError"));
  const locks = Object.getOwnPropertyDescriptor(globalThis, "navigator");
  const told = [];
  const during = async (request, work) => {
    Object.defineProperty(globalThis, "navigator", { value: { locks: { request } }, configurable: true });
    try {
      return await work();
    } finally {
      if (locks) Object.defineProperty(globalThis, "navigator", locks);
      else delete globalThis.navigator;
    }
  };
  assert.equal(await during(denied, () => ifOnlyTab("x", async (only) => only)), true);
  assert.equal(await during(denied, () => withLock("x", undefined, () => told.push("waits"), async () => 5, async () => {})), 5);
  assert.deepEqual(told, []);
  // Errors of the action itself reach its caller, and it runs once.
  let runs = 0;
  const fails = async () => {
    runs++;
    throw new DOMException("no cache", "SecurityError");
  };
  const grants = (name, options, run) => run({ name });
  await assert.rejects(during(grants, () => ifOnlyTab("x", fails)), /no cache/);
  await assert.rejects(during(grants, () => withLock("x", undefined, () => {}, fails, async () => {})), /no cache/);
  assert.equal(runs, 2);
});

test("a script that a service worker may not import names the remedy", async () => {
  const { missingAsset } = await import(`${facade}/errors.js`);
  const refused = new TypeError("import() is disallowed on ServiceWorkerGlobalScope by the HTML specification. See https://github.com/w3c/ServiceWorker/issues/1356.");
  assert.match(missingAsset("The engine's script", refused).message, /Bundle the service worker into one file, because service workers cannot import scripts on demand\.$/);
});

test("errors name the policy directive that blocked a request", async () => {
  const { cspAdvice, noteViolation, withCspAdvice } = await import(`${facade}/csp.js`);
  const { JerboaError } = jerboa;
  const refusedWasm = new JerboaError("assets", "x", { cause: new WebAssembly.CompileError("Refused to compile: 'wasm-unsafe-eval' is not an allowed source of script") });
  assert.match(withCspAdvice(refusedWasm).message, /Content-Security-Policy forbids WebAssembly\. Add 'wasm-unsafe-eval' to the policy's script-src/);
  const network = new JerboaError("network", "downloading https://hub.test/a/b/config.json failed: CORS");
  assert.equal(withCspAdvice(network), network, "nothing was blocked");
  noteViolation({ effectiveDirective: "worker-src", blockedURI: "https://hub.test/worker.js" });
  noteViolation({ effectiveDirective: "style-src-elem", blockedURI: "https://hub.test/a.css" });
  assert.equal(withCspAdvice(network), network, "other directives do not stop a download");
  noteViolation({ effectiveDirective: "connect-src", blockedURI: "https://hub.test/a/b/config.json" });
  assert.equal(withCspAdvice(network).message, "https://hub.test cannot be reached: the page's Content-Security-Policy blocks it. Add https://hub.test to the policy's connect-src directive.");
  noteViolation({ effectiveDirective: "media-src", blockedURI: "blob" });
  assert.match(cspAdvice("media-src", "blob:http://x.test/1"), /^blob: cannot be reached: .* Add blob: to the policy's media-src directive\.$/);
  assert.match(cspAdvice("worker-src", "https://hub.test/other.js"), /Add https:\/\/hub\.test to the policy's worker-src/);
  assert.equal(cspAdvice("media-src", "https://hub.test/film.mp4"), undefined);
});

test("of several models the first that is available and fits is loaded, with the reasons for skipping others", async () => {
  const { info } = await jerboa.loadModel(["a/large", "no/such", "a/b", "a/c"], { worker: false });
  assert.equal(info.model, "a/b");
  assert.match(info.warnings.join("\n"), /a\/large was skipped: It needs 9 GB.*\nno\/such was skipped/);
  assert.equal(fake.seen.loads.at(-1).mustFit, true);
  const last = await jerboa.loadModel(["no/such", "a/large"], { worker: false });
  assert.equal(last.info.model, "a/large", "the last is loaded as it is: there is nothing smaller");
  await assert.rejects(jerboa.loadModel(["no/such", "no/such"], { worker: false }), refusal("not_found", /no\/such was skipped.*no\/such was skipped/));
  const limited = await jerboa.loadModel(["a/large", "b/large"], { worker: false, maxMemory: 1e6 }).catch((error) => error);
  refusal("out_of_memory", /^a\/large was skipped: It needs 9 GB; about 1 MB is available\. b\/large was skipped: It needs 9 GB; about 1 MB is available\.$/)(limited);
  assert.deepEqual(limited.cause.errors.map(({ code }) => code), ["out_of_memory", "out_of_memory"]);
  const secret = await jerboa.loadModel(["http://user:p4ss@host.test/large", "b/large"], { worker: false, maxMemory: 1e6 }).catch((error) => error);
  refusal("out_of_memory", /^http:\/\/host\.test\/large was skipped: .* b\/large was skipped: /)(secret);
  await assert.rejects(jerboa.loadModel(["a/large"], { worker: false, maxMemory: 1e6 }), refusal("out_of_memory", /9 GB/));
  assert.equal((await jerboa.loadModel("a/large", { worker: false, maxMemory: 1e6 })).info.model, "a/large", "a single model is the caller's choice");
});

test("of a list, 'endpoint' and 'revision' apply to names", async () => {
  const options = { worker: false, endpoint: "https://hub.test", revision: "v1" };
  const loaded = async (list) => {
    await jerboa.loadModel(list, options);
    const { model, endpoint, revision } = fake.seen.loads.at(-1);
    return [model, endpoint, revision];
  };
  assert.deepEqual(await loaded(["no/such", "https://x.test/m/"]), ["https://x.test/m", undefined, undefined]);
  assert.deepEqual(await loaded(["https://x.test/large/", "a/b"]), ["a/b", "https://hub.test", "v1"]);
  await assert.rejects(jerboa.loadModel(["https://x.test/m/", "https://x.test/n/"], options), refusal("request", /'revision' applies to a repository name/));
});

test("addresses have one spelling; names and what the engine refuses stay as they are", async () => {
  const { canonicalAddress } = await import(`${facade}/model-source.js`);
  const spelled = (base) => {
    const before = Object.getOwnPropertyDescriptor(globalThis, "location");
    Object.defineProperty(globalThis, "location", { value: base && { href: base }, configurable: true });
    try {
      return ["/models/x", "./x/", "../x", " https://CDN.test:443/a/../x/ ", "https://cdn.test/npm/a@1.0/x", "org/name", "org/name@v1", "//host/x", "/\\host/x", "https://u:p@cdn.test/x", "https://cdn.test/x?a", "ftp://cdn.test/x", "https://x\ny", "https:///x"].map(canonicalAddress);
    } finally {
      if (before) Object.defineProperty(globalThis, "location", before);
      else delete globalThis.location;
    }
  };
  const rest = ["https://cdn.test/x", "https://cdn.test/npm/a@1.0/x", "org/name", "org/name@v1", "//host/x", "/\\host/x", "https://u:p@cdn.test/x", "https://cdn.test/x?a", "ftp://cdn.test/x", "https://x\ny", "https:///x"];
  assert.deepEqual(spelled("https://page.test/app/page.html"), ["https://page.test/models/x", "https://page.test/app/x", "https://page.test/x", ...rest]);
  assert.deepEqual(spelled("blob:https://page.test/1").slice(0, 3), ["/models/x", "./x/", "../x"], "a worker of a blob has no address to start from");
  assert.deepEqual(spelled(undefined).slice(0, 3), ["/models/x", "./x/", "../x"]);
});

test("the official client works over createFetch unchanged", async () => {
  const { default: OpenAI } = await import("openai");
  const model = await load();
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: jerboa.createFetch(model) });
  const answer = await client.chat.completions.create({ model: "any", messages: user("one two"), temperature: 0 });
  assert.equal(answer.choices[0].message.content, "one two");
  const stream = await client.chat.completions.create({ model: "any", messages: user("one two"), stream: true, stream_options: { include_usage: true } });
  const chunks = await collect(stream);
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), "one two");
  assert.equal(chunks.at(-1).usage.total_tokens, 7);
  assert.equal((await client.completions.create({ model: "any", prompt: "a b" })).choices[0].text, "a b");
  assert.deepEqual((await collect(await client.models.list())).map(({ id }) => id), ["org/name"]);
  await assert.rejects(client.chat.completions.create({ model: "any", messages: user("x"), n: 0 }), (error) => error.status === 400 && error.code === "request" && /'n' must be a whole number/.test(error.message));
  await assert.rejects(client.images.generate({ prompt: "x" }), (error) => error.status === 404);

  const words = Array.from({ length: 300 }, (_, i) => `w${i}`).join(" ");
  const ended = fake.seen.ends.length;
  const left = await client.chat.completions.create({ model: "any", messages: user(words), stream: true });
  let seen = 0;
  for await (const _ of left) if (++seen === 5) break;
  const controller = new AbortController();
  const gone = client.chat.completions.create({ model: "any", messages: user(words) }, { signal: controller.signal });
  setTimeout(() => controller.abort(), 20);
  await assert.rejects(gone, (error) => error.name === "APIUserAbortError" || /abort/i.test(error.message));
  assert.equal(await model.generate("still works"), "still works");
  const ends = fake.seen.ends.slice(ended);
  assert.equal(ends.pop(), "stop");
  assert.ok(ends.length > 0 && ends.every((end) => end === "abort"), `runs continue without a caller: ${ends}`);

  const embedder = await load("org/embed");
  const vectors = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: jerboa.createFetch(embedder) });
  const { data } = await vectors.embeddings.create({ model: "any", input: ["abc", "d"] });
  assert.deepEqual(data.map(({ embedding }) => [...embedding]), [[3, 1, 0], [1, 1, 0]]);
});

test("a message that ends with another message has one period, and one that ends with an address has none", () => {
  assert.equal(new jerboa.JerboaError("cache", "It cannot be used: Quota exceeded.. Wait... It runs.").message, "It cannot be used: Quota exceeded. Wait... It runs.");
  assert.equal(new jerboa.JerboaError("cache", "It is full").message, "It is full.");
  assert.equal(new jerboa.JerboaError("cache", "See https://x.test/a#b").message, "See https://x.test/a#b");
});

test("missing package files are named with their URL", async () => {
  await assert.rejects(load("a/b", { wasmUrl: "http://x.test/missing.wasm" }), refusal("no_webgpu", /runs models only in web pages/));
  assert.deepEqual(fake.seen.input, { module_or_path: "http://x.test/missing.wasm" });
  await assert.rejects(load("a/b", { wasmUrl: 7 }), refusal("request", /'wasmUrl' must be a URL/));
  assert.throws(() => jerboa.configure({ wasm: "x" }), refusal("request", /'wasm'/));
});

test("text, templates, logits, memory", async () => {
  const model = await load();
  assert.deepEqual([...(await model.tokenize("ab"))], [1, 97, 98]);
  assert.deepEqual([...(await model.tokenize("ab", { addSpecialTokens: false }))], [97, 98]);
  assert.equal(await model.detokenize([97, 98]), "ab");
  assert.equal(await model.countTokens("ab"), 3);
  assert.equal(await model.renderChat(user("hi")), "user: hi\nassistant: ");
  assert.equal(await model.renderChat(user("hi"), { addGenerationPrompt: false }), "user: hi\n");
  assert.equal(await model.countTokens(user("hi")), 4, "two of the template's special tokens and two letters");
  assert.equal((await model.logits([1, 2], { all: true })).length, 18);
  assert.deepEqual(await model.memory(), { wasmBytes: 1, gpuBytes: 2 });
});

test("vectors of images and strings are returned in input order", async () => {
  globalThis.ImageData ??= class { data = new Uint8ClampedArray(16); width = 2; height = 2; };
  const image = new ImageData(2, 2);
  const model = await load("org/embed-seeing");
  const found = await model.embed([image, "abc", image, "d"], { truncateDim: 2 });
  assert.deepEqual(found.map((v) => [...v]), [[0, 1], [3, 1], [0, 1], [1, 1]]);
  assert.deepEqual([...(await model.embed(image))], [0, 1, 1]);
  await assert.rejects(model.embed([image, 5]), refusal("request", /5 is not a supported image/));
  await assert.rejects((await load("org/embed")).embed([image, "abc"]), refusal("request", /must be a string or an array of strings/));
});

test("image URLs are recognized again, and the oldest are dropped before they use much memory", async () => {
  const { keyOfAddress } = images;
  const [small, large] = ["blob:x", `data:image/png;base64,${"A".repeat(12 << 20)}`];
  const first = [keyOfAddress(small), keyOfAddress(large)];
  assert.notEqual(first[0], first[1]);
  assert.deepEqual([keyOfAddress(small), keyOfAddress(large)], first);
  // Two more of its size leave no room for the first.
  const others = [1, 2].map((end) => keyOfAddress(large + end));
  assert.deepEqual([1, 2].map((end) => keyOfAddress(large + end)), others);
  assert.ok(keyOfAddress(large) > others[1]);
  assert.ok(keyOfAddress("A".repeat(40 << 20)) > others[1], "one that is too large alone");
});

test("images at http URLs are read anew and known by their pixels; data: and blob: URLs by their address", async (t) => {
  const contents = { "http://camera.test/now.png": ["first", "second"], "https://site.test/a.png": ["a", "a"] };
  t.mock.method(globalThis, "fetch", async (url) => new Response(contents[String(url)].shift()));
  const read = async (url) => {
    const { image, key } = await images.resolveImage("test", url);
    return [await image.text(), key];
  };
  for (const [url, [first, second]] of Object.entries(contents).map(([url, texts]) => [url, [...texts]])) {
    assert.deepEqual([await read(url), await read(new URL(url))], [[first, undefined], [second, undefined]]);
  }
  t.mock.restoreAll();
  const data = "data:image/png;base64,AAAA";
  assert.deepEqual(await read(data), await read(data));
  const url = URL.createObjectURL(new Blob(["pixels"]));
  const first = await read(url);
  URL.revokeObjectURL(url);
  assert.deepEqual(await read(url), first, "an earlier turn's URL may be revoked");
  assert.ok(first[1] !== undefined);
  const never = URL.createObjectURL(new Blob(["x"]));
  URL.revokeObjectURL(never);
  await assert.rejects(read(never), refusal("network", /The URL was revoked\. Pass the Blob itself/));
});

test("an abort and an unload end the wait for an image of every call", async (t) => {
  const requests = [];
  t.mock.method(globalThis, "fetch", () => new Promise((_, reject) => requests.push(reject)));
  // Ends the timers that watch for a stall, which outlast the test by 30 seconds.
  t.after(() => requests.forEach((reject) => reject(new Error("the test is over"))));
  const url = new URL("https://slow.test/a.png");
  const part = { type: "image_url", image_url: { url: String(url) } };
  const calls = {
    chat: [(model, options) => model.chat.completions.create({ messages: user([part]) }, options), "org/vision"],
    stream: [(model, options) => model.chat.completions.create({ messages: user([part]), stream: true }, options), "org/vision"],
    video: [(model, options) => model.chat.completions.create({ messages: user([{ type: "video", frames: [url] }]) }, options), "org/vision"],
    responses: [(model, options) => model.responses.create({ input: [{ role: "user", content: [{ type: "input_image", image_url: String(url) }] }] }, options), "org/vision"],
    describe: [(model, options) => model.describe(url, "What?", options).then((text) => text), "org/vision"],
    encodeImage: [(model) => model.encodeImage(url), "org/vision"],
    embed: [(model, options) => model.embed([url], options), "org/clip"],
  };
  for (const [name, [call, source]] of Object.entries(calls)) {
    const model = await load(source);
    if (name !== "encodeImage") {
      const controller = new AbortController();
      const ended = assert.rejects(call(model, { signal: controller.signal }), refusal("aborted", /was aborted/), name);
      setTimeout(() => controller.abort(), 1);
      await ended;
    }
    const ended = assert.rejects(call(model), refusal("unloaded", /The model was unloaded/), name);
    setTimeout(() => model.unload(), 1);
    await ended;
  }
  const session = await (await load("org/vision")).createSession();
  const ended = assert.rejects(session.chat.completions.create({ messages: user([part]) }), refusal("unloaded", /session was disposed/));
  setTimeout(() => session.dispose(), 1);
  await ended;
});

/** A video of two seconds in a page of its own: each seek shows a frame at once. */
function withVideos(t) {
  class FakeVideo extends EventTarget {
    duration = 2;
    videoWidth = 4;
    videoHeight = 4;
    #at = 0;
    set src(_) { setTimeout(() => this.dispatchEvent(new Event("loadeddata"))); }
    get currentTime() { return this.#at; }
    set currentTime(at) {
      this.#at = at;
      setTimeout(() => this.dispatchEvent(new Event("seeked")));
    }
    removeAttribute() {}
    load() {}
  }
  globalThis.document = { hidden: true, createElement: () => new FakeVideo() };
  globalThis.createImageBitmap = async ({ currentTime }) => ({ currentTime });
  t.after(() => (delete globalThis.document, delete globalThis.createImageBitmap));
}

test("a video is sampled for each model at its own frame times, once for a conversation", async (t) => {
  withVideos(t);
  const { resolveVideo } = await import(`${facade}/video.js`);
  const part = { type: "video", source: new Blob(["video"]) };
  const asked = [];
  const modelOf = (...seconds) => ({ model: {}, times: async () => (asked.push(seconds.length - 1), Float64Array.from(seconds)) });
  const [sparse, dense] = [modelOf(0, 1, 2), modelOf(0, 0.5, 1, 1.5, 2)];
  const frames = async (sampling, given = part) => (await resolveVideo("test", given, sampling)).frames.length;
  assert.deepEqual([await frames(sparse), await frames(sparse), await frames(dense), await frames(dense), await frames(sparse)], [2, 2, 4, 4, 2]);
  assert.deepEqual(asked, [2, 4, 2]);
  // What a server sends may change: the frames' pixels tell.
  const keyOf = async (source) => (await resolveVideo("test", { type: "video", source }, sparse)).key;
  assert.equal(await keyOf("https://camera.test/now.webm"), undefined);
  assert.ok((await keyOf("blob:x")) && (await keyOf(part.source)));
});

test("embeddings, similarity, ranking", async () => {
  const model = await load("org/embed");
  assert.deepEqual([...(await model.embed("abc"))], [3, 1, 0]);
  assert.deepEqual((await model.embed(["a", "bb"], { truncateDim: 2 })).map((v) => [...v]), [[1, 1], [2, 1]]);
  const floats = await model.embeddings.create({ input: ["a", "bb"], dimensions: 2 });
  assert.deepEqual(floats.data[1], { object: "embedding", index: 1, embedding: [2, 1] });
  assert.deepEqual(floats.usage, { prompt_tokens: 5, total_tokens: 5 });
  for (const [input, numbers] of [[[5, 6], [2]], [[[5, 6], [7]], [2, 1]]]) {
    const { data, usage } = await model.embeddings.create({ input });
    assert.deepEqual([data.map(({ embedding }) => embedding[0]), usage.prompt_tokens], [numbers, numbers.reduce((a, b) => a + b)]);
  }
  for (const input of [[1, "a"], [[1], "a"], [1.5], [[]], { a: 1 }]) await assert.rejects(model.embeddings.create({ input }), refusal("request", /must be a string(, token ids)?,? or an array of/));
  const base64 = await model.embeddings.create({ input: "a", encoding_format: "base64" });
  assert.deepEqual([...new Float32Array(Uint8Array.from(atob(base64.data[0].embedding), (c) => c.charCodeAt(0)).buffer)], [1, 1, 0]);
  await assert.rejects(model.embed("a", { task: "query", prompt: "q: " }), refusal("request", /'task' and 'prompt' cannot be combined/));
  await assert.rejects(model.generate("x"), refusal("request", /org\/embed cannot generate text: it is an embedding model, call model\.embed instead\./));
  // Hosts other than a page name the calls their way.
  assert.deepEqual((await model.generate("x").catch((error) => error)).advice, { about: "model.embed", text: "call model.embed" });
  const { port1, port2 } = new MessageChannel();
  rpc.serve(port1, new host.Host(fake));
  const remote = new rpc.RemoteBackend(port2, () => [port1, port2].forEach((port) => port.close()));
  [port1, port2].forEach((port) => port.start());
  for (const loading of [load("org/gated"), remote.call("load", [{ model: "org/gated" }])]) {
    const gated = await loading.catch((error) => error);
    assert.deepEqual([gated.code, gated.advice], ["gated", { about: "token", text: "loadModel(name, { token })" }]);
    assert.ok(gated.message.includes(gated.advice.text), gated.message);
  }
  await remote.close();
  assert.equal(jerboa.similarity([1, 0], [0, 1]), 0);
  assert.deepEqual(jerboa.similarity([3, 4], [[3, 4], [-3, -4]]), [1, -1]);
  assert.throws(() => jerboa.similarity([1], [1, 2]), refusal("request", /1 and 2 components/));
  const ranker = await load("org/ranker");
  const ranked = await ranker.rerank("x", ["a", "xx", "x"], { topN: 2 });
  assert.deepEqual(ranked, [{ index: 1, score: 2, document: "xx" }, { index: 2, score: 1, document: "x" }]);
});

test("similarity: one vector with many, of which there may be none, and arguments that are no vectors", async () => {
  const { similarity } = jerboa;
  assert.deepEqual([similarity([1, 0], []), similarity(new Float32Array(3), [])], [[], []]);
  assert.equal(similarity(Float32Array.of(1, 0), Float32Array.of(1, 0)), 1);
  assert.deepEqual(similarity([1, 0], [Float32Array.of(1, 0), [0, 1]]), [1, 0]);
  assert.deepEqual(similarity({ 0: 1, 1: 0, length: 2 }, [[2, 0]]), [1]);
  for (const [args, pattern] of [
    [[], /the first argument must be a vector of numbers, as from model\.embed, not undefined/],
    [[[1, 0]], /the second argument must be a vector of numbers.*not undefined/],
    [["ab", "cd"], /the first argument .*not 'ab'/],
    [[[1, 0], "cd"], /the second argument .*not 'cd'/],
    [[Promise.resolve([1]), [1]], /the first argument .*not a promise\. Await it/],
    [[[1], Promise.resolve([1])], /the second argument .*not a promise\. Await it/],
    [[[1], [[1], null]], /vector 1 of the second argument .*not null/],
    [[[1], [undefined]], /vector 0 of the second argument .*not undefined/],
    [[[[1, 0]], [[1, 0]]], /the first argument .*not an array of 1/],
    [[[1, "0"], [1, 0]], /the first argument/],
    [[[1], [[1, 2]]], /1 and 2 components/],
  ]) assert.throws(() => similarity(...args), refusal("request", pattern));
});

test("errors name the option that the caller set, and usage counts what the model reads", async () => {
  const model = await load("org/embed");
  await assert.rejects(model.embeddings.create({ input: "a", dimensions: 4 }), refusal("request", /^dimensions: 4 is out of range/));
  await assert.rejects(model.embed("a", { truncateDim: 4 }), refusal("request", /^truncateDim: 4 is out of range/));
  const speaking = await load("org/kani", { codec: "org/codec" });
  for (const stream of [false, true]) {
    const spoken = async () => {
      const made = await speaking.audio.speech.create({ input: "a", voice: new Float32Array(2), stream });
      if (stream) await collect(made);
    };
    await assert.rejects(spoken, refusal("request", /^voice: 2 values given/));
  }
  const tokens = async (input) => (await model.embeddings.create({ input })).usage.prompt_tokens;
  assert.equal(model.info.contextLength, 64);
  assert.deepEqual([await tokens("a".repeat(63)), await tokens("a".repeat(64)), await tokens(["a".repeat(500), "a"])], [64, 64, 66]);
  assert.equal(await tokens(Array(100).fill(5)), 64);
  const ranker = await load("org/ranker");
  for (const documents of [[], ["a"]]) await assert.rejects(ranker.rerank("a", documents, { signal: AbortSignal.abort() }), refusal("aborted", /was aborted/));
});

test("speech without a frame is an error that says why", async () => {
  const model = await load("org/kani", { codec: "org/codec" });
  for (const stream of [false, true]) {
    const spoken = async (params) => {
      const made = await model.audio.speech.create({ input: "one two", stream, ...params });
      return stream ? (await collect(made)).length : (await made.arrayBuffer()).byteLength;
    };
    for (const max_tokens of [1, 3]) await assert.rejects(spoken({ max_tokens }), refusal("request", new RegExp(`no audio: 'max_tokens' \\(${max_tokens}\\) is less than one frame, which has 4 tokens`)));
    assert.ok((await spoken({ max_tokens: 4 })) > 0);
  }
});

test("transcripts are streamed as json or text, and audio without samples is named", async () => {
  const model = await load("org/whisper");
  const file = { samples: new Float32Array(16_000).fill(0.5), sampleRate: 16_000 };
  const said = (params) => model.audio.transcriptions.create({ file, ...params });
  for (const response_format of ["json", "text"]) assert.equal((await collect(await said({ stream: true, response_format }))).at(-1).text, "word1");
  for (const response_format of ["srt", "vtt", "verbose_json"]) await assert.rejects(said({ stream: true, response_format }), refusal("request", new RegExp(`'response_format' must be 'json' or 'text' with stream: true, not '${response_format}'`)));
  const header = await (await (await load("org/kani", { codec: "org/codec" })).audio.speech.create({ input: "one" })).arrayBuffer();
  const empty = header.slice(0, 44);
  const zero = empty.slice(0);
  new DataView(zero).setUint32(40, 0, true);
  for (const bytes of [empty, zero, new Blob([zero])]) await assert.rejects(model.transcribe(bytes), refusal("request", /the WAV file has a header and no samples/));
});

test("data: URLs hold base64, text, and percent-encoded bytes", async () => {
  const png = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x00, 0xff, 0x25];
  const hex = png.map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
  const base64 = btoa(String.fromCharCode(...png));
  const read = async (url) => {
    const { image } = await images.resolveImage("test", url);
    return [image.type, ...new Uint8Array(await image.arrayBuffer())];
  };
  for (const url of [`data:image/png,${hex}`, `data:image/png,${hex.toUpperCase().replace("DATA", "data")}`, `data:image/png;base64,${base64}`, `data:image/png;base64,${encodeURIComponent(base64)}`]) {
    assert.deepEqual(await read(url), ["image/png", ...png]);
  }
  assert.deepEqual(await read("data:text/plain,h\u00e9 100%"), ["text/plain", ...new TextEncoder().encode("h\u00e9 100%")]);
  await assert.rejects(read("data:image/png;base64,%%%"), refusal("request", /the data: URL is invalid/));
});

test("image_url.detail is one of OpenAI's", async () => {
  const model = await load("org/vision");
  const url = "data:image/png;base64,AAAA";
  const ask = (detail) => model.countTokens(user([{ type: "image_url", image_url: { url, detail } }])).catch((error) => error.message);
  for (const detail of ["huge", "", 5]) assert.match(await ask(detail), /messages\[0\]: content\[0\]: 'detail' must be 'auto', 'low', 'high' or 'original', not /);
  const render = (detail) => model.renderChat(user([{ type: "image_url", image_url: { url, detail } }]));
  for (const detail of ["auto", "low", "high", "original", undefined, null]) await render(detail);
  const respond = (detail) => model.responses.create({ input: [{ role: "user", content: [{ type: "input_image", image_url: url, detail }] }] });
  await assert.rejects(respond("huge"), refusal("request", /'detail' must be/));
});

test("unload stops running calls and refuses later ones", async () => {
  const model = await load();
  const running = model.generate("one two three four five six seven eight");
  const freed = fake.seen.freed;
  const end = assert.rejects(async () => await running);
  await model.unload();
  await end;
  assert.equal(fake.seen.freed, freed + 1);
  await assert.rejects(model.tokenize("x"), refusal("unloaded", /Call loadModel again/));
  await assert.rejects(model.embed("x"), refusal("unloaded", /unloaded/));
  await assert.rejects(model.generate("x"), refusal("unloaded", /unloaded/));
});

test("unload rejects running and waiting calls with code unloaded, on both threads", { timeout: 20_000 }, async () => {
  await onBothThreads(async (model) => {
    const session = await model.createSession();
    const answers = [await running(model), await running(session)];
    const calls = [...answers.map(({ answer }) => answer.details), session.prefill([1]), session.fork(), model.measure(), model.loadAdapter("org/pirate"), model.createSession(), model.generate("x").details];
    const codes = Promise.all(calls.map((call) => call.then(() => "none", ({ code, message }) => `${code}: ${message}`)));
    await model.unload();
    assert.deepEqual(await codes, calls.map(() => "unloaded: The model was unloaded. Call loadModel again."));
    answers.forEach(({ end }) => end());
  });
});

test("cache and device functions", async () => {
  const models = await jerboa.cachedModels();
  assert.deepEqual(
    models.map(({ model, revision, endpoint, bytes }) => [model, revision, endpoint, bytes]),
    [
      ["a/b", "main", undefined, 7],
      ["a/b", "v2", undefined, 7],
      ["a/b", "main", "https://hub.test", 7],
      ["https://x.test/models/a", undefined, undefined, 7],
    ],
  );
  const deleted = async (...args) => (await jerboa.deleteModel(...args), fake.seen.deleted.splice(0));
  assert.deepEqual(await deleted("a/b"), ["https://huggingface.co/a/b@main", "https://huggingface.co/a/b@v2"]);
  assert.deepEqual(await deleted("a/b", { revision: "v2" }), ["https://huggingface.co/a/b@v2"]);
  assert.deepEqual(await deleted("a/b", { endpoint: "https://hub.test/" }), ["https://hub.test/a/b@main"]);
  assert.deepEqual(await deleted("https://x.test/models/a/"), ["https://x.test/models/a"]);
  assert.deepEqual(await jerboa.deviceReport(), { webgpu: true, memory: 2e9, memoryIsLimit: true });
});

test("sessions run concurrently, fork, and free their memory", async () => {
  const model = await load();
  const before = fake.seen.sessions;
  const [one, two] = await Promise.all([model.createSession(), model.createSession()]);
  const order = [];
  const read = async (session, name) => {
    for await (const piece of session.generate("a b c d e f")) order.push(name + piece.trim());
  };
  await Promise.all([read(one, "1"), read(two, "2")]);
  assert.equal(order.filter((piece) => piece[0] === "1").map((piece) => piece[1]).join(""), "abcdef");
  assert.ok(order.slice(0, 6).some((piece) => piece[0] === "1") && order.slice(0, 6).some((piece) => piece[0] === "2"), order.join(" "));
  assert.deepEqual(await Promise.all([one.generate("x y"), one.generate("z")]), ["x y", "z"], "of one session they take turns");
  const { choices } = await two.chat.completions.create({ messages: user("one two") });
  assert.equal(choices[0].message.content, "one two");

  const fork = await one.fork();
  assert.equal(await fork.generate("still"), "still");
  assert.equal(fake.seen.sessions, before + 3);
  const cut = assert.rejects(async () => await two.generate("a b c d e f g h"));
  await two.dispose();
  await cut;
  await two.dispose();
  assert.equal(fake.seen.sessions, before + 2);
  const calls = (session) => [
    () => session.generate("x").details,
    () => session.generate([1]).details,
    () => session.chat.completions.create({ messages: user("x") }),
    () => session.chat.completions.create({ messages: user("x"), stream: true }),
    () => session.completions.create({ prompt: "x" }),
    () => session.prefill("x"),
    () => session.step(1),
    () => session.save(),
    () => session.restore(new Blob(["1234"])),
    () => session.fork(),
  ];
  for (const call of calls(two)) await assert.rejects(call, refusal("unloaded", /^This session was disposed\. Call model\.createSession\(\) for a new one\.$/));
  await model.unload();
  for (const session of [one, two, fork]) for (const call of calls(session)) await assert.rejects(call, refusal("unloaded", /^The model was unloaded\. Call loadModel again\.$/));
  assert.equal(fake.seen.sessions, before, "the model takes its sessions along");
  await assert.rejects(model.createSession(), refusal("unloaded", /unloaded/));
  await assert.rejects((await load("org/embed")).createSession(), refusal("request", /does not support sessions: it is an embedding model/));
});

test("the rpc carries results, events, aborts and errors", async () => {
  const { port1, port2 } = new MessageChannel();
  rpc.serve(port2, new host.Host(fake));
  const remote = new rpc.RemoteBackend(port1, () => (port1.close(), port2.close()));
  port1.start();
  port2.start();
  assert.deepEqual(await remote.hello, { gpu: false });
  const events = [];
  await remote.call("load", [{ model: "a/b" }], { onEvent: (e) => events.push(e.phase) });
  assert.equal(events.at(-1), "ready");
  assert.deepEqual([...(await remote.call("tokenize", ["a", false]))], [97]);
  await assert.rejects(remote.call("load", [{ model: "no/such" }]), refusal("not_found", /Check the name/));
  const controller = new AbortController();
  const { finishReason } = await remote.call("generate", [{ prompt: "a b c d" }], { signal: controller.signal, onEvent: () => controller.abort() });
  assert.equal(finishReason, "abort");
  await assert.rejects(remote.call("tokenize", [() => {}, false]), refusal("request", /tokenize: an argument cannot be sent to the worker: .*could not be cloned/));
  // A question without an answer ends its call.
  const asking = (onQuestion) => remote.call("generate", [{ prompt: "a b", steps: "tokens" }], { onQuestion });
  await assert.rejects(asking(() => Promise.reject(new Error("broken"))), refusal("internal", /broken/));
  await assert.rejects(asking(async () => () => {}), refusal("internal", /could not be cloned/));
  while (fake.seen.ends.slice(-2).join() !== "abort,abort") await new Promise((resolve) => setTimeout(resolve, 1));
  assert.equal((await asking(async () => undefined)).text, "a b");
  const pending = assert.rejects(remote.call("generate", [{ prompt: "a b c d" }]), refusal("unloaded", /unloaded/));
  await remote.close();
  await pending;
  await assert.rejects(remote.call("info", []), refusal("unloaded", /unloaded/));
});

test("a device is checked once for each browser version, and every load reports what failed", async () => {
  const kept = new Map();
  globalThis.localStorage = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => void kept.set(k, v), removeItem: (k) => void kept.delete(k) };
  try {
    fake.device.faults = [{ name: "a matmul", ok: false, ms: 1, problem: "number 3 is 0, not 1" }];
    const looks = fake.seen.looks;
    for (let visit = 0; visit < 2; visit++) {
      const model = await load();
      assert.ok(model.info.warnings.some((warning) => warning.includes("A GPU check failed (a matmul: number 3 is 0, not 1)")), model.info.warnings.join());
      await model.unload();
    }
    assert.equal(fake.seen.looks, looks + 1);
    fake.device.faults = [];
    kept.set("jerboa:device", JSON.stringify({ agent: "another", faults: ["old"] }));
    const model = await load();
    assert.deepEqual([model.info.warnings, fake.seen.looks], [[], looks + 2]);
    assert.deepEqual((await model.diagnose()).map(({ name, ok }) => [name, ok]), [["one kernel", true], ["weights equal files", true]]);
    await model.unload();
  } finally {
    delete globalThis.localStorage;
    delete fake.device.faults;
  }
});
