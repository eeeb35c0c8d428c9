//! Methods of Python's `str`, `list` and `dict` that change nothing.

use std::rc::Rc;

use super::args::Args;
use super::format;
use super::lexer::is_space;
use super::meter::{Meter, MeteredText, Outcome, fault};
use super::value::{Dict, ListBuffer, Value};
use crate::util::limits::MAX_FORMAT_WIDTH;

const STR_METHODS: [&str; 42] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "expandtabs",
    "isidentifier",
];
const DICT_METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST_METHODS: [&str; 3] = ["count", "index", "copy"];

/// Returns the method of this name that the value has.
pub(super) fn method_name(value: &Value, name: &str) -> Option<&'static str> {
    let names: &[&'static str] = match value {
        Value::Str(_) => &STR_METHODS,
        Value::Dict(_) => &DICT_METHODS,
        Value::List(_) | Value::Tuple(_) => &LIST_METHODS,
        _ => return None,
    };
    names.iter().copied().find(|own| *own == name)
}

/// Calls a method.
pub(super) fn call(
    meter: &Rc<Meter>,
    this: &Value,
    name: &'static str,
    args: Args,
) -> Outcome<Value> {
    match this {
        Value::Str(text) => {
            meter.read(text.len())?;
            text_method(meter, text, name, args)
        }
        Value::Dict(dict) => dict_method(meter, dict, name, args),
        Value::List(items) | Value::Tuple(items) => list_method(meter, this, items, name, args),
        Value::Loop(state) => {
            let count = args.positional.len();
            match args.positional.get(state.index.get() % count.max(1)) {
                Some(value) => Ok(value.clone()),
                None => fault("no items for cycling given"),
            }
        }
        other => fault(format!("'{}' has no methods", other.type_name())),
    }
}

fn dict_method(meter: &Rc<Meter>, dict: &Rc<Dict>, name: &str, mut args: Args) -> Outcome<Value> {
    if name == "get" {
        let key = args.required(0, "key")?;
        let default = args.take(1, "default");
        let found = dict.get(meter, &key)?.cloned();
        return Ok(found.or(default).unwrap_or(Value::None));
    }
    args.finish(name, 0)?;
    if name == "copy" {
        return Ok(Value::Dict(Rc::clone(dict)));
    }
    let mut out = ListBuffer::new(meter);
    for (key, value) in dict.entries() {
        out.push(match name {
            "keys" => key.clone(),
            "values" => value.clone(),
            _ => pair(meter, key, value)?,
        })?;
    }
    out.list()
}

/// A tuple of two values.
pub(super) fn pair(meter: &Rc<Meter>, key: &Value, value: &Value) -> Outcome<Value> {
    let mut out = ListBuffer::new(meter);
    out.push(key.clone())?;
    out.push(value.clone())?;
    Ok(Value::Tuple(out.finish()?))
}

fn list_method(
    meter: &Rc<Meter>,
    this: &Value,
    items: &[Value],
    name: &str,
    mut args: Args,
) -> Outcome<Value> {
    if name == "copy" {
        return Ok(this.clone());
    }
    let wanted = args.required(0, "value")?;
    let mut count = 0;
    for (at, item) in items.iter().enumerate() {
        if item.equals(meter, &wanted)? {
            if name == "index" {
                return Ok(Value::Int(at as i64));
            }
            count += 1;
        }
    }
    if name == "index" {
        return fault("the value is not in the list");
    }
    Ok(Value::Int(count))
}

fn finished(out: MeteredText) -> Outcome<Value> {
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn text_method(meter: &Rc<Meter>, text: &str, name: &str, args: Args) -> Outcome<Value> {
    match name {
        "strip" | "lstrip" | "rstrip" => strip(meter, text, name, args),
        "split" | "rsplit" => split(meter, text, name == "rsplit", args),
        "splitlines" => {
            let mut args = args;
            let keep_ends = args.flag(0, "keepends");
            splitlines(meter, text, keep_ends)?.list()
        }
        "partition" | "rpartition" => partition(meter, text, name == "rpartition", args),
        "replace" => replace(meter, text, args),
        "join" => join(meter, text, args),
        "format" => format::braces(meter, text, &args),
        "startswith" | "endswith" => affix(text, name == "startswith", args),
        "removeprefix" | "removesuffix" => {
            let mut args = args;
            let part = args.text(0, "affix")?;
            let part = part.as_ref().map_or("", |part| &part[..]);
            let cut = match name {
                "removeprefix" => text.strip_prefix(part),
                _ => text.strip_suffix(part),
            };
            Value::text(meter, cut.unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(meter, text, name, args),
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => widen(meter, text, name, args),
        _ => {
            args.finish(name, 0)?;
            match name.starts_with("is") {
                true => Ok(Value::Bool(is_kind(text, name))),
                false => change_case(meter, text, name),
            }
        }
    }
}

fn strip(meter: &Rc<Meter>, text: &str, name: &str, mut args: Args) -> Outcome<Value> {
    let chars = args.text(0, "chars")?;
    args.finish(name, 1)?;
    if let Some(chars) = &chars {
        meter.work(text.len() / 16 * (1 + chars.len() / 16))?;
    }
    let goes = |c: char| match &chars {
        None => is_space(c),
        Some(chars) => chars.contains(c),
    };
    let text = if name == "rstrip" {
        text
    } else {
        text.trim_start_matches(goes)
    };
    Value::text(
        meter,
        if name == "lstrip" {
            text
        } else {
            text.trim_end_matches(goes)
        },
    )
}

fn split(meter: &Rc<Meter>, text: &str, from_end: bool, mut args: Args) -> Outcome<Value> {
    let separator = args.text(0, "sep")?;
    let limit = args.int(1, "maxsplit")?;
    args.finish("split", 2)?;
    let limit = limit
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let mut out = ListBuffer::new(meter);
    let Some(separator) = separator else {
        split_spaces(meter, text, from_end, limit, &mut out)?;
        return out.list();
    };
    if separator.is_empty() {
        return fault("empty separator");
    }
    let parts = limit.saturating_add(1);
    if from_end {
        for part in text.rsplitn(parts, &separator[..]) {
            out.push(Value::text(meter, part)?)?;
        }
        out.reverse();
    } else {
        for part in text.splitn(parts, &separator[..]) {
            out.push(Value::text(meter, part)?)?;
        }
    }
    out.list()
}

fn split_spaces(
    meter: &Rc<Meter>,
    text: &str,
    from_end: bool,
    limit: usize,
    out: &mut ListBuffer,
) -> Outcome<()> {
    let mut rest = text;
    for _ in 0..limit {
        rest = if from_end {
            rest.trim_end_matches(is_space)
        } else {
            rest.trim_start_matches(is_space)
        };
        let cut = if from_end {
            rest.char_indices()
                .rev()
                .find(|(_, c)| is_space(*c))
                .map(|(at, c)| (&rest[at + c.len_utf8()..], &rest[..at]))
        } else {
            rest.char_indices()
                .find(|(_, c)| is_space(*c))
                .map(|(at, _)| (&rest[..at], &rest[at..]))
        };
        let Some((part, after)) = cut else { break };
        out.push(Value::text(meter, part)?)?;
        rest = after;
    }
    rest = if from_end {
        rest.trim_end_matches(is_space)
    } else {
        rest.trim_start_matches(is_space)
    };
    if !rest.is_empty() {
        out.push(Value::text(meter, rest)?)?;
    }
    if from_end {
        out.reverse();
    }
    Ok(())
}

/// `str.splitlines()`: the lines with or without their line ends.
pub(super) fn splitlines(meter: &Rc<Meter>, text: &str, keep_ends: bool) -> Outcome<ListBuffer> {
    let mut out = ListBuffer::new(meter);
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    }) {
        let length = if rest[at..].starts_with("\r\n") {
            2
        } else {
            end.len_utf8()
        };
        let line = if keep_ends {
            &rest[..at + length]
        } else {
            &rest[..at]
        };
        out.push(Value::text(meter, line)?)?;
        rest = &rest[at + length..];
    }
    if !rest.is_empty() {
        out.push(Value::text(meter, rest)?)?;
    }
    Ok(out)
}

fn partition(meter: &Rc<Meter>, text: &str, from_end: bool, mut args: Args) -> Outcome<Value> {
    let separator = args.text(0, "sep")?;
    let separator = separator.as_ref().map_or("", |text| &text[..]);
    if separator.is_empty() {
        return fault("empty separator");
    }
    let (cut, missing) = if from_end {
        (text.rsplit_once(separator), ["", "", text])
    } else {
        (text.split_once(separator), [text, "", ""])
    };
    let parts = cut.map_or(missing, |(before, after)| [before, separator, after]);
    let mut out = ListBuffer::new(meter);
    for part in parts {
        out.push(Value::text(meter, part)?)?;
    }
    Ok(Value::Tuple(out.finish()?))
}

/// `str.replace(old, new, count)`.
pub(super) fn replace(meter: &Rc<Meter>, text: &str, mut args: Args) -> Outcome<Value> {
    let old = args.required(0, "old")?;
    let new = args.required(1, "new")?;
    let count = args.int(2, "count")?;
    args.finish("replace", 3)?;
    let count = count
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let mut printed = [MeteredText::new(meter), MeteredText::new(meter)];
    let [old_text, new_text] = &mut printed;
    old.print(old_text)?;
    new.print(new_text)?;
    let mut out = MeteredText::new(meter);
    let mut last = 0;
    for (at, found) in text.match_indices(old_text.as_str()).take(count) {
        meter.work(1)?;
        out.push_str(&text[last..at])?;
        out.push_str(new_text.as_str())?;
        last = at + found.len();
    }
    out.push_str(&text[last..])?;
    finished(out)
}

fn join(meter: &Rc<Meter>, separator: &str, mut args: Args) -> Outcome<Value> {
    let items = args.required(0, "iterable")?.iterate(meter)?;
    let mut out = MeteredText::new(meter);
    for (index, item) in items.iter().enumerate() {
        meter.work(1)?;
        if index > 0 {
            out.push_str(separator)?;
        }
        match item {
            Value::Str(text) => out.push_str(text)?,
            other => {
                return fault(format!(
                    "sequence item {index}: expected str instance, {} found",
                    other.type_name()
                ));
            }
        }
    }
    finished(out)
}

fn affix(text: &str, start: bool, mut args: Args) -> Outcome<Value> {
    let wanted = args.required(0, "affix")?;
    let one = |value: &Value| match value {
        Value::Str(part) if start => Ok(text.starts_with(&part[..])),
        Value::Str(part) => Ok(text.ends_with(&part[..])),
        other => fault(format!(
            "startswith and endswith take strings, not {}",
            other.type_name()
        )),
    };
    Ok(Value::Bool(match &wanted {
        Value::Tuple(items) => {
            let mut found = false;
            for item in items.iter() {
                found |= one(item)?;
            }
            found
        }
        other => one(other)?,
    }))
}

fn search(meter: &Rc<Meter>, text: &str, name: &str, mut args: Args) -> Outcome<Value> {
    let part = args.text(0, "sub")?;
    let part = part.as_ref().map_or("", |part| &part[..]);
    let start = args.int(1, "start")?.unwrap_or(0);
    args.finish(name, 2)?;
    let skipped = match usize::try_from(start) {
        Ok(n) => n,
        Err(_) => {
            let back = usize::try_from(start.unsigned_abs()).unwrap_or(usize::MAX);
            text.chars().count().saturating_sub(back)
        }
    };
    let from = text
        .char_indices()
        .nth(skipped)
        .map_or(text.len(), |(at, _)| at);
    let rest = &text[from..];
    if name == "count" {
        let count = match part.is_empty() {
            true => rest.chars().count() + 1,
            false => rest.matches(part).count(),
        };
        return Ok(Value::Int(count as i64));
    }
    let found = match name.starts_with('r') {
        true => rest.rfind(part),
        false => rest.find(part),
    };
    meter.read(text.len())?;
    match found {
        Some(at) => Ok(Value::Int(text[..from + at].chars().count() as i64)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => fault("substring not found"),
    }
}

fn widen(meter: &Rc<Meter>, text: &str, name: &str, mut args: Args) -> Outcome<Value> {
    let default = if name == "expandtabs" { 8 } else { 0 };
    let width = args.int(0, "width")?.unwrap_or(default);
    let fill = args.text(1, "fillchar")?;
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_FORMAT_WIDTH {
        return fault(format!("a width is above {MAX_FORMAT_WIDTH}"));
    }
    let mut out = MeteredText::new(meter);
    if name == "expandtabs" {
        let mut column = 0;
        for c in text.chars() {
            match c {
                '\t' if width > 0 => {
                    let spaces = width - column % width;
                    out.fill(' ', spaces)?;
                    column += spaces;
                }
                '\t' => {}
                c => {
                    out.push(c)?;
                    column = if c == '\n' || c == '\r' {
                        0
                    } else {
                        column + 1
                    };
                }
            }
        }
        return finished(out);
    }
    let fill = fill.as_ref().and_then(|fill| fill.chars().next());
    let missing = width.saturating_sub(text.chars().count());
    if name == "zfill" {
        let signed = usize::from(text.starts_with(['-', '+']));
        out.push_str(&text[..signed])?;
        out.fill('0', missing)?;
        out.push_str(&text[signed..])?;
        return finished(out);
    }
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    let fill = fill.unwrap_or(' ');
    out.fill(fill, before)?;
    out.push_str(text)?;
    out.fill(fill, missing - before)?;
    finished(out)
}

fn is_kind(text: &str, name: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" | "isdigit" => all(|c| c.is_ascii_digit()),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        "isidentifier" => {
            all(|c| c == '_' || c.is_alphanumeric()) && !text.starts_with(|c: char| c.is_numeric())
        }
        _ => {
            let mut inside = false;
            let mut cased = false;
            for c in text.chars() {
                if c.is_uppercase() && inside || c.is_lowercase() && !inside {
                    return false;
                }
                inside = c.is_uppercase() || c.is_lowercase();
                cased |= inside;
            }
            cased
        }
    }
}

/// The methods and filters that change case.
pub(super) fn change_case(meter: &Rc<Meter>, text: &str, name: &str) -> Outcome<Value> {
    meter.read(text.len())?;
    let mut out = MeteredText::new(meter);
    match name {
        "upper" => return Value::text(meter, &text.to_uppercase()),
        "lower" | "casefold" => return Value::text(meter, &text.to_lowercase()),
        "capitalize" => {
            let mut chars = text.chars();
            if let Some(first) = chars.next() {
                first.to_uppercase().try_for_each(|c| out.push(c))?;
            }
            out.push_str(&chars.as_str().to_lowercase())?;
        }
        "swapcase" => {
            for c in text.chars() {
                match c.is_uppercase() {
                    true => c.to_lowercase().try_for_each(|c| out.push(c))?,
                    false => c.to_uppercase().try_for_each(|c| out.push(c))?,
                }
            }
        }
        "title" => {
            let mut inside = false;
            for c in text.chars() {
                match inside {
                    true => c.to_lowercase().try_for_each(|c| out.push(c))?,
                    false => c.to_uppercase().try_for_each(|c| out.push(c))?,
                }
                inside = c.is_alphabetic();
            }
        }
        other => return fault(format!("str has no method '{other}'")),
    }
    finished(out)
}
