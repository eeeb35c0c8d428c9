//! From text to ids: added tokens are cut out, what lies between is normalized, split and given to the vocabulary. Knows which
//! special tokens are honoured, not why.

use super::super::components;
use super::super::tokenizer_error;
use super::Tokenizer;
use crate::Result;
use crate::util::map::SortedMap;
use tokenizers::pipeline::{
    Model as _, PipelineModel, PipelinePatternMatcher as _, PipelineToken, PreTokenizerScratch, Span,
};

/// Which special tokens of a text become their ids.
#[derive(Clone, Copy)]
pub(super) enum Honour<'a> {
    None,
    /// All that cover none of these places.
    Except(&'a [usize]),
}

/// Buffers that encoding uses again and again.
pub(super) struct Scratch {
    pub model: <PipelineModel as tokenizers::pipeline::Model>::Scratch,
    pub split: PreTokenizerScratch,
    pub spans: Vec<Span>,
}

impl Tokenizer {
    pub(super) fn encode_with(&self, text: &str, add_special: bool, honour: Honour) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3 + self.frame.prefix.len() + self.frame.suffix.len());
        let mut scratch = self.scratch.borrow_mut();
        let keep = |start, end, _: u32| honour.allows(start, end);
        self.each_part(text, false, honour, keep, |part| match part {
            Part::Token(id) => {
                out.push(PipelineToken::from(id));
                Ok(())
            }
            Part::Text { text: chunk, start } => self.encode_chunk(chunk, start, honour, &mut scratch, &mut out),
        })?;
        drop(scratch);
        let ids = out.iter().map(|token| token.id());
        Ok(if add_special {
            self.frame.prefix.iter().copied().chain(ids).chain(self.frame.suffix.iter().copied()).collect()
        } else {
            ids.collect()
        })
    }

    /// Encodes what lies between the tokens that are matched before normalization. `start` is its place in the text.
    fn encode_chunk(
        &self,
        chunk: &str,
        start: usize,
        honour: Honour,
        scratch: &mut Scratch,
        out: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let normalized = components::normalize(&self.normalizers, chunk, start)?;
        let normalized = components::normalize(&self.metaspace, &normalized, start)?;
        let mut verdicts = self.normalized_verdicts(chunk, start, honour);
        let keep = |_, _, id: u32| verdicts.get_mut(&id).is_none_or(|queue| queue.next().unwrap_or(false));
        self.each_part(&normalized, true, honour, keep, |part| match part {
            Part::Token(id) => {
                out.push(PipelineToken::from(id));
                Ok(())
            }
            Part::Text { text, .. } => self.encode_plain(text, honour, scratch, out),
        })
    }

    /// For special tokens that are matched in normalized text, where the places of the original are lost: whether their
    /// first, second, … occurrence in `chunk` is honoured.
    fn normalized_verdicts(
        &self,
        chunk: &str,
        start: usize,
        honour: Honour,
    ) -> SortedMap<u32, std::vec::IntoIter<bool>> {
        if matches!(honour, Honour::None | Honour::Except([])) {
            return SortedMap::new();
        }
        let specials = self.added_by_id.iter().filter(|(_, added)| added.special && added.normalized);
        let verdicts = specials.map(|(id, added)| {
            let found = chunk.match_indices(added.content.as_str());
            let allowed = |(at, token): (usize, &str)| honour.allows(start + at, start + at + token.len());
            (*id, found.map(allowed).collect::<Vec<_>>().into_iter())
        });
        verdicts.collect()
    }

    /// Encodes text without added tokens.
    fn encode_plain(
        &self,
        text: &str,
        honour: Honour,
        scratch: &mut Scratch,
        out: &mut Vec<PipelineToken>,
    ) -> Result<()> {
        let spaced;
        let text = if self.prefix_space && !text.starts_with(' ') {
            spaced = format!(" {text}");
            &spaced
        } else {
            text
        };
        if u32::try_from(text.len()).is_err() {
            return Err(tokenizer_error("the text is longer than 4 GB"));
        }
        let Scratch { model, split, spans } = scratch;
        let failed = |e: tokenizers::Error| tokenizer_error(format!("encoding failed: {e}"));
        self.splitters.split(text, split, spans).map_err(failed)?;
        let before = out.len();
        self.model.tokenize_spans(text, spans, model, out).map_err(failed)?;
        // Unigram models know `</s>` as a piece like any other; where it is not honoured, a cut keeps them from it.
        let made_special = out.iter().skip(before).any(|t| Some(t.id()) != self.unk && self.is_special(t.id()));
        if made_special && !honour.is_everything() {
            out.truncate(before);
            self.cut_at_specials(text, spans);
            self.model.tokenize_spans(text, spans, model, out).map_err(failed)?;
        }
        Ok(())
    }

    /// Cuts the spans after the first character of everything that is spelled like a special token.
    fn cut_at_specials(&self, text: &str, spans: &mut Vec<Span>) {
        let mut cuts: Vec<usize> = Vec::new();
        for special in self.special_spellings.iter().filter_map(|s| s.chars().next().map(|c| (s, c.len_utf8()))) {
            cuts.extend(text.match_indices(special.0.as_str()).map(|(at, _)| at + special.1));
        }
        cuts.sort_unstable();
        cuts.dedup();
        for span in std::mem::take(spans) {
            let mut start = span.start;
            for cut in cuts.iter().map(|cut| *cut as u32).filter(|cut| (span.start + 1..span.end).contains(cut)) {
                spans.push(Span::new(start, cut));
                start = cut;
            }
            spans.push(Span::new(start, span.end));
        }
    }

    /// Cuts `text` at the added tokens and hands out the parts. `keep` decides on special tokens by place and id.
    fn each_part(
        &self,
        text: &str,
        normalized: bool,
        honour: Honour,
        mut keep: impl FnMut(usize, usize, u32) -> bool,
        mut part: impl FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        let plain = matches!(honour, Honour::None);
        let (mut done, mut search) = (0, 0);
        while let Some(((start, end), id)) = self.added.extract_next(text.as_bytes(), search, normalized, plain) {
            let added = self.added_by_id.get(&id);
            // A token may take the white space beside it along; who wrote that does not matter.
            let form = added.map_or("", |a| a.form.as_str());
            let matched = text.get(start..end).unwrap_or_default();
            let core = start + matched.find(form).unwrap_or(0);
            let core_end = (core + form.len()).min(text.len());
            if added.is_some_and(|a| a.special) && !keep(core, core_end, id) {
                search = core_end.max(search + 1);
                continue;
            }
            if let Some(before) = text.get(done..start).filter(|t| !t.is_empty()) {
                part(Part::Text { text: before, start: done })?;
            }
            part(Part::Token(id))?;
            (done, search) = (end, end.max(search + 1));
        }
        match text.get(done..) {
            Some(rest) if !rest.is_empty() => part(Part::Text { text: rest, start: done }),
            _ => Ok(()),
        }
    }
}

/// A part of a text.
enum Part<'a> {
    Text { text: &'a str, start: usize },
    Token(u32),
}

impl Honour<'_> {
    fn is_everything(self) -> bool {
        matches!(self, Honour::Except([]))
    }

    fn allows(self, start: usize, end: usize) -> bool {
        match self {
            Honour::None => false,
            Honour::Except(places) => {
                let next = places.partition_point(|place| *place < start);
                places.get(next).is_none_or(|place| *place >= end)
            }
        }
    }
}
