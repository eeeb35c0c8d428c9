/** The server of `cargo xtask demo`: missing model files are 404, and the documentation is next to the page. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, test } from "node:test";
import { assertBuilt } from "./support/built.mjs";
import { ROOT } from "./support/paths.mjs";

let server, url;

before(async () => {
  assertBuilt();
  const port = 20_000 + (process.pid % 20_000);
  server = spawn(process.execPath, [`${ROOT}/node_modules/vite/bin/vite.js`, "preview", "--host", "127.0.0.1", "--strictPort", "--port", String(port)], {
    cwd: `${ROOT}/www`,
    stdio: ["ignore", "pipe", "inherit"],
  });
  await new Promise((resolve) => server.stdout.on("data", (data) => String(data).includes(String(port)) && resolve()));
  url = `http://127.0.0.1:${port}/`;
}, { timeout: 60_000 });
after(() => server?.kill());

const status = async (path) => (await fetch(url + path)).status;

test("a file that is not there is a 404, not a page", async () => {
  assert.equal(await status(""), 200);
  assert.equal(await status("models/stories260K/config.json"), 200);
  // A checkpoint need not have these; a page instead would be read as one of them.
  for (const file of ["modules.json", "chat_template.jinja"]) assert.equal(await status(`models/stories260K/${file}`), 404);
});

test("the page's Docs link opens the documentation", async () => {
  const page = await (await fetch(url)).text();
  const [, target] = /<a href="([^"]+)">Docs<\/a>/.exec(page) ?? assert.fail("the page has no Docs link");
  const docs = new URL(target, url);
  const html = await (await fetch(docs)).text();
  assert.match(html, /<h1[^>]*>Getting started/);
  // What it needs is there: a wrong base path would lead elsewhere.
  const files = [...html.matchAll(/(?:src|href)="(\/[^"]*)"/g)].map(([, path]) => path).filter((path) => path !== "/docs/../");
  assert.ok(files.length > 10, `only ${files.length} links`);
  for (const file of new Set(files)) assert.equal((await fetch(new URL(file, url))).status, 200, file);
});
