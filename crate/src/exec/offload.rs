//! Chooses the weights to offload: lookup-only tables and experts that stay in the files. Applies
//! when memory is short or by option.

use super::options::{ExpertBudget, RunOptions};
use crate::format::{RowOrder, Weights};
use crate::ir::{Graph, IdSource, Op, WeightId, WeightKind};
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::{WeightPlan, WeightPlans};
use crate::{Error, Result};

/// Minimum bytes of a table to offload by default.
const MIN_OFFLOADED_TABLE_BYTES: u64 = 32 << 20;

/// Experts of a layer: weight, rows of an expert, number of experts, experts selected per row.
type ExpertStack = (WeightId, usize, usize, usize);

fn expert_stacks(graph: &Graph) -> Vec<ExpertStack> {
    let stack = |op: &Op| {
        let (weight, count, each) = match op {
            Op::ExpertUp(e) => (e.weight, e.count, e.top_k),
            Op::ExpertDown(e) => (e.weight, e.count, e.top_k),
            _ => return None,
        };
        match graph.weight(weight).kind {
            WeightKind::Experts { rows } => Some((weight, rows, count, each)),
            _ => None,
        }
    };
    graph
        .nodes
        .iter()
        .filter_map(|node| stack(&node.op))
        .collect()
}

/// Returns the tables that are only used for token lookup.
fn lookup_only_tables(graph: &Graph) -> Vec<WeightId> {
    let looked_up = |op: &Op| match op {
        Op::Embed(embed) if embed.ids == IdSource::Tokens => Some(embed.table),
        _ => None,
    };
    let used = |id: &WeightId| {
        graph
            .nodes
            .iter()
            .filter(|node| node.op.weights().contains(id))
            .count()
            == 1
    };
    graph
        .nodes
        .iter()
        .filter_map(|node| looked_up(&node.op))
        .filter(used)
        .collect()
}

/// Whether rows of a weight can be read separately: each of its tensors stores rows contiguously,
/// or is small.
fn has_separate_rows(graph: &Graph, id: WeightId, stored: &Weights, whole: bool) -> bool {
    graph.weight(id).parts.iter().all(|(name, rows)| {
        stored.get(name, "").is_ok_and(|source| {
            let kept =
                source.encoding.has_contiguous_rows() && source.row_order == RowOrder::Stored;
            kept || (whole && source.stored_rows == *rows)
        })
    })
}

/// Offloads weights until the rest fits in `room` bytes; returns notes for the user. Offloads a
/// table first, of which a token needs one row, then experts.
///
/// # Errors
/// `UnsupportedOption` if the file's encoding does not allow reading the requested rows separately.
pub fn choose_offload(
    graph: &Graph,
    weights: &mut WeightPlans,
    stored: &Weights,
    options: &RunOptions,
    (chunk, room, max_buffer): (usize, u64, u64),
) -> Result<Vec<String>> {
    let total = |weights: &WeightPlans| weights.values().map(WeightPlan::bytes).sum::<u64>();
    let refuse = |option: &str| {
        Error::UnsupportedOption {
        architecture: graph.name.clone(),
        option: option.into(),
        hint: "The checkpoint's encoding does not store them separately. Remove the option or use another checkpoint."
            .into(),
    }
    };
    let mut notes = Vec::new();
    for id in lookup_only_tables(graph) {
        let Some(plan) = weights.get(&id) else {
            continue;
        };
        let before = plan.bytes();
        let wanted = options
            .page_embeddings
            .unwrap_or(total(weights) > room && before >= MIN_OFFLOADED_TABLE_BYTES);
        if !wanted {
            continue;
        }
        let rows = chunk.max(DRAFT_ROWS as usize);
        let held = has_separate_rows(graph, id, stored, false)
            && weights
                .get_mut(&id)
                .is_some_and(|plan| rows >= plan.total_rows || plan.hold_rows(rows, 1, max_buffer));
        match (held, options.page_embeddings) {
            (true, _) => {
                notes.push(format!(
                    "Rows of {} are read from the files on demand.",
                    graph.weight(id).parts[0].0
                ));
            }
            (false, Some(_)) => return Err(refuse("pageEmbeddings")),
            (false, None) => {}
        }
    }
    let stacks = expert_stacks(graph);
    let each = stacks.iter().map(|s| s.3).max().unwrap_or(0);
    let count = stacks.iter().map(|s| s.2).max().unwrap_or(0);
    let all: u64 = stacks
        .iter()
        .filter_map(|s| weights.get(&s.0))
        .map(WeightPlan::bytes)
        .sum();
    let one = |s: &ExpertStack| {
        weights
            .get(&s.0)
            .map_or(0, |plan| plan.bytes() / s.2.max(1) as u64)
    };
    let fit = |bytes: u64| (bytes / stacks.iter().map(one).sum::<u64>().max(1)) as usize;
    let rest = total(weights) - all;
    let held = match options.experts {
        Some(ExpertBudget::PerLayer(held)) => held,
        Some(ExpertBudget::MaxBytes(bytes)) => fit(bytes),
        None if rest + all > room => fit(room.saturating_sub(rest)),
        None => count,
    };
    let held = held.max(each);
    if held >= count || stacks.is_empty() {
        return Ok(notes);
    }
    let mut paged = weights.clone();
    let fits = stacks.iter().all(|(id, rows, count, _)| {
        *count <= held
            || has_separate_rows(graph, *id, stored, true)
                && paged
                    .get_mut(id)
                    .is_some_and(|plan| plan.hold_rows(held * rows, *rows, max_buffer))
    });
    if fits {
        *weights = paged;
        notes.push(format!(
            "{held} of {count} experts of each layer are on the device; the others are read from the files on demand."
        ));
    } else if options.experts.is_some() {
        return Err(refuse("experts"));
    }
    Ok(notes)
}
