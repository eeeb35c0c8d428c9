//! Verification of a loaded model: weights against files, kernels against the CPU, prefill against
//! decode.

use super::DiagnosticResult;
use super::checks::check_result;
use crate::Result;
use crate::exec::{Model, ModelFiles, check_prefill_vs_decode};
use crate::hub::Source;
use crate::util::clock::now_ms;
use std::rc::Rc;

/// Compares up to `most` bytes of weights with the model's files, prefill with decode, and some
/// matmuls with the CPU.
///
/// # Errors
/// `DeviceLost`; any other error is the result of a check.
pub async fn verify_model(
    model: &Rc<Model>,
    source: &Source,
    files: &ModelFiles,
    most: u64,
) -> Result<Vec<DiagnosticResult>> {
    let start = now_ms();
    let weights = model
        .verify_weights(source, files, most)
        .await
        .map(Option::unwrap_or_default);
    let weights = check_result("weights equal files", start, weights)?;
    let start = now_ms();
    let ways = check_prefill_vs_decode(model)
        .await
        .map(Option::unwrap_or_default);
    let ways = check_result("prefill equals decode", start, ways)?;
    let start = now_ms();
    let products = model.check_matmuls().await;
    Ok(vec![
        weights,
        ways,
        check_result("matmul equals CPU", start, products)?,
    ])
}
