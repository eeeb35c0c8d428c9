/**
 * The eight words of a SHA-256 (FIPS 180-4) after more bytes: whole blocks of 64, or the last ones of `end`; nothing where they are not
 * `size`. Threads have a copy of its text, so it knows nothing around it.
 */
function sha256(bytes, [words, size, end]) {
  if (bytes.length !== size) return undefined;
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const rounds = Int32Array.from(primes, (prime) => (Math.cbrt(prime) % 1) * 2 ** 32);
  const state = Int32Array.from(words);
  const w = new Int32Array(64);
  // Rotations are written out: as a function they take three times as long.
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

/**
 * What a thread does that reads and writes: an entry of a cache goes back with its bytes or what they add to a hash, or with nothing where
 * there is none or it cannot be read; or one is written, which says true, or the name and the text of what went wrong. The first message
 * says that it runs.
 */
const THREAD = `const sha256 = ${sha256};
onmessage = async ({ data: [id, name, key, entry, hash] }) => {
  try {
    const cache = await caches.open(name);
    if (entry) return await cache.put(key, new Response(entry)), postMessage([id, true]);
    const found = await cache.match(key);
    const bytes = found && new Uint8Array(await found.arrayBuffer());
    if (hash) postMessage([id, bytes && sha256(bytes, hash)]);
    else postMessage([id, bytes], bytes ? [bytes.buffer] : []);
  } catch (error) {
    postMessage([id, undefined, [error.message, error.name]]);
  }
};
postMessage([]);`;

/** How many of them there are. */
const THREADS = 2;

/** Milliseconds without a question after which the threads end, and after which bytes are no longer waited for. */
const IDLE = 1000;
const PATIENCE = 5000;

/** Threads that read and write while this one works; where the page's policy allows none, there are none. */
class Threads {
  threads = [];
  waiting = new Map();
  count = 0;
  refused = typeof Worker === "undefined";

  /** Starts the threads, which takes some time. */
  start() {
    if (this.refused || this.threads.length > 0) return;
    this.up = new Promise((resolve) => (this.told = resolve));
    try {
      const address = URL.createObjectURL(new Blob([THREAD], { type: "text/javascript" }));
      this.address = address;
      for (let i = 0; i < THREADS; i++) this.threads.push(this.thread(address));
    } catch {
      this.refuse();
    }
    this.rest();
  }

  thread(address) {
    const thread = new Worker(address, { name: "cache" });
    thread.onmessage = ({ data: [id, ...answer] }) => (id === undefined ? this.told(true) : this.answer(id, ...answer));
    thread.onerror = () => this.refuse();
    return thread;
  }

  /** The bytes of an entry, or what they add to a hash; nothing where the threads have none to give. */
  async take(name, key, hash) {
    this.start();
    if (this.refused) return undefined;
    const id = this.count;
    setTimeout(() => this.answer(id), PATIENCE);
    return this.ask([name, key, undefined, hash]).catch(() => {});
  }

  /** Writes an entry: on this thread where there are no others, which only a start tells. */
  async write(cache, name, key, bytes) {
    // The engine gives its bytes to the GPU, and up after that.
    const copy = bytes.slice();
    this.start();
    if (this.refused || !(await this.up)) return cache.put(key, new Response(copy));
    if (!(await this.ask([name, key, copy], [copy.buffer]))) throw new Error("its thread has ended");
  }

  ask(question, transfer) {
    clearTimeout(this.idle);
    const id = this.count++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.threads[id % THREADS].postMessage([id, ...question], transfer);
    });
  }

  answer(id, result, error) {
    const asked = this.waiting.get(id);
    if (!asked) return;
    this.waiting.delete(id);
    if (error) asked.reject(new DOMException(...error));
    else asked.resolve(result);
    this.rest();
  }

  /** Ends the threads unless they are soon asked again. */
  rest() {
    clearTimeout(this.idle);
    if (this.waiting.size === 0) this.idle = setTimeout(() => this.end(), IDLE);
  }

  refuse() {
    this.refused = true;
    this.end();
    for (const id of [...this.waiting.keys()]) this.answer(id);
  }

  end() {
    this.told?.(false);
    for (const thread of this.threads) thread.terminate();
    this.threads = [];
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = undefined;
  }
}

const threads = new Threads();

/** Before the entries' names in their addresses. */
const PREFIX = "https://jerboa.invalid/";

/** Where entries are while they are written. */
const UNFINISHED = "~unfinished";

/** Milliseconds after which nobody writes an unfinished entry any more. */
const STALE = 3_600_000;

/**
 * A folder of the origin's private file system that looks like a cache: an entry is a file, written elsewhere and moved to its place when it is whole.
 * In workers bytes go straight into the file; WebKit's caches would hold a copy of them in memory.
 */
class Folder {
  constructor(root) {
    this.root = root;
  }

  /** The folder and the name of an entry's file. */
  async place(key, create) {
    const names = key.slice(PREFIX.length).split("/");
    const last = names.pop();
    let folder = this.root;
    for (const name of names) folder = await folder.getDirectoryHandle(name, { create });
    return [folder, last];
  }

  async match(key) {
    try {
      const [folder, name] = await this.place(key, false);
      return await (await folder.getFileHandle(name)).getFile();
    } catch {
      return undefined;
    }
  }

  async put(key, response) {
    const bytes = new Uint8Array(await response.arrayBuffer());
    const unfinished = await this.root.getDirectoryHandle(UNFINISHED, { create: true });
    const own = crypto.randomUUID();
    try {
      const file = await unfinished.getFileHandle(own, { create: true });
      if (file.createSyncAccessHandle) {
        const access = await file.createSyncAccessHandle();
        try {
          if (access.write(bytes, { at: 0 }) !== bytes.length) throw new DOMException("The disk is full.", "QuotaExceededError");
          access.flush();
        } finally {
          access.close();
        }
      } else {
        const stream = await file.createWritable();
        await stream.write(bytes);
        await stream.close();
      }
      await file.move(...(await this.place(key, true))).catch(async () => {
        // What is there is not always replaced, and a folder may have gone with its last entry.
        const [folder, name] = await this.place(key, true);
        await folder.removeEntry(name).catch(() => {});
        await file.move(folder, name);
      });
    } catch (error) {
      await unfinished.removeEntry(own).catch(() => {});
      throw error;
    }
  }

  async delete(key) {
    const names = key.slice(PREFIX.length).split("/");
    const [folder, name] = await this.place(key, false);
    await folder.removeEntry(name);
    try {
      // Folders go with their last entries.
      for (names.pop(); names.length > 0; names.pop()) {
        const [above, inner] = await this.place(PREFIX + names.join("/"), false);
        await above.removeEntry(inner);
      }
    } catch {
      // There are others.
    }
  }

  async keys(folder = this.root, path = PREFIX) {
    const found = [];
    for await (const [name, handle] of folder) {
      if (name === UNFINISHED && folder === this.root) await this.sweep(handle);
      else if (handle.kind === "file") found.push({ url: path + name });
      else found.push(...(await this.keys(handle, `${path}${name}/`)));
    }
    return found;
  }

  /** Removes what was being written when a page ended. */
  async sweep(unfinished) {
    for await (const [name, handle] of unfinished) {
      const file = await handle.getFile().catch(() => undefined);
      if (file && Date.now() - file.lastModified > STALE) await unfinished.removeEntry(name).catch(() => {});
    }
  }
}

/** The store of a name: a folder of the private file system where that is wanted and there is one, else a cache; nothing where the page has neither. */
export async function openStore(name, folder) {
  if (folder && globalThis.FileSystemFileHandle?.prototype.move) {
    try {
      return new Folder(await (await navigator.storage.getDirectory()).getDirectoryHandle(name, { create: true }));
    } catch {
      // Private windows have none.
    }
  }
  return globalThis.caches?.open(name);
}

/** The bytes of an entry, or nothing. A large one is read on a thread of its own; a small one tells that such are next. */
export async function readEntry(cache, name, key, large) {
  const read = large && !(cache instanceof Folder) ? await threads.take(name, key) : undefined;
  if (read) return read;
  const found = await cache.match(key);
  if (found && !large && !(cache instanceof Folder)) threads.start();
  return found && new Uint8Array(await found.arrayBuffer());
}

/** Writes an entry; a large one on a thread of its own: the copies that a browser makes of it take as long as a fast download. */
export function writeEntry(cache, name, key, bytes, large) {
  return large && !(cache instanceof Folder) ? threads.write(cache, name, key, bytes) : cache.put(key, new Response(bytes));
}

/** The eight words of a SHA-256 after an entry of `size` bytes, the last of `end`; nothing where it is not there so. */
export async function hashEntry(cache, name, key, words, size, end) {
  const hash = [words.slice(), size, end];
  const done = cache instanceof Folder ? undefined : await threads.take(name, key, hash);
  if (done) return done;
  const bytes = await readEntry(cache, name, key);
  return bytes && sha256(bytes, hash);
}
