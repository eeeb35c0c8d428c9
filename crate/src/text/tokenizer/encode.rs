//! Text to ids: finds added tokens, normalizes and splits the text between them, and looks up the
//! words.

use super::super::budget::EncodeBudget;
use super::super::model::{self, WordSpan};
use super::Tokenizer;
use crate::Result;
use crate::util::map::SortedMap;

/// Policy that decides which special tokens spelled in a text become ids.
#[derive(Clone, Copy)]
pub(super) enum SpecialTokenPolicy<'a> {
    None,
    /// All that cover none of these byte offsets.
    Except(&'a [usize]),
}

/// Reused buffers for encoding.
#[derive(Default)]
pub(super) struct EncodeScratch {
    pub model: model::BpeScratch,
    pub words: Vec<WordSpan>,
}

impl Tokenizer {
    pub(super) fn encode_with(
        &self,
        text: &str,
        add_special: bool,
        honour: SpecialTokenPolicy,
    ) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(
            text.len() / 3
                + self.sequence_template.prefix.len()
                + self.sequence_template.suffix.len(),
        );
        if add_special {
            out.extend(&self.sequence_template.prefix);
        }
        let mut scratch = self.scratch.borrow_mut();
        let budget = EncodeBudget::for_text(text.len());
        let keep = |start, end, _: u32| honour.allows(start, end);
        self.for_each_part(text, false, honour, keep, |part| match part {
            TextPart::Token(id) => {
                out.push(id);
                Ok(())
            }
            TextPart::Text { text: chunk, start } => {
                let chunk = TextChunk {
                    text: chunk,
                    start,
                    budget: &budget,
                };
                self.encode_chunk(&chunk, honour, &mut scratch, &mut out)
            }
        })?;
        if add_special {
            out.extend(&self.sequence_template.suffix);
        }
        Ok(out)
    }

    /// Encodes the text between tokens matched before normalization.
    fn encode_chunk(
        &self,
        chunk: &TextChunk,
        honour: SpecialTokenPolicy,
        scratch: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let start = chunk.start;
        let normalized = self.normalizers.normalize(chunk.text, chunk.budget)?;
        let mut verdicts = self.normalized_occurrences_allowed(chunk.text, start, honour);
        let keep = |_, _, id: u32| {
            verdicts
                .get_mut(&id)
                .is_none_or(|queue| queue.next().unwrap_or(false))
        };
        self.for_each_part(&normalized, true, honour, keep, |part| match part {
            TextPart::Token(id) => {
                out.push(id);
                Ok(())
            }
            TextPart::Text { text, start: at } => {
                let part = TextChunk {
                    text,
                    start: start + at,
                    budget: chunk.budget,
                };
                self.encode_plain(&part, honour, scratch, out)
            }
        })
    }

    /// Returns whether the first, second, … occurrence of a special token in `chunk` is allowed.
    /// Needed for tokens matched in normalized text, where the original offsets are lost.
    fn normalized_occurrences_allowed(
        &self,
        chunk: &str,
        start: usize,
        honour: SpecialTokenPolicy,
    ) -> SortedMap<u32, std::vec::IntoIter<bool>> {
        if matches!(
            honour,
            SpecialTokenPolicy::None | SpecialTokenPolicy::Except([])
        ) {
            return SortedMap::new();
        }
        let specials = self
            .added_by_id
            .iter()
            .filter(|(_, added)| added.special && added.normalized);
        let verdicts = specials.map(|(id, added)| {
            let found = chunk.match_indices(added.content.as_str());

            (
                *id,
                found
                    .map(|(at, token): (usize, &str)| {
                        honour.allows(start + at, start + at + token.len())
                    })
                    .collect::<Vec<_>>()
                    .into_iter(),
            )
        });
        verdicts.collect()
    }

    /// Encodes text without added tokens.
    fn encode_plain(
        &self,
        part: &TextChunk,
        honour: SpecialTokenPolicy,
        scratch: &mut EncodeScratch,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let EncodeScratch { model, words } = scratch;
        let first = part.start == 0;
        let budget = part.budget;
        let text = self.pre_tokenizers.split(part.text, first, words, budget)?;
        let before = out.len();
        self.model.encode(&text, words, budget, model, out)?;
        // Unigram models have `</s>` as a regular piece. Where it is not allowed, splitting the
        // word prevents it.
        let unk = self.model.unk();
        let made_special = out
            .iter()
            .skip(before)
            .any(|id| Some(*id) != unk && self.is_special(*id));
        if made_special && !honour.is_everything() {
            out.truncate(before);
            self.cut_at_specials(&text, words);
            self.model.encode(&text, words, budget, model, out)?;
        }
        Ok(())
    }

    /// Splits words after the first character of each spelling of a special token.
    fn cut_at_specials(&self, text: &str, words: &mut Vec<WordSpan>) {
        let mut cuts: Vec<usize> = Vec::new();
        for special in self
            .special_spellings
            .iter()
            .filter_map(|s| s.chars().next().map(|c| (s, c.len_utf8())))
        {
            cuts.extend(
                text.match_indices(special.0.as_str())
                    .map(|(at, _)| at + special.1),
            );
        }
        cuts.sort_unstable();
        cuts.dedup();
        for (mut start, end) in std::mem::take(words) {
            for cut in &cuts {
                if (start + 1..end).contains(cut) {
                    words.push((start, *cut));
                    start = *cut;
                }
            }
            words.push((start, end));
        }
    }

    /// Splits `text` at added tokens and passes on the parts. `keep` accepts special tokens by
    /// range and id.
    fn for_each_part(
        &self,
        text: &str,
        normalized: bool,
        honour: SpecialTokenPolicy,
        mut keep: impl FnMut(usize, usize, u32) -> bool,
        mut part: impl FnMut(TextPart) -> Result<()>,
    ) -> Result<()> {
        let matcher = if normalized {
            &self.normalized_matcher
        } else {
            &self.matcher
        };
        let mut done = 0;
        let mut search = 0;

        while let Some(found) = matcher.find(text, search, done, &self.added_by_id) {
            let start = found.start;
            let end = found.end;
            let id = found.id;

            // A token may absorb the white space around it, whether template or message wrote it.
            let (core, core_end) = found.core;
            if self.is_special(id)
                && (matches!(honour, SpecialTokenPolicy::None) || !keep(core, core_end, id))
            {
                search = core_end;
                continue;
            }
            if let Some(before) = text.get(done..start).filter(|t| !t.is_empty()) {
                part(TextPart::Text {
                    text: before,
                    start: done,
                })?;
            }
            part(TextPart::Token(id))?;
            (done, search) = (end, end);
        }
        match text.get(done..) {
            Some(rest) if !rest.is_empty() => part(TextPart::Text {
                text: rest,
                start: done,
            }),
            _ => Ok(()),
        }
    }
}

/// Text between added tokens, its offset, and what may be spent on it.
struct TextChunk<'a> {
    text: &'a str,
    start: usize,
    budget: &'a EncodeBudget,
}

/// Part of a text: plain text with its offset, or an added token.
enum TextPart<'a> {
    Text { text: &'a str, start: usize },
    Token(u32),
}

impl SpecialTokenPolicy<'_> {
    fn is_everything(self) -> bool {
        matches!(self, SpecialTokenPolicy::Except([]))
    }

    fn allows(self, start: usize, end: usize) -> bool {
        match self {
            SpecialTokenPolicy::None => false,
            SpecialTokenPolicy::Except(places) => {
                let next = places.partition_point(|place| *place < start);
                places.get(next).is_none_or(|place| *place >= end)
            }
        }
    }
}
