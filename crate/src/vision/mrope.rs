//! M-RoPE positions of mixed sequences: text advances all three axes, an image's tokens form a grid
//! of time, height and width. Reference: transformers `get_rope_index` of Qwen2.5-VL and Qwen3.5.

/// A span of a sequence: text or an image grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MropeSpan {
    /// Number of text tokens.
    Text(usize),
    /// An image or a video, in merged tokens.
    Grid {
        /// Frames.
        frames: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Time step between frames; unused for an image.
        interval: f64,
    },
}

impl MropeSpan {
    /// Returns the grid of an image.
    pub fn image(height: usize, width: usize) -> Self {
        Self::Grid {
            frames: 1,
            height,
            width,
            interval: 1.0,
        }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        match *self {
            Self::Text(count) => count,
            Self::Grid {
                frames,
                height,
                width,
                ..
            } => frames * height * width,
        }
    }
}

/// M-RoPE positions of a sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MropePositions {
    /// (time, height, width) of each token.
    pub tokens: Vec<[u32; 3]>,
    /// Added to the index of a generated token to get its position, which follows the last one. It
    /// can be below the time of a video's last frames; transformers' `rope_deltas` count from those
    /// frames, but its generation does not.
    pub offset: i64,
}

/// Computes the positions of a sequence's tokens.
pub fn mrope_positions(spans: &[MropeSpan]) -> MropePositions {
    let mut of = Vec::with_capacity(spans.iter().map(MropeSpan::tokens).sum());
    let mut next = 0u32;
    for span in spans {
        match *span {
            MropeSpan::Text(count) => {
                of.extend((next..next + count as u32).map(|p| [p; 3]));
                next += count as u32;
            }
            MropeSpan::Grid {
                frames,
                height,
                width,
                interval,
            } => {
                for frame in 0..frames {
                    // f32, as in the reference.
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
    MropePositions { tokens: of, offset }
}

/// Axis of each RoPE frequency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MropeSections {
    /// Number of frequencies for time, height and width.
    pub sizes: [usize; 3],
    /// Whether the axes alternate (time, height, width, time, …) instead of following one another.
    pub interleaved: bool,
}

impl MropeSections {
    /// Returns the axis of frequency `j`: 0 time, 1 height, 2 width.
    pub fn axis(&self, j: usize) -> usize {
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
