//! Decodes GPTQ: codes packed along the inputs, zero points along the outputs, both transposed
//! against nn.Linear.

use super::encoding::PartRole;
use super::layout::{Float, PackedMatrix};
use super::transcode_job::{TranscodeJob, pack_grouped, read_code, read_group_index, read_u32};
use crate::Result;

struct GptqWeight<'a> {
    bits: usize,
    /// Number of outputs.
    n: usize,
    codes: &'a [u8],
    zeros: Option<&'a [u8]>,
    scales: &'a [u8],
    scale: Float,
    minus_one: bool,
}

impl GptqWeight<'_> {
    fn code(&self, row: usize, k: usize) -> u8 {
        // 3-bit codes are a stream of 32 codes in 3 words along the column; the others never
        // straddle words.
        let bit = k * self.bits;
        let w = bit / 32;
        let shift = bit % 32;

        let low = read_u32(self.codes, w * self.n + row) >> shift;
        let high = if shift + self.bits > 32 {
            read_u32(self.codes, (w + 1) * self.n + row) << (32 - shift)
        } else {
            0
        };
        ((low | high) & ((1 << self.bits) - 1)) as u8
    }

    fn pair(&self, row: usize, group: usize) -> (f32, f32) {
        let mask = (1u16 << self.bits) - 1;
        let zero = match self.zeros {
            Some(zeros) => {
                let stored = read_code(zeros, group * (self.n * self.bits / 8), self.bits, row);
                (u16::from(stored) + u16::from(self.minus_one)) & mask
            }
            None => 1 << (self.bits - 1),
        };
        (
            self.scale
                .get(self.scales, group * self.n + row)
                .unwrap_or(0.0),
            f32::from(zero),
        )
    }
}

/// Decodes `w = (q - zero) * scale`; columns are sorted by group if `g_idx` scatters them.
pub(super) fn transcode(
    job: &TranscodeJob<'_>,
    bits: u8,
    group: usize,
    minus_one: bool,
    scale: Float,
) -> Result<PackedMatrix> {
    let n = job.source.stored_rows;
    let k = job.cols;
    let bits = usize::from(bits);

    if !(k * bits).is_multiple_of(32) || !(n * bits).is_multiple_of(32) {
        return Err(job.malformed(format!(
            "{n} × {k} codes of {bits} bits do not fill whole 32-bit words"
        )));
    }
    let codes = job.part(PartRole::Weight, (k * bits / 8).checked_mul(n))?;
    let groups = match read_group_index(job)? {
        Some(g_idx) => g_idx.iter().max().map_or(0, |m| m + 1),
        None => k.div_ceil(group.max(1)),
    };
    let scales = job.scales(groups, n, scale)?;
    let zeros = match job.bytes.get(PartRole::Zeros) {
        Some(_) => Some(job.part(PartRole::Zeros, groups.checked_mul(n * bits / 8))?),
        None => None,
    };
    let q = GptqWeight {
        bits,
        n,
        codes,
        zeros,
        scales,
        scale,
        minus_one,
    };
    pack_grouped(job, group, |row, k| q.code(row, k), |row, g| q.pair(row, g))
}
