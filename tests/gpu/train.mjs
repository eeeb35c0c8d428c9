/** Benchmarks training in the browser; see train.html. Data are pseudo-random: speed does not depend on them. */

const query = new URLSearchParams(location.search);
const number = (name, fallback) => Number(query.get(name) ?? fallback);

/** Side and classes of MNIST's images. */
const SIDE = 28;
const CLASSES = 10;
const WORDS = "river stone winter garden letter window copper morning island thread engine valley silver harbour pepper meadow lantern bridge orchard violin".split(" ");

const post = (path, body) => fetch(path, { method: "POST", body }).catch(() => {});
async function say(line) {
  document.getElementById("lines").append(`${line}\n`);
  await post("/log", line);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

/** Numbers of one seed. */
function randomNumbers(seed) {
  let state = seed;
  return () => ((state = (state * 1664525 + 1013904223) >>> 0), state / 2 ** 32);
}

/** Images with a class each: [images, height, width] in 0..1. */
function imageData(images) {
  const next = randomNumbers(7);
  const pixels = Float32Array.from({ length: images * SIDE * SIDE }, next);
  const labels = Int32Array.from({ length: images }, () => Math.floor(next() * CLASSES));
  return { pixels, labels };
}

/** Milliseconds per batch of each epoch but the first, which compiles kernels. */
function batchTimes(ends, batches) {
  return ends.slice(1).map((end, i) => (end - ends[i]) / batches);
}

/** Two strided convolutions and a dense layer, with cross-entropy and Adam. */
async function trainOurs({ pixels, labels }, { batch, epochs }) {
  const { createNetwork } = await import("../../dist/jerboa/layers/index.js");
  const network = await createNetwork({
    input: [1, SIDE, SIDE],
    layers: [
      { type: "conv2d", filters: 32, kernelSize: 3, padding: 1, activation: "relu" },
      { type: "conv2d", filters: 64, kernelSize: 3, stride: 2, activation: "relu" },
      { type: "flatten" },
      { type: "dense", units: 128, activation: "relu" },
      { type: "dense", units: CLASSES },
    ],
  });
  const ends = [];
  const onProgress = ({ isEpochEnd }) => {
    if (isEpochEnd) ends.push(performance.now());
  };
  await network.fit(pixels, labels, { loss: "crossEntropy", optimizer: { type: "adamw", learningRate: 1e-3 }, epochs, batchSize: batch, onProgress });
  await network.unload();
  return batchTimes(ends, labels.length / batch);
}

async function addScript(url) {
  const script = Object.assign(document.createElement("script"), { src: url });
  await new Promise((resolve, reject) => {
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${url} does not load`));
    document.head.append(script);
  });
}

/** The same network in TensorFlow.js, on WebGPU. */
async function trainPeer({ pixels, labels }, { batch, epochs }, peer) {
  if (!globalThis.tf?.sequential) {
    for (const name of ["core", "backend-cpu", "layers", "backend-webgpu"]) await addScript(`${peer}/@tensorflow/tfjs-${name}/dist/tf-${name}.min.js`);
    await globalThis.tf.setBackend("webgpu");
    await globalThis.tf.ready();
    await say(`TensorFlow.js ${globalThis.tf.version_core ?? ""} on ${globalThis.tf.getBackend()}`);
  }
  const { layers, oneHot, sequential, tensor1d, tensor4d, train } = globalThis.tf;
  const model = sequential({
    layers: [
      layers.conv2d({ inputShape: [SIDE, SIDE, 1], filters: 32, kernelSize: 3, padding: "same", activation: "relu" }),
      layers.conv2d({ filters: 64, kernelSize: 3, strides: 2, activation: "relu" }),
      layers.flatten(),
      layers.dense({ units: 128, activation: "relu" }),
      layers.dense({ units: CLASSES, activation: "softmax" }),
    ],
  });
  model.compile({ optimizer: train.adam(1e-3), loss: "categoricalCrossentropy" });
  const x = tensor4d(pixels, [labels.length, SIDE, SIDE, 1]);
  const y = oneHot(tensor1d(labels, "int32"), CLASSES);
  const ends = [];
  await model.fit(x, y, { batchSize: batch, epochs, yieldEvery: "epoch", callbacks: { onEpochEnd: () => void ends.push(performance.now()) } });
  x.dispose();
  y.dispose();
  return batchTimes(ends, labels.length / batch);
}

/** Median milliseconds per batch of both, in alternating rounds. */
async function benchNetwork(images) {
  const data = imageData(images);
  const settings = { batch: number("batch", 64), epochs: number("epochs", 4) };
  const peer = query.get("peer");
  const times = { jerboa: [], ...(peer ? { tfjs: [] } : {}) };
  for (let round = 0; round < number("rounds", 3); round++) {
    times.jerboa.push(...(await trainOurs(data, settings)));
    if (peer) times.tfjs.push(...(await trainPeer(data, settings, peer)));
  }
  for (const [engine, each] of Object.entries(times)) {
    const sorted = [...each].sort((a, b) => a - b);
    await say(`network, ${engine}: ${median(each).toFixed(3)} ms per batch of ${settings.batch} (${sorted[0].toFixed(3)}–${sorted.at(-1).toFixed(3)})`);
  }
  return times;
}

/** Milliseconds per step of a LoRA adapter: the median of the steps after the first two. */
async function benchLora(folder) {
  const { trainLora } = await import("../../dist/jerboa/train/index.js");
  const next = randomNumbers(3);
  const words = Array.from({ length: number("words", 40_000) }, () => WORDS[Math.floor(next() * WORDS.length)]);
  const ends = [];
  const stop = new AbortController();
  let memory;
  await trainLora(new URL(folder, location.href).href, words.join(" "), {
    rank: number("rank", 16),
    batchSize: number("batchSize", 4),
    maxLength: number("maxLength", 512),
    evaluation: 0,
    stop: stop.signal,
    onPlan: (plan) => (memory = plan.memory),
    onProgress: () => {
      if (ends.push(performance.now()) > number("steps", 12)) stop.abort();
    },
  });
  const steps = ends.slice(1).map((end, i) => end - ends[i]);
  await say(`lora: ${median(steps.slice(1)).toFixed(1)} ms per step; memory ${JSON.stringify(memory)}`);
  return { steps, memory };
}

async function run() {
  const images = number("images", 12_800);
  const lora = query.get("lora");
  return {
    ...(images > 0 ? { network: await benchNetwork(images) } : {}),
    ...(lora ? { lora: await benchLora(lora) } : {}),
  };
}

let result;
try {
  result = await run();
} catch (thrown) {
  result = { err: thrown.message, stack: thrown.stack };
  await say(thrown.message);
}
globalThis.result = result;
await post("/result", JSON.stringify(result));
