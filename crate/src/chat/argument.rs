//! One argument of a call that is not written in JSON, and JSON arguments up to a marker.

use super::parts::PartSink;
use super::scan::{self, Found};
use super::schema::Types;
use super::value::{Dialect, Progress, ValueReader};

#[derive(Debug)]
enum Reading {
    /// Before the value.
    Start,
    /// A value that is written as it comes.
    Value,
    /// A string whose schema has no strings.
    Quoted(String),
    /// Text without quotes whose schema has strings only.
    Bare(String),
}

/// Reader of a literal whose type follows the tool's schema.
#[derive(Debug)]
pub(super) struct Argument {
    types: Types,
    dialect: Dialect,
    reader: ValueReader,
    reading: Reading,
}

impl Argument {
    pub fn new(types: Types, dialect: Dialect) -> Self {
        Self {
            types,
            dialect,
            reader: ValueReader::new(dialect),
            reading: Reading::Start,
        }
    }

    /// Consumes text and streams JSON.
    pub fn advance(&mut self, input: &str, sink: &mut PartSink) -> Progress {
        let mut out = String::new();
        match &mut self.reading {
            Reading::Start => {
                let blanks = scan::blanks(input);
                let Some(is_string) = self.dialect.starts_string(&input[blanks..]) else {
                    return Progress::More(blanks);
                };
                let is_nested = input[blanks..].starts_with(['[', '{', '(']);
                self.reading = if is_string && !self.types.allows_string() {
                    Reading::Quoted(String::new())
                } else if !is_string && !is_nested && self.types.is_string() {
                    Reading::Bare(String::new())
                } else {
                    Reading::Value
                };
                Progress::Next(blanks)
            }
            Reading::Value => {
                let progress = self.reader.push(input, &mut out);
                sink.arguments(&out);
                progress
            }
            Reading::Quoted(json) => {
                let progress = self.reader.push(input, json);
                if matches!(progress, Progress::Done(_)) {
                    let text: String = serde_json::from_str(json).unwrap_or_default();
                    sink.arguments(&self.types.convert(&text));
                }
                progress
            }
            Reading::Bare(text) => {
                let Some(end) = input.find([',', ')', '}', ']']) else {
                    text.push_str(input);
                    return Progress::More(input.len());
                };
                text.push_str(&input[..end]);
                match text.trim() {
                    "None" | "null" => sink.arguments("null"),
                    text => sink.arguments(&scan::quoted(text)),
                }
                Progress::Done(end)
            }
        }
    }
}

/// Reader of a call's JSON arguments, which end at a marker or with the JSON.
#[derive(Debug)]
pub(super) struct JsonArguments {
    reader: ValueReader,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    Value,
    /// After the value.
    Complete,
    /// The text is not JSON: it is passed on as it is.
    Raw,
}

impl JsonArguments {
    pub fn new() -> Self {
        Self {
            reader: ValueReader::new(Dialect::JSON),
            phase: Phase::Start,
        }
    }

    /// Whether all of the JSON was read.
    pub fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Consumes text up to the first of `ends`, which stays in the input: `Done`.
    pub fn advance(&mut self, input: &str, ends: &[&str], sink: &mut PartSink) -> Progress {
        if self.phase == Phase::Start {
            let blanks = scan::blanks(input);
            let rest = &input[blanks..];
            if ends.iter().any(|end| rest.starts_with(end)) {
                return Progress::Done(blanks);
            }
            if ends.iter().any(|end| end.starts_with(rest)) {
                return Progress::More(blanks);
            }
            self.phase = Phase::Value;
        }
        if self.phase == Phase::Value {
            let mut out = String::new();
            let progress = self.reader.push(input, &mut out);
            sink.arguments(&out);
            match progress {
                Progress::More(bytes) => return Progress::More(bytes),
                Progress::Done(bytes) => {
                    self.phase = Phase::Complete;
                    return Progress::Next(bytes);
                }
                _ => {
                    self.phase = Phase::Raw;
                    let (word, rest) = self.reader.rejected(input);
                    sink.arguments(word);
                    return Progress::Next(input.len() - rest.len());
                }
            }
        }
        let (bytes, is_end) = match scan::find(input, ends) {
            Found::At { start, .. } => (start, true),
            Found::Nothing { safe } => (safe, false),
        };
        if self.phase == Phase::Raw {
            sink.arguments(&input[..bytes]);
        }
        match is_end {
            true => Progress::Done(bytes),
            false => Progress::More(bytes),
        }
    }

    /// Ends the text, of which `rest` was not consumed.
    pub fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        let mut out = String::new();
        if self.phase == Phase::Value && !self.reader.finish(rest, &mut out) {
            out = self.reader.unwritten().to_owned();
        }
        sink.arguments(&out);
        if self.phase == Phase::Raw {
            sink.arguments(rest);
        }
    }
}
