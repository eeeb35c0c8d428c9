//! Whole checkpoints: the tensors of each weight, and its values against an independent decoder.

use crate::support::read;
use jerboa::SortedMap;
use jerboa::arch::find_gguf;
use jerboa::format::gguf::{self, Gguf, MetadataValue as Meta, config::RopeFactors};
use jerboa::format::{
    Checkpoint, CheckpointFile, PartBytes, WeightSource, Weights, detect, safetensors, transcode,
};
use jerboa::reference::dequant::dequant_in_order;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A safetensors checkpoint of one file, from its bytes.
fn checkpoint(file: &[u8]) -> Checkpoint {
    let range = safetensors::header_range("model.safetensors", &file[..8], file.len() as u64)
        .expect("header");
    let header = &file[range.start as usize..range.end as usize];
    let header =
        safetensors::parse_header("model.safetensors", header, file.len() as u64).expect("header");
    Checkpoint {
        files: vec![CheckpointFile {
            name: "model.safetensors".into(),
            size: file.len() as u64,
        }],
        tensors: header
            .tensors
            .into_iter()
            .map(|t| (t.name.clone(), t))
            .collect(),
        metadata: SortedMap::new(),
    }
}

fn fnv(values: &[f32]) -> String {
    let hash = values.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, v| {
        (h ^ u64::from(v.to_bits())).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn values(source: &WeightSource, file: &[u8]) -> Vec<f32> {
    let bytes = source.parts.iter().fold(PartBytes::new(), |all, part| {
        let range = &part.info.range;
        all.with(part.role, &file[range.start as usize..range.end as usize])
    });
    dequant_in_order(
        &transcode(source, &bytes, true).unwrap_or_else(|e| panic!("{}: {e}", source.name)),
    )
}

/// Every weight of weights.json is found and its values have the expected hash.
fn check(name: &str, weights: &Weights, file: &[u8]) {
    let expected: BTreeMap<String, (Vec<usize>, String)> =
        serde_json::from_slice(&read(&format!("{name}/weights.json"))).expect("weights.json");
    assert_eq!(weights.unsupported().count(), 0, "{name}");
    let found: Vec<&str> = weights.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(found, expected.keys().collect::<Vec<_>>(), "{name}");
    for (weight, (shape, hash)) in &expected {
        let source = weights.get(weight, name).expect("listed");
        assert_eq!(source.shape, *shape, "{name} {weight}");
        assert_eq!(
            fnv(&values(source, file)),
            *hash,
            "{name} {weight} as {}",
            source.encoding.name()
        );
    }
}

fn config(name: &str) -> Value {
    serde_json::from_slice(&read(&format!("{name}/config.json"))).expect("config.json")
}

#[test]
fn mlx_gptq_awq() {
    for (name, encodings) in [
        (
            "model_mlx",
            vec!["mlx 4 bit group 64", "mlx 6 bit group 32"],
        ),
        ("model_gptq", vec!["gptq 4 bit group 32"]),
        ("model_awq", vec!["awq 4 bit group 32"]),
    ] {
        let file = read(&format!("{name}/model.safetensors"));
        let weights = detect(&config(name), &checkpoint(&file), &SortedMap::new());
        check(name, &weights, &file);
        for encoding in encodings {
            assert!(
                weights.iter().any(|w| w.encoding.name() == encoding),
                "{name}: {encoding}"
            );
        }
    }
}

/// Tensors only: no quantization block, as some converters omit it.
#[test]
fn quantization_is_detected_without_a_configuration() {
    for name in ["model_gptq", "model_awq"] {
        let file = read(&format!("{name}/model.safetensors"));
        let weights = detect(&json!({}), &checkpoint(&file), &SortedMap::new());
        check(name, &weights, &file);
    }
    // MLX's bits and group size are ambiguous without it; the most common group size decides, so
    // the overrides are wrong.
    let file = read("model_mlx/model.safetensors");
    let weights = detect(
        &json!({"quantization": {"bits": 4, "group_size": 64}}),
        &checkpoint(&file),
        &SortedMap::new(),
    );
    let down = weights
        .get("model.layers.0.mlp.down_proj.weight", "qwen3")
        .expect("found");
    assert_eq!(down.encoding.name(), "mlx 3 bit group 64");
}

fn open(name: &str) -> (Gguf, Vec<u8>) {
    let file = read(&format!("{name}/model.gguf"));
    let mut length = 64;
    loop {
        let start = &file[..length.min(file.len())];
        if let Some(gguf) = gguf::parse("model.gguf", start, file.len() as u64).expect("GGUF") {
            return (gguf, file);
        }
        length *= 2;
    }
}

#[test]
fn gguf_files() {
    for name in ["gguf_q4_k_m", "gguf_q8_0", "gguf_tq2_0"] {
        let (gguf, file) = open(name);
        check(
            name,
            &gguf.weights(find_gguf(&gguf).expect("llama is mapped")),
            &file,
        );
        assert_eq!(gguf.checkpoint().tensors.len(), gguf.tensors.len());
    }
}

#[test]
fn gguf_metadata_is_a_configuration() {
    let (gguf, _) = open("gguf_q8_0");
    let config = gguf.config(
        find_gguf(&gguf).expect("llama is mapped"),
        &RopeFactors::default(),
    );
    for (key, value) in [
        ("model_type", json!("llama")),
        ("architectures", json!(["LlamaForCausalLM"])),
        ("vocab_size", json!(300)),
        ("hidden_size", json!(64)),
        ("num_hidden_layers", json!(2)),
        ("intermediate_size", json!(96)),
        ("tie_word_embeddings", json!(true)),
        ("rope_theta", json!(10000.0)),
        ("attention_bias", json!(false)),
        ("bos_token_id", json!(1)),
        ("eos_token_id", json!(2)),
        ("hidden_act", json!("silu")),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    assert_eq!(
        config["rms_norm_eps"]
            .as_f64()
            .map(|e| e.to_string())
            .as_deref(),
        Some("0.000001")
    );
}

/// Gemma 4's files list the merges, whose order no score determines, and put no space before a
/// text.
#[test]
fn gguf_tokenizer_of_gemma_4_lists_its_merges() {
    let strings = |all: &[&str]| all.iter().map(|t| (*t).to_string()).collect::<Vec<_>>();
    let mut tokens = strings(&["<unk>", "<bos>", "▁", "a", "b", "ab", "▁a", "b▁"]);
    let mut kinds = vec![2, 3, 1, 1, 1, 1, 1, 1];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    kinds.resize(tokens.len(), 6);
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let metadata = [
        (
            "general.architecture".to_string(),
            Meta::Text("gemma4".into()),
        ),
        (key("model"), Meta::Text("gemma4".into())),
        (key("scores"), Meta::Floats(vec![-1000.0; tokens.len()])),
        (key("tokens"), Meta::Texts(tokens)),
        (key("token_type"), Meta::Ints(kinds)),
        (key("merges"), Meta::Texts(strings(&["b ▁", "▁ a", "a b"]))),
        (key("bos_token_id"), Meta::Int(1)),
        (key("unknown_token_id"), Meta::Int(0)),
        (key("add_bos_token"), Meta::Bool(true)),
    ];
    let file = "test".to_string();
    let metadata = metadata.into_iter().collect();

    let gguf = Gguf {
        file,
        size: 0,
        metadata,
        tensors: SortedMap::new(),
        parts: Vec::new(),
    };
    let json = gguf.tokenizer().expect("a tokenizer").to_string();
    let tokenizer = jerboa::text::Tokenizer::from_json(json.as_bytes()).expect("a tokenizer");
    for (text, ids) in [
        ("ab a", vec![1, 3, 7, 3]),
        (" ab", vec![1, 6, 4]),
        ("ß", vec![1, 8 + 0xc3, 8 + 0x9f]),
    ] {
        assert_eq!(tokenizer.encode(text, true).expect("ids"), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
}

#[test]
fn gguf_tokenizer_is_a_tokenizer_json() {
    let (gguf, _) = open("gguf_q8_0");
    let tokenizer = gguf.tokenizer().expect("tokenizer");
    assert_eq!(tokenizer["model"]["type"], "BPE");
    assert_eq!(
        tokenizer["model"]["vocab"].as_object().map(|v| v.len()),
        Some(300)
    );
    assert_eq!(tokenizer["model"]["merges"][0], "t h");
    assert_eq!(tokenizer["added_tokens"][2]["content"], "</s>");
    assert_eq!(gguf.tokenizer_config()["eos_token"], "</s>");
    assert_eq!(gguf.stop_ids(), [2]);
}
