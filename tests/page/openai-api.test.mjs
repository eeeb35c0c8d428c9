/** Several answers, prompts with a gap, predictions, own code in each step, single steps, several models behind one fetch, and its status codes. Over the fake engine. */

import assert from "node:assert/strict";
import { request } from "node:http";
import { after, before, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";
import OpenAI from "openai";
import { buildFacade, onBothThreads } from "./support/facade.mjs";

let jerboa, fake, facade, cleanUp, load;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  facade = built.url;
  [jerboa, fake] = await Promise.all(["index", "jerboa"].map((name) => import(`${built.url}/${name}.js`)));
  load = (name = "org/name") => jerboa.loadModel(name, { worker: false });
});
after(() => cleanUp());

const user = (content) => [{ role: "user", content }];
const refusal = (code, pattern) => (error) => {
  assert.equal(error.code, code, String(error));
  assert.match(error.message, pattern);
  return true;
};
const collect = async (iterable) => {
  const all = [];
  for await (const each of iterable) all.push(each);
  return all;
};
/** The engine's requests during `run`. */
const requests = async (run) => {
  const before = fake.seen.requests.length;
  const result = await run();
  return [result, fake.seen.requests.slice(before)];
};

test("n answers have seeds that count up, and the prompt counts once", async () => {
  const model = await load();
  const [{ choices, usage }, sent] = await requests(() => model.chat.completions.create({ messages: user("one two"), n: 3, seed: 5 }));
  assert.deepEqual(choices.map(({ index, message, finish_reason }) => [index, message.content, finish_reason]), [0, 1, 2].map((i) => [i, "one two", "stop"]));
  assert.deepEqual(sent.map(({ seed }) => seed), [5, 6, 7]);
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [5, 6, 11]);

  const chunks = await collect(await model.chat.completions.create({ messages: user("one"), n: 2, stream: true, stream_options: { include_usage: true } }));
  const shown = chunks.map(({ choices: [choice], usage }) => (choice ? [choice.index, choice.delta.role ?? choice.delta.content ?? choice.finish_reason] : usage.completion_tokens));
  assert.deepEqual(shown, [[0, "assistant"], [0, "one"], [0, "stop"], [1, "assistant"], [1, "one"], [1, "stop"], 2]);

  const ended = fake.seen.ends.length;
  const [, left] = await requests(async () => {
    const stream = await model.chat.completions.create({ messages: user("one two three"), n: 3, stream: true });
    for await (const { choices } of stream) if (choices[0].delta.content) stream.abort();
  });
  assert.equal(left.length, 3, "all answers run at once");
  // The stream ended with the first; the engine notes the others' ends a moment later.
  while (fake.seen.ends.length < ended + 3) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(fake.seen.ends.slice(ended), ["abort", "abort", "abort"]);
});

test("a prediction reaches the engine as text", async () => {
  const model = await load();
  for (const content of ["a b", [{ type: "text", text: "a " }, { type: "text", text: "b" }]]) {
    const [, [sent]] = await requests(() => model.chat.completions.create({ messages: user("x"), prediction: { type: "content", content } }));
    assert.equal(sent.prediction, "a b");
  }
});

test("completions: several choices a prompt, and the best of more", async () => {
  const model = await load();
  const [{ choices, usage }, sent] = await requests(() => model.completions.create({ prompt: ["a", "b c"], n: 2, seed: 1 }));
  assert.deepEqual(choices.map(({ index, text }) => [index, text]), [[0, "a"], [1, "a"], [2, "b c"], [3, "b c"]]);
  assert.deepEqual(sent.map(({ seed, logprobs }) => [seed, logprobs]), [[1, undefined], [2, undefined], [3, undefined], [4, undefined]]);
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [10, 6]);
  const [best, tried] = await requests(() => model.completions.create({ prompt: ["a", "b"], best_of: 3 }));
  assert.deepEqual(best.choices.map(({ index, text, logprobs }) => [index, text, logprobs]), [[0, "a", null], [1, "b", null]]);
  assert.deepEqual(tried.map(({ prompt, logprobs }) => [prompt, logprobs]), ["a", "a", "a", "b", "b", "b"].map((prompt) => [prompt, true]));
  await assert.rejects(model.completions.create({ prompt: "a", n: 2, best_of: 1 }), refusal("request", /'best_of' \(1\) must not be less than 'n' \(2\)/));
  await assert.rejects(model.completions.create({ prompt: "a", best_of: 2, stream: true }), refusal("request", /'best_of' above 'n' cannot be streamed/));
  const pieces = await collect(await model.completions.create({ prompt: ["a", "b"], n: 2, stream: true }));
  assert.deepEqual(pieces.map(({ choices: [{ index, finish_reason }] }) => [index, finish_reason]), [0, 1, 2, 3].flatMap((i) => [[i, null], [i, "stop"]]));
});

test("completions: a suffix for models with fill-in-the-middle tokens", async () => {
  const model = await load("org/coder");
  const [, [sent]] = await requests(() => model.completions.create({ prompt: "def f():", suffix: "\nf()" }));
  assert.deepEqual(sent, { prompt: "def f():", suffix: "\nf()" });
  await assert.rejects(model.completions.create({ prompt: [1, 2], suffix: "x" }), refusal("request", /'suffix' requires a text prompt/));
  await assert.rejects(model.completions.create({ prompt: "a", suffix: "x", parse_special: true }), refusal("request", /'suffix' cannot be combined with parse_special/));
});

const both = (run) => onBothThreads(facade, run);

test("own code in each step changes the logits and ends the answer", async () => {
  await both(async (model) => {
    const seen = [];
    const processed = fake.seen.logits.length;
    const text = await model.generate("one two three", {
      logitsProcessor(logits, tokens) {
        seen.push([logits.length, [...tokens]]);
        if (tokens.length === 0) logits[3] = -Infinity;
        else return logits.map((value) => value * 2);
      },
    });
    assert.equal(text, "one two three");
    assert.deepEqual(seen, [[9, []], [9, [1]], [9, [1, 2]]]);
    assert.deepEqual(fake.seen.logits.slice(processed), [[0, 1, 2, -Infinity, 4, 5, 6, 7, 8], ...Array(2).fill([0, 2, 4, 6, 8, 10, 12, 14, 16])]);

    const asked = [];
    const { text: short, finishReason } = await model.generate("one two three", { stoppingCriteria: async (tokens) => asked.push([...tokens]) === 2 }).details;
    assert.deepEqual([short, finishReason, asked], ["one two", "stop", [[1], [1, 2]]]);
    const stopped = await model.chat.completions.create({ messages: user("one two") }, { stoppingCriteria: () => true });
    assert.equal(stopped.choices[0].message.content, "one");
    const completed = await model.completions.create({ prompt: "one two" }, { stoppingCriteria: () => true });
    assert.equal(completed.choices[0].text, "one");
  });
});

test("own code keeps its arrays: those that it returns and those that it was given", async () => {
  await both(async (model) => {
    const prepared = new Float32Array(9).fill(1);
    const given = [];
    const from = fake.seen.logits.length;
    assert.equal(await model.generate("one two three", { logitsProcessor: () => prepared }), "one two three");
    assert.equal(await model.generate("one two", { logitsProcessor: (...all) => void given.push(...all) }), "one two");
    assert.equal(await model.generate("one two", { logitsProcessor: (logits) => (given.push(logits), logits), stoppingCriteria: (tokens) => void given.push(tokens) }), "one two");
    assert.deepEqual([...prepared], Array(9).fill(1));
    assert.deepEqual(given.map(({ length }) => length), [9, 0, 9, 1, 9, 1, 9]);
    assert.deepEqual(fake.seen.logits.slice(from, from + 3), Array(3).fill(Array(9).fill(1)));
  });
});

test("own code that throws anything ends the answer with an error", { timeout: 20_000 }, async () => {
  const thrown = [null, undefined, 3, "text", Symbol("s"), {}, Object.create(null), { toString() { throw new Error("no text"); } }, Object.assign(new Error(), { message: Symbol("m") }), Object.defineProperty(new Error(), "message", { get() { throw new Error("no message"); } })];
  await both(async (model) => {
    for (const name of ["logitsProcessor", "stoppingCriteria"]) {
      for (const each of thrown) {
        const expected = refusal("request", new RegExp(`^'${name}' threw: .`));
        await assert.rejects(model.generate("a b", { [name]: () => { throw each; } }), expected);
        await assert.rejects(model.generate("a b", { [name]: () => Promise.reject(each) }), expected);
      }
    }
    assert.equal(await model.generate("still works"), "still works");
  });
});

test("own code that fails, answers nonsense or never ends", async () => {
  await both(async (model) => {
    await assert.rejects(model.generate("a b", { logitsProcessor: () => { throw new Error("broken"); } }), refusal("request", /'logitsProcessor' threw: broken/));
    await assert.rejects(model.generate("a b", { stoppingCriteria: () => Promise.reject(new Error("gone")) }), refusal("request", /'stoppingCriteria' threw: gone/));
    await assert.rejects(model.generate("a b", { logitsProcessor: () => new Float32Array(3) }), refusal("request", /must return nothing or a Float32Array of 9 logits, not 3/));
    await assert.rejects(model.generate("a b", { logitsProcessor: () => [1, 2] }), refusal("request", /Float32Array of 9 logits, not an array/));
    await assert.rejects(model.generate("a b", { logitsProcessor: 5 }), refusal("request", /'logitsProcessor' must be a function/));
    const generation = model.generate("a b", { logitsProcessor: () => new Promise(() => {}) });
    setTimeout(() => generation.abort(), 20);
    assert.equal((await generation.details).finishReason, "abort");
    assert.equal(await model.generate("still works"), "still works");
  });
});

test("a session runs single steps and returns their logits", async () => {
  await both(async (model) => {
    const before = fake.seen.prefills.length;
    const session = await model.createSession();
    let logits = await session.prefill([1, 2]);
    for (let i = 0; i < 3; i++) logits = await session.step(logits.indexOf(Math.max(...logits)));
    assert.deepEqual([...session.tokens], [1, 2, 3, 4, 5]);
    assert.deepEqual(fake.seen.prefills.slice(before), [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]]);
    const fork = await session.fork();
    await fork.step(7);
    assert.deepEqual([[...session.tokens], [...fork.tokens]], [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7]]);
    await session.prefill("ab");
    assert.deepEqual([...session.tokens], [1, 97, 98]);
    await assert.rejects(session.step(-1), refusal("request", /session\.step expects token ids/));
    await assert.rejects(session.prefill([0.5]), refusal("request", /session\.prefill expects token ids/));
    await assert.rejects(session.prefill([1], { signal: AbortSignal.abort() }), refusal("aborted", /abort/));
    await session.prefill(Array(65).fill(1)).catch((error) => assert.match(error.message, /64/));
    assert.deepEqual([...session.tokens], [1, 97, 98], "a refused step leaves the tokens");
    await session.dispose();
    await assert.rejects(session.step(1), refusal("unloaded", /disposed/));
  });
});

test("one fetch serves several models by name, and loads them on demand", async () => {
  let loads = 0;
  const models = {
    chat: await load("org/name"),
    embed: async () => (loads++, load("org/embed")),
    rank: () => load("org/rank"),
    broken: async () => (loads++ < 2 ? load("no/such") : load("org/name")),
  };
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: jerboa.createFetch(models) });
  assert.deepEqual((await collect(await client.models.list())).map(({ id }) => id), ["chat", "embed", "rank", "broken"]);
  assert.equal((await client.chat.completions.create({ model: "chat", messages: user("hi") })).model, "org/name");
  const embed = () => client.embeddings.create({ model: "embed", input: [[1, 2], [3]], encoding_format: "float" });
  assert.deepEqual((await Promise.all([embed(), embed()])).map(({ data }) => data.map(({ embedding }) => embedding)), Array(2).fill([[2, 1, 0], [1, 1, 0]]));
  assert.equal(loads, 1, "a model is loaded once");
  assert.equal((await client.models.retrieve("embed")).id, "embed");
  await assert.rejects(client.models.retrieve("other"), (error) => error.status === 404);
  await assert.rejects(client.chat.completions.create({ model: "gpt", messages: user("x") }), (error) => error.status === 404 && error.code === "model_not_found" && error.error.jerboa_code === "model_name" && /no model 'gpt' here. Use chat, embed, rank, broken/.test(error.message));
  await assert.rejects(client.embeddings.create({ model: "chat", input: "x" }), (error) => error.status === 400 && /cannot embed/.test(error.message));
  const post = (path, body) => jerboa.createFetch(models)(`http://jerboa/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
  assert.match((await (await post("completions", { prompt: "x" })).json()).error.message, /must name a 'model': chat, embed/);
  const ranked = await (await post("rerank", { model: "rank", query: "b", documents: ["a", { text: "bb" }, "b"], top_n: 2, return_documents: true })).json();
  assert.deepEqual(ranked.results, [{ index: 1, relevance_score: 2, document: { text: "bb" } }, { index: 2, relevance_score: 1, document: { text: "b" } }]);
  await assert.rejects(client.chat.completions.create({ model: "broken", messages: user("x") }), (error) => error.status === 404 && error.code === "not_found");
  assert.equal((await client.chat.completions.create({ model: "broken", messages: user("x") })).choices[0].message.content, "x", "a load that failed is tried again");

  const asked = [];
  const byName = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: jerboa.createFetch((name) => (asked.push(name), name === "a" ? models.chat : undefined)) });
  assert.equal((await byName.completions.create({ model: "a", prompt: "x y" })).choices[0].text, "x y");
  await assert.rejects(byName.completions.create({ model: "b", prompt: "x" }), (error) => error.status === 404);
  assert.deepEqual((await collect(await byName.models.list())).map(({ id }) => id), ["a"]);
  assert.deepEqual(asked, ["a", "b"]);
  assert.throws(() => jerboa.createFetch({ a: "org/name" }), refusal("request", /'a' must be a model or a function/));
  assert.throws(() => jerboa.createFetch("org/name"), refusal("request", /the argument must be a model/));
  assert.throws(() => jerboa.createFetch({}), refusal("request", /createFetch: the object has no models\. Pass at least one/));
});

test("requests read no files of the server, and paths are decoded or refused", async () => {
  const fetch = jerboa.createFetch(await load());
  const refused = async (path, body) => {
    const response = await fetch(`http://jerboa/v1/${path}`, body ? { method: "POST", body: JSON.stringify(body) } : {});
    return [response.status, (await response.json()).error.message];
  };
  const chat = (part) => refused("chat/completions", { messages: [{ role: "user", content: [{ type: "text", text: "file:///etc/passwd" }, part] }] });
  for (const url of ["file:///etc/passwd", " FILE:/etc/passwd", "fi\nle:///etc/passwd", "ftp://x/y", "C:\\x.png"]) {
    for (const [part, field] of [
      [{ type: "image_url", image_url: { url } }, "image_url"], [{ type: "image_url", image_url: url }, "image_url"], [{ type: "image", image: url }, "image"],
      [{ type: "video_url", video_url: { url } }, "video_url"], [{ type: "video", video: url }, "video"], [{ type: "video", frames: ["https://x.test/a.png", url] }, "frames"],
    ]) {
      const [status, message] = await chat(part);
      assert.equal(status, 400);
      assert.match(message, new RegExp(`^The request's '${field}' is a (file|ftp|c): URL`));
    }
    const [status, message] = await refused("responses", { input: [{ role: "user", content: [{ type: "input_image", image_url: url }] }] });
    assert.deepEqual([status, /'image_url' is a/.test(message)], [400, true]);
  }
  const said = { type: "text", text: "x" };
  assert.equal((await fetch("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ messages: [{ role: "user", content: [said, { type: "text", text: "file:///etc/passwd" }] }] }) })).status, 200);
  for (const path of ["models/%", "responses/%E0", "responses/%E0/input_items"]) assert.deepEqual(await refused(path).then(([status, message]) => [status, /not valid percent-encoding/.test(message)]), [400, true], path);
});

test("HEAD asks for the headers that GET has", async () => {
  const fetch = jerboa.createFetch(await load());
  const get = await fetch("http://jerboa/v1/models");
  const head = await fetch("http://jerboa/v1/models", { method: "HEAD" });
  assert.deepEqual([head.status, head.headers.get("content-type"), await head.text()], [200, get.headers.get("content-type"), ""]);
});

test("a known path with a wrong method has status 405 and names the right one", async () => {
  const fetch = jerboa.createFetch(await load());
  for (const [method, path, allow, advice] of [
    ["DELETE", "models", "GET, HEAD", "GET"], ["POST", "models", "GET, HEAD", "GET"], ["DELETE", "models/org/name", "GET, HEAD", "GET"], ["PUT", "models/org/completions", "GET, HEAD", "GET"],
    ["PUT", "chat/completions", "POST", "POST"], ["GET", "chat/completions", "POST", "POST"], ["GET", "embeddings", "POST", "POST"], ["DELETE", "audio/speech", "POST", "POST"],
    ["PUT", "responses/resp_1", "GET, DELETE", "GET or DELETE"], ["DELETE", "responses/resp_1/input_items", "GET", "GET"],
  ]) {
    const response = await fetch(`http://jerboa/v1/${path}`, { method });
    const { code, type, message } = (await response.json()).error;
    assert.deepEqual([response.status, response.headers.get("allow"), code, type], [405, allow, "method_not_allowed", "invalid_request_error"]);
    assert.equal(message, `${method} /v1/${path} is not supported. Use ${advice}.`);
  }
  assert.deepEqual([(await fetch("http://jerboa/v1/chat/completions", { method: "HEAD" })).status, (await fetch("http://jerboa/v1/models/org/completions")).status], [405, 200]);
  for (const method of ["GET", "POST", "HEAD"]) assert.equal((await fetch("http://jerboa/v1/images", { method })).status, 404, method);
});

test("a request body above 64 MB has status 413 and is not read to its end", async () => {
  const fetch = jerboa.createFetch(await load());
  const size = 64 * 2 ** 20;
  const post = (init) => fetch("http://jerboa/v1/chat/completions", { method: "POST", ...init });
  const head = `{"messages":[{"role":"user","content":"hi"}]`;
  assert.equal((await post({ body: `${head}${" ".repeat(size - head.length - 1)}}` })).status, 200);
  let sent = 0;
  const chunk = new Uint8Array(2 ** 20).fill(32);
  const endless = () => new ReadableStream({ pull: (stream) => (sent++, stream.enqueue(chunk)) });
  for (const init of [{ body: `${head}${" ".repeat(size - head.length)}}` }, { body: endless(), duplex: "half" }, { body: endless(), duplex: "half", headers: { "content-length": `${size + 1}` } }]) {
    sent = 0;
    const response = await post(init);
    const { code, type, message } = (await response.json()).error;
    assert.deepEqual([response.status, code, type], [413, "request_too_large", "invalid_request_error"]);
    assert.match(message, /its body exceeds 64 MB\. Send fewer or smaller images/);
    assert.ok(sent <= (init.headers ? 2 : 67), `${sent} MB`);
  }
  const form = new FormData();
  form.append("file", new Blob([new Uint8Array(size)]), "a.wav");
  const transcribe = (init) => fetch("http://jerboa/v1/audio/transcriptions", { method: "POST", ...init });
  assert.notEqual((await transcribe({ body: form })).status, 413, "a form may have a gigabyte");
  const announced = await transcribe({ body: endless(), duplex: "half", headers: { "content-type": "multipart/form-data; boundary=x", "content-length": `${2 ** 30 + 1}` } });
  assert.equal(announced.status, 413);
  assert.match((await announced.json()).error.message, /exceeds 1024 MB/);
});

test("the server answers 413 before it reads a large body, and 405 with the methods", async () => {
  const { startServer } = await import(`${facade}/cli-serve.js`);
  const server = await startServer({ host: "127.0.0.1", port: 0, origins: [] });
  const url = `${server.url}/v1/chat/completions`;
  const sizes = [];
  server.serve(async (_, { body }) => (sizes.push(body.size), new Response("read")));
  const started = (options) => new Promise((resolve, reject) => {
    const sent = request(url, options, (response) => resolve(response));
    sent.on("error", reject);
    sent.flushHeaders();
  });
  const text = async (response) => Buffer.concat(await collect(response)).toString();
  try {
    const announced = await started({ method: "POST", headers: { "content-length": 300e6 } });
    assert.equal(announced.statusCode, 413);
    const { code, message } = JSON.parse(await text(announced)).error;
    assert.equal(code, "request_too_large");
    assert.match(message, /its body exceeds 64 MB/);
    let left = 80;
    const chunked = new ReadableStream({ pull: (stream) => (left-- > 0 ? stream.enqueue(new Uint8Array(2 ** 20)) : stream.close()) });
    assert.equal((await fetch(url, { method: "POST", body: chunked, duplex: "half" })).status, 413);
    assert.equal(await (await fetch(url, { method: "POST", body: new Uint8Array(64 * 2 ** 20) })).text(), "read");
    assert.deepEqual(sizes, [64 * 2 ** 20]);
    const traced = await started({ method: "TRACE" });
    assert.deepEqual([traced.statusCode, traced.headers.allow], [405, "GET, POST, DELETE, OPTIONS"]);
    await text(traced);
  } finally {
    await server.close();
  }
});

test("errors over HTTP name the endpoint that works", async () => {
  const said = async (name, path, body) => {
    const fetch = jerboa.createFetch(await jerboa.loadModel(name, { worker: false, ...(name === "org/kani" ? { codec: "org/codec" } : {}) }));
    const response = await fetch(`http://jerboa/api/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
    assert.equal(response.status, 400);
    return (await response.json()).error.message;
  };
  const chat = { messages: user("x") };
  assert.match(await said("org/base", "chat/completions", chat), /continues text\. Use POST \/api\/v1\/completions instead\.$/);
  for (const [name, endpoint] of [["org/embed", "embeddings"], ["org/ranker", "rerank"], ["org/whisper", "audio/transcriptions"], ["org/kani", "audio/speech"]]) {
    assert.match(await said(name, "chat/completions", chat), new RegExp(`, use POST /api/v1/${endpoint} instead\\.$`));
  }
  assert.match(await said("org/name", "embeddings", { input: "x" }), /, use POST \/api\/v1\/completions instead\.$/);
});

test("errors and answers have what OpenAI's clients read", async () => {
  const over = () => { throw new jerboa.JerboaError("context_full", "the prompt has 300 tokens, but the context holds only 256"); };
  const fetch = jerboa.createFetch({ chat: await load(), embed: await load("org/embed"), over });
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch });
  const failed = (call) => call.then(() => assert.fail("an answer"), (error) => error);
  const chat = (model) => client.chat.completions.create({ model, messages: user("x") });
  for (const [error, kind, code, own] of [
    [await failed(chat("gpt")), OpenAI.NotFoundError, "model_not_found", "model_name"],
    [await failed(chat("over")), OpenAI.BadRequestError, "context_length_exceeded", "context_full"],
    [await failed(client.embeddings.create({ model: "chat", input: "x" })), OpenAI.BadRequestError, "request", "request"],
  ]) {
    assert.ok(error instanceof kind, String(error));
    assert.deepEqual([error.code, error.type, error.error.jerboa_code], [code, "invalid_request_error", own]);
    assert.match(error.requestID, /^req_[0-9a-f]{32}$/);
  }
  assert.match((await failed(chat("over"))).message, /maximum context length: the prompt has 300 tokens/);
  // What LangChain retries with a shorter prompt.
  const { ChatOpenAI } = await import("@langchain/openai");
  const langchain = new ChatOpenAI({ apiKey: "none", model: "over", configuration: { baseURL: "http://jerboa/v1", fetch }, maxRetries: 0 });
  assert.equal((await failed(langchain.invoke("x"))).name, "ContextOverflowError");
  for (const input of ["", []]) {
    const error = await failed(client.embeddings.create({ model: "embed", input }));
    assert.deepEqual([error.status, error.type, error.param], [400, "invalid_request_error", "input"]);
    assert.match(error.message, /'input' is an empty (string|array)\. Pass at least one text\./);
  }
  const answer = await chat("chat");
  assert.match(answer._request_id, /^req_/);
  assert.notEqual(answer._request_id, (await chat("chat"))._request_id);
  const { response } = await client.chat.completions.create({ model: "chat", messages: user("x"), stream: true }).withResponse();
  assert.match(response.headers.get("x-request-id"), /^req_/);
});

test("requests of servers that are no instances of Request are answered", async () => {
  // As srvx makes them for Nitro and h3: Request's prototype without its private fields.
  const lookalike = (url, { method = "GET", body, headers = {}, signal }) => {
    const native = new Request(url, { method, body, headers });
    const fields = { url, method, headers: native.headers, body: native.body, signal };
    return Object.create(Request.prototype, Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, { value }])));
  };
  const fetch = jerboa.createFetch(await load());
  assert.equal((await (await fetch(lookalike("http://jerboa/v1/models", {}))).json()).data[0].id, "org/name");
  const body = JSON.stringify({ messages: user("hi") });
  const post = { method: "POST", body, headers: { "content-type": "application/json" } };
  const answer = await (await fetch(lookalike("http://jerboa/v1/chat/completions", post))).json();
  assert.equal(answer.choices[0].message.content, "hi");
  await assert.rejects(fetch(lookalike("http://jerboa/v1/chat/completions", { ...post, signal: AbortSignal.abort() })), { name: "AbortError" });
  await assert.rejects(fetch({}), TypeError);
});

test("a client repeats no request that fails because of the model or the device", async () => {
  let attempts = 0;
  const failing = (name, options) => () => {
    attempts++;
    return jerboa.loadModel(name, { worker: false, ...options });
  };
  const fetch = jerboa.createFetch({ large: failing(["a/large"], { maxMemory: 1e6 }), gated: failing("org/gated"), offline: failing("no/network") });
  const provider = createOpenAICompatible({ name: "jerboa", baseURL: "http://jerboa/v1", fetch });
  const outcomes = {};
  for (const name of ["large", "gated", "offline"]) {
    attempts = 0;
    const error = await generateText({ model: provider(name), prompt: "x", maxRetries: 1 }).catch((thrown) => thrown);
    outcomes[name] = [attempts, (error.lastError ?? error).statusCode];
  }
  assert.deepEqual(outcomes, { large: [1, 422], gated: [1, 422], offline: [2, 500] });
});

test("a request of createFetch is aborted before its work, while its model loads, and in its stream", async () => {
  const model = await load();
  const words = Array.from({ length: 300 }, (_, i) => `w${i}`).join(" ");
  const post = (fetch, body, signal) => fetch("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ model: "a", messages: user(words), ...body }), signal });
  const fetch = jerboa.createFetch(model);
  const ended = fake.seen.ends.length;
  for (const stream of [false, true]) {
    const [, sent] = await requests(() => assert.rejects(post(fetch, { stream }, AbortSignal.abort()), { name: "AbortError" }));
    assert.deepEqual(sent, []);
  }
  await assert.rejects(post(fetch, {}, AbortSignal.abort(new Error("left the page"))), /left the page/);

  let loaded;
  const slow = jerboa.createFetch({ a: () => new Promise((resolve) => (loaded = resolve)) });
  const controller = new AbortController();
  const first = post(slow, {}, controller.signal);
  const second = post(slow, { messages: user("still works") });
  while (!loaded) await new Promise((resolve) => setTimeout(resolve, 1));
  controller.abort();
  await assert.rejects(first, { name: "AbortError" });
  const [response, sent] = await requests(() => (loaded(model), second));
  assert.equal((await response.json()).choices[0].message.content, "still works");
  assert.equal(sent.length, 1, "the aborted request asks nothing of the model");

  const { body } = await post(fetch, { stream: true });
  await body.cancel();
  const stopping = new AbortController();
  const reader = (await post(fetch, { stream: true }, stopping.signal)).body.getReader();
  await reader.read();
  stopping.abort();
  await assert.rejects(async () => { while (!(await reader.read()).done); }, { name: "AbortError" });
  while (fake.seen.ends.length < ended + 3) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(fake.seen.ends.slice(ended), ["stop", "abort", "abort"]);
});

test("an invalid request has status 400 with and without stream, and later errors have their type and code", async () => {
  const model = await load();
  const fetch = jerboa.createFetch(model);
  const post = async (path, body) => {
    const response = await fetch(`http://jerboa/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
    return [response.status, await response.text()];
  };
  const grammar = { type: "regex", pattern: "" };
  for (const [path, body] of [["chat/completions", { messages: user("x"), grammar }], ["responses", { input: "x", grammar }]]) {
    const [status, refused] = await post(path, body);
    assert.equal(status, 400);
    const { code, type } = JSON.parse(refused).error;
    assert.deepEqual([code, type], ["request", "invalid_request_error"]);
    assert.deepEqual(await post(path, { ...body, stream: true }), [400, refused]);
  }
  const echoed = await post("completions", { prompt: "a b", echo: true, stream: true });
  assert.equal(echoed[1].match(/"text":"(.*?)"/g).join(), '"text":"a b","text":"a","text":" b","text":""');
  for (const after of [0, 2]) {
    const lossy = jerboa.createFetch(await load());
    fake.losses.push({ call: "generate", after }, { call: "load" });
    const response = await lossy("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ messages: user("a b c"), stream: true }) });
    const text = await response.text();
    assert.equal(response.status, after ? 200 : 500);
    const { error } = JSON.parse(after ? text.trim().split("data: ").at(-1) : text);
    assert.deepEqual([error.code, error.type], ["device_lost", "server_error"]);
  }
});

test("a body that is no object, or has unknown or wrong fields, has status 400", async () => {
  const models = { "chat/completions": "org/name", completions: "org/name", responses: "org/name", embeddings: "org/embed", rerank: "org/ranker", "audio/transcriptions": "org/whisper", "audio/translations": "org/whisper", "audio/speech": "org/kani" };
  const post = async (path, body) => {
    const fetch = jerboa.createFetch(await jerboa.loadModel(models[path], { worker: false, ...(path === "audio/speech" ? { codec: "org/codec" } : {}) }));
    const response = await fetch(`http://jerboa/v1/${path}`, { method: "POST", body: JSON.stringify(body) });
    return [response.status, (await response.json()).error?.message];
  };
  for (const path of Object.keys(models)) {
    for (const body of [null, {}, [], "x", 5]) {
      const [status, message] = await post(path, body);
      assert.equal(status, 400, `${path} ${JSON.stringify(body)}: ${message}`);
      assert.doesNotMatch(message, /bug/);
    }
  }
  const rerank = { query: "b", documents: ["a", "b"] };
  for (const [fields, pattern] of [
    [{ top_n: 0 }, /rerank: 'top_n' must be a whole number from 1/],
    [{ top_n: "2" }, /'top_n' must be/],
    [{ topN: 1 }, /unknown option 'topN'\. Did you mean 'top_n'/],
    [{ rank_fields: ["text"] }, /unknown option 'rank_fields'/],
    [{ return_documents: "yes" }, /'return_documents' must be true or false/],
    [{ documents: ["a", 5] }, /'documents' must be an array of strings, or of objects with 'text'.*item 1 is 5/],
    [{ documents: undefined }, /'query' and 'documents' are required/],
    [{ query: undefined }, /'query' and 'documents' are required/],
  ]) {
    const [status, message] = await post("rerank", { ...rerank, ...fields });
    assert.equal(status, 400);
    assert.match(message, pattern);
  }
  assert.deepEqual(await post("rerank", { ...rerank, top_n: null, instruction: null }), [200, undefined]);
});

test("an error names the field of the request in param, as OpenAI's do", async () => {
  const fetch = jerboa.createFetch({ chat: await load() });
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch, maxRetries: 0 });
  const base = { model: "chat", messages: user("x") };
  for (const [fields, param] of [
    [{ temperature: 9 }, "temperature"],
    [{ temprature: 1 }, "temprature"],
    [{ stream: true, stream_options: { include_usage: "yes" } }, "stream_options.include_usage"],
    [{ model: undefined }, "model"],
    [{ model: "gpt" }, null],
  ]) await assert.rejects(client.chat.completions.create({ ...base, ...fields }), (error) => error.param === param || assert.equal(error.param, param, error.message));
  await assert.rejects(client.responses.create({ model: "chat", input: "x", text: { verbose: "low" } }), { status: 400, param: "text.verbose" });
});

test("speech is streamed as the bytes of its file", async () => {
  const model = await jerboa.loadModel("org/kani", { worker: false, codec: "org/codec" });
  const fetch = jerboa.createFetch(model);
  const post = (body, signal) => fetch("http://jerboa/v1/audio/speech", { method: "POST", body: JSON.stringify({ model: "any", input: "one two three", ...body }), signal });
  for (const response_format of ["wav", "pcm"]) {
    const [whole, streamed] = [await post({ response_format }), await post({ response_format, stream: true })];
    assert.equal(streamed.headers.get("content-type"), whole.headers.get("content-type"));
    const [expected, found] = [new Uint8Array(await whole.arrayBuffer()), new Uint8Array(await streamed.arrayBuffer())];
    // The header of a stream cannot know its length.
    const skipped = response_format === "wav" ? 44 : 0;
    assert.equal(found.length, skipped + 2 * 6615);
    assert.deepEqual(found.subarray(skipped), expected.subarray(skipped));
    assert.equal(Buffer.from(found.subarray(0, 4)).toString(), response_format === "wav" ? "RIFF" : Buffer.from(expected.subarray(0, 4)).toString());
  }
  const refused = await post({ stream: true, max_tokens: 2 });
  assert.deepEqual([refused.status, (await refused.json()).error.code], [400, "request"]);
  const long = Array(300).fill("word").join(" ");
  const { body } = await post({ stream: true, input: long });
  await body.cancel();
  const controller = new AbortController();
  const reader = (await post({ stream: true, input: long }, controller.signal)).body.getReader();
  await reader.read();
  controller.abort();
  await assert.rejects(async () => { while (!(await reader.read()).done); }, { name: "AbortError" });
  assert.equal((await post({})).status, 200, "the model goes on");
});

test("a load that fails with the caller's own error is reported with its message", async () => {
  for (const thrown of [new Error("The user pressed 'No'"), "The user pressed 'No'", Object.assign(new Error("The user pressed 'No'"), { code: "ENOENT" }), new DOMException("The user pressed 'No'", "DataError")]) {
    const fetch = jerboa.createFetch({ a: () => { throw thrown; } });
    const response = await fetch("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ model: "a", messages: user("x") }) });
    assert.equal(response.status, 500);
    const { message, type, code } = (await response.json()).error;
    assert.deepEqual([message, type, code], ["The user pressed 'No'.", "server_error", "request"]);
  }
});
