// The browser's WebGPU behind integer handles: what src/gpu/browser.rs imports. Everything a decode step needs is
// recorded once; a submit replays it in one call. It knows buffers, pipelines and programs, not models.

const RETRY_MS = 250;
const RETRIES = 20;
/** Bytes of staging buffers that are kept for later reads. */
const MOST_STAGED = 32 << 20;

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Detects WebKit by the user agent: Dawn on a Mac names the vendor `apple` as well. */
function isWebKit() {
  const agent = globalThis.navigator?.userAgent ?? "";
  return /AppleWebKit/.test(agent) && !/Chrom(e|ium)\//.test(agent);
}

/** The first requests after a browser's start can fail while its GPU process restarts. */
async function openDevice(wanted) {
  let reason = "no adapter was found";
  for (let attempt = 0; attempt < RETRIES; attempt++) {
    try {
      const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
      if (adapter) {
        const features = wanted.filter((name) => adapter.features.has(name));
        const limits = adapter.limits;
        const device = await adapter.requestDevice({
          requiredFeatures: features,
          requiredLimits: {
            maxBufferSize: limits.maxBufferSize,
            maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
            maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
            maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
            maxComputeWorkgroupSizeX: limits.maxComputeWorkgroupSizeX,
          },
        });
        return { adapter, device };
      }
    } catch (error) {
      reason = error.message;
    }
    await pause(RETRY_MS);
  }
  throw new Error(reason);
}

export class JsGpu {
  static async open(f16, subgroups) {
    if (!globalThis.navigator?.gpu) {
      throw new Error("this browser has no navigator.gpu");
    }
    const wanted = ["timestamp-query"];
    if (f16) wanted.push("shader-f16");
    if (subgroups) wanted.push("subgroups");
    const { adapter, device } = await openDevice(wanted);
    return new JsGpu(adapter, device);
  }

  constructor(adapter, device) {
    this.device = device;
    this.queue = device.queue;
    this.info = adapter.info ?? {};
    this.buffers = [];
    this.free = [];
    this.pipelines = [];
    this.programs = [];
    this.freePrograms = [];
    this.staging = new Map();
    this.staged = 0;
    this.counts = { buffers: 0, pipelines: 0, bindGroups: 0 };
    this.error = null;
    device.addEventListener("uncapturederror", (event) => {
      const memory = typeof GPUOutOfMemoryError !== "undefined" && event.error instanceof GPUOutOfMemoryError;
      this.error ??= (memory ? "memory:" : "invalid:") + event.error.message;
    });
    device.lost.then((info) => {
      this.error = "lost:" + (info.message || info.reason);
    });
  }

  facts() {
    const has = (name) => this.device.features.has(name);
    const limits = this.device.limits;
    return {
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
      packedDot: navigator.gpu.wgslLanguageFeatures?.has("packed_4x8_integer_dot_product") === true,
      webkit: isWebKit(),
      agent: globalThis.navigator?.userAgent ?? "",
      software: this.info.isFallbackAdapter === true || this.info.architecture === "swiftshader",
    };
  }

  buffer(label, size, uniform) {
    const use = uniform ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE;
    const usage = use | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const made = this.device.createBuffer({ label, size, usage });
    this.counts.buffers++;
    const slot = this.free.pop() ?? this.buffers.length;
    this.buffers[slot] = made;
    return slot;
  }

  destroy(slot) {
    this.buffers[slot].destroy();
    this.buffers[slot] = undefined;
    this.free.push(slot);
  }

  write(slot, offset, bytes) {
    this.queue.writeBuffer(this.buffers[slot], offset, bytes);
  }

  /** Compiles all shaders at the same time; `layouts[i]` lists (binding, kind) pairs, kind 0 uniform, 1 read, 2 read-write. */
  async compile(labels, texts, layouts) {
    const types = ["uniform", "read-only-storage", "storage"];
    const jobs = texts.map(async (code, i) => {
      const entries = [];
      for (let j = 0; j < layouts[i].length; j += 2) {
        const type = types[layouts[i][j + 1]];
        entries.push({ binding: layouts[i][j], visibility: GPUShaderStage.COMPUTE, buffer: { type } });
      }
      const layout = this.device.createBindGroupLayout({ entries });
      const module = this.device.createShaderModule({ label: labels[i], code });
      try {
        const pipeline = await this.device.createComputePipelineAsync({
          label: labels[i],
          layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
          compute: { module, entryPoint: "main" },
        });
        this.counts.pipelines++;
        return this.pipelines.push({ pipeline, layout }) - 1;
      } catch (error) {
        throw new Error(`${labels[i]}\n${error.message}`);
      }
    });
    return Uint32Array.from(await Promise.all(jobs));
  }

  /**
   * Records a program. `steps` holds for each step: pipeline, x, y, z, the uniform's binding (or -1), its first byte and
   * size, the number of buffers, then (binding, buffer) pairs.
   */
  program(steps, uniform) {
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

  /** Replays programs in one pass and one submit; `grids`, if any, replaces the grids of the only program. */
  run(programs, grids) {
    const encoder = this.device.createCommandEncoder();
    if (programs.length > 0) {
      const pass = encoder.beginComputePass();
      let last = null;
      for (const slot of programs) {
        const steps = this.programs[slot];
        for (let i = 0; i < steps.length; i++) {
          const step = steps[i];
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
    this.queue.submit([encoder.finish()]);
  }

  copy(from, fromOffset, to, toOffset, size) {
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.buffers[from], fromOffset, this.buffers[to], toOffset, size);
    this.queue.submit([encoder.finish()]);
  }

  stagingBuffer(size) {
    const room = Math.max(256, 2 ** Math.ceil(Math.log2(size)));
    const pool = this.staging.get(room) ?? [];
    this.staging.set(room, pool);
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    let buffer = pool.pop();
    if (buffer) {
      this.staged -= room;
    } else {
      this.counts.buffers++;
      buffer = this.device.createBuffer({ label: "staging", size: room, usage });
    }
    return { buffer, pool };
  }

  /** The bytes as they are after all work submitted so far. */
  read(slot, offset, size) {
    return this.readBuffer(this.buffers[slot], offset, size);
  }

  async readBuffer(source, offset, size) {
    const { buffer, pool } = this.stagingBuffer(size);
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(source, offset, buffer, 0, size);
    this.queue.submit([encoder.finish()]);
    await buffer.mapAsync(GPUMapMode.READ, 0, size);
    const bytes = new Uint8Array(buffer.getMappedRange(0, size)).slice();
    buffer.unmap();
    if (this.staged + buffer.size > MOST_STAGED) {
      buffer.destroy();
    } else {
      this.staged += buffer.size;
      pool.push(buffer);
    }
    return bytes;
  }

  async idle() {
    await this.queue.onSubmittedWorkDone();
  }

  /** Nanoseconds of each step, each in a pass of its own. */
  async profile(slot, grids) {
    const steps = this.programs[slot];
    const count = 2 * steps.length;
    const querySet = this.device.createQuerySet({ type: "timestamp", count });
    const usage = GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC;
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
    this.queue.submit([encoder.finish()]);
    const bytes = await this.readBuffer(resolved, 0, 8 * count);
    const ticks = new BigUint64Array(bytes.buffer);
    resolved.destroy();
    querySet.destroy();
    return Float64Array.from(steps, (_, i) => Math.max(0, Number(ticks[2 * i + 1] - ticks[2 * i])));
  }

  /** The first error since the last call as `kind:message`; waits for the device, whose errors come late. */
  async takeError() {
    await this.queue.onSubmittedWorkDone();
    const error = this.error;
    if (error && !error.startsWith("lost:")) this.error = null;
    return error ?? undefined;
  }

  /** Gives the device back, with all that was made on it. */
  close() {
    this.device.destroy();
  }

  created() {
    return Float64Array.of(this.counts.buffers, this.counts.pipelines, this.counts.bindGroups);
  }
}
