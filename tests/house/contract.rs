//! The TypeScript face says what Rust says: the codes of errors, and the fields of what crosses between the two.
//! Reads both as text; knows nothing of what they mean.

use jerboa::Error;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// What only the facade and the memory throw.
const FACADE: [&str; 8] =
    ["unloaded", "worker", "assets", "store", "store_version", "store_locked", "store_blocked", "model_mismatch"];

/// Structs of Rust and the interface that each is in contract.ts. Several structs may be one interface.
const PAIRS: &[(&[(&str, &str)], &str)] = &[
    (&[("task/request.rs", "GenerateRequest"), ("sample/params.rs", "Overrides")], "EngineRequest"),
    (&[("task/generate.rs", "Event")], "GenerationEvent"),
    (&[("task/generate.rs", "Outcome")], "GenerationResult"),
    (&[("task/embed.rs", "EmbedRequest")], "EngineEmbedOptions"),
    (&[("task/sight.rs", "Seen")], "SeenImage"),
    (&[("task/transcribe/request.rs", "TranscribeRequest")], "EngineTranscribeOptions"),
    (&[("task/transcribe/request.rs", "Heard")], "HeardEvent"),
    (&[("task/speak/request.rs", "Spoken")], "Spoken"),
    (&[("exec/load_times.rs", "LoadTimes")], "LoadTimes"),
    (&[("exec/tune/mod.rs", "Tuning")], "Tuning"),
    (&[("exec/measure.rs", "MeasureOptions")], "MeasureOptions"),
    (&[("exec/measure.rs", "Measurement")], "Measurement"),
];

/// Fields of Rust that a page has no name for: a checkpoint's own `do_sample`, the part that is flattened, and what the facade
/// gives beside the request.
const INNER: [&str; 3] = ["doSample", "sampling", "fallbackSeed"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What stands between two marks.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("there is no {start:?}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{start:?} has no {end:?}")).0
}

/// Every other piece between quotes of a kind.
fn quoted(text: &str, quote: char) -> BTreeSet<String> {
    text.split(quote).skip(1).step_by(2).map(str::to_owned).collect()
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or("").to_owned();
    parts.fold(first, |all, part| all + &part[..1].to_uppercase() + &part[1..])
}

/// The public fields of a struct, as serde names them.
fn fields(file: &str, name: &str) -> BTreeSet<String> {
    let text = read(&format!("crate/src/{file}"));
    let body = between(&text, &format!("pub struct {name} {{"), "\n}");
    let names = body.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    names.map(|(field, _)| camel(field)).collect()
}

/// The properties of an interface, without those of objects in it.
fn properties(name: &str) -> BTreeSet<String> {
    let text: String = ["contract", "contract-device", "contract-sound"]
        .map(|file| read(&format!("pkg-template/src/{file}.ts")))
        .concat();
    let body = between(&text, &format!("export interface {name} {{"), "\n}");
    let lines = body.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let code = lines.map(str::trim).filter(|line| !line.starts_with(['/', '*']));
    code.filter_map(|line| line.split_once(':')).map(|(p, _)| p.trim_end_matches('?').to_owned()).collect()
}

#[test]
fn the_facade_knows_every_code_of_the_engine_and_no_other() {
    let engine = Error::CODES.iter().map(|code| (*code).to_owned());
    let wanted: BTreeSet<String> = engine.chain(FACADE.map(str::to_owned)).collect();
    let union = read("pkg-template/src/errors.ts");
    let code = between(&union, "export type JerboaErrorCode =", "(string & {});");
    let typed: String = code.lines().map(|line| line.split("//").next().unwrap_or("")).collect();
    assert_eq!(quoted(&typed, '"'), wanted, "JerboaErrorCode in pkg-template/src/errors.ts");
    let manual = read("pkg-template/README.md");
    let section = between(&manual, "## Errors", "\n## ");
    // The first column of its table has the codes.
    let listed: String = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next())
        .fold(String::new(), |all, codes| all + "`" + codes);
    assert_eq!(quoted(&listed, '`'), wanted, "the codes in pkg-template/README.md");
}

#[test]
fn what_crosses_to_javascript_has_the_same_fields_on_both_sides() {
    for (structs, interface) in PAIRS {
        let mut rust: BTreeSet<String> = structs.iter().flat_map(|(file, name)| fields(file, name)).collect();
        rust.retain(|field| !INNER.contains(&field.as_str()));
        assert_eq!(properties(interface), rust, "{interface} of pkg-template/src/contract.ts and {structs:?}");
    }
}
