//! Conditions on a position of a text.

use super::{char_at, is_word};

/// A condition on a position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Assertion {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    /// `\b`, or `\B` if false.
    WordBoundary(bool),
}

impl Assertion {
    /// Whether the condition holds at a position, as in Oniguruma: a line that a final line feed
    /// ends is not followed by an empty one.
    pub(super) fn holds(self, text: &str, at: usize) -> bool {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let after = char_at(text, at);
        match self {
            Self::TextStart => at == 0,
            Self::TextEnd => after.is_none(),
            Self::LineStart => at == 0 || before == Some('\n') && after.is_some(),
            Self::LineEnd => after == Some('\n') || after.is_none() && before != Some('\n'),
            Self::WordBoundary(wanted) => {
                (before.is_some_and(is_word) != after.is_some_and(is_word)) == wanted
            }
        }
    }
}
