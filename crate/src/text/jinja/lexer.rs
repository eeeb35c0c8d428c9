//! Splits a template into text and tokens, with Jinja's rules for white space as transformers sets
//! them: `trim_blocks`, `lstrip_blocks`, and no line end at the end.

use super::meter::{Fault, Outcome};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Data(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

/// Longest first.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!",
];

/// White space as in Python: Unicode's, and four ASCII separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether what came before ends a line.
    line_starting: bool,
    out: Vec<(Token, u32)>,
}

/// Splits a template into tokens with their lines.
///
/// # Errors
/// The fault and its line.
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, u32)>, (Fault, u32)> {
    let mut lexer = Lexer {
        source: source.strip_suffix('\n').unwrap_or(source),
        at: 0,
        line: 1,
        line_starting: true,
        out: Vec::new(),
    };
    match lexer.template() {
        Ok(()) => Ok(lexer.out),
        Err(fault) => Err((fault, lexer.line)),
    }
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn advance(&mut self, bytes: usize) {
        let passed = self.rest().get(..bytes).unwrap_or(self.rest());
        self.line += passed.matches('\n').count() as u32;
        self.line_starting = passed.ends_with('\n');
        self.at += passed.len();
    }

    fn push(&mut self, token: Token) {
        self.out.push((token, self.line));
    }

    fn template(&mut self) -> Outcome<()> {
        while !self.rest().is_empty() {
            let rest = self.rest();
            let begin = rest
                .match_indices('{')
                .map(|(at, _)| at)
                .find(|at| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
            let Some(begin) = begin else {
                self.push(Token::Data(rest.to_owned()));
                self.advance(rest.len());
                break;
            };
            let kind = rest.as_bytes().get(begin + 1).copied().unwrap_or_default();
            let sign = rest.as_bytes().get(begin + 2).copied();
            let sign = sign.filter(|sign| matches!(sign, b'-' | b'+'));
            let text = self.text_before(&rest[..begin], kind, sign);
            if !text.is_empty() {
                self.push(Token::Data(text.to_owned()));
            }
            self.advance(begin + 2 + usize::from(sign.is_some()));
            match kind {
                b'#' => self.comment()?,
                b'{' => self.tag(false)?,
                _ if self.raw()? => {}
                _ => self.tag(true)?,
            }
        }
        Ok(())
    }

    /// Strips the text before a tag.
    fn text_before(&self, text: &'a str, kind: u8, sign: Option<u8>) -> &'a str {
        if sign == Some(b'-') {
            return text.trim_end_matches(is_space);
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let indented = kind != b'{'
            && sign.is_none()
            && (line > 0 || self.line_starting)
            && text[line..].chars().all(is_space);
        if indented { &text[..line] } else { text }
    }

    /// Passes the end of a tag; `sign` is the character before it.
    fn pass_end(&mut self, sign: Option<u8>, trims_line: bool) {
        self.advance(2 + usize::from(sign.is_some()));
        let rest = self.rest();
        let spaces = match sign {
            Some(b'-') => rest.len() - rest.trim_start_matches(is_space).len(),
            None if trims_line && rest.starts_with('\n') => 1,
            _ => 0,
        };
        if spaces > 0 {
            self.advance(spaces);
        }
    }

    fn comment(&mut self) -> Outcome<()> {
        let Some(end) = self.rest().find("#}") else {
            return Err(Fault("a comment has no end".into()));
        };
        let sign = end
            .checked_sub(1)
            .and_then(|before| self.rest().as_bytes().get(before).copied())
            .filter(|sign| matches!(sign, b'-' | b'+'));
        self.advance(end - usize::from(sign.is_some()));
        self.pass_end(sign, true);
        Ok(())
    }

    /// Reads `raw %}…{% endraw %}`; false if the block is another one.
    fn raw(&mut self) -> Outcome<bool> {
        let Some(after) = word(self.rest(), "raw") else {
            return Ok(false);
        };
        let (sign, length) = match () {
            () if after.starts_with("-%}") => (Some(b'-'), 3),
            () if after.starts_with("%}") => (None, 2),
            () => return Ok(false),
        };
        let opened = self.rest().len() - after.len();
        self.advance(opened + length - 2 - usize::from(sign.is_some()));
        self.pass_end(sign, false);
        let rest = self.rest();
        let closing = rest.match_indices("{%").find_map(|(at, _)| {
            let inside = &rest[at + 2..];
            let body = inside.strip_prefix(['-', '+']).unwrap_or(inside);
            let after = word(body, "endraw")?;
            let end = after.strip_prefix(['-', '+']).unwrap_or(after);
            end.starts_with("%}").then_some((at, inside, after))
        });
        let Some((at, inside, after)) = closing else {
            return Err(Fault("a raw block has no end".into()));
        };
        let sign = inside.bytes().next().filter(|c| matches!(c, b'-' | b'+'));
        let text = self.text_before(&rest[..at], b'%', sign);
        if !text.is_empty() {
            self.push(Token::Data(text.to_owned()));
        }
        self.advance(rest.len() - after.len());
        let sign = after.bytes().next().filter(|c| matches!(c, b'-' | b'+'));
        self.pass_end(sign, true);
        Ok(true)
    }

    /// Reads the tokens of a tag and its end.
    fn tag(&mut self, block: bool) -> Outcome<()> {
        self.push(if block {
            Token::BlockBegin
        } else {
            Token::VariableBegin
        });
        let mut open = 0usize;
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches(is_space).len();
            self.advance(blank);
            let rest = self.rest();
            if rest.is_empty() {
                return Err(Fault("a tag has no end".into()));
            }
            let sign = rest.bytes().next().filter(|c| matches!(c, b'-' | b'+'));
            let sign = sign.filter(|sign| block || *sign == b'-');
            let ends = if block { "%}" } else { "}}" };
            let signed = sign.is_some() && rest[1..].starts_with(ends);
            if open == 0 && (signed || rest.starts_with(ends)) {
                self.push(if block {
                    Token::BlockEnd
                } else {
                    Token::VariableEnd
                });
                self.pass_end(sign.filter(|_| signed), block);
                return Ok(());
            }
            let token = self.token()?;
            match token {
                Token::Op("(" | "[" | "{") => open += 1,
                Token::Op(")" | "]" | "}") => open = open.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Reads one token.
    fn token(&mut self) -> Outcome<Token> {
        let rest = self.rest();
        let first = rest.chars().next().unwrap_or_default();
        let (token, length) = match first {
            '"' | '\'' => string(rest, first)?,
            '0'..='9' => number(rest)?,
            c if c == '_' || c.is_alphabetic() => {
                let end = rest
                    .find(|c: char| c != '_' && !c.is_alphanumeric())
                    .unwrap_or(rest.len());
                (Token::Name(rest[..end].to_owned()), end)
            }
            c => {
                let operator = OPERATORS.iter().find(|op| rest.starts_with(**op));
                let Some(operator) = operator else {
                    return Err(Fault(format!("unexpected {c:?}")));
                };
                (Token::Op(operator), operator.len())
            }
        };
        self.push(token.clone());
        self.advance(length);
        Ok(token)
    }
}

/// Returns what follows a word and the white space around it.
fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let after = text.trim_start_matches(is_space).strip_prefix(word)?;
    let rest = after.trim_start_matches(is_space);
    Some(rest)
}

fn number(text: &str) -> Outcome<(Token, usize)> {
    let bad = |text: &str| Fault(format!("the number {text:.40} is out of range"));
    let radix = match text.get(..2) {
        Some("0x" | "0X") => 16,
        Some("0o" | "0O") => 8,
        Some("0b" | "0B") => 2,
        _ => 10,
    };
    if radix != 10 {
        let end = text[2..]
            .find(|c: char| c != '_' && !c.is_digit(radix))
            .map_or(text.len(), |at| at + 2);
        let digits = text[2..end].replace('_', "");
        let value = i64::from_str_radix(&digits, radix).map_err(|_| bad(&text[..end]))?;
        return Ok((Token::Int(value), end));
    }
    let digits = |from: usize| {
        text[from..]
            .find(|c: char| c != '_' && !c.is_ascii_digit())
            .map_or(text.len(), |at| from + at)
    };
    let mut end = digits(0);
    let whole = end;
    let digit_at = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    if text[end..].starts_with('.') && digit_at(end + 1) {
        end = digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let signed = text[end + 1..].starts_with(['+', '-']);
        let from = end + 1 + usize::from(signed);
        if digit_at(from) {
            end = digits(from);
        }
    }
    let plain = text[..end].replace('_', "");
    let token = match end == whole {
        true => Token::Int(plain.parse().map_err(|_| bad(&plain))?),
        false => Token::Float(plain.parse().map_err(|_| bad(&plain))?),
    };
    Ok((token, end))
}

/// Reads a string with Python's escapes.
fn string(text: &str, quote: char) -> Outcome<(Token, usize)> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == quote {
            return Ok((Token::Str(out), at + 1));
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some((_, code)) = chars.next() else { break };
        match code {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'v' => out.push('\u{b}'),
            'a' => out.push('\u{7}'),
            '\n' => {}
            '\\' | '\'' | '"' => out.push(code),
            'x' | 'u' | 'U' => {
                let length = match code {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let hex: String = chars.by_ref().take(length).map(|(_, c)| c).collect();
                let value = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                let Some(value) = value else {
                    return Err(Fault(format!(
                        "the escape \\{code}{hex} is not a valid character"
                    )));
                };
                out.push(value);
            }
            '0'..='7' => {
                let mut value = code.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    let next = chars.clone().next().and_then(|(_, c)| c.to_digit(8));
                    let Some(digit) = next else { break };
                    value = value * 8 + digit;
                    chars.next();
                }
                out.extend(char::from_u32(value));
            }
            other => out.extend(['\\', other]),
        }
    }
    Err(Fault("a string has no end".into()))
}
