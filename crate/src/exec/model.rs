//! A loaded decoder: weights, plans and kernels on a device, shared by all its sessions.

use super::files::ModelFiles;
use super::lazy_programs::{ShortPrefill, SpeculationPlans};
use super::load::{LoadOutput, LoadRequest, load_compiled};
use super::load_plan::{LoadPlan, plan_load};
use super::load_times::{LoadTimes, Stopwatch};
use super::logits_pipeline::LogitsPipeline;
use super::options::{Precision, RunOptions};
use super::step::{Buffers, Pipelines, PlanBuffers, SessionSteps, Step, compile, rope_buffers};
use super::tune::{Tuning, TuningSource, tune};
use super::weight_paging::WeightPager;
use crate::arch::vision::ImageMask;
use crate::arch::{image_mask, mrope_sections};
use crate::format::{Checkpoint, Weights};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Source;
use crate::ir::Graph;
use crate::kernels::attention::Kv;
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{
    Plan, PlanOptions, Slot, StatePlan, StepKind, WeightPlans, add_prefetch_routers, fuse, lower,
};
use crate::vision::MropeSections;
use crate::{Error, Result};
use futures_util::future::LocalBoxFuture;
use futures_util::lock::Mutex;
use serde_json::Value;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

/// Bytes on the device by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Weights.
    pub weights: u64,
    /// States of all sessions: KV cache and recurrent states.
    pub kv: u64,
    /// Activations, logits and other buffers of steps.
    pub activations: u64,
}

/// A loaded decoder, shared by its sessions.
pub struct Model {
    /// The device.
    pub gpu: Rc<Gpu>,
    /// config.json, completed from the checkpoint.
    pub config: Value,
    /// The graph, with the fusions shared by prefill and decode.
    pub graph: Graph,
    /// How the weights are stored.
    pub weights: WeightPlans,
    /// Element type of the KV cache.
    pub kv: Kv,
    /// Positions of a sequence.
    pub capacity: usize,
    /// How the states of a sequence are stored.
    pub states: Vec<StatePlan>,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Notes on choices that a user may not expect.
    pub notes: Vec<String>,
    /// The kernel variants chosen for this device, and how they were chosen.
    pub tuning: Tuning,
    /// Time spent in each phase of the load.
    pub load: LoadTimes,
    pub(super) bytes: Cell<MemoryUse>,
    /// M-RoPE sections, if the model has them.
    pub(super) mrope_sections: Option<MropeSections>,
    /// The attention mask of image tokens.
    pub(super) image_mask: ImageMask,
    pub(super) options: RunOptions,
    /// Tokens of one prefill step.
    pub(super) chunk: usize,
    /// Weights, and the RoPE tables that all sequences share.
    pub(super) shared: Buffers,
    pub(super) decode: PlanBuffers,
    /// The decode step for positions before [`NEAR`](crate::kernels::runs::NEAR), with fewer
    /// dispatches.
    pub(super) short_context: Option<PlanBuffers>,
    pub(super) prefill: PlanBuffers,
    /// The prefill step for up to
    /// [`MatrixChoice::MIDDLE`](crate::kernels::matrix::MatrixChoice::MIDDLE) rows; larger prompts
    /// use larger tiles.
    pub(super) medium_prefill: Option<PlanBuffers>,
    pub(super) greedy: PlanBuffers,
    pub(super) short_prefill: RefCell<ShortPrefill>,
    pub(super) speculation_plans: OnceCell<SpeculationPlans>,
    pub(super) pipelines: RefCell<Pipelines>,
    /// Batch size that the last generation reached; the next one starts with it.
    pub(super) batch_size: Cell<usize>,
    /// Weights that are paged in from the files at run time.
    pub(super) pager: Option<Mutex<WeightPager>>,
}

impl Model {
    /// Loads a model from its files.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        config: Value,
        options: RunOptions,
    ) -> Result<Rc<Self>> {
        let files = ModelFiles::safetensors(source, config).await?;
        Self::load_files(gpu, source, files, options).await
    }

    /// Loads a model from opened files: safetensors, MLC or GGUF.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load_files(
        gpu: Gpu,
        source: &Source,
        files: ModelFiles,
        options: RunOptions,
    ) -> Result<Rc<Self>> {
        Self::load_concurrently(gpu, source, files, options, Box::pin(async { Ok(()) })).await
    }

    /// Runs [`Self::load_files`] and, concurrently, `meanwhile`, which starts once kernels compile
    /// and weights arrive.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint, the device or `meanwhile`.
    pub async fn load_concurrently(
        gpu: Gpu,
        source: &Source,
        files: ModelFiles,
        mut options: RunOptions,
        meanwhile: LocalBoxFuture<'_, Result<()>>,
    ) -> Result<Rc<Self>> {
        let mut whole = Stopwatch::start();
        let config = files.full_config();
        let ModelFiles {
            checkpoint,
            weights: stored,
            ..
        } = files;
        let mut decision = plan_load(&config, &stored, gpu.caps(), &options)?;
        options.fusions = decision.fusions;
        let mut few = fuse::few_rows(decision.graph.clone(), decision.fusions);
        if options.prefetch_experts && decision.pages_experts() {
            few = add_prefetch_routers(few);
        }
        let plans = || {
            let decode = decision.plan(gpu.caps(), &few, StepKind::Decode(1))?;
            let prefill = decision.plan(
                gpu.caps(),
                &decision.graph,
                StepKind::Prefill(decision.chunk),
            )?;
            let greedy = LogitsPipeline::greedy().plan(
                decode.output_cols as u32,
                None,
                gpu.caps().dispatch_is_expensive(),
            )?;
            let near = decision.short_context(gpu.caps(), &few)?;
            let rows = StepKind::Prefill(MatrixTiling::TALL_TILE_ROWS);
            let middle = decision
                .has_medium_prefill(gpu.caps())
                .then(|| decision.plan(gpu.caps(), &decision.graph, rows));
            Ok([decode, prefill, greedy]
                .into_iter()
                .chain(near)
                .chain(middle.transpose()?)
                .collect())
        };
        let mut tuning = Tuning::without_choices(TuningSource::Off);
        let tune = Box::pin(async {
            tuning = tune(&gpu, source, &decision.weights, options.tune).await?;
            Ok(())
        });
        let graph = &decision.graph;
        let weights = &decision.weights;

        let wanted = LoadRequest {
            gpu: &gpu,
            graph,
            plans: weights,
            source,
            checkpoint: &checkpoint,
            stored: &stored,
        };
        let made = load_compiled(wanted, tune, &plans, meanwhile).await?;
        decision.notes.extend(tuning.failure.iter().map(|reason| {
            format!("Kernels were not autotuned ({reason}). The default variants are used.")
        }));
        let mut model = Self::assemble(
            gpu,
            config,
            decision,
            options,
            made,
            (source, checkpoint, stored),
        )?;
        model.tuning = tuning;
        model.write_ropes();
        model.gpu.check().await?;
        let peak = model
            .tuning
            .peak_bytes
            .max(model.gpu.resource_counts().bytes);
        model.load.peak_bytes = model.load.peak_bytes.max(peak);
        model.load.total_ms = whole.lap();
        Ok(Rc::new(model))
    }

    /// Assembles the model from its load plan and the loaded parts.
    fn assemble(
        gpu: Gpu,
        config: Value,
        decision: LoadPlan,
        options: RunOptions,
        made: LoadOutput,
        files: (&Source, Checkpoint, Weights),
    ) -> Result<Self> {
        let LoadOutput {
            plans,
            pipelines,
            buffers: mut shared,
            times: load,
        } = made;
        let mut plans = plans.into_iter();
        let (Some(decode), Some(prefill), Some(greedy)) =
            (plans.next(), plans.next(), plans.next())
        else {
            return Err(Error::Internal(
                "the load made fewer than three plans".into(),
            ));
        };
        let weight_bytes = shared.values().map(Buffer::size).sum();
        let middle = decision.has_medium_prefill(gpu.caps());
        let LoadPlan {
            capacity,
            chunk,
            kv,
            graph,
            weights,
            states,
            precision,
            notes,
            ..
        } = decision;
        let before = gpu.resource_counts().bytes;
        let pages = WeightPager::new(&gpu, files, (&graph, &weights), chunk, &mut shared)?;
        let sections = mrope_sections(&config);
        let sight = image_mask(&config);

        rope_buffers(&gpu, &graph, capacity, &mut shared, |rope| {
            !rope.depends_on_length()
        })?;
        let decode = PlanBuffers::new(&gpu, "decode", decode, false)?;
        let prefill = PlanBuffers::new(&gpu, "prefill", prefill, false)?;
        let middle = if middle { plans.next_back() } else { None };
        let middle = middle
            .map(|plan| prefill.sharing_buffers(&gpu, "prefill", plan))
            .transpose()?;
        let near = plans
            .next()
            .map(|plan| decode.sharing_buffers(&gpu, "decode", plan))
            .transpose()?;
        let greedy = PlanBuffers::new(&gpu, "sample", greedy, false)?;
        let bytes = MemoryUse {
            weights: weight_bytes,
            kv: 0,
            activations: gpu.resource_counts().bytes - before,
        };
        Ok(Self {
            gpu: Rc::new(gpu),
            config,
            graph,
            weights,
            kv,
            capacity,
            states,
            precision,
            notes,
            tuning: Tuning::without_choices(TuningSource::Off),
            load,
            bytes: Cell::new(bytes),
            mrope_sections: sections,
            image_mask: sight,
            options,
            chunk,
            shared,
            decode,
            short_context: near,
            medium_prefill: middle,
            prefill,
            greedy,
            short_prefill: RefCell::new(ShortPrefill::NotRequested),
            speculation_plans: OnceCell::new(),
            batch_size: Cell::new(1),
            pipelines: RefCell::new(pipelines),
            pager: pages.map(Mutex::new),
        })
    }

    /// Builds a step on a sequence's own buffers.
    pub(super) fn step(
        &self,
        own: &Buffers,
        name: &str,
        prepared: &PlanBuffers,
        rows: usize,
    ) -> Result<Step> {
        Step::new(
            &self.gpu,
            name,
            prepared,
            &[own, &self.shared],
            &self.pipelines.borrow(),
            rows,
        )
    }

    /// Builds the steps that read or write a sequence's states.
    pub(super) fn steps(&self, own: &Buffers) -> Result<SessionSteps> {
        let step = |name: &str, prepared: &PlanBuffers| self.step(own, name, prepared, 1);
        Ok(SessionSteps {
            decode: step("decode", &self.decode)?,
            short_context: self
                .short_context
                .as_ref()
                .map(|near| step("near", near))
                .transpose()?,
            prefill: step("prefill", &self.prefill)?,
            medium_prefill: self
                .medium_prefill
                .as_ref()
                .map(|middle| step("prefill", middle))
                .transpose()?,
        })
    }

    /// Bytes on the device, of the model and its sessions.
    pub fn bytes(&self) -> MemoryUse {
        self.bytes.get()
    }

    pub(super) fn update_memory_use(&self, change: impl FnOnce(&mut MemoryUse)) {
        let mut bytes = self.bytes.get();
        change(&mut bytes);
        self.bytes.set(bytes);
    }

    /// Size of the vocabulary, as counted by the logits.
    pub fn vocab(&self) -> usize {
        self.decode.plan.output_cols
    }

    /// Number of parameters of the checkpoint.
    pub fn parameters(&self) -> u64 {
        self.weights
            .values()
            .map(|w| (w.total_rows * w.cols) as u64)
            .sum()
    }

    /// Dispatches of one greedy decode step at short context.
    pub fn dispatches(&self) -> usize {
        self.short_context
            .as_ref()
            .unwrap_or(&self.decode)
            .plan
            .launches
            .len()
            + self.greedy.plan.launches.len()
    }

    /// Whether the KV cache of a common prefix can be reused for another prompt.
    pub fn reuses_prefix(&self) -> bool {
        !self.graph.ropes.iter().any(|r| r.depends_on_length())
    }

    /// Whether a sequence has recurrent states, which can only be rolled back to a checkpoint.
    pub fn is_recurrent(&self) -> bool {
        self.states.iter().any(|state| state.spec.is_recurrent())
    }

    /// Plans a step of some rows over the model's graph or a variant of it.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub(super) fn plan(&self, graph: &Graph, rows: StepKind) -> Result<Plan> {
        let options = PlanOptions {
            rows,
            caps: self.gpu.caps(),
            weights: &self.weights,
            kv: self.kv,
            capacity: self.capacity,
            states: &self.states,
            fuse_heads: self.options.fusions.heads,
        };
        lower(graph, options)
    }

    /// Compiles the kernels of plans, except those compiled before.
    ///
    /// # Errors
    /// Device errors.
    pub(super) async fn compile(&self, plans: &[&Plan]) -> Result<()> {
        let made = compile(&self.gpu, plans, &self.pipelines.borrow());
        let made = made.await?;
        self.pipelines.borrow_mut().extend(made);
        Ok(())
    }

    fn write_ropes(&self) {
        for (index, spec) in self.graph.ropes.iter().enumerate() {
            if let Some(buffer) = self.shared.get(&Slot::Rope(index)) {
                let table = spec.table(0, self.capacity, 0);
                self.gpu.write(buffer, 0, bytemuck::cast_slice(&table));
            }
        }
    }
}
