//! From the nodes of a fused graph to launches: which kernel computes a node, and on which buffers.

mod altup;
mod experts;
mod recurrent;

use super::memory::{self, Memory};
use super::{Plan, Slot, StatePlan, WeightPlan, WeightPlans};
use crate::device::Caps;
use crate::format::layout::{Float, Layout};
use crate::ir::{
    self, Counts, Dim, Graph, Ids, InputId, Linear, Mask, Node, Op, Soft, StateId, ValueId, WeightId, WeightKind,
};
use crate::kernels::attention::{Attention, DecodeChoice, HeadNorm, Kv, Rope};
use crate::kernels::blend::{blend, soft};
use crate::kernels::elementwise::{Elementwise, Part, elementwise, gather, heads, last_row};
use crate::kernels::embed::{Numbers, embed};
use crate::kernels::matmul::{Matmul, NormPrologue, View, Weight};
use crate::kernels::pool::pool;
use crate::kernels::segments::Segments;
use crate::kernels::sound::{self, Unfold};
use crate::kernels::{Launch, norm};
use crate::{Error, Result};

/// How many rows a plan's steps have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsMode {
    /// At most so many, each on its own: decode (1) and verification.
    Few(usize),
    /// At most so many in tiles: prefill.
    Many(usize),
    /// At most so many tokens, of at most so many sequences: encoders.
    Packed {
        /// Rows.
        tokens: usize,
        /// Rows after pooling.
        sequences: usize,
    },
}

impl RowsMode {
    /// The most tokens.
    pub fn tokens(self) -> usize {
        match self {
            RowsMode::Few(n) | RowsMode::Many(n) | RowsMode::Packed { tokens: n, .. } => n,
        }
    }

    /// The most of everything that values take their rows from.
    pub fn counts(self) -> Counts {
        let sequences = if let RowsMode::Packed { sequences, .. } = self { sequences } else { 1 };
        Counts { rows: self.tokens(), sequences }
    }

    /// The most rows of a value.
    pub fn of(self, rows: Dim) -> usize {
        rows.of(self.counts())
    }
}

/// What lowering depends on beside the graph.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions<'a> {
    /// Rows of the steps.
    pub rows: RowsMode,
    /// The device.
    pub caps: &'a Caps,
    /// How weights are stored.
    pub weights: &'a WeightPlans,
    /// Element type of keys and values.
    pub kv: Kv,
    /// Positions that a sequence may have, or that steps of this plan may stand at.
    pub capacity: usize,
    /// How what the sequence keeps is stored.
    pub states: &'a [StatePlan],
    /// Whether attention of one row makes its heads ready itself.
    pub fuse_heads: bool,
}

/// Makes the plan of a graph that the passes have fused.
///
/// # Errors
/// `Internal` when a node cannot be computed by any kernel, or a part of it would be left out.
pub fn lower(graph: &Graph, options: PlanOptions<'_>) -> Result<Plan> {
    graph.check()?;
    let output = graph.root(graph.logits.unwrap_or(graph.hidden)).0;
    let memory = memory::assign(graph, options.rows, output);
    let mut lowering =
        Lowering { graph, options, memory, output, launches: Vec::new(), rotated: 0, scratch: 0, sorted: 0 };
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
    output: ValueId,
    launches: Vec<Launch<Slot>>,
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

    /// Whether a value has the last row only while the step has many.
    fn single(&self, id: ValueId) -> bool {
        self.graph.value(id).rows == Dim::Last
    }

    /// Where a step stands as a value counts its rows; that of the step itself for the last row.
    fn cursor(&self, id: ValueId) -> Slot {
        match self.graph.value(id).rows {
            Dim::Last => Slot::CURSOR,
            dim => Slot::Cursor(dim),
        }
    }

    fn state(&self, name: &str, id: StateId) -> Result<&StatePlan> {
        let missing = || Error::Internal(format!("{name}: state {} has no plan", id.0));
        self.options.states.get(id.0).ok_or_else(missing)
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let name = self.graph.value(node.output).name.clone();
        let first = self.launches.len();
        match &node.op {
            Op::Embed { table, scale, ids, soft } => self.embed(&name, (*table, *scale), *ids, *soft, node.output)?,
            // It is there.
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
        let dim = self.graph.value(node.output).rows;
        if dim != Dim::Last {
            self.launches[first..].iter_mut().for_each(|l| l.dim = dim);
        }
        Ok(())
    }

    /// What convolutions and sound need.
    fn sound(&mut self, name: &str, node: &Node) {
        let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
        let (cols, wide) = (self.cols(node.inputs[0]), self.cols(node.output));
        let state = self.cursor(node.inputs[0]);
        match &node.op {
            Op::Windows(w) => {
                let [left, right] = w.padding.map(|p| p as u32);
                let (taps, stride, dilation) = (w.taps as u32, w.stride as u32, w.dilation as u32);
                let unfold = Unfold { cols, taps, stride, dilation, left, right, by_tap: w.by_tap };
                self.launches.push(unfold.launch(name, &x, state, &out));
            }
            Op::Upsample(u) => {
                let groups = u.groups as u32;
                let upsample = sound::Upsample {
                    cols: wide,
                    inputs: cols / groups,
                    outputs: wide / groups,
                    taps: u.taps as u32,
                    rate: u.rate as u32,
                    weight: Slot::Vector(u.weight),
                    bias: u.bias.map(Slot::Vector),
                };
                self.launches.push(upsample.launch(name, &x, state, &out));
            }
            Op::Snake { alpha } => {
                let snakes = self.graph.weight(*alpha).rows() as u32;
                self.launches.push(sound::snake(name, wide, snakes, &x, Slot::Vector(*alpha), state, &out));
            }
            Op::GroupNorm { groups, gain, bias, eps } => {
                let (gain, bias) = (Slot::Vector(*gain), Slot::Vector(*bias));
                let norm = sound::GroupNorm { cols, groups: *groups as u32, eps: *eps, gain, bias };
                self.scratch = self.scratch.max(norm.bytes());
                self.launches.extend(norm.launches(name, &x, &state, &Slot::Scratch, &out));
            }
            Op::Asinh { k } => {
                let k = View { buffer: Slot::Vector(*k), offset: 0, stride: 0 };
                self.launches.push(elementwise(name, Elementwise::Asinh, &[x, k], &out, wide, false));
            }
            Op::AddPositions { table } => {
                let table = View { buffer: Slot::Vector(*table), offset: 0, stride: wide };
                self.launches.push(sound::add_positions(name, wide, &x, &table, state, &out));
            }
            Op::Heads { count } => {
                self.launches.push(sound::heads(name, *count as u32, &x, cols, &out, wide, state));
            }
            _ => {}
        }
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

    /// The runs of a weight with their first rows.
    fn runs(&self, id: WeightId) -> Result<Vec<(u32, Weight<Slot>)>> {
        let plan =
            self.options.weights.get(&id).ok_or_else(|| Error::Internal(format!("weight {id:?} has no plan")))?;
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

    fn embed(
        &mut self,
        name: &str,
        (table, scale): (WeightId, f32),
        ids: Ids,
        soft_ones: Option<Soft>,
        output: ValueId,
    ) -> Result<()> {
        let out = self.view(output);
        let packed = matches!(self.options.rows, RowsMode::Packed { .. });
        let numbers = match ids {
            Ids::Tokens if self.paged(table) => Numbers::Listed(Slot::Rows(table)),
            Ids::Tokens => Numbers::Listed(Slot::Ids),
            Ids::Positions if packed => Numbers::Listed(Slot::Positions),
            Ids::Positions => Numbers::Places(Slot::CURSOR),
            Ids::Types => Numbers::Listed(Slot::Types),
        };
        let soft_ones = soft_ones.filter(|_| !matches!(self.options.rows, RowsMode::Few(_)));
        let first = self.graph.weight(table).rows() as u32;
        let past = match soft_ones {
            Some(Soft::Number(number)) if !self.paged(table) => Some((first, number)),
            _ => None,
        };
        for (row0, run) in self.runs(table)? {
            self.launches.push(embed(name, &run, row0, numbers.clone(), past, &out, scale));
        }
        if let Some(Soft::Rows(input)) = soft_ones {
            let cols = self.cols(output);
            let rows = self.soft(input, 0);
            self.launches.push(soft(&format!("{name}, soft"), None, &rows, Slot::Ids, first, &out, cols));
        }
        Ok(())
    }

    /// Whether a weight's buffers hold some of its rows at a time.
    fn paged(&self, id: WeightId) -> bool {
        self.options.weights.get(&id).is_some_and(WeightPlan::is_paged)
    }

    /// Rows of an input from a column on.
    fn soft(&self, input: InputId, column: usize) -> View<Slot> {
        let stride = self.graph.inputs[input.0].cols.next_multiple_of(4) as u32;
        View { buffer: Slot::Input(input), offset: column as u32, stride }
    }

    fn blend(&mut self, name: &str, table: WeightId, taps: usize, node: &Node) -> Result<()> {
        let runs = self.runs(table)?;
        let [(_, run)] = &runs[..] else {
            return Err(Error::OutOfMemory {
                what: format!("{name}, whose table lies in one buffer,"),
                needed: self.options.weights.get(&table).map_or(0, |w| w.bytes()),
                limit: self.options.caps.max_weight_buffer(),
                hint: "This device cannot hold the model.".into(),
            });
        };
        let (x, out) = (self.view(node.inputs[0]), self.view(node.output));
        self.launches.push(blend(name, run, (taps > 0).then_some(taps as u32), &x, &out));
        Ok(())
    }

    fn linear(&mut self, name: &str, linear: &Linear, node: &Node) -> Result<()> {
        let runs = self.runs(linear.weight)?;
        let split = runs.len() > 1;
        if split && linear.gated {
            return Err(Error::Internal(format!("{name}: a split weight cannot be gated")));
        }
        if split && linear.bias.is_some() {
            return Err(Error::OutOfMemory {
                what: format!("{name}, which has a bias,"),
                needed: self.options.weights.get(&linear.weight).map_or(0, |w| w.bytes()),
                limit: self.options.caps.max_weight_buffer(),
                hint: "Load a more strongly quantized checkpoint: weights: 'q4'.".into(),
            });
        }
        let single = self.single(node.output);
        let many = !matches!(self.options.rows, RowsMode::Few(_)) && !single;
        let tiled = many && !self.options.caps.frugal();
        let norm = linear.norm.as_ref().map(|n| match n.gain {
            _ if many => Err(dropped(name, "the norm of its input: tiles do not take one along")),
            _ if n.layer || n.bias.is_some() => Err(dropped(name, "the mean or the bias of its input's norm")),
            None => Err(dropped(name, "the norm of its input, which has no gain")),
            Some(gain) => Ok(NormPrologue { gain: Slot::Vector(gain), offset: n.offset, eps: n.eps }),
        });
        let norm = norm.transpose()?;
        let state = self.cursor(node.output);
        let wanted = self.cols(node.output) * if linear.gated { 2 } else { 1 };
        let (low, high) = (linear.row0 as u32, linear.row0 as u32 + wanted);
        for (start, weight) in runs {
            // The rows of this run that are used, and the columns that they make.
            let (from, to) = (low.max(start), high.min(start + weight.rows));
            if from >= to {
                continue;
            }
            let first = from - low;
            let mut out = self.view(node.output);
            out.offset += first;
            let mut product = Matmul::plain(name, weight, self.view(node.inputs[0]), out);
            (product.row0, product.n) = (from - start, to - from);
            if linear.gated {
                product.n /= 2;
                product.gated = Some(product.n);
            }
            product.bias = linear.bias.map(Slot::Vector);
            product.residual = linear.residual.then(|| {
                let mut residual = self.view(node.inputs[1]);
                residual.offset += first;
                residual
            });
            product.norm = norm.clone();
            product.act = linear.act as u32;
            product.scale = linear.scale;
            product.softcap = linear.softcap;
            if tiled {
                let rows = self.options.rows.of(self.graph.value(node.output).rows);
                let (bytes, launches) = product.many(self.options.caps, rows, state, Slot::Scratch);
                self.scratch = self.scratch.max(bytes).max(16);
                self.launches.extend(launches);
            } else {
                let rows = self.options.rows.of(self.graph.value(node.output).rows);
                self.launches.push(product.gemv(self.options.caps, rows, state));
            }
        }
        Ok(())
    }

    fn attention(&mut self, name: &str, a: &ir::Attention, node: &Node) -> Result<()> {
        let (window, pictures, id) = match (a.mask, a.state) {
            (Mask::Causal { window }, Some(id)) => (window, false, id),
            (Mask::Pictures { window }, Some(id)) => (window, true, id),
            (Mask::Segment { before, after }, _) => {
                return self.segments(name, a, (before, after), Slot::Segments, node);
            }
            (Mask::Window, _) => {
                return self.segments(name, a, (usize::MAX, usize::MAX), Slot::Windows, node);
            }
            (Mask::Memory, _) if matches!(self.options.rows, RowsMode::Few(_)) => return self.look(name, a, node),
            (Mask::Memory, _) => {
                return self.segments(name, a, (usize::MAX, usize::MAX), Slot::Memory, node);
            }
            _ => return Err(Error::Internal(format!("{name}: causal attention without keys and values"))),
        };
        if a.relative.is_some() {
            return Err(dropped(name, "the bias by distance, which only attention of packed sequences adds"));
        }
        if pictures && a.sinks.is_some() {
            return Err(dropped(name, "the sinks, beside pictures that are seen both ways"));
        }
        let decode = DecodeChoice::of(self.options.caps, a.heads as u32, a.kv_heads as u32, a.head_dim as u32);
        let kept = self.state(name, id)?;
        let kernel = Attention {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            window: window as u32,
            softcap: a.softcap,
            sinks: a.sinks.map(Slot::Vector),
            head_norm: head_norm(a),
            rope: self.rope(a),
            kv: self.options.kv,
            capacity: self.options.capacity as u32,
            ring: kept.ring.then_some(kept.positions as u32),
            k_cache: Slot::Sequence(id, 0),
            v_cache: Slot::Sequence(id, 1),
            state: Slot::CURSOR,
            ends: pictures.then_some(Slot::Ends),
            decode,
        };
        let q = self.view(node.inputs[0]);
        // Without them, keys and values are those that another layer has written.
        let kv = (node.inputs.len() == 3).then(|| (self.view(node.inputs[1]), self.view(node.inputs[2])));
        let out = self.view(node.output);
        let rows = self.options.rows.tokens() as u64;
        let many = !matches!(self.options.rows, RowsMode::Few(_));
        if !many {
            self.scratch = self.scratch.max(kernel.scratch(rows as u32));
        }
        // A single row needs nobody else's keys: heads are made ready where they are used.
        let alone = !many && rows == 1 && self.options.fuse_heads;
        if let Some((k, v)) = kv.as_ref().filter(|(k, v)| alone && kernel.fuses(&q, k, v)) {
            self.launches.extend(kernel.decode(&q, k, v, Slot::Scratch, &out));
        } else {
            self.rotated = self.rotated.max(rows * (a.heads * a.head_dim * 4) as u64);
            self.launches.extend(match &kv {
                Some((k, v)) => kernel.rope_kv(&q, k, v, &Slot::Rotated),
                None => vec![kernel.rope_queries(&q, &Slot::Rotated)],
            });
            // What serves few rows serves many.
            let few = !many || (self.options.caps.frugal() && kernel.is_alone() && kernel.ends.is_none());
            self.launches.extend(if few {
                kernel.few(Slot::Rotated, Slot::Scratch, &out)
            } else {
                vec![kernel.prefill(self.options.caps, Slot::Rotated, &out)]
            });
        }
        Ok(())
    }

    /// Attention of few rows to the rows of another sequence, in runs.
    fn look(&mut self, name: &str, a: &ir::Attention, node: &Node) -> Result<()> {
        if a.sinks.is_some() || a.relative.is_some() || a.head_norm.is_some() || a.rope.is_some() || a.state.is_some() {
            return Err(dropped(name, "what attention to another sequence has no part for"));
        }
        let (q, k, v) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.inputs[2]));
        let kernel = Attention {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            window: 0,
            softcap: a.softcap,
            sinks: None,
            ends: None,
            head_norm: None,
            rope: None,
            kv: Kv::F32,
            capacity: self.options.rows.of(self.graph.value(node.inputs[1]).rows) as u32,
            ring: None,
            k_cache: k.buffer,
            v_cache: v.buffer,
            state: Slot::CURSOR,
            decode: DecodeChoice::of(self.options.caps, a.heads as u32, a.kv_heads as u32, a.head_dim as u32),
        };
        self.scratch = self.scratch.max(kernel.scratch(self.options.rows.tokens() as u32));
        let out = self.view(node.output);
        self.launches.extend(kernel.look(&q, [&k, &v], Slot::Memory, Slot::Scratch, &out));
        Ok(())
    }

    fn rope(&self, a: &ir::Attention) -> Option<Rope<Slot>> {
        let index = a.rope?;
        let spec = &self.graph.ropes[index];
        Some(Rope { table: Slot::Rope(index), dim: spec.dim as u32, interleaved: spec.interleaved })
    }

    /// Whether all matrices are f32: then what has no weights keeps that precision too.
    fn exact(&self) -> bool {
        let matrices = self.options.weights.values().filter(|w| w.kind == WeightKind::Matrix);
        let mut exact = matrices.map(|w| w.layout == Layout::Dense(Float::F32));
        exact.next().is_some_and(|first| first && exact.all(|f32| f32))
    }

    /// Attention within packed texts.
    fn segments(
        &mut self,
        name: &str,
        a: &ir::Attention,
        (before, after): (usize, usize),
        seen: Slot,
        node: &Node,
    ) -> Result<()> {
        if a.sinks.is_some() {
            return Err(dropped(name, "the sinks, which only causal attention has"));
        }
        if a.head_norm.as_ref().is_some_and(|n| n.values) {
            return Err(dropped(name, "the norm of values, which only attention over a cache has"));
        }
        if a.state.is_some() {
            return Err(dropped(
                name,
                "the keys and values it keeps, which attention of packed sequences does not write",
            ));
        }
        let most = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
        let kernel = Segments {
            label: name.to_string(),
            heads: a.heads as u32,
            kv_heads: a.kv_heads as u32,
            head_dim: a.head_dim as u32,
            scale: a.scale,
            softcap: a.softcap,
            before: most(before),
            after: most(after),
            relative: a.relative.map(Slot::Vector),
            head_norm: head_norm(a),
            rope: self.rope(a),
            segments: seen,
            state: self.cursor(node.inputs[0]),
        };
        let (mut q, mut k, v) = (self.view(node.inputs[0]), self.view(node.inputs[1]), self.view(node.inputs[2]));
        let out = self.view(node.output);
        if kernel.prepares() {
            let rows = self.options.rows.of(self.graph.value(node.inputs[0]).rows) as u64;
            let bytes = rows * u64::from(kernel.prepared_cols()) * 4;
            self.rotated = self.rotated.max(bytes);
            self.launches.push(kernel.prepare(&q, &k, Slot::Positions, Slot::Rotated));
            (q, k) = kernel.prepared(&Slot::Rotated);
        }
        let attend = kernel.attend(self.options.caps, self.exact(), &q, &k, &v, &out);
        self.launches.push(attend);
        Ok(())
    }
}

/// The error for a part of a node that no kernel of its would compute.
fn dropped(name: &str, what: &str) -> Error {
    Error::Internal(format!("{name}: lowering would leave out {what}"))
}

fn row_norm(n: &ir::Norm) -> norm::Norm<Slot> {
    let (gain, bias) = (n.gain.map(Slot::Vector), n.bias.map(Slot::Vector));
    norm::Norm { layer: n.layer, gain, bias, offset: n.offset, eps: n.eps }
}

fn head_norm(a: &ir::Attention) -> Option<HeadNorm<Slot>> {
    let h = a.head_norm.as_ref()?;
    let (gains, values) = (Slot::Vector(h.gains), h.values);
    Some(HeadNorm { gains, offset: h.offset, eps: h.eps, after_rope: h.after_rope, values })
}
