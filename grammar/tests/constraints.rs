//! Masks of schemas and grammars, followed byte by byte and token by token over a vocabulary of
//! single bytes and some longer tokens.

use jerboa_grammar::{Constraint, ForcedPart, Grammar, GrammarError, Vocabulary};
use serde_json::json;

/// Bytes 0 to 255, then these, then the end token.
const LONG_TOKENS: [&str; 13] = [
    "{\"",
    "\":",
    "\"}",
    "\",",
    "true",
    "false",
    "null",
    "name",
    " \"",
    "123",
    "ü",
    "[]",
    "a token of more than thirty characters",
];
const END: u32 = 256 + LONG_TOKENS.len() as u32;

fn tokens() -> Vec<Vec<u8>> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    tokens.extend(LONG_TOKENS.iter().map(|t| t.as_bytes().to_vec()));
    tokens.push(b"<end>".to_vec());
    tokens
}

fn vocabulary() -> Vocabulary {
    Vocabulary::new(tokens(), &[END]).expect("a vocabulary")
}

fn allows(mask: &[u32], id: u32) -> bool {
    mask[id as usize / 32] >> (id % 32) & 1 == 1
}

fn mask(grammar: &mut Grammar) -> Vec<u32> {
    let mut words = vec![u32::MAX; 12];
    grammar.write_mask(&mut words).expect("a mask");
    words
}

/// The mask before a byte, which is accepted.
fn step(grammar: &mut Grammar, byte: u8) -> Vec<u32> {
    let words = mask(grammar);
    grammar.accept(u32::from(byte)).expect("an allowed token");
    words
}

/// One of some tokens, by a linear congruential generator.
fn pick(tokens: &[u32], random: &mut u64) -> Option<u32> {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(99);
    let at = (*random >> 33) as usize % tokens.len().max(1);
    tokens.get(at).copied()
}

/// Whether the grammar accepts this text to its end, one byte per token.
fn takes(constraint: Constraint, text: &str) -> bool {
    let mut grammar = vocabulary().grammar(constraint).expect("a grammar");
    for byte in text.bytes() {
        if !allows(&mask(&mut grammar), u32::from(byte)) {
            return false;
        }
        grammar.accept(u32::from(byte)).expect("an allowed token");
    }
    grammar.is_complete() && allows(&mask(&mut grammar), END)
}

#[test]
fn masks_never_reach_beyond_the_vocabulary() {
    let vocabulary = vocabulary();
    assert_eq!(vocabulary.mask_words(), 9);
    let mut grammar = vocabulary
        .grammar(Constraint::JsonObject)
        .expect("a grammar");
    let words = mask(&mut grammar);
    assert!(allows(&words, u32::from(b'{')) && allows(&words, 256));
    assert!(!allows(&words, u32::from(b'[')) && !allows(&words, END));
    assert!((END + 1..words.len() as u32 * 32).all(|id| !allows(&words, id)));
}

#[test]
fn long_tokens_follow_the_same_rules() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["ü", "v"] } },
        "required": ["name"],
        "additionalProperties": false,
    });
    let vocabulary = vocabulary();
    let mut grammar = vocabulary
        .grammar(Constraint::JsonSchema(&schema))
        .expect("a grammar");
    let id = |text: &str| {
        256 + LONG_TOKENS
            .iter()
            .position(|t| *t == text)
            .expect("a token") as u32
    };
    for text in ["{\"", "name", "\":", " \"", "ü", "\"}"] {
        assert!(allows(&mask(&mut grammar), id(text)), "{text}");
        grammar.accept(id(text)).expect("an allowed token");
    }
    assert!(grammar.is_complete());
    let words = mask(&mut grammar);
    assert!(allows(&words, END) && !allows(&words, u32::from(b'x')));
    grammar.accept(END).expect("the end");
    assert!(grammar.has_ended());
}

#[test]
fn schemas_accept_exactly_what_matches() {
    let cases = [
        (
            json!({ "type": "integer", "minimum": 10, "maximum": 12 }),
            "11",
            "13",
        ),
        (
            json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2 }),
            "[true,false]",
            "[]",
        ),
        (
            json!({ "type": "string", "pattern": "^[a-c]{2}$" }),
            "\"ab\"",
            "\"abc\"",
        ),
        (
            json!({ "type": "string", "format": "date" }),
            "\"2026-11-26\"",
            "\"26.11.\"",
        ),
        (
            json!({ "anyOf": [{ "type": "null" }, { "const": 5 }] }),
            "null",
            "4",
        ),
        (
            json!({ "$defs": { "tree": { "type": "array", "items": { "$ref": "#/$defs/tree" } } }, "$ref": "#/$defs/tree" }),
            "[[],[[]]]",
            "[1]",
        ),
        (
            json!({ "type": "object", "additionalProperties": { "type": "number" } }),
            "{\"a\":1.5e3}",
            "{\"a\":\"1\"}",
        ),
        (
            json!({ "type": "string", "maxLength": 2 }),
            "\"üü\"",
            "\"abc\"",
        ),
        (
            json!({ "type": "string", "format": "uri" }),
            "\"https://a.example/b\"",
            "\"a b\"",
        ),
        (
            json!({ "type": "string", "format": "uri-reference" }),
            "\"/a/b#c\"",
            "\"a b\"",
        ),
        (
            json!({ "type": "string", "format": "idn-hostname" }),
            "\"a.example\"",
            "\"-\"",
        ),
        (
            json!({ "type": "string", "format": "json-pointer" }),
            "\"/a~1b/0\"",
            "\"a\"",
        ),
        (
            json!({ "type": "string", "format": "relative-json-pointer" }),
            "\"2/a\"",
            "\"/a\"",
        ),
        (
            json!({ "type": "string", "format": "byte" }),
            "\"aGk=\"",
            "\"aGk\"",
        ),
        (
            json!({ "type": "integer", "format": "int32" }),
            "-2147483648",
            "2147483648",
        ),
        (
            json!({ "type": "integer", "format": "int64", "exclusiveMaximum": 12 }),
            "11",
            "12",
        ),
        (
            json!({ "type": "integer", "format": "int64" }),
            "9007199254740991",
            "9223372036854775808",
        ),
        (
            json!({ "type": "string", "format": "int64", "minLength": 2 }),
            "\"12\"",
            "\"1\"",
        ),
    ];
    for (schema, good, bad) in cases {
        assert!(
            takes(Constraint::JsonSchema(&schema), good),
            "{schema} {good}"
        );
        assert!(
            !takes(Constraint::JsonSchema(&schema), bad),
            "{schema} {bad}"
        );
    }
}

#[test]
fn references_within_a_schema_may_be_spelled_in_every_way() {
    let day = json!({ "enum": ["mon", "tue"] });
    let tree = |reference: &str| json!({ "type": "array", "items": { "$ref": reference }, "$anchor": "tree", "maxItems": 2 });
    for (schema, good, bad) in [
        (
            json!({ "$ref": "#/$defs/a~1b", "$defs": { "a/b": day } }),
            "\"mon\"",
            "1",
        ),
        (
            json!({ "$ref": "#/$defs/a~0b~01", "$defs": { "a~b~1": day } }),
            "\"mon\"",
            "1",
        ),
        (
            json!({ "$ref": "#/definitions/Partial%3CX%3E", "definitions": { "Partial<X>": day } }),
            "\"tue\"",
            "1",
        ),
        (
            json!({ "$ref": "#/definitions/Partial<X>", "definitions": { "Partial<X>": day } }),
            "\"tue\"",
            "1",
        ),
        (
            json!({ "$ref": "#/$defs/50%25%20off~1on", "$defs": { "50% off/on": day } }),
            "\"tue\"",
            "1",
        ),
        (
            json!({ "$ref": "#day", "$defs": { "x": { "$anchor": "day", "type": "boolean" } } }),
            "true",
            "1",
        ),
        (
            json!({ "$ref": "#day", "definitions": { "a/b": { "$id": "#day", "type": "boolean" } } }),
            "true",
            "1",
        ),
        (
            json!({ "$id": "https://a.example/s", "$ref": "https://a.example/s#/$defs/d", "$defs": { "d": day } }),
            "\"mon\"",
            "1",
        ),
        (
            json!({ "$ref": "day.json", "$defs": { "d": { "$id": "day.json", "enum": [1] } } }),
            "1",
            "2",
        ),
        // References behind references, and recursion.
        (
            json!({ "items": { "$ref": "#/$defs/a~1b" }, "type": "array", "$defs": { "a/b": tree("#/$defs/a~1b") } }),
            "[[],[[],[]]]",
            "[1]",
        ),
        (tree("#tree"), "[[],[[]]]", "[[],[],[]]"),
        (
            json!({ "$ref": "#/$defs/x%2Fy", "$defs": { "x": { "y": tree("#tree") } } }),
            "[[],[[]]]",
            "[[],[],[]]",
        ),
        (
            json!({ "properties": { "a": { "$ref": "#/properties/" }, "": { "type": "null" } }, "required": ["a"], "type": "object" }),
            "{\"a\":null}",
            "{\"a\":1}",
        ),
        // A name that is written as it is, and a definition that nothing uses.
        (
            json!({ "$ref": "#/$defs/a%2Fb", "$defs": { "a%2Fb": day, "other": { "$ref": "other.json" } } }),
            "\"mon\"",
            "1",
        ),
        // Data are no references, and names are no keywords.
        (
            json!({ "const": { "$ref": "#/x" } }),
            "{\"$ref\":\"#/x\"}",
            "{}",
        ),
        (
            json!({ "type": "object", "properties": { "$ref": { "const": 1 }, "const": { "$ref": "#/$defs/a~1b" } }, "required": ["const"], "$defs": { "a/b": { "const": 2 } } }),
            "{\"$ref\":1,\"const\":2}",
            "{\"const\":1}",
        ),
    ] {
        assert!(takes(Constraint::JsonSchema(&schema), good), "{schema}");
        assert!(!takes(Constraint::JsonSchema(&schema), bad), "{schema}");
    }
    for (reference, reason) in [
        (
            "#/$defs/missing",
            "the '$ref' '#/$defs/missing' has no target",
        ),
        ("#missing", "the '$ref' '#missing' has no target"),
        ("#/$defs/a~1c", "the '$ref' '#/$defs/a~1c' has no target"),
        (
            "other.json#/x",
            "the '$ref' 'other.json#/x' is outside the schema",
        ),
    ] {
        let schema =
            json!({ "type": "array", "items": { "$ref": reference }, "$defs": { "a/b": day } });
        let error = invalid(Constraint::JsonSchema(&schema));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn regular_expressions_choices_and_lark() {
    assert!(takes(Constraint::Regex("(ab)+c?"), "ababc"));
    assert!(!takes(Constraint::Regex("(ab)+c?"), "abcc"));
    let choices = ["yes \"sir\"".to_owned(), "no\n".to_owned()];
    assert!(takes(Constraint::Choice(&choices), "yes \"sir\""));
    assert!(takes(Constraint::Choice(&choices), "no\n"));
    assert!(!takes(Constraint::Choice(&choices), "no"));
    let choices = [String::new(), "a\u{7f}".to_owned()];
    assert!(takes(Constraint::Choice(&choices), ""));
    assert!(takes(Constraint::Choice(&choices), "a\u{7f}"));
    assert!(takes(Constraint::Regex(""), ""));
    let lark = "start: greeting \" \" NAME\ngreeting: \"hello\" | \"bye\"\nNAME: /[A-Z][a-z]+/";
    assert!(takes(Constraint::Lark(lark), "bye Ada"));
    assert!(!takes(Constraint::Lark(lark), "bye ada"));
}

#[test]
fn gbnf_has_the_meaning_of_llama_cpp() {
    let arithmetic = r#"
# expressions, one a line
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;
    assert!(takes(Constraint::Gbnf(arithmetic), "a1+(2*b)=10\nx=y\n"));
    assert!(!takes(Constraint::Gbnf(arithmetic), "1++2=3\n"));

    let counted = "root ::= Item{2,3} | [^a-y\\x5d] any-char\nItem ::= \"\\u00e9\"\n  | \"k\" # an alternative on the next line\nany-char ::= .\n";
    assert!(takes(Constraint::Gbnf(counted), "ékk"));
    assert!(!takes(Constraint::Gbnf(counted), "k"));
    assert!(!takes(Constraint::Gbnf(counted), "kkkk"));
    assert!(takes(Constraint::Gbnf(counted), "zü"));
    assert!(!takes(Constraint::Gbnf(counted), "bü"));
    assert!(!takes(Constraint::Gbnf(counted), "]ü"));

    let maybe = "root ::= \"\" | \"a\\x7f\" [/\\x5d]";
    assert!(takes(Constraint::Gbnf(maybe), ""));
    assert!(takes(Constraint::Gbnf(maybe), "a\u{7f}/"));

    let ambiguous = "root ::= [a-z]* \"z\"";
    assert!(takes(Constraint::Gbnf(ambiguous), "azz"));
    for (text, reason) in [
        ("expr ::= \"a\"", "no rule 'root'"),
        ("root ::= \"a", "not closed"),
        ("root ::= [a", "not closed"),
        ("root ::= (\"a\"", "expected ')'"),
        ("root = \"a\"", "expected '::='"),
        ("root ::= \"a\"{5000}", "exceed the limit"),
    ] {
        let error = invalid(Constraint::Gbnf(text));
        assert!(error.contains(reason), "{error}");
    }
    let nested = format!(
        "root ::= {}\"a\"{}",
        "(".repeat(100_000),
        ")".repeat(100_000)
    );
    assert!(invalid(Constraint::Gbnf(&nested)).contains("nested deeper"));
}

fn invalid(constraint: Constraint) -> String {
    let Err(error) = vocabulary().grammar(constraint) else {
        panic!("{constraint:?} was accepted");
    };
    assert!(matches!(error, GrammarError::Invalid { .. }), "{error}");
    error.to_string()
}

#[test]
fn unenforceable_keywords_are_refused_with_a_reason() {
    for (schema, reason) in [
        (
            json!({ "type": "array", "uniqueItems": true }),
            "Unimplemented keys: [\"uniqueItems\"]. These keywords cannot be enforced. Remove them",
        ),
        (
            json!({ "enum": [] }),
            "an 'enum' or 'anyOf' is empty, so no value matches. List at least one",
        ),
        (
            json!({ "type": "object", "properties": { "a": { "enum": [] } }, "required": ["a"] }),
            "the 'enum' at '/properties/a' is empty, so no value matches. List at least one",
        ),
        (
            json!({ "type": "array", "minItems": 1, "items": { "anyOf": [] } }),
            "the 'anyOf' at '/items' is empty, so no value matches.",
        ),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "properties": { "b~": { "enum": [] } }, "required": ["b~"], "type": "object" } } }),
            "the 'enum' at '/$defs/a/properties/b~0' is empty",
        ),
        (json!({ "not": { "type": "string" } }), "not"),
        (json!({ "type": "string", "pattern": "(" }), ""),
        (json!({ "type": "strange" }), ""),
        (json!({ "$ref": "#/$defs/missing" }), ""),
        (json!({ "type": "integer", "minimum": 3, "maximum": 2 }), ""),
    ] {
        let error = invalid(Constraint::JsonSchema(&schema));
        assert!(
            error.contains(reason) && error.len() < 400,
            "{schema}: {error}"
        );
    }
    // Sizes that would exhaust the compiler's stack in a page.
    let mut chain = json!({ "$defs": {}, "$ref": "#/$defs/d0" });
    for i in 0..500 {
        chain["$defs"][format!("d{i}")] = json!({ "type": "object", "properties": { "x": { "$ref": format!("#/$defs/d{}", i + 1) } } });
    }
    chain["$defs"]["d500"] = json!({ "type": "null" });
    assert!(invalid(Constraint::JsonSchema(&chain)).contains("nested deeper"));
    let names = (0..3000).map(|i| (format!("p{i}"), json!({ "type": "null" })));
    let wide = json!({ "properties": serde_json::Value::Object(names.collect()) });
    assert!(invalid(Constraint::JsonSchema(&wide)).contains("schemas inside"));
    let many: Vec<String> = (0..3000).map(|i| format!("option {i}")).collect();
    assert!(takes(Constraint::Choice(&many), "option 2999"));
    let over = vec![String::new(); jerboa_grammar::MAX_CHOICES + 1];
    assert!(invalid(Constraint::Choice(&over)).contains("at most"));
    assert!(invalid(Constraint::Regex("(a")).contains("unclosed group"));
    assert!(invalid(Constraint::Regex(r"[^\s\S]")).contains("no finite text matches"));
    invalid(Constraint::Lark("start: missing"));
    invalid(Constraint::Choice(&[]));
    assert!(Vocabulary::new(tokens(), &[9_999]).is_err());
    assert!(Vocabulary::new(Vec::new(), &[0]).is_err());
}

#[test]
fn forced_text_is_found_and_wrong_tokens_are_errors() {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"], "additionalProperties": false });
    let vocabulary = vocabulary();
    let mut grammar = vocabulary
        .grammar(Constraint::JsonSchema(&schema))
        .expect("a grammar");
    grammar.accept(u32::from(b'{')).expect("an allowed token");
    grammar.accept(u32::from(b'"')).expect("an allowed token");
    let rest = [ForcedPart::Text(b"city\"".to_vec())];
    assert_eq!(grammar.forced(), rest);
    let ids: Vec<u32> = b"city\"!".iter().map(|&b| u32::from(b)).collect();
    assert_eq!(grammar.valid_prefix(&ids).expect("a prefix"), 5);
    assert_eq!(grammar.forced(), rest, "asking does not advance");
    assert!(grammar.accept(u32::from(b'x')).is_err());
}

/// Ids from 300 are special tokens.
fn with_special() -> Vocabulary {
    let mut tokens = tokens();
    tokens.resize(310, Vec::new());
    Vocabulary::new(tokens, &[END]).expect("a vocabulary")
}

fn text(text: &str) -> ForcedPart {
    ForcedPart::Text(text.as_bytes().to_vec())
}

#[test]
fn tokens_named_by_id_are_forced_between_texts() {
    let vocabulary = with_special();
    let lark = "start: \"ab\" <[300]> \"de\" <[301]> /[0-9]{2}/ <[309]> <[300]> \"xyz\"";
    let mut grammar = vocabulary
        .grammar(Constraint::Lark(lark))
        .expect("a grammar");
    let all = [
        text("ab"),
        ForcedPart::Token(300),
        text("de"),
        ForcedPart::Token(301),
    ];
    assert_eq!(grammar.forced(), all);
    let ids = [97, 98, 300, 100, 101, 301];
    assert_eq!(grammar.valid_prefix(&ids).expect("tokens"), 6);
    assert_eq!(grammar.valid_prefix(&[97, 98, 301]).expect("tokens"), 2);
    for (at, id) in ids.into_iter().enumerate() {
        let words = mask(&mut grammar);
        let found: Vec<u32> = (0..310).filter(|id| allows(&words, *id)).collect();
        assert_eq!(found, [id], "{at}");
        grammar.accept(id).expect("a forced token");
    }
    assert_eq!(grammar.forced(), []);
    for digit in b"42" {
        assert!(allows(&mask(&mut grammar), u32::from(*digit)));
        grammar.accept(u32::from(*digit)).expect("a digit");
    }
    let end = [ForcedPart::Token(309), ForcedPart::Token(300), text("xyz")];
    assert_eq!(grammar.forced(), end);
    for id in [309, 300, 120, 121, 122] {
        grammar.accept(id).expect("a forced token");
    }
    assert!(grammar.is_complete() && grammar.forced().is_empty());
}

#[test]
fn named_tokens_that_are_text_as_well_come_from_masks() {
    let vocabulary = with_special();
    for name in ["259", "97-98", "300,97", "*", "^300"] {
        let lark = format!("start: \"x\" <[{name}]> \"yz\"");
        let mut grammar = vocabulary
            .grammar(Constraint::Lark(&lark))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(grammar.forced(), [], "{name}");
        grammar.accept(u32::from(b'x')).expect("text");
        let words = mask(&mut grammar);
        let id = (0..310)
            .find(|id| allows(&words, *id))
            .unwrap_or_else(|| panic!("{name}: a token"));
        grammar.accept(id).expect("the named token");
        for byte in b"yz" {
            assert!(allows(&mask(&mut grammar), u32::from(*byte)), "{name}");
            grammar.accept(u32::from(*byte)).expect("text");
        }
        assert!(grammar.is_complete(), "{name}");
    }
}

/// One token is a valid prefix exactly where the mask has it: the engine asks the cheaper question
/// about tokens that it sampled ahead.
#[test]
fn single_tokens_are_valid_where_the_mask_has_them() {
    let schema = json!({ "type": "object", "properties": {
        "name": { "type": "string", "maxLength": 5 }, "count": { "type": "integer", "minimum": -3, "maximum": 44 },
        "kind": { "enum": ["true", "one", null] }, "all": { "type": "array", "items": { "type": "number" }, "maxItems": 3 },
    }, "required": ["name"], "additionalProperties": false });
    // States of the lexer that come back.
    let lists = json!({ "type": "array", "minItems": 5, "items": { "anyOf": [
        { "type": "string", "maxLength": 4 }, { "type": "string", "minLength": 50, "maxLength": 400 }, { "type": "array", "items": { "type": "string", "pattern": "^[a-n ,]{0,3}$" } },
    ] } });
    let choices = ["nameless".to_owned(), "name".to_owned(), "null".to_owned()];
    let constraints = || {
        [
            Constraint::JsonSchema(&lists),
            Constraint::Regex("([a-c]{1,3}, ?)*[a-d]{4}|([a-c]+ ;)*"),
            Constraint::Lark(
                "start: (WORD \" \"? \"e\"?)+ END\nWORD: /[a-e ]{1,3}/\nEND: \"name\"",
            ),
            Constraint::JsonSchema(&schema),
            Constraint::JsonObject,
            Constraint::Regex("(name|true)+[0-9]{2,4}(\\[\\])?"),
            Constraint::Choice(&choices),
            Constraint::Lark("start: (A | \"null\")+ A\nA: /[a-f]{2}ü?/"),
        ]
    };
    let vocabulary = vocabulary();
    let mut random = 7u64;
    for number in 0..constraints().len() {
        for _ in 0..6 {
            let constraint = constraints().into_iter().nth(number).expect("one");
            let mut grammar = vocabulary.grammar(constraint).expect("a grammar");
            for _ in 0..40 {
                let words = mask(&mut grammar);
                let allowed: Vec<u32> = (0..END).filter(|id| allows(&words, *id)).collect();
                for id in 0..END {
                    let is_valid = grammar.valid_prefix(&[id]).expect("a prefix") == 1;
                    assert_eq!(is_valid, allows(&words, id), "{number}: token {id}");
                }
                assert_eq!(grammar.valid_prefix(&[END + 40]).expect("none"), 0);
                let Some(id) = pick(&allowed, &mut random) else {
                    break;
                };
                grammar.accept(id).expect("an allowed token");
            }
        }
    }
}

#[test]
fn recent_constraints_start_anew() {
    let schema = json!({ "type": "array", "items": { "type": "string", "maxLength": 4 } });
    let schema = schema.to_string();
    let vocabulary = vocabulary();
    let run = |text: &str| -> Vec<Vec<u32>> {
        let mut grammar = vocabulary
            .grammar_from("json_schema", &schema)
            .expect("a grammar");
        text.bytes().map(|byte| step(&mut grammar, byte)).collect()
    };
    let first = run(r#"["abcd","","x"]"#);
    run(r#"["ab"#);
    assert_eq!(run(r#"["abcd","","x"]"#), first);
    for other in ["[a-c]+", "[d-f]+", "[g-i]+", "[j-l]+", "[m-o]+"] {
        let mut grammar = vocabulary.grammar_from("regex", other).expect("a grammar");
        let first = u32::from(other.as_bytes()[1]);
        assert!(allows(&mask(&mut grammar), first), "{other}");
        grammar.accept(first).expect("an allowed token");
    }
    assert_eq!(run(r#"["abcd","","x"]"#), first);
    assert!(vocabulary.grammar_from("regex", "(").is_err());
    assert!(vocabulary.grammar_from("unknown", "").is_err());
}

/// Generations of a constraint share its lexer, which stays failed once it has too many states.
#[test]
fn a_constraint_whose_lexer_failed_is_compiled_anew() {
    // Words of twelve letters, all of which a mask looks at.
    let letter = |word: u32, place: u32| if word >> place & 1 == 1 { b'a' } else { b'b' };
    let mut tokens: Vec<Vec<u8>> = (0..4096)
        .map(|word| (0..12).map(|place| letter(word, place)).collect())
        .collect();
    tokens.push(b"<end>".to_vec());
    let vocabulary = Vocabulary::new(tokens, &[4096]).expect("a vocabulary");
    let run = || -> Vec<Option<Vec<u32>>> {
        // A state knows which of the last 31 letters were an `a`.
        let mut grammar = vocabulary
            .grammar_from("regex", "(a|b)*a(a|b){30}c")
            .expect("a grammar");
        let words: Vec<u32> = (0..4096).collect();
        let mut random = 5;
        let mut masks = Vec::new();
        for _ in 0..1000 {
            let mut mask = vec![0; vocabulary.mask_words()];
            let found = grammar.write_mask(&mut mask);
            masks.push(found.is_ok().then_some(mask));
            let word = pick(&words, &mut random);
            if found.is_err() || word.is_none_or(|word| grammar.accept(word).is_err()) {
                break;
            }
        }
        masks
    };
    let first = run();
    assert_eq!(first.last(), Some(&None), "its lexer does not fail");
    assert!(first.len() > 1);
    assert_eq!(run(), first);
}

/// Generations of one constraint share the lexer and the masks that it found.
#[test]
fn generations_of_a_constraint_in_turns_have_the_masks_of_each_alone() {
    let schema = json!({ "type": "array", "items": { "type": "string", "maxLength": 6 } });
    let schema = schema.to_string();
    let texts = [
        r#"["abcdef","g"]"#,
        r#"["","name","true"]"#,
        r#"["a\n","b"]"#,
    ];
    let start = |vocabulary: &Vocabulary| {
        vocabulary
            .grammar_from("json_schema", &schema)
            .expect("a grammar")
    };
    let alone = texts.map(|text| {
        let mut grammar = start(&vocabulary());
        text.bytes()
            .map(|byte| step(&mut grammar, byte))
            .collect::<Vec<_>>()
    });
    let shared = vocabulary();
    let mut grammars = texts.map(|_| start(&shared));
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    for at in 0..longest {
        for ((text, expected), grammar) in texts.iter().zip(&alone).zip(&mut grammars) {
            if let (Some(byte), Some(expected)) = (text.as_bytes().get(at), expected.get(at)) {
                assert_eq!(&step(grammar, *byte), expected, "{text}: byte {at}");
            }
        }
    }
    assert!(grammars.iter_mut().all(Grammar::is_complete));
}

/// Words in all scripts take more of the lexer's work in a mask than other expressions do.
#[test]
fn words_in_many_scripts_have_masks() {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let scripts = [
        0xc0..0x250u32,
        0x386..0x482,
        0x5d0..0x5eb,
        0x620..0x64b,
        0x904..0x93a,
        0xe01..0xe31,
        0x10a0..0x10fb,
        0x1e00..0x1f00,
        0x3041..0x30ff,
        0x4e00..0x5600,
        0xac00..0xb400,
    ];
    for letter in scripts.into_iter().flatten().filter_map(char::from_u32) {
        for text in [
            format!("{letter}"),
            format!("members{letter}"),
            format!(" notation {letter}{letter}"),
        ] {
            tokens.push(text.into_bytes());
        }
    }
    let end = tokens.len() as u32;
    tokens.push(b"<end>".to_vec());
    let vocabulary = Vocabulary::new(tokens, &[end]).expect("a vocabulary");
    let mut random = 11u64;
    for _ in 0..4 {
        let mut grammar = vocabulary
            .grammar_from("regex", r"(\w+ ?){1,60}\.")
            .expect("a grammar");
        for _ in 0..20 {
            let mut words = vec![0; vocabulary.mask_words()];
            grammar.write_mask(&mut words).expect("a mask");
            let allowed: Vec<u32> = (256..end).filter(|id| allows(&words, *id)).collect();
            let Some(id) = pick(&allowed, &mut random) else {
                break;
            };
            grammar.accept(id).expect("an allowed token");
        }
    }
}
