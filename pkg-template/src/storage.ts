/** What this origin stores and may store: quota, persistence, and what other engines have left here. Knows stores by name; reads no model. */

import { JerboaError, refused } from "./errors.js";

/** The caches and databases that this package makes itself. */
const OWN = /^jerboa/;

/** Caches and databases of engines that keep models in a page's origin. */
const ENGINES: readonly [RegExp, string][] = [
  [/^transformers-cache$/, "transformers.js"],
  [/^experimental_transformers-hash-cache$/, "transformers.js"],
  [/^(webllm|tvmjs)\b/, "WebLLM"],
  [/^wllama_cache$/, "wllama"],
  [/^(mediapipe|gerbil|onnx|kokoro|whisper|ratchet|candle)/i, "another engine"],
];

/** Something that another engine, or another part of this site, keeps in this origin. */
export interface ForeignStore {
  kind: "cache" | "indexeddb" | "directory";
  name: string;
  /** Whose it is, where its name tells. */
  engine?: string;
  /** Bytes, where that can be told without reading all of it: of caches as their answers say, of directories as their files say. */
  bytes?: number;
}

/** What this origin stores. */
export interface StorageReport {
  /** Bytes in use and to be had, as the browser estimates them. */
  usage?: number;
  quota?: number;
  /** Whether the browser promised to keep what is stored; else it may drop all of it when the disk gets full, on iOS also after a week without a visit. */
  persisted: boolean;
  /** What is not this package's. It counts against the same quota, and goes with {@link deleteForeignStore}. */
  foreign: ForeignStore[];
}

/** Reports what this origin stores. Nothing is asked of the user. */
export async function storageReport(): Promise<StorageReport> {
  const storage = globalThis.navigator?.storage;
  const [estimate, persisted, caches, databases, directories] = await Promise.all([
    quietly(() => storage?.estimate()),
    quietly(() => storage?.persisted?.()),
    quietly(foreignCaches),
    quietly(foreignDatabases),
    quietly(foreignDirectories),
  ]);
  const { usage, quota } = estimate ?? {};
  return { ...(usage === undefined ? {} : { usage }), ...(quota === undefined ? {} : { quota }), persisted: persisted === true, foreign: [...(caches ?? []), ...(databases ?? []), ...(directories ?? [])] };
}

/** Removes what another engine has left in this origin; see {@link storageReport}. */
export async function deleteForeignStore(store: ForeignStore): Promise<void> {
  if (OWN.test(store.name)) throw refused(`deleteForeignStore: '${store.name}' is this package's own; deleteModel removes models.`);
  try {
    if (store.kind === "cache") await globalThis.caches.delete(store.name);
    else if (store.kind === "directory") await (await navigator.storage.getDirectory()).removeEntry(store.name, { recursive: true });
    else await dropDatabase(store.name);
  } catch (thrown) {
    throw thrown instanceof JerboaError ? thrown : new JerboaError("store", `${store.name} could not be removed: ${String(thrown)}. Close this site's other tabs and try again.`, { cause: thrown });
  }
}

/**
 * Asks the browser to keep what is stored, once a model is there that would be missed: before, browsers say no, and one that asks the user would
 * ask too early. Safari says yes to sites on the home screen only.
 */
export async function keepStorage(): Promise<boolean> {
  const storage = globalThis.navigator?.storage;
  const kept = await quietly(() => storage?.persisted?.());
  return kept === true || (await quietly(() => storage?.persist?.())) === true;
}

async function quietly<T>(ask: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await ask();
  } catch {
    return undefined;
  }
}

function foreign(kind: ForeignStore["kind"], name: string, bytes?: number): ForeignStore {
  const engine = ENGINES.find(([pattern]) => pattern.test(name))?.[1];
  return { kind, name, ...(engine ? { engine } : {}), ...(bytes === undefined ? {} : { bytes }) };
}

async function foreignCaches(): Promise<ForeignStore[]> {
  const names = (await globalThis.caches.keys()).filter((name) => !OWN.test(name));
  return Promise.all(
    names.map(async (name) => {
      const cache = await globalThis.caches.open(name);
      const sizes = (await cache.keys()).map(async (request) => Number((await cache.match(request))?.headers.get("content-length") ?? 0));
      return foreign("cache", name, (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0));
    }),
  );
}

async function foreignDatabases(): Promise<ForeignStore[]> {
  const list = await globalThis.indexedDB.databases();
  return list.flatMap(({ name }) => (name && !OWN.test(name) ? [foreign("indexeddb", name)] : []));
}

async function foreignDirectories(): Promise<ForeignStore[]> {
  const found: ForeignStore[] = [];
  for await (const [name, handle] of (await navigator.storage.getDirectory()) as unknown as AsyncIterable<[string, FileSystemHandle]>) {
    if (!OWN.test(name)) found.push(foreign("directory", name, await sizeOf(handle)));
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
    request.onblocked = () => reject(new JerboaError("store_blocked", `${name} is open in another tab; close this site's other tabs and try again.`));
  });
}
