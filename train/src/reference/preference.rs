//! DPO's loss of preference pairs (arXiv 2305.18290, eq. 7) and its gradient.

/// Results of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairLoss {
    /// -log sigmoid of beta times the difference of the log-ratios.
    pub loss: f64,
    /// Log-probability of the chosen answer less that by the reference model, and of the rejected
    /// answer.
    pub log_ratios: [f64; 2],
    /// Gradients of the loss with respect to both log-probabilities.
    pub gradient: [f64; 2],
}

/// Returns the loss of a pair from the log-probabilities of its chosen and its rejected answer.
pub fn pair_loss(log_probabilities: [f64; 2], reference: [f64; 2], beta: f64) -> PairLoss {
    let log_ratios = [0, 1].map(|answer: usize| log_probabilities[answer] - reference[answer]);
    let z = beta * (log_ratios[0] - log_ratios[1]);
    let slope = beta / (1.0 + z.exp());
    PairLoss {
        loss: (-z).max(0.0) + (-z.abs()).exp().ln_1p(),
        log_ratios,
        gradient: [-slope, slope],
    }
}
