//! Prompt text of images, which replaces the chat template's placeholder. Reference: transformers'
//! processing files.

use super::image_layout::ImageLayout;
use super::{ImageProcessor, ProcessorKind};
use crate::{Error, Result};
use serde_json::Value;

/// Image and video tokens of a family, as strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTokens {
    /// Placeholder of an image in the chat template.
    pub placeholder: String,
    /// Token repeated for each soft token.
    pub image: String,
    /// Text before an image's tokens.
    pub start: String,
    /// Text after an image's tokens.
    pub end: String,
    /// Text before the tokens of the thumbnail, if the image is cut into tiles.
    pub thumbnail: String,
    /// Placeholder of a video in the chat template, and the repeated token if videos have their
    /// own.
    pub video: String,
}

impl ImageTokens {
    /// Returns the tokens of a processor's family; those in tokenizer_config.json take precedence.
    pub fn for_processor(processor: &ImageProcessor, tokenizer_config: &Value) -> Self {
        let named = |name: &str, default: &str| {
            let value = tokenizer_config
                .get(name)
                .or_else(|| tokenizer_config.get("extra_special_tokens")?.get(name));
            let token = value.and_then(|v| v.as_str().or_else(|| v.get("content")?.as_str()));
            token.unwrap_or(default).to_string()
        };
        let video = named(
            "video_token",
            if matches!(processor.kind, ProcessorKind::Blocks { .. }) {
                "<|video_pad|>"
            } else {
                "<video>"
            },
        );
        // Without a thumbnail; the image's token is the placeholder.
        let tokens = |image: &str, start: String, end: String| {
            let image = named("image_token", image);
            Self {
                placeholder: image.clone(),
                image,
                start,
                end,
                thumbnail: String::new(),
                video: video.clone(),
            }
        };
        match processor.kind {
            ProcessorKind::Blocks { .. } => tokens(
                "<|image_pad|>",
                named("vision_start_token", "<|vision_start|>"),
                named("vision_end_token", "<|vision_end|>"),
            ),
            ProcessorKind::Tiles { .. } => {
                let around = named("fake_image_token", "<fake_token_around_image>");
                Self {
                    thumbnail: named("global_image_token", "<global-img>"),
                    ..tokens("<image>", around.clone(), around)
                }
            }
            ProcessorKind::Grid(_) => Self {
                thumbnail: named("image_thumbnail_token", "<|img_thumbnail|>"),
                ..tokens(
                    "<image>",
                    named("image_start_token", "<|image_start|>"),
                    named("image_end_token", "<|image_end|>"),
                )
            },
            ProcessorKind::Budget { .. } => tokens(
                "<|image|>",
                named("boi_token", "<|image>"),
                named("eoi_token", "<image|>"),
            ),
            ProcessorKind::Fixed { .. }
            | ProcessorKind::Center { .. }
            | ProcessorKind::Patches { .. } => {
                let start = named("boi_token", "<start_of_image>");
                let end = named("eoi_token", "<end_of_image>");
                Self {
                    placeholder: start.clone(),
                    ..tokens("<image_soft_token>", start, end)
                }
            }
        }
    }
}

impl ImageProcessor {
    /// Returns the text that replaces an image's placeholder.
    ///
    /// # Errors
    /// `Internal` if the number of tokens per tile is unknown.
    pub fn placeholder_text(&self, layout: &ImageLayout, marks: &ImageTokens) -> Result<String> {
        let mut runs = Vec::with_capacity(layout.tiles.len());
        for (height, width) in layout.tile_sizes() {
            let tokens = self.tokens(height, width).ok_or_else(|| {
                Error::Internal("the number of tokens per tile is unknown".into())
            })?;
            runs.push(marks.image.repeat(tokens));
        }
        let ImageTokens {
            start,
            end,
            thumbnail: whole,
            ..
        } = marks;
        let (down, across) = layout.grid;
        let mut runs = runs.into_iter();
        let mut next = || runs.next().unwrap_or_default();
        let mut text = String::new();
        match self.kind {
            ProcessorKind::Tiles { .. } => {
                for row in 1..=down {
                    for col in 1..=across {
                        text += &format!("{start}<row_{row}_col_{col}>{}", next());
                    }
                    text += "\n";
                }
                let line = if down > 0 { "\n" } else { "" };
                text += &format!("{line}{start}{whole}{}{end}", next());
            }
            ProcessorKind::Grid(grid) if down * across > 1 => {
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
            ProcessorKind::Fixed { .. } | ProcessorKind::Center { .. } => {
                let mut each = runs.map(|run| format!("\n\n{start}{run}{end}\n\n"));
                text = each.next().unwrap_or_default();
                if down * across > 0 {
                    let crops = each.collect::<Vec<_>>().join(" ");
                    text = format!(
                        "Here is the original image {text} and here are some crops to help you see better {crops}"
                    );
                }
            }
            // The chat template writes the text around it.
            ProcessorKind::Blocks { .. } => text = next(),
            _ => text = format!("{start}{}{end}", next()),
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn processor(config: &Value) -> ImageProcessor {
        ImageProcessor::from_config(config).unwrap()
    }

    fn text(p: &ImageProcessor, width: usize, height: usize) -> String {
        p.placeholder_text(
            &p.layout(width, height).unwrap(),
            &ImageTokens::for_processor(p, &json!({})),
        )
        .unwrap()
    }

    #[test]
    fn placeholders_expand_as_in_the_reference() {
        let qwen = processor(
            &json!({ "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "min_pixels": 1024 }),
        );
        assert_eq!(text(&qwen, 64, 96), "<|image_pad|>".repeat(6));
        let tiles = json!({ "image_processor": { "image_processor_type": "Idefics3ImageProcessor", "size": { "longest_edge": 8 },
            "max_image_size": { "longest_edge": 4 } }, "image_seq_len": 1 });
        let one = "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n\n\
            <fake_token_around_image><global-img><image><fake_token_around_image>";
        assert_eq!(text(&processor(&tiles), 90, 40), one);
        let mut gemma = processor(
            &json!({ "image_processor_type": "Gemma3ImageProcessor", "size": { "width": 8, "height": 8 },
            "do_pan_and_scan": true, "pan_and_scan_min_crop_size": 10 }),
        );
        gemma.tile_tokens = Some(2);
        let expected = "\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\n";
        assert_eq!(text(&gemma, 40, 40), expected);
        let crops = format!(
            "Here is the original image {expected} and here are some crops to help you see better {expected} {expected}"
        );
        assert_eq!(text(&gemma, 40, 20), crops);
        let lfm = processor(
            &json!({ "image_processor_type": "Lfm2VlImageProcessor", "tile_size": 32, "encoder_patch_size": 16,
            "max_image_tokens": 2, "min_image_tokens": 1, "max_tiles": 4 }),
        );
        let tile = |n: u32| format!("<|img_row_1_col_{n}|><image>");
        let whole = "<|img_thumbnail|><image><image><|image_end|>";
        assert_eq!(
            text(&lfm, 128, 64),
            format!("<|image_start|>{}{}{whole}", tile(1), tile(2))
        );
    }
}
