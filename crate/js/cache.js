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

/** The bytes of an entry, or nothing. A large one is read on a thread of its own; a small one tells that such are next. */
export async function readEntry(cache, name, key, large) {
  const read = large ? await readers.read(name, key) : undefined;
  if (read) return read;
  const found = await cache.match(key);
  if (found && !large) readers.start();
  return found && new Uint8Array(await found.arrayBuffer());
}
