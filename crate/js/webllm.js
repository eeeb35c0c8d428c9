// Reads WebLLM's stores besides the Cache API: the origin private file system (cacheBackend "opfs") and IndexedDB
// ("indexeddb"). Finds the file of a URL; never creates folders or databases.

import { host } from "./host.js";

/** Milliseconds until a store must be found, and until a file or record must be read; docs/limits.md lists both. */
const OPEN_TIMEOUT_MS = 5000;
const READ_TIMEOUT_MS = 60_000;

/** Rejects when a store does not answer in time. */
function answered(ms, promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`WebLLM's store did not answer for ${ms / 1000} seconds`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Hexadecimal SHA-256: the file name of a URL in the private file system. */
async function digest(url) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url)));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Opens the folder of a scope such as `webllm/model`. */
async function folder(scope) {
  let at = await host.storage.getDirectory();
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

/** Runs `work` on the records of a scope. Closes the database afterwards: its owner may want to delete it. */
async function withRecords(scope, work) {
  const request = host.indexedDB.open(scope);
  // The database was deleted since it was listed; opening would create it again.
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
  // Lists are stored as parsed values.
  return data === undefined ? null : new TextEncoder().encode(JSON.stringify(data));
}

/**
 * Opens the stores of some scopes. Returns a function from a URL to its file (a Blob), to a function that reads it
 * (IndexedDB records are read whole), or to null; returns null if there is no such store.
 */
export async function open(scopes) {
  const finders = [];
  // Missing or forbidden APIs count as empty.
  // Sandboxed frames are refused at once.
  const databases = (async () => host.indexedDB?.databases?.())();
  const listed = await answered(OPEN_TIMEOUT_MS, databases).catch(() => []);
  for (const scope of scopes) {
    const files = await answered(OPEN_TIMEOUT_MS, folder(scope)).catch(() => null);
    if (files) finders.push((url) => privateFile(files, url));
    if (!listed?.some(({ name }) => name === scope)) continue;
    finders.push(async (url) => {
      const count = await withRecords(scope, (records) => settled(records.count(url)));
      return count > 0 ? () => answered(READ_TIMEOUT_MS, bytesOf(scope, url)) : null;
    });
  }
  if (finders.length === 0) return null;
  return async (url) => {
    for (const find of finders) {
      const found = await answered(OPEN_TIMEOUT_MS, find(url)).catch(() => null);
      if (found) return found;
    }
    return null;
  };
}
