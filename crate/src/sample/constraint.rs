//! Limits on the tokens of an answer, such as a grammar: which token may come next depends on those
//! before it.

use crate::Result;

/// Decides which tokens may come next, such as a grammar, a JSON schema or a codec's frame layout.
///
/// A generation calls it once per token, in this order:
///
/// 1. [`forced`](Self::forced): do the tokens so far leave one continuation? Its tokens are
///    appended to the sequence in one prefill, without sampling; each is accepted, and the
///    generation asks again.
/// 2. [`mask`](Self::mask): which tokens may come next? The engine copies the mask to the GPU,
///    where greedy decoding and sampling ban all others. They never read logits back.
/// 3. [`accept`](Self::accept): the token that was sampled.
///
/// The engine queues forward passes before it reads tokens back, so all calls run while the GPU
/// computes. With [`runs_ahead`](Self::runs_ahead) it also samples several tokens ahead under a
/// guessed mask. It then asks [`may_follow`](Self::may_follow) or [`mask`](Self::mask) about each of them,
/// keeps those that the true mask would have given, and drops the rest: the answer never depends on
/// the guess. The calls are synchronous and never overlap.
///
/// A token that ends the answer (an end-of-sequence token) is not accepted; allow it in the mask
/// where the text is complete. If bias and filters leave none of the allowed tokens, the
/// generation fails. Penalties, logit bias, temperature and filters apply to the allowed tokens.
/// Speculative decoding is off under a constraint.
pub trait TokenConstraint {
    /// Sets the bits of the tokens that may come next: token `i` is bit `i % 32` of word `i / 32`.
    /// `words` covers the model's logits, `ceil(vocabulary / 32)` words, and is zero. Bits past
    /// the vocabulary have no effect.
    ///
    /// # Errors
    /// An error ends the generation with it.
    fn mask(&mut self, words: &mut [u32]) -> Result<()>;

    /// Advances past a token of the answer, sampled or forced.
    ///
    /// # Errors
    /// An error ends the generation with it.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// Returns the tokens that must come next; empty if there is a choice. Must not advance:
    /// [`accept`](Self::accept) follows for each of them, unless the answer ends before.
    ///
    /// # Errors
    /// An error ends the generation with it.
    fn forced(&mut self) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    /// Whether this token may come next, if that is cheaper to tell than the mask: the first of the
    /// forced ones, or one of the mask. `None` to be asked for those. Never called for a token that
    /// ends the answer.
    ///
    /// # Errors
    /// An error ends the generation with it.
    fn may_follow(&mut self, _token: u32) -> Result<Option<bool>> {
        Ok(None)
    }

    /// Number of forced tokens, as far as it is known without computing it.
    fn known_forced(&self) -> usize {
        0
    }

    /// Whether tokens may be sampled ahead of the masks. Without, the answer is read token by token.
    fn runs_ahead(&self) -> bool {
        true
    }
}
