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
  const shell = await caches.open(SHELL);
  try {
    const answer = await fetch(request);
    if (!answer.ok) return answer;
    const [text, before] = [await answer.clone().text(), await shell.match(request, { ignoreSearch: true })];
    if (before && (await before.text()) !== text) await Promise.all((await shell.keys()).map((key) => shell.delete(key)));
    await shell.put(withoutSearch(request), answer.clone());
    return answer;
  } catch (error) {
    const kept = await shell.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}

/** Asset names contain a content hash, except for a few small files. */
async function partOf(request) {
  const shell = await caches.open(SHELL);
  const hashed = /-[\w-]{8}\.\w+$/.test(new URL(request.url).pathname);
  const kept = await shell.match(request);
  if (kept && hashed) return kept;
  try {
    const answer = await fetch(request);
    if (answer.ok && answer.status === 200) await shell.put(request, answer.clone());
    return answer;
  } catch (error) {
    if (kept) return kept;
    throw error;
  }
}

function withoutSearch(request) {
  const url = new URL(request.url);
  url.search = "";
  return url.href;
}
