/**
 * Trains LoRA adapters of text and embedding models on WebGPU. Loads a worker and a WebAssembly module of its own on first use.
 *
 * @module jerboa/train
 */

export { trainLora } from "./train-lora.js";
export type { TrainOptions } from "./train-lora.js";
export { deleteSavedAdapter, savedAdapter, savedAdapters, TrainedAdapter } from "./adapter.js";
export type { AdapterFiles } from "./adapter.js";
export type { DpoSettings, TrainPair, TrainPlan, TrainProgress, TrainSettings } from "./calls.js";
export type { PreferencePair, TrainData } from "./dataset.js";
