/** The public surface of the package is what docs/api.txt says: a change of it is seen in review. `JERBOA_WRITE_API=1` writes the file. */

import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { ROOT } from "./support/places.mjs";
import { surface } from "./support/surface.mjs";

const FILE = `${ROOT}/docs/api.txt`;

test("the public surface is the one that was agreed on", async () => {
  const now = await surface();
  if (process.env.JERBOA_WRITE_API) await writeFile(FILE, now);
  assert.equal(now, await readFile(FILE, "utf8"), "what programs can call has changed: look at it, then JERBOA_WRITE_API=1 node --test tests/page/surface.test.mjs");
});
