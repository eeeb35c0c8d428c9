//! How each weight is stored: its layout, and the runs of rows it is cut into where it exceeds the device's limit.

use crate::format::layout::Layout;
use crate::ir::{Graph, WeightId, WeightKind};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::ops::Range;

/// The storage of one weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightPlan {
    /// Layout of a matrix or table; vectors are f32.
    pub layout: Layout,
    /// Rows of all parts that its buffers hold.
    pub rows: usize,
    /// Rows that there are; where the buffers hold fewer, those that are needed come from the file.
    pub of: usize,
    /// Columns.
    pub cols: usize,
    /// What it is used as.
    pub kind: WeightKind,
    /// Rows of each buffer.
    pub runs: Vec<Range<usize>>,
}

impl WeightPlan {
    /// Whether its buffers hold some of its rows at a time.
    pub fn is_paged(&self) -> bool {
        self.rows < self.of
    }

    /// Lets its buffers hold so many rows, `unit` of which belong together; says whether they can.
    pub fn hold(&mut self, rows: usize, unit: usize, max_buffer: u64) -> bool {
        let runs = cut(rows, unit, self.cols, self.layout, max_buffer);
        // Where rows share words of scales, what belongs together has to begin with a word.
        let apart = self.layout != Layout::Mxfp4 || (unit * self.layout.padded_cols(self.cols) / 32).is_multiple_of(4);
        let Some(runs) = runs.filter(|_| apart && rows < self.of) else { return false };
        (self.rows, self.runs) = (rows, runs);
        true
    }

    /// Bytes of all planes.
    pub fn bytes(&self) -> u64 {
        if matches!(self.kind, WeightKind::Vector | WeightKind::Order) {
            return (self.rows * self.cols * 4) as u64;
        }
        self.runs.iter().map(|r| self.layout.bytes(r.len(), self.cols)).sum()
    }
}

/// The storage of all weights that a graph uses.
pub type WeightPlans = SortedMap<WeightId, WeightPlan>;

/// Decides the storage of every weight that a node of the graph uses.
///
/// # Errors
/// `OutOfMemory` when not even one row fits a buffer.
pub fn plan_weights(graph: &Graph, layout_of: &dyn Fn(&str) -> Layout, max_buffer: u64) -> Result<WeightPlans> {
    let mut plans = WeightPlans::new();
    for id in graph.used_weights() {
        let weight = graph.weight(id);
        let layout = layout_of(&weight.parts[0].0);
        let (rows, cols) = (weight.rows(), weight.cols);
        let mut runs = std::iter::once(0..rows).collect();
        if !matches!(weight.kind, WeightKind::Vector | WeightKind::Order) {
            let unit = if let WeightKind::Experts { rows } = weight.kind { rows } else { 1 };
            runs = cut(rows, unit, cols, layout, max_buffer).ok_or_else(|| Error::OutOfMemory {
                what: format!("{unit} row{} of {}", if unit == 1 { "" } else { "s" }, weight.parts[0].0),
                needed: layout.bytes(unit, cols),
                limit: max_buffer,
                hint: "This device cannot hold the model.".into(),
            })?;
        }
        plans.insert(id, WeightPlan { layout, rows, of: rows, cols, kind: weight.kind, runs });
    }
    Ok(plans)
}

/// Runs of rows, so many together, whose planes all fit `max_buffer`, as equal as possible.
fn cut(rows: usize, unit: usize, cols: usize, layout: Layout, max_buffer: u64) -> Option<Vec<Range<usize>>> {
    let largest = |rows: usize| layout.plane_bytes(rows, cols).into_iter().max().unwrap_or(0);
    // Layouts that pack several rows' scales into a word want runs of whole words.
    let whole = (1..=4).map(|n| n * unit).find(|n| n.is_multiple_of(4)).unwrap_or(unit);
    let run = |count: usize| rows.div_ceil(count).next_multiple_of(if count > 1 { whole } else { 1 });
    let mut count = largest(rows).div_ceil(max_buffer.max(1)).max(1) as usize;
    while largest(run(count)) > max_buffer {
        if count >= rows {
            return None;
        }
        count += 1;
    }
    let run = run(count);
    Some((0..rows).step_by(run.max(1)).map(|first| first..(first + run).min(rows)).collect())
}
