//! Options for loading and running a model.

use super::tune::TuneMode;
use crate::device::Caps;
use crate::ir::WeightKind;
use crate::kernels::attention::Kv;
use crate::kernels::matmul::QuantizeInputs;
use crate::plan::Fusions;
use crate::{Error, Result};

/// How many experts of each layer stay on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertBudget {
    /// This many per layer; at least as many as the router selects per token.
    PerLayer(usize),
    /// As many as fit in this many bytes.
    MaxBytes(u64),
}

/// Storage precision of unquantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// The stored precision if it fits device memory, else 8 or 4 bits.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// IEEE half precision.
    F16,
    /// 8 bits, quantized while loading.
    Q8,
    /// 4 bits, quantized while loading. Tables have 8 unless [`PrecisionOptions::tables`] is set. In
    /// models of up to 400 million weights, so have the matrices that read the residual stream
    /// (docs/quantization.md).
    Q4,
}

impl Precision {
    /// Name in reports; `auto` is resolved by then, unless the weights stay as stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "stored",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// Parses the value of the option `parameter`.
    pub fn from_name(parameter: &str, name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            "q4" => Ok(Self::Q4),
            other => Err(Error::Request {
                parameter: parameter.into(),
                reason: format!("'{other}' is not supported. Use auto, f32, f16, q8 or q4."),
            }),
        }
    }
}

/// Parses the value of the option `parameter`: the precision of the inputs of matmuls in prompts.
pub fn quantize_inputs_from_name(parameter: &str, name: &str) -> Result<QuantizeInputs> {
    match name {
        "auto" => Ok(QuantizeInputs::Auto),
        "f32" => Ok(QuantizeInputs::Never),
        "int8" => Ok(QuantizeInputs::Always),
        other => Err(Error::Request {
            parameter: parameter.into(),
            reason: format!("'{other}' is not supported. Use auto, f32 or int8."),
        }),
    }
}

/// Overrides of choices that otherwise depend on device capabilities.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrecisionOptions {
    /// Element type of the KV cache.
    pub kv_type: Option<Kv>,
    /// Storage precision of unquantized weights.
    pub precision: Precision,
    /// Storage precision of unquantized tables: embeddings and lm_head. `Auto` follows the other
    /// weights, with 8 bits instead of 4.
    pub tables: Precision,
    /// When matmuls of prompts quantize their input to 8 bits.
    pub activations: QuantizeInputs,
}

impl PrecisionOptions {
    /// The same options with another precision for weights other than tables.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Returns the storage precision of an unquantized weight by its kind.
    pub fn precision_of(&self, kind: WeightKind) -> Precision {
        match (kind, self.precision) {
            (WeightKind::Table, _) => {}
            // Few values, but the whole row depends on them.
            (WeightKind::Router, Precision::Q4 | Precision::Q8) => return Precision::Auto,
            (_, others) => return others,
        }
        match (self.tables, self.precision) {
            // Embedding and output tables lose most at low precision.
            (Precision::Auto, Precision::Q4) => Precision::Q8,
            (Precision::Auto, others) => others,
            (asked, _) => asked,
        }
    }
}

/// How a model is run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Positions of the KV cache, capped at the model's own maximum.
    pub max_context: Option<usize>,
    /// KV cache page size in positions; buffers grow by whole pages. 0 allocates everything at
    /// once.
    pub kv_growth: usize,
    /// Maximum device memory of a sequence's states in bytes, once it needs more than one page: KV
    /// caches beyond it are in main memory and take turns on the device.
    pub kv_memory: Option<u64>,
    /// Tokens of one prefill step; 0 selects 512, or 1,024 on large devices with
    /// subgroup matrices or packed dot products.
    pub prefill_chunk: usize,
    /// Whether short prompts may use a step of their own
    /// ([`Model::prepare_short`](super::Model::prepare_short)). Enabled by default where its
    /// kernels compile quickly: not on software adapters.
    pub short_prefill: Option<bool>,
    /// Maximum device memory of the model in bytes; by default what the device has room for.
    pub memory: Option<u64>,
    /// Bytes that the device has room for, as measured.
    pub room: Option<u64>,
    /// Fail if the model needs more, instead of warning.
    pub must_fit: bool,
    /// How many experts stay on the device; by default all, or as many as fit when memory is short.
    pub experts: Option<ExpertBudget>,
    /// Whether to prefetch the experts that the next layer will likely select.
    pub prefetch_experts: bool,
    /// Whether rows of lookup-only tables are read from the files on demand; by default only when
    /// memory is short.
    pub page_embeddings: Option<bool>,
    /// Whether the model stores the hidden states of its tokens for the multi-token-prediction head
    /// of the checkpoint: see [`Model::load_mtp_head`](super::Model::load_mtp_head).
    pub stores_hidden: bool,
    /// Weights larger than this many bytes are split over several buffers, even if the device
    /// supports larger ones.
    pub max_weight_buffer: Option<u64>,
    /// Decode steps of a submission; by default as many as take 25 ms on the device.
    pub batch_steps: Option<usize>,
    /// The enabled fusions.
    pub fusions: Fusions,
    /// Overrides of automatic choices.
    pub overrides: PrecisionOptions,
    /// Whether to autotune kernels on this device.
    pub tune: TuneMode,
}

impl RunOptions {
    /// Tokens of one prefill step on a device. Other devices gain little from more, and an abort
    /// would wait longer.
    pub fn prefill_chunk(&self, caps: &Caps) -> usize {
        match self.prefill_chunk {
            0 if caps.target_workgroups() >= 1024
                && (caps.matrix.is_some() || caps.multiplies_packed()) =>
            {
                1024
            }
            0 => 512,
            asked => asked,
        }
    }

    /// Bytes that a buffer of a weight may have on a device.
    pub fn weight_buffer_limit(&self, caps: &Caps) -> u64 {
        caps.max_weight_buffer()
            .min(self.max_weight_buffer.unwrap_or(u64::MAX))
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            max_context: None,
            kv_growth: 512,
            kv_memory: None,
            prefill_chunk: 0,
            short_prefill: None,
            memory: None,
            room: None,
            must_fit: false,
            experts: None,
            prefetch_experts: true,
            page_embeddings: None,
            stores_hidden: false,
            max_weight_buffer: None,
            batch_steps: None,
            fusions: Fusions::ALL,
            overrides: PrecisionOptions::default(),
            tune: TuneMode::default(),
        }
    }
}
