//! GGUF models in several files, and metadata of layers, by llama.cpp's rules.

use jerboa::exec::ModelFiles;
use jerboa::format::gguf::{self, MetadataValue};
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa_tests::gguf::GgufFile;
use pollster::block_on;
use serde_json::json;
use std::path::{Path, PathBuf};

/// A decoder of two layers with distinguishable tensors.
fn model() -> GgufFile {
    let mut file = GgufFile::new("llama");
    for (key, n) in [
        ("embedding_length", 8),
        ("block_count", 2),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("context_length", 64),
    ] {
        file.set(&format!("llama.{key}"), MetadataValue::Int(n));
    }
    file.set(
        "llama.attention.layer_norm_rms_epsilon",
        MetadataValue::Float(1e-5),
    );
    let mut count = 0.0;
    let mut add = |name: &str, shape: &[usize]| {
        let numbers = (0..shape.iter().product::<usize>())
            .map(|i| count + i as f32)
            .collect();
        count += 1000.0;
        file.tensor(name, shape, numbers);
    };
    add("token_embd.weight", &[12, 8]);
    add("output_norm.weight", &[8]);
    for layer in 0..2 {
        let names: [(&str, &[usize]); 9] = [
            ("attn_norm", &[8]),
            ("attn_q", &[8, 8]),
            ("attn_k", &[4, 8]),
            ("attn_v", &[4, 8]),
            ("attn_output", &[8, 8]),
            ("ffn_norm", &[8]),
            ("ffn_gate", &[16, 8]),
            ("ffn_up", &[16, 8]),
            ("ffn_down", &[8, 16]),
        ];
        names
            .iter()
            .for_each(|(name, shape)| add(&format!("blk.{layer}.{name}.weight"), shape));
    }
    file
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("parts-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn source(path: &Path) -> jerboa::Result<Source> {
    let model = ModelRef::parse(&path.to_string_lossy())?;
    Source::open(
        &model,
        &HubOptions::default(),
        AbortFlag::new(),
        Progress::silent(),
    )
    .await
}

/// Every tensor's bytes by the original's names.
fn contents(path: &Path) -> jerboa::Result<Vec<(String, Vec<u8>)>> {
    block_on(async {
        let source = source(path).await?;
        let files = ModelFiles::open(&source, None).await?;
        let mut out = Vec::new();
        for weight in files.weights.iter() {
            let info = &weight.parts[0].info;
            let file = &files.checkpoint.files[info.file].name;
            out.push((
                weight.name.clone(),
                source.read_range(file, info.range.clone()).await?,
            ));
        }
        Ok(out)
    })
}

#[test]
fn a_split_model_equals_the_single_file() {
    let file = model();
    let whole = Folder::new("whole");
    let parts = Folder::new("three");

    std::fs::write(whole.0.join("tiny.gguf"), file.bytes()).expect("written");
    let expected = contents(&whole.0).expect("a model");
    assert_eq!(expected.len(), 20);
    let name = |n: usize| format!("tiny-Q8_0-{n:05}-of-00003.gguf");
    for (index, bytes) in file.parts(3).iter().enumerate() {
        std::fs::write(parts.0.join(name(index + 1)), bytes).expect("written");
    }
    // Found by the folder, by the first file, and by any other file.
    for path in [
        parts.0.clone(),
        parts.0.join(name(1)),
        parts.0.join(name(3)),
    ] {
        assert_eq!(
            contents(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            expected
        );
    }
    // A missing part is named, also the first one.
    for lost in [2, 1] {
        std::fs::rename(parts.0.join(name(lost)), parts.0.join("away")).expect("moved");
        let error = contents(&parts.0.join(name(3))).expect_err("a part is missing");
        assert_eq!(error.code(), "missing_file");
        let message = error.to_string();
        assert!(
            message.contains(&name(lost)) && message.contains(&format!("part {lost} of 3")),
            "{message}"
        );
        std::fs::rename(parts.0.join("away"), parts.0.join(name(lost))).expect("moved");
    }
    // The folder names the first part too.
    std::fs::rename(parts.0.join(name(1)), parts.0.join("away")).expect("moved");
    let error = contents(&parts.0).expect_err("the first part is missing");
    let message = error.to_string();
    assert!(
        error.code() == "missing_file" && message.starts_with(&name(1)),
        "{message}"
    );
    std::fs::rename(parts.0.join("away"), parts.0.join(name(1))).expect("moved");
    // Parts of another model, or in another position.
    std::fs::copy(parts.0.join(name(3)), parts.0.join(name(2))).expect("copied");
    let message = contents(&parts.0).expect_err("the third twice").to_string();
    assert!(
        message.contains("part 3 of 3, expected part 2 of 3. Give the parts their original names"),
        "{message}"
    );
    // A part under another name.
    let renamed = Folder::new("renamed");
    std::fs::copy(parts.0.join(name(1)), renamed.0.join("tiny.gguf")).expect("copied");
    let message = contents(&renamed.0).expect_err("a part").to_string();
    assert!(
        message.contains("one of 3 parts")
            && message.ends_with("Give the parts their original names."),
        "{message}"
    );
}

#[test]
fn names_of_parts_are_read() {
    assert_eq!(
        gguf::parse_split_name("a/b-00002-of-00010.gguf"),
        Some(("a/b", 2, 10))
    );
    assert_eq!(
        gguf::split_file_name("a/b-00002-of-00010.GGUF", 1).as_deref(),
        Some("a/b-00001-of-00010.GGUF")
    );
    for name in [
        "b.gguf",
        "b-2-of-3.gguf",
        "b-00004-of-00003.gguf",
        "b-00000-of-00003.gguf",
        "b-00001-of-00003.bin",
    ] {
        assert_eq!(gguf::parse_split_name(name), None, "{name}");
    }
}

/// The configuration of a file, with some keys set.
fn config(keys: &[(&str, MetadataValue)]) -> jerboa::Result<jerboa::arch::LoadConfig> {
    let mut file = model();
    for (key, value) in keys {
        file.set(&format!("llama.{key}"), value.clone());
    }
    let folder = Folder::new(&format!(
        "config-{}",
        keys.iter().map(|k| k.0).collect::<String>()
    ));
    std::fs::write(folder.0.join("tiny.gguf"), file.bytes()).expect("written");
    block_on(async {
        Ok(ModelFiles::open(&source(&folder.0).await?, None)
            .await?
            .config)
    })
}

#[test]
fn metadata_is_read_by_the_rules_of_llama_cpp() {
    let text = |t: &str| MetadataValue::Text(t.into());
    let scaling = |keys: &[(&str, MetadataValue)]| {
        config(keys).expect("a configuration")["rope_parameters"].clone()
    };
    assert_eq!(scaling(&[]), json!(null));
    // A factor alone means linear scaling, also under its old name; type `none` ignores the factor.
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        assert_eq!(
            scaling(&[(key, MetadataValue::Float(4.0))])["rope_type"],
            "linear",
            "{key}"
        );
    }
    let none = [
        ("rope.scaling.type", text("none")),
        ("rope.scaling.factor", MetadataValue::Float(4.0)),
    ];
    assert_eq!(scaling(&none), json!(null));
    let yarn = scaling(&[
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", MetadataValue::Float(4.0)),
        (
            "rope.scaling.original_context_length",
            MetadataValue::Int(16),
        ),
        ("rope.scaling.attn_factor", MetadataValue::Float(0.5)),
        ("rope.scaling.yarn_beta_fast", MetadataValue::Float(16.0)),
    ]);
    let attention = yarn["attention_factor"].as_f64().expect("a factor");
    assert!(
        (attention - 0.5 * (1.0 + 0.1 * 4f64.ln())).abs() < 1e-9,
        "{yarn}"
    );
    assert_eq!(
        (
            &yarn["beta_fast"],
            &yarn["original_max_position_embeddings"]
        ),
        (&json!(16), &json!(16))
    );
    // An unknown type is refused when the graph is built.
    let other = config(&[("rope.scaling.type", text("spiral"))]).expect("a configuration");
    let refused = jerboa::arch::graph(&other)
        .expect_err("a refusal")
        .to_string();
    assert!(refused.contains("spiral"), "{refused}");
    // Layers for multi-token prediction are not layers of the model.
    assert_eq!(
        config(&[("nextn_predict_layers", MetadataValue::Int(1))]).expect("read")["num_hidden_layers"],
        1
    );
    // Lists name kinds of layers, and sizes that must not differ but do.
    let kinds = config(&[(
        "attention.sliding_window_pattern",
        MetadataValue::Ints(vec![1, 0]),
    )])
    .expect("read");
    assert_eq!(
        kinds["layer_types"],
        json!(["sliding_attention", "full_attention"])
    );
    let refused = config(&[("feed_forward_length", MetadataValue::Ints(vec![16, 8]))])
        .expect_err("a refusal")
        .to_string();
    assert!(
        refused.contains("feed_forward_length") && refused.contains("16 and 8"),
        "{refused}"
    );
    assert!(config(&[("feed_forward_length", MetadataValue::Ints(vec![16, 16]))]).is_ok());
}
