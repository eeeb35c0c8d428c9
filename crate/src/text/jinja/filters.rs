//! Jinja's filters and tests.

use std::cmp::Ordering;
use std::rc::Rc;

use super::args::Args;
use super::ast::{BinaryOp, CompareOp};
use super::binary;
use super::format;
use super::functions;
use super::lexer::is_space;
use super::meter::{Fault, MeteredText, Outcome, fault};
use super::methods::{self, change_case, pair, replace, splitlines};
use super::runtime::Runtime;
use super::subscript;
use super::value::print::to_json;
use super::value::{ListBuffer, Str, Value};
use crate::util::limits::MAX_FORMAT_WIDTH;
use crate::util::sort::sort_by;

/// Applies a filter.
pub(super) fn apply(
    run: &mut dyn Runtime,
    name: &str,
    value: Value,
    mut args: Args,
) -> Outcome<Value> {
    match name {
        "tojson" => to_json(run.meter(), &value, args),
        "default" | "d" => {
            let default = args.take(0, "default_value");
            let falsy = args.flag(1, "boolean");
            args.finish(name, 2)?;
            if value.is_undefined() || (falsy && !value.truthy()) {
                return match default {
                    Some(default) => Ok(default),
                    None => Value::text(run.meter(), ""),
                };
            }
            Ok(value)
        }
        "length" | "count" => match value.len(run.meter())? {
            Some(length) => Ok(Value::Int(length as i64)),
            None => fault(format!(
                "object of type '{}' has no len()",
                value.type_name()
            )),
        },
        "string" | "safe" | "trim" | "upper" | "lower" | "capitalize" | "title" | "indent"
        | "replace" | "format" | "center" | "truncate" | "wordcount" | "escape" | "e"
        | "forceescape" | "urlencode" | "pprint" => text_filter(run, name, &value, args),
        "abs" | "int" | "float" | "round" => number_filter(name, &value, args),
        "first" | "last" | "list" | "reverse" | "items" | "dictsort" | "join" | "sum" | "batch"
        | "slice" | "min" | "max" | "sort" | "unique" | "groupby" => {
            list_filter(run, name, &value, args)
        }
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            each_item(run, name, &value, args)
        }
        "attr" => {
            let attribute = args.text(0, "name")?;
            let attribute = attribute.as_ref().map_or("", |name| &name[..]);
            subscript::attribute(run, &value, attribute)
        }
        other => fault(format!("No filter named '{other:.40}'.")),
    }
}

/// `str(value)`.
fn text_of(run: &dyn Runtime, value: &Value) -> Outcome<Str> {
    if let Value::Str(text) = value {
        return Ok(Rc::clone(text));
    }
    let mut out = MeteredText::new(run.meter());
    value.print(&mut out)?;
    Ok(Rc::new(out.finish()?))
}

fn text_filter(run: &mut dyn Runtime, name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    let meter = Rc::clone(run.meter());
    let text = text_of(run, value)?;
    meter.read(text.len())?;
    match name {
        "string" | "safe" => Ok(Value::Str(text)),
        "trim" => {
            let chars = args.text(0, "chars")?;
            args.finish(name, 1)?;
            if let Some(chars) = &chars {
                meter.work(text.len() / 16 * (1 + chars.len() / 16))?;
            }
            Value::text(
                &meter,
                text.trim_matches(|c: char| match &chars {
                    None => is_space(c),
                    Some(chars) => chars.contains(c),
                }),
            )
        }
        "indent" => indent(run, &text, args),
        "replace" => replace(&meter, &text, args),
        "format" => {
            let arguments = match args.named.is_empty() {
                true => {
                    let mut items = ListBuffer::new(&meter);
                    items.extend(&args.positional)?;
                    Value::Tuple(items.finish()?)
                }
                false => functions::dict(&meter, args)?,
            };
            format::percent(&meter, &text, &arguments)
        }
        "center" => {
            let width = args.int(0, "width")?.unwrap_or(80);
            let mut inner = Args::default();
            inner.positional.push(Value::Int(width));
            methods::call(&meter, &Value::Str(text), "center", inner)
        }
        "truncate" => truncate(run, &text, args),
        "wordcount" => {
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            let count = words.filter(|word| !word.is_empty()).count();
            Ok(Value::Int(count as i64))
        }
        "escape" | "e" | "forceescape" => {
            let mut out = MeteredText::new(&meter);
            for c in text.chars() {
                match c {
                    '&' => out.push_str("&amp;")?,
                    '<' => out.push_str("&lt;")?,
                    '>' => out.push_str("&gt;")?,
                    '"' => out.push_str("&#34;")?,
                    '\'' => out.push_str("&#39;")?,
                    c => out.push(c)?,
                }
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        "urlencode" => {
            let mut out = MeteredText::new(&meter);
            for byte in text.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                        out.push(char::from(byte))?;
                    }
                    byte => out.push_str(&format!("%{byte:02X}"))?,
                }
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        "pprint" => {
            let mut out = MeteredText::new(&meter);
            value.print_repr(&mut out)?;
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        "title" => {
            let mut out = MeteredText::new(&meter);
            let mut starts = true;
            for c in text.chars() {
                match starts {
                    true => c.to_uppercase().try_for_each(|c| out.push(c))?,
                    false => c.to_lowercase().try_for_each(|c| out.push(c))?,
                }
                starts = is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        case => change_case(&meter, &text, case),
    }
}

/// Jinja's `indent(width=4, first=false, blank=false)`, which keeps a line end at the end.
fn indent(run: &dyn Runtime, text: &str, mut args: Args) -> Outcome<Value> {
    let indention: Str = match args.optional(0, "width") {
        Some(Value::Str(text)) => text,
        width => {
            let width = width.and_then(|width| width.as_int()).unwrap_or(4);
            let width = usize::try_from(width).unwrap_or(0);
            if width > MAX_FORMAT_WIDTH {
                return fault(format!("an indent is above {MAX_FORMAT_WIDTH}"));
            }
            let mut out = MeteredText::new(run.meter());
            out.fill(' ', width)?;
            Rc::new(out.finish()?)
        }
    };
    let first = args.flag(1, "first");
    let blank = args.flag(2, "blank");
    args.finish("indent", 3)?;
    let mut ended = MeteredText::new(run.meter());
    ended.push_str(text)?;
    ended.push('\n')?;
    let lines = splitlines(run.meter(), ended.as_str(), false)?;
    let mut out = MeteredText::new(run.meter());
    for (index, line) in lines.items().iter().enumerate() {
        let line = line.as_str().unwrap_or_default();
        if index > 0 {
            out.push('\n')?;
        }
        let indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indented {
            out.push_str(&indention)?;
        }
        out.push_str(line)?;
    }
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn truncate(run: &dyn Runtime, text: &str, mut args: Args) -> Outcome<Value> {
    let length = args.int(0, "length")?.unwrap_or(255);
    let kill_words = args.flag(1, "killwords");
    let end = args.text(2, "end")?;
    let end = end.as_ref().map_or("...", |end| &end[..]);
    let leeway = args.int(3, "leeway")?.unwrap_or(5);
    args.finish("truncate", 4)?;
    let length = usize::try_from(length).unwrap_or(0);
    let leeway = usize::try_from(leeway).unwrap_or(0);
    if text.chars().count() <= length.saturating_add(leeway) {
        return Value::text(run.meter(), text);
    }
    let kept = length.saturating_sub(end.chars().count());
    let cut = text
        .char_indices()
        .nth(kept)
        .map_or(text.len(), |(at, _)| at);
    let mut head = &text[..cut];
    if !kill_words {
        head = head.rsplit_once(' ').map_or(head, |(before, _)| before);
    }
    let mut out = MeteredText::new(run.meter());
    out.push_str(head)?;
    out.push_str(end)?;
    Ok(Value::Str(Rc::new(out.finish()?)))
}

fn number_filter(name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    if let Value::Undefined(unknown) = value
        && matches!(name, "abs" | "round")
    {
        return fault(format!("'{}' is undefined", &unknown[..]));
    }
    match name {
        "abs" => match value {
            Value::Float(n) => Ok(Value::Float(n.abs())),
            other => match other.as_int().and_then(i64::checked_abs) {
                Some(n) => Ok(Value::Int(n)),
                None => fault(format!(
                    "bad operand type for abs(): '{}'",
                    other.type_name()
                )),
            },
        },
        "int" => {
            let default = args.take(0, "default").unwrap_or(Value::Int(0));
            let base = args.int(1, "base")?.unwrap_or(10);
            args.finish(name, 2)?;
            Ok(to_int(value, base).map_or(default, Value::Int))
        }
        "float" => {
            let default = args.take(0, "default").unwrap_or(Value::Float(0.0));
            args.finish(name, 1)?;
            let parsed = match value {
                Value::Str(text) => text.trim().parse::<f64>().ok(),
                other => other.as_float(),
            };
            Ok(parsed.map_or(default, Value::Float))
        }
        _ => {
            let precision = args.int(0, "precision")?.unwrap_or(0);
            let method = args.text(1, "method")?;
            let method = method.as_ref().map_or("common", |method| &method[..]);
            args.finish(name, 2)?;
            round(value, precision, method)
        }
    }
}

fn to_int(value: &Value, base: i64) -> Option<i64> {
    match value {
        Value::Str(text) => {
            let radix = u32::try_from(base).ok().filter(|b| (2..=36).contains(b))?;
            let text = text.trim();
            let digits = match radix {
                16 => text.strip_prefix("0x").unwrap_or(text),
                _ => text,
            };
            let whole = i64::from_str_radix(digits, radix).ok();
            whole.or_else(|| text.parse::<f64>().ok().map(|n| n as i64))
        }
        Value::Float(n) if n.is_finite() => Some(*n as i64),
        other => other.as_int(),
    }
}

fn round(value: &Value, precision: i64, method: &str) -> Outcome<Value> {
    let Some(n) = value.as_float() else {
        return fault(format!("type {} cannot be rounded", value.type_name()));
    };
    if let (Some(n), "common", 0..) = (value.as_int(), method, precision) {
        return Ok(Value::Int(n));
    }
    let scale = 10f64.powi(precision.clamp(-300, 300) as i32);
    let scaled = n * scale;
    let rounded = match method {
        "common" => scaled.round_ties_even(),
        "ceil" => scaled.ceil(),
        "floor" => scaled.floor(),
        other => {
            return fault(format!(
                "method must be common, ceil or floor, not {other:.40?}"
            ));
        }
    };
    let result = rounded / scale;
    Ok(Value::Float(if result.is_finite() { result } else { n }))
}

/// Reads an attribute path such as `function.name` or an index.
fn path(run: &mut dyn Runtime, value: &Value, attribute: &Value) -> Outcome<Value> {
    let Value::Str(names) = attribute else {
        return subscript::item(run, value, attribute);
    };
    let mut value = value.clone();
    for name in names.split('.') {
        let index = match name.parse::<i64>() {
            Ok(index) => Value::Int(index),
            Err(_) => Value::text(run.meter(), name)?,
        };
        value = subscript::item(run, &value, &index)?;
    }
    Ok(value)
}

fn path_or(run: &mut dyn Runtime, value: &Value, attribute: Option<&Value>) -> Outcome<Value> {
    match attribute {
        Some(attribute) => path(run, value, attribute),
        None => Ok(value.clone()),
    }
}

fn each_item(run: &mut dyn Runtime, name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    // Jinja does not iterate over false values, so `none | map(…)` is empty.
    if !value.truthy() {
        return ListBuffer::new(run.meter()).list();
    }
    let items = value.iterate(run.meter())?;
    let mut out = ListBuffer::new(run.meter());
    if name == "map" && args.named.iter().any(|(name, _)| name == "attribute") {
        let attribute = args.required(usize::MAX, "attribute")?;
        let default = args.take(usize::MAX, "default");
        args.finish(name, 0)?;
        for item in items.iter() {
            let found = path(run, item, &attribute)?;
            out.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            })?;
        }
        return out.list();
    }
    let by_attribute = name.ends_with("attr");
    let attribute = match by_attribute {
        true if args.positional.is_empty() => return fault("the argument 'attr' is missing"),
        true => Some(args.positional.remove(0)),
        false => None,
    };
    let function = match args.positional.is_empty() {
        true => None,
        false => match args.positional.remove(0) {
            Value::Str(function) => Some(function),
            other => {
                return fault(format!(
                    "a filter or test is named by a string, not {}",
                    other.type_name()
                ));
            }
        },
    };
    for item in items.iter() {
        let subject = path_or(run, item, attribute.as_ref())?;
        run.meter().work(1 + args.positional.len())?;
        let copy = Args {
            positional: args.positional.clone(),
            named: args.named.clone(),
        };
        if name == "map" {
            let Some(function) = &function else {
                return fault("map requires a filter argument");
            };
            out.push(apply(run, function, subject, copy)?)?;
            continue;
        }
        let holds = match &function {
            Some(function) => test(run, function, &subject, copy)?,
            None => subject.truthy(),
        };
        if holds != name.starts_with("reject") {
            out.push(item.clone())?;
        }
    }
    out.list()
}

fn list_filter(run: &mut dyn Runtime, name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    let meter = Rc::clone(run.meter());
    if let (Value::Str(text), "reverse") = (value, name) {
        let reversed: String = text.chars().rev().collect();
        return Value::text(&meter, &reversed);
    }
    if matches!(name, "items" | "dictsort") {
        return dict_filter(run, name, value, args);
    }
    let items = value.iterate(&meter)?;
    match name {
        "first" | "last" => {
            let found = match name {
                "first" => items.first(),
                _ => items.last(),
            };
            match found {
                Some(value) => Ok(value.clone()),
                None => Value::undefined(&meter, "an item of an empty sequence"),
            }
        }
        "list" => Ok(Value::List(items)),
        "reverse" => {
            let mut out = ListBuffer::new(&meter);
            out.extend(&items)?;
            out.reverse();
            out.list()
        }
        "join" => {
            let separator = args.take(0, "d");
            let attribute = args.optional(1, "attribute");
            args.finish(name, 2)?;
            let separator = match &separator {
                Some(separator) => Some(text_of(run, separator)?),
                None => None,
            };
            let mut out = MeteredText::new(&meter);
            for (index, item) in items.iter().enumerate() {
                meter.work(1)?;
                if let Some(separator) = separator.as_ref().filter(|_| index > 0) {
                    out.push_str(separator)?;
                }
                path_or(run, item, attribute.as_ref())?.print(&mut out)?;
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        "sum" => {
            let attribute = args.optional(0, "attribute");
            let mut sum = args.take(1, "start").unwrap_or(Value::Int(0));
            for item in items.iter() {
                let item = path_or(run, item, attribute.as_ref())?;
                sum = binary::apply(&meter, BinaryOp::Add, &sum, &item)?;
            }
            Ok(sum)
        }
        "batch" | "slice" => chunks(run, name, &items, args),
        "min" | "max" => {
            let sensitive = args.flag(0, "case_sensitive");
            let attribute = args.optional(1, "attribute");
            let sorted = sorted(run, &items, attribute.as_ref(), sensitive)?;
            let found = match name {
                "min" => sorted.first(),
                _ => sorted.last(),
            };
            match found {
                Some(value) => Ok(value.clone()),
                None => Value::undefined(&meter, "an item of an empty sequence"),
            }
        }
        "sort" => {
            let reverse = args.flag(0, "reverse");
            let sensitive = args.flag(1, "case_sensitive");
            let attribute = args.optional(2, "attribute");
            args.finish(name, 3)?;
            let mut sorted = sorted(run, &items, attribute.as_ref(), sensitive)?;
            if reverse {
                sorted.reverse();
            }
            let mut out = ListBuffer::new(&meter);
            out.extend(&sorted)?;
            out.list()
        }
        "unique" => {
            let sensitive = args.flag(0, "case_sensitive");
            let attribute = args.optional(1, "attribute");
            let mut out = ListBuffer::new(&meter);
            let mut seen: Vec<Value> = Vec::new();
            for item in items.iter() {
                let key = sort_key(run, item, attribute.as_ref(), sensitive)?;
                let mut known = false;
                for old in &seen {
                    known |= old.equals(&meter, &key)?;
                }
                if !known {
                    seen.push(key);
                    out.push(item.clone())?;
                }
            }
            out.list()
        }
        _ => {
            let attribute = args.required(0, "attribute")?;
            group_by(run, &items, &attribute)
        }
    }
}

fn dict_filter(run: &mut dyn Runtime, name: &str, value: &Value, mut args: Args) -> Outcome<Value> {
    let meter = Rc::clone(run.meter());
    let dict = match value {
        Value::Dict(dict) => dict,
        Value::Undefined(_) => return ListBuffer::new(&meter).list(),
        other => {
            return fault(format!(
                "Can only get item pairs from a mapping, not {}",
                other.type_name()
            ));
        }
    };
    let mut pairs = ListBuffer::new(&meter);
    for (key, value) in dict.entries() {
        pairs.push(pair(&meter, key, value)?)?;
    }
    if name == "items" {
        return pairs.list();
    }
    let sensitive = args.flag(0, "case_sensitive");
    let by = args.text(1, "by")?;
    let reverse = args.flag(2, "reverse");
    args.finish(name, 3)?;
    let place = i64::from(by.is_some_and(|by| &by[..] == "value"));
    let mut sorted = sorted(run, pairs.items(), Some(&Value::Int(place)), sensitive)?;
    if reverse {
        sorted.reverse();
    }
    let mut out = ListBuffer::new(&meter);
    out.extend(&sorted)?;
    out.list()
}

fn sort_key(
    run: &mut dyn Runtime,
    item: &Value,
    attribute: Option<&Value>,
    sensitive: bool,
) -> Outcome<Value> {
    // Several attributes with commas are a tuple.
    if let Some(Value::Str(names)) = attribute
        && names.contains(',')
    {
        let mut keys = ListBuffer::new(run.meter());
        for name in names.split(',') {
            let name = Value::text(run.meter(), name)?;
            keys.push(sort_key(run, item, Some(&name), sensitive)?)?;
        }
        return Ok(Value::Tuple(keys.finish()?));
    }
    let key = path_or(run, item, attribute)?;
    match &key {
        Value::Str(text) if !sensitive => change_case(run.meter(), text, "lower"),
        _ => Ok(key),
    }
}

fn sorted(
    run: &mut dyn Runtime,
    items: &[Value],
    attribute: Option<&Value>,
    sensitive: bool,
) -> Outcome<Vec<Value>> {
    let mut keyed: Vec<(Value, Value)> = Vec::new();
    for item in items {
        run.meter().work(2)?;
        keyed.push((sort_key(run, item, attribute, sensitive)?, item.clone()));
    }
    let failed: std::cell::Cell<Option<Fault>> = std::cell::Cell::new(None);
    let meter = Rc::clone(run.meter());
    sort_by(&mut keyed, |a, b| match a.0.compare(&meter, &b.0) {
        Ok(order) => order,
        Err(fault) => {
            failed.set(Some(fault));
            Ordering::Equal
        }
    });
    match failed.into_inner() {
        Some(fault) => Err(fault),
        None => Ok(keyed.into_iter().map(|(_, item)| item).collect()),
    }
}

fn group_by(run: &mut dyn Runtime, items: &[Value], attribute: &Value) -> Outcome<Value> {
    let meter = Rc::clone(run.meter());
    let mut groups = ListBuffer::new(&meter);
    let mut open: Option<(Value, ListBuffer)> = None;
    for item in sorted(run, items, Some(attribute), false)? {
        let key = sort_key(run, &item, Some(attribute), false)?;
        let same = match &open {
            Some((last, _)) => last.equals(&meter, &key)?,
            None => false,
        };
        if !same {
            if let Some((key, members)) = open.take() {
                groups.push(pair(&meter, &key, &members.list()?)?)?;
            }
            open = Some((key, ListBuffer::new(&meter)));
        }
        if let Some((_, members)) = &mut open {
            members.push(item)?;
        }
    }
    if let Some((key, members)) = open {
        groups.push(pair(&meter, &key, &members.list()?)?)?;
    }
    groups.list()
}

/// `batch(n, fill)`: lists of n items; `slice(n, fill)`: n lists.
fn chunks(run: &dyn Runtime, name: &str, items: &[Value], mut args: Args) -> Outcome<Value> {
    let meter = run.meter();
    let count = args.int(0, "count")?.or(args.int(usize::MAX, "linecount")?);
    let count = count.or(args.int(usize::MAX, "slices")?).unwrap_or(0);
    let fill = args.optional(1, "fill_with");
    args.finish(name, 2)?;
    let Ok(count @ 1..) = usize::try_from(count) else {
        return fault(format!("{name} needs a positive number"));
    };
    let mut out = ListBuffer::new(meter);
    if name == "batch" {
        for part in items.chunks(count) {
            let mut list = ListBuffer::new(meter);
            list.extend(part)?;
            if let Some(fill) = &fill {
                for _ in part.len()..count {
                    list.push(fill.clone())?;
                }
            }
            out.push(list.list()?)?;
        }
        return out.list();
    }
    let each = items.len() / count;
    let longer = items.len() % count;
    let mut at = 0;
    for index in 0..count {
        let length = each + usize::from(index < longer);
        let mut list = ListBuffer::new(meter);
        list.extend(items.get(at..at + length).unwrap_or_default())?;
        at += length;
        if let Some(fill) = fill.as_ref().filter(|_| index >= longer) {
            list.push(fill.clone())?;
        }
        out.push(list.list()?)?;
    }
    out.list()
}

/// Applies a test.
pub(super) fn test(
    run: &mut dyn Runtime,
    name: &str,
    value: &Value,
    mut args: Args,
) -> Outcome<bool> {
    let compared = match name {
        "eq" | "equalto" | "==" => Some(CompareOp::Eq),
        "ne" | "!=" => Some(CompareOp::Ne),
        "lt" | "lessthan" | "<" => Some(CompareOp::Lt),
        "le" | "<=" => Some(CompareOp::Le),
        "gt" | "greaterthan" | ">" => Some(CompareOp::Gt),
        "ge" | ">=" => Some(CompareOp::Ge),
        "in" => Some(CompareOp::In),
        _ => None,
    };
    if let Some(op) = compared {
        let other = args.required(0, "other")?;
        return binary::compare(run.meter(), op, value, &other);
    }
    let is_text = |holds: &str| -> Outcome<bool> {
        let text = text_of(run, value)?;
        run.meter().read(text.len())?;
        Ok(match holds {
            "lower" => {
                text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase)
            }
            _ => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        })
    };
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Undefined(_)
        ),
        "iterable" => matches!(
            value,
            Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Undefined(_)
                | Value::Loop(_)
        ),
        "callable" => matches!(
            value,
            Value::Macro(_) | Value::Function(_) | Value::Method(_) | Value::Loop(_)
        ),
        "odd" | "even" | "divisibleby" => {
            let by = match name {
                "divisibleby" => args.int(0, "num")?.unwrap_or(0),
                _ => 2,
            };
            let rest = match value.as_int() {
                Some(n) => n.checked_rem_euclid(by),
                None => None,
            };
            match rest {
                Some(rest) => (rest == 0) != (name == "odd"),
                None => return fault(format!("'{}' has no remainder", value.type_name())),
            }
        }
        "sameas" => {
            let other = args.required(0, "other")?;
            value.type_name() == other.type_name() && value.equals(run.meter(), &other)?
        }
        "lower" | "upper" => is_text(name)?,
        "escaped" => false,
        other => return fault(format!("No test named '{other:.40}'.")),
    })
}
