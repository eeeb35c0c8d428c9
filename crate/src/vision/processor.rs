//! Image processors from preprocessor_config.json, or `image_processor` of processor_config.json.
//! Reference: transformers' image_processing files of the families at [`ProcessorKind`].

mod image_layout;
mod image_prompt;
mod patches;
mod tile_builder;

pub use image_layout::{ImageLayout, ResizeStep};
pub(super) use image_layout::{smart_resize, video_frame_size};
pub use image_prompt::ImageTokens;
pub use patches::PatchOrder;
pub use tile_builder::TileBuilder;

use super::resize::ResizeFilter;
use crate::{Error, Result};
use serde_json::Value;

/// Resizing and tiling of a processor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProcessorKind {
    /// Qwen2-VL to Qwen3.5: any size in whole merge blocks, from `min` to `max` pixels.
    Blocks {
        /// Patch side in pixels.
        patch: usize,
        /// Block side in patches.
        merge: usize,
        /// Frames per patch.
        frames: usize,
        /// Minimum pixels.
        min: usize,
        /// Maximum pixels.
        max: usize,
    },
    /// Idefics 3 and SmolVLM: resize the longest side, cut tiles, append a thumbnail.
    Tiles {
        /// Longest side after the first resize, in pixels.
        longest: usize,
        /// Tile side in pixels.
        tile: usize,
        /// Whether images are cut into tiles.
        split: bool,
    },
    /// SigLIP and Gemma 3: a fixed size for any aspect ratio, with optional crops.
    Fixed {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Crops of elongated images.
        scan: Option<PanAndScan>,
    },
    /// CLIP: resize the shortest side, then crop the center.
    Center {
        /// Shortest side after the resize, in pixels.
        shortest: usize,
        /// Width and height of the center crop.
        crop: (usize, usize),
    },
    /// Gemma 4: as many patches as a token budget allows, in whole pooling blocks.
    Budget {
        /// Patch side in pixels.
        patch: usize,
        /// Block side in patches.
        pool: usize,
        /// Maximum blocks, which are soft tokens.
        tokens: usize,
    },
    /// SigLIP 2 with variable resolution: up to `most` patches at about the image's aspect ratio.
    Patches {
        /// Patch side in pixels.
        patch: usize,
        /// Maximum patches.
        most: usize,
    },
    /// LFM2-VL: any size up to a token limit; larger images as a grid of tiles with a thumbnail
    /// last.
    Grid(TileGrid),
}

/// Pan-and-scan crops of Gemma 3 for elongated images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PanAndScan {
    /// Minimum side of a crop, in pixels.
    pub min_side: usize,
    /// Maximum crops.
    pub most: usize,
    /// Minimum aspect ratio for crops.
    pub ratio: f64,
}

/// Tiling settings of LFM2-VL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileGrid {
    /// Patch side in pixels.
    pub patch: usize,
    /// Token side in patches.
    pub merge: usize,
    /// Minimum tokens of an image.
    pub min_tokens: usize,
    /// Maximum tokens of an image that is not cut.
    pub max_tokens: usize,
    /// Minimum tiles; both limits are 1 if images are never cut.
    pub min_tiles: usize,
    /// Maximum tiles.
    pub max_tiles: usize,
    /// Tile side in pixels.
    pub tile: usize,
    /// Whether a thumbnail follows the tiles.
    pub thumbnail: bool,
    /// Factor by which an image may exceed `max_tokens` without being cut.
    pub tolerance: f64,
}

/// An image processor.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageProcessor {
    /// Resizing and tiling.
    pub kind: ProcessorKind,
    /// Interpolation filter.
    pub filter: ResizeFilter,
    /// Rescaled and, if the settings ask for it, normalized value of each pixel value, per color.
    pub pixel_values: Vec<[f32; 256]>,
    /// Whether a transparent color becomes white (`do_convert_rgb`); an alpha channel is always
    /// dropped.
    pub transparent_to_white: bool,
    /// Tokens per tile, if the settings name them.
    pub tile_tokens: Option<usize>,
}

const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// Returns the class of an image or video processor. Files that transformers wrote before version
/// 4.25 name CLIP's feature extractor, which is the image processor under its old name.
pub(crate) fn processor_class(settings: &Value) -> Option<String> {
    let names = ["image_processor_type", "video_processor_type"];
    let own = names.iter().find_map(|name| settings.get(*name)?.as_str());
    let renamed = || {
        let class = settings.get("feature_extractor_type")?.as_str()?;
        Some(class).filter(|class| *class == "CLIPFeatureExtractor")
    };
    let class = own.or_else(renamed)?;
    Some(class.replace("FeatureExtractor", "ImageProcessor"))
}

/// Reads settings, with the class's default for absent ones.
struct SettingsReader<'a>(&'a Value);

impl SettingsReader<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn count(&self, name: &str, default: usize) -> Result<usize> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        // Sides and patch counts: larger values would overflow when multiplied.
        let sane = value.as_u64().filter(|n| (1..=1 << 30).contains(n));
        sane.map_or_else(
            || config_error(name, "is not an integer from 1 to 1073741824"),
            |n| Ok(n as usize),
        )
    }

    fn number(&self, name: &str, default: f64) -> Result<f64> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value
            .as_f64()
            .filter(|n| n.is_finite() && *n > 0.0)
            .map_or_else(|| config_error(name, "is not a positive number"), Ok)
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Reads a side of an object such as `size`.
    fn side(&self, of: &str, name: &str, default: usize) -> Result<usize> {
        match self.get(of) {
            Some(object @ Value::Object(_)) => SettingsReader(object).count(name, default),
            Some(_) => self.count(of, default),
            None => Ok(default),
        }
    }

    fn colors(&self, name: &str, default: [f32; 3]) -> Result<[f32; 3]> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        if let Some(one) = value.as_f64() {
            return Ok([one as f32; 3]);
        }
        let list: Vec<f32> = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| Some(v.as_f64()? as f32))
            .collect();
        <[f32; 3]>::try_from(list).or_else(|_| config_error(name, "is not a list of three numbers"))
    }
}

fn config_error<T>(name: &str, what: &str) -> Result<T> {
    Err(Error::Config {
        file: "preprocessor_config.json".into(),
        reason: format!("'{name}' {what}"),
    })
}

fn unsupported<T>(class: &str, option: String, hint: &str) -> Result<T> {
    Err(Error::UnsupportedOption {
        architecture: class.into(),
        option,
        hint: hint.into(),
    })
}

impl ImageProcessor {
    /// Creates the processor of preprocessor_config.json or processor_config.json.
    ///
    /// # Errors
    /// `UnsupportedOption` for an unsupported class or option; `Config` for invalid fields.
    pub fn from_config(config: &Value) -> Result<Self> {
        let inner = config
            .get("image_processor")
            .filter(|v| v.is_object())
            .unwrap_or(config);
        let fields = SettingsReader(inner);
        let class = processor_class(inner).unwrap_or_else(|| "(none)".into());
        let class = class.as_str();
        let half = ([0.5; 3], [0.5; 3]);
        // Video processors have the class names and fields of image processors.
        let (kind, number, (mean, std)) = match class
            .trim_end_matches("Fast")
            .replace("Video", "Image")
            .as_str()
        {
            "Qwen2VLImageProcessor" | "Qwen2_5_VLImageProcessor" | "Qwen3VLImageProcessor" => {
                (blocks(&fields)?, 3, (CLIP_MEAN, CLIP_STD))
            }
            "Idefics3ImageProcessor" | "SmolVLMImageProcessor" => (tiles(&fields)?, 1, half),
            "SiglipImageProcessor" => (fixed(&fields, None)?, 3, half),
            "Gemma3ImageProcessor" => (fixed(&fields, pan_and_scan(&fields)?)?, 2, half),
            "CLIPImageProcessor" => (center(&fields)?, 3, (CLIP_MEAN, CLIP_STD)),
            "Gemma4ImageProcessor" => (budget(&fields)?, 3, ([0.0; 3], [1.0; 3])),
            "Lfm2VlImageProcessor" => (grid(&fields)?, 2, half),
            "Siglip2ImageProcessor" => {
                let patch = fields.count("patch_size", 16)?;
                let most = fields.count("max_num_patches", 256)?;

                (ProcessorKind::Patches { patch, most }, 2, half)
            }
            other => {
                let hint = "Supported: the processors of Qwen2-VL to Qwen3.5, Idefics 3, SmolVLM, SigLIP, SigLIP 2, CLIP, Gemma 3, Gemma 4 and LFM2-VL.";
                return unsupported(other, "this image processor".into(), hint);
            }
        };
        if !fields.flag("do_resize", true) {
            return unsupported(
                class,
                "do_resize = false".into(),
                "Vision encoders need resized images. Set it to true.",
            );
        }
        let number = fields
            .get("resample")
            .and_then(Value::as_u64)
            .unwrap_or(number);
        let Some(filter) = ResizeFilter::from_number(number) else {
            return unsupported(
                class,
                format!("resample = {number}"),
                "Supported: 1 (Lanczos), 2 (bilinear) and 3 (bicubic).",
            );
        };
        let rescale = if fields.flag("do_rescale", true) {
            fields.number("rescale_factor", 1.0 / 255.0)?
        } else {
            1.0
        };
        let normalize = fields.flag(
            "do_normalize",
            !matches!(kind, ProcessorKind::Budget { .. }),
        );
        let mean = fields.colors("image_mean", mean)?;
        let std = fields.colors("image_std", std)?;

        let levels = (0..3)
            .map(|color| pixel_values(rescale, normalize.then_some((mean[color], std[color]))))
            .collect();
        Ok(Self {
            kind,
            filter,
            pixel_values: levels,
            transparent_to_white: fields
                .flag("do_convert_rgb", !matches!(kind, ProcessorKind::Grid(_))),
            tile_tokens: Self::tile_tokens(config),
        })
    }

    /// Reads the tokens per tile from settings.
    pub fn tile_tokens(config: &Value) -> Option<usize> {
        let found = ["image_seq_len", "image_seq_length"]
            .iter()
            .find_map(|n| config.get(*n)?.as_u64());
        found.map(|n| n as usize)
    }

    /// Lowers the maximum image size to `pixels`. Families with fixed sizes do not change.
    pub fn limit(&mut self, pixels: usize) {
        match &mut self.kind {
            ProcessorKind::Blocks { min, max, .. } => *max = pixels.clamp(*min, *max),
            ProcessorKind::Tiles { longest, tile, .. } => {
                *longest = (pixels.isqrt() / *tile * *tile).clamp(*tile, (*longest).max(*tile));
            }
            ProcessorKind::Grid(grid) => {
                grid.max_tiles =
                    (pixels / (grid.tile * grid.tile)).clamp(grid.min_tiles, grid.max_tiles);
            }
            _ => {}
        }
    }
}

/// Returns the values of one color. The reference fuses both steps, in this order.
fn pixel_values(rescale: f64, normal: Option<(f32, f32)>) -> [f32; 256] {
    std::array::from_fn(|value| match normal {
        Some((mean, std)) => {
            (value as f32 - mean * (1.0 / rescale) as f32) / (std * (1.0 / rescale) as f32)
        }
        None => value as f32 * rescale as f32,
    })
}

fn blocks(fields: &SettingsReader) -> Result<ProcessorKind> {
    let min = fields.side(
        "size",
        "min_pixels",
        fields.side("size", "shortest_edge", 56 * 56)?,
    )?;
    let max = fields.side(
        "size",
        "max_pixels",
        fields.side("size", "longest_edge", 28 * 28 * 1280)?,
    )?;
    Ok(ProcessorKind::Blocks {
        patch: fields.count("patch_size", 14)?,
        merge: fields.count("merge_size", 2)?,
        frames: fields.count("temporal_patch_size", 2)?,
        min: fields.count("min_pixels", min)?,
        max: fields.count("max_pixels", max)?,
    })
}

fn tiles(fields: &SettingsReader) -> Result<ProcessorKind> {
    Ok(ProcessorKind::Tiles {
        longest: fields.side("size", "longest_edge", 4 * 364)?,
        tile: fields.side("max_image_size", "longest_edge", 364)?,
        split: fields.flag("do_image_splitting", true),
    })
}

fn fixed(fields: &SettingsReader, scan: Option<PanAndScan>) -> Result<ProcessorKind> {
    let width = fields.side("size", "width", 224)?;
    let height = fields.side("size", "height", 224)?;

    Ok(ProcessorKind::Fixed {
        width,
        height,
        scan,
    })
}

fn pan_and_scan(fields: &SettingsReader) -> Result<Option<PanAndScan>> {
    let wanted = fields.flag("do_pan_and_scan", false);
    let settings = PanAndScan {
        min_side: fields.count("pan_and_scan_min_crop_size", 256)?,
        most: fields.count("pan_and_scan_max_num_crops", 4)?,
        ratio: fields.number("pan_and_scan_min_ratio_to_activate", 1.2)?,
    };
    Ok(wanted.then_some(settings))
}

fn center(fields: &SettingsReader) -> Result<ProcessorKind> {
    let crops = fields.flag("do_center_crop", true);
    let size = fields.get("size").map(SettingsReader);
    if size.is_some_and(|size| size.get("height").is_some() && size.get("width").is_some()) {
        // This resize changes the aspect ratio, and a crop to the same size changes nothing.
        let both = |of| {
            Ok((
                fields.side(of, "width", 224)?,
                fields.side(of, "height", 224)?,
            ))
        };
        let ((width, height), crop) = (both("size")?, both("crop_size")?);
        if crops && crop != (width, height) {
            return unsupported(
                "CLIPImageProcessor",
                format!("size {width}x{height} with crop_size {}x{}", crop.0, crop.1),
                "Set 'crop_size' in preprocessor_config.json to the value of 'size'.",
            );
        }
        return Ok(ProcessorKind::Fixed {
            width,
            height,
            scan: None,
        });
    }
    let shortest = fields.side("size", "shortest_edge", 224)?;
    let crop = (
        fields.side("crop_size", "width", shortest)?,
        fields.side("crop_size", "height", shortest)?,
    );
    if !crops || crop.0.max(crop.1) > shortest {
        return unsupported(
            "CLIPImageProcessor",
            "a crop that exceeds the image".into(),
            "Use a checkpoint whose crop_size is at most its size.",
        );
    }
    Ok(ProcessorKind::Center { shortest, crop })
}

fn budget(fields: &SettingsReader) -> Result<ProcessorKind> {
    Ok(ProcessorKind::Budget {
        patch: fields.count("patch_size", 16)?,
        pool: fields.count("pooling_kernel_size", 3)?,
        tokens: fields.count("max_soft_tokens", 280)?,
    })
}

fn grid(fields: &SettingsReader) -> Result<ProcessorKind> {
    let split = fields.flag("do_image_splitting", true);
    let tiles = |name, default| {
        if split {
            fields.count(name, default)
        } else {
            Ok(1)
        }
    };
    let min_tiles = tiles("min_tiles", 2)?;
    let max_tiles = tiles("max_tiles", 10)?;

    if min_tiles > max_tiles || max_tiles > 1024 {
        return config_error("max_tiles", "must be between min_tiles and 1024");
    }
    Ok(ProcessorKind::Grid(TileGrid {
        patch: fields.count("encoder_patch_size", 16)?,
        merge: fields.count("downsample_factor", 2)?,
        min_tokens: fields.count("min_image_tokens", 64)?,
        max_tokens: fields.count("max_image_tokens", 256)?,
        min_tiles,
        max_tiles,
        tile: fields.count("tile_size", 512)?,
        thumbnail: fields.flag("use_thumbnail", true),
        tolerance: fields.number("max_pixels_tolerance", 2.0)?,
    }))
}
