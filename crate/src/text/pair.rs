//! How a tokenizer frames one text or a pair of texts: the special tokens around and between them, and the kinds of tokens.
//! It knows ids, not what they stand for.

use tokenizers::pipeline::PipelineToken;

/// The tokens around one text, and around and between two.
#[derive(Debug, Clone, Default)]
pub(super) struct Frame {
    /// Before a single text.
    pub prefix: Vec<u32>,
    /// After it.
    pub suffix: Vec<u32>,
    /// How two texts go together; none where the file has no readable form for them.
    pub pair: Option<Pair>,
}

/// The form of a pair: ids with their kinds.
#[derive(Debug, Clone, Default)]
pub(super) struct Pair {
    pub prefix: Vec<(u32, u32)>,
    pub infix: Vec<(u32, u32)>,
    pub suffix: Vec<(u32, u32)>,
    pub kinds: [u32; 2],
}

/// A run of a template.
pub(super) fn run(tokens: &[(PipelineToken, u8)]) -> Vec<(u32, u32)> {
    tokens.iter().map(|(token, kind)| (token.id(), u32::from(*kind))).collect()
}

impl Pair {
    /// Two texts as one sequence of at most `most` tokens with their kinds; the longer text is cut first.
    pub fn join(&self, mut a: Vec<u32>, mut b: Vec<u32>, most: usize) -> (Vec<u32>, Vec<u32>) {
        let frame = self.prefix.len() + self.infix.len() + self.suffix.len();
        let (first, second) = longest_first(a.len(), b.len(), most.saturating_sub(frame));
        a.truncate(first);
        b.truncate(second);
        let of_kind = |ids: Vec<u32>, kind: u32| ids.into_iter().map(move |id| (id, kind));
        let all = self.prefix.iter().copied().chain(of_kind(a, self.kinds[0])).chain(self.infix.iter().copied());
        all.chain(of_kind(b, self.kinds[1])).chain(self.suffix.iter().copied()).unzip()
    }
}

/// The lengths to which the tokenizers library cuts two texts so that both fit (`longest_first`).
fn longest_first(a: usize, b: usize, most: usize) -> (usize, usize) {
    if a + b <= most {
        return (a, b);
    }
    let mut short = a.min(b);
    let mut long = short.max(most.saturating_sub(short));
    if short + long > most {
        short = most / 2;
        long = short + most % 2;
    }
    if a > b { (long, short) } else { (short, long) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_is_cut_first() {
        assert_eq!(longest_first(3, 4, 10), (3, 4));
        assert_eq!(longest_first(3, 40, 10), (3, 7));
        assert_eq!(longest_first(40, 3, 10), (7, 3));
        assert_eq!(longest_first(40, 30, 11), (6, 5));
        assert_eq!(longest_first(30, 40, 11), (5, 6));
        assert_eq!(longest_first(30, 40, 0), (0, 0));
    }

    #[test]
    fn a_pair_has_its_kinds() {
        let pair = Pair { prefix: vec![(101, 0)], infix: vec![(102, 0)], suffix: vec![(102, 1)], kinds: [0, 1] };
        let (ids, kinds) = pair.join(vec![1, 2], vec![3, 4, 5, 6], 8);
        assert_eq!((ids, kinds), (vec![101, 1, 2, 102, 3, 4, 5, 102], vec![0, 0, 0, 0, 1, 1, 1, 1]));
    }
}
