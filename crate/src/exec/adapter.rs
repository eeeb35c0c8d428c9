//! LoRA and DoRA adapters of a loaded graph, in the format of peft: an overlay that adds low-rank
//! updates to matmuls, or replaces their matrices by merged ones. Decoders and encoders load them
//! alike; several adapters may be loaded at once.

mod merge;

use super::graph_runner::GraphRunner;
use super::load::{WeightLoadRequest, load_weights};
use super::options::RunOptions;
use super::planned_graph::{PlannedGraph, TensorStorage, fuse_with_storage};
use super::program_key::OverlayId;
use super::step::Buffers;
use super::weight_store::WeightStore;
use crate::arch::{self, LoadConfig};
use crate::format::{Checkpoint, Float, WeightLayout, Weights, detect};
use crate::gpu::{Backend, Buffer, Gpu};
use crate::hub::Source;
use crate::ir::{Graph, LowRankUpdate, WeightId, WeightKind, add_low_rank_updates};
use crate::plan::WeightPlans;
use crate::util::map::SortedMap;
use crate::{Error, Result};
use serde_json::Value;

/// Settings of an adapter.
const CONFIG_FILE: &str = "adapter_config.json";
/// Its weights.
const WEIGHTS_FILE: &str = "adapter_model.safetensors";
/// What peft puts before the names of the model's tensors.
const PREFIX: &str = "base_model.model.";
/// The ends of the names of DoRA's norms.
const MAGNITUDES: [&str; 2] = [".lora_magnitude_vector", ".lora_magnitude_vector.weight"];

/// Weights of an adapter, with the graph that reads them.
struct AdapterWeights {
    planned: PlannedGraph,
    /// The plans of the adapter's own weights.
    plans: WeightPlans,
    buffers: Buffers,
}

/// An adapter whose weights are on the device.
pub(super) struct LoadedAdapter {
    /// The overlay with its weights.
    pub overlay: OverlayId,
    /// The graph that reads them.
    pub planned: PlannedGraph,
    /// Bytes of its weights.
    pub bytes: u64,
}

/// The loaded graph that an adapter extends.
pub(super) struct AdapterBase<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// config.json of the model.
    pub config: &'a LoadConfig,
    /// Options of the model's load.
    pub options: &'a RunOptions,
    /// Its graph and weights.
    pub runner: &'a GraphRunner,
    /// Returns its graph without fusions.
    pub plain: &'a dyn Fn() -> Result<Graph>,
    /// A module of the checkpoint that the graph leaves out; its updates are ignored.
    pub unused_module: Option<&'a str>,
}

impl AdapterBase<'_> {
    /// Loads the weights of an adapter as an overlay. With `merge`, and for DoRA, the overlay has
    /// copies of the matrices that it updates: no further dispatches, but more memory.
    ///
    /// # Errors
    /// `UnsupportedOption` for other kinds of adapters, for matrices that the model does not have,
    /// and for a model with act-order; errors of the source or the device.
    pub async fn load(&self, source: &Source, merge: bool) -> Result<LoadedAdapter> {
        let base = &self.runner.planned;
        let has_order = |kind| matches!(kind, WeightKind::Order);
        if base.weights.values().any(|w| has_order(w.kind)) {
            return Err(self.refuse_adapter("an adapter of a model with act-order"));
        }
        let config: Value =
            serde_json::from_slice(&source.read(CONFIG_FILE).await?).map_err(|e| {
                Error::Config {
                    file: CONFIG_FILE.into(),
                    reason: format!("invalid JSON: {e}"),
                }
            })?;
        let (size, header) = source.header(WEIGHTS_FILE).await?;
        let checkpoint = Checkpoint::from_single(WEIGHTS_FILE, size, header)?;
        let mut stored = detect(&Value::Null, &checkpoint, &SortedMap::new());
        // The rows of an update are ordered as those of its matrix.
        for weight in stored.iter_mut() {
            let ends = MAGNITUDES.into_iter().chain([".lora_B.weight"]);
            let mut stems = ends.filter_map(|end| weight.name.strip_suffix(end));
            let stem = stems.next();
            if let Some(stem) = stem
                && let Some(order) = arch::row_order(self.config, &format!("{stem}.weight"))?
            {
                weight.row_order = order;
            }
        }
        let updates = self.low_rank_updates(&config, &stored)?;
        let is_merged = merge || updates.iter().any(|update| update.magnitude.is_some());
        let AdapterWeights {
            planned,
            plans,
            buffers,
        } = if is_merged {
            self.merge_updates(source, &checkpoint, &stored, &updates)
                .await?
        } else {
            self.load_updates(source, &checkpoint, &stored, &updates)
                .await?
        };
        let bytes: u64 = buffers.values().map(Buffer::size).sum();
        let mut store = WeightStore::default();
        store.insert(&planned.names, &plans, &buffers);
        Ok(LoadedAdapter {
            overlay: self.runner.add_overlay(store),
            planned,
            bytes,
        })
    }

    /// Loads the factors of updates, and adds them to the graph.
    async fn load_updates(
        &self,
        source: &Source,
        checkpoint: &Checkpoint,
        stored: &Weights,
        updates: &[LowRankUpdate],
    ) -> Result<AdapterWeights> {
        let base = self.runner.planned.clone();
        let (graph, taken) = add_low_rank_updates((self.plain)()?, updates);
        if taken != updates.len() {
            return Err(self.refuse_updates(updates.len(), taken));
        }
        let loaded: SortedMap<&str, (WeightId, WeightLayout)> = base
            .weights
            .iter()
            .flat_map(|(id, plan)| {
                let parts = &base.graph.weight(*id).parts;
                parts
                    .iter()
                    .map(|(name, _)| (name.as_str(), (*id, plan.layout)))
            })
            .collect();
        let layout_of = |name: &str| match loaded.get(name) {
            Some((_, layout)) => *layout,
            None => stored
                .get(name, "")
                .and_then(|weight| weight.layout())
                .unwrap_or(WeightLayout::Dense(Float::F32)),
        };
        let storage = TensorStorage {
            layout_of: &layout_of,
            order_of: &|_| None,
            // As in the model: an update takes the activation off its matmul, which could merge with
            // more of its siblings then.
            shared: &|a, b| loaded.get(a).map(|own| own.0) == loaded.get(b).map(|own| own.0),
            max_buffer: self.options.weight_buffer_limit(self.gpu.caps()),
        };
        let fused = fuse_with_storage(&graph, base.fusions, &storage)?;
        let mut planned = base.with_graph(fused);
        planned.adopt_layouts(&self.runner.store().borrow());
        let added: WeightPlans = planned
            .weights
            .iter()
            .filter(|(id, _)| {
                let store = self.runner.store().borrow();
                store.plan(&planned.names[id.0]).is_none()
            })
            .map(|(id, plan)| (*id, plan.clone()))
            .collect();
        let wanted = WeightLoadRequest {
            gpu: self.gpu,
            graph: &planned.graph,
            plans: &added,
            source,
            checkpoint,
            stored,
        };
        let buffers = load_weights(wanted).await?;
        Ok(AdapterWeights {
            planned,
            plans: added,
            buffers,
        })
    }

    /// Reads the updates from the settings and the names of the tensors.
    fn low_rank_updates(&self, config: &Value, stored: &Weights) -> Result<Vec<LowRankUpdate>> {
        let kind = config["peft_type"].as_str().unwrap_or("none");
        if kind != "LORA" {
            return Err(self.refuse_adapter(&format!("peft_type = {kind}")));
        }
        // The factors of a transposed matrix (`fan_in_fan_out`) are not transposed.
        for field in ["lora_bias", "use_qalora", "layer_replication"] {
            if !matches!(config[field], Value::Null | Value::Bool(false)) {
                return Err(self.refuse_adapter(&format!("{field} = {}", config[field])));
            }
        }
        let alpha = config["lora_alpha"].as_f64().unwrap_or(8.0) as f32;
        let alphas = config["alpha_pattern"].as_object();
        let patterns = alphas.into_iter().flatten();
        let patterns: Vec<(&str, f32)> = patterns
            .map(|(name, alpha)| (&name[..], alpha.as_f64().unwrap_or(0.0) as f32))
            .collect();
        let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
        if let Some((pattern, _)) = patterns.iter().find(|(name, _)| !name.chars().all(is_name)) {
            return Err(self.refuse_adapter(&format!(
                "the regular expression {pattern} in alpha_pattern"
            )));
        }
        let is_dora = config["use_dora"] == Value::Bool(true);
        let by_root = config["use_rslora"] == Value::Bool(true);
        let mut updates = Vec::new();
        for weight in stored.iter() {
            // A copy of the model's own matrix, which peft adds for a head.
            if weight.name.ends_with(".base_layer.weight") {
                continue;
            }
            let mut modules = weight.name.split('.');
            if modules.any(|module| Some(module) == self.unused_module) {
                continue;
            }
            if is_dora && MAGNITUDES.iter().any(|end| weight.name.ends_with(end)) {
                continue;
            }
            let stem = weight.name.strip_suffix(".lora_A.weight");
            let (Some(stem), &[rank, _]) = (stem, &weight.shape[..]) else {
                if !weight.name.ends_with(".lora_B.weight") {
                    return Err(self.refuse_adapter(&format!("the tensor {}", weight.name)));
                }
                continue;
            };
            let matrix = stem.strip_prefix(PREFIX).unwrap_or(stem);
            let divisor = if by_root {
                (rank as f32).sqrt()
            } else {
                rank as f32
            };
            let own = patterns.iter().find(|(name, _)| {
                let rest = matrix.strip_suffix(name);
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            });
            let alpha = own.map_or(alpha, |(_, alpha)| *alpha);
            let mut magnitude = None;
            if is_dora {
                let names = MAGNITUDES.map(|end| format!("{stem}{end}"));
                let own = names.iter().find(|name| stored.get(name, "").is_ok());
                // The first name in the error, if there is none.
                let own = own.unwrap_or(&names[0]);
                stored.get(own, "the adapter")?;
                magnitude = Some(own.clone());
            }
            updates.push(LowRankUpdate {
                matrix: arch::canonical_name(self.config, &format!("{matrix}.weight")),
                a: weight.name.clone(),
                b: format!("{stem}.lora_B.weight"),
                rank,
                scale: alpha / divisor,
                magnitude,
            });
        }
        Ok(updates)
    }

    /// The error for updates of which only `taken` name a matmul.
    fn refuse_updates(&self, count: usize, taken: usize) -> Error {
        self.refuse_adapter(&format!("{count} updates of which {taken} name a matmul"))
    }

    /// The error for an adapter that the graph cannot use.
    pub fn refuse_adapter(&self, option: &str) -> Error {
        Error::UnsupportedOption {
            architecture: self.runner.planned.graph.name.clone(),
            option: option.into(),
            hint: "Use a LoRA adapter of peft for this model's attention and MLP matrices.".into(),
        }
    }
}
