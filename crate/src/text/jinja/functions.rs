//! The global functions of chat templates.

use std::rc::Rc;

use super::args::Args;
use super::meter::{Meter, MeteredText, Outcome, fault};
use super::runtime::Runtime;
use super::value::print::to_json;
use super::value::{Dict, Function, ListBuffer, Value};
use crate::util::limits::{MAX_RANGE_ITEMS, MAX_STRFTIME_BYTES};

/// Calls a global function.
pub(super) fn call(run: &mut dyn Runtime, function: Function, mut args: Args) -> Outcome<Value> {
    match function {
        Function::Range => range(run.meter(), &args),
        Function::Dict => dict(run.meter(), args),
        Function::Namespace => {
            let mut values = Vec::new();
            if let Some(Value::Dict(dict)) = args.positional.first() {
                for (key, value) in dict.entries() {
                    run.meter().work(1)?;
                    let name = key.as_str().unwrap_or_default();
                    values.push((name.to_owned(), value.clone()));
                }
            }
            values.append(&mut args.named);
            run.new_namespace(values)
        }
        Function::RaiseException => {
            let message = args.required(0, "message")?;
            let mut out = MeteredText::new(run.meter());
            message.print(&mut out)?;
            fault(out.into_string())
        }
        Function::StrftimeNow => {
            let format = args.text(0, "format")?;
            let format = format.as_ref().map_or("", |format| &format[..]);
            if format.len() > MAX_STRFTIME_BYTES {
                return fault(format!(
                    "the format of strftime_now is longer than {MAX_STRFTIME_BYTES} bytes"
                ));
            }
            Value::text(run.meter(), &run.now().strftime(format))
        }
        Function::ToJson => {
            let value = args.required(0, "x")?;
            args.positional.remove(0);
            to_json(run.meter(), &value, args)
        }
    }
}

fn range(meter: &Rc<Meter>, args: &Args) -> Outcome<Value> {
    args.finish("range()", 3)?;
    let mut bounds = Vec::new();
    for value in &args.positional {
        match value.as_int() {
            Some(n) => bounds.push(n),
            None => {
                return fault(format!("range() takes integers, not {}", value.type_name()));
            }
        }
    }
    let (start, stop, step) = match bounds[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return fault("range() takes one to three integers, and the third is not 0"),
    };
    let span = i128::from(stop) - i128::from(start);
    let step_by = i128::from(step);
    let count = if (span > 0) == (step > 0) && span != 0 {
        (span.abs() + step_by.abs() - 1) / step_by.abs()
    } else {
        0
    };
    if count > i128::from(MAX_RANGE_ITEMS) {
        return fault(format!("range() has more than {MAX_RANGE_ITEMS} items"));
    }
    let mut out = ListBuffer::new(meter);
    let mut at = start;
    for _ in 0..count {
        out.push(Value::Int(at))?;
        at = at.wrapping_add(step);
    }
    out.list()
}

/// `dict(mapping or pairs, name=value, …)`.
pub(super) fn dict(meter: &Rc<Meter>, args: Args) -> Outcome<Value> {
    let mut entries: Vec<Outcome<(Value, Value)>> = Vec::new();
    match args.positional.first() {
        None => {}
        Some(Value::Dict(dict)) => {
            meter.work(dict.entries().len())?;
            entries.extend(dict.entries().iter().cloned().map(Ok));
        }
        Some(pairs) => {
            for pair in pairs.iterate(meter)?.iter() {
                let pair = pair.iterate(meter)?;
                let [key, value] = &pair[..] else {
                    return fault("dict() takes pairs of keys and values");
                };
                entries.push(Ok((key.clone(), value.clone())));
            }
        }
    }
    for (name, value) in args.named {
        entries.push(Ok((Value::text(meter, &name)?, value)));
    }
    Ok(Value::Dict(Dict::new(meter, entries)?))
}
