/** The store in the origin's private file system, which replaces the cache on WebKit: in a worker, which writes files directly, and on a page. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch } from "./support/browser.mjs";
import { ROOT } from "./support/paths.mjs";
import { serve } from "./support/server.mjs";

const options = { timeout: 120_000 };
let server, browser, page;

/** Exercises a store on any thread; serialized, so it cannot use this file's variables. */
async function work(url, name, forced) {
  const { openStore, readEntry } = await import(url);
  const store = await openStore(name, forced);
  const key = (entry) => `https://jerboa.invalid/https%3A%2F%2Fhub%2Forg%2Fmodel%40main/${entry}`;
  const bytes = (count, value) => new Response(new Uint8Array(count).fill(value));
  const read = async (entry) => {
    const found = await readEntry(store, name, key(entry), entry.startsWith("large"));
    return found && [found.length, found[0], found.at(-1)];
  };
  await Promise.all([store.put(key("large/0"), bytes(3e6, 1)), store.put(key("large/1"), bytes(7, 2)), store.put(key("config.json/manifest"), bytes(1, 3))]);
  await Promise.all([store.put(key("large/1"), bytes(9, 4)), store.put(key("large/1"), bytes(9, 4))]);
  const first = [await read("large/0"), await read("large/1"), await read("config.json/manifest"), await read("none"), await read("large/none")];
  const names = (await store.keys()).map((request) => request.url).sort();
  await store.delete(key("large/0"));
  await store.delete(key("large/nothing")).catch(() => {});
  const left = [await read("large/0"), await read("large/1"), (await store.keys()).length];
  // What a page that ended was writing is no entry.
  await store.put(key("again"), { arrayBuffer: () => Promise.reject(new Error("cut")) }).catch(() => {});
  const after = (await store.keys()).length;
  for (const { url } of await store.keys()) await store.delete(url).catch(() => {});
  return { first, names: names.map((name) => name.slice(-12)), left, after, end: (await store.keys()).length, kind: store.constructor.name };
}

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
  const url = `${server.url}/cache.js`;
  const run = (thread, forced) =>
    page.evaluate(
      async ([source, url, thread, forced]) => {
        const name = `jerboa-${thread}-${forced}`;
        if (thread === "page") return new Function(`return ${source}`)()(url, name, forced);
        const code = `(${source})(${JSON.stringify(url)}, ${JSON.stringify(name)}, ${forced}).then(postMessage, (error) => postMessage(String(error.stack)))`;
        const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
        const found = await new Promise((resolve) => (worker.onmessage = ({ data }) => resolve(data)));
        worker.terminate();
        return found;
      },
      [work.toString(), url, thread, forced],
    );
  for (const [thread, forced] of [["page", true], ["worker", true], ["page", false]]) {
    assert.deepEqual(
      await run(thread, forced),
      {
        first: [[3e6, 1, 1], [9, 4, 4], [1, 3, 3], undefined, undefined],
        names: ["son/manifest", "main/large/0", "main/large/1"].map((name) => name.slice(-12)),
        left: [undefined, [9, 4, 4], 2],
        after: 2,
        end: 0,
        kind: forced ? "Folder" : "Cache",
      },
      `${thread}, ${forced ? "private files" : "a cache"}`,
    );
  }
  // Folders without entries are gone.
  const folders = await page.evaluate(async () => {
    const found = [];
    for await (const [name, handle] of await navigator.storage.getDirectory()) for await (const [inner] of handle) found.push(`${name}/${inner}`);
    return found.sort();
  });
  assert.deepEqual(folders, ["jerboa-page-true/~unfinished", "jerboa-worker-true/~unfinished"]);
});
