//! The tasks that models are loaded for. Does not depend on how any of them runs.

use crate::arch::{self, LoadConfig};
use crate::{Error, Result};

/// A task that a model can be loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Text generation.
    Generate,
    /// Embedding of text, and of images for joint models.
    Embed,
    /// Scoring of documents for a query.
    Rerank,
    /// Speech to text.
    Transcribe,
    /// Text to speech.
    Speak,
}

impl Task {
    /// Parses the task's name in options.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "generate" => Ok(Self::Generate),
            "embed" => Ok(Self::Embed),
            "rerank" => Ok(Self::Rerank),
            "transcribe" => Ok(Self::Transcribe),
            "speak" => Ok(Self::Speak),
            other => Err(Error::Request {
                parameter: "task".into(),
                reason: format!(
                    "unknown task '{other}'. Use generate, embed, rerank, transcribe or speak."
                ),
            }),
        }
    }

    /// Name of the task in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
            Self::Rerank => "rerank",
            Self::Transcribe => "transcribe",
            Self::Speak => "speak",
        }
    }
}

impl Task {
    /// Words for messages: the kind of model, its action, and the method to call.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Generate => ["a text-generation model", "generate text", "generate"],
            Self::Embed => ["an embedding model", "embed", "embed"],
            Self::Rerank => ["a reranking model", "rerank documents", "rerank"],
            Self::Transcribe => ["a speech-to-text model", "transcribe audio", "transcribe"],
            Self::Speak => ["a text-to-speech model", "synthesize speech", "speak"],
        }
    }

    /// Returns the error for using a model of the task `own` for this task.
    pub(crate) fn misused(self, name: &str, own: Task) -> Error {
        let [is, _, call] = own.words();
        let [_, cannot, _] = self.words();

        let reason = format!("{name} cannot {cannot}: it is {is}, call '{call}' instead");
        Error::Request {
            parameter: "task".into(),
            reason,
        }
    }

    /// Rejects this task if the configuration is certainly for another one. Unknown classes pass.
    pub(super) fn check(self, config: &LoadConfig, name: &str) -> Result<()> {
        let class = config.class();
        let own = if arch::is_speech_to_text(config) {
            Self::Transcribe
        } else if arch::is_encoder(config) || arch::joint_embedding(config).is_some() {
            let scores = class.ends_with("ForSequenceClassification");
            if self == Self::Embed || (scores && self == Self::Rerank) {
                return Ok(());
            }
            if scores { Self::Rerank } else { Self::Embed }
        } else if self == Self::Transcribe
            || (self == Self::Speak && config.get("tokens_per_frame").is_none())
        {
            if !arch::supported_architectures().any(|known| known == class) {
                return Ok(());
            }
            Self::Generate
        } else {
            return Ok(());
        };
        if self == own {
            Ok(())
        } else {
            Err(self.misused(name, own))
        }
    }
}
