/** The built package in restricted contexts: sandboxed frames, and policies that forbid WebAssembly or an address. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, warmUp } from "./support/browser.mjs";
import { assertBuilt } from "./support/built.mjs";
import { PACKAGE, STORIES } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 300_000 };
const servers = [];
let browser;

before(async () => {
  assertBuilt();
  browser = await launch();
});

after(async () => {
  await browser?.close();
  for (const server of servers) await server.close();
});

/** A page on a server with these headers, with the package and the bundled model. */
async function open(headers) {
  const server = await serve({ "/": PACKAGE, "/model/": STORIES }, headers);
  servers.push(server);
  const page = await (await browser.newContext()).newPage();
  await page.goto(`${server.url}/package.json`);
  await warmUp(page);
  return { page, url: server.url };
}

test("models run in a sandboxed frame, with and without a worker", options, async () => {
  const { page, url } = await open({ "Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "ETag, Content-Range, Content-Length" });
  const heard = await page.evaluate(async (url) => {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.srcdoc = `<script type=module>
      const out = [];
      for (const options of [{}, { worker: false }, { cache: false }]) {
        try {
          const { loadModel, cachedModels, storageReport } = await import("${url}/index.js");
          const model = await loadModel("${url}/model", options);
          const text = await model.generate("Once", { maxTokens: 3, temperature: 0 });
          out.push([text.length > 0, (await cachedModels()).length, (await storageReport()).foreign.length]);
          await model.unload();
        } catch (error) {
          out.push(error.code + ": " + error.message);
        }
      }
      parent.postMessage(out, "*");
    <\/script>`;
    const told = new Promise((resolve) => addEventListener("message", ({ data }) => resolve(data), { once: true }));
    document.body.append(frame);
    return told;
  }, url);
  assert.deepEqual(heard, [[true, 0, 0], [true, 0, 0], [true, 0, 0]]);
});

/** The error of a failed load. */
const failure = (page, model, worker) =>
  page.evaluate(async ([model, worker]) => {
    const { loadModel } = await import("/index.js");
    return loadModel(model, { worker, cache: false }).then(() => "loaded", ({ code, message }) => `${code}: ${message}`);
  }, [model, worker]);

test("errors name the policy directive that forbids WebAssembly or an address", options, async () => {
  const other = await serve({ "/": STORIES }, { "Access-Control-Allow-Origin": "*" });
  servers.push(other);
  for (const worker of [true, false]) {
    const wasm = await open({ "Content-Security-Policy": "script-src 'self'; worker-src 'self'" });
    assert.match(await failure(wasm.page, `${wasm.url}/model`, worker), /^assets: .*Content-Security-Policy forbids WebAssembly\. Add 'wasm-unsafe-eval' to the policy's script-src/, `worker: ${worker}`);
    const address = await open({ "Content-Security-Policy": "script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'" });
    const said = await failure(address.page, other.url, worker);
    assert.ok(said.startsWith(`network: ${other.url} cannot be reached: the page's Content-Security-Policy blocks it. Add ${other.url} to`), said);
  }
});

test("an error of a blocked WebAssembly file names connect-src", options, async () => {
  for (const worker of [true, false]) {
    const { page, url } = await open({ "Content-Security-Policy": "script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src https://huggingface.co" });
    const said = await failure(page, `${url}/model`, worker);
    assert.match(said, /^assets: .*Content-Security-Policy blocks it\. Add 'self' to the policy's connect-src directive\.$/, `worker: ${worker}`);
  }
});

test("the package from a CDN: warnings name blob: and its origin until worker-src lists both", options, async () => {
  const cdn = await serve({ "/": PACKAGE }, { "Access-Control-Allow-Origin": "*" });
  servers.push(cdn);
  const warnings = async (workers) => {
    const { page, url } = await open({ "Content-Security-Policy": `script-src 'self' ${cdn.url} 'wasm-unsafe-eval'; worker-src ${workers}` });
    return page.evaluate(async ([script, model]) => {
      const { loadModel } = await import(script);
      const { info } = await loadModel(model, { cache: false });
      return info.warnings.filter((warning) => /worker/.test(warning)).join(" ");
    }, [`${cdn.url}/index.js`, `${url}/model`]);
  };
  for (const workers of ["'self'", "'self' blob:"]) {
    const said = await warnings(workers);
    assert.ok(said.includes(`blob: and ${cdn.url}`) && said.includes("worker-src directive"), said);
  }
  assert.equal(await warnings(`'self' blob: ${cdn.url}`), "");
});
