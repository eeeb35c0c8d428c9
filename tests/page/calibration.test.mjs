/** Calibration, and loads that crash their page, over simulated devices and the fake engine: what is stored and how the next page uses it. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

let calibration, fallback, notes, errors, cleanUp;

before(async () => {
  const built = await buildFacade();
  cleanUp = built.remove;
  const load = (name) => import(`${built.url}/${name}.js`);
  [calibration, fallback, notes, errors] = await Promise.all(["calibration", "load-fallback", "persistent-notes", "errors"].map(load));
});
after(() => cleanUp());

/** A store that outlives its pages. */
function memory() {
  const map = new Map();
  return { map, getItem: (k) => map.get(k) ?? null, setItem: (k, v) => void map.set(k, v), removeItem: (k) => void map.delete(k) };
}

const sizeOf = (group) => (group === "all" ? Infinity : Number(group));

/** A page on a device where groups of at least `from` dispatches behave as `kind` says; `killed` if the page crashed. */
async function page(store, { kind, from, late = false }, agent = "one") {
  const tried = [];
  const bad = (group) => kind !== "right" && sizeOf(group) >= from;
  let kill;
  const killed = new Promise((resolve) => (kill = () => resolve("killed")));
  const dies = () => (kill(), new Promise(() => {}));
  const life = async () => {
    const it = new calibration.Calibration(new notes.Notes(store), agent);
    const group = await it.chooseGroup(async (g) => {
      tried.push(g);
      if (!bad(g) || late) return true;
      return kind === "crash" ? dies() : kind === "lost" ? Promise.reject(new errors.JerboaError("device_lost", "gone")) : false;
    });
    const work = async () => {
      if (!late || !bad(group)) return "text";
      if (kind === "lost") throw new errors.JerboaError("device_lost", "gone");
      return dies();
    };
    return { group, text: await it.run(work).catch((e) => e.code) };
  };
  return { tried, outcome: await Promise.race([life(), killed]) };
}

/** Opens pages until one survives; returns how many it took and its result. */
async function visits(store, device, agent) {
  const tried = [];
  for (let count = 1; count < 20; count++) {
    const one = await page(store, device, agent);
    tried.push(...one.tried);
    if (one.outcome !== "killed" && one.outcome.text === "text") return { count, group: one.outcome.group, tried };
  }
  throw new Error("the pages never came to rest");
}

test("each class of device ends at its largest safe group, testing upward from the smallest bad one", async () => {
  for (const kind of ["right", "wrong", "crash", "lost"]) {
    for (const late of [false, true]) {
      if (late && kind === "wrong") continue;
      for (const [from, best] of [[Infinity, "all"], [1000, "64"], [65, "64"], [64, "8"], [9, "8"], [8, "1"], [2, "1"]]) {
        // An infinite submit counts as one of many dispatches.
        const device = { kind, from: Math.min(from, 1e9), late };
        const expected = kind === "right" ? "all" : from === Infinity ? "64" : best;
        const store = memory();
        const name = `${kind} from ${from}${late ? ", in the first generation" : ""}`;
        const first = await visits(store, device);
        assert.equal(first.group, expected, name);
        const dies = kind === "crash" || (kind === "lost" && late);
        assert.equal(first.count, dies ? 1 + calibration.GROUPS.indexOf(expected) : 1, `${name}: pages`);
        // After that nothing is tested again.
        const second = await visits(store, device);
        assert.deepEqual([second.group, second.count, second.tried], [expected, 1, []], name);
      }
    }
  }
});

test("another browser version starts over; a damaged note is ignored", async () => {
  const store = memory();
  assert.equal((await visits(store, { kind: "wrong", from: 8 })).group, "1");
  assert.equal((await visits(store, { kind: "right" }, "two")).group, "all");
  for (const text of ["", "null", "{", '{"agent":"two","rung":9,"state":"proven"}', '{"agent":"two","rung":"0"}', "[]", "7"]) {
    store.map.set("jerboa:group", text);
    assert.equal((await visits(store, { kind: "wrong", from: 64 }, "two")).group, "8", text);
  }
});

test("without storage nothing is tried that could crash the page", async () => {
  const full = { ...memory(), setItem: () => { throw new Error("full"); } };
  for (const store of [undefined, full]) {
    const { tried, outcome } = await page(store, { kind: "crash", from: 2 });
    assert.deepEqual([tried, outcome], [[], { group: "1", text: "text" }]);
  }
});

test("a failed request neither proves a group nor counts as a crash", async () => {
  const store = memory();
  const it = new calibration.Calibration(new notes.Notes(store), "one");
  await it.chooseGroup(async () => true);
  await assert.rejects(it.run(() => Promise.reject(new errors.JerboaError("request", "no"))), { code: "request" });
  assert.deepEqual(JSON.parse(store.map.get("jerboa:group")), { agent: "one", rung: 0, state: "right" });
  assert.equal(await it.run(async () => 7), 7);
  assert.equal(JSON.parse(store.map.get("jerboa:group")).state, "proven");
});

test("loads that crash their page ask for less each time, and finally report it", () => {
  const store = memory();
  const kept = new notes.Notes(store);
  const begun = (attempt) => (attempt.begin(), attempt);
  const wanted = { worker: true, options: { model: "a/b", maxContext: 4096 } };
  const load = (now = 0, agent = "one") => begun(fallback.nextAttempt(kept, "a/b", agent, wanted, now));
  assert.deepEqual(load().wanted, wanted);
  const second = load(2);
  assert.deepEqual(second.wanted, { ...wanted, worker: false });
  assert.match(second.warning, /crashed the page before.*another thread/);
  const third = load(3);
  assert.deepEqual(third.wanted, { worker: false, options: { model: "a/b", maxContext: 1024 } });
  const fourth = load(4);
  assert.deepEqual(fourth.wanted, { worker: false, options: { model: "a/b", maxContext: 1024, weights: "q4" } });
  // It worked: the next load starts there.
  fourth.finish(true);
  const again = load(5);
  assert.deepEqual(again.wanted, fourth.wanted);
  assert.throws(() => load(6), { code: "out_of_memory", message: /crashed this page 4 times/ });
  assert.throws(() => load(7), { code: "out_of_memory" });
  // Other models, another browser version and the next day start over.
  assert.deepEqual(fallback.nextAttempt(kept, "a/c", "one", wanted, 8).wanted, wanted);
  assert.deepEqual(load(9, "two").wanted, wanted);
  load(10, "two");
  assert.deepEqual(load(90_000_000, "two").wanted, wanted);
});

test("a note that another tab writes late is not taken for a crash", async () => {
  const store = memory();
  const kept = new notes.Notes(store);
  const load = () => fallback.nextAttempt(kept, "a/b", "one", { worker: true, options: { model: "a/b" } });
  const other = load();
  other.begin();
  setTimeout(() => other.finish(true), 120);
  await fallback.waitForOtherTab(kept, "a/b");
  assert.equal(load().warning, undefined);
  // The note of a crashed page stays.
  load().begin();
  await fallback.waitForOtherTab(kept, "a/b");
  assert.match(load().warning, /crashed the page before/);
});

test("a load that ends normally leaves no note", () => {
  const store = memory();
  for (const loaded of [true, false]) {
    const attempt = fallback.nextAttempt(new notes.Notes(store), "a/b", "one", { worker: true, options: { model: "a/b" } });
    attempt.begin();
    assert.equal(store.map.size, 1);
    attempt.finish(loaded);
    assert.equal(store.map.size, 0);
    // What an aborted load still does, for example when a device comes late.
    attempt.begin();
    assert.equal(store.map.size, 0);
  }
});
