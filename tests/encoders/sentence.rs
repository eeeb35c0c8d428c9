//! modules.json and the files that it names, and what is refused.

use super::folder::{Folder, load};
use jerboa::exec::RunOptions;
use jerboa::gpu::DeviceOptions;
use jerboa::ir::{Activation, Pooling};
use jerboa::task::SentenceTransformersConfig;
use jerboa_tests::golden::{golden, open};
use pollster::block_on;
use serde_json::{Value, json};

fn read(folder: &std::path::Path) -> jerboa::Result<Option<SentenceTransformersConfig>> {
    block_on(async { SentenceTransformersConfig::read(&open(folder).await?).await })
}

#[test]
fn pooling_is_read_from_the_checkpoint() {
    for (name, pooling, dense) in [
        ("bert", Pooling::Mean, vec![]),
        ("xlm_roberta_cls", Pooling::First, vec![]),
        ("qwen3_embedding", Pooling::Last, vec![]),
        (
            "embeddinggemma",
            Pooling::Mean,
            vec![("2_Dense", 48, 96), ("3_Dense", 96, 48)],
        ),
    ] {
        let config = read(&golden(&format!("models/{name}")))
            .expect(name)
            .expect("modules.json");
        let layers: Vec<(&str, usize, usize)> = config
            .dense
            .iter()
            .map(|d| (d.path.as_str(), d.inputs, d.outputs))
            .collect();
        assert_eq!(
            (config.pooling, config.normalize, layers),
            (pooling, true, dense),
            "{name}"
        );
    }
    assert_eq!(
        read(&golden("models/bert_reranker")).expect("no modules.json"),
        None
    );
}

/// A folder with modules of these types, each with its configuration.
fn folder(name: &str, modules: &[(&str, Value)]) -> Folder {
    let folder = Folder::new(name);
    let list: Vec<Value> = modules
        .iter()
        .enumerate()
        .map(|(i, (kind, _))| json!({ "type": format!("package.of.{kind}"), "path": format!("{i}_{kind}") }))
        .collect();
    folder.write("modules.json", json!(list).to_string());
    for (i, (kind, settings)) in modules.iter().enumerate() {
        folder.write(&format!("{i}_{kind}/config.json"), settings.to_string());
    }
    folder
}

#[test]
fn new_spellings_prompts_and_lengths_are_read() {
    let dense = json!({ "in_features": 8, "out_features": 4, "activation_function": "torch.nn.modules.activation.GELU" });
    let pooling = json!({ "embedding_dimension": 8, "pooling_mode": "weightedmean", "include_prompt": false });
    let modules = [
        ("Transformer", json!({})),
        ("Pooling", pooling),
        ("Dense", dense),
        ("Normalize", json!({})),
    ];
    let folder = folder("spellings", &modules);
    folder.write(
        "sentence_bert_config.json",
        json!({ "max_seq_length": 77, "do_lower_case": true }).to_string(),
    );
    let prompts = json!({ "prompts": { "query": "q: ", "passage": "p: ", "sts": "s: " }, "default_prompt_name": "sts" });
    folder.write("config_sentence_transformers.json", prompts.to_string());
    let config = read(&folder.0).expect("readable").expect("modules.json");
    assert_eq!(
        (config.pooling, config.include_prompt, config.normalize),
        (Pooling::Weighted, false, true)
    );
    assert_eq!(
        (config.dense[0].act, config.dense[0].bias),
        (Activation::Gelu, true)
    );
    assert_eq!((config.max_length, config.lower_case), (Some(77), true));
    let prompt = |task, prompt| config.prompt(task, prompt).expect("a prompt").to_string();
    assert_eq!(prompt(None, None), "s: ");
    assert_eq!(prompt(Some("query"), None), "q: ");
    assert_eq!(prompt(Some("document"), None), "p: ");
    assert_eq!(prompt(Some("query"), Some("mine: ")), "mine: ");
    let error = config
        .prompt(Some("clustering"), None)
        .expect_err("unknown")
        .to_string();
    assert!(error.contains("passage, query, sts"), "{error}");
}

#[test]
fn unsupported_modules_are_refused_by_name() {
    let both = json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true });
    let dense = json!({ "in_features": 8, "out_features": 4, "use_residual": true });
    for (name, modules, word) in [
        ("two", vec![("Pooling", both)], "several modes"),
        (
            "residual",
            vec![("Pooling", json!({})), ("Dense", dense)],
            "use_residual",
        ),
        (
            "lstm",
            vec![("LSTM", json!({})), ("Pooling", json!({}))],
            "LSTM",
        ),
        (
            "late",
            vec![
                ("Pooling", json!({})),
                ("Normalize", json!({})),
                ("Dense", json!({})),
            ],
            "after Normalize",
        ),
    ] {
        let error = read(&folder(name, &modules).0).expect_err(name);
        assert_eq!(error.code(), "unsupported_option");
        assert!(error.to_string().contains(word), "{error}");
    }
    let broken = folder("broken", &[("Pooling", json!({}))]);
    broken.write("modules.json", "[{");
    assert_eq!(read(&broken.0).expect_err("no JSON").code(), "config");
    let empty = folder(
        "empty",
        &[
            ("Pooling", json!({})),
            ("Dense", json!({ "in_features": 0 })),
        ],
    );
    assert_eq!(read(&empty.0).expect_err("a count").code(), "config");
}

/// Runs with the stack size of a program's main thread: unoptimized stack frames of a load exceed a
/// test thread's stack.
#[test]
fn folders_load_with_their_own_task() {
    let thread = std::thread::Builder::new()
        .stack_size(8 << 20)
        .spawn(load_folders)
        .expect("a thread");
    thread
        .join()
        .unwrap_or_else(|cause| std::panic::resume_unwind(cause));
}

fn load_folders() {
    for (name, task) in [
        ("models/bert", "embed"),
        ("models/embeddinggemma", "embed"),
        ("models/qwen3_embedding", "embed"),
        ("models/bert_reranker", "rerank"),
        ("models/xlm_roberta_reranker", "rerank"),
        ("models/qwen3", "generate"),
    ] {
        let device = DeviceOptions {
            f16: false,
            ..DeviceOptions::default()
        };
        let model = load(&golden(name), None, &device, RunOptions::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.task().name(), task, "{name}");
        assert_eq!(model.info()["task"], json!(task), "{name}");
        assert_eq!(model.info()["precision"], json!("stored"), "{name}");
        assert!(model.info()["parameters"].as_u64() > Some(1000), "{name}");
    }
}
