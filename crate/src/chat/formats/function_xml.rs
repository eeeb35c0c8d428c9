//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`:
//! Qwen3-Coder and Qwen3.5. `<function=NAME>{…}</function>`: Functionary 3.1.

use super::json_tags::{HERMES, JsonTagSyntax};
use crate::chat::argument::JsonArguments;
use crate::chat::parts::PartSink;
use crate::chat::raw_value::RawValue;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
/// Ends of a value: its own tag, or the next one at the start of a line.
const VALUE_ENDS: &[&str] = &[
    "\n</parameter>",
    "</parameter>",
    "\n<parameter=",
    "\n</function>",
];

#[derive(Debug)]
enum FunctionXmlState {
    Lead,
    Name,
    Body,
    Key,
    Value(RawValue),
    /// All arguments in JSON.
    Arguments(JsonArguments),
    Tail,
    /// Calls in JSON, which these models write at times.
    Json(Box<JsonTagSyntax>),
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct FunctionXmlSyntax {
    state: FunctionXmlState,
    name: String,
}

impl FunctionXmlSyntax {
    pub fn new() -> Self {
        Self {
            state: FunctionXmlState::Lead,
            name: String::new(),
        }
    }

    fn enter(&mut self, state: FunctionXmlState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn body(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        if text.starts_with('{') {
            return self.enter(FunctionXmlState::Arguments(JsonArguments::new()), blanks);
        }
        for (tag, next) in [
            (PARAMETER, Some(FunctionXmlState::Key)),
            (FUNCTION_END, Some(FunctionXmlState::Tail)),
            ("</tool_call>", None),
        ] {
            match (scan::starts(text, tag), next) {
                (Some(true), Some(FunctionXmlState::Key)) => {
                    return self.enter(FunctionXmlState::Key, blanks + tag.len());
                }
                (Some(true), next) => {
                    sink.end_keys();
                    sink.end_call();
                    return match next {
                        Some(state) => self.enter(state, blanks + tag.len()),
                        None => ReadProgress::Done(blanks + tag.len()),
                    };
                }
                (None, _) => return ReadProgress::More(0),
                (Some(false), _) => {}
            }
        }
        ReadProgress::Invalid
    }
}

impl CallSyntax for FunctionXmlSyntax {
    fn openers(&self) -> &'static [&'static str] {
        &["<tool_call>", FUNCTION]
    }

    fn closers(&self) -> &'static [&'static str] {
        &["</tool_call>", FUNCTION_END]
    }

    fn open(&mut self, opener: &str) {
        self.state = match opener {
            FUNCTION => FunctionXmlState::Name,
            _ => FunctionXmlState::Lead,
        };
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match &mut self.state {
            FunctionXmlState::Lead => {
                let blanks = scan::blanks(input);
                let text = &input[blanks..];
                if text.starts_with(['{', '[']) {
                    return self.enter(
                        FunctionXmlState::Json(Box::new(JsonTagSyntax::new(HERMES))),
                        blanks,
                    );
                }
                match scan::starts(text, FUNCTION) {
                    Some(true) => self.enter(FunctionXmlState::Name, blanks + FUNCTION.len()),
                    None => ReadProgress::More(0),
                    Some(false) => ReadProgress::Invalid,
                }
            }
            FunctionXmlState::Name => {
                let Some(end) = input.find(['>', '\n']) else {
                    return ReadProgress::More(0);
                };
                self.name = input[..end].trim_matches(['"', ' ']).to_owned();
                if self.name.is_empty() || self.name.contains(['<', '{']) {
                    return ReadProgress::Invalid;
                }
                sink.start_call(&self.name, None);
                self.enter(FunctionXmlState::Body, end + 1)
            }
            FunctionXmlState::Body => self.body(input, sink),
            FunctionXmlState::Key => {
                let Some(end) = input.find('>') else {
                    return ReadProgress::More(0);
                };
                let key = input[..end].trim_matches(['"', ' ']);
                sink.key(key);
                let types = tools.types(&self.name, key);
                self.enter(FunctionXmlState::Value(RawValue::new(types, true)), end + 1)
            }
            FunctionXmlState::Value(value) => match value.advance(input, VALUE_ENDS, sink) {
                ReadProgress::Done(bytes) => {
                    // The next tag may stand there instead.
                    let closed = input[bytes..].trim_start().strip_prefix("</parameter>");
                    let end = closed.map_or(bytes, |rest| input.len() - rest.len());
                    self.enter(FunctionXmlState::Body, end)
                }
                progress => progress,
            },
            FunctionXmlState::Arguments(arguments) => {
                match arguments.advance(input, &[FUNCTION_END], sink) {
                    ReadProgress::Done(bytes) => {
                        sink.end_call();
                        self.enter(FunctionXmlState::Tail, bytes + FUNCTION_END.len())
                    }
                    progress => progress,
                }
            }
            FunctionXmlState::Tail => {
                let blanks = scan::blanks(input);
                let text = &input[blanks..];
                match (
                    scan::starts(text, FUNCTION),
                    scan::starts(text, "</tool_call>"),
                ) {
                    (Some(true), _) => self.enter(FunctionXmlState::Name, blanks + FUNCTION.len()),
                    (_, Some(true)) => ReadProgress::Done(blanks + "</tool_call>".len()),
                    (None, _) | (_, None) => ReadProgress::More(0),
                    _ => ReadProgress::Done(0),
                }
            }
            FunctionXmlState::Json(calls) => calls.advance(input, tools, sink),
        }
    }

    fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        match &mut self.state {
            FunctionXmlState::Body => sink.end_keys(),
            FunctionXmlState::Arguments(arguments) => arguments.finish(rest, sink),
            _ => {}
        }
    }
}
