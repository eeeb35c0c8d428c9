/**
 * A long run in Chromium with the real engine: loads of ten kinds of models, requests, aborts at random moments, undisposed sessions,
 * unloads at random. Prints what is alive after each round and fails on growth. `cargo xtask soak --hours 8`; a seed repeats a run:
 *
 *     node tests/page/soak-long.mjs --minutes 10 --seed 1
 */

import { openPackage } from "./support/engine.mjs";
import { ROOT } from "./support/paths.mjs";

const argument = (name, fallback) => (process.argv.includes(`--${name}`) ? Number(process.argv[process.argv.indexOf(`--${name}`) + 1]) : fallback);
const MINUTES = argument("minutes", 60 * argument("hours", 0) || 10);
const SEED = argument("seed", 1);
/** Loads between two measurements, which wait until all models are unloaded. */
const LOADS_PER_ROUND = 8;
/** Rounds that fill caches: each kind's code, pipelines and tokenizers. */
const WARM_UP_ROUNDS = 3;
/** Bytes by which the heap and the WebAssembly memory may differ from the largest of the warm-up. */
const HEAP_SLACK = 4e6;
const WASM_SLACK = 2 << 20;

/** Ten kinds: plain, grouped and tied decoders, hybrids, experts, an encoder, vision. */
const KINDS = [
  { path: "/bundled/stories260K/", text: true },
  { path: "/models/llama/" },
  { path: "/models/qwen3/" },
  { path: "/models/gemma3/" },
  { path: "/models/lfm2/" },
  { path: "/models/qwen3_5/" },
  { path: "/models/mixtral/" },
  { path: "/models/granite_hybrid/" },
  { path: "/bundled/words-encoder/", embeds: true, text: true },
  { path: "/bundled/tiny-vision/", text: true, sees: true },
];

/** Runs on the page: counts what lives, and defines a round. */
function prepare({ kinds, seed }) {
  window.live = { buffers: 0, bytes: 0, devices: 0, workers: 0, urls: 0, listeners: 0 };
  window.totals = { loads: 0, requests: 0, aborts: 0, sessions: 0, failures: {} };
  const sizes = new WeakMap();
  const forget = (buffer) => {
    if (!sizes.has(buffer)) return;
    live.bytes -= sizes.get(buffer);
    live.buffers--;
    sizes.delete(buffer);
  };
  const around = (owner, name, wrap) => {
    const own = owner[name];
    owner[name] = function (...args) {
      return wrap.call(this, () => own.apply(this, args), args);
    };
  };
  around(GPUDevice.prototype, "createBuffer", function (make, [{ size }]) {
    const buffer = make();
    (this.made ??= new Set()).add(new WeakRef(buffer));
    sizes.set(buffer, size);
    live.buffers++;
    live.bytes += size;
    return buffer;
  });
  around(GPUBuffer.prototype, "destroy", function (act) {
    forget(this);
    return act();
  });
  around(GPUDevice.prototype, "destroy", function (act) {
    for (const ref of this.made ?? []) ref.deref() && forget(ref.deref());
    if (!this.gone) live.devices--;
    this.gone = true;
    return act();
  });
  around(GPUAdapter.prototype, "requestDevice", async function (make) {
    const device = await make();
    live.devices++;
    return device;
  });
  window.Worker = class extends Worker {
    constructor(...args) {
      super(...args);
      live.workers++;
    }
    terminate() {
      if (!this.ended) live.workers--;
      this.ended = true;
      super.terminate();
    }
  };
  const urls = new Set();
  around(URL, "createObjectURL", (make) => {
    const url = make();
    urls.add(url);
    live.urls = urls.size;
    return url;
  });
  around(URL, "revokeObjectURL", (act, [url]) => {
    urls.delete(url);
    live.urls = urls.size;
    return act();
  });
  for (const [name, step] of [["addEventListener", 1], ["removeEventListener", -1]]) {
    around(EventTarget.prototype, name, function (act, [type]) {
      if (type === "abort") live.listeners += step;
      return act();
    });
  }

  let state = (seed * 0x9e3779b9) | 1;
  const next = (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  /** Counts the code of a failure; those of aborts and unloads are wanted, others end the run. */
  const caught = (error) => {
    const code = error?.code ?? String(error);
    totals.failures[code] = (totals.failures[code] ?? 0) + 1;
    if (!["aborted", "unloaded"].includes(code)) throw error;
  };
  const signalOf = (chance) => {
    if (next(chance) > 0) return {};
    const controller = new AbortController();
    totals.aborts++;
    setTimeout(() => controller.abort(), next(150));
    return { signal: controller.signal };
  };
  const request = async (model, kind, sessions) => {
    totals.requests++;
    const ids = Array.from({ length: 2 + next(12) }, () => 1 + next(60));
    const prompt = kind.text ? "Once upon a time there was" : ids;
    if (kind.embeds) return model.embed([prompt], signalOf(6));
    const what = next(6);
    const options = { maxTokens: 1 + next(10), temperature: next(2), ignoreEos: true, ...signalOf(5) };
    if (what === 0) return model.logits(ids);
    if (what === 1) return void (await model.createSession().then((session) => (sessions.push(session), totals.sessions++)));
    if (what === 2 && sessions.length > 0) return sessions[next(sessions.length)].generate(prompt, options);
    if (what === 3 && sessions.length > 0) return void sessions.push(await sessions[next(sessions.length)].fork());
    if (kind.sees && what === 4) {
      const canvas = new OffscreenCanvas(64, 48);
      canvas.getContext("2d").fillRect(next(30), 3, 9, 9);
      return model.encodeImage(canvas);
    }
    if (what === 5) {
      // A stream that is left.
      const stream = model.generate(prompt, options);
      for await (const piece of stream) if (piece && next(3) === 0) break;
      return stream.details;
    }
    return model.generate(prompt, options);
  };
  /** One life of a model. */
  const life = async () => {
    const kind = kinds[next(kinds.length)];
    totals.loads++;
    const model = await jerboa.loadModel(new URL(kind.path, location.href), { worker: next(4) === 0, tune: "off", cache: next(5) > 0, ...signalOf(6) });
    const sessions = [];
    const running = [];
    for (let count = 3 + next(12); count > 0; count--) {
      const call = request(model, kind, sessions).catch(caught);
      if (next(3) === 0) running.push(call);
      else await call;
      if (next(20) === 0) await model.release();
    }
    if (next(3) > 0) await Promise.all(running);
    else await pause(next(50));
    // Sessions are left to the unload, mostly.
    if (next(3) === 0) await Promise.all(sessions.map((session) => session.dispose().catch(caught)));
    const { wasmBytes } = await model.memory();
    const worker = model.info.worker;
    await Promise.all([model.unload(), ...running]);
    return worker ? 0 : wasmBytes;
  };
  window.round = async (loads) => {
    let wasmBytes = 0;
    for (let done = 0; done < loads; ) {
      const together = Math.min(1 + next(3), loads - done);
      const found = await Promise.all(Array.from({ length: together }, () => life().catch((error) => (caught(error), 0))));
      wasmBytes = Math.max(wasmBytes, ...found);
      done += together;
    }
    // The threads of the cache end after an idle second, aborted loads within two.
    await pause(4000);
    const { held } = await navigator.locks.query();
    return { wasmBytes, locks: held.length, ...live, totals };
  };
}

const opened = await openPackage({ "/models/": `${ROOT}/tests/golden/models`, "/bundled/": `${ROOT}/www/public/models` });
const problems = [];
opened.page.on("pageerror", (error) => problems.push(String(error)));
await opened.page.evaluate(prepare, { kinds: KINDS, seed: SEED });
const session = await opened.page.context().newCDPSession(opened.page);

const begun = Date.now();
const rounds = [];
console.log("minutes  loads requests   heap MB  wasm MB  buffers devices workers locks urls listeners");
while (Date.now() - begun < MINUTES * 60_000) {
  const found = await opened.page.evaluate((loads) => round(loads), LOADS_PER_ROUND);
  await session.send("HeapProfiler.collectGarbage");
  const heap = (await session.send("Runtime.getHeapUsage")).usedSize;
  rounds.push({ ...found, heap });
  const cells = [((Date.now() - begun) / 60_000).toFixed(1), found.totals.loads, found.totals.requests, (heap / 1e6).toFixed(1), (found.wasmBytes / 1e6).toFixed(1), found.buffers, found.devices, found.workers, found.locks, found.urls, found.listeners];
  console.log(cells.map((cell) => String(cell).padStart(8)).join(""));
}
const { totals } = rounds.at(-1);
console.log(`${totals.loads} loads, ${totals.requests} requests, ${totals.aborts} aborts, ${totals.sessions} sessions; failures by code: ${JSON.stringify(totals.failures)}`);
await opened.close();

const failures = problems.map((problem) => `uncaught: ${problem}`);
const [warm, measured] = [rounds.slice(0, WARM_UP_ROUNDS), rounds.slice(WARM_UP_ROUNDS)];
const most = (name) => Math.max(...warm.map((each) => each[name]));
for (const [name, slack] of [["heap", HEAP_SLACK], ["wasmBytes", WASM_SLACK]]) {
  // The last quarter: one round may hold garbage.
  const late = Math.min(...measured.slice(-Math.max(1, Math.ceil(measured.length / 4))).map((each) => each[name]));
  if (late > most(name) + slack) failures.push(`${name} grew from ${most(name)} to ${late} bytes`);
}
for (const name of ["buffers", "devices", "workers", "locks", "urls"]) {
  const left = rounds.findIndex((each) => each[name] !== 0);
  if (left >= 0) failures.push(`${name}: ${rounds[left][name]} left after round ${left}`);
}
if (measured.length === 0) failures.push(`${rounds.length} rounds are too few to see growth`);
for (const failure of failures) console.error(failure);
process.exit(failures.length > 0 ? 1 : 0);
