/** Stores of downloads: private files, written directly in a worker and by threads on a page, and the cache that replaces them. */

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { CHROME, launch } from "./support/browser.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 120_000 };
let server, browser, page;

/** Exercises a store on any thread; serialized, so it cannot use this file's variables. */
async function work(url, name, hasFiles) {
  if (!hasFiles) navigator.storage.getDirectory = () => Promise.reject(new DOMException("none in this window", "SecurityError"));
  const { openStore, readEntry, writeEntry } = await import(url);
  const store = await openStore(name);
  const key = (entry) => `https://jerboa.invalid/https%3A%2F%2Fhub%2Forg%2Fmodel%40main/${entry}`;
  const put = (entry, count, value) => writeEntry(store, name, key(entry), new Uint8Array(count).fill(value), entry.startsWith("large"));
  const read = async (entry) => {
    const found = await readEntry(store, name, key(entry), entry.startsWith("large"));
    return found && [found.length, found[0], found.at(-1)];
  };
  await Promise.all([put("large/0", 3e6, 1), put("large/1", 7, 2), put("config.json/manifest", 1, 3)]);
  await Promise.all([put("large/1", 9, 4), put("large/1", 9, 4)]);
  const first = [await read("large/0"), await read("large/1"), await read("config.json/manifest"), await read("none"), await read("large/none")];
  const names = (await store.keys()).map((request) => request.url).sort();
  await store.delete(key("large/0"));
  await store.delete(key("large/nothing")).catch(() => {});
  const left = [await read("large/0"), await read("large/1"), (await store.keys()).length];
  for (const { url } of await store.keys()) await store.delete(url).catch(() => {});
  return { first, names: names.map((name) => name.slice(-12)), left, end: (await store.keys()).length, kind: store.constructor.name };
}

/** Calls a function, serialized, on a page. */
const onPage = (work, args) => page.evaluate(([source, args]) => new Function(`return ${source}`)()(...args), [work.toString(), args]);

/** The same in a worker of a page, after other code. */
const inWorker = (tab, work, args, before = "") =>
  tab.evaluate(
    ([source, args, before]) => {
      const code = `${before}\n(${source})(...${JSON.stringify(args)}).then(postMessage, (error) => postMessage(String(error.stack)))`;
      const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
      return new Promise((resolve) => (worker.onmessage = ({ data }) => resolve(data))).finally(() => worker.terminate());
    },
    [work.toString(), args, before],
  );

before(async () => {
  server = await serve({ "/": `${ROOT}/crate/js` });
  browser = await launch();
  page = await browser.newPage();
  await page.goto(`${server.url}/text.js`);
}, options);

after(async () => {
  await browser?.close();
  await server?.close();
});

test("entries come and go in a worker and on a page as in a cache", options, async () => {
  const run = (thread, hasFiles) => {
    const args = [`${server.url}/cache.js`, `jerboa-${thread}-${hasFiles}`, hasFiles];
    return thread === "page" ? onPage(work, args) : inWorker(page, work, args);
  };
  for (const [thread, hasFiles] of [["page", true], ["worker", true], ["worker", false]]) {
    assert.deepEqual(
      await run(thread, hasFiles),
      {
        first: [[3e6, 1, 1], [9, 4, 4], [1, 3, 3], undefined, undefined],
        names: ["son/manifest", "main/large/0", "main/large/1"].map((name) => name.slice(-12)),
        left: [undefined, [9, 4, 4], 2],
        end: 0,
        kind: hasFiles ? "Folder" : "Cache",
      },
      `${thread}, ${hasFiles ? "private files" : "a cache"}`,
    );
  }
  // Folders without entries are gone, and nothing unfinished is left.
  assert.deepEqual(await privateFiles(), ["jerboa-page-true/~unfinished", "jerboa-worker-true/~unfinished"]);
});

/** All private files and empty folders of the page's origin. */
const privateFiles = () =>
  page.evaluate(async () => {
    const found = [];
    const walk = async (folder, path) => {
      const before = found.length;
      for await (const [name, handle] of folder) await (handle.kind === "directory" ? walk(handle, `${path}/${name}`) : found.push(`${path}/${name}`));
      if (found.length === before) found.push(path);
    };
    await walk(await navigator.storage.getDirectory(), "");
    return found.map((path) => path.slice(1)).sort();
  });

/** Runs in a page with the store `name` and the keys of entries `a` and `b`. */
const withStore = (name, run) =>
  page.evaluate(
    async ([url, name, source]) => {
      const module = await import(url);
      const bytes = async (store, key, large = false) => [...((await module.readEntry(store, name, key, large)) ?? [])];
      const write = (store, key, ...values) => module.writeEntry(store, name, key, Uint8Array.of(...values), false);
      return new Function(`return ${source}`)()({ ...module, name, bytes, write, a: "https://jerboa.invalid/model/a", b: "https://jerboa.invalid/model/b" });
    },
    [`${server.url}/cache.js`, name, run.toString()],
  );

test("entries of an earlier version's cache are read, replaced and removed", options, async () => {
  const found = await withStore("jerboa-older", async ({ openStore, name, bytes, write, a, b }) => {
    const cache = await caches.open(name);
    await cache.put(a, new Response(Uint8Array.of(1)));
    await cache.put(b, new Response(Uint8Array.of(2)));
    const store = await openStore(name);
    const first = [store.constructor.name, await bytes(store, a), await bytes(store, b, true), (await store.keys()).length];
    await write(store, a, 3);
    const second = [await bytes(store, a), await bytes(store, a, true), (await store.keys()).length];
    // In a window without private files an entry may have been cached again.
    await cache.put(a, new Response(Uint8Array.of(4)));
    const third = [await bytes(store, a), await bytes(store, a, true), (await store.keys()).length, (await cache.keys()).map(({ url }) => url === b)];
    await store.delete(b);
    await store.delete(b);
    const fourth = [await bytes(store, b), await bytes(store, b, true), (await store.keys()).map(({ url }) => url === a)];
    return { first, second, third, fourth, left: await caches.has(name) };
  });
  assert.deepEqual(found, { first: ["Folder", [1], [2], 2], second: [[3], [3], 2], third: [[3], [3], 2, [true]], fourth: [[], [], [true]], left: false });
});

test("a host's own store is used in place of private files", options, async () => {
  const found = await withStore("jerboa-given", async ({ openStore, name, write, a }) => {
    const { setHost } = await import(new URL("host.js", location.href));
    const put = [];
    setHost({ store: { open: async () => ({ put: async (key) => void put.push(key), keys: async () => [], delete: async () => true }), has: async () => false } });
    const store = await openStore(name);
    await write(store, a, 1);
    setHost({});
    return { kind: store.constructor.name, put };
  });
  assert.deepEqual(found, { kind: "Object", put: ["https://jerboa.invalid/model/a"] });
});

test("an entry that another tab reads is replaced and removed once it is read, and can be read meanwhile", options, async () => {
  const found = await withStore("jerboa-locked", async ({ openStore, name, bytes, write, a }) => {
    const store = await openStore(name);
    await write(store, a, 1);
    /** Another tab that uses the entry in a mode, until it receives a message. */
    const lock = async (mode) => {
      const code = `onmessage = async ({ data }) => {
        if (data === "end") return access.close(), postMessage("ended");
        const folder = await (await (await navigator.storage.getDirectory()).getDirectoryHandle(${JSON.stringify(name)})).getDirectoryHandle("model");
        self.access = await (await folder.getFileHandle("a")).createSyncAccessHandle({ mode: "${mode}" });
        postMessage("reads");
      }`;
      const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
      const ask = (message) => new Promise((resolve) => (worker.onmessage = resolve, worker.postMessage(message)));
      await ask("begin");
      return () => ask("end");
    };
    let end = await lock("read-only");
    const meanwhile = [await bytes(store, a), await bytes(store, a, true)];
    await end();
    // Browsers without modes lock files for one reader.
    end = await lock("readwrite");
    meanwhile.push(await bytes(store, a), await bytes(store, a, true));
    const writing = write(store, a, 2);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await end();
    await writing;
    const replaced = await bytes(store, a);
    end = await lock("read-only");
    const removing = store.delete(a);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await end();
    await removing;
    return { meanwhile, replaced, removed: await bytes(store, a), left: (await store.keys()).length };
  });
  assert.deepEqual(found, { meanwhile: [[1], [1], [1], [1]], replaced: [2], removed: [], left: 0 });
});

test("entries that several calls remove at once are all removed, and others stay listed", options, async () => {
  const found = await withStore("jerboa-many", async ({ openStore, name, write }) => {
    const store = await openStore(name);
    const keys = Array.from({ length: 24 }, (_, i) => `https://jerboa.invalid/model${i}/file/0`);
    await Promise.all(keys.map((key) => write(store, key, 1)));
    const last = keys.pop();
    const listed = [];
    /** Lists before it removes, as the engine does to find a model's entries. */
    const remove = async (key) => {
      const all = (await store.keys()).map(({ url }) => url);
      listed.push(all.includes(last));
      if (all.includes(key)) await store.delete(key);
    };
    await Promise.all(keys.map(remove));
    return { listed: listed.every(Boolean), left: (await store.keys()).map(({ url }) => url === last) };
  });
  assert.deepEqual(found, { listed: true, left: [true] });
});

test("entries of the wrong kind are replaced and removed", options, async () => {
  const found = await withStore("jerboa-kinds", async ({ openStore, name, bytes, write, a, b }) => {
    const store = await openStore(name);
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle(name);
    const inFolder = async () => (await (await root.getDirectoryHandle("model", { create: true })).getDirectoryHandle("a", { create: true })).getFileHandle("x", { create: true });
    await inFolder();
    await write(store, a, 1);
    const replaced = await bytes(store, a);
    await store.delete(a);
    await inFolder();
    await store.delete(a);
    const removed = (await store.keys()).length;
    await root.removeEntry("~unfinished", { recursive: true });
    await root.getFileHandle("~unfinished", { create: true });
    await root.getDirectoryHandle("model", { create: true }).then((folder) => folder.getFileHandle("b", { create: true }));
    return { replaced, removed, listed: (await store.keys()).map(({ url }) => url === b) };
  });
  assert.deepEqual(found, { replaced: [1], removed: 0, listed: [true] });
});

test("Chromium counts stored files after a restart, and no longer once they are removed", options, async () => {
  const profile = await mkdtemp(join(tmpdir(), "jerboa-profile-"));
  const size = 3e6;
  /** Runs in a worker of a browser that starts with the profile. */
  const inBrowser = async (source) => {
    const context = await chromium.launchPersistentContext(profile, { executablePath: CHROME, headless: true, args: ["--no-sandbox"] });
    const tab = await context.newPage();
    await tab.goto(`${server.url}/text.js`);
    const found = await inWorker(tab, source, [`${server.url}/cache.js`]);
    await context.close();
    return found;
  };
  const usage = async () => (await navigator.storage.estimate()).usage;
  try {
    await inBrowser(async (url) => {
      const { openStore, writeEntry } = await import(url);
      const store = await openStore("jerboa-counted");
      for (const large of [false, true]) await writeEntry(store, "jerboa-counted", `https://jerboa.invalid/model/${large}`, new Uint8Array(3e6), large);
    });
    const stored = await inBrowser(usage);
    assert.ok(stored >= 2 * size && stored < 2.1 * size, `${stored} bytes`);
    await inBrowser(async (url) => {
      const store = await (await import(url)).openStore("jerboa-counted");
      for (const { url } of await store.keys()) await store.delete(url);
    });
    const removed = await inBrowser(usage);
    assert.ok(removed < 0.1 * size, `${removed} bytes`);
  } finally {
    await rm(profile, { recursive: true, force: true });
  }
});

test("an entry that cannot be removed is an error, one that does not exist is none", options, async () => {
  const found = await withStore("jerboa-locked", async ({ openStore, name, write, a, b }) => {
    const store = await openStore(name);
    await write(store, a, 1);
    const remove = (key) => store.delete(key).then(() => "done", (error) => error.message);
    const absent = [await remove(b), await remove(`${a}/below`), await remove("https://jerboa.invalid/none/a")];
    const { removeEntry } = FileSystemDirectoryHandle.prototype;
    FileSystemDirectoryHandle.prototype.removeEntry = () => Promise.reject(new DOMException("the file is in use", "NoModificationAllowedError"));
    const locked = await remove(a);
    FileSystemDirectoryHandle.prototype.removeEntry = removeEntry;
    return { absent, locked, removed: await remove(a), left: (await store.keys()).length };
  });
  assert.deepEqual(found, { absent: ["done", "done", "done"], locked: "the file is in use", removed: "done", left: 0 });
});

test("a browser whose access handles fail stores entries by a stream", options, async () => {
  const store = async (url) => {
    FileSystemFileHandle.prototype.createSyncAccessHandle = () => Promise.reject(new DOMException("none", "NotSupportedError"));
    const { openStore, readEntry, writeEntry } = await import(url);
    const store = await openStore("jerboa-handles");
    await writeEntry(store, "jerboa-handles", "https://jerboa.invalid/model/a", Uint8Array.of(5), false);
    return [...(await readEntry(store, "jerboa-handles", "https://jerboa.invalid/model/a", false))];
  };
  const found = await inWorker(page, store, [`${server.url}/cache.js`]);
  assert.deepEqual(found, [5]);
});

/** Runs on a page or in a worker: what writing an entry reports on a full disk. Serialized, so it cannot use this file's variables. */
async function fill(url, name, large) {
  const full = () => Promise.reject(new DOMException("no room is left", "QuotaExceededError"));
  if (typeof FileSystemWritableFileStream !== "undefined") FileSystemWritableFileStream.prototype.write = full;
  // A disk that takes a part only.
  if (typeof FileSystemSyncAccessHandle !== "undefined") FileSystemSyncAccessHandle.prototype.write = () => 1;
  const { openStore, writeEntry } = await import(url);
  const store = await openStore(name);
  const written = await writeEntry(store, name, "https://jerboa.invalid/model/a", new Uint8Array(9), large).then(() => "written", (error) => error.name);
  return { written, left: (await store.keys()).length };
}

test("what cannot be written leaves no file", options, async () => {
  // Threads whose disk is full.
  const threads = `const Thread = Worker;
    self.Worker = function (address, options) {
      const code = "FileSystemSyncAccessHandle.prototype.write = () => 1; importScripts(" + JSON.stringify(address) + ");";
      return new Thread(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), options);
    };`;
  const url = `${server.url}/cache.js`;
  const found = { own: await inWorker(page, fill, [url, "jerboa-full", false]), thread: await inWorker(page, fill, [url, "jerboa-full", true], threads) };
  await page.evaluate(() => {
    window.Worker = undefined;
  });
  found.page = await onPage(fill, [`${url}?full`, "jerboa-full", false]);
  const refused = { written: "QuotaExceededError", left: 0 };
  assert.deepEqual(found, { own: refused, thread: refused, page: refused });
  assert.deepEqual((await privateFiles()).filter((path) => path.startsWith("jerboa-full")), ["jerboa-full/~unfinished"]);
});
