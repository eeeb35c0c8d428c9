//! Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::{BinaryOp, CompareOp};
use super::format;
use super::meter::{Meter, MeteredText, Outcome, fault};
use super::value::{ListBuffer, Value};

/// Applies an operator.
pub(super) fn apply(meter: &Rc<Meter>, op: BinaryOp, a: &Value, b: &Value) -> Outcome<Value> {
    for value in [a, b] {
        if let Value::Undefined(name) = value {
            return fault(format!("'{}' is undefined", &name[..]));
        }
    }
    match (op, a, b) {
        (BinaryOp::Add, Value::Str(x), Value::Str(y)) => {
            let mut out = MeteredText::new(meter);
            out.push_str(x)?;
            out.push_str(y)?;
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        (BinaryOp::Add, Value::List(x), Value::List(y))
        | (BinaryOp::Add, Value::Tuple(x), Value::Tuple(y)) => {
            let mut out = ListBuffer::new(meter);
            out.extend(x)?;
            out.extend(y)?;
            match a {
                Value::List(_) => out.list(),
                _ => Ok(Value::Tuple(out.finish()?)),
            }
        }
        (BinaryOp::Mod, Value::Str(format), _) => format::percent(meter, format, b),
        (BinaryOp::Mul, Value::Str(_) | Value::List(_) | Value::Tuple(_), n)
            if n.as_int().is_some() =>
        {
            repeat(meter, a, n.as_int().unwrap_or_default())
        }
        (BinaryOp::Mul, n, Value::Str(_) | Value::List(_) | Value::Tuple(_))
            if n.as_int().is_some() =>
        {
            repeat(meter, b, n.as_int().unwrap_or_default())
        }
        _ => arithmetic(op, a, b),
    }
}

fn repeat(meter: &Rc<Meter>, value: &Value, count: i64) -> Outcome<Value> {
    let count = usize::try_from(count).unwrap_or(0);
    match value {
        Value::Str(text) => {
            let mut out = MeteredText::new(meter);
            for _ in 0..if text.is_empty() { 0 } else { count } {
                meter.work(1)?;
                out.push_str(text)?;
            }
            Ok(Value::Str(Rc::new(out.finish()?)))
        }
        Value::List(items) | Value::Tuple(items) => {
            let mut out = ListBuffer::new(meter);
            for _ in 0..if items.is_empty() { 0 } else { count } {
                out.extend(items)?;
            }
            match value {
                Value::List(_) => out.list(),
                _ => Ok(Value::Tuple(out.finish()?)),
            }
        }
        other => fault(format!("'{}' cannot be repeated", other.type_name())),
    }
}

fn symbol(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Mod => "%",
        BinaryOp::Pow => "**",
    }
}

fn arithmetic(op: BinaryOp, a: &Value, b: &Value) -> Outcome<Value> {
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        return integers(op, x, y);
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return fault(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            symbol(op),
            a.type_name(),
            b.type_name()
        ));
    };
    if y == 0.0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Mod) {
        return fault("division by zero");
    }
    Ok(Value::Float(match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div => x / y,
        BinaryOp::FloorDiv => (x / y).floor(),
        BinaryOp::Mod => x - y * (x / y).floor(),
        BinaryOp::Pow => x.powf(y),
    }))
}

fn integers(op: BinaryOp, x: i64, y: i64) -> Outcome<Value> {
    if y == 0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Mod) {
        return fault("division by zero");
    }
    let result = match op {
        BinaryOp::Add => x.checked_add(y),
        BinaryOp::Sub => x.checked_sub(y),
        BinaryOp::Mul => x.checked_mul(y),
        BinaryOp::Div => return Ok(Value::Float(x as f64 / y as f64)),
        BinaryOp::FloorDiv => x
            .checked_div(y)
            .map(|q| q - i64::from(x % y != 0 && (x < 0) != (y < 0))),
        BinaryOp::Mod => x.checked_rem(y).map(|r| {
            if r != 0 && (r < 0) != (y < 0) {
                r + y
            } else {
                r
            }
        }),
        BinaryOp::Pow => match u32::try_from(y) {
            Ok(y) => x.checked_pow(y),
            Err(_) if y < 0 => return Ok(Value::Float((x as f64).powf(y as f64))),
            Err(_) => None,
        },
    };
    match result {
        Some(n) => Ok(Value::Int(n)),
        None => fault(format!("{x} {} {y} is out of range", symbol(op))),
    }
}

pub(super) fn negate(value: &Value) -> Outcome<Value> {
    match (value.as_int(), value) {
        (Some(n), _) => match n.checked_neg() {
            Some(n) => Ok(Value::Int(n)),
            None => fault(format!("-{n} is out of range")),
        },
        (None, Value::Float(n)) => Ok(Value::Float(-n)),
        (None, Value::Undefined(name)) => fault(format!("'{}' is undefined", &name[..])),
        _ => fault(format!(
            "bad operand type for unary -: '{}'",
            value.type_name()
        )),
    }
}

pub(super) fn positive(value: &Value) -> Outcome<Value> {
    match (value.as_int(), value) {
        (Some(n), _) => Ok(Value::Int(n)),
        (None, Value::Float(n)) => Ok(Value::Float(*n)),
        _ => fault(format!(
            "bad operand type for unary +: '{}'",
            value.type_name()
        )),
    }
}

/// Applies a comparison.
pub(super) fn compare(meter: &Meter, op: CompareOp, a: &Value, b: &Value) -> Outcome<bool> {
    let order = |accepts: fn(Ordering) -> bool| {
        for value in [a, b] {
            if let Value::Undefined(name) = value {
                return fault(format!("'{}' is undefined", &name[..]));
            }
        }
        a.compare(meter, b).map(accepts)
    };
    match op {
        CompareOp::Eq => a.equals(meter, b),
        CompareOp::Ne => a.equals(meter, b).map(|equal| !equal),
        CompareOp::Lt => order(Ordering::is_lt),
        CompareOp::Le => order(Ordering::is_le),
        CompareOp::Gt => order(Ordering::is_gt),
        CompareOp::Ge => order(Ordering::is_ge),
        CompareOp::In => b.contains(meter, a),
        CompareOp::NotIn => b.contains(meter, a).map(|contained| !contained),
    }
}
