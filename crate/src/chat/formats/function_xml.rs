//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`:
//! Qwen3-Coder and Qwen3.5. `<function=NAME>{…}</function>`: Functionary 3.1. Other families have
//! other tags.

use super::json_tags::{HERMES, JsonTagSyntax};
use crate::chat::argument::JsonArguments;
use crate::chat::parts::PartSink;
use crate::chat::raw_value::{CDATA, RawValue};
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

/// Qwen3-Coder, Qwen3.5, Functionary 3.1.
pub(in crate::chat) const FUNCTION_XML: XmlMarkers = XmlMarkers {
    openers: ["<tool_call>", "<function="],
    closers: ["</tool_call>", "</function>"],
    parameter: "<parameter=",
    parameter_end: "</parameter>",
    // The next tag at the start of a line ends a value as well.
    value_ends: &[
        "\n</parameter>",
        "</parameter>",
        "\n<parameter=",
        "\n</function>",
    ],
    lead: "\n",
    inner: &[],
};

/// Seed-OSS.
pub(in crate::chat) const SEED: XmlMarkers = XmlMarkers {
    openers: ["<seed:tool_call>", "<function="],
    closers: ["</seed:tool_call>", "</function>"],
    ..FUNCTION_XML
};

/// MiniMax M2.
pub(in crate::chat) const MINIMAX: XmlMarkers = XmlMarkers {
    openers: ["<minimax:tool_call>", "<invoke name=\""],
    closers: ["</minimax:tool_call>", "</invoke>"],
    parameter: "<parameter name=\"",
    value_ends: &["</parameter>"],
    lead: "",
    ..FUNCTION_XML
};

/// MiniCPM 5. A region is a function. At the start of an answer, its tokenizer drops the blank.
pub(in crate::chat) const MINICPM: XmlMarkers = XmlMarkers {
    openers: ["<functionname=\"", "<function name=\""],
    closers: ["</function>", "</function>"],
    parameter: "<param name=\"",
    parameter_end: "</param>",
    value_ends: &["]]></param>", "</param>"],
    lead: CDATA,
    // The tokens of its vocabulary.
    inner: &["<function", "<param"],
};

/// DeepSeek V3.2.
pub(in crate::chat) const DSML: XmlMarkers = XmlMarkers {
    openers: ["<｜DSML｜function_calls>", "<｜DSML｜invoke name=\""],
    closers: ["</｜DSML｜function_calls>", "</｜DSML｜invoke>"],
    parameter: "<｜DSML｜parameter name=\"",
    parameter_end: "</｜DSML｜parameter>",
    value_ends: &["</｜DSML｜parameter>"],
    lead: "",
    inner: &["｜DSML｜"],
};

/// DeepSeek V4.
pub(in crate::chat) const DSML_TOOL: XmlMarkers = XmlMarkers {
    openers: ["<｜DSML｜tool_calls>", DSML.openers[1]],
    closers: ["</｜DSML｜tool_calls>", DSML.closers[1]],
    ..DSML
};

/// GigaChat 3.5.
pub(in crate::chat) const GCML: XmlMarkers = XmlMarkers {
    openers: ["<｜GCML｜tool_calls>", "<｜GCML｜invoke name=\""],
    closers: ["</｜GCML｜tool_calls>", "</｜GCML｜invoke>"],
    parameter: "<｜GCML｜parameter name=\"",
    parameter_end: "</｜GCML｜parameter>",
    value_ends: &["</｜GCML｜parameter>"],
    lead: "",
    inner: &["｜GCML｜"],
};

/// Step-3.
pub(in crate::chat) const STEP: XmlMarkers = XmlMarkers {
    openers: ["<｜tool_calls_begin｜>", "<steptml:invoke name=\""],
    closers: ["<｜tool_calls_end｜>", "</steptml:invoke>"],
    parameter: "<steptml:parameter name=\"",
    parameter_end: "</steptml:parameter>",
    value_ends: &["</steptml:parameter>"],
    lead: "",
    inner: &[
        "<｜tool_call_begin｜>function<｜tool_sep｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
    ],
};

/// Markers of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct XmlMarkers {
    /// Text that opens a region, and text before a function's name.
    pub openers: [&'static str; 2],
    /// Text that closes a region, and text behind a function.
    pub closers: [&'static str; 2],
    /// Text before a key.
    parameter: &'static str,
    parameter_end: &'static str,
    /// Texts that end a value.
    value_ends: &'static [&'static str],
    /// Text before a value that is formatting.
    lead: &'static str,
    /// Other markers of a region, which mean nothing.
    inner: &'static [&'static str],
}

#[derive(Debug)]
enum FunctionXmlState {
    Lead,
    Name,
    /// Behind a function's tag. Prose names the tag too: what follows decides whether it is a call.
    Start,
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
    markers: &'static XmlMarkers,
    state: FunctionXmlState,
    name: String,
}

impl FunctionXmlSyntax {
    pub fn new(markers: &'static XmlMarkers) -> Self {
        Self {
            markers,
            state: FunctionXmlState::Lead,
            name: String::new(),
        }
    }

    fn enter(&mut self, state: FunctionXmlState, bytes: usize) -> ReadProgress {
        self.state = state;
        ReadProgress::Next(bytes)
    }

    /// Starts the call, if its function's tag was read last.
    fn start_call(&self, sink: &mut PartSink) {
        if matches!(self.state, FunctionXmlState::Start) {
            sink.start_call(&self.name, None);
        }
    }

    fn body(&mut self, input: &str, sink: &mut PartSink) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        if text.starts_with('{') {
            self.start_call(sink);
            return self.enter(FunctionXmlState::Arguments(JsonArguments::new()), blanks);
        }
        let [region_end, function_end] = self.markers.closers;
        for (tag, next) in [
            (self.markers.parameter, Some(FunctionXmlState::Key)),
            (function_end, Some(FunctionXmlState::Tail)),
            (region_end, None),
        ] {
            match (scan::starts(text, tag), next) {
                (Some(true), Some(FunctionXmlState::Key)) => {
                    self.start_call(sink);
                    return self.enter(FunctionXmlState::Key, blanks + tag.len());
                }
                (Some(true), next) => {
                    self.start_call(sink);
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

    /// Reads what stands before a function: the markers of a region, or its end.
    fn between(&mut self, input: &str, is_tail: bool) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        let function = self.markers.openers[1];
        let region_end = self.markers.closers[0];
        let is_end = match is_tail {
            true => scan::starts(text, region_end),
            false => Some(false),
        };
        match (scan::starts(text, function), is_end) {
            (Some(true), _) => return self.enter(FunctionXmlState::Name, blanks + function.len()),
            (_, Some(true)) => return ReadProgress::Done(blanks + region_end.len()),
            (None, _) | (_, None) => return ReadProgress::More(0),
            _ => {}
        }
        for marker in self.markers.inner {
            match scan::starts(text, marker) {
                Some(true) => return ReadProgress::Next(blanks + marker.len()),
                None => return ReadProgress::More(0),
                Some(false) => {}
            }
        }
        match is_tail {
            true => ReadProgress::Done(0),
            false => ReadProgress::Invalid,
        }
    }
}

impl CallSyntax for FunctionXmlSyntax {
    fn openers(&self) -> &'static [&'static str] {
        &self.markers.openers
    }

    fn closers(&self) -> &'static [&'static str] {
        &self.markers.closers
    }

    fn inner(&self) -> Vec<&'static str> {
        let tags = [self.markers.parameter, self.markers.parameter_end];
        [&tags, self.markers.inner].concat()
    }

    fn open(&mut self, opener: &str) {
        let [region_end, function_end] = self.markers.closers;
        let is_function = opener == self.markers.openers[1] || region_end == function_end;
        self.state = match is_function {
            true => FunctionXmlState::Name,
            false => FunctionXmlState::Lead,
        };
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match &mut self.state {
            FunctionXmlState::Lead => {
                let blanks = scan::blanks(input);
                if input[blanks..].starts_with(['{', '[']) {
                    let tags = HERMES.closed_by(&self.markers.closers);
                    return self.enter(
                        FunctionXmlState::Json(Box::new(JsonTagSyntax::new(tags))),
                        blanks,
                    );
                }
                self.between(input, false)
            }
            FunctionXmlState::Name => {
                let Some(end) = input.find(['>', '\n']) else {
                    return ReadProgress::More(0);
                };
                let name = input[..end].trim_matches(['"', ' ']);
                let is_odd = |c: char| c.is_whitespace() || "<{\"'=".contains(c);
                if name.is_empty() || name.contains(is_odd) {
                    return ReadProgress::Invalid;
                }
                self.name = name.to_owned();
                self.enter(FunctionXmlState::Start, end + 1)
            }
            FunctionXmlState::Start | FunctionXmlState::Body => self.body(input, sink),
            FunctionXmlState::Key => {
                let Some(end) = input.find('>') else {
                    return ReadProgress::More(0);
                };
                let mut key = input[..end].trim_matches(['"', ' ']);
                let mut is_string = false;
                if self.markers.parameter.ends_with('"')
                    && let Some((name, rest)) = key.split_once('"')
                {
                    is_string = rest.ends_with("string=\"true");
                    key = name;
                }
                sink.key(key);
                let types = tools.types(&self.name, key).or_string(is_string);
                let value = RawValue::new(types, self.markers.lead);
                self.enter(FunctionXmlState::Value(value), end + 1)
            }
            FunctionXmlState::Value(value) => {
                match value.advance(input, self.markers.value_ends, sink) {
                    ReadProgress::Done(bytes) => {
                        // The next tag may stand there instead.
                        let end = self.markers.parameter_end;
                        let rest = input[bytes..].trim_start().trim_start_matches("]]>");
                        let closed = rest.strip_prefix(end);
                        let end = closed.map_or(bytes, |rest| input.len() - rest.len());
                        self.enter(FunctionXmlState::Body, end)
                    }
                    progress => progress,
                }
            }
            FunctionXmlState::Arguments(arguments) => {
                let end = self.markers.closers[1];
                match arguments.advance(input, &[end], sink) {
                    ReadProgress::Done(bytes) => {
                        sink.end_call();
                        self.enter(FunctionXmlState::Tail, bytes + end.len())
                    }
                    progress => progress,
                }
            }
            FunctionXmlState::Tail => self.between(input, true),
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
