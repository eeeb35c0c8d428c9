//! The module's interface for pages. Converts requests and results; contains no logic of its own.

use crate::adapter::LoraAdapter;
use crate::checkpointing::Checkpointing;
use crate::dataset::{chat_sequences, text_sequences};
use crate::embedding::{DEFAULT_SCALE, EmbeddingData, EmbeddingSetup, check_task};
use crate::embedding_data::EmbeddingExample;
use crate::lora::{LoraOptions, LoraTrainer};
use crate::preference::PreferenceMetrics;
use crate::preference_data::{TrainData, is_pair, preference_pair};
use crate::run::RunData;
use crate::schedule::Decay;
use crate::session::{TrainPlan, TrainSession};
use jerboa::exec::ModelFiles;
use jerboa::gpu::{Backend, Gpu};
use jerboa::hub::Source;
use jerboa::task::{LoadRequest, Task, TextPipeline};
use jerboa::web::JsResult;
use jerboa::web::options::{load_request, open_source, progress_callback};
use jerboa::web::values::{from_js, property, to_js, to_plain_js};
use jerboa::{Error, Result};
use js_sys::{Function, Reflect, Uint8Array};
use serde::Deserialize;
use serde_json::{Value, json};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// Options of a run; see the facade's `trainLora`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TrainRequest {
    /// Name of the model in the adapter's settings.
    base: String,
    rank: Option<usize>,
    alpha: Option<f32>,
    targets: Option<Vec<String>>,
    epochs: Option<usize>,
    batch_size: Option<usize>,
    learning_rate: Option<f32>,
    schedule: Option<String>,
    warm_up: Option<f32>,
    weight_decay: Option<f32>,
    max_length: Option<usize>,
    /// Share of the data that only measures the loss.
    evaluation: Option<f32>,
    seed: Option<f64>,
    /// `"auto"` or a boolean.
    checkpointing: Option<Value>,
    dpo: Option<DpoRequest>,
    /// Factor of the cosine similarities of an embedding model.
    scale: Option<f32>,
}

/// Options of a run over preference pairs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DpoRequest {
    beta: Option<f32>,
}

impl TrainRequest {
    /// The options of a run over `data`.
    fn options(&self, load: &LoadRequest, data: &[Value]) -> Result<LoraOptions> {
        let defaults = if is_embedding_data(data) {
            LoraOptions::for_embedding_pairs()
        } else if data.iter().any(is_pair) {
            LoraOptions::for_pairs(self.dpo.as_ref().and_then(|dpo| dpo.beta))
        } else {
            LoraOptions::default()
        };
        let run = load.run_options()?;
        let checkpointing = match &self.checkpointing {
            None => Checkpointing::default(),
            Some(Value::String(name)) => Checkpointing::from_name(name)?,
            Some(other) => Checkpointing::from_name(&other.to_string())?,
        };
        let options = LoraOptions {
            rank: self.rank.unwrap_or(defaults.rank),
            alpha: self.alpha.unwrap_or(defaults.alpha),
            targets: self.targets.clone().unwrap_or_default(),
            epochs: self.epochs.unwrap_or(defaults.epochs),
            batch_size: self.batch_size.unwrap_or(defaults.batch_size),
            learning_rate: self.learning_rate.unwrap_or(defaults.learning_rate),
            decay: Decay::from_name(self.schedule.as_deref().unwrap_or("linear"))?,
            warm_up: self.warm_up.unwrap_or(defaults.warm_up),
            weight_decay: self.weight_decay.unwrap_or(defaults.weight_decay),
            max_length: self.max_length.unwrap_or(defaults.max_length),
            seed: self.seed.map_or(defaults.seed, |seed| seed as u64),
            precision: run.overrides,
            max_memory: run.memory,
            checkpointing,
            ..defaults
        };
        options.check()?;
        Ok(options)
    }
}

/// Whether data is for an embedding model.
fn is_embedding_data(data: &[Value]) -> bool {
    data.first().is_some_and(EmbeddingExample::is_like)
}

/// A LoRA training of a text or embedding model.
#[wasm_bindgen]
pub struct Training {
    session: TrainSession,
    plan: Value,
}

#[wasm_bindgen]
impl Training {
    /// Opens a model with the options of `loadModel` and prepares a run over `data`: an array of
    /// texts and of arrays of messages, of preference pairs, or of pairs `{ query, positive,
    /// negatives? }` for an embedding model; the same for `evaluation` unless that is empty.
    /// `resume` has the bytes `config` and `weights` of an adapter to go on with, or is undefined.
    pub async fn open(
        load: JsValue,
        data: JsValue,
        evaluation: JsValue,
        request: JsValue,
        resume: JsValue,
        on_progress: Function,
    ) -> JsResult<Training> {
        let open = open(&load, data, evaluation, request, &resume, on_progress);
        open.await.map_err(|e| to_js(&e))
    }

    /// Steps, sequences or pairs, and bytes of device memory: `{ steps, sequences,
    /// evaluationSequences, tokens, maxLength, checkpointing, memory: { activations, trained,
    /// frozen } }`.
    pub fn plan(&self) -> JsValue {
        to_plain_js(&self.plan)
    }

    /// Computes what the next micro-batch of preference pairs needs of the model without the adapter; whether
    /// pairs are left. Call it until none are.
    pub async fn prepare(&mut self) -> JsResult<bool> {
        let left = self.session.prepare().await;
        left.map_err(|e| to_js(&e))
    }

    /// Trains the next step; null at the end.
    pub async fn step(&mut self) -> JsResult<JsValue> {
        let Some(done) = self.session.step().await.map_err(|e| to_js(&e))? else {
            return Ok(JsValue::NULL);
        };
        let mut step = json!({
            "step": done.step,
            "steps": done.steps,
            "epoch": done.epoch,
            "loss": done.report.loss,
            "gradientNorm": done.report.gradient_norm,
            "learningRate": done.learning_rate,
            "tokens": done.tokens,
        });
        add_rewards(&mut step, done.preference);
        Ok(to_plain_js(&step))
    }

    /// Measures what is not trained on: `{ loss, rewardMargin?, rewardAccuracy? }`; null if there
    /// is nothing.
    pub async fn evaluate(&mut self) -> JsResult<JsValue> {
        let found = self.session.evaluate().await;
        let Some(found) = found.map_err(|e| to_js(&e))? else {
            return Ok(JsValue::NULL);
        };
        let mut evaluation = json!({ "loss": found.loss });
        add_rewards(&mut evaluation, found.preference);
        Ok(to_plain_js(&evaluation))
    }

    /// The adapter's files: `{ config: string, weights: Uint8Array }`.
    pub async fn adapter(&self) -> JsResult<JsValue> {
        let adapter = self.session.adapter().await;
        adapter
            .map(|adapter| files_of(&adapter))
            .map_err(|e| to_js(&e))
    }
}

/// Adds the means of pairs to a report.
fn add_rewards(report: &mut Value, pairs: Option<PreferenceMetrics>) {
    if let Some(pairs) = pairs {
        report["rewardMargin"] = json!(pairs.reward_margin);
        report["rewardAccuracy"] = json!(pairs.reward_accuracy);
    }
}

/// The files of an adapter: `{ config, weights }`.
fn files_of(adapter: &LoraAdapter) -> JsValue {
    let files = js_sys::Object::new();
    let weights = Uint8Array::from(&adapter.safetensors()[..]);
    // Setting a property of a fresh object cannot fail.
    let _ = Reflect::set(&files, &"config".into(), &adapter.config().into());
    let _ = Reflect::set(&files, &"weights".into(), &weights);
    files.into()
}

/// What a run will do and take; see [`Training::plan`].
fn plan_of(plan: TrainPlan) -> Value {
    json!({
        "steps": plan.steps,
        "sequences": plan.items,
        "evaluationSequences": plan.evaluation_items,
        "tokens": plan.tokens,
        "maxLength": plan.max_length,
        "checkpointing": plan.memory.checkpointing,
        "memory": {
            "activations": plan.memory.activations,
            "trained": plan.memory.trained,
            "frozen": plan.memory.frozen,
        },
    })
}

async fn open(
    load: &JsValue,
    data: JsValue,
    evaluation: JsValue,
    request: JsValue,
    resume: &JsValue,
    on_progress: Function,
) -> Result<Training> {
    let load_options = load_request(load)?;
    let request: TrainRequest = from_js("options", request)?;
    let data: Vec<Value> = from_js("dataset", data)?;
    let options = request.options(&load_options, &data)?;
    let evaluation: Vec<Value> = from_js("evaluation", evaluation)?;
    let resume = adapter_of(resume)?;
    let wanted = load_options.task.as_deref();
    let wanted = wanted.map(Task::from_name).transpose()?;
    let is_embedding = is_embedding_data(&data);
    let progress = progress_callback(on_progress);
    let device = load_options.device_options()?;
    let open = async || open_source(load, progress.clone()).await;
    Source::load(open, async |source| {
        check_task(source, &request.base, is_embedding, wanted).await?;
        let open_gpu = async || Gpu::open(&device).await;
        let data = (&data[..], &evaluation[..]);
        let options = options.clone();
        let (session, plan) = if is_embedding {
            let is_forced = wanted == Some(Task::Embed);
            let setup = embedding_setup(source, &request, data, (options, is_forced), open_gpu);
            let setup = setup.await?;
            source.flush().await;
            TrainSession::embedding(setup, resume.as_ref())?
        } else {
            let (trainer, data) = text_setup(source, &request, data, options, open_gpu).await?;
            source.flush().await;
            TrainSession::text(trainer, data, resume.as_ref())?
        };
        Ok(Training {
            session,
            plan: plan_of(plan),
        })
    })
    .await
}

/// Loads a text model and its data.
async fn text_setup(
    source: &Source,
    request: &TrainRequest,
    (data, evaluation): (&[Value], &[Value]),
    options: LoraOptions,
    open_gpu: impl AsyncFnOnce() -> Result<Gpu>,
) -> Result<(LoraTrainer, RunData)> {
    let text = TextPipeline::open(source).await?;
    let all = data_of(&text, "dataset", data, options.max_length)?;
    let data = match data_of(&text, "evaluation", evaluation, options.max_length)? {
        None => all.map(|all| RunData::split(all, request.evaluation.unwrap_or(0.0))),
        Some(separate) => all.and_then(|all| RunData::of(all, separate)),
    };
    let data = data.ok_or_else(|| Error::Request {
        parameter: "evaluation".into(),
        reason: "the data and its evaluation must both be pairs, or both texts and conversations"
            .into(),
    })?;
    let options = options.with_length_of(data.sequences());
    let files = ModelFiles::open(source, None).await?;
    let gpu = Rc::new(open_gpu().await?);
    let trainer = LoraTrainer::load(gpu, source, &files, &request.base, options).await?;
    Ok((trainer, data))
}

/// Loads an embedding model and its data.
async fn embedding_setup(
    source: &Source,
    request: &TrainRequest,
    (data, evaluation): (&[Value], &[Value]),
    (options, is_forced): (LoraOptions, bool),
    open_gpu: impl AsyncFnOnce() -> Result<Gpu>,
) -> Result<EmbeddingSetup> {
    let data = EmbeddingData {
        pairs: examples_of("dataset", data)?,
        evaluation: examples_of("evaluation", evaluation)?,
        share: request.evaluation.unwrap_or(0.0),
    };
    let settings = (options, request.scale.unwrap_or(DEFAULT_SCALE));
    EmbeddingSetup::open(source, &request.base, &data, settings, is_forced, open_gpu).await
}

/// The pairs of an embedding model.
fn examples_of(name: &str, items: &[Value]) -> Result<Vec<EmbeddingExample>> {
    let example = |(index, item): (usize, &Value)| {
        EmbeddingExample::from_json(item).map_err(|reason| Error::Request {
            parameter: format!("{name}[{index}]"),
            reason,
        })
    };
    items.iter().enumerate().map(example).collect()
}

/// The data of texts and conversations, or of preference pairs; `None` for no items.
fn data_of(
    text: &TextPipeline,
    name: &str,
    items: &[Value],
    max_length: usize,
) -> Result<Option<TrainData>> {
    let fault = |index: usize, reason: &str| Error::Request {
        parameter: format!("{name}[{index}]"),
        reason: reason.into(),
    };
    let mut sequences = Vec::new();
    let mut pairs = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match item {
            Value::String(document) => {
                sequences.extend(text_sequences(text, document, max_length)?);
            }
            Value::Array(messages) => sequences.extend(chat_sequences(text, messages)?),
            pair => pairs.push(preference_pair(text, pair, |reason| fault(index, reason))?),
        }
    }
    match (sequences.is_empty(), pairs.is_empty()) {
        (_, true) if items.is_empty() => Ok(None),
        (_, true) => Ok(Some(TrainData::Sequences(sequences))),
        (true, false) => Ok(Some(TrainData::Pairs(pairs))),
        (false, false) => Err(fault(0, "pairs and other items cannot be mixed")),
    }
}

fn adapter_of(files: &JsValue) -> Result<Option<LoraAdapter>> {
    if files.is_undefined() {
        return Ok(None);
    }
    let bytes = |name: &str| Uint8Array::new(&property(files, name)).to_vec();
    LoraAdapter::parse(&bytes("config"), &bytes("weights")).map(Some)
}
