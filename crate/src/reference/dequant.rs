//! CPU reference of shaders/weights/*.wgsl: dequantizes a weight layout to f32 with the kernels'
//! arithmetic.

use crate::format::layout::{AffineForm, E2M1, K_QUANT_PARAM_WORDS, PackedMatrix, WeightLayout};
use half::f16;

/// Dequantizes the matrix to f32, row-major, rows × cols without padding. Columns keep the order of
/// the planes.
pub fn dequant(m: &PackedMatrix) -> Vec<f32> {
    let mut out = Vec::with_capacity(m.rows * m.cols);
    for row in 0..m.rows {
        dequant_row(m, row, &mut out);
    }
    out
}

/// Dequantizes the matrix to f32 with columns in input order.
pub fn dequant_in_order(m: &PackedMatrix) -> Vec<f32> {
    let stored = dequant(m);
    let Some(order) = &m.column_order else {
        return stored;
    };
    let mut out = vec![0.0; stored.len()];
    for (row, values) in out.chunks_mut(m.cols).zip(stored.chunks(m.cols)) {
        for (&k, &value) in order.iter().zip(values) {
            row[k as usize] = value;
        }
    }
    out
}

fn dequant_row(m: &PackedMatrix, row: usize, out: &mut Vec<f32>) {
    if let WeightLayout::Dense(float) = m.layout {
        let words = &m.planes[0][row * m.layout.row_words(m.cols)..];
        let per_word = 4 / float.bytes();
        out.extend(
            (0..m.cols).map(|k| float.from_bits(words[k / per_word] >> (16 * (k % per_word)))),
        );
        return;
    }
    for block in 0..m.cols.div_ceil(32) {
        let codes = m.codes(row, block);
        let n = (m.cols - block * 32).min(32);
        out.extend(
            codes[..n]
                .iter()
                .enumerate()
                .map(|(i, &code)| element(m, row, block * 32 + i, code)),
        );
    }
}

fn element(m: &PackedMatrix, row: usize, k: usize, code: u8) -> f32 {
    let q = f32::from(code);
    match m.layout {
        WeightLayout::Dense(_) => q,
        WeightLayout::Affine { group, form, .. } => {
            let (scale, second) = m.pair(row, k / usize::from(group));
            match form {
                AffineForm::Bias => q * scale + second,
                AffineForm::Zero => (q - second) * scale,
            }
        }
        WeightLayout::Ternary => (q - 1.0) * f32::from_bits(m.planes[1][row]),
        WeightLayout::Mxfp4 => {
            let blocks = m.layout.padded_cols(m.cols) / 32;
            mxfp4(code, m.param_byte(row * blocks + k / 32))
        }
        WeightLayout::Q4K => {
            let at = row * m.layout.row_param_words(m.cols) + k / 256 * K_QUANT_PARAM_WORDS;
            let (d, dmin) = f16_pair(m.planes[1][at]);
            let sub = k % 256 / 32;
            let scale = m.param_byte(at * 4 + 4 + sub);
            let min = m.param_byte(at * 4 + 12 + sub);

            (d * f32::from(scale)) * q - dmin * f32::from(min)
        }
        WeightLayout::Q6K => {
            let at = row * m.layout.row_param_words(m.cols) + k / 256 * K_QUANT_PARAM_WORDS;
            let scale = m.param_byte(at * 4 + 4 + k % 256 / 16) as i8;
            (f16_pair(m.planes[1][at]).0 * f32::from(scale)) * (q - 32.0)
        }
    }
}

/// Returns E2M1 times a power of two. Doubles the value and halves the power, so that E8M0's
/// maximum does not overflow.
fn mxfp4(code: u8, e: u8) -> f32 {
    let half = if e < 2 {
        0x0020_0000u32 << e
    } else {
        u32::from(e - 1) << 23
    };
    E2M1[usize::from(code & 15)] * 2.0 * f32::from_bits(half)
}

fn f16_pair(word: u32) -> (f32, f32) {
    (
        f16::from_bits(word as u16).to_f32(),
        f16::from_bits((word >> 16) as u16).to_f32(),
    )
}
