//! Sections of calls whose parts stand between special tokens: DeepSeek V3, R1 and V3.1, Kimi K2.

use crate::chat::argument::JsonArguments;
use crate::chat::parts::PartSink;
use crate::chat::scan::{self, Found};
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

/// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME` and a JSON code block: DeepSeek V3 and R1.
/// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}`: DeepSeek V3.1.
pub(in crate::chat) const DEEPSEEK: SectionMarkers = SectionMarkers {
    openers: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    closers: &["<｜tool▁calls▁end｜>"],
    begin: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
    has_ids: false,
};

/// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`: Kimi K2.
pub(in crate::chat) const KIMI: SectionMarkers = SectionMarkers {
    openers: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    closers: &["<|tool_calls_section_end|>"],
    begin: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    end: "<|tool_call_end|>",
    has_ids: true,
};

/// Markers of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct SectionMarkers {
    openers: &'static [&'static str],
    closers: &'static [&'static str],
    begin: &'static str,
    separator: &'static str,
    end: &'static str,
    /// Whether a call is named by its id, `functions.NAME:INDEX`.
    has_ids: bool,
}

#[derive(Debug)]
enum SectionsState {
    /// Between calls.
    Lead,
    /// Before the separator.
    Header,
    /// After the separator: arguments, or a name and a code block.
    AfterSeparator,
    Arguments(JsonArguments),
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct SectionSyntax {
    markers: SectionMarkers,
    state: SectionsState,
    header: String,
}

impl SectionSyntax {
    pub fn new(markers: SectionMarkers) -> Self {
        Self {
            markers,
            state: SectionsState::Lead,
            header: String::new(),
        }
    }

    fn enter(&mut self, state: SectionsState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    fn start(&mut self, name: &str, sink: &mut PartSink, bytes: usize) -> ReadProgress {
        if name.is_empty() {
            return ReadProgress::Invalid;
        }
        sink.start_call(name, None);
        self.enter(SectionsState::Arguments(JsonArguments::new()), bytes)
    }

    fn after_separator(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        let header = std::mem::take(&mut self.header);
        if self.markers.has_ids {
            let name = header.strip_prefix("functions.").unwrap_or(&header);
            let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
            if name.is_empty() {
                return ReadProgress::Invalid;
            }
            sink.start_call(name, Some(&header));
            return self.enter(SectionsState::Arguments(JsonArguments::new()), 0);
        }
        if text.starts_with('{') {
            return self.start(&header, sink, blanks);
        }
        // A name in the first line, and a code block.
        let line = scan::find(text, &["\n", self.markers.end]);
        if let Found::At { start, index: 0 } = line {
            let name = text[..start].trim();
            let rest = text[start..].trim_start();
            match ["```json", "```"].map(|fence| scan::starts(rest, fence)) {
                [Some(true), _] => return self.start(name, sink, input.len() - rest.len() + 7),
                [Some(false), Some(true)] => {
                    return self.start(name, sink, input.len() - rest.len() + 3);
                }
                [Some(false), Some(false)] => {
                    return self.start(name, sink, input.len() - rest.len());
                }
                _ => {}
            }
        } else if matches!(line, Found::At { .. }) {
            return ReadProgress::Invalid;
        }
        self.header = header;
        ReadProgress::More(0)
    }
}

impl CallSyntax for SectionSyntax {
    fn openers(&self) -> &'static [&'static str] {
        self.markers.openers
    }

    fn closers(&self) -> &'static [&'static str] {
        self.markers.closers
    }

    fn inner(&self) -> Vec<&'static str> {
        vec![self.markers.begin, self.markers.separator, self.markers.end]
    }

    fn open(&mut self, opener: &str) {
        self.state = match opener == self.markers.begin {
            true => SectionsState::Header,
            false => SectionsState::Lead,
        };
    }

    fn advance(&mut self, input: &str, _tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        let SectionMarkers {
            begin,
            separator,
            end,
            ..
        } = self.markers;
        match &mut self.state {
            SectionsState::Lead => {
                let blanks = scan::blanks(input);
                let text = &input[blanks..];
                let close = self.markers.closers[0];
                match (scan::starts(text, begin), scan::starts(text, close)) {
                    (Some(true), _) => self.enter(SectionsState::Header, blanks + begin.len()),
                    (_, Some(true)) => ReadProgress::Done(blanks + close.len()),
                    (None, _) | (_, None) => ReadProgress::More(0),
                    _ if sink.calls() > 0 => ReadProgress::Done(0),
                    _ => ReadProgress::Invalid,
                }
            }
            SectionsState::Header => match scan::find(input, &[separator, end]) {
                Found::At { start, index: 0 } => {
                    self.header = input[..start].trim().to_owned();
                    self.enter(SectionsState::AfterSeparator, start + separator.len())
                }
                Found::At { .. } => ReadProgress::Invalid,
                Found::Nothing { .. } => ReadProgress::More(0),
            },
            SectionsState::AfterSeparator => self.after_separator(input, sink),
            SectionsState::Arguments(arguments) => {
                let ends = [end, self.markers.closers[0]];
                match arguments.advance(input, &ends, sink) {
                    ReadProgress::Done(bytes) => {
                        sink.end_call();
                        let skipped = match input[bytes..].starts_with(end) {
                            true => end.len(),
                            false => 0,
                        };
                        self.enter(SectionsState::Lead, bytes + skipped)
                    }
                    progress => progress,
                }
            }
        }
    }

    fn finish(&mut self, rest: &str, sink: &mut PartSink) {
        if let SectionsState::Arguments(arguments) = &mut self.state {
            arguments.finish(rest, sink);
        }
    }
}
