// WebLLM's stores besides the Cache API: the origin's private files (cacheBackend "opfs") and IndexedDB ("indexeddb"). It
// finds the file of an address, and makes neither folder nor database; what a file means is not known here.

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Hexadecimal SHA-256: the name of an address in the private files. */
async function digest(url) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url)));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The folder of a scope such as `webllm/model`. */
async function folder(scope) {
  let at = await navigator.storage.getDirectory();
  for (const part of ["tvmjs-opfs-store", ...scope.split("/")]) at = await at.getDirectoryHandle(encodeURIComponent(part));
  return at;
}

async function privateFile(folder, url) {
  const name = await digest(url);
  const open = async (suffix) => (await folder.getFileHandle(name + suffix)).getFile();
  const record = JSON.parse(await (await open(".record.json")).text());
  const file = await open(".bin");
  return record.url === url && record.nbytes === file.size ? file : null;
}

/** Does something with the records of a scope. The database is not held open: its owner may want to delete it. */
async function withRecords(scope, work) {
  const request = indexedDB.open(scope);
  // It has gone since it was listed, and would be made anew.
  request.onupgradeneeded = () => request.transaction.abort();
  const database = await settled(request);
  try {
    return await work(database.transaction("urls").objectStore("urls"));
  } finally {
    database.close();
  }
}

async function bytesOf(scope, url) {
  const data = (await withRecords(scope, (records) => settled(records.get(url))))?.data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  // Lists are kept as the values that they were parsed to.
  return data === undefined ? null : new TextEncoder().encode(JSON.stringify(data));
}

/**
 * Looks the stores of some scopes up: a function from an address to its file (a Blob), to a function that reads it (a record of
 * IndexedDB comes as a whole), or to null; null where there is no such store.
 */
export async function open(scopes) {
  const finders = [];
  // What the browser does not have, or not for this page, is nothing to find.
  // Sandboxed frames are refused at once.
  const listed = await (async () => globalThis.indexedDB?.databases?.())().catch(() => []);
  for (const scope of scopes) {
    const files = await folder(scope).catch(() => null);
    if (files) finders.push((url) => privateFile(files, url));
    if (!listed?.some(({ name }) => name === scope)) continue;
    finders.push(async (url) => {
      const count = await withRecords(scope, (records) => settled(records.count(url)));
      return count > 0 ? () => bytesOf(scope, url) : null;
    });
  }
  if (finders.length === 0) return null;
  return async (url) => {
    for (const find of finders) {
      const found = await find(url).catch(() => null);
      if (found) return found;
    }
    return null;
  };
}
