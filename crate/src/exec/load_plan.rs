//! Decisions of a load before it touches the device: capacity, element types, and the storage of
//! each weight and state. Pure function from configuration, headers and capabilities to a
//! `LoadPlan`.

use super::decoder_steps::DecoderSteps;
use super::kv_offload::plan_kv_offload;
use super::offload::choose_offload;
use super::options::{Precision, RunOptions};
use super::planned_graph::{FusedGraph, PlannedGraph, fuse_graph};
use crate::arch::{self, LoadConfig};
use crate::device::Caps;
use crate::format::Weights;
use crate::ir::Graph;
use crate::kernels::attention::Kv;
use crate::plan::{StatePlan, WeightPlan, plan_states};
use crate::{Error, Result};

/// Default context length in tokens, unless the caller or the model sets a smaller one.
const DEFAULT_CONTEXT: usize = 4096;
/// Default context length on phones and tablets.
const DEFAULT_CONTEXT_IOS: usize = 2048;
/// Minimum context length when it is reduced to fit memory.
const MIN_CONTEXT: usize = 512;

/// Minimum tokens of a prefill step when it is reduced to fit the memory of the KV cache.
const MIN_CHUNK: usize = 64;

/// Bytes that a model needs in addition to weights and states: activations, staging.
pub const HEADROOM_BYTES: u64 = 100 << 20;

/// The result of planning a load.
pub struct LoadPlan {
    /// The graph and the storage of its weights and states.
    pub planned: PlannedGraph,
    /// Plans the steps.
    pub steps: DecoderSteps,
    /// Storage precision of the weights that the checkpoint does not quantize.
    pub precision: Precision,
    /// Notes on choices that a user may not expect.
    pub notes: Vec<String>,
    /// Bytes of weights, states and headroom.
    pub needed: u64,
    /// Those of `needed` that are allocated after the weights.
    pub reserve: u64,
}

/// Plans how a model is loaded and run, from its graph without fusions.
///
/// # Errors
/// Configuration options that are not supported; `Request` for options that the device does not
/// support; `OutOfMemory` when a row of a weight exceeds the maximum buffer size, or the model must
/// fit (by option, or on a phone) and does not.
pub fn plan_load(
    plain: &Graph,
    config: &LoadConfig,
    stored: &Weights,
    caps: &Caps,
    options: &RunOptions,
) -> Result<LoadPlan> {
    let known = arch::max_positions(config);
    let asked = options
        .max_context
        .unwrap_or(default_context(caps).min(known))
        .clamp(1, plain.max_positions());
    let kv = options.overrides.kv_type.unwrap_or(default_kv(plain, caps));
    if kv == Kv::F16 && !caps.f16 {
        let reason =
            "'f16' requires a device with shader-f16. Use 'packed', which has the same size on every device.".into();
        return Err(Error::Request {
            parameter: "kv".into(),
            reason,
        });
    }
    let chunk = options.prefill_chunk(caps);
    let chunk = match options.kv_memory {
        Some(limit) => {
            let plan_of = |chunk: usize| plan_states(plain, kv, asked, chunk);
            // An image whose tokens attend to each other takes one step.
            let least = match plain.has_image_masks() {
                true => chunk,
                false => MIN_CHUNK,
            };
            fit_chunk((chunk, least), asked, limit, plan_of)?
        }
        None => chunk,
    };
    let states_of = |capacity: usize| plan_states(plain, kv, capacity, chunk.min(capacity));
    let bytes_of = |capacity: usize| {
        let states = states_of(capacity);
        let states: u64 = states.iter().map(StatePlan::bytes).sum();
        // Both are there while KV caches move to main memory.
        let limit = options.kv_memory.map_or(u64::MAX, |limit| 2 * limit);
        states.min(limit) + plain.stored_hidden_bytes(capacity)
    };
    let max_buffer = options.weight_buffer_limit(caps);
    let planned = |precision| {
        let options = RunOptions {
            overrides: options.overrides.with_precision(precision),
            ..*options
        };
        fuse_graph(plain, stored, caps, &options)
    };
    let memory = options.memory.or(caps.memory).unwrap_or(u64::MAX);
    let memory = memory.min(options.room.unwrap_or(u64::MAX));
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
    if options.kv_memory.is_some() && weights.values().any(WeightPlan::is_paged) {
        return Err(Error::Request {
            parameter: "maxKvMemory".into(),
            reason: "it cannot be combined with experts or tables that stay in the files. Load the model without it, or \
                     without 'experts', 'expertBytes' and 'pageEmbeddings' and with a larger 'maxMemory'."
                .into(),
        });
    }
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
            let hint = if options.memory == Some(memory) {
                "Raise maxMemory, or load a smaller model or one with stronger quantization."
            } else {
                "Load a smaller model or one with stronger quantization."
            };
            return Err(Error::OutOfMemory {
                what: "the model".into(),
                needed,
                limit: memory,
                hint: hint.into(),
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
    let mut planned = PlannedGraph::new((graph, weights, fusions), fusions);
    planned.states = states_of(capacity);
    planned.kv = kv;
    planned.capacity = capacity;
    planned.activations = options.overrides.activations;
    let steps = DecoderSteps::new(&planned, chunk.min(capacity), options.prefetch_experts);

    Ok(LoadPlan {
        planned,
        steps,
        precision,
        notes,
        needed,
        reserve: bytes_of(capacity) + HEADROOM_BYTES,
    })
}

/// Returns the most tokens of a prefill step, from `least` to `most`, with which the states take at most
/// `limit` bytes: KV caches in main memory keep the positions of one step on the device.
fn fit_chunk(
    (most, least): (usize, usize),
    capacity: usize,
    limit: u64,
    states: impl Fn(usize) -> Vec<StatePlan>,
) -> Result<usize> {
    let mut chunk = most;
    loop {
        let rows = chunk.min(capacity);
        match plan_kv_offload(&states(rows), rows, limit) {
            Err(_) if chunk / 2 >= least => chunk /= 2,
            planned => return planned.map(|_| chunk),
        }
    }
}

/// The default context length in tokens.
fn default_context(caps: &Caps) -> usize {
    if caps.ios {
        DEFAULT_CONTEXT_IOS
    } else {
        DEFAULT_CONTEXT
    }
}

/// The default element type of the KV cache: half precision, except for two kinds of models.
fn default_kv(graph: &Graph, caps: &Caps) -> Kv {
    // Sequences under cross attention are short: half precision would save next to nothing. Rounding
    // activations to 8 bits amplifies the cache's errors to more than 1e-2 of the logits.
    if graph.has_cross_attention() || graph.quantizes_activations() {
        Kv::F32
    } else if caps.f16 {
        Kv::F16
    } else {
        Kv::Packed
    }
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

/// Resolves `auto`: keeps the stored precision if the model fits memory, else the most bits that
/// fit. Beyond weights, the model needs its KV cache, activations and staging; [`HEADROOM_BYTES`] reserves
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
    use crate::ir::{GraphBuilder, StateSpec};

    #[test]
    fn phones_and_tablets_have_half_the_context_by_default() {
        let caps = |ios| Caps {
            ios,
            ..Caps::default()
        };
        assert_eq!(default_context(&caps(true)), 2048);
        assert_eq!(default_context(&caps(false)), 4096);
    }

    #[test]
    fn prefill_steps_halve_until_the_states_fit() {
        let states = |chunk: usize| {
            let mut b = GraphBuilder::new("test");
            for _ in 0..4 {
                b.state(StateSpec::Kv {
                    kv_heads: 1,
                    head_dim: 4,
                    window: 0,
                });
            }
            plan_states(b.graph(), Kv::F32, 4096, chunk)
        };
        // A layer takes 131,072 bytes; of 512 positions, four take 65,536.
        let fit = |chunks, limit| fit_chunk(chunks, 4096, limit, states).ok();
        assert_eq!(fit((512, 64), 131_072 + 65_536), Some(512));
        assert_eq!(fit((512, 64), 131_072 + 65_535), Some(256));
        assert_eq!(fit((512, 64), 131_072 + 8_192), Some(64));
        assert_eq!(fit((512, 64), 131_072 + 8_191), None);
        assert_eq!(fit((512, 512), 131_072 + 65_535), None);
    }

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
