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
        assert.match(error.message, new RegExp(`the GPU did not answer ${api}\\(\\) for ${seconds} seconds`));
        assert.equal(device.destroyed, true);
      });
    }
  }
});
