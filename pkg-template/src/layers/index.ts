/**
 * Networks of layers, trained and run on WebGPU. Loads a worker and the WebAssembly module of `jerboa/train` on first use.
 *
 * @module jerboa/layers
 */

export { createNetwork, Network } from "./network.js";
export type { FitOptions, FitResult, NetworkOptions, Numbers, Weight } from "./network.js";
export type { FitProgress, FitSettings } from "../train/network-calls.js";
export type { ActivationLayer, ActivationName, AttentionLayer, ConvolutionLayer, DenseLayer, EmbeddingLayer, Layer, NormLayer, Optimizer, ParallelLayer, RecurrentLayer, ResidualLayer, ReshapeLayer, SequentialLayer, SwigluLayer } from "./layer-types.js";
