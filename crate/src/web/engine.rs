//! The engine of a loaded model: loading, and calls about the model as a whole.

mod audio;
mod generate;
mod images;
mod sessions;
mod text;
mod vectors;

use super::JsResult;
use super::background::Background;
use super::cache::delete_model;
use super::options::{
    SELECTED_FILES_NAME, hub_options, load_request, open_source, progress_reports,
};
use super::values::{from_js, property, string_property, to_js, to_plain_js};
use crate::diag::verify_model;
use crate::exec::{MAX_SEQUENCES, MeasureOptions, ModelFiles, TUNING_RECORDS};
use crate::gpu::{Backend, Gpu};
use crate::hub::{AbortFlag, HubOptions, ModelRef, Progress, Source};
use crate::task::{
    ChatLease, ChatPool, Embedder, GenerateRequest, MTP_DRAFT, TEXT_FILES, TOKENIZER_FORM, Task,
    TaskModel, TextPipeline, VisionPipeline, parse_submit_group,
};
use crate::{Error, Result};
use audio::AudioInputState;
use futures_util::future::{FutureExt, join5};
use js_sys::{Array, Function, Promise};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{future_to_promise, spawn_local};

/// A loaded model with one conversation. Engines from [`Engine::create_session`] and
/// [`Engine::fork`] run independently of it.
#[wasm_bindgen]
pub struct Engine {
    text: Rc<TextPipeline>,
    /// Ids that end an answer.
    end_ids: Vec<u32>,
    vision: Option<Rc<VisionPipeline>>,
    info: Value,
    source: String,
    files: Rc<Source>,
    persisted: Promise,
    /// The model, unless it generates text.
    model_slot: Rc<RefCell<Option<TaskModel>>>,
    /// The conversations of a model that generates text.
    chats: Option<Rc<ChatPool>>,
    audio_input: RefCell<AudioInputState>,
}

#[wasm_bindgen]
impl Engine {
    /// Loads a model; see the facade's `loadModel`.
    pub async fn load(options: JsValue, on_progress: Function) -> JsResult<Engine> {
        load(&options, on_progress).await.map_err(|e| to_js(&e))
    }

    /// The model's metadata and memory use.
    pub fn info(&self) -> JsValue {
        to_plain_js(&self.info)
    }

    /// A promise of all warnings of the load. It resolves once the downloaded files are cached,
    /// which may be after the load.
    pub fn persisted(&self) -> Promise {
        self.persisted.clone()
    }

    /// Measures how the model runs on this device; see the facade's `measure`.
    pub async fn measure(&self, options: JsValue) -> JsResult<JsValue> {
        let options: MeasureOptions = from_js("measure", options).map_err(|e| to_js(&e))?;
        let measure = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            lease.chat()?.measure(&options).await
        };
        let result = measure.await;
        result.map(|m| to_plain_js(&m)).map_err(|e| to_js(&e))
    }

    /// Verifies the loaded model: up to `most` bytes of weights against the files named by the
    /// load's `options`, prefill against decode, and matmuls against the CPU. Returns
    /// `[{ name, ok, ms, problem? }]`.
    #[wasm_bindgen(js_name = verify)]
    pub async fn verify(&self, options: JsValue, most: f64) -> JsResult<JsValue> {
        let run = async {
            let source = open_source(&options, Progress::silent()).await?;
            let files = ModelFiles::open(&source, None).await?;
            let model = self.chats()?.model().clone();
            verify_model(&model, &source, &files, most as u64).await
        };
        run.await
            .map(|checks| to_plain_js(&checks))
            .map_err(|e| to_js(&e))
    }

    /// Sets how dispatches are grouped into submits: `free`, `all`, or a number of dispatches.
    #[wasm_bindgen(js_name = setGroup)]
    pub fn set_group(&self, group: &str) -> JsResult<()> {
        let group = parse_submit_group(group).map_err(|e| to_js(&e))?;
        let reason = "the model is busy with a request. Wait for it.".into();
        let busy = Error::Request {
            parameter: "group".into(),
            reason,
        };
        self.with_gpu(|gpu| gpu.set_submit_grouping(group))
            .ok_or_else(|| to_js(&busy))
    }

    /// Bytes of WebAssembly and GPU memory in use, and of KV caches in main memory.
    pub fn memory(&self) -> JsValue {
        let memory: js_sys::WebAssembly::Memory = wasm_bindgen::memory().unchecked_into();
        let wasm = property(&memory.buffer(), "byteLength")
            .as_f64()
            .unwrap_or(0.0);
        let gpu = self.with_gpu(|gpu| gpu.resource_counts().bytes);
        let offloaded = self
            .chats()
            .map_or(0, |chats| chats.model().bytes().kv_in_main_memory);
        to_plain_js(&json!({
            "wasmBytes": wasm, "gpuBytes": gpu.unwrap_or(0), "kvInMainMemory": offloaded,
        }))
    }

    /// Removes the model's files from the browser's cache.
    #[wasm_bindgen(js_name = deleteFromCache)]
    pub async fn delete_from_cache(&self) -> JsResult<()> {
        delete_model(self.source.clone()).await
    }
}

impl Engine {
    /// Converts an error of a call to the model. Numbers that are not finite implicate cached files
    /// without a checksum: the next load downloads them again.
    fn model_error(&self, error: &Error) -> JsValue {
        if matches!(error, Error::NotFinite { .. }) {
            let files = self.files.clone();
            let error = error.clone();
            spawn_local(async move { files.drop_unusable(Some(&error)).await });
        }
        to_js(error)
    }

    /// Rejects tasks that the model does not support.
    fn require_task(&self, task: Task) -> Result<()> {
        let text = |name: &str| {
            self.info
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match Task::from_name(text("task"))? {
            own if own == task => Ok(()),
            own => Err(task.misused(text("model"), own)),
        }
    }

    /// The conversations.
    fn chats(&self) -> Result<&Rc<ChatPool>> {
        self.require_task(Task::Generate)?;
        self.chats.as_ref().ok_or_else(wrong_task)
    }

    /// Leases a conversation for one call, best the one that a request continues.
    async fn lease_chat(
        &self,
        request: Option<&GenerateRequest>,
        abort: &AbortFlag,
    ) -> Result<ChatLease> {
        self.chats()?.lease(request, abort).await
    }

    /// Calls `use_gpu` with the device, unless a call uses the model.
    fn with_gpu<T>(&self, use_gpu: impl FnOnce(&Gpu) -> T) -> Option<T> {
        match &self.chats {
            Some(chats) => Some(use_gpu(&chats.model().gpu)),
            None => Some(use_gpu(self.model_slot.borrow().as_ref()?.gpu())),
        }
    }

    /// Takes the model for one call; the guard returns it. Only one call runs at a time.
    fn acquire_model(&self, task: Task) -> Result<ModelGuard> {
        self.require_task(task)?;
        let reason = "the model is busy with another request. Wait for it or abort it.".into();
        let model = self.model_slot.borrow_mut().take().ok_or(Error::Request {
            parameter: "model".into(),
            reason,
        })?;
        Ok(ModelGuard {
            model: Some(model),
            slot: self.model_slot.clone(),
        })
    }
}

/// Share of the model in the progress of a load with a draft model.
const MODEL_SHARE: f64 = 0.85;

async fn load(options: &JsValue, on_progress: Function) -> Result<Engine> {
    let request = load_request(options)?;
    let device = request.device_options()?;
    let run = request.run_options()?;
    let task = request.task.as_deref().map(Task::from_name).transpose()?;
    let report = progress_reports(on_progress);
    let has_draft_model = request.draft.as_ref().is_some_and(|name| name != MTP_DRAFT);
    let [progress, draft_progress] = match has_draft_model {
        true => Progress::in_sequence(report, MODEL_SHARE),
        false => [Progress::new(report), Progress::silent()],
    };
    // The device takes a tenth of a second; meanwhile the files are found and the first ones read.
    let opening = {
        let device = device.clone();
        Cell::new(Some(Background::start(
            async move { Gpu::open(&device).await },
        )))
    };
    let open = async || open_source(options, progress.clone()).await;
    let (mut loaded, source, second) = Source::load(open, async |source| {
        let name = ["model", "path"]
            .iter()
            .find_map(|field| string_property(options, field));
        let name = name.unwrap_or_else(|| SELECTED_FILES_NAME.into());
        let _ahead = source.gguf().is_none().then(|| {
            let config = source.read_ahead(&["config.json"]).shared();
            let files = source.read_ahead(&TEXT_FILES);
            let form = source.read_form_ahead(TOKENIZER_FORM);
            let tuning = source.read_persisted_ahead(TUNING_RECORDS);
            let weights = source.read_weights_ahead(config.clone());
            Background::start(async move { _ = join5(config, files, form, tuning, weights).await })
        });
        let open_second = async |name: &str, progress: &Progress| {
            let hub = HubOptions {
                revision: None,
                ..hub_options(&request)
            };
            let name = ModelRef::parse(name)?;
            let abort = source.abort().clone();
            Source::open(&name, &hub, abort, progress.clone())
                .await
                .map(Rc::new)
        };
        let mut second = match &request.codec {
            Some(name) => Some(open_second(name, &progress).await?),
            None => None,
        };
        let attempt = async || {
            let opened = match opening.take() {
                Some(opening) => opening.result().await,
                None => None,
            };
            let gpu = match opened {
                Some(gpu) => gpu?,
                None => Gpu::open(&device).await?,
            };
            TaskModel::load_with(gpu, source, second.as_deref(), &name, task, run).await
        };
        let mut loaded = match attempt().await {
            // The next attempt plans with less.
            Err(error) if error.is_loss_by_memory() => attempt().await?,
            loaded => loaded?,
        };
        source.drop_reads_ahead();
        loaded.enable_images(source.clone(), run).await?;
        if let Some(name) = &request.draft {
            if has_draft_model {
                let draft = open_second(name, &draft_progress).await?;
                loaded.load_draft(&draft, name, run).await?;
                second = Some(draft);
            } else {
                loaded.load_draft(source, name, run).await?;
            }
        }
        Ok((loaded, source.clone(), second))
    })
    .await?;
    let audio_input = RefCell::new(AudioInputState::new(options, &mut loaded)?);
    let vision = loaded.images().cloned();
    let text = loaded.text().clone();
    let info = loaded.info();
    let (end_ids, model, chats) = match loaded {
        TaskModel::Generate(chat) => {
            let end_ids = chat.end_ids().to_vec();
            (end_ids, None, Some(ChatPool::new(*chat, MAX_SEQUENCES)))
        }
        other => (Vec::new(), Some(other), None),
    };
    Ok(Engine {
        text,
        end_ids,
        vision,
        info,
        source: source.name().to_string(),
        persisted: cached_promise([Some(source.clone()), second]),
        files: source,
        model_slot: Rc::new(RefCell::new(model)),
        chats,
        audio_input,
    })
}

/// A promise of all warnings, resolved once the downloaded files are cached.
fn cached_promise(sources: [Option<Rc<Source>>; 2]) -> Promise {
    future_to_promise(async move {
        let warnings = Array::new();
        for source in sources.iter().flatten() {
            source.flush().await;
            source
                .warnings()
                .iter()
                .for_each(|warning| _ = warnings.push(&warning.to_string().into()));
        }
        Ok(warnings.into())
    })
}

/// The model while one call uses it; returns it on drop.
struct ModelGuard {
    model: Option<TaskModel>,
    slot: Rc<RefCell<Option<TaskModel>>>,
}

impl ModelGuard {
    /// The model, if it embeds.
    fn embedder(&self) -> Result<&Embedder> {
        match &self.model {
            Some(TaskModel::Embed(model)) => Ok(model),
            _ => Err(wrong_task()),
        }
    }
}

impl Drop for ModelGuard {
    fn drop(&mut self) {
        *self.slot.borrow_mut() = self.model.take();
    }
}

/// Internal error: [`Engine::acquire_model`] returned a model of another task.
fn wrong_task() -> Error {
    Error::Internal("the model has another task".into())
}
