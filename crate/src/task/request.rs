//! What a generation is asked for, in the names of the JavaScript face.

use crate::sample::Overrides;
use crate::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// A prompt that does not fit is refused; an answer ends with `length`.
    #[default]
    Error,
    /// The oldest turns of a prompt are dropped, those of the system kept.
    Truncate,
    /// Like truncate, and an answer goes on after the older half of the context is dropped.
    Rolling,
}

/// Speculative decoding: tokens are drafted and verified together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speculation {
    /// One token after the other.
    #[default]
    Off,
    /// What followed the last tokens where they occurred before is drafted to follow again.
    PromptLookup,
}

/// A request: one of prompt, ids and messages.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GenerateRequest {
    /// Text to continue.
    pub prompt: Option<String>,
    /// Whether special tokens that the prompt spells are such: for prompts that no stranger has written.
    pub parse_special: bool,
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
    /// Whether the assistant's turn is opened behind the messages; by default unless the last one is continued.
    pub add_generation_prompt: Option<bool>,
    /// Goes on with the last message's text instead of answering it.
    pub continue_final_message: bool,
    /// The most tokens of the answer; what generation_config.json says, or the context's rest by default.
    pub max_tokens: Option<usize>,
    /// How tokens are picked.
    #[serde(flatten)]
    pub sampling: Overrides,
    /// The seed where the parameters have none; without this one, the clock.
    #[serde(skip)]
    pub fallback_seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Whether log-probabilities are wanted.
    pub logprobs: bool,
    /// How many alternatives each has.
    pub top_logprobs: usize,
    /// What happens when the context is full.
    pub overflow: Overflow,
    /// Go on after an end-of-text token.
    pub ignore_eos: bool,
    /// Speculative decoding, where the likeliest token is taken each time.
    pub speculation: Speculation,
}

impl GenerateRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `Request` that says which field is wrong.
    pub fn from_json(text: &str) -> Result<Self> {
        let refuse = |e: serde_json::Error| Error::Request { parameter: "request".into(), reason: e.to_string() };
        serde_json::from_str::<Self>(text).map_err(refuse)?.checked()
    }

    /// The request, where its fields go together.
    ///
    /// # Errors
    /// `Request` that says which field is wrong.
    pub fn checked(self) -> Result<Self> {
        let given = [self.prompt.is_some(), self.ids.is_some(), self.messages.is_some()];
        if given.iter().filter(|g| **g).count() != 1 {
            let reason = "exactly one of prompt, ids and messages is needed".into();
            return Err(Error::Request { parameter: "request".into(), reason });
        }
        if self.continue_final_message && self.add_generation_prompt == Some(true) {
            let reason =
                "cannot be combined with addGenerationPrompt: true, which opens another message; leave one out";
            return Err(Error::Request { parameter: "continueFinalMessage".into(), reason: reason.into() });
        }
        if self.max_tokens == Some(0) {
            let reason = "0 tokens were asked for; ask for at least one".into();
            return Err(Error::Request { parameter: "maxTokens".into(), reason });
        }
        if self.top_logprobs > 20 {
            let reason = format!("{} alternatives were asked for; at most 20 are given", self.top_logprobs);
            return Err(Error::Request { parameter: "topLogprobs".into(), reason });
        }
        Ok(self)
    }
}
