//! Image layouts: the sizes that a processor resizes an image to, and the tiles that it cuts.
//! Rounds as Python does.

use super::{ImageProcessor, PanAndScan, ProcessorKind, TileGrid};
use crate::Result;
use crate::util::sort;
use crate::vision::rgb_image::{Rect, image_error};

/// Maximum side that Idefics 3 and SmolVLM resize to, in pixels.
const MAX_SIDE: usize = 4096;
/// Maximum aspect ratio of Qwen's processors.
const MAX_ASPECT_RATIO: f64 = 200.0;

/// One resize step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeStep {
    /// Index of the stage whose result is resized; None for the image itself.
    pub from: Option<usize>,
    /// Region of it to resize.
    pub part: Rect,
    /// Width of the result.
    pub width: usize,
    /// Height of the result.
    pub height: usize,
}

/// Resize steps and tiles of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLayout {
    /// Width of the image.
    pub width: usize,
    /// Height of the image.
    pub height: usize,
    /// Resize steps in order of dependency.
    pub steps: Vec<ResizeStep>,
    /// Tiles in the encoder's order: index of a stage and region of its result.
    pub tiles: Vec<(usize, Rect)>,
    /// Rows and columns of tiles without the thumbnail; (0, 0) if the image is not cut.
    pub grid: (usize, usize),
}

impl ImageLayout {
    fn new(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            steps: Vec::new(),
            tiles: Vec::new(),
            grid: (0, 0),
        }
    }

    /// Adds a resize of a region of the image or of a stage's result.
    fn add_resize(
        &mut self,
        from: Option<usize>,
        part: Rect,
        width: usize,
        height: usize,
    ) -> usize {
        self.steps.push(ResizeStep {
            from,
            part,
            width,
            height,
        });
        self.steps.len() - 1
    }

    pub(in crate::vision) fn add_whole_resize(&mut self, width: usize, height: usize) -> usize {
        self.add_resize(None, Rect::whole(self.width, self.height), width, height)
    }

    /// Adds a stage's whole result as a tile.
    pub(in crate::vision) fn add_tile(&mut self, stage: usize) {
        let made = &self.steps[stage];
        self.tiles
            .push((stage, Rect::whole(made.width, made.height)));
    }

    /// Cuts a stage's result into a grid of tiles.
    fn add_tile_grid(&mut self, stage: usize, width: usize, height: usize) {
        let across = self.steps[stage].width / width;
        let down = self.steps[stage].height / height;

        let part = |i: usize| Rect {
            x: i % across * width,
            y: i / across * height,
            width,
            height,
        };
        self.tiles
            .extend((0..across * down).map(|i| (stage, part(i))));
        self.grid = (down, across);
    }

    /// Height and width of each tile in pixels.
    pub fn tile_sizes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.tiles.iter().map(|(_, part)| (part.height, part.width))
    }
}

/// Returns `round(a / b) * b`, ties to even.
fn round_to_multiple(a: usize, b: usize) -> usize {
    (a as f64 / b as f64).round_ties_even() as usize * b
}

/// Qwen's size (height, width): multiples of `factor`, from `min` to `max` pixels.
pub(in crate::vision) fn smart_resize(
    height: usize,
    width: usize,
    factor: usize,
    min: usize,
    max: usize,
    least: usize,
) -> (usize, usize) {
    let rows = round_to_multiple(height, factor).max(least);
    let cols = round_to_multiple(width, factor).max(least);

    scale_to_limits((height, width), factor, (rows, cols), (1, 1), (min, max))
}

impl ImageProcessor {
    /// Computes the layout of an image of this size.
    ///
    /// # Errors
    /// `Request` for sizes that the processor does not accept.
    pub fn layout(&self, width: usize, height: usize) -> Result<ImageLayout> {
        if width == 0 || height == 0 {
            return Err(image_error(format!("it has no pixels ({width}x{height})")));
        }
        let mut layout = ImageLayout::new(width, height);
        match self.kind {
            ProcessorKind::Blocks {
                patch,
                merge,
                min,
                max,
                ..
            } => {
                let ratio = width.max(height) as f64 / width.min(height) as f64;
                if ratio > MAX_ASPECT_RATIO {
                    let reason = format!(
                        "it is {ratio:.0} times as long as wide, the limit is {MAX_ASPECT_RATIO}. Crop it."
                    );
                    return Err(image_error(reason));
                }
                let (rows, cols) = smart_resize(height, width, patch * merge, min, max, 0);
                let stage = layout.add_whole_resize(cols, rows);
                layout.add_tile(stage);
            }
            ProcessorKind::Tiles {
                longest,
                tile,
                split,
            } => tiles(&mut layout, longest, tile, split),
            ProcessorKind::Fixed {
                width,
                height,
                scan,
            } => fixed(&mut layout, width, height, scan),
            ProcessorKind::Center { shortest, crop } => center(&mut layout, shortest, crop),
            ProcessorKind::Budget {
                patch,
                pool,
                tokens,
            } => {
                let (rows, cols) = token_budget_size(height, width, patch, pool, tokens)?;
                let stage = layout.add_whole_resize(cols, rows);
                layout.add_tile(stage);
            }
            ProcessorKind::Patches { patch, most } => {
                let (rows, cols) = patch_budget_size(height, width, patch, most);
                let stage = layout.add_whole_resize(cols, rows);
                layout.add_tile(stage);
            }
            ProcessorKind::Grid(grid) => tile_grid(&mut layout, &grid),
        }
        Ok(layout)
    }
}

/// Qwen3-VL's frame size (height, width): the limits apply to the pixels of all frames, in groups
/// of `together`.
pub(in crate::vision) fn video_frame_size(
    (frames, together): (usize, usize),
    (mut height, mut width): (usize, usize),
    factor: usize,
    (min, max): (usize, usize),
) -> (usize, usize) {
    if height < factor || width < factor {
        let scale = (factor as f64 / height as f64).max(factor as f64 / width as f64);
        (height, width) = (
            (height as f64 * scale) as usize,
            (width as f64 * scale) as usize,
        );
    }
    let rows = round_to_multiple(height, factor);
    let cols = round_to_multiple(width, factor);
    let count = round_to_multiple(frames, together);

    scale_to_limits(
        (height, width),
        factor,
        (rows, cols),
        (count, frames),
        (min, max),
    )
}

/// Scales a size so that `count` images of it have `min` to `max` pixels in total; the scale counts
/// the actual `frames`.
fn scale_to_limits(
    (height, width): (usize, usize),
    factor: usize,
    size: (usize, usize),
    (count, frames): (usize, usize),
    (min, max): (usize, usize),
) -> (usize, usize) {
    let h = height as f64;
    let w = width as f64;
    let f = factor as f64;

    let exact = frames as f64 * h * w;
    let pixels = count as f64 * size.0 as f64 * size.1 as f64;

    if pixels > max as f64 {
        let beta = (exact / max as f64).sqrt();
        let fit = |side: f64| ((side / beta / f).floor() as usize * factor).max(factor);
        (fit(h), fit(w))
    } else if pixels < min as f64 {
        let beta = (min as f64 / exact).sqrt();
        let fit = |side: f64| (side * beta / f).ceil() as usize * factor;
        (fit(h), fit(w))
    } else {
        size
    }
}

/// Lays out Idefics 3 and SmolVLM.
fn tiles(layout: &mut ImageLayout, longest: usize, tile: usize, split: bool) {
    let mut width = layout.width;
    let mut height = layout.height;

    let even = |side: usize| side + side % 2;
    let ratio = width as f64 / height as f64;
    if width >= height {
        (width, height) = (longest, even((longest as f64 / ratio) as usize).max(1));
    } else {
        (width, height) = (even((longest as f64 * ratio) as usize).max(1), longest);
    }
    let ratio = width as f64 / height as f64;
    if width >= height && width > MAX_SIDE {
        (width, height) = (MAX_SIDE, ((MAX_SIDE as f64 / ratio) as usize).max(1));
    } else if height > width && height > MAX_SIDE {
        (width, height) = (((MAX_SIDE as f64 * ratio) as usize).max(1), MAX_SIDE);
    }
    let first = layout.add_whole_resize(width, height);
    let small = Rect::whole(width, height);
    if !split {
        let only = layout.add_resize(Some(first), small, tile, tile);
        layout.add_tile(only);
        return;
    }
    let ratio = width as f64 / height as f64;
    let whole = |side: usize| side.div_ceil(tile) * tile;
    let (cols, rows) = if width >= height {
        (whole(width), whole((whole(width) as f64 / ratio) as usize))
    } else {
        (
            whole((whole(height) as f64 * ratio) as usize),
            whole(height),
        )
    };
    let fitted = layout.add_resize(Some(first), small, cols, rows);
    if rows > tile || cols > tile {
        layout.add_tile_grid(fitted, tile, tile);
        let all = layout.add_resize(Some(fitted), Rect::whole(cols, rows), tile, tile);
        layout.add_tile(all);
    } else {
        layout.add_tile(fitted);
    }
}

/// Lays out SigLIP, and Gemma 3 with its crops.
fn fixed(layout: &mut ImageLayout, width: usize, height: usize, scan: Option<PanAndScan>) {
    let all = layout.add_whole_resize(width, height);
    layout.add_tile(all);
    let Some(scan) = scan else { return };
    let w = layout.width;
    let h = layout.height;

    let long = w.max(h);
    let short = w.min(h);

    if (long as f64 / short as f64) < scan.ratio {
        return;
    }
    let crops = ((long as f64 / short as f64 + 0.5).floor() as usize)
        .min(long / scan.min_side)
        .max(2)
        .min(scan.most);
    let (across, down) = if w >= h { (crops, 1) } else { (1, crops) };
    let part_w = w.div_ceil(across);
    let part_h = h.div_ceil(down);

    if part_w.min(part_h) < scan.min_side {
        return;
    }
    for i in 0..crops {
        let x = i % across * part_w;
        let y = i / across * part_h;

        let part = Rect {
            x,
            y,
            width: part_w.min(w - x),
            height: part_h.min(h - y),
        };
        let stage = layout.add_resize(None, part, width, height);
        layout.add_tile(stage);
    }
    layout.grid = (down, across);
}

/// Lays out CLIP.
fn center(layout: &mut ImageLayout, shortest: usize, crop: (usize, usize)) {
    let w = layout.width;
    let h = layout.height;

    let long = (shortest * w.max(h)) / w.min(h);
    let (cols, rows) = if w <= h {
        (shortest, long)
    } else {
        (long, shortest)
    };
    let stage = layout.add_whole_resize(cols, rows);
    let part = Rect {
        x: (cols - crop.0) / 2,
        y: (rows - crop.1) / 2,
        width: crop.0,
        height: crop.1,
    };
    layout.tiles.push((stage, part));
}

/// SigLIP 2's size (height, width): the largest scale with at most `most` patches, found by
/// bisection.
fn patch_budget_size(height: usize, width: usize, patch: usize, most: usize) -> (usize, usize) {
    const NEAR: f64 = 1e-5;
    let patches =
        |scale: f64, side: usize| ((side as f64 * scale / patch as f64).ceil() as usize).max(1);
    let mut low = NEAR / 10.0;
    let mut high = 100.0;

    while high - low >= NEAR {
        let scale = (low + high) / 2.0;
        if patches(scale, height) as f64 * patches(scale, width) as f64 <= most as f64 {
            low = scale;
        } else {
            high = scale;
        }
    }
    (patches(low, height) * patch, patches(low, width) * patch)
}

/// Gemma 4's size (height, width) within a token budget.
fn token_budget_size(
    height: usize,
    width: usize,
    patch: usize,
    pool: usize,
    tokens: usize,
) -> Result<(usize, usize)> {
    let block = pool * patch;
    let pixels = tokens * pool * pool * patch * patch;
    let factor = (pixels as f64 / (height * width) as f64).sqrt();
    let fit = |side: usize| (factor * side as f64 / block as f64).floor() as usize * block;
    let mut rows = fit(height);
    let mut cols = fit(width);

    let longest = tokens * block;
    if rows == 0 {
        (rows, cols) = (block, (width / height * block).min(longest));
    } else if cols == 0 {
        (rows, cols) = ((height / width * block).min(longest), block);
    }
    if rows == 0 || cols == 0 || rows * cols > pixels {
        return Err(image_error(format!(
            "{width}x{height} pixels do not fit into {tokens} tokens. Crop it."
        )));
    }
    Ok((rows, cols))
}

/// Lays out LFM2-VL.
fn tile_grid(layout: &mut ImageLayout, grid: &TileGrid) {
    let width = layout.width;
    let height = layout.height;

    let factor = grid.patch * grid.merge;
    let area = factor * factor;
    let min = grid.min_tokens * area;
    let max = grid.max_tokens * area;

    let (rows, cols) = smart_resize(height, width, factor, min, max, factor);
    let bar = |side: usize| round_to_multiple(side, factor).max(grid.patch);
    let large = (bar(height) * bar(width)) as f64 > max as f64 * grid.tolerance;
    if !large || (grid.min_tiles == 1 && grid.max_tiles == 1) {
        let stage = layout.add_whole_resize(cols, rows);
        layout.add_tile(stage);
        return;
    }
    let (across, down) = closest_grid(width, height, grid);
    let tiled = layout.add_whole_resize(across * grid.tile, down * grid.tile);
    layout.add_tile_grid(tiled, grid.tile, grid.tile);
    if grid.thumbnail && across * down != 1 {
        let all = layout.add_whole_resize(cols, rows);
        layout.add_tile(all);
    }
}

/// Returns the tile grid (columns, rows) with the aspect ratio closest to the image's.
fn closest_grid(width: usize, height: usize, grid: &TileGrid) -> (usize, usize) {
    let low = grid.min_tiles;
    let high = grid.max_tiles;

    let mut shapes: Vec<(usize, usize)> = (1..=high)
        .flat_map(|w| (1..=high / w).map(move |h| (w, h)))
        .filter(|(w, h)| (low..=high).contains(&(w * h)))
        .collect();
    sort::sort_by(&mut shapes, |a, b| (a.0 * a.1).cmp(&(b.0 * b.1)));
    let ratio = width as f64 / height as f64;
    let mut best = (1, 1);
    let mut least = f64::INFINITY;

    for (w, h) in shapes {
        let apart = (ratio - w as f64 / h as f64).abs();
        let fills = (width * height) as f64 > 0.5 * (grid.tile * grid.tile * w * h) as f64;
        if apart < least || (apart == least && fills) {
            (best, least) = ((w, h), apart);
        }
    }
    best
}
