//! Tokenizers of GGUF files: ids by llama.cpp's pre-tokenizers
//! (tests/golden/scripts/make_gguf_pre.py), and the token properties that llama.cpp infers.

use crate::files;
use jerboa::SortedMap;
use jerboa::format::gguf::{Gguf, MetadataValue};
use jerboa::text::{ChatInput, ChatTemplate, SpecialTokens, Tokenizer, TokenizerFiles};
use jerboa_tests::golden::golden;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Recording {
    texts: Vec<String>,
    bytes: Vocabulary,
    chars: Vocabulary,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Vocabulary {
    alphabet: Vec<String>,
    merges: Vec<String>,
    words: Vec<String>,
}

#[derive(Deserialize)]
struct Case {
    names: Vec<String>,
    vocabulary: String,
    hashes: String,
}

impl Vocabulary {
    fn tokens(&self) -> Vec<String> {
        let mut tokens: Vec<String> = Vec::new();
        let mut known = std::collections::HashSet::new();
        let joined = self.merges.iter().map(|merge| merge.replace(' ', ""));
        for token in self
            .alphabet
            .iter()
            .cloned()
            .chain(joined)
            .chain(self.words.iter().cloned())
        {
            if known.insert(token.clone()) {
                tokens.push(token);
            }
        }
        tokens
    }
}

pub(crate) fn strings(all: &[&str]) -> MetadataValue {
    MetadataValue::Texts(all.iter().map(|t| (*t).to_string()).collect())
}

/// A GGUF header: keys without a dot belong to `tokenizer.ggml`.
pub(crate) fn file(pairs: Vec<(&str, MetadataValue)>) -> Gguf {
    let key = |key: &str| {
        if key.contains('.') {
            key.to_string()
        } else {
            format!("tokenizer.ggml.{key}")
        }
    };
    let metadata: SortedMap<String, MetadataValue> = pairs
        .into_iter()
        .map(|(k, value)| (key(k), value))
        .collect();
    Gguf {
        file: "test.gguf".into(),
        size: 0,
        metadata,
        tensors: SortedMap::new(),
        parts: Vec::new(),
    }
}

pub(crate) fn load(file: &Gguf) -> jerboa::Result<Tokenizer> {
    let tokenizer = file.tokenizer()?.to_string();
    let config = file.tokenizer_config().to_string();
    let generation = file.generation_config().to_string();
    Tokenizer::load(TokenizerFiles {
        tokenizer: tokenizer.as_bytes(),
        tokenizer_config: Some(config.as_bytes()),
        generation_config: Some(generation.as_bytes()),
        ..TokenizerFiles::default()
    })
}

fn fnv(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0x811c_9dc5u32, |h, byte| {
        (h ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{hash:08x}")
}

#[test]
fn every_pre_tokenizer_gives_the_recorded_ids() {
    let bytes = std::fs::read(golden("text/gguf_pre.json")).expect("the recording");
    let recording: Recording = serde_json::from_slice(&bytes).expect("the recording");
    let mut wrong = Vec::new();
    let mut names = 0;
    for case in &recording.cases {
        let vocabulary = if case.vocabulary == "bytes" {
            &recording.bytes
        } else {
            &recording.chars
        };
        let tokens = vocabulary.tokens();
        let unknown = i64::from(case.vocabulary == "chars") * 2;
        let mut kinds = vec![1; tokens.len()];
        kinds[0] = unknown.max(1);
        for name in &case.names {
            names += 1;
            let tokenizer = load(&file(vec![
                ("model", MetadataValue::Text("gpt2".into())),
                ("pre", MetadataValue::Text(name.clone())),
                ("tokens", MetadataValue::Texts(tokens.clone())),
                ("token_type", MetadataValue::Ints(kinds.clone())),
                ("merges", MetadataValue::Texts(vocabulary.merges.clone())),
                ("unknown_token_id", MetadataValue::Int(0)),
            ]));
            let tokenizer = tokenizer.unwrap_or_else(|e| panic!("{name}: {e}"));
            for (index, text) in recording.texts.iter().enumerate() {
                let ids = tokenizer
                    .encode(text, false)
                    .unwrap_or_else(|e| panic!("{name}: {text:?}: {e}"));
                if fnv(&ids) != case.hashes[index * 8..index * 8 + 8] {
                    let pieces: Vec<String> = ids
                        .iter()
                        .filter_map(|id| tokenizer.id_to_token(*id))
                        .collect();
                    wrong.push(format!("{name}: {text:?} as {pieces:?}"));
                }
            }
        }
    }
    assert!(
        recording.texts.len() >= 200 && names >= 90,
        "{} texts, {names} names",
        recording.texts.len()
    );
    assert!(
        wrong.is_empty(),
        "{} differ\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}

/// A byte-level vocabulary without merges, with `first` before the alphabet.
fn byte_level(first: &[&str], kinds: &[i64], more: Vec<(&'static str, MetadataValue)>) -> Gguf {
    let bytes = std::fs::read(golden("text/gguf_pre.json")).expect("the recording");
    let recording: Recording = serde_json::from_slice(&bytes).expect("the recording");
    let mut tokens: Vec<String> = first.iter().map(|t| (*t).to_string()).collect();
    tokens.extend(recording.bytes.alphabet);
    let mut kinds = kinds.to_vec();
    kinds.resize(tokens.len(), 1);
    let mut pairs = vec![
        ("model", MetadataValue::Text("gpt2".into())),
        ("pre", MetadataValue::Text("gpt-2".into())),
        ("tokens", MetadataValue::Texts(tokens)),
        ("token_type", MetadataValue::Ints(kinds)),
        ("merges", MetadataValue::Texts(Vec::new())),
    ];
    pairs.retain(|(key, _)| !more.iter().any(|(own, _)| own == key));
    pairs.extend(more);
    file(pairs)
}

#[test]
fn unknown_tokenizers_are_refused_by_name() {
    for (key, name) in [
        ("pre", "no-such-pre-tokenizer"),
        ("model", "rwkv"),
        ("model", "plamo2"),
    ] {
        let refused = byte_level(&[], &[], vec![(key, MetadataValue::Text(name.into()))])
            .tokenizer()
            .expect_err(name);
        assert!(
            refused.to_string().contains(&format!("'{name}'")),
            "{refused}"
        );
    }
    assert!(
        !byte_level(
            &[],
            &[],
            vec![("model", MetadataValue::Text("none".into()))]
        )
        .has_tokenizer()
    );
}

/// The model loads without a tokenizer, and a warning names what is missing.
#[test]
fn tokens_without_a_kind_or_scores_are_no_tokenizer() {
    for (kind, missing) in [("", "model"), ("llama", "scores"), ("t5", "scores")] {
        let model = vec![("model", MetadataValue::Text(kind.into()))];
        let file = byte_level(&[], &[], model);
        assert!(!file.has_tokenizer(), "{kind}");
        let warnings = file.warnings().join("\n");
        let field = format!("'tokenizer.ggml.{missing}'");
        assert!(warnings.contains(&field), "{kind}: {warnings}");
    }
    let none = vec![("model", MetadataValue::Text("none".into()))];
    assert!(byte_level(&[], &[], none).warnings().is_empty());
}

/// End-of-turn tokens are recognized by their text, whatever type the file gives them, with
/// llama.cpp's exceptions.
#[test]
fn generations_end_at_tokens_recognized_by_their_text() {
    let eos = |id: i64| vec![("eos_token_id", MetadataValue::Int(id))];
    let stops = |first: &[&str], more: Vec<(&'static str, MetadataValue)>| {
        byte_level(first, &[], more).stop_ids()
    };
    // Phi-3: the end-of-turn token is not `eos_token_id`.
    assert_eq!(
        stops(&["<|endoftext|>", "<|user|>", "<|end|>"], eos(0)),
        [0, 2]
    );
    // A normal token by the file's types, a control token by its text.
    let file = byte_level(&["<|im_start|>", "<|im_end|>"], &[3, 1], eos(0));
    assert_eq!(file.stop_ids(), [0, 1]);
    let tokenizer = load(&file).expect("a tokenizer");
    assert_eq!(tokenizer.eos_ids(), [0, 1]);
    assert_eq!(
        tokenizer.encode_trusted("<|im_end|>", false).expect("ids"),
        [1]
    );
    assert_eq!(tokenizer.decode(&[1], true), "");
    // Harmony's <|end|> ends a message, not the turn.
    let harmony = ["<|return|>", "<|call|>", "<|end|>", "<|start|>"];
    assert_eq!(stops(&harmony, eos(0)), [0, 1]);
    assert_eq!(
        stops(&["<|calls|>", "<|flush|>", "<|end|>"], eos(1)),
        [1, 0]
    );
    // In Gemma 4, </s> is an HTML tag.
    assert_eq!(
        stops(&["<eos>", "</s>", "<turn|>", "<|tool_response>"], eos(0)),
        [0, 2, 3]
    );
    let file = byte_level(&["<eos>", "</s>"], &[3, 4], eos(0));
    assert_eq!(file.stop_ids(), [0]);
    assert_eq!(
        load(&file)
            .and_then(|t| t.encode("</s>", false))
            .expect("ids"),
        [1]
    );
    assert_eq!(
        byte_level(&["<s>", "</s>"], &[3, 3], eos(0)).stop_ids(),
        [0, 1]
    );
    // Infilling stops at padding and at file separators, not at prefix, suffix and middle.
    let fill = [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    ];
    assert_eq!(stops(&fill, Vec::new()), [3, 4, 5]);
    let named = vec![
        ("eot_token_id", MetadataValue::Int(1)),
        ("eom_token_id", MetadataValue::Int(0)),
        ("eos_token_id", MetadataValue::Int(2)),
    ];
    assert_eq!(stops(&["<a>", "<b>", "<c>"], named), [2, 1, 0]);
    // Ids beyond the vocabulary are ignored.
    assert_eq!(stops(&["<a>"], eos(100_000)), [] as [u32; 0]);
}

/// BOS and EOS are added by default according to the tokenizer model and the pre-tokenizer.
#[test]
fn first_and_last_tokens_are_those_of_llama_cpp() {
    let adds = |pre: &str, more: Vec<(&'static str, MetadataValue)>| {
        let mut pairs = vec![
            ("pre", MetadataValue::Text(pre.into())),
            ("bos_token_id", MetadataValue::Int(0)),
            ("eos_token_id", MetadataValue::Int(1)),
        ];
        pairs.extend(more);
        let file = byte_level(&["<bos>", "<end>"], &[3, 3], pairs);
        let tokenizer = load(&file).expect("a tokenizer");
        let ids = tokenizer.encode("!", true).expect("ids");
        (ids.first() == Some(&0), ids.last() == Some(&1))
    };
    let add = |key: &'static str, add: bool| vec![(key, MetadataValue::Bool(add))];
    assert_eq!(adds("gpt-2", Vec::new()), (false, false));
    for pre in [
        "llama-bpe",
        "falcon3",
        "lfm2",
        "pixtral",
        "tekken",
        "chameleon",
    ] {
        assert_eq!(adds(pre, Vec::new()), (true, false), "{pre}");
        assert_eq!(
            adds(pre, add("add_bos_token", false)),
            (false, false),
            "{pre}"
        );
    }
    assert_eq!(adds("qwen2", add("add_eos_token", true)), (false, true));
    assert_eq!(adds("gpt-2", add("add_bos_token", true)), (true, false));
    // SentencePiece adds BOS by default; its ids are 1 and 2 unless the file names others.
    let spm = |more: Vec<(&'static str, MetadataValue)>| {
        let mut pairs = vec![
            ("model", MetadataValue::Text("llama".into())),
            (
                "tokens",
                strings(&["<unk>", "<s>", "</s>", "\u{2581}", "a"]),
            ),
            ("token_type", MetadataValue::Ints(vec![2, 3, 3, 1, 1])),
            ("scores", MetadataValue::Ints(vec![0; 5])),
        ];
        pairs.extend(more);
        load(&file(pairs))
            .expect("a tokenizer")
            .encode("a", true)
            .expect("ids")
    };
    assert_eq!(spm(Vec::new()), [1, 3, 4]);
    assert_eq!(spm(add("add_space_prefix", false)), [1, 4]);
    assert_eq!(spm(add("add_eos_token", true)), [1, 3, 4, 2]);
    assert_eq!(spm(add("add_bos_token", false)), [3, 4]);
}

/// llama.cpp's conversion without tokenizer.model gives all tokens one score. The ids are those of
/// the original tokenizer.
#[test]
fn equal_scores_merge_in_the_order_of_ids() {
    #[derive(Deserialize)]
    struct Strings {
        cases: Vec<Text>,
    }
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }
    let folder = files::golden().join("tokenizers/phi3-mini");
    let original = files::read(&folder.join("tokenizer.json.gz"));
    let parsed: serde_json::Value = serde_json::from_slice(&original).expect("tokenizer.json");
    let vocab = parsed["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocab.len()];
    for (token, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    let byte = |token: &String| token.len() == 6 && token.starts_with("<0x");
    let mut kinds: Vec<i64> = tokens.iter().map(|t| if byte(t) { 6 } else { 1 }).collect();
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    let scores = vec![-1000.0; tokens.len()];
    let converted = load(&file(vec![
        ("model", MetadataValue::Text("llama".into())),
        ("tokens", MetadataValue::Texts(tokens)),
        ("token_type", MetadataValue::Ints(kinds)),
        ("scores", MetadataValue::Floats(scores)),
        ("add_bos_token", MetadataValue::Bool(false)),
    ]))
    .expect("a tokenizer");
    let original = Tokenizer::load(TokenizerFiles {
        tokenizer: &original,
        ..TokenizerFiles::default()
    })
    .expect("the original");
    let recorded: Strings =
        serde_json::from_slice(&files::read(&folder.join("strings.json.gz"))).expect("strings");
    // The original also finds control tokens in text.
    let mut strings: Vec<String> = recorded.cases.into_iter().map(|c| c.text).collect();
    strings.retain(|text| !text.contains("</s>") && !text.contains("<|"));
    strings.push("def f(x):\n        return x + 1".into());
    strings.push("antidisestablishmentarianism; reproducibility".into());
    for text in strings {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(&text, false).expect("ids");
        assert_eq!(ids(&converted), ids(&original), "{text:?}");
    }
}

/// BERT: the file sets lowercasing and accent stripping; [CLS] and [SEP] are always added.
#[test]
fn word_pieces_are_normalized_as_the_file_says() {
    let words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\u{2581}Köln",
        "\u{2581}köln",
        "\u{2581}koln",
        "\u{2581}Koln",
        "er",
        "\u{2581}!",
    ];
    let ids = |more: Vec<(&'static str, MetadataValue)>| {
        let mut pairs = vec![
            ("model", MetadataValue::Text("bert".into())),
            ("tokens", strings(&words)),
            (
                "token_type",
                MetadataValue::Ints(vec![3, 3, 3, 3, 1, 1, 1, 1, 1, 1]),
            ),
            ("unknown_token_id", MetadataValue::Int(1)),
            ("cls_token_id", MetadataValue::Int(2)),
            ("seperator_token_id", MetadataValue::Int(3)),
        ];
        pairs.extend(more);
        load(&file(pairs))
            .expect("a tokenizer")
            .encode_text("Kölner!", 16)
            .expect("ids")
    };
    let flag = |key: &'static str, on: bool| (key, MetadataValue::Bool(on));
    let lower = "tokenizer.ggml.normalizer.lowercase";
    let accents = "tokenizer.ggml.normalizer.strip_accents";

    assert_eq!(ids(Vec::new()), [2, 6, 8, 9, 3]);
    assert_eq!(ids(vec![flag(lower, false)]), [2, 4, 8, 9, 3]);
    assert_eq!(ids(vec![flag(accents, false)]), [2, 5, 8, 9, 3]);
    assert_eq!(
        ids(vec![flag(lower, false), flag(accents, true)]),
        [2, 7, 8, 9, 3]
    );
    assert_eq!(
        ids(vec![
            flag("add_bos_token", false),
            flag("add_sep_token", false)
        ]),
        [2, 6, 8, 9, 3]
    );
}

/// T5: merging spaces and the leading space depend on the file, as does the separator of a pair.
#[test]
fn unigram_spaces_and_separators_follow_the_file() {
    let pieces = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "\u{2581}",
        "\u{2581}a",
        "a",
    ];
    let made = |more: Vec<(&'static str, MetadataValue)>| {
        let mut pairs = vec![
            ("model", MetadataValue::Text("t5".into())),
            ("tokens", strings(&pieces)),
            ("token_type", MetadataValue::Ints(vec![3, 3, 3, 2, 1, 1, 1])),
            (
                "scores",
                MetadataValue::Floats(vec![0.0, 0.0, 0.0, 0.0, -3.0, -2.0, -2.5]),
            ),
            ("bos_token_id", MetadataValue::Int(0)),
            ("eos_token_id", MetadataValue::Int(2)),
            ("seperator_token_id", MetadataValue::Int(2)),
            ("unknown_token_id", MetadataValue::Int(3)),
        ];
        pairs.extend(more);
        load(&file(pairs)).expect("a tokenizer")
    };
    let flag = |key: &'static str| (key, MetadataValue::Bool(true));
    let ids = |more| made(more).encode("a  a", true).expect("ids");
    assert_eq!(ids(Vec::new()), [6, 4, 5, 2]);
    assert_eq!(ids(vec![flag("add_space_prefix")]), [5, 4, 5, 2]);
    assert_eq!(
        ids(vec![
            flag("remove_extra_whitespaces"),
            flag("add_bos_token")
        ]),
        [0, 5, 5, 2]
    );
    let pair = |more| made(more).encode_pair("a", "a", 16).expect("a pair").0;
    assert_eq!(
        pair(vec![flag("add_space_prefix"), flag("add_bos_token")]),
        [0, 5, 2, 5, 2]
    );
    let all = vec![
        flag("add_space_prefix"),
        flag("add_bos_token"),
        flag("add_sep_token"),
    ];
    assert_eq!(pair(all), [0, 5, 2, 2, 5, 2]);
}

/// Phi-3's added tokens strip the spaces behind them; only `general.name` identifies the model.
#[test]
fn phi_3_tokens_strip_spaces_to_their_right() {
    let named = |name: &str| {
        let more = vec![("general.name", MetadataValue::Text(name.into()))];
        let file = byte_level(&["<|user|>", "<|endoftext|>"], &[3, 3], more);
        let tokenizer = load(&file).expect("a tokenizer");
        tokenizer
            .encode_trusted("<|user|> \n!<|endoftext|> ", false)
            .expect("ids")
            .len()
    };
    assert_eq!((named("Phi 3"), named("Phi-3 Mini 4k")), (6, 4));
}

/// Named templates are selected as transformers does.
#[test]
fn named_templates_are_selected_by_the_request() {
    let more = vec![
        (
            "tokenizer.chat_template",
            MetadataValue::Text("plain".into()),
        ),
        (
            "tokenizer.chat_template.tool_use",
            MetadataValue::Text("tools".into()),
        ),
        ("tokenizer.chat_templates", strings(&["tool_use"])),
    ];
    let config = byte_level(&[], &[], more).tokenizer_config().to_string();
    let template = ChatTemplate::load(None, None, Some(config.as_bytes()))
        .expect("templates")
        .expect("some");
    let rendered = |tools: Option<Vec<serde_json::Value>>| {
        let input = ChatInput {
            tools,
            ..ChatInput::default()
        };
        template
            .render(&input, &SpecialTokens::default(), &[])
            .expect("a prompt")
            .text
    };
    assert_eq!(rendered(None), "plain");
    assert_eq!(rendered(Some(vec![json!({"type": "function"})])), "tools");
}

/// Sampling defaults and suppressed tokens.
#[test]
fn files_set_sampling_defaults() {
    let more = vec![
        ("general.sampling.temp", MetadataValue::Float(0.5)),
        ("general.sampling.top_k", MetadataValue::Int(20)),
        ("suppress_tokens", MetadataValue::Ints(vec![3, 4])),
    ];
    let found = byte_level(&["</s>"], &[3], more).generation_config();
    let expected = json!({"eos_token_id": [0], "suppress_tokens": [3, 4], "temperature": 0.5, "top_k": 20, "do_sample": true});
    assert_eq!(found, expected);
}
