//! The module's interface for pages.

use crate::{ForcedPart, Grammar, GrammarError, Vocabulary};
use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;

/// A model's tokens as bytes. See [`Vocabulary`].
#[wasm_bindgen(js_name = Vocabulary)]
pub struct JsVocabulary(Vocabulary);

/// One generation's constraint. See [`Grammar`].
#[wasm_bindgen(js_name = Grammar)]
pub struct JsGrammar {
    grammar: Grammar,
    mask: Vec<u32>,
}

fn js_error(error: &GrammarError) -> JsError {
    JsError::new(&error.to_string())
}

#[wasm_bindgen(js_class = Vocabulary)]
impl JsVocabulary {
    /// `bytes` holds the tokens one after another, `lengths` the number of bytes of each by id; 0
    /// for tokens that are never allowed. `end_ids` end the output.
    #[wasm_bindgen(constructor)]
    pub fn new(bytes: &[u8], lengths: &[u32], end_ids: &[u32]) -> Result<JsVocabulary, JsError> {
        let mut rest = bytes;
        let mut tokens = Vec::with_capacity(lengths.len());
        for &length in lengths {
            let (token, after) = rest
                .split_at_checked(length as usize)
                .ok_or_else(|| JsError::new("vocabulary: fewer bytes than the lengths say"))?;
            tokens.push(token.to_vec());
            rest = after;
        }
        let vocabulary = Vocabulary::new(tokens, end_ids).map_err(|e| js_error(&e))?;
        Ok(JsVocabulary(vocabulary))
    }

    /// Compiles a constraint: see [`Vocabulary::grammar_from`].
    pub fn grammar(&self, kind: &str, source: &str) -> Result<JsGrammar, JsError> {
        let compiled = self.0.grammar_from(kind, source);
        Ok(JsGrammar {
            grammar: compiled.map_err(|e| js_error(&e))?,
            mask: vec![0; self.0.mask_words()],
        })
    }
}

#[wasm_bindgen(js_class = Grammar)]
impl JsGrammar {
    /// The mask of the next token, one bit a token.
    pub fn mask(&mut self) -> Result<Vec<u32>, JsError> {
        self.grammar
            .write_mask(&mut self.mask)
            .map_err(|e| js_error(&e))?;
        Ok(self.mask.clone())
    }

    /// Advances by a sampled token.
    pub fn accept(&mut self, token: u32) -> Result<(), JsError> {
        self.grammar.accept(token).map_err(|e| js_error(&e))
    }

    /// How many of these tokens may follow one after another. Does not advance.
    #[wasm_bindgen(js_name = validPrefix)]
    pub fn valid_prefix(&mut self, tokens: &[u32]) -> Result<usize, JsError> {
        self.grammar.valid_prefix(tokens).map_err(|e| js_error(&e))
    }

    /// What must come next: bytes of text, and ids of tokens. See [`Grammar::forced`].
    pub fn forced(&mut self) -> Array {
        let parts = self.grammar.forced();
        let values = parts.iter().map(|part| match part {
            ForcedPart::Text(bytes) => Uint8Array::from(&bytes[..]).into(),
            ForcedPart::Token(id) => JsValue::from(*id),
        });
        values.collect()
    }

    /// Whether the output may end here.
    #[wasm_bindgen(js_name = isComplete)]
    pub fn is_complete(&mut self) -> bool {
        self.grammar.is_complete()
    }

    /// Whether nothing but an end token can follow.
    #[wasm_bindgen(js_name = hasEnded)]
    pub fn has_ended(&self) -> bool {
        self.grammar.has_ended()
    }
}
