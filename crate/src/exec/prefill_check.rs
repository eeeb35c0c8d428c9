//! Self-check of a loaded model: prefill equals decode.

use super::model::Model;
use super::session::Session;
use crate::Result;
use crate::gpu::Backend;
use crate::plan::Slot;
use std::rc::Rc;

/// Tokens of the test prompt.
const CHECKED_TOKENS: usize = 9;
/// Maximum relative L2 difference of prefill and single steps, which round in different places.
const MAX_LOGITS_DIFFERENCE: f64 = 0.1;

/// Runs a few tokens in a new session, as a prefill and one by one. Returns a description if the
/// logits differ too much.
///
/// # Errors
/// `NotFinite`, or other device errors.
pub async fn check_prefill_vs_decode(model: &Rc<Model>) -> Result<Option<String>> {
    let mut session = Session::new(model)?;
    let ids: Vec<u32> = (1..=CHECKED_TOKENS.min(model.capacity()))
        .map(|i| (i * 7919 % model.vocab()) as u32)
        .collect();
    // Results of the first run must not be mistaken for the second's.
    poison_logits(&session)?;
    session.prefill(&ids, 0).await?;
    let together = session.logits().await?;
    session.clear();
    poison_logits(&session)?;
    for (pos, id) in ids.iter().enumerate() {
        session.step(*id, pos).await?;
    }
    let apart = session.logits().await?;
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let error = square(&mut together.iter().zip(&apart).map(|(a, b)| f64::from(a - b)));
    let size = square(&mut apart.iter().map(|v| f64::from(*v)));
    let distance = (error / size.max(1e-30)).sqrt();

    Ok((distance.is_nan() || distance > MAX_LOGITS_DIFFERENCE).then(|| {
        format!(
            "logits of prefill and decode differ: relative L2 {distance:.3}, limit {MAX_LOGITS_DIFFERENCE}"
        )
    }))
}

/// Overwrites the logits on the device.
fn poison_logits(session: &Session) -> Result<()> {
    let zeros = vec![0; session.vocab() * 4];
    session
        .gpu()
        .write(session.buffer(Slot::Output)?, 0, &zeros);
    Ok(())
}
