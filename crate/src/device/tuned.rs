//! The tuning table: the fastest GEMV variant per weight layout and tuning constants, consulted before a kernel
//! family's own rules. `exec::tune` measures them.

use super::registry::Kernel;
use crate::format::layout::Layout;
use serde::{Serialize, Serializer};

/// The GEMV variants for quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GemvPick {
    /// A few rows of weights per workgroup (shaders/matmul/gemv.wgsl).
    Rows,
    /// Whole blocks of weights per thread (shaders/matmul/gemv_blocks.wgsl), in floating point.
    Blocks,
    /// As `Blocks`, with packed 4×8-bit dot products.
    PackedBlocks,
}

impl GemvPick {
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

impl Serialize for GemvPick {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The fastest variants of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuned {
    gemv: Vec<(Layout, GemvPick)>,
    numbers: Vec<(Kernel, &'static str, u32)>,
    /// Whether dispatches are so expensive that plans should use fewer.
    pub dear: bool,
}

impl Tuned {
    /// An empty table of a device whose dispatches are expensive or not.
    pub fn empty(dear: bool) -> Self {
        Self { dear, ..Self::default() }
    }

    /// Adds or replaces the entry of a layout.
    pub fn with(mut self, layout: Layout, pick: GemvPick) -> Self {
        self.gemv.retain(|(l, _)| *l != layout);
        self.gemv.push((layout, pick));
        self
    }

    /// Adds a tuning constant of a kernel family.
    pub fn set(mut self, kernel: Kernel, name: &'static str, value: u32) -> Self {
        self.numbers.push((kernel, name, value));
        self
    }

    /// Appends the entries of another table; earlier entries take precedence.
    pub fn and(mut self, other: &Self) -> Self {
        self.gemv.extend(&other.gemv);
        self.numbers.extend(&other.numbers);
        self
    }

    /// A tuning constant of a kernel family.
    pub fn number(&self, kernel: Kernel, name: &str) -> Option<u32> {
        self.numbers.iter().find(|(k, n, _)| *k == kernel && *n == name).map(|(_, _, value)| *value)
    }

    /// The GEMV variant of a layout.
    pub fn gemv(&self, layout: Layout) -> Option<GemvPick> {
        self.gemv.iter().find(|(l, _)| *l == layout).map(|(_, pick)| *pick)
    }
}
