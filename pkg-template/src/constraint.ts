/** Constrained decoding next to the engine: loads the grammar module on first use and supplies token masks. */

import type { GrammarSource, NextMask } from "./contract.js";
import type { Engine } from "./engine-calls.js";
import { invalidRequest, isTrap, JerboaError, missingAsset, textOf } from "./errors.js";
import type { Grammar, Vocabulary } from "./grammar.js";
import { platform } from "./platform.js";
import { ASSET_TIMEOUT_MS, withTimeout } from "./waits.js";

type GrammarModule = typeof import("./grammar.js");

let loading: Promise<GrammarModule> | undefined;

/** The grammar module. `wasmUrl` is the configured URL of the engine's module, whose folder holds this one too. */
function grammarModule(wasmUrl: string | undefined): Promise<GrammarModule> {
  const load = async (): Promise<GrammarModule> => {
    const module = await import("./grammar.js");
    const own = await platform()?.readAsset("grammar_bg.wasm");
    await module.default(own ? { module_or_path: own } : wasmUrl === undefined ? undefined : { module_or_path: new URL("grammar_bg.wasm", wasmUrl) });
    return module;
  };
  loading ??= load().catch((thrown: unknown) => {
    // The next request tries again: the network may be back.
    loading = undefined;
    throw thrown;
  });
  return withTimeout(ASSET_TIMEOUT_MS, "its server", loading).catch((thrown: unknown) => {
    throw missingAsset("The grammar module (grammar.js, grammar_bg.wasm)", thrown);
  });
}

const vocabularies = new WeakMap<Engine, Vocabulary>();

/** The engine's tokens in the grammar module, built by the first constrained request. */
async function vocabularyOf(engine: Engine, wasmUrl: string | undefined): Promise<Vocabulary> {
  const module = await grammarModule(wasmUrl);
  let vocabulary = vocabularies.get(engine);
  if (!vocabulary) {
    const { bytes, lengths, endIds } = engine.vocabularyBytes();
    if (!endIds.some((id) => id < lengths.length)) {
      throw new JerboaError("tokenizer", "Structured output is not available: the model has no end-of-text token. Set eos_token_id in its generation_config.json, or eos_token in its tokenizer_config.json.");
    }
    vocabulary = new module.Vocabulary(bytes, lengths, endIds);
    vocabularies.set(engine, vocabulary);
  }
  return vocabulary;
}

/** A compiled grammar that answers the engine's question for the next tokens. */
export interface Constraint {
  nextMask: NextMask;
  free(): void;
}

/**
 * Compiles the grammar of a request; `isChat`: whether it is an answer to messages, in the model's own format.
 * @throws {@link JerboaError} `request` with the compiler's reason.
 */
export async function constrain(engine: Engine, grammarSource: GrammarSource, isChat: boolean, wasmUrl: string | undefined): Promise<Constraint> {
  const vocabulary = await vocabularyOf(engine, wasmUrl);
  const { kind, source } = isChat ? inFormat(engine, grammarSource) : grammarSource;
  let grammar: Grammar;
  try {
    grammar = vocabulary.grammar(kind, source);
  } catch (thrown) {
    // The module cannot be used again: the host ends the worker, and the next call starts a fresh one.
    if (isTrap(thrown)) throw thrown;
    throw invalidRequest(`The grammar cannot be used: ${textOf(thrown)}`);
  }
  let isStarted = false;
  const nextMask: NextMask = (token, candidate) => {
    if (isStarted) return next(engine, grammar, token, candidate);
    // A thought may come first, so nothing is forced yet.
    isStarted = true;
    return grammar.mask();
  };
  return { nextMask, free: () => grammar.free() };
}

/** The grammar of an answer with the model's spelling of calls, and what stands around other answers. */
function inFormat(engine: Engine, grammar: GrammarSource): GrammarSource {
  const spelling = JSON.parse(engine.answerSpelling()) as { frame: { open: unknown[] } };
  if (grammar.kind === "answer") return { kind: "answer", source: JSON.stringify({ ...spelling, ...(JSON.parse(grammar.source) as object) }) };
  if (spelling.frame.open.length === 0) return grammar;
  return { kind: "answer", source: JSON.stringify({ ...spelling, tools: [], choice: "auto", parallel: false, answer: grammar }) };
}

/** Minimum number of forced tokens that are worth a prefill of their own. */
const MIN_FORCED_TOKENS = 2;

/** The tokens that may follow: forced ones where the grammar leaves one continuation, else whether `candidate` may, else a mask. */
function next(engine: Engine, grammar: Grammar, token: number | undefined, candidate: number | undefined): ReturnType<NextMask> {
  if (token !== undefined) grammar.accept(token);
  const forced = encoded(engine, grammar.forced());
  if (forced.length >= MIN_FORCED_TOKENS) {
    const tokens = forced.slice(0, grammar.validPrefix(forced));
    if (tokens.length >= MIN_FORCED_TOKENS) {
      tokens.forEach((id) => grammar.accept(id));
      return { forced: tokens };
    }
  }
  // The mask takes longer.
  if (candidate !== undefined && grammar.validPrefix(Uint32Array.of(candidate)) === 1) return true;
  return grammar.mask();
}

/** Forced parts in tokens; text as the model's own tokenizer writes it. What follows may extend the last token of text. */
function encoded(engine: Engine, parts: (Uint8Array | number)[]): Uint32Array {
  const ids = parts.flatMap((part) => {
    if (typeof part === "number") return part;
    // A character that is cut off at the end is left for the mask.
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(part, { stream: true });
    return [...engine.tokenizeContinuation(text)];
  });
  if (typeof parts.at(-1) === "object") ids.pop();
  return Uint32Array.from(ids);
}
