//! `{"name": …, "parameters": {…}}` without markers, or behind `<|python_tag|>`: Llama 3.1 and
//! 3.2. Several calls are separated by semicolons.

use super::json_tags::tail;
use super::pythonic::PythonCalls;
use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::Progress;

const PYTHON_TAG: &str = "<|python_tag|>";
const OBJECT: &str = "{";
/// Tools that take code: `<|python_tag|>` may be followed by it.
const INTERPRETERS: [&str; 4] = ["code_interpreter", "python", "ipython", "interpreter"];

#[derive(Debug)]
enum State {
    /// Behind `<|python_tag|>`.
    Lead,
    Calls(JsonCalls),
    /// `NAME.call(KEY=VALUE, …)` of built-in tools.
    BuiltIn(PythonCalls),
    /// Code for an interpreter, up to the end.
    Code,
    Tail,
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct LlamaSyntax {
    state: State,
    code: String,
}

impl LlamaSyntax {
    pub fn new() -> Self {
        Self {
            state: State::Lead,
            code: String::new(),
        }
    }

    fn enter(&mut self, state: State, bytes: usize) -> Progress {
        self.state = state;
        Progress::Next(bytes)
    }

    fn lead(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> Progress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        let Some(c) = text.chars().next() else {
            return Progress::More(0);
        };
        if c == '{' {
            return self.enter(State::Calls(JsonCalls::new(false)), blanks);
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let name = &text[..end];
        match scan::starts(&text[end..], ".call(") {
            Some(true) if !name.is_empty() => {
                sink.start_call(name, None);
                let calls = PythonCalls::arguments_of(name);
                return self.enter(State::BuiltIn(calls), blanks + end + ".call(".len());
            }
            None => return Progress::More(0),
            _ => {}
        }
        let Some(interpreter) = INTERPRETERS.into_iter().find(|name| tools.contains(name)) else {
            return Progress::Invalid;
        };
        sink.start_call(interpreter, None);
        sink.key("code");
        sink.arguments("\"");
        self.code.clear();
        self.enter(State::Code, blanks)
    }
}

impl CallSyntax for LlamaSyntax {
    fn openers(&self) -> &'static [&'static str] {
        &[PYTHON_TAG, OBJECT]
    }

    fn closers(&self) -> &'static [&'static str] {
        &[]
    }

    fn open(&mut self, opener: &str) {
        self.state = match opener {
            OBJECT => {
                let mut calls = JsonCalls::new(true);
                calls.open_object();
                State::Calls(calls)
            }
            _ => State::Lead,
        };
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> Progress {
        match &mut self.state {
            State::Lead => self.lead(input, tools, sink),
            State::Calls(calls) => match calls.advance(input, tools, sink) {
                Progress::Done(bytes) => self.enter(State::Tail, bytes),
                progress => progress,
            },
            State::BuiltIn(calls) => match calls.advance(input, tools, sink) {
                Progress::Next(bytes) if !sink.is_open() => self.enter(State::Tail, bytes),
                progress => progress,
            },
            State::Code => {
                let body = input.trim_end().len();
                if body == 0 {
                    self.code.push_str(input);
                    return Progress::More(input.len());
                }
                let mut escaped = String::new();
                scan::escape_into(&std::mem::take(&mut self.code), &mut escaped);
                scan::escape_into(&input[..body], &mut escaped);
                sink.arguments(&escaped);
                self.code.push_str(&input[body..]);
                Progress::More(input.len())
            }
            State::Tail => tail(input, &[]),
        }
    }

    fn finish(&mut self, _rest: &str, sink: &mut PartSink) {
        match &mut self.state {
            State::Code => {
                sink.arguments("\"");
                sink.end_keys();
            }
            State::BuiltIn(calls) => calls.finish(sink),
            _ => {}
        }
    }
}
