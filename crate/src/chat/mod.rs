//! Answers of chat models: splits generated text into content, reasoning and tool calls.
//!
//! [`AnswerFormat::detect`] selects the format from the chat template and the vocabulary;
//! [`AnswerParser`] reads the text as it is generated. The joined events do not depend on how the
//! text was cut. Works on text: knows neither tokens nor templates' rendering.

mod argument;
mod detect;
mod formats;
mod harmony;
mod history;
mod json_calls;
mod parts;
mod raw_value;
mod scan;
mod schema;
mod spelling;
mod tagged;
mod value;

pub use detect::CallFormat;
pub use history::{CallMarkers, adapt_messages, stringify_arguments};
pub use parts::AnswerPart;

use harmony::HarmonyParser;
use parts::{CallIdStyle, Channel, PartSink};
use schema::ToolSchemas;
use serde_json::Value;
use tagged::{ReasoningMarkers, TaggedParser};

/// How a model writes reasoning and tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFormat {
    calls: Option<CallFormat>,
    reasoning: Option<ReasoningMarkers>,
}

/// Markers of a thought, for a generation that ends it or constrains what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThoughtMarkers {
    /// Opens a thought.
    pub opener: &'static str,
    /// Each ends a thought.
    pub closers: &'static [&'static str],
    /// Whether the opener's first token can also open something else.
    pub is_shared: bool,
    /// Text that ends the thought and starts the response.
    pub forced_close: &'static str,
    /// Text between the end of a thought and whatever follows, a response or calls.
    pub separator: &'static str,
}

impl ThoughtMarkers {
    /// The part of `forced_close` that ends the thought.
    pub fn close(&self) -> &'static str {
        let ends = self.closers.iter().filter_map(|closer| {
            let start = self.forced_close.find(closer)?;
            Some(start + closer.len())
        });
        let end = ends.min().unwrap_or(self.forced_close.len());
        &self.forced_close[..end]
    }
}

/// What an answer follows.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerStart<'a> {
    /// The tools of the request; without them, calls are text.
    pub tools: &'a [Value],
    /// The rendered prompt, or the text of the message that is continued.
    pub before: &'a str,
    /// Whether a message is continued.
    pub is_continued: bool,
    /// Makes the ids of calls.
    pub seed: u64,
}

impl AnswerFormat {
    /// Selects the format by the template's text and the vocabulary.
    pub fn detect(template: &str, has_token: &dyn Fn(&str) -> bool) -> Self {
        Self {
            calls: detect::call_format(template, has_token),
            reasoning: detect::reasoning_markers(template, has_token),
        }
    }

    /// Format of tool calls, if it is known.
    pub fn calls(&self) -> Option<CallFormat> {
        self.calls
    }

    /// Whether answers may contain reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some() || self.calls == Some(CallFormat::Harmony)
    }

    /// Whether answers are plain text: the request has no tools, and there is no markup.
    pub fn is_plain(&self, has_tools: bool) -> bool {
        let has_markup = self.has_reasoning() || self.calls == Some(CallFormat::Functionary);
        !has_tools && !has_markup
    }

    /// Text that ends the reasoning and starts the response.
    pub fn forced_close(&self) -> Option<&'static str> {
        match self.calls {
            Some(CallFormat::Harmony) => Some(harmony::FORCED_CLOSE),
            _ => self.reasoning.map(|markers| markers.forced_close),
        }
    }

    /// Markers of thoughts, if answers may contain them.
    pub fn thought_markers(&self) -> Option<ThoughtMarkers> {
        if self.calls == Some(CallFormat::Harmony) {
            return Some(ThoughtMarkers {
                opener: "<|channel|>analysis<|message|>",
                closers: &["<|end|>"],
                is_shared: true,
                forced_close: harmony::FORCED_CLOSE,
                separator: "<|start|>assistant",
            });
        }
        let reasoning = self.reasoning?;
        let mut markers = ThoughtMarkers {
            opener: reasoning.open[0],
            closers: reasoning.close,
            is_shared: false,
            forced_close: reasoning.forced_close,
            separator: "",
        };
        let rest = &reasoning.forced_close[markers.close().len()..];
        if rest.trim().is_empty() {
            markers.separator = rest;
        }
        Some(markers)
    }

    /// Whether the answer starts inside reasoning.
    fn opens_reasoning(&self, start: &AnswerStart<'_>) -> bool {
        let Some(markers) = self.reasoning else {
            return false;
        };
        let last = |texts: &[&str]| texts.iter().filter_map(|t| start.before.rfind(t)).max();
        match start.is_continued {
            true => last(markers.open) > last(markers.close),
            false => markers
                .open
                .iter()
                .any(|text| start.before.trim_end().ends_with(text)),
        }
    }

    /// Creates the parser of one answer.
    pub fn parser(&self, start: AnswerStart<'_>) -> AnswerParser {
        let calls = self.calls.filter(|_| !start.tools.is_empty());
        let ids = calls.map_or(CallIdStyle::OpenAi, CallFormat::id_style);
        let hidden = calls.map_or(&[][..], CallFormat::hidden_names);
        let sink = PartSink::new(ids, hidden, start.seed);
        if self.calls == Some(CallFormat::Harmony) {
            let parser = HarmonyParser::new(sink, calls.is_some());
            return AnswerParser(FormatParser::Harmony(parser));
        }
        // Text has a marker as well.
        let is_marked = self.calls == Some(CallFormat::Functionary);
        let calls = calls.or(self.calls.filter(|_| is_marked));
        let syntax = calls.and_then(CallFormat::syntax);
        let tools = ToolSchemas::new(start.tools);
        let mut parser = TaggedParser::new(syntax, self.reasoning, tools, sink);
        if is_marked && !start.is_continued {
            parser.open_region();
        }
        if self.opens_reasoning(&start) {
            parser.channel = Channel::Reasoning;
        }
        AnswerParser(FormatParser::Tagged(parser))
    }
}

#[derive(Debug)]
enum FormatParser {
    Tagged(TaggedParser),
    Harmony(HarmonyParser),
}

/// Parser of one answer.
#[derive(Debug)]
pub struct AnswerParser(FormatParser);

impl AnswerParser {
    /// Whether a special token is part of the format. Others are not text and must not be pushed.
    pub fn wants(&self, special: &str) -> bool {
        match &self.0 {
            FormatParser::Tagged(parser) => parser.wants(special),
            FormatParser::Harmony(_) => harmony::MARKERS.contains(&special),
        }
    }

    /// Adds text of the answer and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        match &mut self.0 {
            FormatParser::Tagged(parser) => parser.push(text),
            FormatParser::Harmony(parser) => parser.push(text),
        }
        self.sink().take()
    }

    /// Ends the answer and returns the remaining parts.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        self.end(false)
    }

    /// Ends an answer that a limit cut inside what a grammar enforces, and returns the remaining
    /// parts. A call whose name is incomplete is dropped, and so is the beginning of a marker; without a grammar they
    /// would be content.
    pub fn cut(&mut self) -> Vec<AnswerPart> {
        self.end(true)
    }

    fn end(&mut self, is_cut: bool) -> Vec<AnswerPart> {
        match &mut self.0 {
            FormatParser::Tagged(parser) => parser.finish(is_cut),
            FormatParser::Harmony(parser) => parser.finish(),
        }
        self.sink().take()
    }

    /// Whether the text so far ends inside reasoning.
    pub fn is_reasoning(&self) -> bool {
        match &self.0 {
            FormatParser::Tagged(parser) => parser.channel == Channel::Reasoning,
            FormatParser::Harmony(parser) => parser.is_reasoning(),
        }
    }

    /// Whether the answer has tool calls.
    pub fn has_calls(&self) -> bool {
        match &self.0 {
            FormatParser::Tagged(parser) => parser.sink.calls() > 0,
            FormatParser::Harmony(parser) => parser.sink.calls() > 0,
        }
    }

    fn sink(&mut self) -> &mut PartSink {
        match &mut self.0 {
            FormatParser::Tagged(parser) => &mut parser.sink,
            FormatParser::Harmony(parser) => &mut parser.sink,
        }
    }
}
