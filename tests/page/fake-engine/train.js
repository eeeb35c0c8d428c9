/**
 * Stands for the training module: losses fall step by step, and a text that begins with "endless" trains for many steps. A
 * network predicts zeros, and its only weight is a dense layer's.
 */

export default async function init() {}

/** Steps of an endless training. */
const MANY = 200;
/** Milliseconds of a step. */
const STEP_MS = 20;

const pause = () => new Promise((resolve) => setTimeout(resolve, STEP_MS));

export class Training {
  static async open(load, data, evaluation, request, resume, onProgress) {
    await pause();
    if (load.signal?.aborted) throw Object.assign(new Error("Loading the model was aborted."), { name: "JerboaError", code: "aborted" });
    if (request.maxLength > 100_000) throw Object.assign(new Error("training needs 8 GB, but the device allows only 2 GB. Use a 'maxLength' below 200000."), { name: "JerboaError", code: "out_of_memory" });
    onProgress({ phase: "weights", progress: 1, loaded: 1, total: 1, bytesPerSecond: 1, fromCache: true });
    return Object.assign(new Training(), { data, request, steps: String(data[0]).startsWith("endless") ? MANY : (request.epochs ?? 1) * 2, step_: 0 });
  }

  plan() {
    return { steps: this.steps, sequences: this.data.length * 5, evaluationSequences: this.request.evaluation === 0 ? 0 : 1, tokens: 400, maxLength: 64, checkpointing: false, memory: { activations: 24e6, trained: 9e6, frozen: 300e6 } };
  }

  async prepare() {
    return false;
  }

  async step() {
    await pause();
    if (this.step_ === this.steps) return null;
    const step = ++this.step_;
    return { step, steps: this.steps, epoch: 0, loss: 3 * Math.exp(-step / 8) + 0.2 + 0.1 * Math.sin(step), gradientNorm: 1, learningRate: 1e-3, tokens: 256 };
  }

  async evaluate() {
    return this.request.evaluation === 0 ? null : { loss: 3 * Math.exp(-this.step_ / 9) + 0.4 };
  }

  async adapter() {
    return { config: JSON.stringify({ peft_type: "LORA", r: this.request.rank ?? 8 }), weights: new Uint8Array(4096) };
  }

  free() {}
}

/** Bytes of a safetensors file with one tensor. */
function safetensors(name, values) {
  const header = JSON.stringify({ [name]: { dtype: "F32", shape: [values.length], data_offsets: [0, values.length * 4] } });
  const length = Math.ceil(header.length / 8) * 8;
  const bytes = new Uint8Array(8 + length + values.length * 4).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(new TextEncoder().encode(header), 8);
  bytes.set(new Uint8Array(Float32Array.from(values).buffer), 8 + length);
  return bytes;
}

export class LayerNetwork {
  static async open({ input, layers }) {
    await pause();
    const last = layers.findLast(({ units }) => units);
    const ids = layers[0].type === "embedding";
    return Object.assign(new LayerNetwork(), { input, output: [last?.units ?? 1], ids, epoch: 0, bytes: safetensors("0.weight", [1, 2]) });
  }

  info() {
    return { inputShape: this.input, outputShape: this.output, inputType: this.ids ? "ids" : "float32", weights: [{ name: "0.weight", shape: [2] }], parameters: 2 };
  }

  async predict(x) {
    await pause();
    return new Float32Array((x.length / this.input.reduce((a, b) => a * b, 1)) * this.output[0]);
  }

  async evaluate() {
    return 0.5;
  }

  start(x, y, { epochs = 1 }) {
    Object.assign(this, { epoch: 0, epochs });
  }

  async advance() {
    if (this.epoch === this.epochs) return null;
    const epoch = this.epoch++;
    return { epoch, step: epoch + 1, steps: this.epochs, loss: 1 / (epoch + 1), isEpochEnd: true };
  }

  async weights() {
    return this.bytes.slice();
  }

  setWeights(bytes) {
    this.bytes = bytes;
  }

  free() {}
}
