//! A text-generation model with its tokenizer, chat template and generation defaults.

mod draft;
mod generate;
mod pool;
mod thought;

pub use generate::{FinishReason, GenerationHooks, GenerationResult, TokenEvent};
pub use pool::{ChatLease, ChatPool};

use super::adapters::Adapters;
use super::kind::Task;
use super::language_model::{LoadedLanguageModel, Provenance, modalities, model_info};
use super::request::{ContextOverflow, GenerateRequest};
use super::sentence_transformers::read_json;
use super::serves_task::{LoadFuture, ServesTask, TaskFiles, TaskLoad};
use super::text_pipeline::{TextPipeline, TokenizerSources};
use super::vision::{VisionPipeline, image_ids_of, strings_to_parts};
use crate::chat::{AnswerParser, AnswerStart, CallFormat};
use crate::exec::{
    MeasureOptions, Measurement, Model, ModelFiles, OverlayId, ReadPart, RunOptions, Scheduler,
    Session, SoftTokenCache, WritePart,
};
use crate::format::{gguf::Gguf, mlc};
use crate::gpu::Gpu;
use crate::hub::{AbortFlag, Phase, Source};
use crate::sample::GenerationConfig;
use crate::text::{ChatInput, EncodeOptions, Tokenizer, eos_token_ids};
use crate::{Error, Result};
use draft::{ChatDraft, LoadedDraft};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;

/// Returns the conversation of a request without its `drop` oldest turns; None if no turn is left.
fn chat_input(request: &GenerateRequest, drop: usize) -> Option<ChatInput> {
    Some(ChatInput {
        messages: drop_oldest_turns(request.messages.as_deref().unwrap_or_default(), drop)?,
        tools: request.tools.clone(),
        documents: request.documents.clone(),
        add_generation_prompt: request
            .add_generation_prompt
            .unwrap_or(!request.continue_final_message),
        continue_final_message: request.continue_final_message,
        variables: request.chat_template.clone(),
        local_time: None,
    })
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or("")
}

/// Turns start with a user message, so that roles still alternate without the oldest ones.
fn turn_starts(messages: &[Value]) -> impl Iterator<Item = usize> {
    (0..messages.len()).filter(|i| role(&messages[*i]) == "user")
}

/// The number of turns that [`drop_oldest_turns`] can drop.
fn droppable_turns(messages: &[Value]) -> usize {
    turn_starts(messages).count().saturating_sub(1)
}

/// Drops the `drop` oldest turns. System messages and the last message stay.
fn drop_oldest_turns(messages: &[Value], drop: usize) -> Option<Vec<Value>> {
    let is_system = |m: &Value| matches!(role(m), "system" | "developer");
    if drop == 0 {
        return Some(messages.to_vec());
    }
    let first_kept = turn_starts(messages).nth(drop)?;

    Some(
        messages
            .iter()
            .enumerate()
            .filter(|&(i, m)| i >= first_kept || is_system(m))
            .map(|(_, m)| m.clone())
            .collect(),
    )
}

/// Tokens at the end of a prompt that show whether it opens reasoning.
const PROMPT_END_TOKENS: usize = 16;

/// Returns the template's variables that control reasoning.
fn reasoning_controls(template: &str) -> Vec<&'static str> {
    let mut controls = vec!["enable_thinking", "reasoning_effort"];
    controls.retain(|name| template.contains(name));
    // Templates of Granite and DeepSeek have a switch of another name.
    if !controls.contains(&"enable_thinking")
        && ["if thinking", "elif thinking", "not thinking"]
            .iter()
            .any(|text| template.contains(text))
    {
        controls.push("thinking");
    }
    controls
}

/// A loaded text-generation model with one conversation. [`ChatModel::create_session`] and
/// [`ChatModel::fork`] create further conversations that share its weights.
pub struct ChatModel {
    /// Session of the conversation, which also holds the model.
    pub session: Session,
    /// Tokenizer and chat template.
    pub text: Rc<TextPipeline>,
    /// Name, revision and warnings of the load.
    pub origin: Provenance,
    /// Defaults of generation_config.json.
    pub(super) defaults: Rc<GenerationConfig>,
    /// Tokens that end an answer.
    pub(super) eos: Rc<[u32]>,
    /// Decodes the generations of its conversations together.
    pub(super) scheduler: Scheduler,
    /// Adapters by name.
    adapters: Adapters,
    /// Proposes tokens, set by [`Self::load_draft`].
    draft: ChatDraft,
    /// Whether the session holds tokens of no conversation, so that the next answer must clear it.
    pub(super) needs_reset: bool,
    /// Image and video input, set by [`Self::enable_vision`].
    pub(super) vision: Option<Rc<VisionPipeline>>,
}

/// What the conversations on a model share.
struct ChatParts {
    model: Rc<Model>,
    soft_tokens: Rc<RefCell<SoftTokenCache>>,
    text: Rc<TextPipeline>,
    origin: Provenance,
    defaults: Rc<GenerationConfig>,
    eos: Rc<[u32]>,
    scheduler: Scheduler,
    adapters: Adapters,
    draft: Option<LoadedDraft>,
    vision: Option<Rc<VisionPipeline>>,
}

impl ChatParts {
    fn of(chat: &ChatModel) -> Self {
        Self {
            model: chat.session.model().clone(),
            soft_tokens: chat.session.soft_token_cache().clone(),
            text: chat.text.clone(),
            origin: chat.origin.clone(),
            defaults: chat.defaults.clone(),
            eos: chat.eos.clone(),
            scheduler: chat.scheduler.clone(),
            adapters: chat.adapters.clone(),
            draft: chat.draft.loaded().cloned(),
            vision: chat.vision.clone(),
        }
    }

    /// Creates an empty conversation, with an adapter if given.
    fn create_session(&self, adapter: Option<OverlayId>) -> Result<ChatModel> {
        let mut session = match adapter {
            Some(adapter) => Session::with_adapter(&self.model, adapter)?,
            None => Session::new(&self.model)?,
        };
        session.set_soft_token_cache(self.soft_tokens.clone());
        Ok(self.with_session(session))
    }

    fn with_session(&self, session: Session) -> ChatModel {
        ChatModel {
            session,
            text: self.text.clone(),
            origin: self.origin.clone(),
            defaults: self.defaults.clone(),
            eos: self.eos.clone(),
            scheduler: self.scheduler.clone(),
            adapters: self.adapters.clone(),
            draft: ChatDraft::of_model(self.draft.clone()),
            needs_reset: false,
            vision: self.vision.clone(),
        }
    }
}

impl ServesTask for ChatModel {
    #[inline(never)]
    fn load_task(request: TaskLoad<'_>) -> LoadFuture<'_, Self> {
        let TaskLoad {
            gpu,
            source,
            files,
            name,
            options,
            ..
        } = request;
        match files {
            TaskFiles::Folder { .. } => Box::pin(Self::load(gpu, source, name, options)),
            TaskFiles::Container(files) => {
                Box::pin(Self::load_opened(gpu, source, *files, name, options))
            }
        }
    }

    fn info(&self) -> Value {
        let model = self.session.model();
        let draft = self.draft.loaded();
        let bytes = draft.map_or(model.bytes(), |draft| model.bytes() + draft.model.bytes());
        let mut info = model_info(model, &self.origin, Task::Generate, bytes);
        info["draft"] = json!(draft.map(|draft| &*draft.name));
        info["bytes"]["kvMax"] = json!(model.max_state_bytes());
        info["tuning"] = json!(model.tuning);
        info["hasChatTemplate"] = json!(self.text.has_template());
        let answers = self.text.answer_format();
        info["toolCalls"] = json!(answers.calls().map(CallFormat::name));
        info["reasoning"] = json!(answers.has_reasoning());
        info["reasoningControls"] = json!(reasoning_controls(self.text.template_source()));
        let fim = self.text.tokenizer().ok().and_then(Tokenizer::fim_tokens);
        info["fillInTheMiddle"] = json!(fim.is_some());
        info["samplesByDefault"] = json!(!self.defaults.params.greedy);
        info["capabilities"] = modalities(self.vision.as_ref());
        info
    }

    fn text(&self) -> &Rc<TextPipeline> {
        &self.text
    }

    fn gpu(&self) -> &Gpu {
        self.session.gpu()
    }

    fn enable_images(&mut self, source: Rc<Source>, options: RunOptions) -> LoadFuture<'_, ()> {
        Box::pin(self.enable_vision(source, None, options))
    }

    fn images(&self) -> Option<&Rc<VisionPipeline>> {
        self.vision.as_ref()
    }
}

impl ChatModel {
    /// Loads weights, tokenizer and chat template.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load(gpu: Gpu, source: &Source, name: &str, options: RunOptions) -> Result<Self> {
        Self::load_file(gpu, source, None, name, options).await
    }

    /// Loads the model; weights and tokenizer come from `gguf` if given.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub async fn load_file(
        gpu: Gpu,
        source: &Source,
        gguf: Option<&str>,
        name: &str,
        options: RunOptions,
    ) -> Result<Self> {
        let progress = source.progress();
        progress.phase(Phase::Config);
        let files = match ModelFiles::open(source, gguf).await {
            Err(error @ Error::UnknownArchitecture { .. }) => {
                let config = read_json(source, "config.json").await?.unwrap_or_default();
                Task::Generate.check(&config.into(), name)?;
                return Err(error);
            }
            files => files?,
        };
        Self::load_opened(gpu, source, files, name, options).await
    }

    /// Loads a model from files that are already open.
    ///
    /// # Errors
    /// Errors of the files, the configuration or the device.
    pub(super) async fn load_opened(
        gpu: Gpu,
        source: &Source,
        files: ModelFiles,
        name: &str,
        options: RunOptions,
    ) -> Result<Self> {
        let progress = source.progress();
        Task::Generate.check(&files.config, name)?;
        progress.phase(Phase::Tokenizer);
        let mut notes = files.gguf.as_ref().map(Gguf::warnings).unwrap_or_default();
        notes.extend(files.config.unknown_class.as_ref().map(|class| {
            format!(
                "The class {class} of config.json is unknown, so the model loads as {}, by its 'model_type'. Check its output.",
                files.config.class()
            )
        }));
        let texts = match &files.gguf {
            Some(gguf) => TokenizerSources::from_gguf(gguf)?,
            None if mlc::is_mlc(&files.checkpoint) => {
                TokenizerSources::from_source(source)
                    .await?
                    .with_mlc_chat_config(source)
                    .await?
            }
            None => TokenizerSources::from_source(source).await?,
        };
        let generation = match &texts.generation_config {
            Some(bytes) => parse("generation_config.json", bytes)?,
            None => json!({}),
        };
        let defaults = GenerationConfig::read(&generation)?;
        progress.phase(Phase::Weights);
        let config = files.config.clone();
        let LoadedLanguageModel {
            model,
            text,
            mut origin,
        } = LoadedLanguageModel::load(gpu.into(), source, name, files, texts, options).await?;
        let mut eos = text
            .tokenizer
            .as_ref()
            .map_or_else(Vec::new, |t| t.eos_ids().to_vec());
        let generated = eos_token_ids("generation_config.json", &generation)?;
        let configured = eos_token_ids("config.json", config.json())?;
        for id in generated.into_iter().chain(configured) {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
        origin.warnings.extend(notes);
        let session = Session::new(&model)?;
        session.ready().await?;
        let known = eos.len();
        let unknown = eos
            .iter()
            .find(|id| **id as usize >= session.vocab())
            .copied();
        eos.retain(|id| (*id as usize) < session.vocab());
        if let Some(id) = unknown {
            origin.warnings.push(format!(
                "eos_token_id names {} tokens that the model does not have, such as {id}: its vocabulary ends at {}. They are ignored.",
                known - eos.len(),
                session.vocab().saturating_sub(1),
            ));
        }
        let defaults = defaults.for_model(&eos, session.vocab())?;
        origin.warnings.extend_from_slice(&defaults.warnings);
        progress.phase(Phase::Ready);
        Ok(Self {
            session,
            text,
            origin,
            defaults: Rc::new(defaults),
            eos: eos.into(),
            scheduler: Scheduler::default(),
            adapters: Adapters::default(),
            draft: ChatDraft::default(),
            needs_reset: false,
            vision: None,
        })
    }

    /// Enables image input for models with a vision encoder, which loads with the first image.
    /// Conversations created from this one later share its images. A warning explains why a vision
    /// model cannot take images here.
    ///
    /// # Errors
    /// Errors of the source.
    pub async fn enable_vision(
        &mut self,
        source: Rc<Source>,
        gguf: Option<&str>,
        options: RunOptions,
    ) -> Result<()> {
        use Error::{Config, MissingFile, UnsupportedOption};
        let model = self.session.model();
        self.vision = match VisionPipeline::open(
            &model.gpu,
            &model.config,
            model.capacity(),
            source,
            gguf,
            options,
        )
        .await
        {
            Err(error @ (Config { .. } | MissingFile { .. } | UnsupportedOption { .. })) => {
                self.origin
                    .warnings
                    .push(format!("Images are not supported: {error}"));
                None
            }
            found => found?.map(Rc::new),
        };
        if let Some(sight) = &self.vision {
            self.session
                .set_soft_token_cache(sight.soft_token_cache.clone());
        }
        Ok(())
    }

    /// Returns the image and video input.
    ///
    /// # Errors
    /// `UnsupportedOption` for a model without a vision encoder.
    pub fn vision(&self) -> Result<&Rc<VisionPipeline>> {
        self.vision
            .as_ref()
            .ok_or_else(|| Error::UnsupportedOption {
                architecture: self.session.model().graph().name.clone(),
                option: "image input".into(),
                hint: "Load a model whose model.info.capabilities includes 'image'.".into(),
            })
    }

    /// Ids that end an answer: those of tokenizer, generation_config.json and config.json.
    pub fn end_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Creates an empty conversation on the same model.
    ///
    /// # Errors
    /// `OutOfMemory` if its KV cache and states do not fit on the device.
    pub fn create_session(&self) -> Result<Self> {
        ChatParts::of(self).create_session(None)
    }

    /// Creates an empty conversation that uses an adapter of [`Self::load_adapter`].
    ///
    /// # Errors
    /// `Request` for an unknown adapter; `OutOfMemory` as [`Self::create_session`].
    pub fn create_session_with(&self, adapter: &str) -> Result<Self> {
        let parts = ChatParts::of(self);
        parts.create_session(parts.adapters.find(adapter)?)
    }

    /// Loads a LoRA adapter under a name: see [`Model::load_adapter`].
    ///
    /// # Errors
    /// As [`Model::load_adapter`]; `Request` for a name that is taken.
    pub async fn load_adapter(&self, name: &str, source: &Source, merge: bool) -> Result<()> {
        let load = self.session.model().load_adapter(source, merge);
        self.adapters.load(name, load).await
    }

    /// Creates a conversation on the same model that continues from this one.
    ///
    /// # Errors
    /// `OutOfMemory` if its KV cache and states do not fit on the device.
    pub fn fork(&self) -> Result<Self> {
        let fork = ChatParts::of(self).with_session(self.session.fork()?);
        Ok(Self {
            needs_reset: self.needs_reset,
            ..fork
        })
    }

    /// Builds the short-prefill plan ahead of later requests. Call it while the model is idle.
    /// Errors are ignored here; they return when a request needs the plan.
    pub fn warm_up(&mut self) {
        let _ = self.session.model().prepare_short();
    }

    /// Returns the logits of the last token, or of all: `[tokens, vocab]`. Discards the
    /// conversation.
    pub async fn logits(&mut self, ids: &[u32], all: bool) -> Result<Vec<f32>> {
        self.needs_reset = true;
        if all {
            return self.session.all_rows(ids, false).await;
        }
        self.session.prefill(ids, 0).await?;
        self.session.logits().await
    }

    /// Makes `ids` the conversation and returns the logits after the last one. Runs only the tokens
    /// after the common prefix with the conversation so far.
    ///
    /// # Errors
    /// `SequenceTooLong` if `ids` do not fit; `Request` for unknown ids; `Aborted`; errors of the
    /// device.
    pub async fn prefill(&mut self, ids: &[u32], abort: &AbortFlag) -> Result<Vec<f32>> {
        if std::mem::take(&mut self.needs_reset) {
            self.session.clear();
        }
        self.session
            .prefill_reusing_prefix(ids, &|| abort.check("prefill"))
            .await?;
        self.session.logits().await
    }

    /// Saves the conversation's tokens and states: see [`Session::save`].
    ///
    /// # Errors
    /// As [`Session::save`].
    pub async fn save(&self, write: WritePart<'_>) -> Result<u64> {
        self.session.save(write).await
    }

    /// Restores a saved conversation: see [`Session::load_saved`].
    ///
    /// # Errors
    /// As [`Session::load_saved`].
    pub async fn restore(&mut self, size: u64, read: ReadPart<'_>) -> Result<()> {
        self.needs_reset = false;
        self.session.load_saved(size, read).await
    }

    /// Computes the perplexity of a text, in windows of the full context. Returns it with the
    /// number of predicted tokens.
    ///
    /// # Errors
    /// `Request` for fewer than two tokens; errors of the tokenizer or the device.
    pub async fn perplexity(&mut self, text: &str) -> Result<(f64, usize)> {
        let ids = self.text.tokenizer()?.encode(text, true)?;
        let mut total = 0.0f64;
        let mut count = 0usize;

        for part in ids.chunks(self.session.capacity()).filter(|p| p.len() > 1) {
            let logits = self.logits(part, true).await?;
            let vocab = logits.len() / part.len();
            for (row, next) in logits.chunks_exact(vocab).zip(&part[1..]) {
                let max = row.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
                total += sum.ln()
                    - f64::from(row.get(*next as usize).copied().unwrap_or(f32::MIN) - max);
                count += 1;
            }
        }
        if count == 0 {
            return Err(Error::Request {
                parameter: "text".into(),
                reason: "has fewer than 2 tokens. Pass a longer text.".into(),
            });
        }
        Ok(((total / count as f64).exp(), count))
    }

    /// Measures the model on its device. Discards the KV cache.
    ///
    /// # Errors
    /// `SequenceTooLong` if the requested lengths do not fit; errors of the device.
    pub async fn measure(&mut self, options: &MeasureOptions) -> Result<Measurement> {
        self.session.measure(options).await
    }

    /// Returns the prompt ids of a request. Leaves out the `drop` oldest turns of a conversation.
    fn prompt_ids(&self, request: &GenerateRequest, drop: usize) -> Result<Option<Vec<u32>>> {
        if let Some(ids) = &request.ids {
            return Ok(Some(ids.clone()));
        }
        let tokenizer = self.text.tokenizer()?;
        if let Some(prompt) = &request.prompt {
            if let Some(suffix) = &request.suffix {
                return tokenizer.encode_fim(prompt, suffix).map(Some);
            }
            return tokenizer
                .encode_with_options(
                    prompt,
                    EncodeOptions {
                        add_special: true,
                        parse_special: request.parse_special,
                    },
                )
                .map(Some);
        }
        let Some(mut input) = chat_input(request, drop) else {
            return Ok(None);
        };
        let image_ids = image_ids_of(&input.messages);
        if self.vision.is_some() && self.text.needs_content_parts() {
            strings_to_parts(&mut input.messages);
        }
        let mut prompt = self.text.render(&input)?;
        if image_ids.is_empty() {
            return tokenizer.encode_prompt(&prompt).map(Some);
        }
        let sight = self.vision()?;
        sight.expand_placeholders(&mut prompt, &image_ids)?;
        let ids = tokenizer.encode_prompt(&prompt)?;
        self.session
            .splice_soft_tokens(&ids, &sight.placeholder_ids(tokenizer, &image_ids)?)
            .map(Some)
    }

    /// Creates the parser of the answer; None for plain text.
    ///
    /// # Errors
    /// `UnsupportedOption` for tools if the format of the model's calls is not known.
    pub(super) fn answer_parser(
        &self,
        request: &GenerateRequest,
        prompt: &[u32],
        seed: u64,
    ) -> Result<Option<AnswerParser>> {
        let Some(messages) = request.messages.as_ref().filter(|_| !request.raw_answer) else {
            return Ok(None);
        };
        let tools = request.tools.as_deref().unwrap_or_default();
        let format = self.text.answer_format();
        if !tools.is_empty() && format.calls().is_none() {
            return Err(Error::UnsupportedOption {
                architecture: self.origin.name.clone(),
                option: "'tools'".into(),
                hint: "The format of this model's tool calls is not known. Describe the functions in a system message, or load a model whose model.info.toolCalls is not null.".into(),
            });
        }
        if !tools.is_empty() && !self.text.template_source().contains("tools") {
            let reason = "it does not read 'tools'. Describe the functions in a system message, or load a model that was trained to call functions";
            return Err(Error::ChatTemplate {
                reason: reason.into(),
            });
        }
        if format.is_plain(!tools.is_empty()) {
            return Ok(None);
        }
        let is_continued = request.continue_final_message;
        let before = match (is_continued, messages.last().and_then(|m| m.get("content"))) {
            (true, Some(Value::String(text))) => text.clone(),
            (true, _) => String::new(),
            // The end of the prompt shows whether it opens reasoning.
            (false, _) => {
                let end = &prompt[prompt.len().saturating_sub(PROMPT_END_TOKENS)..];
                self.text.tokenizer()?.decode(end, false)
            }
        };
        Ok(Some(format.parser(AnswerStart {
            tools,
            before: &before,
            is_continued,
            seed,
        })))
    }

    /// Returns the prompt ids, shortened as `request.overflow` says so that `room` tokens remain
    /// for the answer.
    pub(super) fn fit_prompt(&self, request: &GenerateRequest, room: usize) -> Result<Vec<u32>> {
        let limit = self.session.capacity().saturating_sub(room).max(1);
        let full = |tokens| {
            Err(Error::ContextFull {
                tokens,
                limit: self.session.capacity(),
            })
        };
        let mut ids = self.prompt_ids(request, 0)?.unwrap_or_default();
        if request.overflow == ContextOverflow::Error {
            let tokens = ids.len();
            if tokens <= self.session.capacity() {
                return Ok(ids);
            }
            // The error must not advise to drop messages if the rest does not fit either.
            if let Some(messages) = &request.messages
                && let Ok(Some(least)) = self.prompt_ids(request, droppable_turns(messages))
                && least.len() > limit
            {
                return Err(Error::MessageTooLong {
                    tokens: least.len(),
                    limit,
                });
            }
            return full(tokens);
        }
        let mut dropped = 0;
        while ids.len() > limit {
            dropped += 1;
            match self.prompt_ids(request, dropped)? {
                Some(shorter) if request.messages.is_some() => ids = shorter,
                // No turns: drop the oldest tokens except the first, which is the attention sink.
                _ if request.messages.is_none() => drop(ids.drain(1..1 + ids.len() - limit)),
                _ => {
                    return Err(Error::MessageTooLong {
                        tokens: ids.len(),
                        limit,
                    });
                }
            }
        }
        Ok(ids)
    }
}

fn parse(file: &str, bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|e: serde_json::Error| Error::Config {
        file: file.into(),
        reason: format!("is not JSON: {e}"),
    })
}
