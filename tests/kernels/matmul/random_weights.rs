//! Random weights in every layout.

use jerboa::format::layout::{AffineForm, Float, PackedMatrix, WeightLayout};
use jerboa::reference::dequant::dequant;
use jerboa_tests::{number, random};
use std::cell::RefCell;

/// A packed matrix and its dequantized values.
type Weights = (PackedMatrix, Vec<f32>);

/// What a matrix is created from: its layout, shape and seed.
type Key = (WeightLayout, [usize; 2], u64);

thread_local! {
    /// The last matrix.
    static LAST: RefCell<Option<(Key, Weights)>> = const { RefCell::new(None) };
}

/// A packed random matrix and its dequantized values. The last one is stored: tests run several
/// kernels with the same weights.
pub fn weights(layout: WeightLayout, n: usize, k: usize, seed: u64) -> Weights {
    let key = (layout, [n, k], seed);
    LAST.with_borrow_mut(|last| match last {
        Some((stored, weights)) if *stored == key => weights.clone(),
        _ => {
            let weights = create(layout, n, k, seed);
            *last = Some((key, weights.clone()));
            weights
        }
    })
}

fn create(layout: WeightLayout, n: usize, k: usize, seed: u64) -> Weights {
    let mut packed = PackedMatrix::zeros(layout, n, k);
    let values = random(seed, n * k);
    let mut exact = vec![0.0; n * k];
    if let WeightLayout::Dense(float) = layout {
        for (i, v) in values.iter().enumerate() {
            packed.set_dense(i / k, i % k, *v);
            exact[i] = float.from_bits(float.to_bits(*v));
        }
        return (packed, exact);
    }
    let WeightLayout::Affine {
        bits, group, form, ..
    } = layout
    else {
        fill(&mut packed, seed);
        let exact = dequant(&packed);
        return (packed, exact);
    };
    let group = usize::from(group);
    for row in 0..n {
        for g in 0..packed.layout.padded_cols(k).div_ceil(group) {
            let r = [0, 1].map(|place| number(seed + (row * 1000 + g) as u64 + 7, place));
            let second = if form == AffineForm::Zero {
                (r[1] * 3.0 + 4.0).round()
            } else {
                r[1] * 0.5
            };
            packed.set_pair(row, g, (r[0] * 0.1 + 0.15, second));
        }
        for block in 0..packed.layout.padded_cols(k) / 32 {
            let codes: [u8; 32] = std::array::from_fn(|i| {
                let v = number(seed + (row * 7919 + block * 32 + i) as u64, 0);
                (((v + 1.0) * 0.5 * f32::from((1u16 << bits) - 1)) as u32) as u8
            });
            packed.set_codes(row, block, &codes);
            for (i, code) in codes.iter().enumerate().filter(|(i, _)| block * 32 + i < k) {
                let (s, b) = packed.pair(row, (block * 32 + i) / group);
                let q = f32::from(*code);
                exact[row * k + block * 32 + i] = if form == AffineForm::Zero {
                    (q - b) * s
                } else {
                    q * s + b
                };
            }
        }
    }
    (packed, exact)
}

/// Random codes and sensible scales for layouts with their own kind of scales.
fn fill(packed: &mut PackedMatrix, seed: u64) {
    let word = |i: usize, seed: u64| (number(seed + i as u64, 1) * 8_388_608.0) as i32 as u32;
    let layout = packed.layout;
    for (i, w) in packed.planes[0].iter_mut().enumerate() {
        *w = word(i, seed) << 16 ^ word(i, seed + 1000);
        if layout == WeightLayout::Ternary {
            // The code 3 is unused.
            *w &= !(*w >> 1 & 0x5555_5555);
        }
    }
    for (i, w) in packed.planes[1].iter_mut().enumerate() {
        let random = word(i, seed + 2000);
        *w = match layout {
            WeightLayout::Ternary => (0.05 + (random & 15) as f32 * 0.01).to_bits(),
            WeightLayout::Mxfp4 => 0x7b7a_7c79 + (random & 0x0303_0303),
            // f16 scales of about 0.001 precede the bytes.
            _ if i % 5 == 0 => 0x1400_1600 + (random & 0x00ff_00ff),
            WeightLayout::Q4K => random & 0x3f3f_3f3f,
            _ => random,
        };
    }
}

/// All layouts: every width, and each kind of scale and offset.
pub fn layouts() -> Vec<WeightLayout> {
    let mut all = vec![
        WeightLayout::Dense(Float::F32),
        WeightLayout::Dense(Float::F16),
        WeightLayout::Dense(Float::BF16),
    ];
    let forms = [
        (32, AffineForm::Bias, Float::F16),
        (64, AffineForm::Zero, Float::BF16),
        (128, AffineForm::Bias, Float::F32),
        (16, AffineForm::Zero, Float::F16),
    ];
    all.extend([
        WeightLayout::Q4K,
        WeightLayout::Q6K,
        WeightLayout::Mxfp4,
        WeightLayout::Ternary,
    ]);
    // Every width, and every kind of scale and offset with the most common width.
    for (i, bits) in [4u8, 4, 4, 4, 8, 2, 3, 5, 6].into_iter().enumerate() {
        let (group, form, scale) = forms[i % 4];
        all.push(WeightLayout::Affine {
            bits,
            group,
            form,
            scale,
        });
    }
    all
}

/// 4 bits as quantized on load.
pub fn affine() -> WeightLayout {
    affine_of(4, 32, AffineForm::Bias, Float::F16)
}

pub fn affine_of(bits: u8, group: u16, form: AffineForm, scale: Float) -> WeightLayout {
    WeightLayout::Affine {
        bits,
        group,
        form,
        scale,
    }
}
