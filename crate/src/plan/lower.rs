//! Lowers the nodes of a fused graph to kernel launches and their buffers.

mod altup;
mod attention;
mod audio_conv;
mod embedding;
mod experts;
mod matmul;
mod recurrent;

use super::memory::{self, BufferPlan};
use super::{Plan, PlanBreak, Slot, StatePlan, WeightPlans, f16_activations, fuse_quantize};
use crate::device::Caps;
use crate::ir::{self, Dim, Graph, InputId, Node, Op, StateId, StepSizes, ValueId, WeightId};
use crate::kernels::attention::Kv;
use crate::kernels::elementwise::{
    Elementwise, HeadColumns, concat_heads, elementwise, gather, last_row,
};
use crate::kernels::embedding_bag::soft_tokens;
use crate::kernels::kv_splits::KvSplits;
use crate::kernels::matmul::{Matmul, View, WeightPlanes};
use crate::kernels::pool::pool;
use crate::kernels::{Launch, norm};
use crate::util::map::SortedSet;
use crate::{Error, Result};

/// Kind of step and its maximum rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Decode (1) or verification: at most this many rows, computed row by row.
    Decode(usize),
    /// Prefill: at most this many rows, in tiles.
    Prefill(usize),
    /// Encoders: packed sequences.
    Packed {
        /// Maximum tokens.
        tokens: usize,
        /// Maximum sequences.
        sequences: usize,
    },
}

impl StepKind {
    /// Returns the maximum tokens.
    pub fn tokens(self) -> usize {
        match self {
            StepKind::Decode(n) | StepKind::Prefill(n) | StepKind::Packed { tokens: n, .. } => n,
        }
    }

    /// Returns the maximum step sizes.
    pub fn counts(self) -> StepSizes {
        let sequences = if let StepKind::Packed { sequences, .. } = self {
            sequences
        } else {
            1
        };
        StepSizes {
            rows: self.tokens(),
            sequences,
        }
    }

    /// Returns the maximum rows of a value.
    pub fn of(self, rows: Dim) -> usize {
        rows.eval(self.counts())
    }
}

/// Inputs of lowering other than the graph.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions<'a> {
    /// Kind of step.
    pub rows: StepKind,
    /// Device capabilities.
    pub caps: &'a Caps,
    /// Weight storage.
    pub weights: &'a WeightPlans,
    /// Element type of the KV cache.
    pub kv: Kv,
    /// Maximum positions of a sequence, or of the steps of this plan.
    pub capacity: usize,
    /// Storage of the sequence states.
    pub states: &'a [StatePlan],
    /// Whether single-row attention applies head norm and RoPE itself.
    pub fuse_heads: bool,
}

impl PlanOptions<'_> {
    /// Returns a matmul with the node's sizes and placeholder buffers, to query kernel support.
    pub(super) fn matmul_of(&self, graph: &Graph, node: &Node) -> Option<Matmul<Slot>> {
        let Op::Linear(linear) = &node.op else {
            return None;
        };
        let plan = self
            .weights
            .get(&linear.weight)
            .filter(|plan| plan.shards.len() == 1)?;
        let weight = WeightPlanes {
            layout: plan.layout,
            rows: plan.rows as u32,
            cols: plan.cols as u32,
            q: Slot::Output,
            s: None,
        };
        let view = View {
            buffer: Slot::Output,
            offset: 0,
            stride: 0,
        };
        let mut product = Matmul::plain("", weight, view.clone(), view);
        product.n = graph.value(node.output).cols as u32;
        product.gated = linear.gated.then_some(product.n);
        Some(product)
    }
}

/// Lowers a fused graph to a plan.
///
/// # Errors
/// `Internal` if no kernel computes a node, or a kernel would ignore a part of it.
pub fn lower(graph: &Graph, options: PlanOptions<'_>) -> Result<Plan> {
    graph.validate()?;
    let graph = &*fuse_quantize::fuse_quantize(graph, &options);
    let output = graph.root(graph.logits.unwrap_or(graph.hidden)).0;
    let uses = graph.uses();
    let halves = f16_activations::f16_values(graph, &options, &uses, output);
    let memory = memory::assign_buffers(graph, options.rows, output, &halves);
    let mut lowering = Lowering {
        graph,
        options,
        memory,
        f16_values: halves,
        uses,
        output,
        launches: Vec::new(),
        breaks: Vec::new(),
        routers: 0,
        pending_splits: None,
        roped_queries: 0,
        attention_partials: 0,
        sorted: 0,
    };
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    let rows = options.rows.of(graph.value(output).rows);
    Ok(Plan {
        output: (rows * memory::row_stride(graph, output) * 4) as u64,
        output_cols: graph.value(output).cols,
        launches: lowering.launches,
        breaks: lowering.breaks,
        activations: lowering.memory.sizes,
        roped_queries: lowering.roped_queries,
        attention_partials: lowering.attention_partials,
        expert_tiles: lowering.sorted,
    })
}

struct Lowering<'a> {
    graph: &'a Graph,
    options: PlanOptions<'a>,
    memory: BufferPlan,
    /// Values stored as f16.
    f16_values: SortedSet<ValueId>,
    /// Reads of each value.
    uses: Vec<usize>,
    output: ValueId,
    launches: Vec<Launch<Slot>>,
    breaks: Vec<PlanBreak>,
    /// Routers so far, predictions not counted.
    routers: usize,
    /// A value that decode attention left as KV splits in the scratch buffer, the launch count
    /// after it, and the splits.
    pending_splits: Option<(ValueId, usize, KvSplits)>,
    roped_queries: u64,
    attention_partials: u64,
    sorted: u64,
}

impl Lowering<'_> {
    fn view(&self, id: ValueId) -> View<Slot> {
        let (root, offset) = self.graph.root(id);
        let buffer = match (self.memory.buffer.get(&root), self.memory.inputs.get(&root)) {
            (Some(index), _) => Slot::Activation(*index),
            (None, Some(input)) => Slot::Input(*input),
            (None, None) => Slot::Output,
        };
        debug_assert!(buffer != Slot::Output || root == self.output);
        let stride = memory::row_stride(self.graph, root) * self.graph.rows_per_row(id);
        View {
            buffer,
            offset: offset as u32,
            stride: stride as u32,
        }
    }

    fn cols(&self, id: ValueId) -> u32 {
        self.graph.value(id).cols as u32
    }

    /// Whether a value has only the last row in a step of many rows.
    fn is_last_row(&self, id: ValueId) -> bool {
        self.graph.value(id).rows == Dim::Last
    }

    /// Returns the step state that counts a value's rows; for the last row, that of the step
    /// itself.
    fn cursor(&self, id: ValueId) -> Slot {
        match self.graph.value(id).rows {
            Dim::Last => Slot::CURSOR,
            dim => Slot::Cursor(dim),
        }
    }

    fn state(&self, name: &str, id: StateId) -> Result<&StatePlan> {
        self.options
            .states
            .get(id.0)
            .ok_or_else(|| Error::Internal(format!("{name}: no storage for state {}", id.0)))
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let name = self.graph.value(node.output).name.clone();
        let first = self.launches.len();
        match &node.op {
            Op::Norm(_) | Op::NormResidual(_) | Op::QuantizeActivations(_)
                if self.cols(node.output) > norm::MAX_COLUMNS =>
            {
                return Err(Error::Internal(format!(
                    "{name}: no kernel norms {} columns",
                    self.cols(node.output)
                )));
            }
            Op::Embed {
                table,
                scale,
                ids,
                soft,
            } => self.embed(&name, (*table, *scale), *ids, *soft, node.output)?,
            // External inputs need no launch.
            Op::Input(_) => {}
            Op::EmbeddingBag { table, taps } => self.embedding_bag(&name, *table, *taps, node)?,
            Op::AddSoftTokens {
                rows,
                table,
                column,
            } => {
                let a = self.view(node.inputs[0]);
                let out = self.view(node.output);
                let first = self.graph.weight(*table).rows();

                let rows = self.soft(*rows, *column);
                self.launches.push(soft_tokens(
                    &name,
                    Some(&a),
                    &rows,
                    Slot::Ids,
                    first as u32,
                    &out,
                    self.cols(node.output),
                ));
            }
            Op::Concat => {
                let mut out = self.view(node.output);
                for input in &node.inputs {
                    let x = self.view(*input);
                    let cols = self.cols(*input);

                    let single = self.is_last_row(node.output);
                    self.launches.push(elementwise(
                        &name,
                        Elementwise::Scale(1.0),
                        &[x],
                        &out,
                        cols,
                        single,
                    ));
                    out.offset += cols;
                }
            }
            Op::Linear(linear) => self.linear(&name, linear, node)?,
            Op::Norm(n) => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);

                let single = self.is_last_row(node.output);
                self.launches.push(norm::norm(
                    &name,
                    &row_norm(n),
                    &x,
                    &out,
                    self.cols(node.output),
                    single,
                ));
            }
            Op::NormResidual(n) => {
                let views: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
                let out = self.view(node.output);
                let cols = self.cols(node.output);
                let single = self.is_last_row(node.output);

                let sum = norm::ResidualSum {
                    residual: &views[1],
                    residual2: views.get(2),
                    scale: n.scale,
                    scale_buffer: n.scale_weight.map(Slot::Vector),
                };
                self.launches.push(norm::norm_residual(
                    &name,
                    &row_norm(&n.norm),
                    &views[0],
                    &sum,
                    &out,
                    cols,
                    single,
                ));
            }
            Op::NormPerGroup(n, group) => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);
                let cols = self.cols(node.output);

                let groups = cols / *group as u32;
                let single = self.is_last_row(node.output);

                self.launches.push(norm::norm_per_group(
                    &name,
                    &row_norm(n),
                    groups,
                    &x,
                    &out,
                    cols,
                    single,
                ));
            }
            Op::MulVector(by) => {
                let number = self.graph.weight(*by).rows() == 1;
                let inputs = [
                    self.view(node.inputs[0]),
                    View {
                        buffer: Slot::Vector(*by),
                        offset: 0,
                        stride: 0,
                    },
                ];
                let op = if number {
                    Elementwise::MulScalar
                } else {
                    Elementwise::Mul
                };
                let out = self.view(node.output);
                let cols = self.cols(node.output);
                let single = self.is_last_row(node.output);

                self.launches
                    .push(elementwise(&name, op, &inputs, &out, cols, single));
            }
            Op::Clip(limits) => {
                let inputs = [
                    self.view(node.inputs[0]),
                    View {
                        buffer: Slot::Vector(*limits),
                        offset: 0,
                        stride: 0,
                    },
                ];
                let out = self.view(node.output);
                let cols = self.cols(node.output);
                let single = self.is_last_row(node.output);

                self.launches.push(elementwise(
                    &name,
                    Elementwise::Clip,
                    &inputs,
                    &out,
                    cols,
                    single,
                ));
            }
            Op::QuantizeActivations(n) => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);

                let n = n.as_ref().map(row_norm);
                let single = self.is_last_row(node.output);

                self.launches.push(norm::quantized_norm(
                    &name,
                    n.as_ref(),
                    &x,
                    &out,
                    self.cols(node.output),
                    single,
                ));
            }
            Op::Attention(attention) => self.attention(&name, attention, node)?,
            Op::ShortConv(conv) => self.short_conv(&name, conv, node)?,
            Op::Recurrent(recurrent) => self.recurrent(&name, recurrent, node)?,
            Op::GatedNorm(norm) => self.gated_norm(&name, norm, node),
            Op::AltUp(op) => self.altup(&name, op, node),
            Op::Add => self.elementwise(&name, Elementwise::Add, node),
            Op::Mul => self.elementwise(&name, Elementwise::Mul, node),
            Op::Gated(act) if self.cols(node.inputs[0]) == 1 => {
                self.elementwise(&name, Elementwise::GatedByOne(*act as u32), node);
            }
            Op::Gated(act) => self.elementwise(&name, Elementwise::Gated(*act as u32), node),
            Op::Unary(act) => self.elementwise(&name, Elementwise::Unary(*act as u32), node),
            Op::Scale(factor) => self.elementwise(&name, Elementwise::Scale(*factor), node),
            Op::ConcatHeads { head_dim, parts } => self.heads(&name, *head_dim, parts, node),
            Op::LastRow => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);

                self.launches.push(last_row(
                    &name,
                    &x,
                    out.buffer,
                    Slot::CURSOR,
                    self.cols(node.output),
                ));
            }
            Op::Gather { order } => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);

                let cols = self.cols(node.output);
                let single = self.is_last_row(node.output);

                self.launches
                    .push(gather(&name, &x, Slot::Vector(*order), &out, cols, single));
            }
            Op::Pool(pooling) => {
                let x = self.view(node.inputs[0]);
                let out = self.view(node.output);

                let cols = self.cols(node.output);
                self.launches.push(pool(
                    &name,
                    *pooling as u32,
                    &x,
                    Slot::PoolSpans,
                    &out,
                    cols,
                ));
            }
            Op::TopKRouter(routing) => self.route(&name, routing, node)?,
            Op::ExpertUp(first) => self.expert_up(&name, first, node)?,
            Op::ExpertDown(second) => self.expert_down(&name, second, node)?,
            Op::Im2Col(_)
            | Op::ConvTranspose1d(_)
            | Op::Snake { .. }
            | Op::GroupNorm { .. }
            | Op::Asinh { .. }
            | Op::AddPositionEmbedding { .. }
            | Op::PadHeads { .. } => self.audio_conv(&name, node),
        }
        if let Some(last) = self
            .launches
            .last_mut()
            .filter(|_| self.f16_values.contains(&node.output))
        {
            last.variant = last.variant.clone().flag("F16").flag("F16_IO");
        }
        let dim = self.graph.value(node.output).rows;
        if dim != Dim::Last {
            self.launches[first..].iter_mut().for_each(|l| l.dim = dim);
        }
        Ok(())
    }

    fn elementwise(&mut self, name: &str, op: Elementwise, node: &Node) {
        let inputs: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
        let out = self.view(node.output);
        let single = self.is_last_row(node.output);
        self.launches.push(elementwise(
            name,
            op,
            &inputs,
            &out,
            self.cols(node.output),
            single,
        ));
    }

    fn heads(&mut self, name: &str, head_dim: usize, parts: &[ir::HeadSlice], node: &Node) {
        let parts: Vec<_> = parts
            .iter()
            .zip(&node.inputs)
            .map(|(part, input): (&ir::HeadSlice, &ValueId)| {
                let mut view = self.view(*input);
                view.offset += part.first as u32;
                (
                    view,
                    HeadColumns {
                        cols: part.cols as u32,
                        step: part.step as u32,
                    },
                )
            })
            .collect();
        let out = self.view(node.output);
        let single = self.is_last_row(node.output);

        let count = self.cols(node.output) / head_dim as u32;
        self.launches.push(concat_heads(
            name,
            [count, head_dim as u32],
            &parts,
            &out,
            single,
        ));
    }

    /// Returns the shards of a weight with their first rows.
    fn shards(&self, id: WeightId) -> Result<Vec<(u32, WeightPlanes<Slot>)>> {
        let plan = self
            .options
            .weights
            .get(&id)
            .ok_or_else(|| Error::Internal(format!("no storage for weight {id:?}")))?;

        Ok(plan
            .shards
            .iter()
            .enumerate()
            .map(|(index, rows): (usize, &std::ops::Range<usize>)| {
                let s = (plan.layout.plane_bytes(1, plan.cols)[1] > 0)
                    .then_some(Slot::WeightS(id, index));
                let weight = WeightPlanes {
                    layout: plan.layout,
                    rows: rows.len() as u32,
                    cols: plan.cols as u32,
                    q: Slot::WeightQ(id, index),
                    s,
                };
                (rows.start as u32, weight)
            })
            .collect())
    }

    /// Returns the rows of an input from a column on.
    fn soft(&self, input: InputId, column: usize) -> View<Slot> {
        let stride = self.graph.inputs[input.0].cols.next_multiple_of(4) as u32;
        View {
            buffer: Slot::Input(input),
            offset: column as u32,
            stride,
        }
    }
}

/// Returns the error for a part of a node that no kernel supports.
fn unsupported(name: &str, what: &str) -> Error {
    Error::Internal(format!("{name}: no kernel supports {what}"))
}

fn row_norm(n: &ir::Norm) -> norm::NormParams<Slot> {
    let gain = n.gain.map(Slot::Vector);
    let bias = n.bias.map(Slot::Vector);

    norm::NormParams {
        layer: n.layer,
        gain,
        bias,
        offset: n.offset,
        eps: n.eps,
    }
}
