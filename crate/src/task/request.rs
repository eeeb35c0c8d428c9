//! Generation request, with the JavaScript API's field names.

use crate::sample::SamplingOptions;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextOverflow {
    /// Rejects a prompt that does not fit; an answer ends with `length`.
    #[default]
    Error,
    /// Drops the oldest turns of the prompt; system messages stay.
    Truncate,
    /// As `Truncate`; when an answer fills the context, drops its older half and continues.
    Rolling,
}

/// Speculative decoding: drafted tokens are verified in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpeculationMode {
    /// No drafts.
    #[default]
    Off,
    /// Drafts the tokens that followed an earlier occurrence of the last tokens.
    PromptLookup,
}

/// A generation request with exactly one of `prompt`, `ids` and `messages`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GenerateRequest {
    /// Text to continue.
    pub prompt: Option<String>,
    /// Whether to parse special tokens in `prompt`; for trusted prompts only.
    pub parse_special: bool,
    /// Text after the gap that the answer fills, for fill-in-the-middle models; `prompt` is the
    /// text before it.
    pub suffix: Option<String>,
    /// Token ids to continue.
    pub ids: Option<Vec<u32>>,
    /// A conversation, rendered by the model's chat template.
    pub messages: Option<Vec<Value>>,
    /// Tools for the template.
    pub tools: Option<Vec<Value>>,
    /// Documents for the template.
    pub documents: Option<Vec<Value>>,
    /// Further variables of the template.
    pub chat_template: Map<String, Value>,
    /// Whether to open the assistant's turn after the messages; by default unless the last message
    /// is continued.
    pub add_generation_prompt: Option<bool>,
    /// Continues the last message instead of answering it.
    pub continue_final_message: bool,
    /// Maximum tokens of the answer; by default that of generation_config.json, else the rest of
    /// the context.
    pub max_tokens: Option<usize>,
    /// Leaves the answer to `messages` as it is. By default it is split into content, reasoning and
    /// tool calls if the model's format is known.
    pub raw_answer: bool,
    /// Sampling parameters.
    #[serde(flatten)]
    pub sampling: SamplingOptions,
    /// Seed if `sampling` has none; without either, the clock seeds.
    #[serde(skip)]
    pub fallback_seed: Option<u64>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Whether to return log-probabilities.
    pub logprobs: bool,
    /// Alternatives per token, at most 20.
    pub top_logprobs: usize,
    /// What happens when the context is full.
    pub overflow: ContextOverflow,
    /// Continues after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Speculative decoding, for greedy sampling only.
    pub speculation: SpeculationMode,
    /// Text that the answer probably repeats: drafts are looked up in it. Implies prompt lookup and
    /// never changes the answer.
    pub prediction: Option<String>,
}

impl GenerateRequest {
    /// Parses a request from JSON.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str::<Self>(text)
            .map_err(|e: serde_json::Error| Error::Request {
                parameter: "request".into(),
                reason: e.to_string(),
            })?
            .checked()
    }

    /// Validates the fields and their combinations.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn checked(self) -> Result<Self> {
        let given = [
            self.prompt.is_some(),
            self.ids.is_some(),
            self.messages.is_some(),
        ];
        if given.iter().filter(|g| **g).count() != 1 {
            let reason = "set exactly one of 'prompt', 'ids' and 'messages'.".into();
            return Err(Error::Request {
                parameter: "request".into(),
                reason,
            });
        }
        if self.suffix.is_some() && self.prompt.is_none() {
            let reason = "needs 'prompt', the text before the gap.".into();
            return Err(Error::Request {
                parameter: "suffix".into(),
                reason,
            });
        }
        if self.continue_final_message && self.add_generation_prompt == Some(true) {
            let reason = "cannot be combined with addGenerationPrompt: true, which opens a new message. Leave one out.";
            return Err(Error::Request {
                parameter: "continueFinalMessage".into(),
                reason: reason.into(),
            });
        }
        if self.max_tokens == Some(0) {
            let reason = "0 is too small. Use at least 1.".into();
            return Err(Error::Request {
                parameter: "maxTokens".into(),
                reason,
            });
        }
        if self.top_logprobs > 20 {
            let reason = format!("{} is too large. Use at most 20.", self.top_logprobs);
            return Err(Error::Request {
                parameter: "topLogprobs".into(),
                reason,
            });
        }
        Ok(self)
    }
}
