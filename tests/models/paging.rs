//! Offloaded experts and embedding rows read on demand: logits and ids equal those of the fully
//! loaded model.

use super::{exact, start, with_kv};
use jerboa::exec::{
    DecodeLoop, DecodeParams, ExpertBudget, HEADROOM_BYTES, PagingStats, Precision,
    PrecisionOptions, RunOptions, Session,
};
use jerboa::gpu::Backend;
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa::kernels::matmul::QuantizeInputs;
use jerboa::sample::{Sampler, SamplingParams, TokenConstraint};
use jerboa_tests::golden::{Golden, go_on, greedy};
use jerboa_tests::relative_l2;
use pollster::block_on;

fn load(name: &str, experts: Option<ExpertBudget>, chunk: usize) -> (Session, Golden) {
    start(
        name,
        &exact(),
        RunOptions {
            experts,
            prefill_chunk: chunk,
            ..with_kv(Kv::F32)
        },
    )
}

fn paging(session: &Session) -> PagingStats {
    session
        .model()
        .paging()
        .expect("experts come from the files")
}

fn logits(session: &Session) -> Vec<f32> {
    block_on(session.logits()).expect("logits")
}

/// Two experts of each layer, or as many as a token selects: a prompt is processed in parts, tokens
/// one at a time.
#[test]
fn two_resident_experts_give_the_reference_logits() {
    let latest = [
        "ernie4_5_moe",
        "gemma4_moe",
        "granite_moe_shared",
        "nemotron_h_moe",
    ];
    for name in [
        "mixtral",
        "qwen3_moe",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "deepseek_v3",
    ]
    .into_iter()
    .chain(latest)
    {
        let (mut model, golden) = load(name, Some(ExpertBudget::PerLayer(2)), 512);
        let ids = golden.ids("input_ids");
        let expected = golden.floats("logits");

        let found = block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &expected);
        assert!(error < 2e-4, "{name}: {error:e}");
        let before = paging(&model);
        assert!(
            before.requested > 0 && before.hits < before.requested && before.bytes > 0,
            "{name}: {before:?}"
        );
        assert_eq!(greedy(&mut model, &ids, 32), golden.ids("greedy"), "{name}");
        let after = paging(&model);
        assert!(
            after.prefetch_hits <= after.prefetched && after.hits <= after.requested,
            "{name}: {after:?}"
        );
    }
}

/// Prompts whose matmuls of experts read inputs of 8 bits: close to 16 bits, and the same with two
/// resident experts, whose launches run several times.
#[test]
fn prompts_with_inputs_of_8_bits() {
    for name in ["mixtral", "gpt_oss_mxfp4", "deepseek_v3"] {
        let run = |activations, experts| {
            let mut options = RunOptions {
                experts,
                ..with_kv(Kv::F32)
            };
            options.overrides.precision = Precision::Q8;
            options.overrides.activations = activations;
            let (mut model, golden) = start(name, &exact(), options);
            let ids = golden.ids("input_ids");
            block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        // The median of all rows: in a few a router selects another of two experts with close scores.
        let error_of = |found: &[f32], expected: &[f32]| {
            let rows = found.chunks(256).zip(expected.chunks(256));
            let mut errors: Vec<f64> = rows.map(|(a, b)| relative_l2(a, b)).collect();
            errors.sort_by(f64::total_cmp);
            errors[errors.len() / 2]
        };
        let expected = run(QuantizeInputs::Never, None);
        let found = run(QuantizeInputs::Always, None);
        let error = error_of(&found, &expected);
        assert!(error > 1e-4 && error < 5e-2, "{name}: {error:e}");
        let paged = run(QuantizeInputs::Always, Some(ExpertBudget::PerLayer(2)));
        assert_eq!(paged, found, "{name}");
    }
}

/// A byte budget below the model's size determines the number of experts.
#[test]
fn experts_fit_a_memory_budget() {
    let (whole, golden) = load("mixtral", None, 512);
    assert!(whole.model().paging().is_none());
    let all = whole.model().bytes().weights;
    let experts = |session: &Session| {
        let stacks = session
            .model()
            .weights()
            .values()
            .filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
        stacks.map(|w| w.bytes()).sum::<u64>()
    };

    let every = experts(&whole);
    let (mut half, _) = load("mixtral", Some(ExpertBudget::MaxBytes(every / 2)), 512);
    assert_eq!(experts(&half) * 2, every);
    assert_eq!(half.model().bytes().weights, all - every / 2);
    assert_eq!(half.model().parameters(), whole.model().parameters());
    assert_eq!(half.bytes_per_token(0), whole.bytes_per_token(0));
    assert!(
        half.model().dispatches() > whole.model().dispatches(),
        "predictions of the next layer's experts"
    );
    // Parallel, trimmed and forked sessions share the model's slots.
    let ids = golden.ids("input_ids");
    let expected = golden.ids("greedy");
    block_on(half.prefill(&ids, 0)).expect("prefill");
    let mut fork = half.fork().expect("a fork");
    let other: Vec<u32> = ids.iter().rev().copied().collect();
    greedy(&mut half, &other, 8);
    assert_eq!(go_on(&mut fork, 32), expected);
    assert_eq!(greedy(&mut half, &ids, 32), expected);
    // With a slot for every expert, none is fetched.
    let (model, _) = load("mixtral", Some(ExpertBudget::PerLayer(512)), 512);
    assert!(
        model.model().paging().is_none()
            && model.model().dispatches() == whole.model().dispatches()
    );
}

#[test]
fn experts_are_paged_when_memory_is_short() {
    let overrides = PrecisionOptions {
        precision: Precision::F32,
        ..with_kv(Kv::F32).overrides
    };
    let run = |memory| {
        start(
            "mixtral",
            &exact(),
            RunOptions {
                memory,
                overrides,
                prefill_chunk: 64,
                ..with_kv(Kv::F32)
            },
        )
    };
    let (whole, golden) = run(None);
    let stacks = whole
        .model()
        .weights()
        .values()
        .filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
    // A budget for two of the four experts, but not for three.
    let weights = whole.model().bytes().weights - stacks.map(|w| w.bytes()).sum::<u64>() / 3;
    let (mut model, _) = run(Some(
        weights + whole.model().state_bytes(256) + HEADROOM_BYTES,
    ));
    assert!(
        model.model().bytes().weights <= weights
            && model
                .model()
                .notes
                .iter()
                .any(|note| note.contains("experts")),
        "{:?}",
        model.model().notes
    );
    assert_eq!(
        greedy(&mut model, &golden.ids("input_ids"), 32),
        golden.ids("greedy")
    );
}

/// Gemma's per-layer embeddings: rows are read from the file, for prompts and for single tokens.
#[test]
fn table_rows_are_loaded_on_demand() {
    for name in ["gemma3n", "gemma4"] {
        let run = |table_rows, chunk| {
            start(
                name,
                &exact(),
                RunOptions {
                    page_embeddings: table_rows,
                    prefill_chunk: chunk,
                    ..with_kv(Kv::F32)
                },
            )
        };
        let (mut whole, golden) = run(Some(false), 8);
        let ids = golden.ids("input_ids");
        block_on(whole.prefill(&ids, 0)).expect("prefill");
        let expected = logits(&whole);
        let (mut model, _) = run(Some(true), 8);
        assert!(
            model.model().bytes().weights < whole.model().bytes().weights
                && model.model().is_paged(),
            "{name}"
        );
        block_on(model.prefill(&ids, 0)).expect("prefill");
        assert_eq!(logits(&model), expected, "{name}");
        assert_eq!(greedy(&mut model, &ids, 32), golden.ids("greedy"), "{name}");
        let all = model.gpu().resource_counts().bytes;
        block_on(model.step(ids[0], 0)).expect("a step");
        assert_eq!(
            model.gpu().resource_counts().bytes,
            all,
            "{name}: nothing stays of what a row was made with"
        );
    }
}

/// Allows every third token, another third after each token.
struct Thirds(usize);

impl TokenConstraint for Thirds {
    fn mask(&mut self, words: &mut [u32]) -> jerboa::Result<()> {
        for id in (self.0 % 3..words.len() * 32).step_by(3) {
            words[id / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> jerboa::Result<()> {
        assert_eq!(token as usize % 3, self.0 % 3);
        self.0 += 1;
        Ok(())
    }
}

/// A step that waits for its experts also gets the token mask.
#[test]
fn token_masks_apply_where_experts_come_from_the_files() {
    let run = |experts| {
        let (mut model, golden) = load("mixtral", experts, 512);
        let ids = golden.ids("input_ids");
        block_on(async {
            let sampler = Sampler::new(SamplingParams::default(), model.vocab(), 0)?;
            let pipeline = model.prepare_sampling(&sampler, true).await?;
            model.prefill(&ids, 0).await?;
            let mut thirds = Thirds(0);
            let params = DecodeParams {
                pipeline: pipeline.expect("on the GPU"),
                constraint: Some(&mut thirds),
                ..DecodeParams::greedy(ids.len(), 24)
            };
            let mut decode = DecodeLoop::start(&mut model, params)?;
            let mut tokens = Vec::new();
            loop {
                let next = decode.next(&mut model).await?;
                if next.is_empty() {
                    break;
                }
                tokens.extend(next);
            }
            decode.finish(&mut model).await?;
            assert_eq!(model.tokens(), [&ids[..], &tokens[..23]].concat());
            Ok::<_, jerboa::Error>(tokens)
        })
        .expect("tokens")
    };
    let whole = run(None);
    assert_eq!(whole.len(), 24);
    assert_eq!(run(Some(ExpertBudget::PerLayer(2))), whole);
}
