//! Sampling parameters: the options of a request with their bounds, defaults, sources and validation.

use crate::util::map::SortedMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::fixed_point::MIN_TEMPERATURE;
use super::rules::TokenRules;
use crate::{Error, Result};

/// Type of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionType {
    /// A number.
    Number,
    /// A whole number.
    Integer,
    /// A number for each of some token ids.
    NumberByToken,
}

/// Definition of a sampling option: one place for what requests, checks and manuals say of it.
#[derive(Debug, Clone, Copy)]
pub struct SamplingOption {
    /// Name as in Python; in camel case as in JavaScript.
    pub name: &'static str,
    /// Type of its value.
    pub kind: OptionType,
    /// Smallest value.
    pub min: f64,
    /// Whether `min` itself is too small.
    pub above_min: bool,
    /// Largest value; infinite if there is none.
    pub max: f64,
    /// Value without the option and a generation_config.json, if it has one.
    pub default: Option<f64>,
    /// Its effect.
    pub doc: &'static str,
}

impl SamplingOption {
    const fn new(
        name: &'static str,
        kind: OptionType,
        bounds: (f64, f64),
        default: Option<f64>,
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            min: bounds.0,
            above_min: false,
            max: bounds.1,
            default,
            doc,
        }
    }

    const fn above_min(mut self) -> Self {
        self.above_min = true;
        self
    }

    /// Whether a value is within the bounds.
    pub fn accepts(&self, value: f64) -> bool {
        value <= self.max && (value > self.min || (value == self.min && !self.above_min))
    }

    /// The bounds for a message: "between 0 and 2".
    pub fn bounds(&self) -> String {
        let Self { min, max, .. } = self;
        match (self.above_min, max.is_finite()) {
            (true, _) => format!("above {min} and at most {max}"),
            (false, true) => format!("between {min} and {max}"),
            (false, false) => format!("at least {min}"),
        }
    }

    /// Finds an option.
    ///
    /// # Errors
    /// `Internal` for an unknown name.
    pub fn named(name: &str) -> Result<&'static Self> {
        let found = SAMPLING_OPTIONS.iter().find(|option| option.name == name);
        found.ok_or_else(|| Error::Internal(format!("unknown sampling option '{name}'")))
    }
}

/// Largest whole number that JavaScript represents exactly.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// The sampling options of a request.
pub const SAMPLING_OPTIONS: &[SamplingOption] = &[
    SamplingOption::new(
        "temperature",
        OptionType::Number,
        (0.0, 2.0),
        Some(1.0),
        "Divides the scores; 0 selects the most likely token.",
    ),
    SamplingOption::new(
        "top_k",
        OptionType::Integer,
        (-1.0, f64::INFINITY),
        Some(50.0),
        "Keeps the most likely tokens, so many; 0 and -1 keep all.",
    ),
    SamplingOption::new(
        "top_p",
        OptionType::Number,
        (0.0, 1.0),
        Some(1.0),
        "Keeps the most likely tokens up to this total probability; 1 keeps all.",
    ),
    SamplingOption::new(
        "min_p",
        OptionType::Number,
        (0.0, 1.0),
        Some(0.0),
        "Keeps tokens with this fraction of the most likely token's probability; 0 keeps all.",
    ),
    SamplingOption::new(
        "typical_p",
        OptionType::Number,
        (0.0, 1.0),
        Some(1.0),
        "Keeps the tokens of typical information up to this total probability; 1 keeps all.",
    )
    .above_min(),
    SamplingOption::new(
        "repetition_penalty",
        OptionType::Number,
        (0.01, 100.0),
        Some(1.0),
        "Divides the scores of tokens of prompt and answer; 1 has no effect.",
    ),
    SamplingOption::new(
        "presence_penalty",
        OptionType::Number,
        (-2.0, 2.0),
        Some(0.0),
        "Subtracted once from the score of each token of the answer.",
    ),
    SamplingOption::new(
        "frequency_penalty",
        OptionType::Number,
        (-2.0, 2.0),
        Some(0.0),
        "Subtracted from the score of a token for each occurrence in the answer.",
    ),
    SamplingOption::new(
        "logit_bias",
        OptionType::NumberByToken,
        (-100.0, 100.0),
        None,
        "Added to the scores of these tokens; negative infinity bans a token.",
    ),
    SamplingOption::new(
        "seed",
        OptionType::Integer,
        (-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER),
        None,
        "Seed of the random numbers; without one, each request has another.",
    ),
];

/// Sampling parameters. The defaults are those of transformers' `GenerationConfig`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Selects the token with the highest score; temperature, filters and seed have no effect.
    pub greedy: bool,
    /// Divides the scores; 0 is greedy.
    pub temperature: f64,
    /// Keeps the `top_k` most likely tokens and ties with the last of them; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens with at least this total probability; 1 keeps
    /// all.
    pub top_p: f64,
    /// Keeps tokens with at least this fraction of the most likely token's probability; 0 keeps
    /// all.
    pub min_p: f64,
    /// Keeps the tokens whose information is closest to the entropy, up to this total probability;
    /// 1 keeps all.
    pub typical_p: f64,
    /// Keeps tokens of at least this probability; 0 keeps all.
    pub epsilon_cutoff: f64,
    /// Keeps tokens of at least this probability, or a lower one if the distribution is flat; 0
    /// keeps all.
    pub eta_cutoff: f64,
    /// Keeps the most likely tokens up to this share of the entropy of the 100 most likely; 0 keeps
    /// all.
    pub top_h: f64,
    /// Divides positive scores of prompt and answer tokens, and multiplies negative ones; 1 has no
    /// effect.
    pub repetition_penalty: f64,
    /// Subtracted once from the score of each token of the answer so far.
    pub presence_penalty: f64,
    /// Subtracted from the score of a token once per occurrence in the answer so far.
    pub frequency_penalty: f64,
    /// Added to the scores of these tokens; negative infinity bans a token.
    pub logit_bias: SortedMap<u32, f64>,
    /// Seed of the random numbers. If absent, the caller of the sampler provides one.
    pub seed: Option<u64>,
    /// Rules that depend on earlier tokens.
    pub rules: TokenRules,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            greedy: true,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            top_h: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: SortedMap::new(),
            seed: None,
            rules: TokenRules::default(),
        }
    }
}

/// Sampling parameters of a request or of generation_config.json; absent and null fields keep their
/// defaults. Accepts names in Python's and JavaScript's spelling. Unknown fields are ignored,
/// because other readers share the object.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SamplingOptions {
    /// Whether to sample; false is greedy.
    #[serde(alias = "doSample")]
    pub do_sample: Option<bool>,
    /// See [`Params::temperature`].
    pub temperature: Option<f64>,
    /// See [`Params::top_k`].
    #[serde(alias = "topK")]
    pub top_k: Option<i64>,
    /// See [`Params::top_p`].
    #[serde(alias = "topP")]
    pub top_p: Option<f64>,
    /// See [`Params::min_p`].
    #[serde(alias = "minP")]
    pub min_p: Option<f64>,
    /// See [`Params::typical_p`].
    #[serde(alias = "typicalP")]
    pub typical_p: Option<f64>,
    /// See [`Params::repetition_penalty`].
    #[serde(alias = "repetitionPenalty")]
    pub repetition_penalty: Option<f64>,
    /// See [`Params::presence_penalty`].
    #[serde(alias = "presencePenalty")]
    pub presence_penalty: Option<f64>,
    /// See [`Params::frequency_penalty`].
    #[serde(alias = "frequencyPenalty")]
    pub frequency_penalty: Option<f64>,
    /// See [`Params::logit_bias`]. Keys may be strings, as JSON requires.
    #[serde(alias = "logitBias")]
    pub logit_bias: Option<SortedMap<TokenKey, f64>>,
    /// See [`Params::seed`].
    pub seed: Option<i64>,
}

/// Token id as a map key: JSON and JavaScript write it as a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey(pub u32);

impl<'de> Deserialize<'de> for TokenKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TokenKey;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a token id")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<TokenKey, E> {
                let id = value
                    .parse()
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self))?;
                Ok(TokenKey(id))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<TokenKey, E> {
                let id = value
                    .try_into()
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))?;
                Ok(TokenKey(id))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<TokenKey, E> {
                let id = value
                    .try_into()
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
                Ok(TokenKey(id))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl SamplingParams {
    /// Returns a model's defaults: those of transformers, overridden by generation_config.json. As
    /// in transformers, a configuration without `do_sample` is greedy, whatever its temperature.
    pub fn from_generation_config(config: &serde_json::Value) -> Result<Self> {
        let refuse = |reason: String| Error::Config {
            file: "generation_config.json".into(),
            reason,
        };
        let mut overrides =
            SamplingOptions::deserialize(config).map_err(|error| refuse(error.to_string()))?;
        overrides.do_sample = Some(overrides.do_sample.unwrap_or(false));
        SamplingParams::default()
            .apply(&overrides)
            .map_err(|error| refuse(error.to_string()))
    }

    /// Overrides these parameters by those of a request. A request with a temperature above 0, a
    /// filter or a seed, but without `do_sample`, enables sampling; temperature 0 is greedy.
    ///
    /// # Errors
    /// `Request` for a value outside the bounds of [`SAMPLING_OPTIONS`].
    pub fn merge(&self, request: &SamplingOptions) -> Result<Self> {
        request.check_bounds()?;
        self.apply(request)
    }

    /// Overrides these parameters by any values that can be computed with.
    fn apply(&self, request: &SamplingOptions) -> Result<Self> {
        let mut merged = self.clone();
        merged.greedy = match (request.do_sample, request.temperature) {
            (Some(sample), _) => !sample,
            (None, Some(temperature)) => temperature == 0.0,
            (None, None) if request.requests_sampling() => false,
            (None, None) => self.greedy,
        };
        let put = |target: &mut f64, value: Option<f64>| *target = value.unwrap_or(*target);
        put(&mut merged.temperature, request.temperature);
        put(&mut merged.top_p, request.top_p);
        put(&mut merged.min_p, request.min_p);
        put(&mut merged.typical_p, request.typical_p);
        put(&mut merged.repetition_penalty, request.repetition_penalty);
        put(&mut merged.presence_penalty, request.presence_penalty);
        put(&mut merged.frequency_penalty, request.frequency_penalty);
        if let Some(top_k) = request.top_k {
            check("top_k", "top_k", top_k as f64)?;
            // -1 is a common spelling of "all".
            merged.top_k = top_k.clamp(0, i64::from(u32::MAX)) as u32;
        }
        if let Some(bias) = &request.logit_bias {
            for (TokenKey(token), value) in bias {
                if *value != f64::NEG_INFINITY {
                    check("logit_bias", &format!("logit_bias[{token}]"), *value)?;
                }
                *merged.logit_bias.get_or_insert_with(*token, || 0.0) += value;
            }
        }
        if let Some(seed) = request.seed {
            merged.seed = Some(seed as u64);
        }
        merged.validate()?;
        Ok(merged)
    }

    /// Whether the token with the highest score is selected.
    pub fn is_greedy(&self) -> bool {
        self.greedy || self.temperature < MIN_TEMPERATURE
    }

    /// Whether a filter is set that only the CPU sampler supports.
    pub fn has_rare_filters(&self) -> bool {
        self.typical_p < 1.0
            || self.epsilon_cutoff > 0.0
            || self.eta_cutoff > 0.0
            || self.top_h > 0.0
    }

    /// Whether scores depend on earlier tokens through penalties.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Checks that all values can be computed with; the error names the parameter. The bounds of
    /// requests are narrower.
    ///
    /// # Errors
    /// `Request` that names the parameter.
    pub fn validate(&self) -> Result<()> {
        let temperature = self.temperature;
        let is_finite = temperature.is_finite() && temperature >= 0.0;
        within("temperature", temperature, is_finite, "at least 0")?;
        for (name, value) in [
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(name, name, value)?;
        }
        for (token, bias) in &self.logit_bias {
            let allowed = bias.is_finite() || *bias == f64::NEG_INFINITY;
            within(
                &format!("logit_bias[{token}]"),
                *bias,
                allowed,
                "a number, or -Infinity to ban the token",
            )?;
        }
        Ok(())
    }
}

impl SamplingOptions {
    /// Checks the values against [`SAMPLING_OPTIONS`].
    fn check_bounds(&self) -> Result<()> {
        let given = [
            ("temperature", self.temperature),
            ("seed", self.seed.map(|seed| seed as f64)),
        ];
        // The others are checked with the parameters that they override.
        for (name, value) in given {
            if let Some(value) = value {
                check(name, name, value)?;
            }
        }
        Ok(())
    }

    fn requests_sampling(&self) -> bool {
        let filter = self.top_p.is_some() || self.min_p.is_some() || self.typical_p.is_some();
        filter || self.top_k.is_some() || self.seed.is_some()
    }
}

/// Checks a value of the option `name` against its bounds; `parameter` names it in the error.
fn check(name: &str, parameter: &str, value: f64) -> Result<()> {
    let option = SamplingOption::named(name)?;
    within(parameter, value, option.accepts(value), &option.bounds())
}

fn within(name: &str, value: f64, ok: bool, allowed: &str) -> Result<()> {
    if ok {
        Ok(())
    } else {
        Err(refuse(
            name,
            format!("{value} is not allowed; it must be {allowed}"),
        ))
    }
}

fn refuse(parameter: &str, reason: String) -> Error {
    Error::Request {
        parameter: parameter.into(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(text: &str) -> SamplingOptions {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn generation_config_as_in_transformers() {
        let config: serde_json::Value = serde_json::from_str(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": null,
                "eos_token_id": [1, 2], "transformers_version": "4.51.0"}"#,
        )
        .unwrap();
        let params = SamplingParams::from_generation_config(&config).unwrap();
        let expected = SamplingParams {
            greedy: false,
            temperature: 0.6,
            top_k: 20,
            top_p: 0.95,
            ..SamplingParams::default()
        };
        assert_eq!(params, expected);
        let silent =
            SamplingParams::from_generation_config(&serde_json::json!({"temperature": 0.6}))
                .unwrap();
        assert!(silent.is_greedy());
        let wrong = SamplingParams::from_generation_config(&serde_json::json!({"top_p": 3}));
        assert!(matches!(wrong, Err(Error::Config { .. })));
        assert!(matches!(
            SamplingParams::from_generation_config(&serde_json::json!([1])),
            Err(Error::Config { .. })
        ));
    }

    #[test]
    fn requests_in_both_spellings() {
        let request = overrides(
            r#"{"topK": 5, "presence_penalty": 0.5, "logitBias": {"7": -100, "9": 2}, "n": 1}"#,
        );
        let params = SamplingParams::default().merge(&request).unwrap();
        assert!(!params.is_greedy());
        assert_eq!((params.top_k, params.presence_penalty), (5, 0.5));
        assert_eq!(params.logit_bias, SortedMap::from([(7, -100.0), (9, 2.0)]));
        assert!(
            params
                .merge(&overrides(r#"{"temperature": 0}"#))
                .unwrap()
                .is_greedy()
        );
        assert!(
            params
                .merge(&overrides(r#"{"doSample": false}"#))
                .unwrap()
                .is_greedy()
        );
        assert_eq!(
            params
                .merge(&overrides(r#"{"top_k": -1, "seed": -3}"#))
                .unwrap()
                .seed,
            Some(-3i64 as u64)
        );
    }

    #[test]
    fn refusals_name_the_parameter() {
        let cases = [
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"temperature": 2.1}"#, "temperature"),
            (r#"{"seed": 9007199254740992}"#, "seed"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"min_p": -0.1}"#, "min_p"),
            (r#"{"typical_p": 0}"#, "typical_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"presence_penalty": 2.5}"#, "presence_penalty"),
            (r#"{"frequency_penalty": -9}"#, "frequency_penalty"),
            (r#"{"logit_bias": {"3": 101}}"#, "logit_bias[3]"),
        ];
        for (request, name) in cases {
            match SamplingParams::default().merge(&overrides(request)) {
                Err(Error::Request { parameter, .. }) => assert_eq!(parameter, name),
                other => panic!("{request}: {other:?}"),
            }
        }
        assert!(serde_json::from_str::<SamplingOptions>(r#"{"logit_bias": {"x": 1}}"#).is_err());
    }
}
