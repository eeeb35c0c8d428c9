//! Soft tokens: embeddings that prompts reference in place of vocabulary tokens. They come from
//! images, videos and speaker vectors. Each has an id past the vocabulary, unique to its content.
//! Equal ids therefore mean equal embeddings, and prefixes with soft tokens are reused like any
//! other.

use super::step::{check_finite, rows_bytes, unpad_rows};
use crate::gpu::{Backend, Buffer, BufferUsage, Gpu};
use crate::vision::{MropePositions, MropeSpan, mrope_positions};
use crate::{Error, Result};

/// Embeddings on the device that stand for tokens of a prompt.
#[derive(Clone)]
pub struct SoftEmbeddings {
    /// `[tokens, cols]`, with row strides padded to multiples of four.
    pub rows: Buffer,
    /// Number of tokens.
    pub tokens: usize,
    /// Columns of a row: the width of the language model times the number of vision features.
    pub cols: usize,
    /// Index in `rows` of each token, in the order of the prompt.
    pub token_rows: Vec<u32>,
    /// How the tokens are arranged.
    pub layout: SoftTokenLayout,
}

/// How soft tokens are arranged: what their positions are, and which attend to each other.
#[derive(Clone, Debug, PartialEq)]
pub enum SoftTokenLayout {
    /// One after another, like text: vectors such as a speaker's.
    Sequence,
    /// Tiles of an image, or groups of a video's frames, each row-major.
    Tiles {
        /// Tokens of each tile as (height, width).
        grids: Vec<(usize, usize)>,
        /// Position distance of two tiles that are groups of frames; 0 for images.
        position_interval: f64,
    },
}

impl SoftTokenLayout {
    /// Tokens of each tile as (height, width); none for a sequence.
    pub fn grids(&self) -> &[(usize, usize)] {
        match self {
            SoftTokenLayout::Sequence => &[],
            SoftTokenLayout::Tiles { grids, .. } => grids,
        }
    }
}

impl SoftEmbeddings {
    /// Uploads one vector, of the language model's width, as a soft token.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn from_vector(gpu: &Gpu, label: &str, vector: &[f32]) -> Result<SoftEmbeddings> {
        let rows = gpu.buffer(label, rows_bytes(1, vector.len()), BufferUsage::Storage)?;
        gpu.write(&rows, 0, bytemuck::cast_slice(vector));
        Ok(SoftEmbeddings {
            rows,
            tokens: 1,
            cols: vector.len(),
            token_rows: vec![0],
            layout: SoftTokenLayout::Sequence,
        })
    }

    /// Sets the position distance of tiles that are groups of a video's frames.
    pub fn at_interval(mut self, interval: f64) -> SoftEmbeddings {
        if let SoftTokenLayout::Tiles {
            position_interval, ..
        } = &mut self.layout
        {
            *position_interval = interval;
        }
        self
    }

    /// Reads the embeddings, `[tokens, cols]`, in the order of the prompt.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn read(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        let bytes = gpu
            .read(&self.rows, 0, rows_bytes(self.tokens, self.cols))
            .await?;
        let rows = unpad_rows(&bytes, self.cols);
        check_finite(&rows)?;
        let row = |at: &u32| &rows[*at as usize * self.cols..(*at as usize + 1) * self.cols];
        let mut all = Vec::with_capacity(rows.len());
        self.token_rows
            .iter()
            .for_each(|at| all.extend_from_slice(row(at)));
        Ok(all)
    }
}

/// Cached embeddings.
struct CachedSoftTokens {
    content: u64,
    /// The id of its first token, counted from the end of the vocabulary.
    first_id: u32,
    encoded: SoftEmbeddings,
}

/// Maximum bytes of cached embeddings on the device; beyond it the least recently used are evicted.
const MAX_SOFT_TOKEN_CACHE_BYTES: u64 = 256 << 20;

/// Soft tokens by content, in LRU order (most recent last). Ids are never reused.
#[derive(Default)]
pub struct SoftTokenCache {
    entries: Vec<CachedSoftTokens>,
    next_id: u32,
}

/// The embedding row of a soft token.
pub(super) struct SoftTokenRef<'a> {
    /// The embeddings that hold it.
    pub encoded: &'a SoftEmbeddings,
    /// Index of the token in them.
    pub token: usize,
}

impl SoftTokenCache {
    /// Returns the id of the first token of this content, if it is cached.
    pub fn find(&mut self, content: u64) -> Option<u32> {
        let first = self.entries.iter().find(|s| s.content == content)?.first_id;
        self.touch(first).then_some(first)
    }

    /// Returns whether the content with this first id is cached, and marks it as recently used.
    pub fn touch(&mut self, first: u32) -> bool {
        let Some(at) = self.entries.iter().position(|s| s.first_id == first) else {
            return false;
        };
        self.entries[at..].rotate_left(1);
        true
    }

    /// Adds embeddings; returns the id of their first token, counted from the end of the vocabulary.
    pub fn add(&mut self, content: u64, encoded: SoftEmbeddings) -> u32 {
        let first = self.next_id;
        self.next_id += encoded.tokens as u32;
        self.entries.push(CachedSoftTokens {
            content,
            first_id: first,
            encoded,
        });
        let bytes = |entries: &[CachedSoftTokens]| {
            entries.iter().map(|s| s.encoded.rows.size()).sum::<u64>()
        };
        while bytes(&self.entries) > MAX_SOFT_TOKEN_CACHE_BYTES && self.entries.len() > 1 {
            self.entries.remove(0);
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

    /// Returns the embeddings with this first id.
    ///
    /// # Errors
    /// `Request` for an unknown id.
    pub fn encoded(&self, first: u32) -> Result<SoftEmbeddings> {
        let found = self.entries.iter().find(|s| s.first_id == first);
        found
            .map(|s| s.encoded.clone())
            .ok_or_else(|| Self::unknown_image(first))
    }

    /// Returns the tokens of each tile of an image as (height, width).
    pub fn grids(&self, first: u32) -> Vec<(usize, usize)> {
        self.find_token(first)
            .map_or_else(Vec::new, |(entry, _)| entry.encoded.layout.grids().to_vec())
    }

    /// Returns the number of soft tokens with this first id; 0 for an unknown id.
    pub fn tokens(&self, first: u32) -> usize {
        self.find_token(first)
            .map_or(0, |(entry, _)| entry.encoded.tokens)
    }

    fn find_token(&self, number: u32) -> Option<(&CachedSoftTokens, usize)> {
        let entry = self
            .entries
            .iter()
            .find(|s| (s.first_id..s.first_id + s.encoded.tokens as u32).contains(&number))?;
        Some((entry, (number - entry.first_id) as usize))
    }

    /// Returns the embedding row of a soft token.
    ///
    /// # Errors
    /// `Request` for an id that is not cached.
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
        let SoftTokenLayout::Tiles {
            grids,
            position_interval: interval,
        } = &entry.encoded.layout
        else {
            return None;
        };
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
