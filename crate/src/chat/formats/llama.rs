//! `{"name": …, "parameters": {…}}` without markers, or behind `<|python_tag|>`: Llama 3.1 and
//! 3.2. Several calls are separated by semicolons.

use super::json_tags::tail;
use super::pythonic::PythonCalls;
use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

const PYTHON_TAG: &str = "<|python_tag|>";
const OBJECT: &str = "{";
/// Tools that take code: `<|python_tag|>` may be followed by it.
const INTERPRETERS: [&str; 4] = ["code_interpreter", "python", "ipython", "interpreter"];

#[derive(Debug)]
enum LlamaState {
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
    state: LlamaState,
    code: String,
}

impl LlamaSyntax {
    pub fn new() -> Self {
        Self {
            state: LlamaState::Lead,
            code: String::new(),
        }
    }

    fn enter(&mut self, state: LlamaState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn lead(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        let Some(c) = text.chars().next() else {
            return ReadProgress::More(0);
        };
        if c == '{' {
            return self.enter(LlamaState::Calls(JsonCalls::new(false)), blanks);
        }
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let name = &text[..end];
        match scan::starts(&text[end..], ".call(") {
            Some(true) if !name.is_empty() => {
                sink.start_call(name, None);
                let calls = PythonCalls::arguments_of(name);
                return self.enter(LlamaState::BuiltIn(calls), blanks + end + ".call(".len());
            }
            None => return ReadProgress::More(0),
            _ => {}
        }
        let Some(interpreter) = INTERPRETERS.into_iter().find(|name| tools.contains(name)) else {
            return ReadProgress::Invalid;
        };
        sink.start_call(interpreter, None);
        sink.key("code");
        sink.arguments("\"");
        self.code.clear();
        self.enter(LlamaState::Code, blanks)
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
                LlamaState::Calls(calls)
            }
            _ => LlamaState::Lead,
        };
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match &mut self.state {
            LlamaState::Lead => self.lead(input, tools, sink),
            LlamaState::Calls(calls) => match calls.advance(input, tools, sink) {
                ReadProgress::Done(bytes) => self.enter(LlamaState::Tail, bytes),
                progress => progress,
            },
            LlamaState::BuiltIn(calls) => match calls.advance(input, tools, sink) {
                ReadProgress::Next(bytes) if !sink.is_open() => self.enter(LlamaState::Tail, bytes),
                progress => progress,
            },
            LlamaState::Code => {
                let body = input.trim_end().len();
                if body == 0 {
                    self.code.push_str(input);
                    return ReadProgress::More(input.len());
                }
                let mut escaped = String::new();
                scan::escape_into(&std::mem::take(&mut self.code), &mut escaped);
                scan::escape_into(&input[..body], &mut escaped);
                sink.arguments(&escaped);
                self.code.push_str(&input[body..]);
                ReadProgress::More(input.len())
            }
            LlamaState::Tail => tail(input, &[]),
        }
    }

    fn finish(&mut self, _rest: &str, sink: &mut PartSink) {
        match &mut self.state {
            LlamaState::Code => {
                sink.arguments("\"");
                sink.end_keys();
            }
            LlamaState::BuiltIn(calls) => calls.finish(sink),
            _ => {}
        }
    }
}
