/** What the browser knows of characters. Knows no tokenizer. */

let segmenter;

/** How many UTF-16 units each cluster of characters has that is seen as one. */
export function clusters(text) {
  segmenter ??= new Intl.Segmenter("en");
  return Uint32Array.from(segmenter.segment(text), ({ segment }) => segment.length);
}
