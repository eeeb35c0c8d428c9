/** docs/api.txt lists the public API of the package, so that reviews show every change. `JERBOA_WRITE_API=1` writes the file. */

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { ROOT } from "./support/paths.mjs";
import { surface } from "./support/surface.mjs";

const FILE = `${ROOT}/docs/api.txt`;

test("the public API equals docs/api.txt", async () => {
  const now = await surface();
  if (process.env.JERBOA_WRITE_API) await writeFile(FILE, now);
  assert.equal(now, await readFile(FILE, "utf8"), "what programs can call has changed: look at it, then JERBOA_WRITE_API=1 node --test tests/page/surface.test.mjs");
});
