//! The tuning table: the fastest GEMV variant per weight layout and tuning constants, consulted
//! before a kernel family's own rules. `exec::tune` measures them.

use super::registry::Kernel;
use crate::format::layout::WeightLayout;
use serde::{Serialize, Serializer};

/// The GEMV variants for quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GemvVariant {
    /// A few rows of weights per workgroup (shaders/matmul/gemv.wgsl).
    Rows,
    /// Whole blocks of weights per thread (shaders/matmul/gemv_blocks.wgsl), in floating point.
    Blocks,
    /// As `Blocks`, with packed 4×8-bit dot products.
    PackedBlocks,
}

impl GemvVariant {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Rows, Self::Blocks, Self::PackedBlocks];

    /// Name in reports and stored tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Blocks => "blocks",
            Self::PackedBlocks => "packedBlocks",
        }
    }

    /// Parses a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pick| pick.name() == name)
    }
}

impl Serialize for GemvVariant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The fastest variants of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TuningTable {
    gemv: Vec<(WeightLayout, GemvVariant)>,
    constants: Vec<(Kernel, &'static str, u32)>,
    /// Whether dispatches are so expensive that plans should use fewer.
    pub expensive_dispatch: bool,
}

impl TuningTable {
    /// An empty table of a device whose dispatches are expensive or not.
    pub fn empty(expensive_dispatch: bool) -> Self {
        Self {
            expensive_dispatch,
            ..Self::default()
        }
    }

    /// Adds or replaces the entry of a layout.
    pub fn with_gemv(mut self, layout: WeightLayout, pick: GemvVariant) -> Self {
        self.gemv.retain(|(l, _)| *l != layout);
        self.gemv.push((layout, pick));
        self
    }

    /// Adds a tuning constant of a kernel family.
    pub fn with_constant(mut self, kernel: Kernel, name: &'static str, value: u32) -> Self {
        self.constants.push((kernel, name, value));
        self
    }

    /// Appends the entries of another table; earlier entries take precedence.
    pub fn merged_with(mut self, other: &Self) -> Self {
        self.gemv.extend(&other.gemv);
        self.constants.extend(&other.constants);
        self
    }

    /// A tuning constant of a kernel family.
    pub fn constant(&self, kernel: Kernel, name: &str) -> Option<u32> {
        self.constants
            .iter()
            .find(|(k, n, _)| *k == kernel && *n == name)
            .map(|(_, _, value)| *value)
    }

    /// The GEMV variant of a layout.
    pub fn gemv(&self, layout: WeightLayout) -> Option<GemvVariant> {
        self.gemv
            .iter()
            .find(|(l, _)| *l == layout)
            .map(|(_, pick)| *pick)
    }
}
