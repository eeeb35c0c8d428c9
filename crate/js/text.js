/** Grapheme segmentation by the browser. */

let segmenter;

/** Length in UTF-16 units of each grapheme cluster. */
export function clusters(text) {
  segmenter ??= new Intl.Segmenter("en");
  return Uint32Array.from(segmenter.segment(text), ({ segment }) => segment.length);
}
