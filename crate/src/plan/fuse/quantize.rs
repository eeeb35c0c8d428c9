//! Fuses 8-bit activation quantization into the decode GEMVs, if every consumer supports it.

use super::norms::fuse_into_readers;
use super::rewriter::Rewriter;
use crate::ir::{Graph, Linear, Op, Prologue, QuantizeActivations};
use crate::plan::PlanOptions;
use std::borrow::Cow;

/// Returns the graph without separate quantization steps for such GEMVs.
pub fn fuse_quantize<'a>(graph: &'a Graph, options: &PlanOptions<'_>) -> Cow<'a, Graph> {
    let quantizes = |op: &Op| matches!(op, Op::QuantizeActivations(_));
    if !options.rows.uses_gemv() || !graph.nodes.iter().any(|node| quantizes(&node.op)) {
        return Cow::Borrowed(graph);
    }
    let mut graph = Rewriter::new(graph.clone());
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        let Op::QuantizeActivations(QuantizeActivations(Some(norm))) = &node.op else {
            continue;
        };
        if norm.is_rms_with_gain() {
            let prologue = Prologue::QuantizedNorm(norm.clone());
            fuse_into_readers(&mut graph, index, |graph, reader| {
                let linear = quantizing_matmul(graph, reader, options)?;
                let prologue = prologue.clone();
                Some(Op::Linear(Linear { prologue, ..linear }))
            });
        }
    }
    Cow::Owned(graph.finish())
}

/// Returns a matmul whose kernel can quantize its input.
fn quantizing_matmul(graph: &Rewriter, index: usize, options: &PlanOptions<'_>) -> Option<Linear> {
    let node = graph.node(index)?;
    let Op::Linear(linear) = &node.op else {
        return None;
    };
    let values = graph.graph();
    let matmul = options.matmul_of(values, node)?;
    let rows = options.rows.of(values.value(node.output).rows);
    let fuses = linear.prologue == Prologue::None && matmul.quantizes_input(options.caps, rows);
    fuses.then(|| linear.clone())
}
