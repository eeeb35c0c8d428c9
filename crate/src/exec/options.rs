//! What a caller may decide about running a model.

use super::tune::Tune;
use crate::device::Caps;
use crate::ir::WeightKind;
use crate::kernels::attention::Kv;
use crate::plan::Fusions;
use crate::{Error, Result};

/// How many experts of each layer are kept on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resident {
    /// So many of each layer; never fewer than a token picks.
    Count(usize),
    /// As many as so many bytes hold.
    Bytes(u64),
}

/// The element type that unquantized weights are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// As they are stored where the device has room for that, else 8 or 4 bits.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// IEEE half precision.
    F16,
    /// 8 bits, quantised while loading.
    Q8,
    /// 4 bits, quantised while loading; tables at 8 unless [`Overrides::tables`] says otherwise, and in models of up to 400
    /// million weights also the matrices that read the residual stream (docs/quantization.md).
    Q4,
}

impl Precision {
    /// Its name in reports; `auto` has become something else by then, unless the weights stay as they are stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "stored",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// By its name in the option `parameter`.
    pub fn from_name(parameter: &str, name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8" => Ok(Self::Q8),
            "q4" => Ok(Self::Q4),
            other => Err(Error::Request {
                parameter: parameter.into(),
                reason: format!("'{other}' is not one of auto, f32, f16, q8, q4"),
            }),
        }
    }
}

/// Choices that are otherwise made by capability.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// Element type of the KV cache.
    pub kv: Option<Kv>,
    /// Element type of unquantized weights.
    pub precision: Precision,
    /// Element type of unquantized tables: embeddings and lm_head. `Auto` is the other weights', but 8 bits beside 4.
    pub tables: Precision,
}

impl Overrides {
    /// These choices with another precision of the weights that are no tables.
    pub fn with(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// What a weight is kept in where it is not quantised in the checkpoint, by what it is used as.
    pub fn precision_of(&self, kind: WeightKind) -> Precision {
        match (kind, self.precision) {
            (WeightKind::Table, _) => {}
            // A few numbers on which all others of a row depend.
            (WeightKind::Router, Precision::Q4 | Precision::Q8) => return Precision::Auto,
            (_, others) => return others,
        }
        match (self.tables, self.precision) {
            // The tables that words are read from and compared with suffer most from few bits.
            (Precision::Auto, Precision::Q4) => Precision::Q8,
            (Precision::Auto, others) => others,
            (asked, _) => asked,
        }
    }
}

/// How a model is run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Positions of the KV cache; the model's own maximum bounds it.
    pub max_context: Option<usize>,
    /// Positions of a page: memory for keys and values comes in whole pages as a sequence grows; 0 for all of it at once.
    pub page: usize,
    /// Tokens of one prefill step; 0 for 512, or 1,024 on large devices with matrix units.
    pub chunk: usize,
    /// Whether short prompts may get a step of their own ([`Model::prepare_short`](super::Model::prepare_short)); by default
    /// where its kernels are soon compiled: not on software adapters.
    pub short: Option<bool>,
    /// Bytes of device memory that the model may take; by default the estimated memory of the device, where there is an estimate.
    pub memory: Option<u64>,
    /// Refuse a model that takes more, rather than warn of it.
    pub must_fit: bool,
    /// How many experts stay on the device; by default all, or as many as fit where memory is short.
    pub experts: Option<Resident>,
    /// Whether the next layer's likely experts are fetched before they are picked.
    pub look_ahead: bool,
    /// Whether the rows of tables that are only looked up come from the files as tokens need them; by default where memory is short.
    pub table_rows: Option<bool>,
    /// Weights over so many bytes lie in several buffers, also where the device has room for more in one.
    pub max_weight_buffer: Option<u64>,
    /// Which fusions are made.
    pub fusions: Fusions,
    /// Choices instead of the automatic ones.
    pub overrides: Overrides,
    /// Whether it is measured which kernels are the fastest here.
    pub tune: Tune,
}

impl RunOptions {
    /// Tokens of one prefill step on a device. What more of them would gain on others, an abort would wait for.
    pub fn chunk(&self, caps: &Caps) -> usize {
        match self.chunk {
            0 if caps.matrix.is_some() && caps.full_load() >= 1024 => 1024,
            0 => 512,
            asked => asked,
        }
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            max_context: None,
            page: 512,
            chunk: 0,
            short: None,
            memory: None,
            must_fit: false,
            experts: None,
            look_ahead: true,
            table_rows: None,
            max_weight_buffer: None,
            fusions: Fusions::ALL,
            overrides: Overrides::default(),
            tune: Tune::default(),
        }
    }
}
