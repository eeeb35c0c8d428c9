//! Calls in JSON behind a marker: Hermes, Qwen 2.5 and 3, SmolLM3, Granite, Phi-4-mini, Nemotron,
//! Command R, Apriel, Hunyuan, FireFunction, GigaChat, InternLM. xLAM writes no marker.

use crate::chat::json_calls::JsonCalls;
use crate::chat::parts::PartSink;
use crate::chat::scan;
use crate::chat::schema::ToolSchemas;
use crate::chat::tagged::CallSyntax;
use crate::chat::value::ReadProgress;

/// `<tool_call>{…}</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4.
pub(in crate::chat) const HERMES: JsonTags = JsonTags {
    openers: &["<tool_call>"],
    closers: &["</tool_call>"],
    leads: &["```json", "```"],
    is_strict: false,
};

/// `<|tool_call|>[{…}, …]`: Granite 3, which also writes `<tool_call>`.
pub(in crate::chat) const GRANITE: JsonTags = JsonTags {
    openers: &["<|tool_call|>", "<tool_call>"],
    closers: &["</tool_call>"],
    leads: &[],
    is_strict: false,
};

/// `<|tool_call|>[{…}, …]<|/tool_call|>`, or `functools[…]`: Phi-4-mini.
pub(in crate::chat) const PHI4: JsonTags = JsonTags {
    openers: &["<|tool_call|>", "functools["],
    closers: &["<|/tool_call|>"],
    leads: &[],
    is_strict: false,
};

/// `<TOOLCALL>[{…}, …]</TOOLCALL>`: Nemotron Nano 2 and Llama-Nemotron.
pub(in crate::chat) const NEMOTRON: JsonTags = JsonTags {
    openers: &["<TOOLCALL>"],
    closers: &["</TOOLCALL>"],
    leads: &[],
    is_strict: false,
};

/// `Action: ```json [{"tool_name": …, "parameters": …}, …] ``` `: Command R and R+.
pub(in crate::chat) const COMMAND_R: JsonTags = JsonTags {
    openers: &["Action:"],
    closers: &["```"],
    leads: &["```json", "```"],
    is_strict: false,
};

/// `<|START_ACTION|>[…]<|END_ACTION|>`: Command R7B and Command A.
pub(in crate::chat) const COMMAND_R7B: JsonTags = JsonTags {
    openers: &["<|START_ACTION|>"],
    closers: &["<|END_ACTION|>"],
    leads: &[],
    is_strict: false,
};

/// `<tool_calls>[{…}, …]</tool_calls>`: Apriel, Hunyuan, Jamba.
pub(in crate::chat) const TOOL_CALLS: JsonTags = JsonTags {
    openers: &["<tool_calls>", "<tool_call>"],
    closers: &["</tool_calls>", "</tool_call>"],
    ..NEMOTRON
};

/// `functools[{…}, …]`: FireFunction v2.
pub(in crate::chat) const FIREFUNCTION: JsonTags = JsonTags {
    openers: &["functools["],
    closers: &[],
    ..NEMOTRON
};

/// `<|function_call|>{…}`: GigaChat 3.1. GigaChat 3 writes a message of another role.
pub(in crate::chat) const GIGACHAT: JsonTags = JsonTags {
    openers: &[
        "<|function_call|>",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
    ],
    closers: &["<|message_sep|>"],
    // Tokens of the openers, which some vocabularies have with the line break.
    leads: &["<|role_sep|>\n", "<|role_sep|>", "<|message_sep|>\n\n"],
    ..NEMOTRON
};

/// `<|action_start|><|plugin|>{…}<|action_end|>`: InternLM 2 and Intern-S1.
pub(in crate::chat) const INTERNLM: JsonTags = JsonTags {
    openers: &["<|action_start|>"],
    closers: &["<|action_end|>"],
    leads: &["<|plugin|>"],
    ..NEMOTRON
};

/// `[{…}, …]` without markers: xLAM 2.
pub(in crate::chat) const XLAM: JsonTags = JsonTags {
    openers: &["[", "```json"],
    closers: &["```"],
    leads: &[],
    is_strict: true,
};

/// Markers around calls in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) struct JsonTags {
    openers: &'static [&'static str],
    closers: &'static [&'static str],
    /// Texts that may stand between the opener and the JSON.
    leads: &'static [&'static str],
    /// Whether JSON that calls no known tool is text: for openers that are no markers.
    is_strict: bool,
}

impl JsonTags {
    /// The same with other closers.
    pub const fn closed_by(self, closers: &'static [&'static str]) -> Self {
        Self { closers, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonTagsState {
    Lead,
    Calls,
    Tail,
}

/// Parser of one region.
#[derive(Debug)]
pub(in crate::chat) struct JsonTagSyntax {
    tags: JsonTags,
    calls: JsonCalls,
    state: JsonTagsState,
}

impl JsonTagSyntax {
    pub fn new(tags: JsonTags) -> Self {
        Self {
            tags,
            calls: JsonCalls::new(false),
            state: JsonTagsState::Lead,
        }
    }
}

impl CallSyntax for JsonTagSyntax {
    fn openers(&self) -> &'static [&'static str] {
        self.tags.openers
    }

    fn closers(&self) -> &'static [&'static str] {
        self.tags.closers
    }

    fn inner(&self) -> Vec<&'static str> {
        self.tags.leads.to_vec()
    }

    fn open(&mut self, opener: &str) {
        self.calls = JsonCalls::new(self.tags.is_strict);
        self.state = JsonTagsState::Lead;
        if opener.ends_with('[') {
            self.calls.open_list();
            self.state = JsonTagsState::Calls;
        }
    }

    fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> ReadProgress {
        match self.state {
            JsonTagsState::Lead => {
                let blanks = scan::blanks(input);
                for lead in self.tags.leads {
                    match scan::starts(&input[blanks..], lead) {
                        Some(true) => return ReadProgress::Next(blanks + lead.len()),
                        None => return ReadProgress::More(0),
                        Some(false) => {}
                    }
                }
                self.state = JsonTagsState::Calls;
                ReadProgress::Next(blanks)
            }
            JsonTagsState::Calls => match self.calls.advance(input, tools, sink) {
                ReadProgress::Done(bytes) => {
                    self.state = JsonTagsState::Tail;
                    ReadProgress::Next(bytes)
                }
                progress => progress,
            },
            JsonTagsState::Tail => {
                let blanks = scan::blanks(input);
                let fence = "```";
                // The end of a code block inside the markers.
                if self.tags.leads.contains(&fence) && !self.tags.closers.contains(&fence) {
                    match scan::starts(&input[blanks..], fence) {
                        Some(true) => return ReadProgress::Next(blanks + fence.len()),
                        None => return ReadProgress::More(0),
                        Some(false) => {}
                    }
                }
                tail(input, self.tags.closers)
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.state == JsonTagsState::Tail
    }
}

/// Reads what follows the calls: stray brackets, then a closer, which may be missing.
pub(in crate::chat) fn tail(input: &str, closers: &[&str]) -> ReadProgress {
    let text = input.trim_start_matches([' ', '\n', '\r', '\t', '}', ']', ';', ',']);
    let skipped = input.len() - text.len();
    for closer in closers {
        match scan::starts(text, closer) {
            Some(true) => return ReadProgress::Done(skipped + closer.len()),
            None => return ReadProgress::More(0),
            Some(false) => {}
        }
    }
    // Without a closer to expect, brackets belong to the text.
    ReadProgress::Done(if closers.is_empty() { 0 } else { skipped })
}
