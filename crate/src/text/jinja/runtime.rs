//! What filters, functions and attributes need of the interpreter.

use std::rc::Rc;

use super::super::local_time::LocalTime;
use super::meter::{Meter, Outcome};
use super::value::Value;

/// One rendering, as filters and functions see it.
pub(super) trait Runtime {
    fn meter(&self) -> &Rc<Meter>;
    /// The time of `strftime_now`.
    fn now(&self) -> LocalTime;
    /// Creates a namespace.
    fn new_namespace(&mut self, values: Vec<(String, Value)>) -> Outcome<Value>;
    /// Reads an attribute of namespace `index`.
    fn namespace_value(&self, index: usize, name: &str) -> Option<Value>;
    /// The name of macro `index`.
    fn macro_name(&self, index: usize) -> Option<&str>;
}
