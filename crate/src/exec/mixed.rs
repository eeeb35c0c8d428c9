//! Selects the matrices that keep 8 bits when 4 are requested: in small models, those that lose
//! most accuracy. The measurements are in docs/quantization.md.

use crate::ir::{Graph, Node, Op, ValueId, WeightKind};
use crate::util::map::SortedSet;

/// Maximum number of matrix weights (tables excluded) of a model with mixed precision. Chosen so
/// that decode throughput of larger models, which is bound by matrix bytes, is unchanged. The loss
/// at 4 bits was not measured for those.
pub(super) const MAX_MIXED_WEIGHTS: u64 = 400_000_000;

/// Returns the names of the tensors that keep 8 bits when 4 are requested; empty for large models.
///
/// These are the matrices that read the residual stream: query, key, value, gate and up
/// projections. The ones that write into it, after attention or an activation, get 4 bits. Matrices
/// that are fused with each other have the same input.
pub(super) fn eight_bit_tensors(graph: &Graph) -> SortedSet<String> {
    let mut tensors = SortedSet::new();
    if matrix_weights(graph) > MAX_MIXED_WEIGHTS {
        return tensors;
    }
    for node in &graph.nodes {
        let Op::Linear(linear) = &node.op else {
            continue;
        };
        let weight = graph.weight(linear.weight);
        if weight.kind == WeightKind::Matrix && !writes_residual(graph, node) {
            for part in &weight.parts {
                tensors.insert(part.0.clone());
            }
        }
    }
    tensors
}

fn matrix_weights(graph: &Graph) -> u64 {
    let counted = |kind| matches!(kind, WeightKind::Matrix | WeightKind::Experts { .. });
    let used = graph.used_weights().into_iter().map(|id| graph.weight(id));
    used.filter(|w| counted(w.kind))
        .map(|w| w.rows() as u64 * w.cols as u64)
        .sum()
}

/// Whether the input of a matmul comes from attention, an activation or a recurrence.
fn writes_residual(graph: &Graph, node: &Node) -> bool {
    let input = node.inputs.first().and_then(|x| producer(graph, *x));
    input.is_some_and(|op| match op {
        Op::Attention(_) | Op::Gated(_) | Op::Unary(_) | Op::Mul(_) => true,
        Op::Recurrent(_) | Op::ShortConv(_) | Op::GatedNorm(_) => true,
        Op::Linear(l) => l.activation().is_some(),
        _ => false,
    })
}

/// Returns the op that produces a value, skipping ops that only scale it.
fn producer(graph: &Graph, value: ValueId) -> Option<&Op> {
    let root = graph.root(value).0;
    let node = graph.nodes.iter().rev().find(|node| node.output == root)?;
    match &node.op {
        op if is_rescaling(op) => producer(graph, *node.inputs.first()?),
        op => Some(op),
    }
}

fn is_rescaling(op: &Op) -> bool {
    matches!(
        op,
        Op::Norm(_)
            | Op::NormPerGroup(_)
            | Op::QuantizeActivations(_)
            | Op::Scale(_)
            | Op::MulVector(_)
            | Op::PadHeads(_)
            | Op::ConcatHeads(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use serde_json::json;

    fn config(layers: usize, hidden: usize) -> serde_json::Value {
        json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "head_dim": 32,
            "intermediate_size": 2 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "max_position_embeddings": 64, "tie_word_embeddings": true})
    }

    #[test]
    fn matrices_reading_the_residual_stream_get_eight_bits() {
        let graph = arch::graph(&config(1, 64).into()).expect("a graph");
        let found: Vec<_> = eight_bit_tensors(&graph).iter().cloned().collect();
        let expected = [
            "mlp.gate_proj",
            "mlp.up_proj",
            "self_attn.k_proj",
            "self_attn.q_proj",
            "self_attn.v_proj",
        ];
        assert_eq!(
            found,
            expected.map(|name| format!("model.layers.0.{name}.weight"))
        );
    }

    #[test]
    fn large_models_have_no_eight_bit_matrices() {
        let graph = arch::graph(&config(2, 8192).into()).expect("a graph");
        assert!(matrix_weights(&graph) > MAX_MIXED_WEIGHTS);
        assert!(eight_bit_tensors(&graph).is_empty());
    }
}
