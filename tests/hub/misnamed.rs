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
