//! The draft model of a text-generation model: loads it and checks that both have one vocabulary. Or
//! the multi-token-prediction head of the model's own checkpoint.

use super::ChatModel;
use crate::exec::{DraftSession, LogitsPipeline, Model, ModelFiles, RunOptions, Session};
use crate::format::gguf::Gguf;
use crate::hub::{Phase, Source};
use crate::sample::Sampler;
use crate::task::kind::{Task, TaskHints};
use crate::task::load_request::MTP_DRAFT;
use crate::task::sentence_transformers::SentenceTransformersConfig;
use crate::task::text_pipeline::TextPipeline;
use crate::text::Tokenizer;
use crate::{Error, Result};
use std::rc::Rc;

/// A draft model and the name that it was loaded by.
#[derive(Clone)]
pub(super) struct LoadedDraft {
    pub model: Rc<Model>,
    pub name: Rc<str>,
}

/// The draft model of a conversation, if any.
#[derive(Default)]
pub(super) struct ChatDraft {
    loaded: Option<LoadedDraft>,
    session: Option<DraftSession>,
    /// Acceptance and number of proposals that a measurement prescribes.
    forced_acceptance: Option<f64>,
    fixed_length: Option<usize>,
}

impl ChatDraft {
    /// The draft of another conversation with the same models.
    pub fn of_model(loaded: Option<LoadedDraft>) -> Self {
        Self {
            loaded,
            ..Self::default()
        }
    }

    /// The draft model.
    pub fn loaded(&self) -> Option<&LoadedDraft> {
        self.loaded.as_ref()
    }

    /// Prepares the draft model for a request; `None` if it cannot sample like that.
    pub async fn prepare(
        &mut self,
        target: &mut Session,
        pipeline: &LogitsPipeline,
        sampler: &Sampler,
    ) -> Result<Option<&mut DraftSession>> {
        let Some(LoadedDraft { model, .. }) = &self.loaded else {
            return Ok(None);
        };
        if self.session.is_none() {
            let mut session = DraftSession::new(model, target).await?;
            if let Some(chance) = self.forced_acceptance {
                session.force_acceptance(chance);
            }
            if let Some(tokens) = self.fixed_length {
                session.fix_length(tokens);
                session.draft_always = true;
            }
            self.session = Some(session);
        }
        let Some(draft) = &mut self.session else {
            return Ok(None);
        };
        let is_ready = draft.prepare(target, pipeline, sampler).await?;
        Ok(is_ready.then_some(draft))
    }
}

fn refuse(reason: String) -> Error {
    Error::Request {
        parameter: "draft".into(),
        reason,
    }
}

/// Checks that a draft model generates text.
fn check_task(name: &str, hints: &TaskHints<'_>) -> Result<()> {
    match Task::implied_by(hints) {
        Task::Generate => Ok(()),
        task => Err(refuse(format!(
            "{name} cannot propose tokens: it is {}. Use a text-generation model.",
            task.spec().model
        ))),
    }
}

/// Checks that a draft model's token ids mean what the target's do.
fn check_vocabulary(target: &Tokenizer, draft: &Tokenizer, names: [&str; 2]) -> Result<()> {
    let tokens = |id| [target, draft].map(|tokenizer| tokenizer.id_to_token(id));
    let end = target.id_bound().max(draft.id_bound());
    let different = (0..end).map(|id| (id, tokens(id)));
    let Some((id, found)) = different.into_iter().find(|(_, [a, b])| a != b) else {
        return Ok(());
    };
    let [own, other] = found.map(|token| match token {
        Some(token) => format!("'{token}'"),
        None => "missing".into(),
    });
    let [name, draft] = names;
    Err(refuse(format!(
        "the vocabulary of {draft} is not that of {name}: token {id} is {other} instead of {own}. Use a smaller model of the same family."
    )))
}

impl ChatModel {
    /// Loads a draft model on the same device, which proposes tokens for all conversations that are
    /// created afterwards, and for this one. The name `mtp` loads the head of the checkpoint itself,
    /// from its `source`; this model was then loaded with [`RunOptions::stores_hidden`].
    ///
    /// # Errors
    /// `Request` for a model of another task or vocabulary; `UnsupportedOption` where states cannot
    /// be rolled back, or a checkpoint has no head; errors of the files, the configuration or the
    /// device.
    pub async fn load_draft(
        &mut self,
        source: &Source,
        name: &str,
        options: RunOptions,
    ) -> Result<()> {
        let target = self.session.model().clone();
        let options = RunOptions {
            max_context: Some(target.capacity()),
            // Its steps are not divided; the model's own limit ends drafts.
            kv_memory: None,
            // What the model leaves.
            memory: options.memory.map(|bytes| {
                let used = target.bytes();
                bytes.saturating_sub(used.weights + used.kv + used.activations)
            }),
            short_prefill: Some(false),
            stores_hidden: false,
            ..options
        };
        if name == MTP_DRAFT {
            let head = target.load_mtp_head(source, options).await?;
            return self.set_draft(head, name, source);
        }
        DraftSession::check_target(&target)?;
        let config = match source.gguf() {
            Some(_) => None,
            None => ModelFiles::config(source).await?,
        };
        if let Some(config) = &config {
            let pools = SentenceTransformersConfig::read(source).await?.is_some();
            check_task(
                name,
                &TaskHints {
                    pools,
                    ..TaskHints::of_config(config)
                },
            )?;
        }
        let files = ModelFiles::open(source, None).await?;
        let gguf_pooling = files.gguf.as_ref().and_then(Gguf::pooling_type);
        let hints = TaskHints {
            gguf_pooling,
            ..TaskHints::of_config(&files.config)
        };
        check_task(name, &hints)?;
        let text = match TextPipeline::open(source).await {
            Err(Error::Tokenizer { .. }) if self.text.tokenizer().is_err() => None,
            text => Some(text?),
        };
        let names = [&self.origin.name, name];
        if let Some(text) = &text {
            check_vocabulary(self.text.tokenizer()?, text.tokenizer()?, names)?;
        }
        source.progress().phase(Phase::Weights);
        let nothing = Box::pin(async { Ok(()) });
        let gpu = target.gpu.clone();
        let draft = Model::load_concurrently(gpu, source, files, options, nothing).await?;
        let [own, other] = [target.vocab(), draft.vocab()];
        if text.is_none() && own != other {
            let reason = format!(
                "the vocabulary of {name} has {other} tokens, that of {} has {own}. Use a smaller model of the same family.",
                self.origin.name
            );
            return Err(refuse(reason));
        }
        self.set_draft(draft, name, source)
    }

    fn set_draft(&mut self, model: Rc<Model>, name: &str, source: &Source) -> Result<()> {
        DraftSession::check(self.session.model(), &model)?;
        self.draft = ChatDraft::of_model(Some(LoadedDraft {
            model,
            name: name.into(),
        }));
        source.progress().phase(Phase::Ready);
        Ok(())
    }

    /// Prescribes how many tokens are proposed in each step, and the chance that a proposal is
    /// accepted in greedy generations, whatever the logits say: for measurements with random
    /// weights, whose text has no meaning.
    pub fn force_draft(&mut self, acceptance: Option<f64>, length: Option<usize>) {
        self.draft = ChatDraft {
            forced_acceptance: acceptance,
            fixed_length: length,
            ..ChatDraft::of_model(self.draft.loaded().cloned())
        };
    }

    /// The draft model.
    pub fn draft_model(&self) -> Option<&Rc<Model>> {
        self.draft.loaded().map(|draft| &draft.model)
    }
}
