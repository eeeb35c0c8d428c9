//! Fuses 8-bit quantization of activations into the matmul that reads them, and norms into the
//! quantization before matmuls of many rows.

use super::norms::fuse_into_readers;
use super::rewriter::Rewriter;
use crate::ir::{Graph, Linear, Op, Prologue, QuantizeActivations};
use crate::kernels::matmul::Matmul;
use crate::plan::{PlanOptions, Slot};
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
            fuse_into_matmuls(&mut graph, index, options, &prologue, |matmul, rows| {
                matmul.quantizes_input(options.caps, rows)
            });
        }
    }
    Cow::Owned(graph.finish())
}

/// Returns the graph without separate norms before matmuls of a batch of many rows that quantize their
/// input. Prompts keep theirs: they repay no further kernel, which a load would compile.
pub fn fuse_quantized_norms<'a>(
    graph: Cow<'a, Graph>,
    options: &PlanOptions<'_>,
) -> Cow<'a, Graph> {
    let is_norm = |op: &Op| matches!(op, Op::Norm(norm) if norm.is_rms_with_gain());
    let takes_norms = options.fuse_norms && options.rows.is_batch() && !options.rows.uses_gemv();
    if !takes_norms || !graph.nodes.iter().any(|node| is_norm(&node.op)) {
        return graph;
    }
    let mut graph = Rewriter::new(graph.into_owned());
    for index in 0..graph.len() {
        let Some(node) = graph.node(index) else {
            continue;
        };
        let Op::Norm(norm) = &node.op else { continue };
        // Several readers would each repeat the norm.
        let is_read_once = graph.uses(node.output) == 1 && graph.graph().hidden != node.output;
        if norm.is_rms_with_gain() && is_read_once {
            let prologue = Prologue::Norm(norm.clone());
            let when = options.quantize_inputs;
            fuse_into_matmuls(&mut graph, index, options, &prologue, |matmul, rows| {
                matmul.quantized_rows(options.caps, rows, when).is_some()
            });
        }
    }
    Cow::Owned(graph.finish())
}

/// Fuses a node into the matmuls that read it, as their prologue, if they have none and `supports` holds
/// for each with its number of rows.
fn fuse_into_matmuls(
    graph: &mut Rewriter,
    index: usize,
    options: &PlanOptions<'_>,
    prologue: &Prologue,
    supports: impl Fn(&Matmul<Slot>, usize) -> bool,
) {
    fuse_into_readers(graph, index, |graph, reader| {
        let node = graph.node(reader)?;
        let Op::Linear(linear) = &node.op else {
            return None;
        };
        let values = graph.graph();
        let matmul = options.matmul_of(values, node)?;
        let rows = options.rows.of(values.value(node.output).rows);
        let fuses = linear.prologue == Prologue::None && supports(&matmul, rows);
        fuses.then(|| {
            Op::Linear(Linear {
                prologue: prologue.clone(),
                ..linear.clone()
            })
        })
    });
}
