//! MLC repositories: names, fused projections and configurations of real builds.

use crate::support::{Tensors, assert_bits};
use jerboa::arch::find_mlc;
use jerboa::format::{PartBytes, mlc, transcode};
use jerboa::reference::dequant::dequant;
use serde_json::{Value, json};

/// A shard list of consecutive zero-filled parameters.
fn list(parameters: &[(&str, Vec<usize>, &str)]) -> String {
    let mut at = 0;
    let records: Vec<Value> = parameters
        .iter()
        .map(|(name, shape, dtype)| {
            let size = if *dtype == "uint32" { 4 } else { 2 };
            let nbytes = shape.iter().product::<usize>() * size;
            at += nbytes;
            json!({"name": name, "shape": shape, "dtype": dtype, "format": "f32-to-bf16", "nbytes": nbytes,
                "byteOffset": at - nbytes})
        })
        .collect();
    json!({"metadata": {"ParamSize": parameters.len()},
        "records": [{"dataPath": "params_shard_0.bin", "format": "raw-shard", "nbytes": at, "records": records}]})
    .to_string()
}

fn chat(model_type: &str, model_config: &Value) -> String {
    json!({"model_type": model_type, "quantization": "q4f16_1", "model_config": model_config,
        "context_window_size": 4096, "sliding_window_size": -1, "eos_token_id": [2, 7], "vocab_size": 64})
    .to_string()
}

fn names(
    model_type: &str,
    model_config: &Value,
    parameters: &[(&str, Vec<usize>, &str)],
) -> Vec<(String, Vec<usize>)> {
    let (config, family) = mlc::config(&chat(model_type, model_config), find_mlc).expect("config");
    let checkpoint = mlc::parse_shards("ndarray-cache.json", &list(parameters)).expect("list");
    let weights = mlc::weights(&checkpoint, &config, family).expect("weights");
    let mut all: Vec<_> = weights.into_iter().map(|w| (w.name, w.shape)).collect();
    all.sort();
    all
}

#[test]
fn phi3_keeps_its_fused_projections() {
    let found = names(
        "phi3",
        &json!({"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}),
        &[
            ("transformer.embd.q_weight", vec![64, 4], "uint32"),
            ("transformer.embd.q_scale", vec![64, 1], "float16"),
            ("transformer.norm.weight", vec![32], "float16"),
            ("transformer.h.0.ln.weight", vec![32], "float16"),
            (
                "transformer.h.0.post_attention_layernorm.weight",
                vec![32],
                "float16",
            ),
            (
                "transformer.h.0.mixer.qkv_proj.q_weight",
                vec![96, 4],
                "uint32",
            ),
            (
                "transformer.h.0.mixer.qkv_proj.q_scale",
                vec![96, 1],
                "float16",
            ),
            (
                "transformer.h.0.mixer.out_proj.weight",
                vec![32, 32],
                "float16",
            ),
            (
                "transformer.h.0.mlp.gate_up_proj.weight",
                vec![128, 32],
                "float16",
            ),
            (
                "transformer.h.0.mlp.down_proj.weight",
                vec![32, 64],
                "float16",
            ),
            ("lm_head.weight", vec![64, 32], "float16"),
        ],
    );
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    assert_eq!(
        found,
        [
            ("lm_head.weight".to_string(), vec![64, 32]),
            ("model.embed_tokens.weight".into(), vec![64, 32]),
            (layer("input_layernorm"), vec![32]),
            (layer("mlp.down_proj"), vec![32, 64]),
            (layer("mlp.gate_up_proj"), vec![128, 32]),
            (layer("post_attention_layernorm"), vec![32]),
            (layer("self_attn.o_proj"), vec![32, 32]),
            (layer("self_attn.qkv_proj"), vec![96, 32]),
            ("model.norm.weight".into(), vec![32]),
        ]
    );
}

#[test]
fn qwen2_projections_are_split() {
    let found = names(
        "qwen2",
        &json!({"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}),
        &[
            (
                "model.layers.3.self_attn.c_attn.q_weight",
                vec![64, 4],
                "uint32",
            ),
            (
                "model.layers.3.self_attn.c_attn.q_scale",
                vec![64, 1],
                "float16",
            ),
            ("model.layers.3.self_attn.c_attn.bias", vec![64], "float16"),
            (
                "model.layers.3.mlp.gate_up_proj.q_weight",
                vec![80, 4],
                "uint32",
            ),
            (
                "model.layers.3.mlp.gate_up_proj.q_scale",
                vec![80, 1],
                "float16",
            ),
        ],
    );
    let layer = |name: &str| format!("model.layers.3.{name}");
    assert_eq!(
        found,
        [
            (layer("mlp.gate_proj.weight"), vec![40, 32]),
            (layer("mlp.up_proj.weight"), vec![40, 32]),
            (layer("self_attn.k_proj.bias"), vec![16]),
            (layer("self_attn.k_proj.weight"), vec![16, 32]),
            (layer("self_attn.q_proj.bias"), vec![32]),
            (layer("self_attn.q_proj.weight"), vec![32, 32]),
            (layer("self_attn.v_proj.bias"), vec![16]),
            (layer("self_attn.v_proj.weight"), vec![16, 32]),
        ]
    );
}

/// A slice of a fused projection equals rows of the whole, in both storage orders.
#[test]
fn slices_hold_their_rows() {
    let golden = Tensors::open("mlc");
    for (case, weight, scale) in [
        ("q4f16_1", vec![64, 16], vec![64, 4]),
        ("q4f16_0", vec![16, 64], vec![4, 64]),
    ] {
        let parameters = [
            (
                "model.layers.0.self_attn.qkv_proj.q_weight",
                weight,
                "uint32",
            ),
            (
                "model.layers.0.self_attn.qkv_proj.q_scale",
                scale,
                "float16",
            ),
        ];
        let config =
            json!({"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2});
        let (config, family) = mlc::config(&chat("llama", &config), find_mlc).expect("config");
        let checkpoint = mlc::parse_shards("tensor-cache.json", &list(&parameters)).expect("list");
        let file = [
            golden.bytes(&format!("{case}.q_weight")),
            golden.bytes(&format!("{case}.q_scale")),
        ]
        .concat();
        let (_, expected) = golden.f32(&format!("{case}.expected"));
        let mut first = 0;
        for name in ["q_proj", "k_proj", "v_proj"] {
            let weights = mlc::weights(&checkpoint, &config, family).expect("weights");
            let source = weights
                .iter()
                .find(|w| w.name.contains(name))
                .expect("split");
            let bytes = source.parts.iter().fold(PartBytes::new(), |all, p| {
                all.with(
                    p.role,
                    &file[p.info.range.start as usize..p.info.range.end as usize],
                )
            });
            let packed = transcode(source, &bytes, true).expect("transcodes");
            assert_bits(
                name,
                &dequant(&packed),
                &expected[first * 128..(first + packed.rows) * 128],
            );
            first += packed.rows;
        }
        assert_eq!(first, 64);
    }
}

#[test]
fn configurations() {
    let phi3 = chat(
        "phi3",
        &json!({"position_embedding_base": 10000, "dtype": "float32"}),
    );
    let (config, _) = mlc::config(&phi3, find_mlc).expect("phi3");
    assert_eq!(config["architectures"][0], "Phi3ForCausalLM");
    assert_eq!(config["rope_theta"], 10000);
    assert_eq!(config["max_position_embeddings"], 4096);
    assert_eq!(config["eos_token_id"], json!([2, 7]));
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config.get("sliding_window"), None);
    let nested = json!({"text_config": {"hidden_size": 8}, "vocab_size": 3});
    let (config, _) = mlc::config(&chat("gemma3", &nested), find_mlc).expect("gemma3");
    assert_eq!(
        (&config["hidden_size"], &config["model_type"]),
        (&json!(8), &json!("gemma3_text"))
    );
    assert_eq!(config["hidden_activation"], "gelu_pytorch_tanh");
}
