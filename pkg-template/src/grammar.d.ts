/** Type declarations of the grammar module, which is next to these files in the built package. */

/** Loads the module's WebAssembly. */
export default function init(options?: { module_or_path: string | URL | BufferSource }): Promise<unknown>;

/** A model's tokens as bytes. */
export declare class Vocabulary {
  /** The tokens' bytes one after another, the length of each by id (0: never allowed), and the ids that end the output. */
  constructor(bytes: Uint8Array, lengths: Uint32Array, endIds: Uint32Array);
  /** Compiles a grammar. @throws with the compiler's reason. */
  grammar(kind: string, source: string): Grammar;
  free(): void;
}

/** The state of one constrained generation. */
export declare class Grammar {
  /** The tokens that may come next, one bit each. */
  mask(): Uint32Array;
  /** Advances by a token. */
  accept(token: number): void;
  /** How many of these tokens may follow one after another. */
  validPrefix(tokens: Uint32Array): number;
  /** What must come next: bytes of text, and ids of tokens. */
  forced(): (Uint8Array | number)[];
  isComplete(): boolean;
  hasEnded(): boolean;
  free(): void;
}
