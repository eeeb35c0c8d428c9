//! What a tokenizer may spend on one text: steps of expressions and models, and bytes that
//! normalizers add. A tokenizer comes from a model's files and may be made to spend without end.

use std::cell::Cell;

use super::tokenizer_error;
use crate::Result;
use crate::util::limits::{
    MAX_ENCODE_STEPS, MAX_ENCODE_STEPS_IN_ALL, MAX_ENCODE_STEPS_PER_BYTE, MAX_NORMALIZED_BYTES,
    MAX_NORMALIZED_BYTES_PER_BYTE,
};

/// The steps and bytes that are left for one text.
#[derive(Debug)]
pub(super) struct EncodeBudget {
    length: usize,
    steps: Cell<u64>,
    bytes: Cell<usize>,
}

impl EncodeBudget {
    /// Creates the budget of a text of this length in bytes.
    pub fn for_text(length: usize) -> EncodeBudget {
        let steps = MAX_ENCODE_STEPS_PER_BYTE.saturating_mul(length as u64);
        EncodeBudget {
            length,
            steps: Cell::new((MAX_ENCODE_STEPS + steps).min(MAX_ENCODE_STEPS_IN_ALL)),
            bytes: Cell::new(
                MAX_NORMALIZED_BYTES
                    .saturating_add(length.saturating_mul(MAX_NORMALIZED_BYTES_PER_BYTE)),
            ),
        }
    }

    /// Spends steps.
    ///
    /// # Errors
    /// `Tokenizer` when too few are left.
    pub fn step(&self, steps: u64) -> Result<()> {
        let left = self.steps.get().checked_sub(steps);
        self.set_steps(left.ok_or_else(|| self.exhausted())?);
        Ok(())
    }

    /// Steps that are left, for a search that counts them itself.
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    pub fn set_steps(&self, steps: u64) {
        self.steps.set(steps);
    }

    pub fn exhausted(&self) -> crate::Error {
        tokenizer_error(format!(
            "its expressions or its model need too many steps for {} bytes of text; a published tokenizer needs tens of steps a byte",
            self.length
        ))
    }

    /// Spends the bytes that a normalizer adds to a text, before it adds them.
    ///
    /// # Errors
    /// `Tokenizer` when too few are left.
    pub fn grow(&self, from: usize, to: usize) -> Result<()> {
        let left = self.bytes.get().checked_sub(to.saturating_sub(from));
        let left = left.ok_or_else(|| {
            tokenizer_error(format!(
                "its normalizers make {} bytes of text more than {MAX_NORMALIZED_BYTES_PER_BYTE} times as long",
                self.length
            ))
        })?;
        self.bytes.set(left);
        Ok(())
    }
}
