//! Weights from files into buffers, and kernels compiled meanwhile. Knows in which order a load asks the device for things;
//! `loader` knows what becomes of the bytes.

mod kept;
mod loader;
mod write;

use super::load_times::{Lap, LoadTimes};
use super::step::{Buffers, Pipelines, compile};
use crate::format::{self, Checkpoint, Dtype, Float, WeightSource, Weights};
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::{Graph, WeightId};
use crate::plan::{Plan, WeightPlans};
use crate::util::clock;
use crate::util::map::SortedSet;
use crate::{Error, Result};
use futures_util::future::{LocalBoxFuture, try_join3};
use loader::Loader;
pub use loader::Makers;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The float type of a dense dtype.
pub fn float_of(dtype: Dtype) -> Option<Float> {
    format::detect::float(dtype)
}

/// Whose weights are loaded, and from where.
pub struct Wanted<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// What asks for the weights.
    pub graph: &'a Graph,
    /// Target layout on the device.
    pub plans: &'a WeightPlans,
    /// Where the files are.
    pub source: &'a Source,
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// What is in them.
    pub stored: &'a Weights,
}

/// What a load made.
pub struct Compiled {
    /// What was compiled.
    pub plans: Vec<Plan>,
    /// Its kernels.
    pub pipelines: Pipelines,
    /// The weights.
    pub buffers: Buffers,
    /// Where the time went.
    pub times: LoadTimes,
}

/// Tunes the device, then makes plans and compiles their kernels, while the weights come in. Until the device is tuned,
/// nothing else is asked of it: the first bytes wait. `meanwhile` begins when the device compiles and bytes are on their
/// way: it may take this thread for long. Takes no generic parts, so that the loader is in the module once.
///
/// # Errors
/// What the checkpoint lacks, what `tune`, `plan` and `meanwhile` say, what the source or the device refuses.
pub async fn load_compiled(
    wanted: Wanted<'_>,
    tune: LocalBoxFuture<'_, Result<()>>,
    plan: &dyn Fn() -> Result<Vec<Plan>>,
    meanwhile: LocalBoxFuture<'_, Result<()>>,
) -> Result<Compiled> {
    let Wanted { gpu, graph, plans, source, checkpoint, stored } = wanted;
    let (mut both, mut laps, mut before) = (Lap::start(), Lap::start(), Lap::start());
    let gate = Gate::default();
    // What the checkpoint lacks is told before anything compiles.
    let loader = Loader::new(gpu, graph, plans, stored, &gate)?;
    let kernels = async {
        tune.await?;
        let tuned_ms = laps.lap();
        let made = plan()?;
        gate.open();
        let before = gpu.created().pipelines;
        let variants: SortedSet<_> = made.iter().flat_map(|p| &p.launches).map(|l| &l.variant).collect();
        let total = variants.len() as u64;
        let work = compile(gpu, &made.iter().collect::<Vec<_>>(), &Pipelines::new());
        let there = || gpu.created().pipelines.saturating_sub(before);
        let pipelines = source.progress().compiling(total, there, work).await?;
        Ok((made, pipelines, tuned_ms, laps.lap()))
    };
    let weights = async {
        // Natively all of the kernels comes before.
        let before_ms = before.lap();
        // What the network brings is compared with its checksums while more comes and kernels compile.
        let mut lap = Lap::start();
        let (buffers, mut times) = source.verified(loader.load(source, checkpoint, true)).await?;
        let verified_ms = lap.lap() - times.total_ms;
        times.reading_ms += verified_ms;
        times.total_ms += verified_ms;
        Ok(((buffers, times), before_ms))
    };
    let work = async {
        gate.wait().await;
        // A page's commands leave for the GPU's process when its thread is free.
        clock::sleep(0.0).await;
        meanwhile.await
    };
    let (kernels, weights, ()) = try_join3(kernels, weights, work).await?;
    let (plans, pipelines, tuned_ms, kernels_ms) = kernels;
    let ((buffers, mut times), before_ms) = weights;
    let tuned_before = tuned_ms.min(before_ms);
    times.tuning_ms += tuned_before;
    // What the weights did not take of both, they waited for kernels.
    times.compiling_ms += both.lap() - times.total_ms - tuned_before;
    times.kernels_ms = kernels_ms;
    Ok(Compiled { plans, pipelines, buffers, times })
}

/// Loads weights into buffers of their own and nothing else.
///
/// # Errors
/// What the checkpoint lacks, what the source or the device refuses.
pub async fn load_alone(wanted: Wanted<'_>) -> Result<Buffers> {
    let Wanted { gpu, graph, plans, source, checkpoint, stored } = wanted;
    let gate = Gate::default();
    gate.open();
    Ok(Loader::new(gpu, graph, plans, stored, &gate)?.load(source, checkpoint, false).await?.0)
}

/// Fetches rows of weights into buffers that are there: from which source, to which row of which weight. Says how many bytes came.
///
/// # Errors
/// What the source or the device refuses.
pub async fn load_rows(
    wanted: Wanted<'_>,
    buffers: Buffers,
    rows: &[(WeightId, usize, WeightSource)],
    makers: &mut Makers,
) -> Result<u64> {
    let gate = Gate::default();
    gate.open();
    let mut loader = Loader::over(wanted.gpu, wanted.plans, buffers, std::mem::take(makers), &gate);
    for (weight, row, source) in rows {
        loader.want(*weight, *row, source)?;
    }
    let (kept, bytes) = loader.fetch(wanted.source, wanted.checkpoint).await?;
    *makers = kept;
    Ok(bytes)
}

/// Holds back until it is opened.
#[derive(Default)]
struct Gate {
    open: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Gate {
    fn open(&self) {
        self.open.set(true);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    async fn wait(&self) {
        poll_fn(|context| {
            if self.open.get() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

/// What only a mistake in a plan makes of a weight.
fn fault(weight: &str, what: &str) -> Error {
    Error::Internal(format!("loading: {weight} {what}"))
}
