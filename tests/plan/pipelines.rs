//! Pipelines of a load and the bytes of their WGSL, at the shapes of published models with 4-bit
//! weights, on a GPU with all features but subgroup matrices.

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

/// A shape of www/bench/shapes.json; the pipelines that its first token needs, and the kilobytes of
/// their WGSL; the same of all that a load compiles.
const MODELS: [(&str, [usize; 2], [usize; 2]); 4] = [
    ("qwen3-0.6b", [10, 62], [18, 140]),
    ("gemma-3-1b", [11, 66], [20, 165]),
    ("qwen3.5-0.8b", [15, 93], [25, 184]),
    ("gpt-oss-20b", [15, 103], [26, 191]),
];

/// WGSL by the name of a kernel's variant.
type Shaders = BTreeMap<String, String>;

/// The kernels that the first token of a model needs, and all.
fn shaders(name: &str) -> (Shaders, Shaders) {
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
    let mut first = Shaders::new();
    let mut all = Shaders::new();
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
            let text = launch.variant.shader(true).expect("a shader").text;
            if matches!(rows, StepKind::Prefill(_)) {
                first.insert(launch.variant.to_string(), text.clone());
            }
            all.insert(launch.variant.to_string(), text);
        }
    }
    (first, all)
}

#[test]
fn a_load_compiles_few_kernels() {
    let size = |shaders: &Shaders| {
        let bytes: usize = shaders.values().map(String::len).sum();
        [shaders.len(), bytes.div_ceil(1000)]
    };
    let found = MODELS.map(|(name, ..)| {
        let (first, all) = shaders(name);
        for (variant, text) in &all {
            let when = if first.contains_key(variant) {
                "first"
            } else {
                "later"
            };
            println!("{:6} {when} {variant}", text.len());
        }
        (name, size(&first), size(&all))
    });
    assert_eq!(found, MODELS);
}
