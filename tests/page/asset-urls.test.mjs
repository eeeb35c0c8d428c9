/** Every file that a built script names by `new URL(…, import.meta.url)` exists: bundlers resolve each of them, also those that a host never uses. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { assertBuilt } from "./support/built.mjs";
import { PACKAGE } from "./support/paths.mjs";

test("every asset URL of the built scripts leads to a file", async () => {
  assertBuilt();
  const missing = [];
  let count = 0;
  for (const name of (await readdir(PACKAGE, { recursive: true })).filter((name) => name.endsWith(".js"))) {
    const script = join(PACKAGE, name);
    for (const [, path] of (await readFile(script, "utf8")).matchAll(/new URL\(\s*["'`]([^"'`$]+)["'`]\s*,\s*import\.meta\.url\s*\)/g)) {
      count++;
      if (!existsSync(new URL(path, pathToFileURL(script)))) missing.push(`${name}: ${path}`);
    }
  }
  assert.deepEqual(missing, []);
  assert.ok(count >= 10, `only ${count} URLs were found`);
});
