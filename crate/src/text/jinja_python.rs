//! Python behavior that chat templates need and the template engine lacks: `json.dumps`, `indent`,
//! and string methods whose white space differs from Rust's.

use crate::util::sort::sort_by;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

fn error(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// Converts a JSON value to the template engine's.
pub(super) fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(value).collect::<Vec<Value>>().into(),
        Json::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(key, field)| (key.as_str(), value(field))),
        ),
    }
}

/// `tojson` as transformers overrides it:
/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine's calling convention"
)]
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |name: &str, place: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named
            .or_else(|| args.get(place).cloned())
            .filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let indent = match argument("indent", 1)? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(n) => Some(
            " ".repeat(
                usize::try_from(n.as_i64().unwrap_or(0))
                    .unwrap_or(0)
                    .min(64),
            ),
        ),
    };
    let separators = match argument("separators", 2)? {
        Some(pair) => (
            pair.get_item_by_index(0)?.to_string(),
            pair.get_item_by_index(1)?.to_string(),
        ),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let json = PythonJson {
        ascii: argument("ensure_ascii", 0)?.is_some_and(|v| v.is_true()),
        sort: argument("sort_keys", 3)?.is_some_and(|v| v.is_true()),
        indent,
        separators,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    json.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

struct PythonJson {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    separators: (String, String),
}

/// Maximum nesting of a value.
const MAX_VALUE_DEPTH: usize = 200;

impl PythonJson {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_VALUE_DEPTH {
            return Err(error(format!(
                "tojson: the value has more than {MAX_VALUE_DEPTH} nested levels"
            )));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&number(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block(&items, ('[', ']'), depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    sort_by(&mut keys, Ord::cmp);
                }
                self.block(&keys, ('{', '}'), depth, out, |key, out| {
                    let name = match key.kind() {
                        ValueKind::None => "null".to_owned(),
                        ValueKind::Bool => key.to_string().to_lowercase(),
                        _ => key.to_string(),
                    };
                    self.string(&name, out);
                    out.push_str(&self.separators.1);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            other => {
                return Err(error(format!(
                    "Object of type {other} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        items: &[Value],
        (open, close): (char, char),
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators.0);
            }
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) || (self.ascii && c == '\u{7f}') => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Formats a float as Python does: the shortest digits that round-trip, with an exponent from 1e16
/// on and below 1e-4.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

/// Whether `str.strip()` strips the character: Unicode's white space and four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Methods of Python's `str` that the engine's own compatibility layer lacks or implements
/// differently.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            let text = if name == "rstrip" {
                text
            } else {
                text.trim_start_matches(goes)
            };
            Value::from(if name == "lstrip" {
                text
            } else {
                text.trim_end_matches(goes)
            })
        }
        "split" if args.is_empty() => text
            .split(is_space)
            .filter(|part| !part.is_empty())
            .map(Value::from)
            .collect(),
        "split" | "rsplit" if args.first().is_some_and(|sep| sep.as_str().is_some()) => {
            let (separator, limit): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(error("empty separator"));
            }
            let limit = limit
                .and_then(|n| usize::try_from(n).ok())
                .map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<&str> = if name == "split" {
                text.splitn(limit, separator).collect()
            } else {
                text.rsplitn(limit, separator).collect()
            };
            if name == "rsplit" {
                parts.reverse();
            }
            parts.into_iter().map(Value::from).collect()
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keep_ends.unwrap_or(false))
                .into_iter()
                .map(Value::from)
                .collect()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (cut, missing) = match name {
                "partition" => (text.split_once(separator), [text, "", ""]),
                _ => (text.rsplit_once(separator), ["", "", text]),
            };
            let parts = cut.map_or(missing, |(before, after)| [before, separator, after]);
            parts.into_iter().map(Value::from).collect()
        }
        _ => return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    })
}

/// `trim` of the text of any value, with Python's white space.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine's calling convention"
)]
pub(super) fn trim(value: &Value, chars: Option<String>) -> Value {
    let text = value.to_string();

    Value::from(text.trim_matches(|c: char| {
        chars
            .as_ref()
            .map_or_else(|| is_space(c), |chars| chars.contains(c))
    }))
}

/// `str.splitlines()`: the lines with or without their line ends.
fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    }) {
        let tail = rest.get(at..).unwrap_or_default();
        let len = if tail.starts_with("\r\n") {
            2
        } else {
            tail.chars().next().map_or(1, char::len_utf8)
        };
        let (line, after) = rest.split_at(at + len);
        out.push(if keep_ends {
            line
        } else {
            line.get(..at).unwrap_or_default()
        });
        rest = after;
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// Jinja's `indent(width=4, first=false, blank=false)`, which keeps a line break at the end.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine's calling convention"
)]
pub(super) fn indent(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let argument = |name: &str, place: usize| -> Result<Option<Value>, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(named.or_else(|| args.get(place).cloned()))
    };
    let indention = match argument("width", 0)? {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                usize::try_from(width.as_i64().unwrap_or(0))
                    .unwrap_or(0)
                    .min(1000),
            ),
        },
    };
    let first = argument("first", 1)?.is_some_and(|v| v.is_true());
    let blank = argument("blank", 2)?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let text = format!("{value}\n");
    let mut out = String::new();
    for (i, line) in lines(&text, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// `length`, which is 0 for an undefined value.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        _ if value.is_undefined() => Ok(0),
        Some(n) => Ok(n),
        None => match value.kind() {
            ValueKind::Iterable => Ok(value.try_iter()?.count()),
            kind => Err(error(format!("object of type {kind} has no length"))),
        },
    }
}

/// Jinja's `sequence` test: anything with a length and items, including strings and mappings.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::Seq | ValueKind::Map | ValueKind::String
    )
}

/// Jinja's `iterable` test.
pub(super) fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || value.kind() == ValueKind::Iterable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123456789012345.0, "123456789012345.0"),
            (1.5e-5, "1.5e-05"),
            (-0.0, "-0.0"),
            (1e-4, "0.0001"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
