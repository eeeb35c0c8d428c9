//! An argument whose text stands between tags. Its JSON type follows the tool's schema.

use super::parts::PartSink;
use super::scan::{self, Found};
use super::schema::Types;
use super::value::ReadProgress;

/// Reader of one value.
#[derive(Debug)]
pub(super) struct RawValue {
    types: Types,
    /// Text of a value that is certainly not a string.
    text: String,
    /// Whether a line break after the opening tag is formatting.
    trims_start: bool,
    is_started: bool,
}

impl RawValue {
    pub fn new(types: Types, trims_start: bool) -> Self {
        Self {
            types,
            text: String::new(),
            trims_start,
            is_started: false,
        }
    }

    /// Consumes text up to the first of `ends`, which stays in the input: `Done`.
    pub fn advance(&mut self, input: &str, ends: &[&str], sink: &mut PartSink) -> ReadProgress {
        if input.is_empty() {
            return ReadProgress::More(0);
        }
        if self.trims_start {
            let is_end = ends.iter().any(|end| input.starts_with(end));
            if !is_end && ends.iter().any(|end| end.starts_with(input)) {
                return ReadProgress::More(0);
            }
            self.trims_start = false;
            if !is_end && input.starts_with('\n') {
                return ReadProgress::Next(1);
            }
        }
        if !self.is_started {
            self.is_started = true;
            if self.types.is_string() {
                sink.arguments("\"");
            }
        }
        let (bytes, is_end) = match scan::find(input, ends) {
            Found::At { start, .. } => (start, true),
            Found::Nothing { safe } => (safe, false),
        };
        if self.types.is_string() {
            let mut escaped = String::new();
            scan::escape_into(&input[..bytes], &mut escaped);
            sink.arguments(&escaped);
        } else {
            self.text.push_str(&input[..bytes]);
        }
        if !is_end {
            return ReadProgress::More(bytes);
        }
        match self.types.is_string() {
            true => sink.arguments("\""),
            false => sink.arguments(&self.types.convert(&self.text)),
        }
        ReadProgress::Done(bytes)
    }
}
