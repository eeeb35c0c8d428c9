//! Repositories and folders without a model's files, or with others in their place.

use super::options;
use super::server::Server;
use jerboa::Error;
use jerboa::exec::ModelFiles;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use pollster::block_on;

const CONFIG: &[u8] = br#"{"architectures":["LlamaForCausalLM"],"model_type":"llama"}"#;
const LFS_POINTER: &[u8] =
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234567\n";

fn open_files(name: &str, options: &HubOptions) -> Error {
    let opened = block_on(async {
        let model = ModelRef::parse(name)?;
        let source = Source::open(&model, options, AbortFlag::new(), Progress::silent()).await?;
        ModelFiles::open(&source, None).await
    });
    opened.expect_err("no model")
}

/// The errors of a repository on a Hub and of a local folder with these files.
fn refusals(files: &[(&str, &[u8])]) -> [Error; 2] {
    let server = Server::start();
    for (name, bytes) in files {
        server.file(name, bytes);
    }
    let folder = server.root.join("org/model");
    [
        open_files("org/model", &options(&server)),
        open_files(&folder.to_string_lossy(), &HubOptions::default()),
    ]
}

#[test]
fn git_lfs_pointers_are_named() {
    for files in [
        &[("config.json", CONFIG), ("model.safetensors", LFS_POINTER)][..],
        &[("model-Q4_K_M.gguf", LFS_POINTER)],
        &[("config.json", LFS_POINTER)],
    ] {
        let (file, _) = files[files.len() - 1];
        for error in refusals(files) {
            assert_eq!(error.code(), "malformed", "{error}");
            let message = error.to_string();
            assert!(
                message.starts_with(file) && message.contains("run 'git lfs pull'"),
                "{message}"
            );
        }
    }
}

/// The Hub's files are listed with those of subfolders.
#[test]
fn adapters_and_weights_under_other_names_are_named() {
    let lora: &[u8] = br#"{"peft_type":"LORA","base_model_name_or_path":"org/base"}"#;
    let nameless: &[u8] = br#"{"peft_type":"LORA"}"#;
    let ia3: &[u8] = br#"{"peft_type":"IA3","base_model_name_or_path":"org/base"}"#;
    let mlx: &[u8] = br#"{"fine_tune_type":"lora","model":"org/base"}"#;
    let adapter = "adapter_config.json";
    let load_base = "This is a LoRA adapter of 'org/base'. Load 'org/base', then pass the adapter to model.loadAdapter.";
    let index = "Add model.safetensors.index.json, which lists the shards under their names.";
    for (files, missing, hint) in [
        (
            &[(adapter, lora), ("adapter_model.safetensors", b"x")][..],
            "config.json",
            load_base,
        ),
        (
            &[(adapter, lora), ("config.json", CONFIG)],
            "model.safetensors",
            load_base,
        ),
        (
            &[(adapter, nameless)],
            "config.json",
            "This is a LoRA adapter of its base model. Load its base model, then",
        ),
        (
            &[(adapter, ia3)],
            "config.json",
            "an adapter of 'org/base' of the type IA3, which is not supported",
        ),
        (
            &[(adapter, mlx), ("adapters.safetensors", b"x")],
            "config.json",
            "an MLX adapter of 'org/base', which is not supported. Merge it with mlx_lm.fuse",
        ),
        (
            &[
                ("config.json", CONFIG),
                ("model-00001-of-00002.safetensors", b"x"),
                ("model-00002-of-00002.safetensors", b"x"),
            ],
            "model.safetensors",
            &format!(
                "Found: model-00001-of-00002.safetensors, model-00002-of-00002.safetensors. {index}"
            ),
        ),
        (
            &[("config.json", CONFIG), ("consolidated.safetensors", b"x")],
            "model.safetensors",
            "Found: consolidated.safetensors. These weights have other tensor names",
        ),
        (
            &[
                ("config.json", CONFIG),
                ("gptq_model-4bit-128g.safetensors", b"x"),
            ],
            "model.safetensors",
            "Found: gptq_model-4bit-128g.safetensors. Rename the model's weights to model.safetensors.",
        ),
        (
            &[
                ("config.json", CONFIG),
                ("a.bin", b"x"),
                ("b.bin", b"x"),
                ("c.bin", b"x"),
                ("d.bin", b"x"),
                ("e.bin", b"x"),
            ],
            "model.safetensors",
            "Found: a.bin, b.bin, c.bin and 2 more. Convert the weights to safetensors",
        ),
        (
            &[("model.safetensors", b"x")],
            "config.json",
            "Found: model.safetensors. Add the config.json",
        ),
    ] {
        for error in refusals(files) {
            // Without config.json a repository's name may be wrong, unless it is an adapter.
            if error.code() == "not_found" && hint.starts_with("Found: model.safetensors") {
                continue;
            }
            assert_eq!(error.code(), "missing_file", "{error}");
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("{missing} is missing from "))
                    && message.contains(hint),
                "{hint}: {message}"
            );
        }
    }
    let files: &[(&str, &[u8])] = &[("config.json", CONFIG), ("weights/model.safetensors", b"x")];
    let [error, _] = refusals(files);
    let hint = "Found: weights/model.safetensors. Move the model's weights next to config.json";
    assert!(error.to_string().contains(hint), "{error}");
}
