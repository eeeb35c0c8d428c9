//! Pipelines that a load compiles before its first token, and the bytes of their WGSL, at the shapes of
//! published models with 4-bit weights, on a GPU with all features but subgroup matrices.

use super::caps;
use super::dispatches::shape;
use jerboa::arch;
use jerboa::exec::LogitsPipeline;
use jerboa::format::quantize;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::kv_splits::SHORT_CONTEXT;
use jerboa::plan::{Fusions, PlanOptions, StepKind, fuse, lower, plan_states, plan_weights};
use std::collections::BTreeMap;

const CONTEXT: usize = 4096;
const CHUNK: usize = 1024;

/// A shape of www/bench/shapes.json, its pipelines, and the kilobytes of their WGSL.
const MODELS: [(&str, usize, usize); 4] = [
    ("qwen3-0.6b", 22, 159),
    ("gemma-3-1b", 23, 182),
    ("qwen3.5-0.8b", 30, 205),
    ("gpt-oss-20b", 28, 194),
];

/// WGSL of the kernels of a model by the name of its variant.
fn shaders(name: &str) -> BTreeMap<String, String> {
    let caps = caps();
    let layout_of = |_: &str| quantize::layout(4);
    let graph = arch::graph(&shape(name).into()).expect("a graph");
    let prompt = fuse::common(graph, Fusions::ALL, &layout_of);
    let token = fuse::few_rows(prompt.clone(), Fusions::ALL);
    let steps = [
        (&prompt, StepKind::Prefill(CHUNK), CONTEXT),
        (&token, StepKind::Decode(1), CONTEXT),
        (&token, StepKind::Decode(1), SHORT_CONTEXT as usize),
    ];
    let mut shaders = BTreeMap::new();
    for (graph, rows, capacity) in steps {
        let weights = plan_weights(graph, &layout_of, caps.max_weight_buffer()).expect("weights");
        let options = PlanOptions {
            rows,
            caps: &caps,
            weights: &weights,
            kv: Kv::F16,
            capacity,
            states: &plan_states(graph, Kv::F16, CONTEXT, CHUNK),
            fuse_heads: true,
            fuse_norms: true,
            quantize_inputs: Default::default(),
        };
        let plan = lower(graph, options).expect("a plan");
        let tail = LogitsPipeline::greedy()
            .plan(plan.output_cols as u32, None, false)
            .expect("a tail");
        for launch in plan.launches.iter().chain(&tail.launches) {
            let text = || launch.variant.shader(true).expect("a shader").text;
            shaders
                .entry(launch.variant.to_string())
                .or_insert_with(text);
        }
    }
    shaders
}

#[test]
fn a_load_compiles_few_kernels() {
    let found = MODELS.map(|(name, ..)| {
        let shaders = shaders(name);
        let bytes: usize = shaders.values().map(String::len).sum();
        for (variant, text) in &shaders {
            println!("{:6} {variant}", text.len());
        }
        (name, shaders.len(), bytes.div_ceil(1000))
    });
    assert_eq!(found, MODELS);
}
