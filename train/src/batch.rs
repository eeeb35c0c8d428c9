//! Sequences packed into the rows of a step.

use crate::kernels::loss::IGNORED;
use jerboa::{Error, Result};

/// Rows of a step are a multiple of this, so that few programs serve all batches.
const ROW_UNIT: usize = 16;

/// A tokenized sequence to learn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainSequence {
    /// Token ids.
    pub ids: Vec<u32>,
    /// First token that counts in the loss: the tokens before it are a prompt.
    pub first_label: usize,
}

impl TrainSequence {
    /// A sequence whose tokens all count; the first has nothing before it that predicts it.
    pub fn whole(ids: Vec<u32>) -> Self {
        Self {
            ids,
            first_label: 0,
        }
    }

    /// Tokens that count.
    pub fn labels(&self) -> usize {
        self.ids.len().saturating_sub(self.first_label.max(1))
    }
}

/// The inputs of a step, by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedRows {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// The next token if it counts, else [`IGNORED`].
    pub labels: Vec<u32>,
    /// First and end row of each row's sequence.
    pub spans: Vec<[u32; 2]>,
}

impl PackedRows {
    /// Packs sequences one after another. Further rows up to a multiple of 16 count as sequences of
    /// their own without labels.
    ///
    /// # Errors
    /// `Request` for sequences of more than `max_rows` rows together, or a token outside the
    /// vocabulary.
    pub fn pack(sequences: &[TrainSequence], max_rows: usize, vocab: usize) -> Result<Self> {
        let rows: usize = sequences.iter().map(|sequence| sequence.ids.len()).sum();
        if rows > max_rows {
            return Err(Error::Request {
                parameter: "batch".into(),
                reason: format!(
                    "its sequences have {rows} tokens, but the trainer supports at most {max_rows}. Use a smaller batch or \
                     'maxLength'."
                ),
            });
        }
        let mut packed = Self {
            ids: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            labels: Vec::with_capacity(rows),
            spans: Vec::with_capacity(rows),
        };
        for sequence in sequences {
            let first = packed.ids.len() as u32;
            let end = first + sequence.ids.len() as u32;
            if let Some(id) = sequence.ids.iter().find(|id| **id as usize >= vocab) {
                return Err(Error::Request {
                    parameter: "ids".into(),
                    reason: format!(
                        "token {id} is outside the vocabulary of {vocab} tokens. Use the tokenizer of this model."
                    ),
                });
            }
            for (position, id) in sequence.ids.iter().enumerate() {
                let next = position + 1;
                let counts = next >= sequence.first_label && next < sequence.ids.len();
                packed.ids.push(*id);
                packed.positions.push(position as u32);
                packed.spans.push([first, end]);
                packed
                    .labels
                    .push(if counts { sequence.ids[next] } else { IGNORED });
            }
        }
        for row in rows..rows.next_multiple_of(ROW_UNIT) {
            packed.ids.push(0);
            packed.positions.push(0);
            packed.labels.push(IGNORED);
            packed.spans.push([row as u32, row as u32 + 1]);
        }
        Ok(packed)
    }

    /// Rows with the padding.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Rows for at most `tokens` tokens.
    pub fn capacity(tokens: usize) -> usize {
        tokens.next_multiple_of(ROW_UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_next_tokens_of_the_answer() {
        let prompted = TrainSequence {
            ids: vec![5, 6, 7, 8],
            first_label: 2,
        };
        let whole = TrainSequence::whole(vec![1, 2, 3]);
        assert_eq!([prompted.labels(), whole.labels()], [2, 2]);
        let packed = PackedRows::pack(&[prompted, whole], 7, 10).expect("it fits");
        assert_eq!(packed.rows(), 16);
        assert_eq!(packed.ids[..8], [5, 6, 7, 8, 1, 2, 3, 0]);
        assert_eq!(packed.positions[..8], [0, 1, 2, 3, 0, 1, 2, 0]);
        let none = IGNORED;
        assert_eq!(packed.labels[..8], [none, 7, 8, none, 2, 3, none, none]);
        assert_eq!(packed.spans[3..8], [[0, 4], [4, 7], [4, 7], [4, 7], [7, 8]]);
    }

    #[test]
    fn batches_that_do_not_fit_are_refused() {
        let long = [TrainSequence::whole(vec![1; 9])];
        let error = PackedRows::pack(&long, 8, 10).expect_err("too long");
        assert!(error.to_string().contains("9 tokens"), "{error}");
        let error = PackedRows::pack(&long, 9, 1).expect_err("an unknown token");
        assert!(error.to_string().contains("vocabulary of 1"), "{error}");
    }
}
