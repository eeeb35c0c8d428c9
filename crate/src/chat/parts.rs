//! Parts of an answer: content, reasoning and tool calls, as a stream of events.

use super::scan;
use serde::Serialize;

/// A part of an answer, in the order in which the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum AnswerPart {
    /// Text for the user.
    Content {
        /// Text since the last event.
        text: String,
    },
    /// The model's reasoning.
    Reasoning {
        /// Text since the last event.
        text: String,
    },
    /// Start of a tool call.
    ToolCall {
        /// Position among the calls of the answer.
        index: usize,
        /// Id for the tool message that answers it.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// Text of a call's arguments, which together are JSON.
    Arguments {
        /// The call.
        index: usize,
        /// Text since the last event.
        text: String,
    },
    /// End of a tool call.
    ToolCallEnd {
        /// The call.
        index: usize,
    },
}

/// Where text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Content,
    Reasoning,
}

/// Spelling of generated call ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallIdStyle {
    /// `call_` and 24 characters.
    OpenAi,
    /// Nine characters: templates of Mistral refuse others.
    Nine,
}

/// Text of one channel. Whitespace around a block is formatting: it is held until text follows.
#[derive(Debug, Default)]
struct Block {
    held: String,
    /// Whether leading whitespace is dropped.
    trims: bool,
    separator: &'static str,
    is_started: bool,
}

impl Block {
    fn push(&mut self, text: &str) -> String {
        let text = if self.trims { text.trim_start() } else { text };
        let body = text.trim_end().len();
        if body == 0 {
            self.held.push_str(text);
            return String::new();
        }
        let mut visible = std::mem::take(&mut self.separator).to_owned();
        visible.push_str(&std::mem::take(&mut self.held));
        visible.push_str(&text[..body]);
        self.held.push_str(&text[body..]);
        self.trims = false;
        self.is_started = true;
        visible
    }

    /// Ends the block; text that follows is a paragraph of its own.
    fn end(&mut self) {
        self.held.clear();
        self.trims = true;
        if self.is_started {
            self.separator = "\n\n";
        }
    }
}

/// Collects the parts of one answer.
#[derive(Debug)]
pub(super) struct PartSink {
    parts: Vec<AnswerPart>,
    content: Block,
    reasoning: Block,
    /// Names that are protocol, not calls.
    hidden: &'static [&'static str],
    ids: CallIdStyle,
    random: u64,
    calls: usize,
    /// The open call: whether it is shown.
    open: Option<bool>,
    has_arguments: bool,
    has_keys: bool,
}

impl PartSink {
    /// `seed` makes the ids of calls; equal seeds give equal ids.
    pub fn new(ids: CallIdStyle, hidden: &'static [&'static str], seed: u64) -> Self {
        let reasoning = Block {
            trims: true,
            ..Block::default()
        };
        Self {
            parts: Vec::new(),
            content: Block::default(),
            reasoning,
            hidden,
            ids,
            random: seed,
            calls: 0,
            open: None,
            has_arguments: false,
            has_keys: false,
        }
    }

    /// Returns the parts since the last call.
    pub fn take(&mut self) -> Vec<AnswerPart> {
        std::mem::take(&mut self.parts)
    }

    /// Number of calls that have started.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether a call is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the channel has text other than whitespace.
    pub fn has_text(&self, channel: Channel) -> bool {
        match channel {
            Channel::Content => self.content.is_started,
            Channel::Reasoning => self.reasoning.is_started,
        }
    }

    /// Adds text.
    pub fn text(&mut self, channel: Channel, text: &str) {
        let visible = match channel {
            Channel::Content => self.content.push(text),
            Channel::Reasoning => self.reasoning.push(text),
        };
        self.emit(channel, &visible);
    }

    fn emit(&mut self, channel: Channel, text: &str) {
        if text.is_empty() {
            return;
        }
        match (channel, self.parts.last_mut()) {
            (Channel::Content, Some(AnswerPart::Content { text: last }))
            | (Channel::Reasoning, Some(AnswerPart::Reasoning { text: last })) => {
                last.push_str(text);
            }
            (Channel::Content, _) => self.parts.push(AnswerPart::Content { text: text.into() }),
            (Channel::Reasoning, _) => {
                self.parts.push(AnswerPart::Reasoning { text: text.into() });
            }
        }
    }

    /// Ends the paragraph of both channels.
    pub fn end_blocks(&mut self) {
        self.content.end();
        self.reasoning.end();
    }

    /// Starts a call; `id` is the model's own.
    pub fn start_call(&mut self, name: &str, id: Option<&str>) {
        self.end_call();
        self.end_blocks();
        (self.has_arguments, self.has_keys) = (false, false);
        let shown = !self.hidden.contains(&name);
        self.open = Some(shown);
        if !shown {
            return;
        }
        let id = id.map_or_else(|| self.new_id(), str::to_owned);
        self.parts.push(AnswerPart::ToolCall {
            index: self.calls,
            id,
            name: name.to_owned(),
        });
        self.calls += 1;
    }

    /// Adds text of the open call's arguments.
    pub fn arguments(&mut self, text: &str) {
        if text.is_empty() || self.open != Some(true) {
            return;
        }
        self.has_arguments = true;
        let current = self.calls - 1;
        if let Some(AnswerPart::Arguments { index, text: last }) = self.parts.last_mut()
            && *index == current
        {
            last.push_str(text);
            return;
        }
        self.parts.push(AnswerPart::Arguments {
            index: current,
            text: text.to_owned(),
        });
    }

    /// Starts an argument of the open call.
    pub fn key(&mut self, name: &str) {
        let start = if self.has_keys { ',' } else { '{' };
        self.has_keys = true;
        self.arguments(&format!("{start}{}:", scan::quoted(name)));
    }

    /// Ends arguments that were written key by key.
    pub fn end_keys(&mut self) {
        if std::mem::take(&mut self.has_keys) {
            self.arguments("}");
        }
    }

    /// Ends the open call, if there is one.
    pub fn end_call(&mut self) {
        let Some(shown) = self.open else { return };
        if !self.has_arguments {
            self.arguments("{}");
        }
        self.open = None;
        if shown {
            self.parts.push(AnswerPart::ToolCallEnd {
                index: self.calls - 1,
            });
        }
        self.end_blocks();
    }

    /// Ends the answer: whitespace at its end counts if nothing but content was written.
    pub fn finish(&mut self) {
        self.end_call();
        if !self.content.trims {
            let rest = std::mem::take(&mut self.content.held);
            self.emit(Channel::Content, &rest);
        }
    }

    /// SplitMix64, in base 36.
    fn new_id(&mut self) -> String {
        let (prefix, length) = match self.ids {
            CallIdStyle::OpenAi => ("call_", 24),
            CallIdStyle::Nine => ("", 9),
        };
        let mut id = prefix.to_owned();
        for _ in 0..length {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.random;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^= mixed >> 31;
            let digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(mixed % 36) as usize];
            id.push(char::from(digit));
        }
        id
    }
}
