//! Sampling: selects the next token from a row of logits. Has the parameters, the CPU sampler and
//! log-probabilities. The GPU sampler (shaders/sample) uses the arithmetic of `fixed_point`, so both
//! agree bit for bit.

mod distribution;
pub mod fixed;
pub mod generation;
mod logprobs;
mod params;
pub mod philox;
mod rules;
mod sampler;

pub use distribution::Distribution;
pub use generation::Generation;
pub use logprobs::{LogProbs, TokenLogProb, log_probabilities};
pub use params::{Overrides, Params};
pub use rules::TokenRules;
pub(crate) use sampler::{CONSTANT_HINT, NOT_FINITE_HINT, all_banned};
pub use sampler::{IN_PROMPT, Penalty, Sampler, TokenMask};
