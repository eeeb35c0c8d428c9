/**
 * The grammar module of the built package in Node: schemas, each followed by a random walk over the allowed tokens.
 * Whatever ends must validate with ajv.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { PACKAGE } from "./support/paths.mjs";
import { AWKWARD, randomSchema, randomSource } from "./support/schemas.mjs";

const grammar = await import(`${PACKAGE}/grammar.js`);
await grammar.default({ module_or_path: await readFile(`${PACKAGE}/grammar_bg.wasm`) });

/** `JERBOA_SCHEMAS=1000` walks more. */
const COUNT = Number(process.env.JERBOA_SCHEMAS ?? 300);
/** Tokens after which a walk is cut off, as `max_tokens` would. */
const MAX_TOKENS = 400;

/** Every byte, then tokens as a trained vocabulary has them, then two end tokens. */
const WORDS = ['{"', '":', '": "', '",', '", "', '"}', "}}", "[]", "[{", "}]", "true", "false", "null", "name", "value", "id", " the", " of", "\n  ", "  ", "00", "123", "1", ".5", "e", "ing", "\u00e9", "\ud83d\ude80", "\\n", '\\"', "2026", "-01", "T12", ":00", "Z", "@", ".com"];
const encoder = new TextEncoder();
const TOKENS = [...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)), ...WORDS.map((word) => encoder.encode(word)), new Uint8Array(), new Uint8Array()];
const ENDS = [TOKENS.length - 2, TOKENS.length - 1];
const bytes = Uint8Array.from(TOKENS.flatMap((token) => [...token]));
const vocabulary = new grammar.Vocabulary(bytes, Uint32Array.from(TOKENS, (token) => token.length), Uint32Array.from(ENDS));

/** Tab, line ends, space. */
const BLANK = [9, 10, 13, 32];

/** The ids that a mask allows. */
function allowed(mask) {
  const ids = [];
  mask.forEach((word, at) => {
    for (let bit = 0; bit < 32; bit += 1) if ((word >>> bit) & 1) ids.push(at * 32 + bit);
  });
  return ids;
}

/** Follows a grammar at random; the text, and whether it came to its end. */
function walk(constraint, random, times) {
  const out = [];
  for (let step = 0; step < MAX_TOKENS; step += 1) {
    const start = performance.now();
    const ids = allowed(constraint.mask());
    times.push(performance.now() - start);
    assert.ok(ids.length > 0, "some token is allowed");
    const ends = ids.filter((id) => ENDS.includes(id));
    // Ends where it may in half of the cases, and in structure rather than in whitespace.
    if (ends.length && (random.chance(0.5) || ends.length === ids.length)) return { text: text(out), ended: true };
    const solid = ids.filter((id) => !ENDS.includes(id) && TOKENS[id].some((byte) => !BLANK.includes(byte)));
    const id = random.pick(solid.length ? solid : ids.filter((id) => !ENDS.includes(id)));
    out.push(...TOKENS[id]);
    constraint.accept(id);
  }
  return { text: text(out), ended: false };
}

function text(out) {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(out), { stream: true });
}

function validator() {
  const ajv = new Ajv2020({ strict: false, allErrors: false, logger: false });
  addFormats.default(ajv);
  return ajv;
}

const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.floor((values.length - 1) * share)].toFixed(2);

test(`every finished output of ${COUNT} schemas validates`, () => {
  const compiling = [];
  const masking = [];
  let finished = 0;
  const refused = [];
  const invalid = [];
  for (let number = 0; number < COUNT; number += 1) {
    const schema = AWKWARD[number] ?? randomSchema(number);
    const start = performance.now();
    let constraint;
    try {
      constraint = vocabulary.grammar("json_schema", JSON.stringify(schema));
    } catch (error) {
      refused.push(`${number}: ${error.message} ${JSON.stringify(schema).slice(0, 120)}`);
      continue;
    }
    compiling.push(performance.now() - start);
    const { text, ended } = walk(constraint, randomSource(number), masking);
    if (ended) {
      finished += 1;
      const validate = validator().compile(schema);
      let value;
      assert.doesNotThrow(() => (value = JSON.parse(text)), `schema ${number} gave invalid JSON: ${text}`);
      if (!validate(value)) invalid.push(`schema ${number} ${JSON.stringify(schema)} gave ${text}: ${JSON.stringify(validate.errors)}`);
    }
    constraint.free();
  }
  console.log(`finished ${finished}, refused ${refused.length}; compile ms: median ${quantile(compiling, 0.5)}, 99th ${quantile(compiling, 0.99)}; mask ms: median ${quantile(masking, 0.5)}, 99th ${quantile(masking, 0.99)}`);
  for (const line of refused) console.log(line);
  assert.deepEqual(invalid, []);
  assert.ok(finished > COUNT * 0.6, `${finished} of ${COUNT} walks came to an end`);
  assert.ok(refused.length <= COUNT * 0.02, `${refused.length} schemas were refused`);
});

test("the other kinds of grammar, and faults in them", () => {
  const walkOf = (kind, source) => walk(vocabulary.grammar(kind, source), randomSource(7), []);
  assert.match(walkOf("regex", "[ab]{3}-[0-9]{2}").text, /^[ab]{3}-[0-9]{2}$/);
  assert.ok(["red", "dark blue"].includes(walkOf("choice", '["red", "dark blue"]').text));
  assert.match(walkOf("lark", 'start: "a" (B | "c")\nB: /x{2}/').text, /^a(xx|c)$/);
  assert.match(walkOf("gbnf", 'root ::= "k" [0-9]{2} | "\\u00e9"').text, /^(k[0-9]{2}|\u00e9)$/);
  const object = walkOf("json_object", "");
  if (object.ended) assert.equal(typeof JSON.parse(object.text), "object");
  for (const [kind, source, reason] of [
    ["json_schema", "{", /invalid JSON/],
    ["json_schema", '{"type":"array","uniqueItems":true}', /uniqueItems/],
    ["choice", "[]", /empty/],
    ["regex", "(", /regular expression/],
    ["gbnf", 'a ::= "b"', /root/],
    ["sql", "", /unknown kind/],
  ]) {
    assert.throws(() => vocabulary.grammar(kind, source), reason);
  }
  assert.throws(() => new grammar.Vocabulary(bytes, Uint32Array.of(1), Uint32Array.of(5)), /end-of-text/);
});
