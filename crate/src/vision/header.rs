//! Image file headers, read before decoding: container, size and orientation. Sources: ITU T.81
//! (JPEG), EXIF 2.32 and TIFF 6.0, the PNG and WebP specifications, GIF89a.

use super::rgb_image::image_error;
use crate::Result;

/// Maximum pixels to decode: a file of a few bytes can demand gigabytes.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Supported image containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// image/jpeg
    Jpeg,
    /// image/png
    Png,
    /// image/webp
    WebP,
    /// image/gif
    Gif,
}

/// Header of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageHeader {
    /// The container.
    pub container: ImageFormat,
    /// Stored width in pixels.
    pub width: u32,
    /// Stored height in pixels.
    pub height: u32,
    /// EXIF orientation, 1 to 8; 1 is upright.
    pub orientation: u8,
}

impl ImageHeader {
    /// Reads a file's header.
    ///
    /// # Errors
    /// `Request` for an unsupported container, a truncated file, too many pixels or a CMYK JPEG.
    pub fn read(file: &[u8]) -> Result<Self> {
        let header = match file {
            [0xff, 0xd8, ..] => jpeg(file)?,
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => png(file)?,
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => webp(file)?,
            [b'G', b'I', b'F', b'8', ..] => {
                let at = |i| Some(u32::from(u16::from_le_bytes(two(file, i)?)));
                Self::plain(ImageFormat::Gif, at(6), at(8))?
            }
            _ => return Err(image_error(unknown(file))),
        };
        let width = header.width;
        let height = header.height;

        if width == 0 || height == 0 {
            return Err(image_error(format!(
                "the file has no pixels ({width}x{height}). It is damaged."
            )));
        }
        if u64::from(width) * u64::from(height) > MAX_PIXELS {
            let reason = format!(
                "the image has {width}x{height} pixels, more than the {} million allowed. Downscale it first.",
                MAX_PIXELS / 1_000_000
            );
            return Err(image_error(reason));
        }
        Ok(header)
    }

    fn plain(container: ImageFormat, width: Option<u32>, height: Option<u32>) -> Result<Self> {
        let (Some(width), Some(height)) = (width, height) else {
            return Err(broken());
        };
        Ok(Self {
            container,
            width,
            height,
            orientation: 1,
        })
    }

    /// Whether turning the image upright swaps width and height.
    pub fn swaps_sides(&self) -> bool {
        self.orientation >= 5
    }
}

fn broken() -> crate::Error {
    image_error("the file breaks off before the image size. It is damaged or incomplete.".into())
}

fn unknown(file: &[u8]) -> String {
    let kind = match file {
        [] => return "the file is empty".into(),
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => match brand.get(..4) {
            Some(b"avif" | b"avis") => "AVIF",
            Some(b"heic" | b"heix" | b"mif1" | b"msf1") => "HEIC",
            _ => "video",
        },
        [b'B', b'M', ..] => "BMP",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "TIFF",
        [b'<', ..] => "SVG or HTML",
        _ => "unknown",
    };
    format!("unsupported image format ({kind}). Use JPEG, PNG, WebP or GIF.")
}

fn two(bytes: &[u8], at: usize) -> Option<[u8; 2]> {
    bytes.get(at..at + 2)?.try_into().ok()
}

fn four(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..at + 4)?.try_into().ok()
}

fn jpeg(file: &[u8]) -> Result<ImageHeader> {
    let mut orientation = 1;
    let mut at = 2;
    loop {
        // Any number of fill bytes may precede a marker.
        while file.get(at) == Some(&0xff) && file.get(at + 1) == Some(&0xff) {
            at += 1;
        }
        let (Some(0xff), Some(&marker)) = (file.get(at), file.get(at + 1)) else {
            return Err(broken());
        };
        if matches!(marker, 0x01 | 0xd0..=0xd8) {
            at += 2;
            continue;
        }
        let length = two(file, at + 2).map_or(0, |b| usize::from(u16::from_be_bytes(b)));
        let Some(segment) = (length >= 2)
            .then(|| file.get(at + 4..at + 2 + length))
            .flatten()
        else {
            return Err(broken());
        };
        match marker {
            0xe1 if segment.starts_with(b"Exif\0\0") => {
                orientation = exif(&segment[6..]).unwrap_or(orientation);
            }
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let side = |i| two(segment, i).map(|b| u32::from(u16::from_be_bytes(b)));
                if segment.get(5) == Some(&4) {
                    let reason = "CMYK JPEG is not supported. Save it as RGB.";
                    return Err(image_error(reason.into()));
                }
                return Ok(ImageHeader {
                    orientation,
                    ..ImageHeader::plain(ImageFormat::Jpeg, side(3), side(1))?
                });
            }
            0xd9 | 0xda => return Err(broken()),
            _ => {}
        }
        at += 2 + length;
    }
}

fn png(file: &[u8]) -> Result<ImageHeader> {
    let number = |i| four(file, i).map(u32::from_be_bytes);
    let mut header = ImageHeader::plain(ImageFormat::Png, number(16), number(20))?;
    let mut at = 8usize;
    while let (Some(length), Some(name)) = (number(at), four(file, at + 4)) {
        let body = file.get(at + 8..(at + 8).saturating_add(length as usize));
        match &name {
            b"eXIf" => header.orientation = body.and_then(exif).unwrap_or(1),
            b"IEND" => break,
            _ => {}
        }
        at = at.saturating_add(length as usize).saturating_add(12);
    }
    Ok(header)
}

fn webp(file: &[u8]) -> Result<ImageHeader> {
    let mut size = (None, None);
    let mut orientation = 1;
    let mut at = 12usize;
    while let (Some(name), Some(length)) =
        (four(file, at), four(file, at + 4).map(u32::from_le_bytes))
    {
        let body = file.get(at + 8..).unwrap_or_default();
        let three = |i: usize| {
            Some(
                u32::from(*body.get(i)?)
                    | u32::from(*body.get(i + 1)?) << 8
                    | u32::from(*body.get(i + 2)?) << 16,
            )
        };
        match &name {
            b"VP8X" => size = (three(4).map(|n| n + 1), three(7).map(|n| n + 1)),
            b"VP8 " if size.0.is_none() => {
                let side = |i| two(body, i).map(|b| u32::from(u16::from_le_bytes(b) & 0x3fff));
                size = (side(6), side(8));
            }
            b"VP8L" if size.0.is_none() => {
                let bits = four(body, 1).map(u32::from_le_bytes);
                size = (
                    bits.map(|b| (b & 0x3fff) + 1),
                    bits.map(|b| (b >> 14 & 0x3fff) + 1),
                );
            }
            b"EXIF" => {
                let body = body.get(..length as usize).unwrap_or_default();
                orientation = exif(body.strip_prefix(b"Exif\0\0").unwrap_or(body)).unwrap_or(1);
            }
            _ => {}
        }
        at = at
            .saturating_add(8)
            .saturating_add(length as usize)
            .saturating_add(length as usize % 2);
    }
    Ok(ImageHeader {
        orientation,
        ..ImageHeader::plain(ImageFormat::WebP, size.0, size.1)?
    })
}

/// Reads the orientation of a TIFF block, if it is valid.
fn exif(tiff: &[u8]) -> Option<u8> {
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at| {
        two(tiff, at).map(|b| {
            if little {
                u16::from_le_bytes(b)
            } else {
                u16::from_be_bytes(b)
            }
        })
    };
    let long = |at| {
        four(tiff, at).map(|b| {
            if little {
                u32::from_le_bytes(b)
            } else {
                u32::from_be_bytes(b)
            }
        })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    (0..entries).map(|i| directory + 2 + i * 12).find_map(|at| {
        let value = short(at + 8)?;
        (short(at)? == 0x0112 && (1..=8).contains(&value)).then_some(value as u8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(file: &[u8]) -> String {
        ImageHeader::read(file).unwrap_err().to_string()
    }

    fn png_of(width: u32, height: u32) -> Vec<u8> {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR".to_vec();
        file.extend(width.to_be_bytes());
        file.extend(height.to_be_bytes());
        file.extend([8, 2, 0, 0, 0, 0, 0, 0, 0]);
        file
    }

    #[test]
    fn sizes_and_orientations_are_read() {
        let mut png = png_of(7, 9);
        assert_eq!(
            ImageHeader::read(&png).unwrap(),
            ImageHeader {
                container: ImageFormat::Png,
                width: 7,
                height: 9,
                orientation: 1
            }
        );
        png.extend(
            b"\0\0\0\x1aeXIfMM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
        );
        assert_eq!(ImageHeader::read(&png).unwrap().orientation, 6);
        assert!(ImageHeader::read(&png).unwrap().swaps_sides());
        let jpeg = b"\xff\xd8\xff\xe1\0\x1eExif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0\xff\xff\xc2\0\x0b\x08\0\x05\0\x03\x01\x01\x11\0";
        let header = ImageHeader::read(jpeg).unwrap();
        assert_eq!((header.width, header.height, header.orientation), (3, 5, 8));
        let webp = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x03\0\0\x04\0\0";
        assert_eq!(
            (
                ImageHeader::read(webp).unwrap().width,
                ImageHeader::read(webp).unwrap().height
            ),
            (4, 5)
        );
        let gif = b"GIF89a\x02\0\x03\0";
        assert_eq!(
            (
                ImageHeader::read(gif).unwrap().width,
                ImageHeader::read(gif).unwrap().height
            ),
            (2, 3)
        );
    }

    #[test]
    fn unusable_files_have_messages() {
        assert!(
            message(&png_of(60_000, 60_000))
                .contains("60000x60000 pixels, more than the 100 million")
        );
        assert!(message(&png_of(0, 4)).contains("no pixels"));
        assert!(message(b"\xff\xd8\xff\xc0\0\x0b\x08\0\x05\0\x03\x04\x01\x11\0").contains("CMYK"));
        assert!(message(b"\xff\xd8\xff\xc0\0\x0b").contains("breaks off"));
        assert!(message(b"\0\0\0\x18ftypheic").contains("HEIC"));
        assert!(message(b"").contains("empty"));
        assert!(message(b"hello").contains("Use JPEG, PNG, WebP or GIF"));
        // No truncation panics.
        let whole = [
            png_of(7, 9),
            b"\xff\xd8\xff\xe1\0\x20Exif\0\0II*\0\x08\0\0\0\xff\xff\xff\x7f".to_vec(),
            b"RIFF\0\0\0\0WEBPVP8L\xff\xff\xff\xff/".to_vec(),
        ];
        for file in whole {
            for end in 0..file.len() {
                let _ = ImageHeader::read(&file[..end]);
            }
        }
    }
}
