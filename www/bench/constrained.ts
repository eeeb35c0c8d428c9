/** Decode speed with grammars relative to free text, in turns with the same sampling. */

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

/** The letters a generated checkpoint is pushed to, so that it follows the grammar of one string. */
const LETTERS = "abcdefghijklmnopqrstuvwxyz";

/**
 * Lists that are longer than any run. `texts` and `strings`, whose strings have a maximum length, force next to nothing;
 * `records` forces keys. A generated checkpoint follows none of them. `letters` is one string of letters, to which a bias
 * pushes the model: it follows the grammar.
 */
const GRAMMARS: Record<string, { grammar: object; isFollowed?: boolean }> = {
  texts: { grammar: { type: "json_schema", schema: { type: "array", items: { type: "string" }, minItems: 500 } } },
  strings: { grammar: { type: "json_schema", schema: { type: "array", items: { type: "string", maxLength: 40 }, minItems: 500 } } },
  records: { grammar: { type: "json_schema", schema: { type: "array", items: person, minItems: 500 } } },
  letters: { grammar: { type: "json_schema", schema: { type: "string", minLength: 20_000 } }, isFollowed: true },
};

/** The runs of a grammar next to those without. */
export interface ConstrainedRow {
  prompt: number;
  schema: string;
  free_tps: Range;
  decode_tps: Range;
  /** Of each round. */
  share: Range;
  /** Tokens per readback with the grammar. */
  tokens_per_readback: Range;
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

/** A bias to single letters. */
async function lettersBias(tokenize: (text: string) => Promise<Uint32Array>): Promise<Record<string, number>> {
  const bias: Record<string, number> = {};
  for (const letter of LETTERS) {
    // The last token is the letter, also where a blank is put before the text.
    const last = [...(await tokenize(letter))].at(-1);
    if (last !== undefined) bias[last] = 100;
  }
  return bias;
}

/** Alternates free and constrained runs with the same sampling. */
export async function benchSchemas(
  settings: Settings,
  generate: Generate,
  tokenize: (text: string) => Promise<Uint32Array>,
  say: (line: string) => void,
): Promise<ConstrainedRow[]> {
  const rows: ConstrainedRow[] = [];
  const logitBias = await lettersBias(tokenize);
  for (const prompt of settings.prompts) {
    for (const [name, { grammar, isFollowed }] of Object.entries(GRAMMARS)) {
      const same = isFollowed ? { logitBias } : {};
      const pairs: [number, number][] = [];
      const perReadback: number[] = [];
      // The first round compiles the schema and the kernels of masks.
      for (let round = -1; round < settings.runs; round++) {
        const seed = 100 * prompt + round + 1;
        const free = await generate(prompt, seed, same);
        const limited = await generate(prompt, seed, { ...same, grammar });
        if (round < 0) continue;
        pairs.push([free.decode_tps, limited.decode_tps]);
        perReadback.push(limited.tokens / Math.max(1, limited.readbacks));
        say(`prompt ${prompt}: ${free.decode_tps.toFixed(1)} tokens/s, with the schema '${name}' ${limited.decode_tps.toFixed(1)}, ${perReadback.at(-1)!.toFixed(1)} tokens a readback`);
      }
      rows.push({
        prompt,
        schema: name,
        free_tps: range(pairs.map(([free]) => free)),
        decode_tps: range(pairs.map(([, limited]) => limited)),
        share: range(pairs.map(([free, limited]) => limited / free)),
        tokens_per_readback: range(perReadback),
      });
    }
  }
  return rows;
}
