//! Fill-in-the-middle tokens of published vocabularies, and those that a GGUF file names.

use crate::files;
use crate::gguf::{file, load, strings};
use jerboa::format::gguf::MetadataValue;
use jerboa::text::{FimTokens, Tokenizer};

fn committed(name: &str) -> Tokenizer {
    let path = files::golden().join(format!("tokenizers/{name}/tokenizer.json.gz"));
    Tokenizer::from_json(&files::read(&path)).expect("a tokenizer")
}

/// Qwen3's vocabulary has the tokens that Qwen2.5-Coder was trained with.
#[test]
fn published_vocabularies_name_their_tokens() {
    let qwen = committed("qwen3");
    let expected = FimTokens {
        prefix: 151_659,
        suffix: 151_661,
        middle: 151_660,
    };
    assert_eq!(qwen.fim_tokens(), Some(expected));
    for name in ["gpt2", "smollm2", "phi3-mini", "mistral-nemo"] {
        assert_eq!(committed(name).fim_tokens(), None, "{name}");
    }
}

#[test]
fn a_prompt_has_prefix_suffix_and_middle() {
    let qwen = committed("qwen3");
    let ids = qwen
        .encode_fim("def add(a, b):\n    return ", "\n\nprint(add(1, 2))")
        .expect("a prompt");
    let literal =
        "<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n\nprint(add(1, 2))<|fim_middle|>";
    assert_eq!(ids, qwen.encode_trusted(literal, false).expect("ids"));
    // Special tokens that the caller's text spells stay text.
    let ids = qwen
        .encode_fim("<|im_end|>", "<|im_start|>")
        .expect("a prompt");
    assert!(ids.iter().all(|id| !qwen.is_special(*id)), "{ids:?}");
    let error = committed("gpt2")
        .encode_fim("a", "b")
        .expect_err("no tokens");
    assert_eq!(error.code(), "tokenizer");
    assert!(error.to_string().contains("fill-in-the-middle"), "{error}");
}

/// GGUF names the tokens by id, newer files by other keys than older ones; a file without keys has
/// the spellings.
#[test]
fn gguf_files_name_their_tokens() {
    let tokens = [
        "a",
        "b",
        "<P>",
        "<S>",
        "<M>",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
    ];
    let made = |keys: &[(&'static str, i64)]| {
        let mut pairs = vec![
            ("model", MetadataValue::Text("gpt2".into())),
            ("pre", MetadataValue::Text("gpt-2".into())),
            ("tokens", strings(&tokens)),
            (
                "token_type",
                MetadataValue::Ints(vec![1, 1, 3, 3, 3, 3, 3, 3]),
            ),
            ("merges", strings(&[])),
        ];
        pairs.extend(keys.iter().map(|(key, id)| (*key, MetadataValue::Int(*id))));
        load(&file(pairs)).expect("a tokenizer").fim_tokens()
    };
    let ids = |prefix, suffix, middle| {
        Some(FimTokens {
            prefix,
            suffix,
            middle,
        })
    };
    let newer = [
        ("fim_pre_token_id", 2),
        ("fim_suf_token_id", 3),
        ("fim_mid_token_id", 4),
    ];
    let older = [
        ("prefix_token_id", 2),
        ("suffix_token_id", 3),
        ("middle_token_id", 4),
    ];
    assert_eq!(made(&newer), ids(2, 3, 4));
    assert_eq!(made(&older), ids(2, 3, 4));
    assert_eq!(made(&[]), ids(5, 6, 7));
}
