//! One argument of a call that is not written in JSON, and JSON arguments up to a marker.

use super::parts::PartSink;
use super::scan::{self, Found};
use super::schema::Types;
use super::value::{Dialect, ReadProgress, ValueReader};

#[derive(Debug)]
enum LiteralState {
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
    reading: LiteralState,
}

impl Argument {
    pub fn new(types: Types, dialect: Dialect) -> Self {
        Self {
            types,
            dialect,
            reader: ValueReader::new(dialect),
            reading: LiteralState::Start,
        }
    }

    /// Consumes text and streams JSON.
    pub fn advance(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let mut out = String::new();
        match &mut self.reading {
            LiteralState::Start => {
                let blanks = scan::blanks(input);
                let Some(is_string) = self.dialect.starts_string(&input[blanks..]) else {
                    return ReadProgress::More(blanks);
                };
                let is_nested = input[blanks..].starts_with(['[', '{', '(']);
                self.reading = if is_string && !self.types.allows_string() {
                    LiteralState::Quoted(String::new())
                } else if !is_string && !is_nested && self.types.is_string() {
                    LiteralState::Bare(String::new())
                } else {
                    LiteralState::Value
                };
                ReadProgress::Next(blanks)
            }
            LiteralState::Value => {
                let progress = self.reader.push(input, &mut out);
                sink.arguments(&out);
                progress
            }
            LiteralState::Quoted(json) => {
                let progress = self.reader.push(input, json);
                if matches!(progress, ReadProgress::Done(_)) {
                    let text: String = serde_json::from_str(json).unwrap_or_default();
                    sink.arguments(&self.types.convert(&text));
                }
                progress
            }
            LiteralState::Bare(text) => {
                let Some(end) = input.find([',', ')', '}', ']']) else {
                    text.push_str(input);
                    return ReadProgress::More(input.len());
                };
                text.push_str(&input[..end]);
                match text.trim() {
                    "None" | "null" => sink.arguments("null"),
                    text => sink.arguments(&scan::quoted(text)),
                }
                ReadProgress::Done(end)
            }
        }
    }
}

/// Reader of a call's JSON arguments, which end at a marker or with the JSON.
#[derive(Debug)]
pub(super) struct JsonArguments {
    reader: ValueReader,
    phase: ArgumentPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArgumentPhase {
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
            phase: ArgumentPhase::Start,
        }
    }

    /// Whether all of the JSON was read.
    pub fn is_complete(&self) -> bool {
        self.phase == ArgumentPhase::Complete
    }

    /// Consumes text up to the first of `ends`, which stays in the input: `Done`.
    pub fn advance(&mut self, input: &str, ends: &[&str], sink: &mut PartSink) -> ReadProgress {
        if self.phase == ArgumentPhase::Start {
            let blanks = scan::blanks(input);
            let rest = &input[blanks..];
            if ends.iter().any(|end| rest.starts_with(end)) {
                return ReadProgress::Done(blanks);
            }
            if ends.iter().any(|end| end.starts_with(rest)) {
                return ReadProgress::More(blanks);
            }
            self.phase = ArgumentPhase::Value;
        }
        if self.phase == ArgumentPhase::Value {
            let mut out = String::new();
            let progress = self.reader.push(input, &mut out);
            sink.arguments(&out);
            match progress {
                ReadProgress::More(bytes) => return ReadProgress::More(bytes),
                ReadProgress::Done(bytes) => {
                    self.phase = ArgumentPhase::Complete;
                    return ReadProgress::Next(bytes);
                }
                _ => {
                    self.phase = ArgumentPhase::Raw;
                    let (word, rest) = self.reader.rejected(input);
                    sink.arguments(word);
                    return ReadProgress::Next(input.len() - rest.len());
                }
            }
        }
        let (bytes, is_end) = match scan::find(input, ends) {
            Found::At { start, .. } => (start, true),
            Found::Nothing { safe } => (safe, false),
        };
        if self.phase == ArgumentPhase::Raw {
            sink.arguments(&input[..bytes]);
        }
        match is_end {
            true => ReadProgress::Done(bytes),
            false => ReadProgress::More(bytes),
        }
    }

    /// Ends the text, of which `rest` was not consumed.
    pub fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        let mut out = String::new();
        if self.phase == ArgumentPhase::Value && !self.reader.finish(rest, &mut out) {
            out = self.reader.unwritten().to_owned();
        }
        sink.arguments(&out);
        if self.phase == ArgumentPhase::Raw {
            sink.arguments(rest);
        }
    }
}
