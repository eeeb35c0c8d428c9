/** jerboa/ai in Chromium: the AI SDK's own functions over the real engine, and over the fake one where no tiny checkpoint exists. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { openPackage } from "./support/engine.mjs";
import { buildFacade } from "./support/facade.mjs";
import { ROOT, STORIES } from "./support/paths.mjs";
import { collect, storyFiles, TEMPLATE } from "./support/story-files.mjs";
import { wav } from "./support/wav.mjs";

const PATIENCE = 300_000;
const GOLDEN = `${ROOT}/tests/golden`;

let site, page, folder, facade;

before(async () => {
  await mkdir(join(ROOT, "target"), { recursive: true });
  folder = await mkdtemp(join(ROOT, "target", "ai-sdk-"));
  const entry = join(ROOT, "tests/page/integrations/ai.js");
  await build({ entryPoints: [entry], bundle: true, format: "esm", platform: "browser", outdir: folder, define: { "process.env.NODE_ENV": '"production"' }, logLevel: "silent" });
  facade = await buildFacade();
  site = await openPackage({
    "/model/": STORIES,
    "/models/": join(ROOT, "www/public/models"),
    "/whisper/": `${GOLDEN}/speech/whisper_words`,
    "/images/": `${GOLDEN}/vision/files`,
    "/bundle/": folder,
    "/facade/": facade.folder,
  });
  page = site.page;
  await page.addScriptTag({ content: `${storyFiles}\n${collect}` });
  await page.evaluate(async (template) => {
    Object.assign(window, await import("/bundle/ai.js"), { provider: await import("/ai/index.js") });
    window.loads = 0;
    window.local = provider.createJerboa({
      models: {
        story: async () => {
          loads++;
          return jerboa.loadModel(await storyFiles(template));
        },
        words: new URL("/models/words-encoder/", location.href),
        vision: new URL("/models/tiny-vision/", location.href),
        whisper: new URL("/whisper/", location.href),
      },
      load: { tune: "off" },
    });
    window.story = local("story");
    window.Person = z.object({ name: z.enum(["Tom", "Lily"]), age: z.int().min(1).max(9) });
  }, TEMPLATE);
}, { timeout: PATIENCE });

after(async () => {
  await site?.close();
  await facade?.remove();
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** Whether a value is of the schema `Person`. */
function assertPerson(value) {
  assert.ok(["Tom", "Lily"].includes(value.name), JSON.stringify(value));
  assert.ok(Number.isInteger(value.age) && value.age >= 1 && value.age <= 9, JSON.stringify(value));
}

test("texts and streams, loaded once with the first call", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const before = [loads, story.state.status];
    const base = { model: story, prompt: "A cat.", maxOutputTokens: 12, temperature: 0 };
    const [text, again] = await Promise.all([ai.generateText(base), ai.generateText({ ...base, model: local.languageModel("story") })]);
    const streamed = ai.streamText({ ...base, topK: 40, seed: 3 });
    const pieces = await collect(streamed.textStream);
    const stopped = await ai.generateText({ ...base, maxOutputTokens: 40, stopSequences: ["."] });
    const same = await (await story.load()).chat.completions.create({ messages: [{ role: "user", content: "A cat." }], max_tokens: 12, temperature: 0 });
    return {
      before,
      after: [loads, story.state.status],
      text: [text.text, text.finishReason, text.usage, text.warnings ?? [], text.response.modelId],
      timings: text.providerMetadata.jerboa.timings,
      again: again.text,
      streamed: [pieces.join(""), await streamed.finishReason, (await streamed.usage).outputTokens],
      stopped: [stopped.text, stopped.finishReason],
      same: same.choices[0].message.content,
    };
  });
  assert.deepEqual(found.before, [0, "idle"]);
  assert.deepEqual(found.after, [1, "ready"]);
  const [text, reason, usage, warnings] = found.text;
  assert.deepEqual([text, reason, usage.outputTokens, warnings], [found.same, "length", 12, []]);
  assert.ok(usage.inputTokens > 4 && usage.inputTokenDetails.cacheReadTokens >= 0, JSON.stringify(usage));
  assert.ok(found.timings.decode_ms > 0);
  assert.equal(found.again, text);
  assert.deepEqual(found.streamed, [text, "length", 12]);
  assert.ok(found.stopped[1] === "stop" && !found.stopped[0].includes("."), found.stopped[0]);
});

test("objects and streams of them", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const base = { model: story, prompt: "A child.", maxOutputTokens: 80, temperature: 1, seed: 1 };
    const generated = await ai.generateObject({ ...base, schema: Person });
    const streaming = ai.streamObject({ ...base, schema: Person });
    const partials = await collect(streaming.partialObjectStream);
    const output = await ai.generateText({ ...base, output: ai.Output.object({ schema: Person }) });
    return { objects: [generated.object, await streaming.object, output.output], partials: partials.length };
  });
  found.objects.forEach(assertPerson);
  assert.deepEqual(found.objects[1], found.objects[0], "a seed decides the object");
  assert.ok(found.partials > 1);
});

test("tools: forced calls, streamed input, several steps", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const runs = [];
    const weather = ai.tool({ inputSchema: z.object({ city: z.enum(["Oslo", "Bergen"]) }), execute: async (input) => (runs.push(input), { celsius: 7 }) });
    const base = { model: story, tools: { weather }, prompt: "A cat.", maxOutputTokens: 80, temperature: 1, seed: 2, providerOptions: { jerboa: { parallel_tool_calls: false } } };
    const forced = await ai.generateText({ ...base, toolChoice: "required" });
    const named = ai.streamText({ ...base, toolChoice: { type: "tool", toolName: "weather" } });
    const parts = await collect(named.fullStream);
    // The second step answers, since the call is forced in the first one only.
    const steps = await ai.generateText({ ...base, stopWhen: ai.stepCountIs(2), prepareStep: ({ stepNumber }) => (stepNumber === 0 ? { toolChoice: "required" } : { toolChoice: "none" }) });
    return {
      forced: [forced.toolCalls.map(({ toolName, input }) => [toolName, input]), forced.toolResults.map(({ output }) => output), forced.finishReason],
      types: parts.map(({ type }) => type),
      input: [parts.filter(({ type }) => type === "tool-input-delta").map(({ delta }) => delta).join(""), (await named.toolCalls)[0].input],
      steps: [steps.steps.length, steps.steps[0].finishReason, steps.text.length > 0],
      runs,
    };
  });
  const [calls, results, reason] = found.forced;
  assert.equal(calls.length, 1);
  assert.ok(calls.every(([name, { city }]) => name === "weather" && ["Oslo", "Bergen"].includes(city)), JSON.stringify(calls));
  assert.deepEqual([results[0], reason], [{ celsius: 7 }, "tool-calls"]);
  assert.deepEqual(JSON.parse(found.input[0]), found.input[1]);
  for (const type of ["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result", "finish"]) assert.ok(found.types.includes(type), `${type} of ${found.types}`);
  assert.deepEqual(found.steps, [2, "tool-calls", true]);
  assert.equal(found.runs.length, 3, "each call ran once");
});

test("every tool choice, agents and objects over several steps", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const ran = [];
    const weather = ai.tool({ description: "Weather.", inputSchema: z.object({ city: z.enum(["Oslo", "Rome"]) }), execute: async ({ city }) => (ran.push(city), { city, celsius: 21 }) });
    const providerOptions = { jerboa: { parallel_tool_calls: false } };
    const base = { model: story, prompt: "Oslo?", tools: { weather }, maxOutputTokens: 80, temperature: 1, seed: 5, providerOptions };
    const of = ({ finishReason, toolCalls, toolResults, text }) => ({ finishReason, called: toolCalls.map(({ toolName }) => toolName), results: toolResults.length, text: text.length > 0 });
    const choices = {};
    for (const toolChoice of ["auto", "none", "required", { type: "tool", toolName: "weather" }]) {
      const name = toolChoice.type ?? toolChoice;
      // Without a force the model answers in text, which ends at the limit.
      const options = { ...base, toolChoice, ...(["auto", "none"].includes(name) ? { maxOutputTokens: 8 } : {}) };
      const streamed = ai.streamText(options);
      await streamed.consumeStream();
      choices[name] = [of(await ai.generateText(options)), { called: (await streamed.toolCalls).map(({ toolName }) => toolName), finishReason: await streamed.finishReason }];
    }
    const agent = new ai.ToolLoopAgent({ model: story, tools: { weather }, stopWhen: ai.stepCountIs(3), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? "required" : "none" }), maxOutputTokens: 80, temperature: 1, seed: 5, providerOptions });
    const acted = await agent.generate({ prompt: "Oslo?" });
    // Three tools in turn, each with the results before it, then an answer that follows a schema.
    const order = ["locate", "weather", "convert"];
    const step = (description, inputSchema, execute) => ai.tool({ description, inputSchema, execute });
    const loop = await ai.generateText({
      ...base,
      tools: { locate: step("Place.", z.object({ near: z.boolean() }), () => ({ city: "Oslo" })), weather, convert: step("Units.", z.object({ to: z.enum(["F", "K"]) }), ({ to }) => ({ unit: to })) },
      stopWhen: ai.stepCountIs(4),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 3 ? { type: "tool", toolName: order[stepNumber] } : "none" }),
      output: ai.Output.object({ schema: Person }),
    });
    const streaming = ai.streamText({ model: story, prompt: "A child.", maxOutputTokens: 80, temperature: 1, seed: 1, output: ai.Output.object({ schema: Person }) });
    const partials = await collect(streaming.partialOutputStream);
    return {
      choices,
      acted: acted.steps.map(of),
      loop: loop.steps.map(({ toolCalls, toolResults }) => [toolCalls.map(({ toolName }) => toolName).join(), toolResults.length]),
      objects: [loop.output, await streaming.output, partials.at(-1)],
      partials: partials.length,
      ran: ran.every((city) => ["Oslo", "Rome"].includes(city)),
    };
  });
  for (const name of ["auto", "none"]) {
    const [whole, streamed] = found.choices[name];
    assert.deepEqual(whole, { finishReason: "length", called: [], results: 0, text: true }, name);
    assert.deepEqual(streamed, { called: [], finishReason: "length" }, name);
  }
  for (const name of ["required", "tool"]) {
    const [whole, streamed] = found.choices[name];
    assert.ok(whole.called.length > 0 && whole.called.every((called) => called === "weather"), `${name}: ${JSON.stringify(whole)}`);
    assert.deepEqual([whole.finishReason, whole.results, streamed], ["tool-calls", whole.called.length, { called: whole.called, finishReason: "tool-calls" }], name);
  }
  assert.deepEqual(found.acted.map(({ results, text }) => [results > 0, text]), [[true, false], [true, false], [false, true]]);
  assert.deepEqual(found.loop, [["locate", 1], ["weather", 1], ["convert", 1], ["", 0]]);
  found.objects.forEach(assertPerson);
  assert.ok(found.partials > 1 && found.ran);
});

test("an abort ends the answer with the signal's reason", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const controller = new AbortController();
    const parts = [];
    for await (const part of ai.streamText({ model: story, prompt: "A cat.", maxOutputTokens: 200, temperature: 0, abortSignal: controller.signal }).fullStream) {
      parts.push(part.type);
      if (part.type === "text-delta") controller.abort();
    }
    const early = new AbortController();
    const whole = ai.generateText({ model: story, prompt: "A cat.", maxOutputTokens: 200, abortSignal: early.signal }).then(() => "done", ({ name }) => name);
    early.abort();
    return { parts, whole: await whole, next: (await ai.generateText({ model: story, prompt: "A dog.", maxOutputTokens: 3 })).usage.outputTokens };
  });
  assert.equal(found.parts.at(-1), "abort");
  assert.ok(found.parts.filter((type) => type === "text-delta").length < 100);
  assert.equal(found.whole, "AbortError");
  assert.equal(found.next, 3);
});

test("embeddings by URL: availability, progress, and the engine's vectors", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const model = local.embeddingModel("words");
    const before = await local.availability("words");
    const shares = [];
    const loading = model.load({ onProgress: ({ progress }) => shares.push(progress) });
    const during = await model.availability();
    const loaded = await loading;
    const { embeddings, usage } = await ai.embedMany({ model, values: ["a cat", "a dog"] });
    const { embedding } = await ai.embed({ model, value: "a cat" });
    const direct = await loaded.embed(["a cat", "a dog"]);
    const cut = await ai.embed({ model, value: "a cat", providerOptions: { jerboa: { truncateDim: 4 } } });
    return { states: [before, during, await model.availability(), await local.availability()], shares, embeddings, usage, embedding, direct: direct.map((vector) => [...vector]), cut: cut.embedding.length };
  });
  assert.equal(found.states[0] === "downloadable" || found.states[0] === "available", true);
  assert.deepEqual(found.states.slice(1), ["downloading", "available", "available"]);
  assert.ok(found.shares.length > 1 && found.shares.every((share, i) => i === 0 || share >= found.shares[i - 1]), `${found.shares}`);
  assert.deepEqual(found.embeddings, found.direct);
  assert.deepEqual(found.embedding, found.direct[0]);
  assert.ok(found.usage.tokens > 0);
  assert.equal(found.cut, 4);
});

test("an image as bytes, as base64 and at a URL", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const url = new URL("/images/odd_37x53.png", location.href);
    const bytes = new Uint8Array(await (await fetch(url)).arrayBuffer());
    const ask = async (data) => {
      const messages = [{ role: "user", content: [{ type: "text", text: "What is it?" }, { type: "file", data, mediaType: "image/png" }] }];
      return (await ai.generateText({ model: local("vision"), messages, maxOutputTokens: 6, temperature: 0 })).text;
    };
    const model = await local("vision").load();
    const direct = await model.describe(new Blob([bytes], { type: "image/png" }), "", { maxTokens: 1 });
    return { texts: [await ask(bytes), await ask(btoa(String.fromCharCode(...bytes))), await ask(url)], direct: typeof direct, refused: await ask(new Uint8Array(3)).catch(({ message }) => message) };
  });
  assert.equal(new Set(found.texts).size, 1, JSON.stringify(found.texts));
  assert.ok(found.texts[0].length > 0);
  assert.match(found.refused, /image/);
});

test("transcription with segments and words", { timeout: PATIENCE }, async () => {
  const audio = [...wav({ seconds: 2, sample: (t) => Math.sin(t * 2000) / 2 })];
  const found = await page.evaluate(async (audio) => {
    const bytes = Uint8Array.from(audio);
    const model = local.transcriptionModel("whisper");
    const transcribe = ai.transcribe ?? ai.experimental_transcribe;
    const made = await transcribe({ model, audio: bytes });
    const direct = await (await model.load()).transcribe(new Blob([bytes]), { timestamps: "segment" });
    return { made: [made.text, made.segments, made.durationInSeconds, made.language], direct: [direct.text, direct.segments.map(({ text, start, end }) => ({ text: text.trim(), startSecond: start, endSecond: end })), direct.duration, direct.language ?? undefined] };
  }, audio);
  assert.ok(found.made[0].length > 0 && found.made[1].length > 0);
  assert.deepEqual(found.made, found.direct);
});

test("over the fake engine: speech, reasoning, reranking, and names that do not exist", { timeout: PATIENCE }, async () => {
  const found = await page.evaluate(async () => {
    const { createJerboa, jerboa } = await import("/facade/ai/index.js");
    const fake = createJerboa({ load: { worker: false }, models: { voice: async () => (await import("/facade/index.js")).loadModel("org/kani", { worker: false, codec: "org/codec" }) } });
    const generateSpeech = ai.generateSpeech ?? ai.experimental_generateSpeech;
    const { audio, warnings } = await generateSpeech({ model: fake.speechModel("voice"), text: "one two three", voice: "anna", outputFormat: "mp3", speed: 1.5 });
    const thinking = fake("org/thinking");
    const thought = await ai.generateText({ model: thinking, prompt: "<think>two words</think>An answer", reasoning: "high" });
    const parts = await collect(ai.streamText({ model: thinking, prompt: "<think>two words</think>An answer" }).fullStream);
    const odd = await ai.generateText({ model: fake("org/plain"), prompt: "One", reasoning: "high" });
    const ranked = await ai.rerank({ model: fake.rerankingModel("org/rank"), query: "a", documents: ["b", "aa", "a"], topN: 2 });
    const embedding = fake.embeddingModel("org/embed");
    const long = await embedding.doEmbed({ values: ["a".repeat(500), "a"] });
    const refused = [{ dimensions: 4 }, { providerOptions: { jerboa: { truncateDim: 4 } } }].map((more) => embedding.doEmbed({ values: ["a"], ...more }).catch(({ code, message }) => `${code}: ${message}`));
    const failed = [];
    for (const attempt of [() => ai.generateText({ model: jerboa("no/such", { worker: false }), prompt: "x", maxRetries: 0 }), async () => jerboa(""), async () => jerboa.imageModel("x")]) {
      failed.push(await attempt().then(() => "done", ({ code, message }) => `${code}: ${message}`));
    }
    return {
      speech: [audio.mediaType, audio.uint8Array.length > 44, warnings.map(({ feature }) => feature)],
      thought: [thought.reasoningText, thought.text, thought.usage.outputTokenDetails.reasoningTokens],
      types: parts.map(({ type }) => type).filter((type) => /^(reasoning|text)-/.test(type)),
      odd: odd.warnings.map(({ feature }) => feature),
      ranked: ranked.ranking.map(({ originalIndex }) => originalIndex),
      embedded: [long.usage.tokens, ...(await Promise.all(refused))],
      failed,
    };
  });
  assert.deepEqual(found.speech, ["audio/wav", true, ["outputFormat", "speed"]]);
  assert.deepEqual(found.thought, ["two words", "An answer", 2]);
  assert.deepEqual([...new Set(found.types)], ["reasoning-start", "reasoning-delta", "reasoning-end", "text-start", "text-delta", "text-end"]);
  assert.deepEqual(found.odd, ["reasoning"]);
  assert.deepEqual(found.ranked, [1, 2]);
  assert.equal(found.embedded[0], 64 + 2, "the model reads 64 tokens of the first");
  assert.match(found.embedded[1], /^request: dimensions: 4 is out of range/);
  assert.match(found.embedded[2], /^request: truncateDim: 4 is out of range/);
  assert.match(found.failed[0], /not_found: /);
  assert.match(found.failed[1], /request: jerboa\/ai: a model must be a name or a loaded model, not an empty string/);
  assert.match(found.failed[2], /unsupported_option: /);
});
