/** What the engine takes from where it runs: a browser's page or worker, unless `setHost` gives other members. */

const browser = {
  /** WebGPU. */
  get gpu() {
    return globalThis.navigator?.gpu;
  },
  /** Stores of downloaded files, as a CacheStorage; the browser's own is used where there are no private files. */
  get store() {
    return globalThis.caches;
  },
  /** Private files, where downloads are stored unless a host gives a store of its own. */
  get storage() {
    return globalThis.navigator?.storage;
  },
  get indexedDB() {
    return globalThis.indexedDB;
  },
  fetch: (url, init) => globalThis.fetch(url, init),
  /** What to do without WebGPU; undefined for the advice about browsers. */
  gpuAdvice: undefined,
  /** Why a fetch may have failed. Browsers report an unreachable server and a CORS refusal alike. */
  fetchFailure: "the server does not answer, or does not allow this page to read it (CORS)",
  /** Names the WebGPU implementation. */
  get userAgent() {
    return globalThis.navigator?.userAgent ?? "";
  },
  /** Tells an iPad from a Mac. */
  get touchPoints() {
    return globalThis.navigator?.maxTouchPoints;
  },
  /** GB of memory, if known. */
  get deviceMemory() {
    return globalThis.navigator?.deviceMemory;
  },
  /** False without a network. */
  get onLine() {
    return globalThis.navigator?.onLine;
  },
};

/** Whether the machine has cores and memory to spare, for the number of threads and of staging buffers. */
export const hasManyCores = (globalThis.navigator?.hardwareConcurrency ?? 0) >= 8;

/** The host of this thread. Members are looked up when they are used. */
export let host = browser;

/** Replaces members; the others remain the browser's. */
export function setHost(given) {
  host = Object.create(browser, Object.getOwnPropertyDescriptors(given));
}

/** A member, for Rust. */
export const member = (name) => host[name];

/** Requests a URL, for Rust. */
export const request = (url, init) => host.fetch(url, init);
