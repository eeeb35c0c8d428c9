//! Memory planning of activations: values whose lifetimes do not overlap share buffers.

use super::StepKind;
use crate::ir::{Graph, InputId, Node, Op, ValueId};
use crate::util::map::{SortedMap, SortedSet};

/// Returns the row stride of a value in elements: its columns rounded up to a multiple of four.
pub fn row_stride(graph: &Graph, root: ValueId) -> usize {
    graph.value(root).cols.next_multiple_of(4)
}

/// Buffer assignment and sizes.
pub struct BufferPlan {
    /// Buffer of each root value; the output has none.
    pub buffer: SortedMap<ValueId, usize>,
    /// External inputs.
    pub inputs: SortedMap<ValueId, InputId>,
    /// Bytes of each buffer.
    pub sizes: Vec<u64>,
}

/// Assigns each node output the free buffer that grows least, then the smallest. A step never
/// writes a buffer that it reads: inputs are freed after their last step.
pub fn assign_buffers(
    graph: &Graph,
    rows: StepKind,
    output: ValueId,
    halves: &SortedSet<ValueId>,
) -> BufferPlan {
    let element = |id: ValueId| if halves.contains(&id) { 2 } else { 4 };
    let bytes =
        |id: ValueId| (rows.of(graph.value(id).rows) * row_stride(graph, id) * element(id)) as u64;
    let mut last_use: SortedMap<ValueId, usize> = SortedMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for id in node.inputs.iter().chain(std::iter::once(&node.output)) {
            last_use.insert(graph.root(*id).0, index);
        }
    }
    if rows.verifies() {
        // Recurrent states are updated after the step, from the same inputs.
        let recurrent = |node: &&Node| matches!(node.op, Op::Recurrent(_) | Op::ShortConv(_));
        for id in graph
            .nodes
            .iter()
            .filter(recurrent)
            .flat_map(|node| &node.inputs)
        {
            last_use.insert(graph.root(*id).0, graph.nodes.len());
        }
    }
    let mut memory = BufferPlan {
        buffer: SortedMap::new(),
        inputs: SortedMap::new(),
        sizes: Vec::new(),
    };
    let mut free: Vec<usize> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let out = node.output;
        if let Op::ReadInput(input) = node.op {
            memory.inputs.insert(out, input.0);
        } else if out != output {
            let growth = |b: &usize| {
                (
                    bytes(out).saturating_sub(memory.sizes[*b]),
                    memory.sizes[*b],
                )
            };
            let choice = free.iter().copied().min_by_key(|b| growth(b));
            let chosen = choice.unwrap_or_else(|| {
                memory.sizes.push(0);
                memory.sizes.len() - 1
            });
            free.retain(|b| *b != chosen);
            memory.sizes[chosen] = memory.sizes[chosen].max(bytes(out));
            memory.buffer.insert(out, chosen);
        }
        let over: Vec<ValueId> = last_use
            .iter()
            .filter(|(_, last)| **last == index)
            .map(|(id, _)| *id)
            .collect();
        let mut freed: Vec<usize> = over
            .iter()
            .filter_map(|id| memory.buffer.get(id).copied())
            .collect();
        freed.sort_unstable();
        free.extend(freed);
    }
    memory
}
