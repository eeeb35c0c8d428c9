//! Greedy sampling on the GPU, and the step from one token to the next.

use super::registry::{Kernel, Variant};
use super::{GridSpec, Launch};

/// Slices that the vocabulary is cut into.
pub fn slices(vocab: u32) -> u32 {
    vocab.div_ceil(1024).clamp(1, 128)
}

/// The best of each slice; `out` holds two words for each.
pub fn argmax<B: Clone>(logits: B, out: B, vocab: u32) -> Launch<B> {
    let count = slices(vocab);
    Launch::new("argmax", Variant::new(Kernel::Argmax), GridSpec::Fixed { units: count })
        .bind("logits", logits)
        .bind("out", out)
        .set("vocab", vocab)
        .set("slice", vocab.div_ceil(count))
}

/// What the step from one token to the next reads and moves.
#[derive(Debug, Clone)]
pub struct Advance<B> {
    /// Pairs of value and index, `slices` of them.
    pub candidates: B,
    /// How many.
    pub slices: u32,
    /// Token ids that end the generation.
    pub stops: B,
    /// How many.
    pub stop_count: u32,
    /// The state.
    pub state: B,
    /// Input ids; the first becomes the token.
    pub ids: B,
    /// Ring of sampled tokens.
    pub tokens: B,
    /// Its length.
    pub ring: u32,
}

/// Picks the token and moves the state on.
pub fn advance<B: Clone>(a: Advance<B>) -> Launch<B> {
    Launch::new("advance", Variant::new(Kernel::Advance), GridSpec::Fixed { units: 1 })
        .bind("candidates", a.candidates)
        .bind("stops", a.stops)
        .bind("state", a.state)
        .bind("ids", a.ids)
        .bind("tokens", a.tokens)
        .set("slices", a.slices)
        .set("stops", a.stop_count)
        .set("ring", a.ring)
}
