//! Text generation with a real engine and the bundled model: full contexts, reused prefixes,
//! aborts, stop strings, log-probabilities and sampling.

mod answers;
mod concurrent;
mod constraint;
mod context;
mod draft;
mod endurance;
mod families;
mod generation;
mod images;
mod run_ahead;
mod sampling;
mod speculation;
mod steps;
mod stops;
mod tasks;
mod thought;

use jerboa::exec::{PrecisionOptions, RunOptions};
use jerboa::gpu::DeviceOptions;
use jerboa::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use jerboa::kernels::attention::Kv;
use jerboa::task::{ChatModel, GenerateRequest, GenerationResult, TokenEvent};
use jerboa_tests::golden::golden;
use jerboa_tests::open;
use pollster::block_on;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A template that marks turns by letters, so that tests can see which turns remain.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}";

/// Reference results of the bundled model.
struct Reference {
    ids: Vec<u32>,
    prompt: String,
    prompt_ids: Vec<u32>,
    text: String,
}

impl Reference {
    /// Ids after the prompt's.
    fn new_ids(&self) -> &[u32] {
        &self.ids[self.prompt_ids.len()..]
    }

    /// Text after the prompt.
    fn new_text(&self) -> &str {
        &self.text[self.prompt.len()..]
    }
}

fn reference() -> &'static Reference {
    static READ: OnceLock<Reference> = OnceLock::new();
    READ.get_or_init(|| {
        let text = std::fs::read_to_string(golden("stories260K/golden.json")).expect("golden.json");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let ids = |name: &str| {
            json[name]
                .as_array()
                .expect("ids")
                .iter()
                .map(|v| v.as_u64().expect("id") as u32)
                .collect()
        };
        let text = |name: &str| json[name].as_str().expect("text").to_string();
        Reference {
            ids: ids("ids"),
            prompt: text("prompt"),
            prompt_ids: ids("prompt_ids"),
            text: text("text"),
        }
    })
}

/// The bundled model's folder with an additional chat template.
fn folder() -> &'static PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("stories-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let bundled = golden("../../www/public/models/stories260K");
        for file in [
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ] {
            std::fs::copy(bundled.join(file), folder.join(file)).expect("a copy");
        }
        std::fs::write(folder.join("chat_template.jinja"), TEMPLATE).expect("a template");
        folder
    })
}

/// The bundled model with a context of this many tokens, in f32.
fn stories(context: usize) -> ChatModel {
    stories_with(context, RunOptions::default())
}

fn stories_with(context: usize, options: RunOptions) -> ChatModel {
    let overrides = PrecisionOptions {
        kv_type: options.overrides.kv_type.or(Some(Kv::F32)),
        ..options.overrides
    };
    let options = RunOptions {
        max_context: Some(context),
        overrides,
        ..options
    };
    let gpu = open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    });
    block_on(async {
        let model = ModelRef::parse(&folder().to_string_lossy()).expect("a folder");
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        ChatModel::load(gpu, &source, "stories260K", options).await
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// The character of a token of the tiny models.
fn character(id: u32) -> char {
    char::from_u32(0x4e00 + id).expect("a character")
}

/// A tiny checkpoint of tests/golden/models with a tokenizer of single characters and the `added`
/// tokens, a generation_config.json and a chat template.
fn tiny_with(
    name: &str,
    generation: Option<&Value>,
    added: Value,
    template: Option<&str>,
) -> ChatModel {
    load_tiny(&tiny_files(name, generation, added, template))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The folder of [`tiny_with`].
#[allow(clippy::needless_pass_by_value)] // its callers make it for this alone
fn tiny_files(
    name: &str,
    generation: Option<&Value>,
    added: Value,
    template: Option<&str>,
) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let from = golden(&format!("models/{name}"));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("task-{name}-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&to).expect("a folder");
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.join(file)).expect("a copy");
    }
    if let Some(generation) = generation {
        std::fs::write(to.join("generation_config.json"), generation.to_string())
            .expect("a configuration");
    }
    if let Some(template) = template {
        std::fs::write(to.join("chat_template.jinja"), template).expect("a template");
    }
    let mut vocab: Map<String, Value> = (0..256)
        .map(|id| (character(id).to_string(), id.into()))
        .collect();
    for token in added.as_array().into_iter().flatten() {
        vocab.retain(|_, id| *id != token["id"]);
        vocab.insert(
            token["content"].as_str().expect("a text").to_string(),
            token["id"].clone(),
        );
    }
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    std::fs::write(to.join("tokenizer.json"), tokenizer.to_string()).expect("a tokenizer");
    to
}

/// Loads a tiny checkpoint.
fn load_tiny(folder: &Path) -> jerboa::Result<ChatModel> {
    load_tiny_with(folder, tiny_options())
}

fn tiny_options() -> RunOptions {
    let overrides = PrecisionOptions {
        kv_type: Some(Kv::F32),
        ..PrecisionOptions::default()
    };
    RunOptions {
        max_context: Some(256),
        prefill_chunk: 16,
        overrides,
        ..RunOptions::default()
    }
}

fn load_tiny_with(folder: &Path, options: RunOptions) -> jerboa::Result<ChatModel> {
    let gpu = open(&DeviceOptions {
        f16: false,
        ..DeviceOptions::default()
    });
    block_on(async {
        let model = ModelRef::parse(&folder.to_string_lossy()).expect("a folder");
        let source = Source::open(
            &model,
            &HubOptions::default(),
            AbortFlag::new(),
            Progress::silent(),
        )
        .await?;
        ChatModel::load(gpu, &source, "tiny", options).await
    })
}

#[allow(clippy::needless_pass_by_value)] // its callers make it for this alone
fn request(json: Value) -> GenerateRequest {
    GenerateRequest::from_json(&json.to_string()).unwrap_or_else(|e| panic!("{e}"))
}

/// Generates; returns the events too.
fn events(
    loaded: &mut ChatModel,
    json: Value,
) -> jerboa::Result<(GenerationResult, Vec<TokenEvent>)> {
    let mut events = Vec::new();
    let outcome = block_on(loaded.generate(&request(json), &AbortFlag::new(), |e| {
        events.push(e.clone());
    }))?;
    Ok((outcome, events))
}

/// Generates.
fn run(loaded: &mut ChatModel, json: Value) -> GenerationResult {
    events(loaded, json).unwrap_or_else(|e| panic!("{e}")).0
}

/// Asserts that the model still continues like the reference.
fn assert_usable(loaded: &mut ChatModel, after: &str) {
    let outcome = run(
        loaded,
        serde_json::json!({ "prompt": reference().prompt, "temperature": 0, "maxTokens": 8 }),
    );
    assert_eq!(outcome.ids, reference().new_ids()[..8], "after {after}");
}
