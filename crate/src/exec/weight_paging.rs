//! Pages weights at run time: experts or table rows that are only partly on the device. A step runs
//! up to a router and reads back the selected experts. Missing ones are loaded from the files or
//! the browser's cache, and the step continues with slots instead of expert ids.

use super::graph_runner::{GraphRunner, WeightFiles};
use super::load::{WeightLoadRequest, load_rows};
use super::lru::LruSlots;
use super::step::{Buffers, Pipelines, Step, StepBreak, grids_in};
use crate::format::{Checkpoint, WeightLayout, WeightSource, Weights};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu, Grid};
use crate::hub::Source;
use crate::ir::{Graph, Op, SoftTokens, WeightId};
use crate::kernels::sample::DRAFT_ROWS;
use crate::plan::{ExpertSelection, PlanBreakKind, Slot, WeightPlan, WeightPlans};
use crate::util::sort;
use crate::{Error, Result};
use serde::Serialize;
use std::ops::Range;

/// Hit statistics of paged weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PagingStats {
    /// Expert slots of a layer on the device.
    pub slots: usize,
    /// Expert requests, each counted once per layer and step.
    pub requested: u64,
    /// Requests that hit.
    pub hits: u64,
    /// Requests that would have hit without prefetching.
    pub hits_without_prefetch: u64,
    /// Prefetched experts.
    pub prefetched: u64,
    /// Prefetched experts that were requested afterwards.
    pub prefetch_hits: u64,
    /// Bytes read from files or the cache, table rows included.
    pub bytes: u64,
}

/// Weights that share slots: both matmuls of a layer's experts, or a table.
struct PagedGroup {
    /// Each with the number of rows per entry.
    weights: Vec<(WeightId, usize)>,
    /// Their biases, likewise.
    biases: Vec<(WeightId, usize)>,
    /// The number of entries.
    count: u32,
    slots: LruSlots,
    /// The slots as they would be without prefetching.
    slots_without_prefetch: LruSlots,
}

impl PagedGroup {
    fn new(
        weights: Vec<(WeightId, usize)>,
        biases: Vec<(WeightId, usize)>,
        plans: &WeightPlans,
    ) -> Option<Self> {
        let (id, unit) = *weights.first()?;
        let plan = plans.get(&id).filter(|plan| plan.is_paged())?;
        let held = LruSlots::new(plan.rows / unit);
        Some(Self {
            weights,
            biases,
            count: (plan.total_rows / unit) as u32,
            slots_without_prefetch: held.clone(),
            slots: held,
        })
    }
}

struct PagedTable {
    id: WeightId,
    group: PagedGroup,
    /// The entry that ids past the end map to.
    fallback_row: u32,
}

/// What a step needs from its model and session.
pub(super) struct PagingContext<'a> {
    pub gpu: &'a Gpu,
    pub graph: &'a Graph,
    pub weights: &'a WeightPlans,
    /// The buffers of the weights.
    pub buffers: &'a Buffers,
    /// The token ids of the session's step.
    pub ids: &'a Buffer,
    pub prefetch_experts: bool,
}

/// Paged weights: what is on the device, and the source of the rest.
pub(super) struct WeightPager {
    source: Source,
    checkpoint: Checkpoint,
    stored: Weights,
    pipelines: Pipelines,
    /// By router; `None` if all experts of a layer are resident.
    layers: Vec<Option<PagedGroup>>,
    tables: Vec<PagedTable>,
    pub stats: PagingStats,
}

impl WeightPager {
    /// Creates the pager of a model, if it has paged weights, and adds the buffers that it needs to
    /// the runner.
    pub fn new(
        gpu: &Gpu,
        files: WeightFiles<'_>,
        runner: &mut GraphRunner,
        chunk: usize,
    ) -> Result<Option<Self>> {
        let graph = &runner.planned.graph;
        let plans = &runner.planned.weights;
        let mut shared = Buffers::new();
        if !plans.values().any(WeightPlan::is_paged) {
            return Ok(None);
        }
        let layers: Vec<Option<PagedGroup>> = expert_weights_by_router(graph)
            .map(|(w, b)| PagedGroup::new(w, b, plans))
            .collect();
        let tables: Vec<PagedTable> = graph
            .nodes
            .iter()
            .filter_map(|node| paged_table(&node.op, plans))
            .collect();
        for group in layers.iter().flatten() {
            for (bias, rows) in &group.biases {
                let bytes = (group.slots.len() * rows * 4) as u64;
                shared.insert(
                    Slot::WeightQ(*bias, 0),
                    gpu.buffer("biases", bytes, BufferUsage::Storage)?,
                );
            }
        }
        for table in &tables {
            let rows = chunk.max(DRAFT_ROWS as usize) as u64;
            shared.insert(
                Slot::PagedRows(table.id),
                gpu.buffer("rows", rows * 4, BufferUsage::Storage)?,
            );
        }
        let slots = layers
            .iter()
            .flatten()
            .map(|group| group.slots.len())
            .max()
            .unwrap_or(0);
        let paging = PagingStats {
            slots,
            ..PagingStats::default()
        };
        runner.add_weight_buffers(&shared);
        Ok(Some(Self {
            source: files.source.clone(),
            checkpoint: files.checkpoint.clone(),
            stored: files.stored.clone(),
            pipelines: Pipelines::new(),
            layers,
            tables,
            stats: paging,
        }))
    }

    /// Runs a step of `rows` rows; `ids` are read back from the device if not given.
    pub async fn run_step(
        &mut self,
        around: &PagingContext<'_>,
        step: &Step,
        rows: usize,
        ids: Option<&[u32]>,
    ) -> Result<()> {
        let gpu = around.gpu;
        self.map_table_rows(around, rows, ids).await?;
        let grids = step.grids(rows);
        let mut from = 0;
        let mut guess: Option<Vec<u32>> = None;
        for stop in &step.breaks {
            let PlanBreakKind::PagedExperts(experts) = &stop.kind else {
                continue;
            };
            let layer = experts.router;
            submit_range(gpu, step, &grids, from..stop.after)?;
            let bytes = (rows * experts.stride * 4) as u64;
            let selection = gpu.start_read(&stop.read, 0, bytes)?;
            let next = stop
                .predicted
                .as_ref()
                .filter(|_| rows == 1 && around.prefetch_experts);
            let next = next
                .map(|guess| gpu.start_read(guess, 0, bytes))
                .transpose()?;
            // Prefetch while the device runs up to the router.
            if let Some(numbers) = guess.take() {
                self.prefetch(around, layer, &numbers).await?;
            }
            let selection: Vec<f32> = bytemuck::pod_collect_to_vec(&selection.wait().await?);
            self.map_experts(around, step, &grids, (stop, experts), selection)
                .await?;
            if let Some(next) = next {
                let found: Vec<f32> = bytemuck::pod_collect_to_vec(&next.wait().await?);
                guess = self
                    .layers
                    .get(layer + 1)
                    .and_then(Option::as_ref)
                    .map(|group| selected_experts(&found, experts, group.count));
            }
            from = stop.after;
        }
        submit_range(gpu, step, &grids, from..grids.len())
    }

    /// Loads the experts of a layer and writes their slots to the step. If more are selected than
    /// there are slots, runs the expert matmuls once per group; these skip experts without a slot.
    async fn map_experts(
        &mut self,
        around: &PagingContext<'_>,
        step: &Step,
        grids: &[Grid],
        (stop, experts): (&StepBreak, &ExpertSelection),
        selection: Vec<f32>,
    ) -> Result<()> {
        let layer = experts.router;
        let Some(group) = self.layers.get_mut(layer).and_then(Option::as_mut) else {
            return Ok(());
        };
        let mut needed = selected_experts(&selection, experts, group.count);
        let here = needed
            .iter()
            .filter(|number| group.slots.slot_of(**number).is_some())
            .count();
        // Resident experts first.
        sort::sort_by(&mut needed, |a, b| {
            group
                .slots
                .slot_of(*a)
                .is_none()
                .cmp(&group.slots.slot_of(*b).is_none())
        });
        self.stats.requested += needed.len() as u64;
        self.stats.hits += here as u64;
        self.stats.hits_without_prefetch += needed
            .iter()
            .filter(|number| group.slots_without_prefetch.slot_of(**number).is_some())
            .count() as u64;
        self.stats.prefetch_hits += needed
            .iter()
            .filter(|number| group.slots.take_prefetched(**number))
            .count() as u64;
        let places = group.slots.len();
        let count = group.count;

        let parts = needed.len().div_ceil(places);
        for (index, numbers) in needed.chunks(places).enumerate() {
            let Some(group) = self.layers.get_mut(layer).and_then(Option::as_mut) else {
                return Ok(());
            };
            for (number, at) in group.slots_without_prefetch.assign_slots(numbers) {
                group.slots_without_prefetch.commit(number, at, false);
            }
            self.fetch(around, PagedTarget::Layer(layer), numbers, false)
                .await?;
            let Some(group) = self.layers.get(layer).and_then(Option::as_ref) else {
                return Ok(());
            };
            // The index after the last slot means absent.
            let place = |number: f32| {
                let number = (number.max(0.0) as u32).min(count - 1);
                let at = if numbers.contains(&number) {
                    group.slots.slot_of(number)
                } else {
                    None
                };
                at.unwrap_or(places) as f32
            };
            let mut mapped = selection.clone();
            mapped.chunks_mut(experts.stride).for_each(|row| {
                row[..experts.top_k].iter_mut().for_each(|n| *n = place(*n));
            });
            around
                .gpu
                .write(&stop.write, 0, bytemuck::cast_slice(&mapped));
            if index + 1 < parts {
                let end = experts.combine.ok_or_else(|| {
                    Error::Internal(format!(
                        "paging: a decode step selects {} experts, but there are {places} slots",
                        needed.len()
                    ))
                })?;
                submit_range(around.gpu, step, grids, stop.after..end)?;
            }
        }
        Ok(())
    }

    async fn prefetch(
        &mut self,
        around: &PagingContext<'_>,
        layer: usize,
        numbers: &[u32],
    ) -> Result<()> {
        let before = self
            .fetch(around, PagedTarget::Layer(layer), numbers, true)
            .await?;
        self.stats.prefetched += before as u64;
        Ok(())
    }

    /// Loads the table rows of the step's tokens and writes their slots.
    async fn map_table_rows(
        &mut self,
        around: &PagingContext<'_>,
        rows: usize,
        ids: Option<&[u32]>,
    ) -> Result<()> {
        if self.tables.is_empty() {
            return Ok(());
        }
        let ids: Vec<u32> = match ids {
            Some(ids) => ids.to_vec(),
            None => bytemuck::pod_collect_to_vec(
                &around.gpu.read(around.ids, 0, rows as u64 * 4).await?,
            ),
        };
        for index in 0..self.tables.len() {
            let count = self.tables[index].group.count;
            let past = self.tables[index].fallback_row;

            let numbers: Vec<u32> = ids
                .iter()
                .map(|id| if *id < count { *id } else { past })
                .collect();
            let mut needed: Vec<u32> = numbers
                .iter()
                .copied()
                .filter(|number| *number < count)
                .collect();
            needed.sort_unstable();
            needed.dedup();
            self.fetch(around, PagedTarget::Table(index), &needed, false)
                .await?;
            let table = &self.tables[index];

            let mapped: Vec<u32> = numbers
                .iter()
                .map(|number: &u32| {
                    table
                        .group
                        .slots
                        .slot_of(*number)
                        .map_or(u32::MAX, |at| at as u32)
                })
                .collect();
            let rows = around.buffers.get(&Slot::PagedRows(table.id));
            let rows = rows.ok_or_else(|| {
                Error::Internal(format!(
                    "paging: table {:?} has no buffer of row slots",
                    table.id
                ))
            })?;
            around.gpu.write(rows, 0, bytemuck::cast_slice(&mapped));
        }
        Ok(())
    }

    /// Loads missing entries into slots; returns how many were missing.
    async fn fetch(
        &mut self,
        around: &PagingContext<'_>,
        which: PagedTarget,
        numbers: &[u32],
        ahead: bool,
    ) -> Result<usize> {
        let group = match which {
            PagedTarget::Layer(layer) => self.layers.get_mut(layer).and_then(Option::as_mut),
            PagedTarget::Table(table) => self.tables.get_mut(table).map(|table| &mut table.group),
        };
        let Some(group) = group else { return Ok(0) };
        let missing = group.slots.assign_slots(numbers);
        if missing.is_empty() {
            return Ok(0);
        }
        let mut rows = Vec::new();
        let mut buffers = Buffers::new();

        for (id, unit) in &group.weights {
            let plan = around
                .weights
                .get(id)
                .ok_or_else(|| Error::Internal(format!("paging: weight {id:?} has no plan")))?;
            for (number, at) in &missing {
                clear_scales(around, (*id, plan), at * unit..(at + 1) * unit);
                let range = *number as usize * unit..(*number as usize + 1) * unit;
                row_sources(
                    around.graph,
                    (*id, plan.cols),
                    &self.stored,
                    range,
                    at * unit,
                    &mut rows,
                )?;
            }
            let runs = (0..plan.shards.len())
                .flat_map(|run| [Slot::WeightQ(*id, run), Slot::WeightS(*id, run)]);
            buffers
                .extend(runs.filter_map(|slot| Some((slot, around.buffers.get(&slot)?.clone()))));
        }
        let wanted = WeightLoadRequest {
            gpu: around.gpu,
            graph: around.graph,
            plans: around.weights,
            source: &self.source,
            checkpoint: &self.checkpoint,
            stored: &self.stored,
        };
        self.stats.bytes += load_rows(wanted, buffers, &rows, &mut self.pipelines).await?;
        let mut copies = Vec::new();
        for (bias, rows) in &group.biases {
            let (Some(all), Some(held)) = (
                around.buffers.get(&Slot::Vector(*bias)),
                around.buffers.get(&Slot::WeightQ(*bias, 0)),
            ) else {
                return Err(Error::Internal(format!(
                    "paging: the biases {bias:?} have no buffers"
                )));
            };
            let bytes = *rows as u64 * 4;

            copies.extend(
                missing
                    .iter()
                    .map(|(number, at): &(u32, usize)| Command::Copy {
                        from: (all, u64::from(*number) * bytes),
                        to: (held, *at as u64 * bytes),
                        size: bytes,
                    }),
            );
        }
        if !copies.is_empty() {
            around.gpu.submit(&copies)?;
        }
        missing
            .iter()
            .for_each(|(number, at)| group.slots.commit(*number, *at, ahead));
        Ok(missing.len())
    }
}

/// A layer's experts or a table, by index.
#[derive(Clone, Copy)]
enum PagedTarget {
    Layer(usize),
    Table(usize),
}

type ExpertWeights = Vec<(WeightId, usize)>;

/// Returns the weights and biases of both expert matmuls after each router, with the rows of an
/// expert.
fn expert_weights_by_router(graph: &Graph) -> impl Iterator<Item = (ExpertWeights, ExpertWeights)> {
    let routes = graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::TopKRouter(_)));
    routes.map(|route| {
        let mut weights = ExpertWeights::new();
        let mut biases = ExpertWeights::new();

        for node in graph
            .nodes
            .iter()
            .filter(|node| node.inputs.get(1) == Some(&route.output))
        {
            let (weight, bias, rows) = match &node.op {
                Op::ExpertUp(e) => (e.weight, e.bias, e.rows()),
                Op::ExpertDown(e) => (
                    e.weight,
                    e.bias,
                    graph.weight(e.weight).rows() / e.count.max(1),
                ),
                _ => continue,
            };
            weights.push((weight, rows));
            biases.extend(bias.map(|bias| (bias, rows)));
        }
        (weights, biases)
    })
}

fn paged_table(op: &Op, plans: &WeightPlans) -> Option<PagedTable> {
    let Op::Embed(embed) = op else {
        return None;
    };
    let past = if let Some(SoftTokens::Row(number)) = embed.soft {
        number
    } else {
        u32::MAX
    };
    Some(PagedTable {
        id: embed.table,
        group: PagedGroup::new(vec![(embed.table, 1)], Vec::new(), plans)?,
        fallback_row: past,
    })
}

/// Returns the distinct experts that the rows selected.
fn selected_experts(selection: &[f32], experts: &ExpertSelection, count: u32) -> Vec<u32> {
    let rows = selection
        .chunks(experts.stride)
        .flat_map(|row| &row[..experts.top_k]);
    let mut numbers: Vec<u32> = rows
        .map(|number| (number.max(0.0) as u32).min(count - 1))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Maps rows of a weight to their sources in the files and to target rows.
fn row_sources(
    graph: &Graph,
    (id, cols): (WeightId, usize),
    stored: &Weights,
    wanted: Range<usize>,
    to: usize,
    rows: &mut Vec<(WeightId, usize, WeightSource)>,
) -> Result<()> {
    let mut first = 0;
    for (name, count) in &graph.weight(id).parts {
        let low = wanted.start.max(first);
        let high = wanted.end.min(first + count);

        if low < high {
            let source = stored.get(name, &graph.name)?;
            let piece = if high - low == *count {
                Some(source.clone())
            } else {
                source.slice(name, low - first, vec![high - low, cols])
            };
            let piece = piece.ok_or_else(|| {
                Error::Internal(format!("paging: {name} cannot be split by rows"))
            })?;
            rows.push((id, to + low - wanted.start, piece));
        }
        first += count;
    }
    Ok(())
}

/// Clears old scales: MXFP4 rows share scale words, which transcoding adds to.
fn clear_scales(
    around: &PagingContext<'_>,
    (id, plan): (WeightId, &WeightPlan),
    rows: Range<usize>,
) {
    let run = plan
        .shards
        .iter()
        .position(|run| run.contains(&rows.start))
        .filter(|_| plan.layout == WeightLayout::Mxfp4);
    let Some((run, buffer)) =
        run.and_then(|run| Some((run, around.buffers.get(&Slot::WeightS(id, run))?)))
    else {
        return;
    };
    let blocks = plan.layout.padded_cols(plan.cols) / 32;
    let first = (rows.start - plan.shards[run].start) * blocks;
    around
        .gpu
        .write(buffer, first as u64, &vec![0; rows.len() * blocks]);
}

/// Submits some dispatches of a step.
fn submit_range(gpu: &Gpu, step: &Step, grids: &[Grid], range: Range<usize>) -> Result<()> {
    gpu.submit(&[step.with_grids(&grids_in(grids, range))])
}
