/** Paths in the repository. */

import { fileURLToPath } from "node:url";

/** The repository's root. */
export const ROOT = fileURLToPath(new URL("../../..", import.meta.url)).replace(/\/$/, "");
/** The npm package that `cargo xtask build` makes. */
export const PACKAGE = `${ROOT}/dist/jerboa`;
/** The built demo page. */
export const PAGE = `${ROOT}/dist/www`;
/** The bundled model. */
export const STORIES = `${ROOT}/www/public/models/stories260K`;
/** Test outputs for review. */
export const SHOTS = `${ROOT}/target/page`;
