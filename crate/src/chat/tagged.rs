//! Splits an answer at markers: text, reasoning and regions of tool calls.

use super::parts::{Channel, PartSink};
use super::scan::{self, Found};
use super::schema::ToolSchemas;
use super::value::ReadProgress;

/// The syntax of a family's tool calls.
pub(super) trait CallSyntax: std::fmt::Debug {
    /// Texts that open a region of calls.
    fn openers(&self) -> &'static [&'static str];

    /// Texts that close a region: after an error, the region is skipped up to one of them.
    fn closers(&self) -> &'static [&'static str];

    /// Markers inside a region.
    fn inner(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Starts a region.
    fn open(&mut self, opener: &str);

    /// Consumes text of the region.
    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress;

    /// Whether the region was read up to its closer, with or without calls.
    fn is_complete(&self) -> bool {
        false
    }

    /// Ends the text inside a region, of which `rest` was not consumed.
    fn finish(&mut self, _rest: &str, _sink: &mut PartSink) {}
}

/// Markers around reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReasoningMarkers {
    /// Opening markers; the first one is that of the prompt.
    pub open: &'static [&'static str],
    /// Closing markers.
    pub close: &'static [&'static str],
    /// Whether reasoning may start after content: not where the markers are plain text.
    pub is_anywhere: bool,
    /// Markers around the response, which are dropped.
    pub dropped: &'static [&'static str],
    /// Markers inside reasoning, which are dropped.
    pub inner: &'static [&'static str],
    /// Text that closes the reasoning when it is forced.
    pub forced_close: &'static str,
}

/// A region of calls.
#[derive(Debug)]
struct Region {
    opener: &'static str,
    /// Text of the region until its first call starts.
    raw: String,
    calls_before: usize,
    /// Whether the rest of the region is skipped.
    is_broken: bool,
}

/// Parser of answers with markers.
#[derive(Debug)]
pub(super) struct TaggedParser {
    /// None if the request has no tools.
    pub syntax: Option<Box<dyn CallSyntax>>,
    pub reasoning: Option<ReasoningMarkers>,
    pub tools: ToolSchemas,
    pub sink: PartSink,
    pub channel: Channel,
    input: String,
    region: Option<Region>,
}

impl TaggedParser {
    pub fn new(
        syntax: Option<Box<dyn CallSyntax>>,
        reasoning: Option<ReasoningMarkers>,
        tools: ToolSchemas,
        sink: PartSink,
    ) -> Self {
        Self {
            syntax,
            reasoning,
            tools,
            sink,
            channel: Channel::Content,
            input: String::new(),
            region: None,
        }
    }

    /// Whether a special token is part of a marker.
    pub fn wants(&self, special: &str) -> bool {
        let is_part = |markers: &[&str]| markers.iter().any(|marker| marker.contains(special));
        self.syntax.as_ref().is_some_and(|syntax| {
            is_part(syntax.openers()) || is_part(syntax.closers()) || is_part(&syntax.inner())
        }) || self.reasoning.is_some_and(|markers| {
            is_part(markers.open)
                || is_part(markers.close)
                || is_part(markers.dropped)
                || is_part(markers.inner)
        })
    }

    /// Starts the region that the prompt opens.
    pub fn open_region(&mut self) {
        if let Some(syntax) = &mut self.syntax {
            syntax.open("");
        }
        self.region = Some(Region {
            opener: "",
            raw: String::new(),
            calls_before: 0,
            is_broken: false,
        });
    }

    /// Adds text of the answer.
    pub fn push(&mut self, text: &str) {
        self.input.push_str(text);
        while self.step() {}
    }

    /// Ends the answer. The call that a cut one began is dropped while it has no name.
    pub fn finish(&mut self, is_cut: bool) {
        let rest = std::mem::take(&mut self.input);
        match self.region.take() {
            Some(region) if region.is_broken => {}
            Some(_)
                if self
                    .syntax
                    .as_ref()
                    .is_some_and(|syntax| syntax.is_complete()) => {}
            Some(region) if self.sink.calls() > region.calls_before => {
                if let Some(syntax) = &mut self.syntax {
                    syntax.finish(&rest, &mut self.sink);
                }
            }
            Some(_) if is_cut => {}
            Some(region) => {
                self.sink.text(self.channel, &region.raw);
                self.sink.text(self.channel, &rest);
            }
            // The beginning of a marker.
            None if is_cut && rest.trim_start().len() > 1 => {}
            None => self.sink.text(self.channel, &rest),
        }
        self.sink.finish();
    }

    /// Consumes the beginning of the input; returns whether the rest can be read already.
    fn step(&mut self) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let progress = match self.region.take() {
            Some(region) if region.is_broken => self.skip(region, &input),
            Some(region) => self.in_region(region, &input),
            None => self.in_text(&input),
        };
        let (consumed, goes_on) = match progress {
            ReadProgress::More(bytes) => (bytes, false),
            ReadProgress::Next(bytes) | ReadProgress::Done(bytes) => (bytes, true),
            ReadProgress::Invalid => (0, true),
        };
        input.drain(..consumed);
        // Text of a region without a call comes first.
        self.input.push_str(&input);
        goes_on
    }

    fn in_region(&mut self, mut region: Region, input: &str) -> ReadProgress {
        let Some(syntax) = &mut self.syntax else {
            return ReadProgress::Next(0);
        };
        let progress = syntax.advance(input, &self.tools, &mut self.sink);
        let is_confirmed = self.sink.calls() > region.calls_before;
        match progress {
            ReadProgress::Done(_) => {
                self.sink.end_call();
                self.channel = Channel::Content;
                return progress;
            }
            ReadProgress::Invalid if !is_confirmed => {
                // No call: the opener is text, and what follows it is searched again.
                self.sink.text(self.channel, region.opener);
                self.input = region.raw.split_off(region.opener.len());
                return progress;
            }
            ReadProgress::Invalid => {
                self.sink.end_call();
                region.is_broken = true;
            }
            ReadProgress::More(bytes) | ReadProgress::Next(bytes) if !is_confirmed => {
                region.raw.push_str(&input[..bytes]);
            }
            _ => {}
        }
        self.region = Some(region);
        progress
    }

    /// Skips the rest of a region with an error.
    fn skip(&mut self, region: Region, input: &str) -> ReadProgress {
        let closers = self
            .syntax
            .as_ref()
            .map_or(&[][..], |syntax| syntax.closers());
        self.channel = Channel::Content;
        match scan::find(input, closers) {
            _ if closers.is_empty() => ReadProgress::Done(0),
            Found::At { start, index } => ReadProgress::Done(start + closers[index].len()),
            Found::Nothing { safe } => {
                self.region = Some(region);
                ReadProgress::More(safe)
            }
        }
    }

    fn in_text(&mut self, input: &str) -> ReadProgress {
        let marks = self.marks();
        let texts: Vec<&str> = marks.iter().map(|(text, _)| *text).collect();
        let (start, index) = match scan::find(input, &texts) {
            Found::At { start, index } => (start, index),
            Found::Nothing { safe } => {
                self.sink.text(self.channel, &input[..safe]);
                return ReadProgress::More(safe);
            }
        };
        if start > 0 {
            let had_text = self.sink.has_text(self.channel);
            self.sink.text(self.channel, &input[..start]);
            // Text before a marker changes what the marker means.
            if had_text != self.sink.has_text(self.channel) {
                return ReadProgress::Next(start);
            }
        }
        let (text, mark) = marks[index];
        match mark {
            Mark::Calls => {
                if let Some(syntax) = &mut self.syntax {
                    syntax.open(text);
                }
                self.region = Some(Region {
                    opener: text,
                    raw: text.to_owned(),
                    calls_before: self.sink.calls(),
                    is_broken: false,
                });
            }
            Mark::Open => {
                self.channel = Channel::Reasoning;
                self.sink.end_blocks();
            }
            Mark::Close => {
                self.channel = Channel::Content;
                self.sink.end_blocks();
            }
            // The edge of a response.
            Mark::Dropped if self.channel == Channel::Content => self.sink.end_blocks(),
            Mark::Dropped => {}
        }
        ReadProgress::Next(start + text.len())
    }

    /// The markers that mean something here.
    fn marks(&self) -> Vec<(&'static str, Mark)> {
        let mut marks = Vec::new();
        let is_reasoning = self.channel == Channel::Reasoning;
        let openers = self
            .syntax
            .as_ref()
            .map_or(&[][..], |syntax| syntax.openers());
        let is_tag = |text: &&'static str| !is_reasoning || text.starts_with(['<', '[']);
        marks.extend(
            openers
                .iter()
                .filter(|o| is_tag(o))
                .map(|o| (*o, Mark::Calls)),
        );
        let Some(reasoning) = self.reasoning else {
            return marks;
        };
        let has_content = self.sink.has_text(Channel::Content);
        let has_reasoning = self.sink.has_text(Channel::Reasoning);
        if is_reasoning && !has_reasoning {
            marks.extend(reasoning.open.iter().map(|text| (*text, Mark::Dropped)));
        }
        if !is_reasoning && (reasoning.is_anywhere || !has_content) {
            marks.extend(reasoning.open.iter().map(|text| (*text, Mark::Open)));
        }
        if is_reasoning {
            marks.extend(reasoning.inner.iter().map(|text| (*text, Mark::Dropped)));
            marks.extend(reasoning.close.iter().map(|text| (*text, Mark::Close)));
        } else if reasoning.is_anywhere || !has_content {
            marks.extend(reasoning.close.iter().map(|text| (*text, Mark::Dropped)));
        }
        if !is_reasoning {
            marks.extend(reasoning.dropped.iter().map(|text| (*text, Mark::Dropped)));
        }
        marks
    }
}

/// What a marker means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Opens a region of calls.
    Calls,
    /// Opens reasoning.
    Open,
    /// Closes reasoning.
    Close,
    /// Means nothing.
    Dropped,
}
