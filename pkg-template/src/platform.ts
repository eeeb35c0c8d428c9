/**
 * What the package takes from where it runs. In a browser nothing is set and the browser's own objects are used; other
 * hosts, such as Node (node-platform.ts), give one object before the first call.
 */

import type { EngineLoadOptions } from "./contract.js";

/** `navigator.gpu`, as far as it is used. */
export interface GpuLike {
  requestAdapter(options?: object): Promise<unknown>;
  readonly wgslLanguageFeatures?: { has(name: string): boolean };
}

/** A store of downloaded files: the part of the Cache API that the engine uses. */
export interface FileStoreLike {
  match(key: string): Promise<{ arrayBuffer(): Promise<ArrayBuffer> } | undefined>;
  put(key: string, response: Response): Promise<void>;
  delete(key: string): Promise<unknown>;
  keys(): Promise<readonly { url: string }[]>;
}

/** Members that the engine takes; crate/js/host.js has the browser's. Those that are missing remain the browser's. */
export interface EnginePlatform {
  /** WebGPU. */
  readonly gpu: GpuLike;
  /** What to do where WebGPU is not available. */
  readonly gpuAdvice: string;
  readonly fetch: typeof fetch;
  /** Stores of downloaded files by name. */
  readonly store: { open(name: string): Promise<FileStoreLike>; has(name: string): Promise<boolean> };
  /** Names the WebGPU implementation. */
  readonly userAgent: string;
  /** Why a fetch may have failed. */
  readonly fetchFailure: string;
  /** Memory of the machine in GB. */
  readonly deviceMemory: number;
}

/** RGBA pixels. */
export interface Pixels {
  data: Uint8Array | Uint8ClampedArray;
  width: number;
  height: number;
}

/** Decoded audio, one array of samples per channel. */
export interface DecodedAudio {
  channels: Float32Array[];
  sampleRate: number;
}

/** The common interface of a worker, its global scope and a MessagePort. */
export interface Port {
  postMessage(message: unknown, transfer?: Transferable[]): void;
  addEventListener(type: string, listener: (event: any) => void): void;
}

/** A host other than a browser. */
export interface Platform extends EnginePlatform {
  /** Reads a file of the package. */
  readAsset(name: string): Promise<Uint8Array<ArrayBuffer>>;
  /** Completes the options of a load: opens local files, takes the Hub's address and token from the environment. */
  prepareLoad(options: EngineLoadOptions): Promise<EngineLoadOptions>;
  /** The error of a load that failed, with the advice that only this host can give. */
  explainLoad(thrown: unknown, options: EngineLoadOptions): Promise<unknown>;
  /** Decodes an image file, scaled to `size` if given. */
  decodeImage(file: Blob, size?: { width: number; height: number }): Promise<Pixels>;
  decodeAudio(file: ArrayBuffer): Promise<DecodedAudio>;
  resample(samples: Float32Array, from: number, to: number): Float32Array;
  /** Waits for what the GPU must have answered before this thread may end. */
  settle(): Promise<unknown>;
  /** Starts a thread that serves the engine; `end` resolves when it has ended. */
  spawn(): { port: Port; end: () => Promise<void> };
}

/** Where the host is: the scripts for Node and those for pages have modules of their own. */
const KEY = Symbol.for("jerboa.platform");
const scope = globalThis as { [KEY]?: Platform };

/** The host of this thread; undefined in a browser. */
export const platform = (): Platform | undefined => scope[KEY];

/** Sets the host of this thread, unless another copy of the package has set one; call it before anything else. */
export function usePlatform(given: Platform): void {
  scope[KEY] ??= given;
}
