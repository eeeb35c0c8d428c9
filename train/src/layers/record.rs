//! Records the launches of a network's forward and backward pass. A layer's backward pass gets what
//! its forward pass kept, and returns the gradient of its input.

mod recurrent;

use super::build::{Layer, LayerKind, LinearWeights, NetworkWeight, WeightIndex, count};
use crate::kernel::TrainLaunch;
use crate::kernels::attention::{AttentionShape, QueryKeyValue};
use crate::kernels::contiguous;
use crate::kernels::convolution::Convolution;
use crate::kernels::elementwise::{Function, elementwise};
use crate::kernels::embed::{embed, embed_table};
use crate::kernels::matmul::{WeightRows, linear, linear_input, linear_weight};
use crate::kernels::norm::{NormShape, column_sums};
use crate::kernels::softmax::{softmax, softmax_gradient};
use jerboa::format::{Float, WeightLayout};
use jerboa::ir::Activation;
use jerboa::kernels::matmul::WeightPlanes;
use jerboa::kernels::view::View;

/// Storage of all weights.
pub const LAYOUT: WeightLayout = WeightLayout::Dense(Float::F32);

/// A buffer of a network by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkBuffer {
    /// The examples of a batch.
    Input,
    /// Their targets, labels, or gradients of the output.
    Targets,
    /// A value or a gradient of the batch, by index of [`Recorder::sizes`].
    Temporary(usize),
    /// A weight.
    Weight(WeightIndex),
    /// Its gradient.
    Gradient(WeightIndex),
    /// A state of its optimizer.
    State(WeightIndex, usize),
    /// First and end row of each row's sequence, by steps of a sequence.
    Spans(usize),
    /// Loss of each row.
    RowLosses,
    /// Sum of the losses.
    Loss,
    /// Numbers that change from step to step.
    Hyper,
    /// Sums of squares of the gradients.
    SquareSums,
    /// Norm of the gradients and the factor that clips them.
    Clip,
}

use NetworkBuffer::{Gradient, Weight};

type Buffer = NetworkBuffer;

/// What a layer's backward pass needs: its input, its output, and buffers of its own.
#[derive(Debug)]
pub struct Kept {
    x: Buffer,
    y: Buffer,
    buffers: Vec<Buffer>,
    /// By branch and layer.
    children: Vec<Vec<Kept>>,
}

/// Records launches for a batch.
pub struct Recorder<'a> {
    weights: &'a [NetworkWeight],
    batch: usize,
    /// Launches so far.
    pub launches: Vec<TrainLaunch<Buffer>>,
    /// Elements of each temporary buffer.
    pub sizes: Vec<usize>,
    /// Steps of the sequences whose spans are read.
    pub spans: Vec<usize>,
}

/// Rows of a batch and columns of a shape's last dimension.
fn matrix(batch: usize, shape: &[usize]) -> [usize; 2] {
    let cols = shape.last().copied().unwrap_or(1).max(1);
    [batch * count(shape) / cols, cols]
}

/// Columns of a buffer from `first` on.
fn columns(buffer: Buffer, first: usize, stride: usize) -> View<Buffer> {
    View {
        buffer,
        offset: first as u32,
        stride: stride as u32,
    }
}

impl<'a> Recorder<'a> {
    /// Starts a recording for `batch` examples.
    pub fn new(weights: &'a [NetworkWeight], batch: usize) -> Self {
        Self {
            weights,
            batch,
            launches: Vec::new(),
            sizes: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Appends a launch.
    pub fn push(&mut self, launch: TrainLaunch<Buffer>) {
        self.launches.push(launch);
    }

    /// Creates a buffer.
    pub fn temporary(&mut self, elements: usize) -> Buffer {
        self.sizes.push(elements);
        NetworkBuffer::Temporary(self.sizes.len() - 1)
    }

    /// Copies `elements` of a buffer.
    pub fn copy(&mut self, from: Buffer, elements: usize) -> Buffer {
        let to = self.temporary(elements);
        self.compute(Function::Scale(1.0), elements, &[from], to);
        to
    }

    fn compute(&mut self, function: Function, elements: usize, inputs: &[Buffer], out: Buffer) {
        let views: Vec<View<Buffer>> = inputs.iter().map(|x| contiguous(*x, elements)).collect();
        let inputs: Vec<&View<Buffer>> = views.iter().collect();
        let out = contiguous(out, elements);
        self.push(elementwise(function, [1, elements], &inputs, &out, false));
    }

    fn sum(&mut self, a: Buffer, b: Buffer, elements: usize) -> Buffer {
        let out = self.temporary(elements);
        self.compute(Function::Sum, elements, &[a, b], out);
        out
    }

    /// All rows of a matrix.
    fn whole(&self, weight: WeightIndex) -> WeightRows<Buffer> {
        self.rows_of(weight, 0, self.weights[weight].shape[0])
    }

    fn rows_of(&self, weight: WeightIndex, first: usize, rows: usize) -> WeightRows<Buffer> {
        let shape = &self.weights[weight].shape;
        WeightRows {
            planes: WeightPlanes {
                layout: LAYOUT,
                rows: shape[0] as u32,
                cols: shape[1] as u32,
                q: Weight(weight),
                s: None,
            },
            first,
            count: rows,
        }
    }

    /// The gradient of a matrix from row `first` on.
    fn gradient(&self, weight: WeightIndex, first: usize) -> View<Buffer> {
        let stride = LAYOUT.padded_cols(self.weights[weight].shape[1]);
        columns(Gradient(weight), first * stride, stride)
    }

    /// `y = x Wᵀ + b` over `rows` rows.
    fn linear(&mut self, own: LinearWeights, rows: usize, x: Buffer) -> Buffer {
        let weight = self.whole(own.weight);
        let [outputs, inputs] = [weight.count, weight.planes.cols as usize];
        let y = self.temporary(rows * outputs);
        let [from, to] = [contiguous(x, inputs), contiguous(y, outputs)];
        self.push(linear(&weight, rows, 1.0, &from, own.bias.map(Weight), &to));
        y
    }

    /// Adds the gradients of a linear map's weights; returns that of x if `needs_dx`.
    fn linear_backward(
        &mut self,
        own: LinearWeights,
        rows: usize,
        [x, dy]: [Buffer; 2],
        needs_dx: bool,
    ) -> Option<Buffer> {
        let weight = self.whole(own.weight);
        let [outputs, inputs] = [weight.count, weight.planes.cols as usize];
        let [x, above] = [contiguous(x, inputs), contiguous(dy, outputs)];
        let dw = self.gradient(own.weight, 0);
        self.push(linear_weight([rows, outputs, inputs], 1.0, &above, &x, &dw));
        if let Some(bias) = own.bias {
            self.push(column_sums([rows, 1, outputs], &above, Gradient(bias), 0));
        }
        needs_dx.then(|| {
            let dx = self.temporary(rows * inputs);
            let to = contiguous(dx, inputs);
            self.push(linear_input(&weight, rows, 1.0, &above, &to, false));
            dx
        })
    }

    /// Records layers in order; returns the output and what their backward pass needs.
    pub fn forward(&mut self, layers: &[Layer], mut x: Buffer) -> (Buffer, Vec<Kept>) {
        let mut kept = Vec::with_capacity(layers.len());
        for layer in layers {
            let own = self.layer(layer, x);
            x = own.y;
            kept.push(own);
        }
        (x, kept)
    }

    /// Records the gradients of layers in reverse; returns that of their input if `needs_dx`.
    pub fn backward(
        &mut self,
        layers: &[Layer],
        kept: &[Kept],
        mut dy: Buffer,
        needs_dx: bool,
    ) -> Option<Buffer> {
        for (index, layer) in layers.iter().enumerate().rev() {
            let below = layers[..index].iter().any(has_weights);
            if !needs_dx && !below && !has_weights(layer) {
                return None;
            }
            dy = self.layer_backward(layer, &kept[index], dy, needs_dx || below)?;
        }
        Some(dy)
    }

    fn layer(&mut self, layer: &Layer, x: Buffer) -> Kept {
        let [rows, cols] = matrix(self.batch, &layer.input);
        let elements = rows * cols;
        let mut buffers = Vec::new();
        let mut children = Vec::new();
        let y = match &layer.kind {
            LayerKind::Dense(own) => self.linear(*own, rows, x),
            LayerKind::Convolution(op, own) => {
                let op = self.batched(op);
                let y = self.temporary(op.out_count());
                let bias = own.bias.map(Weight);
                self.push(op.forward(x, Weight(own.weight), bias, y));
                y
            }
            LayerKind::Recurrent { .. } => self.recurrent(layer, x, &mut buffers),
            LayerKind::Norm { .. } => {
                let [stats, y] = [self.temporary(2 * rows), self.temporary(elements)];
                let norm = norm_shape(layer, [rows, cols], stats);
                self.push(norm.forward(&contiguous(x, cols), &contiguous(y, cols)));
                buffers.push(stats);
                y
            }
            LayerKind::Embedding(table) => {
                let planes = self.whole(*table).planes;
                let y = self.temporary(elements * planes.cols as usize);
                self.push(embed(&planes, 0, elements, 1.0, x, y));
                y
            }
            LayerKind::Attention { input, output, .. } => {
                let qkv = self.linear(*input, rows, x);
                let stats = self.temporary(2 * elements);
                let heads = self.attention_shape(layer, stats);
                let out = self.temporary(elements);
                let inputs = query_key_value(qkv, cols);
                self.push(heads.forward(&inputs, &contiguous(out, cols)));
                buffers.extend([qkv, out, stats]);
                self.linear(*output, rows, out)
            }
            LayerKind::SwiGlu(weights) => {
                let [gate, up, down] = weights.map(|weight| LinearWeights { weight, bias: None });
                let hidden = rows * self.weights[gate.weight].shape[0];
                let [a, b] = [gate, up].map(|own| self.linear(own, rows, x));
                let gated = self.temporary(hidden);
                self.compute(Function::Gate(Activation::Silu), hidden, &[a, b], gated);
                buffers.extend([a, b, gated]);
                self.linear(down, rows, gated)
            }
            LayerKind::Activation(act) => {
                let y = self.temporary(elements);
                self.compute(Function::Activation(*act), elements, &[x], y);
                y
            }
            LayerKind::Softmax => {
                let y = self.temporary(elements);
                self.push(softmax([rows, cols], x, y));
                y
            }
            LayerKind::Reshape => x,
            LayerKind::Residual(layers) => {
                let (inner, own) = self.forward(layers, x);
                children.push(own);
                self.sum(x, inner, elements)
            }
            LayerKind::Sequential(layers) => {
                let (y, own) = self.forward(layers, x);
                children.push(own);
                y
            }
            LayerKind::Parallel { branches, .. } => {
                let mut outputs = Vec::with_capacity(branches.len());
                for branch in branches {
                    let (y, own) = self.forward(branch, x);
                    outputs.push(y);
                    children.push(own);
                }
                self.combine(layer, &outputs)
            }
        };
        Kept {
            x,
            y,
            buffers,
            children,
        }
    }

    fn layer_backward(
        &mut self,
        layer: &Layer,
        kept: &Kept,
        dy: Buffer,
        needs_dx: bool,
    ) -> Option<Buffer> {
        let [rows, cols] = matrix(self.batch, &layer.input);
        let elements = rows * cols;
        match &layer.kind {
            LayerKind::Dense(own) => self.linear_backward(*own, rows, [kept.x, dy], needs_dx),
            LayerKind::Convolution(op, own) => {
                let op = self.batched(op);
                self.push(op.weight(kept.x, dy, Gradient(own.weight)));
                if let Some(bias) = own.bias {
                    self.push(op.bias(dy, Gradient(bias)));
                }
                needs_dx.then(|| {
                    let dx = self.temporary(elements);
                    self.push(op.input(dy, Weight(own.weight), dx));
                    dx
                })
            }
            LayerKind::Recurrent { .. } => {
                let dx = self.recurrent_backward(layer, kept, dy);
                needs_dx.then_some(dx)
            }
            LayerKind::Norm { gain, bias, .. } => {
                let norm = norm_shape(layer, [rows, cols], kept.buffers[0]);
                let [x, above] = [contiguous(kept.x, cols), contiguous(dy, cols)];
                self.push(norm.gain(&x, &above, Gradient(*gain), 0));
                if let Some(bias) = bias {
                    self.push(column_sums([rows, 1, cols], &above, Gradient(*bias), 0));
                }
                needs_dx.then(|| {
                    let dx = self.temporary(elements);
                    self.push(norm.input(&x, &above, &contiguous(dx, cols), false));
                    dx
                })
            }
            LayerKind::Embedding(table) => {
                let width = self.weights[*table].shape[1];
                let to = self.gradient(*table, 0);
                let above = contiguous(dy, width);
                self.push(embed_table([elements, width], 1.0, kept.x, &above, &to));
                None
            }
            LayerKind::Attention { .. } => self.attention_backward(layer, kept, dy, needs_dx),
            LayerKind::SwiGlu(weights) => {
                let [gate, up, down] = weights.map(|weight| LinearWeights { weight, bias: None });
                let [a, b, gated] = [0, 1, 2].map(|index: usize| kept.buffers[index]);
                let hidden = rows * self.weights[gate.weight].shape[0];
                let above = self.linear_backward(down, rows, [gated, dy], true)?;
                let [da, db] = [self.temporary(hidden), self.temporary(hidden)];
                let act = Activation::Silu;
                self.compute(Function::GateGradient(act), hidden, &[a, b, above], da);
                self.compute(Function::Gate(act), hidden, &[a, above], db);
                let dx = self.linear_backward(gate, rows, [kept.x, da], needs_dx);
                let more = self.linear_backward(up, rows, [kept.x, db], needs_dx);
                Some(self.sum(dx?, more?, elements))
            }
            LayerKind::Activation(act) => {
                let dx = self.temporary(elements);
                let slope = Function::ActivationGradient(*act);
                self.compute(slope, elements, &[kept.x, dy], dx);
                Some(dx)
            }
            LayerKind::Softmax => {
                let dx = self.temporary(elements);
                self.push(softmax_gradient([rows, cols], kept.y, dy, dx));
                Some(dx)
            }
            LayerKind::Reshape => Some(dy),
            LayerKind::Residual(layers) => {
                let inner = self.backward(layers, &kept.children[0], dy, needs_dx);
                needs_dx.then(|| match inner {
                    Some(inner) => self.sum(dy, inner, elements),
                    None => dy,
                })
            }
            LayerKind::Sequential(layers) => self.backward(layers, &kept.children[0], dy, needs_dx),
            LayerKind::Parallel { branches, .. } => {
                let parts = self.split(layer, dy);
                let mut all: Option<Buffer> = None;
                for (index, (branch, part)) in branches.iter().zip(parts).enumerate() {
                    let own = self.backward(branch, &kept.children[index], part, needs_dx);
                    all = match (all, own) {
                        (Some(a), Some(b)) => Some(self.sum(a, b, elements)),
                        (a, b) => a.or(b),
                    };
                }
                all.filter(|_| needs_dx)
            }
        }
    }

    fn batched(&self, op: &Convolution) -> Convolution {
        Convolution {
            batch: self.batch,
            ..*op
        }
    }

    /// The part of each branch in the joined output: first column, columns, all columns, by rows.
    fn join(
        &self,
        branches: &[Vec<Layer>],
        layer: &Layer,
        axis: usize,
    ) -> (usize, Vec<[usize; 3]>) {
        let rows = self.batch * count(&layer.output[..axis]);
        let all = count(&layer.output[axis..]);
        let mut first = 0;
        let parts = branches.iter().map(|branch| {
            let shape = branch.last().map_or(&layer.input, |last| &last.output);
            let cols = count(&shape[axis..]);
            first += cols;
            [first - cols, cols, all]
        });
        (rows, parts.collect())
    }

    fn combine(&mut self, layer: &Layer, outputs: &[Buffer]) -> Buffer {
        let LayerKind::Parallel { branches, axis } = &layer.kind else {
            return outputs[0];
        };
        let elements = self.batch * count(&layer.output);
        let Some(axis) = axis else {
            let mut sum = outputs[0];
            for other in &outputs[1..] {
                sum = self.sum(sum, *other, elements);
            }
            return sum;
        };
        let y = self.temporary(elements);
        let (rows, parts) = self.join(branches, layer, *axis);
        for (output, [first, cols, all]) in outputs.iter().zip(parts) {
            let [from, to] = [contiguous(*output, cols), columns(y, first, all)];
            let copy = Function::Scale(1.0);
            self.push(elementwise(copy, [rows, cols], &[&from], &to, false));
        }
        y
    }

    /// The gradient of each branch's output.
    fn split(&mut self, layer: &Layer, dy: Buffer) -> Vec<Buffer> {
        let LayerKind::Parallel { branches, axis } = &layer.kind else {
            return vec![dy];
        };
        let Some(axis) = axis else {
            return vec![dy; branches.len()];
        };
        let (rows, parts) = self.join(branches, layer, *axis);
        let copy = |[first, cols, all]: [usize; 3]| {
            let part = self.temporary(rows * cols);
            let [from, to] = [columns(dy, first, all), contiguous(part, cols)];
            let copy = Function::Scale(1.0);
            self.push(elementwise(copy, [rows, cols], &[&from], &to, false));
            part
        };
        parts.into_iter().map(copy).collect()
    }

    fn attention_shape(&mut self, layer: &Layer, stats: Buffer) -> AttentionShape<Buffer> {
        let [steps, features] = [layer.input[0], layer.input[1]];
        let (heads, causal) = match layer.kind {
            LayerKind::Attention { heads, causal, .. } => (heads, causal),
            _ => (1, false),
        };
        if !self.spans.contains(&steps) {
            self.spans.push(steps);
        }
        let rows = self.batch * steps;
        let head_dim = features / heads;
        AttentionShape {
            rows,
            heads,
            kv_heads: heads,
            head_dim,
            before: steps,
            after: if causal { 0 } else { steps },
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: 0.0,
            sinks: None,
            spans: NetworkBuffer::Spans(steps),
            stats,
        }
    }

    fn attention_backward(
        &mut self,
        layer: &Layer,
        kept: &Kept,
        dy: Buffer,
        needs_dx: bool,
    ) -> Option<Buffer> {
        let LayerKind::Attention { input, output, .. } = layer.kind else {
            return None;
        };
        let [rows, cols] = matrix(self.batch, &layer.input);
        let [qkv, out, stats] = [0, 1, 2].map(|index: usize| kept.buffers[index]);
        let above = self.linear_backward(output, rows, [out, dy], true)?;
        let heads = self.attention_shape(layer, stats);
        let inputs = query_key_value(qkv, cols);
        let [out, above] = [out, above].map(|buffer| contiguous(buffer, cols));
        let parts = [0; 3].map(|_: usize| self.temporary(rows * cols));
        let [dq, dk, dv] = parts.map(|part| contiguous(part, cols));
        self.push(heads.dots(&out, &above));
        self.push(heads.queries(&inputs, &above, &dq, false));
        self.push(heads.keys(&inputs, &above, &dk, &dv));
        let x = contiguous(kept.x, cols);
        let dx = needs_dx.then(|| self.temporary(rows * cols));
        for (index, part) in [dq, dk, dv].into_iter().enumerate() {
            let first = index * cols;
            let dw = self.gradient(input.weight, first);
            self.push(linear_weight([rows, cols, cols], 1.0, &part, &x, &dw));
            if let Some(bias) = input.bias {
                self.push(column_sums([rows, 1, cols], &part, Gradient(bias), first));
            }
            if let Some(dx) = dx {
                let weight = self.rows_of(input.weight, first, cols);
                let to = contiguous(dx, cols);
                self.push(linear_input(&weight, rows, 1.0, &part, &to, index > 0));
            }
        }
        dx
    }
}

/// Whether a layer or one in it has weights.
fn has_weights(layer: &Layer) -> bool {
    match &layer.kind {
        LayerKind::Activation(_) | LayerKind::Softmax | LayerKind::Reshape => false,
        LayerKind::Residual(layers) | LayerKind::Sequential(layers) => {
            layers.iter().any(has_weights)
        }
        LayerKind::Parallel { branches, .. } => branches.iter().flatten().any(has_weights),
        _ => true,
    }
}

fn norm_shape(layer: &Layer, [rows, cols]: [usize; 2], stats: Buffer) -> NormShape<Buffer> {
    let (gain, bias, eps) = match layer.kind {
        LayerKind::Norm { gain, bias, eps } => (Some((Weight(gain), 0)), bias.map(Weight), eps),
        _ => (None, None, 0.0),
    };
    NormShape {
        rows,
        groups: 1,
        cols,
        layer: bias.is_some(),
        gain,
        bias,
        offset: 0.0,
        eps,
        stats,
    }
}

fn query_key_value(qkv: Buffer, cols: usize) -> QueryKeyValue<Buffer> {
    let [q, k, v] = [0, 1, 2].map(|part: usize| columns(qkv, part * cols, 3 * cols));
    QueryKeyValue { q, k, v }
}
