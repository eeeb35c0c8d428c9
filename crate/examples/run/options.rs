//! Helpers to declare and read command-line options.

use clap::builder::ValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use std::any::Any;

/// Result of a command; the error is a message for the user.
pub type Result<T> = std::result::Result<T, String>;

/// Formats an engine error with its code.
#[allow(clippy::needless_pass_by_value)] // as map_err gives it
pub fn format_error(error: jerboa::Error) -> String {
    format!("{}: {error}", error.code())
}

/// An option with a value: `--name VALUE`.
pub fn value(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// An option with a typed value: a number, or one of several names.
pub fn parsed(
    name: &'static str,
    of: &'static str,
    parser: impl Into<ValueParser>,
    help: &'static str,
) -> Arg {
    value(name, of, help).value_parser(parser.into())
}

/// An option without a value.
pub fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

/// A comma-separated list of values.
pub fn list(
    name: &'static str,
    of: &'static str,
    parser: impl Into<ValueParser>,
    help: &'static str,
) -> Arg {
    parsed(name, of, parser, help).value_delimiter(',')
}

/// The parsed arguments of a command.
pub struct CliArgs(pub ArgMatches);

impl CliArgs {
    /// An option's value, or its default.
    pub fn get<T: Any + Clone + Send + Sync>(&self, name: &str) -> Option<T> {
        self.0.try_get_one::<T>(name).ok().flatten().cloned()
    }

    /// The value of a required option, or of one with a default.
    pub fn require<T: Any + Clone + Send + Sync>(&self, name: &str) -> Result<T> {
        self.get(name)
            .ok_or_else(|| format!("option --{name} is required"))
    }

    /// A text option's value.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)
    }

    /// All values of a list or of a repeated option.
    pub fn values<T: Any + Clone + Send + Sync>(&self, name: &str) -> Vec<T> {
        self.0
            .try_get_many::<T>(name)
            .ok()
            .flatten()
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Whether the option was given on the command line.
    pub fn is_set(&self, name: &str) -> bool {
        matches!(self.0.try_contains_id(name), Ok(true))
            && self.0.value_source(name) == Some(ValueSource::CommandLine)
    }
}
