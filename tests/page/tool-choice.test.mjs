/**
 * Forced tool calls with the real engine in Chromium: every format at temperature 1, named and single calls, calls or an
 * answer by a schema, and thoughts before them. The tiny model gets each family's markers as tokens.
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Ajv2020 from "ajv/dist/2020.js";
import { openPackage } from "./support/engine.mjs";
import { STORIES } from "./support/paths.mjs";

const PATIENCE = 600_000;

/** Words of each family's template, and its markers, which become tokens. */
const FORMATS = {
  hermes: ["<tool_call>", "<tool_call>", "</tool_call>"],
  "function-xml": ["<function=", "<tool_call>", "</tool_call>"],
  "function-xml with JSON": ["<function= parameters => a JSON dict"],
  llama: ["<|python_tag|>", "<|python_tag|>"],
  mistral: ["[TOOL_CALLS]", "[TOOL_CALLS]"],
  "mistral with arguments": ["[TOOL_CALLS] [ARGS]", "[TOOL_CALLS]", "[ARGS]"],
  lfm2: ["<|tool_call_start|>", "<|tool_call_start|>", "<|tool_call_end|>"],
  granite: ["<|tool_call|>", "<|tool_call|>"],
  phi4: ["<|tool|><|/tool|>", "<|tool_call|>", "<|/tool_call|>"],
  nemotron: ["<TOOLCALL>"],
  harmony: ["<|channel|><|message|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>"],
  gemma4: ["<|tool_call>", "<|tool_call>", "<tool_call|>", '<|"|>'],
  functiongemma: ["<start_function_call>", "<start_function_call>", "<end_function_call>", "<escape>"],
  glm: ["<arg_key>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
  deepseek: ["<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
  "command-r": ["Action: tool_name"],
  "command-r7b": ["<|START_ACTION|><|START_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"],
  "kimi-k2": ["<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"],
};

const PLACE = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Oslo", "Bergen"] },
    days: { type: "integer", minimum: 0, maximum: 14 },
    note: { type: ["string", "null"], maxLength: 6 },
    tags: { type: "array", items: { enum: ["sun", "rain", true] }, maxItems: 2 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
const TOOLS = [
  { type: "function", function: { name: "weather", parameters: PLACE, strict: true } },
  { type: "function", function: { name: "now" } },
];
const SCHEMAS = { weather: PLACE, now: { type: "object", additionalProperties: false } };
const SUM = { type: "object", properties: { sum: { type: "integer", minimum: 0, maximum: 99 } }, required: ["sum"], additionalProperties: false };
const jsonSchema = { type: "json_schema", json_schema: { name: "sum", schema: SUM, strict: true } };

const validate = (schema, value) => {
  const check = new Ajv2020({ strict: false, logger: false }).compile(schema);
  assert.ok(check(value), `${JSON.stringify(value)}: ${JSON.stringify(check.errors)}`);
};

function assertCalls({ message, finish }) {
  assert.equal(finish, "tool_calls");
  assert.equal(message.content, null);
  assert.ok(message.tool_calls.length > 0);
  for (const { type, function: called } of message.tool_calls) {
    assert.equal(type, "function");
    validate(SCHEMAS[called.name], JSON.parse(called.arguments));
  }
}

let site, page;

before(async () => {
  site = await openPackage({ "/model/": STORIES });
  page = site.page;
  await page.evaluate(async (tools) => {
    const names = ["generation_config.json", "tokenizer_config.json", "model.safetensors"];
    const files = await Promise.all(names.map(async (name) => new File([await (await fetch(`/model/${name}`)).blob()], name)));
    const config = await (await fetch("/model/config.json")).json();
    const tokenizer = await (await fetch("/model/tokenizer.json")).json();
    window.VOCABULARY = tokenizer.model.vocab;
    // Rare characters make room for the markers. Those with ▁ are special, since this decoder makes it a
    // blank elsewhere.
    window.SLOTS = [511, 507, 503, 502, 498, 493, 486];
    /** Loads the first `layers` of the model with a template and its markers. One suffices for calls with random arguments. */
    window.open = async (template, markers, layers = config.num_hidden_layers) => {
      const changed = structuredClone(tokenizer);
      const names = Object.keys(changed.model.vocab);
      for (const [i, content] of markers.entries()) {
        delete changed.model.vocab[names.find((name) => changed.model.vocab[name] === SLOTS[i])];
        changed.model.vocab[content] = SLOTS[i];
        changed.added_tokens.push({ id: SLOTS[i], content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: i % 2 === 0 || content.includes("▁") });
      }
      const json = (value, name) => new File([JSON.stringify(value)], name);
      const all = [...files, json({ ...config, num_hidden_layers: layers }, "config.json"), json(changed, "tokenizer.json"), new File([template], "chat_template.jinja")];
      window.model = await jerboa.loadModel(all);
      return model.info.toolCalls;
    };
    window.TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %} {{ tools | length }}{% endif %}";
    window.ask = async (params) => {
      const { choices, usage } = await model.chat.completions.create({ messages: [{ role: "user", content: "Once upon a time" }], tools, temperature: 1, max_tokens: 200, ...params });
      return { message: choices[0].message, finish: choices[0].finish_reason, usage };
    };
    window.refusal = (call) => call().then(() => "no error", (error) => `${error.code}: ${error.message}`);
  }, TOOLS);
}, { timeout: PATIENCE });

after(async () => {
  await site?.close();
});

// Random calls of every format over this vocabulary and others, several hundred, are read back natively (tests/chat).
test("every format's required calls are read back with valid arguments", { timeout: PATIENCE }, async () => {
  let ended = 0;
  for (const [name, [words, ...markers]] of Object.entries(FORMATS)) {
    const { format, answers } = await page.evaluate(async ([words, markers]) => {
      const format = await open(`${TEMPLATE}{# ${words} #}`, markers, 1);
      // What closes strings, objects and answers, so that answers are short.
      const logit_bias = Object.fromEntries(['"', "<0x7D>", "]", ")", "<", "</s>"].map((token) => [VOCABULARY[token], 4]));
      const answers = [];
      for (const parallel_tool_calls of [true, false]) answers.push(await ask({ tool_choice: "required", parallel_tool_calls, logit_bias, max_tokens: 120, seed: 1 }));
      await model.unload();
      return { format, answers };
    }, [words, markers]);
    assert.equal(format, name.split(" ")[0]);
    for (const answer of answers) {
      if (answer.finish === "length") continue;
      ended += 1;
      try {
        assertCalls(answer);
      } catch (error) {
        throw new Error(`${name}: ${JSON.stringify(answer)}: ${error.message}`);
      }
    }
  }
  assert.ok(ended >= Object.keys(FORMATS).length, `${ended} answers ended`);
});

test("a named function, single calls, strict tools, calls or a schema, whole and streamed", { timeout: PATIENCE }, async () => {
  const named = { type: "function", function: { name: "weather" } };
  const found = await page.evaluate(async ({ named, response_format }) => {
    await open(`${TEMPLATE}{# <tool_call> #}`, ["<tool_call>", "</tool_call>"]);
    const stream = [];
    for await (const { choices } of await model.chat.completions.create({ messages: [{ role: "user", content: "Once" }], tools: [{ type: "function", function: { name: "now" } }], tool_choice: "required", parallel_tool_calls: false, temperature: 1, seed: 4, stream: true })) stream.push(choices[0]);
    const found = {
      named: await ask({ tool_choice: named, seed: 3 }),
      single: await ask({ tool_choice: "required", parallel_tool_calls: false, seed: 3 }),
      greedy: await ask({ tool_choice: "required", parallel_tool_calls: false, temperature: 0 }),
      text: await ask({ seed: 5, max_tokens: 40 }),
      call: await ask({ seed: 5, logit_bias: { [SLOTS[0]]: 100 } }),
      either: await ask({ response_format, seed: 6, logit_bias: { [SLOTS[0]]: -100 } }),
      called: await ask({ response_format, seed: 6, logit_bias: { [SLOTS[0]]: 100 } }),
      unknown: await refusal(() => ask({ tool_choice: { type: "function", function: { name: "other" } } })),
      broken: await refusal(() => ask({ tool_choice: "required", tools: [{ type: "function", function: { name: "pick", strict: true, parameters: { type: "object", properties: { a: { type: "array", uniqueItems: true } } } } }] })),
      again: await ask({ tool_choice: named, seed: 3 }),
      stream,
    };
    await model.unload();
    return found;
  }, { named, response_format: jsonSchema });
  assertCalls(found.named);
  assert.deepEqual(found.named.message.tool_calls.map(({ function: called }) => called.name), ["weather"]);
  for (const answer of [found.single, found.greedy]) {
    assertCalls(answer);
    assert.equal(answer.message.tool_calls.length, 1);
  }
  assert.equal(found.text.message.tool_calls, undefined, JSON.stringify(found.text));
  assert.ok(found.text.message.content.length > 20);
  if (found.call.finish !== "length") assertCalls(found.call);
  assert.equal(found.call.message.tool_calls.length > 0, true);
  validate(SUM, JSON.parse(found.either.message.content));
  if (found.called.finish !== "length") assertCalls(found.called);
  assert.equal(found.called.message.tool_calls.length > 0, true);
  assert.match(found.unknown, /^request: .*names the function 'other'/);
  assert.match(found.broken, /^request: .*tool 'pick': .*uniqueItems/);
  const [first, second] = [found.named, found.again].map(({ message }) => message.tool_calls[0].function);
  assert.deepEqual(first, second);
  const deltas = found.stream.flatMap(({ delta }) => delta.tool_calls ?? []);
  assert.equal(deltas[0].function.name, "now");
  assert.equal(deltas.map((delta) => delta.function.arguments).join(""), "{}");
  assert.equal(found.stream.at(-1).finish_reason, "tool_calls");
});

test("thoughts stay free before a schema and before calls, and a budget closes them", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async (response_format) => {
    const marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    const free = { tools: undefined };
    const out = {};
    // The prompt opens the thought.
    await open(`${TEMPLATE}<think>{# </think><tool_call> #}`, marks);
    out.schema = await ask({ ...free, response_format, reasoning_budget: 12, seed: 1 });
    out.closed = await ask({ ...free, response_format, seed: 2, logit_bias: { [SLOTS[1]]: 100 } });
    out.ended = await ask({ ...free, response_format, seed: 3, logit_bias: { 2: 100 } });
    out.calls = await ask({ tool_choice: "required", parallel_tool_calls: false, reasoning_budget: 12, seed: 4 });
    out.plain = await ask({ ...free, reasoning_budget: 5, seed: 5, max_tokens: 40 });
    out.none = await ask({ ...free, reasoning_budget: 0, seed: 5, max_tokens: 40 });
    await model.unload();
    // The model may open it.
    await open(`${TEMPLATE}{# <think></think><tool_call> #}`, marks);
    out.opened = await ask({ ...free, response_format, reasoning_budget: 3, seed: 6, logit_bias: { [SLOTS[0]]: 100 } });
    out.unopened = await ask({ ...free, response_format, seed: 7, logit_bias: { [SLOTS[0]]: -100 } });
    await model.unload();
    // Channels.
    await open(`${TEMPLATE}{# <|channel|><|message|> #}`, ["<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>"]);
    out.channels = await ask({ ...free, response_format, reasoning_budget: 10, seed: 8 });
    out.channelCall = await ask({ tool_choice: "required", reasoning_budget: 10, seed: 9 });
    await model.unload();
    return out;
  }, jsonSchema);
  for (const name of ["schema", "closed", "ended", "opened", "unopened", "channels"]) {
    const { message, finish } = found[name];
    assert.equal(finish, "stop", `${name}: ${JSON.stringify(found[name])}`);
    validate(SUM, JSON.parse(message.content));
  }
  const reasoned = (answer) => answer.usage.completion_tokens_details?.reasoning_tokens ?? 0;
  assert.ok(found.schema.message.reasoning_content.length > 5, JSON.stringify(found.schema));
  assert.ok(reasoned(found.schema) >= 12 && reasoned(found.schema) <= 16, `${reasoned(found.schema)}`);
  assert.equal(found.closed.message.reasoning_content, undefined);
  // A thought of markers alone has no text; its tokens count.
  assert.equal(found.opened.message.reasoning_content, undefined);
  assert.ok(reasoned(found.opened) >= 4 && reasoned(found.opened) <= 9, `${reasoned(found.opened)}`);
  assert.ok(found.channels.message.reasoning_content.length > 3, JSON.stringify(found.channels));
  for (const answer of [found.calls, found.channelCall]) {
    assertCalls(answer);
    assert.equal(answer.message.tool_calls.length, 1);
    assert.ok(answer.message.reasoning_content.length > 3);
  }
  assert.ok(reasoned(found.plain) >= 5 && reasoned(found.plain) <= 9);
  assert.ok(found.plain.message.content.length > 20);
  assert.equal(found.none.message.reasoning_content, undefined);
});

test("forced calls of an unknown format are refused by name", { timeout: PATIENCE }, async () => {
  const said = await page.evaluate(async () => {
    await open(TEMPLATE, []);
    return { call: await refusal(() => ask({ tool_choice: "required" })), budget: await refusal(() => ask({ tools: undefined, reasoning_budget: 5 })) };
  });
  assert.match(said.call, /^unsupported_option: .*'tools' is not supported/);
  assert.match(said.budget, /^unsupported_option: .*'reasoning_budget' is not supported/);
});
