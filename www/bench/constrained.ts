/** Decode speed with JSON schemas relative to free text, in turns with the same sampling. */

import { type Range, type Run, range } from "./runs";
import type { Settings } from "./settings";

const person = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 24 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    tags: { type: "array", items: { type: "string", maxLength: 12 }, minItems: 1, maxItems: 4 },
    active: { type: "boolean" },
  },
  required: ["name", "age", "tags", "active"],
  additionalProperties: false,
};

/** Lists that are longer than any run. `strings` forces next to nothing; `records` forces keys. */
const SCHEMAS = {
  strings: { type: "array", items: { type: "string", maxLength: 40 }, minItems: 500 },
  records: { type: "array", items: person, minItems: 500 },
};

/** The runs of a schema next to those without. */
export interface ConstrainedRow {
  prompt: number;
  schema: string;
  free_tps: Range;
  decode_tps: Range;
  /** Of each round. */
  share: Range;
}

/** End tokens of common vocabularies: a grammar needs one. */
const END_TOKENS = ["<|im_end|>", "<|endoftext|>", "</s>"];

/** Files that give a generated checkpoint this tokenizer, which may be compressed by gzip. */
export async function tokenizerFiles(url: string): Promise<File[]> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: HTTP ${response.status}`);
  const blob = await response.blob();
  // Some servers have the browser decompress a .gz file.
  const [first, second] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const isPacked = first === 0x1f && second === 0x8b;
  const text = await new Response(isPacked ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob).text();
  const added = (JSON.parse(text) as { added_tokens: { content: string }[] }).added_tokens.map(({ content }) => content);
  const eos_token = END_TOKENS.find((token) => added.includes(token));
  return [new File([text], "tokenizer.json"), new File([JSON.stringify({ eos_token })], "tokenizer_config.json")];
}

type Generate = (prompt: number, seed: number, more: object) => Promise<Run>;

/** Alternates free and constrained runs at temperature 1. */
export async function benchSchemas(settings: Settings, generate: Generate, say: (line: string) => void): Promise<ConstrainedRow[]> {
  const rows: ConstrainedRow[] = [];
  for (const prompt of settings.prompts) {
    for (const [name, schema] of Object.entries(SCHEMAS)) {
      const grammar = { type: "json_schema", schema };
      const pairs: [number, number][] = [];
      // The first round compiles the schema and the kernels of masks.
      for (let round = -1; round < settings.runs; round++) {
        const seed = 100 * prompt + round + 1;
        const free = await generate(prompt, seed, {});
        const limited = await generate(prompt, seed, { grammar });
        if (round < 0) continue;
        pairs.push([free.decode_tps, limited.decode_tps]);
        say(`prompt ${prompt}: ${free.decode_tps.toFixed(1)} tokens/s, with the schema '${name}' ${limited.decode_tps.toFixed(1)}`);
      }
      rows.push({
        prompt,
        schema: name,
        free_tps: range(pairs.map(([free]) => free)),
        decode_tps: range(pairs.map(([, limited]) => limited)),
        share: range(pairs.map(([free, limited]) => limited / free)),
      });
    }
  }
  return rows;
}
