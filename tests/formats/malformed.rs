//! Files that violate their container's rules, each with its error.

use jerboa::arch::{find_gguf, find_mlc};
use jerboa::exec::{ModelFiles, RunOptions, Session};
use jerboa::format::{gguf, mlc};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat()
}

/// A GGUF header: version, metadata pairs (already encoded), tensors (already encoded).
fn header(version: u32, pairs: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    out.extend(pairs.iter().flatten());
    out.extend(tensors.iter().flatten());
    out
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims_bytes: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
    let count = (dims.len() as u32).to_le_bytes();
    [
        text(name),
        count.to_vec(),
        dims_bytes,
        kind.to_le_bytes().to_vec(),
        offset.to_le_bytes().to_vec(),
    ]
    .concat()
}

fn gguf_error(file: &[u8]) -> String {
    match gguf::parse("bad.gguf", file, file.len() as u64) {
        Err(e @ (Error::Malformed { .. } | Error::UnusableFile { .. })) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn gguf_errors() {
    let array =
        |kind: u32, n: u64| [kind.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat();
    let mut counts = b"GGUF\x03\0\0\0".to_vec();
    counts.extend(u64::MAX.to_le_bytes());
    counts.extend(0u64.to_le_bytes());
    let twice = pair("a", 4, &[0; 4]);
    let align = |n: u32| pair("general.alignment", 4, &n.to_le_bytes());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGML\x03\0\0\0".to_vec(), "does not begin with 'GGUF'"),
        (b"GG".to_vec(), "cut off"),
        (
            header(1, &[], &[]),
            "version is 1; versions 2 and 3 are supported. Convert the original",
        ),
        (
            header(4, &[], &[]),
            "version is 4; versions 2 and 3 are supported. Choose a file",
        ),
        (
            header(3u32.swap_bytes(), &[], &[]),
            "big-endian GGUF file, which is not supported. Convert it to little-endian",
        ),
        (counts, "claims 18446744073709551615 tensors"),
        (header(3, &[pair("k", 77, &[])], &[]), "unknown type 77"),
        (
            header(3, &[pair("k", 9, &array(9, 1))], &[]),
            "array of the unsupported type 9",
        ),
        (
            header(3, &[pair("k", 9, &array(0, u64::MAX))], &[]),
            "claims 18446744073709551615 elements",
        ),
        (
            header(3, &[pair("k", 9, &array(8, 1 << 20))], &[]),
            "cut off",
        ),
        (
            header(3, &[pair("k", 8, &u64::MAX.to_le_bytes())], &[]),
            "claims 18446744073709551615 bytes",
        ),
        (header(3, &[twice.clone(), twice], &[]), "occurs twice"),
        (header(3, &[align(0)], &[]), "alignment is 0"),
        (header(3, &[align(48)], &[]), "alignment is 48"),
        (
            header(3, &[pair("general.alignment", 7, &[1])], &[]),
            "alignment is not an integer",
        ),
        (
            header(3, &[], &[tensor("t", &[1; 5], 0, 0)]),
            "5 dimensions",
        ),
        (
            header(3, &[], &[tensor("t", &[0], 0, 0)]),
            "is empty or has too many elements",
        ),
        (
            header(3, &[], &[tensor("t", &[1 << 40, 1 << 40], 0, 0)]),
            "is empty or has too many elements",
        ),
        (
            header(3, &[], &[tensor("t", &[33], 2, 0)]),
            "not a multiple of the Q4_0 block size",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, 8)]),
            "not at a multiple of 32",
        ),
        (
            header(3, &[], &[tensor("t", &[1 << 20], 0, 0)]),
            "ends beyond the file",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, u64::MAX - 31)]),
            "ends beyond the file",
        ),
        (
            header(3, &[], &[tensor("t", &[1], 0, 0), tensor("u", &[1], 0, 0)]),
            "ends beyond the file",
        ),
    ];
    for (file, expected) in cases {
        let message = gguf_error(&file);
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let mut overlap = header(
        3,
        &[],
        &[tensor("t", &[16], 0, 0), tensor("u", &[8], 0, 32)],
    );
    overlap.resize(overlap.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&overlap).contains("overlaps"));
    let mut twice = header(3, &[], &[tensor("t", &[8], 0, 0), tensor("t", &[8], 0, 32)]);
    twice.resize(twice.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&twice).contains("occurs twice"));
}

/// Unsupported entries are refused by name, and only when they are requested.
#[test]
fn gguf_refusals() {
    let arch = |name: &str| pair("general.architecture", 8, &text(name));
    let open = |arch_name: &str, tensors: &[Vec<u8>]| {
        let mut file = header(3, &[arch(arch_name)], tensors);
        file.resize(file.len().next_multiple_of(32) + 4096, 0);
        gguf::parse("x.gguf", &file, file.len() as u64)
            .expect("valid")
            .expect("whole")
    };
    let gguf = open("qwen2", &[tensor("blk.0.attn_q.weight", &[32, 32], 40, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "qwen2")
        .expect_err("NVFP4");
    assert!(
        matches!(&error, Error::UnsupportedEncoding { encoding, .. } if encoding == "NVFP4"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("Use a file with another quantization"),
        "{error}"
    );
    // Unknown types are named by their number.
    let gguf = open("qwen2", &[tensor("blk.0.attn_q.weight", &[32, 32], 99, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "qwen2")
        .expect_err("type 99");
    assert!(
        error.to_string().contains("stored as ggml type 99"),
        "{error}"
    );
    let error = weights
        .get("model.norm.weight", "qwen2")
        .expect_err("absent");
    assert_eq!(error.code(), "missing_tensor");
    let error = find_gguf(&open("mamba", &[])).expect_err("unmapped");
    assert!(error.to_string().contains("GGUF mamba"), "{error}");
    let gguf = open("llama", &[tensor("blk.0.attn_q.weight", &[32, 30], 0, 0)]);
    let weights = gguf.weights(find_gguf(&gguf).expect("mapped"));
    let error = weights
        .get("model.layers.0.self_attn.q_proj.weight", "llama")
        .expect_err("head count is missing");
    assert!(error.to_string().contains("head_count"));
    assert_eq!(
        open("llama", &[])
            .tokenizer()
            .expect_err("no tokens")
            .code(),
        "tokenizer"
    );
}

fn shards(record: &Value) -> Result<()> {
    let list = json!({"metadata": {}, "records": [{"dataPath": "params_shard_0.bin", "nbytes": 64, "records": [record]}]});
    mlc::parse_shards("ndarray-cache.json", &list.to_string()).map(|_| ())
}

#[test]
fn mlc_errors() {
    let record = |dtype: &str, shape: Value, nbytes: u64, offset: u64| json!({"name": "p", "shape": shape, "dtype": dtype, "format": "raw", "nbytes": nbytes, "byteOffset": offset});
    assert!(shards(&record("float16", json!([4, 8]), 64, 0)).is_ok());
    for (bad, expected) in [
        (record("float16", json!([4, 8]), 63, 0), "has 63 bytes"),
        (
            record("float16", json!([4, 8]), 64, 1),
            "ends beyond its shard",
        ),
        (
            record("float16", json!([4, 8]), 64, u64::MAX),
            "ends beyond its shard",
        ),
        (
            record("complex64", json!([4, 8]), 64, 0),
            "unknown type complex64",
        ),
        (
            record("float16", json!([u32::MAX, u32::MAX, u32::MAX]), 64, 0),
            "has 64 bytes",
        ),
        (json!({"name": "p"}), "missing field"),
    ] {
        let message = shards(&bad).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    for path in ["../x.bin", "/etc/x", "a/../../x"] {
        let list = json!({"records": [{"dataPath": path, "nbytes": 0, "records": []}]});
        let error = mlc::parse_shards("ndarray-cache.json", &list.to_string()).expect_err(path);
        assert!(
            error.to_string().contains("leaves the repository"),
            "{error}"
        );
    }
    assert_eq!(
        mlc::config("{}", find_mlc).expect_err("empty").code(),
        "config"
    );
}

#[test]
fn gguf_files_without_their_other_parts_are_refused() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("split-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = header(
        3,
        &[
            pair("general.architecture", 8, &text("llama")),
            pair("split.count", 2, &3u16.to_le_bytes()),
        ],
        &[],
    );
    std::fs::write(folder.join("x-00001-of-00003.gguf"), file).expect("written");
    let opened = pollster::block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        ModelFiles::open(&source, None).await
    });
    std::fs::remove_dir_all(&folder).expect("removed");
    let message = opened.expect_err("in parts").to_string();
    assert!(
        message.contains("x-00002-of-00003.gguf") && message.contains("part 2 of 3"),
        "{message}"
    );
}

fn load(folder: &Path, gguf: Option<&str>) -> Result<()> {
    pollster::block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        let files = ModelFiles::open(&source, gguf).await?;
        Session::load_files(
            jerboa_tests::open(&DeviceOptions::default()),
            &source,
            files,
            RunOptions::default(),
        )
        .await
    })
    .map(|_| ())
}

/// A model in two shards, the second with a bias before its weight; then each container truncated.
#[test]
fn truncated_files_are_refused() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cut-{}", std::process::id()));
    let golden = |name: &str| jerboa_tests::golden::golden(name);
    let fresh = |from: &str| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        for entry in std::fs::read_dir(golden(from)).expect(from) {
            let path = entry.expect("an entry").path();
            std::fs::copy(&path, folder.join(path.file_name().expect("a name"))).expect("copied");
        }
    };
    let cut = |name: &str, left: &dyn Fn(u64) -> u64| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(folder.join(name))
            .expect(name);
        file.set_len(left(file.metadata().expect("a size").len()))
            .expect("cut");
    };
    let refused = |gguf: Option<&str>, parts: &[&str]| {
        let error = load(&folder, gguf).expect_err("cut off");
        assert_eq!(error.code(), "malformed", "{error}");
        for part in parts.iter().chain(&["Download it again"]) {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };

    fresh("models/llama_bias");
    let file = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let all = safetensors::SafeTensors::deserialize(&file).expect("safetensors");
    let module = "model.layers.1.self_attn.q_proj.";
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let (second, first): (Vec<_>, Vec<_>) = all
        .tensors()
        .into_iter()
        .partition(|(name, _)| name.starts_with(module));
    assert_eq!(second.len(), 2, "a weight with a bias");
    let shard_of = |tensors: &[(String, _)], name| {
        tensors
            .iter()
            .map(|(t, _)| (t.clone(), json!(name)))
            .collect()
    };
    let mut map: serde_json::Map<String, Value> = shard_of(&first, names[0]);
    map.extend::<serde_json::Map<String, Value>>(shard_of(&second, names[1]));
    for (name, tensors) in names.into_iter().zip([first, second]) {
        std::fs::write(
            folder.join(name),
            safetensors::serialize(tensors, None).expect("a shard"),
        )
        .expect("written");
    }
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        json!({"weight_map": map}).to_string(),
    )
    .expect("written");
    std::fs::remove_file(folder.join("model.safetensors")).expect("removed");
    load(&folder, None).expect("whole shards");
    let size = std::fs::metadata(folder.join(names[1]))
        .expect("a shard")
        .len();
    for left in [size - 1, size - 100, size - 3000] {
        cut(names[1], &|_| left);
        refused(
            None,
            &[names[1], "q_proj.weight ends at byte", "out of range"],
        );
    }
    cut(names[1], &|_| 200);
    refused(None, &[names[1], "it is cut off: the header ends at byte"]);

    for mlc in ["quant/llama_mlc", "quant/phi3_mlc"] {
        for part in [1, 2, 3] {
            fresh(mlc);
            cut("params_shard_0.bin", &|size| size * part / 4);
            refused(
                None,
                &["params_shard_0.bin", "bytes, its tensor list requires"],
            );
        }
    }
    fresh("quant/gguf_q8_0");
    cut("model.gguf", &|size| size * 3 / 4);
    refused(
        Some("model.gguf"),
        &["model.gguf", "ends beyond the file's"],
    );
    std::fs::remove_dir_all(&folder).expect("removed");
}
