//! Builds a network's layers from their description: infers shapes and declares weights.

use super::fields::{Fields, refuse};
use crate::kernels::convolution::Convolution;
use jerboa::Result;
use jerboa::ir::Activation;
use serde_json::Value;

/// Maximum elements of a value of one example.
const MAX_ELEMENTS: usize = 1 << 28;
/// Maximum depth of layers in layers.
const MAX_DEPTH: usize = 16;
/// Maximum columns of an attention head.
const MAX_HEAD: usize = 512;

/// First values of a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    /// Uniform in plus or minus a bound.
    Uniform(f32),
    /// Ones.
    Ones,
    /// Zeros.
    Zeros,
}

/// A weight of a network, f32.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkWeight {
    /// Name: the path of the layer and PyTorch's name, such as `0.weight`.
    pub name: String,
    /// Shape as PyTorch has it.
    pub shape: Vec<usize>,
    /// Whether matmuls read it, which pad its rows.
    pub is_matrix: bool,
    /// First values.
    pub initial: Initial,
}

/// Index of a weight.
pub type WeightIndex = usize;

/// A recurrent cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// tanh RNN.
    Rnn,
    /// LSTM.
    Lstm,
    /// GRU.
    Gru,
}

impl Cell {
    /// Gates of the cell.
    pub fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }
}

/// Weight and bias of a linear map.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeights {
    /// `[outputs, inputs]`.
    pub weight: WeightIndex,
    /// `[outputs]`.
    pub bias: Option<WeightIndex>,
}

/// What a layer computes.
#[derive(Debug, Clone)]
pub enum LayerKind {
    /// A linear map of the last dimension.
    Dense(LinearWeights),
    /// A convolution; its batch is set when it runs.
    Convolution(Convolution, LinearWeights),
    /// A recurrent layer over `[steps, features]`.
    Recurrent {
        /// The cell.
        cell: Cell,
        /// Columns of the output.
        units: usize,
        /// Whether the output has all steps.
        sequences: bool,
        /// Weights of the input and the state.
        weights: [WeightIndex; 2],
        /// Biases of both.
        biases: Option<[WeightIndex; 2]>,
    },
    /// RMSNorm, or with a bias LayerNorm, of the last dimension.
    Norm {
        /// Gain.
        gain: WeightIndex,
        /// Bias of a LayerNorm.
        bias: Option<WeightIndex>,
        /// Added to the mean square.
        eps: f32,
    },
    /// Rows of a table by id.
    Embedding(WeightIndex),
    /// Self-attention over `[steps, features]`.
    Attention {
        /// Heads.
        heads: usize,
        /// Whether a step sees only itself and earlier ones.
        causal: bool,
        /// Queries, keys and values: `[3 * features, features]`.
        input: LinearWeights,
        /// Output projection.
        output: LinearWeights,
    },
    /// `down(silu(gate(x)) * up(x))`: weights of gate, up and down.
    SwiGlu([WeightIndex; 3]),
    /// An elementwise function.
    Activation(Activation),
    /// Softmax of the last dimension.
    Softmax,
    /// Another shape of the same elements.
    Reshape,
    /// `x + layers(x)`.
    Residual(Vec<Layer>),
    /// Layers in order.
    Sequential(Vec<Layer>),
    /// Branches of one input; their outputs are joined along an axis, or added.
    Parallel {
        /// The branches.
        branches: Vec<Vec<Layer>>,
        /// The axis; `None` to add.
        axis: Option<usize>,
    },
}

/// A layer with its shapes, of one example.
#[derive(Debug, Clone)]
pub struct Layer {
    /// What it computes.
    pub kind: LayerKind,
    /// Shape of the input.
    pub input: Vec<usize>,
    /// Shape of the output.
    pub output: Vec<usize>,
}

/// What the elements of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// f32 numbers.
    Floats,
    /// Ids of an embedding's rows, below a count.
    Ids(usize),
}

/// The layers of a network.
#[derive(Debug, Clone)]
pub struct Layers {
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// Weights in order of their layers.
    pub weights: Vec<NetworkWeight>,
    /// Shape of an example's output.
    pub output: Vec<usize>,
    /// What the input has.
    pub input_elements: Elements,
}

/// Elements of a shape, or the largest number if there are more.
pub fn count(shape: &[usize]) -> usize {
    shape
        .iter()
        .fold(1, |n: usize, size| n.saturating_mul(*size))
}

/// Builds layers for inputs of a shape.
///
/// # Errors
/// `Request` that names the layer, for fields that it lacks or does not have, and for shapes that do
/// not fit.
pub fn build(input: &[usize], layers: &[Value]) -> Result<Layers> {
    let mut builder = Builder {
        weights: Vec::new(),
        rows: usize::MAX,
    };
    let is_ids = starts_with_embedding(layers);
    let start = Shape {
        sizes: input.to_vec(),
        is_ids,
    };
    let (built, output) = builder.sequence(layers, start, &Place::default(), 0)?;
    if output.is_ids {
        return Err(refuse(
            "layers",
            "no layer converts the ids of the input to numbers. Add a layer of type 'embedding'.",
        ));
    }
    for (index, weight) in builder.weights.iter().enumerate() {
        if count(&weight.shape) > MAX_ELEMENTS {
            let reason = format!("'{}' has more than {MAX_ELEMENTS} elements.", weight.name);
            return Err(refuse("layers", &reason));
        }
        if builder.weights[..index]
            .iter()
            .any(|w| w.name == weight.name)
        {
            let reason = format!(
                "two weights are named '{}'. Use different names.",
                weight.name
            );
            return Err(refuse("layers", &reason));
        }
    }
    Ok(Layers {
        layers: built,
        weights: builder.weights,
        output: output.sizes,
        input_elements: if is_ids {
            Elements::Ids(builder.rows)
        } else {
            Elements::Floats
        },
    })
}

/// Whether the first layer that reads the input is an embedding.
fn starts_with_embedding(layers: &[Value]) -> bool {
    let Some(first) = layers.first() else {
        return false;
    };
    match first["type"].as_str() {
        Some("embedding") => true,
        Some("flatten" | "reshape") => starts_with_embedding(&layers[1..]),
        Some("sequential" | "residual") => nested(&first["layers"]),
        Some("parallel") => first["branches"]
            .as_array()
            .is_some_and(|branches| branches.iter().any(nested)),
        _ => false,
    }
}

fn nested(layers: &Value) -> bool {
    layers
        .as_array()
        .is_some_and(|own| starts_with_embedding(own))
}

/// The shape of a value of one example.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    sizes: Vec<usize>,
    is_ids: bool,
}

/// Where layers are: their path in the description, and the prefix of their weights' names.
#[derive(Debug, Clone)]
struct Place {
    path: String,
    prefix: String,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            path: "layers".into(),
            prefix: String::new(),
        }
    }
}

struct Builder {
    weights: Vec<NetworkWeight>,
    /// Rows of the smallest table.
    rows: usize,
}

impl Builder {
    fn sequence(
        &mut self,
        layers: &[Value],
        mut shape: Shape,
        place: &Place,
        depth: usize,
    ) -> Result<(Vec<Layer>, Shape)> {
        if depth > MAX_DEPTH {
            return Err(refuse(&place.path, "layers are nested more than 16 deep."));
        }
        let mut built = Vec::with_capacity(layers.len());
        for (index, description) in layers.iter().enumerate() {
            let path = format!("{}[{index}]", place.path);
            let (kind, mut fields) = Fields::of(description, &path)?;
            let name = fields.name()?.map_or(index.to_string(), str::to_owned);
            let own = Place {
                path,
                prefix: format!("{}{name}.", place.prefix),
            };
            let activation = match kind {
                "dense" | "conv1d" | "conv2d" | "conv3d" => fields.text("activation")?,
                _ => None,
            };
            let at = fields.at.clone();
            let layer = self.layer(kind, fields, &shape, &own, depth)?;
            shape = Shape {
                sizes: layer.output.clone(),
                is_ids: shape.is_ids && matches!(layer.kind, LayerKind::Reshape),
            };
            built.push(layer);
            if let Some(name) = activation.filter(|name| *name != "linear") {
                let kind = activation_named(name).map(LayerKind::Activation);
                let kind = kind.or_else(|| (name == "softmax").then_some(LayerKind::Softmax));
                let kind = kind.ok_or_else(|| {
                    let reason = format!("'activation' has no function '{name}'. Use linear, relu, silu, gelu, geluTanh, tanh, sigmoid or softmax.");
                    refuse(&at, &reason)
                })?;
                built.push(Layer {
                    kind,
                    input: shape.sizes.clone(),
                    output: shape.sizes.clone(),
                });
            }
        }
        Ok((built, shape))
    }

    fn weight(
        &mut self,
        place: &Place,
        name: &str,
        shape: Vec<usize>,
        initial: Initial,
    ) -> WeightIndex {
        self.weights.push(NetworkWeight {
            name: format!("{}{name}", place.prefix),
            shape,
            is_matrix: false,
            initial,
        });
        self.weights.len() - 1
    }

    /// A matrix `[outputs, inputs]` with PyTorch's uniform distribution.
    fn matrix(
        &mut self,
        place: &Place,
        name: &str,
        [outputs, inputs]: [usize; 2],
        bound: f32,
    ) -> WeightIndex {
        let index = self.weight(place, name, vec![outputs, inputs], Initial::Uniform(bound));
        self.weights[index].is_matrix = true;
        index
    }

    fn linear(
        &mut self,
        place: &Place,
        [weight, bias]: [&str; 2],
        size: [usize; 2],
        with_bias: bool,
    ) -> LinearWeights {
        let bound = 1.0 / (size[1] as f32).sqrt();
        let weight = self.matrix(place, weight, size, bound);
        let bias =
            with_bias.then(|| self.weight(place, bias, vec![size[0]], Initial::Uniform(bound)));
        LinearWeights { weight, bias }
    }

    fn layer(
        &mut self,
        kind: &str,
        mut fields: Fields<'_>,
        shape: &Shape,
        place: &Place,
        depth: usize,
    ) -> Result<Layer> {
        let input = shape.sizes.clone();
        let at = fields.at.clone();
        let takes_ids = matches!(
            kind,
            "embedding" | "flatten" | "reshape" | "sequential" | "parallel"
        );
        if shape.is_ids && !takes_ids {
            return Err(refuse(
                &at,
                "its input has ids, not numbers. Put a layer of type 'embedding' before it.",
            ));
        }
        let last = *input.last().unwrap_or(&1);
        let (layer, output) = match kind {
            "dense" => {
                let units = fields.size("units")?;
                let bias = fields.flag("bias", true)?;
                let own = self.linear(place, ["weight", "bias"], [units, last], bias);
                (LayerKind::Dense(own), with_last(&input, units))
            }
            "conv1d" | "conv2d" | "conv3d" => {
                let dims = usize::from(kind.as_bytes()[4] - b'0');
                self.convolution(&mut fields, dims, &input, place)?
            }
            "rnn" | "lstm" | "gru" => {
                let cell = match kind {
                    "rnn" => Cell::Rnn,
                    "lstm" => Cell::Lstm,
                    _ => Cell::Gru,
                };
                self.recurrent(&mut fields, cell, &input, place)?
            }
            "rmsNorm" | "layerNorm" => {
                let eps = fields.above_zero("eps", 1e-5)?;
                let gain = self.weight(place, "weight", vec![last], Initial::Ones);
                let bias = (kind == "layerNorm")
                    .then(|| self.weight(place, "bias", vec![last], Initial::Zeros));
                (LayerKind::Norm { gain, bias, eps }, input.clone())
            }
            "embedding" => {
                if !shape.is_ids {
                    let reason = "it reads ids, which only the network's input has. Make it the first layer.";
                    return Err(refuse(&at, reason));
                }
                let rows = fields.size("inputDim")?;
                let cols = fields.size("outputDim")?;
                // Uniform with the variance of PyTorch's normal distribution.
                let table = self.matrix(place, "weight", [rows, cols], 3f32.sqrt());
                self.rows = self.rows.min(rows);
                let output = [&input[..], &[cols]].concat();
                (LayerKind::Embedding(table), output)
            }
            "attention" => self.attention(&mut fields, &input, place)?,
            "swiglu" => {
                let hidden = fields.size("hidden")?;
                let units = fields.size_or("units", last)?;
                let bound = |inputs: usize| 1.0 / (inputs as f32).sqrt();
                let gate = self.matrix(place, "gate_proj.weight", [hidden, last], bound(last));
                let up = self.matrix(place, "up_proj.weight", [hidden, last], bound(last));
                let down = self.matrix(place, "down_proj.weight", [units, hidden], bound(hidden));
                (
                    LayerKind::SwiGlu([gate, up, down]),
                    with_last(&input, units),
                )
            }
            "softmax" => (LayerKind::Softmax, input.clone()),
            "flatten" => (LayerKind::Reshape, vec![count(&input)]),
            "reshape" => {
                let output = fields.shape("shape")?;
                if count(&output) != count(&input) {
                    let reason = format!(
                        "'shape' {output:?} has {} elements, but its input {input:?} has {}. Use a shape with as many.",
                        count(&output),
                        count(&input)
                    );
                    return Err(refuse(&at, &reason));
                }
                (LayerKind::Reshape, output)
            }
            "residual" => {
                let own = nested_place(place, "layers");
                let (layers, output) =
                    self.sequence(fields.list("layers")?, shape.clone(), &own, depth + 1)?;
                if output.sizes != input {
                    let reason = format!(
                        "its layers change the shape {input:?} to {:?}, so their output cannot be added to the input. Use layers that keep the shape.",
                        output.sizes
                    );
                    return Err(refuse(&at, &reason));
                }
                (LayerKind::Residual(layers), output.sizes)
            }
            "sequential" => {
                let own = nested_place(place, "layers");
                let (layers, output) =
                    self.sequence(fields.list("layers")?, shape.clone(), &own, depth + 1)?;
                require_numbers(&at, &output)?;
                (LayerKind::Sequential(layers), output.sizes)
            }
            "parallel" => self.parallel(&mut fields, shape, place, depth)?,
            other => {
                let activation = activation_named(other).ok_or_else(|| {
                    let reason = format!("there is no layer '{other}'. Use dense, conv1d, conv2d, conv3d, rnn, lstm, gru, rmsNorm, layerNorm, embedding, attention, swiglu, relu, silu, gelu, geluTanh, tanh, sigmoid, softmax, flatten, reshape, residual, sequential or parallel.");
                    refuse(&place.path, &reason)
                })?;
                (LayerKind::Activation(activation), input.clone())
            }
        };
        fields.end()?;
        if count(&output) > MAX_ELEMENTS {
            return Err(refuse(
                &at,
                &format!("its output {output:?} has more than {MAX_ELEMENTS} elements."),
            ));
        }
        Ok(Layer {
            kind: layer,
            input,
            output,
        })
    }

    fn convolution(
        &mut self,
        fields: &mut Fields<'_>,
        dims: usize,
        input: &[usize],
        place: &Place,
    ) -> Result<(LayerKind, Vec<usize>)> {
        let at = fields.at.clone();
        if input.len() != dims + 1 {
            let names = [
                "[channels, width]",
                "[channels, height, width]",
                "[channels, depth, height, width]",
            ];
            return Err(refuse(
                &at,
                &format!("its input must be {}, not {input:?}.", names[dims - 1]),
            ));
        }
        let channels = input[0];
        let outputs = fields.size("filters")?;
        let groups = fields.size_or("groups", 1)?;
        let mut inputs = [1; 3];
        inputs[3 - dims..].copy_from_slice(&input[1..]);
        let op = Convolution {
            batch: 1,
            channels,
            outputs,
            groups,
            inputs,
            kernel: fields.sizes("kernelSize", dims, [1, 1], None)?,
            stride: fields.sizes("stride", dims, [1, 1], Some(1))?,
            padding: fields.sizes("padding", dims, [0, 0], Some(0))?,
            dilation: fields.sizes("dilation", dims, [1, 1], Some(1))?,
        };
        if !channels.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let reason = format!(
                "'groups' {groups} must divide the {channels} channels of its input and its {outputs} filters."
            );
            return Err(refuse(&at, &reason));
        }
        for d in 3 - dims..3 {
            let span = op.dilation[d]
                .saturating_mul(op.kernel[d] - 1)
                .saturating_add(1);
            if span > op.inputs[d] + 2 * op.padding[d] {
                let reason = format!(
                    "its kernel spans {span} elements, but its padded input has only {}. Use a smaller 'kernelSize' or more 'padding'.",
                    op.inputs[d] + 2 * op.padding[d]
                );
                return Err(refuse(&at, &reason));
            }
        }
        let taps = &op.kernel[3 - dims..];
        let shape = [&[outputs, channels / groups], taps].concat();
        let bound = 1.0 / (count(&shape[1..]) as f32).sqrt();
        let weight = self.weight(place, "weight", shape, Initial::Uniform(bound));
        let bias = fields
            .flag("bias", true)?
            .then(|| self.weight(place, "bias", vec![outputs], Initial::Uniform(bound)));
        let output = [&[outputs], &op.out_sizes()[3 - dims..]].concat();
        Ok((
            LayerKind::Convolution(op, LinearWeights { weight, bias }),
            output,
        ))
    }

    fn recurrent(
        &mut self,
        fields: &mut Fields<'_>,
        cell: Cell,
        input: &[usize],
        place: &Place,
    ) -> Result<(LayerKind, Vec<usize>)> {
        let [steps, features] = sequence_shape(&fields.at, input)?;
        let units = fields.size("units")?;
        let sequences = fields.flag("returnSequences", false)?;
        let bound = 1.0 / (units as f32).sqrt();
        let gates = cell.gates() * units;
        let input_weight = self.matrix(place, "weight_ih_l0", [gates, features], bound);
        let state_weight = self.matrix(place, "weight_hh_l0", [gates, units], bound);
        let biases = fields.flag("bias", true)?.then(|| {
            ["bias_ih_l0", "bias_hh_l0"]
                .map(|name| self.weight(place, name, vec![gates], Initial::Uniform(bound)))
        });
        let kind = LayerKind::Recurrent {
            cell,
            units,
            sequences,
            weights: [input_weight, state_weight],
            biases,
        };
        let output = if sequences {
            vec![steps, units]
        } else {
            vec![units]
        };
        Ok((kind, output))
    }

    fn attention(
        &mut self,
        fields: &mut Fields<'_>,
        input: &[usize],
        place: &Place,
    ) -> Result<(LayerKind, Vec<usize>)> {
        let [_, features] = sequence_shape(&fields.at, input)?;
        let heads = fields.size_or("heads", 1)?;
        let causal = fields.flag("causal", false)?;
        let bias = fields.flag("bias", true)?;
        if !features.is_multiple_of(heads) || features / heads > MAX_HEAD {
            let reason = format!(
                "'heads' {heads} must divide the {features} features of its input into heads of up to {MAX_HEAD}."
            );
            return Err(refuse(&fields.at, &reason));
        }
        let names = ["in_proj_weight", "in_proj_bias"];
        let input_weights = self.linear(place, names, [3 * features, features], bias);
        let names = ["out_proj.weight", "out_proj.bias"];
        let output_weights = self.linear(place, names, [features, features], bias);
        let kind = LayerKind::Attention {
            heads,
            causal,
            input: input_weights,
            output: output_weights,
        };
        Ok((kind, input.to_vec()))
    }

    fn parallel(
        &mut self,
        fields: &mut Fields<'_>,
        shape: &Shape,
        place: &Place,
        depth: usize,
    ) -> Result<(LayerKind, Vec<usize>)> {
        let at = fields.at.clone();
        let combine = fields.text("combine")?.unwrap_or("concat");
        let axis = fields.whole("axis", -1)?;
        let mut branches = Vec::new();
        let mut outputs: Vec<Vec<usize>> = Vec::new();
        for (index, branch) in fields.list("branches")?.iter().enumerate() {
            let path = format!("{}.branches[{index}]", place.path);
            let Some(layers) = branch.as_array() else {
                return Err(refuse(&path, "it must be an array of layers."));
            };
            let own = Place {
                path,
                prefix: format!("{}{index}.", place.prefix),
            };
            let (layers, output) = self.sequence(layers, shape.clone(), &own, depth + 1)?;
            require_numbers(&at, &output)?;
            branches.push(layers);
            outputs.push(output.sizes);
        }
        let Some(first) = outputs.first().cloned() else {
            return Err(refuse(&at, "'branches' is empty."));
        };
        let dims = first.len() as i64;
        let axis = match combine {
            "add" => None,
            "concat" if (-dims..dims).contains(&axis) => Some(axis.rem_euclid(dims) as usize),
            "concat" => {
                let reason = format!("'axis' {axis} is not a dimension of {first:?}.");
                return Err(refuse(&at, &reason));
            }
            other => {
                let reason = format!("'combine' must be 'concat' or 'add', not '{other}'.");
                return Err(refuse(&at, &reason));
            }
        };
        let mut output = first.clone();
        for other in &outputs[1..] {
            let mut aligned = other.clone();
            if let (Some(axis), true) = (axis, other.len() == first.len()) {
                output[axis] += other[axis];
                aligned[axis] = first[axis];
            }
            if aligned != first {
                let reason = format!(
                    "its branches have the output shapes {first:?} and {other:?}, which cannot be combined."
                );
                return Err(refuse(&at, &reason));
            }
        }
        Ok((LayerKind::Parallel { branches, axis }, output))
    }
}

fn nested_place(place: &Place, field: &str) -> Place {
    Place {
        path: format!("{}.{field}", place.path),
        prefix: place.prefix.clone(),
    }
}

fn require_numbers(at: &str, shape: &Shape) -> Result<()> {
    if shape.is_ids {
        return Err(refuse(
            at,
            "its input has ids, but none of its layers is an embedding. Add a layer of type 'embedding'.",
        ));
    }
    Ok(())
}

fn sequence_shape(at: &str, input: &[usize]) -> Result<[usize; 2]> {
    input.try_into().map_err(|_| {
        let reason = format!("its input must be [steps, features], not {input:?}.");
        refuse(at, &reason)
    })
}

fn with_last(shape: &[usize], last: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(size) = shape.last_mut() {
        *size = last;
    }
    shape
}

fn activation_named(name: &str) -> Option<Activation> {
    Some(match name {
        "relu" => Activation::Relu,
        "silu" => Activation::Silu,
        "gelu" => Activation::Gelu,
        "geluTanh" => Activation::GeluTanh,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        _ => return None,
    })
}
