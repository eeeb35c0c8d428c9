//! The canonical weight layouts in GPU memory, word for word, as the matmul and embedding kernels
//! read them.
//!
//! A matrix of `rows` × `cols` (cols = K, the reduction dimension of a matmul) is one or two planes
//! of u32 words. Rows are consecutive; each is padded along K to [`WeightLayout::padded_cols`], a
//! multiple of 32 (256 for k-quants).
//!
//! - **Dense**: plane 0 has the elements, one per word (f32) or two (f16, bf16; the first in the
//!   low half).
//! - **Codes** of 2, 3, 4, 5, 6 or 8 bits are in blocks of 32 elements = as many words as a code
//!   has bits: the 4-bit part (word w, nibble i = element 8w+i), then the 2-bit part (word w, pair
//!   i = element 16w+i), then the 1-bit part (bit i = element i). 3 = 2+1, 5 = 4+1, 6 = 4+2, with
//!   the low bits in the larger part; 8 = 8 words of 4 bytes.
//! - **Affine**: plane 0 codes, plane 1 one pair per group of 16, 32, 64 or 128 along K:
//!   `w = q * scale + bias` or `w = (q - zero) * scale`. A pair is one word (two f16 or bf16, the
//!   scale in the low half) or two (f32, scale first).
//! - **Ternary**: plane 0 codes of 2 bits (value + 1), plane 1 one f32 scale per row:
//!   `w = (q - 1) * scale`.
//! - **Mxfp4**: plane 0 codes of 4 bits (index into [`E2M1`]), plane 1 one E8M0 byte per block of
//!   32, four per word, blocks numbered through the whole matrix: `w = E2M1[q] * 2^(e - 127)`.
//! - **Q4K**: plane 0 codes of 4 bits, plane 1 five words per 256: d and dmin (f16), eight scale
//!   bytes, eight minimum bytes (one of each per 32): `w = (d * scale) * q - dmin * min`.
//! - **Q6K**: plane 0 codes of 6 bits, plane 1 five words per 256: d (f16), sixteen i8 scales (one
//!   per 16): `w = (d * scale) * (q - 32)`.
//!
//! The padding of a dense row is zero. The padding of a coded row has code 0, which can decode to
//! nonzero: kernels stop at K.

use half::{bf16, f16};

/// The values of the 4-bit floating point type E2M1, by code.
pub const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Words of plane 1 per 256 elements of a k-quant.
pub const K_QUANT_PARAM_WORDS: usize = 5;

/// Floating point type of weights or scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of an f32.
    BF16,
}

impl Float {
    /// Bytes per element.
    pub fn bytes(self) -> usize {
        if self == Float::F32 { 4 } else { 2 }
    }

    /// Name in text dumps and kernel variants.
    pub fn name(self) -> &'static str {
        match self {
            Float::F32 => "f32",
            Float::F16 => "f16",
            Float::BF16 => "bf16",
        }
    }

    /// Reads element `i` of little-endian `bytes`; `None` past the end.
    pub fn get(self, bytes: &[u8], i: usize) -> Option<f32> {
        let n = self.bytes();
        let b = bytes.get(i.checked_mul(n)?..i.checked_add(1)?.checked_mul(n)?)?;
        Some(match (self, b) {
            (Float::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Float::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Float::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            _ => return None,
        })
    }

    /// Converts `x` to the bits of this type, rounded to nearest even.
    pub fn to_bits(self, x: f32) -> u32 {
        match self {
            Float::F32 => x.to_bits(),
            Float::F16 => u32::from(f16::from_f32(x).to_bits()),
            Float::BF16 => u32::from(bf16::from_f32(x).to_bits()),
        }
    }

    /// Converts bits of this type to f32.
    pub fn from_bits(self, bits: u32) -> f32 {
        match self {
            Float::F32 => f32::from_bits(bits),
            Float::F16 => f16::from_bits(bits as u16).to_f32(),
            Float::BF16 => bf16::from_bits(bits as u16).to_f32(),
        }
    }
}

/// Meaning of the second value of an affine pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AffineForm {
    /// `w = q * scale + bias`.
    Bias,
    /// `w = (q - zero) * scale`.
    Zero,
}

/// A canonical weight layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// Unquantized.
    Dense(Float),
    /// Integer codes with a pair of values per group.
    Affine {
        /// 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements along K per pair: 16, 32, 64 or 128.
        group: u16,
        /// Meaning of the pair.
        form: AffineForm,
        /// The type of the pair.
        scale: Float,
    },
    /// E2M1 codes with a power of two per 32.
    Mxfp4,
    /// -1, 0, 1 with a scale per row.
    Ternary,
    /// GGUF's Q4_K with scales expanded to bytes.
    Q4K,
    /// GGUF's Q6_K with codes in the common block format.
    Q6K,
}

impl WeightLayout {
    /// Bits per code, or per element of a dense layout.
    pub fn bits(self) -> usize {
        match self {
            WeightLayout::Dense(f) => f.bytes() * 8,
            WeightLayout::Affine { bits, .. } => usize::from(bits),
            WeightLayout::Mxfp4 | WeightLayout::Q4K => 4,
            WeightLayout::Ternary => 2,
            WeightLayout::Q6K => 6,
        }
    }

    /// K rounded up to whole blocks.
    pub fn padded_cols(self, cols: usize) -> usize {
        cols.next_multiple_of(if matches!(self, WeightLayout::Q4K | WeightLayout::Q6K) {
            256
        } else {
            32
        })
    }

    /// Words per row of plane 0.
    pub fn row_words(self, cols: usize) -> usize {
        self.padded_cols(cols) / 32 * self.bits()
    }

    /// Words per row of plane 1; 0 for dense layouts and for [`WeightLayout::Mxfp4`], whose rows share
    /// words.
    pub fn row_param_words(self, cols: usize) -> usize {
        let k = self.padded_cols(cols);
        match self {
            WeightLayout::Dense(_) | WeightLayout::Mxfp4 => 0,
            WeightLayout::Affine { group, scale, .. } => {
                k.div_ceil(usize::from(group).max(1)) * scale.bytes() / 2
            }
            WeightLayout::Ternary => 1,
            WeightLayout::Q4K | WeightLayout::Q6K => k / 256 * K_QUANT_PARAM_WORDS,
        }
    }

    /// Bytes of the two planes of a matrix, multiples of 4; 0 for a plane that the layout does not
    /// have.
    pub fn plane_bytes(self, rows: usize, cols: usize) -> [u64; 2] {
        let rows64 = rows as u64;
        let k = self.padded_cols(cols) as u64;

        let second = match self {
            WeightLayout::Mxfp4 => rows64.saturating_mul(k / 32).div_ceil(4).saturating_mul(4),
            _ => rows64.saturating_mul(self.row_param_words(cols) as u64 * 4),
        };
        [
            rows64.saturating_mul(self.row_words(cols) as u64 * 4),
            second,
        ]
    }

    /// Bytes of all planes of a matrix.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let [a, b] = self.plane_bytes(rows, cols);
        a.saturating_add(b)
    }

    /// Name in text dumps, diagnostics and kernel variants, for example `q4_g32_zero_f16`.
    pub fn name(self) -> String {
        match self {
            WeightLayout::Dense(f) => f.name().into(),
            WeightLayout::Affine {
                bits,
                group,
                form,
                scale,
            } => {
                let form = if form == AffineForm::Bias {
                    "bias"
                } else {
                    "zero"
                };
                format!("q{bits}_g{group}_{form}_{}", scale.name())
            }
            WeightLayout::Mxfp4 => "mxfp4".into(),
            WeightLayout::Ternary => "ternary".into(),
            WeightLayout::Q4K => "q4_k".into(),
            WeightLayout::Q6K => "q6_k".into(),
        }
    }
}

impl std::fmt::Display for WeightLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// A matrix in a canonical layout, in CPU memory.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedMatrix {
    /// Layout of the planes.
    pub layout: WeightLayout,
    /// Rows (outputs of a matmul; experts × outputs for stacked experts).
    pub rows: usize,
    /// Columns (K).
    pub cols: usize,
    /// The planes as u32 words.
    pub planes: [Vec<u32>; 2],
    /// The input index of each column, if the columns are reordered.
    pub column_order: Option<Vec<u32>>,
}

impl PackedMatrix {
    /// Creates a matrix with all codes and parameters 0.
    pub fn zeros(layout: WeightLayout, rows: usize, cols: usize) -> PackedMatrix {
        let words = layout
            .plane_bytes(rows, cols)
            .map(|b| vec![0u32; (b / 4) as usize]);
        PackedMatrix {
            layout,
            rows,
            cols,
            planes: words,
            column_order: None,
        }
    }

    /// Sets one element of a dense layout, rounded to its type; the element must be 0 before.
    pub fn set_dense(&mut self, row: usize, col: usize, value: f32) {
        let WeightLayout::Dense(float) = self.layout else {
            return;
        };
        let start = row * self.layout.row_words(self.cols);
        let bits = float.to_bits(value);
        if float == Float::F32 {
            self.planes[0][start + col] = bits;
        } else {
            self.planes[0][start + col / 2] |= bits << (16 * (col % 2));
        }
    }

    /// Sets the 32 codes of one block of a row; they must be 0 before.
    pub fn set_codes(&mut self, row: usize, block: usize, codes: &[u8; 32]) {
        let bits = self.layout.bits();
        let start = row * self.layout.row_words(self.cols) + block * bits;
        pack_codes(bits, codes, &mut self.planes[0][start..start + bits]);
    }

    /// Sets the pair of one group of an affine layout, rounded to its type.
    pub fn set_pair(&mut self, row: usize, group: usize, pair: (f32, f32)) {
        let WeightLayout::Affine { scale, .. } = self.layout else {
            return;
        };
        let start = row * self.layout.row_param_words(self.cols);
        if scale == Float::F32 {
            let at = start + group * 2;
            self.planes[1][at] = pair.0.to_bits();
            self.planes[1][at + 1] = pair.1.to_bits();
        } else {
            self.planes[1][start + group] = scale.to_bits(pair.0) | scale.to_bits(pair.1) << 16;
        }
    }

    /// Reads the pair of one group of an affine layout.
    pub fn pair(&self, row: usize, group: usize) -> (f32, f32) {
        let WeightLayout::Affine { scale, .. } = self.layout else {
            return (0.0, 0.0);
        };
        let start = row * self.layout.row_param_words(self.cols);
        if scale == Float::F32 {
            let at = start + group * 2;
            (
                f32::from_bits(self.planes[1][at]),
                f32::from_bits(self.planes[1][at + 1]),
            )
        } else {
            let word = self.planes[1][start + group];
            (scale.from_bits(word & 0xffff), scale.from_bits(word >> 16))
        }
    }

    /// Reads byte `i` of plane 1 (scales of Mxfp4, scale bytes of the k-quants).
    pub fn param_byte(&self, i: usize) -> u8 {
        self.planes[1][i / 4].to_le_bytes()[i % 4]
    }

    /// Sets byte `i` of plane 1, which must be 0 before.
    pub fn set_param_byte(&mut self, i: usize, byte: u8) {
        self.planes[1][i / 4] |= u32::from(byte) << (8 * (i % 4));
    }

    /// Reads the 32 codes of one block of a row.
    pub fn codes(&self, row: usize, block: usize) -> [u8; 32] {
        let bits = self.layout.bits();
        let start = row * self.layout.row_words(self.cols) + block * bits;
        unpack_codes(bits, &self.planes[0][start..start + bits])
    }
}

/// The bit fields of a code of `bits` bits in block order: (width, shift in the code).
fn code_fields(bits: usize) -> &'static [(usize, u32)] {
    match bits {
        2 => &[(2, 0)],
        3 => &[(2, 0), (1, 2)],
        4 => &[(4, 0)],
        5 => &[(4, 0), (1, 4)],
        6 => &[(4, 0), (2, 4)],
        _ => &[(8, 0)],
    }
}

/// Packs 32 codes of `bits` bits into `bits` words, which must be zero.
pub fn pack_codes(bits: usize, codes: &[u8; 32], words: &mut [u32]) {
    let mut base = 0;
    for &(part, shift) in code_fields(bits) {
        let per_word = 32 / part;
        let mask = (1u32 << part) - 1;
        for (i, &code) in codes.iter().enumerate() {
            words[base + i / per_word] |=
                (u32::from(code) >> shift & mask) << (i % per_word * part);
        }
        base += part;
    }
}

/// Unpacks the 32 codes of a block of `bits` words.
pub fn unpack_codes(bits: usize, words: &[u32]) -> [u8; 32] {
    let mut codes = [0u8; 32];
    let mut base = 0;
    for &(part, shift) in code_fields(bits) {
        let per_word = 32 / part;
        let mask = (1u32 << part) - 1;
        for (i, code) in codes.iter_mut().enumerate() {
            *code |= ((words[base + i / per_word] >> (i % per_word * part) & mask) << shift) as u8;
        }
        base += part;
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_lie_where_the_layout_says() {
        for bits in [2usize, 3, 4, 5, 6, 8] {
            let codes: [u8; 32] =
                std::array::from_fn(|i| ((i * 37 + 11) & ((1 << bits) - 1)) as u8);
            let mut words = vec![0; bits];
            pack_codes(bits, &codes, &mut words);
            assert_eq!(unpack_codes(bits, &words), codes, "{bits} bits");
        }
        let mut codes = [0u8; 32];
        codes[9] = 0x3f;
        let mut words = [0; 6];
        pack_codes(6, &codes, &mut words);
        assert_eq!(words, [0, 0xf0, 0, 0, 3 << 18, 0]);
    }

    #[test]
    fn sizes() {
        let q4 = WeightLayout::Affine {
            bits: 4,
            group: 64,
            form: AffineForm::Bias,
            scale: Float::F16,
        };
        assert_eq!(q4.plane_bytes(3, 96), [3 * 48, 3 * 2 * 4]);
        assert_eq!(q4.name(), "q4_g64_bias_f16");
        let g16 = WeightLayout::Affine {
            bits: 2,
            group: 16,
            form: AffineForm::Bias,
            scale: Float::F32,
        };
        assert_eq!(g16.plane_bytes(1, 33), [16, 4 * 8]);
        assert_eq!(WeightLayout::Mxfp4.plane_bytes(3, 96), [3 * 48, 12]);
        assert_eq!(
            WeightLayout::Q6K.plane_bytes(2, 512),
            [2 * 16 * 24, 2 * 2 * 20]
        );
        assert_eq!(
            WeightLayout::Dense(Float::BF16).plane_bytes(2, 33),
            [2 * 128, 0]
        );
        assert_eq!(
            WeightLayout::Dense(Float::F32).plane_bytes(usize::MAX, 32)[0],
            u64::MAX
        );
    }

    #[test]
    fn floats_round_trip() {
        for f in [Float::F32, Float::F16, Float::BF16] {
            assert_eq!(f.from_bits(f.to_bits(-0.375)), -0.375);
            assert_eq!(f.get(&[0; 3], 0), (f != Float::F32).then_some(0.0));
            assert_eq!(f.get(&[0; 8], usize::MAX), None);
        }
    }
}
