//! A loaded model put to the test: its weights against the files, its kernels against the CPU and each other. Knows no device by name.

use super::Check;
use super::checks::outcome;
use crate::Result;
use crate::exec::{Files, Model, contradiction};
use crate::hub::Source;
use crate::util::clock::now_ms;
use std::rc::Rc;

/// Compares up to `most` bytes of a model's weights with its files, the two ways in which it runs tokens, and some products
/// with the CPU's.
///
/// # Errors
/// `DeviceLost`; everything else is the outcome of a check.
pub async fn integrity(model: &Rc<Model>, source: &Source, files: &Files, most: u64) -> Result<Vec<Check>> {
    let start = now_ms();
    let weights = model.changed_weight(source, files, most).await.map(Option::unwrap_or_default);
    let weights = outcome("weights as in the files", start, weights)?;
    let start = now_ms();
    let ways = contradiction(model).await.map(Option::unwrap_or_default);
    let ways = outcome("tokens at once and one by one", start, ways)?;
    let start = now_ms();
    let products = model.unlike_twin().await;
    Ok(vec![weights, ways, outcome("products as on the CPU", start, products)?])
}
