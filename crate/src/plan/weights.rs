//! Weight storage: layout, and shards where a weight exceeds the device's buffer limit.

use crate::format::layout::WeightLayout;
use crate::ir::{Graph, WeightId, WeightKind};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::ops::Range;

/// Storage of one weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightPlan {
    /// Layout of a matrix or table; vectors are f32.
    pub layout: WeightLayout,
    /// Rows that its buffers hold, over all shards.
    pub rows: usize,
    /// Rows of the weight. If the buffers hold fewer, missing rows are read from the file on
    /// demand.
    pub total_rows: usize,
    /// Columns.
    pub cols: usize,
    /// Use of the weight.
    pub kind: WeightKind,
    /// Row range of each shard.
    pub shards: Vec<Range<usize>>,
}

impl WeightPlan {
    /// Whether the buffers hold only some of the rows at a time.
    pub fn is_paged(&self) -> bool {
        self.rows < self.total_rows
    }

    /// Limits the buffers to `rows` rows, in groups of `unit`. Returns whether the layout supports
    /// it.
    pub fn hold_rows(&mut self, rows: usize, unit: usize, max_buffer: u64) -> bool {
        let runs = shard_rows(rows, unit, self.cols, self.layout, max_buffer);
        // Layouts that share scale words between rows need groups that start at a word.
        let apart = self.layout != WeightLayout::Mxfp4
            || (unit * self.layout.padded_cols(self.cols) / 32).is_multiple_of(4);
        let Some(runs) = runs.filter(|_| apart && rows < self.total_rows) else {
            return false;
        };
        (self.rows, self.shards) = (rows, runs);
        true
    }

    /// Bytes of all planes.
    pub fn bytes(&self) -> u64 {
        if matches!(self.kind, WeightKind::Vector | WeightKind::Order) {
            return (self.rows * self.cols * 4) as u64;
        }
        self.shards
            .iter()
            .map(|r| self.layout.bytes(r.len(), self.cols))
            .sum()
    }
}

/// Storage of all weights of a graph.
pub type WeightPlans = SortedMap<WeightId, WeightPlan>;

/// Plans the storage of every weight that a node uses.
///
/// # Errors
/// `OutOfMemory` if a single row does not fit a buffer.
pub fn plan_weights(
    graph: &Graph,
    layout_of: &dyn Fn(&str) -> WeightLayout,
    max_buffer: u64,
) -> Result<WeightPlans> {
    let mut plans = WeightPlans::new();
    for id in graph.used_weights() {
        let weight = graph.weight(id);
        let layout = layout_of(&weight.parts[0].0);
        let rows = weight.rows();
        let cols = weight.cols;

        let mut runs = std::iter::once(0..rows).collect();
        if !matches!(weight.kind, WeightKind::Vector | WeightKind::Order) {
            let unit = if let WeightKind::Experts { rows } = weight.kind {
                rows
            } else {
                1
            };
            runs = shard_rows(rows, unit, cols, layout, max_buffer).ok_or_else(|| {
                Error::OutOfMemory {
                    what: format!(
                        "{unit} row{} of {}",
                        if unit == 1 { "" } else { "s" },
                        weight.parts[0].0
                    ),
                    needed: layout.bytes(unit, cols),
                    limit: max_buffer,
                    hint: "This device cannot run the model; choose a smaller one.".into(),
                }
            })?;
        }
        plans.insert(
            id,
            WeightPlan {
                layout,
                rows,
                total_rows: rows,
                cols,
                kind: weight.kind,
                shards: runs,
            },
        );
    }
    Ok(plans)
}

/// Divides rows into equal shards of whole groups of `unit`, whose planes all fit `max_buffer`.
fn shard_rows(
    rows: usize,
    unit: usize,
    cols: usize,
    layout: WeightLayout,
    max_buffer: u64,
) -> Option<Vec<Range<usize>>> {
    let largest = |rows: usize| {
        layout
            .plane_bytes(rows, cols)
            .into_iter()
            .max()
            .unwrap_or(0)
    };
    // Layouts that pack several rows' scales into a word need shards of whole words.
    let whole = (1..=4)
        .map(|n| n * unit)
        .find(|n| n.is_multiple_of(4))
        .unwrap_or(unit);
    let run = |count: usize| {
        rows.div_ceil(count)
            .next_multiple_of(if count > 1 { whole } else { 1 })
    };
    let mut count = largest(rows).div_ceil(max_buffer.max(1)).max(1) as usize;
    while largest(run(count)) > max_buffer {
        if count >= rows {
            return None;
        }
        count += 1;
    }
    let run = run(count);
    Some(
        (0..rows)
            .step_by(run.max(1))
            .map(|first| first..(first + run).min(rows))
            .collect(),
    )
}
