//! Sampling parameters: the options of a request, their sources and validation.

use crate::schema::{MAX_SAFE_INTEGER, RequestOption, request_options};
use crate::util::map::SortedMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::fixed_point::MIN_TEMPERATURE;
use super::rules::TokenRules;
use crate::{Error, Result};

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

request_options! {
    /// Sampling parameters of a request or of generation_config.json; absent and null fields keep their
    /// defaults. Accepts names in Python's and JavaScript's spelling. Unknown fields are ignored,
    /// because other readers share the object.
    pub struct SamplingOptions, SAMPLING_OPTIONS {
        /// Sampling temperature; 0 selects the most likely token.
        temperature: Option<f64> = None => RequestOption::number(0.0, 2.0)
            .default("1")
            .of(&[Api::Generate, Api::Chat, Api::Completions, Api::Speech]);
        /// Samples from the k most likely tokens; 0 and -1 keep all.
        #[serde(alias = "top_k")]
        top_k: Option<i64> = None => RequestOption::count(-1.0)
            .default("50")
            .of(&[Api::Generate, Api::Chat]);
        /// Samples from the most likely tokens up to this total probability; 1 keeps all.
        #[serde(alias = "top_p")]
        top_p: Option<f64> = None => RequestOption::number(0.0, 1.0)
            .default("1")
            .of(&[Api::Generate, Api::Chat, Api::Completions, Api::Speech]);
        /// Drops tokens whose probability is below this fraction of the most likely one's; 0 keeps all.
        #[serde(alias = "min_p")]
        min_p: Option<f64> = None => RequestOption::number(0.0, 1.0)
            .default("0")
            .of(&[Api::Generate, Api::Chat]);
        /// Locally typical sampling: the tokens of typical information up to this total probability;
        /// 1 keeps all.
        #[serde(alias = "typical_p")]
        typical_p: Option<f64> = None => RequestOption::number_above(0.0, 1.0)
            .default("1")
            .of(&[Api::Generate, Api::Chat]);
        /// Values above 1 make tokens that already occurred less likely; 1 has no effect.
        #[serde(alias = "repetition_penalty")]
        repetition_penalty: Option<f64> = None => RequestOption::number(0.01, 100.0)
            .default("1")
            .of(&[Api::Generate, Api::Chat, Api::Speech]);
        /// Subtracted from the logits of tokens that were generated before.
        #[serde(alias = "presence_penalty")]
        presence_penalty: Option<f64> = None => RequestOption::number(-2.0, 2.0)
            .default("0")
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Subtracted from the logits of generated tokens, times their count.
        #[serde(alias = "frequency_penalty")]
        frequency_penalty: Option<f64> = None => RequestOption::number(-2.0, 2.0)
            .default("0")
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// Values added to the logits of these token ids.
        #[serde(alias = "logit_bias")]
        logit_bias: Option<SortedMap<TokenKey, f64>> = None => RequestOption::number_by_token(-100.0, 100.0)
            .of(&[Api::Generate, Api::Chat, Api::Completions]);
        /// The same seed samples the same tokens. Further answers of a request use `seed + 1`,
        /// `seed + 2` and so on.
        seed: Option<i64> = None => RequestOption::integer(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
            .default("random")
            .of(&[Api::Generate, Api::Chat, Api::Completions, Api::Speech]);
    }
    with {
        /// Whether to sample; false is greedy.
        #[serde(alias = "do_sample")]
        do_sample: Option<bool>;
    }
}

/// Finds a sampling option.
///
/// # Errors
/// `Internal` for an unknown name.
pub fn sampling_option(name: &str) -> Result<&'static RequestOption> {
    let found = SAMPLING_OPTIONS.iter().find(|option| option.name == name);
    found.ok_or_else(|| Error::Internal(format!("unknown sampling option '{name}'")))
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
        // A list would be read as the fields in their order.
        if !config.is_object() {
            return Err(refuse("it must be a JSON object".into()));
        }
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
        request.check_request()?;
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
            check("top_k", "top_k", top_k.min(i64::from(u32::MAX)) as f64)?;
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
    /// Checks the values that a checkpoint may set beyond the bounds of [`SAMPLING_OPTIONS`].
    fn check_request(&self) -> Result<()> {
        let given = [
            ("temperature", self.temperature),
            ("top_k", self.top_k.map(|k| k as f64)),
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
    sampling_option(name)?.check(parameter, value)
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
