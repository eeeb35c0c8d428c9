/** Sees to it that what is to be tested has been built. */

import { existsSync } from "node:fs";
import { expectKernels } from "./kernels.mjs";
import { PACKAGE, PAGE } from "./places.mjs";

/** Throws when the package or the page is not there. */
export function assertBuilt() {
  expectKernels();
  for (const file of [`${PACKAGE}/index.js`, `${PACKAGE}/jerboa_bg.wasm`, `${PAGE}/index.html`]) {
    if (!existsSync(file)) throw new Error(`${file} is missing: run \`cargo xtask build\` first.`);
  }
}
