/** Cases of injected faults for any browser: the calls of a load and of a generation, what a page does with a fault, and the table in the documentation. */

import assert from "node:assert/strict";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { PACKAGE, ROOT } from "./paths.mjs";
import { FAULTS } from "./injected-faults.mjs";

/** `JERBOA_INJECT=all` takes all faults and writes the table. */
export const ALL = process.env.JERBOA_INJECT === "all";
/** `JERBOA_INJECT_ONLY=Cache` takes the APIs that match. */
const ONLY = new RegExp(process.env.JERBOA_INJECT_ONLY ?? "");
export const TABLE = `${ROOT}/docs/web-api-faults.md`;
/** Virtual seconds in which each call must end: six attempts of a download that stalls, or of a device that does not answer, which is reopened once. */
const LIMIT_SECONDS = 1500;
/** Codes that say nothing. */
const UNCODED = ["internal", "none", "hangs"];

/** What a call gives: a promise, a value, or nothing. */
const [PROMISE, VALUE, NOTHING] = ["promise", "value", "nothing"];
const always = (gives, names) => names.map((api) => ({ api, gives, sometimes: false }));
/** Whether these are made depends on the browser, on its pace, or on what ran before: work that goes on after a load, threads, other tabs. */
const sometimes = (gives, names) => names.map((api) => ({ api, gives, sometimes: true }));

/** These are made by the first generation of a model only. */
const first = (gives, names) => always(gives, names).map((call) => ({ ...call, first: true }));
/** These are made by the first load of a page only: later loads wait for the same answer. */
const shared = (gives, names) => always(gives, names).map((call) => ({ ...call, shared: true }));

/** These are made where a window has no private files. */
const withoutFiles = (calls) => calls.map((call) => ({ ...call, inCache: true }));

/** Calls of every pass: recording and submitting GPU work. */
const PASSES = [
  ...always(NOTHING, ["GPUQueue.writeBuffer"]),
  ...always(VALUE, ["GPUDevice.createCommandEncoder", "GPUCommandEncoder.beginComputePass"]),
  ...always(NOTHING, ["GPUComputePassEncoder.setPipeline", "GPUComputePassEncoder.setBindGroup", "GPUComputePassEncoder.dispatchWorkgroups", "GPUComputePassEncoder.end"]),
  ...always(VALUE, ["GPUCommandEncoder.finish"]),
  ...always(NOTHING, ["GPUQueue.submit"]),
];

/** The calls that a load and a generation can make. */
export const CALLS = {
  load: [
    ...always(NOTHING, ["Storage.setItem"]),
    ...always(VALUE, ["Storage.getItem"]),
    ...always(PROMISE, ["LockManager.request", "fetch"]),
    ...shared(PROMISE, ["WebAssembly.instantiateStreaming"]),
    ...always(PROMISE, ["GPU.requestAdapter", "GPUAdapter.requestDevice"]),
    ...always(PROMISE, ["StorageManager.getDirectory", "CacheStorage.has", "FileSystemDirectoryHandle.getDirectoryHandle", "FileSystemDirectoryHandle.getFileHandle"]),
    // Firefox has it in the base interface.
    ...sometimes(PROMISE, ["FileSystemFileHandle.move", "FileSystemHandle.move"]),
    ...withoutFiles(always(PROMISE, ["CacheStorage.open", "Cache.match", "Cache.keys", "Cache.put"])),
    ...withoutFiles(sometimes(PROMISE, ["Response.arrayBuffer"])),
    ...always(PROMISE, ["ReadableStreamDefaultReader.read"]),
    ...always(NOTHING, ["GPUDevice.pushErrorScope"]),
    ...always(PROMISE, ["GPUDevice.popErrorScope"]),
    ...always(VALUE, ["GPUDevice.createBuffer", "GPUDevice.createBindGroupLayout", "GPUDevice.createShaderModule", "GPUDevice.createPipelineLayout"]),
    ...always(PROMISE, ["GPUDevice.createComputePipelineAsync"]),
    ...always(VALUE, ["GPUDevice.createBindGroup"]),
    ...PASSES,
    ...sometimes(PROMISE, ["FileSystemFileHandle.getFile", "GPUQueue.onSubmittedWorkDone", "StorageManager.persisted", "StorageManager.persist"]),
    ...sometimes(NOTHING, ["GPUDevice.destroy", "GPUBuffer.destroy", "Worker.postMessage", "Worker.terminate", "BroadcastChannel.postMessage", "BroadcastChannel.close"]),
  ],
  generate: [
    ...PASSES,
    ...always(NOTHING, ["GPUCommandEncoder.copyBufferToBuffer", "GPUBuffer.unmap"]),
    ...first(VALUE, ["GPUDevice.createBuffer"]),
    // Of decode steps, unless their kernels were compiled before the load's end.
    ...sometimes(VALUE, ["GPUDevice.createBindGroup"]).map((call) => ({ ...call, first: true })),
    ...always(VALUE, ["GPUBuffer.getMappedRange"]),
    ...always(PROMISE, ["GPUBuffer.mapAsync"]),
    // Chromium only: they hurry a readback.
    ...sometimes(NOTHING, ["GPUDevice.pushErrorScope"]),
    ...sometimes(PROMISE, ["GPUDevice.popErrorScope"]),
  ],
};

/** The faults of a plain run: each kind of fault in each part of a load (threads, network, stores, device, kernels, passes) and of a generation. */
const SAMPLE = {
  load: {
    throws: ["Storage.getItem", "WebAssembly.instantiateStreaming", "GPUDevice.createComputePipelineAsync", "GPUQueue.submit", "Worker.postMessage"],
    null: ["GPU.requestAdapter", "ReadableStreamDefaultReader.read", "GPUDevice.createBuffer"],
    never: ["LockManager.request", "fetch", "GPUAdapter.requestDevice", "FileSystemDirectoryHandle.getFileHandle", "Cache.match"],
    late: ["StorageManager.getDirectory", "CacheStorage.open", "GPUDevice.popErrorScope"],
  },
  generate: { throws: ["GPUQueue.writeBuffer"], null: ["GPUCommandEncoder.finish", "GPUDevice.createBindGroup"], never: ["GPUBuffer.mapAsync"], late: ["GPUBuffer.mapAsync"] },
};

/**
 * Asserts that the calls of a load and a generation are the listed ones. Work that goes on after the load may fall into the
 * generation.
 */
export function assertListed(calls) {
  for (const [phase, listed] of Object.entries(CALLS)) {
    const trailing = phase === "generate" ? CALLS.load.filter((call) => call.sometimes) : [];
    const possible = new Set([...listed, ...trailing].map(({ api }) => api));
    const unknown = Object.keys(calls[phase]).filter((api) => !possible.has(api));
    assert.deepEqual(unknown, [], `calls of a ${phase} that tests/page/support/injected-cases.mjs does not list`);
    const absent = listed.filter(({ api, sometimes }) => !sometimes && !calls[phase][api]);
    assert.deepEqual(absent, [], `calls that a ${phase} does not make`);
    for (const { api, gives } of listed) {
      const seen = calls[phase][api];
      if (seen) assert.equal(seen.async ? PROMISE : seen.answers ? VALUE : NOTHING, gives, `what ${api} gives`);
    }
  }
}

/** The faults of each API, or a sample of them. A call without a promise is neither late nor silent, and one without a result has no null. */
export function cases(all = ALL, sample = SAMPLE) {
  const found = Object.entries(CALLS).flatMap(([phase, listed]) =>
    listed.flatMap(({ api, gives, sometimes, first = false, shared = false, inCache = false }) => {
      const kinds = FAULTS.filter((kind) => gives === PROMISE || kind === "throws" || (kind === "null" && gives === VALUE));
      return kinds.map((kind) => ({ phase, api, kind, async: gives === PROMISE, sometimes, first, shared, inCache }));
    }),
  );
  const sampled = new Set(Object.entries(sample).flatMap(([phase, kinds]) => Object.entries(kinds).flatMap(([kind, apis]) => apis.map((api) => `${phase} ${api} ${kind}`))));
  const isSampled = ({ phase, api, kind }) => sampled.delete(`${phase} ${api} ${kind}`);
  const taken = all ? found : found.filter(isSampled);
  if (!all) assert.deepEqual([...sampled], [], "faults of a plain run that no call has");
  return taken.filter(({ api }) => ONLY.test(api));
}

/**
 * Runs the faults as subtests of `t`. `open` opens a new visitor's page that {@link prepare} made ready: `evaluate`, `errors` and `close`. Loads
 * run on `lanes` pages at a time.
 */
export async function strikeAll(t, { browser, open, lanes, text, faults = cases() }) {
  const table = new FaultTable();
  const loads = faults.filter(({ phase }) => phase === "load");
  const generations = faults.filter(({ phase }) => phase === "generate");

  /** Resolves to whether the test passed. */
  const strike = async (fault, { evaluate, errors }) => {
    let passed = false;
    await t.test(`${fault.phase}: ${fault.api} ${fault.kind}`, async () => {
      const found = await evaluate((fault) => strike(fault), fault);
      assertContained(fault, found, text);
      assert.deepEqual(errors.splice(0), []);
      table.add(fault, found);
      if (ALL) await table.write(browser);
      passed = true;
    });
    return passed;
  };
  // Each load is a visitor's first one.
  const loading = async () => {
    for (let fault = loads.shift(); fault; fault = loads.shift()) {
      const fresh = await open();
      await strike(fault, fresh);
      await fresh.close();
    }
  };
  // Generations go on with the model that the last fault left.
  const generating = async () => {
    let used = generations.length > 0 ? await open() : undefined;
    for (const fault of generations) {
      if (await strike(fault, used)) continue;
      await used.close();
      used = await open();
    }
    if (used) assert.equal(await used.evaluate(() => finish()), "done");
    await used?.close();
    await loading();
  };
  await Promise.all([generating(), ...Array.from({ length: lanes - 1 }, loading)]);
}

/** The package's scripts: imports of a load are not seen as calls, so that {@link prepare} loads them first. */
export async function packageScripts() {
  return (await readdir(PACKAGE)).filter((name) => name.endsWith(".js") && name !== "worker.js").map((name) => `/${name}`);
}

/** Runs on a page of the package with installed faults: imports it as `jerboa`, and makes `strike` and `observe`. The model is at /model/. */
export async function prepare(scripts) {
  const preload = (href) => new Promise((onload, onerror) => document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href, onload, onerror })));
  await Promise.all(scripts.map(preload));
  window.jerboa = await import("/index.js");
  // On this thread, where its calls can be seen.
  const load = (more = {}) => jerboa.loadModel(new URL("/model/", location.href), { worker: false, tune: "off", ...more });
  const generate = (model) => model.generate("Once upon", { maxTokens: 6, temperature: 0 });
  let hasFiles = true;
  const { getDirectory } = StorageManager.prototype;
  StorageManager.prototype.getDirectory = function () {
    return hasFiles ? getDirectory.call(this) : Promise.reject(new DOMException("not in this window", "SecurityError"));
  };
  const wipe = async () => {
    for (const name of await caches.keys()) await caches.delete(name);
    const root = await getDirectory.call(navigator.storage);
    for await (const name of root.keys()) await root.removeEntry(name, { recursive: true });
  };
  /** Milliseconds from an abort to the end of a load that waits for a faulty call. */
  const abortedLoad = async () => {
    const controller = new AbortController();
    const loading = load({ signal: controller.signal }).then((model) => model.unload().then(() => "loaded"), (error) => error.code);
    for (let i = 0; i < 200 && faults.hits() === 0; i++) await faults.pause(20);
    const begun = faults.now() - faults.late();
    controller.abort();
    return { code: await loading, ms: faults.now() - faults.late() - begun };
  };
  /** The model of this page's generations, loaded by the first one and recovered by each. */
  let generating;

  /** The calls of a load and of a generation, and the generated text. */
  window.observe = async () => {
    const observed = async () => {
      await wipe();
      faults.reset();
      const model = await load();
      await model.persisted;
      return [model, faults.calls()];
    };
    hasFiles = false;
    const [other, inCache] = await observed();
    await other.unload();
    hasFiles = true;
    const [model, inFiles] = await observed();
    const calls = { load: { ...inCache, ...inFiles } };
    faults.reset();
    const text = await generate(model);
    calls.generate = faults.calls();
    await model.unload();
    return { text: String(text), calls };
  };

  /** One fault: what the call, the abort of a load, and the next calls come to. */
  window.strike = async ({ phase, api, kind, async, sometimes, first, shared, inCache }) => {
    const found = {};
    if (phase === "load") await wipe();
    hasFiles = !inCache;
    let model;
    if (phase === "load" && kind === "never") {
      faults.inject(api, kind, async);
      found.aborted = (await faults.outcome(abortedLoad)).value;
      if (!shared) faults.clear();
    }
    if (first) {
      await finish();
      generating = undefined;
    }
    if (phase === "generate") model = generating ??= (await faults.outcome(() => load())).value;
    if (!(shared && found.aborted)) faults.inject(api, kind, async);
    const { value, ...outcome } = await faults.outcome(() => (phase === "load" ? load() : generate(model)));
    Object.assign(found, outcome);
    // Some work goes on after the call.
    if (sometimes) for (let i = 0; i < 25 && faults.hits() === 0; i++) await faults.pause(20);
    found.hits = faults.clear();
    if (phase === "load") model = value;
    found.warnings = model?.info.warnings ?? [];
    const next = await faults.outcome(async () => generate((model ??= await load())));
    found.next = next.value ?? `${next.code}: ${next.message}`;
    if (phase === "load") found.unload = (await faults.outcome(() => model?.unload())).code ?? "done";
    return found;
  };
  /** Ends the model of generations. */
  window.finish = async () => (await faults.outcome(() => generating?.unload())).code ?? "done";
}

/** Asserts that a fault ended in a result or a coded error, in time, and that what follows works. */
export function assertContained({ sometimes }, found, text) {
  const said = JSON.stringify(found);
  assert.ok(!UNCODED.includes(found.code), said);
  assert.ok(found.seconds < LIMIT_SECONDS, said);
  if (found.aborted) assert.ok(["aborted", "loaded"].includes(found.aborted.code) && found.aborted.ms < 1000, said);
  if (!sometimes) assert.ok(found.hits > 0, said);
  assert.equal(found.next, text, said);
  if ("unload" in found) assert.equal(found.unload, "done", said);
}

/** An outcome in a cell of the table. */
export function cell({ code, seconds, warnings, hits }) {
  if (hits === 0) return "not called";
  if (code === undefined) return `works${warnings.length > 0 ? ", with a warning" : ""}`;
  return seconds < 25 ? `\`${code}\`` : `\`${code}\`, ${10 * Math.ceil(seconds / 10)} s`;
}

/** The beginning of each row of the table, in order. */
const rowHeads = Object.entries(CALLS).flatMap(([phase, listed]) => listed.map(({ api }) => `| ${phase} | \`${api}\` |`));

/** The rows of a browser's table in the documentation, up to their first cell. */
export async function documentedRows(browser) {
  const text = await readFile(TABLE, "utf8");
  const [, section = ""] = text.split(`\n## ${browser}\n`);
  return section.split("\n## ")[0].split("\n").filter((line) => /^\| (load|generate) /.test(line)).map((line) => /^\| \w+ \| `[^`]+` \|/.exec(line)[0]);
}

/** Asserts that a browser's table in the documentation has a row for each call that is listed, and no other. */
export async function assertDocumented(browser) {
  assert.deepEqual(await documentedRows(browser), rowHeads, "JERBOA_INJECT=all writes the table");
}

/** Writes outcomes into a browser's table in the documentation. Cells that were not measured stay. */
export class FaultTable {
  #cells = new Map();
  #written = Promise.resolve();

  add({ phase, api, kind }, found) {
    this.#cells.set(`${phase} ${api} ${kind}`, cell(found));
  }

  /** Writes one after the other: cases end at the same time. */
  write(browser) {
    this.#written = this.#written.then(() => this.#write(browser));
    return this.#written;
  }

  async #write(browser) {
    const text = await readFile(TABLE, "utf8");
    const start = text.indexOf(`\n## ${browser}\n`);
    const body = text.indexOf("\n|", start) + 1;
    assert.ok(start >= 0 && body > 0, `${TABLE} has no table '${browser}'`);
    const end = `${text}\n\n`.indexOf("\n\n", body);
    const written = text.slice(body, end).split("\n");
    const rows = rowHeads.map((head) => {
      const [, phase, api] = /^\| (\w+) \| `(.+)` \|$/.exec(head);
      const before = written.find((line) => line.startsWith(head))?.slice(head.length).split("|").map((each) => each.trim()) ?? [];
      return `${head} ${FAULTS.map((kind, i) => this.#cells.get(`${phase} ${api} ${kind}`) ?? before[i] ?? "").join(" | ")} |`;
    });
    const table = ["| call | Web API | throws | null | never | late |", "|---|---|---|---|---|---|", ...rows].join("\n");
    await writeFile(TABLE, text.slice(0, body) + table + (text.slice(end) || "\n"));
  }
}
