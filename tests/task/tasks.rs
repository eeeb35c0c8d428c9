//! The tasks of a model, and the files that a load reads for them.

use jerboa::Error;
use jerboa::exec::{ModelFiles, PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::task::{Task, TaskModel};
use jerboa_tests::golden::golden;
use jerboa_tests::open;
use pollster::block_on;

async fn source(folder: &str) -> Source {
    let model = ModelRef::parse(&golden(folder).to_string_lossy()).expect("a folder");
    Source::open(
        &model,
        &HubOptions::default(),
        AbortFlag::new(),
        Progress::silent(),
    )
    .await
    .expect("a source")
}

#[test]
fn errors_name_the_method_for_the_models_task() {
    let [text, vectors, ranks, hears] = [
        ["a text-generation model", "'generate'"],
        ["an embedding model", "'embed'"],
        ["a reranking model", "'rerank'"],
        ["a speech-to-text model", "'transcribe'"],
    ];
    for (folder, task, cannot, own) in [
        (
            "models/bert",
            Task::Generate,
            "cannot generate text",
            vectors,
        ),
        (
            "models/bert",
            Task::Rerank,
            "cannot rerank documents",
            vectors,
        ),
        (
            "models/bert",
            Task::Transcribe,
            "cannot transcribe audio",
            vectors,
        ),
        (
            "models/bert_reranker",
            Task::Generate,
            "cannot generate text",
            ranks,
        ),
        (
            "vision/pairs/clip",
            Task::Generate,
            "cannot generate text",
            vectors,
        ),
        (
            "speech/whisper",
            Task::Generate,
            "cannot generate text",
            hears,
        ),
        ("speech/whisper", Task::Embed, "cannot embed", hears),
        (
            "speech/moonshine",
            Task::Rerank,
            "cannot rerank documents",
            hears,
        ),
        (
            "speech/whisper",
            Task::Speak,
            "cannot synthesize speech",
            hears,
        ),
        (
            "models/llama",
            Task::Transcribe,
            "cannot transcribe audio",
            text,
        ),
        (
            "models/llama",
            Task::Speak,
            "cannot synthesize speech",
            text,
        ),
    ] {
        let refused = block_on(async {
            let source = source(folder).await;
            let gpu = open(&DeviceOptions::default());
            TaskModel::load(gpu, &source, "org/name", Some(task), RunOptions::default())
                .await
                .map(|model| model.task())
        });
        match refused {
            Err(Error::Request { parameter, reason }) => {
                assert_eq!(parameter, "task", "{folder}");
                let sentence = format!(
                    "org/name {cannot}: it is {}, call {} instead",
                    own[0], own[1]
                );
                assert_eq!(reason, sentence, "{folder}");
            }
            other => panic!("{folder} for {}: {other:?}", task.name()),
        }
    }
}

/// Includes the encoders of speech recognition models, vision encoders, and other files of a
/// language model.
#[test]
fn tensors_that_a_load_reads_are_not_listed_as_unused() {
    for (folder, unused) in [
        ("models/llama", &[][..]),
        ("models/bert", &["pooler.dense.bias", "pooler.dense.weight"]),
        ("models/bert_reranker", &[]),
        ("speech/whisper", &[]),
        ("speech/moonshine", &[]),
        ("speech/kani", &[]),
        ("vision/models/qwen2_5_vl", &[]),
        ("vision/models/gemma3", &[]),
        ("vision/pairs/clip", &["logit_scale"]),
    ] {
        let found = block_on(async {
            let files = ModelFiles::open_unchecked(&source(folder).await, None)
                .await
                .expect("files");
            files.inspect(PrecisionOptions::default())
        });
        assert_eq!(found.unused, unused, "{folder}");
        assert!(found.faults.is_empty(), "{folder}: {:?}", found.faults);
        let total: usize = found
            .weights
            .iter()
            .map(|w| w.shape.iter().product::<usize>())
            .sum();
        assert!(total > 1000, "{folder}");
    }
}
