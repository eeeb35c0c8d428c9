/** Stands for the training module: losses fall step by step, and a text that begins with "endless" trains for many steps. */

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
    return { steps: this.steps, sequences: this.data.length * 5, evaluationSequences: this.request.evaluation === 0 ? 0 : 1, tokens: 400, maxLength: 64, memory: { activations: 24e6, trained: 9e6, frozen: 300e6 } };
  }

  async step() {
    await pause();
    if (this.step_ === this.steps) return null;
    const step = ++this.step_;
    return { step, steps: this.steps, epoch: 0, loss: 3 * Math.exp(-step / 8) + 0.2 + 0.1 * Math.sin(step), gradientNorm: 1, learningRate: 1e-3, tokens: 256 };
  }

  async evaluate() {
    return 3 * Math.exp(-this.step_ / 9) + 0.4;
  }

  async adapter() {
    return { config: JSON.stringify({ peft_type: "LORA", r: this.request.rank ?? 8 }), weights: new Uint8Array(4096) };
  }

  free() {}
}
