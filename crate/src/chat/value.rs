//! Incremental reader of one value in JSON, Python or Gemma's notation. Writes compact JSON.
//!
//! Accepts deviations from JSON that models write: single quotes, `True` and `None`, tuples, trailing
//! commas, unquoted keys, raw line breaks in strings.

use super::scan;

/// Nesting at which a value is refused; JSON parsers have similar limits.
const MAX_DEPTH: usize = 100;

/// Notation of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dialect {
    /// Text that delimits strings without escapes, in addition to quotes.
    delimiter: Option<&'static str>,
    /// Whether a quote ends a string only before a comma or a closing bracket.
    looks_ahead: bool,
    /// Whether unknown words are strings.
    bare_strings: bool,
}

impl Dialect {
    /// JSON.
    pub const JSON: Dialect = Dialect {
        delimiter: None,
        looks_ahead: false,
        bare_strings: false,
    };
    /// Literals of Python.
    pub const PYTHON: Dialect = Dialect {
        delimiter: None,
        looks_ahead: true,
        bare_strings: false,
    };

    /// Gemma's notation: `delimiter` around strings, keys without quotes.
    pub const fn gemma(delimiter: &'static str) -> Dialect {
        Dialect {
            delimiter: Some(delimiter),
            looks_ahead: false,
            bare_strings: true,
        }
    }

    /// Whether a string starts here; `None` if more text must tell.
    pub fn starts_string(self, text: &str) -> Option<bool> {
        if text.is_empty() {
            return None;
        }
        let delimited = self.delimiter.map(|mark| scan::starts(text, mark));
        match delimited {
            Some(None) => None,
            Some(Some(true)) => Some(true),
            _ => Some(text.starts_with(['"', '\''])),
        }
    }
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// So many bytes are consumed; more text is needed.
    More(usize),
    /// So many bytes are consumed; the rest can be read already.
    Next(usize),
    /// The value is complete after so many bytes.
    Done(usize),
    /// The text is not a value.
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    List(char),
    Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueState {
    /// Before a value.
    Value,
    /// After `[`.
    FirstItem,
    /// After a comma in a list.
    NextItem,
    /// After `{`.
    FirstKey,
    /// After a comma in an object.
    NextKey,
    /// Before a key.
    Key,
    /// After a key.
    Colon,
    /// After a value.
    After,
    Quoted {
        quote: char,
        is_key: bool,
    },
    Delimited {
        is_key: bool,
    },
    Word {
        is_key: bool,
    },
}

enum ValueStep {
    Take(usize),
    Wait,
    Complete(usize),
    Fail,
}

/// Reader of one value.
#[derive(Debug)]
pub(super) struct ValueReader {
    dialect: Dialect,
    frames: Vec<Frame>,
    state: ValueState,
    word: String,
    /// Bytes of the last input before the character that was not part of a value.
    failed_at: usize,
}

impl ValueReader {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            frames: Vec::new(),
            state: ValueState::Value,
            word: String::new(),
            failed_at: 0,
        }
    }

    /// Returns what the last input had after an invalid beginning, and a word that was read but
    /// not written.
    pub fn rejected<'a>(&'a self, input: &'a str) -> (&'a str, &'a str) {
        (self.unwritten(), &input[self.failed_at..])
    }

    /// Returns the word that was read but not written.
    pub fn unwritten(&self) -> &str {
        match self.state {
            ValueState::Word { .. } => &self.word,
            _ => "",
        }
    }

    /// Consumes text and appends JSON to `out`.
    pub fn push(&mut self, input: &str, out: &mut String) -> ReadProgress {
        let mut at = 0;
        while let Some(c) = input[at..].chars().next() {
            match self.step(&input[at..], c, out) {
                ValueStep::Take(bytes) => at += bytes,
                ValueStep::Wait => return ReadProgress::More(at),
                ValueStep::Complete(bytes) => return ReadProgress::Done(at + bytes),
                ValueStep::Fail => {
                    self.failed_at = at;
                    return ReadProgress::Invalid;
                }
            }
        }
        ReadProgress::More(at)
    }

    /// Ends the text, of which `rest` was not consumed; returns whether the value is complete.
    pub fn finish(&mut self, rest: &str, out: &mut String) -> bool {
        if !self.frames.is_empty() {
            return false;
        }
        match self.state {
            ValueState::Word { is_key: false } => self.end_word(out),
            ValueState::Quoted { quote, .. }
                if rest.trim_end() == quote.encode_utf8(&mut [0; 4]) =>
            {
                out.push('"');
                true
            }
            _ => false,
        }
    }

    /// Reads a text that is one value and nothing else.
    pub fn read_all(&mut self, text: &str, out: &mut String) -> bool {
        match self.push(text, out) {
            ReadProgress::Done(end) => text[end..].trim().is_empty(),
            ReadProgress::More(end) => self.finish(&text[end..], out),
            _ => false,
        }
    }

    fn step(&mut self, rest: &str, c: char, out: &mut String) -> ValueStep {
        match self.state {
            ValueState::Quoted { quote, is_key } => return self.quoted(rest, quote, is_key, out),
            ValueState::Delimited { is_key } => return self.delimited(rest, is_key, out),
            ValueState::Word { is_key } => return self.in_word(rest, is_key, out),
            _ => {}
        }
        if c.is_whitespace() {
            return ValueStep::Take(c.len_utf8());
        }
        match self.state {
            ValueState::Colon if c == ':' => {
                out.push(':');
                self.state = ValueState::Value;
                ValueStep::Take(1)
            }
            ValueState::After => self.after(c, out),
            ValueState::FirstItem | ValueState::NextItem
                if self.frames.last() == Some(&Frame::List(c)) =>
            {
                self.close(']', out)
            }
            ValueState::FirstKey | ValueState::NextKey if c == '}' => self.close('}', out),
            ValueState::FirstItem => self.enter(ValueState::Value),
            ValueState::FirstKey => self.enter(ValueState::Key),
            ValueState::NextItem => {
                out.push(',');
                self.enter(ValueState::Value)
            }
            ValueState::NextKey => {
                out.push(',');
                self.enter(ValueState::Key)
            }
            ValueState::Value => self.start(rest, c, false, out),
            ValueState::Key => self.start(rest, c, true, out),
            _ => ValueStep::Fail,
        }
    }

    fn enter(&mut self, state: ValueState) -> ValueStep {
        self.state = state;
        ValueStep::Take(0)
    }

    fn after(&mut self, c: char, out: &mut String) -> ValueStep {
        match (self.frames.last(), c) {
            (Some(Frame::List(_)), ',') => self.state = ValueState::NextItem,
            (Some(Frame::Object), ',') => self.state = ValueState::NextKey,
            (Some(Frame::List(end)), _) if *end == c => return self.close(']', out),
            (Some(Frame::Object), '}') => return self.close('}', out),
            _ => return ValueStep::Fail,
        }
        ValueStep::Take(1)
    }

    /// Starts a value or a key.
    fn start(&mut self, rest: &str, c: char, is_key: bool, out: &mut String) -> ValueStep {
        if let Some(mark) = self.dialect.delimiter {
            match scan::starts(rest, mark) {
                Some(true) => {
                    out.push('"');
                    self.state = ValueState::Delimited { is_key };
                    return ValueStep::Take(mark.len());
                }
                None => return ValueStep::Wait,
                Some(false) => {}
            }
        }
        match c {
            '"' | '\'' => {
                out.push('"');
                self.state = ValueState::Quoted { quote: c, is_key };
                ValueStep::Take(1)
            }
            '{' if !is_key => self.open(Frame::Object, ValueState::FirstKey, '{', out),
            '[' if !is_key => self.open(Frame::List(']'), ValueState::FirstItem, '[', out),
            '(' if !is_key => self.open(Frame::List(')'), ValueState::FirstItem, '[', out),
            c if c.is_alphanumeric() || "_-+.$@".contains(c) || self.dialect.bare_strings => {
                self.word.clear();
                self.enter(ValueState::Word { is_key })
            }
            _ => ValueStep::Fail,
        }
    }

    fn open(
        &mut self,
        frame: Frame,
        state: ValueState,
        bracket: char,
        out: &mut String,
    ) -> ValueStep {
        if self.frames.len() >= MAX_DEPTH {
            return ValueStep::Fail;
        }
        self.frames.push(frame);
        self.state = state;
        out.push(bracket);
        ValueStep::Take(1)
    }

    fn close(&mut self, bracket: char, out: &mut String) -> ValueStep {
        out.push(bracket);
        self.frames.pop();
        self.complete(false, 1)
    }

    /// Ends a value or a key after `bytes` more bytes.
    fn complete(&mut self, is_key: bool, bytes: usize) -> ValueStep {
        self.state = if is_key {
            ValueState::Colon
        } else {
            ValueState::After
        };
        match self.frames.is_empty() && !is_key {
            true => ValueStep::Complete(bytes),
            false => ValueStep::Take(bytes),
        }
    }

    fn quoted(&mut self, rest: &str, quote: char, is_key: bool, out: &mut String) -> ValueStep {
        let run = rest.find([quote, '\\']).unwrap_or(rest.len());
        if run > 0 {
            scan::escape_into(&rest[..run], out);
            return ValueStep::Take(run);
        }
        if rest.starts_with('\\') {
            return escape(rest, out);
        }
        if self.dialect.looks_ahead && !is_key {
            match rest[1..].trim_start().chars().next() {
                None => return ValueStep::Wait,
                Some(next) if !",:)]}".contains(next) => {
                    scan::escape_into(&rest[..1], out);
                    return ValueStep::Take(1);
                }
                Some(_) => {}
            }
        }
        out.push('"');
        self.complete(is_key, 1)
    }

    fn delimited(&mut self, rest: &str, is_key: bool, out: &mut String) -> ValueStep {
        let mark = self.dialect.delimiter.unwrap_or_default();
        match scan::find(rest, &[mark]) {
            scan::Found::At { start, .. } => {
                scan::escape_into(&rest[..start], out);
                out.push('"');
                self.complete(is_key, start + mark.len())
            }
            scan::Found::Nothing { safe: 0 } => ValueStep::Wait,
            scan::Found::Nothing { safe } => {
                scan::escape_into(&rest[..safe], out);
                ValueStep::Take(safe)
            }
        }
    }

    fn in_word(&mut self, rest: &str, is_key: bool, out: &mut String) -> ValueStep {
        let bare = self.dialect.bare_strings;
        let ends = |c: char| match is_key {
            true => !c.is_alphanumeric() && !"_-.$@".contains(c),
            false => ",]})".contains(c) || (!bare && (c.is_whitespace() || ":;<`".contains(c))),
        };
        let run = rest.find(ends).unwrap_or(rest.len());
        if run > 0 {
            self.word.push_str(&rest[..run]);
            return ValueStep::Take(run);
        }
        if is_key {
            out.push_str(&scan::quoted(&self.word));
            return self.complete(true, 0);
        }
        match self.end_word(out) {
            true => self.complete(false, 0),
            false => ValueStep::Fail,
        }
    }

    /// Writes the collected word as JSON; returns whether it is a value.
    fn end_word(&mut self, out: &mut String) -> bool {
        let word = self.word.trim();
        match word {
            "true" | "True" => out.push_str("true"),
            "false" | "False" => out.push_str("false"),
            "null" | "None" | "nan" | "NaN" | "inf" | "-inf" | "Infinity" | "-Infinity" => {
                out.push_str("null");
            }
            word => match number(word) {
                Some(number) => out.push_str(&number),
                None if self.dialect.bare_strings => out.push_str(&scan::quoted(word)),
                None => return false,
            },
        }
        true
    }
}

/// Writes the escape sequence at the start of `rest`; Python's become JSON's.
fn escape(rest: &str, out: &mut String) -> ValueStep {
    let Some(c) = rest[1..].chars().next() else {
        return ValueStep::Wait;
    };
    let digits = match c {
        'u' => 4,
        'x' => 2,
        _ => 0,
    };
    if digits > 0 {
        let hex = rest.as_bytes()[2..].iter().take(digits);
        let valid = hex.clone().take_while(|b| b.is_ascii_hexdigit()).count();
        if valid == digits {
            out.push_str(if digits == 4 { "\\u" } else { "\\u00" });
            out.push_str(&rest[2..2 + digits]);
            return ValueStep::Take(2 + digits);
        }
        if valid == hex.count() {
            return ValueStep::Wait;
        }
    }
    match c {
        '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
            out.push('\\');
            out.push(c);
        }
        '\'' => out.push('\''),
        '0' => out.push_str("\\u0000"),
        '\n' => {}
        c => {
            out.push_str("\\\\");
            scan::escape_into(c.encode_utf8(&mut [0; 4]), out);
        }
    }
    ValueStep::Take(1 + c.len_utf8())
}

/// Returns a number of JSON or Python as JSON.
fn number(word: &str) -> Option<String> {
    if word.chars().next().is_none_or(char::is_alphabetic) {
        return None;
    }
    if serde_json::from_str::<serde_json::Number>(word).is_ok() {
        return Some(word.to_owned());
    }
    let plain: String = word.chars().filter(|c| *c != '_').collect();
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    if let Ok(whole) = plain.parse::<i64>() {
        return Some(whole.to_string());
    }
    let float: f64 = plain.parse().ok().filter(|value: &f64| value.is_finite())?;
    Some(float.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dialect: Dialect, text: &str) -> Option<String> {
        let mut out = String::new();
        ValueReader::new(dialect)
            .read_all(text, &mut out)
            .then_some(out)
    }

    #[test]
    fn values_become_compact_json() {
        for (text, json) in [
            (
                r#"{ "a" : [1, 2.5 , -3e2], "b": "x\n\"y\"" }"#,
                r#"{"a":[1,2.5,-3e2],"b":"x\n\"y\""}"#,
            ),
            (
                "{'a': True, \"b\": None, 'c': (1, 'd'),}",
                r#"{"a":true,"b":null,"c":[1,"d"]}"#,
            ),
            ("[ ]", "[]"),
            ("{}", "{}"),
            ("[[], {}, [{}],]", "[[],{},[{}]]"),
            ("\"line\nbreak\"", r#""line\nbreak""#),
            (r#""\u00e9\x41\q\'""#, r#""\u00e9\u0041\\q'""#),
            ("{key: 1, 2: 3}", r#"{"key":1,"2":3}"#),
            ("07", "7"),
            ("1_000", "1000"),
            (".5", "0.5"),
            ("\u{1f600}", ""),
        ] {
            let want = (!json.is_empty()).then(|| json.to_owned());
            assert_eq!(read(Dialect::JSON, text), want, "{text}");
        }
        for text in [
            "{",
            "[1",
            "{]}",
            "tru e",
            "\"open",
            "{\"a\" 1}",
            "word",
            "1 2",
        ] {
            assert_eq!(read(Dialect::JSON, text), None, "{text}");
        }
    }

    #[test]
    fn dialects() {
        let nested = "'sed -n '1,2p' /f'";
        assert_eq!(
            read(Dialect::PYTHON, nested),
            Some("\"sed -n '1,2p' /f\"".into())
        );
        let gemma = Dialect::gemma("<|\"|>");
        let text = r#"{a:<|"|>x "y" <|"|>,b:[1,true,<|"|><|"|>],c:{<|"|>3<|"|>:Hello you}}"#;
        let json = r#"{"a":"x \"y\" ","b":[1,true,""],"c":{"3":"Hello you"}}"#;
        assert_eq!(read(gemma, text), Some(json.into()));
    }

    #[test]
    fn any_cut_gives_the_same() {
        let text = r#"{"a": "x\u00e9\\", 'b': [True, 07, "<|\"|>"], "c": {"d": null}} tail"#;
        for cut in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let mut reader = ValueReader::new(Dialect::JSON);
            let mut out = String::new();
            let rest = match reader.push(&text[..cut], &mut out) {
                ReadProgress::More(end) => {
                    let input = &text[end..];
                    assert_eq!(
                        reader.push(input, &mut out),
                        ReadProgress::Done(input.len() - 5)
                    );
                    input
                }
                ReadProgress::Done(end) => &text[end..cut],
                other => panic!("{other:?} at {cut}"),
            };
            assert!(
                rest.ends_with("tail") || rest.trim_start().len() <= 4,
                "{cut}"
            );
            assert_eq!(
                out, r#"{"a":"x\u00e9\\","b":[true,7,"<|\"|>"],"c":{"d":null}}"#,
                "{cut}"
            );
        }
    }

    #[test]
    fn depth_has_a_limit() {
        assert_eq!(read(Dialect::JSON, &"[".repeat(2000)), None);
    }
}
