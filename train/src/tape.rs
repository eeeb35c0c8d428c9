//! The launches of a graph's forward and backward pass. The tape walks the nodes in order, then in
//! reverse; each operation appends its launches. Buffers are virtual until `memory` assigns them.

use crate::batch::PackedRows;
use crate::checkpointing::{NodeForward, Segments, replayed};
use crate::kernel::TrainLaunch;
use crate::kernels::preference::PreferenceShape;
use crate::kernels::{contiguous, elementwise, fill, loss};
use crate::ops::gradient_of;
use jerboa::ir::{Dim, Graph, LastRow, Node, Op, StepSizes, ValueId, WeightId};
use jerboa::kernels::matmul::WeightPlanes;
use jerboa::kernels::view::View;
use jerboa::plan::WeightPlans;
use jerboa::{Error, Result, SortedSet};
use std::collections::HashMap;
use std::ops::Range;

/// A buffer of a training step by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainBuffer {
    /// A value of the graph.
    Value(ValueId),
    /// A gradient of a value, or what an operation stores between its passes; by index of
    /// [`Tape::cols`].
    Temporary(usize),
    /// Elements or codes of a weight shard.
    Codes(WeightId, usize),
    /// Scales of a weight shard.
    Scales(WeightId, usize),
    /// A vector.
    Vector(WeightId),
    /// The gradient of a weight.
    WeightGradient(WeightId),
    /// A state of a weight's optimizer.
    OptimizerState(WeightId, usize),
    /// A RoPE table.
    Rope(usize),
    /// Token ids.
    Ids,
    /// Position of each row in its sequence.
    Positions,
    /// Token type of each row.
    Types,
    /// Label of each row.
    Labels,
    /// First and end row of each row's sequence.
    Spans,
    /// First and end row that pooling reads, of each sequence.
    PoolSpans,
    /// Gradient of the embeddings of an encoder's micro-batch, `[sequences, cols]`.
    OutputGradient,
    /// A buffer of a loss over the embeddings of a step.
    Match(MatchBuffer),
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
    /// First and end row of the sequences of each pair.
    PairSpans,
    /// Log-probabilities of each pair's answers by the reference model.
    PairReferences,
    /// Loss, log-ratios and order of each pair.
    PairResults,
    /// Sums of the results of pairs.
    PairSums,
    /// Gradient of each row's loss.
    RowScales,
}

/// A buffer of a loss over the embeddings of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MatchBuffer {
    /// Embeddings of all sequences, `[sequences, cols]`.
    Embeddings,
    /// Their gradient.
    Gradients,
    /// The embeddings scaled to equal length.
    Scaled,
    /// The gradient of the scaled embeddings.
    ScaledGradients,
    /// Mean and factor of each embedding.
    Stats,
    /// Similarities of anchors and candidates, `[anchors, candidates]`, then their gradient.
    Scores,
}

/// What a tape ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapeEnd {
    /// The losses of an evaluation.
    Loss,
    /// Losses and gradients.
    Gradients,
}

/// The loss of a training.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum TrainLoss {
    /// The mean cross-entropy of labels.
    #[default]
    CrossEntropy,
    /// The mean loss of preference pairs (DPO, arXiv 2305.18290).
    Preference {
        /// How much the log-ratios count.
        beta: f32,
    },
}

/// What a tape records.
#[derive(Debug, Clone, Copy)]
pub struct TapeOptions<'a> {
    /// Rows of the step.
    pub rows: usize,
    /// What it ends with.
    pub end: TapeEnd,
    /// The loss.
    pub loss: TrainLoss,
    /// Nodes whose activations are in memory at once in the backward pass.
    pub segments: &'a Segments,
}

/// Records the launches of a pass over a graph.
pub struct Tape<'a> {
    /// The graph, without fusions.
    pub graph: &'a Graph,
    /// Rows of the output of the node that is recorded.
    pub rows: usize,
    /// Tokens and sequences of the step.
    sizes: StepSizes,
    /// Launches so far.
    pub launches: Vec<TrainLaunch<TrainBuffer>>,
    /// Columns of each temporary buffer.
    pub cols: Vec<usize>,
    weights: &'a WeightPlans,
    trained: &'a SortedSet<WeightId>,
    /// Whether a trained weight decides a value.
    depends: Vec<bool>,
    /// The node that is recorded.
    node: usize,
    /// What the forward pass of each node has recorded.
    pub(crate) forwards: Vec<NodeForward>,
    /// Temporary buffers that nodes keep for their backward pass.
    kept: HashMap<(usize, &'static str), usize>,
    /// Gradients so far, of values that are not views.
    gradients: HashMap<ValueId, TrainBuffer>,
}

impl<'a> Tape<'a> {
    /// Records a step of a language model.
    ///
    /// # Errors
    /// `UnsupportedOption` for operations without a gradient; `Internal` for a graph with fusions
    /// or without logits.
    pub fn record(
        graph: &'a Graph,
        weights: &'a WeightPlans,
        trained: &'a SortedSet<WeightId>,
        options: TapeOptions<'_>,
    ) -> Result<Self> {
        let TapeOptions {
            rows,
            end,
            loss,
            segments,
        } = options;
        let logits = graph
            .logits
            .ok_or_else(|| Error::Internal(format!("{} has no logits", graph.name)))?;
        let mut tape = Self::forward(graph, weights, trained, StepSizes::rows(rows))?;
        tape.add_loss(logits, loss, end);
        if end == TapeEnd::Gradients {
            tape.backward(logits, TrainBuffer::Value(logits), segments)?;
        }
        Ok(tape)
    }

    /// Records a step of an encoder. Returns the tape and the number of launches of its forward
    /// pass; the backward pass follows and reads [`TrainBuffer::OutputGradient`].
    ///
    /// # Errors
    /// As [`Self::record`].
    pub fn record_encoder(
        graph: &'a Graph,
        weights: &'a WeightPlans,
        trained: &'a SortedSet<WeightId>,
        sizes: StepSizes,
    ) -> Result<(Self, usize)> {
        let mut tape = Self::forward(graph, weights, trained, sizes)?;
        let forward = tape.launches.len();
        let (output, _) = graph.root(graph.hidden);
        let segments = Segments::whole(graph);
        tape.backward(output, TrainBuffer::OutputGradient, &segments)?;
        Ok((tape, forward))
    }

    fn forward(
        graph: &'a Graph,
        weights: &'a WeightPlans,
        trained: &'a SortedSet<WeightId>,
        sizes: StepSizes,
    ) -> Result<Self> {
        let mut tape = Self {
            graph,
            rows: sizes.rows,
            sizes,
            launches: Vec::new(),
            cols: Vec::new(),
            weights,
            trained,
            depends: vec![false; graph.values.len()],
            node: 0,
            forwards: Vec::with_capacity(graph.nodes.len()),
            kept: HashMap::new(),
            gradients: HashMap::new(),
        };
        for (index, node) in graph.nodes.iter().enumerate() {
            tape.node = index;
            if !matches!(graph.value(node.output).rows, Dim::TOKENS | Dim::Sequences) {
                return Err(tape.refuse(node));
            }
            tape.rows = tape.rows_of(node.output);
            let [launches, temporaries] = [tape.launches.len(), tape.cols.len()];
            gradient_of(&tape, node)?.forward(&mut tape, node)?;
            tape.forwards.push(NodeForward {
                launches: launches..tape.launches.len(),
                temporaries: temporaries..tape.cols.len(),
            });
            let inputs = node.inputs.iter().any(|input| tape.depends_on(*input));
            let weights = node.op.weights();
            let own = weights.iter().any(|weight| trained.contains(weight));
            let root = graph.root(node.output).0;
            tape.depends[root.0] |= inputs || own;
        }
        tape.rows = sizes.rows;
        Ok(tape)
    }

    /// Adds the loss of the logits, which their gradient replaces.
    fn add_loss(&mut self, logits: ValueId, loss: TrainLoss, end: TapeEnd) {
        use TrainBuffer::{Hyper, Labels, Loss, RowLosses};
        let view = self.view(logits);
        let size = [self.rows, self.cols_of(logits)];
        if let TrainLoss::Preference { beta } = loss {
            let shape = PreferenceShape {
                rows: self.rows,
                cols: self.cols_of(logits),
                pairs: PackedRows::pair_capacity(self.rows),
                beta,
                labels: Labels,
                losses: RowLosses,
                spans: TrainBuffer::PairSpans,
                references: TrainBuffer::PairReferences,
                results: TrainBuffer::PairResults,
                sums: TrainBuffer::PairSums,
            };
            let gradient = (end == TapeEnd::Gradients).then_some([Hyper, TrainBuffer::RowScales]);
            self.launches.extend(shape.launches(&view, gradient));
            return;
        }
        let hyper = (end == TapeEnd::Gradients).then_some(Hyper);
        self.push(loss::cross_entropy(size, &view, Labels, RowLosses, hyper));
        self.push(loss::add_losses(self.rows, RowLosses, Loss));
    }

    fn backward(
        &mut self,
        output: ValueId,
        gradient: TrainBuffer,
        segments: &Segments,
    ) -> Result<()> {
        self.gradients.insert(output, gradient);
        let last = segments.nodes.len().saturating_sub(1);
        for (index, nodes) in segments.nodes.iter().enumerate().rev() {
            let first = self.launches.len();
            self.backward_of(nodes.clone())?;
            // The forward pass has just computed the activations of the last segment.
            if index != last {
                self.replay(nodes.clone(), &segments.stored, first);
            }
        }
        Ok(())
    }

    /// Appends the backward launches of nodes.
    fn backward_of(&mut self, nodes: Range<usize>) -> Result<()> {
        let graph = self.graph;
        for index in nodes.rev() {
            let node = &graph.nodes[index];
            self.node = index;
            self.rows = self.rows_of(node.output);
            let root = graph.root(node.output).0;
            if self.depends[root.0] && self.gradients.contains_key(&root) {
                gradient_of(self, node)?.backward(self, node)?;
                // A root is complete once its own node is reached, since views follow it.
                self.gradients.remove(&root);
            }
        }
        Ok(())
    }

    /// Puts the forward launches of a segment before its backward launches, which start at `first`.
    /// They write into buffers of their own, so that memory is free between both passes.
    fn replay(&mut self, nodes: Range<usize>, stored: &SortedSet<ValueId>, first: usize) {
        let backward = self.launches.split_off(first);
        let (forward, rewritten) = replayed(self, nodes, stored, &backward);
        let mut names = HashMap::new();
        for buffer in rewritten {
            let cols = match buffer {
                TrainBuffer::Temporary(index) => self.cols[index],
                TrainBuffer::Value(value) => self.cols_of(value),
                _ => continue,
            };
            names
                .entry(buffer)
                .or_insert_with(|| self.temporary(cols).buffer);
        }
        let forward = forward
            .into_iter()
            .map(|index| self.launches[index].clone());
        let renamed = |launch: TrainLaunch<TrainBuffer>| {
            launch.map(|buffer| *names.get(buffer).unwrap_or(buffer))
        };
        let launches: Vec<_> = forward.chain(backward).map(renamed).collect();
        self.launches.extend(launches);
    }

    /// Returns the error for a node without a gradient.
    pub fn refuse(&self, node: &Node) -> Error {
        Error::UnsupportedOption {
            architecture: self.graph.name.clone(),
            option: format!(
                "training through {} ({})",
                node.op.definition().describe(self.graph),
                self.graph.value(node.output).name
            ),
            hint: "Train a dense text model, such as Llama, Qwen3, Gemma 3 or LFM2, or an embedding model, such as MiniLM, BGE or Qwen3-Embedding.".into(),
        }
    }

    /// Appends a launch.
    pub fn push(&mut self, launch: TrainLaunch<TrainBuffer>) {
        self.launches.push(launch);
    }

    /// Columns of a value.
    pub fn cols_of(&self, value: ValueId) -> usize {
        self.graph.value(value).cols
    }

    /// Rows of a value in this step.
    pub fn rows_of(&self, value: ValueId) -> usize {
        self.graph.value(value).rows.eval(self.sizes)
    }

    /// The view of a value.
    pub fn view(&self, value: ValueId) -> View<TrainBuffer> {
        let (root, first) = self.graph.root(value);
        View {
            buffer: TrainBuffer::Value(root),
            offset: first as u32,
            stride: self.cols_of(root) as u32,
        }
    }

    /// Creates a buffer of `cols` columns.
    pub fn temporary(&mut self, cols: usize) -> View<TrainBuffer> {
        self.cols.push(cols);
        contiguous(TrainBuffer::Temporary(self.cols.len() - 1), cols)
    }

    /// Creates a buffer that the node's backward pass finds by its name.
    pub fn keep(&mut self, name: &'static str, cols: usize) -> View<TrainBuffer> {
        let view = self.temporary(cols);
        self.kept.insert((self.node, name), self.cols.len() - 1);
        view
    }

    /// Returns a buffer that the node's forward pass kept.
    ///
    /// # Errors
    /// `Internal` when it kept none of that name.
    pub fn kept(&self, name: &'static str) -> Result<View<TrainBuffer>> {
        let index = self.kept.get(&(self.node, name));
        let index =
            *index.ok_or_else(|| Error::Internal(format!("no buffer '{name}' was kept")))?;
        Ok(contiguous(TrainBuffer::Temporary(index), self.cols[index]))
    }

    /// Whether a weight is trained.
    pub fn is_trained(&self, weight: WeightId) -> bool {
        self.trained.contains(&weight)
    }

    /// Whether a trained weight decides a value.
    pub fn depends_on(&self, value: ValueId) -> bool {
        self.depends[self.graph.root(value).0.0]
    }

    /// The gradient of a node's output.
    ///
    /// # Errors
    /// `Internal` when no reader of the value has written one.
    pub fn gradient(&self, value: ValueId) -> Result<View<TrainBuffer>> {
        let (root, first) = self.graph.root(value);
        let buffer = self.gradients.get(&root).copied();
        let name = &self.graph.value(value).name;
        Ok(View {
            buffer: buffer.ok_or_else(|| Error::Internal(format!("{name} has no gradient")))?,
            offset: first as u32,
            stride: self.cols_of(root) as u32,
        })
    }

    /// Where the gradient of an input goes, and whether it adds to what is there; `None` if no
    /// trained weight decides the input.
    pub fn target(&mut self, value: ValueId) -> Option<(View<TrainBuffer>, bool)> {
        if !self.depends_on(value) {
            return None;
        }
        let (root, first) = self.graph.root(value);
        let cols = self.cols_of(root);
        let is_whole = first == 0 && self.cols_of(value) == cols;
        let mut add = true;
        if !self.gradients.contains_key(&root) {
            let buffer = self.temporary(cols).buffer;
            self.gradients.insert(root, buffer);
            if is_whole {
                add = false;
            } else {
                self.push(fill(self.rows_of(root) * cols, buffer));
            }
        }
        let buffer = self.gradients[&root];
        let view = View {
            buffer,
            offset: first as u32,
            stride: cols as u32,
        };
        Some((view, add))
    }

    /// Writes a gradient that equals that of the node's output, without a copy where the input has
    /// none yet. Call it last: the gradient of the output may belong to the input then.
    ///
    /// # Errors
    /// `Internal` when the output has no gradient.
    pub fn pass_on(&mut self, output: ValueId, input: ValueId) -> Result<()> {
        let dy = self.gradient(output)?;
        let [(from, _), (root, _)] = [output, input].map(|value| self.graph.root(value));
        let is_whole = [(output, from), (input, root)]
            .iter()
            .all(|(value, root)| value == root);
        let is_free = !self.gradients.contains_key(&root) && self.depends_on(input);
        if is_whole && is_free && matches!(dy.buffer, TrainBuffer::Temporary(_)) {
            self.gradients.remove(&from);
            self.gradients.insert(root, dy.buffer);
            return Ok(());
        }
        self.copy(&dy, input);
        Ok(())
    }

    /// Adds a copy of a gradient to that of an input, if it needs one.
    pub fn copy(&mut self, dy: &View<TrainBuffer>, input: ValueId) {
        if let Some((dx, add)) = self.target(input) {
            let size = [self.rows, self.cols_of(input)];
            let one = elementwise::Function::Scale(1.0);
            self.push(elementwise::elementwise(one, size, &[dy], &dx, add));
        }
    }

    /// The buffer of a trained weight's gradient, with the stride of its rows.
    pub fn weight_gradient(&self, weight: WeightId) -> Option<View<TrainBuffer>> {
        let plan = self.weights.get(&weight)?;
        let stride = plan.layout.padded_cols(plan.cols);
        self.is_trained(weight)
            .then(|| contiguous(TrainBuffer::WeightGradient(weight), stride))
    }

    /// The shards of a weight with their first rows.
    ///
    /// # Errors
    /// `Internal` for a weight without storage.
    pub fn shards(&self, id: WeightId) -> Result<Vec<(usize, WeightPlanes<TrainBuffer>)>> {
        let plan = self.weights.get(&id);
        let plan = plan.ok_or_else(|| Error::Internal(format!("no storage for {id:?}")))?;
        let has_scales = plan.layout.plane_bytes(1, plan.cols)[1] > 0;
        let shards = plan.shards.iter().enumerate();
        Ok(shards
            .map(|(index, rows)| {
                let planes = WeightPlanes {
                    layout: plan.layout,
                    rows: rows.len() as u32,
                    cols: plan.cols as u32,
                    q: TrainBuffer::Codes(id, index),
                    s: has_scales.then_some(TrainBuffer::Scales(id, index)),
                };
                (rows.start, planes)
            })
            .collect())
    }
}

/// Returns a decoder's graph with logits of all rows.
pub fn with_logits_of_all_rows(mut graph: Graph) -> Graph {
    let mut replaced = HashMap::new();
    graph.nodes.retain(|node| {
        let is_last = node.op == Op::LastRow(LastRow);
        if is_last {
            replaced.insert(node.output, node.inputs[0]);
        }
        !is_last
    });
    let renamed = |value: &mut ValueId| {
        if let Some(input) = replaced.get(value) {
            *value = *input;
        }
    };
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(renamed);
    }
    renamed(&mut graph.hidden);
    for value in &mut graph.values {
        if value.rows == Dim::Last {
            value.rows = Dim::TOKENS;
        }
    }
    graph
}
