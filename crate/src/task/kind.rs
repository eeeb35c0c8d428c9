//! The tasks that models are loaded for: their names and errors, and which task a model's files
//! imply. Does not depend on how any of them runs.

use crate::arch::{self, Container, LoadConfig};
use crate::{Error, Result};

/// A task as it is named to users, and the models that serve it.
#[derive(Debug)]
pub struct TaskSpec {
    /// Name in options and reports, and of the engine's method.
    pub name: &'static str,
    /// The kind of model, as in "it is an embedding model".
    pub model: &'static str,
    /// The action, as in "it cannot embed".
    pub action: &'static str,
    /// Containers that the model may come in.
    pub containers: &'static [Container],
    /// Whether a model's files imply this task. Later tasks of the list win.
    pub implied_by: fn(&TaskHints<'_>) -> bool,
    /// Whether models of a configuration can serve it. Unknown classes can.
    pub accepts: fn(&LoadConfig) -> bool,
}

/// What the files of a model say about its task.
#[derive(Debug, Clone, Copy)]
pub struct TaskHints<'a> {
    /// The configuration.
    pub config: &'a LoadConfig,
    /// Whether the files have settings of sentence-transformers.
    pub pools: bool,
    /// `pooling_type` of a GGUF file.
    pub gguf_pooling: Option<i64>,
    /// Whether an audio codec is loaded with the model.
    pub has_codec: bool,
    /// Name that the model is loaded by.
    pub name: &'a str,
}

impl<'a> TaskHints<'a> {
    /// What the configuration alone says.
    pub fn of_config(config: &'a LoadConfig) -> Self {
        Self {
            config,
            pools: false,
            gguf_pooling: None,
            has_codec: false,
            name: "",
        }
    }
}

macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident = $spec:expr;)*) => {
        /// A task that a model can be loaded for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Task {
            $($(#[$doc])* $task,)*
        }

        impl Task {
            /// All tasks.
            pub const ALL: &'static [Self] = &[$(Self::$task),*];

            /// The task's names, and the models that serve it.
            pub fn spec(self) -> &'static TaskSpec {
                match self {
                    $(Self::$task => const { &$spec },)*
                }
            }
        }
    };
}

tasks! {
    /// Text generation.
    Generate = TaskSpec {
        name: "generate",
        model: "a text-generation model",
        action: "generate text",
        containers: &[Container::HuggingFace, Container::Gguf, Container::Mlc],
        implied_by: |_| true,
        accepts: |config| !arch::is_speech_to_text(config) && !only_encodes(config),
    };
    /// Embedding of text, and of images for joint models.
    Embed = TaskSpec {
        name: "embed",
        model: "an embedding model",
        action: "embed",
        containers: &[Container::HuggingFace, Container::Gguf],
        implied_by: |hints| {
            matches!(hints.gguf_pooling, Some(1..=3))
                || hints.pools
                || arch::is_bidirectional(hints.config)
        },
        accepts: |config| !arch::is_speech_to_text(config),
    };
    /// Scoring of documents for a query.
    Rerank = TaskSpec {
        name: "rerank",
        model: "a reranking model",
        action: "rerank documents",
        containers: &[Container::HuggingFace, Container::Gguf],
        // A decoder is a reranker only if its name says so.
        implied_by: |hints| match hints.gguf_pooling {
            Some(4) => true,
            Some(1..=3) => false,
            _ if has_score_head(hints.config) => true,
            _ => !hints.pools && !arch::is_bidirectional(hints.config) && is_named_reranker(hints.name),
        },
        accepts: |config| {
            !arch::is_speech_to_text(config) && (!only_encodes(config) || has_score_head(config))
        },
    };
    /// Speech to text.
    Transcribe = TaskSpec {
        name: "transcribe",
        model: "a speech-to-text model",
        action: "transcribe audio",
        containers: &[Container::HuggingFace],
        implied_by: |hints| arch::is_speech_to_text(hints.config),
        accepts: |config| {
            arch::is_speech_to_text(config) || !only_encodes(config) && !generates_text(config)
        },
    };
    /// Text to speech.
    Speak = TaskSpec {
        name: "speak",
        model: "a text-to-speech model",
        action: "synthesize speech",
        containers: &[Container::HuggingFace],
        implied_by: |hints| hints.has_codec || has_codec_tokens(hints.config),
        accepts: |config| {
            !arch::is_speech_to_text(config)
                && !only_encodes(config)
                && (has_codec_tokens(config) || !generates_text(config))
        },
    };
}

impl Task {
    /// Parses the task's name in options.
    ///
    /// # Errors
    /// `Request` for an unknown name.
    pub fn from_name(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|task| task.name() == name);
        found.copied().ok_or_else(|| {
            let known = join_or(Self::ALL.iter().map(|task| task.name()));
            refuse(format!("unknown task '{name}'. Use {known}."))
        })
    }

    /// Name of the task in options and reports.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the error for using a model of the task `own` for this task.
    pub(crate) fn misused(self, name: &str, own: Task) -> Error {
        let TaskSpec {
            model,
            name: method,
            ..
        } = own.spec();
        let action = self.spec().action;
        refuse(format!(
            "{name} cannot {action}: it is {model}, call '{method}' instead"
        ))
    }

    /// Returns the task that a model's files imply.
    pub fn implied_by(hints: &TaskHints<'_>) -> Self {
        let implied = |task: &&Self| (task.spec().implied_by)(hints);
        let found = Self::ALL.iter().rev().find(implied);
        found.copied().unwrap_or(Self::Generate)
    }

    /// Rejects this task if the configuration is certainly for another one.
    ///
    /// # Errors
    /// `Request` with the model's own task.
    pub(super) fn check(self, config: &LoadConfig, name: &str) -> Result<()> {
        if (self.spec().accepts)(config) {
            return Ok(());
        }
        Err(self.misused(name, Self::implied_by(&TaskHints::of_config(config))))
    }

    /// Rejects a container that models of this task do not come in.
    pub(super) fn check_container(self, container: Container) -> Result<()> {
        if self.spec().containers.contains(&container) {
            return Ok(());
        }
        let all = Self::ALL.iter();
        let known = all.filter(|task| task.spec().containers.contains(&container));
        let kind = match container {
            Container::Gguf => "GGUF",
            Container::Mlc => "MLC",
            Container::HuggingFace => "safetensors",
        };
        Err(refuse(format!(
            "{kind} models support {}, not '{}'. Load the original safetensors.",
            join_or(known.map(|task| task.name())),
            self.name()
        )))
    }
}

/// Whether a configuration's class has a classification head.
pub(super) fn has_score_head(config: &LoadConfig) -> bool {
    config.class().ends_with("ForSequenceClassification")
}

/// Whether models of a configuration only encode.
fn only_encodes(config: &LoadConfig) -> bool {
    arch::is_bidirectional(config) || arch::joint_embedding(config).is_some()
}

/// Whether a configuration is that of a known text model.
fn generates_text(config: &LoadConfig) -> bool {
    arch::supported_architectures().any(|known| known == config.class())
}

/// Whether a configuration describes codec tokens in the vocabulary.
fn has_codec_tokens(config: &LoadConfig) -> bool {
    config.get("tokens_per_frame").is_some()
}

/// Whether a repository's name, without its owner, contains "reranker".
fn is_named_reranker(name: &str) -> bool {
    let last = name.trim_end_matches('/').rsplit('/').next();
    last.unwrap_or_default().to_lowercase().contains("reranker")
}

pub(super) fn refuse(reason: String) -> Error {
    Error::Request {
        parameter: "task".into(),
        reason,
    }
}

/// Joins names as in "a, b or c".
fn join_or(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_string(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn names_are_parsed_and_listed_in_errors() {
        for task in Task::ALL {
            assert_eq!(Task::from_name(task.name()).ok(), Some(*task));
        }
        let message = Task::from_name("draw").unwrap_err().to_string();
        assert!(
            message
                .contains("unknown task 'draw'. Use generate, embed, rerank, transcribe or speak."),
            "{message}"
        );
        let message = Task::Speak
            .check_container(Container::Gguf)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("GGUF models support generate, embed or rerank, not 'speak'"),
            "{message}"
        );
    }

    #[test]
    fn files_imply_one_task() {
        fn of(config: Value, change: impl FnOnce(&mut TaskHints<'_>)) -> Task {
            let config = config.into();
            let mut hints = TaskHints::of_config(&config);
            change(&mut hints);
            Task::implied_by(&hints)
        }
        let llama = || json!({ "architectures": ["LlamaForCausalLM"], "model_type": "llama" });
        assert_eq!(of(llama(), |_| ()), Task::Generate);
        assert_eq!(of(llama(), |hints| hints.pools = true), Task::Embed);
        let reranker = "org/some-Reranker-0.6B/";
        assert_eq!(of(llama(), |hints| hints.name = reranker), Task::Rerank);
        // A file's own pooling decides over the name.
        let pooled = of(llama(), |hints| {
            (hints.name, hints.gguf_pooling) = (reranker, Some(1));
        });
        assert_eq!(pooled, Task::Embed);
        let scored = of(llama(), |hints| hints.gguf_pooling = Some(4));
        assert_eq!(scored, Task::Rerank);
        let with_codec = of(llama(), |hints| hints.has_codec = true);
        assert_eq!(with_codec, Task::Speak);
        let class = "BertForSequenceClassification";
        let score = json!({ "architectures": [class], "model_type": "bert" });
        assert_eq!(of(score, |hints| hints.pools = true), Task::Rerank);
        let whisper = json!({ "model_type": "whisper" });
        assert_eq!(of(whisper, |_| ()), Task::Transcribe);
    }
}
