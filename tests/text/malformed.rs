//! Damaged files: each gives an error of its own and nothing panics.

use jerboa::Error;
use jerboa::text::{Tokenizer, TokenizerFiles};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small tokenizer.json with every kind of component.
fn small() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 9, "content": "<end>", "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true},
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\d|[^\\d]+"}, "behavior": "Isolated", "invert": false}, {"type": "Digits", "individual_digits": true}]},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {"<end>": {"id": "<end>", "ids": [9], "tokens": ["<end>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"<unk>": 0, "a": 1, "b": 2, "_": 3, "ab": 4, "_a": 5, "1": 6, "_ab": 7, "c": 8}, "merges": ["a b", ["_", "a"], "_ ab"]},
    })
}

fn load(value: &Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_json(value.to_string().as_bytes())
}

/// Encodes and decodes: a tokenizer that loads must not panic in use.
fn exercise(tokenizer: &Tokenizer) {
    for text in [
        "",
        "ab ab",
        "  a1b <end> c",
        "<unk>x\u{1f600}\0",
        "\u{e9}e\u{301}",
    ] {
        for ids in [
            tokenizer.encode(text, true),
            tokenizer.encode_trusted(text, false),
        ]
        .into_iter()
        .flatten()
        {
            tokenizer.decode(&ids, false);
            let mut stream = tokenizer.stream_decoder(true);
            let mut out: String = ids.iter().map(|id| stream.push(tokenizer, *id)).collect();
            out += &stream.finish();
            assert_eq!(out, tokenizer.decode(&ids, true));
            ids.iter().for_each(|id| drop(tokenizer.id_to_bytes(*id)));
        }
    }
    tokenizer.decode(&[0, 7, u32::MAX, 1 << 30], false);
}

#[test]
fn the_undamaged_file_works() {
    let tokenizer = load(&small()).expect("a tokenizer");
    exercise(&tokenizer);
    assert_eq!(tokenizer.vocab_size(), 10);
    assert_eq!(
        tokenizer.encode("ab  ab1", true).expect("encodes"),
        [9, 4, 7, 6]
    );
    assert_eq!(
        tokenizer
            .encode_trusted("ab <end> ab", false)
            .expect("encodes"),
        [4, 3, 9, 7]
    );
    assert!(
        !tokenizer
            .encode("ab <end> ab", false)
            .expect("encodes")
            .contains(&9)
    );
    assert_eq!(tokenizer.decode(&[3, 4, 7], true), "ab ab");
    assert_eq!(
        (tokenizer.token_to_id("_ab"), tokenizer.token_to_id("<end>")),
        (Some(7), Some(9))
    );
    assert_eq!(tokenizer.id_to_bytes(7), Some(b" ab".to_vec()));
}

#[test]
fn each_error_names_its_cause() {
    let fault = |at: &str, value: Value| {
        let mut file = small();
        *file.pointer_mut(at).unwrap_or_else(|| panic!("{at}")) = value;
        let error = load(&file).expect_err(at);
        assert!(matches!(error, Error::Tokenizer { .. }), "{at}: {error}");
        error.to_string()
    };
    for text in ["", "{", "[]", "null", "{}", "{\"model\": 3}", "\u{0}"] {
        assert!(
            matches!(
                Tokenizer::from_json(text.as_bytes()),
                Err(Error::Tokenizer { .. })
            ),
            "{text}"
        );
    }
    assert!(matches!(
        Tokenizer::from_json(b"\xff\xfe"),
        Err(Error::Tokenizer { .. })
    ));
    assert!(fault("/model/type", json!("Elephant")).contains("Elephant"));
    assert!(fault("/model/vocab", json!({"a": 4_000_000_000_u32})).contains("out of range"));
    assert!(fault("/model/vocab", json!({"a": -1})).contains("model"));
    assert!(fault("/model/vocab", json!([["a", 0.5]])).contains("vocab"));
    assert!(fault("/model/merges", json!(["a"])).contains("two tokens"));
    assert!(fault("/model/merges", json!([["c", "c"]])).contains("not in the vocabulary"));
    assert!(fault("/model/merges", json!([["a", "b", "c"]])).contains("model"));
    assert!(fault("/model/unk_token", json!("<nothing>")).contains("nothing"));
    assert!(
        fault(
            "/pre_tokenizer/pretokenizers/0/pattern/Regex",
            json!("(?<x>a)")
        )
        .contains("regular expression")
    );
    assert!(fault("/pre_tokenizer/pretokenizers/1/type", json!("Elephant")).contains("Elephant"));
    assert!(fault("/normalizer/normalizers/0/type", json!("Elephant")).contains("Elephant"));
    assert!(fault("/decoder/decoders/1/type", json!("Elephant")).contains("Elephant"));
    assert!(
        fault(
            "/post_processor/single/0",
            json!({"SpecialToken": {"id": "<x>", "type_id": 0}})
        )
        .contains("<x>")
    );
    assert!(fault("/added_tokens/1", json!({"id": 9})).contains("content"));
    let mut prefixed = small();
    prefixed["model"]["continuing_subword_prefix"] = json!("###");
    assert!(matches!(load(&prefixed), Err(Error::Tokenizer { .. })));
    let files = TokenizerFiles {
        tokenizer: b"{}",
        tokenizer_config: Some(b"nonsense"),
        ..TokenizerFiles::default()
    };
    assert!(matches!(Tokenizer::load(files), Err(Error::Config { .. })));
}

/// Collects the JSON pointers of a value and of everything in it.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, v)| pointers(v, &format!("{at}/{i}"), out)),
        Value::Object(fields) => fields
            .iter()
            .for_each(|(k, v)| pointers(v, &format!("{at}/{k}"), out)),
        _ => {}
    }
}

fn replacements() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5e300),
        json!(4_294_967_295_u32),
        json!(""),
        json!("a"),
        json!(" "),
        json!("\u{2581}\u{1f600}"),
        json!([]),
        json!({}),
        json!([["a", "b"], ["b", "a"]]),
        json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}),
        json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}),
        json!("Unigram"),
        json!("WordPiece"),
        json!("WordLevel"),
        json!("FixedLength"),
        json!("Precompiled"),
        json!("Strip"),
    ]
}

/// Replaces every value of the file by every unexpected one.
#[test]
fn one_wrong_value_anywhere() {
    let base = small();
    let mut all = Vec::new();
    pointers(&base, "", &mut all);
    let mut loaded = 0;
    let mut refused = 0;

    for at in &all {
        for value in replacements() {
            let mut file = base.clone();
            *file.pointer_mut(at).expect("a pointer") = value.clone();
            match load(&file) {
                Ok(tokenizer) => {
                    loaded += 1;
                    exercise(&tokenizer);
                }
                Err(Error::Tokenizer { .. }) => refused += 1,
                Err(other) => panic!("{at} = {value}: {other}"),
            }
        }
    }
    println!(
        "{} values, {loaded} variants load, {refused} are refused",
        all.len()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn several_wrong_values(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4)) {
        let mut file = small();
        for (index, value) in changes {
            let mut all = Vec::new();
            pointers(&file, "", &mut all);
            *file.pointer_mut(&all[index.index(all.len())]).expect("a pointer") = value.get(&replacements()).clone();
        }
        if let Ok(tokenizer) = load(&file) {
            exercise(&tokenizer);
        }
    }

    #[test]
    fn wrong_bytes(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = small().to_string().into_bytes();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes) {
            exercise(&tokenizer);
        }
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(Tokenizer::from_json(&bytes).is_err());
    }

    #[test]
    fn any_text_round_trips(text in "\\PC{0,40}") {
        let tokenizer = byte_level();
        let ids = tokenizer.encode(&text, false).expect("encodes");
        prop_assert_eq!(tokenizer.decode(&ids, true), text.as_str());
        let mut stream = tokenizer.stream_decoder(true);
        let pieces: String = ids.iter().map(|id| stream.push(&tokenizer, *id)).collect();
        prop_assert_eq!(pieces + &stream.finish(), text);
    }
}

/// A byte-level tokenizer without merges.
fn byte_level() -> Tokenizer {
    let plain = (0..=255u8).filter(|b| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF));
    let mut rest = 0;
    let vocab: serde_json::Map<String, Value> = (0..=255u8)
        .map(|byte| {
            let c = if plain.clone().any(|b| b == byte) {
                char::from(byte)
            } else {
                rest += 1;
                char::from_u32(255 + rest).expect("a character")
            };
            (c.to_string(), json!(byte))
        })
        .collect();
    let file = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    load(&file).expect("a tokenizer")
}

/// The same tokenizer from its compact form.
fn compact(value: &Value) -> Vec<u8> {
    let json = value.to_string();
    let files = TokenizerFiles {
        tokenizer: json.as_bytes(),
        ..TokenizerFiles::default()
    };
    Tokenizer::load_and_compact(files).expect("a tokenizer").1
}

#[test]
fn a_truncated_compact_form_is_refused() {
    let bytes = compact(&small());
    exercise(&Tokenizer::from_json(&bytes).expect("the whole form"));
    for end in 8..bytes.len() {
        let error = Tokenizer::from_json(&bytes[..end]).expect_err("a fault");
        assert!(error.to_string().contains("damaged"), "{end}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    Tokenizer::from_json(&longer).expect_err("a byte too many");
}

#[test]
fn compact_forms_keep_every_model() {
    let words = json!({"[UNK]": 0, "a": 1, "##b": 2, "b": 3, "c": 3});
    let models = [
        json!({"type": "WordPiece", "vocab": words, "unk_token": "[UNK]"}),
        json!({"vocab": words, "continuing_subword_prefix": "##"}),
        json!({"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}),
        json!({"vocab": [["<unk>", -1.5], ["a", -2.25], ["ab", -0.1], ["a", -3.0]], "unk_id": 0}),
        json!({"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b", "a b"]}),
    ];
    for model in models {
        let mut file = small();
        file["model"] = model;
        file["post_processor"] = Value::Null;
        file["added_tokens"] = json!([]);
        let whole = load(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        let again = Tokenizer::from_json(&compact(&file)).expect("a compact form");
        assert_eq!(again.vocab_size(), whole.vocab_size());
        for text in ["ab", "a b", "abab", "c", "zz"] {
            let ids =
                |tokenizer: &Tokenizer| tokenizer.encode(text, false).map_err(|e| e.to_string());
            assert_eq!(ids(&again), ids(&whole), "{file}: {text}");
        }
        for id in 0..5 {
            assert_eq!(again.id_to_token(id), whole.id_to_token(id), "{file}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_compact_forms_do_not_panic(at in 8usize..4000, byte in any::<u8>()) {
        let mut bytes = compact(&small());
        let at = 8 + at % (bytes.len() - 8);
        bytes[at] = byte;
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes) {
            exercise(&tokenizer);
        }
    }
}
