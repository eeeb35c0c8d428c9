//! Helpers to declare and read command-line options.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use jerboa::schema::{OptionType, RequestOption, camel_case};
use serde_json::{Map, Value, json};
use std::any::Any;
use std::fmt::Display;
use std::str::FromStr;

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

/// The flag of an option of a request: `--top-p` of `top_p`.
fn flag_name(option: &RequestOption) -> String {
    option.public_name.unwrap_or(option.name).replace('_', "-")
}

/// Parses a number within an option's bounds.
fn bounded<T: FromStr<Err: Display> + Copy + Send + Sync + 'static>(
    option: RequestOption,
    number: fn(T) -> f64,
) -> impl Fn(&str) -> Result<T> + Clone + Send + Sync + 'static {
    move |text| {
        let value: T = text.parse().map_err(|e: T::Err| e.to_string())?;
        if option.accepts(number(value)) {
            Ok(value)
        } else {
            Err(format!("it must be {}", option.bounds()))
        }
    }
}

/// A flag for an option of a request, with the name, bounds and meaning of its table.
///
/// # Panics
/// If the table has no such option.
pub fn request_flag(table: &'static [RequestOption], name: &str) -> Arg {
    let option = table.iter().find(|option| option.name == name);
    let option = *option.unwrap_or_else(|| panic!("there is no option '{name}'"));
    // A command line is declared once.
    let flag: &'static str = flag_name(&option).leak();
    let about = option.doc.split_whitespace().collect::<Vec<_>>().join(" ");
    let about = about.split(". ").next().unwrap_or_default();
    let arg = Arg::new(flag)
        .long(flag)
        .help(about.trim_end_matches('.').to_owned());
    match option.kind {
        OptionType::Boolean => arg.action(ArgAction::SetTrue),
        OptionType::Number => arg
            .value_name("X")
            .value_parser(ValueParser::new(bounded::<f64>(option, |n| n))),
        OptionType::Numbers => arg
            .value_name("X,…")
            .value_delimiter(',')
            .value_parser(ValueParser::new(bounded::<f64>(option, |n| n))),
        OptionType::Integer | OptionType::Bytes => arg
            .value_name("N")
            .value_parser(ValueParser::new(bounded::<i64>(option, |n| n as f64))),
        OptionType::OneOf(names) => {
            let arg = arg
                .value_name("NAME")
                .value_parser(PossibleValuesParser::new(names));
            if names.contains(&option.default) {
                arg.default_value(option.default)
            } else {
                arg
            }
        }
        OptionType::Texts => arg.value_name("TEXT").action(ArgAction::Append),
        _ => arg.value_name("TEXT"),
    }
}

/// Flags for options of a request.
pub fn request_flags(table: &'static [RequestOption], names: &[&str]) -> Vec<Arg> {
    names.iter().map(|name| request_flag(table, name)).collect()
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
    /// The options of a request that flags of [`request_flag`] set, as JSON.
    pub fn request(&self, table: &[RequestOption]) -> Map<String, Value> {
        let mut request = Map::new();
        for option in table {
            let flag = flag_name(option);
            let value = match option.kind {
                OptionType::Boolean => json!(self.is_set(&flag).then_some(true)),
                OptionType::Number => json!(self.get::<f64>(&flag)),
                OptionType::Numbers => {
                    json!(Some(self.values::<f64>(&flag)).filter(|all| !all.is_empty()))
                }
                OptionType::Integer | OptionType::Bytes => json!(self.get::<i64>(&flag)),
                OptionType::Text | OptionType::OneOf(_) => json!(self.text(&flag)),
                OptionType::Texts => {
                    json!(Some(self.values::<String>(&flag)).filter(|all| !all.is_empty()))
                }
                _ => Value::Null,
            };
            if !value.is_null() {
                request.insert(camel_case(option.name), value);
            }
        }
        request
    }
}
