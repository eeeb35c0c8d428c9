//! Lowers the nodes of a fused graph to kernel launches and their buffers.

mod altup;
mod attention;
mod experts;
mod product;
mod recurrent;
mod sound;
mod table;

use super::memory::{self, Memory};
use super::{Plan, Slot, StatePlan, WeightPlans, halves, rounds};
use crate::device::Caps;
use crate::ir::{self, Counts, Dim, Graph, InputId, Node, Op, StateId, ValueId, WeightId};
use crate::kernels::attention::Kv;
use crate::kernels::blend::soft;
use crate::kernels::elementwise::{Elementwise, Part, elementwise, gather, heads, last_row};
use crate::kernels::matmul::{Matmul, View, Weight};
use crate::kernels::pool::pool;
use crate::kernels::runs::Runs;
use crate::kernels::{Launch, norm};
use crate::util::map::SortedSet;
use crate::{Error, Result};

/// Kind of step and its maximum rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsMode {
    /// Decode (1) or verification: at most this many rows, computed row by row.
    Few(usize),
    /// Prefill: at most this many rows, in tiles.
    Many(usize),
    /// Encoders: packed sequences.
    Packed {
        /// Maximum tokens.
        tokens: usize,
        /// Maximum sequences.
        sequences: usize,
    },
}

impl RowsMode {
    /// Returns the maximum tokens.
    pub fn tokens(self) -> usize {
        match self {
            RowsMode::Few(n) | RowsMode::Many(n) | RowsMode::Packed { tokens: n, .. } => n,
        }
    }

    /// Returns the maximum step sizes.
    pub fn counts(self) -> Counts {
        let sequences = if let RowsMode::Packed { sequences, .. } = self { sequences } else { 1 };
        Counts { rows: self.tokens(), sequences }
    }

    /// Returns the maximum rows of a value.
    pub fn of(self, rows: Dim) -> usize {
        rows.of(self.counts())
    }
}

/// Inputs of lowering other than the graph.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions<'a> {
    /// Kind of step.
    pub rows: RowsMode,
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
    pub(super) fn product(&self, graph: &Graph, node: &Node) -> Option<Matmul<Slot>> {
        let Op::Linear(linear) = &node.op else { return None };
        let plan = self.weights.get(&linear.weight).filter(|plan| plan.runs.len() == 1)?;
        let weight =
            Weight { layout: plan.layout, rows: plan.rows as u32, cols: plan.cols as u32, q: Slot::Output, s: None };
        let view = View { buffer: Slot::Output, offset: 0, stride: 0 };
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
    graph.check()?;
    let graph = &*rounds::join(graph, &options);
    let output = graph.root(graph.logits.unwrap_or(graph.hidden)).0;
    let uses = graph.uses();
    let halves = halves::of(graph, &options, &uses, output);
    let memory = memory::assign(graph, options.rows, output, &halves);
    let mut lowering = Lowering {
        graph,
        options,
        memory,
        halves,
        uses,
        output,
        launches: Vec::new(),
        left: None,
        rotated: 0,
        scratch: 0,
        sorted: 0,
    };
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    let rows = options.rows.of(graph.value(output).rows);
    Ok(Plan {
        output: (rows * memory::stride(graph, output) * 4) as u64,
        output_cols: graph.value(output).cols,
        launches: lowering.launches,
        activations: lowering.memory.sizes,
        rotated: lowering.rotated,
        scratch: lowering.scratch,
        sorted: lowering.sorted,
    })
}

struct Lowering<'a> {
    graph: &'a Graph,
    options: PlanOptions<'a>,
    memory: Memory,
    /// Values stored as f16.
    halves: SortedSet<ValueId>,
    /// Reads of each value.
    uses: Vec<usize>,
    output: ValueId,
    launches: Vec<Launch<Slot>>,
    /// A value that decode attention left as KV splits in the scratch buffer, the launch count after it, and the
    /// splits.
    left: Option<(ValueId, usize, Runs)>,
    rotated: u64,
    scratch: u64,
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
        let stride = memory::stride(self.graph, root) * self.graph.folded(id);
        View { buffer, offset: offset as u32, stride: stride as u32 }
    }

    fn cols(&self, id: ValueId) -> u32 {
        self.graph.value(id).cols as u32
    }

    /// Whether a value has only the last row in a step of many rows.
    fn single(&self, id: ValueId) -> bool {
        self.graph.value(id).rows == Dim::Last
    }

    /// Returns the step state that counts a value's rows; for the last row, that of the step itself.
    fn cursor(&self, id: ValueId) -> Slot {
        match self.graph.value(id).rows {
            Dim::Last => Slot::CURSOR,
            dim => Slot::Cursor(dim),
        }
    }

    fn state(&self, name: &str, id: StateId) -> Result<&StatePlan> {
        let missing = || Error::Internal(format!("{name}: no storage for state {}", id.0));
        self.options.states.get(id.0).ok_or_else(missing)
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let name = self.graph.value(node.output).name.clone();
        let first = self.launches.len();
        match &node.op {
            Op::Norm(_) | Op::NormAdd(_) | Op::Round(_) if self.cols(node.output) > norm::MOST_COLUMNS => {
                return Err(Error::Internal(format!("{name}: no kernel norms {} columns", self.cols(node.output))));
            }
            Op::Embed { table, scale, ids, soft } => self.embed(&name, (*table, *scale), *ids, *soft, node.output)?,
            // External inputs need no launch.
            Op::Input(_) => {}
            Op::Blend { table, taps } => self.blend(&name, *table, *taps, node)?,
            Op::AddSoft { rows, table, column } => {
                let (a, out, first) =
                    (self.view(node.inputs[0]), self.view(node.output), self.graph.weight(*table).rows());
                let rows = self.soft(*rows, *column);
                self.launches.push(soft(&name, Some(&a), &rows, Slot::Ids, first as u32, &out, self.cols(node.output)));
            }
            Op::Beside => {
                let mut out = self.view(node.output);
                for input in &node.inputs {
                    let (x, cols) = (self.view(*input), self.cols(*input));
                    let single = self.single(node.output);
                    self.launches.push(elementwise(&name, Elementwise::Scale(1.0), &[x], &out, cols, single));
                    out.offset += cols;
                }
            }
            Op::Linear(linear) => self.linear(&name, linear, node)?,
            Op::Norm(n) => {
                let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
                let single = self.single(node.output);
                self.launches.push(norm::norm(&name, &row_norm(n), &x, &out, self.cols(node.output), single));
            }
            Op::NormAdd(n) => {
                let views: Vec<View<Slot>> = node.inputs.iter().map(|i| self.view(*i)).collect();
                let (out, cols, single) = (self.view(node.output), self.cols(node.output), self.single(node.output));
                let sum = norm::Sum { rest: &views[1], more: views.get(2), scale: n.scale, by: n.by.map(Slot::Vector) };
                self.launches.push(norm::added(&name, &row_norm(&n.norm), &views[0], &sum, &out, cols, single));
            }
            Op::NormEach(n, group) => {
                let (x, out, cols) = (self.view(node.inputs[0]), self.view(node.output), self.cols(node.output));
                let (groups, single) = (cols / *group as u32, self.single(node.output));
                self.launches.push(norm::grouped(&name, &row_norm(n), groups, &x, &out, cols, single));
            }
            Op::Times(by) => {
                let number = self.graph.weight(*by).rows() == 1;
                let inputs = [self.view(node.inputs[0]), View { buffer: Slot::Vector(*by), offset: 0, stride: 0 }];
                let op = if number { Elementwise::Times } else { Elementwise::Mul };
                let (out, cols, single) = (self.view(node.output), self.cols(node.output), self.single(node.output));
                self.launches.push(elementwise(&name, op, &inputs, &out, cols, single));
            }
            Op::Clip(limits) => {
                let inputs = [self.view(node.inputs[0]), View { buffer: Slot::Vector(*limits), offset: 0, stride: 0 }];
                let (out, cols, single) = (self.view(node.output), self.cols(node.output), self.single(node.output));
                self.launches.push(elementwise(&name, Elementwise::Clip, &inputs, &out, cols, single));
            }
            Op::Round(n) => {
                let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
                let (n, single) = (n.as_ref().map(row_norm), self.single(node.output));
                self.launches.push(norm::rounded(&name, n.as_ref(), &x, &out, self.cols(node.output), single));
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
            Op::HeadParts { head_dim, parts } => self.heads(&name, *head_dim, parts, node),
            Op::LastRow => {
                let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
                self.launches.push(last_row(&name, &x, out.buffer, Slot::CURSOR, self.cols(node.output)));
            }
            Op::Gather { order } => {
                let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
                let (cols, single) = (self.cols(node.output), self.single(node.output));
                self.launches.push(gather(&name, &x, Slot::Vector(*order), &out, cols, single));
            }
            Op::Pool(pooling) => {
                let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
                let cols = self.cols(node.output);
                self.launches.push(pool(&name, *pooling as u32, &x, Slot::Spans, &out, cols));
            }
            Op::Route(routing) => self.route(&name, routing, node)?,
            Op::Experts(first) => self.experts(&name, first, node)?,
            Op::Mix(second) => self.mix(&name, second, node)?,
            Op::Windows(_)
            | Op::Upsample(_)
            | Op::Snake { .. }
            | Op::GroupNorm { .. }
            | Op::Asinh { .. }
            | Op::AddPositions { .. }
            | Op::Heads { .. } => self.sound(&name, node),
        }
        if let Some(last) = self.launches.last_mut().filter(|_| self.halves.contains(&node.output)) {
            last.variant = last.variant.clone().flag("F16").flag("HALVES");
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
        let single = self.single(node.output);
        self.launches.push(elementwise(name, op, &inputs, &out, self.cols(node.output), single));
    }

    fn heads(&mut self, name: &str, head_dim: usize, parts: &[ir::HeadPart], node: &Node) {
        let taken = |(part, input): (&ir::HeadPart, &ValueId)| {
            let mut view = self.view(*input);
            view.offset += part.first as u32;
            (view, Part { cols: part.cols as u32, step: part.step as u32 })
        };
        let parts: Vec<_> = parts.iter().zip(&node.inputs).map(taken).collect();
        let (out, single) = (self.view(node.output), self.single(node.output));
        let count = self.cols(node.output) / head_dim as u32;
        self.launches.push(heads(name, [count, head_dim as u32], &parts, &out, single));
    }

    /// Returns the shards of a weight with their first rows.
    fn runs(&self, id: WeightId) -> Result<Vec<(u32, Weight<Slot>)>> {
        let plan =
            self.options.weights.get(&id).ok_or_else(|| Error::Internal(format!("no storage for weight {id:?}")))?;
        let run = |(index, rows): (usize, &std::ops::Range<usize>)| {
            let s = (plan.layout.plane_bytes(1, plan.cols)[1] > 0).then_some(Slot::WeightS(id, index));
            let weight = Weight {
                layout: plan.layout,
                rows: rows.len() as u32,
                cols: plan.cols as u32,
                q: Slot::WeightQ(id, index),
                s,
            };
            (rows.start as u32, weight)
        };
        Ok(plan.runs.iter().enumerate().map(run).collect())
    }

    /// Returns the rows of an input from a column on.
    fn soft(&self, input: InputId, column: usize) -> View<Slot> {
        let stride = self.graph.inputs[input.0].cols.next_multiple_of(4) as u32;
        View { buffer: Slot::Input(input), offset: column as u32, stride }
    }
}

/// Returns the error for a part of a node that no kernel supports.
fn dropped(name: &str, what: &str) -> Error {
    Error::Internal(format!("{name}: no kernel supports {what}"))
}

fn row_norm(n: &ir::Norm) -> norm::Norm<Slot> {
    let (gain, bias) = (n.gain.map(Slot::Vector), n.bias.map(Slot::Vector));
    norm::Norm { layer: n.layer, gain, bias, offset: n.offset, eps: n.eps }
}
