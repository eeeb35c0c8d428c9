/** Tests of node-host.test.mjs in Deno: loading, streaming, aborts, grammars. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { ROOT } from "./support/paths.mjs";
import { useSoftwareGpu } from "./support/software-gpu.mjs";

test("the package generates in Deno as in Node", { timeout: 900_000 }, async () => {
  useSoftwareGpu();
  const deno = `${ROOT}/node_modules/deno/bin.cjs`;
  const env = { ...process.env, JERBOA_NODE: process.execPath, NO_COLOR: "1", DENO_NO_UPDATE_CHECK: "1" };
  const args = [deno, "test", "--allow-all", "--no-check", "--no-lock", "--node-modules-dir=manual", "--filter", "/folder's model|is aborted|grammars load/", "tests/page/node-host.test.mjs"];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { cwd: ROOT, env, maxBuffer: 1 << 26 }).catch((failed) => failed);
  assert.match(stdout, /\b3 passed.*\b0 failed/, `${stdout}\n${stderr}`);
});
