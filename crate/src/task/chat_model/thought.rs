//! The thought before an answer: it is free of constraints, and a budget of tokens may end it.

use super::ChatModel;
use crate::chat::ThoughtMarkers;
use crate::sample::TokenConstraint;
use crate::task::request::GenerateRequest;
use crate::text::EncodeOptions;
use crate::{Error, Result};

/// Where a generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThoughtState {
    /// The answer begins; it may open with a thought.
    Ahead,
    /// Inside the thought.
    Open,
    /// Behind the thought.
    Over,
}

/// The thought of one answer, in tokens.
#[derive(Debug)]
pub(super) struct Thought {
    pub state: ThoughtState,
    /// Tokens that open it; empty if no single token shows that it opens.
    opener: Vec<u32>,
    /// Whether the opener is appended, because its first token can open something else as well.
    is_forced: bool,
    /// Tokens that end it; empty if its end is text.
    closers: Vec<u32>,
    /// What ends it when the budget is spent.
    forced_close: Vec<u32>,
    /// What stands between its end and a constrained answer.
    separator: Vec<u32>,
    budget: Option<usize>,
    spent: usize,
    is_constrained: bool,
}

impl Thought {
    /// Tokens that end the current part, besides those that end the answer.
    pub fn stops(&self) -> &[u32] {
        match self.state {
            ThoughtState::Ahead => self.opener.get(..1).unwrap_or_default(),
            ThoughtState::Open => &self.closers,
            ThoughtState::Over => &[],
        }
    }

    /// The token that may open the thought here.
    pub fn opener_token(&self) -> Option<u32> {
        match self.state {
            ThoughtState::Ahead => self.opener.first().copied(),
            _ => None,
        }
    }

    /// Whether the end of the thought must be looked for in the text, token by token.
    pub fn is_watched(&self) -> bool {
        self.state == ThoughtState::Open && self.closers.is_empty()
    }

    /// Whether a token that ends the answer ends the thought only: a constrained answer follows.
    pub fn survives_end(&self) -> bool {
        self.state == ThoughtState::Open && self.is_constrained
    }

    /// The tokens left for the current part.
    pub fn left(&self) -> usize {
        match (self.state, self.budget) {
            (ThoughtState::Open, Some(budget)) => budget.saturating_sub(self.spent),
            _ => usize::MAX,
        }
    }

    /// The opener, if it is appended here.
    pub fn take_forced_opener(&mut self) -> Vec<u32> {
        if self.state != ThoughtState::Ahead || !self.is_forced {
            return Vec::new();
        }
        self.state = ThoughtState::Open;
        self.opener.clone()
    }

    /// Advances past the tokens of a part; returns those to append. `is_reasoning`: whether the text
    /// so far ends in a thought; `has_ended`: whether the model tried to end the answer.
    pub fn advance(&mut self, tokens: &[u32], is_reasoning: bool, has_ended: bool) -> Vec<u32> {
        match self.state {
            ThoughtState::Ahead if tokens.last() == self.opener.first() && !tokens.is_empty() => {
                self.state = ThoughtState::Open;
                self.opener[1..].to_vec()
            }
            ThoughtState::Open => {
                self.spent += tokens.len();
                let closed = tokens.last().is_some_and(|id| self.closers.contains(id));
                if closed || !is_reasoning {
                    self.state = ThoughtState::Over;
                    return match self.is_constrained {
                        true => self.separator.clone(),
                        false => Vec::new(),
                    };
                }
                if self.left() == 0 || has_ended {
                    self.state = ThoughtState::Over;
                    return self.forced_close.clone();
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// Also allows the first token of a thought where the answer begins.
pub(super) struct WithOpener<'a> {
    pub inner: &'a mut dyn TokenConstraint,
    /// The opener, until another token is accepted.
    pub opener: Option<u32>,
}

impl TokenConstraint for WithOpener<'_> {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        self.inner.mask(words)?;
        if let Some(id) = self.opener
            && let Some(word) = words.get_mut(id as usize / 32)
        {
            *word |= 1 << (id % 32);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.opener = None;
        self.inner.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        match self.opener {
            Some(_) => Ok(Vec::new()),
            None => self.inner.forced(),
        }
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        match self.opener {
            Some(_) => Ok(None),
            None => self.inner.may_follow(token),
        }
    }

    fn known_forced(&self) -> usize {
        self.inner.known_forced()
    }

    fn runs_ahead(&self) -> bool {
        self.inner.runs_ahead()
    }
}

/// Allows every token, one by one.
pub(super) struct AnyToken;

impl TokenConstraint for AnyToken {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        words.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<()> {
        Ok(())
    }

    /// The end of the thought is looked for after each token.
    fn runs_ahead(&self) -> bool {
        false
    }
}

impl ChatModel {
    /// The thought of a request whose answer is constrained or whose thought has a budget; None
    /// where it needs no care. `is_reasoning`: whether the prompt opened it; `before`: the end of
    /// the prompt.
    ///
    /// # Errors
    /// `UnsupportedOption` for a budget if the model's thoughts are not known.
    pub(super) fn thought(
        &self,
        request: &GenerateRequest,
        is_constrained: bool,
        is_reasoning: bool,
        prompt: &[u32],
    ) -> Result<Option<Thought>> {
        let budget = request.reasoning_budget;
        if request.messages.is_none() || request.raw_answer || (budget.is_none() && !is_constrained)
        {
            return Ok(None);
        }
        let Some(markers) = self.text.answer_format().thought_markers() else {
            return match budget {
                None | Some(0) => Ok(None),
                Some(_) => Err(Error::UnsupportedOption {
                    architecture: self.origin.name.clone(),
                    option: "'reasoningBudget'".into(),
                    hint: "This model does not reason, or the format of its reasoning is not known. Leave it out, or limit the answer with maxTokens.".into(),
                }),
            };
        };
        let tokenizer = self.text.tokenizer()?;
        let ThoughtMarkers {
            opener,
            closers,
            is_shared,
            forced_close,
            separator,
        } = markers;
        // Behind a marker: some tokenizers write a blank before the beginning of a text.
        let encode = |text: &str| -> Result<Vec<u32>> {
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            let before = closers
                .first()
                .filter(|marker| tokenizer.token_to_id(marker).is_some());
            let text = format!("{}{text}", before.copied().unwrap_or_default());
            let mut ids = tokenizer.encode_with_options(&text, options)?;
            if let Some(marker) = before.and_then(|marker| tokenizer.token_to_id(marker)) {
                let end = ids.iter().position(|id| *id == marker);
                ids.drain(..end.map_or(0, |at| at + 1));
            }
            Ok(ids)
        };
        let opener_ids = encode(opener)?;
        // The first token must belong to the opener alone.
        let is_marked = opener_ids
            .first()
            .and_then(|id| tokenizer.id_to_token(*id))
            .is_some_and(|text| {
                opener.starts_with(&text) && text.starts_with(['<', '[']) && text.len() > 2
            });
        let is_closed = {
            let end = &prompt[prompt.len().saturating_sub(super::PROMPT_END_TOKENS)..];
            let end = tokenizer.decode(end, false);
            closers.iter().any(|text| end.trim_end().ends_with(text))
        };
        let may_open =
            is_marked && !is_closed && !request.continue_final_message && budget != Some(0);
        let closer_ids: Vec<u32> = closers
            .iter()
            .filter_map(|text| tokenizer.token_to_id(text))
            .collect();
        let has_tools = request
            .tools
            .as_ref()
            .is_some_and(|tools| !tools.is_empty());
        let close = match is_constrained || has_tools {
            // A call may follow, or a constraint that opens the response.
            true => format!("{}{separator}", markers.close()),
            false => forced_close.to_owned(),
        };
        Ok(Some(Thought {
            state: match (is_reasoning, may_open) {
                (true, _) => ThoughtState::Open,
                (false, true) => ThoughtState::Ahead,
                (false, false) => ThoughtState::Over,
            },
            opener: opener_ids,
            is_forced: is_shared,
            closers: match closer_ids.len() == closers.len() {
                true => closer_ids,
                false => Vec::new(),
            },
            forced_close: encode(&close)?,
            separator: encode(separator)?,
            budget,
            spent: 0,
            is_constrained,
        }))
    }
}
