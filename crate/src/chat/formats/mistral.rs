//! `[TOOL_CALLS][{"name": …, "arguments": …}, …]` up to Mistral's tokenizer v7;
//! `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}` later, without the id in Ministral.

use super::json_tags::tail;
use crate::chat::argument::JsonArguments;
use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan::{self, Found};
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::Progress;

const OPENERS: &[&str] = &["[TOOL_CALLS]"];
/// Seen in answers, but not needed.
const CLOSERS: &[&str] = &["[/TOOL_CALLS]"];
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

#[derive(Debug)]
enum State {
    Lead,
    Id,
    Arguments(JsonArguments),
    List(JsonCalls),
    Tail,
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct MistralSyntax {
    state: State,
    name: String,
}

impl MistralSyntax {
    pub fn new() -> Self {
        Self {
            state: State::Lead,
            name: String::new(),
        }
    }

    fn enter(&mut self, state: State, bytes: usize) -> Progress {
        self.state = state;
        Progress::Next(bytes)
    }

    fn lead(&mut self, input: &str, sink: &mut PartSink) -> Progress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        if text.starts_with(['[', '{']) {
            return self.enter(State::List(JsonCalls::new(false)), blanks);
        }
        let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let after = text[end..].trim_start();
        if after.is_empty() {
            return Progress::More(0);
        }
        self.name = text[..end].to_owned();
        let start = input.len() - after.len();
        if after.starts_with('{') {
            sink.start_call(&self.name, None);
            return self.enter(State::Arguments(JsonArguments::new()), start);
        }
        match [CALL_ID, ARGS].map(|mark| scan::starts(after, mark)) {
            [Some(true), _] => self.enter(State::Id, start + CALL_ID.len()),
            [_, Some(true)] => {
                sink.start_call(&self.name, None);
                self.enter(State::Arguments(JsonArguments::new()), start + ARGS.len())
            }
            [Some(false), Some(false)] => Progress::Invalid,
            _ => Progress::More(0),
        }
    }
}

impl CallSyntax for MistralSyntax {
    fn openers(&self) -> &'static [&'static str] {
        OPENERS
    }

    fn closers(&self) -> &'static [&'static str] {
        CLOSERS
    }

    fn inner(&self) -> Vec<&'static str> {
        vec![CALL_ID, ARGS]
    }

    fn open(&mut self, _opener: &str) {
        self.state = State::Lead;
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> Progress {
        match &mut self.state {
            State::Lead => self.lead(input, sink),
            State::Id => match scan::find(input, &[ARGS]) {
                Found::At { start, .. } => {
                    let id = input[..start].trim();
                    sink.start_call(&self.name, Some(id).filter(|id| !id.is_empty()));
                    self.enter(State::Arguments(JsonArguments::new()), start + ARGS.len())
                }
                Found::Nothing { .. } => Progress::More(0),
            },
            State::Arguments(arguments) => {
                if arguments.is_complete() {
                    sink.end_call();
                    return self.enter(State::Tail, 0);
                }
                arguments.advance(input, OPENERS, sink)
            }
            State::List(calls) => match calls.advance(input, tools, sink) {
                Progress::Done(bytes) => self.enter(State::Tail, bytes),
                progress => progress,
            },
            State::Tail => tail(input, CLOSERS),
        }
    }

    fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        if let State::Arguments(arguments) = &mut self.state {
            arguments.finish(rest, sink);
        }
    }
}
