/** Benchmarks an embedding model: many texts of known lengths in one call, as when building an index. */

import type { Model, ModelSource } from "jerboa";
import { checkpoint } from "./checkpoint";
import type { Settings } from "./settings";
import type { Shape } from "./shapes";

/** The tokenizer of the bundled encoder, which is BERT's. */
const TOKENIZER = "../models/words-encoder/tokenizer.json";

/** One run over all texts. */
export interface EmbedRun {
  ms: number;
  texts_per_s: number;
  tokens_per_s: number;
}

/** The result. */
export interface EmbeddingResult {
  texts: number;
  /** Including the special tokens that the tokenizer adds. */
  tokens: number;
  runs: EmbedRun[];
}

interface Tokenizer {
  model: { vocab: Record<string, number> };
}

const tokenizer = async (): Promise<string> => {
  const response = await fetch(new URL(TOKENIZER, location.href));
  if (!response.ok) throw new Error(`${TOKENIZER}: HTTP ${response.status}`);
  return response.text();
};

/** The files of a random encoder: checkpoint, tokenizer and mean pooling. */
export async function encoderFiles(shape: Shape): Promise<ModelSource> {
  const modules = ["Transformer", "Pooling", "Normalize"].map((name, i) => ({ idx: i, name: String(i), path: i ? `${i}_${name}` : "", type: `sentence_transformers.models.${name}` }));
  const text = (name: string, content: string): File => new File([content], name);
  return [...checkpoint(shape, "f16"), text("tokenizer.json", await tokenizer()), text("modules.json", JSON.stringify(modules))];
}

/** Texts of `least` to `most` tokens, made of whole-word tokens between the two special tokens. */
export function randomTexts(vocab: Record<string, number>, count: number, [least, most]: [number, number], seed: number): string[] {
  const words = Object.keys(vocab).filter((word) => /^[a-z]{3,}$/.test(word)).sort();
  let state = 12345 + 7919 * seed;
  const next = (below: number): number => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return (state >>> 8) % below;
  };
  return Array.from({ length: count }, () => Array.from({ length: least + next(most - least + 1) - 2 }, () => words[next(words.length)]!).join(" "));
}

/** Embeds all texts as often as the settings say, with new texts each time. */
export async function embedAll(model: Model, settings: Settings, say: (line: string) => void): Promise<EmbeddingResult> {
  const { vocab } = (JSON.parse(await tokenizer()) as Tokenizer).model;
  const make = (seed: number): string[] => randomTexts(vocab, settings.texts, settings.lengths, seed);
  await model.embed(make(99).slice(0, settings.warm));
  const runs: EmbedRun[] = [];
  let tokens = 0;
  for (let seed = 0; seed < settings.runs; seed++) {
    const texts = make(seed);
    tokens = 0;
    for (const text of texts) tokens += await model.countTokens(text);
    const start = performance.now();
    await model.embed(texts);
    const ms = performance.now() - start;
    runs.push({ ms, texts_per_s: (settings.texts / ms) * 1e3, tokens_per_s: (tokens / ms) * 1e3 });
    say(`${settings.texts} texts in ${ms.toFixed(0)} ms: ${((settings.texts / ms) * 1e3).toFixed(0)} texts/s`);
  }
  return { texts: settings.texts, tokens, runs };
}
