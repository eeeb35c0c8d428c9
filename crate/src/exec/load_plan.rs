//! Decisions of a load before it touches the device: capacity, element types, and the storage of
//! each weight and state. Pure function from configuration, headers and capabilities to a
//! `LoadPlan`.

use super::mixed::eight_bit_tensors;
use super::offload::choose_offload;
use super::options::{Precision, PrecisionOptions, RunOptions};
use crate::arch;
use crate::device::Caps;
use crate::format::{Float, WeightLayout, WeightSource, Weights, quantize};
use crate::ir::{Graph, Op, WeightKind};
use crate::kernels::attention::Kv;
use crate::kernels::kv_splits::{DecodeTiling, SHORT_CONTEXT};
use crate::kernels::subgroup_matrix::MatrixTiling;
use crate::plan::{
    Fusions, Plan, PlanOptions, StatePlan, StepKind, WeightPlan, WeightPlans, fuse, lower,
    plan_states, plan_weights,
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
const MIN_CONTEXT: usize = 512;

/// Bytes that a model needs in addition to weights and states: activations, staging.
pub const HEADROOM_BYTES: u64 = 100 << 20;

/// The result of planning a load.
pub struct LoadPlan {
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
/// Configuration options that are not supported; `Request` for options that the device does not
/// support; `OutOfMemory` when a row of a weight exceeds the maximum buffer size, or the model must
/// fit (by option, or on a phone) and does not.
pub fn plan_load(
    config: &Value,
    stored: &Weights,
    caps: &Caps,
    options: &RunOptions,
) -> Result<LoadPlan> {
    let plain = arch::graph(config)?;
    let default = if caps.ios {
        DEFAULT_CONTEXT_IOS
    } else {
        DEFAULT_CONTEXT
    };
    let known = arch::max_positions(config);
    let asked = options
        .max_context
        .unwrap_or(default.min(known))
        .clamp(1, plain.max_positions());
    let usual = match plain.has_cross_attention() {
        // Short sequences: an f16 cache would save next to nothing.
        true => Kv::F32,
        false if caps.f16 => Kv::F16,
        false => Kv::Packed,
    };
    let kv = options.overrides.kv_type.unwrap_or(usual);
    if kv == Kv::F16 && !caps.f16 {
        let reason =
            "'f16' requires a device with shader-f16. Use 'packed', which has the same size on every device.".into();
        return Err(Error::Request {
            parameter: "kv".into(),
            reason,
        });
    }
    let chunk = options.prefill_chunk(caps);
    let states_of = |capacity: usize| plan_states(&plain, kv, capacity, chunk.min(capacity));
    let bytes_of = |capacity: usize| {
        states_of(capacity)
            .iter()
            .map(StatePlan::bytes)
            .sum::<u64>()
    };
    let order_of = |name: &str| {
        stored
            .get(name, "")
            .ok()
            .and_then(|w| w.column_order.clone())
    };
    let max_buffer = caps
        .max_weight_buffer()
        .min(options.max_weight_buffer.unwrap_or(u64::MAX));
    let planned = |precision| {
        let layouts = LayoutRules::new(&plain, options.overrides.with_precision(precision));
        let layout_of = |name: &str| {
            stored
                .get(name, "")
                .map_or(WeightLayout::Dense(Float::F32), |w| {
                    layouts.of(w, plain.kind_of(name))
                })
        };
        fuse_graph(&plain, options.fusions, &layout_of, &order_of, max_buffer)
    };
    let memory = options.memory.or(caps.memory).unwrap_or(u64::MAX);
    let (precision, mut notes, fit) = fit_precision(
        options.overrides.precision,
        bytes_of(asked),
        memory,
        planned,
    )?;
    let (graph, mut weights, fusions) = fit;
    let room = memory.saturating_sub(bytes_of(asked) + HEADROOM_BYTES);
    notes.extend(choose_offload(
        &graph,
        &mut weights,
        stored,
        options,
        (chunk, room, max_buffer),
    )?);
    let rest = weights.values().map(WeightPlan::bytes).sum::<u64>() + HEADROOM_BYTES;
    // iOS ends pages that use too much memory, so even a requested context may shrink there.
    let may_shrink = options.max_context.is_none() || caps.ios;
    let capacity = if may_shrink {
        fit_context(asked, memory, |capacity| rest + bytes_of(capacity))
    } else {
        asked
    };
    let needed = rest + bytes_of(capacity);
    if capacity < asked {
        let takes = to_megabytes(needed);
        let has = to_megabytes(memory);

        notes.push(format!(
            "Context reduced from {asked} to {capacity} tokens: the model now takes {takes} MB of about {has} MB of available \
             device memory. Load a smaller model for a longer context."
        ));
    }
    if needed > memory {
        if options.must_fit || caps.ios {
            let hint = "Load a smaller model or one with stronger quantization.".into();
            return Err(Error::OutOfMemory {
                what: "the model".into(),
                needed,
                limit: memory,
                hint,
            });
        }
        let takes = to_megabytes(needed);
        let has = to_megabytes(memory);

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
    let states = states_of(capacity);
    let chunk = chunk.min(capacity);

    Ok(LoadPlan {
        capacity,
        chunk,
        kv,
        graph,
        weights,
        states,
        fusions,
        precision,
        notes,
    })
}

fn to_megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// Returns the longest of `asked`, `asked`/2, `asked`/4, ... that fits. If none fits, returns
/// `asked`: the context is not the cause.
fn fit_context(asked: usize, memory: u64, needed: impl Fn(usize) -> u64) -> usize {
    let mut capacity = asked;
    while needed(capacity) > memory && capacity / 2 >= MIN_CONTEXT {
        capacity /= 2;
    }
    if needed(capacity) > memory {
        asked
    } else {
        capacity
    }
}

impl LoadPlan {
    /// Whether experts are loaded from the files while the model runs.
    pub fn pages_experts(&self) -> bool {
        self.weights
            .values()
            .any(|w| w.is_paged() && matches!(w.kind, WeightKind::Experts { .. }))
    }

    /// Plans a step of some rows over the model's graph, or over a variant of it with other
    /// fusions.
    ///
    /// # Errors
    /// `Internal` when no kernel supports a node.
    pub fn plan(&self, caps: &Caps, graph: &Graph, rows: StepKind) -> Result<Plan> {
        self.plan_for_capacity(caps, graph, rows, self.capacity)
    }

    /// Plans a step whose positions stay below `capacity`.
    fn plan_for_capacity(
        &self,
        caps: &Caps,
        graph: &Graph,
        rows: StepKind,
        capacity: usize,
    ) -> Result<Plan> {
        let weights = &self.weights;
        let states = &self.states[..];

        let kv = self.kv;
        let fuse_heads = self.fusions.heads;

        lower(
            graph,
            PlanOptions {
                rows,
                caps,
                weights,
                kv,
                capacity,
                states,
                fuse_heads,
            },
        )
    }

    /// Whether prompts with few rows get a step of their own, because the largest tiles would be
    /// mostly empty.
    pub(super) fn has_medium_prefill(&self, caps: &Caps) -> bool {
        self.chunk > MatrixTiling::TALL_TILE_ROWS && MatrixTiling::is_tall(caps)
    }

    /// Plans the decode step for positions below [`NEAR`]. `None` if that would not save
    /// dispatches, or if the capacity is at most [`NEAR`].
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(super) fn short_context(&self, caps: &Caps, graph: &Graph) -> Result<Option<Plan>> {
        let wanted = (caps.dispatch_is_expensive() || DecodeTiling::fuses_reduce(caps))
            && self.capacity > SHORT_CONTEXT as usize;
        wanted
            .then(|| {
                self.plan_for_capacity(caps, graph, StepKind::Decode(1), SHORT_CONTEXT as usize)
            })
            .transpose()
    }
}

/// Chooses the layouts of a graph's weights.
pub(super) struct LayoutRules {
    overrides: PrecisionOptions,
    eight_bits: SortedSet<String>,
}

impl LayoutRules {
    pub(super) fn new(graph: &Graph, overrides: PrecisionOptions) -> Self {
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
    pub(super) fn uniform(overrides: PrecisionOptions) -> Self {
        Self {
            overrides,
            eight_bits: SortedSet::new(),
        }
    }

    /// Returns the layout of a weight: its own if it is quantized, else the one requested for its
    /// kind, or one with more bits.
    pub(super) fn of(&self, weight: &WeightSource, kind: WeightKind) -> WeightLayout {
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

type FusedGraph = (Graph, WeightPlans, Fusions);

/// Returns the graph with its shared fusions, its weight plans and the enabled fusions. Weights
/// that must be split over several buffers are neither merged nor gated.
pub(super) fn fuse_graph(
    plain: &Graph,
    fusions: Fusions,
    layout_of: &dyn Fn(&str) -> WeightLayout,
    order_of: &dyn Fn(&str) -> Option<Arc<[u32]>>,
    max_buffer: u64,
) -> Result<FusedGraph> {
    let graph = fuse::gather_inputs(plain.clone(), order_of);
    let graph = fuse::common(graph, fusions, layout_of);
    let weights = plan_weights(&graph, layout_of, max_buffer)?;
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
    fuse_graph(
        plain,
        Fusions {
            siblings: false,
            gated: false,
            ..fusions
        },
        layout_of,
        order_of,
        max_buffer,
    )
}

/// Resolves `auto`: keeps the stored precision if the model fits memory, else the most bits that
/// fit. Beyond weights, the model needs its KV cache, activations and staging; [`ROOM`] reserves
/// space for the latter two.
fn fit_precision(
    asked: Precision,
    kv: u64,
    memory: u64,
    planned: impl Fn(Precision) -> Result<FusedGraph>,
) -> Result<(Precision, Vec<String>, FusedGraph)> {
    let needed = |fused: &FusedGraph| {
        fused.1.values().map(WeightPlan::bytes).sum::<u64>() + kv + HEADROOM_BYTES
    };
    let mut chosen = asked;
    let mut best = planned(asked)?;

    let stored = needed(&best);
    if stored <= memory {
        return Ok((chosen, Vec::new(), best));
    }
    for fewer in [Precision::Q8, Precision::Q4]
        .into_iter()
        .filter(|_| asked == Precision::Auto)
    {
        let other = planned(fewer)?;
        if needed(&best) > memory && needed(&other) < needed(&best) {
            (chosen, best) = (fewer, other);
        }
    }
    let mut notes = Vec::new();
    if chosen != asked {
        let name = chosen.name();
        let takes = to_megabytes(needed(&best));
        let would = to_megabytes(stored);
        let has = to_megabytes(memory);

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
    fn the_context_halves_until_it_fits() {
        let needed = |capacity: usize| 1000 + 10 * capacity as u64;
        assert_eq!(fit_context(4096, 50_000, needed), 4096);
        assert_eq!(fit_context(4096, 30_000, needed), 2048);
        assert_eq!(fit_context(4096, 6_500, needed), 512);
        assert_eq!(fit_context(3000, 9_000, needed), 750);
        // The context is not the cause.
        assert_eq!(fit_context(4096, 6_000, needed), 4096);
        assert_eq!(fit_context(300, 3_000, needed), 300);
    }
}
