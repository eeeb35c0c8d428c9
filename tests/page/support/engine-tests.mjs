/** crate/tests served to any browser. */

import { fileURLToPath } from "node:url";
import { serve } from "./server.mjs";

/** The result in the page's text. */
export const RESULT = /test result: (\w+)\. (\d+) passed; (\d+) failed/;

/** Serves the tests whose names contain `filter`; the page at `url` runs them and writes their results. */
export async function serveEngineTests(filter = "") {
  const folder = process.env.JERBOA_ENGINE_TESTS;
  if (!folder) throw new Error("JERBOA_ENGINE_TESTS names no compiled tests: run them with `cargo xtask test wasm`, `firefox` or `webkit`.");
  const page = fileURLToPath(new URL("engine-tests", import.meta.url));
  const { url, close } = await serve({ "/": page, "/module/": folder });
  return { url: `${url}/?filter=${encodeURIComponent(filter)}`, close };
}
