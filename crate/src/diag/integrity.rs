//! Verification of a loaded model: weights against files, kernels against the CPU, prefill against decode.

use super::Check;
use super::checks::outcome;
use crate::Result;
use crate::exec::{Files, Model, contradiction};
use crate::hub::Source;
use crate::util::clock::now_ms;
use std::rc::Rc;

/// Compares up to `most` bytes of weights with the model's files, prefill with decode, and some matmuls with the CPU.
///
/// # Errors
/// `DeviceLost`; any other error is the result of a check.
pub async fn integrity(model: &Rc<Model>, source: &Source, files: &Files, most: u64) -> Result<Vec<Check>> {
    let start = now_ms();
    let weights = model.changed_weight(source, files, most).await.map(Option::unwrap_or_default);
    let weights = outcome("weights equal files", start, weights)?;
    let start = now_ms();
    let ways = contradiction(model).await.map(Option::unwrap_or_default);
    let ways = outcome("prefill equals decode", start, ways)?;
    let start = now_ms();
    let products = model.unlike_twin().await;
    Ok(vec![weights, ways, outcome("matmul equals CPU", start, products)?])
}
