/** Renders LaTeX to MathML (Temml), which browsers draw themselves. Loaded with the first formula. */

import temml from "temml";
import "temml/dist/Temml-Local.css";

/** The formula as MathML; undefined if it is not valid LaTeX. */
export function mathML(latex: string, display: boolean): string | undefined {
  try {
    return temml.renderToString(latex, { displayMode: display, throwOnError: true });
  } catch {
    return undefined;
  }
}
