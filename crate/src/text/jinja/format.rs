//! Python's `%` and `str.format`. Widths and precisions are limited.

use std::rc::Rc;

use super::args::Args;
use super::meter::{Meter, MeteredText, Outcome, fault};
use super::value::Value;
use crate::util::limits::MAX_FORMAT_WIDTH;

/// How a value is formatted.
#[derive(Default)]
struct FormatSpec {
    fill: Option<char>,
    /// One of `<`, `>`, `^`, `=`.
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    comma: bool,
    precision: Option<usize>,
    kind: Option<char>,
}

fn limited(digits: &str) -> Outcome<usize> {
    match digits.parse::<usize>() {
        Ok(n) if n <= MAX_FORMAT_WIDTH => Ok(n),
        _ if digits.is_empty() => Ok(0),
        _ => fault(format!(
            "a width or precision of a format is above {MAX_FORMAT_WIDTH}"
        )),
    }
}

/// Splits leading digits off.
fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// `format % values`.
pub(super) fn percent(meter: &Rc<Meter>, format: &str, values: &Value) -> Outcome<Value> {
    meter.read(format.len())?;
    let mut out = MeteredText::new(meter);
    let mut rest = format;
    let mut next = 0;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at])?;
        rest = &rest[at + 1..];
        let mut by_name = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let Some((name, after)) = inner.split_once(')') else {
                return fault("incomplete format key");
            };
            by_name = Some(name);
            rest = after;
        }
        let mut spec = FormatSpec {
            align: Some('>'),
            ..FormatSpec::default()
        };
        while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.fill = Some('0'),
                '#' => spec.alternate = true,
                sign => spec.sign = Some(sign),
            }
            rest = &rest[1..];
        }
        let (width, after) = digits(rest);
        spec.width = limited(width)?;
        rest = after;
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = digits(after);
            spec.precision = Some(limited(precision)?);
            rest = after;
        }
        let Some(kind) = rest.chars().next() else {
            return fault("incomplete format");
        };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%')?;
            continue;
        }
        let value = percent_value(meter, values, by_name, &mut next)?;
        percent_one(&value, kind, spec, &mut out)?;
    }
    out.push_str(rest)?;
    let unused = match values {
        Value::Tuple(items) => next < items.len(),
        Value::Dict(_) | Value::List(_) => false,
        _ => next == 0,
    };
    if unused {
        return fault("not all arguments converted during string formatting");
    }
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn percent_value(
    meter: &Rc<Meter>,
    values: &Value,
    by_name: Option<&str>,
    next: &mut usize,
) -> Outcome<Value> {
    let found = match (values, by_name) {
        (Value::Dict(dict), Some(name)) => dict.get_str(meter, name)?.cloned(),
        (_, Some(_)) => return fault("format requires a mapping"),
        (Value::Tuple(items), None) => items.get(*next).cloned(),
        (other, None) => (*next == 0).then(|| other.clone()),
    };
    *next += 1;
    match found {
        Some(value) => Ok(value),
        None => fault("not enough arguments for format string"),
    }
}

fn percent_one(
    value: &Value,
    kind: char,
    mut spec: FormatSpec,
    out: &mut MeteredText,
) -> Outcome<()> {
    let left = spec.align == Some('<');
    match kind {
        's' | 'r' => {
            let mut text = MeteredText::new(out.meter());
            if kind == 's' {
                value.print(&mut text)?;
            } else {
                value.print_repr(&mut text)?;
            }
            spec.fill = None;
            pad(cut(text.as_str(), spec.precision), &spec, out)
        }
        'c' => match value {
            Value::Str(text) if text.chars().count() == 1 => pad(text, &spec, out),
            other => {
                spec.kind = Some('c');
                one(other, &spec, out)
            }
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            if spec.fill == Some('0') {
                spec.fill = None;
                if !left {
                    spec.fill = Some('0');
                    spec.align = Some('=');
                }
            }
            let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
            let number = match (kind, value) {
                ('d', Value::Float(n)) => Value::Int(float_to_int(*n)?),
                _ => value.clone(),
            };
            spec.kind = Some(kind);
            if matches!(kind, 'd' | 'x' | 'X' | 'o') {
                spec.precision = None;
            }
            one(&number, &spec, out)
        }
        other => fault(format!("unsupported format character {other:?}")),
    }
}

fn float_to_int(value: f64) -> Outcome<i64> {
    if value.is_finite() && value.abs() < 9.0e18 {
        return Ok(value as i64);
    }
    fault("a float is out of the range of integers")
}

fn cut(text: &str, precision: Option<usize>) -> &str {
    let end = precision.and_then(|n| text.char_indices().nth(n));
    end.map_or(text, |(at, _)| &text[..at])
}

/// Appends text with fill characters around it.
fn pad(text: &str, spec: &FormatSpec, out: &mut MeteredText) -> Outcome<()> {
    let fill = spec.fill.unwrap_or(' ');
    let missing = spec.width.saturating_sub(text.chars().count());
    let before = match spec.align {
        Some('>' | '=') => missing,
        Some('^') => missing / 2,
        _ => 0,
    };
    out.fill(fill, before)?;
    out.push_str(text)?;
    out.fill(fill, missing - before)
}

/// `template.format(…)`.
pub(super) fn braces(meter: &Rc<Meter>, template: &str, args: &Args) -> Outcome<Value> {
    meter.read(template.len())?;
    let mut out = MeteredText::new(meter);
    let mut rest = template;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at])?;
        let brace = if rest[at..].starts_with('{') {
            '{'
        } else {
            '}'
        };
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        let Some((field, after)) = rest.split_once('}').filter(|_| brace == '{') else {
            return fault("a format string has a single brace");
        };
        rest = after;
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, conversion),
            None => (name, ""),
        };
        let value = if name.is_empty() {
            next += 1;
            args.positional.get(next - 1)
        } else if let Ok(index) = name.parse::<usize>() {
            args.positional.get(index)
        } else {
            args.named
                .iter()
                .find(|(own, _)| own == name)
                .map(|(_, value)| value)
        };
        let Some(value) = value else {
            return fault(format!(
                "a format string names {name:.40?}, which is not given"
            ));
        };
        let spec = parse_spec(spec)?;
        if conversion == "r" {
            let mut text = MeteredText::new(meter);
            value.print_repr(&mut text)?;
            pad(cut(text.as_str(), spec.precision), &spec, &mut out)?;
        } else {
            one(value, &spec, &mut out)?;
        }
    }
    out.push_str(rest)?;
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn parse_spec(text: &str) -> Outcome<FormatSpec> {
    let mut spec = FormatSpec::default();
    let mut rest = text;
    let is_align = |c: char| matches!(c, '<' | '>' | '^' | '=');
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if is_align(align) => {
            spec.fill = Some(fill);
            spec.align = Some(align);
            rest = &rest[fill.len_utf8() + 1..];
        }
        (Some(align), _) if is_align(align) => {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        _ => {}
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = after;
    }
    if rest.starts_with('0') {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
    }
    let (width, after) = digits(rest);
    spec.width = limited(width)?;
    rest = after;
    if let Some(after) = rest.strip_prefix([',', '_']) {
        spec.comma = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('.') {
        let (precision, after) = digits(after);
        spec.precision = Some(limited(precision)?);
        rest = after;
    }
    let mut kinds = rest.chars();
    spec.kind = kinds.next();
    if kinds.next().is_some() {
        return fault(format!("the format {text:.40?} is not supported"));
    }
    Ok(spec)
}

/// Appends a value in its format.
fn one(value: &Value, spec: &FormatSpec, out: &mut MeteredText) -> Outcome<()> {
    let kind = spec.kind.unwrap_or('\0');
    let integer = match (kind, value) {
        ('d' | 'x' | 'X' | 'o' | 'b' | 'c', _) => match value.as_int() {
            Some(n) => Some(n),
            None => return wrong_type(kind, value),
        },
        ('\0', Value::Int(n)) if spec.precision.is_none() => Some(*n),
        _ => None,
    };
    if let Some(n) = integer {
        let magnitude = n.unsigned_abs();
        let text = match kind {
            'x' => format!("{magnitude:x}"),
            'X' => format!("{magnitude:X}"),
            'o' => format!("{magnitude:o}"),
            'b' => format!("{magnitude:b}"),
            'c' => String::from_iter(u32::try_from(n).ok().and_then(char::from_u32)),
            _ => magnitude.to_string(),
        };
        let prefix = match kind {
            'x' | 'X' | 'o' | 'b' if spec.alternate => format!("0{kind}"),
            _ => String::new(),
        };
        return number(n < 0, &prefix, &text, spec, out);
    }
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')
        || (matches!(value, Value::Float(_)) && kind == '\0')
    {
        let Some(n) = value.as_float() else {
            return wrong_type(kind, value);
        };
        let text = float(n.abs(), kind, spec.precision);
        return number(n.is_sign_negative() && !n.is_nan(), "", &text, spec, out);
    }
    if !matches!(kind, '\0' | 's') {
        return wrong_type(kind, value);
    }
    let mut text = MeteredText::new(out.meter());
    value.print(&mut text)?;
    pad(cut(text.as_str(), spec.precision), spec, out)
}

fn wrong_type<T>(kind: char, value: &Value) -> Outcome<T> {
    fault(format!(
        "the format {kind:?} does not take a {}",
        value.type_name()
    ))
}

fn float(value: f64, kind: char, precision: Option<usize>) -> String {
    if !value.is_finite() {
        return super::value::print::float_text(value);
    }
    let digits = precision.unwrap_or(6);
    match kind {
        'f' | 'F' => format!("{value:.digits$}"),
        '%' => format!("{:.digits$}%", value * 100.0),
        'e' | 'E' => exponent(&format!("{value:.digits$e}"), kind),
        'g' | 'G' => general(value, digits.max(1), kind),
        _ => match precision {
            Some(digits) => general(value, digits.max(1), 'g'),
            None => super::value::print::float_text(value),
        },
    }
}

/// Writes an exponent with a sign and two digits.
fn exponent(text: &str, kind: char) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}{kind}{sign}{:02}", exponent.abs())
}

fn general(value: f64, digits: usize, kind: char) -> String {
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= digits as i32 {
        let letter = if kind == 'G' { 'E' } else { 'e' };
        return exponent(&format!("{}e{power}", trim(mantissa)), letter);
    }
    let decimals = usize::try_from(digits as i32 - 1 - power).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}

/// Appends a number with its sign, prefix and thousands.
fn number(
    negative: bool,
    prefix: &str,
    digits: &str,
    spec: &FormatSpec,
    out: &mut MeteredText,
) -> Outcome<()> {
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let mut body = String::new();
    let whole = digits.find(['.', 'e', '%']).unwrap_or(digits.len());
    for (at, c) in digits.char_indices() {
        if spec.comma && at > 0 && at < whole && (whole - at).is_multiple_of(3) {
            body.push(',');
        }
        body.push(c);
    }
    let spec_fill = spec.fill.unwrap_or(' ');
    let missing = spec
        .width
        .saturating_sub(sign.len() + prefix.len() + body.chars().count());
    if spec.align == Some('=') {
        out.push_str(sign)?;
        out.push_str(prefix)?;
        out.fill(spec_fill, missing)?;
        return out.push_str(&body);
    }
    let before = match spec.align {
        Some('<') => 0,
        Some('^') => missing / 2,
        _ => missing,
    };
    out.fill(spec_fill, before)?;
    out.push_str(sign)?;
    out.push_str(prefix)?;
    out.push_str(&body)?;
    out.fill(spec_fill, missing - before)
}
