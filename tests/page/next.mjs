/** The package in a fresh Next.js project, built by Turbopack and by webpack, and opened in Chromium: `node tests/page/next.mjs`. Not in CI: Next.js alone is larger than all other test tools together. */

import { execFile, spawn } from "node:child_process";
import { cp, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { stories } from "./support/golden.mjs";
import { PACKAGE, STORIES } from "./support/paths.mjs";

const run = promisify(execFile);
const TOKENS = 16;

const PAGE = `"use client";
import { loadModel } from "jerboa";
import { createNetwork } from "jerboa/layers";
import { useEffect, useState } from "react";

export default function Answer() {
  const [text, setText] = useState("");
  useEffect(() => {
    (async () => {
      const model = await loadModel(new URL("/model/", location.href));
      const text = await model.generate("Once upon a time", { maxTokens: ${TOKENS}, temperature: 0 });
      const network = await createNetwork({ input: [2], layers: [{ type: "dense", units: 1 }] });
      window.result = { text, outputs: (await network.predict([[1, 2]])).length, worker: model.info.worker, warnings: model.info.warnings };
      setText(text);
    })().catch((error) => (window.result = { error: error.message }));
  }, []);
  return <p>{text}</p>;
}
`;
/** The server's side imports the package too. */
const ROUTE = `import { createFetch, loadModel } from "jerboa";

const jerboa = createFetch({ story: () => loadModel("org/name") });
export const GET = (request) => jerboa(request);
`;
const LAYOUT = `export default ({ children }) => <html lang="en"><body>{children}</body></html>;\n`;

assertBuilt();
const golden = await stories();
const project = await mkdtemp(join(tmpdir(), "jerboa-next-"));
let server, browser;
try {
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", project, PACKAGE]);
  const parsed = JSON.parse(stdout);
  const [packed] = Array.isArray(parsed) ? parsed : Object.values(parsed);
  const dependencies = { jerboa: `file:./${packed.filename}`, next: "^16", react: "^19", "react-dom": "^19" };
  await writeFile(join(project, "package.json"), JSON.stringify({ private: true, dependencies }));
  await mkdir(join(project, "app"));
  await writeFile(join(project, "app/page.jsx"), PAGE);
  await writeFile(join(project, "app/layout.jsx"), LAYOUT);
  await mkdir(join(project, "app/v1/[...path]"), { recursive: true });
  await writeFile(join(project, "app/v1/[...path]/route.js"), ROUTE);
  await cp(STORIES, join(project, "public/model"), { recursive: true });
  await run("npm", ["install", "--no-audit", "--no-fund"], { cwd: project });
  const next = join(project, "node_modules/next/dist/bin/next");
  const env = { ...process.env, NEXT_TELEMETRY_DISABLED: "1" };
  browser = await launch();
  for (const bundler of ["turbopack", "webpack"]) {
    await rm(join(project, ".next"), { recursive: true, force: true });
    await run(process.execPath, [next, "build", `--${bundler}`], { cwd: project, env, maxBuffer: 1 << 26 });
    const port = 20_000 + (process.pid % 20_000);
    server = spawn(process.execPath, [next, "start", "-p", String(port)], { cwd: project, env, stdio: ["ignore", "pipe", "inherit"] });
    await new Promise((resolve) => server.stdout.on("data", (data) => /ready/i.test(String(data)) && resolve()));
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${port}/model/config.json`);
    await warmUp(page);
    await page.goto(`http://127.0.0.1:${port}/`);
    await page.waitForFunction(() => window.result, null, { timeout: 300_000 });
    const result = await page.evaluate(() => window.result);
    const served = await (await fetch(`http://127.0.0.1:${port}/v1/models`)).json();
    console.log(bundler, JSON.stringify(result), JSON.stringify(served));
    if (!result.worker || result.outputs !== 1 || !golden.newText.startsWith(result.text ?? "?") || served.data?.[0]?.id !== "story") process.exitCode = 1;
    await page.close();
    const closed = new Promise((resolve) => server.once("exit", resolve));
    server.kill();
    await closed;
  }
} finally {
  await browser?.close();
  server?.kill();
  await rm(project, { recursive: true, force: true });
}
