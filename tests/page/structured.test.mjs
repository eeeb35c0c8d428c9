/** Structured output with the real engine in Chromium: schemas, grammars and choices, whole and streamed, in sessions, and refusals. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { openPackage } from "./support/engine.mjs";
import { STORIES } from "./support/paths.mjs";
import { AWKWARD } from "./support/schemas.mjs";

const PATIENCE = 240_000;

let site, page;

before(async () => {
  site = await openPackage({ "/model/": STORIES });
  page = site.page;
  await page.evaluate(async () => {
    const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
    const files = await Promise.all(names.map(async (name) => new File([await (await fetch(`/model/${name}`)).blob()], name)));
    files.push(new File(["{% for m in messages %}{{ m.content }}{% endfor %}"], "chat_template.jinja"));
    window.model = await jerboa.loadModel(files);
    window.messages = [{ role: "user", content: "Once upon a time" }];
    window.answer = async (params) => {
      const { choices, usage } = await model.chat.completions.create({ messages, temperature: 1, max_tokens: 160, ...params });
      return { text: choices[0].message.content, finish: choices[0].finish_reason, tokens: usage.completion_tokens };
    };
    window.refusal = (call) => call().then(() => "no error", (error) => `${error.code}: ${error.message}`);
  });
}, { timeout: PATIENCE });

after(async () => {
  await site?.close();
});

const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 }, pet: { enum: ["cat", "dog", null] } },
  required: ["name", "age", "pet"],
  additionalProperties: false,
};

const jsonSchema = (schema) => ({ type: "json_schema", json_schema: { name: "answer", schema, strict: true } });

function assertValid(schema, { text, finish }) {
  if (finish === "length") return false;
  const ajv = new Ajv2020({ strict: false, logger: false });
  addFormats.default(ajv);
  const validate = ajv.compile(schema);
  assert.ok(validate(JSON.parse(text)), `${JSON.stringify(schema)}: ${text}: ${JSON.stringify(validate.errors)}`);
  return true;
}

test("answers match a schema at temperature 0 and 1, with penalties and log-probabilities", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async (response_format) => {
    const out = [];
    for (const more of [{ temperature: 0 }, { seed: 1 }, { seed: 2, repetition_penalty: 1.3 }, { seed: 3, top_p: 0.9, logprobs: true }, { seed: 4, logit_bias: { 30: 5 } }]) out.push(await answer({ response_format, ...more }));
    return out;
  }, jsonSchema(PERSON));
  assert.ok(found.filter((one) => assertValid(PERSON, one)).length >= 3, JSON.stringify(found));
});

test("a seed repeats an answer, and its stream adds up to it", { timeout: PATIENCE }, async () => {
  const { whole, again, streamed, finish } = await page.evaluate(async (response_format) => {
    const params = { response_format, seed: 5 };
    let streamed = "", finish;
    for await (const chunk of await model.chat.completions.create({ messages, temperature: 1, max_tokens: 160, ...params, stream: true })) {
      streamed += chunk.choices[0]?.delta.content ?? "";
      finish ??= chunk.choices[0]?.finish_reason ?? undefined;
    }
    return { whole: await answer(params), again: await answer(params), streamed, finish };
  }, jsonSchema(PERSON));
  assert.deepEqual(whole, again);
  assert.deepEqual([streamed, finish], [whole.text, whole.finish]);
});

test("awkward schemas give valid answers or end by length", { timeout: PATIENCE }, async () => {
  const schemas = AWKWARD.filter((schema) => typeof schema === "object").slice(0, 24);
  const found = await page.evaluate(async (formats) => {
    const out = [];
    for (const [seed, response_format] of formats.entries()) out.push(await answer({ response_format, seed, max_tokens: 60 }));
    return out;
  }, schemas.map(jsonSchema));
  const ended = schemas.filter((schema, i) => assertValid(schema, found[i]));
  assert.ok(ended.length >= schemas.length / 2, `${ended.length} of ${schemas.length} ended`);
});

test("json_object, expressions, choices and grammars", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => ({
    object: await answer({ response_format: { type: "json_object" }, seed: 1 }),
    regex: await answer({ grammar: { type: "regex", pattern: "[a-c]{3}-[0-9]{2}" }, seed: 1 }),
    choice: await answer({ grammar: { type: "choice", choices: ["a red fox", "an owl"] }, temperature: 0 }),
    gbnf: await answer({ grammar: { type: "gbnf", grammar: 'root ::= ("x" [0-9]){2} "."' }, seed: 2 }),
    lark: (await model.generate("Once", { grammar: { type: "lark", grammar: 'start: "yes" | "no"' }, temperature: 0 }).details).text,
  }));
  if (found.object.finish === "stop") assert.equal(typeof JSON.parse(found.object.text), "object");
  assert.match(found.regex.text, /^[a-c]{3}-[0-9]{2}$/);
  assert.ok(["a red fox", "an owl"].includes(found.choice.text), found.choice.text);
  assert.match(found.gbnf.text, /^x[0-9]x[0-9]\.$/);
  assert.ok(["yes", "no"].includes(found.lark), found.lark);
});

test("max_tokens ends a document with finish_reason length, and sessions have grammars of their own", { timeout: PATIENCE }, async () => {
  const { cut, texts } = await page.evaluate(async (response_format) => {
    const cut = await answer({ response_format, max_tokens: 3, seed: 1 });
    const sessions = await Promise.all(["alpha", "beta"].map(async (word) => ({ word, session: await model.createSession() })));
    const texts = await Promise.all(sessions.map(async ({ word, session }) => {
      const { text } = await session.generate("Once", { grammar: { type: "choice", choices: [word] } }).details;
      return text === word;
    }));
    return { cut, texts };
  }, jsonSchema(PERSON));
  assert.deepEqual([cut.finish, cut.tokens], ["length", 3]);
  assert.deepEqual(texts, [true, true]);
});

test("a stop string ends a document with finish_reason stop, and is not part of it", { timeout: PATIENCE }, async () => {
  const { whole, cut, pieces } = await page.evaluate(async (response_format) => {
    const whole = await answer({ response_format, temperature: 0 });
    const cut = await answer({ response_format, temperature: 0, stop: ":" });
    const stream = await model.chat.completions.create({ messages, response_format, temperature: 0, max_tokens: 160, stop: [":"], stream: true });
    const pieces = [];
    for await (const { choices: [choice] } of stream) pieces.push([choice.delta.content ?? "", choice.finish_reason]);
    return { whole, cut, pieces };
  }, jsonSchema(PERSON));
  const before = whole.text.slice(0, whole.text.indexOf(":"));
  assert.ok(before.startsWith("{"), whole.text);
  assert.deepEqual([cut.text, cut.finish], [before, "stop"]);
  assert.deepEqual([pieces.map(([text]) => text).join(""), pieces.at(-1)[1]], [before, "stop"]);
});

test("what cannot be enforced is refused by name, and the model stays usable", { timeout: PATIENCE }, async () => {
  const said = await page.evaluate(async () => {
    const schema = (schema) => ({ response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
    return {
      unique: await refusal(() => answer(schema({ type: "array", uniqueItems: true }))),
      broken: await refusal(() => answer({ grammar: { type: "regex", pattern: "(" } })),
      unknown: await refusal(() => answer({ grammar: { type: "sql" } })),
      both: await refusal(() => answer({ grammar: { type: "choice", choices: ["a"] }, response_format: { type: "json_object" } })),
      after: (await answer({ max_tokens: 2 })).tokens,
    };
  });
  assert.match(said.unique, /^request: .*uniqueItems/);
  assert.match(said.broken, /^request: .*regular expression/);
  assert.match(said.unknown, /^request: .*unknown type of grammar 'sql'.*json_schema/);
  assert.match(said.both, /^request: .*Set one of them/);
  assert.equal(said.after, 2);
});

test("a checkpoint without an end token is refused by name", { timeout: PATIENCE }, async () => {
  const said = await page.evaluate(async () => {
    const load = async (name) => (await fetch(`/model/${name}`)).blob();
    const without = async (name, key) => {
      const { [key]: _, ...rest } = JSON.parse(await (await load(name)).text());
      return new File([JSON.stringify(rest)], name);
    };
    const files = [await without("config.json", "eos_token_id"), await without("tokenizer_config.json", "eos_token")];
    for (const name of ["tokenizer.json", "model.safetensors"]) files.push(new File([await load(name)], name));
    files.push(new File(["{% for m in messages %}{{ m.content }}{% endfor %}"], "chat_template.jinja"));
    const endless = await jerboa.loadModel(files);
    const said = await refusal(() => endless.chat.completions.create({ messages, max_tokens: 3, grammar: { type: "regex", pattern: "[a-z]+" } }));
    await endless.unload();
    return said;
  });
  assert.match(said, /^tokenizer: Structured output is not available: .*no end-of-text token.*eos_token_id/);
});
