//! Cache of encoded images that prompts reference. Each soft token of an image has an id past the
//! vocabulary, unique to the image's content. Equal ids therefore mean equal embeddings, and
//! prefixes with images are reused like any other.

use super::vision_encoder::EncodedImage;
use crate::vision::{MropePositions, MropeSpan, mrope_positions};
use crate::{Error, Result};

/// A cached image.
struct CachedImage {
    content: u64,
    /// The id of its first token, counted from the end of the vocabulary.
    first_id: u32,
    encoded: EncodedImage,
}

/// Maximum bytes of cached images on the device; beyond it the least recently used are evicted.
const MAX_IMAGE_CACHE_BYTES: u64 = 256 << 20;

/// Encoded images by content, in LRU order (most recent last). Ids are never reused.
#[derive(Default)]
pub struct ImageCache {
    images: Vec<CachedImage>,
    next_id: u32,
}

/// The embedding row of a soft token.
pub(super) struct SoftTokenRef<'a> {
    /// The image.
    pub encoded: &'a EncodedImage,
    /// Index of the token in the image: tile by tile, row-major.
    pub token: usize,
}

impl ImageCache {
    /// Returns the id of the first token of the image with this content, if it is cached.
    pub fn find(&mut self, content: u64) -> Option<u32> {
        let first = self.images.iter().find(|s| s.content == content)?.first_id;
        self.touch(first).then_some(first)
    }

    /// Returns whether the image with this first id is cached, and marks it as recently used.
    pub fn touch(&mut self, first: u32) -> bool {
        let Some(at) = self.images.iter().position(|s| s.first_id == first) else {
            return false;
        };
        self.images[at..].rotate_left(1);
        true
    }

    /// Adds an image; returns the id of its first token, counted from the end of the vocabulary.
    pub fn add(&mut self, content: u64, encoded: EncodedImage) -> u32 {
        let first = self.next_id;
        self.next_id += encoded.tokens as u32;
        self.images.push(CachedImage {
            content,
            first_id: first,
            encoded,
        });
        let bytes =
            |shots: &[CachedImage]| shots.iter().map(|s| s.encoded.rows.size()).sum::<u64>();
        while bytes(&self.images) > MAX_IMAGE_CACHE_BYTES && self.images.len() > 1 {
            self.images.remove(0);
        }
        first
    }

    /// The error for an unknown image id.
    pub fn unknown_image(number: u32) -> Error {
        let reason = format!("unknown image id {number}. Encode the image first.");
        Error::Request {
            parameter: "imageId".into(),
            reason,
        }
    }

    /// Returns the embeddings of an image.
    ///
    /// # Errors
    /// `Request` for an unknown image id.
    pub fn encoded(&self, first: u32) -> Result<EncodedImage> {
        let found = self.images.iter().find(|s| s.first_id == first);
        found
            .map(|s| s.encoded.clone())
            .ok_or_else(|| Self::unknown_image(first))
    }

    /// Returns the tokens of each tile of an image as (height, width).
    pub fn grids(&self, first: u32) -> Vec<(usize, usize)> {
        self.find_token(first)
            .map_or_else(Vec::new, |(entry, _)| entry.encoded.grids.clone())
    }

    /// Returns the number of tokens of a cached image; 0 for an unknown id.
    pub fn tokens(&self, first: u32) -> usize {
        self.find_token(first)
            .map_or(0, |(entry, _)| entry.encoded.tokens)
    }

    fn find_token(&self, number: u32) -> Option<(&CachedImage, usize)> {
        let entry = self
            .images
            .iter()
            .find(|s| (s.first_id..s.first_id + s.encoded.tokens as u32).contains(&number))?;
        Some((entry, (number - entry.first_id) as usize))
    }

    /// Returns the embedding row of a soft token.
    ///
    /// # Errors
    /// `Request` for an id of no cached image.
    pub(super) fn soft_token(&self, number: u32) -> Result<SoftTokenRef<'_>> {
        let found = self.find_token(number).map(|(entry, token)| SoftTokenRef {
            encoded: &entry.encoded,
            token,
        });
        let reason = || {
            format!(
                "unknown image token {number}, counted from the end of the vocabulary. Encode the image first."
            )
        };
        found.ok_or_else(|| Error::Request {
            parameter: "ids".into(),
            reason: reason(),
        })
    }

    /// Returns the start and end, as indices in `ids`, of the image tile that contains `ids[at]`;
    /// `None` for a text token.
    pub(super) fn tile_bounds(&self, ids: &[u32], vocab: u32, at: usize) -> Option<(usize, usize)> {
        self.tile_span(ids, vocab, at)
            .map(|(first, end, _)| (first, end))
    }

    /// Returns the same with the tile's grid. Video frames with timestamped positions form one
    /// span.
    fn tile_span(&self, ids: &[u32], vocab: u32, at: usize) -> Option<(usize, usize, MropeSpan)> {
        let (entry, token) = self.find_token(ids[at].checked_sub(vocab)?)?;
        let EncodedImage {
            grids,
            position_interval: interval,
            ..
        } = &entry.encoded;
        let frames = if *interval > 0.0 { grids.len() } else { 1 };
        let mut first = 0;
        for (height, width) in grids {
            let end = first + frames * height * width;
            if token < end {
                let grid = MropeSpan::Grid {
                    frames,
                    height: *height,
                    width: *width,
                    interval: *interval,
                };
                return Some((
                    at - (token - first).min(at),
                    (at + end - token).min(ids.len()),
                    grid,
                ));
            }
            first = end;
        }
        None
    }

    /// Returns the first index >= `at` where a sequence can be cut without splitting an image.
    pub fn next_cut(&self, ids: &[u32], vocab: u32, mut at: usize) -> usize {
        while let Some((_, end)) = ids
            .get(at)
            .and_then(|_| self.tile_bounds(ids, vocab, at))
            .filter(|(start, _)| *start < at)
        {
            at = end;
        }
        at
    }

    /// Returns the M-RoPE positions of a prompt; `None` if it has no image.
    pub(super) fn mrope_positions(&self, ids: &[u32], vocab: u32) -> Option<MropePositions> {
        let mut spans = Vec::new();
        let mut at = 0;
        let mut seen = false;

        while at < ids.len() {
            match self.tile_span(ids, vocab, at) {
                Some((_, end, grid)) => {
                    spans.push(grid);
                    seen = true;
                    at = end;
                }
                None => {
                    let end = (at..ids.len())
                        .find(|i| ids[*i] >= vocab)
                        .unwrap_or(ids.len())
                        .max(at + 1);
                    spans.push(MropeSpan::Text(end - at));
                    at = end;
                }
            }
        }
        seen.then(|| mrope_positions(&spans))
    }
}
