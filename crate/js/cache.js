/**
 * What a thread that only reads does: an entry of a cache goes back with its bytes, or with nothing where there is none or it cannot be read.
 */
const READER = `onmessage = async ({ data: [id, name, key] }) => {
  try {
    const found = await (await caches.open(name)).match(key);
    const bytes = found ? await found.arrayBuffer() : undefined;
    postMessage([id, bytes], bytes ? [bytes] : []);
  } catch {
    postMessage([id]);
  }
};`;

/** How many of them there are. */
const THREADS = 2;

/** Milliseconds without a question after which the threads end, and after which an answer is no longer waited for. */
const IDLE = 1000;
const PATIENCE = 5000;

/** Threads that read while WebAssembly works on this one; where the page's policy allows none, there are none. */
class Readers {
  threads = [];
  waiting = new Map();
  count = 0;
  refused = typeof Worker === "undefined";

  /** Starts the threads, which takes some time. */
  start() {
    if (this.refused || this.threads.length > 0) return;
    try {
      const address = URL.createObjectURL(new Blob([READER], { type: "text/javascript" }));
      this.address = address;
      for (let i = 0; i < THREADS; i++) this.threads.push(this.thread(address));
    } catch {
      this.refuse();
    }
    this.rest();
  }

  thread(address) {
    const thread = new Worker(address, { name: "jerboa-reader" });
    thread.onmessage = ({ data: [id, bytes] }) => this.answer(id, bytes);
    thread.onerror = () => this.refuse();
    return thread;
  }

  /** The bytes of an entry, or nothing where the threads have none to give. */
  read(name, key) {
    this.start();
    if (this.refused) return undefined;
    clearTimeout(this.idle);
    const id = this.count++;
    return new Promise((resolve) => {
      this.waiting.set(id, { resolve, timer: setTimeout(() => this.answer(id), PATIENCE) });
      this.threads[id % THREADS].postMessage([id, name, key]);
    });
  }

  answer(id, bytes) {
    const asked = this.waiting.get(id);
    if (!asked) return;
    clearTimeout(asked.timer);
    this.waiting.delete(id);
    asked.resolve(bytes && new Uint8Array(bytes));
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
    for (const thread of this.threads) thread.terminate();
    this.threads = [];
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = undefined;
  }
}

const readers = new Readers();

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
  const read = large && !(cache instanceof Folder) ? await readers.read(name, key) : undefined;
  if (read) return read;
  const found = await cache.match(key);
  if (found && !large && !(cache instanceof Folder)) readers.start();
  return found && new Uint8Array(await found.arrayBuffer());
}
