/** Checks that the package and the page are built. */

import { existsSync } from "node:fs";
import { expectKernels } from "./kernels.mjs";
import { PACKAGE, PAGE } from "./paths.mjs";

/** Throws if the package or the page is missing. */
export function assertBuilt() {
  expectKernels();
  for (const file of [`${PACKAGE}/index.js`, `${PACKAGE}/jerboa_bg.wasm`, `${PAGE}/index.html`]) {
    if (!existsSync(file)) throw new Error(`${file} is missing: run \`cargo xtask build\` first.`);
  }
}
