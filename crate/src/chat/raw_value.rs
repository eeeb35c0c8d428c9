//! An argument whose text stands between tags. Its JSON type follows the tool's schema.

use super::parts::PartSink;
use super::scan::{self, Found};
use super::schema::Types;
use super::value::ReadProgress;

/// Before a value that ends at the first of its ends only.
pub(super) const CDATA: &str = "<![CDATA[";

/// Reader of one value.
#[derive(Debug)]
pub(super) struct RawValue {
    types: Types,
    /// Text of a value that is certainly not a string.
    text: String,
    /// Text after the opening tag that is formatting.
    lead: &'static str,
    /// Whether only the first of the ends counts.
    is_wrapped: bool,
    is_started: bool,
}

impl RawValue {
    pub fn new(types: Types, lead: &'static str) -> Self {
        Self {
            types,
            text: String::new(),
            lead,
            is_wrapped: false,
            is_started: false,
        }
    }

    /// Consumes text up to the first of `ends`, which stays in the input: `Done`.
    pub fn advance(&mut self, input: &str, ends: &[&str], sink: &mut PartSink) -> ReadProgress {
        if input.is_empty() {
            return ReadProgress::More(0);
        }
        if !self.lead.is_empty() {
            let is_end = ends.iter().any(|end| input.starts_with(end));
            let may_be_end = ends.iter().any(|end| end.starts_with(input));
            if !is_end
                && (may_be_end || self.lead.len() > input.len() && self.lead.starts_with(input))
            {
                return ReadProgress::More(0);
            }
            let lead = std::mem::take(&mut self.lead);
            if !is_end && input.starts_with(lead) {
                self.is_wrapped = lead == CDATA;
                return ReadProgress::Next(lead.len());
            }
        }
        if !self.is_started {
            self.is_started = true;
            if self.types.is_string() {
                sink.arguments("\"");
            }
        }
        let ends = match self.is_wrapped {
            true => &ends[..1],
            false => ends,
        };
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
