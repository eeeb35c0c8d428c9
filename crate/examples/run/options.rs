//! How options are declared and read. Knows none in particular.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::any::Any;

/// What a command comes to; the message is for people.
pub type Result<T> = std::result::Result<T, String>;

/// An error of the engine with its code.
#[allow(clippy::needless_pass_by_value)] // as map_err gives it
pub fn told(error: jerboa::Error) -> String {
    format!("{}: {error}", error.code())
}

/// An option with a value: `--name VALUE`.
pub fn value(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// An option with a value of a kind: a number, or one of some names.
pub fn parsed(name: &'static str, of: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    value(name, of, help).value_parser(parser.into())
}

/// An option that is there or not.
pub fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// A list of values with commas between them.
pub fn list(name: &'static str, of: &'static str, parser: impl Into<ValueParser>, help: &'static str) -> Arg {
    parsed(name, of, parser, help).value_delimiter(',')
}

/// What the command line gave to a command.
pub struct Given(pub ArgMatches);

impl Given {
    /// An option's value, or its default.
    pub fn get<T: Any + Clone + Send + Sync>(&self, name: &str) -> Option<T> {
        self.0.try_get_one::<T>(name).ok().flatten().cloned()
    }

    /// The same of one that has a default, or that the command line must have.
    pub fn need<T: Any + Clone + Send + Sync>(&self, name: &str) -> Result<T> {
        self.get(name).ok_or_else(|| format!("--{name} is missing"))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)
    }

    /// All values of a list, or of an option that was given several times.
    pub fn all<T: Any + Clone + Send + Sync>(&self, name: &str) -> Vec<T> {
        self.0.try_get_many::<T>(name).ok().flatten().into_iter().flatten().cloned().collect()
    }

    /// Whether it stands on the command line.
    pub fn has(&self, name: &str) -> bool {
        matches!(self.0.try_contains_id(name), Ok(true)) && self.0.value_source(name) == Some(ValueSource::CommandLine)
    }
}
