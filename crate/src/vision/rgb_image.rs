//! Decoded images and their regions.

use crate::{Error, Result};

/// A decoded image: 8-bit RGB, rows from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

impl RgbImage {
    /// Creates an image from RGB bytes.
    ///
    /// # Errors
    /// `Request` if there are not `height * width * 3` bytes, or a side is 0.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        if width == 0 || height == 0 || rgb.len() != width * height * 3 {
            return Err(image_error(format!(
                "{} bytes are not an RGB image of {width}x{height} pixels",
                rgb.len()
            )));
        }
        Ok(Self { width, height, rgb })
    }

    /// Copies a region.
    pub fn crop(&self, part: Rect) -> Self {
        let mut rgb = Vec::with_capacity(part.width * part.height * 3);
        for y in part.y..part.y + part.height {
            let start = (y * self.width + part.x) * 3;
            rgb.extend_from_slice(&self.rgb[start..start + part.width * 3]);
        }
        Self {
            width: part.width,
            height: part.height,
            rgb,
        }
    }
}

/// A region of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
}

impl Rect {
    /// Returns the region of a whole image.
    pub fn whole(width: usize, height: usize) -> Self {
        Self {
            x: 0,
            y: 0,
            width,
            height,
        }
    }
}

/// Returns the error of an image that cannot be used.
pub(crate) fn image_error(reason: String) -> Error {
    Error::Request {
        parameter: "image".into(),
        reason,
    }
}
