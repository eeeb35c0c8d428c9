/** A facade whose worker dies, whose engine traps, whose browser APIs do not answer: calls end with a coded error and the next one works. Over the fake engine, in Node. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { buildFacade } from "./support/facade.mjs";

const built = await buildFacade();
after(() => built.remove());

const jerboa = await import(`${built.url}/index.js`);
const rpc = await import(`${built.url}/rpc.js`);
const host = await import(`${built.url}/host.js`);
const restart = await import(`${built.url}/restart.js`);
const notes = await import(`${built.url}/persistent-notes.js`);

/** A module of its own for each engine: a trap stops a module for good. */
let copies = 0;
const engine = () => import(`${built.url}/jerboa.js?${copies++}`);

const never = () => new Promise(() => {});
const code = (promise) => promise.then(() => "none", (error) => error.code);

/** Asserts that a promise settles within this many milliseconds. */
async function within(ms, promise) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`not settled within ${ms} ms`)), ms)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** The globals that each test has replaced. */
const replaced = new WeakMap();

/** Sets globals for one test. */
function stub(t, globals) {
  if (!replaced.has(t)) replaced.set(t, new Set());
  for (const [name, value] of Object.entries(globals)) {
    const before = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    // Later stubs of the same name would restore this one.
    if (replaced.get(t).has(name)) continue;
    replaced.get(t).add(name);
    t.after(() => (before ? Object.defineProperty(globalThis, name, before) : delete globalThis[name]));
  }
}

/** A worker on a message channel, with the fake engine. `die` ends it without a word. */
async function startWorker(module) {
  const { port1, port2 } = new MessageChannel();
  rpc.serve(port2, new host.Host(module ?? (await engine())));
  const worker = { disposed: false };
  worker.backend = new rpc.RemoteBackend(port1, () => {
    worker.disposed = true;
    port1.close();
    port2.close();
  });
  worker.fail = (message) => port1.dispatchEvent(Object.assign(new Event("error"), { message }));
  port1.start();
  port2.start();
  await worker.backend.hello;
  return worker;
}

/** A class like the page's Worker whose instances run the fake engine, each a module of its own that `prepare` may change. */
function workerClass(prepare = () => {}) {
  const workers = [];
  class Worker extends EventTarget {
    constructor() {
      super();
      const { port1, port2 } = new MessageChannel();
      workers.push(this);
      this.ports = [port1, port2];
      port1.onmessage = ({ data }) => this.dispatchEvent(Object.assign(new Event("message"), { data }));
      port2.start();
      void engine().then((module) => {
        prepare(module);
        rpc.serve(port2, new host.Host(module));
      });
    }
    postMessage(message, transfer) {
      this.ports[0].postMessage(message, transfer);
    }
    terminate() {
      this.ended = true;
      this.ports.forEach((port) => port.close());
    }
  }
  return { Worker, workers };
}

/** A lasting backend whose workers are listed in `workers`. */
async function lasting(t) {
  const workers = [];
  const open = async () => {
    const worker = await startWorker();
    workers.push(worker);
    await worker.backend.call("load", [{ model: "a/b" }]);
    return worker.backend;
  };
  const backend = new restart.RestartingBackend(await open(), open);
  t.after(() => backend.close());
  return { backend, workers };
}

/** Engines that hang on purpose keep ports and timers open. */
after(() => setTimeout(() => process.exit(), 500).unref());

test("a worker that dies ends its calls with code worker; the next call starts a fresh one, with its sessions", async (t) => {
  const { backend, workers } = await lasting(t);
  const session = await backend.call("createSession", []);
  const gone = await backend.call("createSession", []);
  await backend.call("disposeSession", [gone]);
  const running = backend.call("generate", [{ prompt: "a b c d e f g h" }], {});
  workers[0].fail("out of memory");
  const error = await within(500, running.then(() => assert.fail("it answered"), (thrown) => thrown));
  assert.equal(error.code, "worker");
  assert.match(error.message, /stopped: out of memory\. The next call starts a new worker/);
  assert.doesNotMatch(error.message, /worker: false/);
  assert.deepEqual([workers[0].disposed, backend.closed, workers.length], [true, false, 1]);
  const both = await Promise.all([backend.call("generate", [{ prompt: "one two" }]), backend.call("generate", [{ prompt: "three" }, session])]);
  assert.deepEqual(both.map(({ text }) => text), ["one two", "three"]);
  assert.equal(workers.length, 2);
  assert.equal(await code(backend.call("generate", [{ prompt: "x" }, gone])), "unloaded");
  assert.notEqual(await backend.call("createSession", []), session);
  await backend.close();
  assert.equal(await code(backend.call("generate", [{ prompt: "x" }])), "unloaded");
});

test("disposing or releasing on a dead worker does not start one; an abort ends the wait for one", async (t) => {
  const first = await startWorker();
  await first.backend.call("load", [{ model: "a/b" }]);
  let reloads = 0;
  const backend = new restart.RestartingBackend(first.backend, () => (reloads++, never()));
  const session = await backend.call("createSession", []);
  first.fail("killed");
  await backend.call("disposeSession", [session]);
  await backend.call("release", []);
  assert.equal(reloads, 0);
  const control = new AbortController();
  const waiting = code(backend.call("generate", [{ prompt: "x" }], { signal: control.signal }));
  control.abort();
  assert.equal(await within(500, waiting), "aborted");
  await backend.close();
});

test("a trap in the worker ends its calls with code internal and the worker; the next call works", async (t) => {
  const module = await engine();
  const worker = await startWorker(module);
  await worker.backend.call("load", [{ model: "a/b" }]);
  const next = await startWorker();
  await next.backend.call("load", [{ model: "a/b" }]);
  const backend = new restart.RestartingBackend(worker.backend, async () => next.backend);
  t.after(() => backend.close());
  module.Engine.prototype.renderChat = () => {
    throw new WebAssembly.RuntimeError("unreachable");
  };
  module.Engine.prototype.generate = never;
  const pending = code(backend.call("generate", [{ prompt: "x" }]));
  const error = await within(500, backend.call("renderChat", [[], {}]).catch((thrown) => thrown));
  assert.equal(error.code, "internal");
  assert.match(error.message, /RuntimeError: unreachable.*The next call loads the model again in a fresh engine/);
  assert.doesNotMatch(error.message, /worker: false/);
  assert.equal(await within(500, pending), "internal");
  assert.equal(worker.disposed, true);
  assert.equal((await backend.call("generate", [{ prompt: "again" }])).text, "again");
});

test("a worker that is killed from outside is noticed by its lock; one that is silent by its pings", async (t) => {
  const locks = new Map();
  const request = async (name, options, run = options) => {
    const before = locks.get(name);
    let release;
    locks.set(name, new Promise((resolve) => (release = resolve)));
    await before;
    return Promise.resolve(run({ name })).finally(release);
  };
  const kills = [];
  stub(t, { navigator: { locks: { request: (name, options, run) => (name.startsWith("jerboa:worker:") && !run ? request(name, () => new Promise((resolve) => kills.push(resolve), options({}))) : request(name, options, run)) } } });
  const worker = await startWorker();
  await worker.backend.call("load", [{ model: "a/b" }]);
  const running = worker.backend.call("generate", [{ prompt: "a b c d e f g h" }]).catch((thrown) => thrown);
  assert.equal(kills.length, 1);
  kills[0]();
  assert.match((await within(500, running)).message, /The worker that runs the model stopped: it was ended from outside/);

  t.mock.timers.enable({ apis: ["setInterval"] });
  const listeners = [];
  const silent = new rpc.RemoteBackend({ postMessage: () => {}, addEventListener: (type, listener) => type === "message" && listeners.push(listener) }, () => {});
  const waits = silent.call("info", []).catch((thrown) => thrown);
  for (let i = 0; i < 12; i++) t.mock.timers.tick(10_000);
  // A sign of life starts the count anew.
  listeners.forEach((listener) => listener({ data: { pong: true } }));
  for (let i = 0; i < 12; i++) t.mock.timers.tick(10_000);
  assert.equal(silent.closed, false);
  t.mock.timers.tick(10_000);
  assert.match((await waits).message, /stopped: it did not answer for 120 seconds/);
});

test("a trap on this thread: calls reject with internal, devices close, unload works, later loads run elsewhere or say why not", async (t) => {
  const module = await engine();
  const [one, two] = [new host.Host(module), new host.Host(module)];
  for (const each of [one, two]) await each.call("load", [{ model: "a/b" }]);
  module.Engine.prototype.generate = never;
  module.Engine.prototype.free = () => {
    throw new WebAssembly.RuntimeError("memory access out of bounds");
  };
  module.Engine.prototype.memory = () => {
    throw new WebAssembly.RuntimeError("memory access out of bounds");
  };
  const device = { destroyed: false, destroy: () => (device.destroyed = true) };
  (globalThis[Symbol.for("jerboa.devices")] ??= new Set()).add(device);
  const pending = [one, two].map((each) => code(each.call("generate", [{ prompt: "x" }])));
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(await code(one.call("memory", [])), "internal");
  assert.deepEqual(await within(500, Promise.all(pending)), ["internal", "internal"]);
  assert.deepEqual([device.destroyed, one.closed, two.closed], [true, true, true]);
  assert.equal(await code(two.call("tokenize", ["x", false, false])), "internal");
  await within(3000, Promise.all([one.close(), two.close()]));
});

test("a trap that a microtask throws reaches the running calls; another module's does not", async (t) => {
  const target = new EventTarget();
  stub(t, { addEventListener: (...args) => target.addEventListener(...args) });
  const module = await engine();
  const used = new host.Host(module);
  await used.call("load", [{ model: "a/b" }]);
  module.Engine.prototype.generate = never;
  const pending = code(used.call("generate", [{ prompt: "x" }]));
  const raise = (stack) => {
    const event = Object.assign(new Event("error", { cancelable: true }), { error: Object.assign(new WebAssembly.RuntimeError("unreachable"), { stack }) });
    target.dispatchEvent(event);
    return event.defaultPrevented;
  };
  assert.equal(raise("RuntimeError: unreachable\n at https://x.test/other_bg.wasm:wasm-function[3]:0x1"), false);
  assert.equal(used.closed, false);
  assert.equal(raise("RuntimeError: unreachable\n at https://x.test/assets/jerboa_bg-1a2b.wasm:wasm-function[3]:0x1"), true);
  assert.equal(await within(500, pending), "internal");
});

test("after a trap a load with worker: false runs in a worker with a warning, or is refused with advice", async (t) => {
  const module = await import(`${built.url}/jerboa.js`);
  const model = await jerboa.loadModel("a/b", { worker: false });
  const own = module.Engine.prototype.memory;
  module.Engine.prototype.memory = () => {
    throw new WebAssembly.RuntimeError("unreachable");
  };
  t.after(() => (module.Engine.prototype.memory = own));
  assert.equal(await code(model.memory()), "internal");
  const refused = await jerboa.loadModel("a/b", { worker: false }).catch((thrown) => thrown);
  assert.equal(refused.code, "internal");
  assert.match(refused.message, /stopped earlier\. Reload the page, or load the model in a worker/);
  module.Engine.prototype.memory = own;
  const { Worker, workers } = workerClass();
  stub(t, { Worker, location: new URL("https://x.test/"), navigator: {} });
  const fresh = await jerboa.loadModel("a/b", { worker: false });
  assert.equal(fresh.info.worker, true);
  assert.match(fresh.info.warnings.join(), /runs in a worker although worker: false was set/);
  assert.equal(await fresh.generate("one two"), "one two");
  // The model that trapped reloads itself.
  assert.equal((await model.memory()).gpuBytes, 2);
  await Promise.all([fresh.unload(), model.unload()]);
  assert.equal(workers.length, 2);
});

test("an abort ends a load within a second, whatever it waits for", async (t) => {
  const location = new URL("https://x.test/");
  const silent = class extends EventTarget {
    constructor() {
      super();
      // Ends the wait for its start, which outlasts the test.
      t.after(() => this.dispatchEvent(new Event("error")));
    }
    postMessage() {}
    terminate() {}
  };
  const { Worker, workers } = workerClass((module) => (module.Engine.load = never));
  const stuck = { "the worker": { Worker: silent, location, navigator: {} }, "the engine": { Worker, location, navigator: {} } };
  stuck["a lock"] = { navigator: { locks: { request: never } } };
  stuck["the other tab"] = { navigator: { locks: { request: (name, options, run) => (options.ifAvailable ? Promise.resolve(run(null)) : never()) } } };
  stuck["the weights of vad"] = { fetch: never };
  for (const [what, globals] of Object.entries(stuck)) {
    await t.test(what, async (t) => {
      stub(t, globals);
      const control = new AbortController();
      const options = what.endsWith("vad") ? { vad: "https://x.test/vad" } : {};
      const load = jerboa.loadModel("a/b", { signal: control.signal, ...options }).catch((thrown) => thrown);
      await new Promise((resolve) => setTimeout(resolve, 50));
      control.abort();
      assert.equal((await within(1000, load)).code, "aborted");
    });
  }
  // The worker of the load that hung is terminated.
  for (const end = Date.now() + 2500; !workers[0]?.ended && Date.now() < end; ) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual(workers.map(({ ended }) => ended), [true]);
});

test("an engine that hangs: unload ends its calls within two seconds", async () => {
  const module = await engine();
  const used = new host.Host(module);
  await used.call("load", [{ model: "a/b" }]);
  module.Engine.prototype.generate = never;
  const pending = code(used.call("generate", [{ prompt: "x" }]));
  await new Promise((resolve) => setTimeout(resolve, 20));
  await within(2500, used.close());
  assert.equal(await within(100, pending), "unloaded");
});

test("listeners of the caller that throw are reported and change nothing", async (t) => {
  const reported = [];
  stub(t, { reportError: (thrown) => reported.push(thrown.message) });
  const fail = () => {
    throw new Error("mine");
  };
  const worker = await startWorker();
  t.after(() => worker.backend.close());
  await worker.backend.call("load", [{ model: "a/b" }], { onEvent: fail });
  const { text } = await worker.backend.call("generate", [{ prompt: "one two" }], { onEvent: fail });
  assert.equal(text, "one two");
  const local = new host.Host(await engine());
  await local.call("load", [{ model: "a/b" }], { onEvent: fail });
  assert.equal((await local.call("generate", [{ prompt: "one two" }], { onEvent: fail })).text, "one two");
  await local.close();
  assert.deepEqual([...new Set(reported)], ["mine"]);
  assert.equal(reported.length, 12);
});

test("locks that are missing, forbidden, throw or never answer do not hold up a load", async (t) => {
  const refuse = () => {
    throw new TypeError("no locks");
  };
  const cases = { missing: undefined, forbidden: { request: async () => { throw new DOMException("no", "SecurityError"); } }, throws: { request: refuse }, rejects: { request: async () => refuse() } };
  for (const [name, locks] of Object.entries(cases)) {
    stub(t, { navigator: { locks } });
    assert.equal(await within(500, notes.withLock("load x", undefined, () => {}, async () => name, async () => {})), name);
    assert.equal(await within(500, notes.ifOnlyTab("x", async (alone) => `${name} ${alone}`)), `${name} true`);
  }
  // A lock that comes after the deadline is released, and the action has run once.
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let grant;
  stub(t, { navigator: { locks: { request: (_name, _options, run) => new Promise((resolve) => (grant = () => resolve(run({})))) } } });
  let runs = 0;
  const action = async () => ++runs;
  for (const start of [() => notes.withLock("load x", undefined, () => {}, action, async () => {}), () => notes.ifOnlyTab("x", action)]) {
    runs = 0;
    const done = start();
    t.mock.timers.tick(5000);
    assert.equal(await done, 1);
    grant();
    for (let i = 0; i < 9; i++) await Promise.resolve();
    assert.equal(runs, 1);
  }
  // Errors of the action are not repeated without the lock.
  stub(t, { navigator: { locks: { request: async (_name, _options, run) => run({}) } } });
  runs = 0;
  const failing = async () => {
    runs++;
    throw new Error("mine");
  };
  await assert.rejects(notes.withLock("load x", undefined, () => {}, failing, async () => {}), /mine/);
  await assert.rejects(notes.ifOnlyTab("x", failing), /mine/);
  assert.equal(runs, 2);
});

test("a localStorage that throws on every use counts as absent", async (t) => {
  const refuse = () => {
    throw new DOMException("denied", "SecurityError");
  };
  Object.defineProperty(globalThis, "localStorage", { get: refuse, configurable: true });
  t.after(() => delete globalThis.localStorage);
  assert.equal(new notes.Notes().available, false);
  let writes = 0;
  stub(t, { localStorage: { getItem: refuse, removeItem: refuse, setItem: () => { if (writes++ > 0) refuse(); } } });
  const late = new notes.Notes();
  assert.deepEqual([late.read("x"), late.write("x", 1), late.remove("x")], [undefined, false, undefined]);
});

/**
 * The origin private file system of a browser, whose files are written by streams, or by `handles` of workers where no file
 * moves over another. `faults` names what fails: "create", "open", "write" and "close".
 */
function fileSystem({ handles = false, faults = new Set(), maxName = Infinity }) {
  const files = new Map();
  const refuse = (name, message = name) => Promise.reject(Object.assign(new Error(message), { name }));
  const full = (step) => (faults.has(step) ? refuse("QuotaExceededError", "it exceeds its storage quota") : undefined);
  const checked = (name) => (["", ".", ".."].includes(name) ? Promise.reject(new TypeError("Name is not allowed.")) : name.length > maxName ? refuse("UnknownError") : undefined);
  class FileSystemFileHandle {
    constructor(name) {
      this.name = name;
    }
    getFile = async () => new Blob([files.get(this.name)]);
    async createWritable() {
      await full("open");
      const parts = [];
      const stream = new WritableStream({
        write: async (part) => (await full("write")) ?? parts.push(part),
        close: async () => (await full("close")) ?? files.set(this.name, new Uint8Array(await new Blob(parts).arrayBuffer())),
      });
      const writer = stream.getWriter();
      writer.closed.catch(() => {});
      return { write: (part) => writer.write(part), close: () => writer.close(), abort: () => writer.abort() };
    }
    async move(name) {
      if (files.has(name)) await refuse("InvalidModificationError");
      files.set(name, files.get(this.name));
      files.delete(this.name);
    }
  }
  if (handles) {
    FileSystemFileHandle.prototype.createSyncAccessHandle = async function () {
      await full("open");
      const now = (step) => {
        if (faults.has(step)) throw Object.assign(new Error("it exceeds its storage quota"), { name: "QuotaExceededError" });
      };
      return {
        truncate: () => files.set(this.name, new Uint8Array()),
        write: (part, { at }) => {
          now("write");
          assert.equal(at, files.get(this.name).length);
          // A full disk takes fewer bytes.
          const taken = part.subarray(0, faults.has("short") ? 3 : part.length);
          files.set(this.name, Uint8Array.of(...files.get(this.name), ...taken));
          return taken.length;
        },
        flush: () => now("close"),
        close: () => {},
      };
    };
  }
  const folder = {
    async getFileHandle(name, { create = false } = {}) {
      await checked(name);
      if (create && !files.has(name)) await full("create");
      if (!files.has(name)) await (create ? files.set(name, new Uint8Array()) : refuse("NotFoundError"));
      return new FileSystemFileHandle(name);
    },
    async removeEntry(name) {
      await checked(name);
      if (!files.delete(name)) await refuse("NotFoundError");
    },
    async *[Symbol.asyncIterator]() {
      for (const name of [...files.keys()]) yield [name, new FileSystemFileHandle(name)];
    },
  };
  const getDirectory = async () => ({ getDirectoryHandle: async () => folder });
  return { files, globals: { FileSystemFileHandle, navigator: { storage: { getDirectory } } } };
}

/** A session of a model on this thread, whose engine `prepare` may change. */
async function ownSession(prepare = () => {}) {
  const { Session } = await import(`${built.url}/session.js`);
  const module = await engine();
  prepare(module.Engine.prototype);
  const backend = new host.Host(module);
  const info = await backend.call("load", [{ model: "org/name" }]);
  return new Session(backend, info, await backend.call("createSession", []));
}

for (const handles of [false, true]) {
  test(`a session whose save fails stays as it was saved before, by ${handles ? "access handles" : "streams"}`, async (t) => {
    const faults = new Set();
    const { files, globals } = fileSystem({ handles, faults });
    stub(t, globals);
    const session = await ownSession((own) => {
      const { saveState } = own;
      own.saveState = async function (write) {
        if (faults.has("empty")) throw { code: "request", message: "session.save: the session is empty." };
        const bytes = await saveState.call(this, write);
        if (faults.has("late")) throw { code: "device_lost", message: "lost" };
        return bytes;
      };
    });
    const saved = async (ids) => (await session.prefill(ids), session.save("a story"));
    const restored = async () => (await session.restore("a story"), [...session.tokens]);
    const steps = ["empty", "late", "open", "write", "close", ...(handles ? ["short"] : [])];
    const full = { code: "quota", message: /^session\.save: 'a story' does not fit into this site's storage\. Delete/ };
    const refusals = { empty: { code: "request" }, late: { code: "device_lost" } };

    for (const step of ["create", ...steps]) {
      faults.add(step);
      await assert.rejects(saved([1, 2, 3]), refusals[step] ?? full);
      faults.delete(step);
      assert.deepEqual([...files.keys()], [], `${step}: a new file was left`);
      assert.deepEqual(await jerboa.savedSessions(), []);
      await assert.rejects(restored(), { code: "request" });
    }
    assert.deepEqual(await saved([1, 2, 3]), { name: "a story", bytes: 12 });
    for (const step of steps) {
      faults.add(step);
      await assert.rejects(saved([4, 5, 6, 7]), refusals[step] ?? full);
      faults.delete(step);
      assert.deepEqual(await jerboa.savedSessions(), [{ name: "a story", bytes: 12 }], step);
      assert.deepEqual(await restored(), [1, 2, 3], step);
    }
    assert.deepEqual(await saved([4, 5]), { name: "a story", bytes: 8 });
    assert.deepEqual(await restored(), [4, 5]);
    assert.deepEqual([...files.keys()], ["a%20story"]);
    await jerboa.deleteSavedSession("a story");
    assert.deepEqual([...files.keys()], []);
  });
}

/** Web Locks of one page. */
function lockManager() {
  const ends = new Map();
  const request = async (name, options, run) => {
    if (options.ifAvailable && ends.has(name)) return run(null);
    const end = (ends.get(name) ?? Promise.resolve()).then(() => run({ name }));
    const settled = end.catch(() => {});
    ends.set(name, settled);
    settled.then(() => ends.get(name) === settled && ends.delete(name));
    return end;
  };
  return { request };
}

for (const handles of [false, true]) {
  test(`operations on one saved session run one after another, by ${handles ? "access handles" : "streams"}`, async (t) => {
    const { files, globals } = fileSystem({ handles });
    globals.navigator.locks = lockManager();
    stub(t, globals);
    let running = 0;
    const slow = (own) => {
      const { saveState } = own;
      own.saveState = async function (write) {
        assert.equal(++running, 1, "two saves of one name at once");
        await new Promise((resolve) => setTimeout(resolve, 10));
        running--;
        return saveState.call(this, write);
      };
    };
    const sessions = [await ownSession(slow), await ownSession(slow)];
    for (const [i, session] of sessions.entries()) await session.prefill(i ? [4, 5] : [1, 2, 3]);
    const saved = sessions.map((session) => session.save("story"));
    const deleted = jerboa.deleteSavedSession("story");
    const again = sessions[1].save("story");
    assert.deepEqual((await Promise.all(saved)).map(({ bytes }) => bytes), [12, 8]);
    await deleted;
    await again;
    assert.deepEqual([...files.keys()], ["story"]);
    await sessions[0].restore("story");
    assert.deepEqual([...sessions[0].tokens], [4, 5]);
  });
}

test("a private file system that refuses, or is missing, is an error that says what to do", async (t) => {
  const { globals } = fileSystem({});
  stub(t, globals);
  const session = await ownSession();
  await session.prefill([1]);
  for (const [kind, expected] of [
    ["NoModificationAllowedError", { code: "store_locked", message: "session.save: 'story' is in use. Try again in a moment, or choose another name." }],
    ["SecurityError", { code: "store", message: "session.save: the private file system failed (SecurityError: no). Close this site's other tabs and try again." }],
  ]) {
    stub(t, { navigator: { ...globals.navigator, storage: { getDirectory: async () => { throw new DOMException("no", kind); } } } });
    await assert.rejects(session.save("story"), expected);
  }
  for (const navigator of [{ userAgent: "" }, undefined]) {
    stub(t, { navigator });
    const missing = (where) => ({ code: "store", message: `${where}: this page has no private file system. Open it over https, or use the Blob of session.save().` });
    await assert.rejects(session.save("story"), missing("session.save"));
    await assert.rejects(session.restore("story"), missing("session.restore"));
    await assert.rejects(jerboa.savedSessions(), missing("savedSessions"));
    await assert.rejects(jerboa.deleteSavedSession("story"), missing("deleteSavedSession"));
  }
  assert.equal((await session.save()).size, 4);
});

test("a saved session has any name that a file can have; others are refused", async (t) => {
  const long = ["x".repeat(241), "☃".repeat(30), "x".repeat(3000)];
  const names = ["story", "a/b", "a+part", "...", "naïve ☃", "\0", " ", "😀".repeat(20), "x".repeat(240)];
  for (const maxName of [Infinity, 255]) {
    const { files, globals } = fileSystem({ maxName });
    stub(t, globals);
    const session = await ownSession();
    const refused = (call) => ({ code: "request", message: new RegExp(`^${call}: this browser cannot name a file '.*'\\. Choose a name of 1 to 240 ASCII letters or digits\\.$`) });
    const usable = maxName === Infinity ? [...names, ...long] : [...names, long[0]];
    for (const name of usable) await session.save(name);
    assert.deepEqual((await jerboa.savedSessions()).map(({ name }) => name), [...usable].sort());
    for (const name of usable) await session.restore(name);
    for (const name of long.filter((name) => !usable.includes(name))) await assert.rejects(session.save(name), refused("session\\.save"));
    for (const name of usable) await jerboa.deleteSavedSession(name);
    for (const name of ["", ".", "..", "\ud800", "a\udc00b"]) {
      await assert.rejects(session.save(name), refused("session\\.save"));
      await assert.rejects(session.restore(name), refused("session\\.restore"));
      await assert.rejects(jerboa.deleteSavedSession(name), refused("deleteSavedSession"));
    }
    assert.deepEqual([...files.keys()], []);
  }
});

test("storage that never answers: a report without it, a deletion with an error that names the API", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  stub(t, {
    navigator: { storage: { estimate: never, persisted: never, persist: never, getDirectory: never } },
    caches: { keys: never, delete: never },
    indexedDB: { databases: never, deleteDatabase: () => ({}) },
  });
  const report = jerboa.storageReport();
  await Promise.resolve();
  t.mock.timers.tick(10_000);
  assert.deepEqual(await report, { persisted: false, foreign: [] });
  for (const [kind, api] of [["cache", /caches\.delete\(\) did not answer/], ["directory", /the origin private file system did not answer/], ["indexeddb", /indexedDB\.deleteDatabase\(\) did not answer/]]) {
    const done = jerboa.deleteForeignStore({ kind, name: "other" }).catch((thrown) => thrown);
    t.mock.timers.tick(10_000);
    const error = await done;
    assert.equal(error.code, "store");
    assert.match(error.message, api);
  }
  const { indexedDbStore } = await import(`${built.url}/memory/index.js`);
  stub(t, { indexedDB: { open: () => ({}) } });
  const opened = indexedDbStore("x").open().catch((thrown) => thrown);
  t.mock.timers.tick(10_000);
  assert.match((await opened).message, /indexedDB\.open\(\) did not answer for 10 seconds/);
});

/** Lets promises run, then moves the mocked clock by a second, until `promise` settles; returns its outcome and the seconds. */
async function elapsed(t, promise, limit) {
  let end;
  promise.then((value) => (end = { value }), (error) => (end = { error }));
  for (let seconds = 0; seconds <= limit; seconds++) {
    for (let i = 0; i < 20; i++) await new Promise((resolve) => setImmediate(resolve));
    if (end) return { ...end, seconds };
    t.mock.timers.tick(1000);
  }
  return assert.fail(`no end within ${limit} s`);
}

/** A response of which this text comes and then nothing. */
const stalling = (text = "") => new Response(new ReadableStream({ start: (stream) => text && stream.enqueue(new TextEncoder().encode(text)) }));

test("a file of the page that stalls or breaks is fetched again, then refused with its host; an abort ends it", async (t) => {
  const { download } = await import(`${built.url}/download.js`);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const url = "https://files.test/vad.safetensors";
  let requests = [];
  const server = (...answers) => stub(t, { fetch: async (_url, { signal }) => (requests.push(signal), answers[Math.min(requests.length, answers.length) - 1]()) });
  // Headers, and bodies, that never come.
  for (const answer of [never, () => stalling(), () => stalling("abc")]) {
    requests = [];
    server(answer);
    const { error, seconds } = await elapsed(t, download(url), 120);
    assert.equal(error.message, "files.test sent nothing for 30 seconds");
    assert.ok(seconds >= 90 && seconds < 100, String(seconds));
    assert.deepEqual(requests.map(({ aborted }) => aborted), [true, true, true]);
  }
  // The next attempt may succeed; a broken connection counts like a silent one.
  const broken = () => new Response(new ReadableStream({ pull: () => Promise.reject(new TypeError("reset")) }));
  requests = [];
  server(broken, () => stalling("a"), () => new Response("whole"));
  assert.equal(await (await elapsed(t, download(url), 120)).value.text(), "whole");
  // A status is an answer.
  requests = [];
  server(() => new Response("", { status: 404 }));
  assert.match((await elapsed(t, download(url), 1)).error.message, /the server answered 404/);
  assert.equal(requests.length, 1);
  requests = [];
  server(() => stalling("a"));
  const control = new AbortController();
  const aborted = download(url, control.signal);
  control.abort();
  assert.equal((await elapsed(t, aborted, 1)).error.name, "AbortError");
  // As an option of a load, and as an image.
  server(never);
  const load = await elapsed(t, jerboa.loadModel("a/b", { worker: false, vad: url }), 120);
  assert.deepEqual([load.error.code, /'vad' could not be fetched from https:\/\/files\.test.*files\.test sent nothing for 30 seconds/.test(load.error.message)], ["network", true], load.error.message);
  const { resolveImage } = await import(`${built.url}/images.js`);
  const image = await elapsed(t, resolveImage("encodeImage", "https://files.test/a.png"), 120);
  assert.deepEqual([image.error.code, /files\.test sent nothing for 30 seconds/.test(image.error.message)], ["network", true], image.error.message);
});

test("a package file that is missing is named with advice, which an offline device gets for itself", async (t) => {
  stub(t, { document: {} });
  const failing = { ...(await engine()), default: () => Promise.reject(new TypeError("Failed to fetch")) };
  const message = async () => {
    const error = await new host.Host(failing).call("version", []).catch((thrown) => thrown);
    assert.equal(error.code, "assets");
    return error.message;
  };
  for (const navigator of [undefined, {}, { onLine: true }]) {
    stub(t, { navigator });
    assert.match(await message(), /^The engine's wasm file could not be loaded: Failed to fetch\. Serve the package's files unchanged/);
  }
  // Chromium, Firefox and Safari about a file that is a web page.
  for (const reason of ["WebAssembly.instantiate(): expected magic word 00 61 73 6d, found 3c 21 64 6f @+0", "wasm validation error: at offset 4: failed to match magic number", "WebAssembly.Module doesn't parse at byte 0: module doesn't start with '\\0asm'"]) {
    const used = new host.Host({ ...(await engine()), default: () => Promise.reject(new WebAssembly.CompileError(reason)) });
    used.useWasm("https://x.test/nope.wasm");
    const error = await used.call("version", []).catch((thrown) => thrown);
    assert.equal(error.message, "The engine's wasm file https://x.test/nope.wasm could not be loaded: the server sent a web page or another file that is not WebAssembly. Serve the package's files unchanged from one folder, or set their URLs: configure({ wasmUrl, workerUrl }).");
  }
  stub(t, { navigator: { onLine: false } });
  assert.equal(await message(), "The engine's wasm file could not be loaded: Failed to fetch. This device is offline. Connect it and try again.");
});

test("package files that never come are given up after three minutes, and the next call waits for the same ones", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  // Elsewhere the message says that models need a browser.
  stub(t, { document: {} });
  const module = await engine();
  let starts = 0;
  let arrive;
  const slow = { ...module, default: () => (starts++, new Promise((resolve) => (arrive = resolve))) };
  const used = new host.Host(slow);
  const { error, seconds } = await elapsed(t, used.call("version", []), 200);
  assert.equal(error.code, "assets");
  assert.match(error.message, /The engine's wasm file could not be loaded: its server did not answer for 180 seconds/);
  assert.ok(seconds >= 180, String(seconds));
  const later = used.call("version", []);
  arrive();
  assert.equal(typeof (await elapsed(t, later, 10)).value, "string");
  assert.equal(starts, 1, "a second instance would replace the first");
});

test("locks that answer without a grant hold nothing up", async (t) => {
  stub(t, { navigator: { locks: { request: async () => null } } });
  assert.equal(await within(500, notes.withLock("load x", undefined, () => {}, async () => "done", async () => {})), "done");
});

test("media that the browser never decodes end by their deadline with an error that names the API; a late image is closed", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const { resolveImage, currentFrame } = await import(`${built.url}/images.js`);
  const { resolveVideo } = await import(`${built.url}/video.js`);
  const { samplesOf } = await import(`${built.url}/audio-input.js`);
  const { ImageRegistry } = await import(`${built.url}/image-decode.js`);
  class HTMLImageElement {
    decode = never;
  }
  class HTMLCanvasElement {}
  class HTMLVideoElement extends EventTarget {
    readyState = 4;
    play = never;
    load() {}
    removeAttribute() {}
  }
  class MediaStreamTrack {
    kind = "video";
    readyState = "live";
  }
  class ImageData {}
  class ImageBitmap {}
  class OfflineAudioContext {
    decodeAudioData = never;
    startRendering = never;
    createBuffer = () => ({ getChannelData: () => new Float32Array(9) });
    createBufferSource = () => ({ connect() {}, start() {} });
  }
  let late;
  const createImageBitmap = () => new Promise((resolve) => (late = resolve));
  const document = { createElement: () => new HTMLVideoElement() };
  stub(t, { HTMLImageElement, HTMLCanvasElement, HTMLVideoElement, MediaStreamTrack, ImageData, ImageBitmap, OfflineAudioContext, createImageBitmap, document, MediaStream: class {} });
  const module = { imageSize() {} };
  const encoded = new ImageRegistry();
  const image = 30;
  const audio = 120;
  const cases = {
    "an element that never decodes": [() => resolveImage("encodeImage", new HTMLImageElement()), image, /encodeImage: .*HTMLImageElement\.decode\(\) did not answer for 30 seconds/],
    "a track that never plays": [() => resolveImage("encodeImage", new MediaStreamTrack()), image, /encodeImage: .*HTMLVideoElement\.play\(\) did not answer for 30 seconds/],
    "a canvas": [() => resolveImage("encodeImage", new HTMLCanvasElement()), image, /encodeImage: .*createImageBitmap\(\) did not answer for 30 seconds/],
    "a file": [() => encoded.encode(module, {}, { image: new Blob(["x"]) }), image, /createImageBitmap\(\) did not answer for 30 seconds/],
    "a frame of a video": [() => encoded.withImageIds(module, {}, [{ content: [{ type: "video", frames: [new Blob(["x"])], seconds: [0, 1] }] }]), image, /createImageBitmap\(\) did not answer for 30 seconds/],
    "a video that never loads": [() => resolveVideo("chat", { type: "video", source: "https://files.test/a.mp4" }, never), 20, /the next video frame \(20 s\)/],
    "an audio file": [() => samplesOf("transcribe", new Blob(["sound"])), audio, /transcribe: this browser cannot decode the file/, /decodeAudioData\(\) did not answer for 120 seconds/],
    "samples of another rate": [() => samplesOf("transcribe", new Float32Array(9), 8000), audio, /transcribe: .*startRendering\(\) did not answer for 120 seconds/],
  };
  for (const [name, [start, limit, pattern, cause = /./]] of Object.entries(cases)) {
    const { error, seconds } = await elapsed(t, start(), limit + 5);
    assert.equal(error?.code, "request", name);
    assert.match(error.message, pattern, name);
    assert.match(String(error.cause ?? error), cause, name);
    assert.ok(seconds >= limit && seconds <= limit + 2, `${name}: ${seconds} s`);
  }
  // The frame of an element, and the image that comes after the deadline.
  const frame = await elapsed(t, currentFrame(new HTMLVideoElement()), image + 5);
  assert.match(frame.error.message, /createImageBitmap\(\) did not answer for 30 seconds/);
  let closed = false;
  late({ close: () => (closed = true) });
  await Promise.resolve();
  await Promise.resolve();
  assert.ok(closed);
  // A video that shows no frame is read again until the deadline.
  let reads = 0;
  stub(t, { createImageBitmap: async () => { reads++; throw new DOMException("The image source is not usable.", "InvalidStateError"); } });
  const blank = await elapsed(t, currentFrame(new HTMLVideoElement()), image + 5);
  assert.match(String(blank.error), /not usable/);
  assert.ok(reads > 10 && blank.seconds >= image, `${reads} reads in ${blank.seconds} s`);
  // An abort ends the wait for a decoder at once.
  const control = new AbortController();
  const aborted = samplesOf("transcribe", new Blob(["sound"]), undefined, control.signal);
  control.abort();
  assert.equal((await elapsed(t, aborted, 2)).error.code, "aborted");
});

test("channels between tabs that cannot be made, used or closed hold up neither a load nor a memory", async (t) => {
  const refuse = () => {
    throw new DOMException("no", "InvalidStateError");
  };
  const working = { postMessage() {}, close() {} };
  const request = (result) => {
    const made = { result };
    queueMicrotask(() => made.onsuccess?.());
    return made;
  };
  const store = { get: () => request(undefined), put: () => request(), delete: () => request() };
  const database = {
    close() {},
    transaction: () => {
      const transaction = { objectStore: () => store, abort() {} };
      setTimeout(() => transaction.oncomplete());
      return transaction;
    },
  };
  const { indexedDbStore } = await import(`${built.url}/memory/index.js`);
  for (const methods of [{ ...working, postMessage: refuse }, { ...working, close: refuse }, undefined]) {
    stub(t, { indexedDB: { open: () => request(database) }, BroadcastChannel: class { constructor() { methods ? Object.assign(this, methods) : refuse(); } } });
    assert.equal(await within(500, notes.withLock("load x", undefined, () => {}, async (alive) => (alive(), "done"), async () => {})), "done");
    const memory = indexedDbStore("x");
    await within(500, memory.open());
    assert.equal(await within(500, memory.apply({ put: [], remove: [], dims: 3, model: "m" })), 1);
    await within(500, memory.close());
  }
});

test("a transaction of the memory that never answers ends with an error that names the API", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const { indexedDbStore, deleteIndexedDbStore } = await import(`${built.url}/memory/index.js`);
  const request = (result) => {
    const made = { result };
    if (result) queueMicrotask(() => made.onsuccess?.());
    return made;
  };
  let ended = 0;
  const database = { transaction: () => ({ objectStore: () => ({ get: () => request(undefined) }), abort: () => ended++ }), close() {} };
  stub(t, { indexedDB: { open: () => request(database), deleteDatabase: () => ({}) } });
  const opened = await elapsed(t, indexedDbStore("x").open(), 70);
  assert.equal(opened.error.code, "store");
  assert.match(opened.error.message, /IndexedDB did not answer for 60 seconds \(IDBRequest\)/);
  assert.ok(ended > 0);
  const deleted = await elapsed(t, deleteIndexedDbStore("x"), 70);
  assert.match(deleted.error.message, /IndexedDB did not answer for 60 seconds \(indexedDB\.deleteDatabase\(\)\)/);
  stub(t, { indexedDB: { deleteDatabase: () => { const made = {}; queueMicrotask(() => made.onblocked()); return made; } } });
  assert.equal((await elapsed(t, deleteIndexedDbStore("x"), 20)).error.code, "store_blocked");
});

test("a worker greets once it holds its lock, or after a second without one", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  for (const [request, messages] of [[(_name, run) => Promise.resolve(run({})), ["lock", "hello"]], [async () => { throw new Error("denied"); }, ["hello"]], [never, ["hello"]]]) {
    stub(t, { navigator: { locks: { request } } });
    const sent = [];
    rpc.serve({ postMessage: (message) => sent.push(Object.keys(message)[0]), addEventListener() {} }, new host.Host(await engine()));
    for (let i = 0; i < 9; i++) await Promise.resolve();
    if (request === never) {
      assert.deepEqual(sent, []);
      t.mock.timers.tick(1000);
    }
    assert.deepEqual(sent, messages);
  }
});
