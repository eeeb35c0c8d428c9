//! Which kernel variant a device runs fastest, by the layout of the weights: a table that the families consult before
//! their own rules. Knows the variants by name; how they are timed is `exec::tune`'s business.

use super::registry::Kernel;
use crate::format::layout::Layout;
use serde::{Serialize, Serializer};

/// How a product of one row of x goes through quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GemvPick {
    /// A few rows of weights for a workgroup (shaders/matmul/gemv.wgsl).
    Rows,
    /// Whole blocks of weights for a thread (shaders/matmul/gemv_blocks.wgsl), multiplied as floats.
    Blocks,
    /// The same, multiplied as packed bytes.
    PackedBlocks,
}

impl GemvPick {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Rows, Self::Blocks, Self::PackedBlocks];

    /// Its name in reports and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Blocks => "blocks",
            Self::PackedBlocks => "packedBlocks",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pick| pick.name() == name)
    }
}

impl Serialize for GemvPick {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The variants that were found to be the fastest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuned {
    gemv: Vec<(Layout, GemvPick)>,
    numbers: Vec<(Kernel, &'static str, u32)>,
    /// Whether a dispatch costs so much that plans had better take fewer.
    pub dear: bool,
}

impl Tuned {
    /// A table without entries, of a device whose dispatches are dear or not.
    pub fn empty(dear: bool) -> Self {
        Self { dear, ..Self::default() }
    }

    /// The table with an entry more, or with another one in its place.
    pub fn with(mut self, layout: Layout, pick: GemvPick) -> Self {
        self.gemv.retain(|(l, _)| *l != layout);
        self.gemv.push((layout, pick));
        self
    }

    /// The table with a number of a kernel family more.
    pub fn set(mut self, kernel: Kernel, name: &'static str, value: u32) -> Self {
        self.numbers.push((kernel, name, value));
        self
    }

    /// The table with the entries of another one behind its own.
    pub fn and(mut self, other: &Self) -> Self {
        self.gemv.extend(&other.gemv);
        self.numbers.extend(&other.numbers);
        self
    }

    /// A number of a kernel family.
    pub fn number(&self, kernel: Kernel, name: &str) -> Option<u32> {
        self.numbers.iter().find(|(k, n, _)| *k == kernel && *n == name).map(|(_, _, value)| *value)
    }

    /// The entry of a layout.
    pub fn gemv(&self, layout: Layout) -> Option<GemvPick> {
        self.gemv.iter().find(|(l, _)| *l == layout).map(|(_, pick)| *pick)
    }
}
