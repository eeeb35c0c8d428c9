/**
 * Faults of every Web API that a load and a generation call, in Chromium with the real engine: a call throws, answers null, never or late. Each
 * load and generation ends with a result or a coded error, an abort ends a load within a second, and the next load works. A plain run takes
 * a sample; `JERBOA_INJECT=all` takes all, and writes docs/web-api-faults.md. `JERBOA_INJECT_ONLY=Cache` takes the APIs that match, so
 * that the table can be written in parts.
 */

import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { ALL, assertDocumented, assertListed, packageScripts, prepare, strikeAll } from "./support/injected-cases.mjs";
import { install, installation } from "./support/injected-faults.mjs";
import { STORIES } from "./support/paths.mjs";

const options = { timeout: (ALL ? 60 : 12) * 60_000 };
/** Pages at a time. */
const LANES = 3;
let opened, text, calls, scripts;

/** A new visitor's page with the package, whose Web APIs can be made to fail; `errors` lists what it does not catch. */
async function freshPage() {
  const page = await (await opened.page.context().browser().newContext()).newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.addInitScript(install, installation);
  await page.goto(`${opened.url}/package.json`);
  await page.evaluate(prepare, scripts);
  return { evaluate: (...call) => page.evaluate(...call), errors, close: () => page.context().close() };
}

before(async () => {
  scripts = await packageScripts();
  opened = await openPackage({ "/model/": STORIES });
  const { evaluate, close } = await freshPage();
  ({ text, calls } = await evaluate(() => observe()));
  await close();
}, options);

after(() => opened?.close());

test("a load and a generation make the listed calls", () => assertListed(calls));

test("every fault of a Web API ends in a result or a coded error, and the next load works", { ...options, concurrency: LANES }, (t) =>
  strikeAll(t, { browser: "Chromium", open: freshPage, lanes: LANES, text }));

test("the documentation has a row for every call", () => assertDocumented("Chromium"));
