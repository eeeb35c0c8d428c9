/** The part of the contract that is about the device and the cache: reports, checks, numbers. Knows names and types; nothing runs here. */

/** What the engine's cache holds of one source: `endpoint/org/name@revision`, or a folder's URL. */
export interface CachedSource {
  source: string;
  /** Its files, complete or not. */
  files: number;
  /** Bytes that they take. */
  bytes: number;
  /** True when every file that was begun is there as a whole. */
  complete: boolean;
}

/** A model that is in the browser's cache. */
export interface CachedModel extends CachedSource {
  /** The name or URL that `loadModel` takes. */
  model: string;
  /** Of a repository. */
  revision?: string;
  /** Of a repository on another server than huggingface.co. */
  endpoint?: string;
}

/** What this browser and GPU can do, for a bug report or a page about the device. */
export interface DeviceReport {
  /** The GPU as the browser names it. */
  vendor: string;
  architecture: string;
  description: string;
  /** True for a renderer on the processor: everything works there, slowly. */
  software: boolean;
  /** Features that the engine will use. */
  f16: boolean;
  subgroups: boolean;
  /** The engine's version. */
  engine: string;
  /** Limits and more features. */
  [more: string]: unknown;
}

/** A small computation whose outcome is known. */
export interface Check {
  name: string;
  ok: boolean;
  ms: number;
  /** What was wrong. */
  fault?: string;
}

/** Bytes in use now. */
export interface MemoryUse {
  /** The WebAssembly heap. */
  wasmBytes: number;
  /** Buffers on the GPU. */
  gpuBytes: number;
}

/** What `measure` looks at. */
export interface MeasureOptions {
  /** The context's length at which a decode step is looked at; 0 by default. */
  position?: number;
  /** Numbers of tokens whose steps are profiled; 1 is a decode step. */
  profile?: number[];
  /** Measures what the device reaches at best. */
  limits?: boolean;
  /** Decode steps over which the host's cost is taken. */
  steps?: number;
  /** Decode steps that verify drafts (`speculation`), likewise: they need eight positions of the context each. */
  drafts?: number;
}

/** Numbers about how a model runs on this device. */
export interface Measurement {
  dispatchesPerToken: number;
  /** Bytes that a decode step reads at `position`. */
  bytesPerToken: number;
  position: number;
  /** What the device reaches at best: 10^9 bytes per second of a plain read, the cost of a dispatch that waits for the one before. */
  limits: { readGbs: number; readBytes: number; dispatchUs: number; readbackMs: number } | null;
  /** What the host spends on a decode step, and how many WebGPU objects `steps` of them made. */
  host: { steps: number; msPerStep: number; totalMsPerStep: number; objectsMade: number } | null;
  /** The same of steps that verify drafts. */
  drafting: { steps: number; msPerStep: number; totalMsPerStep: number; objectsMade: number } | null;
  /** Milliseconds on the GPU by kernel, each dispatch timed by itself; empty where the device has no timestamps. */
  profiles: { rows: number; position: number; ms: number; kernels: Record<string, { dispatches: number; ms: number }> }[];
  /** Bytes of all GPU buffers. */
  bytesAlive: number;
}
