/** A store in the browser's IndexedDB, shared by all tabs of an origin. */

import { JerboaError } from "../errors.js";
import { upgradeRecord, type RecordV1 } from "./migrate-v1.js";
import { checkModel, stateAfter } from "./store-memory.js";
import type { StoreBatch, StoreChanges, MemoryRecord, MemoryStore, StoreState } from "./types.js";

/**
 * The layout that this code writes. 1: one table of plain records; 2: adds generations, so that tabs can follow
 * changes.
 */
export const INDEXEDDB_VERSION = 2;

/** Records per read request. */
const PAGE_RECORDS = 500;
/** Removals remembered for other tabs; a tab that is further behind reads everything again. */
const MAX_REMOVALS = 256;
/** Milliseconds until IndexedDB must answer; docs/limits.md lists it. */
const OPEN_TIMEOUT_MS = 10_000;
/** Milliseconds until a request of a transaction, and its end, must be answered: other tabs' transactions may come first. */
const REQUEST_TIMEOUT_MS = 60_000;
/** Milliseconds that a tab with an older version may block a migration. */
const MIGRATION_TIMEOUT_MS = 10_000;

type Stored = MemoryRecord & { generation: number };
type Meta = StoreState & { key: "state"; reset: number };

/** Stores records in IndexedDB. */
export class IndexedDbStore implements MemoryStore {
  readonly #name: string;
  #opening: Promise<IDBDatabase> | undefined;
  #lost: JerboaError | undefined;
  #channel: BroadcastChannel | undefined;
  readonly #listeners = new Set<() => void>();

  constructor(name: string) {
    this.#name = name;
  }

  async open(): Promise<StoreState> {
    await this.#database();
    this.#useChannel(() => {
      this.#channel ??= new BroadcastChannel(`jerboa-memory:${this.#name}`);
      this.#channel.onmessage = () => this.#listeners.forEach((listener) => listener());
    });
    return this.state();
  }

  async state(): Promise<StoreState> {
    const meta = await this.#transact("readonly", ["meta"], ({ meta }) => readMeta(meta));
    return { generation: meta.generation, dims: meta.dims, ...(meta.model !== undefined && { model: meta.model }) };
  }

  changes(since: number, emit: (part: StoreChanges) => void): Promise<number> {
    // One transaction gives a consistent snapshot.
    return this.#transact("readonly", ["meta", "records", "removed"], async (stores) => {
      const meta = await readMeta(stores.meta);
      if (meta.generation === since) return since;
      if (since < meta.reset || since === 0) {
        emit({ reset: true, removed: [], put: [] });
        await readPages(stores.records, emit);
      } else {
        const after = IDBKeyRange.lowerBound(since, true);
        const removals = await ask<{ ids: string[] }[]>(stores.removed.getAll(after));
        // Removals first: a record that was added again is among the written ones.
        emit({ reset: false, removed: removals.flatMap((row) => row.ids), put: [] });
        const written = await ask<Stored[]>(stores.records.index("generation").getAll(after));
        emit({ reset: false, removed: [], put: written.map(plain) });
      }
      return meta.generation;
    });
  }

  async apply(batch: StoreBatch): Promise<number> {
    const generation = await this.#transact("readwrite", ["meta", "records", "removed"], async (stores) => {
      const meta = await readMeta(stores.meta);
      checkModel(batch.clear ? { generation: 0, dims: 0 } : meta, batch);
      const after = stateAfter(meta, batch);
      let reset = batch.clear ? after.generation : meta.reset;
      if (batch.clear) {
        stores.records.clear();
        stores.removed.clear();
      }
      const dropped = await Promise.all((batch.drop ?? []).map((document) => ask(stores.records.index("document").getAllKeys(document))));
      const gone = [...batch.remove, ...(dropped.flat() as string[])];
      if (gone.length && !batch.clear) {
        for (const id of gone) stores.records.delete(id);
        stores.removed.put({ generation: after.generation, ids: gone });
        reset = Math.max(reset, await forgetRemovals(stores.removed));
      }
      // Copy the vector: cloning a view would store its whole buffer.
      for (const record of batch.put) stores.records.put({ ...record, vector: record.vector.slice(), generation: after.generation });
      stores.meta.put({ ...after, key: "state", reset } satisfies Meta);
      return after.generation;
    });
    this.#useChannel(() => this.#channel?.postMessage({ generation }));
    return generation;
  }

  get(ids: string[]): Promise<(MemoryRecord | undefined)[]> {
    return this.#transact("readonly", ["records"], async ({ records }) => {
      const found = await Promise.all(ids.map((id) => ask<Stored | undefined>(records.get(id))));
      return found.map((stored) => stored && plain(stored));
    });
  }

  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async close(): Promise<void> {
    this.#useChannel(() => this.#channel?.close());
    this.#channel = undefined;
    this.#listeners.clear();
    const opening = this.#opening;
    this.#opening = undefined;
    (await opening?.catch(() => undefined))?.close();
  }

  /** Without a working channel other tabs find changes when they search next. */
  #useChannel(use: () => void): void {
    try {
      use();
    } catch {
      this.#channel = undefined;
    }
  }

  #database(): Promise<IDBDatabase> {
    if (this.#lost) return Promise.reject(this.#lost);
    this.#opening ??= openDatabase(this.#name, (reason) => {
      this.#lost = reason;
    }).catch((error) => {
      this.#opening = undefined;
      throw error;
    });
    return this.#opening;
  }

  /** Runs `work` in one transaction; resolves once the data is on disk. An exception rolls everything back. */
  async #transact<T, N extends string>(mode: IDBTransactionMode, names: N[], work: (stores: Record<N, IDBObjectStore>) => Promise<T>): Promise<T> {
    const database = await this.#database();
    try {
      const transaction = database.transaction(names, mode, { durability: mode === "readwrite" ? "strict" : "default" });
      const finished = new Promise<void>((resolve, reject) => {
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => reject(transaction.error ?? new DOMException("The transaction was aborted.", "AbortError"));
      });
      finished.catch(() => undefined); // awaited below; avoids an unhandled rejection
      const stores = Object.fromEntries(names.map((name) => [name, transaction.objectStore(name)])) as Record<N, IDBObjectStore>;
      const value = await work(stores).catch((error) => {
        abort(transaction);
        // When the transaction failed, its own error is more informative.
        throw error?.name === "AbortError" ? (transaction.error ?? error) : error;
      });
      await answered("IDBTransaction", finished, () => abort(transaction));
      return value;
    } catch (error) {
      throw this.#lost ?? failure(error, this.#name);
    }
  }
}

/** Opens a persistent store by name; all tabs of the origin share it. */
export function indexedDbStore(name = "jerboa-memory"): MemoryStore {
  return new IndexedDbStore(name);
}

/** Deletes a store with all records. Tabs that have it open get an error. */
export async function deleteIndexedDbStore(name = "jerboa-memory"): Promise<void> {
  try {
    const request = indexedDB.deleteDatabase(name);
    const blocked = new Promise<never>((_, reject) => {
      const message = `Another tab has the store '${name}' open and does not close it. Close that tab, then try again.`;
      request.onblocked = () => setTimeout(() => reject(new JerboaError("store_blocked", message)), MIGRATION_TIMEOUT_MS);
    });
    await Promise.race([ask(request, "indexedDB.deleteDatabase()"), blocked]);
  } catch (error) {
    throw failure(error, name);
  }
}

function openDatabase(name: string, lose: (reason: JerboaError) => void): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const absent = (): void => reject(new JerboaError("store", "IndexedDB is not available here. Use inMemoryStore(), or fileStore() in Node."));
    if (typeof indexedDB === "undefined") return absent();
    let request: IDBOpenDBRequest;
    try {
      request = indexedDB.open(name, INDEXEDDB_VERSION);
    } catch {
      // Present but forbidden, as in sandboxed frames.
      return absent();
    }
    let tooLate = false;
    let timer: ReturnType<typeof setTimeout> | undefined = setTimeout(() => {
      tooLate = true;
      reject(new JerboaError("store", `indexedDB.open() did not answer for ${OPEN_TIMEOUT_MS / 1000} seconds. Reload this page, or use inMemoryStore().`));
    }, OPEN_TIMEOUT_MS);
    request.onupgradeneeded = (event) => {
      clearTimeout(timer);
      migrate(request, event.oldVersion);
    };
    request.onblocked = () => {
      clearTimeout(timer);
      const message = `Another tab has the store '${name}' open in an older version. Close or reload that tab, then try again.`;
      timer = setTimeout(() => {
        tooLate = true;
        reject(new JerboaError("store_blocked", message));
      }, MIGRATION_TIMEOUT_MS);
    };
    request.onerror = () => {
      clearTimeout(timer);
      reject(failure(request.error, name));
    };
    request.onsuccess = () => {
      clearTimeout(timer);
      const database = request.result;
      if (tooLate) return database.close();
      // Another tab wants to migrate or delete the store: close it, or that tab waits forever.
      database.onversionchange = () => {
        database.close();
        lose(new JerboaError("store_version", `The store '${name}' was migrated or deleted by another tab. Reload this page.`));
      };
      database.onclose = () => lose(new JerboaError("store", `The browser closed the store '${name}', possibly because site data was cleared. Reload this page.`));
      resolve(database);
    };
  });
}

/** Migrates a database of any older layout inside the version change; a failure leaves it unchanged. */
function migrate(request: IDBOpenDBRequest, from: number): void {
  const database = request.result;
  if (from < 2) {
    const records = from < 1 ? database.createObjectStore("records", { keyPath: "id" }) : request.transaction!.objectStore("records");
    records.createIndex("generation", "generation");
    records.createIndex("document", "document");
    const meta = database.createObjectStore("meta", { keyPath: "key" });
    database.createObjectStore("removed", { keyPath: "generation" });
    if (from === 1) migratePlainRecords(records, meta);
  }
}

function migratePlainRecords(records: IDBObjectStore, meta: IDBObjectStore): void {
  const state: Meta = { key: "state", generation: 1, reset: 1, dims: 0 };
  records.openCursor().onsuccess = (event) => {
    const cursor = (event.target as IDBRequest<IDBCursorWithValue | null>).result;
    if (!cursor) {
      meta.put(state);
      return;
    }
    const old = cursor.value as RecordV1;
    if (state.dims === 0) Object.assign(state, { dims: old.vector.length, model: old.model ?? "unknown" });
    cursor.update({ ...upgradeRecord(old), generation: 1 });
    cursor.continue();
  };
}

function ask<T>(request: IDBRequest<T>, api = "IDBRequest"): Promise<T> {
  const answer = new Promise<T>((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = (event) => {
      // The promise carries the error, and its awaiter aborts.
      event.preventDefault();
      reject(request.error);
    };
  });
  return answered(api, answer);
}

/** The answer of IndexedDB; after the deadline an error that names the API, and `late` is called. */
function answered<T>(api: string, answer: Promise<T>, late = (): void => {}): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new JerboaError("store", `IndexedDB did not answer for ${REQUEST_TIMEOUT_MS / 1000} seconds (${api}). Close this site's other tabs, then reload this page.`));
      late();
    }, REQUEST_TIMEOUT_MS);
    answer.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

async function readMeta(meta: IDBObjectStore): Promise<Meta> {
  return (await ask<Meta | undefined>(meta.get("state"))) ?? { key: "state", generation: 0, reset: 0, dims: 0 };
}

/** Reads all records in id order, in pages: one array would need twice the memory. */
async function readPages(records: IDBObjectStore, emit: (part: StoreChanges) => void): Promise<void> {
  for (let range: IDBKeyRange | undefined; ; ) {
    const page = await ask<Stored[]>(records.getAll(range, PAGE_RECORDS));
    if (page.length) emit({ reset: false, removed: [], put: page.map(plain) });
    if (page.length < PAGE_RECORDS) return;
    range = IDBKeyRange.lowerBound(page.at(-1)!.id, true);
  }
}

/** Drops the oldest removals; returns the newest generation that can no longer be followed. */
async function forgetRemovals(removed: IDBObjectStore): Promise<number> {
  const count = await ask(removed.count());
  if (count <= MAX_REMOVALS) return 0;
  const keys = (await ask(removed.getAllKeys(null, count - MAX_REMOVALS / 2))) as number[];
  const last = keys.at(-1)!;
  removed.delete(IDBKeyRange.upperBound(last));
  return last;
}

function plain({ generation: _, ...record }: Stored): MemoryRecord {
  return record;
}

function abort(transaction: IDBTransaction): void {
  try {
    transaction.abort();
  } catch {
    // The transaction has already ended.
  }
}

/** Converts IndexedDB errors to `JerboaError`. */
function failure(error: unknown, name: string): unknown {
  const kind = (error as { name?: string } | null)?.name;
  if (error instanceof JerboaError) return error;
  if (kind === "QuotaExceededError") {
    const message = `The storage quota is used up, so the store '${name}' cannot grow. Earlier records are intact. Remove records or free disk space, and add the rest again.`;
    return new JerboaError("quota", message, { cause: error });
  }
  if (kind === "VersionError") {
    const message = `The store '${name}' was written by a newer version of jerboa; this version reads up to layout ${INDEXEDDB_VERSION}. Reload the page or update the package. Nothing was changed.`;
    return new JerboaError("store_version", message, { cause: error });
  }
  const message = `The store '${name}' could not be used (${kind ?? "unknown error"}: ${(error as Error | null)?.message ?? ""}). Nothing was changed. Check that this is not a private window and that the browser allows site data.`;
  return new JerboaError("store", message, { cause: error });
}
