//! ggml's block types: names, sizes and the layout of each.

use super::layout::{AffineForm, Float, WeightLayout};

/// A ggml element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // the names are ggml's
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ1_S,
    IQ1_M,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    /// BitNet.cpp's ternary tensors as written by its x86 build (blocks of 128).
    I2S,
}

/// Type, number in GGUF files, name, elements per block, bytes per block.
const GGML_TYPES: [(GgmlType, u32, &str, usize, usize); 26] = [
    (GgmlType::F32, 0, "F32", 1, 4),
    (GgmlType::F16, 1, "F16", 1, 2),
    (GgmlType::Q4_0, 2, "Q4_0", 32, 18),
    (GgmlType::Q4_1, 3, "Q4_1", 32, 20),
    (GgmlType::Q5_0, 6, "Q5_0", 32, 22),
    (GgmlType::Q5_1, 7, "Q5_1", 32, 24),
    (GgmlType::Q8_0, 8, "Q8_0", 32, 34),
    (GgmlType::Q2_K, 10, "Q2_K", 256, 84),
    (GgmlType::Q3_K, 11, "Q3_K", 256, 110),
    (GgmlType::Q4_K, 12, "Q4_K", 256, 144),
    (GgmlType::Q5_K, 13, "Q5_K", 256, 176),
    (GgmlType::Q6_K, 14, "Q6_K", 256, 210),
    (GgmlType::IQ2_XXS, 16, "IQ2_XXS", 256, 66),
    (GgmlType::IQ2_XS, 17, "IQ2_XS", 256, 74),
    (GgmlType::IQ3_XXS, 18, "IQ3_XXS", 256, 98),
    (GgmlType::IQ1_S, 19, "IQ1_S", 256, 50),
    (GgmlType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (GgmlType::IQ3_S, 21, "IQ3_S", 256, 110),
    (GgmlType::IQ2_S, 22, "IQ2_S", 256, 82),
    (GgmlType::IQ4_XS, 23, "IQ4_XS", 256, 136),
    (GgmlType::IQ1_M, 29, "IQ1_M", 256, 56),
    (GgmlType::BF16, 30, "BF16", 1, 2),
    (GgmlType::TQ1_0, 34, "TQ1_0", 256, 54),
    (GgmlType::TQ2_0, 35, "TQ2_0", 256, 66),
    (GgmlType::I2S, 36, "I2_S", 128, 32),
    (GgmlType::MXFP4, 39, "MXFP4", 32, 17),
];

/// Known but unsupported types by number, to name them in errors.
const UNSUPPORTED: [(u32, &str); 12] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl GgmlType {
    /// The type with this number in a GGUF file, or the name of an unsupported one.
    pub fn from_number(number: u32) -> Result<GgmlType, String> {
        if let Some((kind, ..)) = GGML_TYPES.iter().find(|t| t.1 == number) {
            return Ok(*kind);
        }
        let known = UNSUPPORTED
            .iter()
            .find(|t| t.0 == number)
            .map(|t| t.1.to_string());
        Err(known.unwrap_or_else(|| format!("ggml type {number}")))
    }

    fn row(self) -> (GgmlType, u32, &'static str, usize, usize) {
        GGML_TYPES
            .iter()
            .copied()
            .find(|t| t.0 == self)
            .unwrap_or(GGML_TYPES[0])
    }

    /// All supported types.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        GGML_TYPES.iter().map(|t| t.0)
    }

    /// ggml's name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements per block.
    pub fn block_elements(self) -> usize {
        self.row().3
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }

    /// Bytes of a tensor of `rows` × `cols` elements; `None` if `cols` is not a multiple of the
    /// block size.
    pub fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let block = self.block_elements() as u64;
        if !cols.is_multiple_of(block) {
            return None;
        }
        let bytes = rows
            .checked_mul(cols / block)?
            .checked_mul(self.block_bytes() as u64)?;
        // I2_S ends with one scale and padding.
        if self == GgmlType::I2S {
            bytes.checked_add(32)
        } else {
            Some(bytes)
        }
    }

    /// The canonical layout.
    ///
    /// Q3_K uses Q6_K with smaller codes. Types whose codes index a table of integers (IQ*) store
    /// those integers.
    pub fn layout(self) -> Option<WeightLayout> {
        use GgmlType as G;
        let affine = |bits, group, form, scale| {
            Some(WeightLayout::Affine {
                bits,
                group,
                form,
                scale,
            })
        };
        match self {
            G::F32 => Some(WeightLayout::Dense(Float::F32)),
            G::F16 => Some(WeightLayout::Dense(Float::F16)),
            G::BF16 => Some(WeightLayout::Dense(Float::BF16)),
            G::Q4_0 => affine(4, 32, AffineForm::Zero, Float::F16),
            G::Q4_1 => affine(4, 32, AffineForm::Bias, Float::F16),
            G::Q5_0 => affine(5, 32, AffineForm::Zero, Float::F16),
            G::Q5_1 => affine(5, 32, AffineForm::Bias, Float::F16),
            G::Q8_0 | G::IQ4_NL => affine(8, 32, AffineForm::Zero, Float::F16),
            G::Q2_K => affine(2, 16, AffineForm::Bias, Float::F32),
            G::Q5_K => affine(5, 32, AffineForm::Bias, Float::F32),
            G::Q4_K => Some(WeightLayout::Q4K),
            G::Q3_K | G::Q6_K => Some(WeightLayout::Q6K),
            G::IQ2_XS | G::IQ2_S => affine(8, 16, AffineForm::Zero, Float::F32),
            G::IQ2_XXS | G::IQ3_XXS | G::IQ4_XS => affine(8, 32, AffineForm::Zero, Float::F32),
            G::IQ3_S | G::IQ1_S => affine(5, 32, AffineForm::Zero, Float::F32),
            G::IQ1_M => affine(5, 16, AffineForm::Zero, Float::F32),
            G::TQ1_0 | G::TQ2_0 => affine(2, 128, AffineForm::Zero, Float::F16),
            G::MXFP4 => Some(WeightLayout::Mxfp4),
            G::I2S => Some(WeightLayout::Ternary),
        }
    }
}

/// 32 elements of a block: their codes and the pairs of the first and last 16.
pub(super) struct SubBlock {
    pub codes: [u8; 32],
    pub pairs: [(f32, f32); 2],
}

impl SubBlock {
    pub(super) fn new(pair: (f32, f32), code: impl Fn(usize) -> u8) -> SubBlock {
        SubBlock {
            codes: std::array::from_fn(code),
            pairs: [pair; 2],
        }
    }
}

/// Reads the f16 at byte `at` of a block.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    Float::F16.from_bits(u32::from(block[at]) | u32::from(block[at + 1]) << 8)
}
