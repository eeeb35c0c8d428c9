//! Dispatches of a greedy decode step, argmax included, at the shapes of published models: on a GPU
//! with all features, with WebGPU's minimum, and where dispatches are expensive.

use super::caps;
use jerboa::arch;
use jerboa::device::Caps;
use jerboa::exec::{LogitsPipeline, LogitsStage};
use jerboa::format::layout::AffineForm;
use jerboa::format::{Float, WeightLayout, quantize};
use jerboa::gpu::VariantOverride;
use jerboa::ir::Graph;
use jerboa::kernels::Launch;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::kv_splits::{SHORT_BATCH_CONTEXT, SHORT_CONTEXT};
use jerboa::kernels::registry::Kernel;
use jerboa::plan::{
    Fusions, Plan, PlanOptions, Slot, StepKind, fuse, lower, plan_states, plan_weights,
};
use jerboa::sample::SamplingParams;
use serde_json::Value;
use std::path::Path;

/// A sequence longer than one workgroup's part of it.
const CONTEXT: usize = 4096;

/// A shape of www/bench/shapes.json with its dispatches per token at 4 bits. With all features: up
/// to 512 tokens, and beyond; with WebGPU's minimum; where dispatches are expensive: up to 512
/// tokens, and beyond.
type Row = (&'static str, [usize; 5]);

/// Layers of five dispatches: q, k and v, attention, its projection, gate and up, down.
const DENSE: &[Row] = &[
    ("qwen2-0.5b", [124, 148, 148, 123, 147]),
    ("qwen2-1.5b", [144, 172, 172, 143, 171]),
    ("qwen3-0.6b", [144, 172, 172, 143, 171]),
    ("llama-3.2-1b", [84, 100, 100, 83, 99]),
    ("llama-3.1-8b", [196, 196, 198, 163, 195]),
    ("phi-3-mini", [196, 196, 196, 163, 195]),
];
const OTHERS: &[Row] = &[
    ("qwen3.5-0.8b", [154, 154, 154, 147, 153]),
    ("lfm2-1.2b", [84, 90, 90, 83, 89]),
    ("gemma-3-1b", [186, 190, 214, 185, 189]),
    ("gemma-4-e2b", [402, 402, 424, 378, 385]),
    ("bitnet-2b", [184, 184, 306, 153, 183]),
    ("gpt-oss-20b", [196, 196, 224, 195, 195]),
    ("qwen3-30b-a3b", [388, 388, 438, 339, 387]),
];
/// Maximum dispatches per token with all features.
const MOST: [(&str, usize); 4] = [
    ("phi-3-mini", 200),
    ("qwen3.5-0.8b", 220),
    ("gemma-3-1b", 240),
    ("lfm2-1.2b", 130),
];

pub(super) fn shape(name: &str) -> Value {
    let shapes: Value =
        serde_json::from_str(include_str!("../../www/bench/shapes.json")).expect("shapes.json");
    shapes[name]["config"].clone()
}

/// Dispatches of a decode step before position `capacity`, including argmax and the update of the
/// state.
fn dispatches(graph: &Graph, caps: &Caps, layout: WeightLayout, capacity: usize) -> usize {
    let step = step(graph, caps, layout, capacity, StepKind::Decode(1));
    let tail = LogitsPipeline::greedy()
        .plan(step.output_cols as u32, None, caps.dispatch_is_expensive())
        .expect("a tail");
    step.launches.len() + tail.launches.len()
}

/// The plan of a step of few rows or of a batch.
fn step(graph: &Graph, caps: &Caps, layout: WeightLayout, capacity: usize, rows: StepKind) -> Plan {
    let layout_of = |_: &str| layout;
    let graph = fuse::few_rows(
        fuse::common(graph.clone(), Fusions::ALL, &layout_of),
        Fusions::ALL,
    );
    let weights = plan_weights(&graph, &layout_of, caps.max_weight_buffer()).expect("weights");
    let kv = if caps.f16 { Kv::F16 } else { Kv::Packed };
    let states = plan_states(&graph, kv, capacity, 512.min(capacity));
    let weights = &weights;
    let states = &states[..];

    let options = PlanOptions {
        rows,
        caps,
        weights,
        kv,
        capacity,
        states,
        fuse_heads: true,
        fuse_norms: true,
        quantize_inputs: Default::default(),
    };
    lower(&graph, options).expect("a plan")
}

/// In batches without subgroup matrices, the launches before the matmuls quantize their inputs. A
/// launch of its own quantizes the embedding, and the input of logits where no workgroups share a
/// tile.
#[test]
fn batches_quantize_without_launches_of_their_own() {
    let caps = caps();
    let layout = WeightLayout::Affine {
        bits: 4,
        group: 64,
        form: AffineForm::Bias,
        scale: Float::F16,
    };
    for (name, sequences, apart) in [
        ("llama-3.1-8b", 32, 2),
        ("llama-3.1-8b", 8, 1),
        ("llama-3.1-8b", 4, 1),
        ("qwen2-0.5b", 8, 1),
        ("qwen3-0.6b", 32, 1),
    ] {
        let graph = arch::graph(&shape(name).into()).expect(name);
        for capacity in [SHORT_BATCH_CONTEXT as usize, CONTEXT] {
            let rows = StepKind::DecodeBatch(sequences);
            let plan = step(&graph, &caps, layout, capacity, rows);
            let of = |kernel| {
                let has = |launch: &&Launch<Slot>| launch.variant.kernel == kernel;
                plan.launches.iter().filter(has).count()
            };
            let case = format!("{name}, {sequences} sequences, {capacity} tokens");
            assert_eq!(of(Kernel::QuantizeRows), apart, "{case}\n{plan}");
        }
    }
}

#[test]
fn a_token_of_published_models_takes_few_dispatches() {
    let plain = Caps::default();
    let four = quantize::layout(4);

    let expensive = Caps {
        force: Some(VariantOverride {
            kernel: Kernel::AttentionDecode,
            name: "SINGLE_PASS",
            value: 1,
        }),
        ..caps()
    };
    let mut wrong = Vec::new();
    for (name, known) in [DENSE, OTHERS].concat() {
        let graph = arch::graph(&shape(name).into()).expect(name);
        let count = |caps: &Caps, capacity| dispatches(&graph, caps, four, capacity);
        let [near, far] = [SHORT_CONTEXT as usize, CONTEXT];
        let found = [
            count(&caps(), near),
            count(&caps(), far),
            count(&plain, far),
            count(&expensive, near),
            count(&expensive, far),
        ];
        println!("{name}: {found:?}");
        if found != known {
            wrong.push(format!("{name}: was {known:?}, is {found:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "dispatches of a token are others than here and in docs/benchmarks.md:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn published_models_meet_their_dispatch_counts() {
    let of = |name: &str| {
        [DENSE, OTHERS]
            .concat()
            .into_iter()
            .find(|row| row.0 == name)
            .expect(name)
            .1
    };
    for (name, most) in MOST {
        assert!(of(name)[1] <= most, "{name}");
        // 16-bit weights need as many matmuls, but these do not reduce KV splits.
        let graph = arch::graph(&shape(name).into()).expect(name);
        let apart = Caps {
            force: Some(VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "KV_SPLITS",
                value: 0,
            }),
            ..caps()
        };
        let of_four = dispatches(&graph, &apart, quantize::layout(4), CONTEXT);
        assert_eq!(
            dispatches(&graph, &caps(), WeightLayout::Dense(Float::F16), CONTEXT),
            of_four,
            "{name}"
        );
    }
    for (name, [.., near, _]) in DENSE {
        let layers = shape(name)["num_hidden_layers"].as_u64().expect("layers") as usize;
        // Besides the layers: the embedding, the logits and argmax.
        assert!(*near <= 5 * layers + 3, "{name}");
    }
}

/// Shapes equal the published configurations in tests/golden/configs.
#[test]
fn shapes_are_those_of_published_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/configs");
    for (name, published) in [
        ("phi-3-mini", "microsoft__Phi-3-mini-4k-instruct"),
        ("qwen3-0.6b", "Qwen__Qwen3-0.6B"),
        ("qwen3-30b-a3b", "Qwen__Qwen3-30B-A3B"),
        ("gpt-oss-20b", "openai__gpt-oss-20b"),
    ] {
        let text =
            std::fs::read_to_string(folder.join(published).join("config.json")).expect(published);
        let published: Value = serde_json::from_str(&text).expect("config.json");
        let sizes = shape(name)
            .as_object()
            .cloned()
            .expect("a configuration")
            .into_iter();
        let mut compared = 0;
        for (field, value) in sizes.filter(|(_, value)| value.is_number()) {
            let Some(other) = published.get(&field) else {
                continue;
            };
            assert_eq!(value.as_f64(), other.as_f64(), "{name}: {field}");
            compared += 1;
        }
        assert!(compared >= 9, "{name}: {compared} sizes");
    }
}

/// Dispatches from the logits to the next token, and where argmax takes none of its own.
#[test]
fn pipelines_take_the_dispatches_of_their_stages() {
    let greedy = SamplingParams::default();
    let sampled = SamplingParams {
        greedy: false,
        ..SamplingParams::default()
    };
    let penalized = |params: &SamplingParams| SamplingParams {
        repetition_penalty: 1.2,
        ..params.clone()
    };
    let cases = [
        (greedy.clone(), false, 2, 1),
        (penalized(&greedy), false, 3, 2),
        (sampled.clone(), false, 5, 5),
        (penalized(&sampled), false, 5, 5),
        (greedy.clone(), true, 3, 2),
        (penalized(&greedy), true, 3, 2),
        (sampled.clone(), true, 5, 5),
        (penalized(&sampled), true, 5, 5),
    ];
    for (params, masked, usual, expensive) in cases {
        let pipeline = LogitsPipeline::for_params(&params, 1000, masked).expect("on the GPU");
        let count = |is_expensive| {
            let plan = pipeline.plan(1000, None, is_expensive).expect("a plan");
            plan.launches.len()
        };
        assert_eq!(
            (count(false), count(true)),
            (usual, expensive),
            "{pipeline:?}"
        );
        assert_eq!(pipeline.host_input(), masked.then_some(Slot::TokenMask));
        assert_eq!(pipeline.has(LogitsStage::Mask), masked);
        assert_eq!(pipeline.stages().last(), Some(&LogitsStage::Advance));
    }
    assert_eq!(
        LogitsPipeline::for_params(&greedy, 1000, false),
        Some(LogitsPipeline::greedy())
    );
    // What only the CPU does.
    let rare = SamplingParams {
        typical_p: 0.5,
        ..sampled.clone()
    };
    assert_eq!(LogitsPipeline::for_params(&rare, 1000, true), None);
    assert_eq!(LogitsPipeline::for_params(&sampled, 1 << 21, true), None);
}
