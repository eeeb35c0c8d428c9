//! Decodes ggml's block types into layouts. Does not depend on GGUF files.

use super::encoding::PartRole;
pub use super::ggml_type::GgmlType;
use super::ggml_type::{SubBlock, f16_at};
use super::iquants;
use super::layout::{Float, K_QUANT_PARAM_WORDS, PackedMatrix, WeightLayout};
use super::transcode_job::TranscodeJob;
use crate::Result;

pub(super) fn transcode(job: &TranscodeJob<'_>, kind: GgmlType) -> Result<PackedMatrix> {
    if kind == GgmlType::I2S {
        return i2s(job);
    }
    if !job.cols.is_multiple_of(kind.block_elements()) {
        return Err(job.malformed(format!(
            "{} columns are not a multiple of the {} block size",
            job.cols,
            kind.name()
        )));
    }
    let row_bytes = job.cols / kind.block_elements() * kind.block_bytes();
    let data = job.part(
        PartRole::Weight,
        job.source.stored_rows.checked_mul(row_bytes),
    )?;
    if let GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 = kind {
        return Ok(unquantized(job, kind, data));
    }
    let mut out = PackedMatrix::zeros(job.layout, job.rows, job.cols);
    for row in 0..job.rows {
        let at = job.stored_row(row) * row_bytes;
        for (b, block) in data[at..at + row_bytes]
            .chunks_exact(kind.block_bytes())
            .enumerate()
        {
            match job.layout {
                WeightLayout::Q4K => q4_k(&mut out, row, b, block),
                WeightLayout::Q6K => q6_k(&mut out, row, b, block, kind),
                WeightLayout::Mxfp4 => {
                    // ggml has no negative zero.
                    let fix = |code: u8| if code == 8 { 0 } else { code };
                    out.set_codes(
                        row,
                        b,
                        &std::array::from_fn(|i| fix(nibble(&block[1..], i))),
                    );
                    out.set_param_byte(row * (job.cols / 32) + b, block[0]);
                }
                _ => affine(&mut out, row, b, block, kind),
            }
        }
    }
    Ok(out)
}

fn unquantized(job: &TranscodeJob<'_>, kind: GgmlType, data: &[u8]) -> PackedMatrix {
    let float = match kind {
        GgmlType::F16 => Float::F16,
        GgmlType::BF16 => Float::BF16,
        _ => Float::F32,
    };
    let offset = job.source.offset;
    job.dense(|row, col| {
        let value = float.get(data, row * job.cols + col).unwrap_or(0.0);
        if offset == 0.0 { value } else { value + offset }
    })
}

/// Packs the sub-blocks of an affine type.
fn affine(out: &mut PackedMatrix, row: usize, b: usize, block: &[u8], kind: GgmlType) {
    let WeightLayout::Affine { group, .. } = out.layout else {
        return;
    };
    let per_block = kind.block_elements() / 32;
    for j in 0..per_block {
        let sub = sub_block(kind, block, j);
        let at = b * per_block + j;
        out.set_codes(row, at, &sub.codes);
        match group {
            16 => {
                out.set_pair(row, at * 2, sub.pairs[0]);
                out.set_pair(row, at * 2 + 1, sub.pairs[1]);
            }
            128 if !at.is_multiple_of(4) => {}
            _ => out.set_pair(row, at / (usize::from(group) / 32), sub.pairs[0]),
        }
    }
}

/// Nibble i of 16 bytes; all low nibbles come first.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    if i < 16 {
        bytes[i] & 15
    } else {
        bytes[i - 16] >> 4
    }
}

/// Decodes sub-block j (32 elements) of a block of an affine type.
fn sub_block(kind: GgmlType, b: &[u8], j: usize) -> SubBlock {
    use GgmlType as G;
    let bit = |i: usize, at: usize| (b[at + i / 8] >> (i % 8) & 1) << 4;
    match kind {
        G::Q4_0 => SubBlock::new((f16_at(b, 0), 8.0), |i| nibble(&b[2..], i)),
        G::Q4_1 => SubBlock::new((f16_at(b, 0), f16_at(b, 2)), |i| nibble(&b[4..], i)),
        G::Q5_0 => SubBlock::new((f16_at(b, 0), 16.0), |i| nibble(&b[6..], i) | bit(i, 2)),
        G::Q5_1 => SubBlock::new((f16_at(b, 0), f16_at(b, 2)), |i| {
            nibble(&b[8..], i) | bit(i, 4)
        }),
        G::Q8_0 => SubBlock::new((f16_at(b, 0), 128.0), |i| b[2 + i] ^ 0x80),
        G::Q2_K => q2_k(b, j),
        G::Q5_K => q5_k(b, j),
        G::TQ1_0 => SubBlock::new((f16_at(b, 52), 1.0), |i| tq1_0(b, j * 32 + i)),
        G::TQ2_0 => SubBlock::new((f16_at(b, 64), 1.0), |i| {
            b[j / 4 * 32 + i] >> (2 * (j % 4)) & 3
        }),
        _ => iquants::sub_block(kind, b, j),
    }
}

fn q2_k(b: &[u8], j: usize) -> SubBlock {
    let d = f16_at(b, 80);
    let dmin = f16_at(b, 82);

    let pair = |s: usize| (d * f32::from(b[s] & 15), -(dmin * f32::from(b[s] >> 4)));
    let codes = std::array::from_fn(|i| b[16 + j / 4 * 32 + i] >> (2 * (j % 4)) & 3);
    SubBlock {
        codes,
        pairs: [pair(2 * j), pair(2 * j + 1)],
    }
}

fn q5_k(b: &[u8], j: usize) -> SubBlock {
    let (scale, min) = k_scale(&b[4..], j);
    let pair = (
        f16_at(b, 0) * f32::from(scale),
        -(f16_at(b, 2) * f32::from(min)),
    );
    SubBlock::new(pair, |i| {
        (b[48 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15) | (b[16 + i] >> j & 1) << 4
    })
}

/// The 6-bit scale and minimum of sub-block j from the twelve scale bytes of Q4_K and Q5_K.
fn k_scale(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        return (s[j] & 63, s[j + 4] & 63);
    }
    (
        s[j + 4] & 15 | s[j - 4] >> 2 & 0x30,
        s[j + 4] >> 4 | s[j] >> 2 & 0x30,
    )
}

/// Element e of a TQ1_0 block: five ternary digits per byte, extracted by multiplying a fraction of
/// 256.
fn tq1_0(b: &[u8], e: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let (byte, digit) = match e {
        0..160 => (b[e % 32], e / 32),
        160..240 => (b[32 + e % 16], (e - 160) / 16),
        _ => (b[48 + e % 4], (e - 240) / 4),
    };
    ((u16::from(byte.wrapping_mul(POWERS[digit])) * 3) >> 8) as u8
}

fn q4_k(out: &mut PackedMatrix, row: usize, b: usize, block: &[u8]) {
    let params = row * out.layout.row_param_words(out.cols) + b * K_QUANT_PARAM_WORDS;
    out.planes[1][params] = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for j in 0..8 {
        let (scale, min) = k_scale(&block[4..], j);
        out.set_param_byte(params * 4 + 4 + j, scale);
        out.set_param_byte(params * 4 + 12 + j, min);
        let codes = std::array::from_fn(|i| block[16 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15);
        out.set_codes(row, b * 8 + j, &codes);
    }
}

/// Packs Q6_K, and Q3_K as Q6_K: its codes q - 4 are stored as q + 28, from which the layout
/// subtracts 32.
fn q6_k(out: &mut PackedMatrix, row: usize, b: usize, block: &[u8], kind: GgmlType) {
    let params = row * out.layout.row_param_words(out.cols) + b * K_QUANT_PARAM_WORDS;
    let q3 = kind == GgmlType::Q3_K;
    let d = if q3 { 108 } else { 208 };
    out.planes[1][params] = u32::from_le_bytes([block[d], block[d + 1], 0, 0]);
    for s in 0..16 {
        let scale = if q3 {
            q3_scale(&block[96..108], s)
        } else {
            block[192 + s]
        };
        out.set_param_byte(params * 4 + 4 + s, scale);
    }
    for j in 0..8 {
        let half = j / 4;
        let quarter = j % 4;

        let codes = std::array::from_fn(|i| {
            if q3 {
                let low = block[32 + half * 32 + i] >> (2 * quarter) & 3;
                (low | (block[i] >> j & 1) << 2) + 28
            } else {
                let low = block[half * 64 + quarter % 2 * 32 + i] >> (4 * (quarter / 2)) & 15;
                low | (block[128 + half * 32 + i] >> (2 * quarter) & 3) << 4
            }
        });
        out.set_codes(row, b * 8 + j, &codes);
    }
}

/// Scale s of a Q3_K block as an i8 byte: 6 bits, minus 32.
fn q3_scale(s12: &[u8], s: usize) -> u8 {
    let low = s12[s % 8] >> (4 * (s / 8)) & 15;
    let high = s12[8 + s % 4] >> (2 * (s / 4)) & 3;
    (low | high << 4).wrapping_sub(32)
}

/// Decodes BitNet.cpp's I2_S. Byte p of each 32 has elements p, p + 32, p + 64 and p + 96 from the
/// top bits down, as value plus one. One f32 scale follows the tensor.
fn i2s(job: &TranscodeJob<'_>) -> Result<PackedMatrix> {
    let total = job.source.stored_rows.checked_mul(job.cols);
    if total.is_none_or(|n| n % 128 != 0) {
        return Err(job.malformed("its number of elements is not a multiple of 128".into()));
    }
    let data = job.part(PartRole::Weight, total.and_then(|n| (n / 4).checked_add(4)))?;
    let scale = data
        .get(total.unwrap_or(0) / 4..)
        .and_then(|end| Float::F32.get(end, 0))
        .unwrap_or(0.0);
    let mut out = PackedMatrix::zeros(job.layout, job.rows, job.cols);
    for row in 0..job.rows {
        let start = job.stored_row(row) * job.cols;
        job.codes(&mut out, row, |k| {
            let e = start + k;
            data[e / 128 * 32 + e % 32] >> (6 - 2 * (e % 128 / 32)) & 3
        });
        out.planes[1][row] = scale.to_bits();
    }
    Ok(out)
}
