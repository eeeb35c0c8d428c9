//! Pictures that prompts may name, encoded once: each token of a picture has a number past the vocabulary that only this
//! content has, so that equal numbers mean equal rows and a prefix with pictures is kept like any other. It knows no pixels.

use super::tower::Encoded;
use crate::vision::{Positions, Span, positions};
use crate::{Error, Result};

/// A picture of an album.
struct Shot {
    content: u64,
    /// The number of its first token, counted from the end of the vocabulary.
    first: u32,
    encoded: Encoded,
}

/// What the pictures of an album may take on the device; beyond it those go that were not asked for the longest.
const MOST_BYTES: u64 = 256 << 20;

/// Encoded pictures by content, those that were asked for last at the end. Numbers are never used twice.
#[derive(Default)]
pub struct Album {
    shots: Vec<Shot>,
    next: u32,
}

/// Where the row of a picture's token lies.
pub(super) struct Place<'a> {
    /// The picture.
    pub encoded: &'a Encoded,
    /// The token, tile after tile and row by row.
    pub token: usize,
}

impl Album {
    /// The number of the first token of a picture with this content, if it is here.
    pub fn find(&mut self, content: u64) -> Option<u32> {
        let first = self.shots.iter().find(|s| s.content == content)?.first;
        self.touch(first).then_some(first)
    }

    /// Whether a picture is here, by its first number; those that were touched stay longer.
    pub fn touch(&mut self, first: u32) -> bool {
        let Some(at) = self.shots.iter().position(|s| s.first == first) else { return false };
        self.shots[at..].rotate_left(1);
        true
    }

    /// Takes a picture in; the number of its first token, from the end of the vocabulary.
    pub fn add(&mut self, content: u64, encoded: Encoded) -> u32 {
        let first = self.next;
        self.next += encoded.tokens as u32;
        self.shots.push(Shot { content, first, encoded });
        let bytes = |shots: &[Shot]| shots.iter().map(|s| s.encoded.rows.size()).sum::<u64>();
        while bytes(&self.shots) > MOST_BYTES && self.shots.len() > 1 {
            self.shots.remove(0);
        }
        first
    }

    /// The error for a number of no picture.
    pub fn missing(number: u32) -> Error {
        let reason = format!("{number} is the number of no picture that is here");
        Error::Request { parameter: "picture".into(), reason }
    }

    /// A picture's rows.
    ///
    /// # Errors
    /// `Request` for a number of no picture.
    pub fn encoded(&self, first: u32) -> Result<Encoded> {
        let found = self.shots.iter().find(|s| s.first == first);
        found.map(|s| s.encoded.clone()).ok_or_else(|| Self::missing(first))
    }

    /// Tokens down and across of a picture's tiles.
    pub fn grids(&self, first: u32) -> Vec<(usize, usize)> {
        self.at(first).map_or_else(Vec::new, |(shot, _)| shot.encoded.grids.clone())
    }

    /// Tokens of a picture that is here.
    pub fn tokens(&self, first: u32) -> usize {
        self.at(first).map_or(0, |(shot, _)| shot.encoded.tokens)
    }

    fn at(&self, number: u32) -> Option<(&Shot, usize)> {
        let shot = self.shots.iter().find(|s| (s.first..s.first + s.encoded.tokens as u32).contains(&number))?;
        Some((shot, (number - shot.first) as usize))
    }

    /// The row of a token by its number.
    ///
    /// # Errors
    /// `Request` for numbers of no picture.
    pub(super) fn place(&self, number: u32) -> Result<Place<'_>> {
        let found = self.at(number).map(|(shot, token)| Place { encoded: &shot.encoded, token });
        let reason = || format!("{number} past the vocabulary is no token of a picture that is here");
        found.ok_or_else(|| Error::Request { parameter: "ids".into(), reason: reason() })
    }

    /// The first and the end of the picture (a tile of it) that a token belongs to, as places in `ids`; none for text.
    pub(super) fn tile(&self, ids: &[u32], vocab: u32, at: usize) -> Option<(usize, usize)> {
        self.span(ids, vocab, at).map(|(first, end, _)| (first, end))
    }

    /// The same with its grid. Frames whose positions tell the time are one.
    fn span(&self, ids: &[u32], vocab: u32, at: usize) -> Option<(usize, usize, Span)> {
        let (shot, token) = self.at(ids[at].checked_sub(vocab)?)?;
        let Encoded { grids, interval, .. } = &shot.encoded;
        let frames = if *interval > 0.0 { grids.len() } else { 1 };
        let mut first = 0;
        for (height, width) in grids {
            let end = first + frames * height * width;
            if token < end {
                let grid = Span::Grid { frames, height: *height, width: *width, interval: *interval };
                return Some((at - (token - first).min(at), (at + end - token).min(ids.len()), grid));
            }
            first = end;
        }
        None
    }

    /// The first place from `at` on where a sequence may be cut without leaving a part of a picture behind the cut.
    pub fn whole_from(&self, ids: &[u32], vocab: u32, mut at: usize) -> usize {
        while let Some((_, end)) = ids.get(at).and_then(|_| self.tile(ids, vocab, at)).filter(|(start, _)| *start < at)
        {
            at = end;
        }
        at
    }

    /// The positions of a prompt in three directions; none where it has no picture.
    pub(super) fn positions(&self, ids: &[u32], vocab: u32) -> Option<Positions> {
        let (mut spans, mut at, mut seen) = (Vec::new(), 0, false);
        while at < ids.len() {
            match self.span(ids, vocab, at) {
                Some((_, end, grid)) => {
                    spans.push(grid);
                    seen = true;
                    at = end;
                }
                None => {
                    let end = (at..ids.len()).find(|i| ids[*i] >= vocab).unwrap_or(ids.len()).max(at + 1);
                    spans.push(Span::Text(end - at));
                    at = end;
                }
            }
        }
        seen.then(|| positions(&spans))
    }
}
