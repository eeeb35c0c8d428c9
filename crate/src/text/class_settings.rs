//! Settings of tokenizer_config.json that replace those of tokenizer.json: transformers' classes
//! build their normalizer and pre-tokenizer from tokenizer_config.json.
//!
//! Source: transformers 5.24, `models/*/tokenization_*.py`. `add_bos_token` and `add_eos_token` count
//! only without tokenizer.json.

use serde_json::Value;

use super::tokenizer_file::TokenizerFile;
use crate::util::json::literal;
use crate::util::tokenizer_parts::{STRIP, whole_metaspace};

/// Applies the settings of the class that tokenizer_config.json names. Classes that load
/// tokenizer.json as it is (`PreTrainedTokenizerFast`) have none.
pub(super) fn apply_class_settings(file: &mut TokenizerFile, config: &Value) {
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    let prefix = config["add_prefix_space"].as_bool();
    match (class.strip_suffix("Fast").unwrap_or(class), prefix) {
        (
            "BertTokenizer"
            | "DistilBertTokenizer"
            | "ElectraTokenizer"
            | "MPNetTokenizer"
            | "MobileBertTokenizer",
            _,
        ) => each(&mut file.normalizer, "normalizers", &mut |entry| {
            set_bert_normalizer(entry, config);
        }),
        (
            "BartTokenizer"
            | "CodeGenTokenizer"
            | "GPT2Tokenizer"
            | "GPTNeoXTokenizer"
            | "LEDTokenizer"
            | "LongformerTokenizer"
            | "Qwen2Tokenizer"
            | "RobertaTokenizer"
            | "WhisperTokenizer",
            Some(prefix),
        ) => each(&mut file.pre_tokenizer, "pretokenizers", &mut |entry| {
            if entry["type"] == "ByteLevel" {
                entry["add_prefix_space"] = Value::from(prefix);
            }
        }),
        ("CamembertTokenizer" | "XLMRobertaTokenizer", Some(prefix)) => {
            let scheme = if prefix { "always" } else { "never" };
            set_metaspace(file, scheme);
        }
        ("LlamaTokenizer", Some(prefix)) => set_llama_prefix(file, prefix, config),
        _ => {}
    }
}

fn set_bert_normalizer(entry: &mut Value, config: &Value) {
    if entry["type"] != "BertNormalizer" {
        return;
    }
    let switch = |name: &str| Value::from(config[name].as_bool().unwrap_or(true));
    entry["lowercase"] = switch("do_lower_case");
    entry["handle_chinese_chars"] = switch("tokenize_chinese_chars");
    entry["strip_accents"] = config["strip_accents"].clone();
}

/// Sets when Metaspace adds a space before a text, and whether decoding removes it.
fn set_metaspace(file: &mut TokenizerFile, scheme: &str) {
    let mut set = |entry: &mut Value| {
        if entry["type"] == "Metaspace" {
            entry["prepend_scheme"] = Value::from(scheme);
            entry["add_prefix_space"] = Value::from(scheme != "never");
        }
    };
    each(&mut file.pre_tokenizer, "pretokenizers", &mut set);
    each(&mut file.decoder, "decoders", &mut set);
}

/// Adds or removes the space before a text where tokenizer.json contradicts tokenizer_config.json.
/// Byte-level files of this class are loaded as they are.
fn set_llama_prefix(file: &mut TokenizerFile, prefix: bool, config: &Value) {
    let mut has_prefix = false;
    let mut is_byte_level = false;
    each(&mut file.normalizer, "normalizers", &mut |entry| {
        has_prefix |= entry["type"] == "Prepend";
    });
    each(&mut file.pre_tokenizer, "pretokenizers", &mut |entry| {
        let adds = entry["prepend_scheme"] != "never" && entry["add_prefix_space"] != false;
        has_prefix |= entry["type"] == "Metaspace" && adds;
        is_byte_level |= entry["type"] == "ByteLevel";
    });
    if is_byte_level || has_prefix == prefix {
        return;
    }
    if prefix {
        let scheme = if config["legacy"] == true {
            "always"
        } else {
            "first"
        };
        if file.pre_tokenizer.is_null() {
            file.pre_tokenizer = literal(&whole_metaspace(scheme));
        }
        if let Some(Value::Array(steps)) = file.decoder.get_mut("decoders") {
            steps.push(literal(STRIP));
        }
        set_metaspace(file, scheme);
    } else {
        remove(&mut file.normalizer, "normalizers", "Prepend");
        remove(&mut file.decoder, "decoders", "Strip");
        set_metaspace(file, "never");
    }
}

/// Calls `change` for each entry of a part of tokenizer.json; `children` is the name of the list of
/// a `Sequence`.
fn each(node: &mut Value, children: &str, change: &mut dyn FnMut(&mut Value)) {
    if let Some(Value::Array(members)) = node.get_mut(children) {
        for member in members {
            each(member, children, change);
        }
    } else if node.is_object() {
        change(node);
    }
}

/// Removes the entries of a type.
fn remove(node: &mut Value, children: &str, kind: &str) {
    if node["type"] == kind {
        *node = Value::Null;
    } else if let Some(Value::Array(members)) = node.get_mut(children) {
        members.retain(|member| member["type"] != kind);
    }
}
