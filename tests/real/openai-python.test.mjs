/** OpenAI's published Python client against `jerboa serve` on software WebGPU in Node. `cargo xtask test real` installs the client. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { assertBuilt } from "../page/support/built.mjs";
import { PACKAGE, ROOT, STORIES } from "../page/support/paths.mjs";
import { useSoftwareGpu } from "../page/support/software-gpu.mjs";
import { TEMPLATE } from "../page/support/story-files.mjs";

const KEY = "secret";
const NAMES = ["./story", "./words"];

/** Starts the server in a folder with a chat model and an embedding model; gives its URL and a function that ends it. */
async function startServer(folder) {
  await cp(STORIES, join(folder, NAMES[0]), { recursive: true });
  await writeFile(join(folder, NAMES[0], "chat_template.jinja"), TEMPLATE);
  await cp(join(ROOT, "www/public/models/words-encoder"), join(folder, NAMES[1]), { recursive: true });
  const child = spawn(process.execPath, [join(PACKAGE, "node/cli.js"), "serve", ...NAMES, "--port", "0", "--json", "--tune", "off", "--api-key", KEY], { cwd: folder });
  let problem = "";
  child.stderr.on("data", (data) => (problem += data));
  const ended = new Promise((resolve) => child.on("close", resolve));
  const end = () => {
    child.kill("SIGINT");
    return ended;
  };
  for await (const line of createInterface({ input: child.stdout })) {
    const { url } = JSON.parse(line);
    assert.ok(url, line);
    return { url, end };
  }
  throw new Error(problem);
}

/** What Python with the client prints; rejects if it fails. */
async function python(args) {
  const child = spawn("python3", args, { env: { ...process.env, PYTHONPATH: join(process.env.JERBOA_REAL, "openai-python") } });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (output += data));
  const code = await new Promise((resolve, reject) => child.on("close", resolve).on("error", reject));
  assert.equal(code, 0, output);
  return output;
}

test("openai-python", { timeout: 1_200_000 }, async (t) => {
  assert.ok(process.env.JERBOA_REAL, "JERBOA_REAL names the folder that tests/real/fetch.py wrote");
  assertBuilt();
  useSoftwareGpu();
  const folder = await mkdtemp(join(tmpdir(), "jerboa-openai-python-"));
  let server;
  try {
    server = await startServer(folder);
    const tests = await python([join(ROOT, "tests/real/openai_client.py"), server.url, KEY, ...NAMES]);
    t.diagnostic(tests);
    assert.match(tests, /Ran 10 tests/);
    const [, sample] = /```python\n([^]*?)```/.exec(await readFile(join(ROOT, "www/docs/cli.md"), "utf8"));
    const printed = await python(["-c", sample.replace("http://127.0.0.1:8080/v1", server.url).replace(/^MODEL = .*$/m, `MODEL = "${NAMES[0]}"`)]);
    t.diagnostic(printed);
    assert.match(printed, /.{20}recommended=(True|False) stars=[1-5]/s);
  } finally {
    await server?.end();
    await rm(folder, { recursive: true, force: true });
  }
});
