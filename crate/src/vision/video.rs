//! Video preprocessing: frame sampling, frame sizes and prompt text. Reference: transformers'
//! video_processing and processing files of Qwen2.5-VL, Qwen3-VL and SmolVLM.

use super::processor::{
    ImageLayout, ImageProcessor, ImageTokens, ProcessorKind, ResizeStep, smart_resize,
    video_frame_size,
};
use super::rgb_image::Rect;
use crate::Result;
use serde_json::Value;

/// How a family encodes the times of frames.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TimestampStyle {
    /// As text before each group of frames (Qwen3-VL, Qwen3.5).
    Text,
    /// As M-RoPE positions, with this many per second (Qwen2.5-VL).
    Positions(f64),
    /// As text before each frame, which is a small image (SmolVLM).
    Images,
}

/// Assumed frame rate of videos with unknown rate, in Hz.
const ASSUMED_FPS: f64 = 24.0;
/// Approximate tokens of a group's timestamp and special tokens.
const TIMESTAMP_TOKENS: usize = 12;

/// Video processor of a family. Times are in seconds: one per frame, and the end.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoProcessor {
    /// Image processor of the frames.
    pub processor: ImageProcessor,
    timestamps: TimestampStyle,
    /// Sampled frames per second.
    fps: f64,
    min_frames: usize,
    max_frames: usize,
    /// Maximum tokens per video.
    max_tokens: usize,
}

impl VideoProcessor {
    /// Creates a processor from the settings of a video processor, else from the image processor.
    ///
    /// # Errors
    /// `UnsupportedOption` and `Config`, as [`ImageProcessor::from_config`].
    pub fn new(config: &Value, images: &ImageProcessor, style: TimestampStyle) -> Result<Self> {
        let mut processor = match config.get("video_processor_type") {
            Some(_) => ImageProcessor {
                tile_tokens: images.tile_tokens,
                ..ImageProcessor::from_config(config)?
            },
            None => images.clone(),
        };
        let sampling = config.get("video_sampling").unwrap_or(config);
        let number = |name: &str| {
            sampling
                .get(name)
                .and_then(Value::as_f64)
                .filter(|n| *n > 0.0)
        };
        let (rate, most) = if style == TimestampStyle::Images {
            (1.0, 64.0)
        } else {
            (2.0, 768.0)
        };
        let counted = |name: &str, usual: f64| number(name).unwrap_or(usual) as usize;
        if let ProcessorKind::Tiles { longest, split, .. } = &mut processor.kind {
            let size = sampling
                .get("video_size")
                .and_then(|size| size.get("longest_edge")?.as_u64());
            (*longest, *split) = (
                size.map_or(*longest, |n| n.clamp(1, 1 << 16) as usize),
                false,
            );
        }
        Ok(Self {
            processor,
            timestamps: style,
            fps: number("fps").unwrap_or(rate),
            min_frames: counted("min_frames", 4.0).max(1),
            max_frames: counted("max_frames", most).max(1),
            max_tokens: usize::MAX,
        })
    }

    /// Limits a video to `tokens` tokens, with smaller and fewer frames than the settings ask for.
    pub fn limit_tokens(&mut self, tokens: usize) {
        self.max_tokens = tokens;
        let one = TIMESTAMP_TOKENS
            + if self.timestamps == TimestampStyle::Images {
                self.processor.tile_tokens.unwrap_or(0)
            } else {
                4
            };
        self.max_frames = self
            .max_frames
            .min(tokens / one * self.temporal_patch())
            .max(self.temporal_patch());
    }

    /// Frames per patch.
    pub fn temporal_patch(&self) -> usize {
        if let ProcessorKind::Blocks { frames, .. } = self.processor.kind {
            frames
        } else {
            1
        }
    }

    /// Returns the indices of the frames to sample from a video of `total` frames at `rate` Hz;
    /// `wanted` overrides the sampled frames per second.
    pub fn sample_frames(&self, total: usize, rate: f64, wanted: Option<f64>) -> Vec<usize> {
        let seconds = total as f64 / rate;
        let wanted = wanted.unwrap_or(self.fps);
        let total = total.max(1);

        let spread = |first: usize, last: usize, count: usize| -> Vec<f64> {
            let step = (last - first) as f64 / (count - 1).max(1) as f64;
            (0..count)
                .map(|i| {
                    if i > 0 && i + 1 == count {
                        last as f64
                    } else {
                        first as f64 + i as f64 * step
                    }
                })
                .collect()
        };
        let count = (seconds * wanted) as usize;
        match self.timestamps {
            TimestampStyle::Text => {
                let count = count.max(self.min_frames).min(self.max_frames).min(total);
                spread(0, total - 1, count)
                    .iter()
                    .map(|at| at.round_ties_even() as usize)
                    .collect()
            }
            TimestampStyle::Positions(_) => {
                let whole =
                    |count: usize| (count / self.temporal_patch() * self.temporal_patch()).max(1);
                let count = whole(
                    count
                        .max(self.min_frames)
                        .min(whole(self.max_frames.min(total))),
                );
                let step = total as f64 / count as f64;
                (0..count)
                    .map(|i| (i as f64 * step) as f32 as usize)
                    .collect()
            }
            TimestampStyle::Images => {
                let count = ((seconds * wanted).round_ties_even() as usize)
                    .min(self.max_frames)
                    .max(1);
                // Skip the first and the last second of a long video.
                let mut first = 0;
                let mut last = total - 1;

                if seconds - 2.0 > self.max_frames as f64 * wanted {
                    (first, last) = (rate as usize, ((total as f64 - rate) as usize).min(last));
                }
                let mut taken: Vec<usize> = spread(first, last, count)
                    .iter()
                    .map(|at| *at as usize)
                    .collect();
                taken.dedup();
                taken
            }
        }
    }

    /// Returns the times of the frames to sample from a video of this length, and its end.
    pub fn times(&self, seconds: f64, wanted: Option<f64>) -> Vec<f64> {
        let total = (seconds * ASSUMED_FPS).round().clamp(1.0, 1e9) as usize;
        self.sample_frames(total, ASSUMED_FPS, wanted)
            .into_iter()
            .map(|frame| frame as f64 / ASSUMED_FPS)
            .chain([seconds])
            .collect()
    }

    /// Computes the layout of frames of this size, stacked vertically.
    ///
    /// # Errors
    /// `Request` for sizes that the processor does not accept, and for too many frames.
    pub fn layout(&self, width: usize, height: usize, frames: usize) -> Result<ImageLayout> {
        if frames == 0 || frames > self.max_frames {
            let reason = format!(
                "{frames} frames given. Use 1 to {} frames.",
                self.max_frames
            );
            return Err(crate::Error::Request {
                parameter: "video".into(),
                reason,
            });
        }
        let one = self.frame_layout(width, height, frames)?;
        let mut all = ImageLayout {
            height: height.saturating_mul(frames),
            steps: Vec::new(),
            tiles: Vec::new(),
            ..one
        };
        for frame in 0..frames {
            let before = all.steps.len();
            all.steps
                .extend(one.steps.iter().map(|stage| match stage.from {
                    Some(from) => ResizeStep {
                        from: Some(before + from),
                        ..*stage
                    },
                    None => ResizeStep {
                        part: Rect {
                            y: stage.part.y + frame * height,
                            ..stage.part
                        },
                        ..*stage
                    },
                }));
            all.tiles.extend(
                one.tiles
                    .iter()
                    .map(|(stage, part)| (before + stage, *part)),
            );
        }
        Ok(all)
    }

    /// Computes the layout of one frame of a video with `frames` frames.
    fn frame_layout(&self, width: usize, height: usize, frames: usize) -> Result<ImageLayout> {
        let mut layout = self.processor.layout(width, height)?;
        if let ProcessorKind::Blocks {
            patch,
            merge,
            frames: together,
            min,
            max,
        } = self.processor.kind
        {
            let factor = patch * merge;
            let room = self.max_tokens.saturating_mul(factor * factor * together);
            let frames = frames.max(together);
            let (rows, cols) = match self.timestamps {
                TimestampStyle::Text => video_frame_size(
                    (frames, together),
                    (height, width),
                    factor,
                    (min, max.min(room)),
                ),
                _ => smart_resize(
                    height,
                    width,
                    factor,
                    min,
                    max.min(room / frames.next_multiple_of(together)),
                    0,
                ),
            };
            layout.steps.clear();
            layout.tiles.clear();
            let stage = layout.add_whole_resize(cols, rows);
            layout.add_tile(stage);
        }
        Ok(layout)
    }

    /// Returns the M-RoPE time step between groups of frames; 0 if positions do not encode time.
    pub fn interval(&self, seconds: &[f64]) -> f64 {
        let TimestampStyle::Positions(each) = self.timestamps else {
            return 0.0;
        };
        let frames = seconds.len().saturating_sub(1).max(1);
        let length = seconds.last().copied().unwrap_or(0.0);
        // f32, as in the reference.
        f64::from((self.temporal_patch() as f64 * length / frames as f64) as f32 * each as f32)
    }

    /// Returns the text that replaces a video's placeholder.
    pub fn prompt_text(
        &self,
        layout: &ImageLayout,
        seconds: &[f64],
        marks: &ImageTokens,
    ) -> String {
        let (height, width) = layout.tile_sizes().next().unwrap_or_default();
        let tokens = self.processor.tokens(height, width).unwrap_or(0);
        let (end, seconds) = seconds
            .split_last()
            .map_or((0.0, seconds), |(end, seconds)| (*end, seconds));
        let run = self.placeholder_token(marks).repeat(tokens);
        let together = self.temporal_patch();

        let at = |i: usize| seconds[i.min(seconds.len() - 1)];
        let groups = (0..seconds.len()).step_by(together);
        let ImageTokens {
            start,
            end: close,
            thumbnail: whole,
            ..
        } = marks;
        match self.timestamps {
            TimestampStyle::Positions(_) => groups.map(|_| run.clone()).collect(),
            TimestampStyle::Text => {
                let middle = |i: usize| (at(i) + at(i + together - 1)) / 2.0;
                groups
                    .map(|i| format!("<{:.1} seconds>{start}{run}{close}", middle(i)))
                    .collect()
            }
            TimestampStyle::Images => {
                let count = spell_number(seconds.len());
                let length = end as u64;

                let hours = length / 3600;
                let minutes = length / 60 % 60;
                let rest = length % 60;

                let mut text = format!(
                    "You are provided the following series of {count} frames from a {hours}:{minutes:02}:{rest:02} [H:MM:SS] video.\n"
                );
                for second in seconds {
                    let minutes = (second / 60.0) as u64;
                    let rest = (second % 60.0) as u64;

                    text +=
                        &format!("\nFrame from {minutes:02}:{rest:02}:{start}{whole}{run}{close}");
                }
                text + "\n\n"
            }
        }
    }

    /// Returns the token that a video's soft tokens replace.
    pub fn placeholder_token<'a>(&self, marks: &'a ImageTokens) -> &'a str {
        if self.timestamps == TimestampStyle::Images {
            &marks.image
        } else {
            &marks.video
        }
    }
}

/// Spells a number below 1000 in English; writes larger ones in digits.
fn spell_number(n: usize) -> String {
    const SMALL: &str = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
        seventeen eighteen nineteen";
    const TENS: &str = "- - twenty thirty forty fifty sixty seventy eighty ninety";
    let word = |list: &'static str, i: usize| {
        list.split(' ')
            .filter(|w| !w.is_empty())
            .nth(i)
            .unwrap_or_default()
    };
    match n {
        0..=19 => word(SMALL, n).to_string(),
        20..=99 if n.is_multiple_of(10) => word(TENS, n / 10).to_string(),
        20..=99 => format!("{}-{}", word(TENS, n / 10), word(SMALL, n % 10)),
        100..=999 if n.is_multiple_of(100) => format!("{} hundred", word(SMALL, n / 100)),
        100..=999 => format!(
            "{} hundred and {}",
            word(SMALL, n / 100),
            spell_number(n % 100)
        ),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        let found = [7, 20, 42, 300, 317, 1000].map(spell_number);
        assert_eq!(
            found,
            [
                "seven",
                "twenty",
                "forty-two",
                "three hundred",
                "three hundred and seventeen",
                "1000"
            ]
        );
    }

    #[test]
    fn a_video_fits_into_its_token_limit() {
        let config = serde_json::json!({ "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16,
            "size": { "shortest_edge": 4096, "longest_edge": 1 << 24 } });
        let images = ImageProcessor::from_config(&config).unwrap();
        for style in [TimestampStyle::Text, TimestampStyle::Positions(2.0)] {
            let mut videos = VideoProcessor::new(&config, &images, style).unwrap();
            videos.limit_tokens(160);
            let times = videos.times(600.0, None);
            assert_eq!((times.len(), times[20]), (21, 600.0), "{style:?}");
            let layout = videos.layout(1920, 1080, 20).unwrap();
            let tokens: usize = layout
                .tile_sizes()
                .map(|(h, w)| videos.processor.tokens(h, w).unwrap())
                .sum();
            assert!((80..=320).contains(&tokens), "{style:?}: {tokens}");
            assert!(videos.layout(64, 64, 21).is_err() && videos.layout(64, 64, 0).is_err());
        }
    }
}
