//! Memory of a sequence: ring caches of windows, shared keys and recurrent states, in each element
//! type and over thousands of tokens. Also experts stacked in one tensor, as in published files.

use super::{exact, halves, start, stepwise, with_kv};
use jerboa::exec::{RunOptions, Session};
use jerboa::gpu::DeviceOptions;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, go_on, golden, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn logits(session: &Session) -> Vec<f32> {
    block_on(session.logits()).expect("logits")
}

/// Families with windows in some or all layers, recurrent state, latent attention. Short steps keep
/// the rings small.
const FAMILIES: [&str; 15] = [
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_moe",
    "olmo3",
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe_lite",
    "lfm2_moe",
    "qwen3_next",
    "granite_hybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "falcon_h1",
];

#[test]
fn chunks_turns_and_trims_give_the_reference() {
    for name in FAMILIES {
        let (mut session, golden) = start(
            name,
            &exact(),
            RunOptions {
                prefill_chunk: 8,
                ..with_kv(Kv::F32)
            },
        );
        let (ids, expected, answer) = (
            golden.ids("input_ids"),
            golden.floats("logits"),
            golden.ids("greedy"),
        );
        let last = &expected[expected.len() - expected.len() / ids.len()..];
        let same = |session: &Session, what: &str| {
            let error = relative_l2(&logits(session), last);
            assert!(error < 3e-4, "{name}, {what}: {error:e}");
        };
        block_on(session.prefill(&ids, 0)).expect("prefill");
        same(&session, "in chunks of 8");
        session.checkpoint().expect("a checkpoint");
        assert_eq!(go_on(&mut session, 32), answer, "{name}");
        for to in [ids.len() + 20, ids.len() - 3, ids.len() / 2, 1] {
            let held = session.trim(to).expect("trim");
            assert!(held <= to, "{name}: {held} of {to}");
            block_on(session.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("resume");
            same(&session, &format!("back to {to}"));
        }
        assert_eq!(go_on(&mut session, 32), answer, "{name}, regenerated");
        let mut fork = session.fork().expect("a fork");
        block_on(fork.prefill_reusing_prefix(&ids, &|| Ok(()))).expect("resume");
        same(&fork, "forked");
    }
}

/// Windows of 8 among full layers over 200 tokens, and keys that later layers share: rings of 16
/// equal caches of all positions.
#[test]
fn ring_buffers_keep_the_whole_window() {
    for name in ["gemma3", "gemma3n", "gemma4", "gpt_oss"] {
        let (mut ring, golden) = start(
            name,
            &exact(),
            RunOptions {
                prefill_chunk: 8,
                ..with_kv(Kv::F32)
            },
        );
        let (mut full, _) = start(
            name,
            &exact(),
            RunOptions {
                prefill_chunk: 512,
                ..with_kv(Kv::F32)
            },
        );
        assert!(
            ring.model().states().iter().any(|s| s.ring)
                && full.model().states().iter().all(|s| !s.ring),
            "{name}"
        );
        let ids: Vec<u32> = golden
            .ids("input_ids")
            .iter()
            .copied()
            .cycle()
            .take(200)
            .collect();
        block_on(ring.prefill(&ids, 0)).expect("prefill");
        block_on(full.prefill(&ids, 0)).expect("prefill");
        let error = relative_l2(&logits(&ring), &logits(&full));
        assert!(error < 1e-5, "{name}: {error:e}");
        assert_eq!(go_on(&mut ring, 32), go_on(&mut full, 32), "{name}");
    }
}

/// Token ids from a seed.
fn ids(count: usize) -> Vec<u32> {
    let mut state = 0x2545_f491u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        3 + (state >> 16) % 240
    };
    (0..count).map(|_| next()).collect()
}

/// A full cache, windows with and without sinks, states of a convolution, a delta rule and Mamba-2.
#[test]
fn f16_kv_stays_accurate_after_2000_tokens() {
    for name in [
        "qwen3",
        "gemma3",
        "gpt_oss",
        "lfm2",
        "qwen3_5",
        "granite_hybrid",
        "falcon_h1_norm",
    ] {
        let long = ids(2008);
        let end = |device: &DeviceOptions, kv: Kv| {
            let options = RunOptions {
                max_context: Some(2304),
                ..with_kv(kv)
            };
            let (mut session, _) = start(name, device, options);
            block_on(session.prefill(&long[..2000], 0)).expect("prefill");
            let mut all = logits(&session);
            for (pos, id) in long.iter().enumerate().skip(2000) {
                block_on(session.step(*id, pos)).expect("step");
                all.extend(logits(&session));
            }
            all
        };
        let expected = end(&exact(), Kv::F32);
        let golden = Golden::read(&golden(&format!("long/{name}.safetensors")));
        // Logits of the prompt's last position precede those of the steps.
        let reference = golden.floats("logits");
        let error = relative_l2(&expected, &reference);
        assert!(error < 3e-4, "{name} against transformers: {error:e}");
        for (device, kv) in [(DeviceOptions::default(), halves()), (exact(), Kv::Packed)] {
            let found = end(&device, kv);
            let error = relative_l2(&found, &expected);
            assert!(error < 1.5e-2, "{name} {kv:?}: {error:e}");
            let error = relative_l2(&found, &reference);
            assert!(
                error < 1.5e-2,
                "{name} {kv:?}, against transformers: {error:e}"
            );
        }
    }
}

/// The likelihood of 2,000 tokens with an int8 cache against an f16 cache. The weights are random;
/// tests/task/families.rs tests trained weights in 512 positions.
#[test]
fn int8_kv_stays_accurate_after_2000_tokens() {
    for name in ["qwen3", "gpt_oss"] {
        let long = ids(2001);
        let rows = |kv: Kv| {
            let (mut session, _) = start(
                name,
                &exact(),
                RunOptions {
                    max_context: Some(2304),
                    ..with_kv(kv)
                },
            );
            block_on(session.all_rows(&long[..2000], false)).expect("logits")
        };
        let perplexity = |rows: &[f32]| {
            let cols = rows.len() / 2000;
            let mut total = 0.0;

            for (row, next) in rows.chunks_exact(cols).zip(&long[1..]) {
                total += row
                    .iter()
                    .map(|v| f64::from(v - row[*next as usize]).exp())
                    .sum::<f64>()
                    .ln();
            }
            (total / 2000.0).exp()
        };
        let [halves, eight] = [rows(Kv::Packed), rows(Kv::Int8)];
        let one = perplexity(&halves);
        let other = perplexity(&eight);

        assert!(
            (other / one - 1.0).abs() < 0.005,
            "{name}: {one} becomes {other}"
        );
        let last = halves.len() - halves.len() / 20;
        let error = relative_l2(&eight[last..], &halves[last..]);
        println!("{name}: {one} becomes {other}, the last 100 rows {error:e}");
        assert!(error < 8e-2, "{name}: {error:e}");
    }
}

/// An int8 cache in every kind of family: windows, shared keys, recurrent state.
#[test]
fn int8_kv_supports_every_family() {
    for name in [
        "llama_bias",
        "gemma3",
        "gemma4",
        "gpt_oss",
        "lfm2",
        "qwen3_5",
        "deepseek_v3",
        "granite_hybrid",
    ] {
        let (mut session, golden) = start(name, &exact(), with_kv(Kv::Int8));
        let ids = golden.ids("input_ids");
        let expected = golden.floats("logits");

        for found in [
            block_on(session.all_rows(&ids, false)).expect("logits"),
            stepwise(&mut session, &ids),
        ] {
            let error = relative_l2(&found, &expected);
            assert!(error < 6e-2, "{name}: {error:e}");
        }
    }
}

/// Experts of a layer of models/qwen3_5_moe.
const EXPERTS: usize = 4;

/// A folder's checkpoint with the experts of a layer stacked in two tensors: gate and up, and down.
fn stacked(name: &str) -> PathBuf {
    let from = golden(&format!("models/{name}"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);

    std::fs::create_dir_all(&to).expect("a folder");
    std::fs::copy(from.join("config.json"), to.join("config.json")).expect("a copy");
    let bytes = std::fs::read(from.join("model.safetensors")).expect("a checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut all: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    // Expert by expert, gate before up. Sorting by name works for fewer than ten experts.
    let mut names = file.names();
    names.sort_by_key(|n| n.replace("gate_proj", "a").replace("up_proj", "b"));
    for name in names {
        let tensor = file.tensor(name).expect("a tensor");
        let Some((path, rest)) = name.split_once(".experts.") else {
            all.insert(
                name.into(),
                (tensor.shape().to_vec(), tensor.data().to_vec()),
            );
            continue;
        };
        let part = if rest.contains("down") {
            "down_proj"
        } else {
            "gate_up_proj"
        };
        let (shape, data) = all.entry(format!("{path}.experts.{part}")).or_default();
        data.extend(tensor.data());
        let cols = tensor.shape()[1];
        let count = EXPERTS;

        *shape = vec![count, data.len() / 2 / cols / count, cols];
    }

    let file = safetensors::serialize(
        all.iter()
            .map(|(name, (shape, data)): (&String, &(Vec<usize>, Vec<u8>))| {
                (
                    name.clone(),
                    TensorView::new(Dtype::BF16, shape.clone(), data.clone().leak())
                        .expect("a tensor"),
                )
            }),
        None,
    )
    .expect("a file");
    std::fs::write(to.join("model.safetensors"), file).expect("a checkpoint");
    to
}

#[test]
fn stacked_experts_equal_separate_ones() {
    let folder = stacked("qwen3_5_moe");
    let mut session = load(open(&exact()), &folder, with_kv(Kv::F32)).expect("a model");
    let golden = Golden::read(&golden("models/qwen3_5_moe/golden.safetensors"));
    let found = block_on(session.all_rows(&golden.ids("input_ids"), false)).expect("logits");
    let error = relative_l2(&found, &golden.floats("logits"));
    assert!(error < 2e-4, "{error:e}");
}
