/** Caches the page's own files, so that it opens offline. Requests for models pass through: the engine caches them. */

const SHELL = "jerboa-shell-1";
const PARTS = new Set(["script", "style", "worker", "font", "image", "manifest"]);

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

/** Classifies a request: the page's document, one of its assets, or neither. */
function kind(request) {
  const { origin, pathname } = new URL(request.url);
  const inside = origin === location.origin && pathname.startsWith(new URL("./", location.href).pathname);
  if (!inside || request.method !== "GET" || request.headers.has("range") || pathname.includes("/models/")) return undefined;
  if (request.mode === "navigate") return "document";
  return PARTS.has(request.destination) || pathname.endsWith(".wasm") ? "part" : undefined;
}

self.addEventListener("fetch", (event) => {
  const what = kind(event.request);
  if (what === "document") event.respondWith(documentOf(event.request));
  else if (what === "part") event.respondWith(partOf(event.request));
});

/** Network first; a new page removes the old page's assets. */
async function documentOf(request) {
  let answer, text;
  try {
    answer = await fetch(request);
    if (!answer.ok) return answer;
    text = await answer.clone().text();
  } catch (error) {
    const cached = await attempt((shell) => shell.match(request, { ignoreSearch: true }));
    if (cached) return cached;
    throw error;
  }
  await attempt(async (shell) => {
    const url = withoutSearch(request);
    const before = await (await shell.match(url))?.text();
    // The old page goes only once the new one is stored: storage may be full.
    await shell.put(url, answer.clone());
    if (before === undefined || before === text) return;
    const old = (await shell.keys()).filter((key) => key.url.replace(/#.*/, "") !== url);
    await Promise.all(old.map((key) => shell.delete(key)));
  });
  return answer;
}

/** Asset names contain a content hash, except for a few small files. */
async function partOf(request) {
  const hashed = /-[\w-]{8}\.\w+$/.test(new URL(request.url).pathname);
  const cached = await attempt((shell) => shell.match(request));
  if (cached && hashed) return cached;
  let answer;
  try {
    answer = await fetch(request);
  } catch (error) {
    if (cached) return cached;
    throw error;
  }
  if (answer.ok && answer.status === 200) {
    const copy = answer.clone();
    await attempt((shell) => shell.put(request, copy));
  }
  return answer;
}

/** Uses the cache; undefined where that fails, for example because storage is full. The page works without it. */
async function attempt(use) {
  try {
    return await use(await caches.open(SHELL));
  } catch {
    return undefined;
  }
}

function withoutSearch(request) {
  const url = new URL(request.url);
  url.search = url.hash = "";
  return url.href;
}
