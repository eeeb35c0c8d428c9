//! GGUF files whose converter joined q, k and v, and GGUF files that are not models.

use jerboa::exec::{ModelFiles, PrecisionOptions, RunOptions, Session};
use jerboa::format::gguf::MetadataValue;
use jerboa::gpu::DeviceOptions;
use jerboa::kernels::attention::Kv;
use jerboa_tests::gguf::GgufFile;
use jerboa_tests::golden::{hashed, open as files_of};
use jerboa_tests::open;
use pollster::block_on;
use std::path::{Path, PathBuf};

struct Folder(PathBuf);

impl Folder {
    /// A folder with one file, `model.gguf`.
    fn new(name: &str, file: &GgufFile) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("gguf-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("model.gguf"), file.bytes()).expect("a file");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A decoder of two layers: 4 heads and 2 KV heads of 4 columns.
fn decoder(architecture: &str, biased: bool, joined: bool) -> GgufFile {
    let mut file = GgufFile::new(architecture);
    for (key, n) in [
        ("embedding_length", 16),
        ("block_count", 2),
        ("feed_forward_length", 24),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 4),
        ("attention.value_length", 4),
        ("context_length", 64),
    ] {
        file.set(&format!("{architecture}.{key}"), MetadataValue::Int(n));
    }
    for (key, x) in [
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("embedding_scale", 1.5),
        ("residual_scale", 0.5),
        ("attention.scale", 0.4),
        ("logit_scale", 2.0),
    ] {
        file.set(&format!("{architecture}.{key}"), MetadataValue::Float(x));
    }
    let values = |name: &str, shape: &[usize]| {
        let norm = name.ends_with("norm.weight");
        hashed(
            name,
            shape.iter().product(),
            0.5,
            if norm { 1.0 } else { 0.0 },
        )
    };
    let mut add = |name: &str, shape: &[usize]| {
        file.tensor(name, shape, values(name, shape));
    };
    add("token_embd.weight", &[12, 16]);
    add("output_norm.weight", &[16]);
    for layer in 0..2 {
        for (name, shape) in [
            ("attn_norm.weight", &[16][..]),
            ("attn_output.weight", &[16, 16]),
            ("ffn_norm.weight", &[16]),
            ("ffn_gate.weight", &[24, 16]),
            ("ffn_up.weight", &[24, 16]),
            ("ffn_down.weight", &[16, 24]),
        ] {
            add(&format!("blk.{layer}.{name}"), shape);
        }
        if architecture == "llama" && biased {
            add(&format!("blk.{layer}.attn_output.bias"), &[16]);
        }
        if architecture == "qwen3" {
            add(&format!("blk.{layer}.attn_q_norm.weight"), &[4]);
            add(&format!("blk.{layer}.attn_k_norm.weight"), &[4]);
        }
    }
    for layer in 0..2 {
        for (kind, cols) in [("weight", Some(16)), ("bias", None)] {
            if kind == "bias" && !biased {
                continue;
            }
            let shape =
                |rows: usize| -> Vec<usize> { [Some(rows), cols].into_iter().flatten().collect() };
            let mut all = Vec::new();
            for (module, rows) in [("attn_q", 16), ("attn_k", 8), ("attn_v", 8)] {
                let name = format!("blk.{layer}.{module}.{kind}");
                let values = values(&name, &shape(rows));
                all.extend(values.iter().copied());
                if !joined {
                    file.tensor(&name, &shape(rows), values);
                }
            }
            if joined {
                file.tensor(&format!("blk.{layer}.attn_qkv.{kind}"), &shape(32), all);
            }
        }
    }
    file
}

fn logits(name: &str, file: &GgufFile) -> jerboa::Result<Vec<f32>> {
    let folder = Folder::new(name, file);
    let device = DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    };
    let options = RunOptions {
        max_context: Some(64),
        overrides: PrecisionOptions {
            kv_type: Some(Kv::F32),
            ..PrecisionOptions::default()
        },
        ..RunOptions::default()
    };
    block_on(async {
        let source = files_of(&folder.0).await?;
        let files = ModelFiles::open(&source, Some("model.gguf")).await?;
        let mut session = Session::load_files(open(&device), &source, files, options).await?;
        session.all_rows(&[3, 1, 4, 1, 5, 9], false).await
    })
}

/// `--fuse-qkv` of llama.cpp's conversion.
#[test]
fn joined_q_k_v_give_the_logits_of_separate_ones() {
    // Llama and Granite store q and k for interleaved RoPE.
    for (architecture, biased) in [
        ("llama", false),
        ("llama", true),
        ("granite", false),
        ("qwen2", true),
        ("qwen3", false),
    ] {
        let run = |joined: bool| {
            logits(
                &format!("{architecture}-{biased}-{joined}"),
                &decoder(architecture, biased, joined),
            )
            .unwrap_or_else(|e| panic!("{architecture}: {e}"))
        };
        let separate = run(false);
        assert!(separate.iter().all(|x| x.is_finite()), "{architecture}");
        assert_eq!(run(true), separate, "{architecture}");
    }
    let mut wrong = decoder("llama", false, true);
    wrong.set("llama.attention.head_count_kv", MetadataValue::Int(1));
    let error = logits("wrong", &wrong).expect_err("6 heads in 32 rows");
    assert!(
        error.to_string().contains("blk.0.attn_qkv.weight"),
        "{error}"
    );
}

#[test]
fn files_that_are_not_models_are_refused_by_their_kind() {
    let text = |t: &str| MetadataValue::Text(t.into());
    let mut adapter = GgufFile::new("llama");
    adapter
        .set("general.type", text("adapter"))
        .set("adapter.type", text("lora"))
        .set("general.base_model.0.name", text("Tiny Llama"))
        .tensor("blk.0.attn_q.weight.lora_a", &[4, 16], vec![0.0; 64]);
    let mut encoder = GgufFile::new("clip");
    encoder.set("general.type", text("mmproj")).tensor(
        "v.blk.0.attn_q.weight",
        &[8, 8],
        vec![0.0; 64],
    );
    let mut matrix = GgufFile::default();
    matrix
        .set("imatrix.chunk_count", MetadataValue::Int(3))
        .tensor("blk.0.attn_q.weight.in_sum2", &[16], vec![0.0; 16]);
    let mut typed = GgufFile::default();
    typed.set("general.type", text("imatrix")).tensor(
        "blk.0.attn_q.weight.in_sum2",
        &[16],
        vec![0.0; 16],
    );
    let mut control = GgufFile::new("controlvector");
    control.tensor("direction.1", &[16], vec![0.0; 16]);
    let mut vocabulary = GgufFile::new("llama");
    vocabulary
        .set("llama.block_count", MetadataValue::Int(2))
        .set(
            "tokenizer.ggml.tokens",
            MetadataValue::Texts(vec!["a".into()]),
        );
    let mut unnamed = GgufFile::default();
    unnamed.tensor("x", &[1], vec![0.0]);
    for (file, says) in [
        (adapter, "an adapter of Tiny Llama"),
        (encoder, "'mmproj' in its name"),
        (matrix, "imatrix"),
        (typed, "imatrix"),
        (control, "a control vector"),
        (vocabulary, "a vocabulary but no weights"),
        (unnamed, "general.architecture"),
    ] {
        let message = logits("not-a-model", &file).expect_err(says).to_string();
        assert!(
            message.starts_with("model.gguf: ") && message.contains(says),
            "{message}"
        );
    }
}
