/** A test model: the vector of a text is the sum of its words' vectors, which are seeded by a hash of the word. Runs in Node.js and in pages. */

/** A deterministic number from 0 to 1 for a text and an index. */
function noise(text, index) {
  let hash = 2166136261 ^ index;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  hash ^= hash >>> 15;
  hash = Math.imul(hash, 0x2c1b3c6d);
  hash ^= hash >>> 12;
  hash = Math.imul(hash, 0x297a2d39);
  return ((hash ^ (hash >>> 15)) >>> 0) / 2 ** 32;
}

/** The words of a text. */
export const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

/** An embedding model of the given width; `calls` records its inputs. */
export function embedder(dims = 48, id = "words") {
  const calls = [];
  const vector = (text) => {
    const sum = new Float32Array(dims);
    for (const word of words(text)) for (let i = 0; i < dims; i++) sum[i] += noise(word, i) - 0.5;
    return sum;
  };
  return {
    id,
    calls,
    countTokens: (text) => words(text).length,
    embed: async (texts, options) => {
      calls.push({ texts, options });
      return texts.map(vector);
    },
  };
}

/** Random vectors of length 1, the same for the same seed. */
export function randomVectors(count, dims, seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  return Array.from({ length: count }, () => {
    const vector = Float32Array.from({ length: dims }, () => next() + next() + next() - 1.5);
    const norm = Math.hypot(...vector);
    return vector.map((v) => v / norm);
  });
}
