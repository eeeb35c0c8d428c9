/** Faults of Web APIs, for pages under test: every call of the listed interfaces is counted and can be made to fail; waits for timers are skipped. */

/** Interfaces whose calls leave the script: to the GPU, the network, the disk, other threads and other tabs. */
export const INTERFACES = [
  "GPU", "GPUAdapter", "GPUDevice", "GPUQueue", "GPUBuffer", "GPUCommandEncoder", "GPUComputePassEncoder", "GPUComputePipeline", "GPUQuerySet", "GPUShaderModule",
  "CacheStorage", "Cache", "Storage", "StorageManager", "IDBFactory", "FileSystemDirectoryHandle", "FileSystemFileHandle", "FileSystemHandle",
  "LockManager", "BroadcastChannel", "Worker", "Response", "ReadableStreamDefaultReader", "ReadableStream",
];

/** What a faulty call does. `throws` and `null` are the outcome of the call, or of its promise. */
export const FAULTS = ["throws", "null", "never", "late"];

/** Virtual milliseconds by which a late answer comes: after the deadlines of stores, before those of the GPU. */
const LATE_MS = 20_000;

/** What {@link install} takes. */
export const installation = { interfaces: INTERFACES, lateMs: LATE_MS };

/** Runs on the page. Afterwards `faults` counts and injects, and skips idle time. */
export function install({ interfaces, lateMs }) {
  const real = { setTimeout: window.setTimeout, clearTimeout: window.clearTimeout, now: performance.now.bind(performance), date: Date.now };
  const timers = new Map();
  let skipped = 0;
  let ids = 1;
  /** Calls whose answer the browser still prepares; since when there are some; and the milliseconds that the clock stood behind for them. */
  let outstanding = 0;
  let waitingSince = 0;
  let spared = 0;
  /** A busy machine answers late: for a minute the clock runs at an eighth of its speed while an answer is prepared. */
  const spare = () => (outstanding > 0 ? 0.875 * Math.min(60_000, real.now() - waitingSince) : 0);
  const now = () => real.now() + skipped - spared - spare();
  const expect = (answers) => {
    if (outstanding === 0) waitingSince = real.now();
    else if (outstanding + answers === 0) spared += spare();
    outstanding += answers;
  };
  const arm = (id, timer) => {
    timer.handle = real.setTimeout.call(window, () => fire(id, timer), Math.max(0, timer.due - now()));
  };
  const fire = (id, timer) => {
    if (timer.due - now() > 1) return arm(id, timer);
    if (timer.every === undefined) timers.delete(id);
    else {
      timer.due = now() + timer.every;
      arm(id, timer);
    }
    timer.callback(...timer.args);
  };
  const start = (callback, ms, args, every) => {
    const id = ids++;
    const timer = { callback, args, every, ms: Number(ms) || 0, due: now() + (Number(ms) || 0) };
    timers.set(id, timer);
    arm(id, timer);
    return id;
  };
  const end = (id) => {
    const timer = timers.get(id);
    if (timer) real.clearTimeout.call(window, timer.handle);
    timers.delete(id);
  };
  Object.assign(window, {
    setTimeout: (callback, ms, ...args) => start(callback, ms, args),
    setInterval: (callback, ms, ...args) => start(callback, ms, args, Math.max(1, Number(ms) || 0)),
    clearTimeout: end,
    clearInterval: end,
  });
  performance.now = now;
  const began = real.date() - real.now();
  Date.now = () => Math.round(began + now());
  /** Moves the clock to the next timer; `far`: to the next one that is no poll. Timers that are due then fire in order. */
  const skip = (far) => {
    const waiting = [...timers].sort(([, a], [, b]) => a.due - b.due);
    const [, next] = waiting.find(([, { ms }]) => !far || ms >= POLL_MS) ?? waiting[0] ?? [];
    if (!next) return;
    skipped += Math.max(0, next.due - now());
    for (const [id, timer] of waiting) {
      real.clearTimeout.call(window, timer.handle);
      arm(id, timer);
    }
  };
  /** Timers below this many milliseconds look for something again and again. */
  const POLL_MS = 1000;

  /** Real milliseconds of a tick, and the ticks without a call after which the page waits for a timer only. */
  const [TICK_MS, QUIET_TICKS] = [15, 8];
  /** Such ticks after a timer that led to no call: it polls. */
  const POLL_TICKS = 2;
  /** Real milliseconds after which a call counts as hanging. */
  const REAL_LIMIT_MS = 240_000;
  /** Milliseconds by which ticks came late: the machine was busy. */
  let late = 0;
  const calls = new Map();
  let fault;
  let withheld = [];
  let busy = real.now();
  /** The calls in progress, to say what a page that hangs waits for. */
  const pending = new Set();
  /** These wait as long as the holder of a lock wants, or for the user: Firefox asks before it makes a store persistent. */
  const UNTIMED = ["LockManager.request", "StorageManager.persist"];
  /** Counts the promise of a call as work in progress. */
  const track = (api, promise) => {
    if (UNTIMED.includes(api)) return promise;
    expect(1);
    const call = { api };
    pending.add(call);
    const over = () => {
      expect(-1);
      pending.delete(call);
      busy = real.now();
    };
    promise.then(over, over);
    return promise;
  };
  const faulty = (kind, call) => {
    fault.hits++;
    if (kind === "throws") throw new DOMException("injected fault", "OperationError");
    if (kind === "null") return null;
    const answer = call();
    if (!(answer instanceof Promise)) return answer;
    // Until the fault is cleared: then all answers come, too late.
    const { api } = fault;
    // Nothing waits for it until then: a buffer that is destroyed meanwhile rejects its mapping.
    answer.catch(() => {});
    if (kind === "never") return new Promise((resolve, reject) => withheld.push(() => track(api, answer).then(resolve, reject)));
    track(api, answer);
    return new Promise((resolve, reject) => setTimeout(() => answer.then(resolve, reject), lateMs));
  };
  const wrap = (owner, name, label) => {
    const own = owner[name];
    owner[name] = function (...args) {
      busy = real.now();
      const seen = calls.get(label) ?? { count: 0, async: false, answers: false };
      calls.set(label, seen);
      seen.count++;
      const call = () => Reflect.apply(own, this, args);
      if (fault?.api === label) {
        if (!seen.async && !fault.async) return faulty(fault.kind, call);
        try {
          const answer = faulty(fault.kind, call);
          return answer instanceof Promise ? answer : Promise.resolve(answer);
        } catch (thrown) {
          return Promise.reject(thrown);
        }
      }
      const answer = call();
      seen.answers ||= answer !== undefined;
      if (answer instanceof Promise) {
        seen.async = true;
        track(label, answer);
      }
      return answer;
    };
  };
  for (const name of interfaces) {
    const prototype = window[name]?.prototype;
    for (const [method, { value }] of Object.entries(Object.getOwnPropertyDescriptors(prototype ?? {}))) {
      if (typeof value === "function" && method !== "constructor" && !method.startsWith("remove")) wrap(prototype, method, `${name}.${method}`);
    }
  }
  // A thread answers each message with one, and starts with one.
  const RealWorker = window.Worker;
  const post = RealWorker.prototype.postMessage;
  const settle = (worker) => {
    if (worker.unanswered > 0) expect(-worker.unanswered);
    worker.unanswered = 0;
  };
  RealWorker.prototype.postMessage = function (...args) {
    const hits = fault?.hits;
    const answer = post.apply(this, args);
    if (fault?.hits === hits) {
      this.unanswered++;
      expect(1);
    }
    return answer;
  };
  const terminate = RealWorker.prototype.terminate;
  RealWorker.prototype.terminate = function () {
    settle(this);
    return terminate.call(this);
  };
  window.Worker = class extends RealWorker {
    unanswered = 1;
    constructor(...args) {
      super(...args);
      expect(1);
      this.addEventListener("error", () => settle(this));
      this.addEventListener("message", () => {
        busy = real.now();
        if (this.unanswered > 0) {
          this.unanswered--;
          expect(-1);
        }
      });
    }
  };
  wrap(window, "fetch", "fetch");
  for (const name of ["instantiate", "instantiateStreaming"]) wrap(WebAssembly, name, `WebAssembly.${name}`);
  wrap(window, "createImageBitmap", "createImageBitmap");

  window.faults = {
    /** Calls since the last reset: how many of each, and whether they answer, with a promise or at all. */
    calls: () => Object.fromEntries([...calls].map(([label, seen]) => [label, { ...seen }])),
    reset: () => calls.clear(),
    inject: (api, kind, async) => void (fault = { api, kind, async, hits: 0 }),
    clear: () => {
      const hits = fault?.hits ?? 0;
      fault = undefined;
      for (const answer of withheld) answer();
      withheld = [];
      return hits;
    },
    /** How often the fault struck. */
    hits: () => fault?.hits ?? 0,
    /** Waits in real time. */
    pause: (ms) => new Promise((resolve) => real.setTimeout.call(window, resolve, ms)),
    now,
    late: () => late,
    /** The outcome of a promise: its value or its error's code, with the seconds it took on the page's clock. Skips time in which nothing happens. */
    outcome: async (make) => {
      const begun = now() - late;
      const promise = Promise.resolve().then(make).then((value) => ({ value }), (error) => ({ code: error?.code ?? "none", message: String(error?.message ?? error) }));
      let done;
      void promise.then(() => (done = true));
      const limit = real.now() + REAL_LIMIT_MS;
      let quiet = 0;
      let moved = 0;
      while (!done && real.now() < limit) {
        const before = real.now();
        await faults.pause(TICK_MS);
        // A busy machine is not an idle page.
        if (outstanding === 0) late += Math.max(0, real.now() - before - 2 * TICK_MS);
        quiet = outstanding > 0 || before < busy || real.now() - before > 3 * TICK_MS ? 0 : quiet + 1;
        const polls = moved > busy;
        if (!done && quiet >= (polls ? POLL_TICKS : QUIET_TICKS)) {
          skip(polls);
          moved = real.now();
          quiet = 0;
        }
      }
      return { ...(done ? await promise : { code: "hangs", message: `in progress: ${[...pending].map(({ api }) => api).join(", ")}; timers: ${[...timers.values()].map(({ ms }) => ms).join(", ")}` }), seconds: (now() - late - begun) / 1000 };
    },
  };
}
