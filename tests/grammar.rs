//! A grammar as the engine's constraint, as the page makes it: forced text in the model's tokens.

use jerboa::sample::TokenConstraint;
use jerboa::text::Tokenizer;
use jerboa::{Error, Result};
use jerboa_grammar::{Constraint, ForcedPart, Grammar, GrammarError, Vocabulary};
use std::collections::VecDeque;

/// Minimum number of forced tokens that are appended, as in pkg-template/src/constraint.ts.
const MIN_FORCED_TOKENS: usize = 2;

/// The tokens of a model in the grammar module.
pub fn vocabulary(tokenizer: &Tokenizer) -> Vocabulary {
    let tokens = (0..tokenizer.id_bound()).map(|id| tokenizer.text_bytes(id));
    Vocabulary::new(tokens.collect(), tokenizer.eos_ids()).expect("a vocabulary")
}

/// The constraint of one answer.
pub struct GrammarLimit<'a> {
    grammar: Grammar,
    tokenizer: &'a Tokenizer,
    /// Forced tokens that the grammar has accepted and the engine has not; None if not asked.
    forced: Option<VecDeque<u32>>,
    /// Whether the engine may sample ahead.
    pub runs_ahead: bool,
    /// Masks that were computed.
    pub masks: usize,
}

fn refused(error: &GrammarError) -> Error {
    Error::Internal(error.to_string())
}

impl<'a> GrammarLimit<'a> {
    /// Compiles a constraint.
    ///
    /// # Panics
    /// If it is invalid.
    pub fn new(vocabulary: &Vocabulary, tokenizer: &'a Tokenizer, constraint: Constraint) -> Self {
        Self {
            grammar: vocabulary.grammar(constraint).expect("a grammar"),
            tokenizer,
            forced: None,
            runs_ahead: true,
            masks: 0,
        }
    }

    fn ask(&mut self) -> Result<&mut VecDeque<u32>> {
        if self.forced.is_none() {
            let parts = self.grammar.forced();
            let mut ids = Vec::new();
            for part in &parts {
                match part {
                    ForcedPart::Token(id) => ids.push(*id),
                    ForcedPart::Text(bytes) => {
                        let text = String::from_utf8_lossy(bytes);
                        let text = text.trim_end_matches('\u{fffd}');
                        ids.extend(self.tokenizer.encode_continuation(text)?);
                    }
                }
            }
            if matches!(parts.last(), Some(ForcedPart::Text(_))) {
                ids.pop();
            }
            let valid = self.grammar.valid_prefix(&ids).map_err(|e| refused(&e))?;
            ids.truncate(if valid < MIN_FORCED_TOKENS { 0 } else { valid });
            for id in &ids {
                self.grammar.accept(*id).map_err(|e| refused(&e))?;
            }
            self.forced = Some(ids.into());
        }
        Ok(self.forced.get_or_insert_default())
    }
}

impl TokenConstraint for GrammarLimit<'_> {
    fn mask(&mut self, words: &mut [u32]) -> Result<()> {
        self.masks += 1;
        self.grammar.write_mask(words).map_err(|e| refused(&e))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        let forced = self.ask()?;
        if forced.pop_front().is_none() {
            self.forced = None;
            return self.grammar.accept(token).map_err(|e| refused(&e));
        }
        if forced.is_empty() {
            self.forced = None;
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>> {
        self.ask().map(|forced| forced.iter().copied().collect())
    }

    fn may_follow(&mut self, token: u32) -> Result<Option<bool>> {
        if let Some(forced) = self.ask()?.front() {
            return Ok(Some(*forced == token));
        }
        let valid = self
            .grammar
            .valid_prefix(&[token])
            .map_err(|e| refused(&e))?;
        Ok(Some(valid == 1))
    }

    fn known_forced(&self) -> usize {
        self.forced.as_ref().map_or(0, VecDeque::len)
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }
}
