//! Families with recurrent state: the state is the same for steps of any size, and a new sequence
//! starts from zero.

use super::{exact, exact_as_gpu, start, stepwise, with_kv};
use jerboa::exec::{ModelFiles, RunOptions, Session};
use jerboa::gpu::Backend;
use jerboa::kernels::attention::Kv;
use jerboa::plan::Fusions;
use jerboa_tests::golden::{Golden, golden, greedy, load, open as files_of};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use safetensors::tensor::{SafeTensors, TensorView, serialize};
use std::collections::BTreeMap;

#[test]
fn states_continue_over_chunks_and_reset_for_a_new_sequence() {
    for name in [
        "lfm2",
        "qwen3_5",
        "granite_hybrid",
        "nemotron_h",
        "granite_hybrid_moe",
        "nemotron_h_moe",
        "falcon_h1",
        "falcon_h1_norm",
    ] {
        let options = RunOptions {
            prefill_chunk: 37,
            ..with_kv(Kv::F32)
        };
        let (mut model, golden) = start(name, &exact(), options);
        let ids = golden.ids("input_ids");
        let expected = golden.floats("logits");

        let cols = expected.len() / ids.len();
        // Some tokens in one step, then single tokens, then many again; and the same after a reset.
        for _ in 0..2 {
            block_on(model.prefill(&ids[..11], 0)).expect("prefill");
            for (pos, id) in ids.iter().enumerate().take(14).skip(11) {
                block_on(model.step(*id, pos)).expect("step");
            }
            block_on(model.prefill(&ids[14..], 14)).expect("prefill");
            let last = block_on(model.logits()).expect("logits");
            let error = relative_l2(&last, &expected[expected.len() - cols..]);
            assert!(error < 3e-4, "{name}: {error:e}");
        }
        assert_eq!(greedy(&mut model, &ids, 32), golden.ids("greedy"), "{name}");
    }
}

#[test]
fn fusions_change_nothing() {
    for name in [
        "lfm2_bias",
        "qwen3_5",
        "gemma4",
        "granite_hybrid_moe",
        "nemotron_h_latent",
        "falcon_h1",
    ] {
        let options = RunOptions {
            fusions: Fusions::NONE,
            ..with_kv(Kv::F32)
        };
        let (mut model, golden) = start(name, &exact(), options);
        let ids = golden.ids("input_ids");
        let expected = golden.floats("logits");

        let error = relative_l2(&stepwise(&mut model, &ids), &expected);
        assert!(error < 3e-4, "{name}: {error:e}");
    }
}

/// MLX stacks experts without gates as `switch_mlp.fc1` and `fc2`.
#[test]
fn mlx_experts_without_gates_may_be_stacked() {
    let model = golden("models/nemotron_h_moe");
    let folder = std::env::temp_dir().join(format!("jerboa-{}-switch-mlp", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(model.join("config.json"), folder.join("config.json")).expect("config.json");
    let bytes = std::fs::read(model.join("model.safetensors")).expect("model.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut plain = Vec::new();
    let mut stacks = BTreeMap::<String, (Vec<usize>, Vec<u8>)>::new();

    // Experts in the order of their ids.
    let mut names = file.names();
    names.sort();
    for name in names {
        let tensor = file.tensor(name).expect("a tensor");
        let Some((path, rest)) = name.split_once(".experts.") else {
            plain.push((name.to_owned(), tensor));
            continue;
        };
        let part = if rest.contains("up_proj") {
            "fc1"
        } else {
            "fc2"
        };
        let stack = stacks
            .entry(format!("{path}.switch_mlp.{part}.weight"))
            .or_default();
        stack.0 = [
            &[stack.0.first().map_or(1, |count| count + 1)],
            tensor.shape(),
        ]
        .concat();
        stack.1.extend(tensor.data());
    }
    assert_eq!(stacks.len(), 4);
    let dtype = plain[0].1.dtype();
    let stacked = stacks.iter().map(|(name, (shape, data))| {
        (
            name.clone(),
            TensorView::new(dtype, shape.clone(), data).expect("a stack"),
        )
    });
    let all: Vec<_> = plain.into_iter().chain(stacked).collect();
    std::fs::write(
        folder.join("model.safetensors"),
        serialize(all, None).expect("a file"),
    )
    .expect("a file");
    let mut session = load(open(&exact()), &folder, with_kv(Kv::F32)).expect("a model");
    let reference = Golden::read(&model.join("golden.safetensors"));
    let found = block_on(session.all_rows(&reference.ids("input_ids"), false)).expect("logits");
    let error = relative_l2(&found, &reference.floats("logits"));
    assert!(error < 2e-4, "{error:e}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}

/// Conversion of each family by llama.cpp: tests/golden/scripts/make_gguf_hybrids.py.
#[test]
fn gguf_files_give_the_reference_logits() {
    for (name, model) in [
        ("lfm2", "lfm2"),
        ("qwen3_5", "qwen3_5"),
        ("granite_hybrid", "granite_hybrid"),
        ("gemma4", "gemma4"),
        ("gemma3n", "gemma3n"),
        ("qwen3_next", "qwen3_next"),
        ("olmo3", "olmo3"),
        ("olmoe", "olmoe"),
        ("ernie4_5_moe", "ernie4_5_moe"),
        ("gemma4_moe", "gemma4_moe"),
        ("granite_moe_shared", "granite_moe_shared"),
        ("granite_hybrid_moe", "granite_hybrid_moe"),
        ("nemotron_h_moe", "nemotron_h_moe"),
        ("falcon_h1", "falcon_h1"),
        // MXFP4 experts, biases and sinks: make_gpt_oss_gguf.py.
        ("gpt_oss", "gpt_oss_mxfp4"),
        // Ternary weights in I2_S, TQ1_0 and TQ2_0, with their own golden: make_bitnet_gguf.py.
        ("bitnet", ""),
    ] {
        let at = if model.is_empty() {
            format!("quant/gguf_{name}")
        } else {
            format!("models/{model}")
        };
        let reference = Golden::read(&golden(&at).join("golden.safetensors"));
        let ids = reference.ids("input_ids");
        let expected = reference.floats("logits");

        let loaded = block_on(async {
            let source = files_of(&golden(&format!("quant/gguf_{name}"))).await?;
            let files = ModelFiles::open(&source, Some("model.gguf")).await?;
            Session::load_files(open(&exact_as_gpu()), &source, files, with_kv(Kv::F32)).await
        });
        let mut model = loaded.unwrap_or_else(|e| panic!("{name}: {e}"));
        let found = block_on(model.all_rows(&ids, false)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let error = relative_l2(&found, &expected);
        // A GPU whose sums have another order than the reference's rounds an 8-bit activation
        // differently now and then.
        let limit = if name == "bitnet" && !model.gpu().caps().software {
            1e-2
        } else {
            3e-4
        };
        assert!(error < limit, "{name}: {error:e}");
    }
}
