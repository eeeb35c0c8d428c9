//! The template language of chat templates: Jinja2 with Python's values, as transformers runs it.
//!
//! A template comes from a model's files and is not trusted. Every step, every byte of a value and
//! every level of nesting counts against the limits of `util::limits`, so a template ends with text
//! or with an error. Templates cannot read other templates and cannot change values; of names, only
//! attributes of a `namespace` are assigned to.

mod args;
mod ast;
mod binary;
mod eval;
mod filters;
mod format;
mod functions;
mod lexer;
mod meter;
mod methods;
mod parser;
mod runtime;
mod subscript;
mod value;

use std::rc::Rc;

use serde_json::Value as Json;

use super::local_time::LocalTime;
pub(super) use ast::Template;
use meter::{Fault, Meter, Outcome};
use value::{Dict, ListBuffer, Value};

/// Why a template failed, and the line.
pub(super) struct TemplateFault {
    pub reason: String,
    pub line: u32,
}

impl From<(Fault, u32)> for TemplateFault {
    fn from((fault, line): (Fault, u32)) -> TemplateFault {
        TemplateFault {
            reason: fault.0,
            line,
        }
    }
}

/// A variable of a template.
pub(super) enum Variable<'a> {
    Json(&'a Json),
    Text(&'a str),
}

/// Compiles a template.
pub(super) fn compile(source: &str) -> Result<Template, TemplateFault> {
    Ok(parser::parse(source)?)
}

/// Renders a template; `clock` is the time of `strftime_now`.
pub(super) fn render(
    template: &Template,
    variables: &[(&str, Variable)],
    clock: Option<LocalTime>,
) -> Result<String, TemplateFault> {
    let meter = Rc::new(Meter::default());
    let mut globals = Vec::new();
    for (name, variable) in variables {
        let value = match variable {
            Variable::Json(json) => from_json(&meter, json),
            Variable::Text(text) => Value::text(&meter, text),
        };
        let value = value.map_err(|fault| TemplateFault {
            reason: format!("'{name}': {}", fault.0),
            line: 1,
        })?;
        globals.push(((*name).to_owned(), value));
    }
    Ok(eval::render(template, &meter, &globals, clock)?)
}

/// Converts JSON, whose nesting the caller has checked.
fn from_json(meter: &Rc<Meter>, json: &Json) -> Outcome<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(n) => Value::Int(n),
            None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::text(meter, text)?,
        Json::Array(items) => {
            let mut out = ListBuffer::new(meter);
            for item in items {
                out.push(from_json(meter, item)?)?;
            }
            out.list()?
        }
        Json::Object(fields) => {
            let entries = fields
                .iter()
                .map(|(key, field)| Ok((Value::text(meter, key)?, from_json(meter, field)?)));
            Value::Dict(Dict::of_distinct(meter, entries)?)
        }
    })
}
