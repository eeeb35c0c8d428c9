//! Log-probabilities as OpenAI's API and vLLM report them: the log-softmax of the raw logits,
//! before bias, penalties, temperature and filters.

use super::Distribution;
use super::fixed_point::gap_scale;
use crate::Result;

/// Token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogProb {
    /// The token's id.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Log-probabilities of the sampled token and of the most likely ones.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    /// The sampled token.
    pub sampled: TokenLogProb,
    /// The most likely tokens in descending order; ties in ascending order of ids.
    pub top: Vec<TokenLogProb>,
}

/// Computes the log-probabilities of token `picked` and of the `top` most likely tokens.
/// `distribution` is reused as scratch memory.
pub fn log_probabilities(
    logits: &[f32],
    picked: u32,
    top: usize,
    distribution: &mut Distribution,
) -> Result<LogProbs> {
    let max = super::sampler::max_finite_logit(logits, "a step with log-probabilities")?;
    distribution.set(logits, max, gap_scale(1.0));
    let normaliser = distribution.log_normalizer();
    let of = |token: u32| {
        let logit = logits
            .get(token as usize)
            .copied()
            .unwrap_or(f32::NEG_INFINITY);
        TokenLogProb {
            token,
            logprob: (f64::from(logit) - f64::from(max) - normaliser) as f32,
        }
    };
    let mut best: Vec<u32> = Vec::with_capacity(top + 1);
    for (id, logit) in logits.iter().enumerate() {
        if top == 0
            || (best.len() == top
                && best
                    .last()
                    .is_some_and(|&last| *logit <= logits[last as usize]))
        {
            continue;
        }
        // After ties, because ids ascend.
        let place = best.partition_point(|&other| logits[other as usize] >= *logit);
        best.insert(place, id as u32);
        best.truncate(top);
    }
    Ok(LogProbs {
        sampled: of(picked),
        top: best.into_iter().map(of).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_softmax_and_alternatives() {
        let logits = [1.0, 3.0, 2.0, 3.0, -50.0];
        let normaliser = logits
            .iter()
            .map(|l: &f32| f64::from(*l).exp())
            .sum::<f64>()
            .ln();
        let found = log_probabilities(&logits, 4, 3, &mut Distribution::default()).unwrap();
        assert_eq!(
            found.top.iter().map(|t| t.token).collect::<Vec<_>>(),
            [1, 3, 2]
        );
        for token in found.top.iter().chain([&found.sampled]) {
            let expected = (f64::from(logits[token.token as usize]) - normaliser) as f32;
            assert!(
                (token.logprob - expected).abs() < 1e-6,
                "{token:?} {expected}"
            );
        }
        let none = log_probabilities(&logits, 0, 0, &mut Distribution::default()).unwrap();
        assert!(none.top.is_empty());
    }
}
