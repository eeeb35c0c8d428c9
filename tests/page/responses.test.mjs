/** OpenAI's Responses API over the fake engine: input items, events, tools, reasoning, stored responses, and the official client. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { buildFacade } from "./support/facade.mjs";

let jerboa, fake, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  jerboa = await import(`${built.url}/index.js`);
  fake = await import(`${built.url}/jerboa.js`);
});
after(() => cleanUp());

const load = (name = "org/name") => jerboa.loadModel(name, { worker: false });
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
const messages = () => fake.seen.requests.at(-1).messages;
const WEATHER = { type: "function", name: "weather", description: "The weather.", parameters: { type: "object", properties: {} }, strict: true };
const CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>';

test("a text is answered by a response", async () => {
  const model = await load();
  const response = await model.responses.create({ input: "one two", instructions: "Be brief.", temperature: 0.5, metadata: { a: "b" } });
  assert.deepEqual(messages(), [{ role: "system", content: "Be brief." }, { role: "user", content: "one two" }]);
  assert.equal(fake.seen.requests.at(-1).temperature, 0.5);
  const { id, created_at, completed_at, output, ...rest } = response;
  assert.match(id, /^resp_[0-9a-f]{32}$/);
  assert.ok(completed_at >= created_at);
  assert.match(output[0].id, /^msg_/);
  assert.deepEqual(output, [{ type: "message", id: output[0].id, role: "assistant", status: "completed", content: [{ type: "output_text", text: "one two", annotations: [], logprobs: [] }] }]);
  assert.deepEqual(rest, {
    object: "response", status: "completed", error: null, incomplete_details: null, instructions: "Be brief.", max_output_tokens: null, metadata: { a: "b" }, model: "org/name",
    output_text: "one two", parallel_tool_calls: true, previous_response_id: null, reasoning: { effort: null, summary: null }, store: true, temperature: 0.5,
    text: { format: { type: "text" } }, tool_choice: "auto", tools: [], top_logprobs: null, top_p: null, truncation: "disabled", access_programs: null,
    usage: { input_tokens: 5, input_tokens_details: { cached_tokens: 2, cache_write_tokens: 0 }, output_tokens: 2, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 7 },
    timings: { prefill_ms: 3, decode_ms: 4 },
  });
});

test("a stream has OpenAI's events in order, with numbers", async () => {
  const model = await load("org/thinking-Qwen3");
  const events = await collect(await model.responses.create({ input: `<think>so</think>Yes. ${CALL}`, stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  assert.deepEqual(events.map(({ type, output_index: at, delta }) => [type.replace("response.", ""), at, delta]), [
    ["created", undefined, undefined],
    ["in_progress", undefined, undefined],
    ["output_item.added", 0, undefined],
    ["content_part.added", 0, undefined],
    ["reasoning_text.delta", 0, "so"],
    ["reasoning_text.done", 0, undefined],
    ["content_part.done", 0, undefined],
    ["output_item.done", 0, undefined],
    ["output_item.added", 1, undefined],
    ["content_part.added", 1, undefined],
    ["output_text.delta", 1, "Yes. "],
    ["output_text.done", 1, undefined],
    ["content_part.done", 1, undefined],
    ["output_item.done", 1, undefined],
    ["output_item.added", 2, undefined],
    ["function_call_arguments.delta", 2, '{"cit'],
    ["function_call_arguments.delta", 2, 'y":"Oslo"}'],
    ["function_call_arguments.done", 2, undefined],
    ["output_item.done", 2, undefined],
    ["completed", undefined, undefined],
  ]);
  const { response } = events.at(-1);
  assert.deepEqual(response.output.map(({ type, status }) => [type, status]), [["reasoning", "completed"], ["message", "completed"], ["function_call", "completed"]]);
  assert.deepEqual(response.output[0].content, [{ type: "reasoning_text", text: "so" }]);
  const call = response.output[2];
  assert.deepEqual([call.name, call.arguments], ["weather", '{"city":"Oslo"}']);
  assert.match(call.call_id, /^call_/);
  assert.equal(events[0].response.output.length, 0, "events are snapshots");
  assert.equal(response.usage.output_tokens_details.reasoning_tokens, 1);
  for (const event of events.filter(({ item_id: id }) => id)) assert.equal(event.item_id, response.output[event.output_index].id);
});

test("items become messages: reasoning, text and calls of a turn are one", async () => {
  const model = await load();
  const input = [
    { role: "developer", content: "Rules." },
    { type: "message", role: "user", content: [{ type: "input_text", text: "Weather " }, { type: "input_text", text: "in Oslo?" }] },
    { type: "reasoning", id: "rs_1", summary: [{ type: "summary_text", text: "not this" }], content: [{ type: "reasoning_text", text: "I call." }] },
    { type: "message", id: "msg_1", role: "assistant", status: "completed", content: [{ type: "output_text", text: "Let me see.", annotations: [] }] },
    { type: "function_call", id: "fc_1", call_id: "c1", name: "weather", arguments: '{"city":"Oslo"}' },
    { type: "function_call", call_id: "c2", name: "weather", arguments: '{"city":"Rome"}' },
    { type: "function_call_output", call_id: "c1", output: "rain" },
    { type: "function_call_output", call_id: "c2", output: [{ type: "input_text", text: "sun" }] },
    { type: "reasoning", id: "rs_2", summary: [{ type: "summary_text", text: "Enough." }] },
    { type: "reasoning", id: "rs_3", summary: [], encrypted_content: "xyz" },
    { role: "assistant", content: "Rain and sun." },
    { role: "user", content: "Thanks." },
  ];
  await model.responses.create({ input, instructions: "Help." });
  const call = (id, city) => ({ id, type: "function", function: { name: "weather", arguments: { city } } });
  assert.deepEqual(messages(), [
    { role: "system", content: "Help.\n\nRules." },
    { role: "user", content: "Weather in Oslo?" },
    { role: "assistant", reasoning_content: "I call.", content: "Let me see.", tool_calls: [call("c1", "Oslo"), call("c2", "Rome")] },
    { role: "tool", content: "rain", tool_call_id: "c1" },
    { role: "tool", content: "sun", tool_call_id: "c2" },
    { role: "assistant", reasoning_content: "Enough.", content: "Rain and sun." },
    { role: "user", content: "Thanks." },
  ]);
  const seeing = await load("org/seeing");
  const pixel = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";
  await seeing.responses.create({ input: [{ role: "user", content: [{ type: "input_text", text: "What?" }, { type: "input_image", image_url: pixel, detail: "auto" }] }] }).catch((error) => assert.doesNotMatch(error.message, /input_image/));
});

test("tools, formats and reasoning become fields of the chat request", async () => {
  const model = await load("org/thinking");
  const schema = { type: "object", properties: {}, additionalProperties: false };
  await model.responses.create({ input: "x", text: { format: { type: "json_schema", name: "answer", schema, strict: true }, verbosity: "medium" }, reasoning: { effort: "low", summary: "auto" }, max_output_tokens: 9, truncation: "auto", include: ["reasoning.encrypted_content"], top_k: 3, stop: ["."] });
  const { messages: _, ...sent } = fake.seen.requests.at(-1);
  assert.deepEqual(sent, { chatTemplate: { enable_thinking: true }, maxTokens: 9, overflow: "truncate", topK: 3, stop: ["."] });
  await model.responses.create({ input: "x", reasoning_budget: 7 });
  assert.equal(fake.seen.requests.at(-1).reasoningBudget, 7);
  await model.responses.create({ input: "x", tools: [WEATHER] });
  const { type, ...described } = WEATHER;
  assert.deepEqual(fake.seen.requests.at(-1).tools, [{ type, function: described }]);
  const some = await model.responses.create({ input: "x", tools: [WEATHER, { ...WEATHER, name: "time" }], tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "time" }] } });
  assert.deepEqual(fake.seen.requests.at(-1).tools.map((tool) => tool.function.name), ["time"]);
  assert.deepEqual(some.tools.map(({ name, strict }) => [name, strict]), [["time", true]]);
  const scored = await model.responses.create({ input: "one", top_logprobs: 1 });
  assert.deepEqual(scored.output[0].content[0].logprobs, [{ token: "one", bytes: [], logprob: -0.1, top_logprobs: [{ token: "one", bytes: [], logprob: -0.1 }] }]);
});

test("log-probabilities belong to text, and leave calls and reasoning as they are", async () => {
  const model = await load("org/thinking-Qwen3");
  const input = `<think>so it is</think>Yes, rain. ${CALL}`;
  const create = (more) => model.responses.create({ input, ...more });
  const bare = ({ output }) => output.map(({ type, name, arguments: given, content }) => [type, name, given, content?.[0].text]);
  const [plain, scored] = [await create(), await create({ top_logprobs: 1 })];
  assert.deepEqual(bare(scored), bare(plain));
  assert.deepEqual(scored.output.map(({ type }) => type), ["reasoning", "message", "function_call"]);
  assert.deepEqual(scored.output[1].content[0].logprobs.map(({ token }) => token.trim()), ["Yes,", "rain."]);
  const events = await collect(await create({ top_logprobs: 1, stream: true }));
  assert.deepEqual(events.filter(({ type }) => type === "response.output_item.added").map(({ item }) => item.type), ["reasoning", "message", "function_call"]);
  assert.deepEqual(events.flatMap(({ type, logprobs }) => (type === "response.output_text.delta" ? [logprobs.length] : [])), [1, 1]);
});

test("leaving a stream at its first event stops the generation", async () => {
  const model = await load();
  const ended = fake.seen.ends.length;
  for await (const _ of await model.responses.create({ input: Array(300).fill("word").join(" "), stream: true, store: false })) break;
  while (fake.seen.ends.length === ended) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(fake.seen.ends.slice(ended), ["abort"]);
});

test("an answer that is cut is incomplete; one that is stopped is cancelled and not stored", async () => {
  const model = await load();
  const cut = await model.responses.create({ input: "one two three", max_output_tokens: 2 });
  assert.deepEqual([cut.status, cut.incomplete_details, cut.output_text, cut.output[0].status], ["incomplete", { reason: "max_output_tokens" }, "one two", "incomplete"]);
  assert.equal((await model.responses.retrieve(cut.id)).status, "incomplete");
  const stream = await model.responses.create({ input: "one two three", stream: true });
  const events = [];
  for await (const event of stream) if (events.push(event) && event.type.endsWith("text.delta")) stream.abort();
  assert.deepEqual([events.at(-1).type, events.at(-1).response.status], ["response.incomplete", "cancelled"]);
  await assert.rejects(model.responses.retrieve(events[0].response.id), refusal("not_found", /was not found: it was not stored/));
  const controller = new AbortController();
  const gone = model.responses.create({ input: Array(300).fill("word").join(" ") }, { signal: controller.signal });
  setTimeout(() => controller.abort(), 30);
  await assert.rejects(gone, refusal("aborted", /The response was aborted/));
});

test("previous_response_id continues a stored response in its session", async () => {
  const model = await load();
  const sessions = fake.seen.sessions;
  const first = await model.responses.create({ input: "one", instructions: "Only here." });
  const second = await model.responses.create({ input: "two", previous_response_id: first.id });
  assert.deepEqual(messages(), [{ role: "user", content: "one" }, { role: "assistant", content: "one" }, { role: "user", content: "two" }]);
  assert.equal(second.previous_response_id, first.id);
  assert.equal(fake.seen.sessions, sessions + 1, "the conversation has one session");
  const branch = await model.responses.create({ input: "three", previous_response_id: first.id });
  assert.equal(messages().length, 3);
  assert.equal(fake.seen.sessions, sessions + 2, "another branch has its own");
  for (const input of ["a", "b", "c"]) await model.responses.create({ input });
  assert.equal(fake.seen.sessions, sessions + 2, "at most two are kept");
  await model.responses.create({ input: "four", previous_response_id: branch.id });
  assert.deepEqual(messages().map(({ content }) => content), ["one", "one", "three", "three", "four"], "a dropped session changes nothing");
  const chained = await model.responses.create({ input: [{ type: "item_reference", id: first.output[0].id }, { role: "user", content: "x" }] });
  assert.deepEqual(messages()[0], { role: "assistant", content: "one" });
  assert.equal((await model.responses.inputItems(chained.id)).data.length, 2);

  const unstored = await model.responses.create({ input: "five", store: false, previous_response_id: second.id });
  assert.equal(unstored.store, false);
  await assert.rejects(model.responses.create({ input: "x", previous_response_id: unstored.id }), refusal("not_found", /Send the whole conversation as 'input'/));
  assert.deepEqual(await model.responses.delete(first.id), { id: first.id, object: "response", deleted: true });
  await assert.rejects(model.responses.retrieve(first.id), refusal("not_found", /was deleted/));
  await assert.rejects(model.responses.delete(first.id), refusal("not_found", /was deleted/));
  assert.equal((await model.responses.retrieve(second.id)).output_text, "two", "later responses remain");
  await model.unload();
});

test("the store is bounded, and concurrent responses share the sessions", async () => {
  const model = await load();
  const sessions = fake.seen.sessions;
  const first = await model.responses.create({ input: "first" });
  const all = await Promise.all(Array.from({ length: 6 }, (_, i) => model.responses.create({ input: `n${i}`, previous_response_id: first.id })));
  assert.deepEqual(all.map(({ output_text: text }) => text), all.map((_, i) => `n${i}`));
  assert.ok(fake.seen.sessions <= sessions + 2, `${fake.seen.sessions - sessions} sessions`);
  for (let i = 0; i < 60; i++) await model.responses.create({ input: "x" });
  await assert.rejects(model.responses.retrieve(first.id), refusal("not_found", /older than the last 64/));
  assert.equal((await model.responses.retrieve(all[5].id)).output_text, "n5");
  // A stream that is cancelled before it is read gives its session back.
  for (let i = 0; i < 3; i++) (await model.responses.create({ input: "unread", stream: true })).abort();
  const before = fake.seen.sessions;
  await model.responses.create({ input: "after", stream: false });
  assert.ok(fake.seen.sessions <= before + 1);
  await model.unload();
});

test("a failure is an error, and in a stream its last event", async () => {
  const model = await load();
  fake.losses.push({ call: "generate" }, { call: "load" });
  await assert.rejects(model.responses.create({ input: "x" }), refusal("device_lost", /lost/));
  const other = await load();
  fake.losses.push({ call: "generate" }, { call: "load" });
  const events = await collect(await other.responses.create({ input: "x", stream: true }));
  const { type, response } = events.at(-1);
  assert.deepEqual([type, response.status, response.error.code], ["response.failed", "failed", "server_error"]);
  assert.match(response.error.message, /lost/);
  const refused = await collect(await other.responses.create({ input: "x", grammar: { type: "regex", pattern: "" }, stream: true }));
  assert.deepEqual([refused.at(-1).type, refused.at(-1).response.error.code], ["response.failed", "invalid_prompt"]);
});

test("what a page cannot do is refused by name", async () => {
  const model = await load();
  const create = (params) => model.responses.create({ input: "x", ...params });
  for (const [params, pattern] of [
    [{ input: undefined }, /'input' is missing/],
    [{ input: 5 }, /'input' must be a string or an array of items/],
    [{ input: [5] }, /input\[0\] must be an object/],
    [{ input: [{ type: "web_search_call" }] }, /items of type 'web_search_call' are not supported/],
    [{ input: [{ role: "user", content: [{ type: "input_file", file_id: "f" }] }] }, /parts of type 'input_file' are not supported/],
    [{ input: [{ role: "user", content: [{ type: "input_image", file_id: "f" }] }] }, /requires 'image_url'/],
    [{ input: [{ role: "user", content: [{ type: "input_text" }] }] }, /a part of type 'input_text' requires 'text': a string, not undefined/],
    [{ tools: [WEATHER], tool_choice: { type: "allowed_tools", mode: "auto", tools: [{ type: "function", name: "wether" }] } }, /'tool_choice' names the function 'wether', which is not among 'tools'. Add it, or name one of: weather/],
    [{ tools: [WEATHER], tool_choice: { type: "allowed_tools", mode: "auto", tools: [] } }, /requires 'tools': a list of 1 to/],
    [{ tools: [{ type: "web_search" }] }, /tools\[0\] has the type 'web_search'/],
    [{ tool_choice: { type: "mcp" } }, /'tool_choice' of type 'mcp' is not supported/],
    [{ text: { format: { type: "grammar" } } }, /text.format of type 'grammar' is not supported/],
    [{ background: true }, /'background' must be false or omitted/],
    [{ conversation: "c" }, /'conversation' must be omitted \(Use 'previous_response_id'\)/],
    [{ prompt: { id: "p" } }, /'prompt' must be omitted/],
    [{ moderation: {} }, /'moderation' must be omitted/],
    [{ temprature: 1 }, /Did you mean 'temperature'/],
    [{ temperature: 3 }, /a number from 0 to 2/],
    [{ messages: [] }, /unknown option 'messages'/],
  ]) await assert.rejects(create(params), refusal("request", pattern));
  await assert.rejects(create({ input: [{ type: "item_reference", id: "msg_0" }] }), refusal("not_found", /refers to the item 'msg_0'/));
  assert.equal((await create({ background: false, conversation: null, context_management: [], max_tool_calls: 3, user: "u", service_tier: "auto", stream_options: null })).output_text, "x");
  await assert.rejects((await load("org/embed")).responses.create({ input: "x" }), refusal("request", /cannot chat/));
});

test("the official client: create, stream, parse, tools, stored responses", async () => {
  const model = await load("org/Qwen3");
  const client = new OpenAI({ apiKey: "none", baseURL: "http://jerboa/v1", fetch: jerboa.createFetch(model), maxRetries: 0 });
  const response = await client.responses.create({ model: "any", input: "one two" });
  assert.equal(response.output_text, "one two");
  const events = await collect(await client.responses.create({ model: "any", input: "one two", stream: true }));
  assert.deepEqual([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
  const stream = client.responses.stream({ model: "any", input: "one two" });
  const deltas = [];
  stream.on("response.output_text.delta", ({ delta }) => deltas.push(delta));
  assert.equal((await stream.finalResponse()).output_text, "one two");
  assert.deepEqual(deltas, ["one", " two"]);
  const format = { type: "json_schema", name: "x", schema: { type: "object" }, strict: true };
  assert.deepEqual((await client.responses.parse({ model: "any", input: "{}", text: { format } })).output_text, "{}");
  const called = await client.responses.create({ model: "any", input: "Weather?", tools: [WEATHER] });
  assert.deepEqual(called.output.map(({ type, name }) => [type, name]), [["function_call", "weather"]]);
  const after = await client.responses.create({ model: "any", previous_response_id: called.id, input: [{ type: "function_call_output", call_id: called.output[0].call_id, output: "rain" }], tools: [WEATHER] });
  assert.equal(after.output_text, "rain");
  assert.equal((await client.responses.retrieve(after.id)).output_text, "rain");
  assert.deepEqual((await collect(client.responses.inputItems.list(after.id))).map(({ type }) => type), ["function_call_output"]);
  const counted = await client.responses.inputTokens.count({ model: "any", input: "ab", instructions: "c", tools: [WEATHER] });
  assert.deepEqual(counted, { object: "response.input_tokens", input_tokens: 1 + 2 + 3 + 1 }, "a tool, two messages and the opened answer");
  const { input_tokens: chained } = await model.responses.inputTokens.count({ input: "ab", previous_response_id: response.id });
  assert.equal(chained, 1 + "one two".length + 1 + "one two".length + 3 + 1);
  await assert.rejects(client.responses.inputTokens.count({ model: "any" }), (error) => error.status === 400 && /'input' is missing/.test(error.message));
  await client.responses.delete(after.id);
  await assert.rejects(client.responses.retrieve(after.id), (error) => error.status === 404 && error.code === "not_found");
  await assert.rejects(client.responses.create({ model: "any", input: "x", previous_response_id: "resp_0" }), (error) => error.status === 404);
  await assert.rejects(client.responses.cancel(called.id), (error) => error.status === 400 && /Abort the request/.test(error.message));
  await assert.rejects(client.responses.create({ model: "any", input: "x", background: true }), (error) => error.status === 400);
  const left = await client.responses.create({ model: "any", input: Array(300).fill("word").join(" "), stream: true });
  let count = 0;
  for await (const _ of left) if (++count === 5) break;
  assert.equal((await client.responses.create({ model: "any", input: "still works" })).output_text, "still works");
});
