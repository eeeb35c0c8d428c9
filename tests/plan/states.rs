//! Bytes of KV caches and states of published models.

use super::dispatches::shape;
use jerboa::arch;
use jerboa::ir::{Graph, StateSpec};
use jerboa::kernels::attention::Kv;
use jerboa::plan::{StatePlan, plan_states};

/// Length of the sequences.
const CONTEXT: usize = 32_768;

fn bytes(graph: &Graph) -> u64 {
    plan_states(graph, Kv::F16, CONTEXT, 512)
        .iter()
        .map(StatePlan::bytes)
        .sum()
}

#[test]
fn ring_caches_quarter_the_memory_of_gemma_3_1b_at_32k_tokens() {
    let graph = arch::graph(&shape("gemma-3-1b").into()).expect("a graph");
    let windows = graph
        .states
        .iter()
        .filter(|state| matches!(state, StateSpec::Kv { window: 512, .. }))
        .count();
    assert_eq!((graph.states.len(), windows), (26, 22));
    let mut full = graph.clone();
    for state in &mut full.states {
        if let StateSpec::Kv { window, .. } = state {
            *window = 0;
        }
    }
    // 26 layers, keys and values of one head of 256 columns, two bytes each.
    assert_eq!(bytes(&full), 26 * 2 * 256 * 2 * CONTEXT as u64);
    assert!(
        bytes(&graph) * 4 < bytes(&full),
        "{} of {}",
        bytes(&graph),
        bytes(&full)
    );
    let told: u64 = plan_states(&graph, Kv::F16, CONTEXT, 512)
        .iter()
        .map(|state| state.full_bytes(CONTEXT))
        .sum();
    assert_eq!(told, bytes(&full));
}

/// Reference: transformers' `modeling_qwen3_moe.py` has one mask for all layers.
#[test]
fn qwen3_moe_has_a_window_in_every_layer_or_in_none() {
    let windows = |enabled: bool| {
        let mut config = shape("qwen3-30b-a3b");
        config["use_sliding_window"] = enabled.into();
        config["sliding_window"] = 4096.into();
        config["max_window_layers"] = 40.into();
        let graph = arch::graph(&config.into()).expect("a graph");
        let windows = graph.states.iter().map(|state| match state {
            StateSpec::Kv { window, .. } => *window,
            _ => panic!("{state:?}"),
        });
        windows.collect::<Vec<_>>()
    };
    assert_eq!(windows(true), vec![4096; 48]);
    assert_eq!(windows(false), vec![0; 48]);
}
