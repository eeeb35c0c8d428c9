/**
 * Faults of every Web API that a load and a generation call, in Chromium with the real engine: a call throws, answers null, never or late. Each
 * load and generation ends with a result or a coded error, an abort ends a load within a second, and the next load works. A plain run takes one
 * fault of each API; `JERBOA_INJECT=all` takes all, and writes docs/web-api-faults.md.
 */

import assert from "node:assert/strict";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";
import { FAULTS, install, installation } from "./support/injected-faults.mjs";
import { PACKAGE, ROOT, STORIES } from "./support/paths.mjs";

const ALL = process.env.JERBOA_INJECT === "all";
const TABLE = `${ROOT}/docs/web-api-faults.md`;
const options = { timeout: (ALL ? 60 : 12) * 60_000 };
/** Virtual seconds in which each call must end: six attempts of a download that stalls, or of a device that does not answer, which is reopened once. */
const LIMIT_SECONDS = 1500;
/** Codes that say nothing. */
const UNCODED = ["internal", "none", "hangs"];
let opened, text, calls, scripts;

/** A new visitor's page with the package, whose Web APIs can be made to fail. */
async function freshPage() {
  const page = await (await opened.page.context().browser().newContext()).newPage();
  await page.addInitScript(install, installation);
  await page.goto(`${opened.url}/package.json`);
  await page.evaluate(async (scripts) => {
    // Scripts that a load imports are not seen as calls.
    const preload = (href) => new Promise((onload, onerror) => document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href, onload, onerror })));
    await Promise.all(scripts.map(preload));
    window.jerboa = await import("/index.js");
    // On this thread, where its calls can be seen.
    window.load = (more = {}) => jerboa.loadModel(new URL("/model/", location.href), { worker: false, tune: "off", ...more });
    window.generate = (model) => model.generate("Once upon", { maxTokens: 6, temperature: 0 });
    window.wipe = async () => {
      for (const name of await caches.keys()) await caches.delete(name);
    };
    /** Milliseconds from an abort to the end of a load that waits for a faulty call. */
    window.abortedLoad = async () => {
      const controller = new AbortController();
      const loading = load({ signal: controller.signal }).then((model) => model.unload().then(() => "loaded"), (error) => error.code);
      for (let i = 0; i < 200 && faults.hits() === 0; i++) await faults.pause(20);
      const begun = faults.now() - faults.late();
      controller.abort();
      return { code: await loading, ms: faults.now() - faults.late() - begun };
    };
    /** One fault: what the call, the abort of a load, and the next calls come to. */
    window.strike = async ({ phase, api, kind, async }) => {
      const found = {};
      if (phase === "load") await wipe();
      let model;
      if (phase === "load" && kind === "never") {
        faults.inject(api, kind, async);
        found.aborted = (await faults.outcome(abortedLoad)).value;
        faults.clear();
      }
      if (phase === "generate") model = (await faults.outcome(load)).value;
      faults.inject(api, kind, async);
      const { value, ...outcome } = await faults.outcome(() => (phase === "load" ? load() : generate(model)));
      Object.assign(found, outcome, { hits: faults.clear() });
      if (phase === "load") model = value;
      found.warnings = model?.info.warnings ?? [];
      const next = await faults.outcome(async () => generate((model ??= await load())));
      found.next = next.value ?? `${next.code}: ${next.message}`;
      found.unload = (await faults.outcome(() => model?.unload())).code ?? "done";
      return found;
    };
  }, scripts);
  return page;
}

before(async () => {
  scripts = (await readdir(PACKAGE)).filter((name) => name.endsWith(".js") && name !== "worker.js").map((name) => `/${name}`);
  opened = await openPackage({ "/model/": STORIES });
  const page = await freshPage();
  ({ text, calls } = await page.evaluate(async () => {
    await wipe();
    faults.reset();
    const model = await load();
    await model.persisted;
    const calls = { load: faults.calls() };
    faults.reset();
    const text = await generate(model);
    calls.generate = faults.calls();
    await model.unload();
    return { text: String(text), calls };
  }));
  await page.context().close();
}, options);

after(() => opened?.close());

/** The faults of each API, first one of each. A call without a promise is neither late nor silent, and one without a result answers nothing. */
function cases() {
  const [first, others] = [[], []];
  for (const phase of ["load", "generate"]) {
    Object.entries(calls[phase]).forEach(([api, { async, answers }], i) => {
      const kinds = FAULTS.filter((kind) => async || kind === "throws" || (kind === "null" && answers));
      kinds.forEach((kind, k) => (k === i % kinds.length ? first : others).push({ phase, api, kind, async }));
    });
  }
  return ALL ? [...first, ...others] : first;
}

/** An outcome in a cell of the table. */
function cell({ code, seconds, warnings, hits }) {
  if (hits === 0) return "not called";
  if (code === undefined) return `works${warnings.length > 0 ? ", with a warning" : ""}`;
  return seconds < 25 ? `\`${code}\`` : `\`${code}\`, ${10 * Math.ceil(seconds / 10)} s`;
}

test("every fault of a Web API ends in a result or a coded error, and the next load works", { ...options, concurrency: 3 }, async (t) => {
  assert.ok(Object.keys(calls.load).length > 25 && Object.keys(calls.generate).length > 10, JSON.stringify(calls));
  const rows = new Map();
  const running = [];
  for (const fault of cases()) {
    const { phase, api, kind } = fault;
    if (!rows.has(`${phase} ${api}`)) rows.set(`${phase} ${api}`, {});
    const work = t.test(`${phase}: ${api} ${kind}`, async () => {
      const page = await freshPage();
      const errors = [];
      page.on("pageerror", (error) => errors.push(String(error)));
      const found = await page.evaluate((fault) => strike(fault), fault);
      await page.context().close();
      const said = JSON.stringify(found);
      assert.ok(!UNCODED.includes(found.code), said);
      assert.ok(found.seconds < LIMIT_SECONDS, said);
      if (found.aborted) assert.ok(["aborted", "loaded"].includes(found.aborted.code) && found.aborted.ms < 1000, said);
      assert.equal(found.next, text, said);
      assert.equal(found.unload, "done", said);
      assert.deepEqual(errors, [], said);
      rows.get(`${phase} ${api}`)[kind] = cell(found);
      if (ALL) await writeFile(TABLE, table(rows));
    });
    running.push(work);
  }
  await Promise.all(running);
});

test("the documentation has a row for every call", async () => {
  const documented = await readFile(TABLE, "utf8");
  for (const [phase, apis] of Object.entries(calls)) {
    for (const api of Object.keys(apis)) assert.ok(documented.includes(`| ${phase} | \`${api}\` |`), `${phase}: ${api}`);
  }
});

function table(rows) {
  const line = ([name, row]) => {
    const [phase, api] = name.split(" ");
    return `| ${phase} | \`${api}\` | ${FAULTS.map((kind) => row[kind] ?? "").join(" | ")} |`;
  };
  return `# Faults of Web APIs

What a load and a generation come to when a Web API fails at every call: it throws or rejects, answers null, never answers, or answers 20 s late.
Measured in Chromium on a software adapter, whose deadline is 600 s; other adapters have 60 s.
Times are those of the page's clock, rounded up.

Empty cells: a call without a promise is neither late nor silent, one without a result has no null, others were not measured.
In all cases an abort ends the load within a second, and the next load works. The deadlines are in [limits.md](limits.md#timeouts).

\`JERBOA_INJECT=all node --test tests/page/injected.test.mjs\` writes this table.

| call | Web API | throws | null | never | late |
|---|---|---|---|---|---|
${[...rows].map(line).join("\n")}
`;
}
