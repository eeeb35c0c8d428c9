// The browser's WebGPU behind integer handles, as src/gpu/browser.rs imports it. Decode steps are recorded once and
// replayed in one call. Does not depend on models.

import { hasManyCores, host } from "./host.js";

// Deadlines of WebGPU; docs/limits.md lists them.

/** Milliseconds until requestAdapter and requestDevice must answer. A busy machine takes seconds to start its GPU process. */
const REQUEST_TIMEOUT_MS = 30_000;
/** The same after one did not answer: a load opens several devices. */
const SECOND_REQUEST_TIMEOUT_MS = 2_000;
let requestTimeout = REQUEST_TIMEOUT_MS;

const RETRY_MS = 250;
/** Number of prefill dispatches to submit before recording the rest: the GPU works meanwhile. */
const FIRST_SUBMIT = 48;
/**
 * Maximum dispatches of a submit while a read is under way. Chromium's GPU process takes several microseconds for each, and
 * looks for finished work after each submit.
 */
const MAX_DISPATCHES_BEHIND_READ = 48;
/** Maximum dispatches of a program that is submitted with what follows it before the next microtask. */
const MAX_SHORT_PROGRAM = 16;
const RETRIES = 20;
/** Bytes of staging buffers to keep for later reads. */
const MAX_STAGED_BYTES = 32 << 20;

/** Bytes of the buffers that a probe allocates; src/gpu/mod.rs has the same. */
const PROBE_BUFFER_BYTES = 32 << 20;

/** Bytes of a mapped buffer for writes, how many there are at most (less memory on small devices), and the bytes from which a write is worth one. */
const UPLOAD_BYTES = 8 << 20;
const UPLOADS = hasManyCores ? 8 : 4;
const MIN_UPLOAD_BYTES = 256 << 10;
/** Milliseconds without large writes after which they are released. */
const UPLOADS_IDLE_MS = 2_000;

/** Transfers above this many bytes are named in later errors. */
const LARGE_TRANSFER_BYTES = 65_536;

// Constants of the WebGPU specification; hosts need not define them as globals.
const BUFFER_USAGE = { MAP_READ: 1, MAP_WRITE: 2, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128, QUERY_RESOLVE: 512 };
const COMPUTE_STAGE = 4;
const MAP_READ_MODE = 1;
const MAP_WRITE_MODE = 2;

/** How long a readback is hurried, in milliseconds; later the time between two looks of the browser matters little. */
const HURRY_MS = 32;
/** Milliseconds between two commands that hurry a readback: at least this, and this share of the time waited. */
const HURRY_GAP_MS = 0.1;
const HURRY_SHARE = 1 / 16;
/** Maximum commands that hurry a readback without an answer: more would only keep the GPU process busy. */
const MAX_UNANSWERED_COMMANDS = 2;

/** Memory to sleep on. Shared WebAssembly memory needs no cross-origin isolation, unlike SharedArrayBuffer's constructor. */
let sleeper;

/** Blocks this thread if it may block: a dedicated worker's. */
function sleep(ms) {
  if (sleeper === null) return;
  try {
    sleeper ??= new Int32Array(new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }).buffer);
    Atomics.wait(sleeper, 0, 0, ms);
  } catch {
    sleeper = null;
  }
}

/** Ignores a promise's rejection: after a lost device no caller awaits it. */
function ignoreRejection(promise) {
  promise.catch(() => {});
  return promise;
}

/** Copies dispatches with new grids. */
const withGrids = (steps, grids) => steps.map((step, i) => ({ ...step, x: grids[3 * i], y: grids[3 * i + 1], z: grids[3 * i + 2] }));

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** The answer of a request to `api`, or an error that names it after the deadline; `late` takes an answer after that. */
function requested(api, promise, late) {
  const ms = requestTimeout;
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      requestTimeout = SECOND_REQUEST_TIMEOUT_MS;
      reject(Object.assign(new Error(`${api}() did not answer for ${ms / 1000} seconds`), { silent: true }));
      promise.then(late, () => {});
    }, ms);
    Promise.resolve(promise).then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/**
 * Milliseconds without an answer after which the device is considered lost; all submitted work must finish in that
 * time.
 */
const DEVICE_TIMEOUT_MS = 60_000;
/** The same for a software adapter, which is slow. */
const SOFTWARE_TIMEOUT_MS = 600_000;
/**
 * The timeout is counted in polls, so that a sleeping machine or a background page does not look like a lost device.
 */
const POLLS = 6;

/** Limits to request at the adapter's maximum. */
const LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize", "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX"];

/**
 * The features that provide subgroup matrices, the draft's first: feature name, `enable` name, and the diagnostic rule
 * that the shaders switch off.
 */
const MATRIX_FEATURES = [
  ["subgroup-matrix", "subgroup_matrix", "subgroup_matrix_uniformity"],
  ["chromium-experimental-subgroup-matrix", "chromium_experimental_subgroup_matrix", "chromium.subgroup_matrix_uniformity"],
];

/**
 * Browser dialects of the built-ins in shaders/common/matrix.wgsl: the draft's, or with the matrix order as an
 * argument.
 */
const DIALECTS = [
  (text) => text,
  (text) => text.replace(/(subgroupMatrix\w+)<(?:(\w+), ?)?(row|col)_major>\((.+), ?(\w+)\)/g, (_, name, of, order, first, pitch) => `${name}${of ? `<${of}>` : ""}(${first}, ${order === "col"}, ${pitch})`),
];

/** Subgroup sizes of subgroup matrix kernels, best first. */
const SUBGROUP_SIZES = [32, 64, 16];

/** A kernel pinned to subgroups of LANES lanes, for devices with several subgroup sizes. */
const withSubgroupSize = (text) => `enable subgroup_size_control;\n${text.replace(/@workgroup_size\(\w+\)/, "$& @subgroup_size(LANES)")}`;

/** A probe kernel that uses every built-in of shaders/common/matrix.wgsl. */
const probeShader = ([, enable, rule], side, element, lanes) => `enable ${enable};
diagnostic(off, ${rule});
${element === "f16" ? "enable f16;" : ""}
const LANES: u32 = ${lanes || SUBGROUP_SIZES[0]}u;
alias Left = subgroup_matrix_left<${element}, ${side}, ${side}>;
alias Right = subgroup_matrix_right<${element}, ${side}, ${side}>;
alias Sum = subgroup_matrix_result<f32, ${side}, ${side}>;
var<workgroup> tile: array<array<${element}, 512>, 8>;
@group(0) @binding(0) var<storage, read_write> parts: array<f32>;
@compute @workgroup_size(128)
fn main(@builtin(local_invocation_index) lid: u32) {
let slice = lid / LANES;
let a = subgroupMatrixLoad<Left, row_major>(&tile[slice], 0u, 24u);
let b = subgroupMatrixLoad<Right, row_major>(&tile[slice], 0u, 24u);
let turned = subgroupMatrixLoad<Right, col_major>(&tile[slice], 0u, 24u);
let sum = subgroupMatrixLoad<Sum, row_major>(&parts, slice, 24u);
let more = subgroupMatrixMultiplyAccumulate(a, b, sum);
subgroupMatrixStore<row_major>(&parts, slice, subgroupMatrixMultiplyAccumulate(a, turned, more), 24u);
}`;

/** Requests a device. The first requests after a browser start can fail while its GPU process restarts. */
async function openDevice(wanted, minLimits) {
  let reason = "no adapter was found by navigator.gpu.requestAdapter()";
  for (let attempt = 0; attempt < RETRIES; attempt++) {
    try {
      const adapter = await requested("navigator.gpu.requestAdapter", host.gpu.requestAdapter({ powerPreference: "high-performance" }), () => {});
      if (adapter) {
        const features = wanted.filter((name) => adapter.features.has(name));
        const limits = adapter.limits;
        const request = adapter.requestDevice({
          requiredFeatures: features,
          // Without these the device has the default limits.
          requiredLimits: Object.fromEntries(minLimits ? [] : LIMITS.map((name) => [name, limits[name]])),
        });
        const device = await requested("GPUAdapter.requestDevice", request, (device) => device.destroy());
        requestTimeout = REQUEST_TIMEOUT_MS;
        return { adapter, device };
      }
    } catch (error) {
      reason = error.message;
      if (error.silent) break;
    }
    await pause(RETRY_MS);
  }
  throw new Error(reason);
}

/** The devices that are open on this thread, for the facade: it destroys them after a trap, when WebAssembly cannot. */
const devices = (globalThis[Symbol.for("jerboa.devices")] ??= new Set());

/**
 * Large writes by way of mapped buffers, which hold as many writes as fit, are copied before any other work, and are mapped
 * again once the GPU has copied them. Chromium copies the bytes of writeBuffer several times on their way to its GPU
 * process, which shares mapped ones: 512 MB at 5 to 6 instead of 1.7 GB/s on an H200.
 */
class Uploads {
  /** `create` makes a buffer from its descriptor. */
  constructor(device, create) {
    this.device = device;
    this.create = create;
    this.works = /Chrome\//.test(host.userAgent);
    /** Those that are mapped, and the number of all. */
    this.mapped = [];
    this.made = 0;
    /** A promise for each that the GPU still reads. */
    this.pending = new Set();
    /** The one that holds writes: its buffer, its bytes, how many are taken, and the copies out of it. */
    this.open = undefined;
  }

  /**
   * Takes the first of the bytes, as many as mapped buffers hold at present, and returns their number. What it does not
   * take may be written at once.
   */
  write(target, offset, bytes) {
    if (!this.works || (bytes.length < MIN_UPLOAD_BYTES && !this.open)) return 0;
    let taken = 0;
    while (taken < bytes.length && (this.open ??= this.next())) {
      const { open } = this;
      const size = Math.min(UPLOAD_BYTES - open.at, bytes.length - taken);
      open.bytes.set(bytes.subarray(taken, taken + size), open.at);
      open.copies.push([open.at, target, offset + taken, size]);
      open.at += size;
      taken += size;
      if (open.at === UPLOAD_BYTES) this.flush();
    }
    return taken;
  }

  next() {
    const buffer = this.mapped.pop() ?? this.add();
    return buffer && { buffer, bytes: new Uint8Array(buffer.getMappedRange()), at: 0, copies: [] };
  }

  add() {
    if (this.made >= UPLOADS) return undefined;
    this.made++;
    return this.create({ label: "staging for uploads", size: UPLOAD_BYTES, usage: BUFFER_USAGE.MAP_WRITE | BUFFER_USAGE.COPY_SRC, mappedAtCreation: true });
  }

  /** Submits what was taken. */
  flush() {
    if (!this.open) return;
    const { buffer, copies } = this.open;
    this.open = undefined;
    buffer.unmap();
    const encoder = this.device.createCommandEncoder();
    for (const [at, target, offset, size] of copies) encoder.copyBufferToBuffer(buffer, at, target, offset, size);
    this.device.queue.submit([encoder.finish()]);
    const done = buffer.mapAsync(MAP_WRITE_MODE).then(() => this.mapped.push(buffer), () => {}).finally(() => this.pending.delete(done));
    this.pending.add(done);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.release(), UPLOADS_IDLE_MS);
  }

  /** Resolves when there is a mapped buffer for the next large write, or can be one. */
  async room() {
    while (this.pending.size === UPLOADS) await Promise.race(this.pending);
  }

  release() {
    this.made -= this.mapped.length;
    for (const buffer of this.mapped.splice(0)) buffer.destroy();
  }
}

export class JsGpu {
  static async open(f16, subgroups, matrix, minLimits) {
    if (!host.gpu) {
      throw new Error("this page or worker has no navigator.gpu");
    }
    const wanted = ["timestamp-query"];
    if (f16) wanted.push("shader-f16");
    if (subgroups) wanted.push("subgroups");
    // Subgroup matrices need f16 and subgroups.
    if (f16 && subgroups && matrix) wanted.push(...MATRIX_FEATURES.map(([feature]) => feature), "subgroup-size-control");
    const { adapter, device } = await openDevice(wanted, minLimits);
    const gpu = new JsGpu(adapter, device);
    devices.add(device);
    void device.lost.then(() => devices.delete(device));
    await gpu.findMatrices();
    gpu.facts();
    return gpu;
  }

  constructor(adapter, device) {
    this.device = device;
    /** The dialect and properties of subgroup matrices; null without them. */
    this.matrices = null;
    this.queue = device.queue;
    this.info = adapter.info ?? {};
    this.buffers = [];
    this.free = [];
    this.pipelines = [];
    this.programs = [];
    this.freePrograms = [];
    this.staging = new Map();
    this.staged = 0;
    this.uploads = new Uploads(device, (descriptor) => {
      const allocation = [this.bytes, this.bytes + descriptor.size, 0];
      return this.scoped(descriptor.label, () => device.createBuffer(descriptor), allocation);
    });
    this.counts = { buffers: 0, pipelines: 0, bindGroups: 0 };
    /** Bytes of the live buffers. */
    this.bytes = 0;
    /** The first refused allocation: bytes before it, with it, and whether a probe wanted it. */
    this.refusal = [];
    this.error = null;
    /** The reason of a lost device; null while it works. */
    this.lost = null;
    /** Pending promises: how to reject each, and how often it was polled. */
    this.waiting = new Set();
    /** The purpose of the last large transfer: not every browser names the buffer in late errors. */
    this.doing = "";
    /** Resolves when the errors of all allocations so far are known. */
    this.scopes = Promise.resolve();
    /** Dispatches per command buffer, with one buffer in flight; 0 submits everything at once. */
    this.group = 0;
    /** Queued work, and whether some is running; used only if `group` is not 0. */
    this.later = [];
    this.busy = false;
    /** Command buffers to submit with what follows them. */
    this.unsubmitted = [];
    /** Reads that are under way. */
    this.reads = 0;
    device.addEventListener("uncapturederror", (event) => this.fail(this.doing, event.error));
    device.lost.then((info) => this.markLost(info.message || info.reason));
  }

  /**
   * Finds the square matrix shapes of the adapter that compile, in the dialect of the first feature that supports any.
   */
  async findMatrices() {
    const { subgroupMinSize: min, subgroupMaxSize: max, subgroupMatrixConfigs: configs } = this.info;
    const elements = this.device.features.has("shader-f16") ? ["f32", "f16"] : ["f32"];
    const fits = (m) => m.M === m.N && m.N === m.K && m.resultComponentType === "f32" && elements.includes(m.componentType);
    const listed = [...(configs ?? [])].filter(fits);
    // With several subgroup sizes a kernel must request one; 0 if that is unknown.
    const control = min !== max && this.device.features.has("subgroup-size-control");
    const wanted = control && SUBGROUP_SIZES.find((n) => min <= n && n <= max);
    const lanes = wanted || (min === max ? max : 0);
    for (const [names, dialect] of MATRIX_FEATURES.flatMap((names) => DIALECTS.map((dialect) => [names, dialect]))) {
      if (!this.device.features.has(names[0])) continue;
      const translate = wanted ? (text) => withSubgroupSize(dialect(text)) : dialect;
      const compiled = await Promise.all(listed.map((m) => this.compiles(translate(probeShader(names, m.M, m.componentType, lanes)))));
      const squares = listed.filter((_, i) => compiled[i]).flatMap((m) => [m.M, elements.indexOf(m.componentType)]);
      if (squares.length > 0) {
        this.matrices = { squares, lanes, standard: names === MATRIX_FEATURES[0], translate };
        return;
      }
    }
  }

  /** Whether WGSL code compiles to a pipeline. */
  async compiles(code) {
    this.device.pushErrorScope("validation");
    const module = this.device.createShaderModule({ label: "matrices", code });
    const made = this.answer(this.device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } }), "createComputePipelineAsync");
    const error = this.answer(this.device.popErrorScope(), "popErrorScope");
    return Promise.all([made, error]).then(([, error]) => error === null, () => false);
  }

  fail(what, error, allocation = []) {
    const memory = error?.constructor?.name === "GPUOutOfMemoryError";
    if (memory && this.refusal.length === 0) this.refusal = allocation;
    this.error ??= `${memory ? "memory" : "invalid"}:${what}\n${error.message}`;
  }

  /** Rejects everything that is pending: a lost device never answers. */
  markLost(reason) {
    if (this.lost !== null) return;
    this.lost = reason || "no reason was given";
    clearTimeout(this.watching);
    this.error = `lost:${this.lost}`;
    for (const entry of this.waiting) entry.reject(new Error(this.lost));
    this.waiting.clear();
  }

  /** Takes an exception of a WebGPU call, which a working device does not throw: it counts as lost. */
  breakDown(error) {
    this.markLost(`a WebGPU call failed: ${error.message}`);
    try {
      this.device.destroy();
    } catch {
      // It is of no use any more.
    }
  }

  /** Wraps the promise of `api` to reject when the device is lost or hangs; some browsers leave it pending. */
  answer(promise, api) {
    return ignoreRejection(this.answered(promise, api));
  }

  answered(promise, api) {
    return new Promise((resolve, reject) => {
      const entry = { api, reject, polls: 0 };
      const settle = (then, value) => {
        this.waiting.delete(entry);
        if (this.lost !== null) reject(new Error(this.lost));
        else then(value);
      };
      if (this.lost === null) {
        this.waiting.add(entry);
        this.poll();
      }
      Promise.resolve(promise).then((value) => settle(resolve, value), (error) => settle(reject, error));
      if (this.lost !== null) reject(new Error(this.lost));
    });
  }

  /** Polls pending promises while there are any. */
  poll() {
    if (this.watching) return;
    const software = this.info.isFallbackAdapter === true || this.info.architecture === "swiftshader";
    const timeout = software ? SOFTWARE_TIMEOUT_MS : DEVICE_TIMEOUT_MS;
    this.watching = setTimeout(() => {
      this.watching = undefined;
      const silent = [...this.waiting].filter((entry) => ++entry.polls > POLLS);
      if (silent.length > 0) {
        this.markLost(`the GPU did not answer for ${timeout / 1000} seconds (${silent[0].api})`);
        this.device.destroy();
      }
      if (this.waiting.size > 0) this.poll();
    }, timeout / POLLS);
  }

  /** Creates device objects in an error scope; late errors carry the label, and what `allocation` says. */
  scoped(label, make, allocation) {
    this.device.pushErrorScope("out-of-memory");
    this.device.pushErrorScope("validation");
    try {
      return make();
    } finally {
      const report = (error) => error && this.fail(label, error, allocation);
      const popped = [this.device.popErrorScope(), this.device.popErrorScope()].map((scope) => scope.then(report, () => {}));
      this.scopes = Promise.all([this.scopes, ...popped]).then(() => {});
    }
  }

  /** Runs a queue operation in order: now, unless groups are running. */
  enqueue(act) {
    if (!this.busy) return void act();
    this.later.push(act);
  }

  /** The same for async operations, one after another. */
  async enqueueAsync(act) {
    this.later.push(act);
    if (this.busy) return;
    this.busy = true;
    while (this.later.length > 0) {
      try {
        await this.later.shift()();
      } catch (error) {
        if (this.lost === null) this.error ??= `invalid:\n${error.message}`;
      }
    }
    this.busy = false;
  }

  /** Resolves with the result of `act` after queued work. */
  turn(act) {
    if (this.group === 0 && !this.busy) return ignoreRejection((async () => act())());
    return ignoreRejection(new Promise((resolve, reject) => void this.enqueueAsync(() => act().then(resolve, reject))));
  }

  /** Submits command buffers behind the work so far. */
  submit(commands) {
    const all = [...this.unsubmitted, ...commands];
    this.unsubmitted = [];
    this.uploads.flush();
    if (all.length > 0) this.queue.submit(all);
  }

  /** Submits a command buffer with what follows it, at the latest in the next microtask. */
  submitSoon(commands) {
    this.unsubmitted.push(commands);
    if (this.unsubmitted.length > 1) return;
    queueMicrotask(() => {
      try {
        this.flush();
      } catch (error) {
        this.breakDown(error);
      }
    });
  }

  /** Submits what waits. */
  flush() {
    if (this.unsubmitted.length > 0) this.submit([]);
  }

  /** Submits one command buffer; waits for it if only one may be in flight. */
  async submitAndWait(commands) {
    this.submit([commands]);
    if (this.group !== 0) await this.answer(this.queue.onSubmittedWorkDone(), "onSubmittedWorkDone");
  }

  /** What the engine asks about the device; read once, where an exception is an error of the open. */
  facts() {
    return (this.known ??= this.readFacts());
  }

  readFacts() {
    const has = (name) => this.device.features.has(name);
    const limits = this.device.limits;
    return {
      matrices: this.matrices?.squares ?? [],
      matrixLanes: this.matrices?.lanes ?? 0,
      standardMatrices: this.matrices?.standard === true,
      vendor: this.info.vendor ?? "",
      architecture: this.info.architecture ?? "",
      description: this.info.description || this.info.device || "",
      f16: has("shader-f16"),
      subgroups: has("subgroups"),
      subgroupMin: this.info.subgroupMinSize ?? 0,
      subgroupMax: this.info.subgroupMaxSize ?? 0,
      timestamps: has("timestamp-query"),
      maxBufferSize: limits.maxBufferSize,
      maxBindingSize: limits.maxStorageBufferBindingSize,
      maxWorkgroupStorage: limits.maxComputeWorkgroupStorageSize,
      maxInvocations: Math.min(limits.maxComputeInvocationsPerWorkgroup, limits.maxComputeWorkgroupSizeX),
      packedDot: host.gpu.wgslLanguageFeatures?.has("packed_4x8_integer_dot_product") === true,
      software: this.info.isFallbackAdapter === true || this.info.architecture === "swiftshader",
    };
  }

  buffer(label, size, uniform) {
    const use = uniform ? BUFFER_USAGE.UNIFORM : BUFFER_USAGE.STORAGE;
    const usage = use | BUFFER_USAGE.COPY_SRC | BUFFER_USAGE.COPY_DST;
    const made = this.scoped(label, () => this.device.createBuffer({ label, size, usage }), [this.bytes, this.bytes + size, 0]);
    this.counts.buffers++;
    this.bytes += size;
    const slot = this.free.pop() ?? this.buffers.length;
    this.buffers[slot] = made;
    return slot;
  }

  /** Allocates `bytes` more and frees them at once; a refusal is reported as that of a buffer. */
  probe(bytes) {
    const step = Math.min(PROBE_BUFFER_BYTES, this.device.limits.maxBufferSize);
    const made = [];
    for (let at = 0; at < bytes; at += step) {
      const size = Math.ceil(Math.min(step, bytes - at) / 16) * 16;
      const create = () => this.device.createBuffer({ label: "probe", size, usage: BUFFER_USAGE.STORAGE });
      made.push(this.scoped("the KV cache", create, [this.bytes + at, this.bytes + at + size, 1]));
    }
    for (const buffer of made) buffer.destroy();
  }

  /** Resolves once the allocations so far have been answered, with whether one was refused. */
  allocations() {
    return this.answer(this.scopes, "popErrorScope").then(() => this.refusal.length > 0);
  }

  takeRefusal() {
    const refusal = Float64Array.from(this.refusal);
    this.refusal = [];
    return refusal;
  }

  destroy(slot) {
    const buffer = this.buffers[slot];
    this.bytes -= buffer.size;
    this.enqueue(() => {
      this.submit([]);
      buffer.destroy();
    });
    this.buffers[slot] = undefined;
    this.free.push(slot);
  }

  write(slot, offset, bytes) {
    const buffer = this.buffers[slot];
    // The caller may reuse its bytes after this returns.
    if (this.busy) bytes = bytes.slice();
    this.enqueue(() => {
      this.flush();
      if (bytes.length > LARGE_TRANSFER_BYTES) this.doing = `an upload to ${buffer.label}`;
      const taken = this.uploads.write(buffer, offset, bytes);
      if (taken < bytes.length) this.queue.writeBuffer(buffer, offset + taken, bytes, taken);
    });
  }

  uploadRoom() {
    return this.answer(this.uploads.room(), "mapAsync");
  }

  /**
   * Compiles all shaders in parallel; `layouts[i]` lists (binding, kind) pairs, kind 0 uniform, 1 read, 2 read-write.
   */
  async compile(labels, texts, layouts) {
    const types = ["uniform", "read-only-storage", "storage"];
    const jobs = texts.map(async (text, i) => {
      const entries = [];
      for (let j = 0; j < layouts[i].length; j += 2) {
        const type = types[layouts[i][j + 1]];
        entries.push({ binding: layouts[i][j], visibility: COMPUTE_STAGE, buffer: { type } });
      }
      const code = text.includes("subgroupMatrix") ? this.matrices.translate(text) : text;
      try {
        const layout = this.device.createBindGroupLayout({ entries });
        const module = this.device.createShaderModule({ label: labels[i], code });
        const made = this.device.createComputePipelineAsync({
          label: labels[i],
          layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
          compute: { module, entryPoint: "main" },
        });
        const pipeline = await this.answer(made, "createComputePipelineAsync");
        this.counts.pipelines++;
        return this.pipelines.push({ pipeline, layout }) - 1;
      } catch (error) {
        // A lost device is reported slightly later.
        if (this.lost === null) await Promise.race([this.device.lost, pause(50)]);
        throw new Error(this.lost === null ? `${labels[i]}\n${error.message}` : `lost:${this.lost}`);
      }
    });
    return Uint32Array.from(await Promise.all(jobs));
  }

  /**
   * Records a program. `steps` has for each step: pipeline, x, y, z, the uniform's binding (or -1), its offset and size
   * in bytes, the number of buffers, then (binding, buffer) pairs.
   */
  program(label, steps, uniform) {
    return this.scoped(label, () => this.record(steps, uniform));
  }

  record(steps, uniform) {
    const recorded = [];
    for (let i = 0; i < steps.length; ) {
      const [pipeline, x, y, z, binding, offset, size, count] = steps.subarray(i, i + 8);
      const entries = [];
      for (let j = 0; j < count; j++) {
        const at = i + 8 + 2 * j;
        entries.push({ binding: steps[at], resource: { buffer: this.buffers[steps[at + 1]] } });
      }
      if (binding >= 0) {
        entries.push({ binding, resource: { buffer: this.buffers[uniform], offset, size } });
      }
      const kernel = this.pipelines[pipeline];
      const group = this.device.createBindGroup({ layout: kernel.layout, entries });
      // A pass would take null for no group, and run nothing.
      if (!group) throw new TypeError("createBindGroup returned nothing");
      this.counts.bindGroups++;
      recorded.push({ pipeline: kernel.pipeline, group, x, y, z });
      i += 8 + 2 * count;
    }
    const slot = this.freePrograms.pop() ?? this.programs.length;
    this.programs[slot] = recorded;
    return slot;
  }

  dropProgram(slot) {
    this.programs[slot] = undefined;
    this.freePrograms.push(slot);
  }

  /** Replaces a program's grids; queued work keeps its own. */
  setGrids(slot, grids) {
    this.programs[slot] = withGrids(this.programs[slot], grids);
  }

  /**
   * Replays programs in one pass and one submit, or in groups; `grids`, if any, replaces the grids of the only program.
   */
  run(programs, grids) {
    if (this.group !== 0 || this.busy) {
      const steps = this.steps(programs, grids);
      return void this.enqueueAsync(() => this.runGroups(steps));
    }
    let encoder = this.device.createCommandEncoder();
    let dispatches = 0;
    if (programs.length > 0) {
      let pass = encoder.beginComputePass();
      let last = null;
      // Splits the step: the GPU process looks for finished reads between submits.
      const isStep = programs.length === 1 && this.reads > 0;
      let early = grids ? FIRST_SUBMIT : isStep ? MAX_DISPATCHES_BEHIND_READ : Infinity;
      for (const slot of programs) {
        const steps = this.programs[slot];
        dispatches += steps.length;
        for (let i = 0; i < steps.length; i++) {
          const step = steps[i];
          if (i === early) {
            pass.end();
            this.submit([encoder.finish()]);
            encoder = this.device.createCommandEncoder();
            pass = encoder.beginComputePass();
            last = null;
            early = grids ? 3 * early : early + MAX_DISPATCHES_BEHIND_READ;
          }
          const x = grids ? grids[3 * i] : step.x;
          const y = grids ? grids[3 * i + 1] : step.y;
          const z = grids ? grids[3 * i + 2] : step.z;
          if (x * y * z === 0) continue;
          if (step.pipeline !== last) {
            pass.setPipeline(step.pipeline);
            last = step.pipeline;
          }
          pass.setBindGroup(0, step.group);
          pass.dispatchWorkgroups(x, y, z);
        }
      }
      pass.end();
    }
    if (dispatches > MAX_SHORT_PROGRAM) this.submit([encoder.finish()]);
    else this.submitSoon(encoder.finish());
  }

  /** The dispatches of programs, with their grids. */
  steps(programs, grids) {
    const all = programs.length === 1 ? this.programs[programs[0]] : Array.from(programs).flatMap((slot) => this.programs[slot]);
    return (grids ? withGrids(all, grids) : all).filter((step) => step.x * step.y * step.z !== 0);
  }

  /** Runs dispatches in groups, each finished before the next is submitted. */
  async runGroups(steps) {
    const size = this.group || steps.length;
    for (let first = 0; first < steps.length; first += size) {
      const encoder = this.device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (const step of steps.slice(first, first + size)) {
        pass.setPipeline(step.pipeline);
        pass.setBindGroup(0, step.group);
        pass.dispatchWorkgroups(step.x, step.y, step.z);
      }
      pass.end();
      await this.submitAndWait(encoder.finish());
    }
  }

  copy(from, fromOffset, to, toOffset, size) {
    const [source, target] = [this.buffers[from], this.buffers[to]];
    const record = () => {
      const encoder = this.device.createCommandEncoder();
      encoder.copyBufferToBuffer(source, fromOffset, target, toOffset, size);
      return encoder.finish();
    };
    if (this.group === 0 && !this.busy) this.submitSoon(record());
    else void this.enqueueAsync(async () => this.submitAndWait(record()));
  }

  stagingBuffer(size) {
    const room = Math.max(256, 2 ** Math.ceil(Math.log2(size)));
    const pool = this.staging.get(room) ?? [];
    this.staging.set(room, pool);
    const usage = BUFFER_USAGE.MAP_READ | BUFFER_USAGE.COPY_DST;
    let buffer = pool.pop();
    if (buffer) {
      this.staged -= room;
    } else {
      this.counts.buffers++;
      buffer = this.device.createBuffer({ label: "staging", size: room, usage });
    }
    return { buffer, pool };
  }

  /** Reads bytes after all work submitted so far. */
  read(slot, offset, size) {
    const source = this.buffers[slot];
    return this.turn(() => {
      this.reads++;
      return this.readBuffer(source, offset, size).finally(() => this.reads--);
    });
  }

  /**
   * Makes a readback that the caller waits for settle early in Chromium: its GPU process looks for finished work every
   * two to three milliseconds, and whenever a command arrives.
   */
  hurry(readback) {
    // Without it, the readback takes its usual time.
    if (/Chrome\//.test(host.userAgent)) this.sendCommandsUntil(readback).catch(() => {});
  }

  async sendCommandsUntil(promise) {
    let waiting = true;
    let unanswered = 0;
    const settled = () => void (waiting = false);
    promise.then(settled, settled);
    const { port1, port2 } = new MessageChannel();
    const began = performance.now();
    for (let waited = 0, next = 0; waiting && waited < HURRY_MS && this.lost === null; waited = performance.now() - began) {
      if (waited >= next && unanswered < MAX_UNANSWERED_COMMANDS) {
        unanswered++;
        this.device.pushErrorScope("validation");
        this.device.popErrorScope().catch(() => {}).then(() => unanswered--);
        next = waited + Math.max(HURRY_GAP_MS, waited * HURRY_SHARE);
      } else {
        sleep(Math.min(Math.max(next - waited, HURRY_GAP_MS / 4), HURRY_GAP_MS));
      }
      // Commands are sent, and answers arrive, between two tasks.
      await new Promise((resolve) => {
        port1.onmessage = resolve;
        port2.postMessage(null);
      });
    }
    port1.close();
  }

  async readBuffer(source, offset, size) {
    const { buffer, pool } = this.stagingBuffer(size);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, offset, buffer, 0, size);
    this.submit([encoder.finish()]);
    await this.answer(buffer.mapAsync(MAP_READ_MODE, 0, size), "mapAsync");
    const mapped = buffer.getMappedRange(0, size);
    if (!(mapped?.byteLength >= size)) throw new Error(`GPUBuffer.getMappedRange() gave ${mapped?.byteLength ?? "no"} bytes instead of ${size}`);
    const bytes = new Uint8Array(mapped).slice();
    buffer.unmap();
    if (this.staged + buffer.size > MAX_STAGED_BYTES) {
      buffer.destroy();
    } else {
      this.staged += buffer.size;
      pool.push(buffer);
    }
    return bytes;
  }

  idle() {
    return this.turn(() => {
      this.submit([]);
      return this.answer(this.queue.onSubmittedWorkDone(), "onSubmittedWorkDone");
    });
  }

  /** Nanoseconds of each step, each in its own pass. */
  profile(slot, grids) {
    const steps = this.programs[slot];
    return this.turn(() => this.profileSteps(steps, grids));
  }

  async profileSteps(steps, grids) {
    const count = 2 * steps.length;
    const querySet = this.device.createQuerySet({ type: "timestamp", count });
    const usage = BUFFER_USAGE.QUERY_RESOLVE | BUFFER_USAGE.COPY_SRC;
    const resolved = this.device.createBuffer({ size: 8 * count, usage });
    const encoder = this.device.createCommandEncoder();
    steps.forEach((step, i) => {
      const timestampWrites = { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
      const pass = encoder.beginComputePass({ timestampWrites });
      pass.setPipeline(step.pipeline);
      pass.setBindGroup(0, step.group);
      pass.dispatchWorkgroups(grids[3 * i], grids[3 * i + 1], grids[3 * i + 2]);
      pass.end();
    });
    encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
    this.submit([encoder.finish()]);
    const bytes = await this.readBuffer(resolved, 0, 8 * count);
    const ticks = new BigUint64Array(bytes.buffer);
    resolved.destroy();
    querySet.destroy();
    return Float64Array.from(steps, (_, i) => Math.max(0, Number(ticks[2 * i + 1] - ticks[2 * i])));
  }

  /** The first error since the last call as `kind:message`; waits for the device, which reports errors late. */
  async takeError() {
    await this.idle().catch(() => {});
    if (this.lost === null) await this.answer(this.scopes, "popErrorScope").catch(() => {});
    const error = this.error;
    if (error && !error.startsWith("lost:")) this.error = null;
    return error ?? undefined;
  }

  /** Destroys the device with everything created on it. */
  close() {
    this.device.destroy();
  }

  created() {
    return Float64Array.of(this.counts.buffers, this.counts.pipelines, this.counts.bindGroups);
  }
}

// An exception would leave WebAssembly in the middle of its work, with its borrows and its stack: what it calls without
// catching one throws none.
for (const name of ["probe", "destroy", "write", "program", "dropProgram", "setGrids", "run", "copy", "close"]) {
  const method = JsGpu.prototype[name];
  JsGpu.prototype[name] = function (...args) {
    try {
      return method.apply(this, args);
    } catch (error) {
      this.breakDown(error);
      return 0;
    }
  };
}
