//! Kernel tuning: its effect on plans, unchanged results, when it runs, and its cache. Measured
//! values are not checked, since they mean nothing on a software adapter. All candidates need
//! subgroups: with WebGPU's minimum there is nothing to choose.

use super::variants::{check, takes};
use super::{exact, exact_as_gpu, greedy, with_kv};
use jerboa::exec::{
    ModelFiles, RunOptions, Session, TuneMode, TuningCase, TuningSource, TuningTarget,
    time_candidates,
};
use jerboa::format::{WeightLayout, quantize};
use jerboa::gpu::{Backend, Caps, DeviceOptions, VariantOverride};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::kernels::registry::Kernel;
use jerboa::kernels::tuning_table::{GemvVariant, TuningTable};
use jerboa::plan::{Fusions, PlanOptions, StepKind, fuse, lower, plan_states, plan_weights};
use jerboa_tests::golden::{Golden, golden};
use jerboa_tests::{gpu, least, open, skip};
use pollster::block_on;
use serde_json::json;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A model whose matrices have 4-bit blocks and whose table is f32.
const MODEL: &str = "quant/qwen3_gptq";

/// Loads [`MODEL`] with the tuning cache in a folder.
fn load(device: &DeviceOptions, tune: TuneMode, cache: &Path) -> Session {
    block_on(async {
        let model = ModelRef::parse(&golden(MODEL).to_string_lossy())?;
        let hub = HubOptions {
            cache_dir: Some(cache.into()),
            ..HubOptions::default()
        };
        let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent()).await?;
        let files = ModelFiles::open(&source, None).await?;
        Session::load_files(
            open(device),
            &source,
            files,
            RunOptions {
                tune,
                ..with_kv(Kv::F32)
            },
        )
        .await
    })
    .expect("the model")
}

/// An empty folder for this test run.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("jerboa-tuning-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Runs in a new thread, which has no tuning results in memory.
fn afresh<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().expect("the thread"))
}

#[test]
fn tuning_entries_select_gemm_tilings() {
    if least() {
        return skip("JERBOA_LEAST leaves nothing to tune");
    }
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 1, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 4096,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "tie_word_embeddings": true,
    });
    let graph = jerboa::arch::graph(&config.into()).expect("a graph");
    let graph = fuse::few_rows(graph, Fusions::NONE);
    let states = plan_states(&graph, Kv::F32, 64, 64);
    for layout in [quantize::layout(4), quantize::layout(8), WeightLayout::Q4K] {
        let weights = plan_weights(&graph, &|_| layout, u64::MAX).expect("weights");
        let planned = |tuned: Option<TuningTable>| {
            let tuned = tuned.map_or_else(OnceCell::new, OnceCell::from);
            let vendor = "amd".into();
            let subgroup_size = (32, 32);

            let caps = &Caps {
                vendor,
                subgroup_size,
                tuned,
                ..gpu().caps().clone()
            };
            let rows = StepKind::Decode(1);
            let weights = &weights;

            let options = PlanOptions {
                rows,
                caps,
                weights,
                kv: Kv::F32,
                capacity: 64,
                states: &states,
                fuse_heads: false,
                fuse_norms: true,
                quantize_inputs: Default::default(),
            };
            let plan = lower(&graph, options).expect("a plan");
            let blocks = plan
                .launches
                .iter()
                .filter(|l| l.variant.kernel == Kernel::GemvBlocks);
            blocks
                .map(|l| l.variant.constant("DOT"))
                .collect::<BTreeSet<_>>()
        };
        let with = |pick| planned(Some(TuningTable::default().with_gemv(layout, pick)));
        assert_eq!(with(GemvVariant::Rows), BTreeSet::new(), "{layout}");
        assert_eq!(with(GemvVariant::Blocks), BTreeSet::from([0]), "{layout}");
        assert_eq!(
            with(GemvVariant::PackedBlocks),
            BTreeSet::from([1]),
            "{layout}"
        );
        // Without an entry, the vendor's table decides.
        assert_eq!(planned(None), BTreeSet::from([1]), "{layout}");
        assert_eq!(
            planned(Some(
                TuningTable::default().with_gemv(WeightLayout::Q6K, GemvVariant::Rows)
            )),
            BTreeSet::from([1]),
            "{layout}"
        );
    }
}

#[test]
fn every_tuning_entry_gives_the_reference_logits() {
    if least() {
        return skip("JERBOA_LEAST leaves nothing to tune");
    }
    let model = load(&exact(), TuneMode::Off, &folder("off"));
    assert_eq!(
        (
            model.model().tuning.origin,
            model.model().tuning.choices.len()
        ),
        (TuningSource::Off, 0)
    );
    let four = |layout: &WeightLayout| matches!(layout, WeightLayout::Affine { bits: 4, .. });
    let layout = model
        .model()
        .weights()
        .values()
        .map(|w| w.layout)
        .find(four)
        .expect("four bits");
    for pick in GemvVariant::ALL {
        let tuned = Some(TuningTable::default().with_gemv(layout, pick));
        let device = DeviceOptions {
            tuned: tuned.clone(),
            ..exact()
        };
        let model = check(&format!("{pick:?}"), MODEL, &device, with_kv(Kv::F32), 2e-4);
        assert_eq!(model.model().tuning.origin, TuningSource::Forced);
        if pick == GemvVariant::Rows {
            continue;
        }
        // These matrices are too small for whole blocks unless a variant is forced; the table still
        // chooses the matmul.
        let force = Some(VariantOverride {
            kernel: Kernel::GemvBlocks,
            name: "ROW_GROUPS",
            value: 1,
        });
        let device = DeviceOptions {
            tuned,
            variant_override: force,
            ..exact()
        };
        let model = check(
            &format!("{pick:?}, blocks"),
            MODEL,
            &device,
            with_kv(Kv::F32),
            2e-4,
        );
        for (value, form) in [(0, GemvVariant::Blocks), (1, GemvVariant::PackedBlocks)] {
            let dot = VariantOverride {
                kernel: Kernel::GemvBlocks,
                name: "DOT",
                value,
            };
            assert_eq!(takes(&model, dot), pick == form, "{pick:?}, DOT = {value}");
        }
    }
}

#[test]
fn measured_tiles_and_heads_give_the_reference_logits() {
    let numbers = [
        (Kernel::Gemm, "BM", 128),
        (Kernel::AttentionDecode, "HEADS", 1),
        (Kernel::AttentionDecode, "TILE", 64),
    ];
    let table = numbers
        .iter()
        .fold(TuningTable::default(), |table, (kernel, name, value)| {
            table.with_constant(*kernel, name, *value)
        });
    // No tile is shared.
    let tuned = Some(table.with_constant(Kernel::Gemm, "FILL", 1));
    let model = check(
        "a table of numbers",
        MODEL,
        &DeviceOptions {
            tuned,
            ..exact_as_gpu()
        },
        with_kv(Kv::F32),
        2e-4,
    );
    for (kernel, name, value) in numbers {
        assert!(
            takes(
                &model,
                VariantOverride {
                    kernel,
                    name,
                    value
                }
            ),
            "{name} = {value}"
        );
    }
}

#[test]
fn tiles_and_heads_are_measured() {
    let gpu = open(&DeviceOptions {
        gpu_kernels: true,
        ..DeviceOptions::default()
    });
    let caps = gpu.caps();
    let whats = [
        TuningTarget::Gemm(quantize::layout(4)),
        TuningTarget::DecodeAttention,
    ];
    let contests = whats.map(|what| TuningCase::of(caps, what).expect("several forms"));
    let (times, bytes) = block_on(time_candidates(&gpu, &contests.each_ref())).expect("times");
    assert!(bytes > 0);
    for (contest, times) in contests.iter().zip(&times) {
        assert!(contest.variants.len() > 2, "{contest:?}");
        // On a software adapter every variant runs the minimum number of times, however long it
        // takes; elsewhere as often as time allows.
        assert!(times.rounds.len() == contest.variants.len(), "{times:?}");
        assert!(
            !caps.software || times.rounds.iter().all(|us| us.len() > 1),
            "{times:?}"
        );
    }
}

#[test]
fn software_adapters_are_tuned_on_request_only() {
    if least() {
        return skip("JERBOA_LEAST leaves nothing to tune");
    }
    if !gpu().caps().software {
        return skip("needs a software adapter");
    }
    let cache = folder("software");
    let model = afresh(|| {
        let model = load(&exact(), TuneMode::Auto, &cache);
        (
            model.model().tuning.clone(),
            model.gpu().caps().tuned.get().cloned(),
        )
    });
    assert_eq!(
        (model.0.origin, model.0.choices.len()),
        (TuningSource::Software, 0)
    );
    assert_eq!(model.1, Some(TuningTable::default()));
    assert!(
        !cache.exists(),
        "nothing was found out, and nothing is remembered"
    );
}

#[test]
fn tuning_results_are_cached_until_damaged() {
    if least() {
        return skip("JERBOA_LEAST leaves nothing to tune");
    }
    let cache = folder("remembered");
    let auto = || {
        afresh(|| {
            load(&exact(), TuneMode::Auto, &cache)
                .model()
                .tuning
                .clone()
        })
    };
    let (tuning, found, expected) = afresh(|| {
        let mut model = load(&exact(), TuneMode::Force, &cache);
        assert_eq!(model.model().tuning.origin, TuningSource::Measured);
        let table = model.gpu().caps().tuned.get().cloned().unwrap_or_default();
        for choice in &model.model().tuning.choices {
            let layout = model
                .model()
                .weights()
                .values()
                .map(|w| w.layout)
                .find(|l| l.name() == choice.layout);
            assert_eq!(
                layout
                    .and_then(|layout| table.gemv(layout))
                    .map(GemvVariant::name),
                Some(choice.chosen)
            );
        }
        let golden = Golden::read(&golden(MODEL).join("golden.safetensors"));
        let expected = golden.ids("greedy");
        let found = greedy(&mut model, &golden.ids("input_ids"), expected.len());
        // The same thread has the results in memory.
        let again = load(&exact(), TuneMode::Auto, &folder("elsewhere"))
            .model()
            .tuning
            .clone();
        assert_eq!(
            (again.origin, &again.choices),
            (TuningSource::Cached, &model.model().tuning.choices)
        );
        (model.model().tuning.clone(), found, expected)
    });
    assert_eq!(found, expected);
    assert!(!tuning.choices.is_empty() && tuning.dispatch_us.is_some_and(f64::is_finite));
    let next = auto();
    assert_eq!(
        (next.origin, next.choices),
        (TuningSource::Cached, tuning.choices.clone())
    );
    assert_eq!(next.dispatch_us, tuning.dispatch_us);
    // Another device by its kernels: one variant each, and an unknown dispatch cost.
    let other = afresh(|| {
        load(
            &DeviceOptions {
                subgroups: false,
                ..exact()
            },
            TuneMode::Auto,
            &cache,
        )
        .model()
        .tuning
        .clone()
    });
    let expected = if gpu().caps().software {
        TuningSource::Single
    } else {
        TuningSource::Measured
    };
    assert_eq!((other.origin, other.choices.len()), (expected, 0));
    let file = cache.join("tuning").join("records");
    let text = std::fs::read_to_string(&file).expect("the records");
    for choice in &tuning.choices {
        assert!(text.contains(&choice.layout), "{} is stored", choice.layout);
    }
    std::fs::write(&file, &text[..text.len() / 2]).expect("half of it");
    let damaged = auto();
    let expected = if gpu().caps().software {
        TuningSource::Software
    } else {
        TuningSource::Measured
    };
    assert_eq!(damaged.origin, expected);
    let _ = std::fs::remove_dir_all(&cache);
}
