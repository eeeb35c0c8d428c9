/** Descriptions of layers. */

/** Elementwise activation functions; `gelu` is exact (erf), `geluTanh` is its tanh approximation. */
export type ActivationName = "relu" | "silu" | "gelu" | "geluTanh" | "tanh" | "sigmoid";

interface Named {
  /** Replaces the layer's index in the names of its weights. */
  name?: string;
}

/** A fully connected layer over the last dimension: weights `weight` [units, inputs] and `bias` [units]. */
export interface DenseLayer extends Named {
  type: "dense";
  /** Size of the last dimension of the output. */
  units: number;
  /** Whether it has a bias. Default: `true`. */
  bias?: boolean;
  /** Activation applied to the output. Default: `linear`, none. */
  activation?: ActivationName | "softmax" | "linear";
}

/**
 * A convolution of [channels, width], [channels, height, width] or [channels, depth, height, width]: weights `weight`
 * [filters, channels / groups, ...kernelSize] and `bias` [filters]. A size is one number for all dimensions, or one number for
 * each.
 */
export interface ConvolutionLayer extends Named {
  type: "conv1d" | "conv2d" | "conv3d";
  /** Number of output channels. */
  filters: number;
  /** Kernel size per dimension. */
  kernelSize: number | number[];
  /** Stride of the kernel. Default: `1`. */
  stride?: number | number[];
  /** Zero padding on both sides of each dimension. Default: `0`. */
  padding?: number | number[];
  /** Spacing between kernel elements. Default: `1`. */
  dilation?: number | number[];
  /** Number of channel groups, convolved separately. Default: `1`. */
  groups?: number;
  /** Whether it has a bias. Default: `true`. */
  bias?: boolean;
  /** Activation applied to the output. Default: `linear`, none. */
  activation?: ActivationName | "softmax" | "linear";
}

/**
 * A recurrent layer over [steps, features] with an initial state of zeros. Weights and gate order are PyTorch's:
 * `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`.
 */
export interface RecurrentLayer extends Named {
  type: "rnn" | "lstm" | "gru";
  /** Size of the hidden state and of the output. */
  units: number;
  /** Whether to output all steps, [steps, units], or only the last one, [units]. Default: `false`. */
  returnSequences?: boolean;
  /** Whether it has biases. Default: `true`. */
  bias?: boolean;
}

/** A normalization over the last dimension: weights `weight`, and for `layerNorm` also `bias`. */
export interface NormLayer extends Named {
  type: "rmsNorm" | "layerNorm";
  /** Added to the mean square (`rmsNorm`) or the variance (`layerNorm`). Default: `0.00001`. */
  eps?: number;
}

/** An embedding table: weight `weight` [inputDim, outputDim]. Must read the network's input, which is then ids. */
export interface EmbeddingLayer extends Named {
  type: "embedding";
  /** Number of rows of the table; ids are from 0 to `inputDim - 1`. */
  inputDim: number;
  /** Size of an embedding, appended as the last dimension. */
  outputDim: number;
}

/**
 * Self-attention over [steps, features]: weights of PyTorch's MultiheadAttention, `in_proj_weight`, `in_proj_bias`,
 * `out_proj.weight`, `out_proj.bias`.
 */
export interface AttentionLayer extends Named {
  type: "attention";
  /** Number of heads; must divide the number of features. Default: `1`. */
  heads?: number;
  /** Whether a step attends only to itself and earlier steps. Default: `false`. */
  causal?: boolean;
  /** Whether it has biases. Default: `true`. */
  bias?: boolean;
}

/** A gated MLP over the last dimension, `down(silu(gate(x)) · up(x))`: weights `gate_proj.weight`, `up_proj.weight`, `down_proj.weight`. */
export interface SwigluLayer extends Named {
  type: "swiglu";
  /** Size of the hidden dimension: outputs of `gate` and `up`. */
  hidden: number;
  /** Size of the last dimension of the output. Default: that of the input. */
  units?: number;
}

/** An elementwise activation, or softmax over the last dimension. */
export interface ActivationLayer extends Named {
  type: ActivationName | "softmax";
}

/** A reshape with the same number of elements; `flatten` gives one dimension. */
export type ReshapeLayer = (Named & { type: "flatten" }) | (Named & { type: "reshape"; shape: number[] });

/** A residual connection, `x + layers(x)`; the layers must keep the shape. */
export interface ResidualLayer extends Named {
  type: "residual";
  layers: Layer[];
}

/** Layers in order, as one layer. */
export interface SequentialLayer extends Named {
  type: "sequential";
  layers: Layer[];
}

/** Parallel branches over one input, whose outputs are concatenated or added. An empty branch is the identity. */
export interface ParallelLayer extends Named {
  type: "parallel";
  branches: Layer[][];
  /** How the outputs of the branches are combined. Default: `concat`. */
  combine?: "concat" | "add";
  /** Dimension along which outputs are concatenated; negative numbers count from the end. Default: `-1`. */
  axis?: number;
}

/** A layer of a network. */
export type Layer = DenseLayer | ConvolutionLayer | RecurrentLayer | NormLayer | EmbeddingLayer | AttentionLayer | SwigluLayer | ActivationLayer | ReshapeLayer | ResidualLayer | SequentialLayer | ParallelLayer;

/** An optimizer; options and update rules are PyTorch's. */
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
