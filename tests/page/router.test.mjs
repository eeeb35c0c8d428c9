/** jerboa/router on Node over the fake engine and a server of its own: routes, consent, fallbacks, events, log levels. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import OpenAI from "openai";
import { buildFacade } from "./support/facade.mjs";

const options = { timeout: 120_000 };
let facade, jerboa, router, server, remote;

/** What the server received, and what it answers. */
let received = [];
let status = 200;

before(async () => {
  facade = await buildFacade();
  jerboa = await import(`${facade.url}/index.js`);
  router = await import(`${facade.url}/router/index.js`);
  server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    const body = JSON.parse(text || "{}");
    received.push({ path: request.url, key: request.headers.authorization, body });
    if (status !== 200) return void response.writeHead(status, { "content-type": "application/json", "x-should-retry": "false" }).end(JSON.stringify({ error: { code: "busy", message: "busy" } }));
    const head = { id: "remote-1", model: "large-1", created: 0 };
    if (!body.stream) return void response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ ...head, object: "chat.completion", choices: [{ index: 0, message: { role: "assistant", content: "from afar" }, finish_reason: "stop" }], usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 } }));
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (const content of ["from", " afar"]) response.write(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta: { content }, finish_reason: null }] })}\n\n`);
    response.end(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage: { prompt_tokens: 3, completion_tokens: 2 } })}\n\ndata: [DONE]\n\n`);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  remote = { baseURL: `http://127.0.0.1:${server.address().port}/v1/`, apiKey: async () => "secret", model: { chat: "large" } };
}, options);

after(async () => {
  server?.closeAllConnections();
  server?.close();
  await facade?.remove();
});

beforeEach(() => {
  received = [];
  status = 200;
});

const messages = [{ role: "user", content: "one two" }];
/** Models of the device: one that loads, one that does not. */
const local = () => ({ chat: () => jerboa.loadModel("org/plain", { worker: false }), broken: () => jerboa.loadModel("no/such", { worker: false }) });

/** A client over a router, with its events and log lines. */
function open(more) {
  const events = [];
  const lines = [];
  const fetch = router.createRouter({ local: local(), remote, onEvent: (event) => events.push(event), log: (level, message) => lines.push(`${level}: ${message}`), ...more });
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch, maxRetries: 0 });
  const ask = async (model, fields = {}) => {
    const { data, response } = await client.chat.completions.create({ model, messages, ...fields }).withResponse();
    return [data.choices[0].message.content, response.headers.get("x-jerboa-route")];
  };
  return { client, ask, events, lines, fetch };
}

test("a function that cannot load its model leaves the request to the server", options, async () => {
  const { ask } = open({ policy: "local-first", local: { chat: () => { throw new TypeError("no such host"); } } });
  assert.deepEqual(await ask("chat"), ["from afar", "remote"]);
});

test("by default nothing leaves the device, even if the model cannot load", options, async () => {
  const { ask, lines } = open();
  assert.deepEqual(await ask("chat"), ["one two", "local"]);
  await assert.rejects(ask("broken"), { status: 404, code: "not_found" });
  await assert.rejects(ask("other"), { status: 404, code: "model_not_found" });
  assert.deepEqual(received, []);
  assert.deepEqual(lines.filter((line) => line.startsWith("warn")), []);
});

test("requests of servers that are no instances of Request are routed", options, async () => {
  const { fetch } = open({ policy: "local" });
  // As h3 makes `event.req`: Request's prototype without its private fields.
  const native = new Request("http://jerboa/v1/chat/completions", { method: "POST", body: JSON.stringify({ model: "chat", messages }), headers: { "content-type": "application/json" } });
  const { url, method, headers, body } = native;
  const fields = { url, method, headers, body, signal: undefined };
  const lookalike = Object.create(Request.prototype, Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, { value }])));
  const response = await fetch(lookalike);
  assert.deepEqual([response.headers.get("x-jerboa-route"), (await response.json()).choices[0].message.content], ["local", "one two"]);
  await assert.rejects(fetch({}), TypeError);
  assert.equal((await fetch("http://jerboa/v1/models", { method: "HEAD" })).status, 200);
});

test("local-first: the server answers for models that cannot run here, and each such request is logged", options, async () => {
  const { ask, lines } = open({ policy: "local-first" });
  assert.deepEqual(await ask("chat"), ["one two", "local"]);
  assert.deepEqual(received, []);
  assert.deepEqual(await ask("broken"), ["from afar", "remote"]);
  assert.equal(received.length, 1);
  assert.deepEqual([received[0].path, received[0].key, received[0].body.model], ["/v1/chat/completions", "Bearer secret", "broken"]);
  assert.equal(lines.filter((line) => /^warn: .*'broken' leaves this device: http/.test(line)).length, 1);
  // A request that is at fault itself fails here.
  await assert.rejects(ask("chat", { temperature: 9 }), { status: 400 });
  assert.equal(received.length, 1);
});

test("remote-first, remote, a function: names, unreachable servers, routes by request", options, async () => {
  const first = open({ policy: "remote-first" });
  assert.deepEqual(await first.ask("chat"), ["from afar", "remote"]);
  assert.equal(received[0].body.model, "large", "the server has a name of its own");
  status = 503;
  assert.deepEqual(await first.ask("chat"), ["one two", "local"]);
  await assert.rejects(open({ policy: "remote" }).ask("chat"), { status: 503 });
  status = 200;
  const gone = { ...remote, baseURL: "http://127.0.0.1:9/v1" };
  assert.deepEqual(await open({ policy: "remote-first", remote: gone }).ask("chat"), ["one two", "local"]);
  const long = open({ policy: ({ path, model, body }) => (path === "chat/completions" && model === "chat" && body.max_tokens > 100 ? "remote" : "local") });
  assert.deepEqual([(await long.ask("chat", { max_tokens: 200 }))[1], (await long.ask("chat", { max_tokens: 20 }))[1]], ["remote", "local"]);
});

test("consent is asked before each request that would leave, and keeps it here", options, async () => {
  const asked = [];
  const consent = ({ model }) => (asked.push(model), model === "broken");
  const { ask } = open({ policy: "remote-first", consent });
  assert.deepEqual(await ask("chat"), ["one two", "local"]);
  assert.deepEqual(await ask("broken"), ["from afar", "remote"]);
  await assert.rejects(open({ policy: "remote", consent: () => false }).ask("chat"), { status: 403, code: "remote_refused" });
  // The local failure is the answer if the server may not be asked.
  await assert.rejects(open({ policy: "local-first", consent: async () => false }).ask("broken"), { status: 404, code: "not_found" });
  assert.deepEqual(asked, ["chat", "broken"]);
  assert.equal(received.length, 1);
});

test("events: OpenTelemetry's names, usage, first token, errors, and no texts", options, async () => {
  const { client, ask, events } = open({ policy: ({ model }) => (model === "far" ? "remote" : "local") });
  await ask("chat", { temperature: 0.5, max_tokens: 10 });
  for (const model of ["chat", "far"]) {
    for await (const _ of await client.chat.completions.create({ model, messages, stream: true, stream_options: { include_usage: true } })) continue;
  }
  await client.embeddings.create({ model: "chat", input: "a" }).catch(() => {});
  await ask("broken").catch(() => {});
  const operations = events.filter(({ name }) => name === "gen_ai.client.operation");
  const [whole, streamed, far, embedding, broken] = operations.map(({ attributes }) => attributes);
  assert.deepEqual([whole["gen_ai.operation.name"], whole["gen_ai.provider.name"], whole["gen_ai.request.model"], whole["gen_ai.request.temperature"], whole["gen_ai.request.max_tokens"]], ["chat", "jerboa", "chat", 0.5, 10]);
  assert.deepEqual([whole["gen_ai.response.model"], whole["gen_ai.usage.input_tokens"], whole["gen_ai.usage.output_tokens"], whole["gen_ai.response.finish_reasons"]], ["org/plain", 5, 2, ["stop"]]);
  assert.equal(streamed["gen_ai.usage.output_tokens"], 2);
  assert.equal(streamed["gen_ai.server.time_to_first_token"], 0.003, "the engine's own time");
  assert.deepEqual([far["gen_ai.provider.name"], far["server.address"], far["gen_ai.response.id"], far["gen_ai.usage.input_tokens"]], ["openai", "127.0.0.1", "remote-1", 3]);
  assert.ok(far["gen_ai.server.time_to_first_token"] >= 0);
  assert.deepEqual([embedding["gen_ai.operation.name"], embedding["error.type"]], ["embeddings", "request"]);
  assert.equal(broken["error.type"], "not_found");
  assert.ok(events.every(({ timestamp, duration }) => timestamp > 1e12 && duration >= 0));
  assert.deepEqual(events.filter(({ name }) => name === "jerboa.route").map(({ attributes }) => attributes["jerboa.route"]), ["local", "local", "remote", "local", "local"]);
  assert.ok(!JSON.stringify(events).includes("one two") && !JSON.stringify(events).includes("afar"));
});

test("an aborted stream is reported, and a listener that throws fails nothing", options, async () => {
  const { client, events } = open();
  const long = [{ role: "user", content: "word ".repeat(500) }];
  for await (const _ of await client.chat.completions.create({ model: "chat", messages: long, stream: true })) break;
  for (let i = 0; i < 6000 && !events.some(({ attributes }) => attributes["error.type"]); i++) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(events.find(({ name }) => name === "gen_ai.client.operation").attributes["error.type"], "aborted");
  const bad = open({ onEvent: () => { throw new Error("no"); } });
  assert.equal((await bad.ask("chat"))[0], "one two");
  assert.ok(bad.lines.some((line) => /error: onEvent threw/.test(line)));
});

test("observeLoads reports loads and their failures; log levels", options, async () => {
  const events = [];
  const lines = [];
  const load = router.observeLoads({ onEvent: (event) => events.push(event), logLevel: "info", log: (level, message) => lines.push(`${level}: ${message}`) });
  const model = await load("org/plain", { worker: false });
  await load("no/such", { worker: false }).catch(() => {});
  assert.equal(model.info.model, "org/plain");
  const [loaded, failed] = events;
  assert.deepEqual([loaded.name, loaded.attributes["gen_ai.request.model"], loaded.attributes["jerboa.model.weight_bytes"]], ["jerboa.model.load", "org/plain", 1.1e6]);
  assert.equal(failed.attributes["error.type"], "not_found");
  assert.deepEqual(lines.map((line) => line.split(":")[0]), ["info", "error"]);
  const silent = open({ logLevel: "silent", policy: "remote" });
  await silent.ask("chat");
  assert.deepEqual(silent.lines, []);
  const debug = open({ logLevel: "debug" });
  await debug.ask("chat");
  assert.ok(debug.lines.some((line) => line.startsWith("debug: {")));
});

test("contradictory options are refused by name", () => {
  for (const [given, pattern] of [
    [{}, /set 'local', 'remote' or both/],
    [undefined, /set 'local', 'remote' or both/],
    [{ local: local(), policy: "local-first" }, /the policy 'local-first' needs 'remote'/],
    [{ remote }, /the policy 'local' needs 'local'/],
    [{ local: local(), policy: "cloud" }, /'policy' must be one of local, local-first, remote-first, remote or a function, not 'cloud'/],
    [{ local: local(), remote: { baseURL: "nowhere" } }, /'remote.baseURL' must be a URL/],
    [{ local: local(), logLevel: "loud" }, /'logLevel' must be one of/],
  ]) assert.throws(() => router.createRouter(given), { code: "request", message: pattern });
});
