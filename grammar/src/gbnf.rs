//! Translates llama.cpp's GBNF grammars to Lark.
//!
//! Source of the syntax: grammars/README.md of llama.cpp. Rules are `name ::= alternatives`;
//! items are literals, character classes, `.`, rule names and groups, each with `*`, `+`, `?` or
//! `{m,n}`; `#` starts a comment. Every character class becomes a terminal of one character, which
//! keeps the meaning of a context-free grammar over characters.

use crate::calls::literal;
use std::fmt::Write;

/// Returns the grammar in Lark syntax, with the rule `root` as `start`.
///
/// # Errors
/// Names the line of the first fault.
pub fn to_lark(text: &str) -> Result<String, String> {
    let mut parser = Parser {
        rest: text,
        line: 1,
        depth: 0,
    };
    let mut out = String::new();
    let mut has_root = false;
    parser.skip_space(true);
    while !parser.rest.is_empty() {
        let name = parser
            .name()
            .ok_or_else(|| parser.fault("expected a rule name"))?;
        parser.skip_space(false);
        if !parser.take("::=") {
            return Err(parser.fault("expected '::='"));
        }
        has_root |= name == "root";
        parser.skip_space(true);
        let body = parser.alternatives()?;
        let _ = writeln!(out, "{}: {body}", rule_name(name));
        parser.skip_space(true);
    }
    if !has_root {
        return Err("it has no rule 'root'. Add the start rule: root ::= …".to_owned());
    }
    Ok(out)
}

/// Maximum nesting of groups.
const MAX_DEPTH: usize = 64;

/// Maximum repetitions of `{m,n}`.
const MAX_REPEAT: u32 = 2_000;

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn fault(&self, what: &str) -> String {
        let near: String = self.rest.chars().take(12).collect();
        if near.is_empty() {
            format!("{what} at the end")
        } else {
            format!("{what} in line {} at '{near}'", self.line)
        }
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
        Some(c)
    }

    /// Skips blanks and comments, and line ends if `lines`.
    fn skip_space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                '\n' | '\r' if !lines => return,
                c if c.is_whitespace() => {
                    self.next_char();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
            .unwrap_or(self.rest.len());
        if end == 0 {
            return None;
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(name)
    }

    fn alternatives(&mut self) -> Result<String, String> {
        let mut out = self.sequence()?;
        while self.take("|") {
            self.skip_space(true);
            let next = self.sequence()?;
            out = format!("{out} | {next}");
        }
        Ok(out)
    }

    fn sequence(&mut self) -> Result<String, String> {
        let mut items = Vec::new();
        loop {
            self.skip_space(self.depth > 0);
            if self.starts_rule() {
                break;
            }
            let Some(item) = self.item()? else { break };
            items.push(item);
        }
        Ok(if items.is_empty() {
            "\"\"".to_owned()
        } else {
            items.join(" ")
        })
    }

    /// Whether a line end or the next rule's head comes first.
    fn starts_rule(&self) -> bool {
        let mut ahead = Parser { ..*self };
        if ahead.depth == 0 && matches!(ahead.peek(), Some('\n' | '\r')) {
            ahead.skip_space(true);
            // A line that begins with `|` continues the alternatives.
            return !ahead.rest.starts_with('|');
        }
        ahead.name().is_some() && {
            ahead.skip_space(false);
            ahead.rest.starts_with("::=")
        }
    }

    fn item(&mut self) -> Result<Option<String>, String> {
        if self.depth == 0 && matches!(self.peek(), Some('\n' | '\r')) {
            self.skip_space(true);
        }
        let Some(c) = self.peek() else {
            return Ok(None);
        };
        let item = match c {
            '"' => self.literal()?,
            '[' => self.class()?,
            '.' => {
                self.next_char();
                r"/(?s:.)/".to_owned()
            }
            '(' => {
                self.next_char();
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(format!("groups are nested deeper than {MAX_DEPTH}"));
                }
                self.skip_space(true);
                let inner = self.alternatives()?;
                if !self.take(")") {
                    return Err(self.fault("expected ')'"));
                }
                self.depth -= 1;
                format!("({inner})")
            }
            _ => match self.name() {
                Some(name) => rule_name(name),
                None => return Ok(None),
            },
        };
        Ok(Some(self.repeated(item)?))
    }

    /// Appends the repetition that follows an item.
    fn repeated(&mut self, item: String) -> Result<String, String> {
        let mark = match self.peek() {
            Some(mark @ ('*' | '+' | '?')) => mark,
            Some('{') => return self.counted(&item),
            _ => return Ok(item),
        };
        self.next_char();
        Ok(format!("{item}{mark}"))
    }

    fn counted(&mut self, item: &str) -> Result<String, String> {
        let end = self
            .rest
            .find('}')
            .ok_or_else(|| self.fault("expected '}'"))?;
        let inside = &self.rest[1..end];
        let number = |text: &str| {
            let count: u32 = text
                .trim()
                .parse()
                .map_err(|_| self.fault("expected a number of repetitions"))?;
            if count > MAX_REPEAT {
                return Err(format!(
                    "{count} repetitions exceed the limit of {MAX_REPEAT}"
                ));
            }
            Ok(count)
        };
        let range = match inside.split_once(',') {
            None => number(inside)?.to_string(),
            Some((low, "")) => format!("{},", number(low)?),
            Some((low, high)) => {
                let low = if low.trim().is_empty() {
                    0
                } else {
                    number(low)?
                };
                format!("{low},{}", number(high)?)
            }
        };
        self.rest = &self.rest[end + 1..];
        Ok(format!("({item}){{{range}}}"))
    }

    fn literal(&mut self) -> Result<String, String> {
        self.next_char();
        let mut text = String::new();
        loop {
            match self.next_char() {
                None => return Err(self.fault("a string is not closed")),
                Some('"') => break,
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
            }
        }
        Ok(literal(&text))
    }

    fn class(&mut self) -> Result<String, String> {
        self.next_char();
        let mut out = String::from("/[");
        if self.take("^") {
            out.push('^');
        }
        loop {
            let c = match self.next_char() {
                None => return Err(self.fault("a character class is not closed")),
                Some(']') => break,
                Some('-') if !out.ends_with(['[', '^']) && !self.rest.starts_with(']') => {
                    out.push('-');
                    continue;
                }
                Some('\\') => self.escaped()?,
                Some(c) => c,
            };
            let _ = write!(out, "\\x{{{:x}}}", c as u32);
        }
        out.push_str("]/");
        Ok(out)
    }

    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.next_char() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if !c.is_alphanumeric() => return Ok(c),
            _ => return Err(self.fault("unknown escape")),
        };
        let code = self
            .rest
            .get(..digits)
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| self.fault("expected hexadecimal digits of a character"))?;
        self.rest = &self.rest[digits..];
        Ok(code)
    }
}

/// A name that Lark takes for a rule: lower case, underscores.
fn rule_name(name: &str) -> String {
    if name == "root" {
        return "start".to_owned();
    }
    let mut out = String::from("r_");
    for c in name.chars() {
        match c {
            // Upper case letters are spelled so that two rules never share a name.
            'A'..='Z' => {
                out.push_str("u_");
                out.push(c.to_ascii_lowercase());
            }
            '-' => out.push_str("__"),
            c => out.push(c),
        }
    }
    out
}
