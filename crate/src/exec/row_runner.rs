//! Runs a graph without a token sequence: rows in, rows out. Used for vision encoders, audio
//! encoders, cross-attention projections and codecs.

use super::files::ModelFiles;
use super::graph_runner::{GraphRunner, WeightFiles};
use super::load::LoadTasks;
use super::options::RunOptions;
use super::planned_graph::{LoadPlans, PlannedGraph, StepPlan};
use super::program_key::ProgramKey;
use super::step::{
    Buffers, STATE_BYTES, Step, check_finite, pad_rows, rows_bytes, state_words, unpad_rows,
};
use crate::device::Caps;
use crate::format::{Encoding, Weights};
use crate::gpu::{Backend, Buffer, BufferUsage, Command, Gpu};
use crate::hub::Source;
use crate::ir::{Dim, Graph, InputId, Op, StepSizes};
use crate::plan::{Slot, StepKind};
use crate::util::map::SortedSet;
use crate::{Error, Result};
use std::collections::hash_map::Entry;

/// Rows of the step whose kernels compile while weights arrive.
pub(super) const DEFAULT_RUNNER_ROWS: usize = 256;

/// A loaded graph without a token sequence.
pub struct RowRunner {
    runner: GraphRunner,
    /// Minimum rows of a sequence, if a run may have several; sequences do not attend to each
    /// other.
    min_sequence_rows: Option<usize>,
    prepared: Option<PreparedStep>,
}

/// A step for up to `rows` rows.
struct PreparedStep {
    key: ProgramKey,
    rows: usize,
    step: Step,
    own: Buffers,
}

/// Reshapes three-dimensional convolution weights for matmuls.
pub fn flatten_convolutions(stored: &mut Weights) {
    for weight in stored
        .iter_mut()
        .filter(|w| w.shape.len() > 2 && matches!(w.encoding, Encoding::Dense(_)))
    {
        let rows = weight.shape[0];
        weight.shape = vec![rows, weight.shape[1..].iter().product()];
        weight.stored_rows = rows;
    }
}

impl RowRunner {
    /// Loads the weights of a graph from a model's files, which must be [`flatten_convolutions`]ed;
    /// weights keep the encoding of the file, and other graphs of the files share them. A step is one sequence, or, with `block`, sequences of at least
    /// `block` rows that the caller lays out.
    ///
    /// # Errors
    /// Errors of the checkpoint, the source or the device.
    pub async fn load(
        gpu: &Gpu,
        source: &Source,
        files: &ModelFiles,
        (graph, block): (&Graph, Option<usize>),
        options: RunOptions,
    ) -> Result<Self> {
        let from = WeightFiles {
            source,
            checkpoint: &files.checkpoint,
            stored: &files.weights,
        };
        let planned = PlannedGraph::stateless(graph, &files.weights, gpu.caps(), &options)?;
        let rows = DEFAULT_RUNNER_ROWS;
        let key = ProgramKey::rows(rows, true);
        let plan = |planned: &_| {
            let plan = plan_step(planned, gpu.caps(), rows, block)?;
            Ok(LoadPlans::one(key, plan))
        };
        // Its kernels are compiled; buffers follow when the number of rows is known.
        let (runner, _, _) =
            GraphRunner::load(gpu, from, planned, &files.store, &plan, LoadTasks::none()).await?;
        Ok(Self {
            runner,
            min_sequence_rows: block,
            prepared: None,
        })
    }

    /// The fused graph.
    pub(super) fn graph(&self) -> &Graph {
        &self.runner.planned.graph
    }

    /// Bytes of its weights on the device.
    pub fn bytes(&self) -> u64 {
        self.runner.weight_bytes()
    }

    /// Number of weight elements.
    pub fn parameters(&self) -> u64 {
        self.runner.planned.parameters()
    }

    /// Output rows for this many input rows.
    pub fn rows_of(&self, rows: usize) -> usize {
        self.graph()
            .value(self.graph().hidden)
            .rows
            .eval(StepSizes::rows(rows))
    }

    /// Columns of the output.
    pub fn cols(&self) -> usize {
        self.graph().value(self.graph().hidden).cols
    }

    /// Columns of its only input.
    pub fn input_cols(&self) -> usize {
        self.graph().inputs.first().map_or(0, |input| input.cols)
    }

    /// Builds a step for `rows` rows unless a large enough one exists; returns whether it did.
    /// `given` input and output buffers must be large enough for all later runs; missing ones are
    /// created.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room; other device errors.
    pub async fn prepare(&mut self, gpu: &Gpu, rows: usize, given: &Buffers) -> Result<bool> {
        if self.prepared.as_ref().is_some_and(|made| made.rows >= rows) {
            return Ok(false);
        }
        let plan = plan_step(
            &self.runner.planned,
            gpu.caps(),
            rows,
            self.min_sequence_rows,
        )?;
        self.runner.compile(gpu, &plan.plan).await?;
        // Free the smaller step before creating its successor.
        if let Some(smaller) = self.prepared.take() {
            self.runner.remove(smaller.key);
        }
        let mut own = given.clone();
        let most = self
            .graph()
            .nodes
            .iter()
            .map(|n| {
                self.graph()
                    .value(n.output)
                    .rows
                    .eval(StepSizes::rows(rows))
            })
            .max();
        let most = most.unwrap_or(rows).max(rows);
        if self.attends() || self.min_sequence_rows.is_some() {
            let slots = [
                (Slot::Positions, 1),
                (Slot::SequenceSpans, 2),
                (Slot::WindowSpans, 2),
                (Slot::PoolSpans, 2),
            ];
            let used = if self.min_sequence_rows.is_some() {
                slots.len()
            } else {
                2
            };
            for (slot, words) in slots.into_iter().take(used) {
                own.insert(
                    slot,
                    gpu.buffer("rows", (most * words * 4) as u64, BufferUsage::Storage)?,
                );
            }
            let positions: Vec<u32> = (0..most as u32).collect();
            gpu.write(&own[&Slot::Positions], 0, bytemuck::cast_slice(&positions));
        }
        for (index, input) in self.graph().inputs.iter().enumerate() {
            if let Entry::Vacant(place) = own.entry(Slot::Input(InputId(index))) {
                place.insert(gpu.buffer(
                    "rows",
                    rows_bytes(rows, input.cols),
                    BufferUsage::Storage,
                )?);
            }
        }
        for (index, spec) in self.graph().ropes.iter().enumerate() {
            let table = spec.table(0, most, 0);
            let buffer = gpu.buffer("rope", (table.len() * 8) as u64, BufferUsage::Storage)?;
            gpu.write(&buffer, 0, bytemuck::cast_slice(&table));
            own.insert(Slot::Rope(index), buffer);
        }
        for dim in self.dims() {
            own.insert(
                Slot::Cursor(dim),
                gpu.buffer("cursor", STATE_BYTES, BufferUsage::Storage)?,
            );
        }
        let key = ProgramKey::rows(rows, !given.contains_key(&Slot::Output));
        self.runner.prepare(gpu, key, || Ok(plan.clone())).await?;
        let step = self.runner.step(gpu, &own, key)?;
        self.prepared = Some(PreparedStep {
            key,
            rows,
            step,
            own,
        });
        Ok(true)
    }

    fn attends(&self) -> bool {
        self.graph()
            .nodes
            .iter()
            .any(|n| matches!(n.op, Op::Attention(_)))
    }

    fn dims(&self) -> SortedSet<Dim> {
        let counted = self
            .graph()
            .values
            .iter()
            .map(|v| v.rows)
            .filter(|dim| *dim != Dim::Last);
        counted.chain([Dim::TOKENS]).collect()
    }

    /// Writes rows of its only input, starting at row `first`.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`].
    pub fn write(&self, gpu: &Gpu, first: usize, rows: &[f32]) -> Result<()> {
        let made = self.prepared_step()?;
        let cols = self.input_cols();

        let buffer = &made.own[&Slot::Input(InputId(0))];
        let at = rows_bytes(first, cols);
        if cols.is_multiple_of(4) {
            gpu.write(buffer, at, bytemuck::cast_slice(rows));
            return Ok(());
        }
        let rows = pad_rows(bytemuck::cast_slice(rows), cols, cols.next_multiple_of(4));
        gpu.write(buffer, at, bytemuck::cast_slice(&rows));
        Ok(())
    }

    fn prepared_step(&self) -> Result<&PreparedStep> {
        self.prepared
            .as_ref()
            .ok_or_else(|| Error::Internal(format!("{}: no step was prepared", self.graph().name)))
    }

    /// Submits a run over `rows` rows as one sequence.
    ///
    /// # Errors
    /// `Internal` for more rows than prepared; device errors.
    pub fn run(&self, gpu: &Gpu, rows: usize) -> Result<()> {
        let made = self.prepared_step()?;
        if rows > made.rows {
            return Err(Error::Internal(format!(
                "{}: {rows} rows exceed the prepared {}",
                self.graph().name,
                made.rows
            )));
        }
        if self.attends() {
            // All rows of the output attend to each other.
            let seen = vec![[0, self.rows_of(rows) as u32]; self.rows_of(rows)];
            gpu.write(
                &made.own[&Slot::SequenceSpans],
                0,
                bytemuck::cast_slice(&seen),
            );
        }
        self.submit(gpu, StepSizes::rows(rows), None)
    }

    /// Submits a run whose layout was written by [`Self::put`], optionally with a copy of output
    /// rows.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`]; device errors.
    pub(super) fn submit(
        &self,
        gpu: &Gpu,
        counts: StepSizes,
        copied: Option<(usize, (&Buffer, u64))>,
    ) -> Result<()> {
        let made = self.prepared_step()?;
        for dim in self.dims() {
            gpu.write(
                &made.own[&Slot::Cursor(dim)],
                0,
                bytemuck::cast_slice(&state_words(0, dim.eval(counts), 0, 0)),
            );
        }
        let grids = made.step.grids_for(counts);
        let mut work = vec![made.step.with_grids(&grids)];
        let size = |rows| rows_bytes(rows, made.step.output_cols);
        work.extend(copied.map(|(rows, to)| Command::Copy {
            from: (&made.step.output, 0),
            to,
            size: size(rows),
        }));
        gpu.submit(&work)
    }

    /// Writes to a buffer of the step, if it has this slot.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`].
    pub(super) fn write_slot(&self, gpu: &Gpu, slot: Slot, at: u64, bytes: &[u8]) -> Result<()> {
        if let (Some(buffer), false) = (self.prepared_step()?.own.get(&slot), bytes.is_empty()) {
            gpu.write(buffer, at, bytes);
        }
        Ok(())
    }

    /// The buffer of a slot.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`].
    pub(super) fn buffer(&self, slot: Slot) -> Result<&Buffer> {
        Ok(&self.prepared_step()?.own[&slot])
    }

    /// The buffer of its only input.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`].
    pub fn input(&self) -> Result<&Buffer> {
        self.buffer(Slot::Input(InputId(0)))
    }

    /// The output's buffer, `[rows, cols]`, with row strides padded to multiples of four.
    ///
    /// # Errors
    /// `Internal` before [`Self::prepare`].
    pub fn output(&self) -> Result<&Buffer> {
        Ok(&self.prepared_step()?.step.output)
    }

    /// Reads rows of the output.
    ///
    /// # Errors
    /// `NotFinite` when they contain NaN or infinity.
    pub async fn read(&self, gpu: &Gpu, first: usize, rows: usize) -> Result<Vec<f32>> {
        let cols = self.cols();
        let bytes = gpu
            .read(
                self.output()?,
                rows_bytes(first, cols),
                rows_bytes(rows, cols),
            )
            .await?;
        let rows = unpad_rows(&bytes, cols);
        check_finite(&rows)?;
        Ok(rows)
    }

    /// Times each dispatch of a run over `rows` rows, which must be prepared.
    ///
    /// # Errors
    /// Device errors.
    pub async fn profile(&self, gpu: &Gpu, rows: usize) -> Result<super::StepTimes> {
        self.prepared_step()?.step.profile(gpu, rows).await
    }
}

fn plan_step(
    planned: &PlannedGraph,
    caps: &Caps,
    rows: usize,
    block: Option<usize>,
) -> Result<StepPlan> {
    let kind = block.map_or(StepKind::Prefill(rows), |block| StepKind::Packed {
        tokens: rows,
        sequences: rows.div_ceil(block),
    });
    planned.plan(caps, &planned.graph, kind, rows)
}
