//! A fused graph with the storage of its weights and states: all that lowering needs besides a
//! step.

use super::mixed::eight_bit_tensors;
use super::options::{Precision, PrecisionOptions, RunOptions};
use super::program_key::ProgramKey;
use super::weight_store::{WeightName, WeightNames, WeightStore};
use crate::device::Caps;
use crate::format::{Float, WeightLayout, WeightSource, Weights, quantize};
use crate::ir::{Graph, Op, WeightId, WeightKind};
use crate::kernels::attention::Kv;
use crate::kernels::matmul::QuantizeInputs;
use crate::plan::{
    Fusions, Plan, PlanOptions, StatePlan, StepKind, WeightPlan, WeightPlans, fuse, lower,
    plan_weights,
};
use crate::util::map::{SortedMap, SortedSet};
use crate::{Error, Result};
use std::sync::Arc;

/// A fused graph with the storage of its weights and states.
#[derive(Clone)]
pub struct PlannedGraph {
    /// The graph with the fusions shared by all its steps.
    pub graph: Graph,
    /// How the weights are stored, by the graph's ids.
    pub weights: WeightPlans,
    /// The names of the weights.
    pub names: WeightNames,
    /// How the states of a sequence are stored.
    pub states: Vec<StatePlan>,
    /// Element type of keys and values.
    pub kv: Kv,
    /// Positions of a sequence; 0 without states.
    pub capacity: usize,
    /// The enabled fusions.
    pub fusions: Fusions,
    /// When matmuls of prompts quantize their input to 8 bits.
    pub activations: QuantizeInputs,
}

/// A lowered step and the names of the weights that it reads, by the ids of its graph.
#[derive(Clone)]
pub struct StepPlan {
    /// The dispatches.
    pub plan: Plan,
    /// The names of the weights of the lowered graph.
    pub names: WeightNames,
}

/// Plans by key.
pub type KeyedPlans = Vec<(ProgramKey, StepPlan)>;

/// The plans whose kernels a load compiles.
pub struct LoadPlans {
    /// Those that the first token needs. The load waits for them.
    pub first: KeyedPlans,
    /// Those that later tokens need. They are compiled after the first, and nothing waits for them.
    pub later: KeyedPlans,
}

impl LoadPlans {
    /// The plan of the only program.
    pub fn one(key: ProgramKey, plan: StepPlan) -> Self {
        Self {
            first: vec![(key, plan)],
            later: Vec::new(),
        }
    }
}

impl StepPlan {
    /// Wraps a plan that reads no weights.
    pub fn without_weights(plan: Plan) -> Self {
        Self {
            plan,
            names: WeightNames::from([]),
        }
    }
}

impl PlannedGraph {
    /// Fuses a graph without sequence states, such as an encoder, and plans its weights.
    ///
    /// # Errors
    /// `OutOfMemory` when a row of a weight exceeds the maximum buffer size.
    pub fn stateless(
        plain: &Graph,
        stored: &Weights,
        caps: &Caps,
        options: &RunOptions,
    ) -> Result<Self> {
        let fused = fuse_graph(plain, stored, caps, options)?;
        let fusions = Fusions {
            heads: false,
            ..options.fusions
        };
        Ok(Self {
            activations: options.overrides.activations,
            ..Self::new(fused, fusions)
        })
    }

    /// Wraps a fused graph without states.
    pub(super) fn new((graph, weights, enabled): FusedGraph, fusions: Fusions) -> Self {
        Self {
            names: WeightName::all(&graph),
            graph,
            weights,
            states: Vec::new(),
            kv: Kv::F32,
            capacity: 0,
            fusions: Fusions {
                heads: fusions.heads,
                ..enabled
            },
            activations: QuantizeInputs::default(),
        }
    }

    /// A graph derived from the same configuration, with the same states.
    pub fn with_graph(&self, (graph, weights, _): FusedGraph) -> Self {
        Self {
            names: WeightName::all(&graph),
            graph,
            weights,
            states: self.states.clone(),
            ..*self
        }
    }

    /// Whether weights are paged in at run time.
    pub fn is_paged(&self) -> bool {
        self.weights.values().any(WeightPlan::is_paged)
    }

    /// Uses the layouts of weights that another graph has already loaded.
    pub fn adopt_layouts(&mut self, store: &WeightStore) {
        for (id, plan) in self
            .names
            .iter()
            .enumerate()
            .map(|(index, name)| (WeightId(index), store.plan(name)))
        {
            if let (Some(plan), true) = (plan, self.weights.contains_key(&id)) {
                self.weights.insert(id, plan.clone());
            }
        }
    }

    /// Plans a step over the graph, or over one derived from it, whose positions stay below
    /// `capacity`.
    ///
    /// # Errors
    /// `Internal` when the graph reads a weight that this one does not have, or when no kernel
    /// supports a node.
    pub fn plan(
        &self,
        caps: &Caps,
        graph: &Graph,
        rows: StepKind,
        capacity: usize,
    ) -> Result<StepPlan> {
        let names = WeightName::all(graph);
        let weights = self.plans_of(graph, &names)?;
        let options = PlanOptions {
            rows,
            caps,
            weights: &weights,
            kv: self.kv,
            capacity,
            states: &self.states,
            fuse_heads: self.fusions.heads,
            fuse_norms: self.fusions.norm,
            quantize_inputs: self.activations,
        };
        Ok(StepPlan {
            plan: lower(graph, options)?,
            names,
        })
    }

    /// Returns the storage of a derived graph's weights by its ids.
    fn plans_of(&self, graph: &Graph, names: &WeightNames) -> Result<WeightPlans> {
        let own: SortedMap<&WeightName, &WeightPlan> = self
            .weights
            .iter()
            .map(|(id, plan)| (&self.names[id.0], plan))
            .collect();
        let plan_of = |id: WeightId| {
            let name = &names[id.0];
            own.get(&name)
                .map(|plan| (id, (*plan).clone()))
                .ok_or_else(|| Error::Internal(format!("{}: {name:?} is not loaded", graph.name)))
        };
        graph.used_weights().into_iter().map(plan_of).collect()
    }

    /// Columns of the output: logits, or the hidden state.
    pub fn output_cols(&self) -> usize {
        let output = self.graph.logits.unwrap_or(self.graph.hidden);
        self.graph.value(self.graph.root(output).0).cols
    }

    /// Number of weight elements.
    pub fn parameters(&self) -> u64 {
        self.weights
            .values()
            .map(|w| (w.total_rows * w.cols) as u64)
            .sum()
    }
}

/// Chooses the layouts of a graph's weights.
pub struct LayoutRules {
    overrides: PrecisionOptions,
    eight_bits: SortedSet<String>,
}

impl LayoutRules {
    /// The rules for a graph's weights.
    pub fn new(graph: &Graph, overrides: PrecisionOptions) -> Self {
        let is_mixed = overrides.precision == Precision::Q4;
        Self {
            overrides,
            eight_bits: if is_mixed {
                eight_bit_tensors(graph)
            } else {
                SortedSet::new()
            },
        }
    }

    /// Uses the same rules for all weights, without a graph.
    pub fn uniform(overrides: PrecisionOptions) -> Self {
        Self {
            overrides,
            eight_bits: SortedSet::new(),
        }
    }

    /// Returns the layout of a weight: its own if it is quantized, else the one requested for its
    /// kind, or one with more bits.
    pub fn of(&self, weight: &WeightSource, kind: WeightKind) -> WeightLayout {
        let own = weight.layout().unwrap_or(WeightLayout::Dense(Float::F32));
        let precision = self.overrides.precision_of(kind);
        let dense = if precision == Precision::F32 {
            Float::F32
        } else {
            Float::F16
        };
        if weight.is_scattered() && weight.column_order.is_none() {
            // No layout supports uneven groups: dequantize to a dense layout.
            return WeightLayout::Dense(dense);
        }
        let WeightLayout::Dense(stored) = own else {
            return own;
        };
        match precision {
            Precision::Auto => WeightLayout::Dense(stored),
            Precision::F32 | Precision::F16 => WeightLayout::Dense(dense),
            Precision::Q4 if self.eight_bits.contains(weight.name.as_str()) => quantize::layout(8),
            Precision::Q4 => quantize::layout(4),
            Precision::Q8 => quantize::layout(8),
        }
    }
}

/// A fused graph, the storage of its weights, and the enabled fusions.
pub(super) type FusedGraph = (Graph, WeightPlans, Fusions);

/// Returns the graph with the fusions shared by its steps, and plans its weights for a device.
///
/// # Errors
/// `OutOfMemory` when a row of a weight exceeds the maximum buffer size.
pub(super) fn fuse_graph(
    plain: &Graph,
    stored: &Weights,
    caps: &Caps,
    options: &RunOptions,
) -> Result<FusedGraph> {
    let layouts = LayoutRules::new(plain, options.overrides);
    let layout_of = |name: &str| {
        stored
            .get(name, "")
            .map_or(WeightLayout::Dense(Float::F32), |w| {
                layouts.of(w, plain.kind_of(name))
            })
    };
    let order_of = |name: &str| {
        stored
            .get(name, "")
            .ok()
            .and_then(|w| w.column_order.clone())
    };
    let storage = TensorStorage {
        layout_of: &layout_of,
        order_of: &order_of,
        shared: &|a, b| layout_of(a) == layout_of(b),
        max_buffer: options.weight_buffer_limit(caps),
    };
    fuse_with_storage(plain, options.fusions, &storage)
}

/// How tensors are stored, by name.
pub(super) struct TensorStorage<'a> {
    /// Layout.
    pub layout_of: &'a dyn Fn(&str) -> WeightLayout,
    /// Column order, if it is not that of the input.
    pub order_of: &'a dyn Fn(&str) -> Option<Arc<[u32]>>,
    /// Whether one weight may have both tensors.
    pub shared: &'a dyn Fn(&str, &str) -> bool,
    /// Maximum bytes of a buffer.
    pub max_buffer: u64,
}

/// Fuses a graph whose tensors are stored so. Weights that must be split over several buffers are
/// neither merged nor gated.
pub(super) fn fuse_with_storage(
    plain: &Graph,
    fusions: Fusions,
    storage: &TensorStorage<'_>,
) -> Result<FusedGraph> {
    let graph = fuse::gather_inputs(plain.clone(), storage.order_of);
    let graph = fuse::common_with_storage(graph, fusions, storage.shared);
    let weights = plan_weights(&graph, storage.layout_of, storage.max_buffer)?;
    let experts = |id| matches!(graph.weight(id).kind, WeightKind::Experts { .. });
    let merged = |id| graph.weight(id).parts.len() > 1 && !experts(id);
    let gated = |id| {
        graph
            .nodes
            .iter()
            .any(|n| matches!(&n.op, Op::Linear(l) if l.is_gated() && l.weight == id))
    };
    let whole = weights
        .iter()
        .all(|(id, w)| w.shards.len() == 1 || !(merged(*id) || gated(*id)));
    if whole || !(fusions.siblings || fusions.gated) {
        return Ok((graph, weights, fusions));
    }
    let split = Fusions {
        siblings: false,
        gated: false,
        ..fusions
    };
    fuse_with_storage(plain, split, storage)
}
