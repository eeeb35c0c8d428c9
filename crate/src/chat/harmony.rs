//! GPT-OSS's harmony format: messages with channels and recipients.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`; a call is
//! a message to `functions.NAME`.

use super::argument::JsonArguments;
use super::parts::{Channel, PartSink};
use super::scan::{self, Found};
use super::value::ReadProgress;

/// The special tokens of the format.
pub(super) const MARKERS: &[&str] = &[
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
];
/// What ends the text of a message: the markers up to a new header.
const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";

/// Text that ends the analysis and starts the final message.
pub(super) const FORCED_CLOSE: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

#[derive(Debug)]
enum HarmonyState {
    /// Before a header, or text without one.
    Between,
    Header,
    Text(Channel),
    Call(JsonArguments),
}

/// Parser of harmony answers.
#[derive(Debug)]
pub(super) struct HarmonyParser {
    state: HarmonyState,
    input: String,
    pub sink: PartSink,
    /// Whether the request has tools: without them, messages to functions are reasoning.
    has_tools: bool,
}

impl HarmonyParser {
    pub fn new(sink: PartSink, has_tools: bool) -> Self {
        Self {
            state: HarmonyState::Between,
            input: String::new(),
            sink,
            has_tools,
        }
    }

    /// Whether the text at the end of the input is reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, HarmonyState::Text(Channel::Reasoning))
    }

    /// Adds text of the answer.
    pub fn push(&mut self, text: &str) {
        self.input.push_str(text);
        loop {
            let input = std::mem::take(&mut self.input);
            let (consumed, goes_on) = match self.step(&input) {
                ReadProgress::More(bytes) => (bytes, false),
                ReadProgress::Next(bytes) | ReadProgress::Done(bytes) => (bytes, true),
                ReadProgress::Invalid => (0, false),
            };
            self.input.push_str(&input[consumed..]);
            if !goes_on {
                return;
            }
        }
    }

    /// Ends the answer.
    pub fn finish(&mut self) {
        let rest = std::mem::take(&mut self.input);
        match &mut self.state {
            HarmonyState::Text(channel) => self.sink.text(*channel, &rest),
            HarmonyState::Call(arguments) => arguments.finish(&rest, &mut self.sink),
            // What might have become a header.
            HarmonyState::Between if !rest.trim_start().starts_with('<') => {
                self.sink.text(Channel::Content, &rest);
            }
            HarmonyState::Between | HarmonyState::Header => {}
        }
        self.sink.finish();
    }

    fn step(&mut self, input: &str) -> ReadProgress {
        match &mut self.state {
            HarmonyState::Between => self.between(input),
            HarmonyState::Header => match scan::find(input, &[MESSAGE]) {
                Found::At { start, .. } => {
                    self.open(&input[..start]);
                    ReadProgress::Next(start + MESSAGE.len())
                }
                Found::Nothing { .. } => ReadProgress::More(0),
            },
            HarmonyState::Text(channel) => {
                let channel = *channel;
                let (bytes, is_end) = match scan::find(input, ENDS) {
                    Found::At { start, .. } => (start, true),
                    Found::Nothing { safe } => (safe, false),
                };
                self.sink.text(channel, &input[..bytes]);
                match is_end {
                    true => self.close(input, bytes),
                    false => ReadProgress::More(bytes),
                }
            }
            HarmonyState::Call(arguments) => match arguments.advance(input, ENDS, &mut self.sink) {
                ReadProgress::Done(bytes) => {
                    self.sink.end_call();
                    self.close(input, bytes)
                }
                progress => progress,
            },
        }
    }

    /// Before a message: a header, or text without one.
    fn between(&mut self, input: &str) -> ReadProgress {
        let blanks = scan::blanks(input);
        let text = &input[blanks..];
        let starts = [START, CHANNEL, MESSAGE, "to="].map(|mark| scan::starts(text, mark));
        if starts.contains(&Some(true)) {
            self.state = HarmonyState::Header;
            return ReadProgress::Next(blanks);
        }
        if starts.contains(&None) {
            return ReadProgress::More(0);
        }
        if let Some(end) = ENDS.iter().find(|end| text.starts_with(**end)) {
            return ReadProgress::Next(blanks + end.len());
        }
        if ENDS.iter().any(|end| end.starts_with(text)) {
            return ReadProgress::More(0);
        }
        self.state = HarmonyState::Text(Channel::Content);
        ReadProgress::Next(0)
    }

    /// Starts the message of a header.
    fn open(&mut self, header: &str) {
        let word = |mark: &str| {
            let (_, rest) = header.split_once(mark)?;
            let end = rest.find(|c: char| c.is_whitespace() || c == '<');
            Some(&rest[..end.unwrap_or(rest.len())]).filter(|word| !word.is_empty())
        };
        let recipient = word("to=").filter(|to| !matches!(*to, "assistant" | "user" | "all"));
        self.sink.end_blocks();
        self.state = match (recipient, word(CHANNEL)) {
            (Some(recipient), _) if self.has_tools => {
                let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                self.sink.start_call(name, None);
                HarmonyState::Call(JsonArguments::new())
            }
            (Some(_), _) | (_, Some("analysis")) => HarmonyState::Text(Channel::Reasoning),
            _ => HarmonyState::Text(Channel::Content),
        };
    }

    /// Ends a message at the marker at `bytes`; one that opens a header stays.
    fn close(&mut self, input: &str, bytes: usize) -> ReadProgress {
        self.sink.end_blocks();
        self.state = HarmonyState::Between;
        let marker = ENDS.iter().find(|end| input[bytes..].starts_with(**end));
        let skipped = marker.filter(|end| ![START, CHANNEL].contains(end));
        ReadProgress::Next(bytes + skipped.map_or(0, |end| end.len()))
    }
}
