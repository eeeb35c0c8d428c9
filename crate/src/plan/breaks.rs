//! Breaks of a plan: launches after which the host reads from the device and writes to it before
//! the step continues. Lowering makes them; the executor needs no knowledge of kernels to find them.

use super::Slot;
use crate::ir::WeightId;

/// A point in a plan where the host must act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanBreak {
    /// Launches before the break.
    pub after: usize,
    /// Slot that the host reads.
    pub read: Slot,
    /// Slot that the host writes before the next launch.
    pub write: Slot,
    /// Action of the host.
    pub kind: PlanBreakKind,
}

/// Action of the host at a [`PlanBreak`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanBreakKind {
    /// Loads missing rows of a paged table: maps the step's token ids to slots of the table.
    PagedRows {
        /// The table.
        table: WeightId,
    },
    /// Loads missing experts of a layer: maps the selected expert ids to slots of its weights, in
    /// place.
    PagedExperts(ExpertSelection),
}

/// The experts that the rows of a step selected, and the launches that use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertSelection {
    /// Index of the layer's router among all routers of the graph.
    pub router: usize,
    /// Row stride of the selection, in elements. A row is the ids, then their weights.
    pub stride: usize,
    /// Experts selected per row.
    pub top_k: usize,
    /// Launches before the one that sums the experts of a row, if that is separate. The launches
    /// before it may run several times, with a part of the experts each.
    pub combine: Option<usize>,
    /// Predicted experts of the next layer, in the same format.
    pub predicted: Option<Slot>,
}
