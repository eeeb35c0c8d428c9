//! The values of a template, with Python's equality, order and truth. Lists and mappings never
//! change, and know how deep they nest.

pub(super) mod print;

use std::cell::Cell;
use std::cmp::Ordering;
use std::rc::Rc;

use super::meter::{Hold, Meter, MeteredText, Outcome, Text, fault};
use crate::util::limits::MAX_VALUE_NESTING;

pub(super) type Str = Rc<Text>;
pub(super) type List = Rc<Items>;

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// With the name that is not defined.
    Undefined(Str),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Str),
    List(List),
    Tuple(List),
    Dict(Rc<Dict>),
    /// Index of the interpreter's namespaces: they are the only values that change.
    Namespace(usize),
    /// Index of the interpreter's macros.
    Macro(usize),
    Function(Function),
    Method(Rc<Method>),
    Loop(Rc<LoopState>),
}

/// Global functions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
    /// `tojson`, which some templates call.
    ToJson,
}

/// What a list holds for each item.
const ITEM_BYTES: usize = 32;

#[derive(Debug)]
pub(super) struct Items {
    items: Vec<Value>,
    depth: usize,
    _hold: Hold,
}

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.items
    }
}

/// A list under construction, within the limits.
pub(super) struct ListBuffer {
    items: Vec<Value>,
    depth: usize,
    hold: Hold,
}

impl ListBuffer {
    pub fn new(meter: &Rc<Meter>) -> ListBuffer {
        ListBuffer {
            items: Vec::new(),
            depth: 0,
            hold: Hold::new(meter),
        }
    }

    pub fn push(&mut self, value: Value) -> Outcome<()> {
        self.hold.meter().work(1)?;
        self.hold.grow(ITEM_BYTES)?;
        self.depth = self.depth.max(value.depth());
        self.items.push(value);
        Ok(())
    }

    pub fn extend(&mut self, values: &[Value]) -> Outcome<()> {
        values.iter().try_for_each(|value| self.push(value.clone()))
    }

    /// Reads the items so far.
    pub fn items(&self) -> &[Value] {
        &self.items
    }

    pub fn reverse(&mut self) {
        self.items.reverse();
    }

    pub fn finish(mut self) -> Outcome<List> {
        self.hold.grow(ITEM_BYTES * 2)?;
        Ok(Rc::new(Items {
            items: self.items,
            depth: deeper(self.depth)?,
            _hold: self.hold,
        }))
    }

    pub fn list(self) -> Outcome<Value> {
        Ok(Value::List(self.finish()?))
    }
}

/// Returns the depth of what contains values of this depth.
fn deeper(depth: usize) -> Outcome<usize> {
    if depth >= MAX_VALUE_NESTING {
        return fault(format!(
            "a value has more than {MAX_VALUE_NESTING} nested levels"
        ));
    }
    Ok(depth + 1)
}

#[derive(Debug)]
pub(super) struct Dict {
    entries: Vec<(Value, Value)>,
    depth: usize,
    hold: Hold,
}

impl Dict {
    /// Creates a mapping; of two equal keys the first keeps its place, the last its value.
    pub fn new(
        meter: &Rc<Meter>,
        entries: impl IntoIterator<Item = Outcome<(Value, Value)>>,
    ) -> Outcome<Rc<Dict>> {
        Self::build(meter, entries, Self::insert)
    }

    /// Creates a mapping whose keys are known to differ.
    pub fn of_distinct(
        meter: &Rc<Meter>,
        entries: impl IntoIterator<Item = Outcome<(Value, Value)>>,
    ) -> Outcome<Rc<Dict>> {
        Self::build(meter, entries, Self::append)
    }

    fn build(
        meter: &Rc<Meter>,
        entries: impl IntoIterator<Item = Outcome<(Value, Value)>>,
        add: fn(&mut Self, Value, Value) -> Outcome<()>,
    ) -> Outcome<Rc<Dict>> {
        let mut dict = Dict {
            entries: Vec::new(),
            depth: 0,
            hold: Hold::new(meter),
        };
        for entry in entries {
            let (key, value) = entry?;
            add(&mut dict, key, value)?;
        }
        dict.finish()
    }

    fn finish(mut self) -> Outcome<Rc<Dict>> {
        self.hold.grow(ITEM_BYTES * 2)?;
        self.depth = deeper(self.depth)?;
        Ok(Rc::new(self))
    }

    fn append(&mut self, key: Value, value: Value) -> Outcome<()> {
        self.hold.meter().work(1)?;
        self.hold.grow(ITEM_BYTES * 2)?;
        self.depth = self.depth.max(value.depth()).max(key.depth());
        self.entries.push((key, value));
        Ok(())
    }

    fn insert(&mut self, key: Value, value: Value) -> Outcome<()> {
        if !key.is_hashable() {
            return fault(format!("unhashable type: '{}'", key.type_name()));
        }
        let meter = Rc::clone(self.hold.meter());
        if let Some(at) = self.position(&meter, &key)? {
            self.depth = self.depth.max(value.depth());
            if let Some(entry) = self.entries.get_mut(at) {
                entry.1 = value;
            }
            return Ok(());
        }
        self.append(key, value)
    }

    fn position(&self, meter: &Meter, key: &Value) -> Outcome<Option<usize>> {
        meter.work(self.entries.len() / 8)?;
        for (at, (own, _)) in self.entries.iter().enumerate() {
            let same = match (own, key) {
                (Value::Str(a), Value::Str(b)) => a[..] == b[..],
                _ => own.equals(meter, key)?,
            };
            if same {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    pub fn get(&self, meter: &Meter, key: &Value) -> Outcome<Option<&Value>> {
        let at = self.position(meter, key)?;
        Ok(at
            .and_then(|at| self.entries.get(at))
            .map(|(_, value)| value))
    }

    pub fn get_str(&self, meter: &Meter, key: &str) -> Outcome<Option<&Value>> {
        meter.work(self.entries.len() / 8)?;
        Ok(self
            .entries
            .iter()
            .find(|(own, _)| matches!(own, Value::Str(own) if own[..] == *key))
            .map(|(_, value)| value))
    }

    pub fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }
}

/// A method with the value it belongs to.
#[derive(Debug)]
pub(super) struct Method {
    pub this: Value,
    pub name: &'static str,
    depth: usize,
}

impl Method {
    pub fn of(this: Value, name: &'static str) -> Outcome<Value> {
        let depth = deeper(this.depth())?;
        Ok(Value::Method(Rc::new(Method { this, name, depth })))
    }
}

/// The variable `loop`.
#[derive(Debug)]
pub(super) struct LoopState {
    pub items: List,
    pub index: Cell<usize>,
    pub level: usize,
    /// Index of the interpreter's recursive loops.
    pub recursion: Option<usize>,
    depth: usize,
}

impl LoopState {
    pub fn new(items: List, level: usize, recursion: Option<usize>) -> Outcome<Rc<LoopState>> {
        let depth = deeper(items.depth)?;
        Ok(Rc::new(LoopState {
            items,
            index: Cell::new(0),
            level,
            recursion,
            depth,
        }))
    }
}

impl Value {
    /// Creates a string.
    pub fn text(meter: &Rc<Meter>, text: &str) -> Outcome<Value> {
        let mut buffer = MeteredText::new(meter);
        buffer.push_str(text)?;
        Ok(Value::Str(Rc::new(buffer.finish()?)))
    }

    /// Creates an undefined value.
    pub fn undefined(meter: &Rc<Meter>, name: &str) -> Outcome<Value> {
        let mut buffer = MeteredText::new(meter);
        let end = name.char_indices().nth(80).map_or(name.len(), |(at, _)| at);
        buffer.push_str(name.get(..end).unwrap_or_default())?;
        Ok(Value::Undefined(Rc::new(buffer.finish()?)))
    }

    /// How many lists and mappings are inside each other.
    pub fn depth(&self) -> usize {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Dict(dict) => dict.depth,
            Value::Method(method) => method.depth,
            Value::Loop(state) => state.depth,
            _ => 0,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The value as an integer, as Python's operators take it.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(n) => Some(*n),
            Value::Bool(b) => Some(i64::from(*b)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(n) => Some(*n),
            _ => self.as_int().map(|n| n as f64),
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Function(_) => "function",
            Value::Method(_) => "method",
            Value::Loop(_) => "LoopContext",
        }
    }

    pub fn truthy(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(n) => *n != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) => !items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    fn is_hashable(&self) -> bool {
        match self {
            Value::List(_) | Value::Dict(_) => false,
            Value::Tuple(items) => items.iter().all(Value::is_hashable),
            _ => true,
        }
    }

    /// Python's `==`.
    pub fn equals(&self, meter: &Meter, other: &Value) -> Outcome<bool> {
        meter.work(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                if a.len() == b.len() {
                    meter.work(a.len() / 256)?;
                }
                a[..] == b[..]
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(b.iter()) {
                    if !a.equals(meter, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(meter, key)? {
                        Some(other) if value.equals(meter, other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => {
                a == b
            }
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (a.as_float(), b.as_float()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            },
        })
    }

    /// Python's order.
    ///
    /// # Errors
    /// Values of types that have no order.
    pub fn compare(&self, meter: &Meter, other: &Value) -> Outcome<Ordering> {
        meter.work(1)?;
        Ok(match (self, other) {
            (Value::Str(a), Value::Str(b)) => {
                meter.work(a.len().min(b.len()) / 256)?;
                a[..].cmp(&b[..])
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (a, b) in a.iter().zip(b.iter()) {
                    if !a.equals(meter, b)? {
                        return a.compare(meter, b);
                    }
                }
                a.len().cmp(&b.len())
            }
            (a, b) => match (a.as_int(), b.as_int()) {
                (Some(a), Some(b)) => a.cmp(&b),
                _ => match (a.as_float(), b.as_float()) {
                    (Some(a), Some(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
                    _ => {
                        return fault(format!(
                            "'{}' and '{}' cannot be ordered",
                            a.type_name(),
                            b.type_name()
                        ));
                    }
                },
            },
        })
    }

    /// The items that a loop over the value visits.
    pub fn iterate(&self, meter: &Rc<Meter>) -> Outcome<List> {
        let mut out = ListBuffer::new(meter);
        match self {
            Value::List(items) | Value::Tuple(items) => return Ok(Rc::clone(items)),
            Value::Undefined(_) => {}
            Value::Dict(dict) => {
                for (key, _) in &dict.entries {
                    out.push(key.clone())?;
                }
            }
            Value::Str(text) => {
                for c in text.chars() {
                    out.push(Value::text(meter, c.encode_utf8(&mut [0; 4]))?)?;
                }
            }
            Value::Loop(state) => return Ok(Rc::clone(&state.items)),
            other => return fault(format!("'{}' object is not iterable", other.type_name())),
        }
        out.finish()
    }

    /// Python's `len`; `None` for types that have no length.
    pub fn len(&self, meter: &Meter) -> Outcome<Option<usize>> {
        Ok(Some(match self {
            Value::Undefined(_) => 0,
            Value::Str(text) => {
                meter.read(text.len())?;
                text.chars().count()
            }
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::Dict(dict) => dict.entries.len(),
            Value::Loop(state) => state.items.len(),
            _ => return Ok(None),
        }))
    }

    /// Python's `in`.
    pub fn contains(&self, meter: &Meter, item: &Value) -> Outcome<bool> {
        match self {
            Value::Str(text) => match item {
                Value::Str(part) => {
                    meter.read(text.len())?;
                    Ok(text.contains(&part[..]))
                }
                Value::Undefined(_) => Ok(true),
                other => fault(format!(
                    "'in <string>' requires string as left operand, not {}",
                    other.type_name()
                )),
            },
            Value::List(items) | Value::Tuple(items) => {
                for own in items.iter() {
                    if own.equals(meter, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Dict(dict) => Ok(dict.get(meter, item)?.is_some()),
            Value::Undefined(_) => Ok(false),
            other => fault(format!(
                "argument of type '{}' is not iterable",
                other.type_name()
            )),
        }
    }
}
