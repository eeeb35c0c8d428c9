/**
 * Faults of every Web API that a load and a generation call, in Chromium with the real engine: a call throws, answers null, never or late. Each
 * load and generation ends with a result or a coded error, an abort ends a load within a second, and the next load works. A plain run takes one
 * fault of each API; `JERBOA_INJECT=all` takes all, and writes docs/web-api-faults.md. `JERBOA_INJECT_ONLY=Cache` takes the APIs that match, so
 * that the table can be written in parts.
 */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { ALL, assertContained, assertDocumented, assertListed, cases, FaultTable, packageScripts, prepare } from "./support/injected-cases.mjs";
import { install, installation } from "./support/injected-faults.mjs";
import { STORIES } from "./support/paths.mjs";

const options = { timeout: (ALL ? 60 : 12) * 60_000 };
/** Pages at a time. */
const LANES = 3;
const ONLY = new RegExp(process.env.JERBOA_INJECT_ONLY ?? "");
let opened, text, calls, scripts;

/** A new visitor's page with the package, whose Web APIs can be made to fail; `errors` lists what it does not catch. */
async function freshPage() {
  const page = await (await opened.page.context().browser().newContext()).newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.addInitScript(install, installation);
  await page.goto(`${opened.url}/package.json`);
  await page.evaluate(prepare, scripts);
  return { page, errors, close: () => page.context().close() };
}

before(async () => {
  scripts = await packageScripts();
  opened = await openPackage({ "/model/": STORIES });
  const { page, close } = await freshPage();
  ({ text, calls } = await page.evaluate(() => observe()));
  await close();
}, options);

after(() => opened?.close());

test("a load and a generation make the listed calls", () => assertListed(calls));

test("every fault of a Web API ends in a result or a coded error, and the next load works", { ...options, concurrency: LANES }, async (t) => {
  const table = new FaultTable();
  const wanted = cases().filter(({ api }) => ONLY.test(api));
  const loads = wanted.filter(({ phase }) => phase === "load");
  const generations = wanted.filter(({ phase }) => phase === "generate");

  /** Resolves to whether the test passed. */
  const strike = async (fault, { page, errors }) => {
    let passed = false;
    await t.test(`${fault.phase}: ${fault.api} ${fault.kind}`, async () => {
      const found = await page.evaluate((fault) => strike(fault), fault);
      assertContained(fault, found, text);
      assert.deepEqual(errors.splice(0), []);
      table.add(fault, found);
      if (ALL) await table.write("Chromium");
      passed = true;
    });
    return passed;
  };
  // A load starts as a visitor's first one.
  const loading = async () => {
    for (let fault = loads.shift(); fault; fault = loads.shift()) {
      const fresh = await freshPage();
      await strike(fault, fresh);
      await fresh.close();
    }
  };
  // Generations go on with the model that the last fault left.
  const generating = async () => {
    let used = await freshPage();
    for (const fault of generations) {
      if (await strike(fault, used)) continue;
      await used.close();
      used = await freshPage();
    }
    assert.equal(await used.page.evaluate(() => finish()), "done");
    await used.close();
    await loading();
  };
  await Promise.all([generating(), ...Array.from({ length: LANES - 1 }, loading)]);
});

test("the documentation has a row for every call", () => assertDocumented("Chromium"));
