/** What Node, Deno and Bun give the package in place of a browser. Optional packages are loaded on first use. */

// A named import of what an old Node lacks fails before node-guard.
import * as fs from "node:fs";
import { readFile, readdir, stat } from "node:fs/promises";
import { homedir, totalmem } from "node:os";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { Worker, type ThreadPort } from "node:worker_threads";
import type { EngineLoadOptions } from "./contract.js";
import { invalidRequest, JerboaError } from "./errors.js";
import { isFolder, type NamedFile } from "./model-source.js";
import { decodeWav, resample } from "./node-audio.js";
import { fetchFile, hubFetch } from "./node-fetch.js";
import { hubToken, ModelStore } from "./node-store.js";
import type { DecodedAudio, GpuLike, Pixels, Platform, Port } from "./platform.js";

/** An optional package: missing ones are named in the error with what they are needed for. */
async function optional<T>(name: string, purpose: string): Promise<T> {
  try {
    return (await import(/* @vite-ignore */ name)) as T;
  } catch (thrown) {
    const missing = (thrown as { code?: string }).code === "ERR_MODULE_NOT_FOUND" || /Cannot find|not found|not a dependency/i.test(String(thrown));
    const reason = missing ? `the npm package '${name}' is not installed` : `the npm package '${name}' could not be loaded (${(thrown as Error).message.split("\n")[0]})`;
    throw Object.assign(new JerboaError("request", `${purpose}: ${reason}. Run 'npm install ${name}'.`), { missing });
  }
}

/** How the engine names the end of its attempts to find an adapter. */
const FINAL = { silent: true };

/** Until a thread must answer before it is ended. */
const DRAIN_TIMEOUT_MS = 5000;
/** Until the pipelines of a thread that has answered must have been compiled. */
const COMPILE_TIMEOUT_MS = 60_000;
/** How much earlier a process that exits stops waiting: ending a thread with pending pipelines would end the process. */
const DRAIN_MARGIN_MS = 500;

/** Pipelines that Dawn is compiling for this thread: it ends the process if they are pending when the thread ends. */
const pendingPipelines = new Set<Promise<unknown>>();
let draining = false;

/** Tracks the pipelines that are compiled asynchronously. */
function trackPipelines(device: { createComputePipelineAsync(descriptor: unknown): Promise<unknown> }): void {
  const create = device.createComputePipelineAsync;
  device.createComputePipelineAsync = function (descriptor) {
    // The thread is ending: nothing waits for the answer.
    if (draining) return new Promise(() => {});
    const pipeline = create.call(this, descriptor);
    const over = (): unknown => pendingPipelines.delete(pipeline);
    pendingPipelines.add(pipeline);
    pipeline.then(over, over);
    return pipeline;
  };
}

/** Starts no more pipelines on this thread, and waits for those that are being compiled; `onPending` is called if there are any. */
export async function drainPipelines(onPending?: () => void): Promise<void> {
  draining = true;
  if (pendingPipelines.size > 0) onPending?.();
  await Promise.allSettled(pendingPipelines);
}

/** WebGPU of the host, or of the npm package `webgpu` (Dawn), opened by the first request. */
class LazyGpu implements GpuLike {
  #gpu: GpuLike | undefined;

  async #open(): Promise<GpuLike> {
    const own = (globalThis.navigator as { gpu?: GpuLike } | undefined)?.gpu;
    try {
      const { create, globals } = await optional<{ create(flags: string[]): GpuLike; globals: { GPUDevice?: { prototype: Parameters<typeof trackPipelines>[0] } } }>("webgpu", "WebGPU for Node");
      if (globals.GPUDevice) trackPipelines(globals.GPUDevice.prototype);
      for (const [name, value] of Object.entries(globals)) if (!(name in globalThis)) Object.assign(globalThis, { [name]: value });
      return create([]);
    } catch (thrown) {
      if (own) return own;
      throw Object.assign(thrown as Error, FINAL);
    }
  }

  async requestAdapter(options?: object): Promise<unknown> {
    this.#gpu ??= await this.#open();
    return this.#gpu.requestAdapter(options);
  }

  get wgslLanguageFeatures(): { has(name: string): boolean } {
    return this.#gpu?.wgslLanguageFeatures ?? new Set<string>();
  }
}

/** Spellings that are paths, whether or not the file exists. */
const PATH = /^(\.{0,2}[/\\]|\.{1,2}$|[A-Za-z]:[/\\])/;
/** A repository of the Hub, with an optional revision and GGUF file. */
const HUB_NAME = /^[\w.-]+\/(?![^/]+\.gguf$)[\w.-]+(@[^/]+)?(\/.+\.gguf)?$/i;
/** Files that show that their folder holds a model. */
const MODEL_FILE = /^(mlc-chat-)?config\.json$|\.(gguf|nemo)$/i;
/** A file of an adapter's folder: the engine says which base model it belongs to. */
const ADAPTER_FILE = "adapter_config.json";
/** Models in subfolders that an error lists. */
const MAX_LISTED_FOLDERS = 5;

/** A directory entry that is a file, also through a link: snapshots of the Hub's cache are links. */
const isFileAt = async (path: string): Promise<boolean> => stat(path).then((found) => found.isFile(), () => false);

/** The absolute path of a model on disk; undefined for names and web addresses. A relative path needs no `./` if it exists. */
export async function localPath(source: string): Promise<string | undefined> {
  if (source.startsWith("file:")) return fileURLToPath(source);
  if (source.startsWith("~/")) return join(homedir(), source.slice(2));
  const path = resolve(source);
  if (PATH.test(source)) return path;
  if (source.includes("://") || HUB_NAME.test(source)) return undefined;
  return (await stat(path).catch(() => undefined)) && path;
}

/** A model's folder or file on disk as files for the engine; undefined for names and web addresses. */
async function localFiles(source: string): Promise<NamedFile[] | undefined> {
  const path = await localPath(source);
  if (path === undefined) return undefined;
  const found = await stat(path).catch(() => undefined);
  if (!found) throw new JerboaError("missing_file", `The model at ${path} does not exist. Check the path; names of the Hugging Face Hub have the form 'org/name'.`);
  if (found.isFile() && !/\.(gguf|safetensors|json)$/i.test(path)) throw invalidRequest(`loadModel: ${path} is not a model. Pass a folder with a model's files, or a .gguf file.`);
  const open = async (folder: string, name: string): Promise<NamedFile> => ({ name: name.split(sep).join("/"), file: (await fs.openAsBlob(join(folder, name))) as File });
  try {
    if (found.isFile()) return await Promise.all((await filesOfModel(path)).map((name) => open(dirname(path), name)));
    return await Promise.all((await filesOfFolder(path)).map((name) => open(path, name)));
  } catch (thrown) {
    if (thrown instanceof JerboaError) throw thrown;
    throw new JerboaError("missing_file", `The model at ${path} cannot be read: ${(thrown as Error).message}. Check the permissions of its files.`, { cause: thrown });
  }
}

/**
 * The names of the files of a model's folder.
 * @throws {@link JerboaError} `missing_file` if the folder itself holds no model.
 */
async function filesOfFolder(path: string): Promise<string[]> {
  const top = await readdir(path);
  if (!top.some((name) => MODEL_FILE.test(name) || name === ADAPTER_FILE)) throw await noModelIn(path, top);
  // Only the configuration at the top counts. A folder of GGUF files may hold other models below.
  const below = top.includes("config.json") ? (await readdir(path, { recursive: true, withFileTypes: true })).map((entry) => relative(path, join(entry.parentPath ?? entry.path!, entry.name))) : top;
  const files = await Promise.all(below.map(async (name) => ((await isFileAt(join(path, name))) ? name : undefined)));
  return files.filter((name) => name !== undefined);
}

/** The error of a folder without a model; lists the folders directly below that have one. */
async function noModelIn(path: string, names: string[]): Promise<JerboaError> {
  const holdsModel = async (name: string): Promise<boolean> => (await readdir(join(path, name)).catch(() => [] as string[])).some((file) => MODEL_FILE.test(file));
  const models: string[] = [];
  for (const name of [...names].sort()) {
    if (models.length <= MAX_LISTED_FOLDERS && (await holdsModel(name))) models.push(join(path, name));
  }
  if (names.length === 0) return new JerboaError("missing_file", `The folder ${path} has no model files. Pass a folder with config.json and weights, or a .gguf file.`);
  const listed = models.slice(0, MAX_LISTED_FOLDERS).join(", ") + (models.length > MAX_LISTED_FOLDERS ? " and more" : "");
  const advice = models.length > 0 ? `Pass one of the folders in it that have a model: ${listed}.` : "Pass a folder with config.json and weights, or a .gguf file.";
  return new JerboaError("missing_file", `The folder ${path} has no model files: neither config.json nor a .gguf file. ${advice}`);
}

/** The names of a file and of the files next to it that belong to its model: other parts of a split GGUF file, and mmproj files. */
async function filesOfModel(path: string): Promise<string[]> {
  const name = basename(path);
  const [, start, count] = /^(.*-)\d{5}(-of-\d{5}\.gguf)$/i.exec(name) ?? [];
  const isPart = (each: string): boolean => start !== undefined && each.startsWith(start) && each.endsWith(count!) && each.length === name.length;
  const isMmproj = (each: string): boolean => /mmproj.*\.gguf$/i.test(each);
  if (!/\.gguf$/i.test(name) || isMmproj(name)) return [name];
  return (await readdir(dirname(path)).catch(() => [name])).filter((each) => each === name || isPart(each) || isMmproj(each));
}

/** The methods of `sharp` that are used. */
interface Sharp {
  rotate(): Sharp;
  resize(width: number, height: number, options: { fit: "fill" }): Sharp;
  ensureAlpha(): Sharp;
  toColourspace(name: "srgb"): Sharp;
  raw(): Sharp;
  toBuffer(options: { resolveWithObject: true }): Promise<{ data: Uint8Array; info: { width: number; height: number } }>;
}

async function decodeImage(file: Blob, size?: { width: number; height: number }): Promise<Pixels> {
  const { default: sharp } = await optional<{ default: (bytes: Uint8Array) => Sharp }>("sharp", "Images in Node");
  try {
    // As a browser does, the orientation of the camera is applied.
    let image = sharp(new Uint8Array(await file.arrayBuffer())).rotate();
    if (size) image = image.resize(size.width, size.height, { fit: "fill" });
    const { data, info } = await image.toColourspace("srgb").ensureAlpha().raw().toBuffer({ resolveWithObject: true });
    return { data, width: info.width, height: info.height };
  } catch (thrown) {
    throw invalidRequest(`The image could not be decoded: ${(thrown as Error).message}. The file may be damaged; save it again as JPEG or PNG.`);
  }
}

/** A decoder of the packages below. */
interface AudioDecoder {
  ready: Promise<void>;
  decode(bytes: Uint8Array): DecoderResult | Promise<DecoderResult>;
  decodeFile?(bytes: Uint8Array): Promise<DecoderResult>;
  free(): void;
}
type AudioDecoderClass = new () => AudioDecoder;
interface DecoderResult {
  channelData: Float32Array[];
  sampleRate: number;
}

/** Packages that decode compressed audio, with the names of their classes. */
const AUDIO_DECODERS = { FLAC: ["@wasm-audio-decoders/flac", "FLACDecoder"], MP3: ["mpg123-decoder", "MPEGDecoder"] } as const;

/** The format of a compressed file, by its first bytes. */
function audioKind(bytes: Uint8Array): keyof typeof AUDIO_DECODERS | undefined {
  const head = String.fromCharCode(...bytes.subarray(0, 4));
  if (head === "fLaC") return "FLAC";
  return head.startsWith("ID3") || (bytes[0] === 0xff && (bytes[1]! & 0xe6) === 0xe2) ? "MP3" : undefined;
}

async function decodeAudio(file: ArrayBuffer): Promise<DecodedAudio> {
  const plain = decodeWav(file);
  if (plain) return plain;
  const bytes = new Uint8Array(file);
  const kind = audioKind(bytes);
  if (!kind) throw new Error("the format is unknown");
  const [name, type] = AUDIO_DECODERS[kind];
  const { [type]: Decoder } = await optional<Record<string, AudioDecoderClass>>(name, `${kind} files in Node`);
  const decoder = new Decoder!();
  try {
    await decoder.ready;
    const { channelData, sampleRate } = await (decoder.decodeFile?.(bytes) ?? decoder.decode(bytes));
    if (!(sampleRate > 0)) throw new Error("the decoder found no audio");
    return { channels: channelData, sampleRate };
  } finally {
    decoder.free();
  }
}

/** A thread or its parent as the port of the calls. */
export function portOf(thread: ThreadPort): Port {
  return {
    postMessage: (message, transfer) => thread.postMessage(message, transfer),
    addEventListener: (type, listener) => void thread.on(type, (value) => listener(type === "message" ? { data: value } : { message: String((value as Error)?.message ?? value) })),
  };
}

/** How threads that have not ended are ended. */
const threads = new Set<() => Promise<void>>();

/** Ends all threads of the engine and the GPU's work on this one, before the process exits. False if that takes too long. */
export async function endThreads(): Promise<boolean> {
  const ended = Promise.all([drainPipelines(), ...[...threads].map((end) => end())]).then(() => true);
  // Each thread has the same time to end.
  const late = new Promise<false>((resolve) => setTimeout(() => resolve(false), DRAIN_TIMEOUT_MS - DRAIN_MARGIN_MS));
  return Promise.race([ended, late]);
}

/** Starts the engine's thread. It keeps the process alive only while it runs calls. */
function spawn(): { port: Port; end: () => Promise<void> } {
  const thread = new Worker(new URL("./node-worker.js", import.meta.url));
  const running = new Set<unknown>();
  const port = portOf(thread);
  let drained = (_over: boolean): void => {};
  let exited = false;
  let ending: Promise<void> | undefined;
  const isEnd = (data: { id?: unknown }): boolean => "result" in data || "error" in data;
  thread.on("message", (data) => {
    const message = data as { id?: unknown; drained?: boolean };
    if (message.drained !== undefined) return drained(message.drained);
    if (isEnd(message)) running.delete(message.id);
    if (running.size === 0 && !ending) thread.unref();
  });
  thread.on("exit", () => {
    exited = true;
    threads.delete(end);
    drained(true);
  });
  const postMessage = (message: unknown, transfer?: Transferable[]): void => {
    if ("method" in (message as object)) {
      running.add((message as { id: unknown }).id);
      thread.ref();
    }
    port.postMessage(message, transfer);
  };
  const end = (): Promise<void> => (ending ??= (async () => {
    if (exited) return;
    thread.ref();
    await new Promise<void>((resolve) => {
      // A thread that hangs does not answer.
      let timer = setTimeout(resolve, DRAIN_TIMEOUT_MS);
      drained = (over) => {
        clearTimeout(timer);
        if (over) resolve();
        else timer = setTimeout(resolve, COMPILE_TIMEOUT_MS);
      };
      thread.postMessage({ drain: true });
    });
    await thread.terminate();
  })());
  threads.add(end);
  return { port: { ...port, postMessage }, end };
}

/** The host object of Node, Deno and Bun. */
export const nodePlatform: Platform = {
  gpu: new LazyGpu(),
  gpuAdvice: "A GPU with a driver for Vulkan, Metal or Direct3D 12 is required.",
  fetch: (input, init) => {
    const address = input instanceof Request ? input.url : String(input);
    return address.startsWith("file:") ? fetchFile(address) : hubFetch(input, init);
  },
  store: { open: async () => new ModelStore(), has: async () => false },
  fetchFailure: "the server does not answer",
  userAgent: (globalThis.navigator as Navigator | undefined)?.userAgent ?? "Node.js",
  deviceMemory: totalmem() / 2 ** 30,
  readAsset: async (name) => new Uint8Array(await readFile(new URL(`../${name}`, import.meta.url))),
  prepareLoad: async (options: EngineLoadOptions) => {
    const { model } = options;
    const files = typeof model === "string" ? await localFiles(model) : undefined;
    if (files) return { ...options, model: files, path: model as string };
    if (typeof model !== "string" || isFolder(model)) return options;
    const endpoint = options.endpoint ?? process.env.HF_ENDPOINT;
    const token = options.token ?? (await hubToken());
    return { ...options, ...(endpoint ? { endpoint } : {}), ...(token ? { token } : {}), ...(process.env.HF_HUB_OFFLINE === "1" ? { revalidate: false } : {}) };
  },
  explainLoad: async (thrown, { model }) => {
    const error = JerboaError.from(thrown);
    // The Hub answers 401 for repositories that do not exist.
    const isLocal = /^(not_found|gated|network)$/.test(error.code) && typeof model === "string" && HUB_NAME.test(model) && (await stat(model).then(() => true, () => false));
    return isLocal ? new JerboaError(error.code, `${error.message} For the local ${(await isFileAt(model)) ? "file" : "folder"} write './${model}'.`, { cause: thrown }) : thrown;
  },
  decodeImage,
  decodeAudio,
  resample,
  settle: () => Promise.allSettled(pendingPipelines),
  spawn,
};
