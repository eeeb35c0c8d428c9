//! Attributes, items and slices of values.

use std::rc::Rc;

use super::meter::{Meter, MeteredText, Outcome, fault};
use super::methods::method_name;
use super::runtime::Runtime;
use super::value::{ListBuffer, LoopState, Method, Value};

fn undefined_error<T>(name: &str) -> Outcome<T> {
    fault(format!("'{name}' is undefined"))
}

/// `value.name`: a method, then an item.
pub(super) fn attribute(run: &dyn Runtime, value: &Value, name: &str) -> Outcome<Value> {
    if let Value::Undefined(unknown) = value {
        return undefined_error(unknown);
    }
    if let Some(method) = method_name(value, name) {
        return Method::of(value.clone(), method);
    }
    let found = match value {
        Value::Dict(dict) => dict.get_str(run.meter(), name)?.cloned(),
        Value::Namespace(index) => run.namespace_value(*index, name),
        Value::Macro(index) => match (name, run.macro_name(*index)) {
            ("name", Some(name)) => Some(Value::text(run.meter(), name)?),
            _ => None,
        },
        Value::Loop(state) => loop_attribute(run.meter(), state, name)?,
        _ => None,
    };
    match found {
        Some(value) => Ok(value),
        None => Value::undefined(run.meter(), name),
    }
}

fn loop_attribute(meter: &Rc<Meter>, state: &Rc<LoopState>, name: &str) -> Outcome<Option<Value>> {
    let index = state.index.get();
    let length = state.items.len();
    let neighbor = |at: Option<usize>| at.and_then(|at| state.items.get(at)).cloned();
    Ok(Some(match name {
        "index" => Value::Int(index as i64 + 1),
        "index0" => Value::Int(index as i64),
        "revindex" => Value::Int((length - index) as i64),
        "revindex0" => Value::Int((length - index) as i64 - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => Value::Int(length as i64),
        "depth" => Value::Int(state.level as i64 + 1),
        "depth0" => Value::Int(state.level as i64),
        "cycle" => Method::of(Value::Loop(Rc::clone(state)), "cycle")?,
        "previtem" | "nextitem" => {
            let at = match name {
                "previtem" => index.checked_sub(1),
                _ => Some(index + 1),
            };
            match neighbor(at) {
                Some(value) => value,
                None => Value::undefined(meter, name)?,
            }
        }
        _ => return Ok(None),
    }))
}

/// `value[index]`: an item, then an attribute.
pub(super) fn item(run: &dyn Runtime, value: &Value, index: &Value) -> Outcome<Value> {
    let at = index.as_int();
    let found = match value {
        Value::Undefined(unknown) => return undefined_error(unknown),
        Value::Dict(dict) => dict.get(run.meter(), index)?.cloned(),
        Value::List(items) | Value::Tuple(items) => at
            .and_then(|at| position(at, items.len()))
            .and_then(|at| items.get(at))
            .cloned(),
        Value::Str(text) => match at {
            Some(at) => char_at(run.meter(), text, at)?,
            None => None,
        },
        _ => None,
    };
    if let Some(value) = found {
        return Ok(value);
    }
    if let Value::Str(name) = index {
        return attribute(run, value, name);
    }
    let mut name = MeteredText::new(run.meter());
    match index {
        Value::Int(_) | Value::Bool(_) | Value::None | Value::Float(_) => index.print(&mut name)?,
        other => name.push_str(other.type_name())?,
    }
    Value::undefined(run.meter(), name.as_str())
}

/// Returns the place of a Python index.
fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    let at = if index < 0 { index + length } else { index };
    usize::try_from(at).ok().filter(|_| at < length)
}

fn char_at(meter: &Rc<Meter>, text: &str, index: i64) -> Outcome<Option<Value>> {
    meter.read(text.len())?;
    let found = if index < 0 {
        let back = usize::try_from(-(index + 1)).unwrap_or(usize::MAX);
        text.chars().nth_back(back)
    } else {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        text.chars().nth(at)
    };
    match found {
        Some(c) => Value::text(meter, c.encode_utf8(&mut [0; 4])).map(Some),
        None => Ok(None),
    }
}

/// First index, step, and how many, as Python's `slice.indices`.
fn indices(bounds: &[Option<Value>; 3], length: usize) -> Outcome<(i64, i64, usize)> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match bound {
            None | Some(Value::None) => None,
            Some(value) => match value.as_int() {
                Some(n) => Some(n),
                None => {
                    return fault(format!(
                        "slice indices must be integers, not {}",
                        value.type_name()
                    ));
                }
            },
        };
    }
    let [start, stop, step] = numbers;
    let step = step.unwrap_or(1);
    if step == 0 {
        return fault("slice step cannot be zero");
    }
    let length = length as i64;
    let clamp = |bound: Option<i64>, default: i64| {
        let (low, high) = if step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let Some(n) = bound else { return default };
        let n = if n < 0 { n.saturating_add(length) } else { n };
        n.clamp(low, high)
    };
    let (first, last) = if step > 0 {
        (0, length)
    } else {
        (length - 1, -1)
    };
    let start = clamp(start, first);
    let stop = clamp(stop, last);
    let span = if step > 0 { stop - start } else { start - stop };
    let size = step.unsigned_abs();
    let count = (span.max(0) as u64).div_ceil(size);
    Ok((start, step, count as usize))
}

/// `value[start:stop:step]`.
pub(super) fn slice(
    meter: &Rc<Meter>,
    value: &Value,
    bounds: &[Option<Value>; 3],
) -> Outcome<Value> {
    match value {
        Value::Str(text) => {
            meter.read(text.len() * 2)?;
            let (start, step, count) = indices(bounds, text.chars().count())?;
            let mut out = MeteredText::new(meter);
            if step > 0 {
                let from = text.chars().skip(usize::try_from(start).unwrap_or(0));
                let by = usize::try_from(step).unwrap_or(usize::MAX);
                for c in from.step_by(by).take(count) {
                    out.push(c)?;
                }
            } else {
                let behind = text.chars().count() as i64 - 1 - start;
                let from = text.chars().rev();
                let from = from.skip(usize::try_from(behind).unwrap_or(0));
                let by = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
                for c in from.step_by(by).take(count) {
                    out.push(c)?;
                }
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        Value::List(items) | Value::Tuple(items) => {
            let (start, step, count) = indices(bounds, items.len())?;
            let mut out = ListBuffer::new(meter);
            for n in 0..count {
                let at = start.saturating_add(step.saturating_mul(n as i64));
                if let Some(item) = usize::try_from(at).ok().and_then(|at| items.get(at)) {
                    out.push(item.clone())?;
                }
            }
            match value {
                Value::List(_) => out.list(),
                _ => Ok(Value::Tuple(out.finish()?)),
            }
        }
        Value::Undefined(unknown) => undefined_error(unknown),
        other => fault(format!(
            "'{}' object is not subscriptable",
            other.type_name()
        )),
    }
}
