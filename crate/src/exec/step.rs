//! A plan made real: its buffers, its pipelines, its recorded program.

use crate::device::registry::{Kernel, Shader, Variant};
use crate::gpu::{Backend, Buffer, Gpu, Grid, Pipeline, Program, StepDesc, Usage, Work};
use crate::ir::{Counts, Dim, Graph, RopeSpec};
use crate::kernels::{GridSpec, Launch};
use crate::plan::{GUESSED, Plan, Slot};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use std::cell::Cell;
use std::collections::HashMap;

/// The buffers that all plans of a model share.
pub type Buffers = HashMap<Slot, Buffer>;

/// Bytes of shaders/common/state.wgsl, rounded up.
pub const STATE_BYTES: u64 = 32;

/// Where a step stands, as shaders/common/state.wgsl has it.
pub fn state(pos: usize, rows: usize, step: usize, budget: usize) -> [u32; 8] {
    [pos as u32, rows as u32, step as u32, 0, budget as u32, 0, 0, 0]
}

/// Makes the buffers of those of a graph's rotations that are `wanted`, for so many positions.
pub fn rope_buffers(
    gpu: &Gpu,
    graph: &Graph,
    positions: usize,
    shared: &mut Buffers,
    wanted: impl Fn(&RopeSpec) -> bool,
) -> Result<()> {
    for (index, spec) in graph.ropes.iter().enumerate().filter(|(_, spec)| wanted(spec)) {
        shared.insert(Slot::Rope(index), gpu.buffer("rope", (positions * spec.dim * 4) as u64, Usage::Storage)?);
    }
    Ok(())
}

/// Bytes of so many rows of a step's output.
pub fn rows_bytes(rows: usize, cols: usize) -> u64 {
    (rows * cols.next_multiple_of(4) * 4) as u64
}

/// The numbers of a step's output without the rows' padding.
pub fn unpadded(bytes: &[u8], cols: usize) -> Vec<f32> {
    narrowed(bytemuck::pod_collect_to_vec(bytes), cols.next_multiple_of(4), cols)
}

/// Rows with zeros up to the stride.
pub fn padded(rows: &[u32], cols: usize, stride: usize) -> Vec<u32> {
    let mut padded = vec![0; rows.len() / cols * stride];
    for (to, from) in padded.chunks_exact_mut(stride).zip(rows.chunks_exact(cols)) {
        to[..cols].copy_from_slice(from);
    }
    padded
}

/// The first columns of rows.
pub fn narrowed(mut rows: Vec<f32>, stride: usize, cols: usize) -> Vec<f32> {
    if cols < stride {
        let count = rows.len() / stride;
        (0..count).for_each(|row| rows.copy_within(row * stride..row * stride + cols, row * cols));
        rows.truncate(count * cols);
    }
    rows
}

/// Refuses output that is no numbers: it would decode to fluent nonsense.
pub fn finite(output: &[f32]) -> Result<()> {
    if output.iter().all(|v| v.is_finite()) {
        return Ok(());
    }
    let hint = "The weights or the driver are damaged; load the model again, and try features: { f16: false }.";
    Err(Error::NotFinite { step: "the forward pass".into(), hint: hint.into() })
}

/// Refuses logits that are no numbers, or all the same: what a device makes that left work out, and weights of zeros.
pub fn sound(logits: &[f32]) -> Result<()> {
    finite(logits)?;
    match logits {
        [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|v| v == first) => {
            let hint = crate::sample::CONSTANT_HINT;
            Err(Error::NotFinite { step: "the forward pass".into(), hint: hint.into() })
        }
        _ => Ok(()),
    }
}

/// Compiled kernels by variant.
pub type Pipelines = SortedMap<Variant, (Shader, Pipeline)>;

/// Compiles the kernels of some plans but for the `known` ones, each variant once and all at the same time where the device
/// can. The device begins when this is called.
pub fn compile(gpu: &Gpu, plans: &[&Plan], known: &Pipelines) -> impl Future<Output = Result<Pipelines>> + use<> {
    let begun = shaders(plans, known).map(|shaders| {
        let texts: Vec<Shader> = shaders.values().cloned().collect();
        (shaders, gpu.pipelines(&texts))
    });
    async {
        let (shaders, pipelines) = begun?;
        let pipelines = pipelines.await?;
        Ok(shaders.into_iter().zip(pipelines).map(|((variant, shader), p)| (variant, (shader, p))).collect())
    }
}

fn shaders(plans: &[&Plan], known: &Pipelines) -> Result<SortedMap<Variant, Shader>> {
    let mut shaders = SortedMap::new();
    for launch in plans.iter().flat_map(|p| &p.launches) {
        if !known.contains_key(&launch.variant) && !shaders.contains_key(&launch.variant) {
            shaders.insert(launch.variant.clone(), launch.variant.shader(cfg!(target_arch = "wasm32"))?);
        }
    }
    Ok(shaders)
}

/// Milliseconds of each step of a program.
#[derive(Debug, Clone)]
pub struct StepTimes {
    /// The steps' labels.
    pub labels: Vec<String>,
    /// Their kernels.
    pub kernels: Vec<String>,
    /// Milliseconds on the GPU.
    pub ms: Vec<f64>,
}

/// A plan with the buffers that hold something within a step only: the steps of all sessions take turns in them.
pub struct Prepared {
    /// The plan.
    pub plan: Plan,
    own: Buffers,
}

impl Prepared {
    /// Makes the buffers of a plan, its output among them where it is not the session's.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for them.
    pub fn new(gpu: &Gpu, name: &str, plan: Plan, output: bool) -> Result<Self> {
        Self::on(&Buffers::new(), gpu, name, plan, output)
    }

    fn on(shared: &Buffers, gpu: &Gpu, name: &str, plan: Plan, output: bool) -> Result<Self> {
        let activations = plan.activations.iter().enumerate().map(|(i, size)| (Slot::Activation(i), *size));
        let output = (Slot::Output, if output { plan.output } else { 0 });
        let [rotated, scratch] = [(Slot::Rotated, plan.rotated), (Slot::Scratch, plan.scratch)];
        let rest = [output, rotated, scratch, (Slot::Buckets, plan.sorted)];
        let mut own = Buffers::new();
        for (slot, size) in activations.chain(rest.into_iter().filter(|(_, size)| *size > 0)) {
            let buffer = match shared.get(&slot) {
                Some(buffer) if buffer.size() >= size => buffer.clone(),
                _ => gpu.buffer(name, size, Usage::Storage)?,
            };
            own.insert(slot, buffer);
        }
        Ok(Self { plan, own })
    }

    /// Another plan that never runs at the same time: on the same buffers where they are large enough.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn beside(&self, gpu: &Gpu, name: &str, plan: Plan) -> Result<Self> {
        Self::on(&self.own, gpu, name, plan, false)
    }
}

/// The steps of a sequence that read or write its states.
pub struct Steps {
    /// One token.
    pub decode: Step,
    /// The same near the beginning, with fewer dispatches.
    pub near: Option<Step>,
    /// A prompt.
    pub prefill: Step,
    /// A shorter one, with lower tiles.
    pub middle: Option<Step>,
}

/// Where a step stops for experts that may have to come first.
pub struct Stop {
    /// The dispatches before.
    pub end: usize,
    /// The dispatches before the one that sums what a row's picks made, where it is one by itself.
    pub mixed: Option<usize>,
    /// Picks of each row, then their weights.
    pub picks: Buffer,
    /// Elements from a row to the next.
    pub stride: usize,
    /// Picks of a row.
    pub each: usize,
    /// What the next layer is likely to pick, likewise.
    pub guess: Option<Buffer>,
}

/// The stops of a plan, one for each router.
fn stops(plan: &Plan, find: impl Fn(&Slot) -> Option<Buffer>) -> Vec<Stop> {
    let launches = &plan.launches;
    let routes = |at: usize| launches.get(at).is_some_and(|l| l.variant.kernel == Kernel::Route);
    let guessed = |at: usize| routes(at) && launches[at].label.ends_with(GUESSED);
    let out = |at: usize| find(&launches[at].binds.iter().find(|(name, _)| *name == "out")?.1);
    let param =
        |at: usize, wanted: &str| launches[at].params.iter().find(|(name, _)| *name == wanted).map(|p| p.1 as usize);
    let stop = |at: usize| {
        let guess = (at + 1..at + 3).find(|at| guessed(*at));
        let end = guess.unwrap_or(at) + 1;
        let next = (end..launches.len()).find(|at| routes(*at)).unwrap_or(launches.len());
        let mixed = (end..next).find(|at| launches[*at].variant.kernel == Kernel::Combine);
        let (stride, each) = (param(at, "out_stride")?, param(at, "picks")?);
        Some(Stop { end, mixed, picks: out(at)?, stride, each, guess: guess.and_then(out) })
    };
    (0..launches.len()).filter(|at| routes(*at) && !guessed(*at)).filter_map(stop).collect()
}

/// A plan that can be submitted.
pub struct Step {
    /// Where it stops in a model whose experts are not all on the device.
    pub stops: Vec<Stop>,
    program: Program,
    grids: Vec<(GridSpec, Dim)>,
    /// The rows of its recorded grids.
    rows: usize,
    /// The least keys of a run, and for how many runs of so many it is recorded, where its grids follow how many keys a row sees.
    following: Option<(u32, Cell<u32>)>,
    variants: Vec<Variant>,
    /// What the plan computes.
    pub output: Buffer,
    /// Its columns.
    pub output_cols: usize,
}

impl Step {
    /// Gives a plan the buffers that outlive a step, of which the first that has a slot serves. Its grids are those of
    /// `rows` rows.
    ///
    /// # Errors
    /// `Internal` when a kernel or a buffer is missing; what the device reports.
    pub fn new(
        gpu: &Gpu,
        name: &str,
        prepared: &Prepared,
        buffers: &[&Buffers],
        pipelines: &Pipelines,
        rows: usize,
    ) -> Result<Self> {
        let Prepared { plan, own } = prepared;
        let find = |slot: &Slot| own.get(slot).or_else(|| buffers.iter().find_map(|b| b.get(slot))).cloned();
        let mut steps = Vec::with_capacity(plan.launches.len());
        for launch in &plan.launches {
            let missing = |what: &str| Error::Internal(format!("{name}: {}: no {what}", launch.label));
            let (shader, pipeline) = pipelines.get(&launch.variant).ok_or_else(|| missing("pipeline"))?;
            let resolved = launch.resolve(shader)?;
            let bind = |(binding, slot): (u32, Slot)| {
                find(&slot).map(|b| (binding, b)).ok_or_else(|| missing(&format!("buffer for {slot:?}")))
            };
            steps.push(StepDesc {
                label: launch.label.clone(),
                pipeline: pipeline.clone(),
                buffers: resolved.buffers.into_iter().map(bind).collect::<Result<_>>()?,
                params: resolved.params,
                grid: launch.grid.at(launch.dim.of(Counts::rows(rows)) as u32),
            });
        }
        let output = find(&Slot::Output).ok_or_else(|| Error::Internal(format!("{name}: no output")))?;
        let tile = |l: &Launch<Slot>| if let GridSpec::Runs { tile, .. } = l.grid { Some(tile) } else { None };
        let least = plan.launches.iter().filter_map(tile).min();
        Ok(Self {
            stops: stops(plan, find),
            following: least.map(|tile| (tile, Cell::new(u32::MAX))),
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
        self.grids_for(Counts::rows(rows))
    }

    /// The grids for all counts of a step.
    pub fn grids_for(&self, counts: Counts) -> Vec<Grid> {
        self.grids.iter().map(|(grid, dim)| grid.at(dim.of(counts) as u32)).collect()
    }

    /// Records it without the workgroups that have nothing to do where no row sees more than so many keys.
    pub fn within(&self, gpu: &Gpu, keys: usize) -> &Self {
        if let Some((tile, recorded)) = &self.following {
            let runs = (keys as u32).div_ceil(*tile);
            if recorded.replace(runs) != runs {
                let rows = Counts::rows(self.rows);
                let at = |(grid, dim): &(GridSpec, Dim)| grid.within(keys as u32).at(dim.of(rows) as u32);
                gpu.regrid(&self.program, &self.grids.iter().map(at).collect::<Vec<_>>());
            }
        }
        self
    }

    /// This step with its recorded grids.
    pub fn recorded(&self) -> Work<'_> {
        Work::Run { program: &self.program, grids: None }
    }

    /// This step with other grids.
    pub fn with_grids<'a>(&'a self, grids: &'a [Grid]) -> Work<'a> {
        Work::Run { program: &self.program, grids: Some(grids) }
    }

    /// How many dispatches it takes.
    pub fn dispatches(&self) -> usize {
        self.grids.len()
    }

    /// Times each dispatch by itself, in a pass of its own.
    pub async fn profile(&self, gpu: &Gpu, rows: usize) -> Result<StepTimes> {
        let grids = (rows != self.rows).then(|| self.grids(rows));
        let ns = gpu.profile(&self.program, grids.as_deref()).await?;
        Ok(StepTimes {
            labels: self.program.labels().to_vec(),
            kernels: self.variants.iter().map(|v| v.kernel.name().to_string()).collect(),
            ms: ns.into_iter().map(|t| t / 1e6).collect(),
        })
    }
}
