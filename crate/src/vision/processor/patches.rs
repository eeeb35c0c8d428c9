//! Patch rows of image tiles: rescaled, normalized and in the order of the vision encoder.

use super::{ImageProcessor, ProcessorKind, TileGrid};
use crate::vision::rgb_image::RgbImage;

/// Order of patches in a tile, and of values in a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchOrder {
    /// Patch side in pixels.
    pub patch: usize,
    /// Patches come in blocks of `merge` x `merge`, in row order within and across blocks; 1 means
    /// plain row order.
    pub merge: usize,
    /// Frames per patch.
    pub frames: usize,
    /// Patch values have the order (y, x, color) instead of (color, frame, y, x).
    pub color_last: bool,
    /// Patch values have the order (frame, color, y, x) instead of (color, frame, y, x).
    pub frames_first: bool,
}

impl PatchOrder {
    /// Values per patch.
    pub fn cols(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// Rows and columns of patches in a tile.
    pub fn grid(&self, tile: &RgbImage) -> (usize, usize) {
        (tile.height / self.patch, tile.width / self.patch)
    }

    /// Returns (row, column) of each patch of a tile, in order.
    pub fn tile_positions(&self, tile: &RgbImage) -> Vec<(usize, usize)> {
        self.positions(self.grid(tile))
    }

    /// Strides of a patch's values: to the next pixel, color and frame.
    pub fn strides(&self) -> [u32; 3] {
        let area = (self.patch * self.patch) as u32;
        match (self.color_last, self.frames_first) {
            (true, _) => [3, 1, 3 * area],
            (_, true) => [1, area, 3 * area],
            _ => [1, self.frames as u32 * area, area],
        }
    }

    /// Returns the byte offset of the first pixel and the line pitch in bytes, per row and frame of
    /// a patch, then the total bytes. Each tile starts with `before` rows of zeros, whose pitch is
    /// 0. Frames start at multiples of four bytes; the last frame stands in for missing ones.
    pub fn pixel_offsets(
        &self,
        tiles: &[Vec<&RgbImage>],
        before: usize,
        places: &[Vec<(usize, usize)>],
    ) -> (Vec<[u32; 2]>, u64) {
        let mut starts = Vec::new();
        let mut end = 0;
        for (tile, places) in tiles.iter().zip(places) {
            let pitch = tile[0].width * 3;
            let size = tile[0].rgb.len().next_multiple_of(4);

            starts.resize(starts.len() + before * self.frames, [0; 2]);
            for (row, col) in places {
                let first = end + (row * pitch + col * 3) * self.patch;

                starts.extend((0..self.frames).map(|frame: usize| {
                    [
                        (first + frame.min(tile.len() - 1) * size) as u32,
                        pitch as u32,
                    ]
                }));
            }
            end += tile.len() * size;
        }
        (starts, end as u64)
    }

    /// Returns (row, column) of each patch of a grid, in order.
    pub fn positions(&self, grid: (usize, usize)) -> Vec<(usize, usize)> {
        let m = self.merge;
        let mut places = Vec::with_capacity(grid.0 * grid.1);
        for block_row in (0..grid.0).step_by(m) {
            for block in (0..grid.1).step_by(m) {
                places.extend((0..m * m).map(|i| (block_row + i / m, block + i % m)));
            }
        }
        places
    }
}

impl ImageProcessor {
    /// Returns the patch order. `patch` is the vision encoder's, for processors without a patch
    /// size.
    pub fn order(&self, patch: usize) -> PatchOrder {
        let plain = PatchOrder {
            patch,
            merge: 1,
            frames: 1,
            color_last: false,
            frames_first: false,
        };
        match self.kind {
            ProcessorKind::Blocks {
                patch,
                merge,
                frames,
                ..
            } => PatchOrder {
                patch,
                merge,
                frames,
                ..plain
            },
            ProcessorKind::Budget { patch, .. }
            | ProcessorKind::Patches { patch, .. }
            | ProcessorKind::Grid(TileGrid { patch, .. }) => PatchOrder {
                patch,
                color_last: true,
                ..plain
            },
            _ => plain,
        }
    }

    /// Returns the soft tokens of a tile of `height` x `width` pixels; None if only the model
    /// knows.
    pub fn tokens(&self, height: usize, width: usize) -> Option<usize> {
        match self.kind {
            ProcessorKind::Blocks {
                patch,
                merge: block,
                ..
            }
            | ProcessorKind::Budget {
                patch, pool: block, ..
            } => Some(height / (patch * block) * (width / (patch * block))),
            ProcessorKind::Grid(TileGrid { patch, merge, .. }) => {
                Some((height / patch).div_ceil(merge) * (width / patch).div_ceil(merge))
            }
            _ => self.tile_tokens,
        }
    }

    /// Returns the rows `[patches, order.cols()]` of a tile's patches at these (row, column) positions.
    /// Repeats a still image if a patch has several frames.
    pub fn rows(
        &self,
        frames: &[&RgbImage],
        order: &PatchOrder,
        places: &[(usize, usize)],
    ) -> Vec<f32> {
        let Some(tile) = frames.first() else {
            return Vec::new();
        };
        let p = order.patch;
        let mut rows = vec![0.0; places.len() * order.cols()];
        for ((row, col), patch) in places.iter().zip(rows.chunks_exact_mut(order.cols())) {
            let at = |frame: usize, y: usize| {
                let start = ((row * p + y) * tile.width + col * p) * 3;
                frames[frame].rgb[start..start + 3 * p].chunks_exact(3)
            };
            if order.color_last {
                for (y, line) in patch.chunks_exact_mut(3 * p).enumerate() {
                    for (numbers, pixel) in line.chunks_exact_mut(3).zip(at(0, y)) {
                        for color in 0..3 {
                            numbers[color] = self.pixel_values[color][usize::from(pixel[color])];
                        }
                    }
                }
                continue;
            }
            for i in 0..3 * order.frames {
                let (color, frame) = if order.frames_first {
                    (i % 3, i / 3)
                } else {
                    (i / order.frames, i % order.frames)
                };
                if frame >= frames.len() {
                    let before = i - if order.frames_first { 3 } else { 1 };
                    patch.copy_within(before * p * p..(before + 1) * p * p, i * p * p);
                    continue;
                }
                let levels = &self.pixel_values[color];
                for (y, line) in patch[i * p * p..][..p * p].chunks_exact_mut(p).enumerate() {
                    for (number, pixel) in line.iter_mut().zip(at(frame, y)) {
                        *number = levels[usize::from(pixel[color])];
                    }
                }
            }
        }
        rows
    }
}
