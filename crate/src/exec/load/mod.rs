//! Loads weights into buffers while kernels compile. Sets the order of device work; `loader`
//! transfers the bytes.

mod loader;
mod quantized_cache;
mod write;

use super::load_times::{LoadTimes, Stopwatch};
use super::planned_graph::LoadPlans;
use super::step::{Buffers, Compilation, Pipelines, compile, compile_variants};
use crate::device::registry::Variant;
use crate::format::{self, Checkpoint, Dtype, Float, WeightSource, Weights};
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::{Graph, WeightId};
use crate::plan::WeightPlans;
use crate::util::clock;
use crate::util::latch::Latch;
use crate::util::map::SortedSet;
use crate::{Error, Result};
use futures_util::future::{LocalBoxFuture, try_join4};
use loader::Loader;
pub(super) use loader::allocate;
pub(super) use write::WeightRegion;

/// The float type of a dense dtype.
pub fn float_of(dtype: Dtype) -> Option<Float> {
    format::detect::float_type(dtype)
}

/// A request to load weights.
pub struct WeightLoadRequest<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The graph that needs the weights.
    pub graph: &'a Graph,
    /// Target layout on the device.
    pub plans: &'a WeightPlans,
    /// The source of the files.
    pub source: &'a Source,
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// The weights in them.
    pub stored: &'a Weights,
}

/// What runs while weights arrive.
pub struct LoadTasks<'a> {
    /// Bytes beyond the weights that the device must have room for; see [`Backend::probe`].
    pub reserve: u64,
    /// Runs before anything else is submitted to the device.
    pub tune: LocalBoxFuture<'a, Result<()>>,
    /// Starts once kernels compile and bytes arrive.
    pub meanwhile: LocalBoxFuture<'a, Result<()>>,
}

impl LoadTasks<'_> {
    /// Nothing.
    pub fn none() -> Self {
        Self {
            reserve: 0,
            tune: Box::pin(async { Ok(()) }),
            meanwhile: Box::pin(async { Ok(()) }),
        }
    }
}

/// The result of a load.
pub struct LoadOutput {
    /// The plans.
    pub plans: LoadPlans,
    /// The kernels of the first.
    pub pipelines: Pipelines,
    /// The other kernels of the later ones.
    pub later: Compilation,
    /// The weights.
    pub buffers: Buffers,
    /// Time spent in each phase.
    pub times: LoadTimes,
}

/// Tunes the device, then makes plans and compiles the first of them while weights arrive. Nothing else
/// is submitted until tuning ends; the first bytes wait. `tasks.meanwhile` starts once kernels compile and bytes
/// arrive; it may block this thread. A refused allocation ends the load, usually before bytes
/// arrive. Not generic, so that the WebAssembly module contains the
/// loader once.
///
/// # Errors
/// Errors of the checkpoint, of `plan` and the tasks, of the source or the device.
#[inline(never)]
pub fn load_compiled<'a>(
    wanted: WeightLoadRequest<'a>,
    plan: &'a dyn Fn() -> Result<LoadPlans>,
    tasks: LoadTasks<'a>,
) -> LocalBoxFuture<'a, Result<LoadOutput>> {
    // On the heap: a page has a short stack.
    Box::pin(load_and_compile(wanted, plan, tasks))
}

async fn load_and_compile(
    wanted: WeightLoadRequest<'_>,
    plan: &dyn Fn() -> Result<LoadPlans>,
    tasks: LoadTasks<'_>,
) -> Result<LoadOutput> {
    let WeightLoadRequest {
        gpu,
        graph,
        plans,
        source,
        checkpoint,
        stored,
    } = wanted;
    let mut both = Stopwatch::start();
    let mut laps = Stopwatch::start();
    let mut before = Stopwatch::start();

    let gate = Latch::default();
    // Report missing tensors before compiling.
    let loader = Loader::new(gpu, graph, plans, stored, &gate)?;
    gpu.probe(tasks.reserve);
    // Before other buffers, those of tuning for example.
    let allocations = gpu.allocations();
    let kernels = async {
        tasks.tune.await?;
        let tuned_ms = laps.lap();
        let made = plan()?;
        gate.open();
        let before = gpu.resource_counts().pipelines;
        let variants: SortedSet<Variant> = made
            .first
            .iter()
            .flat_map(|(_, step)| &step.plan.launches)
            .map(|launch| launch.variant.clone())
            .collect();
        let total = variants.len() as u64;
        let work = compile_variants(gpu, &variants);
        let there = || gpu.resource_counts().pipelines.saturating_sub(before);
        let pipelines = source
            .progress()
            .report_compiling(total, there, work)
            .await?;
        let later = compile(
            gpu,
            made.later.iter().map(|(_, step)| &step.plan),
            &pipelines,
        );
        Ok((made, pipelines, later, (tuned_ms, laps.lap())))
    };
    let weights = async {
        // Natively all kernels compile before this point.
        let before_ms = before.lap();
        // Downloads are verified against checksums while more arrives and kernels compile.
        let mut lap = Stopwatch::start();
        let (buffers, mut times) = source
            .load_verified(load_boxed(loader, source, checkpoint))
            .await?;
        let verified_ms = lap.lap() - times.total_ms;
        times.reading_ms += verified_ms;
        times.total_ms += verified_ms;
        Ok(((buffers, times), before_ms))
    };
    let work = async {
        gate.wait().await;
        // In a browser, commands reach the GPU process only when this thread yields.
        clock::sleep(0.0).await;
        tasks.meanwhile.await
    };
    let (_, kernels, weights, ()) = try_join4(allocations, kernels, weights, work).await?;
    let (plans, pipelines, later, (tuned_ms, kernels_ms)) = kernels;
    let ((buffers, mut times), before_ms) = weights;
    let tuned_before = tuned_ms.min(before_ms);
    times.tuning_ms += tuned_before;
    // Time of both that weights did not use was spent waiting for kernels.
    times.compiling_ms += both.lap() - times.total_ms - tuned_before;
    times.kernels_ms = kernels_ms;
    Ok(LoadOutput {
        plans,
        pipelines,
        later,
        buffers,
        times,
    })
}

/// The loader's future on the heap: it is large, and polled inside those of the whole load.
#[inline(never)]
fn load_boxed<'a>(
    loader: Loader<'a>,
    source: &'a Source,
    checkpoint: &'a Checkpoint,
) -> LocalBoxFuture<'a, Result<(Buffers, LoadTimes)>> {
    Box::pin(loader.load(source, checkpoint, true))
}

/// Loads weights into new buffers, without kernels.
///
/// # Errors
/// Errors of the checkpoint, the source or the device.
pub async fn load_weights(wanted: WeightLoadRequest<'_>) -> Result<Buffers> {
    let WeightLoadRequest {
        gpu,
        graph,
        plans,
        source,
        checkpoint,
        stored,
    } = wanted;
    let gate = Latch::default();
    gate.open();
    Ok(Loader::new(gpu, graph, plans, stored, &gate)?
        .load(source, checkpoint, false)
        .await?
        .0)
}

/// Fetches rows of weights into existing buffers. Each entry names a source and the target weight
/// and row. Returns the bytes read.
///
/// # Errors
/// Errors of the source or the device.
pub async fn load_rows(
    wanted: WeightLoadRequest<'_>,
    buffers: Buffers,
    rows: &[(WeightId, usize, WeightSource)],
    makers: &mut Pipelines,
) -> Result<u64> {
    let gate = Latch::default();
    gate.open();
    let mut loader = Loader::for_existing(
        wanted.gpu,
        wanted.plans,
        buffers,
        std::mem::take(makers),
        &gate,
    );
    for (weight, row, source) in rows {
        loader.request(*weight, *row, source)?;
    }
    let (kept, bytes) = loader.fetch(wanted.source, wanted.checkpoint).await?;
    *makers = kept;
    Ok(bytes)
}

/// The internal error for a weight that contradicts its plan.
fn plan_mismatch(weight: &str, what: &str) -> Error {
    Error::Internal(format!("loading: {weight} {what}"))
}
