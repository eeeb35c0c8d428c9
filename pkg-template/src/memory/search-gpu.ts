/** Scores all rows of a table on the GPU, from a copy of its vectors. */

import type { Scorer } from "./search.js";
import type { Block, VectorTable } from "./vectors.js";

/** Format of the copy: f32, or f16 with a wider margin that is rescored on the CPU. */
export type Precision = "f32" | "f16";

/** What tells a `GPUDevice` from other objects. The declarations name no type of WebGPU: TypeScript 5 has none. */
export interface GpuDeviceLike {
  readonly lost: Promise<unknown>;
  readonly queue: object;
  createBuffer(descriptor: never): unknown;
}

/** WebGPU's flags; the globals exist in browsers only, and this file may be imported elsewhere. */
const USAGE = { MAP_READ: 1, COPY_SRC: 4, COPY_DST: 8, UNIFORM: 64, STORAGE: 128 };
const READ = 1;

/** Milliseconds between adapter requests: the first ones after a browser start may fail. */
const RETRY_DELAYS_MS = [300, 1000, 3000];

/** Rows per workgroup, eight lanes each. */
const ROWS_PER_WORKGROUP = 32;

/** One dot product per row. Eight neighboring lanes read 128 consecutive bytes of a row; one lane sums up. */
const shader = (precision: Precision): string => /* wgsl */ `
struct Params { rows: u32, first: u32, quads: u32, unused: u32 }
@group(0) @binding(0) var<storage, read> matrix: array<${precision === "f32" ? "vec4<f32>" : "vec2<u32>"}>;
@group(0) @binding(1) var<storage, read> query: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> scores: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;
var<workgroup> parts: array<f32, 256>;

fn quad(i: u32) -> vec4<f32> {
  ${precision === "f32" ? "return matrix[i];" : "return vec4<f32>(unpack2x16float(matrix[i].x), unpack2x16float(matrix[i].y));"}
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let lane = index % 8u;
  let row = group.x * ${ROWS_PER_WORKGROUP}u + index / 8u;
  var sum = 0.0;
  if (row < params.rows) {
    for (var i = lane; i < params.quads; i += 8u) {
      sum += dot(quad(row * params.quads + i), query[i]);
    }
  }
  parts[index] = sum;
  workgroupBarrier();
  if (lane == 0u && row < params.rows) {
    var total = parts[index];
    for (var i = 1u; i < 8u; i++) { total += parts[index + i]; }
    scores[params.first + row] = total;
  }
}`;

/** The GPU copy of one block. */
interface GpuBlock {
  readonly source: Block;
  readonly matrix: GPUBuffer;
  readonly params: GPUBuffer;
  group: GPUBindGroup | undefined;
}

/** A scorer on its own device or the caller's. After a lost device, an error or invalid scores it stays disabled. */
export class GpuScorer implements Scorer {
  readonly #precision: Precision;
  #device: Promise<GPUDevice | undefined>;
  #owned = false;
  #over = false;
  #again: ReturnType<typeof setTimeout> | undefined;
  #pipeline: GPUComputePipeline | undefined;
  #copies: GpuBlock[] = [];
  #query: GPUBuffer | undefined;
  #scores: GPUBuffer | undefined;
  #readback: GPUBuffer | undefined;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(precision: Precision, device?: GpuDeviceLike) {
    this.#precision = precision;
    this.#device = this.#watch(device ? Promise.resolve(device as unknown as GPUDevice) : this.#request(RETRY_DELAYS_MS));
  }

  scores(table: VectorTable, query: Float32Array<ArrayBuffer>): Promise<{ scores: Float32Array; error: number } | undefined> {
    // One search at a time: searches share the buffers.
    const turn = this.#turn.then(() => this.#run(table, query)).catch(() => this.#giveUp());
    this.#turn = turn;
    return turn;
  }

  destroy(): void {
    this.#giveUp();
  }

  /** Requests a device. While none is available, searches run on the CPU and the request is repeated. */
  async #request([pause, ...pauses]: number[]): Promise<GPUDevice | undefined> {
    const gpu = globalThis.navigator?.gpu;
    if (!gpu) return undefined;
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
    // A software adapter is slower than the CPU loop.
    if (adapter?.info?.isFallbackAdapter) return undefined;
    const device = await adapter?.requestDevice().catch(() => undefined);
    if (this.#over) device?.destroy();
    else if (device) this.#owned = true;
    else if (pause !== undefined) this.#again = setTimeout(() => (this.#device = this.#watch(this.#request(pauses))), pause);
    return this.#over ? undefined : device;
  }

  #watch(device: Promise<GPUDevice | undefined>): Promise<GPUDevice | undefined> {
    void device.then((found) => found?.lost.then(() => this.#giveUp()));
    return device;
  }

  async #run(table: VectorTable, query: Float32Array<ArrayBuffer>): Promise<{ scores: Float32Array; error: number } | undefined> {
    const device = await this.#device;
    if (!device) return undefined;
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    const { read, bytes } = await this.#submit(device, table, query);
    const refusals = await Promise.all([device.popErrorScope(), device.popErrorScope()]);
    if (refusals.some((refusal) => refusal)) return this.#giveUp();
    await read.mapAsync(READ, 0, bytes);
    const scores = new Float32Array(read.getMappedRange(0, bytes).slice(0));
    read.unmap();
    for (const score of scores) if (!(Math.abs(score) <= 1.01)) return this.#giveUp();
    return { scores, error: errorBound(table.dims, this.#precision) };
  }

  async #submit(device: GPUDevice, table: VectorTable, query: Float32Array<ArrayBuffer>): Promise<{ read: GPUBuffer; bytes: number }> {
    this.#pipeline ??= await device.createComputePipelineAsync({
      layout: "auto",
      compute: { module: device.createShaderModule({ code: shader(this.#precision) }), entryPoint: "main" },
    });
    // No await until the submission, so the table cannot change.
    const bytes = table.size * 4;
    this.#fit(device, table);
    table.blocks.forEach((block, i) => this.#upload(device, table, block, i));
    this.#copies.splice(table.blocks.length).forEach(release);
    const padded = new Float32Array(table.stride);
    padded.set(query);
    device.queue.writeBuffer(this.#query!, 0, padded);
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipeline);
    this.#copies.forEach((copy, i) => {
      const rows = Math.min(table.rowsPerBlock, table.size - i * table.rowsPerBlock);
      device.queue.writeBuffer(copy.params, 0, new Uint32Array([rows, i * table.rowsPerBlock, table.stride / 4, 0]));
      pass.setBindGroup(0, (copy.group ??= this.#bind(device, copy)));
      pass.dispatchWorkgroups(Math.ceil(rows / ROWS_PER_WORKGROUP));
    });
    pass.end();
    encoder.copyBufferToBuffer(this.#scores!, 0, this.#readback!, 0, bytes);
    device.queue.submit([encoder.finish()]);
    return { read: this.#readback!, bytes };
  }

  /** Creates the buffers whose size depends on the table. */
  #fit(device: GPUDevice, table: VectorTable): void {
    this.#query ??= device.createBuffer({ size: table.stride * 4, usage: USAGE.STORAGE | USAGE.COPY_DST });
    if (this.#scores && this.#scores.size >= table.size * 4) return;
    this.#scores?.destroy();
    this.#readback?.destroy();
    const size = table.blocks.length * table.rowsPerBlock * 4;
    this.#scores = device.createBuffer({ size, usage: USAGE.STORAGE | USAGE.COPY_SRC });
    this.#readback = device.createBuffer({ size, usage: USAGE.MAP_READ | USAGE.COPY_DST });
    for (const copy of this.#copies) copy.group = undefined;
  }

  /** Uploads the rows written since the last search. */
  #upload(device: GPUDevice, table: VectorTable, block: Block, i: number): void {
    const bytes = this.#precision === "f32" ? 4 : 2;
    let copy = this.#copies[i];
    if (copy?.source !== block) {
      if (copy) release(copy);
      copy = {
        source: block,
        matrix: device.createBuffer({ size: block.data.length * bytes, usage: USAGE.STORAGE | USAGE.COPY_DST }),
        params: device.createBuffer({ size: 16, usage: USAGE.UNIFORM | USAGE.COPY_DST }),
        group: undefined,
      };
      this.#copies[i] = copy;
      block.dirty = { from: 0, to: Math.min(table.rowsPerBlock, table.size - i * table.rowsPerBlock) };
    }
    const { from, to } = block.dirty;
    if (from >= to) return;
    const rows = block.data.subarray(from * table.stride, to * table.stride);
    device.queue.writeBuffer(copy.matrix, from * table.stride * bytes, this.#precision === "f32" ? rows : toF16(rows));
    block.dirty = { from: table.rowsPerBlock, to: 0 };
  }

  #bind(device: GPUDevice, copy: GpuBlock): GPUBindGroup {
    const buffers = [copy.matrix, this.#query!, this.#scores!, copy.params];
    return device.createBindGroup({
      layout: this.#pipeline!.getBindGroupLayout(0),
      entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
    });
  }

  #giveUp(): undefined {
    this.#over = true;
    clearTimeout(this.#again);
    this.#copies.splice(0).forEach(release);
    for (const buffer of [this.#query, this.#scores, this.#readback]) buffer?.destroy();
    this.#query = this.#scores = this.#readback = this.#pipeline = undefined;
    if (this.#owned) void this.#device.then((device) => device?.destroy());
    this.#device = Promise.resolve(undefined);
    return undefined;
  }
}

/**
 * Bound of the error of a score, for vectors of length 1 and any order of summation. f16 adds its rounding and, on GPUs
 * that flush them, all subnormal components.
 */
export function errorBound(dims: number, precision: Precision): number {
  const summation = (dims + 4) * 2 ** -24;
  const storage = precision === "f16" ? 2 ** -11 + 2 ** -14 * Math.sqrt(dims) : 0;
  return 1.01 * (summation + storage);
}

/** Converts f32 to f16, round to nearest even; for components within [-1, 1]. */
export function toF16(values: Float32Array): Uint16Array<ArrayBuffer> {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const result = new Uint16Array(values.length);
  for (let i = 0; i < values.length; i++) {
    const sign = (bits[i]! >>> 16) & 0x8000;
    const rest = bits[i]! & 0x7fffffff;
    if (rest >= 0x38800000) {
      // Normal: rebias the exponent, round off 13 bits.
      result[i] = sign | ((rest - 0x38000000 + 0xfff + ((rest >>> 13) & 1)) >>> 13);
    } else {
      // Subnormal: a multiple of 2^-24.
      const scaled = Math.abs(values[i]!) * 2 ** 24;
      const floor = Math.floor(scaled);
      const half = scaled - floor;
      result[i] = sign | (floor + (half > 0.5 || (half === 0.5 && floor % 2 === 1) ? 1 : 0));
    }
  }
  return result;
}

function release(copy: GpuBlock): void {
  copy.matrix.destroy();
  copy.params.destroy();
}
