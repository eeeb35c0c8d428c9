//! Sequences packed into the rows of a step.

use crate::kernels::loss::IGNORED;
use crate::tape::TrainBuffer;
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

/// Two answers to one prompt, of which the first is preferred.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferencePair {
    /// The prompt with the answer to prefer, which alone counts.
    pub chosen: TrainSequence,
    /// The prompt with the other answer.
    pub rejected: TrainSequence,
    /// Log-probabilities of both answers by the reference model: see
    /// [`crate::trainer::Trainer::log_probabilities`].
    pub reference: [f32; 2],
}

impl PreferencePair {
    /// A pair whose reference is not known yet.
    pub fn new(chosen: TrainSequence, rejected: TrainSequence) -> Self {
        Self {
            chosen,
            rejected,
            reference: [0.0; 2],
        }
    }

    /// Both sequences.
    pub fn sequences(&self) -> [&TrainSequence; 2] {
        [&self.chosen, &self.rejected]
    }

    /// Tokens of both sequences.
    pub fn tokens(&self) -> usize {
        self.chosen.ids.len() + self.rejected.ids.len()
    }
}

/// The inputs of a step, by row.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedRows {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// The next token if it counts, else [`IGNORED`].
    pub labels: Vec<u32>,
    /// First and end row of each row's sequence.
    pub spans: Vec<[u32; 2]>,
    /// First and end row of each pair's chosen sequence, then of its rejected one; zeros for
    /// slots without a pair. Empty unless pairs are packed.
    pub pairs: Vec<[u32; 4]>,
    /// Log-probabilities of each pair by the reference model.
    pub references: Vec<[f32; 2]>,
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
            pairs: Vec::new(),
            references: Vec::new(),
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

    /// Packs pairs: the chosen sequence of each, then the rejected one.
    ///
    /// # Errors
    /// As [`Self::pack`].
    pub fn pack_pairs(pairs: &[PreferencePair], max_rows: usize, vocab: usize) -> Result<Self> {
        let both = pairs.iter().flat_map(PreferencePair::sequences);
        let sequences: Vec<TrainSequence> = both.cloned().collect();
        let mut packed = Self::pack(&sequences, max_rows, vocab)?;
        let mut end = 0;
        for pair in pairs {
            let [[a, b], [c, d]] = pair.sequences().map(|sequence| {
                let first = end;
                end += sequence.ids.len() as u32;
                [first, end]
            });
            packed.pairs.push([a, b, c, d]);
            packed.references.push(pair.reference);
        }
        packed.pad_pairs();
        Ok(packed)
    }

    /// Fills the slots of pairs that a step leaves empty: each sequence of a pair has at least
    /// two tokens.
    pub(crate) fn pad_pairs(&mut self) {
        let slots = Self::pair_capacity(self.rows());
        self.pairs.resize(slots, [0; 4]);
        self.references.resize(slots, [0.0; 2]);
    }

    /// Slots for pairs in a step of `rows` rows.
    pub fn pair_capacity(rows: usize) -> usize {
        rows / 4
    }

    /// The words of each input buffer.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (TrainBuffer, &[u32])> {
        let inputs: [(TrainBuffer, &[u32]); 6] = [
            (TrainBuffer::Ids, &self.ids),
            (TrainBuffer::Positions, &self.positions),
            (TrainBuffer::Labels, &self.labels),
            (TrainBuffer::Spans, self.spans.as_flattened()),
            (TrainBuffer::PairSpans, self.pairs.as_flattened()),
            (
                TrainBuffer::PairReferences,
                bytemuck::cast_slice(&self.references),
            ),
        ];
        inputs.into_iter().filter(|(_, words)| !words.is_empty())
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
    fn pairs_are_packed_together() {
        let sequence = |ids: &[u32]| TrainSequence {
            ids: ids.to_vec(),
            first_label: 2,
        };
        let pair = PreferencePair {
            reference: [-1.0, -2.0],
            ..PreferencePair::new(sequence(&[1, 2, 3]), sequence(&[1, 2, 4, 5]))
        };
        assert_eq!(pair.tokens(), 7);
        let packed = PackedRows::pack_pairs(&[pair.clone(), pair], 14, 10).expect("it fits");
        assert_eq!(packed.rows(), 16);
        let none = [0; 4];
        assert_eq!(packed.pairs, [[0, 3, 3, 7], [7, 10, 10, 14], none, none]);
        assert_eq!(packed.references[..2], [[-1.0, -2.0]; 2]);
        assert_eq!(packed.references[2..], [[0.0; 2]; 2]);
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
