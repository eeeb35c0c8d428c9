//! Builds the tiles of an image from pixel rows as they arrive.

use super::ImageProcessor;
use super::image_layout::{ImageLayout, ResizeStep};
use crate::vision::resize::{FilterTaps, ResizeFilter, resize};
use crate::vision::rgb_image::{RgbImage, image_error};
use crate::{Error, Result};

/// Builds the tiles of an image from rows, so that a large image is never in memory as a whole.
/// Resizes each row horizontally when it arrives, and all rows vertically at the end.
#[derive(Debug)]
pub struct TileBuilder {
    layout: ImageLayout,
    filter: ResizeFilter,
    /// For each stage that reads the image itself: its index, its horizontal filter while rows
    /// arrive, and its rows so far.
    parts: Vec<(usize, Option<FilterTaps>, RgbImage)>,
    next_row: usize,
}

impl TileBuilder {
    /// Creates a builder without rows.
    pub fn new(processor: &ImageProcessor, layout: ImageLayout) -> Self {
        let filter = processor.filter;

        let parts = layout
            .steps
            .iter()
            .enumerate()
            .filter_map(|(index, stage): (usize, &ResizeStep)| {
                let empty = RgbImage {
                    width: stage.width,
                    height: 0,
                    rgb: Vec::new(),
                };
                stage.from.is_none().then_some((index, None, empty))
            })
            .collect();
        Self {
            layout,
            filter,
            parts,
            next_row: 0,
        }
    }

    /// Returns the image's layout.
    pub fn layout(&self) -> &ImageLayout {
        &self.layout
    }

    /// Adds rows with 3 (RGB) or 4 (RGBA, alpha is dropped) bytes per pixel.
    ///
    /// # Errors
    /// `Request` for partial rows, or more rows than the image has.
    pub fn push(&mut self, bytes: &[u8], channels: usize) -> Result<()> {
        let pitch = self.layout.width * channels;
        if !matches!(channels, 3 | 4) || !bytes.len().is_multiple_of(pitch) {
            return Err(image_error(format!(
                "{} bytes are not whole rows of {} RGB or RGBA pixels",
                bytes.len(),
                self.layout.width
            )));
        }
        for row in bytes.chunks_exact(pitch) {
            if self.next_row == self.layout.height {
                return Err(image_error(format!(
                    "more rows than its height of {}",
                    self.layout.height
                )));
            }
            for (index, taps, made) in &mut self.parts {
                let ResizeStep {
                    part,
                    width,
                    height,
                    ..
                } = self.layout.steps[*index];
                if (part.y..part.y + part.height).contains(&self.next_row) {
                    let taps = taps.get_or_insert_with(|| {
                        made.rgb.reserve_exact(width * part.height * 3);
                        FilterTaps::new(part.width, width, self.filter)
                    });
                    taps.row(
                        &row[part.x * channels..(part.x + part.width) * channels],
                        channels,
                        &mut made.rgb,
                    );
                    made.height += 1;
                }
                if self.next_row + 1 == part.y + part.height {
                    *made = resize(made, width, height, self.filter);
                    *taps = None;
                }
            }
            self.next_row += 1;
        }
        Ok(())
    }

    /// Returns the tiles.
    ///
    /// # Errors
    /// `Request` if rows are missing.
    pub fn finish(self) -> Result<Vec<RgbImage>> {
        let Self {
            layout,
            filter,
            parts,
            next_row: row,
        } = self;
        if row != layout.height {
            return Err(image_error(format!(
                "only {row} of its {} rows are given",
                layout.height
            )));
        }
        let mut parts = parts.into_iter();
        let mut made: Vec<RgbImage> = Vec::with_capacity(layout.steps.len());
        for stage in &layout.steps {
            let next = match stage.from {
                Some(from) => resize(
                    &made[from].crop(stage.part),
                    stage.width,
                    stage.height,
                    filter,
                ),
                None => {
                    let part = parts
                        .next()
                        .ok_or_else(|| Error::Internal("a stage has no part".into()))?;
                    part.2
                }
            };
            made.push(next);
        }
        Ok(layout
            .tiles
            .iter()
            .map(|(from, part)| made[*from].crop(*part))
            .collect())
    }
}

impl ImageProcessor {
    /// Returns the tiles of an image.
    ///
    /// # Errors
    /// `Request` for sizes that the processor does not accept.
    pub fn tiles(&self, picture: &RgbImage) -> Result<Vec<RgbImage>> {
        let mut intake = TileBuilder::new(self, self.layout(picture.width, picture.height)?);
        intake.push(&picture.rgb, 3)?;
        intake.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_arrive_in_any_chunks() {
        let width = 37;
        let height = 23;

        let rgb: Vec<u8> = (0..width * height * 3)
            .map(|i| (i * 7 % 251) as u8)
            .collect();
        let config = serde_json::json!({ "image_processor_type": "SmolVLMImageProcessor", "size": { "longest_edge": 64 },
            "max_image_size": { "longest_edge": 32 } });
        let processor = ImageProcessor::from_config(&config).unwrap();
        let whole = processor
            .tiles(&RgbImage::new(width, height, rgb.clone()).unwrap())
            .unwrap();
        let mut intake = TileBuilder::new(&processor, processor.layout(width, height).unwrap());
        let rgba: Vec<u8> = rgb.chunks(3).flat_map(|p| [p[0], p[1], p[2], 9]).collect();
        for rows in rgba.chunks(width * 4 * 5) {
            intake.push(rows, 4).unwrap();
        }
        assert!(intake.push(&rgba[..width * 4], 4).is_err());
        assert_eq!(intake.finish().unwrap(), whole);
        let unfinished = TileBuilder::new(&processor, processor.layout(width, height).unwrap());
        assert!(unfinished.finish().is_err());
    }
}
