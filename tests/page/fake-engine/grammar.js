/** Stands for the grammar module next to the fake engine: refuses an empty source, and allows every token. */

export default async function init() {}

/** A text that the last grammar allows; undefined if it allows any. */
export const example = { text: "{}" };

/** The shortest instance of a schema: required properties, first choices. */
function instance(schema) {
  if (typeof schema !== "object" || schema === null) return {};
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return instance(schema.anyOf[0]);
  if (schema.type === "string") return "text";
  if (schema.type === "integer" || schema.type === "number") return Math.max(schema.minimum ?? 0, 0);
  if (schema.type === "boolean") return false;
  if (schema.type === "array") return [];
  return Object.fromEntries((schema.required ?? []).map((name) => [name, instance(schema.properties?.[name])]));
}

/** The grammars that were compiled, oldest first. */
export const seen = [];

function exampleOf(kind, source) {
  if (kind === "json_schema") return JSON.stringify(instance(JSON.parse(source)));
  if (kind === "choice") return JSON.parse(source)[0];
  if (kind !== "answer") return "{}";
  const { answer } = JSON.parse(source);
  return answer ? exampleOf(answer.kind, answer.source) : undefined;
}

export class Vocabulary {
  constructor(bytes, lengths) {
    this.words = Math.ceil(lengths.length / 32);
  }

  grammar(kind, source) {
    if (kind !== "json_object" && source === "") throw new Error(`${kind}: the source is empty`);
    example.text = exampleOf(kind, source);
    seen.push({ kind, source });
    return new Grammar(this.words);
  }

  free() {}
}

export class Grammar {
  constructor(words) {
    this.words = words;
  }

  mask() {
    return new Uint32Array(this.words).fill(0xffffffff);
  }

  accept() {}

  validPrefix() {
    return 0;
  }

  forced() {
    return [];
  }

  isComplete() {
    return true;
  }

  hasEnded() {
    return false;
  }

  free() {}
}
