//! Converts older tokenizer files to tokenizer.json as transformers does: vocab.json with
//! merges.txt, vocab.txt, and SentencePiece models.
//!
//! Source: transformers 5.24, `tokenization_utils_tokenizers.py`, `convert_slow_tokenizer.py` and
//! the classes of `models/*/tokenization_*.py`.

use bitcannon::regexes;
use serde_json::{Map, Value};

use super::sentencepiece::SentencePieceModel;
use super::tokenizer::{SPECIAL_TOKEN_NAMES, apply_special_tokens_map, spelling};
use super::tokenizer_error;
use crate::Result;
use crate::util::tokenizer_parts::{
    bert_normalizer, bytes_decoder, join_spaces, metaspace, quoted, replace, sequence, sequence_of,
    space_normalizer, split_regex, template, unigram, whole_metaspace,
};
use crate::util::{base64, sort};
use classes::{
    BERT_DEFAULTS, DEBERTA_DEFAULTS, GEMMA_DEFAULTS, GPT_NEOX_DEFAULTS, GPT2_DEFAULTS,
    LLAMA_DEFAULTS, QWEN_DEFAULTS, ROBERTA_DEFAULTS, SENTENCEPIECE_CLASSES, T5_DEFAULTS,
    has_own_rules,
};

mod classes;

/// Maximum nesting of the groups that share the beginnings of user-defined pieces.
const MAX_PREFIX_DEPTH: usize = 32;
/// Sort key of tokens without an id, which follow all tokens that have one.
const NO_ID: usize = 1 << 30;

/// The files of a tokenizer without tokenizer.json.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlowTokenizerFiles<'a> {
    /// vocab.json
    pub vocab: Option<&'a [u8]>,
    /// merges.txt
    pub merges: Option<&'a [u8]>,
    /// vocab.txt
    pub word_pieces: Option<&'a [u8]>,
    /// tokenizer.model, spiece.model, sentencepiece.bpe.model or spm.model
    pub sentencepiece: Option<&'a [u8]>,
    /// added_tokens.json
    pub added_tokens: Option<&'a [u8]>,
    /// tokenizer_config.json
    pub tokenizer_config: Option<&'a [u8]>,
    /// special_tokens_map.json
    pub special_tokens_map: Option<&'a [u8]>,
    /// `model_type` of config.json, which implies the class if tokenizer_config.json names none.
    pub model_type: Option<&'a str>,
}

/// A tokenizer under construction.
struct SlowTokenizerBuilder {
    config: Value,
    /// The class's named special tokens, for those that tokenizer_config.json lacks.
    defaults: &'static [(&'static str, &'static str)],
    added: Vec<Value>,
}

const CLS_SEP: [&str; 2] = ["cls_token", "sep_token"];
const BOS_EOS: [&str; 2] = ["bos_token", "eos_token"];

/// The parts of tokenizer.json besides the model and the tokens, as JSON text; empty for none.
#[derive(Default)]
struct ConvertedParts {
    normalizer: String,
    pre_tokenizer: String,
    decoder: String,
    post_processor: String,
}

impl SlowTokenizerFiles<'_> {
    /// Builds tokenizer.json; `None` if no vocabulary is among the files.
    ///
    /// # Errors
    /// `Tokenizer` if a file is missing or damaged, or the tokenizer class is not supported.
    pub fn to_tokenizer_json(&self) -> Result<Option<String>> {
        if self.vocab.is_none() && self.word_pieces.is_none() && self.sentencepiece.is_none() {
            return Ok(None);
        }
        let json = |file: Option<&[u8]>, name: &str| -> Result<Value> {
            serde_json::from_slice(file.unwrap_or(b"null"))
                .map_err(|e| tokenizer_error(format!("{name} is not valid JSON: {e}")))
        };
        let mut config = json(self.tokenizer_config, "tokenizer_config.json")?;
        let map = json(self.special_tokens_map, "special_tokens_map.json")?;
        apply_special_tokens_map(&mut config, map);
        let class = self.class(&config);
        let mut builder = SlowTokenizerBuilder {
            config,
            defaults: &[],
            added: Vec::new(),
        };
        builder.add_listed_tokens(self.added_tokens)?;
        match self {
            SlowTokenizerFiles {
                sentencepiece: Some(model),
                ..
            } => builder.sentencepiece(&class, model),
            SlowTokenizerFiles {
                vocab: Some(vocab),
                merges,
                ..
            } => builder.byte_level(&class, vocab, *merges),
            SlowTokenizerFiles {
                word_pieces: Some(words),
                ..
            } => builder.word_pieces(&class, words),
            _ => return Ok(None),
        }
        .map(Some)
    }

    /// Returns the tokenizer class without `Fast`.
    fn class(&self, config: &Value) -> String {
        let named = config.get("tokenizer_class").and_then(Value::as_str);
        let named = named.map(|name| name.strip_suffix("Fast").unwrap_or(name).to_owned());
        named.unwrap_or_else(|| {
            let of_model = match self.model_type.unwrap_or_default() {
                kind if kind.starts_with("qwen") => "Qwen2Tokenizer",
                "roberta" | "bart" | "longformer" | "led" => "RobertaTokenizer",
                "xlm-roberta" => "XLMRobertaTokenizer",
                "camembert" => "CamembertTokenizer",
                "t5" | "mt5" | "umt5" => "T5Tokenizer",
                "mpnet" => "MPNetTokenizer",
                "llama" | "mistral" | "mixtral" => "LlamaTokenizer",
                kind if kind.starts_with("gemma") => "GemmaTokenizer",
                "bert" | "distilbert" | "electra" | "nomic_bert" => "BertTokenizer",
                "deberta-v2" => "DebertaV2Tokenizer",
                "gpt_neox" | "falcon_mamba" | "mamba" | "mamba2" | "mpt" | "olmo" | "olmoe"
                | "rwkv" | "xlstm" => "GPTNeoXTokenizer",
                "whisper" => "WhisperTokenizer",
                "gpt2" | "gpt_bigcode" | "starcoder2" | "codegen" | "phi" | "gpt_neo" | "gptj"
                | "opt" => "GPT2Tokenizer",
                kind if has_own_rules(kind) => kind,
                _ => "",
            };
            of_model.to_owned()
        })
    }
}

impl SlowTokenizerBuilder {
    /// Adds the tokens of added_tokens.json, a map from token to id.
    fn add_listed_tokens(&mut self, file: Option<&[u8]>) -> Result<()> {
        let Some(bytes) = file else { return Ok(()) };
        let all: Map<String, Value> = serde_json::from_slice(bytes).map_err(|e| {
            tokenizer_error(format!(
                "added_tokens.json is not a map from token to id: {e}"
            ))
        })?;
        for (token, id) in all {
            let mut token = plain_token(&token, false);
            token["id"] = id;
            self.add(token);
        }
        Ok(())
    }

    /// Adds a token. A known token keeps its position and becomes special if this one is. Tokens in
    /// tokenizer_config.json's `added_tokens_decoder` have the ids given there.
    fn add(&mut self, mut token: Value) {
        let known = self
            .config
            .get("added_tokens_decoder")
            .and_then(Value::as_object);
        if known.is_some_and(|known| {
            known
                .values()
                .any(|other| other.get("content") == token.get("content"))
        }) {
            return;
        }
        if token.get("id").is_none() {
            token["id"] = Value::from(NO_ID + self.added.len());
        }
        match self
            .added
            .iter_mut()
            .find(|other| other["content"] == token["content"])
        {
            Some(other) if token["special"] == true => other["special"] = Value::Bool(true),
            Some(_) => {}
            None => self.added.push(token),
        }
    }

    /// Returns the spelling of a named special token.
    fn named(&self, name: &str) -> Option<String> {
        match self.config.get(name) {
            Some(token) => spelling(token).map(str::to_owned),
            None => self
                .defaults
                .iter()
                .find(|(other, _)| *other == name)
                .map(|(_, token)| (*token).to_owned()),
        }
    }

    /// Adds the named special tokens and the lists of additional ones.
    fn add_special(&mut self) {
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let listed = lists
            .iter()
            .filter_map(|list| self.config.get(*list)?.as_array())
            .flatten()
            .cloned();
        let named = SPECIAL_TOKEN_NAMES.iter().filter_map(|name| {
            let given = self
                .config
                .get(*name)
                .filter(|token| token.is_object())
                .cloned();
            given.or_else(|| self.named(name).map(Value::String))
        });
        for token in named.chain(listed).collect::<Vec<_>>() {
            if let Some(content) = spelling(&token) {
                let mut added = plain_token(content, true);
                for name in ["normalized", "lstrip", "rstrip", "single_word"] {
                    added[name] = Value::Bool(token[name] == true);
                }
                self.add(added);
            }
        }
    }

    fn switch(&self, name: &str) -> Option<bool> {
        self.config.get(name).and_then(Value::as_bool)
    }

    /// The start and end of a text, padding, unknown and mask.
    fn roberta_tokens(&self) -> [String; 5] {
        let names = [
            "bos_token",
            "pad_token",
            "eos_token",
            "unk_token",
            "mask_token",
        ];
        names.map(|name| self.named(name).unwrap_or_default())
    }

    /// When metaspace puts a blank before a text.
    fn prefix_scheme(&self) -> &'static str {
        match self.switch("add_prefix_space") {
            Some(false) => "never",
            _ => "always",
        }
    }

    /// Assembles tokenizer.json. `model` is JSON text.
    fn finish(mut self, parts: ConvertedParts, model: &str) -> Result<String> {
        self.add_special();
        // All named tokens, so that a load does not need special_tokens_map.json.
        let mut named = Map::new();
        for (name, value) in self.config.as_object().into_iter().flatten() {
            if name.ends_with("_token") || name == "extra_special_tokens" {
                named.insert(name.clone(), value.clone());
            }
        }
        for name in SPECIAL_TOKEN_NAMES {
            if let Some(token) = self.named(name) {
                named.insert(name.to_owned(), Value::String(token));
            }
        }
        let parts = [
            ("normalizer", parts.normalizer),
            ("pre_tokenizer", parts.pre_tokenizer),
            ("decoder", parts.decoder),
            ("post_processor", parts.post_processor),
            ("special_tokens", Value::Object(named).to_string()),
            ("added_tokens", Value::Array(self.added).to_string()),
        ];
        let mut out = r#"{"version":"1.0""#.to_owned();
        for (name, part) in parts.iter().filter(|(_, part)| !part.is_empty()) {
            out.push_str(&format!(",\"{name}\":{part}"));
        }
        Ok(format!("{out},\"model\":{model}}}"))
    }

    /// Returns the post-processor of a class that has none of its own: adds the BOS and EOS tokens
    /// if tokenizer_config.json enables them.
    fn bos_eos_template(&self) -> String {
        let wanted = |switch: &str, name: &str| -> Vec<String> {
            let token = self.named(name);
            token
                .filter(|_| self.switch(switch) == Some(true))
                .into_iter()
                .collect()
        };
        let first = wanted("add_bos_token", "bos_token");
        let last = wanted("add_eos_token", "eos_token");
        let one = |seq: &str, kind: u32| sequence(&first, seq, &last, kind);
        template(&one("A", 0), &one("B", 1))
    }

    /// Returns Whisper's post-processor, without a language and a task.
    fn whisper_template(&self) -> String {
        let first = ["<|startoftranscript|>", "<|notimestamps|>"].map(str::to_owned);
        let first = match self.switch("predict_timestamps") {
            Some(true) => &first[..1],
            _ => &first,
        };
        let last: Vec<String> = self.named("eos_token").into_iter().collect();
        template(
            &sequence(first, "A", &last, 0),
            &sequence(&[], "B", &last, 1),
        )
    }

    /// Returns the post-processor of BERT's or RoBERTa's kind with the named tokens at the start and
    /// at the end.
    fn framed_template(&self, kind: &str, [start, end]: [&str; 2]) -> String {
        let token = |name: &str| quoted(&self.named(name).unwrap_or_default());
        let (start, end) = (token(start), token(end));
        format!(r#"{{"type":"{kind}","cls":{start},"sep":{end}}}"#)
    }

    /// Builds a tokenizer from vocab.json and merges.txt.
    fn byte_level(mut self, class: &str, vocab: &[u8], merges: Option<&[u8]>) -> Result<String> {
        let merges = merges.ok_or_else(|| {
            tokenizer_error("vocab.json needs merges.txt or tokenizer.json next to it. Add one of them to the folder")
        })?;
        let wrong = |e: &dyn std::fmt::Display| {
            tokenizer_error(format!("vocab.json is not a map from token to id: {e}"))
        };
        let vocab = std::str::from_utf8(vocab).map_err(|e| wrong(&e))?;
        serde_json::from_str::<Map<String, Value>>(vocab).map_err(|e| wrong(&e))?;
        let merges = String::from_utf8_lossy(merges);
        let lines = merges
            .lines()
            .filter(|line| !line.starts_with("#version") && !line.is_empty());
        let merges: Vec<&str> = lines.collect();
        let prefix = self.switch("add_prefix_space").unwrap_or(false);
        let level = |regex: bool| {
            format!(r#"{{"type":"ByteLevel","add_prefix_space":{prefix},"use_regex":{regex}}}"#)
        };
        let mut parts = ConvertedParts {
            pre_tokenizer: level(true),
            decoder: r#"{"type":"ByteLevel"}"#.to_owned(),
            ..ConvertedParts::default()
        };
        let nfc = || r#"{"type":"NFC"}"#.to_owned();
        match class {
            "Qwen2Tokenizer" | "Qwen3Tokenizer" => {
                self.defaults = QWEN_DEFAULTS;
                let regex = regexes::CL100K.replace("{1,3}", "");
                parts.normalizer = nfc();
                parts.pre_tokenizer =
                    sequence_of("pretokenizers", &[split_regex(&regex), level(false)]);
                parts.post_processor = self.bos_eos_template();
            }
            "RobertaTokenizer" | "BartTokenizer" | "LongformerTokenizer" | "LEDTokenizer" => {
                self.defaults = ROBERTA_DEFAULTS;
                parts.post_processor = self.framed_template("RobertaProcessing", CLS_SEP);
            }
            "GPT2Tokenizer" | "CodeGenTokenizer" => {
                self.defaults = GPT2_DEFAULTS;
                parts.post_processor = self.bos_eos_template();
            }
            "GPTNeoXTokenizer" => {
                self.defaults = GPT_NEOX_DEFAULTS;
                parts.normalizer = nfc();
                parts.post_processor = self.bos_eos_template();
            }
            "WhisperTokenizer" => {
                self.defaults = GPT2_DEFAULTS;
                parts.post_processor = self.whisper_template();
            }
            other => return Err(unsupported_class(other, "vocab.json and merges.txt")),
        }
        let merges = serde_json::to_string(&merges).map_err(|e| wrong(&e))?;
        self.finish(
            parts,
            &format!("{{\"type\":\"BPE\",\"vocab\":{vocab},\"merges\":{merges}}}"),
        )
    }

    /// Builds a tokenizer from vocab.txt.
    fn word_pieces(mut self, class: &str, words: &[u8]) -> Result<String> {
        let words = std::str::from_utf8(words)
            .map_err(|e| tokenizer_error(format!("vocab.txt is not UTF-8: {e}")))?;
        let vocab: Map<String, Value> = words
            .lines()
            .enumerate()
            .map(|(id, line)| (line.trim_end().to_owned(), Value::from(id)))
            .collect();
        let mpnet = class == "MPNetTokenizer";
        match class {
            "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" | "BasicTokenizer" => {
                self.defaults = BERT_DEFAULTS;
            }
            "MPNetTokenizer" => self.defaults = ROBERTA_DEFAULTS,
            other => return Err(unsupported_class(other, "vocab.txt")),
        }
        for name in CLS_SEP {
            let token = self.named(name).unwrap_or_default();
            if !vocab.contains_key(&token) {
                return Err(tokenizer_error(format!(
                    "vocab.txt has no {token:?}, which tokenizer_config.json names `{name}`"
                )));
            }
        }
        let (kind, unk) = if mpnet {
            ("RobertaProcessing", "[UNK]".to_owned())
        } else {
            (
                "BertProcessing",
                self.named("unk_token").unwrap_or_default(),
            )
        };
        let chinese = self.switch("tokenize_chinese_chars").unwrap_or(true);
        let lower = self.switch("do_lower_case").unwrap_or(true);
        let strip = Value::from(self.switch("strip_accents"));
        let parts = ConvertedParts {
            normalizer: bert_normalizer(chinese, &strip, lower),
            pre_tokenizer: r#"{"type":"BertPreTokenizer"}"#.to_owned(),
            decoder: r###"{"type":"WordPiece","prefix":"##"}"###.to_owned(),
            post_processor: self.framed_template(kind, CLS_SEP),
        };
        let model = format!(
            r#"{{"type":"WordPiece","unk_token":{},"vocab":{}}}"#,
            quoted(&unk),
            Value::Object(vocab)
        );
        self.finish(parts, &model)
    }

    /// Builds a tokenizer from a SentencePiece model.
    fn sentencepiece(mut self, class: &str, bytes: &[u8]) -> Result<String> {
        let spm = SentencePieceModel::read(bytes)?;
        if !SENTENCEPIECE_CLASSES.contains(&class) && !has_own_rules(class) {
            return self.sentencepiece_settings(spm);
        }
        let own: Vec<Value> = spm
            .pieces
            .iter()
            .filter(|piece| piece.is_control() || piece.is_user_defined())
            .map(|piece| plain_token(&piece.text, piece.is_control()))
            .collect();
        own.into_iter().for_each(|token| self.add(token));
        // Of the classes that split at white space.
        let of_words = |scheme: &str, post_processor: String| {
            let split = r#"{"type":"WhitespaceSplit"}"#.to_owned();
            ConvertedParts {
                normalizer: character_map(&spm).unwrap_or_default(),
                pre_tokenizer: sequence_of("pretokenizers", &[split, metaspace(scheme)]),
                decoder: metaspace(scheme),
                post_processor,
            }
        };
        let mut vocab = vocabulary(&spm);
        match class {
            "T5Tokenizer" => {
                self.defaults = T5_DEFAULTS;
                let count = self
                    .config
                    .get("extra_ids")
                    .and_then(Value::as_u64)
                    .unwrap_or(100)
                    .min(1 << 16);
                let extra: Vec<String> = (0..count).map(|n| format!("<extra_id_{n}>")).collect();
                vocab.extend(extra.iter().rev().map(|token| (token.as_str(), 0.0)));
                for token in &extra {
                    self.add(plain_token(token, true));
                }
                let one = |seq: &str| sequence(&[], seq, &["</s>".to_owned()], 0);
                let parts = of_words("always", template(&one("A"), &one("B")));
                let model = unigram(&vocab, 2, false);
                self.finish(parts, &model)
            }
            "XLMRobertaTokenizer" => {
                self.defaults = ROBERTA_DEFAULTS;
                let [bos, pad, eos, unk, mask] = self.roberta_tokens();
                let first = [&bos, &pad, &eos, &unk].map(|token| (token.as_str(), 0.0));
                let vocab: Vec<(&str, f64)> = first
                    .into_iter()
                    .chain(vocab.into_iter().skip(3))
                    .chain([(mask.as_str(), 0.0)])
                    .collect();
                let ends = self.framed_template("RobertaProcessing", BOS_EOS);
                let parts = of_words(self.prefix_scheme(), ends);
                let model = unigram(&vocab, 3, false);
                self.finish(parts, &model)
            }
            "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer" => {
                let gemma = class == "GemmaTokenizer";
                self.defaults = if gemma {
                    GEMMA_DEFAULTS
                } else {
                    LLAMA_DEFAULTS
                };
                let prefix = !gemma && self.switch("add_prefix_space") != Some(false);
                // Without the `legacy` flag, current classes behave differently from older ones.
                let scheme = match self.config.get("legacy") {
                    _ if !prefix => "never",
                    None | Some(Value::Bool(false) | Value::Null) => "first",
                    Some(_) => "always",
                };
                let mut parts = ConvertedParts {
                    decoder: bytes_decoder(true, prefix),
                    post_processor: self.bos_eos_template(),
                    ..ConvertedParts::default()
                };
                if gemma {
                    parts.normalizer = space_normalizer();
                    parts.pre_tokenizer =
                        r#"{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious"}"#
                            .to_owned();
                } else {
                    parts.pre_tokenizer = whole_metaspace(scheme);
                }
                let unk = self.named("unk_token").filter(|_| gemma);
                self.finish(parts, &spm.bpe(unk.as_deref(), true, false))
            }
            "CamembertTokenizer" => {
                self.defaults = ROBERTA_DEFAULTS;
                let [_, pad, _, unk, mask] = self.roberta_tokens();
                let mut token = plain_token(&mask, true);
                token["lstrip"] = Value::Bool(true);
                self.add(token);
                let first = ["<s>NOTUSED", &pad, "</s>NOTUSED", &unk].map(|token| (token, 0.0));
                let vocab: Vec<(&str, f64)> = first
                    .into_iter()
                    .chain([("<unk>NOTUSED", -100.0)])
                    .chain(vocab.into_iter().skip(1))
                    .chain([(mask.as_str(), 0.0)])
                    .collect();
                let ends = self.framed_template("RobertaProcessing", BOS_EOS);
                let parts = of_words(self.prefix_scheme(), ends);
                let model = unigram(&vocab, 3, false);
                self.finish(parts, &model)
            }
            "DebertaV2Tokenizer" => {
                self.defaults = DEBERTA_DEFAULTS;
                let scheme = self.prefix_scheme();
                let mut normalizers = Vec::new();
                if self.switch("do_lower_case") == Some(true) {
                    normalizers.push(r#"{"type":"Lowercase"}"#.to_owned());
                }
                normalizers.push(r#"{"type":"Strip"}"#.to_owned());
                normalizers.extend(character_map(&spm));
                normalizers.push(join_spaces());
                let mut words = vec![metaspace(scheme)];
                if self.switch("split_by_punct") == Some(true) {
                    words.insert(0, r#"{"type":"Punctuation"}"#.to_owned());
                }
                let parts = ConvertedParts {
                    normalizer: sequence_of("normalizers", &normalizers),
                    pre_tokenizer: sequence_of("pretokenizers", &words),
                    decoder: metaspace(scheme),
                    post_processor: self.framed_template("BertProcessing", CLS_SEP),
                };
                let model = unigram(&vocab, spm.unk_id, false);
                self.finish(parts, &model)
            }
            other => Err(unsupported_class(other, "a SentencePiece model")),
        }
    }

    /// Builds a tokenizer from the settings of a SentencePiece model, for classes without rules of
    /// their own.
    ///
    /// Source: transformers 5.24, `SpmConverter.build_tokenizer_from_spm_proto`.
    fn sentencepiece_settings(mut self, mut spm: SentencePieceModel) -> Result<String> {
        if let Some(names) = self.config["added_tokens_decoder"].as_object() {
            spm.rename(names);
        }
        for piece in spm.pieces.iter().filter(|piece| piece.is_control()) {
            self.add(plain_token(&piece.text, true));
        }
        for (name, id, piece) in spm.named() {
            if id >= 0 && self.config.get(name).is_none() {
                self.config[name] = Value::from(piece);
            }
        }
        let model = if spm.is_bpe {
            spm.bpe(Some(&spm.unk_piece), spm.byte_fallback, true)
        } else {
            unigram(&vocabulary(&spm), spm.unk_id, spm.byte_fallback)
        };
        let mut parts = sentencepiece_parts(&spm, self.switch("legacy"));
        parts.post_processor = self.bos_eos_template();
        self.finish(parts, &model)
    }
}

fn vocabulary(spm: &SentencePieceModel) -> Vec<(&str, f64)> {
    let pieces = spm.pieces.iter();
    pieces
        .map(|piece| (piece.text.as_str(), piece.score))
        .collect()
}

/// Returns the normalizer of a model that has a character map.
fn character_map(spm: &SentencePieceModel) -> Option<String> {
    (!spm.charsmap.is_empty()).then(|| {
        let map = base64::encode(&spm.charsmap);
        format!(r#"{{"type":"Precompiled","precompiled_charsmap":"{map}"}}"#)
    })
}

/// Normalizes, splits and decodes text as a SentencePiece model's own settings specify.
fn sentencepiece_parts(spm: &SentencePieceModel, legacy: Option<bool>) -> ConvertedParts {
    let legacy = legacy != Some(false);
    let mut normalizers: Vec<String> = character_map(spm).into_iter().collect();
    if spm.remove_extra_whitespaces {
        normalizers.extend([replace("Regex", r"\A +| +\z", ""), join_spaces()]);
    }
    if spm.escape_whitespaces {
        normalizers.push(space_normalizer());
    }
    let mut words = Vec::new();
    if spm.add_dummy_prefix {
        // Metaspace adds no prefix to a text that starts with `▁`, SentencePiece does.
        if legacy {
            normalizers.push(replace("Regex", r"\A▁", "▁▁"));
        }
        words.push(whole_metaspace(if legacy { "always" } else { "first" }));
    }
    let whole: Vec<&str> = spm
        .pieces
        .iter()
        .filter(|piece| piece.is_user_defined() && !piece.text.is_empty())
        .map(|piece| piece.text.as_str())
        .collect();
    if !whole.is_empty() {
        words.push(split_regex(&any_of(whole, 0)));
    }
    ConvertedParts {
        normalizer: sequence_of("normalizers", &normalizers),
        pre_tokenizer: sequence_of("pretokenizers", &words),
        decoder: bytes_decoder(spm.byte_fallback, spm.add_dummy_prefix),
        post_processor: String::new(),
    }
}

/// Returns an expression that matches the longest of these strings. Strings with a common beginning
/// share it, so that a position takes few steps; `depth` counts the groups around.
fn any_of(mut strings: Vec<&str>, depth: usize) -> String {
    let first = |text: &str| text.chars().next();
    sort::sort_by(&mut strings, |a, b| {
        let by_first = (a.is_empty(), first(a)).cmp(&(b.is_empty(), first(b)));
        by_first.then_with(|| b.len().cmp(&a.len()))
    });
    let groups = strings.chunk_by(|a, b| first(a) == first(b));
    let groups: Vec<String> = groups
        .map(|group| match group {
            [start, rest @ ..] if !rest.is_empty() && depth < MAX_PREFIX_DEPTH => {
                let shared = rest
                    .iter()
                    .fold(*start, |start, text| common_prefix(start, text));
                let rests = group.iter().filter_map(|text| text.strip_prefix(shared));
                format!(
                    "{}(?:{})",
                    escape(shared),
                    any_of(rests.collect(), depth + 1)
                )
            }
            group => {
                let each: Vec<String> = group.iter().map(|text| escape(text)).collect();
                each.join("|")
            }
        })
        .collect();
    groups.join("|")
}

fn common_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    let length = same.map(|(c, _)| c.len_utf8()).sum();
    a.get(..length).unwrap_or_default()
}

/// Escapes a string for a regular expression.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn unsupported_class(class: &str, files: &str) -> crate::Error {
    let class = if class.is_empty() {
        "no tokenizer_class in tokenizer_config.json"
    } else {
        class
    };
    tokenizer_error(format!(
        "tokenizer.json is missing, and reading {files} is not supported for {class}. Save the tokenizer with \
         transformers' `save_pretrained`, which writes tokenizer.json"
    ))
}

/// A token that is matched as it is written.
fn plain_token(content: &str, special: bool) -> Value {
    let mut token = Value::Null;
    token["content"] = Value::from(content);
    token["special"] = Value::Bool(special);
    token
}
