//! A loaded decoder: weights, plans and kernels on a device, shared by all its sessions.

mod adapter;
mod cpu_check;
mod fingerprint;
mod load;
mod states;
mod verify;

use super::decoder_steps::DecoderSteps;
use super::files::ModelFiles;
use super::graph_runner::GraphRunner;
use super::load_times::LoadTimes;
use super::options::{Precision, RunOptions};
use super::planned_graph::{PlannedGraph, StepPlan};
use super::program_key::{OverlayId, ProgramKey};
use super::step::{Buffers, PlanBuffers, Step};
use super::step_costs::StepCosts;
use super::tune::Tuning;
use super::turns::Turns;
use super::weight_paging::{PagingStats, WeightPager};
use crate::arch::LoadConfig;
use crate::arch::vision::ImageMask;
use crate::gpu::{Backend, Gpu};
use crate::hub::Source;
use crate::ir::Graph;
use crate::kernels::attention::Kv;
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{Plan, StatePlan, StepKind, WeightPlans};
use crate::vision::MropeSections;
use crate::{Error, Result};
use futures_util::lock::Mutex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes on the device by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Weights.
    pub weights: u64,
    /// States of all sessions: KV cache and recurrent states.
    pub kv: u64,
    /// KV caches in main memory instead of on the device.
    pub kv_in_main_memory: u64,
    /// Activations, logits and other buffers of steps.
    pub activations: u64,
}

impl std::ops::Add for MemoryUse {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights + other.weights,
            kv: self.kv + other.kv,
            kv_in_main_memory: self.kv_in_main_memory + other.kv_in_main_memory,
            activations: self.activations + other.activations,
        }
    }
}

/// Share of tokens kept of those sampled ahead of a constraint, before the first generation.
pub(super) const FIRST_KEPT: f64 = 0.8;

/// A loaded decoder, shared by its sessions.
pub struct Model {
    /// The device.
    pub gpu: Rc<Gpu>,
    /// config.json, completed from the checkpoint.
    pub config: LoadConfig,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Notes on choices that a user may not expect.
    pub notes: Vec<String>,
    /// The kernel variants chosen for this device, and how they were chosen.
    pub tuning: Tuning,
    /// Time spent in each phase of the load.
    pub load: LoadTimes,
    /// Its graph, weights and programs.
    pub(super) runner: GraphRunner,
    /// Plans its programs.
    steps: DecoderSteps,
    /// The decode steps of a session, the one for short contexts first.
    pub(super) decode_programs: &'static [ProgramKey],
    /// Graphs and plans of the programs of each overlay.
    overlays: RefCell<Vec<Option<Rc<OverlaySteps>>>>,
    /// Bytes without those of the programs.
    bytes: Cell<MemoryUse>,
    /// M-RoPE sections, if the model has them.
    pub(super) mrope_sections: Option<MropeSections>,
    /// The attention mask of image tokens.
    pub(super) image_mask: ImageMask,
    pub(super) options: RunOptions,
    /// Orders prefill chunks and decode steps of its sequences.
    pub(super) turns: Turns,
    /// Batch size that the last generation reached; the next one starts with it.
    pub(super) batch_size: Cell<usize>,
    /// The share of tokens that its last constrained generation kept of those sampled ahead.
    pub(super) kept_ahead: Cell<f64>,
    /// Plain steps between two trials of the draft model, as the last generation ended.
    pub(super) draft_pause: Cell<Option<usize>>,
    /// What the steps of constrained generations took.
    pub(super) step_costs: Cell<StepCosts>,
    /// Weights that are paged in from the files at run time.
    pub(super) pager: Option<Mutex<WeightPager>>,
    /// Held while a step runs in parts: its activations are those of all sessions' steps.
    pub(super) parts: Mutex<()>,
}

/// The graph of an overlay, and the plans of its programs.
struct OverlaySteps {
    planned: Rc<PlannedGraph>,
    steps: DecoderSteps,
}

impl Model {
    /// Loads a model from its files.
    ///
    /// # Errors
    /// Errors of the source, the configuration, the checkpoint or the device.
    pub async fn load(
        gpu: Gpu,
        source: &Source,
        config: LoadConfig,
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
        let nothing = Box::pin(async { Ok(()) });
        Self::load_concurrently(gpu.into(), source, files, options, nothing).await
    }

    /// The graph, with the fusions shared by prefill and decode.
    pub fn graph(&self) -> &Graph {
        &self.runner.planned.graph
    }

    /// How the weights are stored.
    pub fn weights(&self) -> &WeightPlans {
        &self.runner.planned.weights
    }

    /// How the states of a sequence are stored.
    pub fn states(&self) -> &[StatePlan] {
        &self.runner.planned.states
    }

    /// Element type of the KV cache.
    pub fn kv(&self) -> Kv {
        self.runner.planned.kv
    }

    /// The order of its sequences' prefill chunks and decode steps.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Positions of a sequence.
    pub fn capacity(&self) -> usize {
        self.runner.planned.capacity
    }

    /// Tokens of one prefill step.
    pub(super) fn chunk(&self) -> usize {
        self.steps.chunk
    }

    /// Returns a program that was made while the model loaded.
    pub(super) fn program(&self, key: ProgramKey) -> Result<Rc<PlanBuffers>> {
        self.runner
            .program(key)
            .ok_or_else(|| Error::Internal(format!("{key:?} was not made")))
    }

    /// Reads the plan of a program of the load.
    ///
    /// # Errors
    /// `Internal` for another program.
    pub(super) fn read_plan<T>(&self, key: ProgramKey, read: impl FnOnce(&Plan) -> T) -> Result<T> {
        let found = self.runner.read_plan(key, read);
        found.ok_or_else(|| Error::Internal(format!("{key:?} was not planned")))
    }

    /// Makes a program, unless it is there already.
    ///
    /// # Errors
    /// Device errors.
    pub(super) async fn prepare(&self, key: ProgramKey) -> Result<()> {
        let caps = self.gpu.caps();
        let plan = || match self.overlay_steps(key.overlay) {
            Some(overlay) => overlay.steps.plan(&overlay.planned, caps, key),
            None => self.steps.plan(&self.runner.planned, caps, key),
        };
        self.runner.prepare(&self.gpu, key, plan).await?;
        Ok(())
    }

    /// Starts to prepare the step for short prompts, if enabled and not started yet. Best called
    /// while the device is idle: a concurrent prompt takes some 50 ms longer. Browsers compile the
    /// kernels in the background; native builds compile them on this thread.
    ///
    /// # Errors
    /// Planning errors.
    pub fn prepare_short(&self) -> Result<()> {
        let caps = self.gpu.caps();
        let wanted = self.options.short_prefill.unwrap_or(!caps.software);
        let key = ProgramKey::PREFILL_SHORT;
        let asked = self.runner.contains(key);
        if asked || !wanted || self.chunk() <= MatrixTiling::short_rows(caps) {
            return Ok(());
        }
        let plan = self.steps.plan(&self.runner.planned, caps, key)?;
        self.runner.prepare_in_background(&self.gpu, key, plan);
        Ok(())
    }

    /// Whether a program is ready; makes its buffers once its kernels are compiled.
    pub(super) fn poll(&self, key: ProgramKey) -> bool {
        self.runner.poll(&self.gpu, key)
    }

    fn overlay_steps(&self, overlay: Option<OverlayId>) -> Option<Rc<OverlaySteps>> {
        self.overlays.borrow().get(overlay?.0).cloned()?
    }

    /// The graph of a session's steps.
    pub(super) fn planned(&self, overlay: Option<OverlayId>) -> Rc<PlannedGraph> {
        match self.overlay_steps(overlay) {
            Some(overlay) => overlay.planned.clone(),
            None => self.runner.planned.clone(),
        }
    }

    /// The programs that were made while the model loaded.
    pub(super) fn first_programs(&self) -> Vec<ProgramKey> {
        self.steps.first(&self.runner.planned, self.gpu.caps())
    }

    /// Waits until no step runs in parts. What is submitted before the next await follows whole steps.
    pub(super) async fn finish_parts(&self) {
        drop(self.parts.lock().await);
    }

    /// Builds a step on a sequence's own buffers.
    pub(super) fn step(&self, own: &Buffers, key: ProgramKey) -> Result<Step> {
        self.runner.step(&self.gpu, own, key)
    }

    /// Whether experts or table rows are loaded from the files at run time.
    pub fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Hit rates of paged weights; `None` if all weights are resident, or while a step runs.
    pub fn paging(&self) -> Option<PagingStats> {
        Some(self.pager.as_ref()?.try_lock()?.stats)
    }

    /// Bytes on the device, of the model and its sessions.
    pub fn bytes(&self) -> MemoryUse {
        let bytes = self.bytes.get();
        MemoryUse {
            activations: bytes.activations + self.runner.program_bytes(),
            ..bytes
        }
    }

    pub(super) fn update_memory_use(&self, change: impl FnOnce(&mut MemoryUse)) {
        let mut bytes = self.bytes.get();
        change(&mut bytes);
        self.bytes.set(bytes);
    }

    /// Size of the vocabulary, as counted by the logits.
    pub fn vocab(&self) -> usize {
        self.runner.planned.output_cols()
    }

    /// Number of parameters of the checkpoint.
    pub fn parameters(&self) -> u64 {
        self.runner.planned.parameters()
    }

    /// Dispatches of one greedy decode step at short context.
    pub fn dispatches(&self) -> usize {
        let launches = |key| self.runner.read_plan(key, |plan| plan.launches.len());
        let keys = [self.decode_programs[0], ProgramKey::GREEDY];
        keys.into_iter().filter_map(launches).sum()
    }

    /// Whether the KV cache of a common prefix can be reused for another prompt.
    pub fn reuses_prefix(&self) -> bool {
        !self.graph().ropes.iter().any(|r| r.depends_on_length())
    }

    /// Whether a sequence has recurrent states, which can only be rolled back to a checkpoint.
    pub fn is_recurrent(&self) -> bool {
        self.states().iter().any(|state| state.spec.is_recurrent())
    }

    /// What prevents batched decoding, if anything: sequences then run in turns.
    pub fn batch_refusal(&self) -> Option<&'static str> {
        if self.is_paged() {
            return Some("weights that are paged in while it runs");
        }
        if self.mrope_sections.is_some() && !self.reuses_prefix() {
            return Some("M-RoPE that depends on the sequence length");
        }
        if self.options.kv_memory.is_some() {
            return Some("a limit of the KV cache's memory");
        }
        None
    }

    /// Plans a step of some rows over a graph with the weights and states of a session.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub(super) fn plan(
        &self,
        graph: &Graph,
        rows: StepKind,
        overlay: Option<OverlayId>,
    ) -> Result<StepPlan> {
        let planned = self.planned(overlay);
        planned.plan(self.gpu.caps(), graph, rows, planned.capacity)
    }
}
