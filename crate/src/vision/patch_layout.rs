//! Patch layout for a vision encoder, from the patch grids of an image's tiles: entries of the
//! learned position table, RoPE, attention segments and windows, and patch order. Reference:
//! transformers `vision_utils.py`, `modeling_siglip2.py`, `modeling_smolvlm.py`.

use super::processor::PatchOrder;
use super::resize::ResizeFilter;
use super::rgb_image::image_error;
use crate::{Error, Result};

/// Learned position table, and its interpolation for other grids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PositionTable {
    /// No table.
    None,
    /// `[side * side]`, nearest entry (SigLIP, Idefics 3).
    Nearest(usize),
    /// `[side * side]`, bilinear with aligned corners (Qwen3-VL, Qwen3.5).
    AlignedCorners(usize),
    /// `[side * side]`, bilinear with antialiasing (Siglip2).
    Resized(usize),
    /// `[side * side + 2]`: position of the class row, positions of the patches, and the class row
    /// itself (CLIP).
    WithClassRow(usize),
    /// `[2 * side]`, sum of a column's and a row's entry (Gemma 4).
    RowPlusColumn(usize),
}

impl PositionTable {
    /// Number of entries.
    pub fn entries(self) -> usize {
        match self {
            Self::None => 0,
            Self::Nearest(side) | Self::AlignedCorners(side) | Self::Resized(side) => side * side,
            Self::WithClassRow(side) => side * side + 2,
            Self::RowPlusColumn(side) => 2 * side,
        }
    }

    /// Rows before a tile's patches.
    pub fn leading_rows(self) -> usize {
        usize::from(matches!(self, Self::WithClassRow(_)))
    }

    /// Maximum entries per position.
    pub fn taps(self) -> usize {
        match self {
            Self::None => 0,
            Self::Nearest(_) => 1,
            Self::AlignedCorners(_) => 4,
            Self::Resized(side) => (2 * side).max(25),
            Self::RowPlusColumn(_) | Self::WithClassRow(_) => 2,
        }
    }

    /// Returns (entry, weight) pairs for each position along an axis.
    fn axis(self, count: usize) -> Vec<Vec<(usize, f32)>> {
        let one = |i: usize| match self {
            Self::Nearest(side) => {
                let at = (i as f32 * (1.0 / count as f32)).min(1.0 - 1e-6);
                let over = (1..side).filter(|k| *k as f32 / side as f32 <= at).count();
                vec![(over, 1.0)]
            }
            Self::AlignedCorners(side) => {
                let at = i as f32 * (side - 1) as f32 / (count - 1).max(1) as f32;
                let low = at.floor();
                let next = (low as usize + 1).min(side - 1);
                vec![(low as usize, 1.0 - (at - low)), (next, at - low)]
            }
            _ => vec![(i, 1.0)],
        };
        match self {
            Self::Resized(side) => ResizeFilter::Bilinear.weights(side, count),
            _ => (0..count).map(one).collect(),
        }
    }
}

/// 2D RoPE by row and column over a whole head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxialRope {
    /// Head dimension, a multiple of 4.
    pub dim: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// The column's angles come before the row's (Gemma 4).
    pub column_first: bool,
}

impl AxialRope {
    /// Appends (cos, sin) of each pair of a head for a tile's patches: `dim / 4` pairs by row, then
    /// `dim / 4` by column.
    fn rows(
        &self,
        tile: &[(usize, usize)],
        (down, across): (usize, usize),
        out: &mut Vec<[f32; 2]>,
    ) {
        let quarter = self.dim / 4;
        // An axis has far fewer positions than there are patches.
        let mut turns = Vec::with_capacity(down.max(across) * quarter);
        for place in 0..down.max(across) {
            for j in 0..quarter {
                let frequency = (1.0 / self.base.powf(j as f64 / quarter as f64)) as f32;
                let angle = f64::from(place as f32 * frequency);
                turns.push([angle.cos() as f32, angle.sin() as f32]);
            }
        }
        for (row, col) in tile {
            let axes = if self.column_first {
                [col, row]
            } else {
                [row, col]
            };
            for place in axes {
                out.extend_from_slice(&turns[place * quarter..(place + 1) * quarter]);
            }
        }
    }
}

/// Patch layout of tiles that are encoded together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatchLayout {
    /// (row, column) of each tile's patches, in the encoder's order.
    pub patches: Vec<Vec<(usize, usize)>>,
    /// Rows of all tiles.
    pub rows: usize,
    /// `[rows, taps]` pairs of an entry's index and the bits of its weight.
    pub table: Vec<[u32; 2]>,
    /// RoPE's (cos, sin), `[rows, dim / 2]`.
    pub rope: Vec<[f32; 2]>,
    /// First and end row of each row's tile.
    pub segments: Vec<[u32; 2]>,
    /// First and end row of each row's window; empty without windows.
    pub windows: Vec<[u32; 2]>,
    /// First and end row of each block.
    pub blocks: Vec<[u32; 2]>,
    /// Block index of each merged token, in row order.
    pub order: Vec<u32>,
}

impl PatchLayout {
    /// Converts the layout to one output row per tile.
    pub fn pooled(mut self) -> Self {
        self.blocks.clone_from(&self.segments);
        self.blocks.dedup();
        self.order = (0..self.blocks.len() as u32).collect();
        self
    }
}

/// Lays out tiles of these grids (rows and columns of patches).
///
/// # Errors
/// `UnsupportedOption` for grids whose positions combine too many table entries.
pub fn layout_patches(
    grids: &[(usize, usize)],
    order: &PatchOrder,
    table: PositionTable,
    rope: Option<AxialRope>,
    window: Option<usize>,
) -> Result<PatchLayout> {
    let mut all = PatchLayout::default();
    let block = (order.merge * order.merge) as u32;
    for grid in grids {
        let first = all.rows as u32;
        let raster = order.positions(*grid);
        let across = grid.1 / order.merge;
        let down = grid.0 / order.merge;
        let windows = window_tokens(down, across, window.unwrap_or(down.max(across)));
        let mut tile = Vec::with_capacity(raster.len());
        let mut numbers = vec![0u32; down * across];
        let mut put = first / block;
        for window in &windows {
            let start = first + tile.len() as u32;
            for token in window {
                numbers[*token] = put;
                all.blocks.push([put * block, (put + 1) * block]);
                put += 1;
                let at = token * block as usize;
                tile.extend_from_slice(&raster[at..at + block as usize]);
            }
            let end = first + tile.len() as u32;
            all.windows.extend((start..end).map(|_| [start, end]));
        }
        all.order.extend(numbers);
        let rows = tile.len() + table.leading_rows();
        all.rows += rows;
        all.segments
            .extend((0..rows).map(|_| [first, first + rows as u32]));
        push_entries(&mut all.table, &tile, *grid, table)?;
        if let Some(rope) = rope {
            rope.rows(&tile, *grid, &mut all.rope);
        }
        all.patches.push(tile);
    }
    if window.is_none() {
        all.windows.clear();
    }
    Ok(all)
}

/// Returns the merged tokens of each window, in row order within and across windows.
fn window_tokens(down: usize, across: usize, side: usize) -> Vec<Vec<usize>> {
    let side = side.max(1);
    let mut all = Vec::new();
    for top in (0..down).step_by(side) {
        for left in (0..across).step_by(side) {
            let rows = top..(top + side).min(down);
            all.push(
                rows.flat_map(|y| (left..(left + side).min(across)).map(move |x| y * across + x))
                    .collect(),
            );
        }
    }
    all
}

fn push_entries(
    out: &mut Vec<[u32; 2]>,
    tile: &[(usize, usize)],
    grid: (usize, usize),
    table: PositionTable,
) -> Result<()> {
    let taps = table.taps();
    if let PositionTable::WithClassRow(side) = table {
        out.extend([
            [0, 1.0f32.to_bits()],
            [(side * side + 1) as u32, 1.0f32.to_bits()],
        ]);
    }
    let down = table.axis(grid.0);
    let across = table.axis(grid.1);

    for (row, col) in tile {
        let start = out.len();
        match table {
            PositionTable::None => {}
            PositionTable::RowPlusColumn(side) => {
                if row.max(col) >= &side {
                    return Err(image_error(format!(
                        "{}x{} patches exceed the model's {side}x{side} positions. Use a smaller image.",
                        grid.1, grid.0
                    )));
                }
                out.extend([
                    [*col as u32, 1.0f32.to_bits()],
                    [(side + row) as u32, 1.0f32.to_bits()],
                ]);
            }
            PositionTable::WithClassRow(side) => {
                if row.max(col) >= &side {
                    return Err(image_error(format!(
                        "the model takes {side}x{side} patches, not {}x{}",
                        grid.1, grid.0
                    )));
                }
                out.push([(1 + row * side + col) as u32, 1.0f32.to_bits()]);
            }
            PositionTable::Nearest(side)
            | PositionTable::AlignedCorners(side)
            | PositionTable::Resized(side) => {
                for (y, wy) in &down[*row] {
                    for (x, wx) in &across[*col] {
                        out.push([(y * side + x) as u32, (wy * wx).to_bits()]);
                    }
                }
            }
        }
        if out.len() > start + taps {
            return Err(Error::UnsupportedOption {
                architecture: "the vision encoder".into(),
                option: format!("a grid of {}x{} patches", grid.1, grid.0),
                hint: "Use a larger image.".into(),
            });
        }
        out.resize(start + taps, [0, 0]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_blocks_together_and_order_is_invertible() {
        let order = PatchOrder {
            patch: 14,
            merge: 2,
            frames: 2,
            color_last: false,
            frames_first: false,
        };
        let places = layout_patches(
            &[(6, 6), (4, 2)],
            &order,
            PositionTable::None,
            None,
            Some(2),
        )
        .unwrap();
        assert_eq!(places.rows, 44);
        // Windows of 2x2, 2x1, 1x2, 1x1 and then 2x1 merged tokens.
        let sizes: Vec<u32> = places.windows.iter().map(|w| w[1] - w[0]).collect();
        assert_eq!(
            [sizes[0], sizes[16], sizes[24], sizes[32], sizes[36]],
            [16, 8, 8, 4, 8]
        );
        assert_eq!(places.order[..9], [0, 1, 4, 2, 3, 5, 6, 7, 8]);
        assert_eq!(places.order[9..], [9, 10]);
        assert_eq!(places.segments[36], [36, 44]);
        assert_eq!(places.patches[0][16..20], [(0, 4), (0, 5), (1, 4), (1, 5)]);
    }

    #[test]
    fn position_tables_are_interpolated() {
        let corners = PositionTable::AlignedCorners(7).axis(4);
        assert_eq!(corners[0], [(0, 1.0), (1, 0.0)]);
        assert_eq!(corners[3], [(6, 1.0), (6, 0.0)]);
        assert_eq!(
            PositionTable::Nearest(4).axis(4).concat(),
            [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0)]
        );
        assert_eq!(
            PositionTable::Nearest(4).axis(2).concat(),
            [(0, 1.0), (2, 1.0)]
        );
        let fewer = PositionTable::Resized(5).axis(2);
        let total: f32 = fewer[0].iter().map(|p| p.1).sum();
        assert!((total - 1.0).abs() < 1e-6);
    }
}
