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

        let model = read(&["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"]);
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
    assert!(
        message_of(SlowTokenizerFiles {
            sentencepiece: Some(b"<html>"),
            ..none
        })
        .contains("SentencePiece")
    );
}
