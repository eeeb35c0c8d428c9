//! Token embeddings, and the rows of other encoders that replace or extend them.

use super::{CheckResult, NodeShape, OpDef};
use crate::ir::{Graph, InputId, WeightId, WeightKind};

/// Token property that indexes a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdSource {
    /// The token's id.
    Tokens,
    /// Position in its sequence, as the model counts it.
    Positions,
    /// Token type, such as question or passage.
    Types,
}

/// Meaning of ids past the end of a token table: image embeddings and other soft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftTokens {
    /// Rows of an input, not scaled.
    Rows(InputId),
    /// This row of the table.
    Row(u32),
}

/// Scaled table rows by index. No inputs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embed {
    /// The table.
    pub table: WeightId,
    /// Multiplies the rows.
    pub scale: f32,
    /// Token property used as index.
    pub ids: IdSource,
    /// Meaning of indices past the table's end. Prompts only.
    pub soft: Option<SoftTokens>,
}

impl Embed {
    /// Looks up unscaled rows of a table, without soft tokens.
    pub fn new(table: WeightId, ids: IdSource) -> Self {
        Self {
            table,
            scale: 1.0,
            ids,
            soft: None,
        }
    }
}

impl OpDef for Embed {
    fn input_count(&self, _given: usize) -> usize {
        0
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.table]
    }

    fn max_positions(&self, node: &NodeShape<'_>) -> Option<usize> {
        (self.ids == IdSource::Positions).then(|| node.graph.weight(self.table).rows())
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        node.require_kind(self.table, &[WeightKind::Table, WeightKind::Matrix])?;
        let table = node.graph.weight(self.table);
        let soft = match self.soft {
            Some(SoftTokens::Rows(id)) => {
                let input = node.graph.inputs.get(id.0);
                input.is_some_and(|input| input.cols >= node.out())
            }
            Some(SoftTokens::Row(row)) => (row as usize) < table.rows(),
            None => true,
        };
        node.require(table.cols == node.out() && soft)
    }

    fn describe(&self, graph: &Graph) -> String {
        let by = match self.ids {
            IdSource::Tokens => String::new(),
            ids => format!(", by {ids:?}"),
        };
        let soft = match self.soft {
            Some(SoftTokens::Rows(id)) => format!(", or {}", graph.inputs[id.0].name),
            Some(SoftTokens::Row(row)) => format!(", or its row {row}"),
            None => String::new(),
        };
        let table = graph.weight_name(self.table);
        format!("embed[{table} * {}{by}{soft}]", self.scale)
    }
}

/// Adds rows of an input where a token id is past the end of a table. Prompts only. Used for
/// features of deeper vision layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddSoftTokens {
    /// Input rows.
    pub rows: InputId,
    /// Token table.
    pub table: WeightId,
    /// First input column to use.
    pub column: usize,
}

impl OpDef for AddSoftTokens {
    fn input_count(&self, _given: usize) -> usize {
        1
    }

    fn check(&self, node: &NodeShape<'_>) -> CheckResult {
        let input = node.graph.inputs.get(self.rows.0);
        let wide = input.is_some_and(|input| self.column + node.out() <= input.cols);
        node.require(node.cols(0) == node.out() && wide)
    }

    fn describe(&self, graph: &Graph) -> String {
        let rows = &graph.inputs[self.rows.0].name;
        format!("add soft[{rows} from {}]", self.column)
    }
}
