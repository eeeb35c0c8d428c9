//! The language model shared by generation, transcription and synthesis: weights, tokenizer and
//! `model.info`.

use super::kind::Task;
use super::text_pipeline::{TextPipeline, TokenizerSources};
use super::vision::VisionPipeline;
use crate::Result;
use crate::arch::LoadConfig;
use crate::exec::{MemoryUse, Model, ModelFiles, RunOptions};
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::WeightKind;
use crate::plan::WeightPlans;
use crate::util::map::SortedSet;
use serde_json::{Value, json};
use std::rc::Rc;

/// A loaded language model with its tokenizer and chat template.
pub(super) struct LoadedLanguageModel {
    pub model: Rc<Model>,
    pub text: Rc<TextPipeline>,
    pub origin: Provenance,
}

/// Name, revision and warnings of a loaded model.
#[derive(Debug, Clone)]
pub struct Provenance {
    /// Name that the model was loaded by.
    pub name: String,
    /// Commit hash, if the server named one.
    pub revision: Option<String>,
    /// Warnings of the load.
    pub warnings: Vec<String>,
}

impl LoadedLanguageModel {
    /// Loads the weights and meanwhile builds the tokenizer: a large vocabulary takes as long as a
    /// small model's weights.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(
        gpu: Rc<Gpu>,
        source: &Source,
        name: &str,
        files: ModelFiles,
        texts: TokenizerSources,
        options: RunOptions,
    ) -> Result<Self> {
        let mut text = TextPipeline::default();
        let build = async {
            text = texts.build(source)?;
            Ok(())
        };
        let model = Model::load_concurrently(gpu, source, files, options, Box::pin(build)).await?;
        if let Some(tokenizer) = &text.tokenizer {
            tokenizer.check_added_ids(model.vocab())?;
        }
        let mut warnings: Vec<String> = source.warnings().iter().map(ToString::to_string).collect();
        warnings.extend(
            text.warning()
                .into_iter()
                .chain(model.notes.iter().cloned()),
        );
        let origin = Provenance {
            name: name.to_string(),
            revision: source.commit(),
            warnings,
        };
        Ok(LoadedLanguageModel {
            model,
            text: Rc::new(text),
            origin,
        })
    }
}

/// Returns `model.info` of a language model as JSON; `bytes` includes encoders and codecs loaded
/// with it.
pub(super) fn model_info(
    model: &Model,
    origin: &Provenance,
    task: Task,
    bytes: MemoryUse,
) -> Value {
    let mut info = common_info(&model.gpu, &model.config, model.weights(), bytes);
    let decoder_info = [
        ("model", json!(origin.name)),
        ("revision", json!(origin.revision)),
        ("architecture", json!(model.graph().name)),
        ("task", json!(task.name())),
        ("parameters", json!(model.parameters())),
        ("precision", json!(model.precision.name())),
        ("kv", json!(model.kv().name())),
        ("contextLength", json!(model.capacity())),
        ("vocabSize", json!(model.vocab())),
        ("dispatchesPerToken", json!(model.dispatches())),
        ("load", json!(model.load)),
        ("warnings", json!(origin.warnings)),
        ("hasChatTemplate", json!(false)),
    ];
    for (key, value) in decoder_info {
        info[key] = value;
    }
    info
}

/// Returns the input modalities: text, image, video.
pub(super) fn modalities(sight: Option<&Rc<VisionPipeline>>) -> Value {
    let videos = sight.is_some_and(|sight| sight.video_processor().is_ok());
    json!(&["text", "image", "video"][..1 + usize::from(sight.is_some()) + usize::from(videos)])
}

/// Returns the fields of `model.info` that all models share.
pub(super) fn common_info(
    gpu: &Gpu,
    config: &LoadConfig,
    weights: &WeightPlans,
    bytes: MemoryUse,
) -> Value {
    let caps = gpu.caps();
    let number = |names: [&str; 2]| {
        names
            .iter()
            .find_map(|n| config.get(n).and_then(Value::as_u64))
            .unwrap_or_default()
    };
    let matrices = weights
        .values()
        .filter(|w| !matches!(w.kind, WeightKind::Vector | WeightKind::Order));
    let layouts: SortedSet<String> = matrices.map(|w| w.layout.name()).collect();
    json!({
        "modelType": config.get("model_type").cloned().unwrap_or(Value::Null),
        "weights": layouts.into_iter().collect::<Vec<_>>().join(", "),
        "hiddenSize": number(["hidden_size", "dim"]),
        "layers": number(["num_hidden_layers", "n_layers"]),
        "bytes": { "weights": bytes.weights, "kv": bytes.kv, "activations": bytes.activations },
        "device": {
            "vendor": caps.vendor, "architecture": caps.architecture, "description": caps.description,
            "f16": caps.f16, "subgroups": caps.subgroups, "matrix": caps.matrix.is_some(), "software": caps.software,
        },
    })
}
