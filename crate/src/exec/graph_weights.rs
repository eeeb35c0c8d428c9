//! Weights of a graph without fusions, for passes of other crates that lower graphs themselves.

use super::files::ModelFiles;
use super::load::{WeightLoadRequest, load_weights};
use super::options::{PrecisionOptions, RunOptions};
use super::planned_graph::LayoutRules;
use crate::format::{Float, WeightLayout};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Source;
use crate::ir::Graph;
use crate::plan::{Slot, WeightPlans, plan_weights};
use crate::{Error, Result};
use std::collections::HashMap;

/// The weights of a graph on the device.
#[derive(Debug, Default)]
pub struct GraphWeights {
    /// How each weight is stored.
    pub plans: WeightPlans,
    /// Buffers by the slots of weights.
    pub buffers: HashMap<Slot, Buffer>,
}

impl GraphWeights {
    /// Plans the storage of all weights of a graph, quantized as stored or as `overrides` says.
    ///
    /// # Errors
    /// `UnsupportedOption` for weights with reordered columns (GPTQ with act-order); `OutOfMemory`
    /// for a row that exceeds the device's largest buffer.
    pub fn plan(
        gpu: &Gpu,
        files: &ModelFiles,
        graph: &Graph,
        overrides: PrecisionOptions,
    ) -> Result<WeightPlans> {
        let stored = &files.weights;
        if let Some(ordered) = stored.iter().find(|weight| weight.column_order.is_some()) {
            return Err(Error::UnsupportedOption {
                architecture: graph.name.clone(),
                option: format!("the reordered columns of {} (desc_act)", ordered.name),
                hint: "Use a checkpoint without act-order.".into(),
            });
        }
        let rules = LayoutRules::new(graph, overrides);
        let layout_of = |name: &str| {
            stored
                .get(name, "")
                .map_or(WeightLayout::Dense(Float::F32), |weight| {
                    rules.of(weight, graph.kind_of(name))
                })
        };
        let limit = RunOptions::default().weight_buffer_limit(gpu.caps());
        plan_weights(graph, &layout_of, limit)
    }

    /// Loads the weights of a graph as planned.
    ///
    /// # Errors
    /// Errors of the checkpoint, the source or the device.
    pub async fn load(
        gpu: &Gpu,
        source: &Source,
        files: &ModelFiles,
        graph: &Graph,
        plans: WeightPlans,
    ) -> Result<Self> {
        let buffers = load_weights(WeightLoadRequest {
            gpu,
            graph,
            plans: &plans,
            source,
            checkpoint: &files.checkpoint,
            stored: &files.weights,
        })
        .await?;
        Ok(Self { plans, buffers })
    }
}
