//! Mixtures whose experts are not all on the device, and tables whose rows come as tokens need them: the logits and ids of a model
//! that is there as a whole.

use super::{exact, start, with_kv};
use jerboa::exec::{Overrides, Paging, Precision, ROOM, Resident, RunOptions, Session};
use jerboa::gpu::Backend;
use jerboa::ir::WeightKind;
use jerboa::kernels::attention::Kv;
use jerboa_tests::golden::{Golden, go_on, golden, greedy};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use safetensors::tensor::{Dtype, TensorView};
use std::path::{Path, PathBuf};

fn load(name: &str, experts: Option<Resident>, chunk: usize) -> (Session, Golden) {
    start(name, &exact(), RunOptions { experts, chunk, ..with_kv(Kv::F32) })
}

fn paging(session: &Session) -> Paging {
    session.paging().expect("experts come from the files")
}

fn logits(session: &Session) -> Vec<f32> {
    block_on(session.logits()).expect("logits")
}

/// Two experts of each layer, or as many as a token picks: a prompt's picks come in parts, each token's in turns.
#[test]
fn two_experts_on_the_device_give_the_logits_of_all() {
    for name in ["mixtral", "qwen3_moe", "gpt_oss", "gpt_oss_mxfp4", "deepseek_v3"] {
        let (mut model, golden) = load(name, Some(Resident::Count(2)), 512);
        let (ids, expected) = (golden.ids("input_ids"), golden.floats("logits"));
        let found = block_on(model.every_row(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &expected);
        assert!(error < 2e-4, "{name}: {error:e}");
        let before = paging(&model);
        assert!(before.asked > 0 && before.hits < before.asked && before.bytes > 0, "{name}: {before:?}");
        assert_eq!(greedy(&mut model, &ids, 32), golden.ids("greedy"), "{name}");
        let after = paging(&model);
        assert!(after.ahead_used <= after.ahead && after.hits <= after.asked, "{name}: {after:?}");
    }
}

/// The device holds fewer bytes, and a budget in bytes says how many experts that are.
#[test]
fn experts_take_what_memory_they_are_given() {
    let (whole, golden) = load("mixtral", None, 512);
    assert!(whole.paging().is_none());
    let (all, experts) = (whole.bytes().weights, |session: &Session| {
        let stacks = session.weights.values().filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
        stacks.map(|w| w.bytes()).sum::<u64>()
    });
    let every = experts(&whole);
    let (mut half, _) = load("mixtral", Some(Resident::Bytes(every / 2)), 512);
    assert_eq!(experts(&half) * 2, every);
    assert_eq!(half.bytes().weights, all - every / 2);
    assert_eq!(half.parameters(), whole.parameters());
    assert_eq!(half.bytes_per_token(0), whole.bytes_per_token(0));
    assert!(half.dispatches() > whole.dispatches(), "guesses of the next layer's picks");
    // Sessions side by side, gone back, forked: places are the model's, whoever asks.
    let ids = golden.ids("input_ids");
    let expected = golden.ids("greedy");
    block_on(half.prefill(&ids, 0)).expect("prefill");
    let mut fork = half.fork().expect("a fork");
    let other: Vec<u32> = ids.iter().rev().copied().collect();
    greedy(&mut half, &other, 8);
    assert_eq!(go_on(&mut fork, 32), expected);
    assert_eq!(greedy(&mut half, &ids, 32), expected);
    // All experts have a place: the usual way, and none is fetched.
    let (model, _) = load("mixtral", Some(Resident::Count(512)), 512);
    assert!(model.paging().is_none() && model.dispatches() == whole.dispatches());
}

#[test]
fn memory_that_is_short_pages_experts_by_itself() {
    let overrides = Overrides { precision: Precision::F32, ..with_kv(Kv::F32).overrides };
    let run = |memory| start("mixtral", &exact(), RunOptions { memory, overrides, chunk: 64, ..with_kv(Kv::F32) });
    let (whole, golden) = run(None);
    let stacks = whole.weights.values().filter(|w| matches!(w.kind, WeightKind::Experts { .. }));
    // Room for two of the four experts, and not for three.
    let weights = whole.bytes().weights - stacks.map(|w| w.bytes()).sum::<u64>() / 3;
    let (mut model, _) = run(Some(weights + whole.state_bytes(256) + ROOM));
    assert!(
        model.bytes().weights <= weights && model.notes.iter().any(|note| note.contains("experts")),
        "{:?}",
        model.notes
    );
    assert_eq!(greedy(&mut model, &golden.ids("input_ids"), 32), golden.ids("greedy"));
}

/// Gemma's embeddings of each layer: rows come from the file, for prompts and for each token.
#[test]
fn rows_of_tables_come_as_tokens_need_them() {
    for name in ["gemma3n", "gemma4"] {
        let run = |table_rows, chunk| start(name, &exact(), RunOptions { table_rows, chunk, ..with_kv(Kv::F32) });
        let (mut whole, golden) = run(Some(false), 8);
        let ids = golden.ids("input_ids");
        block_on(whole.prefill(&ids, 0)).expect("prefill");
        let expected = logits(&whole);
        let (mut model, _) = run(Some(true), 8);
        assert!(model.bytes().weights < whole.bytes().weights && model.is_paged(), "{name}");
        block_on(model.prefill(&ids, 0)).expect("prefill");
        assert_eq!(logits(&model), expected, "{name}");
        assert_eq!(greedy(&mut model, &ids, 32), golden.ids("greedy"), "{name}");
        let all = model.gpu.created().bytes;
        block_on(model.step(ids[0], 0)).expect("a step");
        assert_eq!(model.gpu.created().bytes, all, "{name}: nothing stays of what a row was made with");
    }
}

/// As many experts a layer as GPT-OSS-20B has.
const EXPERTS: usize = 32;
/// A fifth of its width: blocks and words of scales end where they do in a row of 2880 columns.
const WIDTH: usize = 2880 / 5;

/// A checkpoint with two layers of GPT-OSS-20B's experts, narrower. The first router's logits are all the same, so that the first
/// four experts get every token and the others none; the second one's are random.
fn many() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpt_oss_many");
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = std::fs::read(golden("models/gpt_oss_mxfp4/config.json")).expect("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    for (field, value) in [
        ("hidden_size", WIDTH),
        ("intermediate_size", WIDTH),
        ("num_local_experts", EXPERTS),
        ("num_experts_per_tok", 4),
    ] {
        config[field] = value.into();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a file");
    let mut tensors: Vec<(String, Dtype, Vec<usize>)> = Vec::new();
    for (name, shape) in [
        ("lm_head.weight", vec![256, WIDTH]),
        ("model.embed_tokens.weight", vec![256, WIDTH]),
        ("model.norm.weight", vec![WIDTH]),
    ] {
        tensors.push((name.into(), Dtype::BF16, shape));
    }
    for layer in 0..2 {
        let mut add = |name: &str, dtype, shape: &[usize]| {
            tensors.push((format!("model.layers.{layer}.{name}"), dtype, shape.to_vec()));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(&format!("{norm}.weight"), Dtype::BF16, &[WIDTH]);
        }
        for (name, rows, cols) in
            [("q_proj", 64, WIDTH), ("k_proj", 32, WIDTH), ("v_proj", 32, WIDTH), ("o_proj", WIDTH, 64)]
        {
            add(&format!("self_attn.{name}.weight"), Dtype::BF16, &[rows, cols]);
            add(&format!("self_attn.{name}.bias"), Dtype::BF16, &[rows]);
        }
        add("self_attn.sinks", Dtype::BF16, &[4]);
        add("mlp.router.weight", Dtype::BF16, &[EXPERTS, WIDTH]);
        add("mlp.router.bias", Dtype::BF16, &[EXPERTS]);
        for (name, rows) in [("gate_up_proj", 2 * WIDTH), ("down_proj", WIDTH)] {
            add(&format!("mlp.experts.{name}_bias"), Dtype::BF16, &[EXPERTS, rows]);
            add(&format!("mlp.experts.{name}_blocks"), Dtype::U8, &[EXPERTS, rows, WIDTH / 32, 16]);
            add(&format!("mlp.experts.{name}_scales"), Dtype::U8, &[EXPERTS, rows, WIDTH / 32]);
        }
    }
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut data = Vec::new();
    for (name, dtype, shape) in &tensors {
        let count: usize = shape.iter().product();
        let mut bytes: Vec<u8> = Vec::with_capacity(2 * count + 8);
        while bytes.len() < if *dtype == Dtype::U8 { count } else { 2 * count } {
            let random = next();
            if name.contains("layers.0.mlp.router") {
                bytes.extend([0; 2]);
            } else if name.ends_with("_scales") {
                bytes.push(116 + (random % 4) as u8);
            } else if *dtype == Dtype::U8 {
                bytes.extend(random.to_le_bytes());
            } else {
                let value = (random % 2001) as f32 / 1000.0 - 1.0;
                let value = if name.contains("norm") { 1.0 } else { value * 0.04 };
                bytes.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
            }
        }
        data.push(bytes);
    }
    let views = tensors.iter().zip(&data).map(|((name, dtype, shape), bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("a checkpoint");
    folder
}

/// Four of 32 experts, as many as a token picks, in as many bytes as that takes: ties, experts with all tokens and with none.
#[test]
fn four_of_32_experts_in_little_memory() {
    let folder = many();
    let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 5) % 256).collect();
    let all = |experts| {
        let options = RunOptions { experts, chunk: 32, ..with_kv(Kv::F32) };
        let mut model = jerboa_tests::golden::load(open(&exact()), &folder, options).expect("a model");
        block_on(model.prefill(&ids[..16], 0)).expect("prefill");
        let mut found = logits(&model);
        for (pos, id) in ids.iter().enumerate().skip(16) {
            block_on(model.step(*id, pos)).expect("a step");
            found.extend(logits(&model));
        }
        (found, model.bytes().weights, model.paging())
    };
    let (expected, whole, _) = all(None);
    let four = (2 * 4 * 3 * WIDTH * (WIDTH / 2 + WIDTH / 32)) as u64;
    let (found, weights, paging) = all(Some(Resident::Bytes(four)));
    let error = relative_l2(&found, &expected);
    assert!(error < 1e-5, "{error:e}");
    assert_eq!(weights, whole - 7 * four, "28 of 32 are not there");
    let paging = paging.expect("experts come from the file");
    assert!(paging.held == 4 && paging.hits < paging.asked && paging.hits > 0, "{paging:?}");
    std::fs::remove_dir_all(folder).expect("a folder");
}
