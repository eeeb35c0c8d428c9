//! Lowers the nodes of a fused graph to kernel launches and their buffers.

mod altup;
mod attention;
mod columns;
mod conv;
mod elementwise;
mod embed;
mod embedding_bag;
mod experts;
mod f16_activations;
mod group_norm;
mod hidden;
mod input;
mod linear;
mod norm;
mod pool;
mod position_embedding;
mod recurrent;
mod short_conv;
mod snake;

use super::memory::{self, BufferPlan};
use super::{Plan, PlanBreak, Slot, StatePlan, WeightPlan, WeightPlans, fuse};
use crate::device::Caps;
use crate::ir::{Dim, Graph, Node, Op, StateId, StepSizes, ValueId, WeightId, with_ops};
use crate::kernels::Launch;
use crate::kernels::attention::Kv;
use crate::kernels::kv_splits::KvSplits;
use crate::kernels::matmul::{Matmul, QuantizeInputs, QuantizedRows, View, WeightPlanes};
use crate::util::map::SortedSet;
use crate::{Error, Result};

/// Maximum rows of a batched step whose matmuls are GEMVs; more repay the tiles of a GEMM.
pub const MAX_GEMV_ROWS: usize = 8;

/// Kind of step and its maximum rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// Decode (1) or verification: at most this many rows, computed row by row.
    Decode(usize),
    /// Batched decode: at most this many rows, each the next token of another sequence.
    DecodeBatch(usize),
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
            StepKind::Decode(n)
            | StepKind::DecodeBatch(n)
            | StepKind::Prefill(n)
            | StepKind::Packed { tokens: n, .. } => n,
        }
    }

    /// Whether it decodes: one row of each sequence, or one sequence's last rows.
    pub fn decodes(self) -> bool {
        matches!(self, StepKind::Decode(_) | StepKind::DecodeBatch(_))
    }

    /// Whether rows may be dropped once the step is over.
    pub fn verifies(self) -> bool {
        matches!(self, StepKind::Decode(rows) if rows > 1)
    }

    /// Whether each row belongs to another sequence.
    pub fn is_batch(self) -> bool {
        matches!(self, StepKind::DecodeBatch(_))
    }

    /// Whether matmuls take the rows one by one or a few at a time, rather than in tiles.
    pub fn uses_gemv(self) -> bool {
        match self {
            StepKind::Decode(_) => true,
            StepKind::DecodeBatch(rows) => rows <= MAX_GEMV_ROWS,
            StepKind::Prefill(_) | StepKind::Packed { .. } => false,
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
    /// Whether matmuls of a batch of many rows that quantize their input norm it too.
    pub fuse_norms: bool,
    /// Whether matmuls of many rows may quantize their input to 8 bits.
    pub quantize_inputs: QuantizeInputs,
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
        product.gated = linear.is_gated().then_some(product.n);
        Some(product)
    }
}

/// Lowers a fused graph to a plan.
///
/// # Errors
/// `Internal` if no kernel computes a node, or a kernel would ignore a part of it.
pub fn lower(graph: &Graph, options: PlanOptions<'_>) -> Result<Plan> {
    graph.validate()?;
    let graph = fuse::fuse_quantize(graph, &options);
    let graph = fuse::fuse_quantized_norms(graph, &options);
    let graph = &*fuse::fuse_last_row(graph, &options);
    let output = graph.root(graph.logits.unwrap_or(graph.hidden)).0;
    let uses = graph.uses();
    let f16_values = f16_activations::f16_values(graph, &options, &uses, output);
    let memory = memory::assign_buffers(graph, options.rows, output, &f16_values);
    let mut lowering = Lowering {
        graph,
        options,
        memory,
        f16_values,
        uses,
        output,
        launches: Vec::new(),
        state_updates: Vec::new(),
        breaks: Vec::new(),
        routers: 0,
        pending_splits: None,
        roped_queries: 0,
        attention_partials: 0,
        quantized: None,
        quantized_at: 0,
        quantized_rows: [0; 2],
        square_sums: 0,
        sorted: 0,
        shared_act: first_activation(graph),
        norms_last_row: graph
            .nodes
            .iter()
            .any(|node| matches!(node.op, Op::NormLastRow(_))),
    };
    for node in &graph.nodes {
        lowering.lower_node(node)?;
    }
    let rows = options.rows.of(graph.value(output).rows);
    Ok(Plan {
        output: (rows * memory::row_stride(graph, output) * 4) as u64,
        output_cols: graph.value(output).cols,
        launches: lowering.launches,
        state_updates: lowering.state_updates,
        breaks: lowering.breaks,
        activations: lowering.memory.sizes,
        roped_queries: lowering.roped_queries,
        attention_partials: lowering.attention_partials,
        quantized_rows: lowering.quantized_rows,
        square_sums: lowering.square_sums,
        expert_tiles: lowering.sorted,
    })
}

/// The activation of the first gated matmul, else of the first that has one, as a code of
/// shaders/common/activation.wgsl; 0 without.
fn first_activation(graph: &Graph) -> u32 {
    let linears = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Linear(linear) => Some(linear),
        _ => None,
    });
    let gated = linears.clone().find(|linear| linear.is_gated());
    let any = || {
        linears
            .clone()
            .find(|linear| linear.activation() as u32 > 0)
    };
    let chosen = gated.or_else(any);
    chosen.map_or(0, |linear| linear.activation() as u32)
}

/// Lowering of one kind of operation, in the file that is named like the operation's.
trait Lower {
    /// Appends the launches of a node.
    ///
    /// # Errors
    /// `Internal` if no kernel computes the node; `OutOfMemory` if a weight must fit one buffer.
    fn lower(&self, lowering: &mut Lowering<'_>, node: &NodeViews<'_>) -> Result<()>;

    /// Whether the last launch can write f16. Matmuls are decided by their kernel.
    fn can_write_f16(&self, _options: &PlanOptions<'_>) -> bool {
        false
    }
}

macro_rules! define_lowering {
    ($($name:ident,)*) => {
        /// Returns the lowering of an operation.
        fn lowering_of(op: &Op) -> &dyn Lower {
            match op {
                $(Op::$name(op) => op,)*
            }
        }
    };
}
with_ops!(define_lowering);

/// A node with the views of its inputs and its output.
struct NodeViews<'a> {
    /// Name of the output.
    name: String,
    node: &'a Node,
    inputs: Vec<View<Slot>>,
    out: View<Slot>,
    /// Columns of the output.
    cols: u32,
    /// Whether the output is only the last row of a step of many rows.
    single: bool,
}

impl NodeViews<'_> {
    /// The first input.
    fn x(&self) -> &View<Slot> {
        &self.inputs[0]
    }
}

/// Returns the view of a vector.
fn vector(id: WeightId) -> View<Slot> {
    View {
        buffer: Slot::Vector(id),
        offset: 0,
        stride: 0,
    }
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
    /// Launches that update states once a verification is over.
    state_updates: Vec<Launch<Slot>>,
    breaks: Vec<PlanBreak>,
    /// Routers so far, predictions not counted.
    routers: usize,
    /// A value that decode attention left as KV splits in the scratch buffer, the launch count
    /// after it, and the splits.
    pending_splits: Option<(ValueId, usize, KvSplits)>,
    roped_queries: u64,
    attention_partials: u64,
    /// The value that the buffer of quantized rows holds, and its form.
    quantized: Option<(ValueId, QuantizedRows)>,
    /// The buffer that holds it.
    quantized_at: usize,
    quantized_rows: [u64; 2],
    square_sums: u64,
    sorted: u64,
    /// The activation that matmuls of a prompt share a kernel for.
    shared_act: u32,
    /// Whether the last row is selected by a norm.
    norms_last_row: bool,
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

    fn lower_node(&mut self, node: &Node) -> Result<()> {
        let first = self.launches.len();
        let views = NodeViews {
            name: self.graph.value(node.output).name.clone(),
            inputs: node.inputs.iter().map(|i| self.view(*i)).collect(),
            out: self.view(node.output),
            cols: self.cols(node.output),
            single: self.is_last_row(node.output),
            node,
        };
        lowering_of(&node.op).lower(self, &views)?;
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

    /// Whether the step has few rows, for an operation with a state; packed sequences have none.
    fn is_few_rows(&self, name: &str, id: StateId) -> Result<bool> {
        self.state(name, id)?;
        match self.options.rows {
            StepKind::Decode(_) | StepKind::DecodeBatch(_) => Ok(true),
            StepKind::Prefill(_) => Ok(false),
            StepKind::Packed { .. } => Err(Error::Internal(format!(
                "{name}: packed sequences have no state"
            ))),
        }
    }

    /// Returns the bytes of a weight on the device.
    fn weight_bytes(&self, id: WeightId) -> u64 {
        self.options.weights.get(&id).map_or(0, WeightPlan::bytes)
    }

    /// Makes the scratch buffer at least this large.
    fn reserve_partials(&mut self, bytes: u64) {
        self.attention_partials = self.attention_partials.max(bytes);
    }

    /// Whether a weight's buffers hold only some of its rows at a time.
    fn is_paged(&self, id: WeightId) -> bool {
        let plan = self.options.weights.get(&id);
        plan.is_some_and(WeightPlan::is_paged)
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
}

/// Returns the error for a part of a node that no kernel supports.
fn unsupported(name: &str, what: &str) -> Error {
    Error::Internal(format!("{name}: no kernel supports {what}"))
}
