//! Weight encodings of checkpoints and the canonical layout of each. Does not depend on files or
//! the GPU.

use super::TensorInfo;
use super::ggml_type::GgmlType;
use super::layout::{AffineForm, Float, WeightLayout};
use crate::util::sort::sort_by;
use crate::{Error, Result};
use std::sync::Arc;

/// The role of a tensor in a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartRole {
    /// Elements or packed codes.
    Weight,
    /// Scales per group, block, row or tensor.
    Scales,
    /// Biases per group (MLX).
    Biases,
    /// Zero points per group.
    Zeros,
    /// Group of each input (act-order).
    GroupIndex,
    /// What all scales are divided by (NVFP4 of compressed-tensors).
    GlobalScale,
    /// What all scales are multiplied by (NVFP4 of ModelOpt).
    GlobalFactor,
    /// The table indexed by 4-bit codes (bitsandbytes).
    QuantMap,
    /// Scales of the scales (bitsandbytes' double quantization).
    NestedScales,
    /// The table indexed by 8-bit scales (bitsandbytes' double quantization).
    NestedMap,
}

/// A stored tensor and its role in a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPart {
    /// Role in the weight.
    pub role: PartRole,
    /// Location; the range can be a slice of the tensor with that name.
    pub info: TensorInfo,
}

/// A weight encoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Encoding {
    /// Unquantized, row-major.
    Dense(Float),
    /// MLX: a bit stream per row, scale and bias per group.
    MlxAffine {
        /// Bits per code.
        bits: u8,
        /// Elements per group.
        group: usize,
        /// The type of scales and biases.
        scale: Float,
    },
    /// MLX mode `mxfp4`: E2M1 codes, an E8M0 byte per 32.
    MlxMxfp4,
    /// MLX mode `mxfp8`: E4M3 bytes, an E8M0 byte per 32.
    MlxMxfp8,
    /// E2M1 codes with an E4M3 byte per 16 and, in compressed-tensors, one f32 that divides the
    /// scales.
    Nvfp4,
    /// A GGUF block type.
    Ggml(GgmlType),
    /// MLC's 4-bit group quantization: `(q - 7) * scale`, group 32.
    Mlc {
        /// Stored K × N (q4f16_0) instead of N × K.
        transposed: bool,
        /// The type of the scales.
        scale: Float,
    },
    /// GPTQ: codes packed along K, zero points along N, f16 scales.
    Gptq {
        /// Bits per code.
        bits: u8,
        /// Elements per group (K where there is one group per column).
        group: usize,
        /// Zero points are stored minus one (checkpoint format v1).
        minus_one: bool,
        /// The type of the scales.
        scale: Float,
    },
    /// AWQ, GEMM version: nibbles packed along N in the order 0 2 4 6 1 3 5 7.
    Awq {
        /// Elements per group.
        group: usize,
        /// The type of the scales.
        scale: Float,
    },
    /// compressed-tensors `pack-quantized`: codes with an offset of half the range, packed along K.
    PackQuantized {
        /// Bits per code.
        bits: u8,
        /// Elements per group (K where there is one scale per row).
        group: usize,
        /// Codes are a dense bit stream (3, 5, 6, 7 bits), else 32 / bits per word.
        stream: bool,
        /// The type of the scales.
        scale: Float,
    },
    /// Signed bytes with a scale per row or tensor (compressed-tensors `int-quantized`).
    Int8 {
        /// The type of the scales.
        scale: Float,
    },
    /// E4M3 bytes with a scale per block, row or tensor.
    Fp8 {
        /// Rows and columns that share a scale.
        block: (usize, usize),
        /// The stored scales divide (GPTQModel) instead of multiplying.
        divide: bool,
        /// The type of the scales.
        scale: Float,
    },
    /// bitsandbytes nf4 or fp4: nibbles (high first) that index a table of 16, scaled per block.
    Bnb4 {
        /// Elements per scale, counted through the whole matrix.
        block: usize,
        /// Scales per second-level scale, if the scales are quantized too.
        nested_block: Option<usize>,
        /// Offset added to the second-level scales.
        nested_offset: f32,
        /// The compute type of bitsandbytes, to which the weights are rounded.
        dtype: Float,
    },
    /// bitsandbytes int8: signed bytes and the largest magnitude of each row.
    Bnb8,
    /// BitNet's packed safetensors: four rows per byte, one scale.
    BitNet {
        /// The stored scale divides (linear class `bitlinear`) instead of multiplying.
        divide: bool,
        /// The type of the scale.
        scale: Float,
    },
    /// Unquantized BitNet master weights that are ternarized on load by the mean magnitude of the
    /// tensor.
    Ternarized(Float),
    /// Unquantized f64, read as f32.
    F64,
    /// Weight norm: unquantized directions and one length per row.
    WeightNorm(Float),
    /// gpt-oss: nibbles (low first) in blocks of 32 with E8M0 bytes.
    Mxfp4Blocks,
}

impl Encoding {
    /// The layout that the weight is transcoded to.
    ///
    /// If [`Encoding::is_exact`], the layout's values in f32 equal the source bit for bit. Other
    /// encodings have no integer code: they become 16-bit floating point, rounded once from the
    /// exact f32 value, as in their own libraries. Exception: GPTQ with uneven groups fits only
    /// [`WeightLayout::Dense`] f32; the transcoder decides this from the group of each input.
    pub fn layout(&self, cols: usize) -> Option<WeightLayout> {
        let affine = |bits, group, form, scale| {
            layout_group(group, cols).map(|group| WeightLayout::Affine {
                bits,
                group,
                form,
                scale,
            })
        };
        match *self {
            Encoding::Dense(float) => Some(WeightLayout::Dense(float)),
            Encoding::F64 | Encoding::WeightNorm(_) => Some(WeightLayout::Dense(Float::F32)),
            Encoding::MlxAffine { bits, group, scale } => {
                affine(layout_bits(bits)?, group, AffineForm::Bias, scale)
            }
            Encoding::MlxMxfp4 | Encoding::Mxfp4Blocks => Some(WeightLayout::Mxfp4),
            Encoding::MlxMxfp8 => Some(WeightLayout::Dense(Float::BF16)),
            Encoding::Nvfp4 => affine(5, 16, AffineForm::Zero, Float::F32),
            Encoding::Ggml(kind) => kind.layout(),
            Encoding::Mlc { scale, .. } => affine(4, 32, AffineForm::Zero, scale),
            Encoding::Gptq {
                bits, group, scale, ..
            }
            | Encoding::PackQuantized {
                bits, group, scale, ..
            } => affine(
                layout_bits(bits)?,
                group,
                AffineForm::Zero,
                pair_type(scale, bits),
            ),
            Encoding::Awq { group, scale } => affine(4, group, AffineForm::Zero, scale),
            Encoding::Int8 { scale } => affine(8, cols, AffineForm::Zero, scale),
            Encoding::Bnb8 => affine(8, cols, AffineForm::Zero, Float::F32),
            Encoding::Fp8 { .. } => Some(WeightLayout::Dense(Float::BF16)),
            Encoding::Bnb4 { dtype, .. } => Some(WeightLayout::Dense(dtype)),
            Encoding::BitNet { .. } | Encoding::Ternarized(_) => Some(WeightLayout::Ternary),
        }
    }

    /// Whether [`Encoding::layout`] represents the source values without rounding.
    pub fn is_exact(&self) -> bool {
        match self {
            Encoding::Fp8 { .. } => false,
            Encoding::Bnb4 { dtype, .. } => *dtype == Float::F32,
            _ => true,
        }
    }

    /// The column order that makes each group contiguous, from the group of each column. `None` if
    /// the groups are contiguous already.
    ///
    /// # Errors
    /// A sentence with the reason, for example groups of uneven size.
    pub fn column_order(&self, groups: &[u32]) -> Result<Option<Arc<[u32]>>, &'static str> {
        let (Encoding::Gptq { group, .. } | Encoding::PackQuantized { group, .. }) = *self else {
            return Err("Only GPTQ and compressed-tensors support scattered groups.");
        };
        let home = |at: usize| u32::try_from(at / group.max(1)).unwrap_or(u32::MAX);
        if groups.iter().enumerate().all(|(k, g)| *g == home(k)) {
            return Ok(None);
        }
        let mut order: Vec<u32> = (0..groups.len() as u32).collect();
        sort_by(&mut order, |a, b| {
            groups[*a as usize].cmp(&groups[*b as usize])
        });
        if order
            .iter()
            .enumerate()
            .any(|(at, k)| groups[*k as usize] != home(at))
        {
            return Err("Its groups have different sizes.");
        }
        Ok(Some(order.into()))
    }

    /// Name in text dumps and messages.
    pub fn name(&self) -> String {
        match self {
            Encoding::Dense(float) => float.name().into(),
            Encoding::F64 => "f64".into(),
            Encoding::WeightNorm(float) => format!("{} with weight norm", float.name()),
            Encoding::MlxAffine { bits, group, .. } => format!("mlx {bits} bit group {group}"),
            Encoding::MlxMxfp4 => "mlx mxfp4".into(),
            Encoding::MlxMxfp8 => "mlx mxfp8".into(),
            Encoding::Nvfp4 => "nvfp4".into(),
            Encoding::Ggml(kind) => format!("gguf {}", kind.name()),
            Encoding::Mlc { transposed, scale } => {
                format!("mlc q4{}_{}", scale.name(), if *transposed { 0 } else { 1 })
            }
            Encoding::Gptq { bits, group, .. } => format!("gptq {bits} bit group {group}"),
            Encoding::Awq { group, .. } => format!("awq 4 bit group {group}"),
            Encoding::PackQuantized { bits, group, .. } => {
                format!("pack-quantized {bits} bit group {group}")
            }
            Encoding::Int8 { .. } => "int8".into(),
            Encoding::Fp8 { .. } => "fp8 e4m3".into(),
            Encoding::Bnb4 { .. } => "bitsandbytes 4 bit".into(),
            Encoding::Bnb8 => "bitsandbytes int8".into(),
            Encoding::BitNet { .. } => "bitnet ternary".into(),
            Encoding::Ternarized(float) => format!("{} for ternary", float.name()),
            Encoding::Mxfp4Blocks => "mxfp4".into(),
        }
    }
}

/// Bits per code in the layout for codes of `bits` bits: 7 is stored as 8.
fn layout_bits(bits: u8) -> Option<u8> {
    match bits {
        2..=6 | 8 => Some(bits),
        7 => Some(8),
        _ => None,
    }
}

/// The type for both a scale of type `scale` and a zero point of `bits` bits; bf16 represents
/// integers exactly up to 256.
fn pair_type(scale: Float, bits: u8) -> Float {
    if bits > 8 { Float::F32 } else { scale }
}

/// The largest layout group size that divides `group`.
fn layout_group(group: usize, cols: usize) -> Option<u16> {
    if group >= cols {
        return Some(128);
    }
    [128u16, 64, 32, 16]
        .into_iter()
        .find(|g| group > 0 && group.is_multiple_of(usize::from(*g)))
}

/// The mapping from the model's rows to the stored ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As stored.
    Stored,
    /// The llama family in GGUF stores each head's rows for interleaved RoPE. In a head of
    /// `head_rows`, row j of the first half is stored at 2j and row j of the second half at 2j + 1.
    Interleaved {
        /// Rows per head.
        head_rows: usize,
    },
    /// Several matrices are stored interleaved: `groups` blocks of each (q, k and v per head;
    /// one row of gate, one of up). The model reads each matrix as a contiguous block.
    Grouped {
        /// Number of groups.
        groups: usize,
        /// Rows per group of each matrix; 0 for unused entries.
        group_rows: [usize; 4],
    },
    /// The stored matrix is [k, n]: its columns are the model's rows.
    Transposed,
    /// Rows are as stored. Each is a convolution's window, whose channels are stored last (MLX) and
    /// come first in the model.
    ChannelsLast {
        /// Number of channels.
        channels: usize,
    },
}

impl RowOrder {
    /// Maps row `row` to the stored row; for a transposed matrix, to the stored column.
    pub fn stored_row(self, row: usize) -> usize {
        match self.grouping() {
            None => row,
            Some((block, runs)) => {
                let whole = row / block;
                let mut rest = row % block;

                let group: usize = runs.iter().sum();
                let groups = block / group;
                let mut before = 0;
                for run in runs {
                    if rest < groups * run {
                        return whole * block + rest / run * group + before + rest % run;
                    }
                    rest -= groups * run;
                    before += run;
                }
                row
            }
        }
    }

    /// Rows of the block that repeats, and rows per group of each matrix. `None` for rows in stored
    /// order.
    pub fn grouping(self) -> Option<(usize, [usize; 4])> {
        match self {
            RowOrder::Stored | RowOrder::Transposed | RowOrder::ChannelsLast { .. } => None,
            RowOrder::Interleaved { head_rows } => Some((head_rows, [1, 1, 0, 0])),
            RowOrder::Grouped {
                groups,
                group_rows: runs,
            } => Some((groups * runs.iter().sum::<usize>(), runs)),
        }
        .filter(|(block, _)| *block > 0)
    }
}

/// A weight under its HuggingFace name, with everything needed to read it.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSource {
    /// Name in a HuggingFace checkpoint, for example `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape, outermost dimension first; a matrix is [n, k].
    pub shape: Vec<usize>,
    /// Encoding.
    pub encoding: Encoding,
    /// The stored tensors.
    pub parts: Vec<StoredPart>,
    /// Rows of the stored matrix: more than in `shape` if this weight is a slice of a fused matrix.
    pub stored_rows: usize,
    /// First stored row of this weight.
    pub first_row: usize,
    /// Row order.
    pub row_order: RowOrder,
    /// Value added to every element of a dense weight (-1 for formats that store a norm's weight
    /// plus one).
    pub offset: f32,
    /// The input of each column, if the layout reorders columns by group (act-order).
    pub column_order: Option<Arc<[u32]>>,
}

impl WeightSource {
    /// Creates a weight that is stored under its own name and shape.
    pub fn new(
        name: &str,
        shape: Vec<usize>,
        encoding: Encoding,
        parts: Vec<StoredPart>,
    ) -> WeightSource {
        let stored_rows = rows_cols(&shape).0;
        WeightSource {
            name: name.into(),
            shape,
            encoding,
            parts,
            stored_rows,
            first_row: 0,
            row_order: RowOrder::Stored,
            offset: 0.0,
            column_order: None,
        }
    }

    /// Rows and columns as a matrix: all dimensions but the last are rows.
    pub fn rows_cols(&self) -> (usize, usize) {
        rows_cols(&self.shape)
    }

    /// The layout of this weight; an error with the encoding's name if none fits.
    pub fn layout(&self) -> Result<WeightLayout> {
        let (_, cols) = self.rows_cols();
        if self.offset != 0.0 {
            return Ok(WeightLayout::Dense(Float::F32));
        }
        if self.is_transposed_code() {
            return Ok(WeightLayout::Dense(Float::F16));
        }
        self.encoding.layout(cols).ok_or_else(|| {
            self.unsupported(
                "Its group size or bit width is not supported; use a checkpoint with another quantization.",
            )
        })
    }

    /// Reinterprets an MLX weight with `cols` columns. Its tensors define only bits × group, and
    /// some converters do not record per-module exceptions. Does nothing if `cols` does not fit.
    pub fn set_cols(&mut self, cols: usize) {
        let Encoding::MlxAffine { scale, .. } = self.encoding else {
            return;
        };
        if self.row_order == RowOrder::Transposed {
            return;
        }
        let length = |role: PartRole| self.part(role).and_then(|t| t.shape.last().copied());
        let (Some(words), Some(groups)) = (length(PartRole::Weight), length(PartRole::Scales))
        else {
            return;
        };
        let divided =
            |n: usize, by: usize| n.checked_rem(by).filter(|rest| *rest == 0).map(|_| n / by);
        let bits = words.checked_mul(32).and_then(|n| divided(n, cols));
        if let (Some(bits @ (2..=6 | 8)), Some(group), Some(last)) =
            (bits, divided(cols, groups), self.shape.last_mut())
        {
            *last = cols;
            self.encoding = Encoding::MlxAffine {
                bits: bits as u8,
                group,
                scale,
            };
        }
    }

    /// Whether the layout represents the stored values exactly.
    pub fn is_exact(&self) -> bool {
        self.encoding.is_exact() && !self.is_transposed_code()
    }

    /// Whether the weight is quantized along the model's rows. It is dequantized while loading.
    pub fn is_transposed_code(&self) -> bool {
        let is_dense = matches!(self.encoding, Encoding::Dense(_) | Encoding::F64);
        self.row_order == RowOrder::Transposed && !is_dense
    }

    /// The transpose of a matrix that is stored as a whole.
    ///
    /// # Errors
    /// `UnsupportedEncoding` for encodings without a dequantization.
    pub fn transposed(self) -> Result<WeightSource> {
        let (k, n) = self.rows_cols();
        match self.encoding {
            Encoding::Dense(_) | Encoding::MlxAffine { .. } | Encoding::MlxMxfp8 => {
                Ok(WeightSource {
                    shape: vec![n, k],
                    stored_rows: n,
                    row_order: RowOrder::Transposed,
                    ..self
                })
            }
            _ => Err(self.unsupported(
                "An MLX conversion of this family cannot be read in this mode; use the original repository or an affine conversion, for example of 4 bits.",
            )),
        }
    }

    /// The tensor with this role.
    pub fn part(&self, role: PartRole) -> Option<&TensorInfo> {
        self.parts.iter().find(|p| p.role == role).map(|p| &p.info)
    }

    /// Whether the columns are scattered over groups (act-order).
    pub fn is_scattered(&self) -> bool {
        self.part(PartRole::GroupIndex).is_some()
    }

    /// Bytes to read from files.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.info.bytes()).sum()
    }

    /// The rows `first..first + n` of this weight under another name and shape [n, …].
    ///
    /// Encodings with contiguous rows get narrower byte ranges; the others reference the whole
    /// tensor and select the rows when decoding. `None` if the rows do not exist.
    pub fn slice(&self, name: &str, first: usize, shape: Vec<usize>) -> Option<WeightSource> {
        let (rows, cols) = self.rows_cols();
        let (n, k) = rows_cols(&shape);

        if k != cols || first.checked_add(n)? > rows || self.row_order != RowOrder::Stored {
            return None;
        }
        let mut slice = WeightSource {
            name: name.into(),
            shape,
            ..self.clone()
        };
        slice.first_row = self.first_row.checked_add(first)?;
        if self.encoding.has_contiguous_rows() {
            for part in &mut slice.parts {
                let start = part.info.range.start;
                let total = part.info.bytes();

                let per_row = total.checked_div(self.stored_rows as u64)?;
                if per_row.checked_mul(self.stored_rows as u64)? != total {
                    return None;
                }
                part.info.range = start + slice.first_row as u64 * per_row
                    ..start + (slice.first_row + n) as u64 * per_row;
                part.info.shape = with_rows(&part.info.shape, self.stored_rows, n);
            }
            slice.first_row = 0;
            slice.stored_rows = n;
        }
        Some(slice)
    }

    /// The rows `first..first + n` of a matrix, or these elements of a dense vector, under another
    /// name.
    pub fn slice_rows(&self, name: &str, first: usize, n: usize) -> Option<WeightSource> {
        let &[length] = &self.shape[..] else {
            return self.slice(name, first, vec![n, self.rows_cols().1]);
        };
        let as_rows = WeightSource {
            shape: vec![length, 1],
            stored_rows: length,
            ..self.clone()
        };
        let mut slice = as_rows.slice(name, first, vec![n, 1])?;
        (slice.shape, slice.stored_rows) = (vec![n], 1);
        Some(slice)
    }

    /// Builds `UnsupportedEncoding` for this weight.
    pub fn unsupported(&self, hint: &str) -> Error {
        Error::UnsupportedEncoding {
            tensor: self.name.clone(),
            encoding: self.encoding.name(),
            hint: hint.into(),
        }
    }
}

/// The shape of `rows` rows of a tensor whose leading dimensions multiply to `stored` rows.
fn with_rows(shape: &[usize], stored: usize, rows: usize) -> Vec<usize> {
    let mut product = 1usize;
    for (i, d) in shape.iter().enumerate() {
        product = product.saturating_mul(*d);
        if product == stored {
            return std::iter::once(rows)
                .chain(shape[i + 1..].iter().copied())
                .collect();
        }
    }
    vec![
        rows,
        shape
            .iter()
            .product::<usize>()
            .checked_div(stored)
            .unwrap_or(0),
    ]
}

impl Encoding {
    /// Whether every part stores its rows contiguously, so that a range of rows is a range of
    /// bytes.
    pub fn has_contiguous_rows(&self) -> bool {
        match self {
            Encoding::Dense(_)
            | Encoding::MlxAffine { .. }
            | Encoding::MlxMxfp4
            | Encoding::MlxMxfp8
            | Encoding::Mxfp4Blocks
            | Encoding::Mlc {
                transposed: false, ..
            } => true,
            Encoding::Ggml(kind) => *kind != GgmlType::I2S,
            _ => false,
        }
    }
}

/// Rows and columns of a shape as a matrix; a vector has one row.
pub fn rows_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().fold(1usize, |a, b| a.saturating_mul(*b)), *cols),
    }
}
