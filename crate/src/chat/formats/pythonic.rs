//! `<|tool_call_start|>[NAME(KEY=VALUE, …), …]<|tool_call_end|>`: LFM2. Values are Python literals.
//! `<function_calls>NAME(KEY=VALUE, …)</function_calls>` with a call a line: Olmo 3.

use super::json_tags::tail;
use crate::chat::argument::Argument;
use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::{Dialect, ReadProgress};

/// Markers of LFM2.
pub(in crate::chat) const LFM2: [&[&str]; 2] = [&["<|tool_call_start|>"], &["<|tool_call_end|>"]];

/// Markers of Olmo 3.
pub(in crate::chat) const OLMO3: [&[&str]; 2] = [&["<function_calls>"], &["</function_calls>"]];

#[derive(Debug)]
enum PythonicState {
    /// Before the list.
    Lead,
    /// Before a call or the end of the list.
    Call,
    /// Before a key, a value without a key, or the closing parenthesis.
    Key,
    Value(Argument),
    /// After a value.
    Comma,
    Json(JsonCalls),
}

/// Parser of calls as Python writes them.
#[derive(Debug)]
pub(in crate::chat) struct PythonCalls {
    state: PythonicState,
    name: String,
    position: usize,
}

impl PythonCalls {
    pub fn new() -> Self {
        Self {
            state: PythonicState::Lead,
            name: String::new(),
            position: 0,
        }
    }

    /// A reader of the arguments of one call, behind its opening parenthesis.
    pub fn arguments_of(name: &str) -> Self {
        Self {
            state: PythonicState::Key,
            name: name.to_owned(),
            position: 0,
        }
    }

    fn enter(&mut self, state: PythonicState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    /// Consumes text; `Done` behind the list.
    pub fn advance(
        &mut self,
        input: &str,
        tools: &ToolSchemas,
        sink: &mut PartSink,
    ) -> ReadProgress {
        let blanks = match self.state {
            PythonicState::Value(_) | PythonicState::Json(_) => 0,
            _ => scan::blanks(input),
        };
        let text = &input[blanks..];
        let Some(c) = text.chars().next() else {
            return ReadProgress::More(0);
        };
        match &mut self.state {
            PythonicState::Lead if c == '[' => self.enter(PythonicState::Call, blanks + 1),
            PythonicState::Lead if c == '{' => {
                self.enter(PythonicState::Json(JsonCalls::new(false)), blanks)
            }
            PythonicState::Call if c == '{' => {
                let mut calls = JsonCalls::new(false);
                calls.open_list();
                self.enter(PythonicState::Json(calls), blanks)
            }
            PythonicState::Lead => self.enter(PythonicState::Call, blanks),
            PythonicState::Call => match c {
                ',' => ReadProgress::Next(blanks + 1),
                ']' => ReadProgress::Done(blanks + 1),
                '<' => ReadProgress::Done(blanks),
                _ => self.call(text, blanks, tools, sink),
            },
            PythonicState::Key => self.key(text, blanks, tools, sink),
            PythonicState::Value(argument) => match argument.advance(input, sink) {
                ReadProgress::Done(bytes) => self.enter(PythonicState::Comma, bytes),
                progress => progress,
            },
            PythonicState::Comma => match c {
                ',' => self.enter(PythonicState::Key, blanks + 1),
                ')' => self.enter(PythonicState::Key, blanks),
                _ => ReadProgress::Invalid,
            },
            PythonicState::Json(calls) => calls.advance(input, tools, sink),
        }
    }

    /// Reads a function's name and its opening parenthesis. Prose names functions too: one that is no tool
    /// needs a key or no argument.
    fn call(
        &mut self,
        text: &str,
        blanks: usize,
        tools: &ToolSchemas,
        sink: &mut PartSink,
    ) -> ReadProgress {
        let is_name = |c: char| c.is_alphanumeric() || "_.-:".contains(c);
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        match text[end..].chars().next() {
            None => ReadProgress::More(0),
            Some('(') if end > 0 => {
                let name = &text[..end];
                if !tools.contains(name) {
                    let (key, behind) = split_key(text[end + 1..].trim_start());
                    match behind.chars().next() {
                        None => return ReadProgress::More(0),
                        Some('=') => {}
                        Some(')') if key.is_empty() => {}
                        Some(_) => return ReadProgress::Invalid,
                    }
                }
                self.name = name.to_owned();
                self.position = 0;
                sink.start_call(&self.name, None);
                self.enter(PythonicState::Key, blanks + end + 1)
            }
            Some(_) => ReadProgress::Invalid,
        }
    }

    fn key(
        &mut self,
        text: &str,
        blanks: usize,
        tools: &ToolSchemas,
        sink: &mut PartSink,
    ) -> ReadProgress {
        if text.starts_with(')') {
            sink.end_keys();
            sink.end_call();
            return self.enter(PythonicState::Call, blanks + 1);
        }
        let (key, behind) = split_key(text);
        let is_named = !key.is_empty();
        // `a == b` is neither a key nor a literal.
        let (key, length) = match behind.chars().next() {
            None if is_named => return ReadProgress::More(0),
            Some('=') if is_named => (Some(key), text.len() - behind.len() + 1),
            _ => (tools.argument_at(&self.name, self.position), 0),
        };
        let Some(key) = key else {
            return ReadProgress::Invalid;
        };
        self.position += 1;
        sink.key(key);
        let types = tools.types(&self.name, key);
        let argument = Argument::new(types, Dialect::PYTHON);
        self.enter(PythonicState::Value(argument), blanks + length)
    }

    /// Ends the text inside a list.
    pub fn finish(&mut self, sink: &mut PartSink) {
        if matches!(self.state, PythonicState::Comma | PythonicState::Key) {
            sink.end_keys();
        }
    }
}

/// The name at the start of a text, which may be empty, and what follows it and blanks.
fn split_key(text: &str) -> (&str, &str) {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct PythonicSyntax {
    /// Openers and closers.
    markers: [&'static [&'static str]; 2],
    calls: PythonCalls,
    is_tail: bool,
}

impl PythonicSyntax {
    pub fn new(markers: [&'static [&'static str]; 2]) -> Self {
        Self {
            markers,
            calls: PythonCalls::new(),
            is_tail: false,
        }
    }
}

impl CallSyntax for PythonicSyntax {
    fn openers(&self) -> &'static [&'static str] {
        self.markers[0]
    }

    fn closers(&self) -> &'static [&'static str] {
        self.markers[1]
    }

    fn open(&mut self, _opener: &str) {
        (self.calls, self.is_tail) = (PythonCalls::new(), false);
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        if self.is_tail {
            return tail(input, self.markers[1]);
        }
        match self.calls.advance(input, tools, sink) {
            ReadProgress::Done(bytes) => {
                self.is_tail = true;
                ReadProgress::Next(bytes)
            }
            progress => progress,
        }
    }

    fn is_complete(&self) -> bool {
        self.is_tail
    }

    fn finish(&mut self, _rest: &str, sink: &mut PartSink) {
        self.calls.finish(sink);
    }
}
