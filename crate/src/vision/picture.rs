//! A decoded picture and its parts. It knows no file and no processor.

use crate::{Error, Result};

/// A decoded picture: 8 bits for each of red, green and blue, rows from top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// A picture of these bytes.
    ///
    /// # Errors
    /// `Request` when their number is not `height * width * 3`, or a side is 0.
    pub fn new(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        if width == 0 || height == 0 || rgb.len() != width * height * 3 {
            return Err(refused(format!("{} bytes are no RGB picture of {width}x{height}", rgb.len())));
        }
        Ok(Self { width, height, rgb })
    }

    /// A part of the picture.
    pub fn crop(&self, part: Rect) -> Self {
        let mut rgb = Vec::with_capacity(part.width * part.height * 3);
        for y in part.y..part.y + part.height {
            let start = (y * self.width + part.x) * 3;
            rgb.extend_from_slice(&self.rgb[start..start + part.width * 3]);
        }
        Self { width: part.width, height: part.height, rgb }
    }
}

/// A part of a picture, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// Its first column.
    pub x: usize,
    /// Its first row.
    pub y: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Rect {
    /// All of a picture of this size.
    pub fn whole(width: usize, height: usize) -> Self {
        Self { x: 0, y: 0, width, height }
    }
}

/// A picture that cannot be taken.
pub(crate) fn refused(reason: String) -> Error {
    Error::Request { parameter: "image".into(), reason }
}
