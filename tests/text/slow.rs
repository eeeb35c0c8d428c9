//! Tokenizers without a tokenizer.json: ids and decoded text equal those of transformers' classes.

use jerboa::Error;
use jerboa::text::{EncodeOptions, SlowTokenizerFiles, Tokenizer, TokenizerFiles};
use serde::Deserialize;

use crate::files;

#[derive(Deserialize)]
struct Recording {
    vocab_size: usize,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_special: Vec<u32>,
    decoded: String,
}

#[test]
fn ids_equal_those_of_transformers() {
    let mut wrong = Vec::new();
    let mut compared = 0;

    for dir in files::list(&files::golden().join("slow")) {
        let all = files::list(&dir);
        let read = |names: &[&str]| {
            let named = |path: &&std::path::PathBuf| {
                path.file_name()
                    .is_some_and(|n| names.contains(&n.to_string_lossy().trim_end_matches(".gz")))
            };
            all.iter().find(named).map(|path| files::read(path))
        };
        let recording = read(&["strings.json"]).expect("a recording");
        let recording: Recording = serde_json::from_slice(&recording).expect("a recording");
        let config = read(&["tokenizer_config.json"]).expect("a configuration");
        let vocab = read(&["vocab.json"]);
        let merges = read(&["merges.txt"]);
        let words = read(&["vocab.txt"]);

        let model = read(&[
            "tokenizer.model",
            "spiece.model",
            "sentencepiece.bpe.model",
            "spm.model",
        ]);
        let json = SlowTokenizerFiles {
            vocab: vocab.as_deref(),
            merges: merges.as_deref(),
            word_pieces: words.as_deref(),
            sentencepiece: model.as_deref(),
            tokenizer_config: Some(&config),
            ..SlowTokenizerFiles::default()
        }
        .to_tokenizer_json()
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .expect("a vocabulary");
        let files = TokenizerFiles {
            tokenizer: json.as_bytes(),
            tokenizer_config: Some(&config),
            ..TokenizerFiles::default()
        };
        let tokenizer = Tokenizer::load(files).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if tokenizer.vocab_size() != recording.vocab_size {
            wrong.push(format!(
                "{name}: {} tokens, not {}",
                tokenizer.vocab_size(),
                recording.vocab_size
            ));
        }
        for case in recording.cases {
            let encode = |add_special| {
                let options = EncodeOptions {
                    add_special,
                    parse_special: true,
                };
                tokenizer
                    .encode_with_options(&case.text, options)
                    .expect("encodes")
            };
            let decoded = tokenizer.decode(&case.ids, true);
            for (what, got, expected) in [
                ("ids", encode(false), &case.ids),
                ("with others", encode(true), &case.ids_special),
            ] {
                compared += 1;
                if got != *expected {
                    wrong.push(format!(
                        "{name}, {what} of {:?}:\n     got {got:?}\n  wanted {expected:?}",
                        case.text
                    ));
                }
            }
            if decoded != case.decoded {
                wrong.push(format!(
                    "{name}, text of {:?}:\n     got {decoded:?}\n  wanted {:?}",
                    case.text, case.decoded
                ));
            }
        }
    }
    println!("{compared} lists of ids");
    assert!(
        compared > 250 && wrong.is_empty(),
        "{} are wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
}

#[test]
fn errors_name_the_missing_file() {
    let none = SlowTokenizerFiles::default();
    assert!(none.to_tokenizer_json().expect("nothing to do").is_none());
    let config = |class: &str| format!("{{\"tokenizer_class\": \"{class}\"}}");
    let message_of = |files: SlowTokenizerFiles| match files.to_tokenizer_json() {
        Err(Error::Tokenizer { reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(
        message_of(SlowTokenizerFiles {
            vocab: Some(b"{}"),
            ..none
        })
        .contains("merges.txt")
    );
    let both = SlowTokenizerFiles {
        vocab: Some(b"{\"a\": 0}"),
        merges: Some(b""),
        ..none
    };
    assert!(message_of(both).contains("tokenizer_class"));
    let class = config("ElephantTokenizerFast");
    assert!(
        message_of(SlowTokenizerFiles {
            tokenizer_config: Some(class.as_bytes()),
            ..both
        })
        .contains("ElephantTokenizer")
    );
    let class = config("GPT2TokenizerFast");
    let known = SlowTokenizerFiles {
        tokenizer_config: Some(class.as_bytes()),
        ..both
    };
    assert!(known.to_tokenizer_json().expect("known").is_some());
    assert!(
        SlowTokenizerFiles {
            model_type: Some("gpt2"),
            ..both
        }
        .to_tokenizer_json()
        .expect("known")
        .is_some()
    );
    assert!(
        message_of(SlowTokenizerFiles {
            vocab: Some(b"[]"),
            ..known
        })
        .contains("vocab.json")
    );
    let words = SlowTokenizerFiles {
        word_pieces: Some(b"[PAD]\n[UNK]\n"),
        model_type: Some("bert"),
        ..none
    };
    assert!(message_of(words).contains("[CLS]"));
    let tiktoken = message_of(SlowTokenizerFiles {
        sentencepiece: Some(b"IQ== 0\nIg== 1\n"),
        ..none
    });
    assert!(
        tiktoken.contains("tokenizer.model is a tiktoken vocabulary"),
        "{tiktoken}"
    );
    assert!(
        message_of(SlowTokenizerFiles {
            sentencepiece: Some(b"<html>"),
            ..none
        })
        .contains("SentencePiece")
    );
}

/// A SentencePiece model of pieces with their types: 1 normal, 2 unknown, 3 control.
fn unigram(pieces: &[(&str, u8)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, (text, kind)) in pieces.iter().enumerate() {
        let mut piece = vec![0x0a, text.len() as u8];
        piece.extend(text.bytes());
        piece.push(0x15);
        piece.extend((-(index as f32)).to_le_bytes());
        piece.extend([0x18, *kind]);
        out.extend([0x0a, piece.len() as u8]);
        out.extend(piece);
    }
    // `trainer_spec.model_type`: unigram.
    out.extend([0x12, 2, 0x18, 1]);
    out
}

const PIECES: [(&str, u8); 5] = [
    ("<unk>", 2),
    ("<s>", 3),
    ("</s>", 3),
    ("▁the", 1),
    ("▁bread", 1),
];

/// Loads the converted files. They have the tokens of special_tokens_map.json.
fn tokenizer(files: SlowTokenizerFiles) -> Tokenizer {
    let json = files.to_tokenizer_json().expect("converts").expect("files");
    Tokenizer::load(TokenizerFiles {
        tokenizer: json.as_bytes(),
        tokenizer_config: files.tokenizer_config,
        ..TokenizerFiles::default()
    })
    .expect("loads")
}

/// CamemBERT has five pieces before those of the file, whose `<unk>` it drops, and a mask behind.
#[test]
fn camembert_has_its_own_offsets() {
    let model = unigram(&PIECES);
    let files = SlowTokenizerFiles {
        sentencepiece: Some(&model),
        ..SlowTokenizerFiles::default()
    };
    let class: &[u8] = br#"{"tokenizer_class": "CamembertTokenizer"}"#;
    for files in [
        SlowTokenizerFiles {
            tokenizer_config: Some(class),
            ..files
        },
        SlowTokenizerFiles {
            model_type: Some("camembert"),
            ..files
        },
    ] {
        let tokenizer = tokenizer(files);
        let ids = |text| tokenizer.encode_trusted(text, true).expect("encodes");
        assert_eq!(ids("the bread"), [5, 7, 8, 6]);
        assert_eq!(ids("the <mask> x"), [5, 7, 9, 3, 6]);
        assert_eq!(tokenizer.vocab_size(), 10);
        assert_eq!(tokenizer.eos_ids(), [6]);
        let (pair, _) = tokenizer.encode_pair("the", "bread", 99).expect("a pair");
        assert_eq!(pair, [5, 7, 6, 6, 8, 6]);
    }
}

/// A SentencePiece model alone does not say what the ids of these classes are.
#[test]
fn classes_with_rules_of_their_own_are_refused() {
    let model = unigram(&PIECES);
    let refused = |class: &str, model_type: &str| {
        let config = format!("{{\"tokenizer_class\": {class}}}");
        let files = SlowTokenizerFiles {
            sentencepiece: Some(&model),
            tokenizer_config: Some(config.as_bytes()),
            model_type: Some(model_type),
            ..SlowTokenizerFiles::default()
        };
        match files.to_tokenizer_json() {
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        }
    };
    for class in ["Albert", "MBart50", "Nllb", "M2M100", "Marian", "XLNet"] {
        let error = refused(&format!("\"{class}TokenizerFast\""), "").expect(class);
        let name = format!("not supported for {class}Tokenizer.");
        assert!(
            error.contains(&name) && error.contains("save_pretrained"),
            "{error}"
        );
    }
    for model_type in ["albert", "mbart", "m2m_100", "big-bird"] {
        let error = refused("null", model_type).expect(model_type);
        assert!(
            error.contains(&format!("not supported for {model_type}.")),
            "{error}"
        );
    }
    for class in [
        "\"InternLM2Tokenizer\"",
        "\"PreTrainedTokenizerFast\"",
        "null",
    ] {
        assert_eq!(refused(class, "internlm2"), None);
    }
}

/// A token around a text may be one that only the added tokens have.
#[test]
fn template_tokens_may_be_added_tokens() {
    let load = |config: &str, added: Option<&[u8]>| {
        let tokenizer = tokenizer(SlowTokenizerFiles {
            vocab: Some(br#"{"<|endoftext|>": 0, "a": 1}"#),
            merges: Some(b""),
            added_tokens: added,
            tokenizer_config: Some(config.as_bytes()),
            ..SlowTokenizerFiles::default()
        });
        tokenizer.encode("a", true).expect("encodes")
    };
    let gpt2 =
        r#"{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true, "bos_token": "<bos>"}"#;
    assert_eq!(load(gpt2, None), [2, 1]);
    assert_eq!(load(gpt2, Some(br#"{"<x>": 2, "<bos>": 3}"#)), [3, 1]);
    let whisper = r#"{"tokenizer_class": "WhisperTokenizer", "added_tokens_decoder": {
        "2": {"content": "<|startoftranscript|>", "special": true},
        "3": {"content": "<|notimestamps|>", "special": true}}"#;
    assert_eq!(load(&format!("{whisper}}}"), None), [2, 3, 1, 0]);
    let timestamps = format!(r#"{whisper}, "predict_timestamps": true}}"#);
    assert_eq!(load(&timestamps, None), [2, 1, 0]);
}

/// A class's default tokens end answers and fill templates. `null` takes a default away.
#[test]
fn defaults_of_a_class_are_named_tokens() {
    let vocab = br#"{"<|endoftext|>": 0, "a": 1}"#;
    let named = |config: &str| {
        let tokenizer = tokenizer(SlowTokenizerFiles {
            vocab: Some(vocab),
            merges: Some(b""),
            tokenizer_config: Some(config.as_bytes()),
            ..SlowTokenizerFiles::default()
        });
        let special = tokenizer.special_tokens();
        let token = |name| special.get(name).map(str::to_owned);
        (
            tokenizer.eos_ids().to_vec(),
            token("bos_token"),
            token("eos_token"),
        )
    };
    let end = || Some("<|endoftext|>".to_owned());
    assert_eq!(
        named(r#"{"tokenizer_class": "GPT2Tokenizer"}"#),
        (vec![0], end(), end())
    );
    assert_eq!(
        named(r#"{"tokenizer_class": "GPT2Tokenizer", "bos_token": null, "eos_token": "a"}"#),
        (vec![1], None, Some("a".to_owned()))
    );
    let model = unigram(&PIECES);
    let llama = tokenizer(SlowTokenizerFiles {
        sentencepiece: Some(&model),
        tokenizer_config: Some(br#"{"tokenizer_class": "XLMRobertaTokenizer"}"#),
        ..SlowTokenizerFiles::default()
    });
    assert_eq!(llama.eos_ids(), [2]);
    assert_eq!(llama.special_tokens().get("mask_token"), Some("<mask>"));
}

/// special_tokens_map.json names tokens, unless tokenizer_config.json has `added_tokens_decoder`.
#[test]
fn the_special_tokens_map_adds_tokens() {
    let map: &[u8] = br#"{"eos_token": "<end>", "mask_token": {"content": "[M]", "lstrip": true},
        "image_token": "<img>"}"#;
    let load = |config: &str| {
        tokenizer(SlowTokenizerFiles {
            vocab: Some(br#"{"<|endoftext|>": 0, "a": 1, "b": 2}"#),
            merges: Some(b""),
            added_tokens: Some(br#"{"<sys>": 3, "<end>": 4}"#),
            tokenizer_config: Some(config.as_bytes()),
            special_tokens_map: Some(map),
            ..SlowTokenizerFiles::default()
        })
    };
    let with_map = load(r#"{"tokenizer_class": "GPT2Tokenizer", "eos_token": "a"}"#);
    let ids = with_map
        .encode_trusted("a<end>b [M]<sys>", false)
        .expect("encodes");
    assert_eq!(ids, [1, 4, 2, 5, 3]);
    assert_eq!(with_map.decode(&ids, true), "ab<sys>");
    assert_eq!(with_map.eos_ids(), [4]);
    assert_eq!(with_map.special_tokens().get("image_token"), Some("<img>"));
    let decoder = load(r#"{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {}}"#);
    assert_eq!(decoder.eos_ids(), [0]);
    assert_eq!(decoder.token_to_id("[M]"), None);
}
