//! A graph with its weights on the device, and its programs by key. Decoders, encoders, vision and
//! audio encoders and codecs each own one. Programs are planned by the owner and made on demand.

use super::load::{LoadOutput, LoadTasks, WeightLoadRequest, load_compiled};
use super::load_times::LoadTimes;
use super::planned_graph::{KeyedPlans, LoadPlans, PlannedGraph, StepPlan};
use super::program_key::{OverlayId, ProgramKey};
use super::step::{Buffers, Compilation, Pipelines, PlanBuffers, Step, compile};
use super::weight_store::{SharedWeights, WeightNames, WeightStore};
use crate::format::{Checkpoint, Weights};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Source;
use crate::plan::{Plan, WeightPlans};
use crate::util::map::SortedMap;
use crate::{Error, Result};
use futures_util::future::{FutureExt, LocalBoxFuture};
use std::cell::RefCell;
use std::rc::Rc;

/// The files that a runner's weights come from.
#[derive(Clone, Copy)]
pub struct WeightFiles<'a> {
    /// The source.
    pub source: &'a Source,
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// The weights in them.
    pub stored: &'a Weights,
}

/// A program that was asked for.
enum ProgramState {
    /// Its kernels are being compiled.
    Compiling(StepPlan, Compilation),
    /// The device refused it. Nothing asks for it again in the background.
    Refused(StepPlan),
    /// Compiled, with its temporary buffers and the bytes that they added.
    Ready(Rc<PlanBuffers>, u64),
}

/// A graph with its weights on the device, and its programs by key.
pub struct GraphRunner {
    /// The graph and the storage of its weights and states.
    pub planned: Rc<PlannedGraph>,
    /// Buffers of the weights by the graph's slots.
    pub weights: Rc<Buffers>,
    /// Other buffers that all steps share, such as RoPE tables.
    pub shared: Buffers,
    store: SharedWeights,
    overlays: RefCell<Vec<WeightStore>>,
    pipelines: RefCell<Pipelines>,
    programs: RefCell<SortedMap<ProgramKey, ProgramState>>,
}

impl GraphRunner {
    /// Loads the weights of a graph that are not in `store` yet, and meanwhile compiles the kernels
    /// of the plans that `plan` returns. Returns the first ones for [`Self::add_programs`]; the later
    /// ones may still be compiled.
    ///
    /// # Errors
    /// Errors of the checkpoint, of `plan` and the tasks, of the source or the device.
    #[inline(never)]
    pub fn load<'a>(
        gpu: &'a Gpu,
        files: WeightFiles<'a>,
        planned: PlannedGraph,
        store: &'a SharedWeights,
        plan: &'a dyn Fn(&PlannedGraph) -> Result<LoadPlans>,
        tasks: LoadTasks<'a>,
    ) -> LocalBoxFuture<'a, Result<(Self, KeyedPlans, LoadTimes)>> {
        // On the heap: a page has a short stack.
        Box::pin(Self::load_planned(gpu, files, planned, store, plan, tasks))
    }

    async fn load_planned(
        gpu: &Gpu,
        files: WeightFiles<'_>,
        mut planned: PlannedGraph,
        store: &SharedWeights,
        plan: &dyn Fn(&PlannedGraph) -> Result<LoadPlans>,
        tasks: LoadTasks<'_>,
    ) -> Result<(Self, KeyedPlans, LoadTimes)> {
        planned.adopt_layouts(&store.borrow());
        let missing: WeightPlans = planned
            .weights
            .iter()
            .filter(|(id, _)| store.borrow().plan(&planned.names[id.0]).is_none())
            .map(|(id, plan)| (*id, plan.clone()))
            .collect();
        let wanted = WeightLoadRequest {
            gpu,
            graph: &planned.graph,
            plans: &missing,
            source: files.source,
            checkpoint: files.checkpoint,
            stored: files.stored,
        };
        let plan = || plan(&planned);
        let LoadOutput {
            plans,
            pipelines,
            later,
            buffers,
            times,
        } = load_compiled(wanted, &plan, tasks).await?;
        let mut runner = Self {
            planned: Rc::new(planned),
            weights: Rc::default(),
            shared: Buffers::new(),
            store: store.clone(),
            overlays: RefCell::default(),
            pipelines: RefCell::new(pipelines),
            programs: RefCell::default(),
        };
        runner.add_weight_buffers(&buffers);
        let compiling = |(key, plan)| (key, ProgramState::Compiling(plan, later.clone()));
        let programs = plans.later.into_iter().map(compiling).collect();
        runner.programs = RefCell::new(programs);
        Ok((runner, plans.first, times))
    }

    /// Adds buffers of weights, such as those of paged tables.
    pub fn add_weight_buffers(&mut self, buffers: &Buffers) {
        let PlannedGraph { names, weights, .. } = &*self.planned;
        self.store.borrow_mut().insert(names, weights, buffers);
        self.weights = Rc::new(self.store.borrow().resolve(names, None));
    }

    /// The weights that overlays extend or replace.
    pub fn store(&self) -> &SharedWeights {
        &self.store
    }

    /// Adds weights that programs of the returned overlay look up first.
    pub fn add_overlay(&self, weights: WeightStore) -> OverlayId {
        let mut overlays = self.overlays.borrow_mut();
        overlays.push(weights);
        OverlayId(overlays.len() - 1)
    }

    /// Removes an overlay with its programs; returns the bytes of its weights. Its id stays unused.
    pub fn remove_overlay(&self, overlay: OverlayId) -> u64 {
        let mut programs = self.programs.borrow_mut();
        programs.retain(|key, _| key.overlay != Some(overlay));
        let mut overlays = self.overlays.borrow_mut();
        let store = overlays.get_mut(overlay.0).map(std::mem::take);
        store.map_or(0, |store| store.bytes())
    }

    /// The buffers of an overlay's own weights.
    pub fn overlay_buffers(&self, overlay: Option<OverlayId>) -> Vec<Buffer> {
        let overlays = self.overlays.borrow();
        let store = overlay.and_then(|id| overlays.get(id.0));
        store.map_or_else(Vec::new, |store| store.buffers().cloned().collect())
    }

    /// Bytes of the weights on the device.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.values().map(Buffer::size).sum()
    }

    /// Bytes of the temporary buffers of all programs.
    pub fn program_bytes(&self) -> u64 {
        let programs = self.programs.borrow();
        let bytes = programs.values().map(|state| match state {
            ProgramState::Ready(_, bytes) => *bytes,
            _ => 0,
        });
        bytes.sum()
    }

    /// Makes programs from plans whose kernels are compiled.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for their buffers.
    pub fn add_programs(&self, gpu: &Gpu, plans: KeyedPlans) -> Result<()> {
        plans
            .into_iter()
            .try_for_each(|(key, plan)| self.add_program(gpu, key, plan).map(|_| ()))
    }

    fn add_program(&self, gpu: &Gpu, key: ProgramKey, plan: StepPlan) -> Result<Rc<PlanBuffers>> {
        let StepPlan { plan, names } = plan;
        let weights = self.resolve(&names, key.overlay);
        let before = gpu.resource_counts().bytes;
        let parent = key.shares_buffers_with().and_then(|key| self.program(key));
        let made = match parent {
            Some(parent) => parent.sharing_buffers(gpu, key.label(), plan, key.has_output())?,
            None => PlanBuffers::new(gpu, key.label(), plan, key.has_output())?,
        };
        let bytes = gpu.resource_counts().bytes - before;
        let made = Rc::new(made.with_weights(weights));
        let ready = ProgramState::Ready(made.clone(), bytes);
        self.programs.borrow_mut().insert(key, ready);
        Ok(made)
    }

    fn resolve(&self, names: &WeightNames, overlay: Option<OverlayId>) -> Rc<Buffers> {
        if overlay.is_none() && *names == self.planned.names {
            return self.weights.clone();
        }
        let overlays = self.overlays.borrow();
        let overlay = overlay.and_then(|id| overlays.get(id.0));
        Rc::new(self.store.borrow().resolve(names, overlay))
    }

    /// Returns a program if it is ready.
    pub fn program(&self, key: ProgramKey) -> Option<Rc<PlanBuffers>> {
        match self.programs.borrow().get(&key) {
            Some(ProgramState::Ready(program, _)) => Some(program.clone()),
            _ => None,
        }
    }

    /// Whether a program was asked for, even if it is not ready.
    pub fn contains(&self, key: ProgramKey) -> bool {
        self.programs.borrow().contains_key(&key)
    }

    /// Reads the plan of a program that was asked for.
    pub fn read_plan<T>(&self, key: ProgramKey, read: impl FnOnce(&Plan) -> T) -> Option<T> {
        match self.programs.borrow().get(&key)? {
            ProgramState::Ready(program, _) => Some(read(&program.plan)),
            ProgramState::Compiling(step, _) | ProgramState::Refused(step) => {
                Some(read(&step.plan))
            }
        }
    }

    /// Returns a program, once its kernels are compiled. It is planned on the first call.
    ///
    /// # Errors
    /// Errors of `plan`, device errors.
    pub async fn prepare(
        &self,
        gpu: &Gpu,
        key: ProgramKey,
        plan: impl Fn() -> Result<StepPlan>,
    ) -> Result<Rc<PlanBuffers>> {
        loop {
            if let Some(program) = self.program(key) {
                return Ok(program);
            }
            let Some(making) = self.compilation(key) else {
                self.start_compiling(gpu, key, plan()?);
                continue;
            };
            let made = making.await;
            if let Some(program) = self.finish(gpu, key, made) {
                return program;
            }
        }
    }

    /// Starts to compile a program, unless it was asked for before. [`Self::poll`] makes it.
    pub fn prepare_in_background(&self, gpu: &Gpu, key: ProgramKey, plan: StepPlan) {
        if !self.contains(key) {
            self.start_compiling(gpu, key, plan);
        }
    }

    fn start_compiling(&self, gpu: &Gpu, key: ProgramKey, plan: StepPlan) {
        let making = compile(gpu, [&plan.plan], &self.pipelines.borrow());
        let state = ProgramState::Compiling(plan, making);
        self.programs.borrow_mut().insert(key, state);
    }

    fn compilation(&self, key: ProgramKey) -> Option<Compilation> {
        match self.programs.borrow().get(&key) {
            Some(ProgramState::Compiling(_, making)) => Some(making.clone()),
            _ => None,
        }
    }

    /// Makes a program whose kernels were compiled; `None` if another caller has done so.
    fn finish(
        &self,
        gpu: &Gpu,
        key: ProgramKey,
        made: Result<Rc<Pipelines>>,
    ) -> Option<Result<Rc<PlanBuffers>>> {
        let mut programs = self.programs.borrow_mut();
        let ProgramState::Compiling(plan, _) = programs.get(&key)? else {
            return None;
        };
        let plan = plan.clone();
        // Replaced unless it fails.
        programs.insert(key, ProgramState::Refused(plan.clone()));
        drop(programs);
        Some(made.and_then(|pipelines| {
            self.add_pipelines(&pipelines);
            self.add_program(gpu, key, plan)
        }))
    }

    fn add_pipelines(&self, made: &Pipelines) {
        let made = made
            .iter()
            .map(|(variant, made)| (variant.clone(), made.clone()));
        self.pipelines.borrow_mut().extend(made);
    }

    /// Makes a program if its kernels have been compiled since. After a failure [`Self::prepare`]
    /// compiles it again, and reports why. Returns whether it is ready.
    pub fn poll(&self, gpu: &Gpu, key: ProgramKey) -> bool {
        if let Some(made) = self.compilation(key).and_then(FutureExt::now_or_never) {
            let _ = self.finish(gpu, key, made);
        }
        self.program(key).is_some()
    }

    /// Removes a program, and frees its buffers once no step uses them.
    pub fn remove(&self, key: ProgramKey) {
        self.programs.borrow_mut().remove(&key);
    }

    /// Makes a program that is used once, with an output of its own. Its kernels must be compiled.
    ///
    /// # Errors
    /// `OutOfMemory` when the device has no room for its buffers.
    pub fn build(
        &self,
        gpu: &Gpu,
        label: &str,
        plan: StepPlan,
        overlay: Option<OverlayId>,
    ) -> Result<PlanBuffers> {
        let weights = self.resolve(&plan.names, overlay);
        Ok(PlanBuffers::new(gpu, label, plan.plan, true)?.with_weights(weights))
    }

    /// Compiles the kernels of a plan, except those compiled before.
    ///
    /// # Errors
    /// Device errors.
    pub async fn compile(&self, gpu: &Gpu, plan: &Plan) -> Result<()> {
        let making = compile(gpu, [plan], &self.pipelines.borrow());
        self.add_pipelines(&*making.await?);
        Ok(())
    }

    /// Binds a program to the buffers of a sequence or a batch.
    ///
    /// # Errors
    /// `Internal` when the program or a buffer is missing; device errors.
    pub fn step(&self, gpu: &Gpu, own: &Buffers, key: ProgramKey) -> Result<Step> {
        let program = self.program(key).ok_or_else(|| {
            Error::Internal(format!("the program {:?} was not prepared", key.step))
        })?;
        self.bind(gpu, own, key.label(), &program, key.recorded_rows())
    }

    /// Binds a program that is not in the map. Grids are recorded for `rows` rows.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn bind(
        &self,
        gpu: &Gpu,
        own: &Buffers,
        label: &str,
        program: &PlanBuffers,
        rows: usize,
    ) -> Result<Step> {
        let buffers = [own, &self.shared];
        let pipelines = self.pipelines.borrow();
        Step::new(gpu, label, program, &buffers, &pipelines, rows)
    }
}
