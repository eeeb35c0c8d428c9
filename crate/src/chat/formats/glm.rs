//! `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM 4.5 and
//! later.

use crate::chat::parts::PartSink;
use crate::chat::raw_value::RawValue;
use crate::chat::scan::{self, Found};
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

const CLOSER: &str = "</tool_call>";
const KEY: &str = "<arg_key>";
const KEY_END: &str = "</arg_key>";
const VALUE: &str = "<arg_value>";
const VALUE_END: &str = "</arg_value>";

#[derive(Debug)]
enum GlmState {
    Name,
    Body,
    Key,
    BeforeValue,
    Value(RawValue),
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct GlmSyntax {
    state: GlmState,
    name: String,
    key: String,
}

impl GlmSyntax {
    pub fn new() -> Self {
        Self {
            state: GlmState::Name,
            name: String::new(),
            key: String::new(),
        }
    }

    fn enter(&mut self, state: GlmState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn name(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let end = match scan::find(&input[blanks..], &["\n", KEY, CLOSER]) {
            Found::At { start, .. } => blanks + start,
            // A name has no quotes or brackets.
            Found::Nothing { .. } if input.contains(['{', '"']) => return ReadProgress::Invalid,
            Found::Nothing { .. } => return ReadProgress::More(0),
        };
        self.name = input[blanks..end].trim().to_owned();
        if self.name.is_empty() || self.name.contains(['{', '"', '<', ' ']) {
            return ReadProgress::Invalid;
        }
        sink.start_call(&self.name, None);
        self.enter(GlmState::Body, end)
    }
}

impl CallSyntax for GlmSyntax {
    fn openers(&self) -> &'static [&'static str] {
        &["<tool_call>"]
    }

    fn closers(&self) -> &'static [&'static str] {
        &[CLOSER]
    }

    fn inner(&self) -> Vec<&'static str> {
        vec![KEY, KEY_END, VALUE, VALUE_END]
    }

    fn open(&mut self, _opener: &str) {
        self.state = GlmState::Name;
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        let blanks = match self.state {
            GlmState::Body | GlmState::BeforeValue => scan::blanks(input),
            _ => 0,
        };
        let text = &input[blanks..];
        match &mut self.state {
            GlmState::Name => self.name(input, sink),
            GlmState::Body => match (scan::starts(text, KEY), scan::starts(text, CLOSER)) {
                (Some(true), _) => self.enter(GlmState::Key, blanks + KEY.len()),
                (_, Some(true)) => {
                    sink.end_keys();
                    ReadProgress::Done(blanks + CLOSER.len())
                }
                (None, _) | (_, None) => ReadProgress::More(0),
                _ => ReadProgress::Invalid,
            },
            GlmState::Key => {
                let Found::At { start, .. } = scan::find(input, &[KEY_END]) else {
                    return ReadProgress::More(0);
                };
                self.key = input[..start].trim().to_owned();
                self.enter(GlmState::BeforeValue, start + KEY_END.len())
            }
            GlmState::BeforeValue => match scan::starts(text, VALUE) {
                Some(true) => {
                    sink.key(&self.key);
                    let types = tools.types(&self.name, &self.key);
                    self.enter(
                        GlmState::Value(RawValue::new(types, "")),
                        blanks + VALUE.len(),
                    )
                }
                None => ReadProgress::More(0),
                Some(false) => ReadProgress::Invalid,
            },
            GlmState::Value(value) => match value.advance(input, &[VALUE_END], sink) {
                ReadProgress::Done(bytes) => self.enter(GlmState::Body, bytes + VALUE_END.len()),
                progress => progress,
            },
        }
    }

    fn finish(&mut self, _rest: &str, sink: &mut PartSink) {
        if matches!(self.state, GlmState::Body) {
            sink.end_keys();
        }
    }
}
