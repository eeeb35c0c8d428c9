/** Descriptions of layers. */

/** Elementwise functions; `gelu` is exact, `geluTanh` its approximation. */
export type ActivationName = "relu" | "silu" | "gelu" | "geluTanh" | "tanh" | "sigmoid";

interface Named {
  /** Replaces the layer's index in the names of its weights. */
  name?: string;
}

/** A linear map of the last dimension: weights `weight` [units, inputs] and `bias` [units]. */
export interface DenseLayer extends Named {
  type: "dense";
  /** Size of the last dimension of the output. */
  units: number;
  /** Whether it has a bias. Default: `true`. */
  bias?: boolean;
  /** A function of the output. Default: `linear`, none. */
  activation?: ActivationName | "softmax" | "linear";
}

/**
 * A convolution of [channels, width], [channels, height, width] or [channels, depth, height, width]: weights `weight`
 * [filters, channels / groups, ...kernelSize] and `bias` [filters]. Sizes are one number for all dimensions, or one each.
 */
export interface ConvolutionLayer extends Named {
  type: "conv1d" | "conv2d" | "conv3d";
  /** Channels of the output. */
  filters: number;
  /** Taps per dimension. */
  kernelSize: number | number[];
  /** Distance of outputs. Default: `1`. */
  stride?: number | number[];
  /** Zeros before and after the input. Default: `0`. */
  padding?: number | number[];
  /** Distance of taps. Default: `1`. */
  dilation?: number | number[];
  /** Groups of channels that do not mix. Default: `1`. */
  groups?: number;
  /** Whether it has a bias. Default: `true`. */
  bias?: boolean;
  /** A function of the output. Default: `linear`, none. */
  activation?: ActivationName | "softmax" | "linear";
}

/**
 * A recurrent layer over [steps, features], whose state starts with zeros: PyTorch's weights `weight_ih_l0`, `weight_hh_l0`,
 * `bias_ih_l0`, `bias_hh_l0`, with its order of gates.
 */
export interface RecurrentLayer extends Named {
  type: "rnn" | "lstm" | "gru";
  /** Size of the state and the output. */
  units: number;
  /** Whether the output has all steps, [steps, units], or the last, [units]. Default: `false`. */
  returnSequences?: boolean;
  /** Whether it has biases. Default: `true`. */
  bias?: boolean;
}

/** A norm of the last dimension: weights `weight`, and `bias` of a layerNorm. */
export interface NormLayer extends Named {
  type: "rmsNorm" | "layerNorm";
  /** Added to the mean square. Default: `0.00001`. */
  eps?: number;
}

/** Rows of a table by id: weight `weight` [inputDim, outputDim]. It reads the network's input, which then has ids. */
export interface EmbeddingLayer extends Named {
  type: "embedding";
  /** Rows of the table: ids are below it. */
  inputDim: number;
  /** Size of the dimension that it appends. */
  outputDim: number;
}

/**
 * Self-attention over [steps, features]: weights of PyTorch's MultiheadAttention, `in_proj_weight`, `in_proj_bias`,
 * `out_proj.weight`, `out_proj.bias`.
 */
export interface AttentionLayer extends Named {
  type: "attention";
  /** Heads; they divide the features. Default: `1`. */
  heads?: number;
  /** Whether a step sees only itself and earlier ones. Default: `false`. */
  causal?: boolean;
  /** Whether it has biases. Default: `true`. */
  bias?: boolean;
}

/** `down(silu(gate(x)) · up(x))` of the last dimension: weights `gate_proj.weight`, `up_proj.weight`, `down_proj.weight`. */
export interface SwigluLayer extends Named {
  type: "swiglu";
  /** Outputs of gate and up. */
  hidden: number;
  /** Size of the last dimension of the output. Default: that of the input. */
  units?: number;
}

/** An elementwise function, or softmax of the last dimension. */
export interface ActivationLayer extends Named {
  type: ActivationName | "softmax";
}

/** Another shape of the same elements; `flatten` is one dimension. */
export type ReshapeLayer = (Named & { type: "flatten" }) | (Named & { type: "reshape"; shape: number[] });

/** `x + layers(x)`; the layers keep the shape. */
export interface ResidualLayer extends Named {
  type: "residual";
  layers: Layer[];
}

/** Layers in order, as one layer. */
export interface SequentialLayer extends Named {
  type: "sequential";
  layers: Layer[];
}

/** Branches of one input, whose outputs are joined or added. An empty branch passes its input on. */
export interface ParallelLayer extends Named {
  type: "parallel";
  branches: Layer[][];
  /** Default: `concat`. */
  combine?: "concat" | "add";
  /** Dimension of an example along which outputs are joined; negative numbers count from the end. Default: `-1`. */
  axis?: number;
}

/** A layer of a network. */
export type Layer = DenseLayer | ConvolutionLayer | RecurrentLayer | NormLayer | EmbeddingLayer | AttentionLayer | SwigluLayer | ActivationLayer | ReshapeLayer | ResidualLayer | SequentialLayer | ParallelLayer;

/** An optimizer with the names and formulas of PyTorch. */
export type Optimizer =
  | {
      type: "sgd";
      /** Default: `0.01`. */
      learningRate?: number;
      /** Default: `0`. */
      momentum?: number;
      /** Default: `0`. */
      weightDecay?: number;
    }
  | {
      type: "adamw";
      /** Default: `0.001`. */
      learningRate?: number;
      /** Default: `0.9`. */
      beta1?: number;
      /** Default: `0.999`. */
      beta2?: number;
      /** Default: `0.00000001`. */
      eps?: number;
      /** Default: `0`. */
      weightDecay?: number;
    };
