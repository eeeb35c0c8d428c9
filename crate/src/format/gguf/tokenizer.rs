//! The tokenizer inside a GGUF file as the tokenizer.json and tokenizer_config.json of the original. Runs no tokenizer.

use super::{Gguf, Value as Meta};
use crate::util::base64;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
/// Stands for a space in SentencePiece vocabularies.
const SPACE: &str = "\u{2581}";

const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const TAIL: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
const CASED_TAIL: &str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is split before byte-level merges, by `tokenizer.ggml.pre`.
enum Pre {
    /// GPT-2's pattern, built into ByteLevel.
    Gpt2,
    /// Single digits, then GPT-2's pattern.
    Digits,
    /// A pattern, and whether whole words that are tokens skip the merges.
    Pattern(String, bool),
}

fn pre(name: &str) -> Option<Pre> {
    let tiktoken = |digits: &str| format!(r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{TAIL}");
    let cased = |suffix: &str, digits: &str| {
        let word = r"[^\r\n\p{L}\p{N}]?";
        format!("{word}{UPPER}*{LOWER}+{suffix}|{word}{UPPER}+{LOWER}*{suffix}|{digits}|{CASED_TAIL}")
    };
    Some(match name {
        "default" | "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais" | "jina-es" | "jina-de" | "jina-en" | "roberta-bpe"
        | "exaone4" | "trillion" | "gigachat" => Pre::Gpt2,
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "granite-docling" => Pre::Digits,
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" | "falcon-h1" | "midm-2.0" => {
            Pre::Pattern(tiktoken(r"\p{N}{1,3}"), true)
        }
        "dbrx" | "smaug-bpe" | "chatglm-bpe" | "glm4" => Pre::Pattern(tiktoken(r"\p{N}{1,3}"), false),
        "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "hunyuan" | "megrez" | "kormo" => {
            Pre::Pattern(tiktoken(r"\p{N}"), false)
        }
        "gpt-4o" | "llama4" | "kanana2" => Pre::Pattern(cased(&format!("{CONTRACTIONS}?"), r"\p{N}{1,3}"), false),
        "tekken" => Pre::Pattern(cased("", r"\p{N}"), true),
        _ => return None,
    })
}

/// The vocabulary of a file.
struct Vocabulary<'a> {
    gguf: &'a Gguf,
    tokens: &'a [String],
}

impl Gguf {
    /// The tokenizer.json of the original.
    pub fn tokenizer(&self) -> Result<Value> {
        if let Some(text) = self.text("tokenizer.huggingface.json") {
            return serde_json::from_str(text).map_err(|e| bad(format!("tokenizer.huggingface.json: {e}")));
        }
        let Some(Meta::Texts(tokens)) = self.metadata.get("tokenizer.ggml.tokens") else {
            return Err(bad("the GGUF file has no tokenizer.ggml.tokens".into()));
        };
        let v = Vocabulary { gguf: self, tokens };
        let (body, decoder) = match self.text("tokenizer.ggml.model").unwrap_or_default() {
            "gpt2" => v.byte_level()?,
            "llama" => v.sentencepiece_bpe(true, &v.merges()?)?,
            // The merges are in the file, and no space comes before a text.
            "gemma4" => v.sentencepiece_bpe(false, &v.listed_merges())?,
            "t5" => v.unigram()?,
            "bert" => v.wordpiece()?,
            other => return Err(bad(format!("the GGUF tokenizer model '{other}' is not supported"))),
        };
        let mut out = Map::new();
        out.insert("version".into(), json!("1.0"));
        out.insert("truncation".into(), Value::Null);
        out.insert("padding".into(), Value::Null);
        out.insert("added_tokens".into(), v.added_tokens());
        out.extend(body);
        out.insert("post_processor".into(), v.post_processor());
        out.insert("decoder".into(), decoder);
        Ok(Value::Object(out))
    }

    /// What tokenizer_config.json would say: special tokens and the chat template.
    pub fn tokenizer_config(&self) -> Value {
        let mut out = Map::new();
        for (key, id) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
            ("sep_token", "seperator_token_id"),
            ("mask_token", "mask_token_id"),
        ] {
            if let Some(token) = self.token(id) {
                out.insert(key.into(), json!(token));
            }
        }
        for key in ["add_bos_token", "add_eos_token"] {
            if let Some(add) = self.bool(&format!("tokenizer.ggml.{key}")) {
                out.insert(key.into(), json!(add));
            }
        }
        if let Some(template) = self.text("tokenizer.chat_template") {
            out.insert("chat_template".into(), json!(template));
        }
        Value::Object(out)
    }

    /// The tokens that end a generation: end of sequence, of turn, of message.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            let id = self.int(&format!("tokenizer.ggml.{key}")).and_then(|id| u32::try_from(id).ok());
            ids.extend(id.filter(|id| !ids.contains(id)));
        }
        ids
    }

    /// The text of a special token.
    fn token(&self, id: &str) -> Option<&str> {
        let id = usize::try_from(self.int(&format!("tokenizer.ggml.{id}"))?).ok()?;
        match self.metadata.get("tokenizer.ggml.tokens") {
            Some(Meta::Texts(tokens)) => tokens.get(id).map(String::as_str),
            _ => None,
        }
    }
}

fn bad(reason: String) -> Error {
    Error::Tokenizer { reason }
}

type Parts = (Map<String, Value>, Value);

/// The slots of tokenizer.json before and at the model.
fn body(normalizer: Value, pre_tokenizer: Value, model: Value) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("normalizer".into(), normalizer);
    out.insert("pre_tokenizer".into(), pre_tokenizer);
    out.insert("model".into(), model);
    out
}

impl Vocabulary<'_> {
    fn kind(&self, id: usize) -> i64 {
        match self.gguf.metadata.get("tokenizer.ggml.token_type") {
            Some(Meta::Ints(kinds)) => kinds.get(id).copied().unwrap_or(1),
            _ => 1,
        }
    }

    fn vocab(&self) -> Value {
        Value::Object(self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect())
    }

    fn scores(&self) -> &[f64] {
        match self.gguf.metadata.get("tokenizer.ggml.scores") {
            Some(Meta::Floats(scores)) => scores,
            _ => &[],
        }
    }

    fn added_tokens(&self) -> Value {
        let special = |id: usize| matches!(self.kind(id), CONTROL | UNKNOWN);
        let added = |id: &usize| special(*id) || self.kind(*id) == USER_DEFINED;
        let entry = |id: usize| {
            json!({"id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special(id)})
        };
        Value::Array((0..self.tokens.len()).filter(added).map(entry).collect())
    }

    fn byte_level(&self) -> Result<Parts> {
        let Some(Meta::Texts(merges)) = self.gguf.metadata.get("tokenizer.ggml.merges") else {
            return Err(bad("the GGUF file has no tokenizer.ggml.merges".into()));
        };
        let name = self.gguf.text("tokenizer.ggml.pre").unwrap_or("default");
        let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex});
        let sequence =
            |first: Value, regex: bool| json!({"type": "Sequence", "pretokenizers": [first, byte_level(regex)]});
        let (pre_tokenizer, ignore_merges) = match pre(name) {
            Some(Pre::Gpt2) => (byte_level(true), false),
            Some(Pre::Digits) => (sequence(json!({"type": "Digits", "individual_digits": true}), true), false),
            Some(Pre::Pattern(pattern, ignore)) => {
                let split =
                    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
                (sequence(split, false), ignore)
            }
            None => return Err(bad(format!("the GGUF file splits text as '{name}', which is not known"))),
        };
        let model = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": self.vocab(), "merges": merges});
        Ok((body(Value::Null, pre_tokenizer, model), byte_level(true)))
    }

    /// SentencePiece's BPE merges the pair with the best score of its whole: the same as merges in the order of scores.
    fn sentencepiece_bpe(&self, prefix: bool, merges: &[[&str; 2]]) -> Result<Parts> {
        let prefix = self.gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(prefix);
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        let normalizer = if prefix { json!({"type": "Sequence", "normalizers": [prepend, replace]}) } else { replace };
        let model = json!({"type": "BPE", "dropout": null, "unk_token": self.gguf.token("unknown_token_id"),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": self.vocab(), "merges": merges});
        let mut stages = vec![
            json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            stages.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        Ok((body(normalizer, Value::Null, model), json!({"type": "Sequence", "decoders": stages})))
    }

    /// The merges that the file lists.
    fn listed_merges(&self) -> Vec<[&str; 2]> {
        match self.gguf.metadata.get("tokenizer.ggml.merges") {
            Some(Meta::Texts(all)) => all.iter().filter_map(|m| m.split_once(' ').map(|(a, b)| [a, b])).collect(),
            _ => Vec::new(),
        }
    }

    /// All pairs of tokens whose joint text is a token, best score first.
    fn merges(&self) -> Result<Vec<[&str; 2]>> {
        let scores = self.scores();
        if scores.len() != self.tokens.len() {
            return Err(bad(format!("{} scores for {} tokens in the GGUF file", scores.len(), self.tokens.len())));
        }
        let ids: HashMap<&str, usize> = self.tokens.iter().enumerate().map(|(id, t)| (t.as_str(), id)).collect();
        let mut pairs: Vec<(f64, usize, usize, [&str; 2])> = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            // Tokens of other kinds are matched whole; pieces longer than this are not built of merges.
            if !matches!(self.kind(id), 1 | 5) || token.len() > 256 {
                continue;
            }
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

    fn unigram(&self) -> Result<Parts> {
        let scores = self.scores();
        if scores.len() != self.tokens.len() {
            return Err(bad(format!("{} scores for {} tokens in the GGUF file", scores.len(), self.tokens.len())));
        }
        let vocab: Vec<Value> = self.tokens.iter().zip(scores).map(|(t, s)| json!([t, s])).collect();
        let model = json!({"type": "Unigram", "unk_id": self.gguf.int("tokenizer.ggml.unknown_token_id"),
            "vocab": vocab, "byte_fallback": false});
        let normalizer = match self.gguf.metadata.get("tokenizer.ggml.precompiled_charsmap") {
            Some(Meta::Ints(bytes)) if !bytes.is_empty() => {
                let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).collect();
                json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(&bytes)})
            }
            _ => Value::Null,
        };
        let prefix = self.gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let scheme = if prefix { "always" } else { "never" };
        let metaspace = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true});
        let pre_tokenizer = if self.gguf.bool("tokenizer.ggml.remove_extra_whitespaces") == Some(false) {
            metaspace.clone()
        } else {
            json!({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]})
        };
        Ok((body(normalizer, pre_tokenizer, model), metaspace))
    }

    /// GGUF marks the beginnings of words where WordPiece marks what continues them.
    fn wordpiece(&self) -> Result<Parts> {
        let original = |(id, token): (usize, &String)| {
            let text = match token.strip_prefix(SPACE) {
                Some(word) => word.to_string(),
                None if self.kind(id) == 1 => format!("##{token}"),
                None => token.clone(),
            };
            (text, json!(id))
        };
        let vocab: Map<String, Value> = self.tokens.iter().enumerate().map(original).collect();
        let unknown = self.gguf.token("unknown_token_id").unwrap_or("[UNK]");
        let model = json!({"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab});
        let normalizer = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true});
        let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
        Ok((body(normalizer, json!({"type": "BertPreTokenizer"}), model), decoder))
    }

    /// Special tokens around a text.
    fn post_processor(&self) -> Value {
        let model = self.gguf.text("tokenizer.ggml.model").unwrap_or_default();
        let pre = self.gguf.text("tokenizer.ggml.pre").unwrap_or_default();
        let bert = model == "bert";
        let bos_by_default = bert || model == "llama" || matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "tekken");
        let add = |key: &str, default: bool| self.gguf.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(default);
        let id = |key: &str| self.gguf.int(&format!("tokenizer.ggml.{key}")).zip(self.gguf.token(key));
        let first = if bert { id("cls_token_id").or_else(|| id("bos_token_id")) } else { id("bos_token_id") };
        let last = if bert { id("seperator_token_id") } else { id("eos_token_id") };
        let first = first.filter(|_| add("add_bos_token", bos_by_default));
        let last = last.filter(|_| add(if bert { "add_sep_token" } else { "add_eos_token" }, bert || model == "t5"));
        if first.is_none() && last.is_none() {
            return Value::Null;
        }
        let token = |t: &Option<(i64, &str)>, kind: u32| {
            t.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": kind}}))
        };
        let sequence = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        let single: Vec<Value> =
            [token(&first, 0), Some(sequence("A", 0)), token(&last, 0)].into_iter().flatten().collect();
        let again = if bert { None } else { token(&first, 1) };
        let second = [again, Some(sequence("B", 1)), token(&last, 1)];
        let pair: Vec<Value> = single.iter().cloned().chain(second.into_iter().flatten()).collect();
        let mut special = Map::new();
        for (id, text) in [first, last].into_iter().flatten() {
            special.insert(text.into(), json!({"id": text, "ids": [id], "tokens": [text]}));
        }
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
    }
}
