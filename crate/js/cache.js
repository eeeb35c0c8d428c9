import { hasManyCores, host } from "./host.js";

/**
 * Updates a SHA-256 (FIPS 180-4) with `size` more bytes; returns its eight words, or undefined if `bytes` has another
 * length. `bytes` are whole 64-byte blocks, except in the last call, where `end` is the message's total length. Threads
 * run a copy of this source, so it must not use anything outside.
 */
function sha256(bytes, [words, size, end]) {
  if (bytes.length !== size) return undefined;
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const rounds = Int32Array.from(primes, (prime) => (Math.cbrt(prime) % 1) * 2 ** 32);
  const state = Int32Array.from(words);
  const w = new Int32Array(64);
  // Rotations are inlined: as a function they take three times as long.
  const blocks = (part) => {
    const view = new DataView(part.buffer, part.byteOffset, part.length);
    for (let at = 0; at + 64 <= part.length; at += 64) {
      for (let i = 0; i < 16; i++) w[i] = view.getInt32(at + 4 * i);
      for (let i = 16; i < 64; i++) {
        const x = w[i - 15];
        const y = w[i - 2];
        w[i] = (w[i - 16] + (((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3)) + w[i - 7] + (((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10))) | 0;
      }
      let a = state[0];
      let b = state[1];
      let c = state[2];
      let d = state[3];
      let e = state[4];
      let f = state[5];
      let g = state[6];
      let h = state[7];
      for (let i = 0; i < 64; i++) {
        const one = (h + (((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7))) + ((e & f) ^ (~e & g)) + rounds[i] + w[i]) | 0;
        const two = ((((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10))) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
        h = g;
        g = f;
        f = e;
        e = (d + one) | 0;
        d = c;
        c = b;
        b = a;
        a = (one + two) | 0;
      }
      const sums = [a, b, c, d, e, f, g, h];
      for (let i = 0; i < 8; i++) state[i] += sums[i];
    }
  };
  blocks(bytes);
  if (end !== undefined) {
    const rest = bytes.subarray(size - (size % 64));
    const last = new Uint8Array(rest.length < 56 ? 64 : 128);
    last.set([...rest, 128]);
    new DataView(last.buffer).setBigUint64(last.length - 8, BigInt(end * 8));
    blocks(last);
  }
  return new Uint32Array(state.buffer);
}

/** Opens a folder within another. Threads run a copy of this source, too. */
async function openFolder(folder, names, create = false) {
  for (const name of names) folder = await folder.getDirectoryHandle(name, { create });
  return folder;
}

/**
 * Reads a file of the origin private file system. Workers read it directly, which takes half as long as by way of a Blob,
 * unless another tab has locked it. Threads run a copy of this source, too.
 */
async function readFile(file) {
  const access = await file.createSyncAccessHandle?.({ mode: "read-only" }).catch(() => undefined);
  if (!access) return new Uint8Array(await (await file.getFile()).arrayBuffer());
  try {
    const bytes = new Uint8Array(access.getSize());
    if (access.read(bytes, { at: 0 }) !== bytes.length) throw new DOMException("The file changed while it was read.", "NotReadableError");
    return bytes;
  } finally {
    access.close();
  }
}

/** Writes a new file of the origin private file system. Threads run a copy of this source, too. */
async function fillFile(file, bytes) {
  const streamed = async (use) => {
    const stream = await file.createWritable();
    try {
      await use(stream);
      await stream.close();
    } catch (error) {
      // An open stream locks the file.
      await stream.abort().catch(() => {});
      throw error;
    }
  };
  const write = () => streamed((stream) => stream.write(bytes));
  if (!file.createSyncAccessHandle) return write();
  // Chromium 156 forgets at its end what access handles have added to the used storage, and counts below zero when such a file is removed.
  if (/Chrome\//.test(navigator.userAgent)) await streamed((stream) => stream.truncate(bytes.length));
  const access = await file.createSyncAccessHandle().catch(() => undefined);
  if (!access) return write();
  try {
    if (access.write(bytes, { at: 0 }) !== bytes.length) throw new DOMException("The disk is full.", "QuotaExceededError");
    access.flush();
  } finally {
    access.close();
  }
}

/** Folder of unfinished entries of a private folder. */
const UNFINISHED = "~unfinished";

/**
 * The source of a reader and writer thread. A request names an entry of the cache `name` by its key, a private file by its
 * path, or both: the file is read if it exists. Reading returns its bytes or the updated hash, or nothing if it is missing or
 * unreadable. Writing returns true. Both return the message and name of an error. The first message reports that the thread runs.
 */
const THREAD = `const sha256 = ${sha256};
const openFolder = ${openFolder};
const readFile = ${readFile};
const fillFile = ${fillFile};
const findFile = async (path) => (await openFolder(await navigator.storage.getDirectory(), path.slice(0, -1))).getFileHandle(path.at(-1));
onmessage = async ({ data: [id, { name, key, path, entry, hash }] }) => {
  try {
    const file = path && (await findFile(path).catch((error) => { if (!key) throw error; }));
    const cache = !file && (await caches.open(name));
    if (entry) {
      await (file ? fillFile(file, entry) : cache.put(key, new Response(entry)));
      return postMessage([id, true]);
    }
    const found = !file && (await cache.match(key));
    const bytes = file ? await readFile(file) : found && new Uint8Array(await found.arrayBuffer());
    if (hash) postMessage([id, bytes && sha256(bytes, hash)]);
    else postMessage([id, bytes], bytes ? [bytes.buffer] : []);
  } catch (error) {
    postMessage([id, undefined, [error.message, error.name]]);
  }
};
postMessage([]);`;

/** Number of threads: one reads 0.6 GB/s of a cache or 1.2 of files, and the engine takes up to 3.5. Those of a small device have other work. */
const THREADS = hasManyCores ? 4 : 2;

/** Milliseconds of idle time after which the threads end. */
const IDLE_MS = 1000;

// Deadlines of the stores in milliseconds; docs/limits.md lists them.
/** Until a store must open, and until the threads must start. */
const OPEN_TIMEOUT_MS = 5000;
/** Until a thread must have read an entry; then this thread reads it. */
const READ_TIMEOUT_MS = 5000;
/** Until an entry must be read or deleted, or all must be listed; and until one must be written, several at a time. */
const ENTRY_TIMEOUT_MS = 30_000;
const WRITE_TIMEOUT_MS = 60_000;

/** Rejects when `api` does not answer in time. */
function answered(api, ms, promise, silent = () => {}) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      silent();
      reject(new Error(`${api} did not answer for ${ms / 1000} seconds`));
    }, ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Whether a store left a request unanswered; until it answers, all are refused at once. */
let silent = false;

/** The answer of a store to a request, within the deadline. */
function storeAnswer(store, method, request) {
  const api = store instanceof Folder ? `the origin private file system (${method})` : `Cache.${method}()`;
  if (silent) return Promise.reject(new Error(`${api} was not called: the store does not answer`));
  const promise = request().finally(() => (silent = false));
  return answered(api, method === "put" ? WRITE_TIMEOUT_MS : ENTRY_TIMEOUT_MS, promise, () => (silent = true));
}

/** A store whose listing and deletion have a deadline too. */
function withDeadlines(store) {
  for (const method of ["keys", "delete"]) {
    const plain = store[method].bind(store);
    // A store without a list has no entries.
    store[method] = (...args) => storeAnswer(store, method, async () => (await plain(...args)) ?? []);
  }
  return store;
}

/**
 * Whether this is a worker of Firefox. There, terminating a worker with workers of its own leaves later `new Worker` calls of
 * the site's workers without an end (Firefox 153, about one in a hundred), so the engine's worker starts none.
 */
const nestedWorkersHang = () => typeof document === "undefined" && /\bFirefox\//.test(globalThis.navigator?.userAgent);

/** Threads that read and write in parallel to this one; none if the page's policy forbids them. */
class Threads {
  threads = [];
  waiting = new Map();
  count = 0;
  refused = nestedWorkersHang();

  /** Starts the threads. */
  start() {
    // Threads use the browser's own stores only.
    this.refused ||= typeof Worker === "undefined" || host.store !== globalThis.caches;
    if (this.refused || this.threads.length > 0) return;
    this.up = new Promise((resolve) => (this.resolveUp = resolve));
    setTimeout(this.resolveUp, OPEN_TIMEOUT_MS, false);
    try {
      const address = URL.createObjectURL(new Blob([THREAD], { type: "text/javascript" }));
      this.address = address;
      for (let i = 0; i < THREADS; i++) this.threads.push(this.thread(address));
    } catch {
      this.refuse();
    }
    this.scheduleEnd();
  }

  thread(address) {
    const thread = new Worker(scriptUrl(address), { name: "cache" });
    thread.onmessage = ({ data: [id, ...answer] }) => (id === undefined ? this.resolveUp(true) : this.answer(id, ...answer));
    thread.onerror = () => this.refuse();
    return thread;
  }

  /** Reads an entry, or hashes it; undefined if the threads cannot. */
  async read(entry, hash) {
    this.start();
    if (this.refused) return undefined;
    const id = this.count;
    setTimeout(() => this.answer(id), READ_TIMEOUT_MS);
    return this.ask({ ...entry, hash }).catch(() => {});
  }

  /** Writes an entry, whose bytes it transfers; false if no thread started, which leaves them. */
  async write(entry, bytes) {
    this.start();
    if (this.refused || !(await this.up)) return false;
    if (!(await this.ask({ ...entry, entry: bytes }, [bytes.buffer]))) throw new Error("the cache writer thread stopped");
    return true;
  }

  ask(question, transfer) {
    clearTimeout(this.idle);
    const id = this.count++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.threads[id % THREADS].postMessage([id, question], transfer);
    });
  }

  answer(id, result, error) {
    const request = this.waiting.get(id);
    if (!request) return;
    this.waiting.delete(id);
    if (error) request.reject(new DOMException(...error));
    else request.resolve(result);
    this.scheduleEnd();
  }

  /** Ends the threads after a period without requests. */
  scheduleEnd() {
    clearTimeout(this.idle);
    if (this.waiting.size === 0) this.idle = setTimeout(() => this.end(), IDLE_MS);
  }

  refuse() {
    this.refused = true;
    this.end();
    for (const id of [...this.waiting.keys()]) this.answer(id);
  }

  end() {
    this.resolveUp?.(false);
    try {
      for (const thread of this.threads) thread.terminate();
    } catch {
      // They end with the page.
    }
    this.threads = [];
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = undefined;
  }
}

/** A script's address for pages that require Trusted Types; pkg-template/src/trusted.ts creates the policy for the facade. */
function scriptUrl(address) {
  const name = Symbol.for("jerboa.policy");
  const { trustedTypes } = globalThis;
  return (globalThis[name] ??= trustedTypes?.createPolicy("jerboa", { createScriptURL: (url) => url }))?.createScriptURL(address) ?? address;
}

const threads = new Threads();

/** URL prefix of all entry names. */
const PREFIX = "https://jerboa.invalid/";

/** Milliseconds after which an unfinished entry is abandoned. */
const STALE_MS = 3_600_000;

/** Changes a file. Retries while another tab reads or writes it, which takes milliseconds. */
async function whenUnlocked(change) {
  for (let pause = 10; ; pause *= 2) {
    try {
      return await change();
    } catch (error) {
      if (error.name !== "NoModificationAllowedError" || pause > 500) throw error;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

/**
 * A folder of the origin private file system with the Cache interface, where `write` replaces `put`. An entry is a file,
 * written under a temporary name and moved when complete. Workers read and write files directly, two to three times as fast
 * as a Cache in Chromium and Firefox. WebKit's Cache would hold a copy in memory, and so would bytes in a stream, which are
 * left for pages that may start no worker.
 */
class Folder {
  /** `older`: a Cache that may have entries of an earlier version. */
  constructor(root, name, older) {
    this.root = root;
    this.name = name;
    this.older = older;
  }

  /** The folder and file name of an entry. */
  async locate(key, create) {
    const names = key.slice(PREFIX.length).split("/");
    const last = names.pop();
    return [await openFolder(this.root, names, create), last];
  }

  /** The path of an entry's file. */
  path(key) {
    return [this.name, ...key.slice(PREFIX.length).split("/")];
  }

  async match(key) {
    const file = await this.locate(key, false).then(([folder, name]) => folder.getFileHandle(name)).catch(() => undefined);
    return file ? { arrayBuffer: async () => (await readFile(file)).buffer } : this.older?.match(key);
  }

  /** Writes an entry and may transfer its bytes; a large one is written in a thread. */
  async write(key, bytes, large) {
    const unfinished = await this.root.getDirectoryHandle(UNFINISHED, { create: true });
    const own = crypto.randomUUID();
    try {
      const file = await unfinished.getFileHandle(own, { create: true });
      const threaded = (large || !file.createSyncAccessHandle) && (await threads.write({ path: [this.name, UNFINISHED, own] }, bytes));
      if (!threaded) await fillFile(file, bytes);
      // Files are found first, so nothing waits for this.
      this.older?.delete(key).catch(() => {});
      await this.complete(file, key);
    } catch (error) {
      await whenUnlocked(() => unfinished.removeEntry(own)).catch(() => {});
      throw error;
    }
  }

  /** Moves a written file to its entry. */
  async complete(file, key) {
    const move = async () => file.move(...(await this.locate(key, true)));
    try {
      await move();
    } catch {
      // The target may exist, or its folder may have been removed with its last entry.
      const [folder, name] = await this.locate(key, true);
      await whenUnlocked(() => folder.removeEntry(name, { recursive: true })).catch(() => {});
      await whenUnlocked(move);
    }
  }

  /** Removes an entry, if it exists. */
  async delete(key) {
    const removed = this.remove(key).catch((error) => {
      // A file in place of a folder leaves no room for the entry either.
      if (!["NotFoundError", "TypeMismatchError"].includes(error.name)) throw error;
    });
    await Promise.all([removed, this.older?.delete(key)]);
  }

  async remove(key) {
    const names = key.slice(PREFIX.length).split("/");
    const [folder, name] = await this.locate(key, false);
    await whenUnlocked(() => folder.removeEntry(name, { recursive: true }));
    try {
      // Remove folders that became empty.
      for (names.pop(); names.length > 0; names.pop()) {
        const [above, inner] = await this.locate(PREFIX + names.join("/"), false);
        await above.removeEntry(inner);
      }
    } catch {
      // The folder has other entries.
    }
  }

  async keys() {
    const found = await this.list(this.root, PREFIX);
    const known = new Set(found.map(({ url }) => url));
    const others = [];
    for (const { url } of (await this.older?.keys()) ?? []) {
      if (known.has(url)) void this.older.delete(url).catch(() => {});
      else others.push({ url });
    }
    if (this.older && others.length === 0) {
      void host.store.delete(this.name).catch(() => {});
      this.older = undefined;
    }
    return [...found, ...others];
  }

  /** The entries of a folder. One that another call or tab removes meanwhile has none. */
  async list(folder, path) {
    const found = [];
    try {
      for await (const [name, handle] of folder) {
        if (name === UNFINISHED && folder === this.root) await this.sweep(handle).catch(() => {});
        else if (handle.kind === "file") found.push({ url: path + name });
        else found.push(...(await this.list(handle, `${path}${name}/`)));
      }
    } catch (error) {
      if (error.name !== "NotFoundError") throw error;
    }
    return found;
  }

  /** Removes files left unfinished by an earlier page. */
  async sweep(unfinished) {
    for await (const [name, handle] of unfinished) {
      const file = await handle.getFile().catch(() => undefined);
      if (file && Date.now() - file.lastModified > STALE_MS) await unfinished.removeEntry(name).catch(() => {});
    }
  }
}

/**
 * Opens the store of a name: a private folder if the browser has them and the host gives no store of its own, else a Cache;
 * undefined if the page has neither.
 */
export async function openStore(name) {
  const { store, storage } = host;
  const isOwn = store === globalThis.caches && storage === globalThis.navigator?.storage;
  if (isOwn && globalThis.FileSystemFileHandle?.prototype.move) {
    try {
      const opened = storage.getDirectory().then((root) => root.getDirectoryHandle(name, { create: true }));
      const root = await answered("navigator.storage.getDirectory()", OPEN_TIMEOUT_MS, opened);
      return withDeadlines(new Folder(root, name, await olderCache(store, name)));
    } catch {
      // Not available in some private windows.
    }
  }
  if (!store) return undefined;
  return withDeadlines(await answered("caches.open()", OPEN_TIMEOUT_MS, store.open(name)));
}

/** The Cache of a name with entries of a version that had no private folder; `keys` removes it once it has none. */
async function olderCache(store, name) {
  const open = async () => ((await store?.has(name)) ? store.open(name) : undefined);
  return answered("caches.open()", OPEN_TIMEOUT_MS, open()).catch(() => undefined);
}

/**
 * Reads an entry; undefined if it is missing. Large ones are read in a thread; a small one starts the threads, since
 * large ones follow.
 */
export function readEntry(cache, name, key, large) {
  return storeAnswer(cache, "match", () => readNow(cache, name, key, large));
}

async function readNow(cache, name, key, large) {
  const read = large ? await threads.read(entryRequest(cache, name, key)) : undefined;
  if (read) return read;
  const found = await cache.match(key);
  if (found && !large) threads.start();
  return found && new Uint8Array(await found.arrayBuffer());
}

/** Names an entry for the threads. */
function entryRequest(cache, name, key) {
  const inCache = { name, key };
  if (!(cache instanceof Folder)) return inCache;
  return { path: cache.path(key), ...(cache.older && inCache) };
}

/** Writes an entry, a large one in a thread: that takes as long as a fast download. Its bytes are copied at once. */
export function writeEntry(cache, name, key, bytes, large) {
  return storeAnswer(cache, "put", async () => {
    // The engine transfers its bytes to the GPU afterwards.
    const copy = bytes.slice();
    if (cache instanceof Folder) return cache.write(key, copy, large);
    if (!large || !(await threads.write({ name, key }, copy))) await cache.put(key, new Response(copy));
  });
}

/** Updates a SHA-256 with an entry of `size` bytes (`end`: see `sha256`); undefined if it is missing or has another size. */
export function hashEntry(cache, name, key, words, size, end) {
  return storeAnswer(cache, "match", () => hashNow(cache, name, key, words, size, end));
}

async function hashNow(cache, name, key, words, size, end) {
  const hash = [words.slice(), size, end];
  const done = await threads.read(entryRequest(cache, name, key), hash);
  if (done) return done;
  const bytes = await readNow(cache, name, key);
  return bytes && sha256(bytes, hash);
}
