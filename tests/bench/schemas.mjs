/**
 * Measures the grammar module over the public schemas of JSONSchemaBench: compile time, mask time a token, and whether
 * every output that ends validates with ajv. Prints a table for docs/benchmarks.md.
 *
 *   git clone --depth 1 https://github.com/guidance-ai/jsonschemabench
 *   node tests/bench/schemas.mjs jsonschemabench/data [schemas a set, 100 by default] [tokenizer.json]
 *
 * Outputs are random walks over the allowed tokens of the vocabulary. Needs a build (`cargo xtask build`).
 */

import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import Ajv from "ajv";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { PACKAGE, STORIES } from "../page/support/paths.mjs";
import { randomSource } from "../page/support/schemas.mjs";

/** Tokens after which a walk is cut off, as `max_tokens` would. */
const MAX_TOKENS = 400;

const [folder, count = "100", tokenizerFile = `${STORIES}/tokenizer.json`] = process.argv.slice(2);
if (!folder) throw new Error("usage: node tests/bench/schemas.mjs FOLDER [SCHEMAS] [TOKENIZER]");

const grammar = await import(`${PACKAGE}/grammar.js`);
await grammar.default({ module_or_path: await readFile(`${PACKAGE}/grammar_bg.wasm`) });

/** The bytes of each token: of byte-level vocabularies, and of SentencePiece's. */
async function tokensOf(file) {
  const { model, added_tokens: added, decoder } = JSON.parse(await readFile(file, "utf8"));
  const isByteLevel = JSON.stringify(decoder ?? {}).includes("ByteLevel");
  const plain = [...Array(256).keys()].filter((b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
  const bytes = new Map(plain.map((b) => [String.fromCodePoint(b), b]));
  let next = 256;
  for (let b = 0; b < 256; b += 1) if (!plain.includes(b)) bytes.set(String.fromCodePoint(next++), b);
  const special = new Set(added.filter((token) => token.special).map(({ id }) => id));
  const tokens = [];
  for (const [text, id] of Object.entries(model.vocab)) {
    const byte = /^<0x([0-9A-F]{2})>$/.exec(text);
    if (special.has(id)) tokens[id] = new Uint8Array();
    else if (isByteLevel) tokens[id] = Uint8Array.from([...text].map((c) => bytes.get(c) ?? 63));
    else if (byte) tokens[id] = Uint8Array.of(parseInt(byte[1], 16));
    else tokens[id] = new TextEncoder().encode(text.replaceAll("\u2581", " "));
  }
  for (const { id } of added) tokens[id] ??= new Uint8Array();
  return Array.from(tokens, (token) => token ?? new Uint8Array());
}

const tokens = await tokensOf(tokenizerFile);
const end = tokens.push(new Uint8Array()) - 1;
const flat = Uint8Array.from(tokens.flatMap((token) => [...token]));
const vocabulary = new grammar.Vocabulary(flat, Uint32Array.from(tokens, ({ length }) => length), Uint32Array.of(end));
const isBlank = tokens.map((token) => token.every((byte) => [9, 10, 13, 32].includes(byte)));
const closers = tokens.map((token) => token.length > 0 && token.every((byte) => [0x22, 0x5d, 0x7d].includes(byte)));

function allowed(mask) {
  const ids = [];
  mask.forEach((word, at) => {
    for (let bit = 0; word && bit < 32; bit += 1) if ((word >>> bit) & 1) ids.push(at * 32 + bit);
  });
  return ids;
}

/** Follows a grammar at random; its text, or undefined if it does not end in time. */
function walk(constraint, random, times) {
  const out = [];
  for (let step = 0; step < MAX_TOKENS; step += 1) {
    const start = performance.now();
    const mask = constraint.mask();
    times.push(performance.now() - start);
    const ids = allowed(mask);
    if (ids.includes(end) && (ids.length === 1 || random.chance(0.5) || step > 100)) return new TextDecoder().decode(Uint8Array.from(out));
    const solid = ids.filter((id) => id !== end && !isBlank[id]);
    const closing = solid.filter((id) => closers[id]);
    // Strings and lists end at some time.
    const from = closing.length && random.chance(step > 100 ? 0.8 : 0.3) ? closing : solid.length ? solid : ids;
    const id = random.pick(from);
    for (const byte of tokens[id]) out.push(byte);
    constraint.accept(id);
  }
  return undefined;
}

function validatorOf(schema) {
  const options = { strict: false, logger: false, validateSchema: false };
  const ajv = String(schema.$schema ?? "").includes("2020-12") ? new Ajv2020(options) : new Ajv(options);
  addFormats.default(ajv);
  const { $schema, $id, id, ...rest } = schema;
  return ajv.compile(rest);
}

const quantile = (values, share) => (values.length ? [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) * share)].toFixed(2) : "-");

console.log(`vocabulary: ${tokens.length} tokens; at most ${MAX_TOKENS} tokens a walk\n`);
console.log("| set | schemas | refused | ended | invalid | compile, ms: median | 99 % | mask, ms a token: median | 99 % |");
console.log("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
const refusals = new Map();
let invalidTotal = 0;
for (const set of (await readdir(folder, { withFileTypes: true })).filter((entry) => entry.isDirectory()).map(({ name }) => name)) {
  const files = (await readdir(join(folder, set))).filter((name) => name.endsWith(".json")).sort();
  const step = Math.max(1, Math.floor(files.length / Number(count)));
  const sample = files.filter((_, i) => i % step === 0).slice(0, Number(count));
  const compiling = [];
  const masking = [];
  let refused = 0;
  let ended = 0;
  const invalid = [];
  for (const [number, file] of sample.entries()) {
    const schema = JSON.parse(await readFile(join(folder, set, file), "utf8"));
    const start = performance.now();
    let constraint;
    try {
      constraint = vocabulary.grammar("json_schema", JSON.stringify(schema));
    } catch (error) {
      refused += 1;
      const reason = error.message.replace(/^JSON schema: /, "").replace(/[0-9]+/g, "N").slice(0, 70);
      refusals.set(reason, (refusals.get(reason) ?? 0) + 1);
      continue;
    }
    compiling.push(performance.now() - start);
    let text;
    try {
      text = walk(constraint, randomSource(number), masking);
    } catch (error) {
      refusals.set(`while decoding: ${error.message.slice(0, 60)}`, (refusals.get(`while decoding: ${error.message.slice(0, 60)}`) ?? 0) + 1);
    }
    constraint.free();
    if (text === undefined) continue;
    ended += 1;
    let validate;
    try {
      validate = validatorOf(schema);
    } catch {
      // ajv cannot read the schema.
      continue;
    }
    try {
      if (!validate(JSON.parse(text))) invalid.push(`${set}/${file}: ${text.slice(0, 200)}: ${JSON.stringify(validate.errors[0])}`);
    } catch (error) {
      invalid.push(`${set}/${file}: ${text.slice(0, 200)}: ${error.message}`);
    }
  }
  console.log(`| ${set} | ${sample.length} | ${refused} | ${ended} | ${invalid.length} | ${quantile(compiling, 0.5)} | ${quantile(compiling, 0.99)} | ${quantile(masking, 0.5)} | ${quantile(masking, 0.99)} |`);
  invalid.forEach((line) => console.error(line));
  invalidTotal += invalid.length;
}
console.log("\nrefused:");
for (const [reason, times] of [...refusals].sort((a, b) => b[1] - a[1]).slice(0, 15)) console.log(`${times}  ${reason}`);
process.exitCode = invalidTotal > 0 ? 1 : 0;
