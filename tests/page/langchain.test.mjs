/** jerboa/langchain in Chromium over the real engine: chat, streams, tools, structured output, embeddings. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { openPackage } from "./support/engine.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";
import { collect, storyFiles, TEMPLATE } from "./support/story-files.mjs";

const options = { timeout: 600_000 };
let site, page, folder;

before(async () => {
  await mkdir(join(ROOT, "target"), { recursive: true });
  folder = await mkdtemp(join(ROOT, "target", "langchain-"));
  await build({
    entryPoints: [join(ROOT, "tests/page/integrations/langchain.js")],
    bundle: true,
    format: "esm",
    platform: "browser",
    outdir: folder,
    define: { "process.env.NODE_ENV": '"production"' },
    // The page's own package, and the integration over it.
    alias: { "jerboa/langchain": `${PACKAGE}/langchain/index.js` },
    plugins: [{ name: "one-package", setup: ({ onResolve }) => onResolve({ filter: /^\.\.\/index\.js$/ }, () => ({ path: "/index.js", external: true })) }],
    logLevel: "silent",
  });
  site = await openPackage({ "/model/": STORIES, "/models/": join(ROOT, "www/public/models"), "/bundle/": folder });
  page = site.page;
  await page.addScriptTag({ content: `${storyFiles}\n${collect}` });
  await page.evaluate(async (template) => {
    Object.assign(window, await import("/bundle/langchain.js"));
    window.loads = 0;
    window.source = async () => {
      loads++;
      return jerboa.loadModel(await storyFiles(template), { tune: "off" });
    };
    /** The id of a text's last token. */
    window.lastToken = async (text) => (await (await new ChatJerboa({ model: source }).loader.load()).tokenize(text, { parseSpecial: true })).at(-1);
    window.Person = z.object({ name: z.enum(["Tom", "Lily"]), age: z.int().min(1).max(9) });
    window.weather = tool(async ({ city }) => `${city}: 7 degrees`, { name: "weather", description: "The weather", schema: z.object({ city: z.enum(["Oslo", "Bergen"]) }) });
  }, TEMPLATE);
}, options);

after(async () => {
  await site?.close();
  if (folder) await rm(folder, { recursive: true, force: true });
});

test("invoke, stream, batch and chains give the engine's text, loaded once", options, async () => {
  const found = await page.evaluate(async () => {
    const chat = new ChatJerboa({ model: source, maxTokens: 8, temperature: 0 });
    const before = [loads, chat.loader.state.status];
    const answer = await chat.invoke("A cat.");
    const chunks = await collect(await new ChatJerboa({ model: source, maxTokens: 8, temperature: 0 }).stream("A cat."));
    const chain = ChatPromptTemplate.fromMessages([["human", "A {animal}."]]).pipe(chat).pipe(new StringOutputParser());
    const stopped = await chat.invoke([new SystemMessage("A dog."), new HumanMessage("A cat.")], { stop: [" "] });
    const direct = await (await chat.loader.load()).chat.completions.create({ messages: [{ role: "user", content: "A cat." }], max_tokens: 8, temperature: 0 });
    return {
      before,
      loads,
      answer: [answer.text, answer.usage_metadata, answer.response_metadata.finish_reason],
      streamed: [chunks.map(({ text }) => text).join(""), chunks.length, chunks.reduce((a, b) => a.concat(b)).usage_metadata.output_tokens],
      chain: await chain.invoke({ animal: "cat" }),
      stopped: stopped.text,
      direct: direct.choices[0].message.content,
    };
  });
  assert.deepEqual(found.before, [0, "idle"]);
  assert.equal(found.loads, 1);
  const [text, usage, reason] = found.answer;
  assert.deepEqual([text, reason, usage.output_tokens, found.chain], [found.direct, "length", 8, text]);
  assert.equal(found.streamed[0], text);
  assert.ok(found.streamed[1] > 3);
  assert.equal(found.streamed[2], 8);
  assert.ok(!found.stopped.trim().includes(" "), found.stopped);
});

test("tools: a forced call, and the conversation with its result", options, async () => {
  const found = await page.evaluate(async () => {
    const chat = new ChatJerboa({ model: source, maxTokens: 80, temperature: 1, seed: 2, request: { parallel_tool_calls: false } });
    const called = await chat.bindTools([weather], { tool_choice: "any" }).invoke("A cat.");
    const streamed = (await collect(await chat.bindTools([weather], { tool_choice: "weather" }).stream("A cat."))).reduce((a, b) => a.concat(b));
    const [call] = called.tool_calls;
    const result = await weather.invoke(call);
    const answer = await new ChatJerboa({ model: source, maxTokens: 4, temperature: 0 }).invoke([new HumanMessage("A cat."), called, result]);
    const rendered = await (await chat.loader.load()).renderChat([{ role: "user", content: "A cat." }, { role: "assistant", content: "", tool_calls: [{ id: call.id, type: "function", function: { name: "weather", arguments: JSON.stringify(call.args) } }] }, { role: "tool", tool_call_id: call.id, content: result.content }]);
    return { calls: called.tool_calls, streamed: streamed.tool_calls, result: [result.content, result.tool_call_id === call.id], tokens: answer.usage_metadata, rendered };
  });
  for (const [call, ...more] of [found.calls, found.streamed]) {
    assert.deepEqual(more, []);
    assert.equal(call.name, "weather");
    assert.ok(["Oslo", "Bergen"].includes(call.args.city), JSON.stringify(call));
  }
  assert.deepEqual(found.result, [`${found.calls[0].args.city}: 7 degrees`, true]);
  assert.ok(found.rendered.includes("<tool_call>weather</tool_call>") && found.rendered.includes("7 degrees"));
  assert.equal(found.tokens.output_tokens, 4);
});

test("structured output by each method, whole and streamed", options, async () => {
  const found = await page.evaluate(async () => {
    const settings = { model: source, maxTokens: 80, temperature: 0 };
    const Pet = z.object({ kind: z.enum(["cat", "dog"]), tame: z.boolean() });
    const last = async (runnable) => (await collect(await runnable.stream("A pet."))).at(-1);
    const both = async (runnable) => [await runnable.invoke("A pet."), await last(runnable)];
    const bySchema = new ChatJerboa(settings).withStructuredOutput(Pet, { method: "jsonSchema" });
    const byCall = new ChatJerboa(settings).withStructuredOutput(Pet, { method: "functionCalling", name: "pet" });
    // Any object may be of any length: the bias makes it end after one member.
    const short = new ChatJerboa({ ...settings, request: { logit_bias: { [await lastToken('}"')]: 100, [await lastToken('"}')]: 90 } } });
    const byMode = short.withStructuredOutput(z.record(z.string(), z.string()), { method: "jsonMode" });
    const raw = await short.withStructuredOutput({ type: "object" }, { method: "jsonMode", includeRaw: true }).invoke("A pet.");
    return { pets: [...(await both(bySchema)), ...(await both(byCall))], modes: await both(byMode), raw: [raw.raw.text, raw.parsed, raw.raw.response_metadata.finish_reason] };
  });
  for (const pet of found.pets) assert.ok(["cat", "dog"].includes(pet.kind) && typeof pet.tame === "boolean" && Object.keys(pet).length === 2, JSON.stringify(found.pets));
  assert.deepEqual(found.pets[1], found.pets[0]);
  assert.deepEqual(found.pets[3], found.pets[2]);
  const [text, parsed, reason] = found.raw;
  assert.equal(reason, "stop");
  assert.deepEqual(JSON.parse(text), parsed);
  assert.equal(Object.keys(parsed).length, 1);
  for (const mode of found.modes) assert.deepEqual(mode, parsed);
});

test("bindTools: \"any\" calls the only tool or one of several", options, async () => {
  const found = await page.evaluate(async () => {
    const tell = tool(async ({ mood }) => mood, { name: "tell", description: "A mood", schema: z.object({ mood: z.enum(["glad", "sad"]) }) });
    // Several calls may follow each other: the bias ends the answer after the first.
    const chat = new ChatJerboa({ model: source, maxTokens: 80, temperature: 0, request: { logit_bias: { [await lastToken("</s>")]: 100 } } });
    const run = async (tools) => {
      const bound = chat.bindTools(tools, { tool_choice: "any" });
      const streamed = (await collect(await bound.stream("A cat."))).reduce((a, b) => a.concat(b));
      return [await bound.invoke("A cat."), streamed].map(({ tool_calls: calls, response_metadata: { finish_reason: reason }, text }) => ({ calls: calls.map(({ name, args, id }) => [name, args, Boolean(id)]), reason, text }));
    };
    const free = await Promise.all(["auto", "none"].map((tool_choice) => chat.bindTools([weather, tell], { tool_choice }).invoke("A cat.")));
    return { one: await run([tell]), several: await run([weather, tell]), other: await run([tell, weather]), free: free.map(({ tool_calls }) => tool_calls.length) };
  });
  const args = { weather: [{ city: "Oslo" }, { city: "Bergen" }], tell: [{ mood: "glad" }, { mood: "sad" }] };
  for (const [kind, names] of [["one", ["tell"]], ["several", ["weather", "tell"]], ["other", ["weather", "tell"]]]) {
    const [whole, streamed] = found[kind];
    assert.deepEqual([whole.calls.length, whole.reason, whole.text], [1, "tool_calls", ""], kind);
    const [[name, given, identified]] = whole.calls;
    assert.ok(names.includes(name) && identified && args[name].some((each) => JSON.stringify(each) === JSON.stringify(given)), JSON.stringify(whole));
    assert.deepEqual(streamed, whole, kind);
  }
  assert.deepEqual(found.free, [0, 0]);
});

test("structured output by schema and by a call; the raw message; a wrong method", options, async () => {
  const found = await page.evaluate(async () => {
    const chat = new ChatJerboa({ model: source, maxTokens: 80, temperature: 1, seed: 1 });
    const bySchema = await chat.withStructuredOutput(Person).invoke("A child.");
    const byCall = await chat.withStructuredOutput(Person, { method: "functionCalling", includeRaw: true }).invoke("A child.");
    const json = { type: "object", properties: { age: { type: "integer", minimum: 1, maximum: 9 } }, required: ["age"], additionalProperties: false };
    const plain = await chat.withStructuredOutput(json).invoke("A child.");
    let refused;
    try {
      chat.withStructuredOutput(Person, { method: "words" });
    } catch ({ code, message }) {
      refused = `${code}: ${message}`;
    }
    return { people: [bySchema, byCall.parsed], raw: byCall.raw.tool_calls.length, plain, refused };
  });
  for (const { name, age } of found.people) assert.ok(["Tom", "Lily"].includes(name) && age >= 1 && age <= 9, `${name} ${age}`);
  assert.equal(found.raw, 1);
  assert.ok(found.plain.age >= 1 && found.plain.age <= 9);
  assert.match(found.refused, /request: withStructuredOutput: 'method' must be .* not 'words'/);
});

test("an abort ends the answer; the model goes on with the next", options, async () => {
  const found = await page.evaluate(async () => {
    const controller = new AbortController();
    const chat = new ChatJerboa({ model: source, maxTokens: 200, temperature: 0 });
    const chunks = [];
    const ended = (async () => {
      for await (const chunk of await chat.stream("A cat.", { signal: controller.signal })) {
        chunks.push(chunk.text);
        controller.abort();
      }
    })();
    const end = await ended.then(() => "done", ({ name, message }) => `${name}: ${message}`);
    const next = await new ChatJerboa({ model: source, maxTokens: 3, temperature: 0 }).invoke("A dog.");
    return { end, chunks: chunks.length, next: next.usage_metadata.output_tokens };
  });
  assert.match(found.end, /abort/i);
  assert.ok(found.chunks < 50);
  assert.equal(found.next, 3);
});

test("a tool's result may have images, and a model that is missing is named", options, async () => {
  const found = await page.evaluate(async () => {
    const sent = [];
    const create = async ({ messages }) => {
      sent.push(messages.at(-1));
      return (async function* () { yield { choices: [{ delta: { content: "A cat." }, finish_reason: "stop" }] }; })();
    };
    const chat = new ChatJerboa({ model: { info: { model: "stub" }, chat: { completions: { create } } } });
    const image = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
    for (const content of ["text", [{ type: "text", text: "A photo:" }, image], [{ type: "image", source_type: "base64", mime_type: "image/png", data: "AAAA" }]]) {
      await chat.invoke([new HumanMessage("Look."), new ToolMessage({ content, tool_call_id: "1" })]);
    }
    const missing = [() => new JerboaEmbeddings({}), () => new ChatJerboa({}), () => new ChatJerboa({ model: null })].map((make) => {
      try {
        return make();
      } catch ({ code, message }) {
        return `${code}: ${message}`;
      }
    });
    return { sent, missing };
  });
  const image = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
  assert.deepEqual(found.sent, ["text", [{ type: "text", text: "A photo:" }, image], [image]].map((content) => ({ role: "tool", content, tool_call_id: "1" })));
  for (const message of found.missing) assert.match(message, /^request: The model is (undefined|null)\. Pass a name/);
});

test("embeddings of documents and queries", options, async () => {
  const found = await page.evaluate(async () => {
    const embeddings = new JerboaEmbeddings({ model: new URL("/models/words-encoder/", location.href), load: { tune: "off" } });
    const vectors = await embeddings.embedDocuments(["a cat", "a dog"]);
    const query = await embeddings.embedQuery("a cat");
    const model = await embeddings.loader.load();
    const of = async (text, task) => [...(await model.embed(text, model.info.prompts?.[task] === undefined ? {} : { task }))];
    return { vectors, query, direct: [await of("a cat", "document"), await of("a dog", "document")], asked: await of("a cat", "query"), state: embeddings.loader.state.status };
  });
  assert.deepEqual(found.vectors, found.direct);
  assert.deepEqual(found.query, found.asked);
  assert.equal(found.state, "ready");
});
