//! Every choice of the planner gives the reference's answer: each tunable constant, each disabled
//! fusion, each missing device feature.

use super::{exact, greedy, halves, start, stepwise, with_kv};
use jerboa::exec::{RunOptions, Session};
use jerboa::gpu::{Backend, DeviceOptions, VariantOverride};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::{Kernel, tunable_constants};
use jerboa::plan::{Fusions, PlanOptions, StepKind, fuse, lower};
use jerboa_tests::relative_l2;
use pollster::block_on;

/// Biases, windows, norms of heads, quantized weights: together they cover every path of the dense
/// families.
const MODELS: [&str; 4] = [
    "models/llama_bias",
    "models/mistral",
    "models/qwen3",
    "quant/qwen3_gptq",
];

/// Logits of a prefill and of single tokens, and greedy ids.
pub(super) fn check(
    what: &str,
    name: &str,
    device: &DeviceOptions,
    options: RunOptions,
    limit: f64,
) -> Session {
    let (mut model, golden) = start(name, device, options);
    let ids = golden.ids("input_ids");
    let expected = golden.floats("logits");

    let found =
        block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}, {what}: {e}"));
    let error = relative_l2(&found, &expected);
    assert!(error < limit, "{name}, {what}: prefill {error:e}");
    let error = relative_l2(&stepwise(&mut model, &ids), &expected);
    assert!(error < limit, "{name}, {what}: token by token {error:e}");
    let reference = golden.ids("greedy");
    assert_eq!(
        greedy(&mut model, &ids, reference.len()),
        reference,
        "{name}, {what}"
    );
    model
}

/// Whether any kernel of prefill or decode has this constant.
pub(super) fn takes(model: &Session, force: VariantOverride) -> bool {
    [StepKind::Decode(1), StepKind::Prefill(64)]
        .into_iter()
        .any(|rows| {
            let few = matches!(rows, StepKind::Decode(_));
            let graph = if few {
                fuse::few_rows(model.model().graph().clone(), Fusions::ALL)
            } else {
                model.model().graph().clone()
            };
            let caps = model.gpu().caps();
            let weights = model.model().weights();

            let options = PlanOptions {
                rows,
                caps,
                weights,
                kv: model.model().kv(),
                capacity: model.capacity(),
                states: model.model().states(),
                fuse_heads: true,
                fuse_norms: true,
                quantize_inputs: Default::default(),
            };
            let plan = lower(&graph, options).expect("a plan");
            let has = |v: &jerboa::kernels::registry::Variant| {
                v.kernel == force.kernel && v.constant(force.name) == force.value
            };
            plan.launches.iter().any(|l| has(&l.variant))
        })
}

#[test]
fn each_tunable_constant() {
    let mut forced = 0;
    for kernel in Kernel::all() {
        for (name, values) in tunable_constants(kernel) {
            for value in values {
                let force = VariantOverride {
                    kernel,
                    name,
                    value: *value,
                };
                let device = DeviceOptions {
                    variant_override: Some(force),
                    ..exact()
                };
                let what = format!("{} {name} = {value}", kernel.name());
                // Two of the models at a time; all four over the whole loop.
                let models = [MODELS[forced % 3], MODELS[3]];
                // Inputs of 8 bits.
                let limit = if kernel == Kernel::GemmPacked {
                    2e-2
                } else {
                    2e-4
                };
                let taken = models.map(|m| {
                    let model = check(&what, m, &device, with_kv(Kv::F32), limit);
                    // f32 tiles of 256 rows need 64 KB of workgroup memory; tests/kernels covers
                    // f16 tiles.
                    let large = kernel == Kernel::GemmMatrix && *value == 256;
                    (large && model.gpu().caps().max_workgroup_storage < 65_536)
                        || takes(&model, force)
                });
                // The first of the two has no blocks of weights.
                let blocks = matches!(kernel, Kernel::GemvBlocks | Kernel::GemmPacked);
                let both = blocks || taken[0];
                assert!(
                    taken[1] && both,
                    "{what} is declared as a choice, and nothing takes it"
                );
                forced += 1;
            }
        }
    }
    assert!(forced > 10);
}

/// Where dispatches are expensive, attention and argmax at low positions take one dispatch each. On
/// a large GPU the next matmul reduces attention's KV splits there; after position 512 attention
/// reduces them itself.
#[test]
fn short_context_plans_give_the_same_tokens() {
    let expensive = VariantOverride {
        kernel: Kernel::AttentionDecode,
        name: "SINGLE_PASS",
        value: 1,
    };
    let large = VariantOverride {
        kernel: Kernel::GemvBlocks,
        name: "KV_SPLITS",
        value: 16,
    };
    let small = VariantOverride { value: 0, ..large };
    let found = [small, large, expensive].map(|force| {
        let options = RunOptions {
            max_context: Some(600),
            ..with_kv(Kv::F32)
        };
        let (mut model, _) = start(
            "quant/qwen3_gptq",
            &DeviceOptions {
                variant_override: Some(force),
                ..exact()
            },
            options,
        );
        let prompt: Vec<u32> = (0..500).map(|i| i * 7 % 90).collect();
        (greedy(&mut model, &prompt, 40), model.model().dispatches())
    });
    let layers = 2;
    assert!(found.iter().all(|(ids, _)| *ids == found[0].0));
    assert_eq!(found[0].1 - found[1].1, layers, "a join less in each layer");
    assert_eq!(
        found[0].1 - found[2].1,
        layers + 1,
        "and one of the two that pick"
    );
}

#[test]
fn each_fusion_left_out_and_each_alone() {
    let all = Fusions::ALL;
    for (what, without, alone) in [
        (
            "siblings",
            Fusions {
                siblings: false,
                ..all
            },
            Fusions {
                siblings: true,
                ..Fusions::NONE
            },
        ),
        (
            "gated",
            Fusions {
                gated: false,
                ..all
            },
            Fusions {
                siblings: true,
                gated: true,
                ..Fusions::NONE
            },
        ),
        (
            "residual",
            Fusions {
                residual: false,
                ..all
            },
            Fusions {
                residual: true,
                ..Fusions::NONE
            },
        ),
        (
            "heads",
            Fusions {
                heads: false,
                ..all
            },
            Fusions {
                siblings: true,
                heads: true,
                ..Fusions::NONE
            },
        ),
        (
            "norm",
            Fusions { norm: false, ..all },
            Fusions {
                norm: true,
                ..Fusions::NONE
            },
        ),
    ] {
        for name in MODELS {
            let options = RunOptions {
                fusions: without,
                ..with_kv(Kv::F32)
            };
            check(&format!("without {what}"), name, &exact(), options, 2e-4);
        }
        check(
            &format!("{what} alone"),
            MODELS[2],
            &exact(),
            RunOptions {
                fusions: alone,
                ..with_kv(Kv::F32)
            },
            2e-4,
        );
    }
}

#[test]
fn ipad_limits_are_enough() {
    let device = DeviceOptions::min_limits();
    for name in [
        "models/llama_bias",
        "models/gemma3",
        "models/lfm2",
        "quant/qwen3_gptq",
    ] {
        let model = check(
            "what every device has",
            name,
            &device,
            with_kv(Kv::Packed),
            1e-2,
        );
        let caps = model.gpu().caps();
        let limits = [
            caps.max_buffer_size,
            caps.max_binding_size,
            u64::from(caps.max_workgroup_storage),
        ];
        assert_eq!(
            limits,
            [256 << 20, 128 << 20, 16 << 10],
            "the device has more"
        );
        assert!(!caps.f16 && !caps.subgroups && caps.max_invocations == 256);
    }
}

#[test]
fn each_feature_missing_and_each_cache() {
    let full = DeviceOptions::default();
    let cases = [
        (
            "no subgroups",
            DeviceOptions {
                subgroups: false,
                ..exact()
            },
            Kv::F32,
            2e-4,
        ),
        (
            "no subgroups, packed",
            DeviceOptions {
                subgroups: false,
                ..exact()
            },
            Kv::Packed,
            1e-2,
        ),
        ("packed", exact(), Kv::Packed, 1e-2),
        ("f16, f32 cache", full.clone(), Kv::F32, 1e-2),
        ("f16, packed", full.clone(), Kv::Packed, 1e-2),
        ("f16", full.clone(), halves(), 1e-2),
        (
            "f16, no subgroups",
            DeviceOptions {
                subgroups: false,
                ..full
            },
            halves(),
            1e-2,
        ),
    ];
    for (index, (what, device, kv, limit)) in cases.into_iter().enumerate() {
        for name in [MODELS[index % 3], MODELS[3]] {
            check(what, name, &device, with_kv(kv), limit);
        }
    }
}
