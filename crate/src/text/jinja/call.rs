//! Arguments of calls, and the global functions of chat templates.

use std::rc::Rc;

use super::eval::Interpreter;
use super::filters;
use super::meter::{Outcome, fault};
use super::value::{Dict, Function, ListBuffer, Value};
use crate::util::limits::{MAX_RANGE_ITEMS, MAX_STRFTIME_BYTES};

/// Evaluated arguments.
#[derive(Default)]
pub(super) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(String, Value)>,
}

impl Args {
    /// Takes the argument of this place or name.
    pub fn take(&mut self, place: usize, name: &str) -> Option<Value> {
        if let Some(value) = self.positional.get_mut(place) {
            return Some(std::mem::replace(value, Value::None));
        }
        let at = self.named.iter().position(|(own, _)| own == name)?;
        Some(self.named.remove(at).1)
    }

    /// Takes an argument that must be there.
    pub fn required(&mut self, place: usize, name: &str) -> Outcome<Value> {
        match self.take(place, name) {
            Some(value) => Ok(value),
            None => fault(format!("the argument '{name}' is missing")),
        }
    }

    /// Takes an argument unless it is absent or none.
    pub fn optional(&mut self, place: usize, name: &str) -> Option<Value> {
        self.take(place, name)
            .filter(|value| !matches!(value, Value::None))
    }

    /// Takes a flag, false if absent.
    pub fn flag(&mut self, place: usize, name: &str) -> bool {
        self.take(place, name).is_some_and(|value| value.truthy())
    }

    /// Takes an integer.
    pub fn int(&mut self, place: usize, name: &str) -> Outcome<Option<i64>> {
        match self.optional(place, name) {
            None => Ok(None),
            Some(value) => match value.as_int() {
                Some(n) => Ok(Some(n)),
                None => fault(format!(
                    "the argument '{name}' must be an integer, not {}",
                    value.type_name()
                )),
            },
        }
    }

    /// Takes a string.
    pub fn text(&mut self, place: usize, name: &str) -> Outcome<Option<super::value::Str>> {
        match self.optional(place, name) {
            None => Ok(None),
            Some(Value::Str(text)) => Ok(Some(text)),
            Some(other) => fault(format!(
                "the argument '{name}' must be a string, not {}",
                other.type_name()
            )),
        }
    }

    /// Refuses more than `most` positional arguments, and named ones that nothing took.
    pub fn finish(&self, who: &str, most: usize) -> Outcome<()> {
        if self.positional.len() > most {
            return fault(format!("{who} takes at most {most} arguments"));
        }
        match self.named.first() {
            Some((name, _)) => fault(format!("{who} has no argument '{name}'")),
            None => Ok(()),
        }
    }
}

impl Interpreter<'_> {
    pub(super) fn call_function(&mut self, function: Function, mut args: Args) -> Outcome<Value> {
        match function {
            Function::Range => self.range(&args),
            Function::Dict => self.dict(args),
            Function::Namespace => {
                let mut values = Vec::new();
                if let Some(Value::Dict(dict)) = args.positional.first() {
                    for (key, value) in dict.entries() {
                        self.meter.work(1)?;
                        let name = key.as_str().unwrap_or_default();
                        values.push((name.to_owned(), value.clone()));
                    }
                }
                values.append(&mut args.named);
                self.new_namespace(values)
            }
            Function::RaiseException => {
                let message = args.required(0, "message")?;
                let mut out = super::meter::Buffer::new(&self.meter);
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
                Value::text(&self.meter, &self.now().strftime(format))
            }
            Function::ToJson => {
                let value = args.required(0, "x")?;
                args.positional.remove(0);
                filters::to_json(self, &value, args)
            }
        }
    }

    fn range(&self, args: &Args) -> Outcome<Value> {
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
        let mut out = ListBuffer::new(&self.meter);
        let mut at = start;
        for _ in 0..count {
            out.push(Value::Int(at))?;
            at = at.wrapping_add(step);
        }
        out.list()
    }

    fn dict(&self, args: Args) -> Outcome<Value> {
        let meter = Rc::clone(&self.meter);
        let mut entries: Vec<Outcome<(Value, Value)>> = Vec::new();
        match args.positional.first() {
            None => {}
            Some(Value::Dict(dict)) => {
                meter.work(dict.entries().len())?;
                entries.extend(dict.entries().iter().cloned().map(Ok));
            }
            Some(pairs) => {
                for pair in pairs.iterate(&meter)?.iter() {
                    let pair = pair.iterate(&meter)?;
                    let [key, value] = &pair[..] else {
                        return fault("dict() takes pairs of keys and values");
                    };
                    entries.push(Ok((key.clone(), value.clone())));
                }
            }
        }
        for (name, value) in args.named {
            entries.push(Ok((Value::text(&meter, &name)?, value)));
        }
        Ok(Value::Dict(Dict::new(&meter, entries)?))
    }
}
