//! The TypeScript facade declares what Rust provides: error codes, and the fields of values that
//! cross the boundary. Compares the sources as text.

use jerboa::Error;
use jerboa::sample::{
    OptionType, SAMPLING_OPTIONS, SamplingOption, SamplingOptions, SamplingParams,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Codes that only the facade and the memory throw.
const FACADE: [&str; 8] = [
    "unloaded",
    "worker",
    "assets",
    "store",
    "store_version",
    "store_locked",
    "store_blocked",
    "model_mismatch",
];

/// Structs of Rust and their interfaces in contract.ts. Several structs may form one interface.
const PAIRS: &[(&[(&str, &str)], &str)] = &[
    (
        &[
            ("task/request.rs", "GenerateRequest"),
            ("sample/params.rs", "SamplingOptions"),
        ],
        "EngineRequest",
    ),
    (
        &[("task/chat_model/generate.rs", "TokenEvent")],
        "GenerationEvent",
    ),
    (
        &[("task/chat_model/generate.rs", "GenerationResult")],
        "GenerationResult",
    ),
    (&[("task/embed.rs", "EmbedRequest")], "EngineEmbedOptions"),
    (&[("task/vision.rs", "ImageInfo")], "EncodedImageInfo"),
    (
        &[("task/transcribe/request.rs", "TranscribeRequest")],
        "EngineTranscribeOptions",
    ),
    (
        &[("task/transcribe/request.rs", "SegmentEvent")],
        "SegmentEvent+PartialEvent",
    ),
    (
        &[("task/speak/request.rs", "SynthesisResult")],
        "SynthesisResult",
    ),
    (&[("exec/load_times.rs", "LoadTimes")], "LoadTimes"),
    (&[("exec/tune/mod.rs", "Tuning")], "Tuning"),
    (
        &[("exec/session/measure.rs", "MeasureOptions")],
        "MeasureOptions",
    ),
    (&[("exec/session/measure.rs", "Measurement")], "Measurement"),
    (&[("exec/weight_paging.rs", "PagingStats")], "Paging"),
    (&[("diag/checks.rs", "DiagnosticResult")], "DeviceCheck"),
];

/// Fields of Rust that pages do not use: a checkpoint's `do_sample`, the flattened part, and fields
/// that the facade passes separately.
const INNER: [&str; 3] = ["doSample", "sampling", "fallbackSeed"];

/// Fields of an interface that the host handles and the engine does not read.
const HOST_ONLY: [(&str, &str); 2] = [("EngineRequest", "grammar"), ("EngineRequest", "steps")];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The text between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text
        .split_once(start)
        .unwrap_or_else(|| panic!("there is no {start:?}"));
    rest.split_once(end)
        .unwrap_or_else(|| panic!("{start:?} has no {end:?}"))
        .0
}

/// Strings in quotes of this kind: every other part.
fn quoted(text: &str, quote: char) -> BTreeSet<String> {
    text.split(quote)
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or("").to_owned();
    parts.fold(first, |all, part| {
        all + &part[..1].to_uppercase() + &part[1..]
    })
}

/// Public fields of a struct by their serde names.
fn fields(file: &str, name: &str) -> BTreeSet<String> {
    let text = read(&format!("crate/src/{file}"));
    let body = between(&text, &format!("pub struct {name} {{"), "\n}");
    let names = body
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    names.map(|(field, _)| camel(field)).collect()
}

/// The body of an interface.
fn interface(name: &str) -> String {
    let text: String = ["contract", "contract-device", "contract-audio"]
        .map(|file| read(&format!("pkg-template/src/{file}.ts")))
        .concat();
    between(&text, &format!("export interface {name} "), "\n}").to_owned()
}

/// Names before colons in lines with this indentation, with a `?` where optional.
fn names(body: &str, indent: usize) -> BTreeSet<String> {
    let lines = body
        .lines()
        .filter(|line| line.len() - line.trim_start().len() == indent);
    // Skips comments and `[more: string]`.
    let code = lines
        .map(str::trim)
        .filter(|line| !line.starts_with(['/', '*', '[']));
    code.filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect()
}

fn sure(names: &BTreeSet<String>) -> BTreeSet<String> {
    names
        .iter()
        .map(|name| name.trim_end_matches('?').to_owned())
        .collect()
}

/// Properties of an interface, without those of nested objects and of extended interfaces.
fn properties(name: &str) -> BTreeSet<String> {
    sure(&names(&interface(name), 2))
}

/// Keys of a `json!` object after a mark, without those of nested objects.
fn keys(text: &str, mark: &str) -> BTreeSet<String> {
    let (_, rest) = text
        .split_once(mark)
        .unwrap_or_else(|| panic!("{mark:?} is missing"));
    let mut found = BTreeSet::new();
    let mut depth = 0;
    let mut last = "";

    for (index, part) in rest.split('"').enumerate() {
        if index % 2 == 1 {
            last = part;
            continue;
        }
        if depth == 0 && index > 0 && part.starts_with(':') {
            found.insert(last.to_owned());
        }
        for letter in part.chars() {
            depth += i32::from("{[(".contains(letter)) - i32::from("}])".contains(letter));
            if depth < 0 {
                return found;
            }
        }
    }
    panic!("{mark:?} has no end");
}

/// Keys that are assigned one by one: `info["key"] = …`.
fn set(text: &str, object: &str) -> BTreeSet<String> {
    let mark = format!("{object}[\"");
    let pieces = text.split(&mark).skip(1);
    pieces
        .filter_map(|piece| piece.split_once('"'))
        .map(|(key, _)| key.to_owned())
        .collect()
}

#[test]
fn the_facade_declares_exactly_the_engines_error_codes() {
    let engine = Error::CODES.iter().map(|code| (*code).to_owned());
    let wanted: BTreeSet<String> = engine.chain(FACADE.map(str::to_owned)).collect();
    let union = read("pkg-template/src/errors.ts");
    let code = between(&union, "export type JerboaErrorCode =", "(string & {});");
    let typed: String = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect();
    assert_eq!(
        quoted(&typed, '"'),
        wanted,
        "JerboaErrorCode in pkg-template/src/errors.ts"
    );
    let manual = read("pkg-template/README.md");
    let section = between(&manual, "## Errors", "\n## ");
    // The first column of its table has the codes.
    let listed: String = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .fold(String::new(), |all, codes| all + "`" + codes);
    assert_eq!(
        quoted(&listed, '`'),
        wanted,
        "the codes in pkg-template/README.md"
    );
}

#[test]
fn shared_structs_have_equal_fields_in_rust_and_typescript() {
    for (structs, interface) in PAIRS {
        let mut rust: BTreeSet<String> = structs
            .iter()
            .flat_map(|(file, name)| fields(file, name))
            .collect();
        rust.retain(|field| !INNER.contains(&field.as_str()));
        let mut typed: BTreeSet<String> = interface.split('+').flat_map(properties).collect();
        for (_, field) in HOST_ONLY.iter().filter(|(name, _)| name == interface) {
            assert!(typed.remove(*field), "{interface} has no \"{field}\"");
        }
        assert_eq!(
            typed, rust,
            "{interface} of pkg-template/src/contract.ts and {structs:?}"
        );
    }
}

#[test]
fn log_probabilities_have_equal_fields_in_rust_and_typescript() {
    let rust = fields("task/text_stream.rs", "TokenInfo");
    let top = properties("ChosenLogprob");

    assert_eq!(top, BTreeSet::from(["top".to_owned()]));
    assert_eq!(
        &properties("TokenLogprob") | &top,
        rust,
        "TokenLogprob and ChosenLogprob"
    );
}

#[test]
fn speech_options_equal_those_that_rust_reads() {
    let own = fields("task/speak/request.rs", "SpeakRequest");
    let sampled = fields("sample/params.rs", "SamplingOptions");

    let own: BTreeSet<String> = own
        .into_iter()
        .filter(|field| !INNER.contains(&field.as_str()))
        .collect();
    let typed = properties("EngineSpeakOptions");
    assert!(typed.is_superset(&own), "{own:?} of {typed:?}");
    let rest: BTreeSet<String> = typed.difference(&own).cloned().collect();
    assert!(sampled.is_superset(&rest), "{rest:?}: not all is read");
}

#[test]
fn progress_and_transcripts_have_equal_fields() {
    let reported = keys(&read("crate/src/web/options.rs"), "let report = json!({");
    assert_eq!(reported, fields("hub/progress.rs", "ProgressEvent"));
    assert_eq!(properties("LoadProgress"), reported, "LoadProgress");
    let formats = read("crate/src/audio/subtitles.rs");
    let whole = &keys(&formats, "let mut out = json!({") | &set(&formats, "out");
    let whole = &whole | &set(&read("crate/src/web/audio.rs"), "all");
    assert_eq!(properties("Transcript"), whole, "Transcript");
    let body = interface("Transcript");
    let segments = between(&body, "segments: {", "}[]");
    let made = between(&formats, "let segment =", "};");
    assert_eq!(
        sure(&names(segments, 4)),
        keys(made, "json!({"),
        "the segments of a Transcript"
    );
}

#[test]
fn load_options_equal_those_that_rust_reads() {
    let text = ["options", "audio", "mod"]
        .map(|file| read(&format!("crate/src/web/{file}.rs")))
        .concat();
    let mut read = BTreeSet::new();
    for call in [
        "property(options, \"",
        "string_property(options, \"",
        "bytes(\"",
        "count(\"",
    ] {
        let pieces = text.split(call).skip(1);
        read.extend(
            pieces
                .filter_map(|piece| piece.split_once("\")"))
                .map(|(name, _)| name.to_owned()),
        );
    }
    // A separate parameter of the Rust functions.
    assert!(read.remove("signal"));
    assert_eq!(properties("EngineLoadOptions"), read, "EngineLoadOptions");
}

#[test]
fn model_info_names_every_field_of_rust() {
    let task = |file: &str| read(&format!("crate/src/task/{file}.rs"));
    let language = task("language_model");
    let common = keys(between(&language, "fn common_info(", "\n}"), "json!({");
    let decoder_info = between(&language, "let decoder_info = [", "];");
    let decoder_info = decoder_info
        .split("(\"")
        .skip(1)
        .filter_map(|piece| piece.split_once('"'))
        .map(|(key, _)| key.to_owned());
    let decoders: BTreeSet<String> = &common | &decoder_info.collect();
    let embed = task("embed");
    let described = between(&embed, "fn encoder_info(", "\n}");
    let encoders = &(&common | &set(described, "info")) | &set(&task("rerank"), "info");
    let more = ["chat_model", "transcribe/mod", "speak/mod"].map(|file| set(&task(file), "info"));
    let all = more
        .iter()
        .fold(&decoders | &encoders, |all, some| &all | some);
    assert_eq!(
        properties("EngineInfo"),
        &all | &set(&embed, "info"),
        "EngineInfo"
    );
    let always: BTreeSet<String> = names(&interface("EngineInfo"), 2)
        .into_iter()
        .filter(|n| !n.ends_with('?'))
        .collect();
    for (of, reported) in [
        ("models that embed or rerank", &encoders),
        ("models that have a decoder", &decoders),
    ] {
        let missing: Vec<&String> = always.difference(reported).collect();
        assert!(missing.is_empty(), "{of} do not report {missing:?}");
    }
}

/// The validator of an option in TypeScript.
fn validator(option: &SamplingOption) -> String {
    let number = |bound: f64| {
        let text = bound.to_string();
        text.replace(
            &(2f64.powi(53) - 1.0).to_string(),
            "Number.MAX_SAFE_INTEGER",
        )
    };
    let kind = match option.kind {
        OptionType::NumberByToken => return "valid.biases".into(),
        OptionType::Integer => "integer",
        OptionType::Number if option.above_min => "above",
        OptionType::Number => "number",
    };
    let min = number(option.min);
    if option.max.is_finite() {
        format!("valid.{kind}({min}, {})", number(option.max))
    } else {
        format!("valid.{kind}({min})")
    }
}

/// Where each option is checked in TypeScript: with the bounds of Rust.
#[test]
fn sampling_options_have_the_bounds_of_rust() {
    let all: Vec<&str> = SAMPLING_OPTIONS.iter().map(|option| option.name).collect();
    let openai = [
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    ];
    let openai = [&openai[..], &["seed"]].concat();
    let speech = vec!["temperature", "top_p", "repetition_penalty", "seed"];
    for (file, expected) in [
        ("generate", &all),
        ("chat", &all),
        ("completions", &openai),
        ("speech", &speech),
    ] {
        let text = read(&format!("pkg-template/src/{file}.ts"));
        let mut found = Vec::new();
        for option in SAMPLING_OPTIONS {
            for name in BTreeSet::from([option.name.to_owned(), camel(option.name)]) {
                let mark = format!("\n  {name}: valid");
                for line in text.split(&mark).skip(1) {
                    let line = line.lines().next().unwrap_or_default();
                    let check = format!("valid{}", line.trim_end_matches(','));
                    assert_eq!(check, validator(option), "'{name}' of {file}.ts");
                    found.push(option.name);
                }
            }
        }
        assert_eq!(&found, expected, "the sampling options of {file}.ts");
    }
    let text = read("pkg-template/src/transcribe.ts");
    let option = SamplingOption::named("temperature").expect("an option");
    let check = between(&text, "\n  temperature: validator(", "\n");
    assert!(check.contains(&validator(option)), "{check}");
    let words = format!("from {} to {}", option.min, option.max);
    assert!(check.contains(&words), "{check}");
    let option = SamplingOption::named("logit_bias").expect("an option");
    let biases = read("pkg-template/src/check.ts");
    let biases = between(&biases, "\n  biases: validator(", "\n  ),");
    let bounds = format!("isNumber(bias, {}, {})", option.min, option.max);
    assert!(biases.contains(&bounds), "{biases}");
}

/// The values that a request may have are those of the table, and what it says by default is so.
#[test]
fn sampling_options_are_what_requests_take() {
    let default = SamplingParams::default();
    let defaults = [
        ("temperature", default.temperature),
        ("top_k", f64::from(default.top_k)),
        ("top_p", default.top_p),
        ("min_p", default.min_p),
        ("typical_p", default.typical_p),
        ("repetition_penalty", default.repetition_penalty),
        ("presence_penalty", default.presence_penalty),
        ("frequency_penalty", default.frequency_penalty),
    ];
    let listed: BTreeSet<String> = SAMPLING_OPTIONS.iter().map(|o| camel(o.name)).collect();
    let mut known = fields("sample/params.rs", "SamplingOptions");
    assert!(known.remove("doSample"));
    assert_eq!(listed, known);
    for option in SAMPLING_OPTIONS {
        let by_name = defaults.iter().find(|(name, _)| *name == option.name);
        assert_eq!(
            option.default,
            by_name.map(|(_, value)| *value),
            "{}",
            option.name
        );
        assert!(option.doc.ends_with('.') && option.min < option.max);
        let accepts = |value: f64| {
            let value = match option.kind {
                OptionType::NumberByToken => serde_json::json!({ "1": value }),
                OptionType::Integer => serde_json::json!(value as i64),
                OptionType::Number => serde_json::json!(value),
            };
            let request = serde_json::json!({ option.name: value });
            let request: SamplingOptions = serde_json::from_value(request).expect("a request");
            default.merge(&request).is_ok()
        };
        let step = if option.kind == OptionType::Integer {
            1.0
        } else {
            0.001
        };
        assert_eq!(accepts(option.min), !option.above_min, "{}", option.name);
        assert!(!accepts(option.min - step), "{}", option.name);
        assert!(accepts(option.min + step), "{}", option.name);
        if option.max.is_finite() {
            assert!(accepts(option.max), "{}", option.name);
            assert!(!accepts(option.max + step), "{}", option.name);
        }
    }
}
