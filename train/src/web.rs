//! The module's interface for pages. Converts requests and results; contains no logic of its own.

use crate::adapter::LoraAdapter;
use crate::batch::TrainSequence;
use crate::checkpointing::Checkpointing;
use crate::dataset::{chat_sequences, split_evaluation, text_sequences};
use crate::lora::{LoraOptions, LoraRun, LoraTrainer};
use crate::schedule::Decay;
use jerboa::exec::ModelFiles;
use jerboa::gpu::{Backend, Gpu};
use jerboa::hub::Source;
use jerboa::task::{LoadRequest, TextPipeline};
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
}

impl TrainRequest {
    fn options(&self, load: &LoadRequest) -> Result<LoraOptions> {
        let defaults = LoraOptions::default();
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

/// A LoRA training of a text model.
#[wasm_bindgen]
pub struct Training {
    trainer: LoraTrainer,
    run: LoraRun,
    /// Sequences that only measure the loss.
    held: Vec<TrainSequence>,
    plan: Value,
}

#[wasm_bindgen]
impl Training {
    /// Opens a model with the options of `loadModel` and prepares a run over `data`: an array of
    /// texts and of arrays of messages, each also for `evaluation` unless that is empty. `resume`
    /// has the bytes `config` and `weights` of an adapter to go on with, or is undefined.
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

    /// Steps, sequences and bytes of device memory: `{ steps, sequences, evaluationSequences,
    /// tokens, maxLength, checkpointing, memory: { activations, trained, frozen } }`.
    pub fn plan(&self) -> JsValue {
        to_plain_js(&self.plan)
    }

    /// Trains the next step; null at the end.
    pub async fn step(&mut self) -> JsResult<JsValue> {
        let done = self.run.step(&mut self.trainer).await;
        let Some(done) = done.map_err(|e| to_js(&e))? else {
            return Ok(JsValue::NULL);
        };
        Ok(to_plain_js(&json!({
            "step": done.step,
            "steps": done.steps,
            "epoch": done.epoch,
            "loss": done.report.loss,
            "gradientNorm": done.report.gradient_norm,
            "learningRate": done.learning_rate,
            "tokens": done.tokens,
        })))
    }

    /// The mean loss of the sequences that are not trained on.
    pub async fn evaluate(&mut self) -> JsResult<f32> {
        let loss = self.trainer.evaluate(&self.held).await;
        loss.map_err(|e| to_js(&e))
    }

    /// The adapter's files: `{ config: string, weights: Uint8Array }`.
    pub async fn adapter(&self) -> JsResult<JsValue> {
        let adapter = self.trainer.adapter().await.map_err(|e| to_js(&e))?;
        let files = js_sys::Object::new();
        let weights = Uint8Array::from(&adapter.safetensors()[..]);
        // Setting a property of a fresh object cannot fail.
        let _ = Reflect::set(&files, &"config".into(), &adapter.config().into());
        let _ = Reflect::set(&files, &"weights".into(), &weights);
        Ok(files.into())
    }
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
    let options = request.options(&load_options)?;
    let data: Vec<Value> = from_js("dataset", data)?;
    let evaluation: Vec<Value> = from_js("evaluation", evaluation)?;
    let resume = adapter_of(resume)?;
    let progress = progress_callback(on_progress);
    let device = load_options.device_options()?;
    let open = async || open_source(load, progress.clone()).await;
    Source::load(open, async |source| {
        let text = TextPipeline::open(source).await?;
        let all = sequences_of(&text, &data, options.max_length)?;
        let separate = sequences_of(&text, &evaluation, options.max_length)?;
        let (train, held) = if separate.is_empty() {
            split_evaluation(all, request.evaluation.unwrap_or(0.0))
        } else {
            (all, separate)
        };
        let options = options.clone().with_length_of(train.iter().chain(&held));
        let max_length = options.max_length;
        let files = ModelFiles::open(source, None).await?;
        let gpu = Rc::new(Gpu::open(&device).await?);
        let trainer = LoraTrainer::load(gpu, source, &files, &request.base, options).await?;
        source.flush().await;
        if let Some(adapter) = &resume {
            trainer.set_adapter(adapter)?;
        }
        let run = trainer.start(&train)?;
        let memory = trainer.memory();
        let tokens: usize = train.iter().map(|s| s.ids.len().min(max_length)).sum();
        let plan = json!({
            "steps": run.steps(),
            "sequences": train.len(),
            "evaluationSequences": held.len(),
            "tokens": tokens,
            "maxLength": max_length,
            "checkpointing": memory.checkpointing,
            "memory": {
                "activations": memory.activations,
                "trained": memory.trained,
                "frozen": memory.frozen,
            },
        });
        Ok(Training {
            trainer,
            run,
            held,
            plan,
        })
    })
    .await
}

/// The sequences of texts and conversations.
fn sequences_of(
    text: &TextPipeline,
    data: &[Value],
    max_length: usize,
) -> Result<Vec<TrainSequence>> {
    let mut sequences = Vec::new();
    for item in data {
        match item {
            Value::String(document) => {
                sequences.extend(text_sequences(text, document, max_length)?);
            }
            Value::Array(messages) => sequences.extend(chat_sequences(text, messages)?),
            _ => {
                return Err(Error::Request {
                    parameter: "dataset".into(),
                    reason: "an item is neither a string nor an array of messages".into(),
                });
            }
        }
    }
    Ok(sequences)
}

fn adapter_of(files: &JsValue) -> Result<Option<LoraAdapter>> {
    if files.is_undefined() {
        return Ok(None);
    }
    let bytes = |name: &str| Uint8Array::new(&property(files, name)).to_vec();
    LoraAdapter::parse(&bytes("config"), &bytes("weights")).map(Some)
}
