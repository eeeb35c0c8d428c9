//! `<|tool_call>call:NAME{KEY:VALUE,…}<tool_call|>`: Gemma 4. FunctionGemma has other markers.

use crate::chat::argument::Argument;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::{Dialect, ReadProgress};

/// Gemma 4.
pub(in crate::chat) const GEMMA4: GemmaMarkers = GemmaMarkers {
    openers: &["<|tool_call>"],
    closers: &["<tool_call|>"],
    delimiter: "<|\"|>",
};

/// FunctionGemma.
pub(in crate::chat) const FUNCTION_GEMMA: GemmaMarkers = GemmaMarkers {
    openers: &["<start_function_call>"],
    closers: &["<end_function_call>"],
    delimiter: "<escape>",
};

/// Markers of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct GemmaMarkers {
    openers: &'static [&'static str],
    closers: &'static [&'static str],
    /// Text around strings.
    pub delimiter: &'static str,
}

#[derive(Debug)]
enum GemmaState {
    Lead,
    Name,
    Key,
    Value(Argument),
    Tail,
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct GemmaSyntax {
    markers: GemmaMarkers,
    state: GemmaState,
    name: String,
}

impl GemmaSyntax {
    pub fn new(markers: GemmaMarkers) -> Self {
        Self {
            markers,
            state: GemmaState::Lead,
            name: String::new(),
        }
    }

    fn enter(&mut self, state: GemmaState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn key(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        let text = input.trim_start_matches([' ', '\n', ',']);
        let skipped = input.len() - text.len();
        if text.starts_with('}') {
            sink.end_keys();
            sink.end_call();
            return self.enter(GemmaState::Tail, skipped + 1);
        }
        let Some(end) = text.find([':', '{', '}']) else {
            return ReadProgress::More(skipped);
        };
        if !text[end..].starts_with(':') {
            return ReadProgress::Invalid;
        }
        let key = text[..end].replace(self.markers.delimiter, "");
        let key = key.trim_matches([' ', '"']);
        sink.key(key);
        let types = tools.types(&self.name, key);
        let argument = Argument::new(types, Dialect::gemma(self.markers.delimiter));
        self.enter(GemmaState::Value(argument), skipped + end + 1)
    }
}

impl CallSyntax for GemmaSyntax {
    fn openers(&self) -> &'static [&'static str] {
        self.markers.openers
    }

    fn closers(&self) -> &'static [&'static str] {
        self.markers.closers
    }

    fn inner(&self) -> Vec<&'static str> {
        vec![self.markers.delimiter]
    }

    fn open(&mut self, _opener: &str) {
        self.state = GemmaState::Lead;
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match &mut self.state {
            GemmaState::Lead => {
                let blanks = scan::blanks(input);
                match scan::starts(&input[blanks..], "call:") {
                    Some(true) => self.enter(GemmaState::Name, blanks + "call:".len()),
                    None => ReadProgress::More(0),
                    Some(false) => ReadProgress::Invalid,
                }
            }
            GemmaState::Name => {
                let Some(end) = input.find(['{', '<', '}']) else {
                    return ReadProgress::More(0);
                };
                self.name = input[..end].trim().to_owned();
                if self.name.is_empty() || !input[end..].starts_with('{') {
                    return ReadProgress::Invalid;
                }
                sink.start_call(&self.name, None);
                self.enter(GemmaState::Key, end + 1)
            }
            GemmaState::Key => self.key(input, tools, sink),
            GemmaState::Value(argument) => match argument.advance(input, sink) {
                ReadProgress::Done(bytes) => self.enter(GemmaState::Key, bytes),
                progress => progress,
            },
            GemmaState::Tail => super::json_tags::tail(input, self.markers.closers),
        }
    }

    fn finish(&mut self, _rest: &str, sink: &mut PartSink) {
        if matches!(self.state, GemmaState::Key) {
            sink.end_keys();
        }
    }
}
