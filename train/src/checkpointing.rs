//! Activation checkpointing (arXiv 1604.06174): only the values that cross the boundaries between
//! segments of a graph stay in memory. The backward pass computes the other activations of a
//! segment again, just before it needs them.

use crate::kernel::TrainLaunch;
use crate::tape::{Tape, TrainBuffer};
use jerboa::ir::{Graph, ValueId};
use jerboa::{Error, Result, SortedSet};
use std::collections::HashSet;
use std::ops::Range;

/// Maximum boundaries between the ends of a segment that [`crate::trainer::Trainer`] tries. A dense
/// layer has two: after attention and after the MLP.
pub(crate) const MAX_BOUNDARIES_PER_SEGMENT: usize = 6;

/// When a run recomputes activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checkpointing {
    /// When micro-batches of a useful size do not fit the device otherwise.
    #[default]
    Auto,
    /// In every step.
    Always,
    /// Never.
    Never,
    /// Never, because the loss does not support it: the contrastive loss of embedding models.
    Unsupported,
}

impl Checkpointing {
    /// Returns the value of an option: `auto`, `true` or `false`.
    ///
    /// # Errors
    /// `Request` for other names.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "true" => Ok(Self::Always),
            "false" => Ok(Self::Never),
            _ => Err(Error::Request {
                parameter: "checkpointing".into(),
                reason: format!("it must be 'auto', true or false, not '{name}'"),
            }),
        }
    }
}

/// Nodes of a graph in segments, and the values that stay in memory between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segments {
    /// Node indices of each segment, in order.
    pub nodes: Vec<Range<usize>>,
    /// Values that a later segment than that of their nodes reads, by root.
    pub stored: SortedSet<ValueId>,
}

impl Segments {
    /// One segment of all nodes: nothing is computed twice.
    pub fn whole(graph: &Graph) -> Self {
        Self {
            nodes: std::iter::once(0..graph.nodes.len()).collect(),
            stored: SortedSet::new(),
        }
    }

    /// Segments that end at every `boundaries`-th point of the graph that a single value crosses:
    /// the residual stream.
    pub fn between_boundaries(graph: &Graph, boundaries: usize) -> Self {
        let crossed = crossed_points(graph);
        let mut values = vec![0; graph.nodes.len() + 1];
        for points in &crossed {
            values[points.clone()]
                .iter_mut()
                .for_each(|count| *count += 1);
        }
        let points = (1..graph.nodes.len()).filter(|point| values[*point] == 1);
        let mut ends: Vec<usize> = points.step_by(boundaries.max(1)).collect();
        ends.push(graph.nodes.len());
        let mut nodes = Vec::with_capacity(ends.len());
        let mut first = 0;
        for end in ends {
            nodes.push(first..end);
            first = end;
        }
        let is_stored =
            |points: &Range<usize>| nodes.iter().any(|nodes| points.contains(&nodes.end));
        let stored = crossed
            .iter()
            .enumerate()
            .filter(|(_, points)| is_stored(points));
        let stored = stored.map(|(value, _)| ValueId(value)).collect();
        Self { nodes, stored }
    }
}

/// The points that each root crosses, by value; point `i` is before node `i`.
fn crossed_points(graph: &Graph) -> Vec<Range<usize>> {
    let mut crossed: Vec<Option<Range<usize>>> = vec![None; graph.values.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for value in node.inputs.iter().chain([&node.output]) {
            let point = index + 1;
            let root = graph.root(*value).0.0;
            crossed[root].get_or_insert(point..point).end = point;
        }
    }
    crossed.into_iter().map(Option::unwrap_or_default).collect()
}

/// What the forward pass of a node has recorded.
#[derive(Debug, Clone)]
pub(crate) struct NodeForward {
    /// Its launches, by index of [`Tape::launches`].
    pub launches: Range<usize>,
    /// Its temporary buffers, by index of [`Tape::cols`].
    pub temporaries: Range<usize>,
}

impl NodeForward {
    /// Whether the node writes a buffer.
    fn writes(&self, buffer: TrainBuffer, output: ValueId) -> bool {
        match buffer {
            TrainBuffer::Value(value) => value == output,
            TrainBuffer::Temporary(index) => self.temporaries.contains(&index),
            _ => false,
        }
    }
}

/// Returns the indices of the launches of a segment's forward pass that `backward` depends on, in
/// order, and the buffers that they write anew. Nodes whose results it does not read, such as the
/// last matmul of a layer, are left out.
pub(crate) fn replayed(
    tape: &Tape<'_>,
    nodes: Range<usize>,
    stored: &SortedSet<ValueId>,
    backward: &[TrainLaunch<TrainBuffer>],
) -> (Vec<usize>, Vec<TrainBuffer>) {
    let mut needed: HashSet<TrainBuffer> = buffers(backward).collect();
    let mut launches: Vec<usize> = Vec::new();
    let mut rewritten = Vec::new();
    for index in nodes.rev() {
        let forward = &tape.forwards[index];
        let output = tape.graph.root(tape.graph.nodes[index].output).0;
        let bound = || buffers(&tape.launches[forward.launches.clone()]);
        let own = |buffer: &TrainBuffer| forward.writes(*buffer, output);
        let is_stored =
            |buffer: &TrainBuffer| matches!(buffer, TrainBuffer::Value(id) if stored.contains(id));
        let own: Vec<TrainBuffer> = bound().filter(own).filter(|b| !is_stored(b)).collect();
        if own.iter().any(|buffer| needed.contains(buffer)) {
            needed.extend(bound());
            rewritten.extend(own);
            launches.extend(forward.launches.clone().rev());
        }
    }
    launches.reverse();
    (launches, rewritten)
}

fn buffers(launches: &[TrainLaunch<TrainBuffer>]) -> impl Iterator<Item = TrainBuffer> {
    let binds = launches.iter().flat_map(|launch| &launch.binds);
    binds.map(|(_, buffer)| *buffer)
}
