//! Declares the options of requests and loads. [`request_options!`] makes a struct that serde reads
//! and a table with each option's type, bounds, default and meaning. From the tables come the
//! bounds that requests are checked with, the TypeScript types and checks, the runner's flags and
//! the manual's tables (tests/house/schema.rs).

use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::{Map, Value};

/// Type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionType {
    /// True or false.
    Boolean,
    /// A number.
    Number,
    /// A list of numbers; callers may pass one number.
    Numbers,
    /// A whole number.
    Integer,
    /// A list of whole numbers.
    Integers,
    /// A number of bytes.
    Bytes,
    /// A number for each of some token ids.
    NumberByToken,
    /// A list of token ids.
    TokenIds,
    /// A list of f32 numbers.
    Vector,
    /// A string.
    Text,
    /// A list of strings; callers may pass one string.
    Texts,
    /// One of these names.
    OneOf(&'static [&'static str]),
    /// An object with string keys.
    Object,
    /// A list of values.
    List,
    /// The options of a table of its own: the name of the TypeScript type.
    Options(&'static str),
}

/// A public API whose callers set an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `model.generate`.
    Generate,
    /// `chat.completions.create`.
    Chat,
    /// `completions.create`.
    Completions,
    /// `model.embed`.
    Embed,
    /// `model.rerank`.
    Rerank,
    /// `model.transcribe`.
    Transcribe,
    /// `model.listen`.
    Listen,
    /// `audio.transcriptions.create`.
    Transcriptions,
    /// `audio.speech.create`.
    Speech,
    /// `model.measure`.
    Measure,
    /// `loadModel`.
    Load,
    /// `features` of `loadModel`.
    Features,
}

/// Definition of an option: one place for what requests, checks and manuals say of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestOption {
    /// Name as in Python; in camel case as in JavaScript.
    pub name: &'static str,
    /// Name for callers, if they pass the option in another form.
    pub public_name: Option<&'static str>,
    /// Type of its value.
    pub kind: OptionType,
    /// Name of the TypeScript type of its names.
    pub alias: Option<&'static str>,
    /// Smallest value.
    pub min: f64,
    /// Whether `min` itself is too small.
    pub above_min: bool,
    /// Largest value.
    pub max: f64,
    /// The value without the option, as manuals show it; empty if there is none.
    pub default: &'static str,
    /// APIs whose callers set it; none if only the facade does.
    pub apis: &'static [Api],
    /// Its effect. Empty in WebAssembly, where nothing shows it.
    pub doc: &'static str,
}

/// Largest count: the engine's are 32 bits wide.
pub const MAX_COUNT: f64 = u32::MAX as f64;
/// Largest whole number that JavaScript represents exactly.
pub const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

impl RequestOption {
    /// An option without bounds.
    pub const fn new(kind: OptionType) -> Self {
        Self {
            name: "",
            public_name: None,
            kind,
            alias: None,
            min: f64::NEG_INFINITY,
            above_min: false,
            max: f64::INFINITY,
            default: "",
            apis: &[],
            doc: "",
        }
    }

    const fn between(kind: OptionType, min: f64, max: f64) -> Self {
        let mut option = Self::new(kind);
        (option.min, option.max) = (min, max);
        option
    }

    /// A number within bounds.
    pub const fn number(min: f64, max: f64) -> Self {
        Self::between(OptionType::Number, min, max)
    }

    /// A number above `min`, at most `max`.
    pub const fn number_above(min: f64, max: f64) -> Self {
        let mut option = Self::number(min, max);
        option.above_min = true;
        option
    }

    /// One or several numbers within bounds.
    pub const fn numbers(min: f64, max: f64) -> Self {
        Self::between(OptionType::Numbers, min, max)
    }

    /// A whole number within bounds.
    pub const fn integer(min: f64, max: f64) -> Self {
        Self::between(OptionType::Integer, min, max)
    }

    /// A whole number from `min` up.
    pub const fn count(min: f64) -> Self {
        Self::integer(min, MAX_COUNT)
    }

    /// Whole numbers from `min` up.
    pub const fn counts(min: f64) -> Self {
        Self::between(OptionType::Integers, min, MAX_COUNT)
    }

    /// A number of bytes.
    pub const fn bytes() -> Self {
        Self::between(OptionType::Bytes, 1.0, MAX_SAFE_INTEGER)
    }

    /// Numbers within bounds for token ids; negative infinity bans a token.
    pub const fn number_by_token(min: f64, max: f64) -> Self {
        Self::between(OptionType::NumberByToken, min, max)
    }

    /// True or false.
    pub const fn boolean() -> Self {
        Self::new(OptionType::Boolean)
    }

    /// A string.
    pub const fn text() -> Self {
        Self::new(OptionType::Text)
    }

    /// One of some names.
    pub const fn one_of(names: &'static [&'static str]) -> Self {
        Self::new(OptionType::OneOf(names))
    }

    /// The APIs whose callers set it.
    pub const fn of(mut self, apis: &'static [Api]) -> Self {
        self.apis = apis;
        self
    }

    /// The value without the option.
    pub const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// The name of the TypeScript type of its names.
    pub const fn alias(mut self, name: &'static str) -> Self {
        self.alias = Some(name);
        self
    }

    /// The name for callers.
    pub const fn public_name(mut self, name: &'static str) -> Self {
        self.public_name = Some(name);
        self
    }

    /// Adds the field's name and documentation.
    pub const fn named(mut self, name: &'static str, doc: &'static str) -> Self {
        self.name = name;
        self.doc = if cfg!(target_arch = "wasm32") {
            ""
        } else {
            doc
        };
        self
    }

    /// Whether a value is within the bounds.
    pub fn accepts(&self, value: f64) -> bool {
        value <= self.max && (value > self.min || (value == self.min && !self.above_min))
    }

    /// The bounds for a message: "between 0 and 2".
    pub fn bounds(&self) -> String {
        let Self { min, max, .. } = self;
        let has_max = *max < MAX_COUNT;
        match (self.above_min, has_max) {
            (true, _) => format!("above {min} and at most {max}"),
            (false, true) => format!("between {min} and {max}"),
            (false, false) => format!("at least {min}"),
        }
    }

    /// Refuses a value outside the bounds; `parameter` names it in the error.
    ///
    /// # Errors
    /// `Request` with the bounds.
    pub fn check(&self, parameter: &str, value: f64) -> Result<()> {
        if self.accepts(value) {
            return Ok(());
        }
        Err(Error::Request {
            parameter: parameter.into(),
            reason: format!("{value} is not allowed; it must be {}", self.bounds()),
        })
    }

    /// Refuses a field of a request that has a number outside the bounds, or an unknown name.
    ///
    /// # Errors
    /// `Request`, which names the option.
    pub fn check_value(&self, value: &impl OptionValue) -> Result<()> {
        let parameter = || camel_case(self.public_name.unwrap_or(self.name));
        if let (OptionType::OneOf(names), Some(name)) = (self.kind, value.text())
            && !names.contains(&name)
        {
            return Err(Error::Request {
                parameter: parameter(),
                reason: format!("'{name}' is not supported. Use {}.", names.join(", ")),
            });
        }
        match value.find_number(&|number| !self.accepts(number)) {
            Some(number) => self.check(&parameter(), number),
            None => Ok(()),
        }
    }
}

/// A snake-case name in camel case.
pub fn camel_case(name: &str) -> String {
    let mut camel = String::new();
    let mut upper = false;
    for letter in name.chars() {
        if letter == '_' {
            upper = true;
        } else if std::mem::take(&mut upper) {
            camel.extend(letter.to_uppercase());
        } else {
            camel.push(letter);
        }
    }
    camel
}

/// A value of an option: finds the numbers that its bounds apply to, and a name.
pub trait OptionValue {
    /// The first number that a test accepts; values without numbers have none.
    fn find_number(&self, _test: &dyn Fn(f64) -> bool) -> Option<f64> {
        None
    }

    /// The value, if it is a string.
    fn text(&self) -> Option<&str> {
        None
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl OptionValue for $number {
            fn find_number(&self, test: &dyn Fn(f64) -> bool) -> Option<f64> {
                Some(*self as f64).filter(|number| test(*number))
            }
        })*
    };
}
numbers!(f64, f32, u64, i64, u32, usize);

macro_rules! others {
    ($($other:ty),*) => { $(impl OptionValue for $other {})* };
}
others!(bool, Value, Map<String, Value>);

impl OptionValue for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

impl<K, V> OptionValue for SortedMap<K, V> {}

impl<T: OptionValue> OptionValue for Option<T> {
    fn find_number(&self, test: &dyn Fn(f64) -> bool) -> Option<f64> {
        self.as_ref().and_then(|value| value.find_number(test))
    }

    fn text(&self) -> Option<&str> {
        self.as_ref().and_then(OptionValue::text)
    }
}

impl<T: OptionValue> OptionValue for Vec<T> {
    fn find_number(&self, test: &dyn Fn(f64) -> bool) -> Option<f64> {
        self.iter().find_map(|value| value.find_number(test))
    }
}

/// Declares the options of a request: `field: type = default => definition;` for each. Makes a
/// struct that serde reads with camel-case names, its `Default`, its `check_bounds`, and the table of
/// definitions. Fields after `with` are not options: each names its serde attribute.
macro_rules! request_options {
    (
        $(#[doc = $about:literal])+
        $(#[serde($container:ident)])?
        pub struct $name:ident, $table:ident {
            $(
                $(#[doc = $doc:literal])+
                $(#[serde(alias = $alias:literal)])?
                $field:ident: $type:ty = $default:expr => $option:expr;
            )*
        }
        $(with {
            $( $(#[doc = $more_doc:literal])+ $(#[serde($($how:tt)*)])? $more:ident: $more_type:ty; )*
        })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, ::serde::Deserialize)]
        #[serde(default, rename_all = "camelCase" $(, $container)?)]
        pub struct $name {
            $( $(#[doc = $doc])+ $(#[serde(alias = $alias)])? pub $field: $type, )*
            $( $( $(#[doc = $more_doc])+ $(#[serde($($how)*)])? pub $more: $more_type, )* )?
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* $( $( $more: Default::default(), )* )? }
            }
        }

        #[doc = concat!("The options of [`", stringify!($name), "`], in the order of its fields.")]
        pub const $table: &[$crate::schema::RequestOption] = {
            #[allow(unused_imports)]
            use $crate::schema::{Api, OptionType, RequestOption};
            &[ $( $option.named(stringify!($field), concat!($($doc),+)) ),* ]
        };

        impl $name {
            /// Checks numbers against the bounds of their options.
            ///
            /// # Errors
            /// `Request`, which names the option.
            pub fn check_bounds(&self) -> $crate::Result<()> {
                let mut options = $table.iter();
                $(
                    if let Some(option) = options.next() {
                        option.check_value(&self.$field)?;
                    }
                )*
                Ok(())
            }
        }
    };
}
pub(crate) use request_options;
