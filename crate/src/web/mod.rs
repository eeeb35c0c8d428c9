//! WebAssembly bindings used by the TypeScript facade in pkg-template. Converts requests and
//! results between JavaScript and the engine's types; contains no logic of its own.

mod audio;
mod constraint;
mod logits_processor;
mod options;
mod values;

use crate::diag::{DiagnosticResult, chain::run_chain, run_device_checks, verify_model};
use crate::exec::{MAX_SEQUENCES, MeasureOptions, ModelFiles};
use crate::gpu::{Backend, DeviceOptions, Gpu, SubmitGrouping, WebGpuImplementation};
use crate::hub::{self, AbortFlag, CacheStore, HubOptions, ModelRef, Progress, Source};
use crate::sample::{LogitsProcessor, TokenConstraint};
use crate::task::{
    ChatLease, ChatModel, ChatPool, EmbedRequest, GenerateRequest, GenerationHooks, RerankRequest,
    Task, TaskModel, TextPipeline, TokenEvent, VisionPipeline, parse_submit_group,
};
use crate::text::{ChatInput, EncodeOptions, RenderedPrompt};
use crate::util::host;
use crate::vision::{TileBuilder, header::ImageHeader};
use crate::{Error, Result};
use audio::AudioInputState;
use constraint::JsConstraint;
use js_sys::{Array, Float32Array, Function, Object, Promise, Reflect, Uint8Array, Uint32Array};
use logits_processor::JsLogitsProcessor;
use options::{
    SELECTED_FILES_NAME, abort_flag, hub_options, load_request, open_source, progress_callback,
};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use values::{embed_inputs, from_js, property, string_list, string_property, to_js, to_plain_js};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{future_to_promise, spawn_local};

/// Installs the panic hook, which logs panics with their location to the console.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// The engine's version.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

/// Takes members of the platform from elsewhere than a browser: WebGPU, the cache, fetch; see
/// crate/js/host.js. Call it before the first load.
#[wasm_bindgen(js_name = setHost)]
pub fn set_host(given: &JsValue) {
    host::set(given);
}

/// Detects the WebGPU implementation from the user agent and `navigator.maxTouchPoints`: `iphone`,
/// `ipad`, `webkit` or `other`.
#[wasm_bindgen]
pub fn implementation(touch_points: u32) -> String {
    WebGpuImplementation::from_user_agent(&host::user_agent(), touch_points)
        .name()
        .into()
}

/// Checks that a long chain of kernels gives the same result in submit groups of this size as one
/// by one. See the facade's calibration.
#[wasm_bindgen]
pub async fn calibrate(group: String) -> std::result::Result<bool, JsValue> {
    let check = async {
        let one = DeviceOptions {
            submit_grouping: Some(SubmitGrouping::Dispatches(1)),
            ..DeviceOptions::default()
        };
        let gpu = Gpu::open(&one).await?;
        let expected = run_chain(&gpu).await?;
        gpu.set_submit_grouping(parse_submit_group(&group)?);
        match run_chain(&gpu).await {
            Ok(found) => Ok(found == expected),
            Err(Error::NotFinite { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    check.await.map_err(|e| to_js(&e))
}

/// Runs the device checks: `[{ name, ok, ms, problem? }]`. Needs no model. `unasked` skips them on
/// software adapters, where they are slow.
#[wasm_bindgen(js_name = diagnose)]
pub async fn diagnose(touch_points: u32, unasked: bool) -> std::result::Result<JsValue, JsValue> {
    let run = async {
        let gpu = Gpu::open(&DeviceOptions {
            touch_points,
            ..DeviceOptions::default()
        })
        .await?;
        if unasked && gpu.caps().software {
            Ok(Vec::new())
        } else {
            run_device_checks(&gpu).await
        }
    };
    run.await
        .map(|checks: Vec<DiagnosticResult>| to_plain_js(&checks))
        .map_err(|e| to_js(&e))
}

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

async fn load(options: &JsValue, on_progress: Function) -> Result<Engine> {
    let request = load_request(options)?;
    let device = request.device_options()?;
    let run = request.run_options()?;
    let task = request.task.as_deref().map(Task::from_name).transpose()?;
    let progress = progress_callback(on_progress);
    let open = async || open_source(options, progress.clone()).await;
    let (mut loaded, source, codec) = Source::load(open, async |source| {
        let name = string_property(options, "model").unwrap_or_else(|| SELECTED_FILES_NAME.into());
        let gpu = Gpu::open(&device).await?;
        let codec = match &request.codec {
            Some(name) => {
                let hub = HubOptions {
                    revision: None,
                    ..hub_options(&request)
                };
                let name = ModelRef::parse(name)?;
                Some(Rc::new(
                    Source::open(&name, &hub, source.abort().clone(), progress.clone()).await?,
                ))
            }
            None => None,
        };
        let mut loaded =
            TaskModel::load_with(gpu, source, codec.as_deref(), &name, task, run).await?;
        loaded.enable_images(source.clone(), run).await?;
        Ok((loaded, source.clone(), codec))
    })
    .await?;
    let ears = RefCell::new(AudioInputState::new(options, &mut loaded)?);
    let sight = loaded.images().cloned();
    let text = loaded.text().clone();
    let info = loaded.info();
    let end_ids = match &loaded {
        TaskModel::Generate(model) => model.end_ids().to_vec(),
        _ => Vec::new(),
    };

    let name = source.name().to_string();
    let stored = cached_promise([Some(source.clone()), codec]);
    let (loaded, chats) = match loaded {
        TaskModel::Generate(chat) => (None, Some(ChatPool::new(*chat, MAX_SEQUENCES))),
        other => (Some(other), None),
    };
    Ok(Engine {
        text,
        end_ids,
        vision: sight,
        info,
        source: name,
        files: source,
        persisted: stored,
        model_slot: Rc::new(RefCell::new(loaded)),
        chats,
        audio_input: ears,
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

    /// Renders a conversation with the model's chat template.
    fn render_prompt(&self, messages: &JsValue, options: &JsValue) -> Result<RenderedPrompt> {
        let list = |value: Value| value.as_array().cloned();
        let mut variables = match from_js("options", options.clone()) {
            Ok(Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let mut flag = |name: &str| variables.remove(name).and_then(|v| v.as_bool());
        let continues = flag("continueFinalMessage").unwrap_or(false);
        let generation = flag("addGenerationPrompt").unwrap_or(!continues);
        self.text.render(&ChatInput {
            messages: from_js("messages", messages.clone())?,
            tools: variables.remove("tools").and_then(list),
            documents: variables.remove("documents").and_then(list),
            add_generation_prompt: generation,
            continue_final_message: continues,
            variables,
            local_time: None,
        })
    }

    /// Creates another conversation on the same model.
    async fn derive_session(
        &self,
        adapter: &str,
        make: impl Fn(&ChatModel) -> Result<ChatModel>,
    ) -> Result<Engine> {
        let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
        let made = make(lease.chat()?)?;
        made.session.ready().await?;
        let chats = Some(ChatPool::with_adapter(made, 1, adapter));
        let text = self.text.clone();
        let end_ids = self.end_ids.clone();
        let sight = self.vision.clone();
        let info = self.info.clone();

        let source = self.source.clone();
        let stored = self.persisted.clone();

        Ok(Engine {
            text,
            end_ids,
            vision: sight,
            info,
            source,
            files: self.files.clone(),
            persisted: stored,
            model_slot: Rc::default(),
            chats,
            audio_input: RefCell::default(),
        })
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

impl Engine {
    fn vision(&self) -> std::result::Result<&Rc<VisionPipeline>, JsValue> {
        self.vision.as_ref().ok_or_else(|| {
            let architecture = self
                .info
                .get("architecture")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .into();
            let hint = "Load a model whose info.capabilities include 'image'.".into();
            to_js(&Error::UnsupportedOption {
                architecture,
                option: "image input".into(),
                hint,
            })
        })
    }
}

/// An image or video being uploaded row by row.
#[wasm_bindgen]
pub struct ImageUpload(TileBuilder);

#[wasm_bindgen]
impl ImageUpload {
    /// Appends rows of RGBA pixels, 4 bytes a pixel; alpha is dropped.
    pub fn push(&mut self, rgba: &[u8]) -> std::result::Result<(), JsValue> {
        self.0.push(rgba, 4).map_err(|e| to_js(&e))
    }
}

/// The upright width and height of an image file, from its first bytes. Rejects images that are too
/// large to decode safely.
#[wasm_bindgen(js_name = imageSize)]
pub fn image_size(head: &[u8]) -> std::result::Result<Vec<u32>, JsValue> {
    let header = ImageHeader::read(head).map_err(|e| to_js(&e))?;
    let width = header.width;
    let height = header.height;

    Ok(if header.swaps_sides() {
        vec![height, width]
    } else {
        vec![width, height]
    })
}

/// Milliseconds without a request after which the model warms up.
const IDLE_WARM_UP_MS: f64 = 1000.0;

/// Warms the model up once it has been idle, if it still exists.
async fn warm_up_when_idle(chats: Weak<ChatPool>) {
    crate::util::clock::sleep(IDLE_WARM_UP_MS).await;
    if let Some(chats) = chats.upgrade() {
        chats.warm_up();
    }
}

/// The model while one call uses it; returns it on drop.
struct ModelGuard {
    model: Option<TaskModel>,
    slot: Rc<RefCell<Option<TaskModel>>>,
}

impl Drop for ModelGuard {
    fn drop(&mut self) {
        *self.slot.borrow_mut() = self.model.take();
    }
}

/// Internal error: `Engine::take` returned a model of another task.
fn wrong_task() -> Error {
    Error::Internal("the model has another task".into())
}

#[wasm_bindgen]
impl Engine {
    /// Loads a model; see the facade's `loadModel`.
    pub async fn load(
        options: JsValue,
        on_progress: Function,
    ) -> std::result::Result<Engine, JsValue> {
        load(&options, on_progress).await.map_err(|e| to_js(&e))
    }

    /// Creates an empty conversation on the same model, with an adapter if named. It runs
    /// independently of this one.
    #[wasm_bindgen(js_name = createSession)]
    pub async fn create_session(
        &self,
        adapter: Option<String>,
    ) -> std::result::Result<Engine, JsValue> {
        let adapter = adapter.unwrap_or_default();
        self.derive_session(&adapter, |chat| chat.create_session_with(&adapter))
            .await
            .map_err(|e| to_js(&e))
    }

    /// Loads a LoRA adapter under a name; `options` as for a model, `model` names its files.
    #[wasm_bindgen(js_name = loadAdapter)]
    pub async fn load_adapter(
        &self,
        name: String,
        options: JsValue,
        on_progress: Function,
    ) -> std::result::Result<(), JsValue> {
        let load = async {
            let chats = self.chats()?;
            let source = open_source(&options, progress_callback(on_progress)).await?;
            chats.load_adapter(&name, &source).await
        };
        load.await.map_err(|e| to_js(&e))
    }

    /// Frees an adapter.
    #[wasm_bindgen(js_name = unloadAdapter)]
    pub fn unload_adapter(&self, name: &str) -> std::result::Result<(), JsValue> {
        let unload = self.chats().and_then(|chats| chats.unload_adapter(name));
        unload.map_err(|e| to_js(&e))
    }

    /// Creates a conversation on the same model that continues from this one's state.
    pub async fn fork(&self) -> std::result::Result<Engine, JsValue> {
        let adapter = self.chats.as_ref().map_or("", |chats| chats.adapter());
        self.derive_session(adapter, ChatModel::fork)
            .await
            .map_err(|e| to_js(&e))
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

    /// Tokenizes text. Special tokens in it are recognized if `parse_special` is set.
    pub fn tokenize(
        &self,
        text: &str,
        add_special_tokens: bool,
        parse_special: bool,
    ) -> std::result::Result<Uint32Array, JsValue> {
        let ids = self.text.tokenizer().and_then(|t| {
            t.encode_with_options(
                text,
                EncodeOptions {
                    add_special: add_special_tokens,
                    parse_special,
                },
            )
        });
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Tokenizes text that continues a text. Special tokens in it are text.
    #[wasm_bindgen(js_name = tokenizeContinuation)]
    pub fn tokenize_continuation(&self, text: &str) -> std::result::Result<Uint32Array, JsValue> {
        let ids = self
            .text
            .tokenizer()
            .and_then(|tokenizer| tokenizer.encode_continuation(text));
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Tokenizes a conversation as `generate` does: special tokens are recognized in the template,
    /// not in messages.
    #[wasm_bindgen(js_name = tokenizeChat)]
    pub fn tokenize_chat(
        &self,
        messages: &JsValue,
        options: &JsValue,
    ) -> std::result::Result<Uint32Array, JsValue> {
        let ids = self
            .render_prompt(messages, options)
            .and_then(|prompt| self.text.tokenizer()?.encode_prompt(&prompt));
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Decodes token ids to text.
    pub fn detokenize(
        &self,
        ids: &[u32],
        skip_special: bool,
    ) -> std::result::Result<String, JsValue> {
        self.text
            .tokenizer()
            .map(|t| t.decode(ids, skip_special))
            .map_err(|e| to_js(&e))
    }

    /// The vocabulary for a grammar: `{ bytes, lengths, endIds }`, the bytes of all tokens one after
    /// another, the length of each by id, and the ids that end a text. Special tokens and markers of
    /// tool calls have none.
    #[wasm_bindgen(js_name = vocabularyBytes)]
    pub fn vocabulary_bytes(&self) -> std::result::Result<JsValue, JsValue> {
        let tokenizer = self.text.tokenizer().map_err(|e| to_js(&e))?;
        // Grammars name the markers of the format by id, so they must not be text as well.
        let markers = RefCell::new(Vec::new());
        self.text
            .answer_format()
            .spelling(self.text.template_source(), &|marker| {
                let id = tokenizer.token_to_id(marker);
                markers.borrow_mut().extend(id);
                id
            });
        let markers = markers.into_inner();
        let mut bytes = Vec::new();
        let mut lengths = Vec::new();
        for id in 0..tokenizer.id_bound() {
            let token = match markers.contains(&id) {
                true => Vec::new(),
                false => tokenizer.text_bytes(id),
            };
            lengths.push(token.len() as u32);
            bytes.extend(token);
        }
        let parts = Object::new();
        for (name, value) in [
            ("bytes", Uint8Array::from(&bytes[..]).into()),
            ("lengths", Uint32Array::from(&lengths[..]).into()),
            ("endIds", Uint32Array::from(&self.end_ids[..]).into()),
        ] {
            Reflect::set(&parts, &name.into(), &value)?;
        }
        Ok(parts.into())
    }

    /// How the model writes tool calls and other answers, as JSON for the grammar module.
    #[wasm_bindgen(js_name = answerSpelling)]
    pub fn answer_spelling(&self) -> String {
        let tokenizer = self.text.tokenizer().ok();
        let token_of = |marker: &str| tokenizer?.token_to_id(marker);
        let format = self.text.answer_format();
        format
            .spelling(self.text.template_source(), &token_of)
            .to_string()
    }

    /// Renders a conversation with the model's chat template.
    #[wasm_bindgen(js_name = renderChat)]
    pub fn render_chat(
        &self,
        messages: &JsValue,
        options: &JsValue,
    ) -> std::result::Result<String, JsValue> {
        self.render_prompt(messages, options)
            .map(|prompt| prompt.text)
            .map_err(|e| to_js(&e))
    }

    /// Generates text. `on_event` receives `{ text, ids, parts?, logprobs? }` for each batch of
    /// tokens. `seed` applies if the request has none. `next_mask(token)` limits the tokens: it is called for
    /// each, in time for the next, and returns the allowed ones as bits of a `Uint32Array`, or
    /// `{ forced: Uint32Array }` if only one continuation is left; see web/constraint.rs.
    /// `process_logits(logits, ids)` may change the logits of each token; see
    /// web/logits_processor.rs.
    pub async fn generate(
        &self,
        request: JsValue,
        on_event: Function,
        seed: Option<f64>,
        next_mask: Option<Function>,
        process_logits: Option<Function>,
    ) -> std::result::Result<JsValue, JsValue> {
        let abort = abort_flag(&request);
        let mut constraint = next_mask.map(JsConstraint::new);
        let mut processor = process_logits.map(JsLogitsProcessor);
        let parsed =
            from_js::<GenerateRequest>("request", request).and_then(GenerateRequest::checked);
        let mut parsed = parsed.map_err(|e| to_js(&e))?;
        parsed.fallback_seed = seed.map(|s| s as u64);
        let hooks = GenerationHooks {
            constraint: constraint
                .as_mut()
                .map(|constraint| constraint as &mut dyn TokenConstraint),
            processor: processor
                .as_mut()
                .map(|processor| processor as &mut dyn LogitsProcessor),
        };
        let generate = async {
            let mut lease = self.lease_chat(Some(&parsed), &abort).await?;
            let on_event = |event: &TokenEvent| {
                let _ = on_event.call1(&JsValue::NULL, &to_plain_js(event));
            };
            let chat = lease.chat()?;
            chat.generate_with(&parsed, hooks, &abort, on_event).await
        };
        let outcome = generate.await;
        if let Some(chats) = &self.chats {
            spawn_local(warm_up_when_idle(Rc::downgrade(chats)));
        }
        outcome
            .map(|o| to_plain_js(&o))
            .map_err(|e| self.model_error(&e))
    }

    /// Starts the upload of an image of `width` x `height` pixels.
    #[wasm_bindgen(js_name = imageUpload)]
    pub fn image_upload(
        &self,
        width: u32,
        height: u32,
    ) -> std::result::Result<ImageUpload, JsValue> {
        self.vision()?
            .image_intake(width as usize, height as usize)
            .map(ImageUpload)
            .map_err(|e| to_js(&e))
    }

    /// Starts the upload of a video: `frames` frames of `width` x `height` pixels, in order.
    #[wasm_bindgen(js_name = videoUpload)]
    pub fn video_upload(
        &self,
        width: u32,
        height: u32,
        frames: u32,
    ) -> std::result::Result<ImageUpload, JsValue> {
        self.vision()?
            .video_intake(width as usize, height as usize, frames as usize)
            .map(ImageUpload)
            .map_err(|e| to_js(&e))
    }

    /// Timestamps in seconds of the frames to sample from a video of `seconds` length, followed by
    /// the video's end.
    #[wasm_bindgen(js_name = frameTimes)]
    pub fn frame_times(
        &self,
        seconds: f64,
        fps: Option<f64>,
    ) -> std::result::Result<Vec<f64>, JsValue> {
        self.vision()?
            .video_processor()
            .map(|videos| videos.times(seconds, fps))
            .map_err(|e| to_js(&e))
    }

    /// Encodes an uploaded image or video; content that was encoded before is reused. `seconds` has
    /// a video's frame timestamps, followed by its end.
    #[wasm_bindgen(js_name = encodeImage)]
    pub async fn encode_image(
        &self,
        upload: ImageUpload,
        seconds: Vec<f64>,
    ) -> std::result::Result<JsValue, JsValue> {
        self.vision()?
            .encode(upload.0, &seconds)
            .await
            .map(|seen| to_plain_js(&seen))
            .map_err(|e| to_js(&e))
    }

    /// Whether an image id is still valid.
    #[wasm_bindgen(js_name = hasImage)]
    pub fn has_image(&self, image_id: u32) -> bool {
        self.vision
            .as_ref()
            .is_some_and(|sight| sight.contains(image_id))
    }

    /// Image embeddings of an image: `[tokens, hidden_size]`.
    #[wasm_bindgen(js_name = imageEmbeddings)]
    pub async fn image_embeddings(
        &self,
        image_id: u32,
    ) -> std::result::Result<Float32Array, JsValue> {
        let rows = self.vision()?.embeddings(image_id).await;
        rows.map(|values| Float32Array::from(&values[..]))
            .map_err(|e| to_js(&e))
    }

    /// Frees the vision encoder's memory until the next image.
    #[wasm_bindgen(js_name = unloadVision)]
    pub async fn unload_vision(&self) {
        if let Some(sight) = &self.vision {
            sight.unload_encoder().await;
        }
    }

    /// Makes `ids` the conversation and returns the logits after the last one; tokens that the
    /// conversation begins with are not run again. `options` may have a `signal`.
    pub async fn prefill(
        &self,
        ids: Vec<u32>,
        options: JsValue,
    ) -> std::result::Result<Float32Array, JsValue> {
        let abort = abort_flag(&options);
        let prefill = async {
            let mut lease = self.lease_chat(None, &abort).await?;
            lease.chat()?.prefill(&ids, &abort).await
        };
        let logits = prefill.await;
        logits
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| self.model_error(&e))
    }

    /// Saves the conversation's tokens and states: `write(bytes)` is called with each part and may
    /// return a promise. Returns the number of bytes.
    #[wasm_bindgen(js_name = saveState)]
    pub async fn save_state(&self, write: Function) -> std::result::Result<f64, JsValue> {
        let save = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            let mut write = |part: Vec<u8>| values::write_part(&write, &part);
            lease.chat()?.save(&mut write).await
        };
        save.await
            .map(|bytes| bytes as f64)
            .map_err(|e| self.model_error(&e))
    }

    /// Restores a saved conversation of `size` bytes; `read(offset, length)` returns a promise of a
    /// `Uint8Array`. Returns its tokens.
    #[wasm_bindgen(js_name = restoreState)]
    pub async fn restore_state(
        &self,
        size: f64,
        read: Function,
    ) -> std::result::Result<Uint32Array, JsValue> {
        let restore = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            let mut read = |at, length| values::read_part(&read, at, length);
            let chat = lease.chat()?;
            chat.restore(size as u64, &mut read).await?;
            Ok(Uint32Array::from(chat.session.tokens()))
        };
        restore.await.map_err(|e: Error| self.model_error(&e))
    }

    /// Logits of the last token, or of all tokens: for tests and tools.
    pub async fn logits(
        &self,
        ids: Vec<u32>,
        all: bool,
    ) -> std::result::Result<Float32Array, JsValue> {
        let logits = async {
            let mut lease = self.lease_chat(None, &AbortFlag::new()).await?;
            lease.chat()?.logits(&ids, all).await
        };
        let result = logits.await;
        result
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| to_js(&e))
    }

    /// Embeds texts and lists of token ids; `on_progress` receives `{ done, total }`.
    pub async fn embed(
        &self,
        texts: JsValue,
        options: JsValue,
        on_progress: Function,
    ) -> std::result::Result<Array, JsValue> {
        let embed = async {
            let abort = abort_flag(&options);
            let request: EmbedRequest = from_js("embed", options)?;
            let inputs = embed_inputs(&texts)?;
            let mut taken = self.acquire_model(Task::Embed)?;
            let Some(TaskModel::Embed(model)) = &mut taken.model else {
                return Err(wrong_task());
            };

            model
                .embed_inputs(&inputs, &request, &abort, |done: usize, total: usize| {
                    let _ = on_progress.call1(
                        &JsValue::NULL,
                        &to_plain_js(&json!({ "done": done, "total": total })),
                    );
                })
                .await
        };
        let vectors = embed.await.map_err(|e| self.model_error(&e))?;
        Ok(vectors
            .iter()
            .map(|vector| Float32Array::from(&vector[..]))
            .collect())
    }

    /// The embedding of an encoded image.
    #[wasm_bindgen(js_name = embedImage)]
    pub async fn embed_image(
        &self,
        image_id: u32,
        options: JsValue,
    ) -> std::result::Result<Float32Array, JsValue> {
        let vector = async {
            let request: EmbedRequest = from_js("embed", options)?;
            let taken = self.acquire_model(Task::Embed)?;
            let Some(TaskModel::Embed(model)) = &taken.model else {
                return Err(wrong_task());
            };
            model.image_embedding(image_id, &request).await
        };
        vector
            .await
            .map(|values| Float32Array::from(&values[..]))
            .map_err(|e| self.model_error(&e))
    }

    /// Scores documents against a query.
    pub async fn rerank(
        &self,
        query: String,
        documents: JsValue,
        options: JsValue,
    ) -> std::result::Result<Array, JsValue> {
        let rerank = async {
            let abort = abort_flag(&options);
            let documents = string_list("documents", &documents)?;
            let mut taken = self.acquire_model(Task::Rerank)?;
            let Some(TaskModel::Rerank(model)) = &mut taken.model else {
                return Err(wrong_task());
            };
            let request: RerankRequest = from_js("rerank", options)?;
            model
                .rerank(&query, &documents, request.instruction.as_deref(), &abort)
                .await
        };
        let scores = rerank.await.map_err(|e| self.model_error(&e))?;
        Ok(scores
            .iter()
            .map(|score| JsValue::from_f64(f64::from(*score)))
            .collect())
    }

    /// Measures how the model runs on this device; see the facade's `measure`.
    pub async fn measure(&self, options: JsValue) -> std::result::Result<JsValue, JsValue> {
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
    pub async fn verify(
        &self,
        options: JsValue,
        most: f64,
    ) -> std::result::Result<JsValue, JsValue> {
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
    pub fn set_group(&self, group: &str) -> std::result::Result<(), JsValue> {
        let group = parse_submit_group(group).map_err(|e| to_js(&e))?;
        let reason = "the model is busy with a request. Wait for it.".into();
        let busy = Error::Request {
            parameter: "group".into(),
            reason,
        };
        self.with_gpu(|gpu| gpu.set_submit_grouping(group))
            .ok_or_else(|| to_js(&busy))
    }

    /// Bytes of WebAssembly and GPU memory in use.
    pub fn memory(&self) -> JsValue {
        let memory: js_sys::WebAssembly::Memory = wasm_bindgen::memory().unchecked_into();
        let wasm = property(&memory.buffer(), "byteLength")
            .as_f64()
            .unwrap_or(0.0);
        let gpu = self.with_gpu(|gpu| gpu.resource_counts().bytes);
        to_plain_js(&json!({ "wasmBytes": wasm, "gpuBytes": gpu.unwrap_or(0) }))
    }

    /// Removes the model's files from the browser's cache.
    #[wasm_bindgen(js_name = deleteFromCache)]
    pub async fn delete_from_cache(&self) -> std::result::Result<(), JsValue> {
        delete_model(self.source.clone()).await
    }
}

/// Lists the cached models.
#[wasm_bindgen(js_name = cachedModels)]
pub async fn cached_models() -> std::result::Result<JsValue, JsValue> {
    let Ok(store) = CacheStore::open().await else {
        return Ok(Array::new().into());
    };
    let list: Vec<Value> = hub::cached_models(&store)
        .await
        .iter()
        .map(|m| json!({ "source": m.source, "files": m.files, "bytes": m.bytes, "complete": m.complete }))
        .collect();
    Ok(to_plain_js(&list))
}

/// Removes a model from the cache; `source` as returned by `cachedModels`.
#[wasm_bindgen(js_name = deleteModel)]
pub async fn delete_model(source: String) -> std::result::Result<(), JsValue> {
    let store = CacheStore::open().await.map_err(|e| to_js(&e))?;
    hub::delete_cached(&store, &source).await;
    Ok(())
}

/// Features and limits of this browser and GPU.
#[wasm_bindgen(js_name = deviceReport)]
pub async fn device_report(touch_points: u32) -> std::result::Result<JsValue, JsValue> {
    let gpu = Gpu::open(&DeviceOptions {
        touch_points,
        ..DeviceOptions::default()
    })
    .await
    .map_err(|e| to_js(&e))?;
    let report = to_plain_js(gpu.caps());
    let _ = Reflect::set(&report, &"engine".into(), &version().into());
    Ok(Object::from(report).into())
}
