//! The input of a weight decoder (source, bytes, target layout) and the packing of decoded values.
//! Does not depend on a format.

use super::encoding::{PartRole, WeightSource};
use super::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use crate::{Error, Result};

/// The bytes of a weight's parts.
#[derive(Debug, Default, Clone)]
pub struct PartBytes<'a> {
    /// Role, bytes and length in bytes. The length can exceed the slice when only sizes are
    /// checked.
    pub(super) parts: Vec<(PartRole, &'a [u8], usize)>,
}

impl<'a> PartBytes<'a> {
    /// Creates an empty set.
    pub fn new() -> PartBytes<'a> {
        PartBytes::default()
    }

    /// Adds the bytes of a part.
    pub fn with(mut self, role: PartRole, bytes: &'a [u8]) -> PartBytes<'a> {
        self.parts.push((role, bytes, bytes.len()));
        self
    }

    fn length(&self, role: PartRole) -> usize {
        self.parts.iter().find(|p| p.0 == role).map_or(0, |p| p.2)
    }

    /// The bytes of a part, if present.
    pub fn get(&self, role: PartRole) -> Option<&'a [u8]> {
        self.parts.iter().find(|p| p.0 == role).map(|p| p.1)
    }
}

/// A weight to transcode with its bytes: the input of every decoder.
pub(super) struct TranscodeJob<'a> {
    pub source: &'a WeightSource,
    pub bytes: &'a PartBytes<'a>,
    /// Rows of the output.
    pub rows: usize,
    /// Columns (K).
    pub cols: usize,
    pub layout: WeightLayout,
}

impl<'a> TranscodeJob<'a> {
    /// The bytes of a part.
    ///
    /// # Errors
    /// `Malformed` when the part is missing or shorter than `len` bytes.
    pub fn part(&self, role: PartRole, len: Option<usize>) -> Result<&'a [u8]> {
        let bytes = self
            .bytes
            .get(role)
            .ok_or_else(|| self.malformed(format!("its {role:?} part is missing")))?;
        let len = len.ok_or_else(|| self.malformed("its size overflows".into()))?;
        let found = self.bytes.length(role);
        if found < len {
            return Err(self.malformed(format!(
                "its {role:?} part has {found} bytes, expected at least {len}"
            )));
        }
        Ok(bytes)
    }

    /// The bytes of `count` scales of `rows` rows.
    ///
    /// # Errors
    /// As of [`TranscodeJob::part`].
    pub fn scales(&self, count: usize, rows: usize, scale: Float) -> Result<&'a [u8]> {
        let values = count.checked_mul(rows);
        self.part(
            PartRole::Scales,
            values.and_then(|values| values.checked_mul(scale.bytes())),
        )
    }

    /// Builds `Malformed` for a weight whose parts contradict each other.
    pub fn malformed(&self, reason: String) -> Error {
        Error::Malformed {
            file: self.source.name.clone(),
            format: "weight",
            reason,
        }
    }

    /// Maps output row `row` to its stored row, which is below `source.stored_rows`.
    pub fn stored_row(&self, row: usize) -> usize {
        self.source.first_row + self.source.row_order.stored_row(row)
    }

    /// Packs an affine layout from the code at (stored row, column) and the pair at (stored row,
    /// first column of the group). A dense layout gets the dequantized values.
    pub fn affine(
        &self,
        code: impl Fn(usize, usize) -> u8,
        pair: impl Fn(usize, usize) -> (f32, f32),
    ) -> PackedMatrix {
        if let (WeightLayout::Dense(_), Some(WeightLayout::Affine { form, .. })) =
            (self.layout, self.source.encoding.layout(self.cols))
        {
            return self.dense(|row, k| {
                let q = f32::from(code(row, k));
                let (scale, second) = pair(row, k);

                if form == AffineForm::Bias {
                    q * scale + second
                } else {
                    (q - second) * scale
                }
            });
        }
        let mut out = PackedMatrix::zeros(self.layout, self.rows, self.cols);
        let WeightLayout::Affine { group, .. } = self.layout else {
            return out;
        };
        for row in 0..self.rows {
            let stored = self.stored_row(row);
            self.codes(&mut out, row, |k| code(stored, k));
            for (g, k) in (0..self.cols).step_by(usize::from(group)).enumerate() {
                out.set_pair(row, g, pair(stored, k));
            }
        }
        out
    }

    /// Packs the codes of one row; `code` takes the column.
    pub fn codes(&self, out: &mut PackedMatrix, row: usize, code: impl Fn(usize) -> u8) {
        for block in 0..self.cols.div_ceil(32) {
            let n = (self.cols - block * 32).min(32);
            let mut codes = [0u8; 32];
            for (i, c) in codes[..n].iter_mut().enumerate() {
                *c = code(block * 32 + i);
            }
            out.set_codes(row, block, &codes);
        }
    }

    /// Packs a dense layout from the value at (stored row, column). For a vector, the row order
    /// applies to its elements.
    pub fn dense(&self, value: impl Fn(usize, usize) -> f32) -> PackedMatrix {
        let mut out = PackedMatrix::zeros(self.layout, self.rows, self.cols);
        if self.source.shape.len() == 1 {
            for col in 0..self.cols {
                out.set_dense(0, col, value(0, self.source.row_order.stored_row(col)));
            }
            return out;
        }
        for row in 0..self.rows {
            let stored = self.stored_row(row);
            for col in 0..self.cols {
                out.set_dense(row, col, value(stored, col));
            }
        }
        out
    }
}

/// Packs an affine layout whose columns may be scattered over groups (act-order).
///
/// Columns are sorted by group, stably, and [`PackedMatrix::column_order`] stores the order. Codes and
/// values stay exact, for one gather of the activations. Dequantizing would cost 16 to 32 bits per
/// weight: `(q - zero) * scale` has up to 19 significant bits, more than f16. Groups of uneven size
/// have no affine layout and become dense f32.
pub(super) fn pack_grouped(
    job: &TranscodeJob<'_>,
    group: usize,
    code: impl Fn(usize, usize) -> u8,
    pair: impl Fn(usize, usize) -> (f32, f32),
) -> Result<PackedMatrix> {
    let group = group.max(1);
    let Some(g_idx) = read_group_index(job)? else {
        return Ok(job.affine(code, |row, k| pair(row, k / group)));
    };
    let groups: Vec<u32> = g_idx
        .iter()
        .map(|g| u32::try_from(*g).unwrap_or(u32::MAX))
        .collect();
    let order = match job.source.encoding.column_order(&groups) {
        Ok(None) => return Ok(job.affine(code, |row, k| pair(row, k / group))),
        Ok(Some(order)) if !matches!(job.layout, WeightLayout::Dense(_)) => Some(order),
        _ => None,
    };
    let Some(order) = order else {
        let layout = if matches!(job.layout, WeightLayout::Dense(_)) {
            job.layout
        } else {
            WeightLayout::Dense(Float::F32)
        };
        let job = TranscodeJob { layout, ..*job };
        return Ok(job.dense(|row, k| {
            let (scale, zero) = pair(row, g_idx[k]);
            (f32::from(code(row, k)) - zero) * scale
        }));
    };
    let mut out = job.affine(
        |row, at| code(row, order[at] as usize),
        |row, at| pair(row, at / group),
    );
    out.column_order = Some(order.to_vec());
    Ok(out)
}

/// Reads the group of each input column, if the file has it; every group must be below K.
pub(super) fn read_group_index(job: &TranscodeJob<'_>) -> Result<Option<Vec<usize>>> {
    if job.bytes.get(PartRole::GroupIndex).is_none() {
        return Ok(None);
    }
    let data = job.part(PartRole::GroupIndex, job.cols.checked_mul(4))?;
    let groups: Vec<usize> = (0..job.cols).map(|i| read_u32(data, i) as usize).collect();
    match groups.iter().find(|g| **g >= job.cols) {
        Some(g) => Err(job.malformed(format!(
            "its group index contains {g}, but there are only {} inputs",
            job.cols
        ))),
        None => Ok(Some(groups)),
    }
}

/// Reads the code of `bits` bits at position `k` of a little-endian bit stream that starts at byte
/// `start`.
pub(super) fn read_code(data: &[u8], start: usize, bits: usize, k: usize) -> u8 {
    let bit = k * bits;
    let at = start + bit / 8;
    let low = data.get(at).copied().unwrap_or(0);
    let high = data.get(at + 1).copied().unwrap_or(0);
    ((u16::from_le_bytes([low, high]) >> (bit % 8)) & ((1 << bits) - 1)) as u8
}

/// Reads u32 word `i` of little-endian bytes; 0 past the end.
pub(super) fn read_u32(data: &[u8], i: usize) -> u32 {
    match data.get(i * 4..i * 4 + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}
