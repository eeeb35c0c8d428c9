//! Decisions of a load before it touches the device: capacity, element types, and the storage of each weight and state.
//! Pure function from configuration, headers and capabilities to a `LoadPlan`.

use super::mixed::eight_bit_tensors;
use super::options::{Overrides, Precision, RunOptions};
use super::resident::page_out;
use crate::arch;
use crate::device::Caps;
use crate::format::{Float, Layout, WeightSource, Weights, quantize};
use crate::ir::{Graph, Op, WeightKind};
use crate::kernels::attention::Kv;
use crate::kernels::matrix::MatrixChoice;
use crate::kernels::runs::{DecodeChoice, NEAR};
use crate::plan::{
    Fusions, Plan, PlanOptions, RowsMode, StatePlan, WeightPlan, WeightPlans, fuse, lower, plan_states, plan_weights,
};
use crate::util::map::SortedSet;
use crate::{Error, Result};
use serde_json::Value;
use std::sync::Arc;

/// Default context length in tokens, unless the caller or the model sets a smaller one.
const DEFAULT_CONTEXT: usize = 4096;
/// Default context length on phones and tablets.
const DEFAULT_CONTEXT_IOS: usize = 2048;
/// Minimum context length when it is reduced to fit memory.
const LEAST_CONTEXT: usize = 512;

/// Bytes that a model needs in addition to weights and states: activations, staging.
pub const ROOM: u64 = 100 << 20;

/// The result of planning a load.
pub struct Decision {
    /// Positions of a sequence.
    pub capacity: usize,
    /// Tokens of one prefill step.
    pub chunk: usize,
    /// Element type of keys and values.
    pub kv: Kv,
    /// The graph with the fusions shared by prefill and decode.
    pub graph: Graph,
    /// How the weights are stored.
    pub weights: WeightPlans,
    /// How the states of a sequence are stored.
    pub states: Vec<StatePlan>,
    /// The enabled fusions.
    pub fusions: Fusions,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Notes on choices that a user may not expect.
    pub notes: Vec<String>,
}

/// Plans how a model is loaded and run.
///
/// # Errors
/// Configuration options that are not supported; `Request` for options that the device does not support; `OutOfMemory`
/// when a row of a weight exceeds the maximum buffer size, or the model must fit (by option, or on a phone) and does
/// not.
pub fn decide(config: &Value, stored: &Weights, caps: &Caps, options: &RunOptions) -> Result<Decision> {
    let plain = arch::graph(config)?;
    let default = if caps.ios { DEFAULT_CONTEXT_IOS } else { DEFAULT_CONTEXT };
    let known = arch::most_positions(config);
    let asked = options.max_context.unwrap_or(default.min(known)).clamp(1, plain.places());
    let usual = match plain.looks() {
        // Short sequences: an f16 cache would save next to nothing.
        true => Kv::F32,
        false if caps.f16 => Kv::F16,
        false => Kv::Packed,
    };
    let kv = options.overrides.kv.unwrap_or(usual);
    if kv == Kv::F16 && !caps.f16 {
        let reason =
            "'f16' requires a device with shader-f16. Use 'packed', which has the same size on every device.".into();
        return Err(Error::Request { parameter: "kv".into(), reason });
    }
    let chunk = options.chunk(caps);
    let states_of = |capacity: usize| plan_states(&plain, kv, capacity, chunk.min(capacity));
    let bytes_of = |capacity: usize| states_of(capacity).iter().map(StatePlan::bytes).sum::<u64>();
    let order_of = |name: &str| stored.get(name, "").ok().and_then(|w| w.order.clone());
    let max_buffer = caps.max_weight_buffer().min(options.max_weight_buffer.unwrap_or(u64::MAX));
    let planned = |precision| {
        let layouts = Layouts::new(&plain, options.overrides.with(precision));
        let layout_of =
            |name: &str| stored.get(name, "").map_or(Layout::Dense(Float::F32), |w| layouts.of(w, plain.kind_of(name)));
        fused(&plain, options.fusions, &layout_of, &order_of, max_buffer)
    };
    let memory = options.memory.or(caps.memory).unwrap_or(u64::MAX);
    let (precision, mut notes, fit) = fitting(options.overrides.precision, bytes_of(asked), memory, planned)?;
    let (graph, mut weights, fusions) = fit;
    let room = memory.saturating_sub(bytes_of(asked) + ROOM);
    notes.extend(page_out(&graph, &mut weights, stored, options, (chunk, room, max_buffer))?);
    let rest = weights.values().map(WeightPlan::bytes).sum::<u64>() + ROOM;
    // iOS ends pages that use too much memory, so even a requested context may shrink there.
    let may_shrink = options.max_context.is_none() || caps.ios;
    let capacity =
        if may_shrink { fitting_context(asked, memory, |capacity| rest + bytes_of(capacity)) } else { asked };
    let needed = rest + bytes_of(capacity);
    if capacity < asked {
        let (takes, has) = (mb(needed), mb(memory));
        notes.push(format!(
            "Context reduced from {asked} to {capacity} tokens: the model now takes {takes} MB of about {has} MB of available \
             device memory. Load a smaller model for a longer context."
        ));
    }
    if needed > memory {
        if options.must_fit || caps.ios {
            let hint = "Load a smaller model or one with stronger quantization.".into();
            return Err(Error::OutOfMemory { what: "the model".into(), needed, limit: memory, hint });
        }
        let (takes, has) = (mb(needed), mb(memory));
        notes.push(format!(
            "The model may not fit: it takes about {takes} MB, and about {has} MB of device memory are available. Set a \
             smaller maxContext or load a smaller model."
        ));
    }
    if capacity > known {
        notes.push(format!(
            "The context of {capacity} tokens exceeds the model's maximum of {known}: output may get worse beyond it. Set \
             maxContext to at most {known}."
        ));
    }
    let (states, chunk) = (states_of(capacity), chunk.min(capacity));
    Ok(Decision { capacity, chunk, kv, graph, weights, states, fusions, precision, notes })
}

fn mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// Returns the longest of `asked`, `asked`/2, `asked`/4, ... that fits. If none fits, returns `asked`: the context is
/// not the cause.
fn fitting_context(asked: usize, memory: u64, needed: impl Fn(usize) -> u64) -> usize {
    let mut capacity = asked;
    while needed(capacity) > memory && capacity / 2 >= LEAST_CONTEXT {
        capacity /= 2;
    }
    if needed(capacity) > memory { asked } else { capacity }
}

impl Decision {
    /// Whether experts are loaded from the files while the model runs.
    pub fn pages_experts(&self) -> bool {
        self.weights.values().any(|w| w.is_paged() && matches!(w.kind, WeightKind::Experts { .. }))
    }

    /// Plans a step of some rows over the model's graph, or over a variant of it with other fusions.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub fn plan(&self, caps: &Caps, graph: &Graph, rows: RowsMode) -> Result<Plan> {
        self.plan_to(caps, graph, rows, self.capacity)
    }

    /// Plans a step whose positions stay below `capacity`.
    fn plan_to(&self, caps: &Caps, graph: &Graph, rows: RowsMode, capacity: usize) -> Result<Plan> {
        let (weights, states) = (&self.weights, &self.states[..]);
        let (kv, fuse_heads) = (self.kv, self.fusions.heads);
        lower(graph, PlanOptions { rows, caps, weights, kv, capacity, states, fuse_heads })
    }

    /// Whether prompts with few rows get a step of their own, because the largest tiles would be mostly empty.
    pub(super) fn has_middle(&self, caps: &Caps) -> bool {
        self.chunk > MatrixChoice::MIDDLE && MatrixChoice::is_tall(caps)
    }

    /// Plans the decode step for positions below [`NEAR`]. `None` if that would not save dispatches, or if the capacity
    /// is at most [`NEAR`].
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(super) fn near(&self, caps: &Caps, graph: &Graph) -> Result<Option<Plan>> {
        let wanted = (caps.dear_dispatches() || DecodeChoice::joins(caps)) && self.capacity > NEAR as usize;
        wanted.then(|| self.plan_to(caps, graph, RowsMode::Few(1), NEAR as usize)).transpose()
    }
}

/// Chooses the layouts of a graph's weights.
pub(super) struct Layouts {
    overrides: Overrides,
    eight_bits: SortedSet<String>,
}

impl Layouts {
    pub(super) fn new(graph: &Graph, overrides: Overrides) -> Self {
        let is_mixed = overrides.precision == Precision::Q4;
        Self { overrides, eight_bits: if is_mixed { eight_bit_tensors(graph) } else { SortedSet::new() } }
    }

    /// Uses the same rules for all weights, without a graph.
    pub(super) fn uniform(overrides: Overrides) -> Self {
        Self { overrides, eight_bits: SortedSet::new() }
    }

    /// Returns the layout of a weight: its own if it is quantized, else the one requested for its kind, or one with
    /// more bits.
    pub(super) fn of(&self, weight: &WeightSource, kind: WeightKind) -> Layout {
        let own = weight.layout().unwrap_or(Layout::Dense(Float::F32));
        let precision = self.overrides.precision_of(kind);
        let dense = if precision == Precision::F32 { Float::F32 } else { Float::F16 };
        if weight.is_scattered() && weight.order.is_none() {
            // No layout supports uneven groups: dequantize to a dense layout.
            return Layout::Dense(dense);
        }
        let Layout::Dense(stored) = own else { return own };
        match precision {
            Precision::Auto => Layout::Dense(stored),
            Precision::F32 | Precision::F16 => Layout::Dense(dense),
            Precision::Q4 if self.eight_bits.contains(weight.name.as_str()) => quantize::layout(8),
            Precision::Q4 => quantize::layout(4),
            Precision::Q8 => quantize::layout(8),
        }
    }
}

type Fused = (Graph, WeightPlans, Fusions);

/// Returns the graph with its shared fusions, its weight plans and the enabled fusions. Weights that must be split over
/// several buffers are neither merged nor gated.
pub(super) fn fused(
    plain: &Graph,
    fusions: Fusions,
    layout_of: &dyn Fn(&str) -> Layout,
    order_of: &dyn Fn(&str) -> Option<Arc<[u32]>>,
    max_buffer: u64,
) -> Result<Fused> {
    let graph = fuse::gather_inputs(plain.clone(), order_of);
    let graph = fuse::common(graph, fusions, layout_of);
    let weights = plan_weights(&graph, layout_of, max_buffer)?;
    let experts = |id| matches!(graph.weight(id).kind, WeightKind::Experts { .. });
    let merged = |id| graph.weight(id).parts.len() > 1 && !experts(id);
    let gated = |id| graph.nodes.iter().any(|n| matches!(&n.op, Op::Linear(l) if l.gated && l.weight == id));
    let whole = weights.iter().all(|(id, w)| w.runs.len() == 1 || !(merged(*id) || gated(*id)));
    if whole || !(fusions.siblings || fusions.gated) {
        return Ok((graph, weights, fusions));
    }
    fused(plain, Fusions { siblings: false, gated: false, ..fusions }, layout_of, order_of, max_buffer)
}

/// Resolves `auto`: keeps the stored precision if the model fits memory, else the most bits that fit. Beyond weights,
/// the model needs its KV cache, activations and staging; [`ROOM`] reserves space for the latter two.
fn fitting(
    asked: Precision,
    kv: u64,
    memory: u64,
    planned: impl Fn(Precision) -> Result<Fused>,
) -> Result<(Precision, Vec<String>, Fused)> {
    let needed = |fused: &Fused| fused.1.values().map(WeightPlan::bytes).sum::<u64>() + kv + ROOM;
    let (mut chosen, mut best) = (asked, planned(asked)?);
    let stored = needed(&best);
    if stored <= memory {
        return Ok((chosen, Vec::new(), best));
    }
    for fewer in [Precision::Q8, Precision::Q4].into_iter().filter(|_| asked == Precision::Auto) {
        let other = planned(fewer)?;
        if needed(&best) > memory && needed(&other) < needed(&best) {
            (chosen, best) = (fewer, other);
        }
    }
    let mut notes = Vec::new();
    if chosen != asked {
        let (name, takes, would, has) = (chosen.name(), mb(needed(&best)), mb(stored), mb(memory));
        notes.push(format!(
            "The weights are quantized to {name}: with the KV cache the model now takes {takes} MB. At the stored precision it \
             would take {would} MB, and about {has} MB of device memory are available."
        ));
    }
    Ok((chosen, notes, best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_shrinks_by_halves_until_it_fits() {
        let needed = |capacity: usize| 1000 + 10 * capacity as u64;
        assert_eq!(fitting_context(4096, 50_000, needed), 4096);
        assert_eq!(fitting_context(4096, 30_000, needed), 2048);
        assert_eq!(fitting_context(4096, 6_500, needed), 512);
        assert_eq!(fitting_context(3000, 9_000, needed), 750);
        // The context is not the cause.
        assert_eq!(fitting_context(4096, 6_000, needed), 4096);
        assert_eq!(fitting_context(300, 3_000, needed), 300);
    }
}
