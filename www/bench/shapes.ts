/** The model sizes to benchmark: config.json as published (shapes.json) and tensor names. */

import shapes from "./shapes.json";
import tensors from "./tensors.json";

/** The fields of config.json that the page reads. */
export interface Config {
  model_type: string;
  num_hidden_layers: number;
  hidden_activation?: string;
  /** The encoding of the published repository. */
  quantization_config?: { quant_method: string };
  [more: string]: unknown;
}

/** Tensors whose names differ only in the layer number. */
export interface Tensor {
  /** With stars for the layer and expert numbers. */
  name: string;
  /** Decides the format: vectors of ones or zeros, tables that are looked up by row, plain tensors that stay 16-bit. */
  kind: "matrix" | "table" | "plain" | "experts" | "ones" | "zeros";
  /** For experts, the shape of all of them stacked. */
  shape: number[];
  /** The layers that have it: the first n, or a list. */
  layers?: number | number[];
}

/** A shape by its name. */
export interface Shape {
  label: string;
  config: Config;
  tensors: Tensor[];
}

const LISTS: Record<string, unknown> = tensors;

/**
 * All shapes, small ones first; the native runner's `bench` uses the same file. The first two are for tests and for
 * host overhead: almost no arithmetic. `JERBOA_WRITE_PLANS=1 cargo test -p jerboa-tests --test plan shape` writes the
 * tensors of a new one.
 */
export const SHAPES: Readonly<Record<string, Shape>> = Object.fromEntries(
  Object.entries(shapes).map(([name, { label, config }]) => [name, { label, config: config as Config, tensors: LISTS[name] as Tensor[] }]),
);
