/** The tests of node-host.test.mjs in Deno. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { ROOT } from "./support/paths.mjs";
import { useSoftwareGpu } from "./support/software-gpu.mjs";

test("the tests of Node pass in Deno", { timeout: 900_000 }, async () => {
  useSoftwareGpu();
  const deno = `${ROOT}/node_modules/deno/bin.cjs`;
  const env = { ...process.env, JERBOA_NODE: process.execPath, NO_COLOR: "1", DENO_NO_UPDATE_CHECK: "1" };
  const args = [deno, "test", "--allow-all", "--no-check", "--no-lock", "--node-modules-dir=manual", "tests/page/node-host.test.mjs"];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, { cwd: ROOT, env, maxBuffer: 1 << 26 }).catch((failed) => failed);
  assert.match(stdout, /\d+ passed.*\b0 failed/, `${stdout}\n${stderr}`);
});
