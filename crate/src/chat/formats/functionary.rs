//! `>>>NAME` and a line of JSON, `>>>all` and a line of text: Functionary 3.2. The prompt ends with
//! the first marker.

use crate::chat::argument::JsonArguments;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

pub(in crate::chat) const OPENER: &str = ">>>";
/// The recipient of text.
const ALL: &str = "all";

/// Parser of one region.
#[derive(Debug, Default)]
pub(in crate::chat) struct FunctionarySyntax {
    /// None before the name is read.
    arguments: Option<JsonArguments>,
}

impl CallSyntax for FunctionarySyntax {
    fn openers(&self) -> &'static [&'static str] {
        &[OPENER]
    }

    fn closers(&self) -> &'static [&'static str] {
        &[OPENER]
    }

    fn open(&mut self, _opener: &str) {
        self.arguments = None;
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        let Some(arguments) = &mut self.arguments else {
            match scan::starts(input, OPENER) {
                Some(true) => return ReadProgress::Next(OPENER.len()),
                None => return ReadProgress::More(0),
                Some(false) => {}
            }
            let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
            let end = input.find(|c| !is_name(c)).unwrap_or(input.len());
            let name = &input[..end];
            return match input[end..].chars().next() {
                None => ReadProgress::More(0),
                Some('\n') if name == ALL => ReadProgress::Done(end + 1),
                Some('\n' | '{') if tools.contains(name) => {
                    sink.start_call(name, None);
                    self.arguments = Some(JsonArguments::new());
                    ReadProgress::Next(end)
                }
                Some(_) => ReadProgress::Invalid,
            };
        };
        match arguments.is_complete() {
            true => ReadProgress::Done(0),
            false => arguments.advance(input, &[OPENER], sink),
        }
    }

    fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        if let Some(arguments) = &mut self.arguments {
            arguments.finish(rest, sink);
        }
    }
}
