//! SentencePiece's unigram model: the segmentation of a text with the highest sum of scores.
//!
//! Source: `models/unigram` of the `tokenizers` library, version 0.23.

use super::super::budget::EncodeBudget;
use super::super::tokenizer_error;
use super::vocab::{NO_ENTRY, Vocab, VocabHash};
use crate::Result;

/// How far the score of an unknown character is below the lowest score.
const UNK_PENALTY: f64 = 10.0;

/// Unigram model.
pub(in super::super) struct Unigram {
    scores: Vec<f64>,
    unk: Option<u32>,
    byte_fallback: bool,
    unk_score: f64,
    longest: usize,
}

/// Best path to a position of the text.
#[derive(Clone, Copy)]
struct LatticeNode {
    id: u32,
    start: u32,
    score: f64,
}

impl Unigram {
    /// Creates a model from scores in id order.
    pub fn new(vocab: &Vocab, scores: Vec<f64>, unk: Option<u32>, byte_fallback: bool) -> Unigram {
        let unk_score = scores.iter().copied().fold(f64::INFINITY, f64::min) - UNK_PENALTY;
        Unigram {
            scores,
            unk,
            byte_fallback,
            unk_score,
            longest: vocab.longest(),
        }
    }

    /// Id of the unknown token.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Appends the ids of a word.
    pub fn encode(
        &self,
        vocab: &Vocab,
        word: &str,
        budget: &EncodeBudget,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let best = self.best(vocab, word, budget)?;
        let mut pieces: Vec<LatticeNode> = Vec::new();
        let mut end = word.len();
        while let Some(node) = best.get(end).filter(|_| end > 0) {
            pieces.push(*node);
            end = node.start as usize;
        }
        let mut pieces = pieces.into_iter().rev().peekable();
        while let Some(node) = pieces.next() {
            if Some(node.id) != self.unk {
                out.push(node.id);
                continue;
            }
            // Consecutive unknown characters are one piece.
            while pieces.next_if(|next| Some(next.id) == self.unk).is_some() {}
            let end = pieces.peek().map_or(word.len(), |next| next.start as usize);
            self.push_unknown(vocab, &word[node.start as usize..end], out);
        }
        Ok(())
    }

    fn push_unknown(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        if let Some(id) = vocab.get(text) {
            return out.push(id);
        }
        if self.byte_fallback {
            let bytes: Option<Vec<u32>> = text
                .bytes()
                .map(|byte| vocab.get(&format!("<0x{byte:02X}>")))
                .collect();
            if let Some(bytes) = bytes {
                return out.extend(bytes);
            }
        }
        out.extend(self.unk);
    }

    /// Returns the best node that ends at each position.
    fn best(&self, vocab: &Vocab, word: &str, budget: &EncodeBudget) -> Result<Vec<LatticeNode>> {
        let mut best = vec![
            LatticeNode {
                id: NO_ENTRY,
                start: NO_ENTRY,
                score: 0.0
            };
            word.len() + 1
        ];
        for (start, character) in word.char_indices() {
            let so_far = best[start].score;
            let mut offer = |end: usize, id: u32, score: f64| {
                let node = &mut best[end];
                if node.start == NO_ENTRY || so_far + score > node.score {
                    *node = LatticeNode {
                        id,
                        start: start as u32,
                        score: so_far + score,
                    };
                }
            };
            let mut hash = VocabHash::new();
            let mut end = start;

            let mut single = false;
            budget.step((word.len() - start).min(self.longest) as u64)?;
            for next in word[start..].chars() {
                let from = end;
                end += next.len_utf8();
                if end - start > self.longest {
                    break;
                }
                hash = hash.add(&word.as_bytes()[from..end]);
                if let Some(id) = vocab.get_hashed(&word[start..end], hash) {
                    offer(end, id, self.scores[id as usize]);
                    single |= from == start;
                }
            }
            if !single {
                let Some(unk) = self.unk else {
                    return Err(tokenizer_error(format!(
                        "the vocabulary has no token for {character:?}, and tokenizer.json has no unk_id"
                    )));
                };
                offer(start + character.len_utf8(), unk, self.unk_score);
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_sum_of_scores() {
        let pieces = [
            ("<unk>", 0.0),
            ("a", -1.0),
            ("b", -1.0),
            ("ab", -1.5),
            ("abc", -9.0),
            ("c", -2.0),
            ("xx", -1.0),
        ];
        let mut vocab = Vocab::default();
        (0..)
            .zip(pieces)
            .for_each(|(id, piece)| vocab.insert(piece.0, id));
        let scores = || pieces.iter().map(|piece| piece.1).collect::<Vec<f64>>();
        let ids = |model: &Unigram, text: &str| {
            let mut out = Vec::new();
            let budget = EncodeBudget::for_text(text.len());
            model
                .encode(&vocab, text, &budget, &mut out)
                .ok()
                .map(|()| out)
        };
        let model = Unigram::new(&vocab, scores(), Some(0), false);
        assert_eq!(ids(&model, "abc"), Some(vec![3, 5]));
        assert_eq!(ids(&model, "xxaéü字b"), Some(vec![6, 1, 0, 2]));
        assert_eq!(ids(&model, "x"), Some(vec![0]));
        assert_eq!(ids(&model, ""), Some(vec![]));
        assert!(ids(&Unigram::new(&vocab, scores(), None, false), "aé").is_none());
        assert_eq!(
            ids(&Unigram::new(&vocab, scores(), None, false), "ab"),
            Some(vec![3])
        );
    }
}
