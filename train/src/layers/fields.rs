//! Reads the fields of a layer's description. Errors name the layer, and the fields that it has.

use jerboa::{Error, Result};
use serde_json::{Map, Value};

/// Largest value of a size: shapes are computed in 32 bits on the web.
const MAX_SIZE: u64 = 1 << 24;

/// Returns the error of a layer; `at` is its path and type.
pub fn refuse(at: &str, reason: &str) -> Error {
    Error::Request {
        parameter: at.into(),
        reason: reason.into(),
    }
}

/// The fields of one layer.
pub struct Fields<'a> {
    /// Path and type, for errors.
    pub at: String,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// Reads the fields of a layer; returns them with its type.
    ///
    /// # Errors
    /// `Request` for a description that is not an object with a `type`.
    pub fn of(value: &'a Value, path: &str) -> Result<(&'a str, Self)> {
        let (Some(map), Some(kind)) = (value.as_object(), value["type"].as_str()) else {
            return Err(refuse(
                path,
                "it must be an object with a 'type', such as { type: 'dense', units: 8 }.",
            ));
        };
        let fields = Self {
            at: format!("{path} ({kind})"),
            map,
            known: vec!["type", "name"],
        };
        Ok((kind, fields))
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn fault<T>(&self, name: &str, what: &str) -> Result<T> {
        Err(refuse(&self.at, &format!("'{name}' must be {what}.")))
    }

    /// The layer's own name, which replaces its index in the names of its weights.
    ///
    /// # Errors
    /// `Request` for a name that is not a string, is empty or has a dot.
    pub fn name(&mut self) -> Result<Option<&'a str>> {
        match self.map.get("name").filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(Value::String(name)) if !name.is_empty() && !name.contains('.') => Ok(Some(name)),
            Some(_) => self.fault("name", "a string without dots"),
        }
    }

    /// A size above 0.
    ///
    /// # Errors
    /// `Request` if it is missing or out of bounds.
    pub fn size(&mut self, name: &'static str) -> Result<usize> {
        match self.size_or(name, 0)? {
            0 => self.fault(name, "given"),
            size => Ok(size),
        }
    }

    /// A size above 0, or a default.
    ///
    /// # Errors
    /// `Request` if it is out of bounds.
    pub fn size_or(&mut self, name: &'static str, default: usize) -> Result<usize> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => match value.as_u64() {
                Some(size @ 1..=MAX_SIZE) => Ok(size as usize),
                _ => self.fault(name, "a whole number from 1 to 16777216"),
            },
        }
    }

    /// Sizes of `N` dimensions, at least `min`: one number for all, or a list. Missing dimensions
    /// before them are `filler`.
    ///
    /// # Errors
    /// `Request` for other values, or if there is no default.
    pub fn sizes(
        &mut self,
        name: &'static str,
        dims: usize,
        [min, filler]: [usize; 2],
        default: Option<usize>,
    ) -> Result<[usize; 3]> {
        let mut sizes = [filler; 3];
        let own = &mut sizes[3 - dims..];
        let what = format!("a whole number from {min}, or an array of {dims}");
        let is_size = |value: &Value| {
            let size = value.as_u64().filter(|size| *size <= MAX_SIZE)? as usize;
            (size >= min).then_some(size)
        };
        match (self.get(name), default) {
            (None, Some(size)) => own.fill(size),
            (Some(Value::Array(list)), _) if list.len() == dims => {
                for (size, value) in own.iter_mut().zip(list) {
                    match is_size(value) {
                        Some(value) => *size = value,
                        None => return self.fault(name, &what),
                    }
                }
            }
            (Some(value), _) if is_size(value).is_some() => {
                own.fill(is_size(value).unwrap_or(min));
            }
            _ => return self.fault(name, &what),
        }
        Ok(sizes)
    }

    /// A shape: an array of sizes above 0.
    ///
    /// # Errors
    /// `Request` for other values.
    pub fn shape(&mut self, name: &'static str) -> Result<Vec<usize>> {
        match self.get(name).map(shape_of) {
            Some(Some(shape)) => Ok(shape),
            _ => self.fault(name, "an array of one to eight whole numbers above 0"),
        }
    }

    /// A flag.
    ///
    /// # Errors
    /// `Request` for other values.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => self.fault(name, "true or false"),
        }
    }

    /// A number above 0.
    ///
    /// # Errors
    /// `Request` for other values.
    pub fn above_zero(&mut self, name: &'static str, default: f32) -> Result<f32> {
        match self.get(name).map(Value::as_f64) {
            None => Ok(default),
            Some(Some(number)) if number > 0.0 && number < 1e6 => Ok(number as f32),
            Some(_) => self.fault(name, "a number above 0"),
        }
    }

    /// A whole number that may be negative.
    ///
    /// # Errors
    /// `Request` for other values.
    pub fn whole(&mut self, name: &'static str, default: i64) -> Result<i64> {
        match self.get(name).map(Value::as_i64) {
            None => Ok(default),
            Some(Some(number)) => Ok(number),
            Some(None) => self.fault(name, "a whole number"),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// `Request` for other values.
    pub fn text(&mut self, name: &'static str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => self.fault(name, "a string"),
        }
    }

    /// A list.
    ///
    /// # Errors
    /// `Request` if it is missing or no list.
    pub fn list(&mut self, name: &'static str) -> Result<&'a [Value]> {
        match self.get(name) {
            Some(Value::Array(list)) => Ok(list),
            _ => self.fault(name, "an array"),
        }
    }

    /// Refuses fields that were not asked for.
    ///
    /// # Errors
    /// `Request` for such a field.
    pub fn end(self) -> Result<()> {
        let is_known = |name: &&String| self.known.contains(&&name[..]);
        match self.map.keys().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(unknown) => Err(refuse(
                &self.at,
                &format!(
                    "unknown field '{unknown}'. Use {}.",
                    self.known[1..].join(", ")
                ),
            )),
        }
    }
}

/// Reads a shape; `None` for other values.
pub fn shape_of(value: &Value) -> Option<Vec<usize>> {
    let list = value
        .as_array()
        .filter(|list| (1..=8).contains(&list.len()))?;
    let size = |value: &Value| {
        let size = value.as_u64()?;
        (1..=MAX_SIZE).contains(&size).then_some(size as usize)
    };
    list.iter().map(size).collect()
}
