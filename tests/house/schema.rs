//! What is written from the tables of options: pkg-template/src/schema.ts, and the option tables of
//! the manual. `JERBOA_WRITE_SCHEMA=1 cargo test -p jerboa-tests --test house schema` writes them.

use jerboa::exec::{MEASURE_OPTIONS, MeasureOptions};
use jerboa::sample::{SAMPLING_OPTIONS, SamplingOptions, SamplingParams};
use jerboa::schema::{Api, MAX_COUNT, MAX_SAFE_INTEGER, OptionType, RequestOption, camel_case};
use jerboa::task::{
    DeviceFeatures, EMBED_OPTIONS, EmbedRequest, FEATURE_OPTIONS, GENERATE_OPTIONS,
    GenerateRequest, LOAD_OPTIONS, LoadRequest, RERANK_OPTIONS, RerankRequest, SPEAK_OPTIONS,
    SpeakRequest, TRANSCRIBE_OPTIONS, TranscribeRequest,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

type Table = &'static [RequestOption];

/// Interfaces of engine requests: name, meaning, tables, and which options of the last table.
const ENGINE: &[(&str, &str, &[Table], Option<Api>)] = &[
    (
        "EngineGenerateFields",
        "A generation request, as the engine reads it: one of `prompt`, `ids`, `messages`, and options",
        &[GENERATE_OPTIONS, SAMPLING_OPTIONS],
        None,
    ),
    (
        "EngineEmbedOptions",
        "Options of an embedding",
        &[EMBED_OPTIONS],
        None,
    ),
    (
        "EngineRerankOptions",
        "Options of a reranking",
        &[RERANK_OPTIONS],
        None,
    ),
    (
        "EngineTranscribeOptions",
        "Options of a transcription",
        &[TRANSCRIBE_OPTIONS],
        None,
    ),
    (
        "EngineSpeakOptions",
        "Options of a speech synthesis",
        &[SPEAK_OPTIONS, SAMPLING_OPTIONS],
        Some(Api::Speech),
    ),
    (
        "EngineLoadFields",
        "Options of a load, besides those that are objects",
        &[LOAD_OPTIONS],
        None,
    ),
];

/// A public API: the name of its options' types, what they belong to, and their tables.
struct PublicApi {
    api: Api,
    interface: &'static str,
    about: &'static str,
    tables: &'static [Table],
    /// OpenAI's APIs have snake-case names.
    is_snake: bool,
    /// Whether null means "not set" in the types too.
    is_nullable: bool,
}

const fn api(
    api: Api,
    interface: &'static str,
    about: &'static str,
    tables: &'static [Table],
) -> PublicApi {
    PublicApi {
        api,
        interface,
        about,
        tables,
        is_snake: false,
        is_nullable: false,
    }
}

const fn openai(mut api: PublicApi, is_nullable: bool) -> PublicApi {
    api.is_snake = true;
    api.is_nullable = is_nullable;
    api
}

const TEXT: &[Table] = &[SAMPLING_OPTIONS, GENERATE_OPTIONS];
const APIS: &[PublicApi] = &[
    api(Api::Generate, "GenerateFields", "model.generate", TEXT),
    openai(
        api(Api::Chat, "ChatFields", "chat.completions.create", TEXT),
        true,
    ),
    openai(
        api(
            Api::Completions,
            "CompletionFields",
            "completions.create",
            TEXT,
        ),
        true,
    ),
    api(Api::Embed, "EmbedFields", "model.embed", &[EMBED_OPTIONS]),
    api(
        Api::Rerank,
        "RerankFields",
        "model.rerank",
        &[RERANK_OPTIONS],
    ),
    api(
        Api::Transcribe,
        "TranscribeFields",
        "model.transcribe",
        &[TRANSCRIBE_OPTIONS],
    ),
    api(
        Api::Listen,
        "ListenFields",
        "model.listen",
        &[TRANSCRIBE_OPTIONS],
    ),
    openai(
        api(
            Api::Transcriptions,
            "TranscriptionFields",
            "audio.transcriptions.create",
            &[TRANSCRIBE_OPTIONS],
        ),
        false,
    ),
    openai(
        api(
            Api::Speech,
            "SpeechFields",
            "audio.speech.create",
            &[SAMPLING_OPTIONS, SPEAK_OPTIONS],
        ),
        false,
    ),
    api(
        Api::Measure,
        "MeasureOptions",
        "model.measure",
        &[MEASURE_OPTIONS],
    ),
    api(
        Api::Features,
        "DeviceFeatures",
        "features of loadModel",
        &[FEATURE_OPTIONS],
    ),
    api(Api::Load, "LoadFields", "loadModel", &[LOAD_OPTIONS]),
];

/// Manual pages with a table of an API's options.
const PAGES: &[(&str, Api)] = &[
    ("www/docs/text.md", Api::Generate),
    ("www/docs/chat.md", Api::Chat),
    ("www/docs/embeddings.md", Api::Embed),
    ("www/docs/embeddings.md", Api::Rerank),
    ("www/docs/speech.md", Api::Transcribe),
    ("www/docs/speech.md", Api::Speech),
    ("www/docs/models.md", Api::Load),
    ("www/docs/devices.md", Api::Features),
    ("www/docs/internals.md", Api::Measure),
];

impl PublicApi {
    fn options(&self) -> impl Iterator<Item = &'static RequestOption> {
        self.tables
            .iter()
            .flat_map(|table| table.iter())
            .filter(|option| option.apis.contains(&self.api))
    }

    fn name(&self, option: &RequestOption) -> String {
        let name = option.public_name.unwrap_or(option.name);
        if self.is_snake {
            name.to_owned()
        } else {
            camel_case(name)
        }
    }

    /// Name of the checks: `GENERATE_SPEC` of `GenerateFields`.
    fn spec(&self) -> String {
        let stem = self
            .interface
            .trim_end_matches("Fields")
            .trim_end_matches("Options");
        let mut name = String::new();
        for (at, letter) in stem.char_indices() {
            if at > 0 && letter.is_uppercase() {
                name.push('_');
            }
            name.extend(letter.to_uppercase());
        }
        name + "_SPEC"
    }
}

/// Who reads a TypeScript type.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Engine,
    Caller,
    OpenAiCaller,
}

fn typescript(option: &RequestOption, reader: Reader) -> String {
    if let Some(alias) = option.alias {
        return alias.into();
    }
    match option.kind {
        OptionType::Boolean => "boolean".into(),
        OptionType::Number | OptionType::Integer | OptionType::Bytes => "number".into(),
        OptionType::Numbers if reader != Reader::Engine => "number | number[]".into(),
        OptionType::Numbers | OptionType::Integers | OptionType::TokenIds | OptionType::Vector => {
            "number[]".into()
        }
        OptionType::NumberByToken if reader == Reader::Caller => "Record<number, number>".into(),
        OptionType::NumberByToken => "Record<string, number>".into(),
        OptionType::Text => "string".into(),
        OptionType::Texts if reader != Reader::Engine => "string | string[]".into(),
        OptionType::Texts => "string[]".into(),
        OptionType::OneOf(names) => union(names),
        OptionType::Object => "Record<string, unknown>".into(),
        OptionType::List => "unknown[]".into(),
        OptionType::Options(name) => name.into(),
    }
}

fn union(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| format!("{name:?}"))
        .collect::<Vec<_>>()
        .join(" | ")
}

/// The check of an option's value: an expression over `valid` of pkg-template/src/check.ts.
fn check(option: &RequestOption) -> String {
    let number = |bound: f64| {
        if bound.abs() == MAX_SAFE_INTEGER {
            format!(
                "{}Number.MAX_SAFE_INTEGER",
                if bound < 0.0 { "-" } else { "" }
            )
        } else {
            bound.to_string()
        }
    };
    let min = number(option.min);
    let bounds = if option.max == MAX_COUNT {
        min
    } else {
        format!("{min}, {}", number(option.max))
    };
    match option.kind {
        OptionType::Boolean => "valid.boolean".into(),
        OptionType::Number if option.above_min => format!("valid.above({bounds})"),
        OptionType::Number => format!("valid.number({bounds})"),
        OptionType::Numbers => format!("valid.numbers({bounds})"),
        OptionType::Integer => format!("valid.integer({bounds})"),
        OptionType::Integers => format!("valid.integers({bounds})"),
        OptionType::Bytes => "valid.bytes".into(),
        OptionType::NumberByToken => format!("valid.biases({bounds})"),
        OptionType::Text => "valid.string".into(),
        OptionType::Texts => "valid.strings".into(),
        OptionType::OneOf(names) => format!("valid.oneOf({})", union(names).replace(" | ", ", ")),
        OptionType::Object | OptionType::Options(_) => "valid.object".into(),
        OptionType::List | OptionType::TokenIds | OptionType::Vector => "valid.array".into(),
    }
}

/// The values that an option takes, for the manual.
fn values(option: &RequestOption) -> String {
    let (min, max) = (option.min, option.max);
    let bounds = match option.above_min {
        true => format!("above {min}, up to {max}"),
        false if max == MAX_COUNT => format!("from {min}"),
        false => format!("{min} to {max}"),
    };
    match option.kind {
        OptionType::Boolean => "boolean".into(),
        OptionType::Number => bounds,
        OptionType::Numbers => format!("{bounds}, or a list"),
        OptionType::Integer if max == MAX_SAFE_INTEGER => "integer".into(),
        OptionType::Integer => format!("integer {bounds}"),
        OptionType::Integers => "list of integers".into(),
        OptionType::Bytes => "bytes".into(),
        OptionType::NumberByToken => format!("token id to number, {bounds}"),
        OptionType::TokenIds => "token ids".into(),
        OptionType::Vector => "vector".into(),
        OptionType::Text => "string".into(),
        OptionType::Texts => "string or list".into(),
        OptionType::OneOf(names) => names
            .iter()
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(" "),
        OptionType::Object | OptionType::Options(_) => "object".into(),
        OptionType::List => "list".into(),
    }
}

/// A default as a manual shows it: values in backticks, words as they are.
fn default_text(option: &RequestOption) -> String {
    let default = option.default;
    let is_name = matches!(option.kind, OptionType::OneOf(names) if names.contains(&default));
    let is_value = is_name || matches!(default, "true" | "false") || default.parse::<f64>().is_ok();
    if is_value {
        format!("`{default}`")
    } else {
        default.to_owned()
    }
}

/// Documentation in one line; lines of the source are joined.
fn documentation(option: &RequestOption) -> String {
    option.doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A comment at an indentation, wrapped at 120 columns.
fn comment(text: &str, indent: &str) -> String {
    let line = format!("{indent}/** {text} */\n");
    if line.chars().count() <= 121 {
        return line;
    }
    let mut lines = vec![format!("{indent} *")];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("a line");
        if last.chars().count() + 1 + word.chars().count() > 120 {
            lines.push(format!("{indent} * {word}"));
        } else {
            *last += &format!(" {word}");
        }
    }
    format!("{indent}/**\n{}\n{indent} */\n", lines.join("\n"))
}

fn property(option: &RequestOption, name: &str, reader: Reader, is_nullable: bool) -> String {
    let mut text = documentation(option);
    if !option.default.is_empty() {
        let _ = write!(text, " Default: {}.", default_text(option));
    }
    let null = if is_nullable { " | null" } else { "" };
    format!(
        "{}  {name}?: {}{null};\n",
        comment(&text, "  "),
        typescript(option, reader)
    )
}

fn schema_ts() -> String {
    let mut out = String::from(
        "/**\n * Options of requests and loads: their types, and what their values may be. Written from the tables of crate/src by\n * tests/house/schema.rs, which says how.\n */\n\nimport { valid } from \"./check.js\";\n",
    );
    let aliased = [GENERATE_OPTIONS, TRANSCRIBE_OPTIONS, LOAD_OPTIONS];
    for option in aliased.iter().flat_map(|table| table.iter()) {
        if let (Some(alias), OptionType::OneOf(names)) = (option.alias, option.kind) {
            let _ = write!(
                out,
                "\n{}export type {alias} = {};\n",
                comment(&documentation(option), ""),
                union(names)
            );
        }
    }
    for (name, about, tables, only) in ENGINE {
        let _ = write!(
            out,
            "\n{}export interface {name} {{\n",
            comment(&format!("{about}."), "")
        );
        for (at, table) in tables.iter().enumerate() {
            let is_last = at + 1 == tables.len();
            for option in *table {
                if !is_last || only.is_none_or(|api| option.apis.contains(&api)) {
                    out += &property(option, &camel_case(option.name), Reader::Engine, false);
                }
            }
        }
        out += "}\n";
    }
    for api in APIS {
        let reader = if api.is_snake {
            Reader::OpenAiCaller
        } else {
            Reader::Caller
        };
        let about = format!("Options of `{}` that the engine defines.", api.about);
        let _ = write!(
            out,
            "\n{}export interface {} {{\n",
            comment(&about, ""),
            api.interface
        );
        for option in api.options() {
            out += &property(option, &api.name(option), reader, api.is_nullable);
        }
        let about = format!("Checks of {{@link {}}}.", api.interface);
        let _ = write!(
            out,
            "}}\n\n{}export const {} = {{\n",
            comment(&about, ""),
            api.spec()
        );
        for option in api.options() {
            let _ = writeln!(out, "  {}: {},", api.name(option), check(option));
        }
        out += "};\n";
    }
    out
}

/// The rows of an API's options, with the table's head.
fn manual_table(api: &PublicApi) -> String {
    let mut out = String::from("| option | values | default | meaning |\n|---|---|---|---|\n");
    for option in api.options() {
        let text = documentation(option);
        let meaning = text
            .split_inclusive(". ")
            .next()
            .unwrap_or_default()
            .trim_end();
        let meaning = meaning.trim_end_matches('.').replace('|', "\\|");
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {meaning} |",
            api.name(option),
            values(option),
            default_text(option)
        );
    }
    out
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A manual page with its tables written again: what stands between two comments.
fn manual_page(page: &str, text: &str) -> String {
    let mut text = text.to_owned();
    for (_, api) in PAGES.iter().filter(|(name, _)| *name == page) {
        let api = APIS
            .iter()
            .find(|public| public.api == *api)
            .expect("an API");
        let start = format!(
            "<!-- options of {}: written by tests/house/schema.rs -->\n",
            api.about
        );
        let end = "<!-- end -->";
        let (before, rest) = text
            .split_once(&start)
            .unwrap_or_else(|| panic!("{page} has no {start:?}"));
        let (_, after) = rest
            .split_once(end)
            .unwrap_or_else(|| panic!("{page}: no {end:?} after {start:?}"));
        text = format!("{before}{start}\n{}\n{end}{after}", manual_table(api));
    }
    text
}

#[test]
fn schema_files_are_current() {
    let mut files = BTreeMap::from([("pkg-template/src/schema.ts", schema_ts())]);
    for (page, _) in PAGES {
        files
            .entry(page)
            .or_insert_with(|| manual_page(page, &read(page)));
    }
    let write = std::env::var_os("JERBOA_WRITE_SCHEMA").is_some();
    let mut stale = Vec::new();
    for (name, text) in files {
        if write {
            fs::write(path(name), &text).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        if fs::read_to_string(path(name)).unwrap_or_default() != text {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "the options in crate/src have changed: {stale:?}. Write them with JERBOA_WRITE_SCHEMA=1 cargo test -p jerboa-tests --test house schema"
    );
}

/// The file of the facade that checks an API's options.
fn facade_file(api: Api) -> &'static str {
    match api {
        Api::Generate => "generate.ts",
        Api::Chat => "chat.ts",
        Api::Completions => "completions.ts",
        Api::Embed | Api::Rerank => "embeddings.ts",
        Api::Transcribe | Api::Transcriptions => "transcribe.ts",
        Api::Listen => "listen.ts",
        Api::Speech => "speech.ts",
        Api::Measure => "model.ts",
        Api::Load | Api::Features => "load.ts",
    }
}

/// The facade checks an API's options with what schema.ts says, and none of them by hand.
#[test]
fn schema_is_the_only_place_of_checks() {
    for api in APIS {
        let spec = api.spec();
        let file = facade_file(api.api);
        let text = read(&format!("pkg-template/src/{file}"));
        let is_used = text.contains(&format!("...{spec}")) || text.contains(&format!(", {spec})"));
        assert!(is_used, "{file} does not check with {spec}");
        for option in api.options() {
            let name = api.name(option);
            for before in [" ", "{", "("] {
                assert!(
                    !text.contains(&format!("{before}{name}: valid")),
                    "{file} checks '{name}', which {spec} does"
                );
            }
        }
    }
}

/// The option of a table as a request with one value.
fn request_with(option: &RequestOption, value: &Value) -> Value {
    json!({ camel_case(option.name): value })
}

/// Values of an option that its definition allows, and others that it forbids.
fn examples(option: &RequestOption) -> (Vec<Value>, Vec<Value>) {
    let wrap = |value: f64| match option.kind {
        OptionType::Integer | OptionType::Bytes => json!(value as i64),
        OptionType::Integers => json!([value as i64]),
        OptionType::Numbers => json!([value]),
        _ => json!(value),
    };
    let is_whole = matches!(
        option.kind,
        OptionType::Integer | OptionType::Bytes | OptionType::Integers
    );
    match option.kind {
        OptionType::Boolean => (
            vec![json!(true), json!(false)],
            vec![json!("yes"), json!(1)],
        ),
        OptionType::OneOf(names) => {
            let good = names.iter().map(|name| json!(name)).collect();
            (good, vec![json!("nothing"), json!(1)])
        }
        OptionType::Number
        | OptionType::Numbers
        | OptionType::Integer
        | OptionType::Integers
        | OptionType::Bytes => {
            let step = if is_whole { 1.0 } else { 0.001 };
            let mut good = Vec::new();
            let mut bad = vec![json!("1"), json!({})];
            if option.min.is_finite() {
                if option.above_min {
                    &mut bad
                } else {
                    &mut good
                }
                .push(wrap(option.min));
                good.push(wrap(option.min + step));
                bad.push(wrap(option.min - step));
            } else {
                good.push(wrap(1.0));
            }
            if option.max.is_finite() {
                good.push(wrap(option.max));
                bad.push(wrap(option.max + step));
            }
            (good, bad)
        }
        OptionType::NumberByToken => (
            vec![json!({ "1": option.min, "2": option.max })],
            vec![
                json!({ "1": option.min - 1.0 }),
                json!({ "1": option.max + 1.0 }),
                json!({ "x": 1 }),
            ],
        ),
        OptionType::TokenIds | OptionType::Vector => {
            (vec![json!([1, 2])], vec![json!("1"), json!(["x"])])
        }
        OptionType::Text => (vec![json!("text")], vec![json!(1)]),
        OptionType::Texts => (vec![json!(["a", "b"])], vec![json!(1), json!([1])]),
        OptionType::Object | OptionType::Options(_) => (vec![json!({})], vec![json!(1)]),
        OptionType::List => (vec![json!([{}])], vec![json!(1)]),
    }
}

/// Reads each option of a table alone, with what it allows and forbids.
fn table_equals_request<T: DeserializeOwned>(
    table: Table,
    request: &str,
    accept: impl Fn(T) -> jerboa::Result<()>,
) {
    let names: BTreeSet<&str> = table.iter().map(|option| option.name).collect();
    assert_eq!(
        names.len(),
        table.len(),
        "{request}: two options of one name"
    );
    for option in table {
        let text = documentation(option);
        assert!(
            text.ends_with('.') && option.min < option.max,
            "{request}: {option:?}"
        );
        let result = |value: &Value| match serde_json::from_value::<T>(request_with(option, value))
        {
            Ok(parsed) => accept(parsed).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let (good, bad) = examples(option);
        for value in good {
            let result = result(&value);
            assert_eq!(result, Ok(()), "{request}: '{}' is {value}", option.name);
        }
        for value in bad {
            assert!(
                result(&value).is_err(),
                "{request}: '{}' is {value}",
                option.name
            );
        }
    }
}

#[test]
fn schema_tables_are_what_requests_take() {
    table_equals_request(SAMPLING_OPTIONS, "sampling", |request: SamplingOptions| {
        SamplingParams::default().merge(&request).map(|_| ())
    });
    table_equals_request(GENERATE_OPTIONS, "generate", |request: GenerateRequest| {
        request.check_bounds()
    });
    table_equals_request(EMBED_OPTIONS, "embed", |request: EmbedRequest| {
        request.check_bounds()
    });
    table_equals_request(RERANK_OPTIONS, "rerank", |request: RerankRequest| {
        request.check_bounds()
    });
    table_equals_request(
        TRANSCRIBE_OPTIONS,
        "transcribe",
        |request: TranscribeRequest| request.checked().map(|_| ()),
    );
    table_equals_request(SPEAK_OPTIONS, "speak", |request: SpeakRequest| {
        request.check_bounds()
    });
    table_equals_request(MEASURE_OPTIONS, "measure", |request: MeasureOptions| {
        request.check_bounds()
    });
    table_equals_request(LOAD_OPTIONS, "load", |request: LoadRequest| {
        request
            .task
            .as_deref()
            .map(jerboa::task::Task::from_name)
            .transpose()?;
        request.run_options().map(|_| ())
    });
    table_equals_request(FEATURE_OPTIONS, "features", |features: DeviceFeatures| {
        let request = LoadRequest {
            features: Some(features),
            ..LoadRequest::default()
        };
        request
            .features
            .map_or(Ok(()), |features| features.check_bounds())
    });
}

/// What the tables say by default is so.
#[test]
fn schema_defaults_are_those_of_requests() {
    let params = SamplingParams::default();
    for (name, value) in [
        ("temperature", params.temperature),
        ("top_k", f64::from(params.top_k)),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("typical_p", params.typical_p),
        ("repetition_penalty", params.repetition_penalty),
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ] {
        let option = SAMPLING_OPTIONS.iter().find(|option| option.name == name);
        let default = option.and_then(|option| option.default.parse().ok());
        assert_eq!(default, Some(value), "{name}");
    }
    fn equal<T: DeserializeOwned + PartialEq + Default>(table: Table, request: &str) {
        for option in table {
            let default = match (option.kind, option.default) {
                (OptionType::Boolean, "true" | "false") => json!(option.default == "true"),
                (OptionType::OneOf(names), name) if names.contains(&name) => json!(name),
                (_, number) => match number.parse::<u64>() {
                    Ok(_) if option.kind == OptionType::Numbers => continue,
                    Ok(number) => json!(number),
                    Err(_) => continue,
                },
            };
            let given: T =
                serde_json::from_value(request_with(option, &default)).expect("a request");
            assert!(
                given == T::default(),
                "{request}: '{}' is not {default} by default",
                option.name
            );
        }
    }
    // Fields that are no `Option`; the others' defaults are what the engine chooses.
    equal::<TranscribeRequest>(
        TRANSCRIBE_OPTIONS
            .iter()
            .filter(|o| !["vad"].contains(&o.name))
            .copied()
            .collect::<Vec<_>>()
            .leak(),
        "transcribe",
    );
    equal::<MeasureOptions>(MEASURE_OPTIONS, "measure");
    let optional = ["add_generation_prompt"];
    equal::<GenerateRequest>(
        GENERATE_OPTIONS
            .iter()
            .filter(|o| !optional.contains(&o.name))
            .copied()
            .collect::<Vec<_>>()
            .leak(),
        "generate",
    );
    let run = |value: Value| {
        let request: LoadRequest = serde_json::from_value(value).expect("a request");
        format!("{:?}", request.run_options().expect("run options"))
    };
    for option in LOAD_OPTIONS {
        let default = match option.kind {
            OptionType::Boolean if option.default == "true" && option.name != "short_prefill" => {
                json!(true)
            }
            OptionType::OneOf(names) if names.contains(&option.default) => json!(option.default),
            OptionType::Integer if option.default == "512" => json!(512),
            _ => continue,
        };
        assert_eq!(
            run(request_with(option, &default)),
            run(json!({})),
            "load: '{}'",
            option.name
        );
    }
}
