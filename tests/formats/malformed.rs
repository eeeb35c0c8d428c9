//! Files that break the rules of their container, each with the error it gets.

use jerboa::format::gguf;
use jerboa::format::mlc;
use jerboa::{Error, Result};
use serde_json::json;

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
    [text(name), count.to_vec(), dims_bytes, kind.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
}

fn gguf_error(file: &[u8]) -> String {
    match gguf::parse("bad.gguf", file, file.len() as u64) {
        Err(e @ Error::Malformed { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn gguf_errors() {
    let array = |kind: u32, n: u64| [kind.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat();
    let mut counts = b"GGUF\x03\0\0\0".to_vec();
    counts.extend(u64::MAX.to_le_bytes());
    counts.extend(0u64.to_le_bytes());
    let twice = pair("a", 4, &[0; 4]);
    let align = |n: u32| pair("general.alignment", 4, &n.to_le_bytes());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGML\x03\0\0\0".to_vec(), "does not begin with 'GGUF'"),
        (b"GG".to_vec(), "cut off"),
        (header(1, &[], &[]), "version 1"),
        (header(3u32.swap_bytes(), &[], &[]), "big-endian"),
        (counts, "claims 18446744073709551615 tensors"),
        (header(3, &[pair("k", 77, &[])], &[]), "unknown type 77"),
        (header(3, &[pair("k", 9, &array(9, 1))], &[]), "array of the type 9"),
        (header(3, &[pair("k", 9, &array(0, u64::MAX))], &[]), "claims 18446744073709551615 elements"),
        (header(3, &[pair("k", 9, &array(8, 1 << 20))], &[]), "cut off"),
        (header(3, &[pair("k", 8, &u64::MAX.to_le_bytes())], &[]), "claims 18446744073709551615 bytes"),
        (header(3, &[twice.clone(), twice], &[]), "comes twice"),
        (header(3, &[align(0)], &[]), "alignment is 0"),
        (header(3, &[align(48)], &[]), "alignment is 48"),
        (header(3, &[pair("general.alignment", 7, &[1])], &[]), "alignment is no integer"),
        (header(3, &[], &[tensor("t", &[1; 5], 0, 0)]), "5 dimensions"),
        (header(3, &[], &[tensor("t", &[0], 0, 0)]), "no or too many elements"),
        (header(3, &[], &[tensor("t", &[1 << 40, 1 << 40], 0, 0)]), "no or too many elements"),
        (header(3, &[], &[tensor("t", &[33], 2, 0)]), "not whole Q4_0 blocks"),
        (header(3, &[], &[tensor("t", &[1], 0, 8)]), "not at a multiple of 32"),
        (header(3, &[], &[tensor("t", &[1 << 20], 0, 0)]), "ends behind the file"),
        (header(3, &[], &[tensor("t", &[1], 0, u64::MAX - 31)]), "ends behind the file"),
        (header(3, &[], &[tensor("t", &[1], 0, 0), tensor("u", &[1], 0, 0)]), "ends behind the file"),
    ];
    for (file, expected) in cases {
        let message = gguf_error(&file);
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let mut overlap = header(3, &[], &[tensor("t", &[16], 0, 0), tensor("u", &[8], 0, 32)]);
    overlap.resize(overlap.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&overlap).contains("overlaps"));
    let mut twice = header(3, &[], &[tensor("t", &[8], 0, 0), tensor("t", &[8], 0, 32)]);
    twice.resize(twice.len().next_multiple_of(32) + 64, 0);
    assert!(gguf_error(&twice).contains("comes twice"));
}

/// What cannot be read is refused by its name, and only where it is asked for.
#[test]
fn gguf_refusals() {
    let arch = |name: &str| pair("general.architecture", 8, &text(name));
    let open = |arch_name: &str, tensors: &[Vec<u8>]| {
        let mut file = header(3, &[arch(arch_name)], tensors);
        file.resize(file.len().next_multiple_of(32) + 4096, 0);
        gguf::parse("x.gguf", &file, file.len() as u64).expect("valid").expect("whole")
    };
    let gguf = open("qwen2", &[tensor("blk.0.attn_q.weight", &[32, 32], 29, 0)]);
    let weights = gguf.weights().expect("mapped");
    let error = weights.get("model.layers.0.self_attn.q_proj.weight", "qwen2").expect_err("IQ1_M");
    assert!(matches!(&error, Error::UnsupportedEncoding { encoding, .. } if encoding == "IQ1_M"), "{error}");
    let error = weights.get("model.norm.weight", "qwen2").expect_err("absent");
    assert_eq!(error.code(), "missing_tensor");
    let error = open("mamba", &[]).weights().expect_err("unmapped");
    assert!(error.to_string().contains("GGUF mamba"), "{error}");
    let error = open("llama", &[tensor("blk.0.attn_q.weight", &[32, 30], 0, 0)]).weights().map(|w| {
        w.get("model.layers.0.self_attn.q_proj.weight", "llama").map(|_| ()).expect_err("head count is missing")
    });
    assert!(error.expect("mapped").to_string().contains("head_count"));
    assert_eq!(open("llama", &[]).tokenizer().expect_err("no tokens").code(), "tokenizer");
}

fn shards(record: &serde_json::Value) -> Result<()> {
    let list =
        json!({"metadata": {}, "records": [{"dataPath": "params_shard_0.bin", "nbytes": 64, "records": [record]}]});
    mlc::parse_shards("ndarray-cache.json", &list.to_string()).map(|_| ())
}

#[test]
fn mlc_errors() {
    let record = |dtype: &str, shape: serde_json::Value, nbytes: u64, offset: u64| json!({"name": "p", "shape": shape, "dtype": dtype, "format": "raw", "nbytes": nbytes, "byteOffset": offset});
    assert!(shards(&record("float16", json!([4, 8]), 64, 0)).is_ok());
    for (bad, expected) in [
        (record("float16", json!([4, 8]), 63, 0), "has 63 bytes"),
        (record("float16", json!([4, 8]), 64, 1), "ends behind its shard"),
        (record("float16", json!([4, 8]), 64, u64::MAX), "ends behind its shard"),
        (record("complex64", json!([4, 8]), 64, 0), "unknown type complex64"),
        (record("float16", json!([u32::MAX, u32::MAX, u32::MAX]), 64, 0), "has 64 bytes"),
        (json!({"name": "p"}), "missing field"),
    ] {
        let message = shards(&bad).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    for path in ["../x.bin", "/etc/x", "a/../../x"] {
        let list = json!({"records": [{"dataPath": path, "nbytes": 0, "records": []}]});
        let error = mlc::parse_shards("ndarray-cache.json", &list.to_string()).expect_err(path);
        assert!(error.to_string().contains("leaves the repository"), "{error}");
    }
    assert_eq!(mlc::config("{}").expect_err("empty").code(), "config");
}
