//! Settings of tokenizer_config.json that contradict tokenizer.json: ids and decoded text are those
//! of transformers 5.24.

use jerboa::text::{Tokenizer, TokenizerFiles};
use serde_json::{Value, json};

/// Returns the ids of a text without special tokens around it, and their text.
fn ids(tokenizer: &Value, config: &Value, text: &str) -> (Vec<u32>, String) {
    let tokenizer = tokenizer.to_string();
    let config = config.to_string();
    let loaded = Tokenizer::load(TokenizerFiles {
        tokenizer: tokenizer.as_bytes(),
        tokenizer_config: Some(config.as_bytes()),
        ..TokenizerFiles::default()
    })
    .expect("loads");
    let ids = loaded.encode_trusted(text, false).expect("encodes");
    let decoded = loaded.decode(&ids, false);
    (ids, decoded)
}

/// tokenizer_config.json of a class, with `add_prefix_space` if it is given.
fn config(class: &str, prefix: Option<bool>) -> Value {
    let mut config = json!({"tokenizer_class": class});
    if let Some(prefix) = prefix {
        config["add_prefix_space"] = json!(prefix);
    }
    config
}

#[test]
fn byte_level_classes_take_add_prefix_space() {
    let file = |prefix: bool, nested: bool| {
        let mut level =
            json!({"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": !nested});
        if nested {
            let split = json!({"type": "Split", "pattern": {"Regex": "\\s?\\p{L}+|\\s"}, "behavior": "Isolated"});
            level = json!({"type": "Sequence", "pretokenizers": [split, level]});
        }
        json!({"pre_tokenizer": level, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",
            "vocab": {"a": 6, "Ġ": 7, "Ġa": 8}, "merges": ["Ġ a"]}})
    };
    for class in [
        "GPT2Tokenizer",
        "GPTNeoXTokenizerFast",
        "Qwen2TokenizerFast",
        "RobertaTokenizer",
        "WhisperTokenizer",
    ] {
        for (in_file, nested) in [(false, false), (true, false), (false, true), (true, true)] {
            for (prefix, expected) in [(false, 6), (true, 8)] {
                let config = config(class, Some(prefix));
                let (got, _) = ids(&file(in_file, nested), &config, "a");
                assert_eq!(got, [expected], "{class}, file {in_file}, nested {nested}");
            }
        }
    }
    for (in_file, expected) in [(false, 6), (true, 8)] {
        for prefix in [None, Some(false), Some(true)] {
            let config = config("PreTrainedTokenizerFast", prefix);
            assert_eq!(ids(&file(in_file, false), &config, "a").0, [expected]);
        }
    }
}

#[test]
fn bert_classes_take_their_normalizer_from_the_config() {
    let file = |lower: bool, accents: Value, chinese: bool| {
        json!({"normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": chinese,
            "strip_accents": accents, "lowercase": lower}, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece"}, "model": {"type": "WordPiece", "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "vocab": {"[UNK]": 0, "a": 5, "A": 6, "é": 7, "e": 8, "中": 9,
            "国": 10, "中国": 11, "É": 12, "E": 13}}})
    };
    let files = [
        file(true, Value::Null, true),
        file(false, json!(false), false),
    ];
    let cases: [(Value, &[u32]); 5] = [
        (json!({}), &[5, 8, 9, 10]),
        (json!({"do_lower_case": false}), &[6, 12, 9, 10]),
        (
            json!({"do_lower_case": true, "strip_accents": false}),
            &[5, 7, 9, 10],
        ),
        (json!({"tokenize_chinese_chars": false}), &[5, 8, 11]),
        (
            json!({"do_lower_case": false, "strip_accents": true}),
            &[6, 13, 9, 10],
        ),
    ];
    for (case, expected) in &cases {
        for class in ["BertTokenizer", "MPNetTokenizerFast", "DistilBertTokenizer"] {
            let mut config = case.clone();
            config["tokenizer_class"] = json!(class);
            for file in &files {
                assert_eq!(ids(file, &config, "A É 中国").0, *expected, "{config}");
            }
        }
        let mut config = case.clone();
        config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
        assert_eq!(ids(&files[0], &config, "A É 中国").0, [5, 8, 9, 10]);
        assert_eq!(ids(&files[1], &config, "A É 中国").0, [6, 12, 11]);
    }
}

#[test]
fn sentencepiece_classes_take_add_prefix_space() {
    let roberta = |scheme: &str| {
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme});
        json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
            "decoder": metaspace, "model": {"type": "Unigram", "unk_id": 3, "vocab": [["<s>", 0], ["<pad>", 0],
            ["</s>", 0], ["<unk>", 0], ["a", -1], ["▁a", -1], ["▁", -3], ["<mask>", 0]]}})
    };
    for class in ["XLMRobertaTokenizer", "CamembertTokenizerFast"] {
        for scheme in ["always", "never"] {
            let with = |prefix| ids(&roberta(scheme), &config(class, Some(prefix)), "a a");
            assert_eq!(with(false), (vec![4, 4], "aa".to_owned()), "{class}");
            assert_eq!(with(true), (vec![5, 5], "a a".to_owned()), "{class}");
        }
    }
}

/// A file that agrees with tokenizer_config.json is loaded as it is.
#[test]
fn llama_takes_add_prefix_space() {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let llama = |kind: &str| {
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if !["none", "never"].contains(&kind) {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let mut file = json!({"added_tokens": [{"id": 2, "content": "</s>", "special": true}],
            "decoder": {"type": "Sequence", "decoders": decoders}, "model": {"type": "BPE", "unk_token": "<unk>",
            "fuse_unk": true, "byte_fallback": true, "merges": ["▁ a"],
            "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "▁": 4, "▁a": 5}}});
        match kind {
            "prepend" => {
                let prepend = json!({"type": "Prepend", "prepend": "▁"});
                file["normalizer"] = json!({"type": "Sequence", "normalizers": [prepend, replace]});
            }
            "none" => file["normalizer"] = replace.clone(),
            scheme => {
                file["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁",
                    "prepend_scheme": scheme, "split": false});
            }
        }
        file
    };
    let text = "a</s>a a";
    for kind in ["prepend", "none", "first", "always", "never"] {
        let without = ids(&llama(kind), &config("LlamaTokenizer", Some(false)), text);
        assert_eq!(without, (vec![3, 2, 3, 5], text.to_owned()), "{kind}");
    }
    for kind in ["none", "first", "never"] {
        let mut config = config("LlamaTokenizerFast", Some(true));
        let first = ids(&llama(kind), &config, text);
        assert_eq!(first, (vec![5, 2, 3, 5], text.to_owned()), "{kind}");
        config["legacy"] = json!(true);
        if kind != "first" {
            let always = ids(&llama(kind), &config, text);
            assert_eq!(always, (vec![5, 2, 5, 5], "a</s> a a".to_owned()), "{kind}");
        }
    }
}
