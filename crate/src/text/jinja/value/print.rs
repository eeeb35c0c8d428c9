//! Python's text of values: `str`, `repr` and `json.dumps`.

use std::rc::Rc;

use super::{Dict, Value};
use crate::text::jinja::args::Args;
use crate::text::jinja::meter::{Meter, MeteredText, Outcome, fault};
use crate::util::limits::MAX_FORMAT_WIDTH;
use crate::util::sort::sort_by;

/// Formats a float as Python does: the shortest digits that round-trip, with an exponent from 1e16
/// on and below 1e-4.
pub(in crate::text::jinja) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
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

impl Value {
    /// Appends `str(value)`.
    pub fn print(&self, out: &mut MeteredText) -> Outcome<()> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(text) => out.push_str(text),
            other => other.print_repr(out),
        }
    }

    /// Appends `repr(value)`.
    pub fn print_repr(&self, out: &mut MeteredText) -> Outcome<()> {
        out.meter().work(1)?;
        match self {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(n) => out.push_str(&n.to_string()),
            Value::Float(n) => out.push_str(&float_text(*n)),
            Value::Str(text) => print_quoted(text, out),
            Value::List(items) => {
                out.push('[')?;
                print_items(items, out)?;
                out.push(']')
            }
            Value::Tuple(items) => {
                out.push('(')?;
                print_items(items, out)?;
                out.push_str(if items.len() == 1 { ",)" } else { ")" })
            }
            Value::Dict(dict) => print_dict(dict, out),
            Value::Namespace(_) => out.push_str("<Namespace>"),
            Value::Macro(_) => out.push_str("<Macro>"),
            Value::Function(_) => out.push_str("<function>"),
            Value::Method(method) => out.push_str(&format!("<method {}>", method.name)),
            Value::Loop(_) => out.push_str("<LoopContext>"),
        }
    }
}

fn print_items(items: &[Value], out: &mut MeteredText) -> Outcome<()> {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ")?;
        }
        item.print_repr(out)?;
    }
    Ok(())
}

fn print_dict(dict: &Dict, out: &mut MeteredText) -> Outcome<()> {
    out.push('{')?;
    for (index, (key, value)) in dict.entries().iter().enumerate() {
        if index > 0 {
            out.push_str(", ")?;
        }
        key.print_repr(out)?;
        out.push_str(": ")?;
        value.print_repr(out)?;
    }
    out.push('}')
}

fn print_quoted(text: &str, out: &mut MeteredText) -> Outcome<()> {
    out.meter().read(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            c if c == quote => {
                out.push('\\')?;
                out.push(c)?;
            }
            c if c < ' ' || ('\u{7f}'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)))?;
            }
            c => out.push(c)?,
        }
    }
    out.push(quote)
}

/// Options of `json.dumps`.
struct JsonFormat {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    separators: (String, String),
}

impl JsonFormat {
    /// Appends the JSON of a value, nested this deep.
    fn write(&self, value: &Value, depth: usize, out: &mut MeteredText) -> Outcome<()> {
        out.meter().work(1)?;
        match value {
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(n) => out.push_str(&n.to_string()),
            Value::Float(n) => out.push_str(&json_number(*n)),
            Value::Str(text) => self.write_string(text, out),
            Value::List(items) | Value::Tuple(items) => {
                out.push('[')?;
                for (index, item) in items.iter().enumerate() {
                    self.separate(index, depth + 1, out)?;
                    self.write(item, depth + 1, out)?;
                }
                self.close(!items.is_empty(), ']', depth, out)
            }
            Value::Dict(dict) => self.write_dict(dict, depth, out),
            other => fault(format!(
                "Object of type {} is not JSON serializable",
                other.type_name()
            )),
        }
    }

    fn write_dict(&self, dict: &Rc<Dict>, depth: usize, out: &mut MeteredText) -> Outcome<()> {
        let mut entries: Vec<&(Value, Value)> = dict.entries().iter().collect();
        if self.sort {
            let all_text = entries.iter().all(|(key, _)| key.as_str().is_some());
            if !all_text && entries.len() > 1 {
                return fault("keys of different types cannot be sorted");
            }
            out.meter().work(entries.len() * 4)?;
            sort_by(&mut entries, |a, b| a.0.as_str().cmp(&b.0.as_str()));
        }
        out.push('{')?;
        for (index, (key, value)) in entries.iter().enumerate() {
            self.separate(index, depth + 1, out)?;
            match key {
                Value::Str(text) => self.write_string(text, out)?,
                Value::None => self.write_string("null", out)?,
                Value::Bool(true) => self.write_string("true", out)?,
                Value::Bool(false) => self.write_string("false", out)?,
                Value::Int(n) => self.write_string(&n.to_string(), out)?,
                Value::Float(n) => self.write_string(&json_number(*n), out)?,
                other => {
                    return fault(format!(
                        "keys must be str, int, float, bool or None, not {}",
                        other.type_name()
                    ));
                }
            }
            out.push_str(&self.separators.1)?;
            self.write(value, depth + 1, out)?;
        }
        self.close(!entries.is_empty(), '}', depth, out)
    }

    /// Begins the item of this index.
    fn separate(&self, index: usize, depth: usize, out: &mut MeteredText) -> Outcome<()> {
        if index > 0 {
            out.push_str(&self.separators.0)?;
        }
        self.line(depth, out)
    }

    fn close(
        &self,
        filled: bool,
        bracket: char,
        depth: usize,
        out: &mut MeteredText,
    ) -> Outcome<()> {
        if filled {
            self.line(depth, out)?;
        }
        out.push(bracket)
    }

    fn line(&self, depth: usize, out: &mut MeteredText) -> Outcome<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        out.push('\n')?;
        (0..depth).try_for_each(|_| out.push_str(indent))
    }

    fn write_string(&self, text: &str, out: &mut MeteredText) -> Outcome<()> {
        out.meter().read(text.len())?;
        out.push('"')?;
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\"")?,
                '\\' => out.push_str("\\\\")?,
                '\n' => out.push_str("\\n")?,
                '\r' => out.push_str("\\r")?,
                '\t' => out.push_str("\\t")?,
                '\u{8}' => out.push_str("\\b")?,
                '\u{c}' => out.push_str("\\f")?,
                c if c < ' ' || (self.ascii && !c.is_ascii()) || (self.ascii && c == '\u{7f}') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => out.push(c)?,
            }
        }
        out.push('"')
    }
}

/// `tojson` as transformers overrides it:
/// `json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(in crate::text::jinja) fn to_json(
    meter: &Rc<Meter>,
    value: &Value,
    mut args: Args,
) -> Outcome<Value> {
    let ascii = args.flag(0, "ensure_ascii");
    let indent = match args.optional(1, "indent") {
        None => None,
        Some(Value::Str(text)) => Some(text[..].to_owned()),
        Some(other) => {
            let width = usize::try_from(other.as_int().unwrap_or(0)).unwrap_or(0);
            if width > MAX_FORMAT_WIDTH {
                return fault(format!("an indent is above {MAX_FORMAT_WIDTH}"));
            }
            Some(" ".repeat(width))
        }
    };
    let separators = match args.optional(2, "separators") {
        Some(given) => {
            let parts = given.iterate(meter)?;
            match &parts[..] {
                [Value::Str(item), Value::Str(key)] => (item[..].to_owned(), key[..].to_owned()),
                _ => return fault("separators must be two strings"),
            }
        }
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let sort = args.flag(3, "sort_keys");
    args.finish("tojson", 4)?;
    let json = JsonFormat {
        ascii,
        sort,
        indent,
        separators,
    };
    let mut out = MeteredText::new(meter);
    json.write(value, 0, &mut out)?;
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn json_number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float_text(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (123_456_789_012_345.0, "123456789012345.0"),
            (1.5e-5, "1.5e-05"),
            (-0.0, "-0.0"),
            (1e-4, "0.0001"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }
}
