/** jerboa/layers in Chromium: networks learn with equal bits, weights go out and in, calls wait for each other, refusals name the layer. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPackage } from "./support/engine.mjs";

const options = { timeout: 480_000 };

let site;

before(async () => {
  site = await openPackage();
  await site.page.evaluate(async () => {
    window.layers = await import("/layers/index.js");
    /** A call's result, or its error. */
    window.outcome = (run) => run().then((value) => ({ value }), (error) => ({ error: { isOurs: error instanceof jerboa.JerboaError, code: error.code, message: error.message } }));
    /** A network for two inputs, fitted to exclusive or. */
    window.fitXor = async (seed, given = {}) => {
      const network = await layers.createNetwork({ input: [2], layers: [{ type: "dense", units: 8, activation: "tanh" }, { type: "dense", units: 1, name: "out" }], seed });
      const fit = { optimizer: { type: "adamw", learningRate: 0.05 }, epochs: 250, ...given };
      const { losses } = await network.fit([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0], fit);
      return { network, losses };
    };
  });
}, options);
after(() => site?.close());

test("the first load of a page downloads nothing of it", options, async () => {
  const requests = await site.page.evaluate(() => performance.getEntriesByType("resource").map((entry) => entry.name).filter((name) => name.includes("train_bg")));
  assert.deepEqual(requests, []);
});

test("a network learns exclusive or, with equal bits for equal seeds", options, async () => {
  const found = await site.page.evaluate(async () => {
    const progress = [];
    const { network, losses } = await fitXor(1, { onProgress: (event) => progress.push(event) });
    const predictions = Array.from(await network.predict(Float32Array.of(0, 0, 0, 1, 1, 0, 1, 1), { batchSize: 3 }));
    const loss = await network.evaluate([0, 0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0], { batchSize: 3 });
    const bytes = async (own) => Array.from(new Uint8Array(await (await own.save()).arrayBuffer())).join();
    const saved = await bytes(network);
    const again = await fitXor(1);
    const other = await fitXor(2);
    const equal = (await bytes(again.network)) === saved && (await bytes(other.network)) !== saved;
    for (const own of [network, again.network, other.network]) await own.unload();
    return { losses, progress, predictions, loss, equal, info: network.info };
  });
  assert.equal(found.losses.length, 250);
  assert.ok(found.losses.at(-1) < 0.01, `${found.losses.at(-1)} after ${found.losses[0]}`);
  assert.ok(Math.abs(found.loss - found.losses.at(-1)) < 0.01, `${found.loss}`);
  found.predictions.forEach((value, i) => assert.ok(Math.abs(value - [0, 1, 1, 0][i]) < 0.2, `${found.predictions}`));
  assert.ok(found.equal, "equal seeds have equal bits, other seeds other bits");
  assert.deepEqual(found.progress.at(-1), { epoch: 249, step: 250, steps: 250, loss: found.losses.at(-1), isEpochEnd: true });
  const { inputShape, outputShape, inputType, parameters } = found.info;
  assert.deepEqual({ inputShape, outputShape, inputType, parameters }, { inputShape: [2], outputShape: [1], inputType: "float32", parameters: 33 });
  assert.deepEqual(found.info.weights.map(({ name }) => name), ["0.weight", "0.bias", "out.weight", "out.bias"]);
});

test("a convolutional network tells bars apart", options, async () => {
  const found = await site.page.evaluate(async () => {
    const side = 6;
    const bar = (label, place) => Array.from({ length: side * side }, (_, at) => Number((label ? at % side : Math.floor(at / side)) === place));
    const labels = Array.from({ length: 2 * side }, (_, i) => i % 2);
    const images = labels.flatMap((label, i) => bar(label, i >> 1));
    const network = await layers.createNetwork({
      input: [1, side, side],
      layers: [{ type: "conv2d", filters: 4, kernelSize: 3, padding: 1, activation: "relu" }, { type: "flatten" }, { type: "dense", units: 2 }],
    });
    const { losses } = await network.fit(images, Int32Array.from(labels), { loss: "crossEntropy", optimizer: { type: "adamw", learningRate: 0.02 }, epochs: 60, batchSize: 5 });
    const logits = await network.predict(images);
    await network.unload();
    return { losses, right: labels.filter((label, i) => logits[2 * i + label] > logits[2 * i + 1 - label]).length };
  });
  assert.ok(found.losses.at(-1) < 0.1, `${found.losses.at(-1)} after ${found.losses[0]}`);
  assert.equal(found.right, 12);
});

test("ids, recurrent layers and attention run", options, async () => {
  const found = await site.page.evaluate(async () => {
    const kinds = ["rnn", "lstm", "gru"];
    const shapes = {};
    for (const type of kinds) {
      const network = await layers.createNetwork({
        input: [4],
        layers: [
          { type: "embedding", inputDim: 5, outputDim: 8 },
          { type: "residual", layers: [{ type: "layerNorm" }, { type: "attention", heads: 2, causal: true }] },
          { type: "residual", layers: [{ type: "rmsNorm" }, { type: "swiglu", hidden: 12 }] },
          { type, units: 6 },
          { type: "dense", units: 3 },
        ],
      });
      const x = [[0, 1, 2, 3], [4, 3, 2, 1], [0, 0, 4, 4], [1, 1, 2, 2]];
      const { losses } = await network.fit(x, [0, 1, 2, -1], { loss: "crossEntropy", optimizer: { type: "sgd", learningRate: 0.3, momentum: 0.5 }, epochs: 30, batchSize: 2 });
      shapes[type] = { first: losses[0], last: losses.at(-1), count: (await network.predict(x)).length, type: network.info.inputType, wrong: await outcome(() => network.predict([0, 1, 2, 5])) };
      await network.unload();
    }
    return shapes;
  });
  for (const [type, { first, last, count, type: inputType, wrong }] of Object.entries(found)) {
    assert.ok(last < 0.7 * first, `${type}: ${first}, then ${last}`);
    assert.deepEqual([count, inputType], [12, "ids"]);
    assert.match(wrong.error.message, /id 5 is outside the embedding of 5 rows/);
  }
});

test("weights are read, written and loaded; files of other element types are refused", options, async () => {
  const found = await site.page.evaluate(async () => {
    const { network } = await fitXor(1, { epochs: 3 });
    const x = [[0, 1]];
    const first = Array.from(await network.predict(x));
    const weights = await network.weights();
    const shapes = Object.fromEntries(Object.entries(weights).map(([name, { shape, data }]) => [name, [shape, data.length]]));
    const other = await layers.createNetwork({ input: [2], layers: [{ type: "dense", units: 8, activation: "tanh" }, { type: "dense", units: 1, name: "out" }], seed: 9 });
    const before = Array.from(await other.predict(x));
    await other.setWeights(weights);
    const set = Array.from(await other.predict(x));
    await network.load(await other.save());
    const loaded = Array.from(await network.predict(x));
    // 0.5 and 1 in types other than f32, and a type that is not read.
    const file = (dtype, words) => {
      const text = JSON.stringify({ "out.bias": { dtype, shape: [1], data_offsets: [0, words.byteLength] } }).padEnd(96);
      const bytes = new Uint8Array(8 + text.length + words.byteLength);
      bytes[0] = text.length;
      bytes.set(new TextEncoder().encode(text), 8);
      bytes.set(new Uint8Array(words.buffer), 8 + text.length);
      return bytes;
    };
    const halves = [];
    for (const [dtype, words] of [["F16", Uint16Array.of(0x3800)], ["BF16", Uint16Array.of(0x3f00)], ["F64", Float64Array.of(0.5)], ["F8_E4M3", Uint8Array.of(0x30)], ["I8", Uint8Array.of(1)]]) {
      await other.load(file(dtype, words));
      halves.push((await other.weights())["out.bias"].data[0]);
    }
    const refusals = {
      type: await outcome(() => other.load(file("C64", new Uint8Array(8)))),
      damaged: await outcome(() => other.load(new Uint8Array(5))),
      name: await outcome(() => other.setWeights({ "2.weight": { shape: [1], data: new Float32Array(1) } })),
      shape: await outcome(() => other.setWeights({ "out.bias": { shape: [2], data: new Float32Array(2) } })),
      data: await outcome(() => other.setWeights({ "out.bias": { shape: [1], data: [1] } })),
      length: await outcome(() => other.setWeights({ "out.bias": { shape: [1], data: new Float32Array(2) } })),
      none: await outcome(() => other.load(null)),
      text: await outcome(() => other.load("x")),
    };
    for (const own of [network, other]) await own.unload();
    return { first, before, set, loaded, shapes, halves, refusals };
  });
  assert.deepEqual(found.shapes, { "0.weight": [[8, 2], 16], "0.bias": [[8], 8], "out.weight": [[1, 8], 8], "out.bias": [[1], 1] });
  assert.notDeepEqual(found.before, found.first);
  assert.deepEqual(found.set, found.first);
  assert.deepEqual(found.loaded, found.first);
  assert.deepEqual(found.halves, [0.5, 0.5, 0.5, 0.5, 1]);
  const { type, damaged, name, shape, data, length, none, text } = found.refusals;
  for (const { error } of Object.values(found.refusals)) assert.ok(error.isOurs, error.message);
  assert.deepEqual([type.error.code, damaged.error.code, name.error.code], ["malformed", "malformed", "request"]);
  assert.match(type.error.message, /C64.*F16/);
  assert.match(name.error.message, /0\.weight, 0\.bias, out\.weight, out\.bias/);
  assert.match(shape.error.message, /out\.bias/);
  assert.match(data.error.message, /Float32Array/);
  assert.equal(length.error.message, "setWeights: 'data' of 'out.bias' has 2 numbers, but its shape [1] needs 1.");
  assert.equal(none.error.message, "load: the file must be a Blob, an ArrayBuffer or a Uint8Array, not null.");
  assert.match(text.error.message, /^load: the file must be a Blob.*not 'x'/);
});

test("an abort ends a fit, calls meanwhile wait, and the network stays usable", options, async () => {
  const found = await site.page.evaluate(async () => {
    const abort = new AbortController();
    const { network } = await fitXor(1, { epochs: 1 });
    let steps = 0;
    const fit = outcome(() => network.fit([[0, 0], [1, 1]], [0, 1], { epochs: 100_000, signal: abort.signal, onProgress: ({ step }) => (steps = step) === 5 && abort.abort() }));
    const waiting = network.predict([[1, 1]]);
    return { fit: await fit, waiting: (await waiting).length, steps, again: (await network.fit([[0, 0]], [0], {})).losses.length, unloaded: await network.unload(), after: await outcome(() => network.predict([[0, 0]])) };
  });
  assert.deepEqual([found.fit.error.code, found.fit.error.isOurs], ["aborted", true]);
  assert.ok(found.steps >= 5 && found.steps < 1000, `${found.steps} steps`);
  assert.deepEqual([found.waiting, found.again], [1, 1]);
  assert.ok(found.after.error.isOurs, "an unloaded network refuses calls");
  assert.deepEqual([found.after.error.code, found.after.error.message], ["unloaded", "predict: the network was unloaded. Call createNetwork for a new one."]);
});

test("what does not fit is refused by name", options, async () => {
  const dense = { type: "dense", units: 2 };
  for (const [given, message] of [
    [{ input: [4], layers: [dense, { type: "conv2d", filters: 1, kernelSize: 3 }] }, /layers\[1\] \(conv2d\): its input must be \[channels, height, width\]/],
    [{ input: [4], layers: [{ type: "dense", unit: 2 }] }, /layers\[0\] \(dense\): 'units' must be given/],
    [{ input: [4], layers: [{ type: "dropout" }] }, /no layer 'dropout'/],
    [{ input: [4], layers: [] }, /array of layers/],
    [{ input: [0], layers: [dense] }, /shape of one example/],
    [{ layers: [dense] }, /'input' is missing/],
    [{ input: [4], layer: [dense] }, /Did you mean 'layers'/],
  ]) {
    const { error } = await site.page.evaluate((given) => outcome(() => layers.createNetwork(given)), given);
    assert.equal(error?.code, "request", JSON.stringify(given));
    assert.ok(error.isOurs);
    assert.match(error.message, message);
  }
  const found = await site.page.evaluate(async () => {
    const network = await layers.createNetwork({ input: [2], layers: [{ type: "dense", units: 3 }] });
    const x = [[1, 2]];
    const attempts = {
      size: () => network.fit([1, 2, 3], [1], {}),
      label: () => network.fit(x, [3], { loss: "crossEntropy" }),
      fraction: () => network.fit(x, [0.5], { loss: "crossEntropy" }),
      number: () => network.fit([[1, NaN]], [1, 1, 1]),
      loss: () => network.fit(x, [1, 1, 1], { loss: "mae" }),
      optimizer: () => network.fit(x, [1, 1, 1], { optimizer: { type: "sgd", beta1: 1 } }),
      wide: () => network.predict([[1, 2, 3], [4, 5, 6]]),
      uneven: () => network.predict([[1, 2], [4]]),
      mixed: () => network.predict([[1, 2], 4]),
      target: () => network.fit(x, [[1, 1]]),
      none: () => network.predict([[1, null]]),
      text: () => network.predict(["1", "2"]),
      big: () => network.predict([[1n, 2n]]),
      bigs: () => network.predict(BigInt64Array.of(1n, 2n)),
      nan: () => network.fit(x, [1, 1, 1], { optimizer: { type: "sgd", learningRate: NaN } }),
      momentum: () => network.fit(x, [1, 1, 1], { optimizer: { type: "sgd", momentum: "1" } }),
      rate: () => network.fit([[1e18, 1]], [1, 1, 1], { optimizer: { type: "sgd", learningRate: 1000 }, epochs: 9 }),
    };
    const errors = {};
    for (const [name, run] of Object.entries(attempts)) errors[name] = (await outcome(run)).error;
    await network.unload();
    return errors;
  });
  for (const [name, message] of Object.entries({ size: /multiple of 2/, label: /label 3.*3 classes/, fraction: /whole numbers from -1; item 0 is 0.5/, number: /finite numbers; item 1/, loss: /'mse', 'crossEntropy'/, optimizer: /no option 'beta1'/, wide: /^predict: x: row 0 has 3 numbers, but must have 2\./, uneven: /x: row 1 has 1 number, but must have 2/, mixed: /x: row 1 has 1 number/, target: /y: row 0 has 2 numbers, but must have 3/, none: /item 1 is null/, text: /item 0 is '1'/, big: /item 0 is the BigInt 1n/, bigs: /the BigInt 1n/, nan: /'optimizer.learningRate' must be a finite number, not NaN/, momentum: /'optimizer.momentum' must be a finite number, not '1'/, rate: /smaller learning rate/ })) {
    assert.deepEqual([found[name]?.code, found[name]?.isOurs], ["request", true], `${name}: ${JSON.stringify(found[name])}`);
    assert.match(found[name].message, message);
  }
});

test("a worker that does not start is an error of the worker, in time", options, async () => {
  const found = await site.page.evaluate(async () => {
    const { trainLora } = await import("/train/index.js");
    const workerUrl = URL.createObjectURL(new Blob(["// Says nothing."], { type: "text/javascript" }));
    // Timers of the page run 20 times as fast.
    const { setTimeout } = window;
    window.setTimeout = (run, ms, ...args) => setTimeout(run, ms / 20, ...args);
    const network = outcome(() => layers.createNetwork({ input: [2], layers: [{ type: "dense", units: 1 }], workerUrl }));
    const training = outcome(() => trainLora("org/model", "text", { workerUrl }));
    const found = { network: await network, training: await training };
    window.setTimeout = setTimeout;
    return found;
  });
  for (const [call, { error }] of [["createNetwork", found.network], ["trainLora", found.training]]) {
    assert.ok(error?.isOurs, `${call}: ${error?.message}`);
    assert.equal(error.code, "worker");
    assert.match(error.message, new RegExp(`^${call}: the worker did not start within 20 seconds\\. Check that 'workerUrl'`));
  }
});
