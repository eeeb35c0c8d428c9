//! Picks the next token from a row of logits: parameters, the CPU sampler and log-probabilities. Knows no model,
//! no tokenizer and no GPU; the GPU's sampler (shaders/sample) follows the arithmetic of `fixed` and so agrees bit by bit.

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
