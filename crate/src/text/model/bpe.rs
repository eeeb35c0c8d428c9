//! Byte-pair encoding: merges the characters or bytes of a word by rank.
//!
//! Source: `models/bpe` of the `tokenizers` library, version 0.23.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::alphabet::{byte_to_char, push_mapped};
use super::super::tokenizer_error;
use super::vocab::{NO_ENTRY, Vocab};
use crate::Result;

/// Maximum number of words cached with their ids.
const MAX_CACHED: usize = 1 << 14;
/// Longest cached word in bytes.
const MAX_CACHED_BYTES: usize = 64;

/// Merges by rank, and a hash table from pair to rank.
#[derive(Default)]
pub(in super::super) struct Merges {
    pairs: Vec<[u32; 3]>,
    table: Vec<u32>,
}

impl Merges {
    /// Creates the list from `[left, right, merged]` of each rank.
    pub fn from_pairs(pairs: Vec<[u32; 3]>) -> Merges {
        let mut merges = Merges {
            pairs,
            table: Vec::new(),
        };
        merges.fill_table((merges.pairs.len() * 2).next_power_of_two().max(64));
        merges
    }

    /// `[left, right, merged]` of each rank.
    pub fn pairs(&self) -> &[[u32; 3]] {
        &self.pairs
    }

    /// Adds the merge of the next rank. Of two merges of the same pair the later one counts.
    pub fn push(&mut self, left: u32, right: u32, merged: u32) {
        if (self.pairs.len() + 1) * 2 > self.table.len() {
            self.fill_table((self.table.len() * 2).max(64));
        }
        let slot = self.find(left, right);
        self.table[slot] = self.pairs.len() as u32;
        self.pairs.push([left, right, merged]);
    }

    /// Fills a table of `size`, a power of two.
    fn fill_table(&mut self, size: usize) {
        self.table.clear();
        self.table.resize(size, NO_ENTRY);
        for rank in 0..self.pairs.len() {
            let [left, right, _] = self.pairs[rank];
            let slot = self.find(left, right);
            self.table[slot] = rank as u32;
        }
    }

    fn find(&self, left: u32, right: u32) -> usize {
        let mask = self.table.len() - 1;
        let key = (u64::from(left) << 32 | u64::from(right)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (key >> 32) as usize & mask;
        while let Some([l, r, _]) = self.pairs.get(self.table[slot] as usize) {
            if (*l, *r) == (left, right) {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Returns the rank of a pair and the merged id.
    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        if self.table.is_empty() {
            return None;
        }
        let rank = self.table[self.find(left, right)];
        self.pairs.get(rank as usize).map(|pair| (rank, pair[2]))
    }
}

/// Options of a BPE model.
#[derive(Default)]
pub(in super::super) struct BpeOptions {
    /// The vocabulary is in GPT-2's byte alphabet; words are plain text.
    pub byte_level: bool,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: String,
    pub end_of_word_suffix: String,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

/// Byte-pair encoding model.
pub(in super::super) struct Bpe {
    merges: Merges,
    options: BpeOptions,
    /// The id of each byte's character.
    bytes: Box<[u32; 256]>,
    /// The id of each byte's fallback token, such as `<0x41>`.
    fallback: Box<[u32; 256]>,
    unk: u32,
}

/// Buffers for encoding, and the word cache.
#[derive(Default)]
pub(in super::super) struct BpeScratch {
    ids: Vec<u32>,
    links: Vec<[u32; 2]>,
    queue: BinaryHeap<Reverse<[u32; 3]>>,
    word: String,
    words: Vocab,
    ends: Vec<u32>,
    word_ids: Vec<u32>,
}

impl Bpe {
    /// Creates a model; `merges` holds ids of `vocab`.
    ///
    /// # Errors
    /// `Tokenizer` if characters may be unknown and `unk_token` is not in the vocabulary.
    pub fn new(vocab: &Vocab, merges: Merges, options: BpeOptions) -> Result<Bpe> {
        let mut text = [0; 4];
        let bytes = Box::new(std::array::from_fn(|b| {
            vocab
                .get(byte_to_char(b as u8).encode_utf8(&mut text))
                .unwrap_or(NO_ENTRY)
        }));
        let fallback = Box::new(std::array::from_fn(|b| {
            vocab.get(&format!("<0x{b:02X}>")).unwrap_or(NO_ENTRY)
        }));
        let unk = options
            .unk_token
            .as_ref()
            .map(|token| vocab.get(token).unwrap_or(NO_ENTRY));
        let all = if options.byte_level {
            &bytes
        } else {
            &fallback
        };
        let complete = (options.byte_level || options.byte_fallback) && !all.contains(&NO_ENTRY);
        if let (Some(token), Some(NO_ENTRY), false) = (options.unk_token.as_ref(), unk, complete) {
            return Err(tokenizer_error(format!(
                "tokenizer.json: the unk_token {token:?} is not in the vocabulary. Add it, or set unk_token to null"
            )));
        }
        Ok(Bpe {
            merges,
            options,
            bytes,
            fallback,
            unk: unk.unwrap_or(NO_ENTRY),
        })
    }

    /// Id of the unknown token.
    pub fn unk(&self) -> Option<u32> {
        (self.unk != NO_ENTRY).then_some(self.unk)
    }

    /// Appends the ids of a word.
    pub fn encode(&self, vocab: &Vocab, word: &str, scratch: &mut BpeScratch, out: &mut Vec<u32>) {
        if let Some(known) = scratch.words.get(word) {
            let start = if known == 0 {
                0
            } else {
                scratch.ends[known as usize - 1]
            };
            return out
                .extend(&scratch.word_ids[start as usize..scratch.ends[known as usize] as usize]);
        }
        let before = out.len();
        self.encode_new(vocab, word, scratch, out);
        if word.len() <= MAX_CACHED_BYTES {
            if scratch.ends.len() >= MAX_CACHED {
                (scratch.words, scratch.ends, scratch.word_ids) = Default::default();
            }
            scratch.words.insert(word, scratch.ends.len() as u32);
            scratch.word_ids.extend(&out[before..]);
            scratch.ends.push(scratch.word_ids.len() as u32);
        }
    }

    fn encode_new(&self, vocab: &Vocab, word: &str, scratch: &mut BpeScratch, out: &mut Vec<u32>) {
        let BpeOptions {
            byte_level,
            ignore_merges,
            byte_fallback,
            ..
        } = self.options;
        let affixes = self.options.continuing_subword_prefix.len()
            + self.options.end_of_word_suffix.len()
            > 0;
        let by_bytes = byte_level && !affixes && !byte_fallback;
        scratch.word.clear();
        if byte_level && (ignore_merges || !by_bytes) {
            push_mapped(word, &mut scratch.word);
        } else if !byte_level {
            scratch.word.push_str(word);
        }
        if let Some(id) = vocab.get(&scratch.word).filter(|_| ignore_merges) {
            return out.push(id);
        }
        scratch.ids.clear();
        let mut pending = NO_ENTRY;
        if by_bytes {
            for byte in word.bytes() {
                self.add(
                    self.bytes[usize::from(byte)],
                    "",
                    &mut pending,
                    &mut scratch.ids,
                );
            }
        } else {
            let mut piece = String::new();
            let mut rest = scratch.word.chars();
            let mut first = true;
            while let Some(character) = rest.next() {
                piece.clear();
                if !std::mem::take(&mut first) {
                    piece.push_str(&self.options.continuing_subword_prefix);
                }
                piece.push(character);
                if rest.as_str().is_empty() {
                    piece.push_str(&self.options.end_of_word_suffix);
                }
                let id = vocab.get(&piece).unwrap_or(NO_ENTRY);
                self.add(id, &piece, &mut pending, &mut scratch.ids);
            }
        }
        if pending != NO_ENTRY {
            scratch.ids.push(pending);
        }
        self.merge(scratch);
        out.extend(scratch.ids.iter().filter(|id| **id != NO_ENTRY));
    }

    /// Appends one symbol: its id, its bytes, or the unknown token. The unknown token waits in
    /// `pending` so that consecutive ones fuse. Drops symbols that have none of these.
    fn add(&self, id: u32, piece: &str, pending: &mut u32, ids: &mut Vec<u32>) {
        if id != NO_ENTRY {
            if *pending != NO_ENTRY {
                ids.push(std::mem::replace(pending, NO_ENTRY));
            }
            return ids.push(id);
        }
        if self.options.byte_fallback {
            let bytes = piece.bytes().map(|byte| self.fallback[usize::from(byte)]);
            if bytes.clone().all(|id| id != NO_ENTRY) {
                // As in the library, a pending unknown token comes after these.
                return ids.extend(bytes);
            }
        }
        if *pending != NO_ENTRY && !self.options.fuse_unk {
            ids.push(*pending);
        }
        *pending = self.unk;
    }

    /// Merges the symbols of a word, lowest rank first, leftmost first within a rank. Merged
    /// symbols become `NONE`.
    fn merge(&self, scratch: &mut BpeScratch) {
        let BpeScratch {
            ids, links, queue, ..
        } = scratch;
        if ids.len() < 2 {
            return;
        }
        links.clear();
        links.extend((0..ids.len() as u32).map(|at| [at.wrapping_sub(1), at + 1]));
        let end = ids.len();
        queue.clear();
        let pair = |ids: &[u32], left: u32, right: u32| {
            let found = self
                .merges
                .get(*ids.get(left as usize)?, *ids.get(right as usize)?);
            found.map(|(rank, merged)| Reverse([rank, left, merged]))
        };
        queue.extend((1..end as u32).filter_map(|at| pair(ids, at - 1, at)));
        while let Some(Reverse([_, at, merged])) = queue.pop() {
            let next = links[at as usize][1];
            // Stale entry: one of its symbols was merged already.
            if ids[at as usize] == NO_ENTRY
                || pair(ids, at, next).is_none_or(|now| now.0[2] != merged)
            {
                continue;
            }
            let after = links[next as usize][1];
            ids[at as usize] = merged;
            ids[next as usize] = NO_ENTRY;
            links[at as usize][1] = after;
            if let Some(link) = links.get_mut(after as usize) {
                link[0] = at;
            }
            let before = links[at as usize][0];
            queue.extend(
                pair(ids, before, at)
                    .into_iter()
                    .chain(pair(ids, at, after)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(tokens: &[&str], merges: &[(&str, &str)], options: BpeOptions) -> (Vocab, Bpe) {
        let mut vocab = Vocab::default();
        (0..)
            .zip(tokens)
            .for_each(|(id, token)| vocab.insert(token, id));
        let mut all = Merges::default();
        for (left, right) in merges {
            let cut = options.continuing_subword_prefix.len();
            let merged = vocab
                .get(&format!("{left}{}", &right[cut..]))
                .expect("a token");
            all.push(
                vocab.get(left).expect("a token"),
                vocab.get(right).expect("a token"),
                merged,
            );
        }
        let bpe = Bpe::new(&vocab, all, options).expect("a model");
        (vocab, bpe)
    }

    fn ids((vocab, bpe): &(Vocab, Bpe), word: &str) -> Vec<u32> {
        let mut scratch = BpeScratch::default();
        let mut out = Vec::new();

        bpe.encode(vocab, word, &mut scratch, &mut out);
        let first = std::mem::take(&mut out);
        bpe.encode(vocab, word, &mut scratch, &mut out);
        assert_eq!(first, out, "a cached word");
        out
    }

    #[test]
    fn the_lowest_rank_goes_first() {
        let tokens = ["a", "b", "c", "ab", "bc", "abc", "aa"];
        let abc = model(
            &tokens,
            &[("b", "c"), ("a", "b"), ("a", "bc"), ("a", "a")],
            BpeOptions::default(),
        );
        assert_eq!(ids(&abc, "abc"), [5]);
        assert_eq!(ids(&abc, "abab"), [3, 3]);
        assert_eq!(ids(&abc, "aaa"), [6, 0]);
        assert_eq!(ids(&abc, "aaabcb"), [6, 5, 1]);
        assert_eq!(
            ids(&abc, "azb"),
            [3],
            "symbols without a token are dropped, and their neighbors merge"
        );
        assert!(ids(&abc, "").is_empty());
    }

    #[test]
    fn bytes_without_a_token() {
        let tokens = ["?", "a", "Ġ", "Ġa"];
        let plain = || BpeOptions {
            byte_level: true,
            ..BpeOptions::default()
        };
        assert_eq!(
            ids(&model(&tokens, &[("Ġ", "a")], plain()), " a\u{4}é a"),
            [3, 3]
        );
        let unk = |fuse_unk| BpeOptions {
            unk_token: Some("?".into()),
            fuse_unk,
            ..plain()
        };
        assert_eq!(
            ids(&model(&tokens, &[("Ġ", "a")], unk(false)), "\u{4}éa"),
            [0, 0, 0, 1]
        );
        assert_eq!(
            ids(&model(&tokens, &[("Ġ", "a")], unk(true)), "\u{4}éa\u{4}"),
            [0, 1, 0]
        );
        let whole = BpeOptions {
            ignore_merges: true,
            ..plain()
        };
        assert_eq!(ids(&model(&tokens, &[], whole), " a"), [3]);
    }

    #[test]
    fn fallback_affixes_and_missing_tokens() {
        let tokens = ["<unk>", "a", "<0xC3>", "<0xA9>", "##b", "b</w>", "ab</w>"];
        let fallback = || BpeOptions {
            byte_fallback: true,
            unk_token: Some("<unk>".into()),
            ..BpeOptions::default()
        };
        assert_eq!(ids(&model(&tokens, &[], fallback()), "aé"), [1, 2, 3]);
        assert_eq!(
            ids(&model(&tokens, &[], fallback()), "ü\u{e9}"),
            [2, 3, 0],
            "one byte of ü is missing"
        );
        let suffix = BpeOptions {
            end_of_word_suffix: "</w>".into(),
            ..BpeOptions::default()
        };
        assert_eq!(ids(&model(&tokens, &[("a", "b</w>")], suffix), "ab"), [6]);
        let prefix = BpeOptions {
            continuing_subword_prefix: "##".into(),
            ..BpeOptions::default()
        };
        assert_eq!(ids(&model(&tokens, &[], prefix), "ab"), [1, 4]);
        let vocab = Vocab::default();
        let missing = BpeOptions {
            unk_token: Some("<nothing>".into()),
            ..BpeOptions::default()
        };
        assert!(Bpe::new(&vocab, Merges::default(), missing).is_err());
    }
}
