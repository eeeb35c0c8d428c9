//! Cache of encoded images that prompts reference. Each soft token of an image has an id past the vocabulary, unique to
//! the image's content. Equal ids therefore mean equal embeddings, and prefixes with images are reused like any other.

use super::tower::Encoded;
use crate::vision::{Positions, Span, positions};
use crate::{Error, Result};

/// A cached image.
struct Shot {
    content: u64,
    /// The id of its first token, counted from the end of the vocabulary.
    first: u32,
    encoded: Encoded,
}

/// Maximum bytes of cached images on the device; beyond it the least recently used are evicted.
const MOST_BYTES: u64 = 256 << 20;

/// Encoded images by content, in LRU order (most recent last). Ids are never reused.
#[derive(Default)]
pub struct Album {
    shots: Vec<Shot>,
    next: u32,
}

/// The embedding row of a soft token.
pub(super) struct Place<'a> {
    /// The image.
    pub encoded: &'a Encoded,
    /// Index of the token in the image: tile by tile, row-major.
    pub token: usize,
}

impl Album {
    /// Returns the id of the first token of the image with this content, if it is cached.
    pub fn find(&mut self, content: u64) -> Option<u32> {
        let first = self.shots.iter().find(|s| s.content == content)?.first;
        self.touch(first).then_some(first)
    }

    /// Returns whether the image with this first id is cached, and marks it as recently used.
    pub fn touch(&mut self, first: u32) -> bool {
        let Some(at) = self.shots.iter().position(|s| s.first == first) else { return false };
        self.shots[at..].rotate_left(1);
        true
    }

    /// Adds an image; returns the id of its first token, counted from the end of the vocabulary.
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

    /// The error for an unknown image id.
    pub fn missing(number: u32) -> Error {
        let reason = format!("unknown image id {number}. Encode the image first.");
        Error::Request { parameter: "picture".into(), reason }
    }

    /// Returns the embeddings of an image.
    ///
    /// # Errors
    /// `Request` for an unknown image id.
    pub fn encoded(&self, first: u32) -> Result<Encoded> {
        let found = self.shots.iter().find(|s| s.first == first);
        found.map(|s| s.encoded.clone()).ok_or_else(|| Self::missing(first))
    }

    /// Returns the tokens of each tile of an image as (height, width).
    pub fn grids(&self, first: u32) -> Vec<(usize, usize)> {
        self.at(first).map_or_else(Vec::new, |(shot, _)| shot.encoded.grids.clone())
    }

    /// Returns the number of tokens of a cached image; 0 for an unknown id.
    pub fn tokens(&self, first: u32) -> usize {
        self.at(first).map_or(0, |(shot, _)| shot.encoded.tokens)
    }

    fn at(&self, number: u32) -> Option<(&Shot, usize)> {
        let shot = self.shots.iter().find(|s| (s.first..s.first + s.encoded.tokens as u32).contains(&number))?;
        Some((shot, (number - shot.first) as usize))
    }

    /// Returns the embedding row of a soft token.
    ///
    /// # Errors
    /// `Request` for an id of no cached image.
    pub(super) fn place(&self, number: u32) -> Result<Place<'_>> {
        let found = self.at(number).map(|(shot, token)| Place { encoded: &shot.encoded, token });
        let reason =
            || format!("unknown image token {number}, counted from the end of the vocabulary. Encode the image first.");
        found.ok_or_else(|| Error::Request { parameter: "ids".into(), reason: reason() })
    }

    /// Returns the start and end, as indices in `ids`, of the image tile that contains `ids[at]`; `None` for a text
    /// token.
    pub(super) fn tile(&self, ids: &[u32], vocab: u32, at: usize) -> Option<(usize, usize)> {
        self.span(ids, vocab, at).map(|(first, end, _)| (first, end))
    }

    /// Returns the same with the tile's grid. Video frames with timestamped positions form one span.
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

    /// Returns the first index >= `at` where a sequence can be cut without splitting an image.
    pub fn whole_from(&self, ids: &[u32], vocab: u32, mut at: usize) -> usize {
        while let Some((_, end)) = ids.get(at).and_then(|_| self.tile(ids, vocab, at)).filter(|(start, _)| *start < at)
        {
            at = end;
        }
        at
    }

    /// Returns the M-RoPE positions of a prompt; `None` if it has no image.
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
