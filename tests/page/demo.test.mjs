/** The server of `cargo xtask demo`: what it must not do to a model's files. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";
import { assertBuilt } from "./support/built.mjs";
import { ROOT } from "./support/places.mjs";

test("a file that is not there is a 404, not a page", { timeout: 60_000 }, async () => {
  assertBuilt();
  const port = 20_000 + (process.pid % 20_000);
  const server = spawn(process.execPath, [`${ROOT}/node_modules/vite/bin/vite.js`, "preview", "--host", "127.0.0.1", "--strictPort", "--port", String(port)], {
    cwd: `${ROOT}/www`,
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    await new Promise((resolve) => server.stdout.on("data", (data) => String(data).includes(String(port)) && resolve()));
    const status = async (path) => (await fetch(`http://127.0.0.1:${port}/${path}`)).status;
    assert.equal(await status(""), 200);
    assert.equal(await status("models/stories260K/config.json"), 200);
    // A checkpoint need not have these; a page in their place would be read as one of them.
    for (const file of ["modules.json", "chat_template.jinja"]) assert.equal(await status(`models/stories260K/${file}`), 404);
  } finally {
    server.kill();
  }
});
