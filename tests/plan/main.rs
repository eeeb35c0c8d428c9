//! Graphs and plans without a device: the plans of each family, and unsupported operations, which
//! lowering refuses.

mod breaks;
mod dispatches;
mod goldens;
mod pipelines;
mod refusals;
mod shapes;
mod states;
mod table;

use jerboa::device::Caps;
use jerboa::exec::{Precision, PrecisionOptions};
use jerboa::format::{WeightLayout, quantize};
use jerboa::ir::{Embed, Graph, GraphBuilder, IdSource, WeightKind};
use jerboa::kernels::attention::Kv;
use jerboa::plan::{Plan, PlanOptions, StepKind, lower, plan_states, plan_weights};
use serde_json::json;

#[test]
fn embedding_tables_are_classified_by_use() {
    let mut b = GraphBuilder::new("test");
    let table = b.weight("wte.weight", 100, 64, WeightKind::Table);
    let x = b.node(
        "x",
        Embed {
            table,
            scale: 1.0,
            ids: IdSource::Tokens,
            soft: None,
        },
        &[],
        64,
    );
    let x = b.linear("patch_embed.proj", x, 64, false);
    let graph = b.finish(x, None).expect("a graph");
    assert_eq!(
        ["wte.weight", "patch_embed.proj.weight"].map(|n| graph.kind_of(n)),
        [WeightKind::Table, WeightKind::Matrix]
    );
    let asked = PrecisionOptions {
        precision: Precision::Q4,
        ..PrecisionOptions::default()
    };
    let kinds = [WeightKind::Table, WeightKind::Matrix, WeightKind::Router];
    assert_eq!(
        kinds.map(|kind| asked.precision_of(kind)),
        [Precision::Q8, Precision::Q4, Precision::Auto]
    );
    let untied = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": false,
    });
    let graph = jerboa::arch::graph(&untied.into()).expect("a graph");
    let mut names: Vec<&str> = graph
        .weights
        .iter()
        .flat_map(|w| w.parts.iter().map(|part| part.0.as_str()))
        .collect();
    names.retain(|name| graph.kind_of(name) == WeightKind::Table);
    assert_eq!(names, ["model.embed_tokens.weight", "lm_head.weight"]);
}

/// A typical device: all features, NVIDIA's choices.
fn caps() -> Caps {
    Caps {
        vendor: "nvidia".into(),
        f16: true,
        subgroups: true,
        subgroup_size: (32, 32),
        max_buffer_size: 4 << 30,
        max_binding_size: 2 << 30,
        max_workgroup_storage: 32768,
        max_invocations: 1024,
        packed_dot: true,
        ..Caps::default()
    }
}

/// 4-bit matrices.
fn layout_of(_: &str) -> WeightLayout {
    quantize::layout(4)
}

/// Plans a graph whose passes have run.
fn planned(graph: &Graph, rows: StepKind) -> jerboa::Result<Plan> {
    planned_on(&caps(), graph, rows)
}

fn planned_on(caps: &Caps, graph: &Graph, rows: StepKind) -> jerboa::Result<Plan> {
    let weights = plan_weights(graph, &layout_of, caps.max_weight_buffer())?;
    let kv = Kv::F16;
    let capacity = 256;

    let states = plan_states(graph, kv, capacity, 64);
    let options = PlanOptions {
        rows,
        caps,
        weights: &weights,
        kv,
        capacity,
        states: &states,
        fuse_heads: true,
        fuse_norms: true,
        quantize_inputs: Default::default(),
    };
    lower(graph, options)
}
