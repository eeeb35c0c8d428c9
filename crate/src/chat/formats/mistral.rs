//! `[TOOL_CALLS][{"name": …, "arguments": …}, …]` up to Mistral's tokenizer v7;
//! `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}` later, without the id in Ministral.

use super::json_tags::tail;
use crate::chat::argument::JsonArguments;
use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan::{self, Found};
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

const OPENERS: &[&str] = &["[TOOL_CALLS]"];
/// Seen in answers, but not needed.
const CLOSERS: &[&str] = &["[/TOOL_CALLS]"];
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

#[derive(Debug)]
enum MistralState {
    Lead,
    Id,
    Arguments(JsonArguments),
    List(JsonCalls),
    Tail,
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct MistralSyntax {
    state: MistralState,
    name: String,
}

impl MistralSyntax {
    pub fn new() -> Self {
        Self {
            state: MistralState::Lead,
            name: String::new(),
        }
    }

    fn enter(&mut self, state: MistralState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn lead(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        if text.starts_with(['[', '{']) {
            return self.enter(MistralState::List(JsonCalls::new(false)), blanks);
        }
        let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let after = text[end..].trim_start();
        if after.is_empty() {
            return ReadProgress::More(0);
        }
        self.name = text[..end].to_owned();
        let start = input.len() - after.len();
        if after.starts_with('{') {
            sink.start_call(&self.name, None);
            return self.enter(MistralState::Arguments(JsonArguments::new()), start);
        }
        match [CALL_ID, ARGS].map(|mark| scan::starts(after, mark)) {
            [Some(true), _] => self.enter(MistralState::Id, start + CALL_ID.len()),
            [_, Some(true)] => {
                sink.start_call(&self.name, None);
                self.enter(
                    MistralState::Arguments(JsonArguments::new()),
                    start + ARGS.len(),
                )
            }
            [Some(false), Some(false)] => ReadProgress::Invalid,
            _ => ReadProgress::More(0),
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
        self.state = MistralState::Lead;
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match &mut self.state {
            MistralState::Lead => self.lead(input, sink),
            MistralState::Id => match scan::find(input, &[ARGS]) {
                Found::At { start, .. } => {
                    let id = input[..start].trim();
                    sink.start_call(&self.name, Some(id).filter(|id| !id.is_empty()));
                    self.enter(
                        MistralState::Arguments(JsonArguments::new()),
                        start + ARGS.len(),
                    )
                }
                Found::Nothing { .. } => ReadProgress::More(0),
            },
            MistralState::Arguments(arguments) => {
                if arguments.is_complete() {
                    sink.end_call();
                    return self.enter(MistralState::Tail, 0);
                }
                arguments.advance(input, OPENERS, sink)
            }
            MistralState::List(calls) => match calls.advance(input, tools, sink) {
                ReadProgress::Done(bytes) => self.enter(MistralState::Tail, bytes),
                progress => progress,
            },
            MistralState::Tail => tail(input, CLOSERS),
        }
    }

    fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        if let MistralState::Arguments(arguments) = &mut self.state {
            arguments.finish(rest, sink);
        }
    }
}
