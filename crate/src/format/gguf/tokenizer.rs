//! Converts the tokenizer in a GGUF file to the original's tokenizer.json. Does not tokenize.

use super::pretokenizer::{
    DIGIT_REGEX, GPT2_REGEX, GgufPreTokenizer, TokenAlphabet, pre_tokenizer,
};
use super::special::{GgufSpecialTokens, TYPE_NORMAL, strips_whitespace};
use super::{Gguf, MetadataValue as Meta};
use crate::util::json::literal;
use crate::util::tokenizer_parts::{
    SPM_SPACE, bert_normalizer, bytes_decoder, metaspace, space_normalizer,
};
use crate::util::{base64, json as python};
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::HashMap;

/// The vocabulary of a GGUF file.
struct GgufVocabulary<'a> {
    gguf: &'a Gguf,
    tokens: Cow<'a, [String]>,
    special: GgufSpecialTokens,
}

impl Gguf {
    /// Builds the original's tokenizer.json.
    ///
    /// # Errors
    /// `Tokenizer` with the name of an unknown tokenizer or pre-tokenizer.
    pub fn tokenizer(&self) -> Result<Value> {
        if let Some(text) = self.text("tokenizer.huggingface.json") {
            return serde_json::from_slice(&python::to_standard_json(text.as_bytes()))
                .map_err(|e| tokenizer_error(format!("tokenizer.huggingface.json: {e}")));
        }
        let v = GgufVocabulary::read(self)
            .ok_or_else(|| tokenizer_error("the GGUF file has no tokenizer.ggml.tokens".into()))?;
        let (body, decoder) = match self.tokenizer_model() {
            "gpt2" | "gemma4" => v.bpe()?,
            "llama" => v.sentencepiece_bpe()?,
            "t5" => v.unigram()?,
            "bert" => v.wordpiece()?,
            other => {
                let known = "supported: gpt2, llama, bert, t5, gemma4";
                return Err(tokenizer_error(format!(
                    "the GGUF file's tokenizer.ggml.model '{other}' is not supported ({known}). Give token ids instead \
                     of text, or use another model"
                )));
            }
        };
        let mut out = Map::new();
        out.insert("version".into(), json!("1.0"));
        out.insert("truncation".into(), Value::Null);
        out.insert("padding".into(), Value::Null);
        out.insert("added_tokens".into(), v.added_tokens());
        out.extend(body);
        out.insert("post_processor".into(), v.post_processor()?);
        out.insert("decoder".into(), decoder);
        Ok(Value::Object(out))
    }

    /// Whether the file has a vocabulary for a tokenizer. Tokens without the kind of the tokenizer, or
    /// without scores where it needs them, are none.
    pub fn has_tokenizer(&self) -> bool {
        let has = |key: &str| self.metadata.contains_key(key);
        has("tokenizer.huggingface.json")
            || has("tokenizer.ggml.tokens")
                && match self.tokenizer_model() {
                    "" | "none" | "no_vocab" => false,
                    "llama" | "t5" => has("tokenizer.ggml.scores"),
                    _ => true,
                }
    }

    /// The tokens that end a generation (end of sequence, turn or message), by metadata and by
    /// spelling.
    pub fn stop_ids(&self) -> Vec<u32> {
        GgufVocabulary::read(self).map_or_else(Vec::new, |v| v.special.stops)
    }

    fn tokenizer_model(&self) -> &str {
        self.text("tokenizer.ggml.model").unwrap_or_default()
    }

    /// A special token's id and text by metadata key, or the default of this tokenizer model.
    pub(super) fn special_token(&self, key: &str) -> Option<(i64, &str)> {
        let Some(Meta::Texts(tokens)) = self.metadata.get("tokenizer.ggml.tokens") else {
            return None;
        };
        let text = |id: i64| Some((id, tokens.get(usize::try_from(id).ok()?)?.as_str()));
        let usual = match (self.tokenizer_model(), key) {
            ("llama", "bos_token_id") => Some(1),
            ("llama", "eos_token_id") => Some(2),
            ("llama", "unknown_token_id") => Some(0),
            ("bert", "unknown_token_id") => Some(100),
            ("bert", "seperator_token_id") => Some(102),
            ("bert", "padding_token_id") | ("t5", "padding_token_id") => Some(0),
            ("bert", "mask_token_id") => Some(103),
            ("t5", "eos_token_id") => Some(1),
            ("t5", "unknown_token_id") => Some(2),
            _ => None,
        };
        let named = self.int(&format!("tokenizer.ggml.{key}")).and_then(text);
        named.or_else(|| text(usual?))
    }
}

fn tokenizer_error(reason: String) -> Error {
    Error::Tokenizer { reason }
}

type TokenizerSections = (Map<String, Value>, Value);

/// The normalizer, pre_tokenizer and model of tokenizer.json.
fn tokenizer_sections(normalizer: Value, pre_tokenizer: Value, model: Value) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("normalizer".into(), normalizer);
    out.insert("pre_tokenizer".into(), pre_tokenizer);
    out.insert("model".into(), model);
    out
}

/// Puts the marker before a text.
fn prepend_space() -> Value {
    literal(&format!(r#"{{"type":"Prepend","prepend":"{SPM_SPACE}"}}"#))
}

impl<'a> GgufVocabulary<'a> {
    /// Reads the vocabulary; `None` if the file has none.
    fn read(gguf: &'a Gguf) -> Option<Self> {
        let Some(Meta::Texts(tokens)) = gguf.metadata.get("tokenizer.ggml.tokens") else {
            return None;
        };
        let mut tokens = Cow::Borrowed(tokens.as_slice());
        if tokens.iter().any(String::is_empty) {
            for (id, token) in tokens
                .to_mut()
                .iter_mut()
                .enumerate()
                .filter(|(_, token)| token.is_empty())
            {
                *token = format!("[EMPTY_{id}]");
            }
        }
        let eos = gguf
            .special_token("eos_token_id")
            .map(|(id, _)| id as usize);
        let special = GgufSpecialTokens::derive_from(gguf, &tokens, eos);
        Some(Self {
            gguf,
            tokens,
            special,
        })
    }

    fn token_type(&self, id: usize) -> i64 {
        self.special.types.get(id).copied().unwrap_or(TYPE_NORMAL)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.gguf
            .bool(&format!("tokenizer.ggml.{key}"))
            .unwrap_or(default)
    }

    /// Whether all 256 byte tokens (`<0x00>` to `<0xFF>`) exist, so that unknown characters fall
    /// back to bytes.
    fn has_byte_tokens(&self) -> bool {
        self.tokens
            .iter()
            .filter(|token: &&String| {
                token.len() == 6 && token.starts_with("<0x") && token.ends_with('>')
            })
            .count()
            == 256
    }

    fn vocab(&self) -> Value {
        Value::Object(
            self.tokens
                .iter()
                .enumerate()
                .map(|(id, token)| (token.clone(), json!(id)))
                .collect(),
        )
    }

    /// One score per token.
    fn scores(&self) -> Result<Vec<f64>> {
        let scores: Vec<f64> = match self.gguf.metadata.get("tokenizer.ggml.scores") {
            Some(Meta::Floats(scores)) => scores.clone(),
            Some(Meta::Ints(scores)) => scores.iter().map(|s| *s as f64).collect(),
            _ => Vec::new(),
        };
        if scores.len() < self.tokens.len() {
            return Err(tokenizer_error(format!(
                "the GGUF file has {} scores for {} tokens",
                scores.len(),
                self.tokens.len()
            )));
        }
        Ok(scores)
    }

    fn added_tokens(&self) -> Value {
        let entry = |id: usize| {
            let [lstrip, rstrip] = strips_whitespace(self.gguf, &self.tokens[id]);
            json!({"id": id, "content": self.tokens[id], "single_word": false, "lstrip": lstrip, "rstrip": rstrip,
                "normalized": false, "special": self.special.is_special(id)})
        };
        Value::Array(
            (0..self.tokens.len())
                .filter(|id| self.special.is_added(*id))
                .map(entry)
                .collect(),
        )
    }

    /// The pre-tokenizer of the file.
    fn named_pre_tokenizer(&self) -> Result<GgufPreTokenizer> {
        let name = match self.gguf.tokenizer_model() {
            "gemma4" => "gemma4",
            _ => self
                .gguf
                .text("tokenizer.ggml.pre")
                .filter(|name| !name.is_empty())
                .unwrap_or("default"),
        };
        pre_tokenizer(name).ok_or_else(|| {
            tokenizer_error(format!(
                "the GGUF file's tokenizer.ggml.pre '{name}' is unknown, to llama.cpp too. Convert the model \
                 again with a current llama.cpp, or use another GGUF file of it"
            ))
        })
    }

    /// BPE with the file's merges, of bytes or of characters.
    fn bpe(&self) -> Result<TokenizerSections> {
        let Some(Meta::Texts(listed)) = self.gguf.metadata.get("tokenizer.ggml.merges") else {
            return Err(tokenizer_error(
                "the GGUF file has no tokenizer.ggml.merges".into(),
            ));
        };
        let pre = self.named_pre_tokenizer()?;
        let bytes = pre.alphabet == TokenAlphabet::Bytes;
        // Tokens of characters may begin with a space, so the separator is a later one.

        let merges = if bytes {
            json!(listed)
        } else {
            listed
                .iter()
                .filter_map(|merge: &String| {
                    let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ')?.0;
                    Some(json!([&merge[..at], &merge[at + 1..]]))
                })
                .collect()
        };
        let byte_level = |regex: bool| {
            literal(&format!(
                r#"{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":{regex}}}"#
            ))
        };
        let mut stages: Vec<Value> = Vec::new();
        for (index, regex) in pre.regexes.iter().enumerate() {
            stages.push(match regex.as_str() {
                GPT2_REGEX if bytes && index + 1 == pre.regexes.len() => break,
                DIGIT_REGEX => literal(r#"{"type":"Digits","individual_digits":true}"#),
                regex => {
                    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
                }
            });
        }
        if bytes {
            stages.push(byte_level(stages.len() < pre.regexes.len()));
        }
        let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": stages});
        let unknown = self
            .gguf
            .special_token("unknown_token_id")
            .filter(|_| !bytes);
        let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown.map(|(_, text)| text),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": !bytes,
            "byte_fallback": !bytes && self.has_byte_tokens(), "ignore_merges": pre.ignore_merges, "vocab": self.vocab(), "merges": merges});
        let normalizer = match pre.alphabet {
            TokenAlphabet::Spaces => literal(&space_normalizer()),
            _ => Value::Null,
        };
        let decoder = if bytes {
            byte_level(true)
        } else {
            literal(&bytes_decoder(true, false))
        };
        Ok((
            tokenizer_sections(normalizer, pre_tokenizer, model),
            decoder,
        ))
    }

    /// SentencePiece BPE merges the pair with the best score of the merged token. This equals
    /// merges sorted by score.
    fn sentencepiece_bpe(&self) -> Result<TokenizerSections> {
        let prefix = self.flag("add_space_prefix", true);
        let normalizer = if prefix {
            let members = Value::Array(vec![prepend_space(), literal(&space_normalizer())]);
            json!({"type": "Sequence", "normalizers": members})
        } else {
            literal(&space_normalizer())
        };
        let unknown = self
            .gguf
            .special_token("unknown_token_id")
            .map(|(_, text)| text);
        let model = json!({"type": "BPE", "dropout": null, "unk_token": unknown,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": self.has_byte_tokens(),
            "ignore_merges": false, "vocab": self.vocab(), "merges": self.scored_merges()?});
        Ok((
            tokenizer_sections(normalizer, Value::Null, model),
            literal(&bytes_decoder(true, prefix)),
        ))
    }

    /// All pairs of tokens whose concatenation is a token, best score first.
    fn scored_merges(&self) -> Result<Vec<[&str; 2]>> {
        let mut scores = self.scores()?;
        // Tokens of other types are matched whole. Tokens over 256 bytes are not built by merges.
        let merged: Vec<usize> = (0..self.tokens.len())
            .filter(|id| matches!(self.token_type(*id), 1 | 5) && self.tokens[*id].len() <= 256)
            .collect();
        if merged.iter().all(|id| scores[*id] == scores[merged[0]]) {
            // Placeholders: llama.cpp's conversion without tokenizer.model. The original's scores
            // fall with the id, and runs of spaces are last.
            for &id in &merged {
                let spaces = self.tokens[id].trim_start_matches(SPM_SPACE).is_empty();
                scores[id] = if spaces { f64::MIN } else { -(id as f64) };
            }
        }
        let ids: HashMap<&str, usize> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(id, t)| (t.as_str(), id))
            .collect();
        let mut pairs: Vec<(f64, usize, usize, [&str; 2])> = Vec::new();
        for id in merged {
            let token = &self.tokens[id];
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                    pairs.push((scores[id], *l, *r, [left, right]));
                }
            }
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        Ok(pairs.into_iter().map(|p| p.3).collect())
    }

    fn unigram(&self) -> Result<TokenizerSections> {
        let scores = self.scores()?;
        let vocab: Vec<Value> = self
            .tokens
            .iter()
            .zip(scores)
            .map(|(t, s)| json!([t, s]))
            .collect();
        let model = json!({"type": "Unigram", "unk_id": self.gguf.special_token("unknown_token_id").map(|(id, _)| id),
            "vocab": vocab, "byte_fallback": false});
        let charsmap = match self
            .gguf
            .metadata
            .get("tokenizer.ggml.precompiled_charsmap")
        {
            Some(Meta::Ints(bytes)) if !bytes.is_empty() => {
                let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
                Some(json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&bytes)}))
            }
            _ => None,
        };
        let prefix = self.flag("add_space_prefix", false);
        let metaspace = |scheme: &str| literal(&metaspace(scheme));
        if self.flag("remove_extra_whitespaces", false) {
            // Then every word begins with a space, including the first.
            let split = literal(r#"{"type":"WhitespaceSplit"}"#);
            let members = Value::Array(vec![split, metaspace("always")]);
            let words = json!({"type": "Sequence", "pretokenizers": members});
            return Ok((
                tokenizer_sections(charsmap.unwrap_or_default(), words, model),
                metaspace("always"),
            ));
        }
        let prepend = prefix.then(prepend_space);
        let steps: Vec<Value> = charsmap
            .into_iter()
            .chain(prepend)
            .chain([literal(&space_normalizer())])
            .collect();
        let normalizer = json!({"type": "Sequence", "normalizers": steps});
        Ok((
            tokenizer_sections(normalizer, Value::Null, model),
            metaspace(if prefix { "always" } else { "never" }),
        ))
    }

    /// Builds WordPiece. GGUF marks word starts; WordPiece marks continuations.
    fn wordpiece(&self) -> Result<TokenizerSections> {
        let vocab: Map<String, Value> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(id, token): (usize, &String)| {
                let whole =
                    self.special.is_special(id) || token.starts_with('[') && token.ends_with(']');
                let text = match token.strip_prefix(SPM_SPACE) {
                    _ if whole => token.clone(),
                    Some(word) => word.to_string(),
                    None => format!("##{token}"),
                };
                (text, json!(id))
            })
            .collect();
        let unknown = self
            .gguf
            .special_token("unknown_token_id")
            .map_or("[UNK]", |(_, text)| text);
        let model = json!({"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab});
        let lowercase = self.flag("normalizer.lowercase", true);
        let strip_accents = self.flag("normalizer.strip_accents", lowercase);
        let strips = Value::from(strip_accents);
        let normalizer = literal(&bert_normalizer(true, &strips, lowercase));
        let decoder = literal(r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###);
        Ok((
            tokenizer_sections(normalizer, literal(r#"{"type":"BertPreTokenizer"}"#), model),
            decoder,
        ))
    }

    /// Adds special tokens around a sequence and between two.
    fn post_processor(&self) -> Result<Value> {
        let bos = "bos_token_id";
        let eos = "eos_token_id";
        let sep = "seperator_token_id";

        let id = |key: &str, add: bool| self.gguf.special_token(key).filter(|_| add);
        let [first, last, between] = match self.gguf.tokenizer_model() {
            // Always added, whatever the file says.
            "bert" => {
                let first = id(bos, true).or_else(|| id("cls_token_id", true));

                [
                    first.or_else(|| self.tokens.get(101).map(|text| (101, text.as_str()))),
                    id(sep, true),
                    None,
                ]
            }
            "llama" => [
                id(bos, self.flag("add_bos_token", true)),
                id(eos, self.flag("add_eos_token", false)),
                id(sep, self.flag("add_sep_token", false)),
            ],
            "t5" => [
                id(bos, self.flag("add_bos_token", false)),
                id(eos, self.flag("add_eos_token", true)),
                id(sep, self.flag("add_sep_token", false)),
            ],
            model => {
                let pre = self.named_pre_tokenizer()?;
                // Gemma 4 always adds BOS, even if the file disables it.
                let forced =
                    model == "gemma4" || pre.alphabet == TokenAlphabet::Spaces && pre.add_bos;
                [
                    id(bos, forced || self.flag("add_bos_token", pre.add_bos)),
                    id(eos, self.flag("add_eos_token", false)),
                    id(sep, self.flag("add_sep_token", pre.add_sep)),
                ]
            }
        };
        if first.is_none() && last.is_none() {
            return Ok(Value::Null);
        }
        let token = |t: &Option<(i64, &str)>, kind: u32| {
            t.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
        };
        let sequence =
            |name: &str, kind: u32| Some(json!({"Sequence": {"id": name, "type_id": kind}}));
        let list =
            |parts: &[Option<Value>]| Value::Array(parts.iter().flatten().cloned().collect());
        let single = [token(&first, 0), sequence("A", 0), token(&last, 0)];
        let second = [token(&between, 0), sequence("B", 1), token(&last, 1)];
        let mut special = Map::new();
        for (id, text) in [first, last, between].into_iter().flatten() {
            special.insert(
                text.into(),
                json!({"id": text, "ids": [id], "tokens": [text]}),
            );
        }
        let pair = [&single[..], &second[..]].concat();
        Ok(
            json!({"type": "TemplateProcessing", "single": list(&single), "pair": list(&pair), "special_tokens": special}),
        )
    }
}
