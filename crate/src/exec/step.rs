//! Executable steps: a plan with its buffers, pipelines and recorded program.

use crate::device::registry::{Shader, Variant};
use crate::gpu::{
    Backend, Buffer, BufferUsage, Command, DispatchDesc, Gpu, Grid, Pipeline, Program,
};
use crate::ir::{Dim, Graph, RopeSpec, StateId, StepSizes};
use crate::kernels::{GridSpec, Launch};
use crate::plan::{Plan, PlanBreakKind, Slot};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use futures_util::future::{FutureExt, LocalBoxFuture, Shared, TryFutureExt};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// Buffers by slot.
pub type Buffers = HashMap<Slot, Buffer>;

/// Bytes of shaders/common/state.wgsl, rounded up.
pub const STATE_BYTES: u64 = 32;

/// The position state of a step, in the layout of shaders/common/state.wgsl.
pub fn state_words(pos: usize, rows: usize, step: usize, budget: usize) -> [u32; 8] {
    [
        pos as u32,
        rows as u32,
        step as u32,
        0,
        budget as u32,
        0,
        0,
        0,
    ]
}

/// Creates the buffers of a graph's RoPE tables selected by `wanted`, for the given number of
/// positions.
pub fn rope_buffers(
    gpu: &Gpu,
    graph: &Graph,
    positions: usize,
    shared: &mut Buffers,
    wanted: impl Fn(&RopeSpec) -> bool,
) -> Result<()> {
    for (index, spec) in graph
        .ropes
        .iter()
        .enumerate()
        .filter(|(_, spec)| wanted(spec))
    {
        shared.insert(
            Slot::Rope(index),
            gpu.buffer(
                "rope",
                (positions * spec.dim * 4) as u64,
                BufferUsage::Storage,
            )?,
        );
    }
    Ok(())
}

/// Bytes of an output of `rows` rows.
pub fn rows_bytes(rows: usize, cols: usize) -> u64 {
    (rows * cols.next_multiple_of(4) * 4) as u64
}

/// The values of a step's output without row padding.
pub fn unpad_rows(bytes: &[u8], cols: usize) -> Vec<f32> {
    strip_padding(
        bytemuck::pod_collect_to_vec(bytes),
        cols.next_multiple_of(4),
        cols,
    )
}

/// Rows padded with zeros to the stride.
pub fn pad_rows(rows: &[u32], cols: usize, stride: usize) -> Vec<u32> {
    let mut padded = vec![0; rows.len() / cols * stride];
    for (to, from) in padded.chunks_exact_mut(stride).zip(rows.chunks_exact(cols)) {
        to[..cols].copy_from_slice(from);
    }
    padded
}

/// Removes the padding of rows: keeps the first `cols` of each `stride` columns.
pub fn strip_padding(mut rows: Vec<f32>, stride: usize, cols: usize) -> Vec<f32> {
    if cols < stride {
        let count = rows.len() / stride;
        (0..count).for_each(|row| rows.copy_within(row * stride..row * stride + cols, row * cols));
        rows.truncate(count * cols);
    }
    rows
}

/// Rejects output with NaN or infinity, which would decode to fluent nonsense.
pub fn check_finite(output: &[f32]) -> Result<()> {
    if output.iter().all(|v| v.is_finite()) {
        return Ok(());
    }
    let hint = "The weights are damaged or the GPU driver is faulty; load the model again with features: { f16: false }.";
    Err(Error::NotFinite {
        step: "the forward pass".into(),
        hint: hint.into(),
    })
}

/// Rejects logits with NaN or infinity, or all equal: signs of skipped dispatches or zero weights.
pub fn check_logits(logits: &[f32]) -> Result<()> {
    check_finite(logits)?;
    match logits {
        [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|v| v == first) => {
            let hint = crate::sample::CONSTANT_HINT;
            Err(Error::NotFinite {
                step: "the forward pass".into(),
                hint: hint.into(),
            })
        }
        _ => Ok(()),
    }
}

/// Compiled kernels by variant.
pub type Pipelines = SortedMap<Variant, (Shader, Pipeline)>;

/// Kernels that are being compiled. Any number of callers may wait for them.
pub type Compilation = Shared<LocalBoxFuture<'static, Result<Rc<Pipelines>>>>;

/// Compiles the kernels of plans except the `known` ones; see [`compile_variants`].
pub fn compile<'a>(
    gpu: &Gpu,
    plans: impl IntoIterator<Item = &'a Plan>,
    known: &Pipelines,
) -> Compilation {
    let launches = plans.into_iter().flat_map(|plan| &plan.launches);
    let variants = launches
        .map(|launch| &launch.variant)
        .filter(|variant| !known.contains_key(variant));
    compile_variants(gpu, &variants.cloned().collect())
        .map_ok(Rc::new)
        .boxed_local()
        .shared()
}

/// Compiles kernels, each once and concurrently if the device allows. Compilation starts with the
/// call, not with the first poll.
pub fn compile_variants(
    gpu: &Gpu,
    variants: &SortedSet<Variant>,
) -> impl Future<Output = Result<Pipelines>> + use<> {
    let shaders: Result<SortedMap<Variant, Shader>> = variants
        .iter()
        .map(|variant| {
            Ok((
                variant.clone(),
                variant.shader(cfg!(target_arch = "wasm32"))?,
            ))
        })
        .collect();
    let begun = shaders.map(|shaders| {
        let texts: Vec<Shader> = shaders.values().cloned().collect();
        (shaders, gpu.pipelines(&texts))
    });
    async {
        let (shaders, pipelines) = begun?;
        let pipelines = pipelines.await?;
        Ok(shaders
            .into_iter()
            .zip(pipelines)
            .map(|((variant, shader), p)| (variant, (shader, p)))
            .collect())
    }
}

/// Milliseconds of each dispatch of a program.
#[derive(Debug, Clone)]
pub struct StepTimes {
    /// Labels of the dispatches.
    pub labels: Vec<String>,
    /// Their kernels.
    pub kernels: Vec<String>,
    /// Milliseconds on the GPU.
    pub ms: Vec<f64>,
}

/// A program: a plan whose kernels are compiled, with its temporary buffers, which the steps of all
/// sessions share, and the weights that it reads.
pub struct PlanBuffers {
    /// The plan.
    pub plan: Plan,
    own: Buffers,
    weights: Rc<Buffers>,
}

impl PlanBuffers {
    /// Creates the buffers of a plan, including its output if `output` is set.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub fn new(gpu: &Gpu, name: &str, plan: Plan, output: bool) -> Result<Self> {
        Self::with_shared_buffers(&Buffers::new(), gpu, name, plan, output)
    }

    fn with_shared_buffers(
        shared: &Buffers,
        gpu: &Gpu,
        name: &str,
        plan: Plan,
        output: bool,
    ) -> Result<Self> {
        let activations = plan
            .activations
            .iter()
            .enumerate()
            .map(|(i, size)| (Slot::Activation(i), *size));
        let output = (Slot::Output, if output { plan.output } else { 0 });
        let rest = std::iter::once(output).chain(plan.scratch());
        let mut own = Buffers::new();
        for (slot, size) in activations.chain(rest.filter(|(_, size)| *size > 0)) {
            let buffer = match shared.get(&slot) {
                Some(buffer) if buffer.size() >= size => buffer.clone(),
                _ => gpu.buffer(name, size, BufferUsage::Storage)?,
            };
            own.insert(slot, buffer);
        }
        Ok(Self {
            plan,
            own,
            weights: Rc::default(),
        })
    }

    /// The same program with weights, by the slots of the plan.
    pub fn with_weights(self, weights: Rc<Buffers>) -> Self {
        Self { weights, ..self }
    }

    /// Prepares another plan that never runs concurrently, with an output if `output` is set; it
    /// shares these buffers where they are large enough.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn sharing_buffers(&self, gpu: &Gpu, name: &str, plan: Plan, output: bool) -> Result<Self> {
        Self::with_shared_buffers(&self.own, gpu, name, plan, output)
    }
}

/// A point in a step where the host must act: a break of its plan with the buffers.
pub struct StepBreak {
    /// Dispatches before the break.
    pub after: usize,
    /// Buffer that the host reads.
    pub read: Buffer,
    /// Buffer that the host writes before the next dispatch.
    pub write: Buffer,
    /// Predicted experts of the next layer.
    pub predicted: Option<Buffer>,
    /// Action of the host.
    pub kind: PlanBreakKind,
}

/// Binds the breaks of a plan to buffers.
fn step_breaks(
    plan: &Plan,
    find: impl Fn(&Slot) -> Option<Buffer>,
) -> Result<Vec<StepBreak>, Slot> {
    let bind = |slot: &Slot| find(slot).ok_or(*slot);
    plan.breaks
        .iter()
        .map(|planned| {
            let predicted = match &planned.kind {
                PlanBreakKind::PagedExperts(experts) => experts.predicted.as_ref(),
                PlanBreakKind::PagedRows { .. } => None,
            };
            Ok(StepBreak {
                after: planned.after,
                read: bind(&planned.read)?,
                write: bind(&planned.write)?,
                predicted: predicted.map(bind).transpose()?,
                kind: planned.kind.clone(),
            })
        })
        .collect()
}

/// The grids of the dispatches in a range, and none for the others.
pub fn grids_in(grids: &[Grid], range: Range<usize>) -> Vec<Grid> {
    let mut some = vec![[0; 3]; grids.len()];
    some[range.clone()].copy_from_slice(&grids[range]);
    some
}

/// A plan that can be submitted.
pub struct Step {
    /// Points where the host must act; such a step is submitted in parts, one step at a time.
    pub breaks: Vec<StepBreak>,
    /// The dispatches that read or write states of a sequence, in order: index and state.
    pub state_uses: Vec<(usize, StateId)>,
    program: Program,
    grids: Vec<(GridSpec, Dim)>,
    /// The rows of its recorded grids.
    rows: usize,
    /// Minimum keys of a KV split and the number of splits recorded, if its grids depend on the
    /// number of visible keys.
    kv_splits: Option<(u32, Cell<u32>)>,
    variants: Vec<Variant>,
    /// The output of the plan.
    pub output: Buffer,
    /// Its columns.
    pub output_cols: usize,
}

impl Step {
    /// Binds a plan to the buffers that outlive a step; the first map that has a slot is used.
    /// Grids are recorded for `rows` rows.
    ///
    /// # Errors
    /// `Internal` when a kernel or a buffer is missing; device errors.
    pub fn new(
        gpu: &Gpu,
        name: &str,
        prepared: &PlanBuffers,
        buffers: &[&Buffers],
        pipelines: &Pipelines,
        rows: usize,
    ) -> Result<Self> {
        let PlanBuffers { plan, own, weights } = prepared;
        let find = |slot: &Slot| {
            own.get(slot)
                .or_else(|| buffers.iter().find_map(|b| b.get(slot)))
                .or_else(|| weights.get(slot))
                .cloned()
        };
        let mut steps = Vec::with_capacity(plan.launches.len());
        for launch in &plan.launches {
            let missing =
                |what: &str| Error::Internal(format!("{name}: {}: no {what}", launch.label));
            let (shader, pipeline) = pipelines
                .get(&launch.variant)
                .ok_or_else(|| missing("pipeline"))?;
            let resolved = launch.resolve(shader)?;

            steps.push(DispatchDesc {
                label: launch.label.clone(),
                pipeline: pipeline.clone(),
                buffers: resolved
                    .buffers
                    .into_iter()
                    .map(|(binding, slot): (u32, Slot)| {
                        find(&slot)
                            .map(|b| (binding, b))
                            .ok_or_else(|| missing(&format!("buffer for {slot:?}")))
                    })
                    .collect::<Result<_>>()?,
                params: resolved.params,
                grid: launch
                    .grid
                    .at(launch.dim.eval(StepSizes::rows(rows)) as u32),
            });
        }
        let output =
            find(&Slot::Output).ok_or_else(|| Error::Internal(format!("{name}: no output")))?;
        let breaks = step_breaks(plan, find)
            .map_err(|slot| Error::Internal(format!("{name}: no buffer for {slot:?}")))?;
        let tile = |l: &Launch<Slot>| {
            if let GridSpec::KvSplits { tile, .. } = l.grid {
                Some(tile)
            } else {
                None
            }
        };
        let least = plan.launches.iter().filter_map(tile).min();
        let launches = plan.launches.iter().enumerate();
        let state_uses = launches.flat_map(|(index, launch)| {
            launch.binds.iter().filter_map(move |(_, slot)| match slot {
                Slot::State(id, _) => Some((index, *id)),
                _ => None,
            })
        });
        Ok(Self {
            breaks,
            state_uses: state_uses.collect(),
            kv_splits: least.map(|tile| (tile, Cell::new(u32::MAX))),
            program: gpu.program(name, steps)?,
            grids: plan.launches.iter().map(|l| (l.grid, l.dim)).collect(),
            rows,
            variants: plan.launches.iter().map(|l| l.variant.clone()).collect(),
            output,
            output_cols: plan.output_cols,
        })
    }

    /// The grids for a number of rows.
    pub fn grids(&self, rows: usize) -> Vec<Grid> {
        self.grids_for(StepSizes::rows(rows))
    }

    /// The grids for all counts of a step.
    pub fn grids_for(&self, counts: StepSizes) -> Vec<Grid> {
        self.grids
            .iter()
            .map(|(grid, dim)| grid.at(dim.eval(counts) as u32))
            .collect()
    }

    /// Records it again without idle workgroups, when no row attends to more than `keys` keys.
    pub fn limit_keys(&self, gpu: &Gpu, keys: usize) -> &Self {
        if let Some((tile, recorded)) = &self.kv_splits {
            let runs = (keys as u32).div_ceil(*tile);
            if recorded.replace(runs) != runs {
                let rows = StepSizes::rows(self.rows);

                gpu.set_grids(
                    &self.program,
                    &self
                        .grids
                        .iter()
                        .map(|(grid, dim): &(GridSpec, Dim)| {
                            grid.limit_keys(keys as u32).at(dim.eval(rows) as u32)
                        })
                        .collect::<Vec<_>>(),
                );
            }
        }
        self
    }

    /// This step with its recorded grids.
    pub fn recorded(&self) -> Command<'_> {
        Command::Run {
            program: &self.program,
            grids: None,
        }
    }

    /// This step with other grids.
    pub fn with_grids<'a>(&'a self, grids: &'a [Grid]) -> Command<'a> {
        Command::Run {
            program: &self.program,
            grids: Some(grids),
        }
    }

    /// Number of dispatches.
    pub fn dispatches(&self) -> usize {
        self.grids.len()
    }

    /// Times each dispatch in a pass of its own.
    pub async fn profile(&self, gpu: &Gpu, rows: usize) -> Result<StepTimes> {
        let grids = (rows != self.rows).then(|| self.grids(rows));
        let ns = gpu.profile(&self.program, grids.as_deref()).await?;
        Ok(StepTimes {
            labels: self.program.labels().to_vec(),
            kernels: self
                .variants
                .iter()
                .map(|v| v.kernel.name().to_string())
                .collect(),
            ms: ns.into_iter().map(|t| t / 1e6).collect(),
        })
    }
}
