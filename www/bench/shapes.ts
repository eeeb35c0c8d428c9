/** The sizes of models that are measured: config.json as their repositories have it, in shapes.json, and the names of their tensors. Knows no weights. */

import shapes from "./shapes.json";
import tensors from "./tensors.json";

/** What the page itself reads of config.json. */
export interface Config {
  model_type: string;
  num_hidden_layers: number;
  hidden_activation?: string;
  /** The encoding that its own repository has. */
  quantization_config?: { quant_method: string };
  [more: string]: unknown;
}

/** Tensors of a checkpoint whose names differ in the number of their layer only. */
export interface Tensor {
  /** With a star for the layer's number, and for the expert's. */
  name: string;
  /** What decides how it is stored: vectors are all one or all zero, tables are looked up by row, plain ones keep 16 bits. */
  kind: "matrix" | "table" | "plain" | "experts" | "ones" | "zeros";
  /** Of experts that of all, one behind another. */
  shape: number[];
  /** Which layers have it: so many from the first on, or these. */
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
 * All shapes, small ones first; the native runner's `bench` has the same file. The first two are for tests and for what the host alone costs: next to no
 * arithmetic. `JERBOA_WRITE_PLANS=1 cargo test -p jerboa-tests --test plan shape` writes the tensors of a new one.
 */
export const SHAPES: Readonly<Record<string, Shape>> = Object.fromEntries(
  Object.entries(shapes).map(([name, { label, config }]) => [name, { label, config: config as Config, tensors: LISTS[name] as Tensor[] }]),
);
