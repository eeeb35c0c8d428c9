//! Checkpoints whose values MLX's converter changed: mlx_lm's `sanitize` of each model.

use super::{exact, with_kv};
use jerboa::kernels::attention::Kv;
use jerboa_tests::checkpoint::{ChangedCheckpoint, Tensor};
use jerboa_tests::golden::{Golden, golden, load};
use jerboa_tests::{open, relative_l2};
use pollster::block_on;
use serde_json::Value;

/// Multiplies all values.
fn scale(tensor: &mut Tensor, by: f32) {
    tensor.values.iter_mut().for_each(|value| *value *= by);
}

/// Moves the channels of a convolution over time to the end.
fn put_channels_last(tensor: &mut Tensor) {
    if tensor.name.ends_with("conv1d.weight") {
        assert_eq!(tensor.shape[1], 1, "{}", tensor.name);
        tensor.shape.swap(1, 2);
    }
}

/// Checks the logits of a golden checkpoint that `convert` changed.
fn check(name: &str, convert: impl Fn(&mut Tensor)) {
    let model = golden(&format!("models/{name}"));
    let changed = ChangedCheckpoint::new(&model, &format!("mlx-{name}"), convert);
    let mut session = load(open(&exact()), changed.path(), with_kv(Kv::F32)).expect("a model");
    let reference = Golden::read(&model.join("golden.safetensors"));
    let found = block_on(session.all_rows(&reference.ids("input_ids"), false)).expect("logits");
    let error = relative_l2(&found, &reference.floats("logits"));
    assert!(error < 3e-4, "{name}: {error:e}");
}

#[test]
fn norms_of_qwen_hybrids_are_stored_plus_one() {
    for name in ["qwen3_5", "qwen3_next"] {
        check(name, |tensor| {
            put_channels_last(tensor);
            let is_norm = tensor.name.ends_with("norm.weight");
            if is_norm && !tensor.name.ends_with("linear_attn.norm.weight") {
                tensor.values.iter_mut().for_each(|value| *value += 1.0);
            }
        });
    }
}

#[test]
fn multipliers_of_falcon_h1_are_folded_into_the_weights() {
    let config = std::fs::read(golden("models/falcon_h1/config.json")).expect("config.json");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    check("falcon_h1", |tensor| {
        put_channels_last(tensor);
        let number = |field: &str| config[field].as_f64().unwrap_or(1.0) as f32;
        let item = |field: &str, at: usize| config[field][at].as_f64().unwrap_or(1.0) as f32;
        let is = |end: &str| tensor.name.ends_with(&format!("{end}.weight"));
        let by = if is("embed_tokens") {
            number("embedding_multiplier")
        } else if is("lm_head") {
            number("lm_head_multiplier")
        } else if is("q_proj") || is("k_proj") {
            number("attention_in_multiplier")
        } else if is("o_proj") {
            number("attention_out_multiplier")
        } else if is("out_proj") {
            number("ssm_out_multiplier")
        } else if is("gate_proj") {
            item("mlp_multipliers", 0)
        } else if is("down_proj") {
            item("mlp_multipliers", 1)
        } else if is("mamba.in_proj") {
            let count = |field: &str| config[field].as_u64().expect(field) as usize;
            let inner = count("mamba_d_ssm");
            let groups = count("mamba_n_groups") * count("mamba_d_state");
            let sizes = [inner, inner, groups, groups, count("mamba_n_heads")];
            let rows = sizes.iter().enumerate();
            let scales: Vec<f32> = rows
                .flat_map(|(part, rows)| vec![item("ssm_multipliers", part); *rows])
                .collect();
            let cols = tensor.shape[1];
            assert_eq!(scales.len(), tensor.shape[0]);
            for (row, scale) in tensor.values.chunks_exact_mut(cols).zip(scales) {
                row.iter_mut().for_each(|value| *value *= scale);
            }
            number("ssm_in_multiplier")
        } else {
            1.0
        };
        scale(tensor, by);
    });
}
