//! Native decoding of JPEG, PNG and WebP, turned upright and without alpha, as in transformers'
//! `load_image`.

use super::header::{ImageFormat, ImageHeader};
use super::rgb_image::{RgbImage, image_error};
use crate::Result;
use std::fmt::Display;
use std::io::Cursor;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Decodes an image file. With `white`, the transparent color of a file without an alpha channel
/// becomes white.
///
/// # Errors
/// As [`ImageHeader::read`]; `Request` for damaged image data.
pub fn decode(file: &[u8], white: bool) -> Result<RgbImage> {
    let header = ImageHeader::read(file)?;
    let (channels, bytes) = match header.container {
        ImageFormat::Jpeg => jpeg(file)?,
        ImageFormat::Png => png(file, white)?,
        ImageFormat::WebP => webp(file)?,
        ImageFormat::Gif => {
            return Err(image_error(
                "GIF is supported in browsers only. Convert it to PNG.".into(),
            ));
        }
    };
    let width = header.width as usize;
    let height = header.height as usize;

    if bytes.len() < width * height * channels {
        return Err(image_error(
            "the file has fewer pixels than its header says. It is damaged.".into(),
        ));
    }
    let pixel = |x: usize, y: usize| {
        let p = &bytes[(y * width + x) * channels..];
        // 1 gray, 2 gray with alpha, 3 RGB, 4 RGBA.
        if channels < 3 {
            [p[0]; 3]
        } else {
            [p[0], p[1], p[2]]
        }
    };
    let right = width - 1;
    let bottom = height - 1;

    let (across, down) = if header.swaps_sides() {
        (height, width)
    } else {
        (width, height)
    };
    let mut rgb = Vec::with_capacity(width * height * 3);
    for y in 0..down {
        for x in 0..across {
            rgb.extend(match header.orientation {
                2 => pixel(right - x, y),
                3 => pixel(right - x, bottom - y),
                4 => pixel(x, bottom - y),
                5 => pixel(y, x),
                6 => pixel(y, bottom - x),
                7 => pixel(right - y, bottom - x),
                8 => pixel(right - y, x),
                _ => pixel(x, y),
            });
        }
    }
    RgbImage::new(across, down, rgb)
}

fn damaged(reason: impl Display) -> crate::Error {
    image_error(format!("the file is damaged: {reason}"))
}

fn jpeg(file: &[u8]) -> Result<(usize, Vec<u8>)> {
    let mut decoder = JpegDecoder::new(ZCursor::new(file));
    decoder.decode_headers().map_err(damaged)?;
    let gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let color = if gray {
        ColorSpace::Luma
    } else {
        ColorSpace::RGB
    };
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(color)
        .set_strict_mode(true);
    let bytes = JpegDecoder::new_with_options(ZCursor::new(file), options)
        .decode()
        .map_err(damaged)?;
    Ok((if gray { 1 } else { 3 }, bytes))
}

fn png(file: &[u8], white: bool) -> Result<(usize, Vec<u8>)> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(damaged)?;
    let size = reader
        .output_buffer_size()
        .ok_or_else(|| damaged("the image size overflows"))?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes).map_err(damaged)?;
    let channels = frame.color_type.samples();
    let info = reader.info();
    let stored = matches!(
        info.color_type,
        png::ColorType::Rgba | png::ColorType::GrayscaleAlpha
    );
    let indexed = info.color_type == png::ColorType::Indexed;
    let one = |list: &[u8]| {
        list.iter().all(|a| matches!(a, 0 | 255)) && list.iter().filter(|a| **a == 0).count() == 1
    };
    if white
        && !stored
        && info
            .trns
            .as_deref()
            .is_some_and(|list| !indexed || one(list))
    {
        for pixel in bytes
            .chunks_exact_mut(channels)
            .filter(|p| p.last() == Some(&0))
        {
            pixel.fill(255);
        }
    }
    Ok((channels, bytes))
}

fn webp(file: &[u8]) -> Result<(usize, Vec<u8>)> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(file)).map_err(damaged)?;
    let size = decoder
        .output_buffer_size()
        .ok_or_else(|| damaged("the image size overflows"))?;
    let mut bytes = vec![0; size];
    decoder.read_image(&mut bytes).map_err(damaged)?;
    Ok((if decoder.has_alpha() { 4 } else { 3 }, bytes))
}
