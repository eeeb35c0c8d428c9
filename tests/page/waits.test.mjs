/** Web APIs that never answer, answer null, throw or answer late: each wait ends by its deadline with an error that names the API, or with a fallback. In Node, with stubs and mock timers. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

const never = () => new Promise(() => {});

/** Lets promises run, then moves the clock; repeats until `promise` settles. Returns its result or error, and the seconds passed. */
async function elapsed(promise, limit) {
  let end;
  promise.then((value) => (end = { value }), (error) => (end = { error }));
  const step = limit > 60_000 ? 1000 : 50;
  let ms = 0;
  for (; !end && ms <= limit; ms += step) {
    for (let i = 0; i < 20; i++) await Promise.resolve();
    if (!end) mock.timers.tick(step);
    for (let i = 0; i < 20; i++) await Promise.resolve();
  }
  assert.ok(end, `no end within ${limit} ms`);
  return { ...end, seconds: ms / 1000 };
}

/** A module of its own: its state starts anew. */
let copies = 0;
const fresh = (path) => import(`${new URL(path, import.meta.url)}?${copies++}`);

/** Runs a test with mock timers and some globals. */
async function withStubs(globals, run) {
  const before = Object.fromEntries(Object.keys(globals).map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)]));
  for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  try {
    await run();
  } finally {
    mock.timers.reset();
    for (const [name, own] of Object.entries(before)) own ? Object.defineProperty(globalThis, name, own) : delete globalThis[name];
  }
}

/** A device that works, except for the methods given. */
function stubDevice(methods = {}) {
  const device = {
    destroyed: false,
    features: new Set(),
    limits: {},
    lost: never(),
    addEventListener() {},
    pushErrorScope() {},
    popErrorScope: async () => null,
    createShaderModule: () => ({}),
    createBindGroupLayout: () => ({}),
    createPipelineLayout: () => ({}),
    createComputePipelineAsync: async () => ({}),
    createCommandEncoder: () => ({ copyBufferToBuffer() {}, finish: () => ({}) }),
    createBuffer: ({ size }) => ({ size, mapAsync: methods.mapAsync ?? (async () => {}), getMappedRange: () => new ArrayBuffer(size), unmap() {}, destroy() {} }),
    queue: { submit() {}, onSubmittedWorkDone: methods.onSubmittedWorkDone ?? (async () => {}) },
    destroy: () => (device.destroyed = true),
    ...methods,
  };
  return device;
}

/** `navigator` with a GPU whose adapter gives this device. */
function stubNavigator({ requestAdapter, requestDevice, device = stubDevice(), info = {} } = {}) {
  const adapter = { features: new Set(), limits: {}, info, requestDevice: requestDevice ?? (async () => device) };
  return { gpu: { requestAdapter: requestAdapter ?? (async () => adapter) } };
}

const GPU = { GPUBufferUsage: {}, GPUMapMode: { READ: 1 }, GPUShaderStage: { COMPUTE: 4 } };

test("an adapter or device that is null, throws or never comes ends the open and names the API", async () => {
  const cases = [
    [{ requestAdapter: async () => null }, 6, /no adapter was found by navigator\.gpu\.requestAdapter\(\)/],
    [{ requestAdapter: () => null }, 6, /no adapter was found by navigator\.gpu\.requestAdapter\(\)/],
    [{ requestAdapter: () => { throw new Error("forbidden"); } }, 6, /forbidden/],
    [{ requestAdapter: never }, 31, /navigator\.gpu\.requestAdapter\(\) did not answer for 30 seconds/],
    [{ requestDevice: never }, 31, /GPUAdapter\.requestDevice\(\) did not answer for 30 seconds/],
    [{ requestDevice: async () => { throw new Error("limits"); } }, 6, /limits/],
  ];
  for (const [stubs, limit, pattern] of cases) {
    await withStubs({ navigator: stubNavigator(stubs), ...GPU }, async () => {
      const { JsGpu } = await fresh("../../crate/js/gpu.js");
      const { error } = await elapsed(JsGpu.open(true, true, true, false), limit * 1000);
      assert.match(error.message, pattern);
    });
  }
});

test("after one request without an answer the next one is given up sooner; a late device is destroyed", async () => {
  const device = stubDevice();
  const requests = [];
  await withStubs({ navigator: stubNavigator({ requestDevice: () => new Promise((resolve) => requests.push(resolve)) }), ...GPU }, async () => {
    const { JsGpu } = await fresh("../../crate/js/gpu.js");
    await elapsed(JsGpu.open(false, false, false, false), 31_000);
    const second = await elapsed(JsGpu.open(false, false, false, false), 3000);
    assert.match(second.error.message, /did not answer for 2 seconds/);
    requests[0](device);
    for (let i = 0; i < 9; i++) await Promise.resolve();
    assert.equal(device.destroyed, true);
    // An answer restores the long deadline.
    const third = JsGpu.open(false, false, false, false);
    for (let i = 0; i < 9; i++) await Promise.resolve();
    requests[2](stubDevice());
    assert.ok((await elapsed(third, 1000)).value);
    assert.match((await elapsed(JsGpu.open(false, false, false, false), 31_000)).error.message, /for 30 seconds/);
  });
});

test("a device that stops answering is lost after a minute, ten on a software adapter, and the reason names the API", async () => {
  const work = {
    mapAsync: (gpu) => gpu.read(gpu.buffer("b", 16, false), 0, 16),
    onSubmittedWorkDone: (gpu) => gpu.idle(),
    createComputePipelineAsync: (gpu) => gpu.compile(["k"], ["code"], [[0, 0]]),
    popErrorScope: (gpu) => (gpu.buffer("b", 16, false), gpu.takeError().then((message) => { throw new Error(message); })),
  };
  for (const [api, run] of Object.entries(work)) {
    for (const [info, seconds] of [[{}, 60], [{ isFallbackAdapter: true }, 600]]) {
      const device = stubDevice({ [api]: never });
      await withStubs({ navigator: stubNavigator({ device, info }), ...GPU }, async () => {
        const { JsGpu } = await fresh("../../crate/js/gpu.js");
        const gpu = await JsGpu.open(false, false, false, false);
        const { error } = await elapsed(run(gpu), seconds * 1200);
        assert.match(error.message, new RegExp(`the GPU did not answer for ${seconds} seconds \\(${api}\\)`));
        assert.equal(device.destroyed, true);
      });
    }
  }
});

test("a device whose calls throw or give nothing is lost, and throws nothing into WebAssembly", async () => {
  const refuse = () => {
    throw new TypeError("refused");
  };
  const device = stubDevice();
  await withStubs({ navigator: stubNavigator({ device }), ...GPU }, async () => {
    const { JsGpu } = await fresh("../../crate/js/gpu.js");
    for (const [run, method, owner] of [
      [(gpu, slot) => gpu.write(slot, 0, Uint8Array.of(1)), "writeBuffer", "queue"],
      [(gpu) => gpu.run([], undefined), "createCommandEncoder", "device"],
      [(gpu, slot) => gpu.copy(slot, 0, slot, 0, 4), "submit", "queue"],
      [(gpu) => gpu.program("p", Int32Array.of(0, 1, 1, 1, -1, 0, 0, 0), 0), "createBindGroup", "device"],
      [(gpu, slot) => gpu.destroy(slot), "destroy", "buffer"],
    ]) {
      device.destroyed = false;
      const gpu = await JsGpu.open(false, false, false, false);
      gpu.pipelines.push({});
      const slot = gpu.buffer("b", 16, false);
      const target = { queue: gpu.queue, device, buffer: gpu.buffers[slot] }[owner];
      const own = target[method];
      target[method] = refuse;
      run(gpu, slot);
      for (let i = 0; i < 9; i++) await Promise.resolve();
      target[method] = own;
      assert.match(gpu.lost, /a WebGPU call failed: refused/, method);
      assert.equal(device.destroyed, true, method);
      assert.match(await gpu.takeError(), /^lost:a WebGPU call failed: refused/);
    }
    const gpu = await JsGpu.open(false, false, false, false);
    const { buffer } = gpu.stagingBuffer(16);
    gpu.staging.get(256).push(Object.assign(buffer, { getMappedRange: () => null }));
    await assert.rejects(gpu.read(gpu.buffer("b", 16, false), 0, 16), /GPUBuffer\.getMappedRange\(\) gave no bytes instead of 16/);
  });
});

const KEY = "https://jerboa.invalid/a/b";

/** A cache in memory, except for the methods given. */
function stubCache(methods = {}) {
  const entries = new Map();
  const cache = {
    match: async (key) => entries.get(key)?.clone(),
    put: async (key, response) => void entries.set(key, response),
    delete: async (key) => entries.delete(key),
    keys: async () => [...entries.keys()].map((url) => ({ url })),
    ...methods,
  };
  return { open: async () => cache };
}

test("a cache that never opens is refused by name within five seconds", async () => {
  await withStubs({ caches: { open: never } }, async () => {
    const { openStore } = await fresh("../../crate/js/cache.js");
    assert.match((await elapsed(openStore("models"), 6000)).error.message, /caches\.open\(\) did not answer for 5 seconds/);
  });
  // A private file system that never opens is replaced by a cache.
  class FileSystemFileHandle {
    move() {}
  }
  await withStubs({ caches: stubCache(), FileSystemFileHandle, navigator: { storage: { getDirectory: never } } }, async () => {
    const { openStore, writeEntry, readEntry } = await fresh("../../crate/js/cache.js");
    const { value: store } = await elapsed(openStore("models"), 6000);
    await writeEntry(store, "models", KEY, Uint8Array.of(1, 2), false);
    assert.deepEqual([...(await readEntry(store, "models", KEY, false))], [1, 2]);
  });
});

test("a cache that stops answering is given up after 30 seconds, a write after 60, by name; later requests end at once until it answers", async () => {
  const calls = {
    match: ({ readEntry }, store) => readEntry(store, "models", KEY, false),
    put: ({ writeEntry }, store) => writeEntry(store, "models", KEY, Uint8Array.of(1), false),
    keys: (_, store) => store.keys(),
    delete: (_, store) => store.delete(KEY),
  };
  for (const [method, call] of Object.entries(calls)) {
    let answer;
    const later = () => new Promise((resolve) => (answer = resolve));
    await withStubs({ caches: stubCache({ [method]: later }) }, async () => {
      const module = await fresh("../../crate/js/cache.js");
      const store = await module.openStore("models");
      const limit = method === "put" ? 60 : 30;
      const { error, seconds } = await elapsed(call(module, store), limit * 1000 + 1000);
      assert.match(error.message, new RegExp(`Cache\\.${method}\\(\\) did not answer for ${limit} seconds`));
      assert.ok(seconds >= limit - 1);
      for (const [name, other] of Object.entries(calls)) {
        const ended = await elapsed(other(module, store), 100);
        assert.match(ended.error.message, new RegExp(`Cache\\.${name}\\(\\) was not called: the store does not answer`));
      }
      answer(method === "keys" ? [] : undefined);
      for (let i = 0; i < 9; i++) await Promise.resolve();
      const other = method === "match" ? "keys" : "match";
      assert.ok("value" in (await elapsed(calls[other](module, store), 100)), "the store answers again");
    });
  }
});

test("threads of the cache that never start do not hold up a write", async () => {
  class Worker {
    postMessage() {}
    terminate() {}
  }
  const written = [];
  await withStubs({ caches: stubCache({ put: async (key) => void written.push(key) }), Worker }, async () => {
    const { openStore, writeEntry } = await fresh("../../crate/js/cache.js");
    const store = await openStore("models");
    await elapsed(writeEntry(store, "models", KEY, new Uint8Array(9), true), 6000);
    assert.deepEqual(written, [KEY]);
  });
});

test("a worker in Firefox starts no workers for the cache: the store is used directly", async () => {
  for (const [agent, expected] of [["Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0", 0], ["Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36", 2]]) {
    let started = 0;
    class Worker {
      constructor() {
        started++;
      }
      postMessage() {}
      terminate() {}
    }
    const written = [];
    await withStubs({ caches: stubCache({ put: async (key) => void written.push(key) }), Worker, navigator: { userAgent: agent } }, async () => {
      const { openStore, writeEntry } = await fresh("../../crate/js/cache.js");
      const store = await openStore("models");
      await elapsed(writeEntry(store, "models", KEY, new Uint8Array(9), true), 6000);
    });
    assert.deepEqual([started, written], [expected, [KEY]], agent);
  }
});

test("WebLLM's stores that never answer count as absent", async () => {
  await withStubs({ indexedDB: { databases: never }, navigator: { storage: { getDirectory: never } } }, async () => {
    const { open } = await fresh("../../crate/js/webllm.js");
    assert.equal((await elapsed(open(["webllm/model"]), 11_000)).value, null);
  });
  await withStubs({ indexedDB: { databases: async () => [{ name: "webllm/model" }], open: () => ({}) }, navigator: {} }, async () => {
    const { open } = await fresh("../../crate/js/webllm.js");
    const { value: find } = await elapsed(open(["webllm/model"]), 1000);
    assert.equal((await elapsed(find("https://x.test/a"), 6000)).value, null);
  });
});
