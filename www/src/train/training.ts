/** A training of the chat model: losses as they fall, samples before and after, and the adapter. */

import { signal } from "@preact/signals";
import { JerboaError, type Model } from "jerboa";
import { trainLora, type TrainedAdapter, type TrainPlan, type TrainProgress } from "jerboa/train";
import { chatAdapter } from "../chat/adapter-store";
import { asError } from "../errors";
import { TRAIN } from "../strings";
import { announce } from "../ui/announce";
import { dataOf, promptOf, type SamplePrompt, type TrainingText } from "./data";

/** Settings of a run, as they are typed. */
export interface TrainingSettings {
  epochs: string;
  rank: string;
  learningRate: string;
  maxLength: string;
}

/** The smallest values of the settings; the learning rate must be larger. */
export const MIN_SETTINGS: Record<keyof TrainingSettings, number> = { epochs: 1, rank: 1, learningRate: 0, maxLength: 2 };

/** A text that the model continues. */
export interface Sample {
  /** What the model continues or answers. */
  prompt: string;
  before: string;
  after: string;
}

/** A trained adapter and the name under which its model has it. */
export interface FinishedAdapter {
  model: Model;
  name: string;
  adapter: TrainedAdapter;
}

/** Parameters up to which a model is tiny: it needs a higher learning rate. */
const TINY = 20e6;
const SAMPLE_TOKENS = 48;

/** Settings that suit a model. */
export function settingsFor(model: Model): TrainingSettings {
  const tiny = model.info.parameters < TINY;
  return { epochs: tiny ? "8" : "3", rank: "8", learningRate: tiny ? "0.01" : "0.0002", maxLength: tiny ? "64" : "256" };
}

export class TrainingState {
  readonly running = signal(false);
  /** What is being done before the first step; empty afterwards. */
  readonly stage = signal("");
  readonly plan = signal<TrainPlan | undefined>(undefined);
  readonly progress = signal<readonly TrainProgress[]>([]);
  readonly sample = signal<Sample | undefined>(undefined);
  readonly finished = signal<FinishedAdapter | undefined>(undefined);
  readonly error = signal<JerboaError | undefined>(undefined);
  #stop: AbortController | undefined;
  #abort: AbortController | undefined;
  #runs = 0;

  /** Trains an adapter of a model, and loads it next to the model. */
  async start(model: Model, text: TrainingText, settings: TrainingSettings): Promise<void> {
    if (this.running.peek()) return;
    this.running.value = true;
    this.stage.value = TRAIN.opening;
    this.error.value = undefined;
    this.plan.value = undefined;
    this.progress.value = [];
    this.sample.value = undefined;
    this.#stop = new AbortController();
    this.#abort = new AbortController();
    try {
      await this.#forget();
      const options = numbers(settings);
      const data = dataOf(text);
      const prompt = promptOf(data);
      this.sample.value = { prompt: wordsOf(prompt), before: await sampleOf(model, prompt), after: "" };
      const adapter = await trainLora(model, data, {
        ...options,
        batchSize: 4,
        stop: this.#stop.signal,
        signal: this.#abort.signal,
        onLoad: () => (this.stage.value = TRAIN.loading),
        onPlan: (plan) => {
          this.plan.value = plan;
          this.stage.value = TRAIN.preparing;
        },
        onProgress: (progress) => {
          this.stage.value = "";
          this.progress.value = [...this.progress.peek(), progress];
        },
      });
      const name = `trained-${++this.#runs}`;
      await model.loadAdapter(adapter, { name });
      this.finished.value = { model, name, adapter };
      this.sample.value = { ...this.sample.peek()!, after: await sampleOf(model, prompt, name) };
      announce(TRAIN.done(adapter.steps));
    } catch (thrown) {
      if (!this.#abort.signal.aborted) this.error.value = trainingError(thrown);
    } finally {
      this.running.value = false;
      this.stage.value = "";
    }
  }

  /** Ends the run after its step; before the first one, cancels it. */
  stop(): void {
    if (this.progress.peek().length > 0) this.#stop?.abort();
    else this.#abort?.abort();
  }

  /** Frees the adapter of the previous run. */
  async #forget(): Promise<void> {
    const before = this.finished.peek();
    this.finished.value = undefined;
    if (!before) return;
    if (chatAdapter.peek()?.name === before.name) chatAdapter.value = undefined;
    await before.model.unloadAdapter(before.name).catch(() => undefined);
  }
}

/** An error with a code, which names settings by their labels; the page's own errors are requests. */
function trainingError(thrown: unknown): JerboaError {
  const { code, message } = thrown instanceof Error && !(thrown instanceof JerboaError) ? new JerboaError("request", thrown.message) : asError(thrown);
  return new JerboaError(code, message.replaceAll(/'(epochs|rank|learningRate|maxLength)'/g, (_, name: keyof TrainingSettings) => `“${TRAIN[name]}”`));
}

/** The settings as numbers. @throws `Error` that names the field of an invalid one. */
function numbers(settings: TrainingSettings): Record<keyof TrainingSettings, number> {
  const number = (name: keyof TrainingSettings): number => {
    const [value, min] = [settings[name].trim() ? Number(settings[name]) : NaN, MIN_SETTINGS[name]];
    if (name === "learningRate") {
      if (!(value > min)) throw new Error(TRAIN.badPositive(TRAIN[name]));
    } else if (!(Number.isInteger(value) && value >= min)) throw new Error(TRAIN.badWhole(TRAIN[name], min));
    return value;
  };
  return { epochs: number("epochs"), rank: number("rank"), learningRate: number("learningRate"), maxLength: number("maxLength") };
}

function wordsOf(prompt: SamplePrompt): string {
  if (typeof prompt === "string") return prompt;
  const { content } = prompt.at(-1) ?? {};
  return typeof content === "string" ? content : "";
}

/** What the model continues or answers, with an adapter or without. */
async function sampleOf(model: Model, prompt: SamplePrompt, adapter?: string): Promise<string> {
  const how = { temperature: 0, ...(adapter ? { adapter } : {}) };
  if (typeof prompt === "string") return model.generate(prompt, { ...how, maxTokens: SAMPLE_TOKENS });
  const { choices } = await model.chat.completions.create({ ...how, messages: prompt, max_completion_tokens: SAMPLE_TOKENS });
  return choices[0]?.message.content ?? "";
}
