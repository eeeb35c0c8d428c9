//! Hostile templates and tokenizers: each ends within two seconds with a result or a typed error, in
//! 512 MB of memory and with the stack of a page.

use std::time::Duration;

use jerboa::Error;
use jerboa::text::{ChatInput, ChatTemplate, SpecialTokens, Tokenizer, TokenizerFiles};
use jerboa_tests::capped;
use serde_json::{Value, json};

/// Time limit of a hostile file.
const DEADLINE: Duration = Duration::from_secs(2);

/// Runs `work` on a stack as large as a page's and checks its CPU time.
fn timed<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (result, took) = capped::on_page_stack(move || {
        let begun = capped::thread_time();
        let result = work();
        (result, capped::thread_time().saturating_sub(begun))
    });
    println!("{name}: {took:?}");
    assert!(took < DEADLINE, "{name} took {took:?}");
    result
}

fn render(source: &str, input: &ChatInput) -> Result<String, Error> {
    let template = ChatTemplate::new(source)?;
    let prompt = template.render(input, &SpecialTokens::default(), &[])?;
    Ok(prompt.text)
}

/// The template must fail with a typed error.
fn template_fails(name: &str, source: String) {
    let result = timed(name, move || render(&source, &ChatInput::default()));
    match result {
        Err(Error::ChatTemplate { reason }) => {
            assert!(reason.len() < 1000, "{name}: {} bytes", reason.len());
            println!("    {reason}");
        }
        other => panic!("{name}: {:.200?}", other.map(|text| text.len())),
    }
}

/// The template may render or fail with a typed error.
fn template_ends(name: &str, source: String) {
    let result = timed(name, move || render(&source, &ChatInput::default()));
    match result {
        Ok(text) => assert!(text.len() <= 16 << 20, "{name}: {} bytes", text.len()),
        Err(Error::ChatTemplate { .. }) => {}
        Err(other) => panic!("{name}: {other}"),
    }
}

/// A template that repeats `body` in a loop; `ns.x` starts as `first`.
fn looped(first: &str, times: usize, body: &str, then: &str) -> String {
    format!(
        "{{% set ns=namespace(x={first}) %}}{{% for i in range({times}) %}}{body}{{% endfor %}}{then}"
    )
}

#[test]
fn templates_that_grow() {
    if capped::runs_elsewhere("limits::templates_that_grow") {
        return;
    }
    let twice = "{% set ns.x = ns.x ~ ns.x %}";
    template_fails("doubled text", looped("'aaaaaaaa'", 40, twice, ""));
    let plus = "{% set ns.x = ns.x + ns.x %}";
    template_fails("doubled sum", looped("'aaaaaaaa'", 40, plus, ""));
    template_fails("doubled list", looped("[1]", 40, plus, ""));
    let capture = "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}";
    template_fails("doubled capture", looped("'aaaa'", 40, capture, ""));
    let called = "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}";
    let calls = "{% set ns.x = m(ns.x) %}";
    template_fails(
        "doubled macro",
        called.to_owned() + &looped("'aaaa'", 40, calls, ""),
    );
    let upper = "{% set ns.x = (ns.x ~ ns.x)|upper %}";
    template_fails("doubled and upper-cased", looped("'aaaa'", 60, upper, ""));
    let long = "{% set a = 'a' * 100000 %}";
    template_fails(
        "printed often",
        format!("{long}{{% for i in range(100000) %}}{{{{ a }}}}{{% endfor %}}"),
    );
    template_fails("repeated", "{{ 'abc' * 1000000000000 }}".into());
    template_fails("repeated list", "{{ [1, 2] * 1000000000000 }}".into());
    template_fails("slice", "{{ [1]|slice(1000000000)|list }}".into());
    template_fails("batch", "{{ [1]|batch(1000000000, 'x')|list }}".into());
    template_fails("range", "{{ range(1000000000)|list }}".into());
    template_fails(
        "nested ranges",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".into(),
    );
    template_fails(
        "indent",
        "{{ ('a\\n' * 1000000)|indent('x' * 1000) }}".into(),
    );
    template_fails("replace", format!("{long}{{{{ a.replace('', a) }}}}"));
    template_fails(
        "replace filter",
        format!("{long}{{{{ a|replace('a', a) }}}}"),
    );
    template_fails("join", format!("{long}{{{{ a|list|join(a) }}}}"));
    template_fails("str.join", format!("{long}{{{{ a.join(a|list) }}}}"));
    template_fails("split", "{{ ('a ' * 8000000).split(' ')|length }}".into());
    template_fails(
        "splitlines",
        "{{ ('\\n' * 20000000).splitlines()|length }}".into(),
    );
    template_fails("strftime", "{{ strftime_now('%Y' * 10000000) }}".into());
    template_fails("padded", "{{ '%2000000000d'|format(1) }}".into());
    template_fails(
        "padded by format",
        "{{ '{:>2000000000}'.format('x') }}".into(),
    );
    template_fails("precise", "{{ '%.2000000000f' % 1.5 }}".into());
    template_fails("center", "{{ 'x'.center(2000000000) }}".into());
    template_fails("zfill", "{{ 'x'.zfill(2000000000) }}".into());
    template_fails(
        "tojson indent",
        "{{ [[1]]|tojson(indent=2000000000) }}".into(),
    );
    template_fails("power", "{{ 10 ** 100000000 }}".into());
    template_fails(
        "cases",
        looped(
            "'ab' * 4000000",
            100_000,
            "{% set y = ns.x|upper|lower %}",
            "",
        ),
    );
    template_fails(
        "raw text",
        format!(
            "{{% for i in range(99999) %}}{}{{% endfor %}}",
            "text ".repeat(1000)
        ),
    );
    template_fails("long", "x".repeat(1 << 20));
}

#[test]
fn templates_that_nest_values() {
    if capped::runs_elsewhere("limits::templates_that_nest_values") {
        return;
    }
    let pair = "{% set ns.x = [ns.x, ns.x] %}";
    for (name, then) in [
        ("printed", "{{ ns.x }}"),
        ("as JSON", "{{ ns.x|tojson }}"),
        ("compared", "{{ ns.x == ns.x }}"),
        ("ordered", "{{ ns.x < [ns.x, 1] }}"),
        ("sorted", "{{ [ns.x, ns.x, ns.x]|sort }}"),
        ("unique", "{{ [ns.x, ns.x]|unique|list }}"),
    ] {
        // Two equal lists, not two references to one list.
        let other = format!("{{% set ns.x = [ns.x, 0] %}}{then}");
        template_ends(name, looped("0", 60, pair, &other));
    }
    let unequal = "{% set ns=namespace(x=0, y=0) %}{% for i in range(60) %}{% set ns.x=[ns.x, ns.x] %}{% set ns.y=[ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}";
    template_fails("compared with another", unequal.into());
    template_fails("printed pairs", looped("0", 60, pair, "{{ ns.x }}"));
    template_fails("pairs as JSON", looped("0", 60, pair, "{{ ns.x|tojson }}"));
    for (name, deeper) in [
        ("lists", "{% set ns.x = [ns.x] %}"),
        ("tuples", "{% set ns.x = (ns.x,) %}"),
        ("mappings", "{% set ns.x = {'a': ns.x} %}"),
        ("dict()", "{% set ns.x = dict(a=ns.x) %}"),
        ("methods", "{% set ns.x = [ns.x.count] %}"),
        (
            "loops",
            "{% for y in [ns.x] %}{% set ns.x = loop %}{% endfor %}",
        ),
        ("pairs of groups", "{% set ns.x = [[ns.x]]|batch(1)|list %}"),
    ] {
        template_fails(name, looped("[]", 99_999, deeper, "{{ ns.x }}"));
    }
    let chain = "{% set ns.x = namespace(p=ns.x) %}";
    template_ends("namespaces", looped("0", 99_999, chain, "{{ ns.x }}"));
    let cycle = "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}";
    template_ends("a cycle", cycle.into());
}

#[test]
fn templates_that_nest_expressions() {
    if capped::runs_elsewhere("limits::templates_that_nest_expressions") {
        return;
    }
    for count in [150, 10_000, 100_000] {
        let many = |text: &str| text.repeat(count);
        for (name, source) in [
            ("not", format!("{{{{ {}1 }}}}", many("not "))),
            ("minus", format!("{{{{ {}1 }}}}", many("- "))),
            (
                "parentheses",
                format!("{{{{ {}1{} }}}}", many("("), many(")")),
            ),
            ("lists", format!("{{{{ {}{} }}}}", many("["), many("]"))),
            (
                "mappings",
                format!("{{{{ {}1{} }}}}", many("{1:"), many("}")),
            ),
            ("conditions", format!("{{{{ {}1 }}}}", many("1 if 0 else "))),
            (
                "calls in calls",
                format!("{{{{ {}1{} }}}}", many("f("), many(")")),
            ),
            (
                "items in items",
                format!("{{{{ {}1{} }}}}", many("a["), many("]")),
            ),
            (
                "blocks",
                format!("{}{}", many("{% if 1 %}"), many("{% endif %}")),
            ),
            (
                "loops",
                format!("{}{}", many("{% for a in [1] %}"), many("{% endfor %}")),
            ),
            (
                "targets",
                format!("{{% set {}a{} = 1 %}}", many("("), many(")")),
            ),
        ] {
            template_fails(&format!("{count} {name}"), source);
        }
        for (name, source) in [
            ("~", format!("{{{{ 1{} }}}}", many(" ~ 1"))),
            ("+", format!("{{{{ 1{} }}}}", many(" + 1"))),
            ("*", format!("{{{{ 1{} }}}}", many(" * 1"))),
            ("**", format!("{{{{ 1{} }}}}", many(" ** 1"))),
            ("and", format!("{{{{ 1{} }}}}", many(" and 1"))),
            ("or", format!("{{{{ 0{} }}}}", many(" or 0"))),
            ("<", format!("{{{{ 1{} }}}}", many(" <= 1"))),
            (".a", format!("{{{{ a{} }}}}", many(".a"))),
            ("[0]", format!("{{{{ a{} }}}}", many("[0]"))),
            ("()", format!("{{{{ a{} }}}}", many("()"))),
            ("filters", format!("{{{{ 1{} }}}}", many("|string"))),
            ("tests", format!("{{{{ 1{} }}}}", many(" is odd"))),
            ("ifs", format!("{{{{ 1{} }}}}", many(" if 1"))),
            (
                "elif",
                format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}")),
            ),
            ("strings", format!("{{{{ 'a'{} }}}}", many(" 'a'"))),
            ("open blocks", many("{% if 1 %}")),
            ("braces", many("{{")),
            ("comments", many("{#")),
        ] {
            template_ends(&format!("{count} {name}"), source);
        }
    }
}

#[test]
fn templates_that_recurse() {
    if capped::runs_elsewhere("limits::templates_that_recurse") {
        return;
    }
    template_fails(
        "a macro",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
    );
    template_fails(
        "a macro with arguments",
        "{% macro m(x) %}{% if x %}{{ [m([x])]|map('upper')|join }}{% endif %}{% endmacro %}{{ m(1) }}".into(),
    );
    template_fails(
        "two macros",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"
            .into(),
    );
    template_fails(
        "a caller",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}".into(),
    );
    template_fails(
        "a loop",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
    );
    template_fails(
        "a macro that calls itself twice",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(30) }}".into(),
    );
    // Recursion of a useful depth: a JSON schema of ten levels.
    let nested =
        "{% macro m(n) %}{% if n > 0 %}({{ m(n - 1) }}){% endif %}{% endmacro %}{{ m(20) }}";
    let text = timed("twenty levels", || render(nested, &ChatInput::default()));
    assert_eq!(text.expect("renders"), "(".repeat(20) + &")".repeat(20));
}

/// A list nested this deep.
fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
}

#[test]
fn messages_that_nest() {
    let source = "{{ messages }}{{ tools }}{{ x }}";
    let deep = || nested(100_000);
    let inputs: [(&str, ChatInput); 4] = [
        (
            "messages",
            ChatInput {
                messages: vec![deep()],
                ..ChatInput::default()
            },
        ),
        (
            "tools",
            ChatInput {
                tools: Some(vec![deep()]),
                ..ChatInput::default()
            },
        ),
        (
            "documents",
            ChatInput {
                documents: Some(vec![json!(1), deep()]),
                ..ChatInput::default()
            },
        ),
        (
            "x",
            ChatInput {
                variables: [("x".to_owned(), deep())].into_iter().collect(),
                ..ChatInput::default()
            },
        ),
    ];
    for (name, input) in inputs {
        let error = timed(name, move || {
            let error = render(source, &input);
            // Dropping such a value would overflow the stack.
            std::mem::forget(input);
            error.expect_err("too deep")
        });
        assert_eq!(error.code(), "request", "{name}: {error}");
        assert!(error.to_string().starts_with(name), "{error}");
    }
    // Real conversations stay far below the limit.
    let input = ChatInput {
        messages: vec![nested(150)],
        ..ChatInput::default()
    };
    assert!(render(source, &input).is_ok());
}

#[test]
fn long_conversations_render() {
    let source = "{% for m in messages %}{{ '<|' ~ m['role'] ~ '|>\\n' + m['content']|trim + '<|end|>\\n' }}{% endfor %}";
    let text = "A sentence of a long conversation. ".repeat(300);
    let messages: Vec<Value> = (0..400)
        .map(|_| json!({"role": "user", "content": text}))
        .collect();
    let input = ChatInput {
        messages,
        ..ChatInput::default()
    };
    let rendered = timed("four megabytes", move || render(source, &input));
    assert!(rendered.expect("renders").len() > 4_000_000);
}

/// A tokenizer of single characters with `changes` applied.
fn tokenizer(changes: &[(&str, Value)]) -> Value {
    let mut file = json!({
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2}, "merges": []},
    });
    for (at, value) in changes {
        *file.pointer_mut(at).unwrap_or_else(|| panic!("{at}")) = value.clone();
    }
    file
}

/// Loads a tokenizer, encodes `text` and decodes the ids.
fn encode(file: &str, text: &str) -> Result<String, Error> {
    let tokenizer = Tokenizer::from_json(file.as_bytes())?;
    let ids = tokenizer.encode(text, true)?;
    tokenizer.encode_trusted(text, true)?;
    assert!(ids.iter().all(|id| *id < tokenizer.id_bound()));
    Ok(tokenizer.decode(&ids, true))
}

/// The tokenizer must fail with a typed error, on load or on encoding `text`.
fn tokenizer_fails(name: &str, file: &Value, text: &str) {
    let file = file.to_string();
    let text = text.to_owned();
    match timed(name, move || encode(&file, &text)) {
        Err(Error::Tokenizer { reason }) => {
            assert!(reason.len() < 1000, "{name}: {} bytes", reason.len());
            println!("    {reason}");
        }
        other => panic!("{name}: {:?}", other.map(|text| text.len())),
    }
}

/// The tokenizer must work.
fn tokenizer_works(name: &str, file: &Value, text: &str) {
    let file = file.to_string();
    let text = text.to_owned();
    if let Err(error) = timed(name, move || encode(&file, &text)) {
        panic!("{name}: {error}");
    }
}

/// A sequence of `count` equal components.
fn sequence(list: &str, component: &Value, count: usize) -> Value {
    json!({"type": "Sequence", list: vec![component; count]})
}

#[test]
fn tokenizers_that_grow() {
    if capped::runs_elsewhere("limits::tokenizers_that_grow") {
        return;
    }
    let text = "ab".repeat(500);
    let doubled = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let by_regex = json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"});
    for (name, component) in [("plain", doubled), ("regex", by_regex)] {
        let normalizer = sequence("normalizers", &component, 40);
        let file = tokenizer(&[("/normalizer", normalizer)]);
        tokenizer_fails(&format!("doubled by {name}"), &file, &text);
    }
    let giant = "x".repeat(3 << 20);
    for (name, normalizer) in [
        ("prepended", json!({"type": "Prepend", "prepend": giant})),
        (
            "replaced",
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": giant}),
        ),
        (
            "replaced by regex",
            json!({"type": "Replace", "pattern": {"Regex": "a"}, "content": giant}),
        ),
        (
            "too many",
            sequence("normalizers", &json!({"type": "Lowercase"}), 10_000),
        ),
    ] {
        tokenizer_fails(name, &tokenizer(&[("/normalizer", normalizer)]), "a");
    }
    let spaces = sequence("pretokenizers", &json!({"type": "WhitespaceSplit"}), 10_000);
    let file = tokenizer(&[("/pre_tokenizer", spaces)]);
    tokenizer_fails("too many pre-tokenizers", &file, "a");
    let longer = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    for (name, decoder) in [
        ("doubled", sequence("decoders", &longer, 40)),
        (
            "many",
            sequence("decoders", &json!({"type": "Fuse"}), 100_000),
        ),
        (
            "giant",
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": giant}),
        ),
        (
            "stripped",
            json!({"type": "Strip", "content": "a", "start": 0, "stop": 4_294_967_295_u32}),
        ),
        (
            "long",
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "x".repeat(8 << 20)}),
        ),
    ] {
        tokenizer_fails(name, &tokenizer(&[("/decoder", decoder)]), "a");
    }
    let mut prefixed = tokenizer(&[]);
    prefixed["model"]["continuing_subword_prefix"] = json!(giant);
    tokenizer_fails("a long prefix", &prefixed, "ab");
}

#[test]
fn tokenizers_that_search() {
    if capped::runs_elsewhere("limits::tokenizers_that_search") {
        return;
    }
    let text = "a".repeat(20_000);
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    for regex in ["(a|a)*b", "(a+)+b", "(a|aa)+$b", "a*a*a*a*b"] {
        let file = tokenizer(&[("/pre_tokenizer", split(regex))]);
        tokenizer_fails(regex, &file, &text);
    }
    // Repetitions of nothing, and a large class that is repeated.
    let mut nothing = "a{0}".to_owned();
    for _ in 0..20 {
        nothing = format!("({nothing}){{1000}}");
    }
    let file = tokenizer(&[("/pre_tokenizer", split(&format!("{nothing}b")))]);
    tokenizer_works("repetitions of nothing", &file, "ab");
    let letters: String = ('\u{4e00}'..='\u{9fff}').step_by(2).collect();
    let file = tokenizer(&[("/pre_tokenizer", split(&format!("[{letters}]{{1000}}")))]);
    tokenizer_works("a large class, repeated", &file, "ab");
    let file = tokenizer(&[("/pre_tokenizer", split(&format!("[{letters}]+x")))]);
    tokenizer_fails(
        "a large class over a long text",
        &file,
        &"\u{9ffe}".repeat(20_000),
    );
    for (name, regex) in [
        ("a repetition", "a{1001}".to_owned()),
        ("repetitions", "(a{1000}){1000}".to_owned()),
        ("groups", format!("{}a{}", "(".repeat(101), ")".repeat(101))),
        (
            "a long expression",
            format!("a{{1001}}{}", "b".repeat(1 << 20)),
        ),
    ] {
        tokenizer_fails(name, &tokenizer(&[("/pre_tokenizer", split(&regex))]), "a");
    }
    // The budget is not reset at each word.
    let steps = json!({"type": "Sequence", "pretokenizers": [
        {"type": "FixedLength", "length": 24}, split("(a|a)*b")]});
    let file = tokenizer(&[("/pre_tokenizer", steps)]);
    tokenizer_fails("an expression for each word", &file, &text);
    let longest = "a".repeat(60_000);
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], [longest, -2.0]]});
    let file = tokenizer(&[("/model", unigram)]);
    tokenizer_fails("Unigram over a long run", &file, &text);
    let pieces = json!({"type": "WordPiece", "unk_token": "<unk>", "max_input_chars_per_word": 60_000,
        "vocab": {"<unk>": 0, "a": 1, "##a": 2, longest: 3}});
    let file = tokenizer(&[("/model", pieces)]);
    tokenizer_fails("WordPiece over a long word", &file, &text);
    // Short tokens over the same text pass.
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["aaaa", -2.0]]});
    let file = tokenizer(&[("/model", unigram)]);
    tokenizer_works("Unigram with short pieces", &file, &"a".repeat(300_000));
    let file = tokenizer(&[]);
    tokenizer_works("BPE over a long run", &file, &"ab".repeat(100_000));
}

#[test]
fn tokenizers_with_many_added_tokens() {
    if capped::runs_elsewhere("limits::tokenizers_with_many_added_tokens") {
        return;
    }
    let added = |content: String, id: usize| json!({"id": id, "content": content, "special": true, "normalized": false});
    // Tokens that are prefixes of each other, up to the length limit, twice.
    let tokens: Vec<Value> = (0..1000).map(|n| added("a".repeat(n + 1), 3 + n)).collect();
    let file = tokenizer(&[("/added_tokens", json!(tokens))]);
    tokenizer_works("prefixes", &file, &"a".repeat(20_000));
    tokenizer_works("broken prefixes", &file, &"ab".repeat(20_000));
    let tokens: Vec<Value> = (0..100_000)
        .rev()
        .map(|n| added(format!("<{n}>"), 3 + n))
        .collect();
    let file = tokenizer(&[("/added_tokens", json!(tokens))]);
    let text = format!("{}<77777>", "a < b <".repeat(2000));
    tokenizer_works("a hundred thousand", &file, &text);
    let tokens = [added("a".repeat(100_000), 3)];
    let file = tokenizer(&[("/added_tokens", json!(tokens))]);
    tokenizer_fails("a long one", &file, "a");
    // The same tokens in tokenizer_config.json.
    let decoder: serde_json::Map<String, Value> = (0..50_000)
        .map(|n| ((3 + n).to_string(), added(format!("<{n}>"), 0)))
        .collect();
    let config = json!({"added_tokens_decoder": decoder}).to_string();
    let plain = tokenizer(&[]).to_string();
    let size = timed("tokenizer_config.json", move || {
        let files = TokenizerFiles {
            tokenizer: plain.as_bytes(),
            tokenizer_config: Some(config.as_bytes()),
            ..TokenizerFiles::default()
        };
        Tokenizer::load(files).expect("a tokenizer").vocab_size()
    });
    assert_eq!(size, 50_003);
}

#[test]
fn ids_and_vocabularies() {
    for model in [
        json!({"type": "BPE", "vocab": {}, "merges": []}),
        json!({"type": "WordPiece", "vocab": {}}),
        json!({"type": "WordLevel", "vocab": {}}),
        json!({"type": "Unigram", "vocab": []}),
    ] {
        let file = tokenizer(&[("/model", model.clone())]);
        tokenizer_fails("an empty vocabulary", &file, "ab");
        // Added tokens alone are a vocabulary; other text encodes to no ids.
        let only = json!([{"id": 0, "content": "<s>", "special": false, "normalized": false}]);
        let file = tokenizer(&[("/model", model), ("/added_tokens", only)]);
        let tokenizer = Tokenizer::from_json(file.to_string().as_bytes()).expect("a tokenizer");
        assert_eq!(tokenizer.encode("<s>", false).expect("encodes"), [0]);
        match tokenizer.encode("ab", false) {
            Ok(ids) => assert!(ids.is_empty(), "{ids:?}"),
            Err(error) => assert_eq!(error.code(), "tokenizer"),
        }
    }
    let around = |ids: Value| json!({"type": "TemplateProcessing", "single": [{"ids": ids}, {"seq": "A"}], "pair": []});
    for (name, processor) in [
        ("an id that is none", around(json!([4_294_967_295_u32]))),
        ("the next id", around(json!([3]))),
        ("many ids", around(json!(vec![1; 1_000_000]))),
        (
            "an id above 32 bits",
            json!({"type": "BertProcessing", "sep": ["x", 4_294_967_297_u64], "cls": ["x", 1]}),
        ),
        (
            "a separator that is none",
            json!({"type": "RobertaProcessing", "sep": ["x", 9], "cls": ["x", 1]}),
        ),
    ] {
        let file = tokenizer(&[("/post_processor", processor)]);
        tokenizer_fails(name, &file, "a");
    }
    let file = tokenizer(&[("/post_processor", around(json!([2])))]);
    tokenizer_works("an id of the vocabulary", &file, "a");
    let ids: Vec<u32> = (0..1_000_000).collect();
    let generation = json!({ "eos_token_id": ids }).to_string();
    let plain = tokenizer(&[]).to_string();
    let error = timed("a million ids that end a text", move || {
        let files = TokenizerFiles {
            tokenizer: plain.as_bytes(),
            generation_config: Some(generation.as_bytes()),
            ..TokenizerFiles::default()
        };
        Tokenizer::load(files).expect_err("too many")
    });
    assert_eq!(error.code(), "config", "{error}");
}

#[test]
fn json_that_nests() {
    if capped::runs_elsewhere("limits::json_that_nests") {
        return;
    }
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let members = "{\"type\":\"Sequence\",\"normalizers\":[".repeat(5000);
    for (name, part) in [
        ("lists", deep.clone()),
        ("sequences", members + &"]}".repeat(5000)),
    ] {
        for key in [
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "added_tokens",
        ] {
            let text = format!("{{\"{key}\": {part}, \"model\": {{\"vocab\": {{\"a\": 0}}}}}}");
            let error = timed(name, move || {
                Tokenizer::from_json(text.as_bytes()).map(|_| ())
            });
            assert_eq!(error.expect_err(name).code(), "tokenizer", "{key}");
        }
        let text = format!("{{\"model\": {{\"type\": \"BPE\", \"vocab\": {part}}}}}");
        let error = timed(name, move || {
            Tokenizer::from_json(text.as_bytes()).map(|_| ())
        });
        assert_eq!(error.expect_err(name).code(), "tokenizer");
    }
    let config = format!("{{\"chat_template\": {deep}}}");
    let error = timed("tokenizer_config.json", move || {
        ChatTemplate::load(None, None, Some(config.as_bytes())).map(|_| ())
    });
    assert_eq!(error.expect_err("too deep").code(), "config");
}
