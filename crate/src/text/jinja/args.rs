//! Evaluated arguments of calls, filters and tests.

use super::meter::{Outcome, fault};
use super::value::{Str, Value};

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
    pub fn text(&mut self, place: usize, name: &str) -> Outcome<Option<Str>> {
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
