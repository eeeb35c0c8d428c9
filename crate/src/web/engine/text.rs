//! Tokens, chat templates, and what the grammar module needs of them.

use super::Engine;
use crate::text::{ChatInput, EncodeOptions, RenderedPrompt};
use crate::web::JsResult;
use crate::web::values::{from_js, to_js};
use crate::{Error, Result};
use js_sys::{Object, Reflect, Uint8Array, Uint32Array};
use serde_json::Value;
use std::cell::RefCell;
use wasm_bindgen::prelude::*;

impl Engine {
    /// Renders a conversation with the model's chat template.
    fn render_prompt(&self, messages: &JsValue, options: &JsValue) -> Result<RenderedPrompt> {
        let list = |value: Value| value.as_array().cloned();
        let mut variables = match from_js("options", options.clone()) {
            Ok(Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let mut flag = |name: &str| variables.remove(name).and_then(|v| v.as_bool());
        let continues = flag("continueFinalMessage").unwrap_or(false);
        let generation = flag("addGenerationPrompt").unwrap_or(!continues);
        self.text.render(&ChatInput {
            messages: from_js("messages", messages.clone())?,
            tools: variables.remove("tools").and_then(list),
            documents: variables.remove("documents").and_then(list),
            add_generation_prompt: generation,
            continue_final_message: continues,
            variables,
            local_time: None,
        })
    }
}

#[wasm_bindgen]
impl Engine {
    /// Tokenizes text. Special tokens in it are recognized if `parse_special` is set.
    pub fn tokenize(
        &self,
        text: &str,
        add_special_tokens: bool,
        parse_special: bool,
    ) -> JsResult<Uint32Array> {
        let ids = self.text.tokenizer().and_then(|t| {
            t.encode_with_options(
                text,
                EncodeOptions {
                    add_special: add_special_tokens,
                    parse_special,
                },
            )
        });
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Tokenizes text that continues a text. Special tokens in it are text.
    #[wasm_bindgen(js_name = tokenizeContinuation)]
    pub fn tokenize_continuation(&self, text: &str) -> JsResult<Uint32Array> {
        let ids = self
            .text
            .tokenizer()
            .and_then(|tokenizer| tokenizer.encode_continuation(text));
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Tokenizes a conversation as `generate` does: special tokens are recognized in the template,
    /// not in messages.
    #[wasm_bindgen(js_name = tokenizeChat)]
    pub fn tokenize_chat(&self, messages: &JsValue, options: &JsValue) -> JsResult<Uint32Array> {
        let ids = self
            .render_prompt(messages, options)
            .and_then(|prompt| self.text.tokenizer()?.encode_prompt(&prompt));
        ids.map(|ids| Uint32Array::from(&ids[..]))
            .map_err(|e| to_js(&e))
    }

    /// Decodes token ids to text. Refuses ids that neither the tokenizer nor the model has.
    pub fn detokenize(&self, ids: &[u32], skip_special: bool) -> JsResult<String> {
        let decode = || {
            let tokenizer = self.text.tokenizer()?;
            let vocab = self.info.get("vocabSize").and_then(Value::as_u64);
            let bound = u64::from(tokenizer.id_bound()).max(vocab.unwrap_or_default());
            match ids.iter().find(|id| u64::from(**id) >= bound) {
                Some(id) => Err(Error::Request {
                    parameter: "ids".into(),
                    reason: format!(
                        "id {id} is outside the vocabulary of {bound} tokens. Use the model's own tokenizer."
                    ),
                }),
                None => Ok(tokenizer.decode(ids, skip_special)),
            }
        };
        decode().map_err(|e| to_js(&e))
    }

    /// Renders a conversation with the model's chat template.
    #[wasm_bindgen(js_name = renderChat)]
    pub fn render_chat(&self, messages: &JsValue, options: &JsValue) -> JsResult<String> {
        self.render_prompt(messages, options)
            .map(|prompt| prompt.text)
            .map_err(|e| to_js(&e))
    }

    /// The vocabulary for a grammar: `{ bytes, lengths, endIds }`, the bytes of all tokens one after
    /// another, the length of each by id, and the ids that end a text. Special tokens and markers of
    /// tool calls have none.
    #[wasm_bindgen(js_name = vocabularyBytes)]
    pub fn vocabulary_bytes(&self) -> JsResult<JsValue> {
        let tokenizer = self.text.tokenizer().map_err(|e| to_js(&e))?;
        // Grammars name the markers of the format by id, so they must not be text as well.
        let markers = RefCell::new(Vec::new());
        self.text
            .answer_format()
            .spelling(self.text.template_source(), &|marker| {
                let id = tokenizer.token_to_id(marker);
                markers.borrow_mut().extend(id);
                id
            });
        let markers = markers.into_inner();
        let mut bytes = Vec::new();
        let mut lengths = Vec::new();
        for id in 0..tokenizer.id_bound() {
            let token = match markers.contains(&id) {
                true => Vec::new(),
                false => tokenizer.text_bytes(id),
            };
            lengths.push(token.len() as u32);
            bytes.extend(token);
        }
        let parts = Object::new();
        for (name, value) in [
            ("bytes", Uint8Array::from(&bytes[..]).into()),
            ("lengths", Uint32Array::from(&lengths[..]).into()),
            ("endIds", Uint32Array::from(&self.end_ids[..]).into()),
        ] {
            Reflect::set(&parts, &name.into(), &value)?;
        }
        Ok(parts.into())
    }

    /// How the model writes tool calls and other answers, as JSON for the grammar module.
    #[wasm_bindgen(js_name = answerSpelling)]
    pub fn answer_spelling(&self) -> String {
        let tokenizer = self.text.tokenizer().ok();
        let token_of = |marker: &str| tokenizer?.token_to_id(marker);
        let format = self.text.answer_format();
        format
            .spelling(self.text.template_source(), &token_of)
            .to_string()
    }
}
