//! Requests of text models, with the JavaScript API's field names.

use crate::sample::SamplingOptions;
use crate::schema::{OptionValue, request_options};
use crate::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
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
    /// Drafts the tokens that the draft model proposes.
    Draft,
}

request_options! {
    /// A generation request with exactly one of `prompt`, `ids` and `messages`.
    pub struct GenerateRequest, GENERATE_OPTIONS {
        /// Text to continue.
        prompt: Option<String> = None => RequestOption::text();
        /// Parses special tokens in the prompt's text, such as `<|fim_prefix|>`; for trusted prompts only.
        parse_special: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Generate, Api::Completions]);
        /// Text after the gap that the answer fills, for fill-in-the-middle models; `prompt` is the text
        /// before it.
        suffix: Option<String> = None => RequestOption::text();
        /// Token ids to continue.
        ids: Option<Vec<u32>> = None => RequestOption::new(OptionType::TokenIds);
        /// A conversation, rendered by the model's chat template.
        messages: Option<Vec<Value>> = None => RequestOption::new(OptionType::List);
        /// Tools for the template.
        tools: Option<Vec<Value>> = None => RequestOption::new(OptionType::List);
        /// Documents for the template.
        documents: Option<Vec<Value>> = None => RequestOption::new(OptionType::List);
        /// Further variables of the template.
        chat_template: Map<String, Value> = Map::new() => RequestOption::new(OptionType::Object);
        /// Opens the assistant's turn after the messages, unless the last message is continued.
        add_generation_prompt: Option<bool> = None => RequestOption::boolean()
            .default("true")
            .of(&[Api::Chat]);
        /// Continues the last message's text instead of answering it.
        continue_final_message: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Chat]);
        /// Maximum number of generated tokens.
        max_tokens: Option<usize> = None => RequestOption::count(1.0)
            .default("the rest of the context")
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Leaves the answer to `messages` as it is, instead of splitting it into content, reasoning and
        /// tool calls.
        raw_answer: bool = false => RequestOption::boolean();
        /// Strings that end the text of an answer and are not part of it. They do not end its
        /// reasoning or tool calls.
        stop: Vec<String> = Vec::new() => RequestOption::new(OptionType::Texts)
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Adds log-probabilities of the generated tokens.
        logprobs: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Generate, Api::Chat]);
        /// Number of alternatives per token.
        top_logprobs: usize = 0 => RequestOption::integer(0.0, 20.0)
            .default("0")
            .of(&[Api::Generate, Api::Chat]);
        /// What to do when the context is full: fail, drop the oldest turns and render again, or slide
        /// over the oldest tokens.
        overflow: ContextOverflow = ContextOverflow::Error => RequestOption::one_of(&["error", "truncate", "rolling"])
            .alias("Overflow")
            .default("error")
            .of(&[Api::Generate, Api::Chat]);
        /// Continues after the end-of-text token.
        ignore_eos: bool = false => RequestOption::boolean()
            .default("false")
            .of(&[Api::Generate]);
        /// `draft` lets the draft model propose tokens, which are verified in one step. `prompt-lookup` looks
        /// them up in repeated text, at temperature 0.
        speculation: Option<SpeculationMode> = None => RequestOption::one_of(&["off", "prompt-lookup", "draft"])
            .alias("Speculation")
            .default("`draft` with a draft model, else `off`")
            .of(&[Api::Generate, Api::Chat]);
        /// Name of an adapter that was loaded next to the model; empty for none.
        adapter: Option<String> = None => RequestOption::text()
            .default("the session's, or none")
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Requests of higher priority run their prompt first; negative for background work.
        priority: i64 = 0 => RequestOption::integer(-100.0, 100.0)
            .default("0")
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Text that the answer probably repeats: drafts are looked up in it. Implies prompt lookup and
        /// never changes the answer.
        prediction: Option<String> = None => RequestOption::text();
        /// Tokens after which the thought of an answer to `messages` is closed.
        reasoning_budget: Option<usize> = None => RequestOption::count(0.0);
        /// Ends the answer with its first tool call.
        single_call: bool = false => RequestOption::boolean();
    }
    with {
        /// Sampling parameters.
        #[serde(flatten)]
        sampling: SamplingOptions;
        /// Seed if `sampling` has none; without either, the clock seeds.
        #[serde(skip)]
        fallback_seed: Option<u64>;
    }
}

impl OptionValue for ContextOverflow {}
impl OptionValue for SpeculationMode {}

/// Parses a request of any task from JSON.
///
/// # Errors
/// `Request` if the text is not JSON, or a field is unknown or of another type.
pub(super) fn parse_request<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::Request {
        parameter: "request".into(),
        reason: e.to_string(),
    })
}

impl GenerateRequest {
    /// Parses a request from JSON.
    ///
    /// # Errors
    /// `Request`, which names the wrong field.
    pub fn from_json(text: &str) -> Result<Self> {
        parse_request::<Self>(text)?.checked()
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
        self.check_bounds()?;
        Ok(self)
    }
}

request_options! {
    /// An embedding request.
    pub struct EmbedRequest, EMBED_OPTIONS {
        /// Name of one of the model's prompts, such as `query` or `document`.
        task: Option<String> = None => RequestOption::text()
            .default("none")
            .of(&[Api::Embed]);
        /// A prefix for each input, instead of a named prompt.
        prompt: Option<String> = None => RequestOption::text()
            .default("none")
            .of(&[Api::Embed]);
        /// Normalizes vectors to length 1.
        normalize: Option<bool> = None => RequestOption::boolean()
            .default("the model's")
            .of(&[Api::Embed]);
        /// Truncates each vector to its first components (Matryoshka), before normalizing.
        truncate_dim: Option<usize> = None => RequestOption::count(1.0)
            .default("all")
            .of(&[Api::Embed]);
        /// Name of an adapter that was loaded next to the model; empty for none.
        adapter: Option<String> = None => RequestOption::text()
            .default("none")
            .of(&[Api::Embed]);
    }
}

request_options! {
    /// A reranking request.
    pub struct RerankRequest, RERANK_OPTIONS {
        /// Definition of relevance, for models that take an instruction.
        instruction: Option<String> = None => RequestOption::text()
            .default("the model's")
            .of(&[Api::Rerank]);
    }
}
