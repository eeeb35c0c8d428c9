//! The cache of weights quantized on load: the next load reads it instead of the files, with equal
//! results.

use super::greedy;
use jerboa::exec::{ModelFiles, Precision, PrecisionOptions, RunOptions, Session};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa_tests::golden::golden;
use jerboa_tests::open;
use pollster::block_on;
use std::path::{Path, PathBuf};

fn load(folder: &Path, cache: &Path, precision: Precision) -> Session {
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy())?;
        let hub = HubOptions {
            cache_dir: Some(cache.into()),
            ..HubOptions::default()
        };
        let source = Source::open(&model, &hub, AbortFlag::new(), Progress::silent()).await?;
        let files = ModelFiles::open(&source, None).await?;
        let overrides = PrecisionOptions {
            precision,
            ..PrecisionOptions::default()
        };
        let options = RunOptions {
            max_context: Some(64),
            overrides,
            ..RunOptions::default()
        };
        Session::load_files(open(&DeviceOptions::default()), &source, files, options).await
    })
    .expect("the model")
}

/// Cache entries of quantized weights.
fn made(cache: &Path) -> Vec<PathBuf> {
    let sources = std::fs::read_dir(cache)
        .map(|list| list.flatten().map(|e| e.path().join("~made")).collect());
    let folders: Vec<PathBuf> = sources.unwrap_or_default();
    let lists = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok());
    let mut entries: Vec<PathBuf> = lists
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries
}

#[test]
fn the_second_load_reads_what_the_first_quantized() {
    let root = std::env::temp_dir().join(format!("jerboa-quantized-{}", std::process::id()));
    let folder = root.join("model");
    let cache = root.join("cache");

    std::fs::create_dir_all(&folder).expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("models/qwen3").join(file), folder.join(file)).expect(file);
    }
    let ids: Vec<u32> = (1..12).collect();
    let answer = |precision| {
        let mut model = load(&folder, &cache, precision);
        let logits = block_on(model.all_rows(&ids, false)).expect("logits");
        (
            logits,
            greedy(&mut model, &ids, 8),
            model.model().load.bytes,
        )
    };
    let first = answer(Precision::Q4);
    assert!(made(&cache).len() > 3, "nothing is cached");
    let second = answer(Precision::Q4);
    assert!(
        (&second.0, &second.1) == (&first.0, &first.1),
        "another answer"
    );
    assert!(
        second.2 * 3 < first.2,
        "{} bytes, after {}",
        second.2,
        first.2
    );

    // A missing entry is quantized again, with all of its tensor, and cached again.
    let pieces = made(&cache);
    std::fs::remove_file(&pieces[0]).expect("a cached entry");
    let third = answer(Precision::Q4);
    assert!(
        (&third.0, &third.1) == (&first.0, &first.1),
        "another answer"
    );
    assert!(third.2 > second.2 && third.2 < first.2, "{} bytes", third.2);
    assert_eq!(made(&cache), pieces);

    // Other layouts and other files have their own entries.
    let eight = answer(Precision::Q8);
    assert!(eight.2 >= first.2 && eight.0 != first.0);
    let mut bytes = std::fs::read(folder.join("model.safetensors")).expect("weights");
    let end = bytes.len();
    bytes[end / 2..end / 2 + 400].fill(0);
    std::fs::write(folder.join("model.safetensors"), bytes).expect("weights");
    let other = answer(Precision::Q8);
    assert!(other.2 == eight.2 && other.0 != eight.0);
    std::fs::remove_dir_all(&root).expect("removed");
}
