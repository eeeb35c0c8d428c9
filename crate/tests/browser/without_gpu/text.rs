//! Tokenizers and chat templates, which use the browser's Unicode functions.

use jerboa::Error;
use jerboa::text::{ChatInput, ChatTemplate, SpecialTokens, Tokenizer};
use serde_json::Value;
use wasm_bindgen_test::wasm_bindgen_test;

const TEXT: &str = "A jerboa, 3 figs & naïve 字😀\n  two  spaces";

/// Vocabularies with the ids that Hugging Face's tokenizers library gives for [`TEXT`].
const VOCABULARIES: [(&str, &[u8], &[u32]); 3] = [
    (
        "WordPiece, which normalizes",
        include_bytes!("../../../../www/public/models/words-encoder/tokenizer.json"),
        &[
            101, 1037, 15333, 15185, 10441, 1010, 1017, 20965, 2015, 1004, 15743, 100, 100, 2048,
            7258, 102,
        ],
    ),
    (
        "byte-level BPE",
        include_bytes!("../../../../tests/golden/speech/whisper_words/tokenizer.json"),
        &[
            286, 286, 32, 220, 73, 273, 65, 78, 64, 11, 220, 18, 220, 69, 72, 70, 82, 220, 5, 220,
            77, 64, 127, 107, 85, 68, 220, 161, 255, 245, 172, 253, 246, 222, 198, 220, 258, 86,
            78, 220, 256, 79, 64, 66, 68, 82, 286,
        ],
    ),
    (
        "SentencePiece BPE with byte fallback",
        include_bytes!("../../../../www/public/models/stories260K/tokenizer.json"),
        &[
            1, 410, 447, 410, 449, 285, 430, 414, 412, 432, 410, 472, 272, 333, 419, 410, 499, 297,
            412, 198, 178, 360, 410, 232, 176, 154, 243, 162, 155, 131, 13, 410, 259, 424, 414,
            410, 262, 427, 412, 331, 419,
        ],
    ),
];

#[wasm_bindgen_test]
fn tokenizers_give_the_ids_of_the_reference_library() {
    for (name, file, ids) in VOCABULARIES {
        let tokenizer = Tokenizer::from_json(file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tokenizer.encode(TEXT, true).expect("ids"), ids, "{name}");
        let text = tokenizer.decode(ids, true);
        let expected = match name.starts_with("WordPiece") {
            true => "a jerboa, 3 figs & naive two spaces",
            false => TEXT,
        };
        assert_eq!(text, expected, "{name}");
    }
}

/// A page's memory and stack are not those of native programs.
#[wasm_bindgen_test]
fn hostile_templates_are_refused() {
    let deep = format!("{{{{ {}true }}}}", "not ".repeat(100_000));
    let groups = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    for (name, source) in [
        (
            "doubled text",
            "{% set n = namespace(t='x') %}{% for i in range(40) %}{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}",
        ),
        ("lines", "{{ ('\n' * 20000000).splitlines() | length }}"),
        (
            "nested pairs",
            "{% set n = namespace(p=[]) %}{% for i in range(60) %}{% set n.p = [n.p, n.p] %}{% endfor %}{{ n.p }}",
        ),
        ("operators", deep.as_str()),
        ("groups", groups.as_str()),
    ] {
        let rendered = ChatTemplate::new(source).and_then(|template| {
            template.render(&ChatInput::default(), &SpecialTokens::default(), &[])
        });
        assert!(
            matches!(rendered, Err(Error::ChatTemplate { .. })),
            "{name}"
        );
    }
}

#[wasm_bindgen_test]
fn templates_render_as_in_jinja() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../../tests/golden/text/jinja.json"))
            .expect("JSON");
    let variables = golden["context"].as_object().expect("a context").clone();
    let input = ChatInput {
        messages: variables["messages"].as_array().expect("messages").clone(),
        variables,
        ..ChatInput::default()
    };
    let cases = golden["cases"].as_array().expect("cases");
    assert!(cases.len() > 500, "{}", cases.len());
    for case in cases {
        let source = case[0].as_str().expect("a template");
        let text = ChatTemplate::new(source)
            .and_then(|template| template.render(&input, &SpecialTokens::default(), &[]))
            .map(|prompt| prompt.text);
        match case[1].as_str() {
            Some(expected) => assert_eq!(text.expect(source), expected, "{source}"),
            None => assert!(
                matches!(text, Err(Error::ChatTemplate { .. })),
                "{source}: {text:?}"
            ),
        }
    }
}
