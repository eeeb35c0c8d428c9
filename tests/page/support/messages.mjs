/** Random messages to the worker: values that structured cloning carries, in and out of the shape of requests. */

/** `count` messages of a seed; the same seed gives the same ones. Uses nothing outside, so that it runs on pages too. */
export function randomMessages(seed, count) {
  let state = (seed * 0x9e3779b9) | 1;
  const next = (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
  const one = (list) => list[next(list.length)];
  // Without "close", which ends the worker by right.
  const METHODS = ["load", "persisted", "tokenize", "tokenizeChat", "detokenize", "renderChat", "generate", "createSession", "forkSession", "disposeSession", "adoptSessions", "embed", "rerank", "logits", "embedImage", "encodeImage", "frameTimes", "unloadVision", "transcribe", "listen", "speak", "measureAsr", "info", "memory", "measure", "deleteFromCache", "deviceReport", "diagnose", "verify", "implementation", "calibrate", "setGroup", "release", "cachedModels", "deleteModel", "version", "constructor", "__proto__", "toString", ""];
  const NAMES = ["id", "method", "args", "abort", "question", "answer", "wasm", "ping", "signal", "prompt", "messages", "model", "grammar", "length", "__proto__", "then", "toJSON", "0"];
  const leaf = () =>
    one([
      () => undefined,
      () => null,
      () => next(2) === 0,
      () => one([0, -0, -1, 1, 1e300, NaN, Infinity, 2 ** 31, 2 ** 32, 2 ** 53]),
      () => one([0n, -1n, 2n ** 70n]),
      () => one(["", "a", "\ud800", "\0", "load", "x".repeat(next(2000)), "https://x.test/", "../..", one(METHODS)]),
      () => new Date(one([0, NaN])),
      () => /x/g,
      () => new ArrayBuffer(next(64)),
      () => one([new Uint8Array(3), new Float32Array(2), new BigInt64Array(1), new DataView(new ArrayBuffer(4))]),
      () => new Error("mine"),
      () => new Blob(["x"]),
      () => new Array(next(9)),
    ])();
  const value = (depth) => {
    if (depth === 0 || next(3) === 0) return leaf();
    const size = next(4);
    const items = () => Array.from({ length: size }, () => value(depth - 1));
    return one([
      items,
      () => Object.defineProperties({}, Object.fromEntries(items().map((item) => [one(NAMES), { value: item, enumerable: true, configurable: true }]))),
      () => new Map(items().map((item) => [one(NAMES), item])),
      () => new Set(items()),
      () => {
        const cycle = items();
        cycle.push(cycle);
        return cycle;
      },
      () => {
        let deep = leaf();
        for (let i = next(3000); i > 0; i--) deep = [deep];
        return deep;
      },
    ])();
  };
  return Array.from({ length: count }, () =>
    one([
      () => value(3),
      () => ({ id: one([1e6 + next(9), value(1)]), method: one([one(METHODS), value(1)]), args: one([value(2), Array.from({ length: next(4) }, () => value(2))]) }),
      () => ({ id: one([1e6 + next(9), value(1)]), abort: value(1) }),
      () => ({ wasm: value(1) }),
      () => ({ ping: value(1) }),
    ])(),
  );
}
