//! The TypeScript facade declares what Rust provides: error codes, and the fields of results.
//! Compares the sources as text. Requests are written from Rust; see schema.rs.

use jerboa::Error;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Codes that only the facade and the memory throw.
const FACADE: [&str; 9] = [
    "unloaded",
    "worker",
    "assets",
    "store",
    "store_version",
    "store_locked",
    "store_blocked",
    "model_mismatch",
    "remote_refused",
];

/// Structs of Rust and their interfaces in contract.ts. Several structs may form one interface.
const PAIRS: &[(&[(&str, &str)], &str)] = &[
    (
        &[("task/chat_model/generate.rs", "TokenEvent")],
        "GenerationEvent",
    ),
    (
        &[("task/chat_model/generate.rs", "GenerationResult")],
        "GenerationResult",
    ),
    (&[("task/vision.rs", "ImageInfo")], "EncodedImageInfo"),
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
    (&[("exec/session/measure.rs", "Measurement")], "Measurement"),
    (&[("exec/weight_paging.rs", "PagingStats")], "Paging"),
    (&[("diag/checks.rs", "DiagnosticResult")], "DeviceCheck"),
];

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
    let code = between(&union, "export type JerboaErrorCode =", ";");
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
        let rust: BTreeSet<String> = structs
            .iter()
            .flat_map(|(file, name)| fields(file, name))
            .collect();
        let typed: BTreeSet<String> = interface.split('+').flat_map(properties).collect();
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
fn progress_and_transcripts_have_equal_fields() {
    let reported = keys(&read("crate/src/web/options.rs"), "let report = json!({");
    assert_eq!(reported, fields("hub/progress.rs", "ProgressEvent"));
    assert_eq!(properties("LoadProgress"), reported, "LoadProgress");
    let formats = read("crate/src/audio/subtitles.rs");
    let whole = &keys(&formats, "let mut out = json!({") | &set(&formats, "out");
    let whole = &whole | &set(&read("crate/src/web/engine/audio.rs"), "all");
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
    let encoders = &common | &set(&task("text_encoder"), "info");
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
