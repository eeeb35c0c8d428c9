//! Integrity checks detect device faults: weights that were not uploaded, dispatches that did not
//! run.

use super::{greedy, with_kv};
use jerboa::diag::verify_model;
use jerboa::exec::{Model, ModelFiles};
use jerboa::gpu::{Backend, DeviceOptions};
use jerboa::kernels::attention::Kv;
use jerboa::{Error, Result};
use jerboa_tests::golden::{golden, load, open as source};
use jerboa_tests::open;
use pollster::block_on;
use std::path::{Path, PathBuf};
use std::rc::Rc;

fn files(folder: &Path) -> Result<ModelFiles> {
    block_on(async { ModelFiles::open(&source(folder).await?, None).await })
}

/// Checks a folder's model against the files of another folder; returns the names and reasons of
/// failed checks.
fn faults(model: &Rc<Model>, folder: &Path) -> Vec<(&'static str, String)> {
    let files = files(folder).expect("files");
    let from = block_on(source(folder)).expect("a source");
    let checks = block_on(verify_model(model, &from, &files, 1 << 20)).expect("a device");
    assert!(checks.len() > 1);
    checks
        .into_iter()
        .filter(|c| !c.ok)
        .map(|c| (c.name, c.problem))
        .collect()
}

/// Copies a golden model and changes bytes after its header.
fn changed(name: &str, change: impl Fn(&mut [u8])) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("jerboa-integrity-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let from = golden(&format!("models/{name}"));
    std::fs::copy(from.join("config.json"), folder.join("config.json")).expect("config.json");
    let mut bytes = std::fs::read(from.join("model.safetensors")).expect("weights");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize + 8;
    change(&mut bytes[header..]);
    std::fs::write(folder.join("model.safetensors"), bytes).expect("weights");
    folder
}

#[test]
fn zero_weights_are_detected() {
    let folder = changed("qwen3", |bytes| bytes.fill(0));
    let mut model =
        load(open(&DeviceOptions::default()), &folder, with_kv(Kv::F32)).expect("a model");
    block_on(model.prefill(&[1, 2, 3], 0)).expect("prefill");
    let refused = |result: Result<Vec<f32>>| matches!(result, Err(Error::NotFinite { .. }));
    assert!(refused(block_on(model.logits())));
    assert!(refused(block_on(model.all_rows(&[1, 2, 3], false))));
    std::fs::remove_dir_all(&folder).expect("removed");
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        greedy(&mut model, &[1, 2, 3], 4)
    }));
    assert!(asked.is_err(), "tokens came of zeros");
}

#[test]
fn changed_weights_are_detected() {
    for name in ["qwen3", "bitnet_packed"] {
        let folder = golden(&format!("models/{name}"));
        let model =
            load(open(&DeviceOptions::default()), &folder, with_kv(Kv::F32)).expect("a model");
        assert_eq!(faults(model.model(), &folder), [], "{name}");
        // Flips one bit in the last tensor.
        let other = changed(name, |bytes| bytes[bytes.len() - 5] ^= 0x10);
        let found = faults(model.model(), &other);
        assert!(
            matches!(&found[..], [("weights equal files", why)] if why.contains("differs from its file")),
            "{found:?}"
        );
        std::fs::remove_dir_all(&other).expect("removed");
    }
}

#[test]
fn damaged_buffers_and_skipped_matmuls_are_detected() {
    let folder = golden("quant/qwen3_gptq");
    let model = load(open(&DeviceOptions::default()), &folder, with_kv(Kv::F32)).expect("a model");
    let damaged = model
        .model()
        .weight_buffers("model.layers.1.mlp.down_proj.weight");
    assert_eq!(damaged.len(), 2, "codes and scales");
    let size = damaged[0].size();
    model.gpu().write(damaged[0], size / 2 / 4 * 4, &[0x5a; 4]);
    let found = faults(model.model(), &folder);
    assert!(
        found[0].0 == "weights equal files" && found[0].1.contains("layers.1.mlp.down_proj"),
        "{found:?}"
    );

    let device = DeviceOptions {
        omit: Some("check/product"),
        ..DeviceOptions::default()
    };
    for name in ["quant/qwen3_gptq", "models/qwen3", "models/bitnet_packed"] {
        let folder = golden(name);
        let model = load(open(&device), &folder, with_kv(Kv::F32)).expect("a model");
        let found = faults(model.model(), &folder);
        assert!(
            matches!(&found[..], [("matmul equals CPU", _)]),
            "{name}: {found:?}"
        );
    }
}

#[test]
fn skipped_dispatches_are_detected() {
    let folder = golden("models/qwen3");
    for omit in [
        "decode/logits",
        "decode/model.layers.1.mlp_residual",
        "prefill/model.layers.0.self_attn.attention",
    ] {
        let device = DeviceOptions {
            omit: Some(omit),
            ..DeviceOptions::default()
        };
        let model = load(open(&device), &folder, with_kv(Kv::F32)).expect("a model");
        let found = faults(model.model(), &folder);
        assert!(
            matches!(&found[..], [("prefill equals decode", _)]),
            "without {omit}: {found:?}"
        );
    }
}
