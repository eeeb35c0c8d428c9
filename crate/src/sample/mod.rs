//! Sampling: selects the next token from a row of logits. Has the parameters, the CPU sampler and
//! log-probabilities. The GPU sampler (shaders/sample) uses the arithmetic of `fixed_point`, so
//! both agree bit for bit.

mod certain;
mod constraint;
mod distribution;
pub mod fixed_point;
pub mod generation;
mod logprobs;
mod params;
pub mod philox;
mod processor;
mod rules;
mod sampler;

pub use certain::{Candidates, CertainSampler};
pub use constraint::TokenConstraint;
pub use distribution::Distribution;
pub use generation::GenerationConfig;
pub use logprobs::{LogProbs, TokenLogProb, log_probabilities};
pub use params::{SAMPLING_OPTIONS, SamplingOptions, SamplingParams, sampling_option};
pub use processor::LogitsProcessor;
pub use rules::TokenRules;
pub(crate) use sampler::{
    ALL_BANNED, CONSTANT_HINT, NOT_FINITE_HINT, TokenLimits, no_allowed_token,
};
pub use sampler::{IN_PROMPT, Penalties, Sampler, TokenMask};
