//! Logits processors of the caller: code that changes the logits of each token before it is sampled.

use crate::Result;
use futures_util::future::LocalBoxFuture;
use std::ops::ControlFlow;

/// Changes the logits of each token and may end the answer. The logits are read back from the GPU
/// and the token is sampled on the CPU, so a step takes longer than without it.
pub trait LogitsProcessor {
    /// Changes the `[vocabulary]` logits of the token after `tokens`, the answer so far. Bias,
    /// penalties, masks and filters apply afterwards. `Break` ends the answer before the token.
    ///
    /// # Errors
    /// An error ends the generation with it.
    fn process<'a>(
        &'a mut self,
        logits: &'a mut Vec<f32>,
        tokens: &'a [u32],
    ) -> LocalBoxFuture<'a, Result<ControlFlow<()>>>;
}
