//! Positions of mixed sequences in three directions (M-RoPE): text counts on, a picture's tokens stand in a grid of time, height
//! and width. Reference: transformers `get_rope_index` of Qwen2.5-VL and Qwen3.5. It knows no token and no table.

/// A stretch of a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Span {
    /// So many tokens of text.
    Text(usize),
    /// A picture or a video, in merged tokens.
    Grid {
        /// Frames.
        frames: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// How far two frames are apart; anything for a picture.
        interval: f64,
    },
}

impl Span {
    /// A picture's grid.
    pub fn picture(height: usize, width: usize) -> Self {
        Self::Grid { frames: 1, height, width, interval: 1.0 }
    }

    /// How many tokens it has.
    pub fn tokens(&self) -> usize {
        match *self {
            Self::Text(count) => count,
            Self::Grid { frames, height, width, .. } => frames * height * width,
        }
    }
}

/// Where the tokens of a sequence stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Positions {
    /// (time, height, width) of each token.
    pub of: Vec<[u32; 3]>,
    /// What is added to the number of tokens before one that is generated: it stands behind the last one. That may be below the
    /// time of a video's last frames, which transformers' `rope_deltas` count from, though not what it generates.
    pub offset: i64,
}

/// The positions of a sequence's tokens.
pub fn positions(spans: &[Span]) -> Positions {
    let mut of = Vec::with_capacity(spans.iter().map(Span::tokens).sum());
    let mut next = 0u32;
    for span in spans {
        match *span {
            Span::Text(count) => {
                of.extend((next..next + count as u32).map(|p| [p; 3]));
                next += count as u32;
            }
            Span::Grid { frames, height, width, interval } => {
                for frame in 0..frames {
                    // The reference multiplies in 32 bits.
                    let time = next + (frame as f32 * interval as f32) as u32;
                    for row in 0..height as u32 {
                        of.extend((0..width as u32).map(|col| [time, next + row, next + col]));
                    }
                }
                next += height.max(width) as u32;
            }
        }
    }
    let offset = i64::from(next) - of.len() as i64;
    Positions { of, offset }
}

/// Which direction each frequency of a rotation counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    /// Frequencies of time, height and width.
    pub sizes: [usize; 3],
    /// They alternate (time, height, width, time, …) rather than follow one another.
    pub interleaved: bool,
}

impl Sections {
    /// The direction of frequency `j`: 0 time, 1 height, 2 width.
    pub fn direction(&self, j: usize) -> usize {
        let [time, height, width] = self.sizes;
        if !self.interleaved {
            return usize::from(j >= time) + usize::from(j >= time + height);
        }
        match j % 3 {
            1 if j < 3 * height => 1,
            2 if j < 3 * width => 2,
            _ => 0,
        }
    }
}
