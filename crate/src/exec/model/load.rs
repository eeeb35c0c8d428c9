//! Loads a decoder. It is allocated first; where the device refuses, the load goes on with a smaller
//! plan for the memory that the device had.

use super::{FIRST_KEPT, MemoryUse, Model};
use crate::arch::{image_mask, mrope_sections};
use crate::exec::decoder_steps::decode_keys;
use crate::exec::files::ModelFiles;
use crate::exec::graph_runner::{GraphRunner, WeightFiles};
use crate::exec::load::LoadTasks;
use crate::exec::load_plan::{LoadPlan, plan_load};
use crate::exec::load_times::Stopwatch;
use crate::exec::options::RunOptions;
use crate::exec::step::rope_buffers;
use crate::exec::step_costs::StepCosts;
use crate::exec::tune::{Tuning, TuningSource, tune};
use crate::exec::turns::Turns;
use crate::exec::weight_paging::WeightPager;
use crate::gpu::{Backend, Gpu, Refusal};
use crate::hub::Source;
use crate::ir::{Graph, StoreHidden};
use crate::plan::Slot;
use crate::util::clock::now_ms;
use crate::{Error, Result};
use futures_util::future::{Fuse, FusedFuture, FutureExt, LocalBoxFuture};
use futures_util::lock::Mutex;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What all attempts of a load share.
struct DecoderLoad<'a> {
    gpu: Rc<Gpu>,
    source: &'a Source,
    files: &'a ModelFiles,
    /// The result of tuning, once it ended.
    tuning: Option<Tuning>,
    /// Runs next to the first attempt that comes so far.
    meanwhile: Fuse<LocalBoxFuture<'a, Result<()>>>,
}

/// Splits the name of a layer's weight: what precedes the layer's index, and the index.
fn layer_of(name: &str) -> Option<(&str, usize)> {
    let mut at = 0;
    for part in name.split('.') {
        if let Ok(index) = part.parse() {
            return Some((&name[..at], index));
        }
        at += part.len() + 1;
    }
    None
}

/// Warns of layers of the checkpoint that the configuration does not count. Layers that predict
/// further tokens, whose number the configuration has, are known. GGUF files count their own layers.
fn unused_layers(files: &ModelFiles, graph: &Graph) -> Option<String> {
    if files.gguf.is_some() {
        return None;
    }
    let parts = graph.weights.iter().flat_map(|weight| &weight.parts);
    let used = parts.filter_map(|(name, _)| layer_of(name));
    let (prefix, last) = used.max_by_key(|(_, index)| *index)?;
    let names = files.weights.iter().map(|weight| &*weight.name);
    let stored = names
        .filter_map(layer_of)
        .filter(|(other, _)| *other == prefix);
    let found = stored.map(|(_, index)| index).max()?;
    let predicting = files.config.fields().get("num_nextn_predict_layers");
    let predicting = predicting.and_then(Value::as_u64).unwrap_or(0) as usize;
    let note = || {
        format!(
            "The checkpoint has {} layers, but its configuration names {}: the others are not used. Correct the number of \
             layers in config.json, unless the model was shortened on purpose.",
            found + 1,
            last + 1,
        )
    };
    (found > last.saturating_add(predicting)).then(note)
}

/// A plan that did not fit.
struct Refused {
    needed: u64,
    refusal: Refusal,
    error: Error,
}

impl Model {
    /// Runs [`Self::load_files`] and, concurrently, `meanwhile`, which starts once kernels compile
    /// and weights arrive.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint, the device or `meanwhile`.
    pub async fn load_concurrently(
        gpu: Rc<Gpu>,
        source: &Source,
        mut files: ModelFiles,
        mut options: RunOptions,
        meanwhile: LocalBoxFuture<'_, Result<()>>,
    ) -> Result<Rc<Self>> {
        let mut whole = Stopwatch::start();
        let mut graph = files.take_decoder_graph()?;
        if options.stores_hidden {
            files.check_mtp()?;
            graph = graph.with_stored_hidden(StoreHidden::ByPosition)?;
        }
        let loaded = files.store.borrow().clone();
        let used = gpu.resource_counts().bytes;
        let measured = gpu.caps().measured.clone();
        if options.memory.is_none() && options.room.is_none() {
            // A limit of all models on the device.
            options.room = measured.get().limit.map(|limit| limit.saturating_sub(used));
        }
        let mut load = DecoderLoad {
            gpu: gpu.clone(),
            source,
            files: &files,
            tuning: None,
            meanwhile: meanwhile.fuse(),
        };
        let mut before: Option<Refused> = None;
        let mut is_limited = false;
        loop {
            let plan = plan_load(&graph, &files.config, &files.weights, gpu.caps(), &options)?;
            let needed = plan.needed;
            // The smallest plan is tried without what it may need later.
            let is_smallest = before
                .as_ref()
                .is_some_and(|before| needed >= before.needed);
            if let Some(before) = before.take_if(|before| is_smallest && !before.refusal.is_probe) {
                return Err(before.error);
            }
            let probes = !is_smallest && used + needed > measured.get().held;
            gpu.take_refusal();
            let error = match load.attempt(plan, options, probes).await {
                Ok(mut model) => {
                    let mut known = measured.get();
                    let held = gpu.resource_counts().bytes;
                    if is_limited {
                        // This load met the limit: smaller buffers fitted beyond it.
                        known.limit = known.limit.map(|limit| limit.max(held));
                    }
                    known.add_held(held);
                    if probes && !gpu.caps().software {
                        known.add_held(used + needed);
                    }
                    measured.set(known);
                    model.load.total_ms = whole.lap();
                    return Ok(Rc::new(model));
                }
                Err(error) => error,
            };
            *files.store.borrow_mut() = loaded.clone();
            let mut known = measured.get();
            let smaller = needed - needed / 8;
            let refusal = gpu.take_refusal();
            if error.is_loss_by_memory() {
                known.add_refused(used + smaller, now_ms());
                measured.set(known);
            }
            let (Error::OutOfMemory { .. }, Some(refusal)) = (&error, refusal) else {
                return Err(error);
            };
            known.add_refused(refusal.held, now_ms());
            is_limited = true;
            measured.set(known);
            let room = refusal.held.saturating_sub(used).min(smaller);
            options.room = Some(room);
            before = Some(Refused {
                needed,
                refusal,
                error,
            });
        }
    }

    /// Loads the multi-token-prediction head of a model's checkpoint: a draft model that shares the
    /// embedding and the output head with it. The model was loaded with
    /// [`RunOptions::stores_hidden`].
    ///
    /// # Errors
    /// `Request` if the model stores no hidden states; `UnsupportedOption` for a checkpoint without
    /// such a head; errors of the source, the checkpoint or the device.
    pub async fn load_mtp_head(&self, source: &Source, options: RunOptions) -> Result<Rc<Self>> {
        if !self.options.stores_hidden {
            let reason = "'mtp' reads hidden states, which the model does not store. Load the model with 'stores_hidden'.";
            return Err(Error::Request {
                parameter: "draft".into(),
                reason: reason.into(),
            });
        }
        let mut files = ModelFiles::open(source, None).await?;
        let shared = files.select_mtp_head(self.runner.store().clone())?;
        let measured = self.gpu.caps().measured.get().limit;
        let used = self.gpu.resource_counts().bytes;
        let room = options.room;
        let room = room.or(measured.map(|limit| limit.saturating_sub(used)));
        let with_shared = |bytes: Option<u64>| bytes.map(|bytes| bytes.saturating_add(shared));
        let options = RunOptions {
            memory: with_shared(options.memory),
            room: with_shared(room),
            ..options
        };
        let nothing = Box::pin(async { Ok(()) });
        Self::load_concurrently(self.gpu.clone(), source, files, options, nothing).await
    }
}

impl DecoderLoad<'_> {
    /// Loads a model as planned. After an error nothing of it stays on the device.
    async fn attempt(
        &mut self,
        plan: LoadPlan,
        mut options: RunOptions,
        probes: bool,
    ) -> Result<Model> {
        let LoadPlan {
            planned,
            steps,
            precision,
            mut notes,
            reserve,
            ..
        } = plan;
        let Self {
            gpu,
            source,
            files,
            tuning,
            meanwhile,
        } = self;
        options.fusions = planned.fusions;
        notes.extend(unused_layers(files, &planned.graph));
        let weights = planned.weights.clone();
        let tasks = LoadTasks {
            reserve: if probes { reserve } else { 0 },
            tune: Box::pin(async {
                if tuning.is_none() {
                    *tuning = Some(tune(gpu, source, &weights, options.tune).await?);
                }
                Ok(())
            }),
            meanwhile: Box::pin(async {
                if meanwhile.is_terminated() {
                    return Ok(());
                }
                meanwhile.await
            }),
        };
        let shared = files.store.borrow().bytes();
        let from = WeightFiles {
            source,
            checkpoint: &files.checkpoint,
            stored: &files.weights,
        };
        let plan = |planned: &_| steps.load_plans(planned, gpu.caps());
        let (mut runner, plans, mut load) =
            GraphRunner::load(gpu, from, planned, &files.store, &plan, tasks).await?;
        let tuning = tuning
            .clone()
            .unwrap_or_else(|| Tuning::without_choices(TuningSource::Off));
        notes.extend(tuning.failure.iter().map(|reason| {
            format!("Kernels were not autotuned ({reason}). The default variants are used.")
        }));
        let mut bytes = MemoryUse {
            weights: runner.store().borrow().bytes() - shared,
            ..MemoryUse::default()
        };
        let before = gpu.resource_counts().bytes;
        let pager = WeightPager::new(gpu, from, &mut runner, steps.chunk)?;
        shared_ropes(gpu, &mut runner)?;
        bytes.activations = gpu.resource_counts().bytes - before;
        runner.add_programs(gpu, plans)?;
        gpu.check().await?;
        let peak = tuning.peak_bytes.max(gpu.resource_counts().bytes);
        load.peak_bytes = load.peak_bytes.max(peak);
        Ok(Model {
            gpu: gpu.clone(),
            mrope_sections: mrope_sections(&files.config),
            image_mask: image_mask(&files.config),
            config: files.config.clone(),
            precision,
            notes,
            tuning,
            load,
            decode_programs: decode_keys(&runner.planned, gpu.caps()),
            runner,
            steps,
            overlays: RefCell::default(),
            bytes: Cell::new(bytes),
            options,
            turns: Turns::default(),
            batch_size: Cell::new(1),
            kept_ahead: Cell::new(FIRST_KEPT),
            step_costs: Cell::new(StepCosts::default()),
            draft_pause: Cell::default(),
            pager: pager.map(Mutex::new),
            parts: Mutex::new(()),
        })
    }
}

/// Creates and fills the RoPE tables that all sequences share.
fn shared_ropes(gpu: &Gpu, runner: &mut GraphRunner) -> Result<()> {
    let GraphRunner {
        planned, shared, ..
    } = runner;
    rope_buffers(gpu, &planned.graph, planned.capacity, shared, |rope| {
        !rope.depends_on_length()
    })?;
    for (index, spec) in planned.graph.ropes.iter().enumerate() {
        if let Some(buffer) = shared.get(&Slot::Rope(index)) {
            let table = spec.table(0, planned.capacity, 0);
            gpu.write(buffer, 0, bytemuck::cast_slice(&table));
        }
    }
    Ok(())
}
