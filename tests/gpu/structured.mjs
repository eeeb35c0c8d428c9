/** Benchmarks answers under JSON schemas next to free ones, with a published model; see structured.html. */

import { loadModel } from "../../dist/jerboa/index.js";

const query = new URLSearchParams(location.search);
const number = (name, fallback) => Number(query.get(name) ?? fallback);

const post = (path, body) => fetch(path, { method: "POST", body }).catch(() => {});
async function say(line) {
  document.getElementById("lines").append(`${line}\n`);
  await post("/log", line);
}

const object = (properties) => ({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
const listOf = (items, minItems) => ({ type: "array", items, minItems });
const TEXT = { type: "string" };

const PERSON = object({
  name: TEXT,
  age: { type: "integer", minimum: 0, maximum: 120 },
  city: TEXT,
  tags: { ...listOf(TEXT, 1), maxItems: 4 },
  active: { type: "boolean" },
});

/** Prompts, and schemas of answers that are longer than those measured. */
const TASKS = {
  people: {
    prompt: 'Write a JSON array of twenty people. Each has "name", "age", "city", "tags" (a list of hobbies) and "active".',
    schema: object({ people: listOf(PERSON, 20) }),
  },
  recipe: {
    prompt: 'Write a recipe for vegetable soup as JSON with "title", "description", "ingredients" (a list of strings) and "steps" (a list of long strings).',
    schema: object({ title: TEXT, description: TEXT, ingredients: listOf(TEXT, 5), steps: listOf(TEXT, 12) }),
  },
  review: {
    prompt: 'Summarize the history of Rome as JSON with "topic", "sentiment" (positive, neutral or negative) and "summary" of several hundred words.',
    schema: object({ topic: TEXT, sentiment: { enum: ["positive", "neutral", "negative"] }, summary: { ...TEXT, minLength: 900 } }),
  },
};

/** Tokens a second from an answer's first text to its last. */
async function decodeSpeed(model, prompt, seed, more) {
  const stream = await model.chat.completions.create({
    messages: [{ role: "user", content: prompt }],
    max_tokens: number("tokens", 256),
    temperature: number("temperature", 0.6),
    top_k: number("topk", 20),
    seed,
    stream: true,
    stream_options: { include_usage: true },
    ...more,
  });
  let first, last, tokens;
  for await (const { choices, usage } of stream) {
    tokens = usage?.completion_tokens ?? tokens;
    if (!choices[0]?.delta.content) continue;
    last = performance.now();
    first ??= last;
  }
  return (1000 * (tokens - 1)) / (last - first);
}

const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];

async function main() {
  const address = query.get("model");
  const source = /\.gguf$/.test(address) ? [new File([await (await fetch(address)).blob()], "model.gguf")] : address;
  const model = await loadModel(source);
  const result = {};
  for (const [name, { prompt, schema }] of Object.entries(TASKS)) {
    const response_format = { type: "json_schema", json_schema: { name, schema, strict: true } };
    const rounds = [];
    // The first round compiles the schema and the kernels of masks.
    for (let round = -1; round < number("rounds", 5); round++) {
      const free = await decodeSpeed(model, prompt, round + 5, {});
      const limited = await decodeSpeed(model, prompt, round + 5, { response_format });
      if (round >= 0) rounds.push([free, limited]);
    }
    const [free, limited] = [0, 1].map((i) => median(rounds.map((pair) => pair[i])));
    const shares = rounds.map(([a, b]) => b / a);
    result[name] = { free, limited, share: median(shares), shares };
    await say(`${name}: ${free.toFixed(0)} tokens/s, with the schema ${limited.toFixed(0)}, share ${median(shares).toFixed(2)} (${shares.map((share) => share.toFixed(2)).join(", ")})`);
  }
  return result;
}

window.result = await main().catch((error) => ({ error: String(error?.stack ?? error) }));
if (window.result.error) await say(window.result.error);
await post("/result", JSON.stringify(window.result));
