//! Tool calls as JSON objects: `{"name": …, "arguments": {…}}`, alone, in a list or in a row.

use super::parts::PartSink;
use super::scan;
use super::schema::ToolSchemas;
use super::value::{Dialect, ReadProgress, ValueReader};

/// What the value of a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Name,
    Arguments,
    /// Arguments as a string that contains JSON, or as null.
    Encoded,
    Ignored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonCallsState {
    /// Before an object, or the bracket of a list.
    Start,
    /// After an object: a comma, another object, the end of the list.
    Between,
    Key,
    InKey,
    Colon,
    BeforeValue,
    InValue(Role),
    AfterValue,
}

/// Reader of calls.
#[derive(Debug)]
pub(super) struct JsonCalls {
    state: JsonCallsState,
    reader: ValueReader,
    /// JSON that is not streamed: a key, a name.
    buffer: String,
    key: String,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<String>,
    is_list: bool,
    /// Depth of `"function": {…}` wrappers.
    depth: usize,
    /// Whether objects that do not call a known tool end the calls.
    is_strict: bool,
}

impl JsonCalls {
    /// `is_strict` refuses objects with unknown keys or names: for calls without markers.
    pub fn new(is_strict: bool) -> Self {
        Self {
            state: JsonCallsState::Start,
            reader: ValueReader::new(Dialect::JSON),
            buffer: String::new(),
            key: String::new(),
            name: None,
            early: None,
            is_list: false,
            depth: 0,
            is_strict,
        }
    }

    /// Continues behind the brace of an object.
    pub fn open_object(&mut self) {
        self.state = JsonCallsState::Key;
    }

    /// Continues behind the bracket of a list.
    pub fn open_list(&mut self) {
        self.is_list = true;
        self.state = JsonCallsState::Between;
    }

    /// Consumes text. `Done` where a list ended, or where no further object follows.
    pub fn advance(
        &mut self,
        input: &str,
        tools: &ToolSchemas,
        sink: &mut PartSink,
    ) -> ReadProgress {
        let blanks = match self.state {
            JsonCallsState::InKey | JsonCallsState::InValue(_) => 0,
            _ => scan::blanks(input),
        };
        let Some(c) = input[blanks..].chars().next() else {
            return ReadProgress::More(blanks);
        };
        match (self.state, c) {
            (JsonCallsState::InKey, _) => return self.in_key(input),
            (JsonCallsState::InValue(role), _) => return self.in_value(role, input, sink),
            (JsonCallsState::BeforeValue, _) => return self.start_value(c, blanks, sink),
            (JsonCallsState::Start, '[') => {
                self.is_list = true;
                self.state = JsonCallsState::Between;
            }
            (JsonCallsState::Start | JsonCallsState::Between, '{') => {
                (self.name, self.early) = (None, None);
                self.state = JsonCallsState::Key;
            }
            // A list without calls may be text.
            (JsonCallsState::Between, ']')
                if self.is_list && !(self.is_strict && self.key.is_empty()) =>
            {
                return ReadProgress::Done(blanks + 1);
            }
            (JsonCallsState::Between, ',' | ';') => {}
            (JsonCallsState::Between, _) if !self.is_list => return ReadProgress::Done(blanks),
            (JsonCallsState::Key | JsonCallsState::AfterValue, '}') if self.depth > 0 => {
                self.depth -= 1;
                self.state = JsonCallsState::AfterValue;
            }
            (JsonCallsState::Key | JsonCallsState::AfterValue, '}') => {
                if !self.end_object(tools, sink) {
                    return ReadProgress::Invalid;
                }
            }
            (JsonCallsState::AfterValue, ',') => self.state = JsonCallsState::Key,
            (JsonCallsState::Key, '"' | '\'') => {
                self.start_reader(JsonCallsState::InKey);
                return ReadProgress::Next(blanks);
            }
            (JsonCallsState::Colon, ':') => {
                if self.is_strict && !self.is_known(tools) {
                    return ReadProgress::Invalid;
                }
                self.state = JsonCallsState::BeforeValue;
            }
            _ => return ReadProgress::Invalid,
        }
        ReadProgress::Next(blanks + c.len_utf8())
    }

    /// Whether the current key belongs to a call, and the name before it to a tool.
    fn is_known(&self, tools: &ToolSchemas) -> bool {
        let keys = [
            "name",
            "tool_name",
            "function",
            "arguments",
            "parameters",
            "type",
            "id",
            "tool_call_id",
        ];
        keys.contains(&self.key.as_str())
            && self.name.as_deref().is_none_or(|name| tools.contains(name))
    }

    fn start_reader(&mut self, state: JsonCallsState) {
        self.reader = ValueReader::new(Dialect::JSON);
        self.buffer.clear();
        self.state = state;
    }

    fn in_key(&mut self, input: &str) -> ReadProgress {
        match self.reader.push(input, &mut self.buffer) {
            ReadProgress::Done(end) => {
                self.key = serde_json::from_str(&self.buffer).unwrap_or_default();
                self.state = JsonCallsState::Colon;
                ReadProgress::Next(end)
            }
            progress => progress,
        }
    }

    /// Decides by the first character `c` how the value is read.
    fn start_value(&mut self, c: char, blanks: usize, sink: &mut PartSink) -> ReadProgress {
        let role = match (self.key.as_str(), c) {
            ("function", '{') => {
                self.depth += 1;
                self.state = JsonCallsState::Key;
                return ReadProgress::Next(blanks + 1);
            }
            ("name" | "tool_name" | "function", _) => Role::Name,
            ("arguments" | "parameters", '"' | '\'' | 'n' | 'N') => Role::Encoded,
            ("arguments" | "parameters", _) => Role::Arguments,
            _ => Role::Ignored,
        };
        if matches!(role, Role::Arguments | Role::Encoded) {
            self.begin_call(sink);
        }
        self.start_reader(JsonCallsState::InValue(role));
        ReadProgress::Next(blanks)
    }

    /// Starts the call if its name is known.
    fn begin_call(&mut self, sink: &mut PartSink) {
        if let Some(name) = self.name.as_deref().filter(|_| !sink.is_open()) {
            sink.start_call(name, None);
        }
    }

    fn in_value(&mut self, role: Role, input: &str, sink: &mut PartSink) -> ReadProgress {
        let progress = self.reader.push(input, &mut self.buffer);
        if role == Role::Arguments && sink.is_open() {
            sink.arguments(&std::mem::take(&mut self.buffer));
        }
        let ReadProgress::Done(end) = progress else {
            return progress;
        };
        let text = std::mem::take(&mut self.buffer);
        match role {
            Role::Name => match serde_json::from_str::<String>(&text) {
                Ok(name) if !name.is_empty() => self.name = Some(name),
                _ => return ReadProgress::Invalid,
            },
            Role::Arguments | Role::Encoded => {
                let arguments = if role == Role::Encoded {
                    decode(&text)
                } else {
                    text
                };
                match sink.is_open() {
                    true => sink.arguments(&arguments),
                    false => self.early = Some(arguments),
                }
            }
            Role::Ignored => {}
        }
        self.state = JsonCallsState::AfterValue;
        ReadProgress::Next(end)
    }

    /// Ends an object; returns whether it was a call.
    fn end_object(&mut self, tools: &ToolSchemas, sink: &mut PartSink) -> bool {
        let Some(name) = self.name.take() else {
            return false;
        };
        if self.is_strict && !tools.contains(&name) {
            return false;
        }
        if !sink.is_open() {
            sink.start_call(&name, None);
            sink.arguments(&self.early.take().unwrap_or_default());
        }
        sink.end_call();
        self.state = JsonCallsState::Between;
        true
    }
}

/// Returns the JSON in a JSON string; nothing for null or an empty string.
fn decode(json: &str) -> String {
    let inner: Option<String> = serde_json::from_str(json).unwrap_or_default();
    let inner = inner.unwrap_or_default();
    let mut compact = String::new();
    match ValueReader::new(Dialect::JSON).read_all(&inner, &mut compact) {
        true => compact,
        false => inner,
    }
}
