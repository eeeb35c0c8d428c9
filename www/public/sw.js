/** Keeps what the page is made of, so that it opens without a network. Models are the engine's business: their requests go past it untouched. */

const SHELL = "jerboa-shell-1";
const PARTS = new Set(["script", "style", "worker", "font", "image", "manifest"]);

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

/** What a request is to the page: its document, a part of it, or nothing of its own. */
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

/** The network's, where there is one: a new page lets go of the parts of the one before. */
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

/** Parts carry a hash of their content in their names, but for a few small ones. */
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
