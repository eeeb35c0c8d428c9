//! The text that stands for a picture or a video in a prompt: what the chat template's placeholder becomes. Reference:
//! transformers' processing files. It knows no tokenizer: marks are spelled.

use super::layout::Layout;
use super::settings::{Kind, Processor};
use crate::{Error, Result};
use serde_json::Value;

/// How a family spells what stands for pictures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marks {
    /// What the chat template writes where a picture is.
    pub placeholder: String,
    /// The token that is repeated, one for each of the tower's.
    pub image: String,
    /// Before a picture's tokens.
    pub start: String,
    /// After them.
    pub end: String,
    /// Before the tokens of the whole picture where it is cut into tiles.
    pub whole: String,
}

impl Marks {
    /// The marks of a processor's family, spelled as tokenizer_config.json does where it names them.
    pub fn of(processor: &Processor, tokenizer_config: &Value) -> Self {
        let named = |name: &str, default: &str| {
            let value = tokenizer_config.get(name).or_else(|| tokenizer_config.get("extra_special_tokens")?.get(name));
            let spelled = value.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str()));
            spelled.unwrap_or(default).to_string()
        };
        let image = |default| named("image_token", default);
        match processor.kind {
            Kind::Blocks { .. } => {
                let image = image("<|image_pad|>");
                Self {
                    placeholder: image.clone(),
                    image,
                    start: String::new(),
                    end: String::new(),
                    whole: String::new(),
                }
            }
            Kind::Tiles { .. } => {
                let (image, fake) = (image("<image>"), named("fake_image_token", "<fake_token_around_image>"));
                let whole = named("global_image_token", "<global-img>");
                Self { placeholder: image.clone(), image, start: fake.clone(), end: fake, whole }
            }
            Kind::Grid(_) => {
                let image = image("<image>");
                let start = named("image_start_token", "<|image_start|>");
                let end = named("image_end_token", "<|image_end|>");
                let whole = named("image_thumbnail_token", "<|img_thumbnail|>");
                Self { placeholder: image.clone(), image, start, end, whole }
            }
            Kind::Budget { .. } => {
                let image = image("<|image|>");
                let (start, end) = (named("boi_token", "<|image>"), named("eoi_token", "<image|>"));
                Self { placeholder: image.clone(), image, start, end, whole: String::new() }
            }
            Kind::Fixed { .. } | Kind::Center { .. } => {
                let (start, end) = (named("boi_token", "<start_of_image>"), named("eoi_token", "<end_of_image>"));
                let image = image("<image_soft_token>");
                Self { placeholder: start.clone(), image, start, end, whole: String::new() }
            }
        }
    }
}

impl Processor {
    /// What a picture's placeholder becomes.
    ///
    /// # Errors
    /// `Internal` when nobody said how many tokens a tile has.
    pub fn expansion(&self, layout: &Layout, marks: &Marks) -> Result<String> {
        let mut runs = Vec::with_capacity(layout.tiles.len());
        for (height, width) in layout.tile_sizes() {
            let tokens = self.tokens(height, width).ok_or_else(|| Error::Internal("no tile size in tokens".into()))?;
            runs.push(marks.image.repeat(tokens));
        }
        let Marks { start, end, whole, .. } = marks;
        let (down, across) = layout.grid;
        let mut runs = runs.into_iter();
        let mut next = || runs.next().unwrap_or_default();
        let mut text = String::new();
        match self.kind {
            Kind::Tiles { .. } => {
                for row in 1..=down {
                    for col in 1..=across {
                        text += &format!("{start}<row_{row}_col_{col}>{}", next());
                    }
                    text += "\n";
                }
                let line = if down > 0 { "\n" } else { "" };
                text += &format!("{line}{start}{whole}{}{end}", next());
            }
            Kind::Grid(grid) if down * across > 1 => {
                text += start;
                for row in 1..=down {
                    for col in 1..=across {
                        text += &format!("<|img_row_{row}_col_{col}|>{}", next());
                    }
                }
                if grid.thumbnail {
                    text += &format!("{whole}{}", next());
                }
                text += end;
            }
            Kind::Fixed { .. } | Kind::Center { .. } => {
                let mut each = runs.map(|run| format!("\n\n{start}{run}{end}\n\n"));
                text = each.next().unwrap_or_default();
                if down * across > 0 {
                    let crops = each.collect::<Vec<_>>().join(" ");
                    text = format!(
                        "Here is the original image {text} and here are some crops to help you see better {crops}"
                    );
                }
            }
            _ => text = format!("{start}{}{end}", next()),
        }
        Ok(text)
    }
}

/// The text that stands for a video: its frames with the times at which they show.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoText {
    /// The time of each frame in seconds.
    pub seconds: Vec<f64>,
    /// Tokens of a frame, or of two where the family joins them.
    pub tokens: usize,
}

impl VideoText {
    /// The frames that are taken from a video of `total` frames with `rate` a second, at `wanted` a second.
    pub fn sample(total: usize, rate: f64, wanted: f64, least: usize, most: usize) -> Vec<usize> {
        let count = (total as f64 / rate * wanted) as usize;
        let count = count.max(least).min(most).min(total).max(1);
        let step = |i: usize| if count == 1 { 0.0 } else { (total - 1) as f64 * i as f64 / (count - 1) as f64 };
        (0..count).map(|i| step(i).round_ties_even() as usize).collect()
    }

    /// Qwen3-VL and Qwen3.5: one time for each `together` frames, between the first and the last of them.
    pub fn qwen(&self, together: usize, start: &str, video: &str, end: &str) -> String {
        let run = video.repeat(self.tokens);
        let last = self.seconds.last().copied().unwrap_or(0.0);
        let at = |i: usize| self.seconds.get(i).copied().unwrap_or(last);
        let group = |i: usize| format!("<{:.1} seconds>{start}{run}{end}", (at(i) + at(i + together - 1)) / 2.0);
        (0..self.seconds.len()).step_by(together).map(group).collect()
    }

    /// Gemma 4: `mm:ss` before each frame.
    pub fn gemma(&self, start: &str, video: &str, end: &str) -> String {
        let run = video.repeat(self.tokens);
        let frames: Vec<String> = self.seconds.iter().map(|s| format!("{} {start}{run}{end}", clock(*s))).collect();
        frames.join(" ")
    }

    /// SmolVLM: a sentence, then a line for each frame.
    pub fn smolvlm(&self, duration: f64, marks: &Marks) -> String {
        let run = marks.image.repeat(self.tokens);
        let Marks { start, end, whole, .. } = marks;
        let (count, length) = (in_words(self.seconds.len()), duration as u64);
        let length = format!("{}:{:02}:{:02}", length / 3600, length / 60 % 60, length % 60);
        let mut text =
            format!("You are provided the following series of {count} frames from a {length} [H:MM:SS] video.\n");
        for second in &self.seconds {
            text += &format!("\nFrame from {}:{start}{whole}{run}{end}", clock(*second));
        }
        text + "\n\n"
    }
}

fn clock(seconds: f64) -> String {
    format!("{:02}:{:02}", (seconds / 60.0) as u64, (seconds % 60.0) as u64)
}

/// A number below a thousand in English words, larger ones in digits.
fn in_words(n: usize) -> String {
    const SMALL: &str = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
        seventeen eighteen nineteen";
    const TENS: &str = "- - twenty thirty forty fifty sixty seventy eighty ninety";
    let word = |list: &'static str, i: usize| list.split(' ').filter(|w| !w.is_empty()).nth(i).unwrap_or_default();
    match n {
        0..=19 => word(SMALL, n).to_string(),
        20..=99 if n.is_multiple_of(10) => word(TENS, n / 10).to_string(),
        20..=99 => format!("{}-{}", word(TENS, n / 10), word(SMALL, n % 10)),
        100..=999 if n.is_multiple_of(100) => format!("{} hundred", word(SMALL, n / 100)),
        100..=999 => format!("{} hundred and {}", word(SMALL, n / 100), in_words(n % 100)),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn processor(config: &Value) -> Processor {
        Processor::from_config(config).unwrap()
    }

    fn text(p: &Processor, width: usize, height: usize) -> String {
        p.expansion(&p.layout(width, height).unwrap(), &Marks::of(p, &json!({}))).unwrap()
    }

    #[test]
    fn a_placeholder_becomes_what_the_processor_writes() {
        let qwen = processor(
            &json!({ "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "min_pixels": 1024 }),
        );
        assert_eq!(text(&qwen, 64, 96), "<|image_pad|>".repeat(6));
        let tiles = json!({ "image_processor": { "image_processor_type": "Idefics3ImageProcessor", "size": { "longest_edge": 8 },
            "max_image_size": { "longest_edge": 4 } }, "image_seq_len": 1 });
        let one = "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n\n\
            <fake_token_around_image><global-img><image><fake_token_around_image>";
        assert_eq!(text(&processor(&tiles), 90, 40), one);
        let mut gemma =
            processor(&json!({ "image_processor_type": "Gemma3ImageProcessor", "size": { "width": 8, "height": 8 },
            "do_pan_and_scan": true, "pan_and_scan_min_crop_size": 10 }));
        gemma.tile_tokens = Some(2);
        let picture = "\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\n";
        assert_eq!(text(&gemma, 40, 40), picture);
        let crops = format!(
            "Here is the original image {picture} and here are some crops to help you see better {picture} {picture}"
        );
        assert_eq!(text(&gemma, 40, 20), crops);
        let lfm = processor(
            &json!({ "image_processor_type": "Lfm2VlImageProcessor", "tile_size": 32, "encoder_patch_size": 16,
            "max_image_tokens": 2, "min_image_tokens": 1, "max_tiles": 4 }),
        );
        let tile = |n: u32| format!("<|img_row_1_col_{n}|><image>");
        let whole = "<|img_thumbnail|><image><image><|image_end|>";
        assert_eq!(text(&lfm, 128, 64), format!("<|image_start|>{}{}{whole}", tile(1), tile(2)));
    }

    #[test]
    fn frames_come_with_their_times() {
        assert_eq!(VideoText::sample(50, 25.0, 2.0, 4, 768), [0, 16, 33, 49]);
        let video = VideoText { seconds: vec![0.0, 0.5, 61.0], tokens: 2 };
        assert_eq!(video.qwen(2, "[", "v", "]"), "<0.2 seconds>[vv]<61.0 seconds>[vv]");
        assert_eq!(video.gemma("[", "v", "]"), "00:00 [vv] 00:00 [vv] 01:01 [vv]");
        assert_eq!(
            [in_words(7), in_words(42), in_words(300), in_words(317)],
            ["seven", "forty-two", "three hundred", "three hundred and seventeen"]
        );
    }
}
