/** Storage of this origin: quota, persistence, and models that other engines have stored here. */

import { JerboaError, invalidRequest } from "./errors.js";
import { STORAGE_TIMEOUT_MS, withTimeout } from "./waits.js";

/** Names of this package's own caches and databases. */
const OWN_NAMES = /^jerboa/;

/** Caches and databases of other engines that store models in a page's origin. */
const ENGINES: readonly [RegExp, string][] = [
  [/^transformers-cache$/, "transformers.js"],
  [/^experimental_transformers-hash-cache$/, "transformers.js"],
  [/^(webllm|tvmjs)\b/, "WebLLM"],
  [/^wllama_cache$/, "wllama"],
  [/^(mediapipe|gerbil|onnx|kokoro|whisper|ratchet|candle)/i, "another engine"],
];

/** A store of another engine, or of another part of this site. */
export interface ForeignStore {
  kind: "cache" | "indexeddb" | "directory";
  name: string;
  /** The engine that owns it, if its name is known. */
  engine?: string;
  /** Size in bytes, if known without reading all data: from headers of cached responses, or from file sizes. */
  bytes?: number;
}

/** What this origin stores. */
export interface StorageReport {
  /** Used and available bytes, as estimated by the browser. */
  usage?: number;
  quota?: number;
  /**
   * Whether storage is persistent. If not, the browser may evict everything when the disk is full, on iOS also after a
   * week without a visit.
   */
  persisted: boolean;
  /** Stores of other software. They count against the same quota; {@link deleteForeignStore} removes them. */
  foreign: ForeignStore[];
}

/** Reports what this origin stores, without prompting the user. */
export async function storageReport(): Promise<StorageReport> {
  const storage = globalThis.navigator?.storage;
  const [estimate, persisted, caches, databases, directories] = await Promise.all([
    ignoringErrors(() => storage?.estimate()),
    ignoringErrors(() => storage?.persisted?.()),
    ignoringErrors(foreignCaches),
    ignoringErrors(foreignDatabases),
    ignoringErrors(foreignDirectories),
  ]);
  const { usage, quota } = estimate ?? {};
  return { ...(usage === undefined ? {} : { usage }), ...(quota === undefined ? {} : { quota }), persisted: persisted === true, foreign: [...(caches ?? []), ...(databases ?? []), ...(directories ?? [])] };
}

/** How to delete a store of each kind, and the API that must answer. */
const REMOVERS: Record<ForeignStore["kind"], [api: string, remove: (name: string) => Promise<unknown>]> = {
  cache: ["caches.delete()", async (name) => globalThis.caches.delete(name)],
  directory: ["the origin private file system", async (name) => (await navigator.storage.getDirectory()).removeEntry(name, { recursive: true })],
  indexeddb: ["indexedDB.deleteDatabase()", dropDatabase],
};

/** Deletes a store of another engine; see {@link storageReport}. */
export async function deleteForeignStore(store: ForeignStore): Promise<void> {
  if (OWN_NAMES.test(store.name)) throw invalidRequest(`deleteForeignStore: '${store.name}' belongs to this package. Remove models with deleteModel.`);
  try {
    const [api, remove] = REMOVERS[store.kind];
    await withTimeout(STORAGE_TIMEOUT_MS, api, remove(store.name));
  } catch (thrown) {
    throw thrown instanceof JerboaError ? thrown : new JerboaError("store", `${store.name} could not be removed: ${String(thrown)}. Close this site's other tabs and try again.`, { cause: thrown });
  }
}

/**
 * Requests persistent storage. Call it once a model is stored: before that browsers refuse, and those that prompt would
 * ask too early. Safari grants it to home screen apps only.
 */
export async function persistStorage(): Promise<boolean> {
  const storage = globalThis.navigator?.storage;
  const persistent = await ignoringErrors(() => storage?.persisted?.());
  return persistent === true || (await ignoringErrors(() => storage?.persist?.())) === true;
}

/** The answer of a question, or undefined if it fails or does not come. */
async function ignoringErrors<T>(ask: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await withTimeout(STORAGE_TIMEOUT_MS, "the browser's storage", (async () => ask())());
  } catch {
    return undefined;
  }
}

function foreignStore(kind: ForeignStore["kind"], name: string, bytes?: number): ForeignStore {
  const engine = ENGINES.find(([pattern]) => pattern.test(name))?.[1];
  return { kind, name, ...(engine ? { engine } : {}), ...(bytes === undefined ? {} : { bytes }) };
}

async function foreignCaches(): Promise<ForeignStore[]> {
  const names = (await globalThis.caches.keys()).filter((name) => !OWN_NAMES.test(name));
  return Promise.all(
    names.map(async (name) => {
      const cache = await globalThis.caches.open(name);
      const sizes = (await cache.keys()).map(async (request) => Number((await cache.match(request))?.headers.get("content-length") ?? 0));
      return foreignStore("cache", name, (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0));
    }),
  );
}

async function foreignDatabases(): Promise<ForeignStore[]> {
  const list = await globalThis.indexedDB.databases();
  return list.flatMap(({ name }) => (name && !OWN_NAMES.test(name) ? [foreignStore("indexeddb", name)] : []));
}

async function foreignDirectories(): Promise<ForeignStore[]> {
  const found: ForeignStore[] = [];
  for await (const [name, handle] of (await navigator.storage.getDirectory()) as unknown as AsyncIterable<[string, FileSystemHandle]>) {
    if (!OWN_NAMES.test(name)) found.push(foreignStore("directory", name, await sizeOf(handle)));
  }
  return found;
}

async function sizeOf(handle: FileSystemHandle): Promise<number> {
  if (handle.kind === "file") return (await (handle as FileSystemFileHandle).getFile()).size;
  let sum = 0;
  for await (const [, inner] of handle as unknown as AsyncIterable<[string, FileSystemHandle]>) sum += await sizeOf(inner);
  return sum;
}

function dropDatabase(name: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = globalThis.indexedDB.deleteDatabase(name);
    request.onsuccess = () => resolve();
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new JerboaError("store_blocked", `${name} is open in another tab. Close this site's other tabs and try again.`));
  });
}
