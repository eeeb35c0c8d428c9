/** Streams that jerboa/tabs starts again: the caller gets each character and each other event once, however the engine cuts events. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let facade, Calls, CallServer;

before(async () => {
  facade = await buildFacade();
  ({ Calls, CallServer } = await import(`${facade.url}/tabs/calls.js`));
}, { timeout: 120_000 });

after(() => facade?.remove());

/** Server-sent events of values; those with a type are named. */
const encoded = (values) => values.map((value) => `${value.type ? `event: ${value.type}\n` : ""}data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`);

/** What a caller receives if the first answer ends after some of its events and the second one answers again. */
async function received(path, first, second) {
  const answers = [first, second];
  let server;
  const calls = new Calls((message) => server.receive(message, "caller", (reply) => calls.receive(reply)));
  const start = () => {
    const values = answers.shift();
    const isLast = answers.length === 0;
    server = new CallServer(async () => new Response(new ReadableStream({
      start(stream) {
        for (const event of encoded(values)) stream.enqueue(new TextEncoder().encode(event));
        if (isLast) stream.close();
      },
    }), { headers: { "content-type": "text/event-stream" } }));
  };
  start();
  const response = await calls.fetch(new Request(`http://jerboa/v1/${path}`, { method: "POST", body: JSON.stringify({ stream: true }) }));
  const text = response.text();
  await new Promise((resolve) => setTimeout(resolve, 20));
  start();
  calls.restart();
  const events = (await text).split("\n\n").filter(Boolean).map((event) => event.replace(/^event: .*\n/, "").slice(6));
  return events.map((data) => (data.startsWith("{") ? JSON.parse(data) : data));
}

const chunk = (id, index, delta, more = {}) => ({ id, object: "chat.completion.chunk", choices: [{ index, delta, logprobs: null, finish_reason: null, ...more }] });
const joined = (chunks, index, read) => chunks.flatMap(({ choices }) => choices ?? []).filter((choice) => choice.index === index).map((choice) => read(choice) ?? "").join("");

test("a chat: content and reasoning of each choice, cut differently", async () => {
  const opening = (id) => [chunk(id, 0, { role: "assistant", content: "" }), chunk(id, 1, { role: "assistant", content: "" })];
  const reasoning = (text) => ({ reasoning_content: text, reasoning: text });
  const first = [...opening("a"), chunk("a", 0, reasoning("I thi")), chunk("a", 0, reasoning("nk.")), chunk("a", 0, { content: "The sk" }), chunk("a", 1, { content: "Bl" }), chunk("a", 0, { content: "y i" })];
  const second = [...opening("b"), chunk("b", 0, reasoning("I")), chunk("b", 0, reasoning(" think.")), chunk("b", 1, { content: "Blue." }), chunk("b", 0, { content: "T" }), chunk("b", 0, { content: "he sky is blue." }), chunk("b", 0, {}, { finish_reason: "stop" }), chunk("b", 1, {}, { finish_reason: "stop" }), { id: "b", choices: [], usage: { total_tokens: 9 } }, "[DONE]"];
  const chunks = await received("chat/completions", first, second);
  assert.equal(joined(chunks, 0, ({ delta }) => delta.content), "The sky is blue.");
  assert.equal(joined(chunks, 0, ({ delta }) => delta.reasoning), "I think.");
  assert.equal(joined(chunks, 0, ({ delta }) => delta.reasoning_content), "I think.");
  assert.equal(joined(chunks, 1, ({ delta }) => delta.content), "Blue.");
  assert.deepEqual([0, 1].map((index) => joined(chunks, index, ({ delta }) => delta.role)), ["assistant", "assistant"]);
  assert.deepEqual([...new Set(chunks.slice(0, -1).map(({ id }) => id))], ["a"]);
  assert.deepEqual(chunks.filter(({ usage }) => usage).length, 1);
  assert.equal(chunks.at(-1), "[DONE]");
});

test("a chat: tool calls keep their first ids, arguments go on", async () => {
  const call = (index, id, name) => ({ tool_calls: [{ index, id, type: "function", function: { name, arguments: "" } }] });
  const more = (index, text) => ({ tool_calls: [{ index, function: { arguments: text } }] });
  const first = [chunk("a", 0, { role: "assistant", content: "" }), chunk("a", 0, call(0, "call_1", "add")), chunk("a", 0, more(0, '{"x":')), chunk("a", 0, more(0, '1,"y'))];
  const second = [chunk("b", 0, { role: "assistant", content: "" }), chunk("b", 0, call(0, "call_2", "add")), chunk("b", 0, more(0, '{"x":1,"y":2}')), chunk("b", 0, call(1, "call_3", "stop")), chunk("b", 0, more(1, "{}")), chunk("b", 0, {}, { finish_reason: "tool_calls" }), "[DONE]"];
  const chunks = await received("chat/completions", first, second);
  const calls = chunks.flatMap(({ choices }) => choices?.[0]?.delta.tool_calls ?? []);
  const texts = [0, 1].map((index) => calls.filter((each) => each.index === index).map((each) => each.function.arguments).join(""));
  assert.deepEqual(texts, ['{"x":1,"y":2}', "{}"]);
  assert.deepEqual(calls.flatMap(({ id }) => id ?? []), ["call_1", "call_3"]);
});

test("a completion: text and log-probabilities", async () => {
  const piece = (id, tokens, finish = null) => ({ id, choices: [{ index: 0, text: tokens.join(""), logprobs: tokens.length ? { tokens, token_logprobs: tokens.map(() => -1), top_logprobs: [], text_offset: tokens.map(() => 0) } : null, finish_reason: finish }] });
  const first = [piece("a", ["On", "ce"]), piece("a", [" up"])];
  const second = [piece("b", ["On"]), piece("b", ["ce", " up", "on"]), piece("b", [" a"]), piece("b", [], "length"), "[DONE]"];
  const chunks = await received("completions", first, second);
  assert.equal(joined(chunks, 0, ({ text }) => text), "Once upon a");
  assert.deepEqual(chunks.flatMap(({ choices }) => choices?.[0]?.logprobs?.tokens ?? []), ["On", "ce", " up", "on", " a"]);
});

test("a response: deltas by their text, other events once, numbered in order", async () => {
  const events = (id, deltas) => [
    { type: "response.created", response: { id, output: [] } },
    { type: "response.output_item.added", output_index: 0, item: { type: "message", id: `msg_${id}` } },
    ...deltas.map((delta) => ({ type: "response.output_text.delta", output_index: 0, content_index: 0, item_id: `msg_${id}`, delta, logprobs: [] })),
  ].map((event, index) => ({ ...event, sequence_number: index }));
  const end = [{ type: "response.output_text.done", output_index: 0, content_index: 0, item_id: "msg_b", text: "Hello there" }, { type: "response.completed", response: { id: "b", output: [{ type: "message", id: "msg_b" }] } }].map((event, index) => ({ ...event, sequence_number: 4 + index }));
  const found = await received("responses", events("a", ["He", "llo t", "h"]), [...events("b", ["Hel", "lo there"]), ...end]);
  assert.equal(found.map(({ delta }) => delta ?? "").join(""), "Hello there");
  assert.deepEqual(found.map(({ sequence_number: number }) => number), found.map((_, index) => index));
  assert.equal(found.filter(({ type }) => type === "response.created").length, 1);
  assert.doesNotMatch(JSON.stringify(found), /"(msg_)?b"/);
});
