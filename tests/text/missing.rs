//! Folders without a supported tokenizer: the errors name what is there and what to add.

use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::task::TextPipeline;
use pollster::block_on;

/// Loads the tokenizer of a folder with these files and returns the error.
fn error_of(name: &str, files: &[(&str, &str)]) -> String {
    let folder = std::env::temp_dir().join(format!("jerboa-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (file, content) in files {
        std::fs::write(folder.join(file), content).expect("a file");
    }
    let opened = block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let hub = HubOptions::default();
        let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent()).await?;
        TextPipeline::open(&source).await
    });
    std::fs::remove_dir_all(&folder).expect("the folder");
    opened.expect_err("no tokenizer").to_string()
}

#[test]
fn vocabularies_of_unsupported_formats_are_named() {
    let config = ("config.json", "{}");
    for file in [
        "qwen.tiktoken",
        "source.spm",
        "tekken.json",
        "tiktoken.model",
        "tokenizer.model.v3",
    ] {
        let error = error_of(file, &[config, (file, "{}")]);
        assert!(
            error.contains(&format!("the format of {file:?} is not supported"))
                && error.contains("tokenizer.json"),
            "{error}"
        );
    }
    let error = error_of("none", &[config, ("tiktoken.json", "{}")]);
    assert!(error.contains("there is no tokenizer.json"), "{error}");
}
