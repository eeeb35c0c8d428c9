/**
 * The newest official clients, unmodified, over `createFetch` and the real engine in Chromium: openai, the AI SDK and LangChain. The
 * model tells stories; grammars give its answers their form.
 */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { openPackage } from "./support/engine.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";
import { collect, storyFiles, TEMPLATE } from "./support/story-files.mjs";

const PATIENCE = 300_000;

let site, page, folder;

before(async () => {
  await mkdir(join(ROOT, "target"), { recursive: true });
  folder = await mkdtemp(join(ROOT, "target", "clients-"));
  await build({
    entryPoints: [join(ROOT, "tests/page/clients/bundle.js")],
    bundle: true,
    format: "esm",
    platform: "browser",
    outfile: join(folder, "clients.js"),
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "silent",
  });
  site = await openPackage({ "/model/": STORIES, "/encoder/": join(ROOT, "www/public/models/words-encoder"), "/clients/": folder });
  page = site.page;
  await page.addScriptTag({ content: `${storyFiles}\n${collect}` });
  await page.evaluate(async (template) => {
    window.model = await jerboa.loadModel(await storyFiles(template));
    // Clients that send no seed or limit of their own: the server's defaults end each answer.
    window.served = jerboa.createFetch({ story: model, words: () => jerboa.loadModel(new URL("/encoder/", location.href)) });
    window.sent = [];
    window.fetchModel = (input, init) => {
      sent.push({ path: new URL(input instanceof Request ? input.url : input).pathname, body: typeof init?.body === "string" ? JSON.parse(init.body) : undefined });
      return served(input, init);
    };
    Object.assign(window, await import("/clients/clients.js"));
    const settings = { apiKey: "none", baseURL: "http://jerboa/v1", fetch: fetchModel };
    window.openai = new OpenAI({ ...settings, dangerouslyAllowBrowser: true, maxRetries: 0 });
    window.compatible = createOpenAICompatible({ name: "jerboa", ...settings, supportsStructuredOutputs: true, includeUsage: true });
    window.official = createOpenAI(settings);
    window.langchain = (more) => new ChatOpenAI({ model: "story", apiKey: "none", maxTokens: 150, temperature: 1, maxRetries: 0, configuration: { baseURL: settings.baseURL, fetch: fetchModel, dangerouslyAllowBrowser: true }, ...more });
    window.Person = z.object({ name: z.enum(["Tom", "Lily"]), age: z.int().min(1).max(9), likes: z.array(z.enum(["cats", "dogs"])).max(2) });
  }, TEMPLATE);
}, { timeout: PATIENCE });

after(async () => {
  await site?.close();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** Whether a value is of the schema `Person`. */
function assertPerson(value) {
  assert.ok(["Tom", "Lily"].includes(value.name), JSON.stringify(value));
  assert.ok(Number.isInteger(value.age) && value.age >= 1 && value.age <= 9, JSON.stringify(value));
  assert.ok(value.likes.length <= 2 && value.likes.every((each) => ["cats", "dogs"].includes(each)), JSON.stringify(value));
}

test("openai: chat, streams, parse, several answers, completions, embeddings, models", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const messages = [{ role: "user", content: "A cat." }];
    const base = { model: "story", messages, max_tokens: 12, temperature: 0 };
    const whole = await openai.chat.completions.create(base);
    const chunks = await collect(await openai.chat.completions.create({ ...base, stream: true, stream_options: { include_usage: true } }));
    const helper = openai.chat.completions.stream(base);
    const several = await openai.chat.completions.create({ ...base, n: 3, temperature: 1, seed: 3, logprobs: true, top_logprobs: 2 });
    const predicted = await openai.chat.completions.create({ ...base, prediction: { type: "content", content: whole.choices[0].message.content } });
    const parsed = await openai.chat.completions.parse({ ...base, max_tokens: 150, temperature: 1, seed: 1, response_format: zodResponseFormat(Person, "person") });
    const lists = await openai.completions.create({ model: "story", prompt: ["Once upon a time", [1, 403]], max_tokens: 8, temperature: 0, n: 1, logprobs: 2 });
    const best = await openai.completions.create({ model: "story", prompt: "Once", max_tokens: 6, temperature: 1, seed: 1, best_of: 3 });
    const vectors = await openai.embeddings.create({ model: "words", input: ["a cat", "a dog"] });
    const ids = await openai.embeddings.create({ model: "words", input: [[5, 6, 7]], encoding_format: "float" });
    return {
      whole: [whole.choices[0].message.content, whole.usage],
      chunks: [chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), chunks.at(-1).usage],
      helper: await helper.finalContent(),
      several: several.choices.map(({ index, message, logprobs }) => [index, message.content, logprobs.content.length]),
      usage: several.usage,
      predicted: [predicted.choices[0].message.content, predicted.usage.completion_tokens_details],
      parsed: parsed.choices[0].message.parsed,
      lists: lists.choices.map(({ text, logprobs }) => [text, logprobs.tokens.length, logprobs.top_logprobs.length]),
      best: [best.choices.length, best.usage.completion_tokens],
      vectors: [vectors.data.map(({ embedding }) => embedding.length), ids.data[0].embedding.length, vectors.usage.prompt_tokens],
      models: (await collect(await openai.models.list())).map(({ id }) => id),
    };
  });
  assert.equal(found.whole[1].completion_tokens, 12);
  assert.deepEqual(found.chunks[0], found.whole[0]);
  assert.equal(found.chunks[1].completion_tokens, 12);
  assert.equal(found.helper, found.whole[0]);
  assert.deepEqual(found.several.map(([index, , scores]) => [index, scores]), [[0, 12], [1, 12], [2, 12]]);
  assert.equal(new Set(found.several.map(([, text]) => text)).size, 3, "seeds count up");
  assert.equal(found.usage.completion_tokens, 36);
  assert.equal(found.usage.prompt_tokens, found.whole[1].prompt_tokens);
  assert.equal(found.predicted[0], found.whole[0], "a prediction never changes the answer");
  assertPerson(found.parsed);
  assert.deepEqual(found.lists.map(([, ...counts]) => counts), [[8, 8], [8, 8]]);
  assert.equal(found.lists[0][0].length > 0, true);
  assert.deepEqual(found.best, [1, 18]);
  const [[width, other], third, tokens] = found.vectors;
  assert.ok(width > 0 && width === other && width === third && tokens > 0);
  assert.deepEqual(found.models, ["story", "words"]);
});

test("openai: responses, streamed, parsed, and continued from the cache", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const base = { model: "story", max_output_tokens: 12, temperature: 0 };
    const first = await openai.responses.create({ ...base, input: "A cat." });
    const events = await collect(await openai.responses.create({ ...base, input: "A cat.", store: false, stream: true }));
    // Another conversation in between, which the first one's cache survives.
    await openai.responses.create({ ...base, input: "The sea." });
    const second = await openai.responses.create({ ...base, input: "And a dog.", previous_response_id: first.id });
    const alone = await openai.responses.create({ ...base, store: false, input: [{ role: "user", content: "A cat." }, ...first.output, { role: "user", content: "And a dog." }] });
    const parsed = await openai.responses.parse({ ...base, max_output_tokens: 150, temperature: 1, input: "A child.", text: { format: zodTextFormat(Person, "person") } });
    const stream = openai.responses.stream({ ...base, input: "A cat." });
    await openai.responses.delete(first.id);
    return {
      first: [first.output_text, first.status, first.incomplete_details?.reason, first.usage],
      types: events.map(({ type }) => type),
      streamed: events.at(-1).response.output_text,
      second: [second.output_text, second.usage],
      alone: alone.output_text,
      parsed: parsed.output_parsed,
      final: (await stream.finalResponse()).output_text,
      gone: await openai.responses.retrieve(first.id).then(() => 200, ({ status }) => status),
    };
  });
  const [text, status, reason, usage] = found.first;
  assert.ok(text.length > 0);
  assert.deepEqual([status, reason, usage.output_tokens], ["incomplete", "max_output_tokens", 12]);
  assert.deepEqual([found.types[0], found.types.at(-1), found.streamed, found.final], ["response.created", "response.incomplete", text, text]);
  assert.equal(found.second[0], found.alone);
  const { input_tokens: tokens, input_tokens_details: details } = found.second[1];
  assert.ok(details.cached_tokens > 4 && details.cached_tokens < tokens, `${details.cached_tokens} of ${tokens} cached`);
  assertPerson(found.parsed);
  assert.equal(found.gone, 404);
});

for (const provider of ["compatible", "official", "officialChat"]) {
  test(`AI SDK, ${provider}: texts, streams, objects, embeddings`, { timeout: PATIENCE }, async () => {
    const found = await page.evaluate(async (provider) => {
      const language = provider === "compatible" ? compatible("story") : provider === "official" ? official("story") : official.chat("story");
      const base = { model: language, prompt: "A cat.", maxOutputTokens: 12, temperature: 0 };
      const text = await ai.generateText(base);
      const streamed = ai.streamText(base);
      const pieces = await collect(streamed.textStream);
      const object = { model: language, prompt: "A child.", schema: Person, maxOutputTokens: 150, temperature: 1 };
      const generated = await ai.generateObject(object);
      const streaming = ai.streamObject(object);
      const partials = await collect(streaming.partialObjectStream);
      const output = await ai.generateText({ model: language, prompt: "A child.", output: ai.Output.object({ schema: Person }), maxOutputTokens: 150, temperature: 1 });
      const choice = await ai.generateText({ model: language, prompt: "A child.", output: ai.Output.choice({ options: ["yes", "no"] }), maxOutputTokens: 150, temperature: 1 });
      const vectors = provider === "official" ? await ai.embedMany({ model: official.embedding("words"), values: ["a", "b"] }) : await ai.embedMany({ model: compatible.embeddingModel("words"), values: ["a", "b"] });
      return {
        text: [text.text, text.finishReason, text.usage.outputTokens],
        streamed: [pieces.join(""), await streamed.finishReason, (await streamed.usage).outputTokens],
        objects: [generated.object, await streaming.object, output.output],
        partials: partials.length,
        choice: choice.output,
        vectors: vectors.embeddings.map(({ length }) => length),
      };
    }, provider);
    assert.deepEqual(found.text.slice(1), ["length", 12]);
    assert.deepEqual(found.streamed, found.text);
    found.objects.forEach(assertPerson);
    assert.ok(found.partials > 0);
    assert.ok(["yes", "no"].includes(found.choice));
    assert.ok(found.vectors.length === 2 && found.vectors[0] === found.vectors[1]);
  });
}

test("LangChain: invoke, stream, structured output, completions, embeddings", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const chat = langchain({ maxTokens: 12, temperature: 0 });
    const invoked = await chat.invoke("A cat.");
    const pieces = await collect(await chat.stream("A cat."));
    const batched = await chat.batch(["A cat.", "A dog."]);
    const schema = await langchain().withStructuredOutput(Person, { method: "jsonSchema" }).invoke("A child.");
    const responses = await langchain({ useResponsesApi: true, maxTokens: 16, temperature: 0 }).invoke("A cat.");
    const text = new LangChainOpenAI({ model: "story", apiKey: "none", maxTokens: 8, temperature: 0, configuration: { baseURL: "http://jerboa/v1", fetch: fetchModel, dangerouslyAllowBrowser: true } });
    const embeddings = new OpenAIEmbeddings({ model: "words", apiKey: "none", configuration: { baseURL: "http://jerboa/v1", fetch: fetchModel, dangerouslyAllowBrowser: true } });
    return {
      invoked: invoked.content,
      usage: invoked.usage_metadata.output_tokens,
      streamed: pieces.map(({ content }) => content).join(""),
      batched: batched.map(({ content }) => content.length > 0),
      schema,
      responses: responses.text,
      text: (await text.invoke("Once upon a time")).length,
      vectors: (await embeddings.embedDocuments(["a cat", "a dog"])).map(({ length }) => length),
    };
  });
  assert.equal(found.usage, 12);
  assert.equal(found.streamed, found.invoked);
  assert.deepEqual(found.batched, [true, true]);
  assertPerson(found.schema);
  assert.ok(found.responses.startsWith(found.invoked), `${found.responses} | ${found.invoked}`);
  assert.ok(found.text > 0);
  assert.ok(found.vectors[0] > 0 && found.vectors[0] === found.vectors[1]);
});

test("openai: tools with every choice, runTools, and calls of responses", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const calls = [];
    const parameters = { type: "object", properties: { city: { enum: ["Oslo", "Rome"] } }, required: ["city"], additionalProperties: false };
    const fn = (name) => ({ type: "function", function: { name, parameters, strict: true } });
    const tools = [fn("weather"), fn("time")];
    const base = { model: "story", messages: [{ role: "user", content: "Oslo?" }], tools, parallel_tool_calls: false, max_tokens: 80, temperature: 1, seed: 1 };
    const choose = async (tool_choice) => (await openai.chat.completions.create({ ...base, tool_choice })).choices[0];
    const required = await choose("required");
    const named = await choose({ type: "function", function: { name: "time" } });
    const none = await openai.chat.completions.create({ ...base, tool_choice: "none", max_tokens: 8 });
    const streamed = await collect(await openai.chat.completions.create({ ...base, tool_choice: "required", stream: true }));
    const runner = openai.chat.completions.runTools(
      { ...base, tool_choice: { type: "function", function: { name: "weather" } }, tools: [{ type: "function", function: { name: "weather", parameters, parse: JSON.parse, function: ({ city }) => (calls.push(city), `sun in ${city}`) } }] },
      { maxChatCompletions: 1 },
    );
    await runner.done();
    const responseTools = tools.map(({ type, function: f }) => ({ type, ...f }));
    const response = await openai.responses.create({ model: "story", input: "Oslo?", tools: responseTools, tool_choice: "required", parallel_tool_calls: false, max_output_tokens: 80 });
    const after = await openai.responses.create({ model: "story", previous_response_id: response.id, input: response.output.filter(({ type }) => type === "function_call").map(({ call_id }) => ({ type: "function_call_output", call_id, output: "sun" })), max_output_tokens: 8 });
    const pick = (choice) => [choice.finish_reason, choice.message.tool_calls?.map((call) => [call.function.name, JSON.parse(call.function.arguments)])];
    return {
      required: pick(required),
      named: pick(named),
      none: none.choices[0].finish_reason,
      streamed: streamed.map((chunk) => chunk.choices[0]?.delta.tool_calls?.[0]?.function.name ?? "").join(""),
      calls,
      response: response.output.map(({ type, name }) => [type, name]),
      after: after.output_text.length,
    };
  });
  assert.equal(found.required[0], "tool_calls");
  for (const [name, given] of found.required[1]) assert.ok(["weather", "time"].includes(name) && ["Oslo", "Rome"].includes(given.city));
  assert.deepEqual([found.named[0], found.named[1].length, found.named[1][0][0]], ["tool_calls", 1, "time"]);
  assert.equal(found.none, "length");
  assert.match(found.streamed, /^(weather|time)/);
  assert.ok(found.calls.length === 1 && ["Oslo", "Rome"].includes(found.calls[0]), JSON.stringify(found.calls));
  assert.ok(found.response.length > 0 && found.response.every(([type]) => type === "function_call"), JSON.stringify(found.response));
  assert.ok(found.after > 0);
});

test("LangChain: bindTools with \"any\", structured output by functions and by JSON", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const weather = langchainTool(({ city }) => `sun in ${city}`, { name: "weather", description: "Weather.", schema: z.object({ city: z.enum(["Oslo", "Rome"]) }) });
    const bound = await langchain().bindTools([weather], { tool_choice: "any" }).invoke("Oslo?");
    const named = await langchain().bindTools([weather], { tool_choice: "weather" }).invoke("Oslo?");
    const byFunction = await langchain().withStructuredOutput(Person, { method: "functionCalling", name: "person" }).invoke("A child.");
    const Any = z.record(z.string(), z.unknown());
    const byJson = await langchain({ maxTokens: 200, modelKwargs: { seed: 1, logit_bias: {} } }).withStructuredOutput(Any, { method: "jsonMode", includeRaw: true }).invoke("Answer in JSON.");
    return { bound: bound.tool_calls.map(({ name, args }) => [name, args.city]), named: named.tool_calls[0].name, byFunction, byJson: typeof byJson.raw.content };
  });
  assert.ok(found.bound.length > 0 && found.bound.every(([name, city]) => name === "weather" && ["Oslo", "Rome"].includes(city)), JSON.stringify(found.bound));
  assert.equal(found.named, "weather");
  assertPerson(found.byFunction);
  assert.equal(found.byJson, "string");
});
