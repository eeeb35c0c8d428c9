/** JSON schemas for the tests of structured output: a list of awkward ones, and seeded random ones. */

/** A generator of 32-bit integers from a seed (mulberry32). */
export function randomSource(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (t ^ (t >>> 14)) >>> 0;
  };
  return { below: (limit) => next() % limit, pick: (list) => list[next() % list.length], chance: (share) => next() / 2 ** 32 < share };
}

const strict = (properties, required = Object.keys(properties)) => ({ type: "object", properties, required, additionalProperties: false });

/** Schemas that are hard on an implementation: recursion, empty objects, odd keys, tight bounds. */
export const AWKWARD = [
  {},
  true,
  { type: "object", properties: {}, additionalProperties: false },
  { type: "array", items: false },
  { type: "null" },
  { const: { a: [1, null, "x"] } },
  { const: "quote \" backslash \\ newline \n tab \t unicode \u00e9 \ud83d\ude80" },
  { enum: [1, "1", true, null, [1], { b: 2 }] },
  { type: ["string", "null", "integer"] },
  { type: "integer", minimum: -3, maximum: 3 },
  { type: "integer", exclusiveMinimum: 99, exclusiveMaximum: 101 },
  { type: "number", minimum: 0.25, maximum: 0.5 },
  { type: "number", exclusiveMinimum: -1, exclusiveMaximum: 1 },
  { type: "integer", multipleOf: 7, minimum: 0, maximum: 100 },
  { type: "string", minLength: 3, maxLength: 3 },
  { type: "string", minLength: 0, maxLength: 0 },
  { type: "string", pattern: "^(\\+|-)?[0-9]{1,3}(\\.[0-9]+)?$" },
  { type: "string", pattern: "^[\\p{Lu}][a-z]*$" },
  { type: "string", format: "date-time" },
  { type: "string", format: "email" },
  { type: "string", format: "uuid" },
  { type: "string", format: "ipv4" },
  { type: "string", format: "ipv6" },
  { type: "string", format: "hostname" },
  { type: "string", format: "time" },
  { type: "string", format: "duration" },
  { type: "array", prefixItems: [{ type: "string" }, { type: "integer" }], items: { type: "boolean" }, minItems: 3, maxItems: 4 },
  { type: "array", items: { type: "array", items: { type: "array", items: { type: "null" }, maxItems: 1 }, maxItems: 2 }, maxItems: 2 },
  { type: "object", additionalProperties: { type: "integer" }, maxProperties: 2 },
  strict({ "": { type: "null" }, "a b": { type: "boolean" }, "quote\"": { const: 1 }, "\u00fc\ud83d\ude80": { const: 2 }, "\\": { const: 3 } }),
  strict({ a: { type: "integer" }, b: { type: "integer" }, c: { type: "integer" } }, ["b"]),
  { $defs: { node: strict({ value: { type: "integer", minimum: 0, maximum: 9 }, next: { anyOf: [{ $ref: "#/$defs/node" }, { type: "null" }] } }) }, $ref: "#/$defs/node" },
  { $defs: { even: { type: "array", items: { $ref: "#/$defs/odd" }, maxItems: 2 }, odd: { type: "object", properties: { e: { $ref: "#/$defs/even" } }, required: ["e"], additionalProperties: false } }, $ref: "#/$defs/even" },
  { anyOf: [strict({ kind: { const: "circle" }, radius: { type: "number", minimum: 0 } }), strict({ kind: { const: "box" }, width: { type: "number" }, height: { type: "number" } })] },
  { allOf: [{ type: "object", properties: { a: { type: "integer" } }, required: ["a"] }, { properties: { b: { type: "boolean" } }, required: ["b"] }] },
  { type: "object", properties: { a: { type: "integer", minimum: 5 } }, required: ["a"], additionalProperties: { type: "string", maxLength: 2 }, maxProperties: 3 },
  strict(Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`field_${i}`, { type: "boolean" }]))),
  { type: "string", enum: Array.from({ length: 400 }, (_, i) => `option ${i * 7919}`) },
  { title: "T", description: "D", default: 3, examples: [1], $comment: "c", type: "integer", minimum: 0, maximum: 1_000_000_007 },
  { type: "string", format: "uri" },
  { type: "string", format: "uri-reference" },
  { type: "string", format: "iri" },
  { type: "string", format: "idn-email" },
  { type: "string", format: "idn-hostname" },
  { type: "string", format: "uri-template" },
  { type: "string", format: "json-pointer" },
  { type: "string", format: "relative-json-pointer" },
  { type: "string", format: "byte" },
  { type: "integer", format: "int32" },
  { type: "integer", format: "int64", minimum: 5 },
  { type: "string", format: "int64", maxLength: 4 },
];

const NAMES = ["id", "name", "city", "value", "tags", "children", "next", "a-b", "\u00fcber", "x y", "type", "items"];
const FORMATS = ["date", "time", "date-time", "email", "uuid", "ipv4", "hostname", "uri", "uri-reference", "json-pointer", "byte"];
const PATTERNS = ["^[a-z]{1,8}$", "^[A-Z]{2}[0-9]{3}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$", "^\\d{4}-\\d{2}$", "^[^\"\\\\]{0,5}$"];

function leaf(random) {
  const low = random.below(200) - 100;
  return random.pick([
    () => ({ type: "boolean" }),
    () => ({ type: "null" }),
    () => ({ type: "integer" }),
    () => ({ type: "integer", minimum: low, maximum: low + random.below(1000) }),
    () => ({ type: "number", minimum: low / 4, maximum: low / 4 + 1 + random.below(50) }),
    () => ({ type: "number" }),
    () => ({ type: "string" }),
    () => ({ type: "string", minLength: random.below(3), maxLength: 3 + random.below(20) }),
    () => ({ type: "string", pattern: random.pick(PATTERNS) }),
    () => ({ type: "string", format: random.pick(FORMATS) }),
    () => ({ enum: Array.from({ length: 1 + random.below(6) }, (_, i) => random.pick([`v${i}`, i, i / 2, null, true, "\u00e9\n"])) }),
    () => ({ const: random.pick(["fixed", 42, -1.5, null, false, [], {}]) }),
    () => ({ type: ["string", "null"], maxLength: 12 }),
  ])();
}

function schemaOf(random, depth, refs) {
  if (depth === 0 || random.chance(0.3)) return random.chance(0.1) && refs.length ? { anyOf: [{ type: "null" }, { $ref: random.pick(refs) }] } : leaf(random);
  return random.pick([
    () => {
      const names = NAMES.filter(() => random.chance(0.35));
      const properties = Object.fromEntries(names.map((name) => [name, schemaOf(random, depth - 1, refs)]));
      const required = names.filter(() => random.chance(0.7));
      const open = random.chance(0.15) ? { type: "integer" } : false;
      return { type: "object", properties, ...(required.length || random.chance(0.5) ? { required } : {}), additionalProperties: open };
    },
    () => ({ type: "array", items: schemaOf(random, depth - 1, refs), minItems: random.below(2), maxItems: 1 + random.below(4) }),
    () => ({ type: "array", prefixItems: [schemaOf(random, depth - 1, refs), leaf(random)], items: false, minItems: 2 }),
    () => ({ anyOf: Array.from({ length: 2 + random.below(3) }, () => schemaOf(random, depth - 1, refs)) }),
  ])();
}

/** A random schema; the same for the same number. */
export function randomSchema(number) {
  const random = randomSource(number * 2654435761);
  const recursive = random.chance(0.25);
  const refs = recursive ? ["#/$defs/node"] : [];
  const schema = schemaOf(random, 1 + random.below(3), refs);
  if (!recursive) return schema;
  const node = { type: "object", properties: { value: leaf(random), next: { anyOf: [{ type: "null" }, { $ref: "#/$defs/node" }] } }, required: ["value", "next"], additionalProperties: false };
  return { $defs: { node }, ...schema };
}
