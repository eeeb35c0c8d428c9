//! Calls in the notations of the families, followed byte by byte.

use jerboa_grammar::{GrammarError, Vocabulary, with_source};
use serde_json::{Value, json};

const END: u32 = 256;

/// `<parameter=KEY>VALUE</parameter>`, with a function's name before and a semicolon behind.
fn function_xml() -> Value {
    json!({
        "format": "function-xml", "notation": "tags", "opener": "<function=",
        "open": [], "head": ["<function="], "middle": [">\n"], "tail": [";"], "between": [],
        "close": [], "isParallel": false,
        "keyOpen": ["<parameter="], "keyClose": [">\n"], "valueClose": ["\n</parameter>\n"],
        "stringEnds": ["</parameter>", "\n<parameter=", "\n</function>"],
    })
}

/// `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`.
fn glm() -> Value {
    let mut spelling = function_xml();
    spelling["format"] = "glm".into();
    spelling["keyOpen"] = json!(["<arg_key>"]);
    spelling["keyClose"] = json!(["</arg_key><arg_value>"]);
    spelling["valueClose"] = json!(["</arg_value>"]);
    spelling["stringEnds"] = json!(["</arg_value>"]);
    spelling
}

/// `NAME(KEY=VALUE, …);`.
fn pythonic() -> Value {
    json!({
        "format": "lfm2", "notation": "python", "opener": "CALL",
        "open": ["CALL "], "head": [], "middle": ["("], "tail": [");"], "between": [],
        "close": [], "isParallel": false,
    })
}

/// `call:NAME{KEY:VALUE,…};` with `<q>` around strings.
fn gemma() -> Value {
    json!({
        "format": "gemma4", "notation": "delimited", "opener": "call:",
        "open": [], "head": ["call:"], "middle": ["{"], "tail": ["};"], "between": [],
        "close": [], "isParallel": false, "delimiter": ["<q>"], "stringEnds": ["<q>"],
    })
}

/// The grammar of a call of `f`, and whether it accepts this text to its end.
fn takes(
    spelling: &Value,
    parameters: &Value,
    is_strict: bool,
    text: &str,
) -> Result<bool, GrammarError> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    tokens.push(b"<end>".to_vec());
    let vocabulary = Vocabulary::new(tokens, &[END])?;
    let spec = json!({
        "spelling": spelling, "choice": "required", "parallel": false,
        "tools": [{ "name": "f", "parameters": parameters, "strict": is_strict }],
    });
    let mut grammar = with_source("answer", &spec.to_string(), |constraint| {
        vocabulary.grammar(constraint)
    })??;
    for byte in text.bytes() {
        let mut words = vec![0; vocabulary.mask_words()];
        grammar.write_mask(&mut words)?;
        if words[usize::from(byte) / 32] >> (byte % 32) & 1 == 0 {
            return Ok(false);
        }
        grammar.accept(u32::from(byte))?;
    }
    Ok(grammar.is_complete())
}

/// Parameters with one argument `a`, which is required.
fn argument(schema: &Value) -> Value {
    json!({ "type": "object", "properties": { "a": schema }, "required": ["a"] })
}

/// A call with this text as the value of `a`.
fn xml_call(value: &str) -> String {
    format!("<function=f>\n<parameter=a>\n{value}\n</parameter>\n;")
}

fn glm_call(value: &str) -> String {
    format!("<function=f>\n<arg_key>a</arg_key><arg_value>{value}</arg_value>;")
}

/// Asserts which values of `a` the notations with tags accept.
fn assert_tagged(parameters: &Value, good: &[&str], bad: &[&str]) {
    for is_strict in [true, false] {
        for (values, expected) in [(good, true), (bad, false)] {
            for value in values {
                for (spelling, call) in
                    [(function_xml(), xml_call(value)), (glm(), glm_call(value))]
                {
                    let found = takes(&spelling, parameters, is_strict, &call)
                        .unwrap_or_else(|error| panic!("{parameters}: {error}"));
                    assert_eq!(found, expected, "{parameters} {is_strict}: {call:?}");
                }
            }
        }
    }
}

#[test]
fn strings_between_tags_may_be_empty() {
    for schema in [
        json!({ "type": "string", "enum": ["", "asc"] }),
        json!({ "enum": ["", "asc"] }),
        json!({ "anyOf": [{ "const": "" }, { "const": "asc" }] }),
    ] {
        assert_tagged(&argument(&schema), &["", "asc"], &["as", "desc", " "]);
    }
    for schema in [
        json!({ "const": "" }),
        json!({ "type": "string", "maxLength": 0 }),
        json!({ "type": "string", "pattern": "^$" }),
    ] {
        assert_tagged(&argument(&schema), &[""], &["x"]);
    }
    let any = argument(&json!({ "type": "string", "pattern": "" }));
    assert_tagged(&any, &["", "x"], &[]);
}

#[test]
fn constants_may_contain_lark_syntax() {
    let texts = ["//", "#", "/* a", "\\", "\"", "a\u{7f}b", "x\ny", "é"];
    let schema = argument(&json!({ "enum": texts }));
    assert_tagged(&schema, &texts, &["/", "a", "x"]);
    for text in texts {
        let call = format!("CALL f(a={});", json!(text));
        assert!(
            takes(&pythonic(), &schema, true, &call).expect("a grammar"),
            "{call}"
        );
        let call = format!("call:f{{a:<q>{text}<q>}};");
        assert!(
            takes(&gemma(), &schema, true, &call).expect("a grammar"),
            "{call}"
        );
    }
}

#[test]
fn names_that_a_format_cannot_write_are_refused() {
    let parameters = |name: &str, is_required: bool| {
        let required: &[&str] = if is_required { &[name] } else { &[] };
        json!({ "type": "object", "properties": { name: { "const": 1 } }, "required": required })
    };
    let xml = |name: &str| format!("<function=f>\n<parameter={name}>\n1\n</parameter>\n;");
    let tags =
        |name: &str| format!("<function=f>\n<arg_key>{name}</arg_key><arg_value>1</arg_value>;");
    let python = |name: &str| format!("CALL f({name}=1);");
    let words = |name: &str| format!("call:f{{{name}:1}};");
    let quoted = |name: &str| format!("call:f{{<q>{name}<q>:1}};");
    for (spelling, name, call) in [
        (function_xml(), "user-id", xml("user-id")),
        (function_xml(), "a b", xml("a b")),
        (function_xml(), "", xml("")),
        (glm(), "a>b", tags("a>b")),
        (pythonic(), "größe_2", python("größe_2")),
        (pythonic(), "2nd", python("2nd")),
        (gemma(), "user_id", words("user_id")),
        (gemma(), "user-id", quoted("user-id")),
        (gemma(), "", quoted("")),
    ] {
        let found = takes(&spelling, &parameters(name, true), true, &call);
        assert!(found.expect("a grammar"), "{call}");
    }
    for (spelling, name, reason) in [
        (
            pythonic(),
            "user-id",
            "may contain only letters, digits and '_'",
        ),
        (pythonic(), "a.b", "may contain only letters"),
        (pythonic(), "first name", "may contain only letters"),
        (pythonic(), "a\"b", "may contain only letters"),
        (pythonic(), "", "may contain only letters"),
        (function_xml(), "a>b", "may contain no '>'"),
        (function_xml(), "a\nb", "may contain no '>' or line break"),
        (function_xml(), " a", "no blanks or quotes around it"),
        (function_xml(), "\"a\"", "no blanks or quotes around it"),
        (glm(), "a</arg_key>", "may contain no '</'"),
        (glm(), "a ", "no blanks or quotes around it"),
        (gemma(), "a:b", "may contain no ':'"),
        (gemma(), "a}", "may contain no ':'"),
    ] {
        for (is_required, is_strict) in [(true, true), (false, false)] {
            let found = takes(&spelling, &parameters(name, is_required), is_strict, "");
            let error = found.expect_err("refused").to_string();
            let start = format!("tools: tool 'f': argument '{name}': a name in the format");
            assert!(error.starts_with(&start) || name.contains('\n'), "{error}");
            assert!(
                error.contains(reason) && error.ends_with("Rename the argument."),
                "{error}"
            );
        }
    }
    // Names inside an argument are quoted.
    let inner = argument(&json!({
        "type": "object", "properties": { "user-id": { "const": 1 } }, "required": ["user-id"],
    }));
    for (spelling, call) in [
        (pythonic(), "CALL f(a={\"user-id\": 1});"),
        (function_xml(), xml_call("{\"user-id\":1}").as_str()),
    ] {
        assert!(
            takes(&spelling, &inner, true, call).expect("a grammar"),
            "{call}"
        );
    }
}

#[test]
fn references_of_arguments_may_be_spelled_in_every_way() {
    for (reference, definitions) in [
        ("#/$defs/a~1b", json!({ "a/b": { "enum": ["x", "y"] } })),
        (
            "#/$defs/A%3CB%3E",
            json!({ "A<B>": { "enum": ["x", "y"] } }),
        ),
        (
            "#day",
            json!({ "d": { "$anchor": "day", "enum": ["x", "y"] } }),
        ),
    ] {
        let mut parameters = argument(&json!({ "$ref": reference }));
        parameters["$defs"] = definitions.clone();
        assert_tagged(&parameters, &["x", "y"], &["z"]);
        let list = json!({ "type": "array", "items": { "$ref": reference } });
        parameters["properties"]["a"] = list;
        assert_tagged(&parameters, &["[\"x\",\"y\"]"], &["[\"z\"]"]);
        let call = "CALL f(a=[\"x\", \"y\"]);";
        assert!(takes(&pythonic(), &parameters, true, call).expect("a grammar"));
    }
    let missing = argument(&json!({ "$ref": "#/$defs/day" }));
    for is_strict in [true, false] {
        let error = takes(&pythonic(), &missing, is_strict, "").expect_err("refused");
        let reason = "tools: tool 'f': the '$ref' '#/$defs/day' has no target";
        assert!(error.to_string().starts_with(reason), "{error}");
    }
}

/// `type` and the listed values limit each other.
#[test]
fn only_listed_values_of_a_listed_type_are_written() {
    for (schema, good, bad) in [
        (
            json!({ "type": ["integer", "string"], "enum": ["7"] }),
            &["7"][..],
            &["8", "x", "\"7\""][..],
        ),
        (
            json!({ "type": ["string", "null"], "enum": ["null"] }),
            &["null"],
            &["x", "None"],
        ),
        (
            json!({ "type": ["string", "null"], "enum": ["a", null] }),
            &["a", "null"],
            &["b"],
        ),
        (
            json!({ "type": "integer", "enum": ["7", 8, 9.5] }),
            &["8"],
            &["7", "9.5"],
        ),
        (
            json!({ "type": "string", "enum": ["7", 8], "const": "7" }),
            &["7"],
            &["8"],
        ),
        (
            json!({ "type": "string", "anyOf": [{ "const": "a" }, { "enum": ["b", 3] }, { "type": "null" }] }),
            &["a", "b"],
            &["3", "null", "c"],
        ),
        (
            json!({ "type": ["string", "null"], "enum": ["a", "bb", null], "minLength": 2 }),
            &["bb", "null"],
            &["a"],
        ),
    ] {
        assert_tagged(&argument(&schema), good, bad);
    }
    let schema = argument(&json!({ "type": "integer", "enum": ["7", 8] }));
    assert!(takes(&pythonic(), &schema, true, "CALL f(a=8);").expect("a grammar"));
    assert!(!takes(&pythonic(), &schema, true, "CALL f(a=\"7\");").expect("a grammar"));
    let schema =
        json!({ "type": ["integer", "string"], "anyOf": [{ "const": "7" }, { "type": "null" }] });
    let call = "CALL f(a=\"7\");";
    assert!(takes(&pythonic(), &argument(&schema), true, call).expect("a grammar"));
    for spelling in [function_xml(), glm(), pythonic(), gemma()] {
        let schema = argument(&json!({ "type": "integer", "enum": ["7"] }));
        let error = takes(&spelling, &schema, true, "").expect_err("refused");
        assert!(
            error.to_string().contains("argument 'a': no value matches"),
            "{error}"
        );
    }
}

#[test]
fn parts_of_an_argument_are_merged() {
    let definitions = json!({
        "Color": { "type": "string", "enum": ["red", "green"], "title": "Color" },
        "Point": { "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"] },
        "Tree": {
            "type": "object",
            "properties": { "next": { "allOf": [{ "$ref": "#/$defs/Tree" }], "description": "d" } },
        },
    });
    let with = |schema: &Value| {
        let mut parameters = argument(schema);
        parameters["$defs"] = definitions.clone();
        parameters
    };
    for schema in [
        json!({ "allOf": [{ "$ref": "#/$defs/Color" }], "default": "red" }),
        json!({ "$ref": "#/$defs/Color", "description": "A color.", "default": "red" }),
        json!({ "allOf": [{ "type": "string" }, { "enum": ["red", "green", 3] }] }),
        json!({ "$ref": "#/$defs/Color", "type": ["string", "null"] }),
        json!({ "allOf": [{ "allOf": [{ "$ref": "#/$defs/Color" }] }, { "maxLength": 9 }], "maxLength": 5 }),
    ] {
        let parameters = with(&schema);
        assert_tagged(&parameters, &["red", "green"], &["blue", "null", "3"]);
        for is_strict in [true, false] {
            for (value, expected) in [("red", true), ("blue", false)] {
                let call = format!("CALL f(a=\"{value}\");");
                let found = takes(&pythonic(), &parameters, is_strict, &call);
                assert_eq!(found.expect("a grammar"), expected, "{schema} {call}");
            }
        }
    }
    // Without a further limit, a string is between its delimiters.
    let parameters = with(&json!({ "allOf": [{ "$ref": "#/$defs/Color" }] }));
    let call = "call:f{a:<q>green<q>};";
    assert!(takes(&gemma(), &parameters, true, call).expect("a grammar"));
    let maybe =
        with(&json!({ "anyOf": [{ "allOf": [{ "$ref": "#/$defs/Color" }] }, { "type": "null" }] }));
    assert_tagged(&maybe, &["red", "null"], &["blue"]);
    let limited = json!({ "type": "string", "pattern": "^a", "allOf": [{ "pattern": "b$" }] });
    assert_tagged(&with(&limited), &["ab", "acb"], &["a", "b"]);
    let limited = json!({ "type": "string", "format": "date", "pattern": "^2" });
    assert_tagged(&with(&limited), &["2026-11-26"], &["1999-11-26", "2"]);
    let call = "call:f{a:<q>2026-11-26<q>};";
    assert!(takes(&gemma(), &with(&limited), true, call).expect("a grammar"));
    let bounds = json!({ "allOf": [{ "type": "number", "minimum": 3 }, { "type": "integer", "minimum": 5 }], "maximum": 6 });
    assert_tagged(&with(&bounds), &["5", "6"], &["4", "7", "5.5"]);
    let object = json!({ "allOf": [{ "$ref": "#/$defs/Point" }, { "properties": { "y": { "const": 2 } }, "required": ["y"] }] });
    assert_tagged(&with(&object), &["{\"x\":1,\"y\":2}"], &["{\"x\":1}"]);
    let tree = with(&json!({ "allOf": [{ "$ref": "#/$defs/Tree" }], "type": "object" }));
    assert_tagged(&tree, &["{\"next\":{\"next\":{}}}"], &["{\"next\":1}"]);
    let call = "CALL f(a={\"next\": {\"next\": {}}});";
    assert!(takes(&pythonic(), &tree, true, call).expect("a grammar"));
    for spelling in [function_xml(), pythonic()] {
        let never = with(&json!({ "allOf": [{ "$ref": "#/$defs/Color" }, { "const": "blue" }] }));
        let error = takes(&spelling, &never, true, "").expect_err("refused");
        assert!(error.to_string().contains("no value matches"), "{error}");
    }
    // Merging takes bounded work, and ends where references are a cycle.
    let mut wide = with(&json!({ "$ref": "#/$defs/d0" }));
    for i in 0..15 {
        let next = json!({ "$ref": format!("#/$defs/d{}", i + 1) });
        wide["$defs"][format!("d{i}")] = json!({ "allOf": vec![next; 8] });
    }
    wide["$defs"]["d15"] = json!({ "type": "string" });
    assert!(takes(&function_xml(), &wide, false, &xml_call("x")).expect("a grammar"));
    let mut cycle = with(&json!({ "$ref": "#/$defs/a" }));
    cycle["$defs"]["a"] = json!({ "$ref": "#/$defs/a" });
    takes(&function_xml(), &cycle, true, "").expect_err("refused");
    drop(takes(&pythonic(), &cycle, true, ""));
    // The function's own schema.
    let root = json!({ "$ref": "#/$defs/Point", "$defs": definitions, "description": "d" });
    let call = "CALL f(x=3);";
    assert!(takes(&pythonic(), &root, true, call).expect("a grammar"));
    let root = json!({ "allOf": [{ "$ref": "#/$defs/Point" }], "$defs": definitions });
    assert!(takes(&pythonic(), &root, true, call).expect("a grammar"));
}
