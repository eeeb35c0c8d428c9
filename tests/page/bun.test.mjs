/** Tests of node-host.test.mjs in Bun: loading, streaming, aborts, grammars. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { promisify } from "node:util";
import { ROOT } from "./support/paths.mjs";
import { useSoftwareGpu } from "./support/software-gpu.mjs";

test("the package generates in Bun as in Node", { timeout: 900_000 }, async () => {
  // Bun does not pass changes of process.env on to native code, so the driver is chosen before it starts.
  useSoftwareGpu();
  const bun = `${ROOT}/node_modules/bun/bin/bun.exe`;
  const env = { ...process.env, JERBOA_NODE: process.execPath, NO_COLOR: "1" };
  const args = ["test", "--timeout", "400000", "-t", "folder's model|is aborted|grammars load", "./tests/page/node-host.test.mjs"];
  const { stdout, stderr } = await promisify(execFile)(bun, args, { cwd: ROOT, env, maxBuffer: 1 << 26 }).catch((failed) => failed);
  assert.match(stderr, /\b3 pass\n[\s\S]*\b0 fail\n/, `${stdout}\n${stderr}`);
});
