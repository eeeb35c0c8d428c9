//! Tool calls as JSON objects: `{"name": …, "arguments": {…}}`, alone, in a list or in a row.

use super::parts::PartSink;
use super::scan;
use super::schema::ToolSchemas;
use super::value::{Dialect, Progress, ValueReader};

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
enum State {
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
    state: State,
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
    /// Whether objects that are no calls of known tools end the reading.
    is_strict: bool,
}

impl JsonCalls {
    /// `is_strict` refuses objects with unknown keys or names: for calls without markers.
    pub fn new(is_strict: bool) -> Self {
        Self {
            state: State::Start,
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
        self.state = State::Key;
    }

    /// Continues behind the bracket of a list.
    pub fn open_list(&mut self) {
        self.is_list = true;
        self.state = State::Between;
    }

    /// Consumes text. `Done` where a list ended, or where no further object follows.
    pub fn advance(&mut self, input: &str, tools: &ToolSchemas, sink: &mut PartSink) -> Progress {
        let blanks = match self.state {
            State::InKey | State::InValue(_) => 0,
            _ => scan::blanks(input),
        };
        let Some(c) = input[blanks..].chars().next() else {
            return Progress::More(blanks);
        };
        match (self.state, c) {
            (State::InKey, _) => return self.in_key(input),
            (State::InValue(role), _) => return self.in_value(role, input, sink),
            (State::BeforeValue, _) => return self.start_value(c, blanks, sink),
            (State::Start, '[') => {
                self.is_list = true;
                self.state = State::Between;
            }
            (State::Start | State::Between, '{') => {
                (self.name, self.early) = (None, None);
                self.state = State::Key;
            }
            (State::Between, ']') if self.is_list => return Progress::Done(blanks + 1),
            (State::Between, ',' | ';') => {}
            (State::Between, _) if !self.is_list => return Progress::Done(blanks),
            (State::Key | State::AfterValue, '}') if self.depth > 0 => {
                self.depth -= 1;
                self.state = State::AfterValue;
            }
            (State::Key | State::AfterValue, '}') => {
                if !self.end_object(tools, sink) {
                    return Progress::Invalid;
                }
            }
            (State::AfterValue, ',') => self.state = State::Key,
            (State::Key, '"' | '\'') => {
                self.start_reader(State::InKey);
                return Progress::Next(blanks);
            }
            (State::Colon, ':') => {
                if self.is_strict && !self.is_known(tools) {
                    return Progress::Invalid;
                }
                self.state = State::BeforeValue;
            }
            _ => return Progress::Invalid,
        }
        Progress::Next(blanks + c.len_utf8())
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

    fn start_reader(&mut self, state: State) {
        self.reader = ValueReader::new(Dialect::JSON);
        self.buffer.clear();
        self.state = state;
    }

    fn in_key(&mut self, input: &str) -> Progress {
        match self.reader.push(input, &mut self.buffer) {
            Progress::Done(end) => {
                self.key = serde_json::from_str(&self.buffer).unwrap_or_default();
                self.state = State::Colon;
                Progress::Next(end)
            }
            progress => progress,
        }
    }

    /// Decides by the first character `c` how the value is read.
    fn start_value(&mut self, c: char, blanks: usize, sink: &mut PartSink) -> Progress {
        let role = match (self.key.as_str(), c) {
            ("function", '{') => {
                self.depth += 1;
                self.state = State::Key;
                return Progress::Next(blanks + 1);
            }
            ("name" | "tool_name" | "function", _) => Role::Name,
            ("arguments" | "parameters", '"' | '\'' | 'n' | 'N') => Role::Encoded,
            ("arguments" | "parameters", _) => Role::Arguments,
            _ => Role::Ignored,
        };
        if matches!(role, Role::Arguments | Role::Encoded) {
            self.begin_call(sink);
        }
        self.start_reader(State::InValue(role));
        Progress::Next(blanks)
    }

    /// Starts the call if its name is known.
    fn begin_call(&mut self, sink: &mut PartSink) {
        if let Some(name) = self.name.as_deref().filter(|_| !sink.is_open()) {
            sink.start_call(name, None);
        }
    }

    fn in_value(&mut self, role: Role, input: &str, sink: &mut PartSink) -> Progress {
        let progress = self.reader.push(input, &mut self.buffer);
        if role == Role::Arguments && sink.is_open() {
            sink.arguments(&std::mem::take(&mut self.buffer));
        }
        let Progress::Done(end) = progress else {
            return progress;
        };
        let text = std::mem::take(&mut self.buffer);
        match role {
            Role::Name => match serde_json::from_str::<String>(&text) {
                Ok(name) if !name.is_empty() => self.name = Some(name),
                _ => return Progress::Invalid,
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
        self.state = State::AfterValue;
        Progress::Next(end)
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
        self.state = State::Between;
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
