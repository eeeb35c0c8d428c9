//! Ids, decoded text and streamed pieces as recorded from the `tokenizers` library of Python.

use std::path::Path;

use jerboa::text::{RenderedPrompt, Tokenizer, TokenizerFiles};
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
    /// Ids with special tokens of the text encoded as text; older recordings lack them.
    ids_plain: Option<Vec<u32>>,
    decoded: String,
    decoded_special: String,
    stream: Option<Vec<String>>,
}

/// The non-empty pieces that a stream of `ids` yields.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut decoder = tokenizer.stream_decoder(true);
    let mut pieces: Vec<String> = ids.iter().map(|id| decoder.push(tokenizer, *id)).collect();
    // The recording's last piece includes the flush.
    let rest = decoder.finish();
    match pieces.last_mut() {
        Some(last) => last.push_str(&rest),
        None => pieces.push(rest),
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[derive(Default)]
struct Score {
    cases: usize,
    checks: usize,
    wrong: Vec<String>,
}

impl Score {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, text: &str, got: &T, want: &T) {
        self.checks += 1;
        if got != want {
            self.wrong.push(format!(
                "{what} of {text:?}:\n     got {got:?}\n  wanted {want:?}"
            ));
        }
    }
}

fn compare(tokenizer: &Tokenizer, recording: &Recording) -> Score {
    let mut score = Score::default();
    score.check(
        "vocabulary size",
        "",
        &tokenizer.vocab_size(),
        &recording.vocab_size,
    );
    for case in &recording.cases {
        let text = case.text.as_str();
        score.cases += 1;
        score.check(
            "ids",
            text,
            &tokenizer.encode_trusted(text, false).expect("encodes"),
            &case.ids,
        );
        score.check(
            "ids_special",
            text,
            &tokenizer.encode_trusted(text, true).expect("encodes"),
            &case.ids_special,
        );
        score.check(
            "prompt",
            text,
            &tokenizer
                .encode_prompt(&RenderedPrompt::trusted(text))
                .expect("encodes"),
            &case.ids,
        );
        score.check(
            "decoded",
            text,
            &tokenizer.decode(&case.ids, true),
            &case.decoded,
        );
        score.check(
            "decoded_special",
            text,
            &tokenizer.decode(&case.ids_special, false),
            &case.decoded_special,
        );
        if let Some(pieces) = &case.stream {
            score.check("stream", text, &stream(tokenizer, &case.ids), pieces);
        }
        let plain = tokenizer.encode(text, false).expect("encodes");
        // An unknown character becomes [UNK], which is a special token.
        let unknown = |id: u32| {
            tokenizer
                .id_to_token(id)
                .is_some_and(|t| t.to_lowercase().contains("unk"))
        };
        let clean = |ids: &[u32]| {
            ids.iter()
                .all(|id| !tokenizer.is_special(*id) || unknown(*id))
        };
        score.check("special ids of plain text", text, &clean(&plain), &true);
        // Unigram's vocabulary contains `</s>`; the reference emits it for plain text, Jerboa does not.
        if let Some(want) = case.ids_plain.as_ref().filter(|want| clean(want)) {
            score.check("ids_plain", text, &plain, want);
        }
    }
    score
}

fn run(dir: &Path, config: bool) -> Score {
    let packed = files::list(dir);
    let named = |start: &str| {
        packed.iter().find(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(start))
        })
    };
    let tokenizer_json = files::read(named("tokenizer.json").expect("tokenizer.json"));
    let recording = files::read(named("strings.json").expect("strings.json"));
    let recording: Recording = serde_json::from_slice(&recording).expect("a recording");
    let config = named("tokenizer_config.json")
        .filter(|_| config)
        .map(|p| files::read(p));
    let files = TokenizerFiles {
        tokenizer: &tokenizer_json,
        tokenizer_config: config.as_deref(),
        ..TokenizerFiles::default()
    };
    let started = std::time::Instant::now();
    let tokenizer = Tokenizer::load(files).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let loaded = started.elapsed();
    let mut score = compare(&tokenizer, &recording);
    let (_, compact) = Tokenizer::load_and_compact(files).expect("a compact form");
    let files = TokenizerFiles {
        tokenizer: &compact,
        ..files
    };
    let started = std::time::Instant::now();
    let tokenizer = Tokenizer::load(files).expect("the compact form");
    let compact_loaded = started.elapsed();
    let again = compare(&tokenizer, &recording).wrong.into_iter();
    score
        .wrong
        .extend(again.map(|wrong| format!("compact: {wrong}")));
    println!(
        "{}{}: {} strings, {} of {} comparisons equal (loaded in {loaded:.1?}, compact in {compact_loaded:.1?})",
        dir.file_name().unwrap_or_default().to_string_lossy(),
        if config.is_some() {
            " with tokenizer_config.json"
        } else {
            ""
        },
        score.cases,
        score.checks - score.wrong.len(),
        score.checks
    );
    for wrong in score.wrong.iter().take(5) {
        println!("  {wrong}");
    }
    score
}

#[test]
fn committed_tokenizers() {
    let mut strings = std::collections::BTreeSet::new();
    let mut wrong = 0;
    for dir in files::list(&files::golden().join("tokenizers")) {
        let score = run(&dir, false);
        let path = dir.join("strings.json.gz");
        let recording: Recording =
            serde_json::from_slice(&files::read(&path)).expect("a recording");
        strings.extend(recording.cases.into_iter().map(|case| case.text));
        wrong += score.wrong.len();
    }
    println!("{} different strings", strings.len());
    assert!(strings.len() >= 200, "only {} strings", strings.len());
    assert_eq!(wrong, 0);
}

#[test]
fn all_recorded_tokenizers() {
    let Some(refs) = files::refs("tokenizers") else {
        return;
    };
    let only = std::env::var("JERBOA_TOKENIZER").ok();
    let mut wrong = 0;
    for dir in files::list(&refs).into_iter().filter(|dir| dir.is_dir()) {
        if only.as_ref().is_none_or(|name| dir.ends_with(name)) {
            wrong += run(&dir, false).wrong.len();
        }
    }
    assert_eq!(wrong, 0);
}

/// Published tokenizers whose licence or size keeps them out of the repository:
/// tests/golden/text/make_published.py writes the folder.
#[test]
fn published_tokenizers_on_demand() {
    let Some(folder) = std::env::var_os("JERBOA_TOKENIZERS") else {
        println!("skipped: JERBOA_TOKENIZERS is not set to a folder of published tokenizers");
        return;
    };
    let folders: Vec<_> = files::list(Path::new(&folder))
        .into_iter()
        .filter(|dir| dir.is_dir())
        .collect();
    assert!(!folders.is_empty(), "no tokenizers in {}", folder.display());
    let wrong: usize = folders.iter().map(|dir| run(dir, false).wrong.len()).sum();
    assert_eq!(wrong, 0);
}

/// As transformers 5.24: a token with a name is special also if tokenizer.json says that it is not,
/// and tokens that the vocabulary lacks get the next ids. A list makes no token of the file special.
#[test]
fn named_tokens_are_special() {
    let json = br#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "decoder": {"type": "Fuse"},
        "added_tokens": [{"id": 2, "content": "<end>", "special": false}, {"id": 3, "content": "<img>", "special": false},
        {"id": 4, "content": "<aud>", "special": false}, {"id": 5, "content": "<tool>", "special": false}]}"#;
    let config = br#"{"eos_token": "<end>", "extra_special_tokens": {"image_token": "<img>"},
        "audio_token": "<aud>", "pad_token": "[PAD]", "bos_token": {"content": "[BOS]", "rstrip": true}}"#;
    let load = |config: &[u8]| {
        Tokenizer::load(TokenizerFiles {
            tokenizer: json,
            tokenizer_config: Some(config),
            ..TokenizerFiles::default()
        })
        .expect("loads")
    };
    let tokenizer = load(config);
    let text = "a<end>b<img>a<aud>b<tool>[PAD][BOS] a";
    let ids = tokenizer.encode_trusted(text, false).expect("encodes");
    assert_eq!(ids, [0, 2, 1, 3, 0, 4, 1, 5, 7, 6, 0]);
    assert_eq!(tokenizer.decode(&ids, true), "abab<tool>a");
    assert_eq!(tokenizer.special_tokens().get("image_token"), Some("<img>"));
    let plain = tokenizer.encode("a<end>b[PAD]", false).expect("encodes");
    assert!(plain.iter().all(|id| *id < 2), "{plain:?}");
    assert_eq!(
        tokenizer.special_spellings(),
        ["<aud>", "<end>", "<img>", "[BOS]", "[PAD]"]
    );
    let list = load(br#"{"additional_special_tokens": ["<tool>", "<new>"]}"#);
    let ids = list.encode_trusted("a<tool><new>", false).expect("encodes");
    assert_eq!(ids, [0, 5, 6]);
    assert_eq!(list.decode(&ids, true), "a<tool>");
}
