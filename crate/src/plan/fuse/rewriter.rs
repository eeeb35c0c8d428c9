//! Graph under rewriting: nodes keep their index, and the producer, readers and uses of each value
//! stay current.

use crate::ir::{Graph, Node, Op, Value, ValueId, Weight, WeightId};

/// A graph whose nodes are replaced and removed by fusion passes.
pub struct Rewriter {
    /// The graph without its nodes.
    graph: Graph,
    /// Nodes in execution order; None where one was removed.
    nodes: Vec<Option<Node>>,
    /// Node that computes each value. A view has none of its own.
    producers: Vec<Option<usize>>,
    /// Nodes that have each value as an input, once per input.
    readers: Vec<Vec<usize>>,
    /// Reads of each value, including through views. Outputs of the graph count once.
    uses: Vec<usize>,
}

impl Rewriter {
    /// Indexes a graph.
    pub fn new(mut graph: Graph) -> Self {
        let uses = graph.uses();
        let values = graph.values.len();
        let mut producers = vec![None; values];
        let mut readers = vec![Vec::new(); values];
        let nodes = std::mem::take(&mut graph.nodes);
        for (index, node) in nodes.iter().enumerate() {
            producers[node.output.0] = Some(index);
            for input in &node.inputs {
                readers[input.0].push(index);
            }
        }
        Self {
            graph,
            nodes: nodes.into_iter().map(Some).collect(),
            producers,
            readers,
            uses,
        }
    }

    /// Returns the rewritten graph.
    pub fn finish(self) -> Graph {
        Graph {
            nodes: self.nodes.into_iter().flatten().collect(),
            ..self.graph
        }
    }

    /// Returns the graph, without its nodes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the number of node indices. Some may belong to removed nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns a node; None if it was removed.
    pub fn node(&self, index: usize) -> Option<&Node> {
        self.nodes[index].as_ref()
    }

    /// Returns the operation of a node, to change it.
    pub fn op_mut(&mut self, index: usize) -> Option<&mut Op> {
        self.nodes[index].as_mut().map(|node| &mut node.op)
    }

    /// Returns the node that computes exactly this value.
    pub fn producer(&self, id: ValueId) -> Option<usize> {
        self.producers[id.0]
    }

    /// Returns the node that computes this value for a single use, with its operation.
    pub fn sole_producer(&self, id: ValueId) -> Option<(usize, &Node)> {
        let index = self.producer(id).filter(|_| self.uses[id.0] == 1)?;
        Some((index, self.node(index)?))
    }

    /// Whether a value, or the value that it is a view of, is computed before a node.
    pub fn is_before(&self, id: ValueId, node: usize) -> bool {
        let producer = self.producer(self.graph.root(id).0);
        producer.is_some_and(|producer| producer < node)
    }

    /// Returns the nodes that have a value as an input, in execution order.
    pub fn readers(&self, id: ValueId) -> Vec<usize> {
        let mut readers = self.readers[id.0].clone();
        readers.sort_unstable();
        readers.dedup();
        readers
    }

    /// Returns the reads of a value, including through views and as an output of the graph.
    pub fn uses(&self, id: ValueId) -> usize {
        self.uses[id.0]
    }

    /// Adds a weight.
    pub fn add_weight(&mut self, weight: Weight) -> WeightId {
        self.graph.weights.push(weight);
        WeightId(self.graph.weights.len() - 1)
    }

    /// Adds a value that a replaced node will compute.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        self.graph.values.push(value);
        self.producers.push(None);
        self.readers.push(Vec::new());
        self.uses.push(0);
        ValueId(self.graph.values.len() - 1)
    }

    /// Makes a value, which no node computes any more, a view of another from a column on.
    pub fn set_view(&mut self, id: ValueId, of: ValueId, first: usize) {
        self.graph.values[id.0].view = Some((of, first));
        self.add_uses(of, self.uses[id.0]);
    }

    /// Replaces an input of a node.
    pub fn set_input(&mut self, index: usize, input: usize, id: ValueId) {
        let Some(node) = &mut self.nodes[index] else {
            return;
        };
        let old = std::mem::replace(&mut node.inputs[input], id);
        self.drop_read(index, old);
        self.add_read(index, id);
    }

    /// Replaces the operation and the output of a node. It reads the same values.
    pub fn set_output(&mut self, index: usize, op: Op, output: ValueId) {
        let Some(node) = &mut self.nodes[index] else {
            return;
        };
        node.op = op;
        let old = std::mem::replace(&mut node.output, output);
        self.producers[old.0] = None;
        self.producers[output.0] = Some(index);
    }

    /// Removes a node. Its output must have no use left, or become a view or another node's output.
    pub fn remove(&mut self, index: usize) -> Option<Node> {
        let node = self.nodes[index].take()?;
        for input in &node.inputs {
            self.drop_read(index, *input);
        }
        self.producers[node.output.0] = None;
        Some(node)
    }

    /// Replaces a node by a view of its first input.
    pub fn replace_by_view(&mut self, index: usize) {
        if let Some(node) = self.remove(index) {
            self.set_view(node.output, node.inputs[0], 0);
        }
    }

    /// Fuses a node into the producer of one of its inputs: the producer becomes `op`, reads `extra`
    /// in addition, and computes the node's output.
    pub fn fuse_into_producer(
        &mut self,
        producer: usize,
        index: usize,
        op: Op,
        extra: Option<ValueId>,
    ) {
        let Some(removed) = self.remove(index) else {
            return;
        };
        self.set_output(producer, op, removed.output);
        if let (Some(id), Some(node)) = (extra, &mut self.nodes[producer]) {
            node.inputs.push(id);
            self.add_read(producer, id);
        }
    }

    fn add_read(&mut self, index: usize, id: ValueId) {
        self.readers[id.0].push(index);
        self.add_uses(id, 1);
    }

    fn drop_read(&mut self, index: usize, id: ValueId) {
        let readers = &mut self.readers[id.0];
        if let Some(at) = readers.iter().position(|reader| *reader == index) {
            readers.swap_remove(at);
        }
        let mut next = Some(id);
        while let Some(id) = next {
            self.uses[id.0] -= 1;
            next = self.graph.value(id).view.map(|(of, _)| of);
        }
    }

    fn add_uses(&mut self, id: ValueId, count: usize) {
        let mut next = Some(id);
        while let Some(id) = next {
            self.uses[id.0] += count;
            next = self.graph.value(id).view.map(|(of, _)| of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Activation, Add, Embed, GraphBuilder, IdSource, Linear, Unary, WeightKind};

    /// Checks the indexes against those of the finished graph.
    fn assert_current(rewriter: Rewriter) -> Graph {
        let uses = rewriter.uses.clone();
        let producers = rewriter.producers.clone();
        let outputs: Vec<Option<ValueId>> = rewriter
            .nodes
            .iter()
            .map(|node| node.as_ref().map(|node| node.output))
            .collect();
        let graph = rewriter.finish();
        graph.validate().expect("a valid graph");
        assert_eq!(uses, graph.uses());
        for (id, producer) in producers.iter().enumerate() {
            let found = outputs.iter().position(|o| *o == Some(ValueId(id)));
            assert_eq!(*producer, found, "{}", graph.values[id].name);
        }
        graph
    }

    /// x, y = x W, z = relu(y), w = x + z.
    fn graph() -> (Graph, [ValueId; 4]) {
        let mut b = GraphBuilder::new("test");
        let table = b.weight("table", 10, 8, WeightKind::Table);
        let x = b.node("x", Embed::new(table, IdSource::Tokens), &[], 8);
        let y = b.linear("y", x, 8, false);
        let z = b.node("z", Unary(Activation::Relu), &[y], 8);
        let w = b.node("w", Add, &[x, z], 8);
        (b.finish(w, None).expect("a graph"), [x, y, z, w])
    }

    #[test]
    fn a_node_fused_into_its_producer_leaves_current_indexes() {
        let (graph, [x, y, z, _]) = graph();
        let mut rewriter = Rewriter::new(graph);
        let (producer, _) = rewriter.sole_producer(y).expect("a producer");
        let op = rewriter.node(producer).expect("a node").op.clone();
        rewriter.fuse_into_producer(producer, 2, op, None);
        assert_eq!((rewriter.uses(y), rewriter.producer(y)), (0, None));
        assert_eq!(rewriter.producer(z), Some(producer));
        assert_eq!(rewriter.readers(x), [1, 3]);
        assert!(rewriter.is_before(x, producer) && !rewriter.is_before(z, producer));
        assert_eq!(assert_current(rewriter).nodes.len(), 3);
    }

    #[test]
    fn a_node_replaced_by_a_view_passes_its_uses_on() {
        let (graph, [_, y, z, w]) = graph();
        let mut rewriter = Rewriter::new(graph);
        rewriter.replace_by_view(2);
        assert_eq!((rewriter.uses(y), rewriter.uses(z)), (1, 1));
        assert!(rewriter.is_before(z, 3) && rewriter.producer(z).is_none());
        let graph = assert_current(rewriter);
        assert_eq!(graph.root(z).0, y);
        assert_eq!(graph.nodes.last().map(|node| node.output), Some(w));
    }

    #[test]
    fn inputs_and_outputs_can_be_replaced() {
        let (graph, [x, y, z, _]) = graph();
        let mut rewriter = Rewriter::new(graph);
        rewriter.set_input(3, 1, y);
        assert_eq!((rewriter.uses(z), rewriter.uses(y)), (0, 2));
        rewriter.remove(2);
        let wide = rewriter.graph().value(y).clone();
        let merged = rewriter.add_value(Value { cols: 16, ..wide });
        let weight = rewriter.graph().weights[1].clone();
        let weight = rewriter.add_weight(Weight {
            parts: vec![("twice".into(), 16)],
            ..weight
        });
        rewriter.set_output(1, Linear::new(weight, None).into(), merged);
        rewriter.set_view(y, merged, 8);
        assert_eq!((rewriter.uses(merged), rewriter.uses(x)), (1, 2));
        assert_current(rewriter);
    }
}
