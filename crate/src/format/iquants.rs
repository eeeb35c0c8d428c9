//! Decodes ggml's IQ types, whose codes index grids of small integers.
//!
//! Each element becomes its integer plus a zero point. The scale of its sub-block stays one f32, so
//! values are exact.

use super::ggml_type::{GgmlType, SubBlock, f16_at};
use super::layout::Float;
use super::transcode_job::read_u32;

/// The grids of IQ2_XXS, IQ2_XS, IQ2_S (2 bits per value), IQ3_XXS, IQ3_S (4 bits), IQ1_S and IQ1_M
/// (2 bits), concatenated. Source: the tables of the `gguf` package (MIT), written by
/// tests/golden/scripts/make_formats.py.
const GRIDS: &[u8; 9216] = include_bytes!("iq_grids.bin");
const IQ2: [u8; 4] = [8, 25, 43, 0];
const IQ3_XXS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Value `i` of 8 of entry `index` in a grid of 2-bit values that starts at byte `start`.
fn grid_value_2bit(start: usize, index: usize, i: usize) -> usize {
    usize::from(GRIDS[start + index * 2 + i / 4] >> (2 * (i % 4)) & 3)
}

/// Value `i` of 4 of entry `index` in a grid of 4-bit values that starts at byte `start`.
fn grid_value_4bit(start: usize, index: usize, i: usize) -> usize {
    usize::from(GRIDS[start + index * 2 + i / 2] >> (4 * (i % 2)) & 7)
}

/// The signs of 8 values from 7 bits: the eighth makes the number of negative signs even.
fn signs_of_8(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// Applies the sign of value `i` to a magnitude, around a zero point.
fn apply_sign(magnitude: u8, signs: u8, i: usize, zero: u8) -> u8 {
    if signs >> i & 1 == 0 {
        zero + magnitude
    } else {
        zero - magnitude
    }
}

/// Decodes sub-block j (32 elements) of a block of an IQ type.
pub(super) fn sub_block(kind: GgmlType, b: &[u8], j: usize) -> SubBlock {
    let d = f16_at(b, 0);
    match kind {
        GgmlType::IQ4_NL => {
            SubBlock::new((d, 128.0), |i| iq4_nl_code(b[2 + i % 16] >> (4 * (i / 16))))
        }
        GgmlType::IQ4_XS => {
            let high = u16::from_le_bytes([b[2], b[3]]);
            let scale = (b[4 + j / 2] >> (4 * (j % 2)) & 15) | ((high >> (2 * j) & 3) as u8) << 4;
            let scale = d * f32::from(scale as i8 - 32);
            SubBlock::new((scale, 128.0), |i| {
                iq4_nl_code(b[8 + j * 16 + i % 16] >> (4 * (i / 16)))
            })
        }
        GgmlType::IQ2_XXS => {
            let index = &b[2 + j * 8..];
            let s = read_u32(&b[2..], j * 2 + 1);

            let scale = d * (0.5 + (s >> 28) as f32) * 0.25;
            SubBlock::new((scale, 128.0), |i| {
                let l = i / 8;
                let value = IQ2[grid_value_2bit(0, usize::from(index[l]), i % 8)];
                apply_sign(value, signs_of_8(s >> (7 * l)), i % 8, 128)
            })
        }
        GgmlType::IQ2_XS => {
            let pair = |half: usize| {
                (
                    d * (0.5 + f32::from(b[66 + j] >> (4 * half) & 15)) * 0.25,
                    128.0,
                )
            };
            let codes = std::array::from_fn(|i| {
                let at = 2 + (j * 4 + i / 8) * 2;
                let q = u16::from_le_bytes([b[at], b[at + 1]]);
                let value = IQ2[grid_value_2bit(512, usize::from(q & 511), i % 8)];
                apply_sign(value, signs_of_8(u32::from(q >> 9)), i % 8, 128)
            });
            SubBlock {
                codes,
                pairs: [pair(0), pair(1)],
            }
        }
        GgmlType::IQ2_S => {
            let pair = |half: usize| {
                (
                    d * (0.5 + f32::from(b[74 + j] >> (4 * half) & 15)) * 0.25,
                    128.0,
                )
            };
            let codes = std::array::from_fn(|i| {
                let g = j * 4 + i / 8;
                let l = i / 8;

                let index = usize::from(b[2 + g]) | usize::from(b[66 + j] >> (2 * l) & 3) << 8;
                apply_sign(
                    IQ2[grid_value_2bit(1536, index, i % 8)],
                    b[34 + g],
                    i % 8,
                    128,
                )
            });
            SubBlock {
                codes,
                pairs: [pair(0), pair(1)],
            }
        }
        GgmlType::IQ3_XXS => {
            let s = read_u32(&b[66..], j);
            let scale = d * (0.5 + (s >> 28) as f32) * 0.5;
            SubBlock::new((scale, 128.0), |i| {
                let value =
                    IQ3_XXS[grid_value_4bit(3584, usize::from(b[2 + j * 8 + i / 4]), i % 4)];
                apply_sign(value, signs_of_8(s >> (7 * (i / 8))), i % 8, 128)
            })
        }
        GgmlType::IQ3_S => {
            let scale = d * f32::from(1 + 2 * (b[106 + j / 2] >> (4 * (j % 2)) & 15));
            SubBlock::new((scale, 16.0), |i| {
                let t = i / 4;
                let index = usize::from(b[2 + j * 8 + t]) | usize::from(b[66 + j] >> t & 1) << 8;
                let value = 2 * grid_value_4bit(4096, index, i % 4) as u8 + 1;
                apply_sign(value, b[74 + j * 4 + i / 8], i % 8, 16)
            })
        }
        GgmlType::IQ1_M => iq1_m(b, j),
        _ => iq1_s(b, j, d),
    }
}

/// Decodes IQ1_M: as IQ1_S with a scale per 16 elements and a sign of the offset 1/8 per 8. The
/// block's f16 scale is spread over the top nibbles of the four words of 3-bit scales.
fn iq1_m(b: &[u8], j: usize) -> SubBlock {
    let word = |i: usize| u16::from_le_bytes([b[48 + 2 * i], b[49 + 2 * i]]);
    let d =
        Float::F16.from_bits((0..4).fold(0, |bits, i| bits | u32::from(word(i) >> 12) << (4 * i)));
    let pair = |half: usize| {
        let s = 2 * j + half;
        (
            d * f32::from(2 * (word(s / 4) >> (3 * (s % 4)) & 7) + 1) * 0.125,
            16.0,
        )
    };
    let codes = std::array::from_fn(|i| {
        let g = j * 4 + i / 8;
        let high = b[32 + g / 2] >> (4 * (g % 2));
        let index = usize::from(b[g]) | usize::from(high & 7) << 8;
        let base = if high & 8 == 0 { 9 } else { 7 };
        base + 8 * grid_value_2bit(5120, index, i % 8) as u8
    });
    SubBlock {
        codes,
        pairs: [pair(0), pair(1)],
    }
}

/// Decodes IQ1_S: `d * (grid ± 1/8)` with grid in -1, 0, 1. In eighths these are integers from -9
/// to 9.
fn iq1_s(b: &[u8], j: usize, d: f32) -> SubBlock {
    let high = u16::from_le_bytes([b[34 + j * 2], b[35 + j * 2]]);
    let scale = d * f32::from(2 * (high >> 12 & 7) + 1) * 0.125;
    let base = if high & 0x8000 == 0 { 9 } else { 7 };
    SubBlock::new((scale, 16.0), |i| {
        let l = i / 8;
        let index = usize::from(b[2 + j * 4 + l]) | usize::from(high >> (3 * l) & 7) << 8;
        base + 8 * grid_value_2bit(5120, index, i % 8) as u8
    })
}

/// The code of an IQ4_NL table entry.
fn iq4_nl_code(nibble: u8) -> u8 {
    (IQ4_NL[usize::from(nibble & 15)] as u8) ^ 0x80
}
