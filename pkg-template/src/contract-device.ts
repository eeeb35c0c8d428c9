/** Types of the contract about the device and the cache: reports, checks, measurements. */

/** What the engine's cache stores of one source: `endpoint/org/name@revision`, or a folder's URL. */
export interface CachedSource {
  source: string;
  /** Number of files, complete or not. */
  files: number;
  /** Size in bytes. */
  bytes: number;
  /** True when every file that was started is complete. */
  complete: boolean;
}

/** A model in the browser's cache. */
export interface CachedModel extends CachedSource {
  /** The name or URL to pass to `loadModel`. */
  model: string;
  /** The revision, for a repository. */
  revision?: string;
  /** The server, for a repository outside huggingface.co. */
  endpoint?: string;
}

/** Capabilities of this browser and GPU, for bug reports and device pages. */
export interface DeviceReport {
  /** The GPU's names as the browser reports them. */
  vendor: string;
  architecture: string;
  description: string;
  /** True for a software renderer: everything runs on the CPU, slowly. */
  software: boolean;
  /** Features that the engine uses. */
  f16: boolean;
  subgroups: boolean;
  /** Bytes that models can take: what the device has held or refused, else an estimate. */
  memory: number;
  /** True if the device has refused more than `memory`, or would end the page; else it may have more. */
  memoryIsLimit: boolean;
  /** The engine's version. */
  engine: string;
  /** Limits and further features. */
  [more: string]: unknown;
}

/** The result of a check with a known answer. */
export interface DeviceCheck {
  name: string;
  ok: boolean;
  ms: number;
  /** What was wrong. */
  problem?: string;
}

/** Current memory use in bytes. */
export interface MemoryUse {
  /** The WebAssembly heap. */
  wasmBytes: number;
  /** GPU buffers. */
  gpuBytes: number;
  /** Parts of KV caches that `maxKvMemory` stores in the page's memory, outside the WebAssembly heap. */
  kvInMainMemory: number;
}

/** GPU milliseconds of a step by kernel. */
export interface KernelProfile {
  rows: number;
  position: number;
  ms: number;
  kernels: Record<string, { dispatches: number; ms: number }>;
}

/** How a model performs on this device. */
export interface Measurement {
  dispatchesPerToken: number;
  /** Bytes that a decode step at `position` reads. */
  bytesPerToken: number;
  position: number;
  /**
   * Device limits: read bandwidth in 10^9 bytes per second, and the cost of a dispatch that depends on the previous
   * one.
   */
  limits: { readGbs: number; readBytes: number; dispatchUs: number; readbackMs: number } | null;
  /** Host overhead of a decode step, and how many WebGPU objects `steps` of them created. */
  host: { steps: number; msPerStep: number; totalMsPerStep: number; objectsCreated: number } | null;
  /** The same for speculative steps. */
  speculation: { steps: number; msPerStep: number; totalMsPerStep: number; objectsCreated: number } | null;
  /** GPU milliseconds by kernel, each dispatch timed separately; empty on devices without timestamps. */
  profiles: KernelProfile[];
  /** The same of decode steps of several sequences: `rows` is their number. */
  batches: KernelProfile[];
  /** Bytes of all GPU buffers. */
  gpuBytes: number;
}
