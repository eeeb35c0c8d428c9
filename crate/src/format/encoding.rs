//! How a checkpoint stores a weight, and the canonical layout that each way of storing goes to.
//! Knows neither where the bytes come from nor how they get to the GPU.

use super::TensorInfo;
use super::ggml_type::GgmlType;
use super::layout::{Float, Form, Layout};
use crate::util::lists::sort_by;
use crate::{Error, Result};
use std::sync::Arc;

/// What one tensor of a file contributes to a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The elements or the packed codes.
    Weight,
    /// Scales per group, block, row or tensor.
    Scales,
    /// Biases per group (MLX).
    Biases,
    /// Zero points per group.
    Zeros,
    /// The group of each input (act-order).
    GroupIndex,
    /// One scale for all scales (NVFP4).
    GlobalScale,
    /// The table that 4-bit codes index (bitsandbytes).
    QuantMap,
    /// Scales of the scales (bitsandbytes' double quantization).
    NestedScales,
    /// The table that 8-bit scales index (bitsandbytes' double quantization).
    NestedMap,
}

/// One tensor of a file with its part in a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it contributes.
    pub role: Role,
    /// Where it lies; the range may be a slice of the tensor of that name.
    pub info: TensorInfo,
}

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Encoding {
    /// Numbers, row-major.
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
    /// E2M1 codes with an E4M3 byte per 16 and, in compressed-tensors, one f32 that divides the scales.
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
        /// Zero points are stored less one (checkpoint format v1).
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
        /// Codes are a dense bit stream (3, 5, 6, 7 bits); otherwise 32 / bits per word.
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
        /// The type of the scales.
        scale: Float,
    },
    /// bitsandbytes nf4 or fp4: nibbles (high first) that index a table of 16, scaled per block.
    Bnb4 {
        /// Elements per scale, counted through the whole matrix.
        block: usize,
        /// Scales per second-level scale, where the scales are quantised too.
        nested_block: Option<usize>,
        /// What is added to the second-level scales.
        nested_offset: f32,
        /// The type that the library computes in, to which the weights are rounded.
        dtype: Float,
    },
    /// bitsandbytes int8: signed bytes with the largest magnitude of each row.
    Bnb8,
    /// BitNet's packed safetensors: four rows per byte, one scale.
    BitNet {
        /// The stored scale divides (linear class `bitlinear`) instead of multiplying.
        divide: bool,
        /// The type of the scale.
        scale: Float,
    },
    /// Numbers that stand for ternary weights (BitNet's master weights): each is rounded by the mean magnitude of all.
    Ternarized(Float),
    /// Numbers whose rows are brought to the length that each has beside them (weight norm).
    Normed(Float),
    /// gpt-oss: nibbles (low first) in blocks of 32 with E8M0 bytes.
    Mxfp4Blocks,
}

impl Encoding {
    /// The layout that the weights are transcoded to.
    ///
    /// Where [`Encoding::is_exact`] says so, the layout's values in f32 are those of the source bit for bit. The others
    /// have no integer code: they become 16-bit numbers, rounded once from the exact f32 product, as their own libraries
    /// do. The exception is GPTQ with uneven groups, which only [`Layout::Dense`] f32 can hold; the transcoder decides
    /// that when it sees the group of each input.
    pub fn layout(&self, cols: usize) -> Option<Layout> {
        let affine =
            |bits, group, form, scale| group_of(group, cols).map(|group| Layout::Affine { bits, group, form, scale });
        match *self {
            Encoding::Dense(float) => Some(Layout::Dense(float)),
            Encoding::Normed(_) => Some(Layout::Dense(Float::F32)),
            Encoding::MlxAffine { bits, group, scale } => affine(code_bits(bits)?, group, Form::Bias, scale),
            Encoding::MlxMxfp4 | Encoding::Mxfp4Blocks => Some(Layout::Mxfp4),
            Encoding::MlxMxfp8 => Some(Layout::Dense(Float::BF16)),
            Encoding::Nvfp4 => affine(5, 16, Form::Zero, Float::F32),
            Encoding::Ggml(kind) => kind.layout(),
            Encoding::Mlc { scale, .. } => affine(4, 32, Form::Zero, scale),
            Encoding::Gptq { bits, group, scale, .. } | Encoding::PackQuantized { bits, group, scale, .. } => {
                affine(code_bits(bits)?, group, Form::Zero, zero_fits(scale, bits))
            }
            Encoding::Awq { group, scale } => affine(4, group, Form::Zero, scale),
            Encoding::Int8 { scale } => affine(8, cols, Form::Zero, scale),
            Encoding::Bnb8 => affine(8, cols, Form::Zero, Float::F32),
            Encoding::Fp8 { .. } => Some(Layout::Dense(Float::BF16)),
            Encoding::Bnb4 { dtype, .. } => Some(Layout::Dense(dtype)),
            Encoding::BitNet { .. } | Encoding::Ternarized(_) => Some(Layout::Ternary),
        }
    }

    /// Whether [`Encoding::layout`] holds the source's values without rounding.
    pub fn is_exact(&self) -> bool {
        match self {
            Encoding::Fp8 { .. } => false,
            Encoding::Bnb4 { dtype, .. } => *dtype == Float::F32,
            _ => true,
        }
    }

    /// The order that brings the columns of each group together, from the group of each column: None where they are
    /// together already. Groups of uneven size cannot be brought into a layout: those give an error.
    ///
    /// # Errors
    /// The reason as a sentence.
    pub fn column_order(&self, groups: &[u32]) -> std::result::Result<Option<Arc<[u32]>>, &'static str> {
        let (Encoding::Gptq { group, .. } | Encoding::PackQuantized { group, .. }) = *self else {
            return Err("Only GPTQ and compressed-tensors scatter groups.");
        };
        let home = |at: usize| u32::try_from(at / group.max(1)).unwrap_or(u32::MAX);
        if groups.iter().enumerate().all(|(k, g)| *g == home(k)) {
            return Ok(None);
        }
        let mut order: Vec<u32> = (0..groups.len() as u32).collect();
        sort_by(&mut order, |a, b| groups[*a as usize].cmp(&groups[*b as usize]));
        if order.iter().enumerate().any(|(at, k)| groups[*k as usize] != home(at)) {
            return Err("Its groups are of uneven size.");
        }
        Ok(Some(order.into()))
    }

    /// The name in text dumps and messages.
    pub fn name(&self) -> String {
        match self {
            Encoding::Dense(float) => float.name().into(),
            Encoding::Normed(float) => format!("{} with weight norm", float.name()),
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
            Encoding::PackQuantized { bits, group, .. } => format!("pack-quantized {bits} bit group {group}"),
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

/// The bits of the layout that holds codes of `bits` bits: 7 takes the room of 8.
fn code_bits(bits: u8) -> Option<u8> {
    match bits {
        2..=6 | 8 => Some(bits),
        7 => Some(8),
        _ => None,
    }
}

/// The type that holds both a scale of type `scale` and a zero point of `bits` bits: bf16 counts exactly to 256.
fn zero_fits(scale: Float, bits: u8) -> Float {
    if bits > 8 { Float::F32 } else { scale }
}

/// The largest group of a layout that a group of `group` splits into without a remainder.
fn group_of(group: usize, cols: usize) -> Option<u16> {
    if group >= cols {
        return Some(128);
    }
    [128u16, 64, 32, 16].into_iter().find(|g| group > 0 && group.is_multiple_of(usize::from(*g)))
}

/// How the rows of a stored matrix map to the rows that the model asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As stored.
    Stored,
    /// GGUF's llama family stores each head's rows for interleaved rotary: row j of the first half of a head of
    /// `head_rows` lies at 2j, row j of the second half at 2j + 1.
    Interleaved {
        /// Rows per head.
        head_rows: usize,
    },
    /// Parts of several products take turns in the stored matrix: `groups` times a run of each part (q, k and v of each
    /// head; a row of the gate, then one of up). The model asks for each part as a whole, one after the other.
    Apart {
        /// How often the runs come.
        groups: usize,
        /// Rows of each part's run; 0 for parts that there are not.
        runs: [usize; 4],
    },
    /// The stored matrix is [k, n]: its columns are the rows.
    Transposed,
}

impl RowOrder {
    /// The stored row of row `row`; of a transposed matrix, the column.
    pub fn stored(self, row: usize) -> usize {
        match self.apart() {
            None => row,
            Some((block, runs)) => {
                let (whole, mut rest) = (row / block, row % block);
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

    /// Rows of a block within which the order repeats, and the runs of its groups; None where rows lie as they are named.
    pub fn apart(self) -> Option<(usize, [usize; 4])> {
        match self {
            RowOrder::Stored | RowOrder::Transposed => None,
            RowOrder::Interleaved { head_rows } => Some((head_rows, [1, 1, 0, 0])),
            RowOrder::Apart { groups, runs } => Some((groups * runs.iter().sum::<usize>(), runs)),
        }
        .filter(|(block, _)| *block > 0)
    }
}

/// A weight by the name that its architecture knows, with all that is needed to read it.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSource {
    /// The name of the weight in a HuggingFace checkpoint, for instance `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Its shape, outermost dimension first; a matrix is [n, k].
    pub shape: Vec<usize>,
    /// How it is stored.
    pub encoding: Encoding,
    /// The tensors that it is made of.
    pub parts: Vec<Part>,
    /// Rows of the stored matrix: more than those of `shape` where this weight is a slice of a fused one.
    pub stored_rows: usize,
    /// The first stored row that belongs to this weight.
    pub first_row: usize,
    /// The order of the rows.
    pub row_order: RowOrder,
    /// What to add to every element of a dense weight (formats that store a norm's weight plus one: -1).
    pub offset: f32,
    /// The input that belongs to each column, where the layout keeps the columns of a group together (act-order).
    pub order: Option<Arc<[u32]>>,
}

impl WeightSource {
    /// A weight that is stored as it is named.
    pub fn new(name: &str, shape: Vec<usize>, encoding: Encoding, parts: Vec<Part>) -> WeightSource {
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
            order: None,
        }
    }

    /// Rows and columns of the weight as a matrix: all dimensions but the last are rows.
    pub fn rows_cols(&self) -> (usize, usize) {
        rows_cols(&self.shape)
    }

    /// The layout it goes to; an error that names the encoding where none fits.
    pub fn layout(&self) -> Result<Layout> {
        let (_, cols) = self.rows_cols();
        if self.offset != 0.0 {
            return Ok(Layout::Dense(Float::F32));
        }
        self.encoding.layout(cols).ok_or_else(|| self.unsupported("Its group size or bit width has no layout here."))
    }

    /// Reads an MLX weight anew as one of `cols` columns: its tensors alone tell only bits times group, and not every
    /// converter writes down where it departs from the common pair. Nothing changes where that does not fit.
    pub fn fit_cols(&mut self, cols: usize) {
        let Encoding::MlxAffine { scale, .. } = self.encoding else { return };
        let length = |role: Role| self.part(role).and_then(|t| t.shape.last().copied());
        let (Some(words), Some(groups)) = (length(Role::Weight), length(Role::Scales)) else { return };
        let divided = |n: usize, by: usize| n.checked_rem(by).filter(|rest| *rest == 0).map(|_| n / by);
        let bits = words.checked_mul(32).and_then(|n| divided(n, cols));
        if let (Some(bits @ (2..=6 | 8)), Some(group), Some(last)) =
            (bits, divided(cols, groups), self.shape.last_mut())
        {
            *last = cols;
            self.encoding = Encoding::MlxAffine { bits: bits as u8, group, scale };
        }
    }

    /// Whether the layout keeps the stored values bit for bit.
    pub fn is_exact(&self) -> bool {
        self.encoding.is_exact()
    }

    /// The tensor with a role.
    pub fn part(&self, role: Role) -> Option<&TensorInfo> {
        self.parts.iter().find(|p| p.role == role).map(|p| &p.info)
    }

    /// Whether its columns are scattered over groups (act-order).
    pub fn is_scattered(&self) -> bool {
        self.part(Role::GroupIndex).is_some()
    }

    /// Bytes to read from files for this weight.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.info.bytes()).sum()
    }

    /// The rows `first..first + shape's rows` of this weight under another name and shape.
    ///
    /// Encodings that keep rows together have their byte ranges narrowed; the others keep the whole tensor and read
    /// the rows out of it. None where the rows are not there.
    pub fn slice(&self, name: &str, first: usize, shape: Vec<usize>) -> Option<WeightSource> {
        let ((rows, cols), (n, k)) = (self.rows_cols(), rows_cols(&shape));
        if k != cols || first.checked_add(n)? > rows || self.row_order != RowOrder::Stored {
            return None;
        }
        let mut slice = WeightSource { name: name.into(), shape, ..self.clone() };
        slice.first_row = self.first_row.checked_add(first)?;
        if self.encoding.keeps_rows() {
            for part in &mut slice.parts {
                let (start, total) = (part.info.range.start, part.info.bytes());
                let per_row = total.checked_div(self.stored_rows as u64)?;
                if per_row.checked_mul(self.stored_rows as u64)? != total {
                    return None;
                }
                part.info.range =
                    start + slice.first_row as u64 * per_row..start + (slice.first_row + n) as u64 * per_row;
                part.info.shape = narrowed(&part.info.shape, self.stored_rows, n);
            }
            slice.first_row = 0;
            slice.stored_rows = n;
        }
        Some(slice)
    }

    /// The error for a weight that cannot be read.
    pub fn unsupported(&self, hint: &str) -> Error {
        Error::UnsupportedEncoding { tensor: self.name.clone(), encoding: self.encoding.name(), hint: hint.into() }
    }
}

/// The shape of `rows` rows of a tensor whose leading dimensions make up `stored` rows.
fn narrowed(shape: &[usize], stored: usize, rows: usize) -> Vec<usize> {
    let mut product = 1usize;
    for (i, d) in shape.iter().enumerate() {
        product = product.saturating_mul(*d);
        if product == stored {
            return std::iter::once(rows).chain(shape[i + 1..].iter().copied()).collect();
        }
    }
    vec![rows, shape.iter().product::<usize>().checked_div(stored).unwrap_or(0)]
}

impl Encoding {
    /// Whether every part of a matrix holds the rows one after the other, so that some rows are a range of bytes.
    pub fn keeps_rows(&self) -> bool {
        match self {
            Encoding::Dense(_)
            | Encoding::MlxAffine { .. }
            | Encoding::MlxMxfp4
            | Encoding::MlxMxfp8
            | Encoding::Mxfp4Blocks
            | Encoding::Mlc { transposed: false, .. } => true,
            Encoding::Ggml(kind) => *kind != GgmlType::I2S,
            _ => false,
        }
    }
}

/// Rows and columns of a shape as a matrix; a vector is one row.
pub fn rows_cols(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows @ .., cols] => (rows.iter().fold(1usize, |a, b| a.saturating_mul(*b)), *cols),
    }
}
